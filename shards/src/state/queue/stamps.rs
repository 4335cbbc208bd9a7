//! When records were published, coarsely: enough for the age of the oldest
//! ready one.
//!
//! Invariants:
//! 1. Entries ascend by offset; an entry covers the offsets up to the next.
//! 2. At most [`MAX_ENTRIES`]; beyond that every second one is merged into its
//!    predecessor, which makes ages look longer by at most one doubled step.

use std::collections::VecDeque;

/// Appends closer together than this share a stamp.
const STEP_MS: u64 = 100;
const MAX_ENTRIES: usize = 1024;

#[derive(Default)]
pub(super) struct Stamps {
    /// (first offset, server time in ms).
    entries: VecDeque<(u64, u64)>,
}

impl Stamps {
    /// Records from `first` on were published at `stamp_ms`; nothing below
    /// `low` is of interest any more.
    pub(super) fn push(&mut self, first: u64, stamp_ms: u64, low: u64) {
        self.trim(low);
        let last = self.entries.back();
        if last.is_some_and(|(_, last_ms)| stamp_ms < last_ms.saturating_add(STEP_MS)) {
            return;
        }
        if self.entries.len() >= MAX_ENTRIES {
            let mut keep = false;
            self.entries.retain(|_| {
                keep = !keep;
                keep
            });
        }
        self.entries.push_back((first, stamp_ms));
    }

    fn trim(&mut self, low: u64) {
        while self.entries.get(1).is_some_and(|(first, _)| *first <= low) {
            self.entries.pop_front();
        }
    }

    /// (first offset, server time in ms), ascending.
    pub(super) fn entries(&self) -> impl ExactSizeIterator<Item = (u64, u64)> + '_ {
        self.entries.iter().copied()
    }

    /// Of the newest records, up to a step earlier.
    pub(super) fn newest(&self) -> Option<u64> {
        self.entries.back().map(|(_, stamp_ms)| *stamp_ms)
    }

    /// Puts an entry back, behind those before.
    pub(super) fn restore(&mut self, first: u64, stamp_ms: u64) {
        self.entries.push_back((first, stamp_ms));
    }

    /// Nothing is unsettled.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.entries.shrink_to(4);
    }

    /// When the record at `offset` was published, or up to a step earlier.
    pub(super) fn of(&self, offset: u64) -> Option<u64> {
        let after = self.entries.partition_point(|(first, _)| *first <= offset);
        let (_, stamp_ms) = self.entries.get(after.checked_sub(1)?)?;
        Some(*stamp_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_coalesced_bounded_and_never_later_than_the_truth() {
        let mut stamps = Stamps::default();
        stamps.push(0, 1000, 0);
        stamps.push(5, 1099, 0);
        stamps.push(9, 1100, 0);
        assert_eq!(stamps.of(8), Some(1000));
        assert_eq!(stamps.of(9), Some(1100));
        for at in 10..100_000u64 {
            stamps.push(at, 1100 + (at - 9) * 100, 0);
            assert!(stamps.entries.len() <= MAX_ENTRIES);
        }
        for at in 10..100_000u64 {
            assert!(stamps.of(at).unwrap() <= 1100 + (at - 9) * 100);
        }
        stamps.push(100_000, 99_999_999, 99_999);
        assert!(stamps.entries.len() <= 2);
    }
}
