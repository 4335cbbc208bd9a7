//! Who consumes, and whose turn it is.
//!
//! Owns: subscriptions and their credit.
//!
//! Invariants:
//! 1. A consumer is in `turns` or `parked`, once, exactly if it has credit in
//!    records and in bytes.
//! 2. Turns are taken in order: between two deliveries to one consumer every
//!    other one that has credit and is not blocked gets one.
//! 3. A consumer found blocked is asked again only when the time has moved or
//!    nobody else can take the record; each is asked at most once per delivery.
//!
//! A delivery costs one record and its length in bytes of credit; the last one
//! may overdraw the bytes. Credit comes back without a grant only for leases
//! that ran out, and at most up to the highest balance a grant has made: the
//! client will never settle those, so it cannot grant for them.

use std::collections::{BTreeMap, VecDeque};

use super::ConsumerId;

struct Consumer {
    id: ConsumerId,
    records: u64,
    bytes: i64,
    /// Highest balance a grant has made.
    window_records: u64,
    window_bytes: i64,
    /// Leases not under settle.
    leased: u64,
    /// Is in `turns` or `parked`.
    queued: bool,
    /// Is being removed; its leases are given back first.
    leaving: bool,
}

impl Consumer {
    fn has_credit(&self) -> bool {
        self.records > 0 && self.bytes > 0
    }

    fn grant(&mut self, records: u32, bytes: u64) {
        self.records = self.records.saturating_add(u64::from(records));
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.bytes = self.bytes.saturating_add(bytes);
        self.window_records = self.window_records.max(self.records);
        self.window_bytes = self.window_bytes.max(self.bytes);
    }
}

#[derive(Default)]
pub(super) struct Consumers {
    slab: Vec<Option<Consumer>>,
    free: Vec<u32>,
    keys: BTreeMap<ConsumerId, u32>,
    turns: VecDeque<u32>,
    parked: Vec<u32>,
    parked_at_ms: u64,
}

impl Consumers {
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// False when the id is already there.
    pub(super) fn add(&mut self, id: ConsumerId, records: u32, bytes: u64) -> bool {
        if self.keys.contains_key(&id) {
            return false;
        }
        let mut consumer = Consumer {
            id,
            records: 0,
            bytes: 0,
            window_records: 0,
            window_bytes: 0,
            leased: 0,
            queued: false,
            leaving: false,
        };
        consumer.grant(records, bytes);
        let key = match self.free.pop() {
            Some(key) => key,
            None => {
                let Ok(key) = u32::try_from(self.slab.len()) else {
                    return false;
                };
                self.slab.push(None);
                key
            }
        };
        if let Some(place) = self.slab.get_mut(key as usize) {
            *place = Some(consumer);
        }
        self.keys.insert(id, key);
        self.enqueue(key);
        true
    }

    /// False when there is no such consumer.
    pub(super) fn grant(&mut self, id: ConsumerId, records: u32, bytes: u64) -> bool {
        let Some(&key) = self.keys.get(&id) else {
            return false;
        };
        if let Some(consumer) = self.get_mut(key) {
            consumer.grant(records, bytes);
        }
        self.enqueue(key);
        true
    }

    /// Marks a consumer as leaving and says how many leases it holds.
    pub(super) fn leave(&mut self, id: ConsumerId) -> Option<u64> {
        let key = *self.keys.get(&id)?;
        let consumer = self.get_mut(key)?;
        consumer.leaving = true;
        Some(consumer.leased)
    }

    /// All consumers of a connection.
    pub(super) fn of_connection(&self, connection: u64) -> Vec<ConsumerId> {
        let first = ConsumerId {
            connection,
            subscription: 0,
        };
        let last = ConsumerId {
            connection,
            subscription: u32::MAX,
        };
        self.keys.range(first..=last).map(|(id, _)| *id).collect()
    }

    /// Removes the consumers that are leaving.
    pub(super) fn remove(&mut self, ids: &[ConsumerId]) {
        for id in ids {
            if let Some(key) = self.keys.remove(id) {
                if let Some(place) = self.slab.get_mut(key as usize) {
                    *place = None;
                    self.free.push(key);
                }
            }
        }
        let slab = &self.slab;
        let stays = |key: &u32| slab.get(*key as usize).is_some_and(Option::is_some);
        self.turns.retain(stays);
        self.parked.retain(stays);
    }

    /// True when somebody has credit, blocked or not.
    pub(super) fn any_credit(&self) -> bool {
        !self.turns.is_empty() || !self.parked.is_empty()
    }

    /// Whose turn it is. Who is returned must be charged at once.
    pub(super) fn next(
        &mut self,
        now_ms: u64,
        blocked: &mut dyn FnMut(ConsumerId) -> bool,
    ) -> Option<(u32, ConsumerId)> {
        if !self.parked.is_empty() && self.parked_at_ms != now_ms {
            self.turns.extend(self.parked.drain(..));
        }
        let known = self.parked.len();
        while let Some(&key) = self.turns.front() {
            let Some(id) = self.get(key).map(|consumer| consumer.id) else {
                self.turns.pop_front();
                continue;
            };
            if !blocked(id) {
                return Some((key, id));
            }
            self.turns.pop_front();
            self.parked.push(key);
            self.parked_at_ms = now_ms;
        }
        // Nobody else is left: those found blocked before may be free again.
        let free = self
            .parked
            .iter()
            .take(known)
            .position(|key| self.get(*key).is_some_and(|consumer| !blocked(consumer.id)))?;
        let key = self.parked.remove(free);
        self.turns.push_front(key);
        self.get(key).map(|consumer| (key, consumer.id))
    }

    /// Charges the consumer at the front for a delivery of `len` bytes and
    /// ends its turn.
    pub(super) fn charge(&mut self, key: u32, len: u32) {
        if self.turns.front() == Some(&key) {
            self.turns.pop_front();
        }
        if let Some(consumer) = self.get_mut(key) {
            consumer.records = consumer.records.saturating_sub(1);
            consumer.bytes = consumer.bytes.saturating_sub(i64::from(len));
            consumer.leased += 1;
            consumer.queued = false;
        }
        self.enqueue(key);
    }

    /// The delivery never left: its credit comes back whole.
    pub(super) fn undo_charge(&mut self, key: u32, len: u32) {
        if let Some(consumer) = self.get_mut(key) {
            consumer.records = consumer.records.saturating_add(1);
            consumer.bytes = consumer.bytes.saturating_add(i64::from(len));
            consumer.leased = consumer.leased.saturating_sub(1);
        }
        self.enqueue(key);
    }

    /// The lease ran out: its credit comes back up to the window.
    pub(super) fn lapse(&mut self, key: u32, len: u32) {
        if let Some(consumer) = self.get_mut(key) {
            consumer.leased = consumer.leased.saturating_sub(1);
            if consumer.records < consumer.window_records {
                consumer.records += 1;
            }
            let bytes = consumer.bytes.saturating_add(i64::from(len));
            consumer.bytes = bytes.min(consumer.window_bytes).max(consumer.bytes);
        }
        self.enqueue(key);
    }

    /// A lease of this consumer is settled, under settle, purged or given back.
    pub(super) fn lease_over(&mut self, key: u32) {
        if let Some(consumer) = self.get_mut(key) {
            consumer.leased = consumer.leased.saturating_sub(1);
        }
    }

    /// No consumer holds a lease any more.
    pub(super) fn forget_leases(&mut self) {
        for consumer in self.slab.iter_mut().flatten() {
            consumer.leased = 0;
        }
    }

    pub(super) fn connection(&self, key: u32) -> Option<u64> {
        self.get(key).map(|consumer| consumer.id.connection)
    }

    pub(super) fn is_leaving(&self, key: u32) -> bool {
        self.get(key).is_some_and(|consumer| consumer.leaving)
    }

    /// Leases not under settle, over all consumers.
    #[cfg(test)]
    pub(super) fn leased(&self) -> u64 {
        let consumers = self.slab.iter().flatten();
        consumers.map(|consumer| consumer.leased).sum()
    }

    fn enqueue(&mut self, key: u32) {
        let Some(consumer) = self.get_mut(key) else {
            return;
        };
        if !consumer.queued && consumer.has_credit() {
            consumer.queued = true;
            self.turns.push_back(key);
        }
    }

    fn get(&self, key: u32) -> Option<&Consumer> {
        self.slab.get(key as usize)?.as_ref()
    }

    fn get_mut(&mut self, key: u32) -> Option<&mut Consumer> {
        self.slab.get_mut(key as usize)?.as_mut()
    }
}
