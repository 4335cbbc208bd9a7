//! Which record is delivered next.
//!
//! Fresh records lie in offset order behind a cursor and cost nothing; given
//! back and formerly delayed ones are an ordered set.
//!
//! Invariants:
//! 1. Every `Fresh` slot is at or above the cursor; the set holds exactly the
//!    `Returned` slots.
//! 2. While both kinds are ready they alternate, so that records which keep
//!    being given back never hold up the others. The set is swept upwards and
//!    from its start again, so that none of its records starves the rest.

use std::collections::BTreeSet;

use super::slots::Slots;

#[derive(Default)]
pub(super) struct Ready {
    cursor: u64,
    returned: BTreeSet<u64>,
    /// Where the sweep through the set goes on.
    sweep: u64,
    /// The last delivery came from the set.
    fresh_is_next: bool,
}

/// A record to deliver, not yet taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pick {
    pub(super) offset: u64,
    from_set: bool,
}

impl Ready {
    /// The next record below `limit` (the dispatch mark). Looks, but takes nothing.
    pub(super) fn pick(&mut self, slots: &Slots, limit: u64) -> Option<Pick> {
        let fresh = slots.first_fresh(self.cursor);
        if let Some((offset, _)) = fresh {
            self.cursor = offset;
        }
        let fresh = fresh
            .filter(|(offset, _)| *offset < limit)
            .map(|(offset, _)| Pick {
                offset,
                from_set: false,
            });
        if fresh.is_some() && (self.fresh_is_next || self.returned.is_empty()) {
            return fresh;
        }
        self.sweep_next(limit)
            .map(|offset| Pick {
                offset,
                from_set: true,
            })
            .or(fresh)
    }

    fn sweep_next(&self, limit: u64) -> Option<u64> {
        if self.returned.is_empty() || limit == 0 {
            return None;
        }
        let from = self.sweep.min(limit);
        let ahead = self.returned.range(from..limit).next();
        ahead
            .or_else(|| self.returned.range(..limit).next())
            .copied()
    }

    /// The picked record is leased now.
    pub(super) fn take(&mut self, pick: Pick) {
        if pick.from_set {
            self.returned.remove(&pick.offset);
            self.sweep = if self.returned.is_empty() {
                0
            } else {
                pick.offset + 1
            };
        } else {
            self.cursor = pick.offset + 1;
        }
        self.fresh_is_next = pick.from_set;
    }

    /// Adds a record to the set.
    pub(super) fn give_back(&mut self, offset: u64) {
        self.returned.insert(offset);
    }

    /// Removes a record from the set: it was settled, delayed or purged.
    pub(super) fn remove(&mut self, offset: u64) {
        self.returned.remove(&offset);
    }

    /// No fresh record lies below `offset`.
    pub(super) fn skip_to(&mut self, offset: u64) {
        self.cursor = self.cursor.max(offset);
    }

    /// Exclusive end of what may have been delivered for the first time, and
    /// of what waits in the set.
    pub(super) fn reach(&self) -> u64 {
        let last = self.returned.last().map_or(0, |offset| offset + 1);
        self.cursor.max(last)
    }

    /// The lowest ready offset.
    pub(super) fn first(&self, slots: &Slots) -> Option<u64> {
        let fresh = slots.first_fresh(self.cursor);
        let fresh = fresh.map(|(offset, _)| offset);
        let returned = self.returned.first().copied();
        match (fresh, returned) {
            (Some(fresh), Some(returned)) => Some(fresh.min(returned)),
            (fresh, returned) => fresh.or(returned),
        }
    }

    /// Starts over: every ready record is fresh.
    pub(super) fn reset(&mut self) {
        *self = Ready::default();
    }
}
