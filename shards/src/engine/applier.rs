//! Committed commands into the partitions: the same code live and at boot.

use wire::{message::LossReport, record::Records, vocabulary::Mode};

use super::{
    core::Map,
    partition::{PartitionKey, PartitionSlot},
};
use crate::{
    group::GroupId,
    log::LogPosition,
    state::{
        command::{Command, PartitionSpec},
        producer::{ProducerStamp, Verdict},
        queue::{AppendedRecord, RecordLocation},
    },
};

/// What a command did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Applied {
    Nothing,
    Appended {
        key: PartitionKey,
        first: u64,
        count: u32,
        bytes: u64,
    },
    /// A publish that is stored already, from `first` on.
    SentAgain {
        key: PartitionKey,
        first: u64,
        count: u32,
    },
    /// A publish whose producer has a newer epoch.
    Fenced {
        epoch: u32,
    },
    /// A publish of which it is not known any more whether it is stored.
    Forgotten,
    Settled {
        key: PartitionKey,
    },
    Readied {
        key: PartitionKey,
    },
    Marked {
        key: PartitionKey,
        mark: u64,
    },
    Purged {
        key: PartitionKey,
        records: u64,
    },
    Created {
        key: PartitionKey,
    },
    /// The setting that ends with the entry.
    Changed {
        key: PartitionKey,
        before: (Mode, u8),
    },
    Dropped,
    Weakened,
    NewGeneration {
        key: PartitionKey,
        /// The one that lost its end.
        lost_from: u32,
        first_lost: u64,
    },
}

/// A group's log as a command sees it.
pub(super) struct Applier<'a> {
    pub partitions: &'a mut Map<PartitionKey, Box<PartitionSlot>>,
    /// Used again for each append.
    pub appended: &'a mut Vec<AppendedRecord>,
    pub group: GroupId,
    pub generation: u32,
    /// Of the entry: partitions that cover it pass over it. 0 where that was seen to.
    pub index: u64,
    /// Largest time stamp seen, in ms.
    pub stamp_ms: &'a mut u64,
    /// Memory that the partitions take, see [`PartitionSlot::account`].
    pub index_bytes: &'a mut u64,
}

impl Applier<'_> {
    /// Applies a command whose payload byte `i` stands at `place(i)`. What
    /// does not decode was checked before it was proposed: it changes nothing
    /// and is named in the error.
    pub(super) fn apply(
        &mut self,
        payload: &[u8],
        place: &dyn Fn(u32) -> LogPosition,
    ) -> Result<Applied, String> {
        let command = Command::decode(payload).map_err(|error| error.to_string())?;
        let Some((queue_id, partition)) = command.target() else {
            return Ok(Applied::Weakened);
        };
        let key = PartitionKey {
            queue_id,
            partition,
        };
        let slot = self.partitions.get(&key);
        if self.index > 0 && slot.is_some_and(|slot| slot.covered >= self.index) {
            return Ok(Applied::Nothing);
        }
        if let Command::Create(spec) = command {
            return Ok(self.create(key, spec));
        }
        if let Command::Append { stamp_ms, .. } | Command::Settle { stamp_ms, .. } = command {
            *self.stamp_ms = (*self.stamp_ms).max(stamp_ms);
        }
        let Some(slot) = self.partitions.get_mut(&key) else {
            return Ok(match command {
                Command::Drop { .. } => Applied::Dropped,
                _ => Applied::Nothing,
            });
        };
        let applied = match command {
            Command::Append {
                stamp_ms,
                producer,
                records,
                ..
            } => {
                let head = (payload.len() - records.len()) as u32;
                let place = |at| place(head + at);
                match producer {
                    None => append(slot, self.appended, stamp_ms, records, &place)?,
                    Some(producer) => {
                        append_once(slot, self.appended, stamp_ms, producer, records, &place)?
                    }
                }
            }
            Command::Settle {
                kind,
                due_ms,
                items,
                ..
            } => {
                for (offset, attempt) in items.iter() {
                    if slot.is_named(offset) {
                        let settled = [(offset, attempt)];
                        slot.machine.apply_settle(kind, due_ms, &settled);
                    }
                }
                Applied::Settled { key }
            }
            Command::LeaseEnded { cause, items, .. } => {
                for (offset, attempt) in items.iter() {
                    slot.machine.apply_lease_ended(cause, &[(offset, attempt)]);
                }
                Applied::Readied { key }
            }
            Command::DispatchMark { mark, .. } => {
                slot.machine.apply_mark(mark);
                Applied::Marked { key, mark }
            }
            Command::Purge { below, keep, .. } => {
                let keep: Vec<(u64, u32)> = keep.iter().collect();
                let below = slot.gap_at.unwrap_or(below).min(below);
                let records = slot.machine.apply_purge(below, &keep);
                Applied::Purged { key, records }
            }
            Command::Change {
                mode,
                copies,
                revision,
                ..
            } => {
                let spec = slot.machine.spec();
                let before = (spec.mode, spec.copies);
                match slot.machine.apply_change(mode, copies, revision) {
                    true => Applied::Changed { key, before },
                    false => Applied::Nothing,
                }
            }
            Command::NewGeneration {
                generation,
                first_lost,
                ..
            } => new_generation(slot, generation, first_lost),
            Command::Drop { .. } => {
                *self.index_bytes = self.index_bytes.saturating_sub(slot.accounted_bytes);
                self.partitions.remove(&key);
                return Ok(Applied::Dropped);
            }
            Command::Create(_) | Command::Weaken => Applied::Nothing,
        };
        slot.account(self.index_bytes);
        Ok(applied)
    }

    fn create(&mut self, key: PartitionKey, spec: PartitionSpec) -> Applied {
        // Asked for twice when a directory came while the first was under way.
        if self.partitions.contains_key(&key) {
            return Applied::Nothing;
        }
        let mut slot = PartitionSlot::new(spec, self.group, self.generation);
        slot.account(self.index_bytes);
        self.partitions.insert(key, Box::new(slot));
        Applied::Created { key }
    }
}

fn append(
    slot: &mut PartitionSlot,
    appended: &mut Vec<AppendedRecord>,
    stamp_ms: u64,
    records: &[u8],
    place: &dyn Fn(u32) -> LogPosition,
) -> Result<Applied, String> {
    appended.clear();
    let mut at = 0;
    for record in Records::new(records) {
        let record = record.map_err(|error| error.to_string())?;
        let len = record.bytes.len() as u32;
        appended.push(AppendedRecord {
            location: RecordLocation::Ring(place(at).0),
            len,
            not_before_ms: record.not_before_ms,
        });
        at += len;
    }
    let first = slot.machine.apply_append(stamp_ms, appended);
    let (count, bytes) = (appended.len() as u32, records.len() as u64);
    slot.unsynced_bytes += bytes;
    Ok(Applied::Appended {
        key: slot.key,
        first,
        count,
        bytes,
    })
}

/// Stores what is not stored yet.
fn append_once(
    slot: &mut PartitionSlot,
    appended: &mut Vec<AppendedRecord>,
    stamp_ms: u64,
    producer: ProducerStamp,
    records: &[u8],
    place: &dyn Fn(u32) -> LogPosition,
) -> Result<Applied, String> {
    match slot.machine.judge(&producer, stamp_ms) {
        Verdict::New => {
            let applied = append(slot, appended, stamp_ms, records, place)?;
            if let Applied::Appended { first, count, .. } = applied {
                slot.machine.apply_stored(&producer, stamp_ms, first, count);
            }
            Ok(applied)
        }
        Verdict::Stored { first, count } => {
            slot.machine.apply_sent_again(&producer, stamp_ms);
            Ok(Applied::SentAgain {
                key: slot.key,
                first,
                count,
            })
        }
        Verdict::Fenced { epoch } => Ok(Applied::Fenced { epoch }),
        Verdict::Forgotten => Ok(Applied::Forgotten),
    }
}

/// Most generations that one copy is told to have missed.
const MAX_LOSSES_AT_ONCE: usize = 64;

fn new_generation(slot: &mut PartitionSlot, generation: u32, first_lost: u64) -> Applied {
    if generation <= slot.generation {
        return Applied::Nothing;
    }
    let lost_from = slot.generation;
    // Generations between began with all of this one (R6, an operator chose a copy that was
    // kept): of theirs, too, everything from here on is gone, and what is below is here.
    for lost in (lost_from..generation).take(MAX_LOSSES_AT_ONCE) {
        slot.losses.push(LossReport {
            generation: lost,
            first_lost,
            highest_known_confirmed_next: 0,
        });
    }
    slot.generation = generation;
    slot.gap_at = None;
    // Everything of an older generation may have been handed out.
    slot.machine
        .flag_redelivered_below(slot.machine.next_offset());
    Applied::NewGeneration {
        key: slot.key,
        lost_from,
        first_lost,
    }
}
