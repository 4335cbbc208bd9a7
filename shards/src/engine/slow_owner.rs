//! An owner whose disk is slower than the others': its group waits for it alone, so it
//! hands over (DESIGN section 5).
//!
//! 1. Only a wait that nothing but this node's own write ended counts: a majority without
//!    it was there.
//! 2. One write in time begins the count anew: a single slow write moves nothing.
//!
//! Never: lowers what a confirm waits for; moves a group that nobody publishes to.

use super::{
    core::Engine,
    gates::{majority, GroupSlot},
    types::Notice,
};
use crate::io::BatchBuffer;

/// Waiting longer for the own write than for enough others' is late, in ms.
const LATE_MS: u64 = 10;
/// So long every write must have been late, in ms.
const SLOW_FOR_MS: u64 = 1_000;
/// And so many of them, unless one waits as long by itself.
const SLOW_WRITES: u32 = 5;

/// How a group waited for this node's own writes alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct OwnWrites {
    /// The last that was there.
    own: u64,
    /// An entry that lacks this node's write only, and since when; server time.
    waits: Option<(u64, u64)>,
    /// Since when each was late, and how many were.
    late: Option<(u64, u32)>,
}

impl OwnWrites {
    /// This node has written up to `own`, enough others up to `others`.
    fn look(&mut self, own: u64, others: u64, now: u64) {
        match self.waits {
            Some((index, since)) if own >= index => {
                self.late = (since + LATE_MS < now).then(|| {
                    let (first, count) = self.late.unwrap_or((since, 0));
                    (first, count + 1)
                });
                self.waits = None;
            }
            // In time.
            None if own > self.own => self.late = None,
            _ => {}
        }
        self.own = own;
        if others > own && self.waits.is_none() {
            self.waits = Some((own + 1, now));
        }
    }

    /// Somebody else's disk would serve the group better.
    fn is_slow(&self, now: u64) -> bool {
        let always = self
            .late
            .is_some_and(|(since, count)| count >= SLOW_WRITES && since + SLOW_FOR_MS <= now);
        let stuck = self
            .waits
            .is_some_and(|(_, since)| since + SLOW_FOR_MS <= now);
        always || stuck
    }
}

impl GroupSlot {
    /// Something was proposed here and is not applied, or was looked at so before.
    fn has_own_writes(&self) -> bool {
        self.leads() && (!self.origins.is_empty() || self.own_writes.waits.is_some())
    }
}

impl<B: BatchBuffer> Engine<B> {
    /// Looks at what the groups led here wait for.
    pub(super) fn watch_own_writes(&mut self) {
        if !self.is_cluster() {
            return;
        }
        let now = self.server_ms;
        for slot in self
            .groups
            .values_mut()
            .filter(|slot| slot.has_own_writes())
        {
            // So many that the group would go on without this node.
            let others = majority(slot.group.members().voters.len());
            let others = slot.group.others_reached(slot.group.answers_at(), others);
            let own = slot.group.persisted_index();
            slot.own_writes.look(own, others, now);
        }
    }

    /// Begins to hand over groups whose confirms wait for this node's disk alone.
    pub(super) fn leave_to_faster_disks(&mut self) {
        let now = self.server_ms;
        for (id, slot) in &mut self.groups {
            if !slot.leads() || slot.resigning.is_some() || !slot.own_writes.is_slow(now) {
                continue;
            }
            slot.resign(now, &self.links);
            slot.own_writes = OwnWrites::default();
            if slot.resigning.is_some() {
                self.notices.push(Notice::Problem(format!(
                    "group {id}: this node's disk is slower than the others': confirms waited more than {LATE_MS} ms for it alone, for a second; leadership is handed over"
                )));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The others write entry `index` at `now`, this node so much later.
    fn write(own: &mut OwnWrites, index: u64, now: &mut u64, late: u64) {
        own.look(index - 1, index, *now);
        *now += late;
        own.look(index, index, *now);
    }

    #[test]
    fn a_second_of_late_own_writes_is_slow_and_one_in_time_begins_anew() {
        let (mut own, mut now) = (OwnWrites::default(), 0);
        for index in 1..=11 {
            write(&mut own, index, &mut now, 90);
            assert!(!own.is_slow(now), "{index}");
        }
        write(&mut own, 12, &mut now, LATE_MS);
        for index in 13..=23 {
            write(&mut own, index, &mut now, 90);
            assert!(!own.is_slow(now), "{index}");
        }
        write(&mut own, 24, &mut now, 90);
        assert!(own.is_slow(now));
    }

    #[test]
    fn few_late_writes_are_not_slow_and_one_that_does_not_come_is() {
        let (mut own, mut now) = (OwnWrites::default(), 0);
        write(&mut own, 1, &mut now, 500);
        write(&mut own, 2, &mut now, 800);
        assert!(!own.is_slow(now), "two of them");
        own.look(2, 3, now);
        assert!(own.is_slow(now + SLOW_FOR_MS), "one of a second");
    }

    #[test]
    fn a_write_that_came_before_the_others_is_in_time() {
        let (mut own, mut now) = (OwnWrites::default(), 0);
        for index in 1..=20 {
            write(&mut own, index, &mut now, 90);
        }
        own.look(21, 20, now);
        assert!(!own.is_slow(now));
    }
}
