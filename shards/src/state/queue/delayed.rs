//! Records that wait for a due time.
//!
//! Owns: due times. Gated records keep theirs by offset until the gate opens;
//! behind the gate a heap orders them by (due, offset).
//!
//! Invariants:
//! 1. A `Delayed` slot has exactly one heap entry that carries its attempt
//!    count. Every change of a delayed record but becoming ready raises the
//!    count or removes the slot, so leftovers are known by their count.
//! 2. A `Gated` slot has a due time here only if it must wait after the gate.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

/// Leftover heap entries that are not worth compacting.
const SLACK: u64 = 64;

/// A heap entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Due {
    pub(super) due_ms: u64,
    pub(super) offset: u64,
    pub(super) attempts: u32,
}

/// Takes memory only while there are any.
#[derive(Default)]
pub(super) struct Delayed(Option<Box<Times>>);

#[derive(Default)]
struct Times {
    gated: BTreeMap<u64, u64>,
    heap: BinaryHeap<Reverse<Due>>,
}

impl Delayed {
    /// Sets or, with 0, clears the due time of a gated record.
    pub(super) fn set_gated(&mut self, offset: u64, due_ms: u64) {
        if due_ms != 0 {
            let times = self.0.get_or_insert_default();
            times.gated.insert(offset, due_ms);
        } else if let Some(times) = &mut self.0 {
            times.gated.remove(&offset);
        }
    }

    /// Takes the due time of a record whose gate opens.
    pub(super) fn take_gated(&mut self, offset: u64) -> Option<u64> {
        self.0.as_mut()?.gated.remove(&offset)
    }

    /// Adds a record behind the gate. `live` entries are in use before this
    /// one; `is_live` tells which.
    pub(super) fn push(&mut self, due: Due, live: u64, is_live: impl Fn(&Due) -> bool) {
        let heap = &mut self.0.get_or_insert_default().heap;
        if heap.len() as u64 > live.saturating_mul(2).saturating_add(SLACK) {
            heap.retain(|Reverse(due)| is_live(due));
            heap.shrink_to(heap.len() * 2);
        }
        heap.push(Reverse(due));
    }

    /// Drops leftovers in front, then takes the first record if it is due.
    pub(super) fn pop_due(&mut self, now_ms: u64, is_live: impl Fn(&Due) -> bool) -> Option<Due> {
        let times = self.0.as_mut()?;
        while let Some(Reverse(first)) = times.heap.peek() {
            if is_live(first) && first.due_ms > now_ms {
                return None;
            }
            let Reverse(first) = times.heap.pop()?;
            if is_live(&first) {
                return Some(first);
            }
        }
        if times.gated.is_empty() {
            self.0 = None;
        }
        None
    }

    /// Every due time: of gated records, and of heap entries `is_live` knows.
    pub(super) fn dues(&self, is_live: impl Fn(&Due) -> bool) -> Vec<(u64, u64)> {
        let Some(times) = &self.0 else {
            return Vec::new();
        };
        let gated = times
            .gated
            .iter()
            .map(|(offset, due_ms)| (*offset, *due_ms));
        let heap = times.heap.iter().map(|Reverse(due)| due);
        let heap = heap.filter(|due| is_live(due));
        let mut dues: Vec<_> = gated
            .chain(heap.map(|due| (due.offset, due.due_ms)))
            .collect();
        dues.sort_unstable();
        dues
    }

    /// True when there is nothing to promote, now or later.
    pub(super) fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|times| times.heap.is_empty())
    }

    /// Never later than the first due time behind the gate.
    pub(super) fn first_due_ms(&self) -> Option<u64> {
        let times = self.0.as_ref()?;
        times.heap.peek().map(|Reverse(due)| due.due_ms)
    }

    /// Gated ones and heap entries.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let times = self.0.as_ref();
        times.map_or(0, |times| times.gated.len() + times.heap.len())
    }
}
