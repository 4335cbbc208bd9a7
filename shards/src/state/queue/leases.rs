//! When leases end: one queue in order of time, since all leases of a
//! partition have one length.
//!
//! Invariants:
//! 1. Deadlines never decrease from front to back.
//! 2. Every leased delivery that is not under settle has exactly one entry.
//!    Others may have entries left over; they are dropped at the front, or by
//!    compaction once they are the greater part.

use std::collections::VecDeque;

/// Entries left over that are not worth compacting.
const SLACK: usize = 1024;

/// One delivery and when its lease ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lease {
    pub(super) ends_ms: u64,
    pub(super) offset: u64,
    pub(super) attempt: u32,
}

#[derive(Default)]
pub(super) struct Leases {
    queue: VecDeque<Lease>,
}

impl Leases {
    /// Adds a lease that ends at `ends_ms`, or with the one before it if time
    /// went backwards. `live` entries are in use before this one; `is_live`
    /// tells which.
    pub(super) fn push(&mut self, lease: Lease, live: u64, is_live: impl Fn(&Lease) -> bool) {
        if self.queue.len() as u64 > live.saturating_mul(2).saturating_add(SLACK as u64) {
            self.queue.retain(|lease| is_live(lease));
            if self.queue.capacity() > 4 * (self.queue.len() + SLACK) {
                self.queue.shrink_to(2 * (self.queue.len() + SLACK));
            }
        }
        let last = self.queue.back().map_or(0, |last| last.ends_ms);
        self.queue.push_back(Lease {
            ends_ms: lease.ends_ms.max(last),
            ..lease
        });
    }

    /// Drops leftovers at the front, then takes the front if it ended.
    pub(super) fn pop_ended(
        &mut self,
        now_ms: u64,
        is_live: impl Fn(&Lease) -> bool,
    ) -> Option<Lease> {
        self.drop_leftovers(is_live);
        let ended = self
            .queue
            .front()
            .is_some_and(|lease| lease.ends_ms <= now_ms);
        if ended {
            self.queue.pop_front()
        } else {
            None
        }
    }

    /// Drops leftovers at the front.
    pub(super) fn drop_leftovers(&mut self, is_live: impl Fn(&Lease) -> bool) {
        while self.queue.front().is_some_and(|lease| !is_live(lease)) {
            self.queue.pop_front();
        }
    }

    /// Forgets the entry of a delivery that was taken back; it is near the end.
    pub(super) fn forget(&mut self, offset: u64, attempt: u32) {
        let at = self
            .queue
            .iter()
            .rposition(|lease| lease.offset == offset && lease.attempt == attempt);
        if let Some(at) = at {
            self.queue.remove(at);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.queue.iter()
    }

    pub(super) fn clear(&mut self) {
        self.queue = VecDeque::new();
    }

    /// When the front ends: never later than the first lease that does.
    pub(super) fn first_end_ms(&self) -> Option<u64> {
        self.queue.front().map(|lease| lease.ends_ms)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }
}
