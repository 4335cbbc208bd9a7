//! The leader's memory of a partition: gate, leases, consumers.

use super::{
    apply::is_delayed,
    delayed::Due,
    leases::Lease,
    slots::{SlotState, Slots},
    ConsumerId, Dispatch, Partition, RecordLocation, SettleRefusal,
};

/// Most due records made ready per call; the deadline stays in the past until
/// all are.
const PROMOTE_BUDGET: u32 = 1024;
/// Most leases ended per call, likewise: what one `LeaseEnded` carries.
const EXPIRE_BUDGET: u32 = 8192;

impl Partition {
    /// Records below `next` have passed the delivery gate; no further than
    /// offsets are given out.
    pub fn open_delivery(&mut self, next: u64) {
        let next = next.min(self.slots.next_offset());
        if next <= self.open {
            return;
        }
        if self.slots.count(SlotState::Fresh) == 0 {
            self.ready.skip_to(self.open);
        }
        let delayed = &mut self.delayed;
        let mut dues = Vec::new();
        self.slots.walk_mut(self.open, next, |offset, slot| {
            if slot.state != SlotState::Gated {
                return;
            }
            match delayed.take_gated(offset) {
                None => slot.state = SlotState::Fresh,
                Some(due_ms) => {
                    slot.state = SlotState::Delayed;
                    dues.push(Due {
                        due_ms,
                        offset,
                        attempts: slot.attempts,
                    });
                }
            }
        });
        self.open = next;
        for due in dues {
            self.delay(due);
        }
    }

    /// The applied mark up to here has passed the delivery gate.
    pub fn open_mark(&mut self, mark: u64) {
        self.mark.open(mark);
    }

    /// The mark to propose now, if deliveries come near the last one proposed.
    pub fn wants_mark(&mut self) -> Option<u64> {
        self.mark.wants(self.ready.reach(), self.now_ms)
    }

    /// Starts a consumer with credit in records and encoded bytes. False when
    /// the id is already subscribed.
    pub fn subscribe(&mut self, id: ConsumerId, records: u32, bytes: u64) -> bool {
        let consumers = self.consumers.get_or_insert_default();
        consumers.add(id, records, bytes)
    }

    /// False when there is no such consumer.
    pub fn add_credit(&mut self, id: ConsumerId, records: u32, bytes: u64) -> bool {
        let consumers = self.consumers.as_mut();
        consumers.is_some_and(|consumers| consumers.grant(id, records, bytes))
    }

    /// Ends a consumer; its leases, not yet under settle, are pushed to `ended`
    /// for a `LeaseEnded` command and are nobody's until that is applied.
    /// False when there is no such consumer.
    pub fn unsubscribe(&mut self, id: ConsumerId, ended: &mut Vec<(u64, u32)>) -> bool {
        self.end_consumers(&[id], ended)
    }

    /// All consumers of a connection.
    pub fn disconnect(&mut self, connection: u64, ended: &mut Vec<(u64, u32)>) {
        if let Some(consumers) = &self.consumers {
            let ids = consumers.of_connection(connection);
            self.end_consumers(&ids, ended);
        }
    }

    /// Place and encoded bytes of the record that [`Partition::next_delivery`]
    /// would hand out now; `None` also without a consumer that has credit.
    pub fn next_ready(&mut self, now_ms: u64) -> Option<(RecordLocation, u32)> {
        self.promote_due(now_ms);
        self.consumers.as_ref().filter(|all| all.any_credit())?;
        let pick = self.ready.pick(&self.slots, self.mark.opened())?;
        let slot = self.slots.get(pick.offset)?;
        Some((slot.location(), slot.len()))
    }

    /// Leases the next record to the next consumer with credit, fairly;
    /// `blocked` consumers (socket full) are passed over, each asked at most
    /// once. Delayed records that are due become ready here. `now_ms` is
    /// server time and must not go backwards.
    pub fn next_delivery(
        &mut self,
        now_ms: u64,
        blocked: &mut dyn FnMut(ConsumerId) -> bool,
    ) -> Option<Dispatch> {
        self.promote_due(now_ms);
        let consumers = self.consumers.as_mut().filter(|all| all.any_credit())?;
        let pick = self.ready.pick(&self.slots, self.mark.opened())?;
        let (key, consumer) = consumers.next(self.now_ms, blocked)?;
        let live = self.slots.count(SlotState::Leased);
        let slot = self.slots.modify(pick.offset, |slot| {
            slot.state = SlotState::Leased;
            slot.holder = key;
            *slot
        })?;
        self.ready.take(pick);
        consumers.charge(key, slot.len());
        let lease = Lease {
            ends_ms: self.now_ms.saturating_add(self.spec.lease_ms),
            offset: pick.offset,
            attempt: slot.attempt(),
        };
        let slots = &self.slots;
        self.leases
            .push(lease, live, |lease| is_leased(slots, lease));
        let redelivered = self.is_redelivery(pick.offset, slot.attempts);
        self.redelivered += u64::from(redelivered);
        Some(Dispatch {
            consumer,
            offset: pick.offset,
            attempt: slot.attempt(),
            redelivered,
            location: slot.location(),
            len: slot.len(),
        })
    }

    /// Takes a dispatch back unseen (its bytes could not be read): no attempt
    /// is counted and the credit comes back. The record takes its turn among
    /// the given back ones, so that one that cannot be read holds up no other.
    pub fn undo_dispatch(&mut self, offset: u64, attempt: u32) {
        let undone = self.slots.modify(offset, |slot| {
            let is_it = slot.state == SlotState::Leased && slot.attempt() == attempt;
            is_it.then(|| {
                slot.state = SlotState::Returned;
                *slot
            })
        });
        let Some(slot) = undone.flatten() else {
            return;
        };
        self.ready.give_back(offset);
        self.leases.forget(offset, attempt);
        if let Some(consumers) = &mut self.consumers {
            consumers.undo_charge(slot.holder, slot.len());
        }
        let flagged = self.is_redelivery(offset, slot.attempts);
        self.redelivered = self.redelivered.saturating_sub(u64::from(flagged));
    }

    /// Takes a dispatch back unseen and delays the record until `until_ms`
    /// (its bytes are damaged): no attempt is counted, the credit comes back.
    /// The leader's memory only: after a restart it is ready again, or still
    /// delayed.
    pub fn set_aside(&mut self, offset: u64, attempt: u32, until_ms: u64) {
        self.undo_dispatch(offset, attempt);
        let delayed = self.slots.modify(offset, |slot| {
            let is_it = slot.state == SlotState::Returned && slot.attempt() == attempt;
            is_it.then(|| {
                slot.state = SlotState::Delayed;
                *slot
            })
        });
        if let Some(slot) = delayed.flatten() {
            self.ready.remove(offset);
            self.delay(Due {
                due_ms: until_ms,
                offset,
                attempts: slot.attempts,
            });
        }
    }

    /// Marks a delivery as under settle, if it is this connection's. From here
    /// on its lease cannot end otherwise.
    ///
    /// # Errors
    /// [`SettleRefusal`]; nothing changes then.
    pub fn begin_settle(
        &mut self,
        connection: u64,
        offset: u64,
        attempt: u32,
    ) -> Result<(), SettleRefusal> {
        let holds = |holder| {
            let consumers = self.consumers.as_ref();
            consumers.and_then(|all| all.connection(holder)) == Some(connection)
        };
        let begun = self.slots.modify(offset, |slot| {
            if slot.attempt() != attempt {
                return Err(SettleRefusal::Stale);
            }
            match slot.state {
                SlotState::Settling => Err(SettleRefusal::InProgress),
                SlotState::Leased if holds(slot.holder) => {
                    slot.state = SlotState::Settling;
                    Ok(slot.holder)
                }
                _ => Err(SettleRefusal::Stale),
            }
        });
        let holder = begun.unwrap_or(Err(SettleRefusal::Stale))?;
        if let Some(consumers) = &mut self.consumers {
            consumers.lease_over(holder);
        }
        Ok(())
    }

    /// Leases that ended by `now_ms`, for a `LeaseEnded` command; they are
    /// nobody's until that is applied. Makes due records ready, too. Bounded:
    /// while more is to do, `next_deadline_ms` stays in the past.
    pub fn expire(&mut self, now_ms: u64, ended: &mut Vec<(u64, u32)>) {
        self.promote_due(now_ms);
        for _ in 0..EXPIRE_BUDGET {
            let slots = &self.slots;
            let popped = self
                .leases
                .pop_ended(self.now_ms, |lease| is_leased(slots, lease));
            let Some(lease) = popped else {
                break;
            };
            let lapsed = self.slots.modify(lease.offset, |slot| {
                slot.state = SlotState::Ended;
                (slot.holder, slot.len())
            });
            if let Some((holder, len)) = lapsed {
                if let Some(consumers) = &mut self.consumers {
                    consumers.lapse(holder, len);
                }
                ended.push((lease.offset, lease.attempt));
            }
        }
    }

    /// Earliest lease end or delayed due time; may be early, never late.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        match (self.leases.first_end_ms(), self.delayed.first_due_ms()) {
            (Some(lease), Some(due)) => Some(lease.min(due)),
            (lease, due) => lease.or(due),
        }
    }

    fn promote_due(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        if self.delayed.is_empty() {
            return;
        }
        for _ in 0..PROMOTE_BUDGET {
            let slots = &self.slots;
            let popped = self
                .delayed
                .pop_due(self.now_ms, |due| is_delayed(slots, due));
            let Some(due) = popped else {
                break;
            };
            self.slots
                .modify(due.offset, |slot| slot.state = SlotState::Returned);
            self.ready.give_back(due.offset);
        }
    }

    /// Ends the consumers of `ids` in one pass over the leases.
    fn end_consumers(&mut self, ids: &[ConsumerId], ended: &mut Vec<(u64, u32)>) -> bool {
        let Some(consumers) = &mut self.consumers else {
            return false;
        };
        let mut known = 0usize;
        let mut leased = 0;
        for id in ids {
            if let Some(holds) = consumers.leave(*id) {
                known += 1;
                leased += holds;
            }
        }
        if leased > 0 {
            for lease in self.leases.iter() {
                let given_back = self.slots.modify(lease.offset, |slot| {
                    let is_theirs = slot.state == SlotState::Leased
                        && slot.attempt() == lease.attempt
                        && consumers.is_leaving(slot.holder);
                    if is_theirs {
                        slot.state = SlotState::Ended;
                    }
                    is_theirs
                });
                if given_back == Some(true) {
                    ended.push((lease.offset, lease.attempt));
                }
            }
        }
        consumers.remove(ids);
        if consumers.len() == 0 {
            self.consumers = None;
        }
        known > 0
    }

    fn is_redelivery(&self, offset: u64, attempts: u32) -> bool {
        attempts > 0 || self.mark.flags(offset)
    }
}

/// True while the entry stands for its record's lease.
fn is_leased(slots: &Slots, lease: &Lease) -> bool {
    slots
        .get(lease.offset)
        .is_some_and(|slot| slot.state == SlotState::Leased && slot.attempt() == lease.attempt)
}
