//! The dispatch mark: what may have been handed out, said in the log ahead of
//! time, so that a later leader knows which records to flag.
//!
//! Invariants:
//! 1. `opened <= applied <= proposed` while this leadership lasts.
//! 2. Nothing at or above `opened` is delivered.

use crate::mutation::{removed, Rule};

/// The mark every partition is created with.
pub(super) const FIRST_MARK: u64 = 1024;

const MIN_STEP: u64 = 1024;
const MAX_STEP: u64 = 64 * 1024;
/// A step used up within this time doubles the next one.
const FAST_MS: u64 = 1_000;
/// A step that lasted this long halves the next one.
const SLOW_MS: u64 = 10_000;

pub(super) struct DispatchMark {
    applied: u64,
    opened: u64,
    proposed: u64,
    step: u64,
    proposed_at_ms: u64,
    /// Records below this were possibly handed out by an earlier leadership.
    flagged_below: u64,
}

impl DispatchMark {
    pub(super) fn new() -> Self {
        DispatchMark {
            applied: FIRST_MARK,
            opened: FIRST_MARK,
            proposed: FIRST_MARK,
            step: MIN_STEP,
            proposed_at_ms: 0,
            flagged_below: 0,
        }
    }

    pub(super) fn apply(&mut self, mark: u64) {
        self.applied = self.applied.max(mark);
        self.proposed = self.proposed.max(mark);
    }

    pub(super) fn open(&mut self, mark: u64) {
        self.opened = self.opened.max(mark.min(self.applied));
    }

    /// A leadership begins with `next_offset` records known: those below the
    /// mark may have been handed out before. Its own barrier covers the mark.
    pub(super) fn begin(&mut self, next_offset: u64) {
        self.opened = self.applied;
        self.proposed = self.applied;
        self.step = MIN_STEP;
        self.flagged_below = self.flagged_below.max(self.applied.min(next_offset));
    }

    /// Everything below `next` counts as possibly handed out.
    pub(super) fn flag_below(&mut self, next: u64) {
        self.flagged_below = self.flagged_below.max(next);
    }

    /// The mark to propose when deliveries have reached `reach`: once less than
    /// half a step is left.
    pub(super) fn wants(&mut self, reach: u64, now_ms: u64) -> Option<u64> {
        if self.proposed.saturating_sub(reach) >= self.step / 2 {
            return None;
        }
        let lasted_ms = now_ms.saturating_sub(self.proposed_at_ms);
        if lasted_ms < FAST_MS {
            self.step = (self.step * 2).min(MAX_STEP);
        } else if lasted_ms > SLOW_MS {
            self.step = (self.step / 2).max(MIN_STEP);
        }
        self.proposed_at_ms = now_ms;
        self.proposed = self.proposed.max(reach).saturating_add(self.step);
        Some(self.proposed)
    }

    pub(super) fn flagged_below(&self) -> u64 {
        self.flagged_below
    }

    pub(super) fn applied(&self) -> u64 {
        self.applied
    }

    pub(super) fn opened(&self) -> u64 {
        if removed(Rule::MarkFirst) {
            return u64::MAX;
        }
        self.opened
    }

    pub(super) fn flags(&self, offset: u64) -> bool {
        offset < self.flagged_below
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_grow_while_they_are_used_up_fast_and_shrink_again() {
        let mut mark = DispatchMark::new();
        assert_eq!(mark.wants(512, 1_000_000), None);
        assert_eq!(mark.wants(513, 1_000_000), Some(2048));
        assert_eq!(mark.wants(513, 1_000_000), None);
        assert_eq!(mark.wants(1537, 1_000_010), Some(2048 + 2048));
        let mut reach = 0;
        for turn in 0..20 {
            reach = mark.proposed;
            mark.wants(reach, 1_000_020 + turn);
        }
        assert_eq!(mark.proposed - reach, MAX_STEP);
        for turn in 1..20 {
            reach = mark.proposed;
            mark.wants(reach, 2_000_000 * turn);
        }
        assert_eq!(mark.proposed - reach, MIN_STEP);
    }

    #[test]
    fn a_mark_opens_only_as_far_as_it_is_applied() {
        let mut mark = DispatchMark::new();
        mark.open(5000);
        assert_eq!(mark.opened(), FIRST_MARK);
        mark.apply(4096);
        assert_eq!(mark.opened(), FIRST_MARK);
        mark.open(4096);
        assert_eq!(mark.opened(), 4096);
        mark.apply(10);
        assert_eq!(mark.applied(), 4096);
    }
}
