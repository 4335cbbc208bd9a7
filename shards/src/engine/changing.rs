//! A partition's change of setting, as its leader remembers it: what is proposed, how far
//! the entry is, and which records still wait under an earlier setting.
//!
//! 1. Deliveries are opened in the order of offsets, whatever setting each waits under: a
//!    gate that opens behind one that does not yet opens nothing in front of it.
//! 2. From the proposal of a change to its entry, what is proposed asks for the stronger
//!    of both settings' boundaries.
//!
//! A crash, or another leader, leaves nothing of this behind: the entry is in the log.

use std::collections::VecDeque;

use wire::vocabulary::Mode;

use super::gates::At;

/// See the module head.
#[derive(Debug, Default)]
pub(super) struct Changing {
    /// Revision and mode of what was proposed last in this leadership.
    pub proposed: Option<(u32, Mode)>,
    /// The entry of the change in force, or one behind it.
    pub at: Option<At>,
    /// It is durable on as many copies as either setting asks for.
    pub applied: bool,
    /// Until then: what is durable may be on so many copies only.
    pub least_copies: usize,
    pub stretches: Stretches,
}

impl Changing {
    /// A change is in force, and has to become durable.
    pub(super) fn begin(&mut self, at: At, least_copies: usize) {
        (self.at, self.applied) = (Some(at), false);
        self.least_copies = least_copies;
    }
}

/// Records that were published under one setting, up to `end`.
#[derive(Debug)]
struct Stretch {
    end: u64,
    /// Its gates have opened up to here.
    open: u64,
}

/// Stretches of offsets under earlier settings that have not passed their delivery gates,
/// oldest first, and what is behind them.
#[derive(Debug, Default)]
pub(super) struct Stretches {
    waiting: VecDeque<Stretch>,
    /// Of the setting in force: its gates have opened up to here.
    open: u64,
}

impl Stretches {
    /// A setting ends: its records are those below `next`, and below `opened` all passed.
    pub(super) fn end(&mut self, opened: u64, next: u64) {
        let from = self.waiting.back().map_or(opened, |last| last.end);
        if from < next {
            let open = self.open.max(opened);
            self.waiting.push_back(Stretch { end: next, open });
        }
    }

    /// A gate opened for everything below `next`. How far deliveries may go.
    pub(super) fn pass(&mut self, next: u64) -> u64 {
        match self.waiting.iter_mut().find(|stretch| next <= stretch.end) {
            Some(stretch) => stretch.open = stretch.open.max(next),
            None => self.open = self.open.max(next),
        }
        let mut passed = 0;
        while let Some(front) = self.waiting.front() {
            if front.open < front.end {
                return front.open.max(passed);
            }
            passed = front.end;
            self.waiting.pop_front();
        }
        self.open = self.open.max(passed);
        self.open
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::{collection::vec, prelude::*, sample::Index};

    use super::*;

    #[test]
    fn what_waits_under_an_earlier_setting_holds_back_what_is_behind_it() {
        let mut stretches = Stretches::default();
        stretches.end(2, 5);
        assert_eq!(stretches.pass(7), 2);
        assert_eq!(stretches.pass(4), 4);
        assert_eq!(stretches.pass(9), 4);
        assert_eq!(stretches.pass(5), 9);
        assert_eq!(stretches.pass(12), 12);
    }

    /// A record is published, a setting ends, or a gate of some setting opens.
    fn steps() -> impl Strategy<Value = Vec<(u8, Index)>> {
        vec((0..10u8, any::<Index>()), 1..60)
    }

    proptest! {
        #[test]
        fn what_is_opened_is_all_that_passed_without_a_gap(steps in steps()) {
            let mut stretches = Stretches::default();
            let (mut next, mut opened) = (0, 0);
            // Of each setting: records that wait, in the order in which their gates open.
            let mut settings = vec![VecDeque::new()];
            let mut passed = BTreeSet::new();
            for (step, which) in steps {
                match step {
                    0..=3 => {
                        next += 1;
                        settings.last_mut().unwrap().push_back(next);
                    }
                    4..=5 => {
                        stretches.end(opened, next);
                        settings.push(VecDeque::new());
                    }
                    _ => {
                        let setting = which.index(settings.len());
                        let Some(end) = settings[setting].pop_front() else {
                            continue;
                        };
                        passed.insert(end);
                        opened = opened.max(stretches.pass(end));
                        let gap = (1..=next).find(|end| !passed.contains(end));
                        prop_assert_eq!(opened, gap.map_or(next, |gap| gap - 1));
                    }
                }
            }
        }
    }

    #[test]
    fn several_changes_wait_in_their_order() {
        let mut stretches = Stretches::default();
        stretches.end(0, 3);
        stretches.end(0, 6);
        // Nothing was published in between.
        stretches.end(0, 6);
        assert_eq!(stretches.pass(8), 0);
        assert_eq!(stretches.pass(6), 0);
        assert_eq!(stretches.pass(2), 2);
        assert_eq!(stretches.pass(3), 8);
    }

    #[test]
    fn a_setting_whose_records_all_passed_holds_nothing_back() {
        let mut stretches = Stretches::default();
        stretches.end(4, 4);
        assert_eq!(stretches.pass(6), 6);
        stretches.end(6, 8);
        assert_eq!(stretches.pass(7), 7);
        assert_eq!(stretches.pass(8), 8);
    }
}
