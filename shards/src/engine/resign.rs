//! Giving leadership away on purpose: before a stop, or because an operator said so.
//!
//! 1. A leader that resigns takes no more publishes, and hands over once those that it
//!    took are answered: none becomes unknown by it, unless they take longer than
//!    [`RESIGN_MS`].
//! 2. It resigns only while a voter is close behind whose node may lead: otherwise nobody
//!    would, or two nodes that both stop would hand it to each other until they give up.

use super::{
    core::Engine,
    gates::{GateAction, GroupSlot, Origin},
    links::Links,
};
use crate::io::BatchBuffer;

/// What was taken may keep a leader from handing over for so long.
const RESIGN_MS: u64 = 300;
/// A single group that nobody took over by then is kept.
const GIVEN_UP_MS: u64 = 2_000;

impl GroupSlot {
    /// Begins to resign, if somebody can take over.
    pub(super) fn resign(&mut self, now: u64, links: &Links) {
        let leads = |node: u32| links.may_lead(node);
        if self.group.is_leader() && self.group.successor(&leads).is_some() {
            // Where every node is drained leadership comes back: not for ever at once.
            if self.resigning.is_none() && now >= self.resign_from_ms {
                self.resign_pause_ms = (2 * self.resign_pause_ms).clamp(1_000, 60_000);
                self.resign_from_ms = now + self.resign_pause_ms;
                self.resigning = Some(now);
            }
        } else {
            self.resigning = None;
        }
    }

    /// A publisher waits for what was proposed.
    fn owes_publishers(&mut self) -> bool {
        let publish = |(_, origin): &(u64, Origin)| matches!(origin, Origin::Publish(_));
        let mut owes = self.origins.iter().any(publish);
        self.retain_gates(&mut |_, action| {
            owes |= matches!(
                action,
                GateAction::Append {
                    confirm: Some(_),
                    ..
                }
            );
            true
        });
        owes
    }
}

impl<B: BatchBuffer> Engine<B> {
    /// Where this node is to lead nothing: at once, whatever a tick takes.
    pub(super) fn tend_resigning(&mut self) {
        if self.leads_nothing || self.draining {
            self.hand_over_where_due();
        }
    }

    /// Hands over what may be handed over now.
    pub(super) fn hand_over_where_due(&mut self) {
        let (now, stays) = (self.server_ms, !self.leads_nothing && !self.draining);
        let links = &self.links;
        for slot in self.groups.values_mut() {
            let Some(since) = slot.resigning else {
                continue;
            };
            if stays && since + GIVEN_UP_MS <= now {
                // Nobody took over: it leads on.
                (slot.resigning, slot.heir) = (None, None);
                continue;
            }
            if slot
                .heir
                .is_some_and(|heir| !slot.group.can_take_over(heir))
            {
                // Not that one any more: it leads on.
                (slot.resigning, slot.heir) = (None, None);
                continue;
            }
            if since + RESIGN_MS <= now || !slot.owes_publishers() {
                match slot.heir {
                    Some(heir) => slot.group.hand_over_to(heir),
                    None => slot.group.hand_over(&|node| links.may_lead(node)),
                }
                slot.dirty = true;
            }
        }
    }
}
