//! The connections of a client, and which of them is for what.
//!
//! Owns: the first connection and those to the other shards of that node, by which
//! everything can go (*base* links); and *straight* links, each to one shard of a node
//! that leads what is published to or consumed.
//!
//! Invariants:
//! 1. At most one base link per shard, and one straight link per shard and address.
//! 2. A straight link has the base link of its shard as fallback: that one takes over
//!    what it cannot carry. A base link has none.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
};

use wire::message::ANY_SHARD;

use crate::{
    config::{Config, MAX_LEADERS},
    link::{Granted, Link, Shared},
    places::{Place, Places},
    servers::{Servers, Turns},
};

#[derive(Debug)]
pub(crate) struct Links {
    me: Weak<Links>,
    config: Arc<Config>,
    turns: Arc<Turns>,
    places: Arc<Places>,
    /// The first connection; any shard answers what concerns no partition.
    home: Link,
    /// What the first connection was granted first.
    granted: OnceLock<Granted>,
    /// Base links to the other shards, made when first needed.
    others: Mutex<HashMap<u16, Link>>,
    /// Straight links, by shard and address.
    leaders: Mutex<HashMap<(u16, Arc<str>), Link>>,
}

impl Links {
    /// Starts connecting to the first of `servers` that answers.
    pub fn start(config: Arc<Config>, servers: &Servers) -> Arc<Self> {
        let turns = Arc::new(Turns::new(servers));
        let places = Arc::new(Places::default());
        Arc::new_cyclic(|me: &Weak<Links>| {
            let known = (places.clone(), me.clone());
            Links {
                me: me.clone(),
                home: Link::start(config.clone(), known, turns.clone(), ANY_SHARD, None),
                config,
                turns,
                places,
                granted: OnceLock::new(),
                others: Mutex::default(),
                leaders: Mutex::default(),
            }
        })
    }

    /// The first connection stands.
    pub fn came_up(&self, granted: Granted) {
        // The first word counts.
        let _ = self.granted.set(granted);
    }

    pub fn home(&self) -> &Arc<Shared> {
        self.home.shared()
    }

    /// Shards of the server, as the first connection was told; 0 before that.
    pub fn shards(&self) -> u16 {
        self.granted.get().map_or(0, |granted| granted.shards)
    }

    /// The base link for `shard`: its own, or the first one when the client keeps only
    /// that, or the server has no such shard.
    pub fn base(&self, shard: Option<u16>) -> Arc<Shared> {
        let home_shard = self.granted.get().map_or(0, |granted| granted.shard);
        let shard = shard.unwrap_or(home_shard);
        if !self.config.shard_aware || shard == home_shard || shard >= self.shards() {
            return self.home().clone();
        }
        let mut links = lock(&self.others);
        let link = links
            .entry(shard)
            .or_insert_with(|| self.link(self.turns.clone(), shard, None));
        link.shared().clone()
    }

    /// The link for a partition's next publish or subscribe: straight to its leader
    /// once that is known and connected to, or the base link of its shard.
    pub fn to_lead(&self, queue_id: u64, partition: u16, shard: Option<u16>) -> Arc<Shared> {
        self.place(queue_id, partition)
            .and_then(|place| {
                let node = place.node;
                self.to_place(place).filter(|link| link.node() == node)
            })
            .unwrap_or_else(|| self.base(shard))
    }

    /// Where a partition is led, if that was told and is of use.
    pub fn place(&self, queue_id: u64, partition: u16) -> Option<Place> {
        let place = || self.places.get(queue_id, partition);
        self.config.goes_straight().then(place).flatten()
    }

    /// The link to a leader: a base link that leads there, or a straight one, which
    /// begins to connect when it is first asked for. `None` at the bound.
    pub fn to_place(&self, place: Place) -> Option<Arc<Shared>> {
        let base = self.base(Some(place.shard));
        if base.node() == place.node {
            return Some(base);
        }
        let mut leaders = lock(&self.leaders);
        let key = (place.shard, place.address);
        if !leaders.contains_key(&key) && leaders.len() >= MAX_LEADERS {
            return None;
        }
        let link = leaders.entry(key).or_insert_with_key(|(shard, address)| {
            let only = Arc::new(Turns::new(&Servers::from(&**address)));
            self.link(only, *shard, Some(base))
        });
        Some(link.shared().clone())
    }

    fn link(&self, servers: Arc<Turns>, shard: u16, fallback: Option<Arc<Shared>>) -> Link {
        let known = (self.places.clone(), self.me.clone());
        Link::start(self.config.clone(), known, servers, shard, fallback)
    }

    /// The connections that everything can go by.
    pub fn all_base(&self) -> Vec<Arc<Shared>> {
        let mut links = vec![self.home().clone()];
        let others = lock(&self.others);
        links.extend(others.values().map(|link| link.shared().clone()));
        links
    }

    /// Those to leaders first: what they cannot send goes to the others.
    pub fn all(&self) -> Vec<Arc<Shared>> {
        let leaders = lock(&self.leaders);
        let mut links: Vec<_> = leaders.values().map(|link| link.shared().clone()).collect();
        drop(leaders);
        links.extend(self.all_base());
        links
    }
}

/// A panic elsewhere cannot have left it half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
