//! A queue's setting (mode and copies), as it is desired, and its revisions.
//!
//! Group 0 has the desired one. The log of each group with a partition of the queue
//! takes it from there as an entry of its own, and has the one in force.
//!
//! 1. A change begins from a revision; at another one it changes nothing, unless the same
//!    change was made from there before: then it stands, as often as it is asked for.
//! 2. Revisions of a queue only rise, also where group 0 itself was taken back to an
//!    earlier state (it goes on as a new generation then): no two settings have one number.
//!
//! Never: asks how many replicas there are; whoever proposes has to.

use std::sync::Arc;

use wire::vocabulary::Mode;

use super::{MetaOutcome, MetaState, QueueDeclaration, FIRST_GENERATION};

/// Group 0's own number.
const META: u32 = 0;
/// A generation of group 0 has so many revisions of its own for each queue.
const PER_GENERATION_BITS: u32 = 20;
/// Later generations share the last ones.
const MOST_GENERATIONS: u32 = (1 << (u32::BITS - PER_GENERATION_BITS)) - 1;

impl MetaState {
    pub(super) fn change(
        &mut self,
        queue_id: u64,
        mode: Mode,
        copies: u8,
        base: u32,
    ) -> MetaOutcome {
        let Some(stands) = self.by_id(queue_id) else {
            return MetaOutcome::NoQueue;
        };
        let alike = (stands.mode, stands.copies) == (mode, copies);
        let next = self.revision_behind(base);
        let is_there = stands.revision == base || stands.revision == next;
        if alike && is_there {
            return MetaOutcome::Changed {
                queue_id,
                changed: false,
            };
        }
        if stands.revision != base {
            return MetaOutcome::Stale { queue_id };
        }
        if next == base {
            let reason = "its setting was changed too often".to_owned();
            return MetaOutcome::Refused { reason };
        }
        let changed = QueueDeclaration {
            mode,
            copies,
            revision: next,
            ..QueueDeclaration::clone(stands)
        };
        self.queues.insert(Arc::new(changed));
        MetaOutcome::Changed {
            queue_id,
            changed: true,
        }
    }

    /// The revision of a change that begins from `base`.
    fn revision_behind(&self, base: u32) -> u32 {
        let later = self.generation(META).saturating_sub(FIRST_GENERATION);
        let first = later.min(MOST_GENERATIONS) << PER_GENERATION_BITS;
        base.saturating_add(1).max(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::meta::{peer_id, DeclareRequest, MetaCommand};

    fn declared() -> MetaState {
        let mut state = MetaState::new(2);
        state.apply(&MetaCommand::Declare(DeclareRequest {
            name: "a".to_owned(),
            ..DeclareRequest::default()
        }));
        state
    }

    fn change(state: &mut MetaState, mode: Mode, copies: u8, base: u32) -> MetaOutcome {
        state.apply(&MetaCommand::Change {
            queue_id: 1,
            mode,
            copies,
            base,
        })
    }

    fn changed(changed: bool) -> MetaOutcome {
        MetaOutcome::Changed {
            queue_id: 1,
            changed,
        }
    }

    fn stands(state: &MetaState) -> (Mode, u8, u32) {
        let queue = state.by_id(1).unwrap();
        assert_eq!(state.by_name("a"), Some(queue));
        (queue.mode, queue.copies, queue.revision)
    }

    #[test]
    fn each_change_raises_the_revision_and_keeps_the_place() {
        let mut state = declared();
        let groups = state.by_id(1).unwrap().groups.clone();
        assert_eq!(change(&mut state, Mode::Buffered, 0, 0), changed(true));
        assert_eq!(stands(&state), (Mode::Buffered, 0, 1));
        assert_eq!(change(&mut state, Mode::Buffered, 255, 1), changed(true));
        assert_eq!(change(&mut state, Mode::Durable, 0, 2), changed(true));
        assert_eq!(stands(&state), (Mode::Durable, 0, 3));
        assert_eq!(state.by_id(1).unwrap().groups, groups);
    }

    #[test]
    fn what_stands_is_no_change() {
        let mut state = declared();
        assert_eq!(change(&mut state, Mode::Durable, 0, 0), changed(false));
        assert_eq!(stands(&state), (Mode::Durable, 0, 0));
    }

    #[test]
    fn a_change_that_comes_again_stands_and_one_of_an_older_revision_is_stale() {
        let mut state = declared();
        change(&mut state, Mode::Buffered, 0, 0);
        assert_eq!(change(&mut state, Mode::Buffered, 0, 0), changed(false));
        let stale = MetaOutcome::Stale { queue_id: 1 };
        assert_eq!(change(&mut state, Mode::Speculative, 0, 0), stale);
        assert_eq!(change(&mut state, Mode::Speculative, 0, 2), stale);
        change(&mut state, Mode::Speculative, 0, 1);
        // Another change came behind it.
        assert_eq!(change(&mut state, Mode::Buffered, 0, 0), stale);
        assert_eq!(stands(&state), (Mode::Speculative, 0, 2));
    }

    #[test]
    fn a_group_0_that_was_taken_back_gives_no_number_again() {
        let mut state = declared();
        change(&mut state, Mode::Buffered, 0, 0);
        // What was changed after that is lost with the others.
        state.apply(&MetaCommand::Recovered {
            group: META,
            generation: 2,
            retired_peer: 0,
            new_peer: peer_id(1, 2),
        });
        change(&mut state, Mode::Speculative, 0, 1);
        assert_eq!(stands(&state), (Mode::Speculative, 0, 1 << 20));
        assert_eq!(change(&mut state, Mode::Speculative, 0, 1), changed(false));
        change(&mut state, Mode::Durable, 0, 1 << 20);
        assert_eq!(stands(&state), (Mode::Durable, 0, (1 << 20) + 1));
    }

    #[test]
    fn a_queue_that_is_gone_cannot_be_changed() {
        let mut state = declared();
        state.apply(&MetaCommand::Delete { queue_id: 1 });
        assert_eq!(
            change(&mut state, Mode::Buffered, 0, 0),
            MetaOutcome::NoQueue
        );
    }
}
