//! What a partition takes from its group's log. Deterministic: the leader's
//! memory is only tidied up after, never asked.

use std::borrow::Cow;

use wire::vocabulary::{Mode, SettleKind};

use super::{
    delayed::Due,
    slots::{Slot, SlotState},
    AppendedRecord, Change, Partition,
};
use crate::state::{
    command::LeaseEndCause,
    producer::{ProducerStamp, Verdict},
};

impl Partition {
    /// Gives the records offsets; they stay gated until `open_delivery`.
    /// Returns the first offset. `stamp_ms` is the entry's server time.
    pub fn apply_append(&mut self, stamp_ms: u64, records: &[AppendedRecord]) -> u64 {
        let first = self.slots.next_offset();
        if records.is_empty() {
            return first;
        }
        self.stamps.push(first, stamp_ms, self.slots.low_bound());
        let placed = records.iter().map(|record| (record.location, record.len));
        self.slots.append(placed);
        for (offset, record) in (first..).zip(records) {
            if record.not_before_ms != 0 {
                self.delayed.set_gated(offset, record.not_before_ms);
            }
        }
        first
    }

    /// What becomes of a publish of an idempotent producer, stamped `stamp_ms`.
    pub fn judge(&self, producer: &ProducerStamp, stamp_ms: u64) -> Verdict {
        let producers = self.producers.as_ref();
        producers.map_or(Verdict::New, |all| all.judge(producer, stamp_ms))
    }

    /// The publish was judged new and appended from `first` on.
    pub fn apply_stored(
        &mut self,
        producer: &ProducerStamp,
        stamp_ms: u64,
        first: u64,
        count: u32,
    ) {
        let producers = self.producers.get_or_insert_default();
        producers.store(producer, stamp_ms, first, count);
    }

    /// The publish was judged stored already.
    pub fn apply_sent_again(&mut self, producer: &ProducerStamp, stamp_ms: u64) {
        if let Some(producers) = &mut self.producers {
            producers.touch(producer.id, stamp_ms);
        }
    }

    /// Settles the deliveries named. `due_ms`: for a release, server time
    /// before which the record stays delayed; 0 = at once. An id that is not
    /// the record's current attempt has no effect. Returns how many took effect.
    pub fn apply_settle(&mut self, kind: SettleKind, due_ms: u64, items: &[(u64, u32)]) -> u32 {
        let mut took = 0;
        for &(offset, attempt) in items {
            let effective = match kind {
                SettleKind::Acknowledge => {
                    let done = self.settle(offset, attempt);
                    self.acknowledged += u64::from(done);
                    done
                }
                SettleKind::Reject => {
                    let done = self.settle(offset, attempt);
                    self.dropped += u64::from(done);
                    done
                }
                SettleKind::Release => self.end_delivery(offset, attempt, due_ms),
            };
            took += u32::from(effective);
        }
        took
    }

    /// Counts the deliveries named as ended; the records are ready again.
    pub fn apply_lease_ended(&mut self, _cause: LeaseEndCause, items: &[(u64, u32)]) {
        for &(offset, attempt) in items {
            self.end_delivery(offset, attempt, 0);
        }
    }

    /// Deliveries below `mark` may have been handed out.
    pub fn apply_mark(&mut self, mark: u64) {
        self.mark.apply(mark);
    }

    /// What is published from here on has this mode and W. False for a revision that is
    /// not newer than the one in force: nothing changes.
    pub fn apply_change(&mut self, mode: Mode, copies: u8, revision: u32) -> bool {
        if revision <= self.change.as_ref().map_or(0, |change| change.revision) {
            return false;
        }
        self.change = Some(Box::new(Change {
            revision,
            since: self.slots.next_offset(),
            copies_before: self.spec.copies,
        }));
        (self.spec.mode, self.spec.copies) = (mode, copies);
        true
    }

    /// Drops every record below `below` but the deliveries in `keep`, which
    /// the proposer took from [`Partition::leased_below`]. A record leased
    /// since then is dropped too and its settle will be refused as stale.
    /// Returns how many records it dropped.
    pub fn apply_purge(&mut self, below: u64, keep: &[(u64, u32)]) -> u64 {
        let keep = sorted(keep);
        let mut kept = keep.iter().copied().peekable();
        let mut dropped: Vec<(u64, Slot)> = Vec::new();
        let mut count = 0;
        let below = below.min(self.slots.next_offset());
        self.slots.walk_mut(0, below, |offset, slot| {
            while kept.next_if(|(at, _)| *at < offset).is_some() {}
            let mut keeps = false;
            while let Some((_, attempt)) = kept.next_if(|(at, _)| *at == offset) {
                keeps |= attempt == slot.attempt();
            }
            if keeps {
                return;
            }
            if !matches!(slot.state, SlotState::Fresh) {
                dropped.push((offset, *slot));
            }
            slot.state = SlotState::Settled;
            count += 1;
        });
        for (offset, slot) in dropped {
            self.detach(offset, &slot);
        }
        self.purged += count;
        self.forget_stamps_if_empty();
        count
    }

    /// After replay, before the first delivery of this leadership: everything
    /// unsettled is gated, ready or delayed again, nothing is leased, and what
    /// lies below the mark counts as possibly handed out. The mark is open at
    /// once: the barrier that precedes the first `open_delivery` covers it.
    pub fn finish_replay(&mut self) {
        self.leases.clear();
        if let Some(consumers) = &mut self.consumers {
            consumers.forget_leases();
        }
        self.ready.reset();
        if self.handed_out() + self.slots.count(SlotState::Returned) > 0 {
            self.slots.walk_mut(0, self.open, |_, slot| {
                if !matches!(slot.state, SlotState::Gated | SlotState::Delayed) {
                    slot.state = SlotState::Fresh;
                }
            });
        }
        self.mark.begin(self.slots.next_offset());
        self.redelivered = 0;
    }

    /// Leadership is lost: leases, consumers and credit go with it.
    pub fn step_down(&mut self) {
        self.finish_replay();
        self.consumers = None;
    }

    /// In a new generation: every record below `next` is of an older one and
    /// is flagged as redelivered.
    pub fn flag_redelivered_below(&mut self, next: u64) {
        self.mark.flag_below(next);
    }

    /// Deliveries below `below` that a purge must keep, in offset order.
    pub fn leased_below(&self, below: u64, out: &mut Vec<(u64, u32)>) {
        if self.handed_out() == 0 {
            return;
        }
        for (offset, slot) in self.slots.walk(0, below) {
            if matches!(
                slot.state,
                SlotState::Leased | SlotState::Settling | SlotState::Ended
            ) {
                out.push((offset, slot.attempt()));
            }
        }
    }

    /// Removes the record for good, if `attempt` is its current one.
    fn settle(&mut self, offset: u64, attempt: u32) -> bool {
        let settled = self.slots.modify(offset, |slot| {
            (slot.attempt() == attempt).then(|| {
                let before = *slot;
                slot.state = SlotState::Settled;
                before
            })
        });
        let Some(before) = settled.flatten() else {
            return false;
        };
        self.detach(offset, &before);
        self.forget_stamps_if_empty();
        true
    }

    /// Ends the delivery `attempt`: the record is ready, or delayed until
    /// `due_ms`, behind its gate if that is still closed.
    fn end_delivery(&mut self, offset: u64, attempt: u32, due_ms: u64) -> bool {
        let ended = self.slots.modify(offset, |slot| {
            (slot.attempt() == attempt).then(|| {
                let before = *slot;
                slot.end_attempt();
                slot.state = match (slot.state, due_ms) {
                    (SlotState::Gated, _) => SlotState::Gated,
                    (_, 0) => SlotState::Returned,
                    _ => SlotState::Delayed,
                };
                (before, *slot)
            })
        });
        let Some((before, after)) = ended.flatten() else {
            return false;
        };
        self.detach(offset, &before);
        match after.state {
            SlotState::Gated => self.delayed.set_gated(offset, due_ms),
            SlotState::Returned => self.ready.give_back(offset),
            _ => self.delay(Due {
                due_ms,
                offset,
                attempts: after.attempts,
            }),
        }
        true
    }

    /// Takes a slot that leaves its state out of what keeps that state.
    fn detach(&mut self, offset: u64, before: &Slot) {
        match before.state {
            SlotState::Gated => self.delayed.set_gated(offset, 0),
            SlotState::Returned => self.ready.remove(offset),
            SlotState::Leased => {
                if let Some(consumers) = &mut self.consumers {
                    consumers.lease_over(before.holder);
                }
            }
            // The cursor, the heap and the lease queue pass over what left them.
            SlotState::Fresh
            | SlotState::Delayed
            | SlotState::Settling
            | SlotState::Ended
            | SlotState::Settled => {}
        }
    }

    pub(super) fn delay(&mut self, due: Due) {
        let slots = &self.slots;
        let live = slots.count(SlotState::Delayed);
        self.delayed.push(due, live, |due| is_delayed(slots, due));
    }

    fn forget_stamps_if_empty(&mut self) {
        if self.slots.low_bound() == self.slots.next_offset() {
            self.stamps.clear();
        }
    }
}

/// True while the heap entry stands for its record.
pub(super) fn is_delayed(slots: &super::Slots, due: &Due) -> bool {
    slots
        .get(due.offset)
        .is_some_and(|slot| slot.state == SlotState::Delayed && slot.attempts == due.attempts)
}

fn sorted(ids: &[(u64, u32)]) -> Cow<'_, [(u64, u32)]> {
    if ids.is_sorted() {
        return Cow::Borrowed(ids);
    }
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    Cow::Owned(ids)
}
