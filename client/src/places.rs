//! Which node leads a partition, as servers told, and one publisher's way to it.
//!
//! Owns: the redirects of all connections of a client, and per partition how many
//! records are under way and by which connection.
//!
//! Invariants:
//! 1. What is told here is a hint: a node that does not lead passes frames on.
//! 2. Records of a partition are under way by one connection at a time, so that a
//!    change of the way changes nothing about their order.

use std::{
    collections::HashMap,
    sync::{
        atomic::{AtomicBool, Ordering},
        Arc, Mutex, MutexGuard, PoisonError,
    },
};

use tokio::sync::Notify;

use crate::config::MAX_PLACES;

/// Where the leader of a partition is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub node: u32,
    pub shard: u16,
    /// For clients.
    pub address: Arc<str>,
}

/// The leaders that servers told of, by queue and partition.
#[derive(Debug, Default)]
pub(crate) struct Places {
    known: Mutex<HashMap<(u64, u16), Place>>,
    /// Something was ever told: a server that is alone never does.
    any: AtomicBool,
}

impl Places {
    pub fn learn(&self, queue_id: u64, partition: u16, place: Place) {
        let mut known = lock(&self.known);
        if known.len() >= MAX_PLACES {
            known.clear();
        }
        known.insert((queue_id, partition), place);
        self.any.store(true, Ordering::Release);
    }

    /// The way there led nowhere: whoever is asked next tells again.
    pub fn forget(&self, queue_id: u64, partition: u16) {
        lock(&self.known).remove(&(queue_id, partition));
    }

    pub fn get(&self, queue_id: u64, partition: u16) -> Option<Place> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        lock(&self.known).get(&(queue_id, partition)).cloned()
    }
}

/// Records of one partition that are under way.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    state: Mutex<LaneState>,
    /// Told when nothing is under way any more.
    pub emptied: Notify,
}

#[derive(Debug, Default)]
struct LaneState {
    /// Number of the link that they were given to.
    link: u64,
    under_way: usize,
}

/// One publish that is under way; over when it is dropped.
#[derive(Debug)]
pub(crate) struct UnderWay(Arc<Lane>);

impl Lane {
    /// Lets a publish go by link number `link`; `None` while others are under way
    /// by another one.
    pub fn enter(self: &Arc<Self>, link: u64) -> Option<UnderWay> {
        let mut state = lock(&self.state);
        if state.under_way > 0 && state.link != link {
            return None;
        }
        state.link = link;
        state.under_way += 1;
        Some(UnderWay(self.clone()))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.under_way -= 1;
        if state.under_way == 0 {
            drop(state);
            self.0.emptied.notify_waiters();
        }
    }
}

/// A panic elsewhere cannot have left it half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_way_opens_only_when_nothing_is_under_way() {
        let lane = Arc::new(Lane::default());
        let first = lane.enter(1).unwrap();
        let second = lane.enter(1).unwrap();
        assert!(lane.enter(2).is_none());
        drop(first);
        assert!(lane.enter(2).is_none());
        drop(second);
        let other = lane.enter(2).unwrap();
        assert!(lane.enter(1).is_none());
        drop(other);
    }

    #[test]
    fn places_are_told_forgotten_and_bounded() {
        let places = Places::default();
        let place = |node| Place {
            node,
            shard: 0,
            address: "a:1".into(),
        };
        assert_eq!(places.get(1, 0), None);
        places.learn(1, 0, place(2));
        places.learn(1, 0, place(3));
        assert_eq!(places.get(1, 0), Some(place(3)));
        places.forget(1, 0);
        assert_eq!(places.get(1, 0), None);
        for queue_id in 0..=MAX_PLACES as u64 {
            places.learn(queue_id, 0, place(1));
        }
        assert!(lock(&places.known).len() <= MAX_PLACES);
    }
}
