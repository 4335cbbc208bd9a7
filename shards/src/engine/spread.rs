//! Leaders are spread over the nodes: each group has a node whose turn it is, and whoever
//! leads it hands it over when all is well.
//!
//! 1. Only what this node has led for `spread_after_ms`, to a voter that is linked and
//!    close behind; one group of a shard at a time.
//! 2. Never while this node is to lead nothing, to a node that is, or soon after a node
//!    was linked or lost.
//! 3. A group that comes back (its node has a slow disk, or was drained meanwhile) is
//!    handed over more and more rarely.
//!
//! Never: needs anybody's count; with a node away its groups stay where they were elected.

use wire::node::NodeMessage;

use super::{core::Engine, gates::GroupSlot, links::Links};
use crate::io::BatchBuffer;

/// Between two groups, a part of `spread_after_ms`.
const PACE_PART: u64 = 5;
/// Until the same group is handed over again, doubling, in multiples of it.
const AGAIN: u64 = 6;
const AGAIN_MOST: u64 = 360;

/// When a group may be handed to the node whose turn it is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Turn {
    /// Since when this replica leads; server time.
    pub led_since_ms: u64,
    again_from_ms: u64,
    again_pause_ms: u64,
}

impl Turn {
    fn is_due(&self, after_ms: u64, now: u64) -> bool {
        self.led_since_ms + after_ms <= now && self.again_from_ms <= now
    }

    fn taken(&mut self, after_ms: u64, now: u64) {
        let (least, most) = (AGAIN * after_ms, AGAIN_MOST * after_ms);
        // It stayed away for long: that was another matter.
        self.again_pause_ms = match self.again_from_ms + most <= now {
            true => least,
            false => (2 * self.again_pause_ms).clamp(least, most),
        };
        self.again_from_ms = now + self.again_pause_ms;
    }
}

impl GroupSlot {
    /// Leadership goes to that voter, as soon as nobody waits for what was taken.
    fn resign_to(&mut self, peer: u64, now: u64, links: &Links) {
        self.resign(now, links);
        self.heir = self.resigning.map(|_| peer);
    }
}

impl<B: BatchBuffer> Engine<B> {
    /// A node was linked or lost: leaders stay where they are for a while.
    pub(super) fn pause_spreading(&mut self) {
        self.spread_from_ms = self.server_ms + self.config.spread_after_ms;
    }

    /// Others are told whether this node is to lead nothing.
    pub(super) fn tell_leads_nothing(&mut self) {
        let nothing = self.leads_nothing || self.draining;
        for out in self.links.not_told(nothing) {
            NodeMessage::LeadsNothing { on: nothing }.encode(out);
        }
    }

    /// Begins to hand over a group whose turn is another node's, at most one.
    pub(super) fn spread_leaders(&mut self) {
        let (now, after) = (self.server_ms, self.config.spread_after_ms);
        let nothing = self.leads_nothing || self.draining || self.latched;
        if after == 0 || nothing || now < self.spread_from_ms {
            return;
        }
        let Some((id, heir)) = self.next_to_spread(now) else {
            return;
        };
        self.spread_from_ms = now + after / PACE_PART;
        if let Some(slot) = self.groups.get_mut(&id) {
            slot.turn.taken(after, now);
            slot.resign_to(heir, now, &self.links);
        }
    }

    fn next_to_spread(&self, now: u64) -> Option<(u32, u64)> {
        let after = self.config.spread_after_ms;
        self.groups.iter().find_map(|(id, slot)| {
            let calm = slot.serving && slot.resigning.is_none();
            if !slot.leads() || !calm || !slot.turn.is_due(after, now) {
                return None;
            }
            let nodes = self.holders(*id);
            let turn = *nodes.get(*id as usize % nodes.len().max(1))?;
            if turn == self.config.node || !self.links.may_lead(turn) {
                return None;
            }
            Some((*id, slot.group.heir_on(turn)?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_comes_back_is_handed_over_more_and_more_rarely() {
        let mut turn = Turn::default();
        let (mut now, after) = (1_000_000_000, 10_000);
        turn.led_since_ms = now;
        assert!(!turn.is_due(after, now + after - 1));
        now += after;
        let mut pauses = Vec::new();
        for _ in 0..9 {
            assert!(turn.is_due(after, now));
            turn.taken(after, now);
            turn.led_since_ms = now;
            assert!(!turn.is_due(after, now + after));
            pauses.push(turn.again_from_ms - now);
            now = turn.again_from_ms;
        }
        assert_eq!(pauses[..3], [60_000, 120_000, 240_000]);
        assert_eq!(pauses[8], 3_600_000);
        now += 2 * 3_600_000;
        turn.taken(after, now);
        assert_eq!(turn.again_from_ms - now, 60_000);
    }
}
