//! What the clients of a run sent and were told: the oracle's memory, outside
//! the system under test.
//!
//! 1. A record has one id, one queue and partition, and, once it was seen, one
//!    offset for ever.
//! 2. What is known to be durable must outlive everything; what is known to be
//!    written must outlive everything but a power cut or a latch of its log
//!    (a *hazard*), and even then only what a loss report names may go.

use std::collections::BTreeMap;

use wire::vocabulary::{Boundary, Mode};

use super::Checked;
use crate::promises::Promises;

/// Queue id and partition.
pub(super) type Key = (u64, u16);

/// What became of a published batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Pending,
    Confirmed,
    Failed,
    Unknown,
}

/// The records of one publish, ids in a row.
#[derive(Debug, Clone)]
pub(super) struct Batch {
    pub key: Key,
    pub first_id: u64,
    pub count: u64,
    pub durable: bool,
    pub fate: Fate,
    pub first_offset: Option<u64>,
}

/// Where a record is known to have stood, and how safely.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    pub offset: u64,
    /// The first and the latest generation in which it was seen.
    pub first_generation: u32,
    pub generation: u32,
    pub durable: bool,
    /// The log's hazards when it was last known to be written.
    pub written_at: u64,
}

/// A settle that was confirmed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settled {
    pub attempt: u32,
    pub durable: bool,
    pub hazard: u64,
    pub life: u64,
}

/// One record.
#[derive(Debug, Clone)]
pub(super) struct Rec {
    pub batch: usize,
    pub key: Key,
    pub not_before_ms: u64,
    pub known: Option<Known>,
    /// Acknowledges and rejects sent and not known to be refused.
    pub open_settles: u32,
    pub settled: Option<Settled>,
    pub maybe_purged: bool,
    /// Shard life and attempts seen in it.
    pub attempts: (u64, Vec<u32>),
    pub delivered: bool,
    /// After a confirmed release: attempt, earliest next delivery, shard life.
    pub released: Option<(u32, u64, u64)>,
}

/// A queue's way through its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QueueState {
    Declared,
    DeleteSent,
    Deleted,
}

#[derive(Debug, Clone)]
pub(super) struct Queue {
    pub name: String,
    pub mode: Mode,
    pub lease_ms: u64,
    /// Shard of each partition.
    pub shards: Vec<u16>,
    pub state: QueueState,
    /// A declare was told that it made it.
    pub created: bool,
    /// When the state was learned: older requests may be answered otherwise.
    pub learned_us: u64,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Part {
    /// (generation, offset) to record.
    pub places: BTreeMap<(u32, u64), u64>,
    /// Offset to the record that was seen there last.
    pub current: BTreeMap<u64, u64>,
    /// Records whose place another one took: a loss report must say so.
    pub replaced: Vec<(u64, u64)>,
    /// (generation, first lost), as last told.
    pub losses: Vec<(u32, u64)>,
    /// Shard life and the generation used in it.
    pub generation: (u64, u32),
    /// Purges sent and not answered on a living connection.
    pub purging: u32,
    /// Acknowledges and rejects sent, over all records.
    pub acknowledges: u64,
    pub rejects: u64,
}

#[derive(Default)]
pub(super) struct Journal {
    pub batches: Vec<Batch>,
    pub records: Vec<Rec>,
    pub queues: BTreeMap<u64, Queue>,
    pub parts: BTreeMap<Key, Part>,
    /// Names for which a declare is, or was left, under way.
    pub declaring: BTreeMap<String, u32>,
    /// What is known of settings.
    pub promises: Promises,
    /// What was seen at all, for runs that must not be empty.
    pub confirmed: u64,
    pub delivered: u64,
    pub settled: u64,
    pub lost: u64,
}

/// When something was learned: a shard's life and its log's hazards then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Moment {
    pub life: u64,
    pub hazard: u64,
}

impl Journal {
    pub fn new() -> Self {
        Journal {
            promises: Promises::new(1),
            ..Journal::default()
        }
    }

    /// When the last record of a partition becomes ready at the latest, by the clock of
    /// whoever published it; 0 where nothing was delayed.
    pub fn last_due_ms(&self, key: Key) -> u64 {
        let of_it = self.records.iter().filter(|rec| rec.key == key);
        of_it.map(|rec| rec.not_before_ms).max().unwrap_or(0)
    }

    /// A batch that is about to be sent.
    pub fn publish(&mut self, key: Key, durable: bool, not_before_ms: &[u64]) -> usize {
        let batch = self.batches.len();
        let first_id = self.records.len() as u64;
        let maybe_purged = self.parts.entry(key).or_default().purging > 0;
        for not_before_ms in not_before_ms {
            self.records.push(Rec {
                batch,
                key,
                not_before_ms: *not_before_ms,
                known: None,
                open_settles: 0,
                settled: None,
                maybe_purged,
                attempts: (0, Vec::new()),
                delivered: false,
                released: None,
            });
        }
        self.batches.push(Batch {
            key,
            first_id,
            count: not_before_ms.len() as u64,
            durable,
            fate: Fate::Pending,
            first_offset: None,
        });
        batch
    }

    pub fn record(&mut self, id: u64) -> Checked<&mut Rec> {
        self.records
            .get_mut(id as usize)
            .ok_or_else(|| format!("record {id} was never published"))
    }

    /// A confirm arrived.
    pub fn confirm(
        &mut self,
        batch: usize,
        boundary: Boundary,
        generation: u32,
        first_offset: u64,
        moment: Moment,
    ) -> Checked<()> {
        let known = self.batches[batch].clone();
        let place = (generation, first_offset);
        let met = (boundary, 1);
        let judged = self
            .promises
            .confirmed(known.key, place, known.durable, met);
        judged.map_err(|wrong| format!("batch {batch}: {wrong}"))?;
        self.sight_generation(known.key, generation, moment)?;
        self.batches[batch].fate = Fate::Confirmed;
        self.confirmed += known.count;
        for index in 0..known.count {
            let durable = boundary == Boundary::Durable;
            self.sight(
                known.key,
                generation,
                first_offset + index,
                known.first_id + index,
                durable,
                moment,
            )?;
        }
        Ok(())
    }

    /// Record `id` was seen at a place.
    pub fn sight(
        &mut self,
        key: Key,
        generation: u32,
        offset: u64,
        id: u64,
        durable: bool,
        moment: Moment,
    ) -> Checked<()> {
        let rec = self.record(id)?;
        if rec.key != key {
            return Err(format!("record {id} of {:?} was seen in {key:?}", rec.key));
        }
        let batch = rec.batch;
        match &mut rec.known {
            Some(known) if known.offset != offset => {
                return Err(format!(
                    "record {id} of {key:?} has offsets {} and {offset}",
                    known.offset
                ));
            }
            Some(known) => {
                known.first_generation = known.first_generation.min(generation);
                known.generation = known.generation.max(generation);
                known.durable |= durable;
                known.written_at = known.written_at.max(moment.hazard);
            }
            None => {
                rec.known = Some(Known {
                    offset,
                    first_generation: generation,
                    generation,
                    durable,
                    written_at: moment.hazard,
                });
            }
        }
        self.sight_batch(batch, id, offset)?;
        let part = self.parts.entry(key).or_default();
        if let Some(other) = part.places.insert((generation, offset), id) {
            if other != id {
                return Err(format!(
                    "offset {offset} of generation {generation} of {key:?} is both record {other} and record {id}"
                ));
            }
        }
        if let Some(other) = part.current.insert(offset, id).filter(|other| *other != id) {
            part.replaced.push((other, id));
        }
        Ok(())
    }

    fn sight_batch(&mut self, batch: usize, id: u64, offset: u64) -> Checked<()> {
        let seen = &mut self.batches[batch];
        if seen.fate == Fate::Failed {
            return Err(format!("record {id} was reported as failed and is there"));
        }
        let first = offset.checked_sub(id - seen.first_id);
        let first = first.ok_or_else(|| format!("record {id} cannot have offset {offset}"))?;
        match seen.first_offset {
            Some(known) if known != first => Err(format!(
                "batch {batch} begins at offsets {known} and {first}"
            )),
            _ => {
                seen.first_offset = Some(first);
                Ok(())
            }
        }
    }

    /// Confirms and deliveries of one shard life name one generation, and none
    /// of a later life names a lower one.
    pub fn sight_generation(&mut self, key: Key, generation: u32, moment: Moment) -> Checked<()> {
        let part = self.parts.entry(key).or_default();
        let (life, known) = part.generation;
        if (moment.life == life && generation != known && life != 0)
            || (moment.life > life && generation < known)
            || (moment.life < life && generation > known)
        {
            return Err(format!(
                "{key:?} is in generation {generation} in life {} and {known} in life {life}",
                moment.life
            ));
        }
        if moment.life > life {
            part.generation = (moment.life, generation);
        }
        Ok(())
    }

    /// The owner said that everything below `durable_next` is durable.
    pub fn durable_below(&mut self, key: Key, generation: u32, durable_next: u64) {
        let Some(part) = self.parts.get(&key) else {
            return;
        };
        for id in part
            .places
            .range((generation, 0)..(generation, durable_next))
        {
            if let Some(Some(known)) = self
                .records
                .get_mut(*id.1 as usize)
                .map(|r| r.known.as_mut())
            {
                known.durable |= known.generation == generation;
            }
        }
    }

    /// Exclusive end of what is known to be confirmed in the generation.
    pub fn confirmed_next(&self, key: Key, generation: u32) -> u64 {
        let part = self.parts.get(&key);
        let last = part.and_then(|part| {
            part.places
                .range((generation, 0)..=(generation, u64::MAX))
                .next_back()
        });
        last.map_or(0, |((_, offset), _)| offset + 1)
    }

    /// Nothing that is written now can be lost any more: all of it is durable.
    /// `hazards`: of each shard's log.
    pub fn all_durable(&mut self, hazards: &[u64]) {
        for rec in &mut self.records {
            let queue = self.queues.get(&rec.key.0);
            let shard = queue.and_then(|queue| queue.shards.get(usize::from(rec.key.1)));
            let hazard = shard.and_then(|shard| hazards.get(usize::from(*shard)));
            if let Some(known) = rec.known.as_mut() {
                known.durable |= Some(&known.written_at) == hazard;
            }
            if let Some(settled) = rec.settled.as_mut() {
                settled.durable |= Some(&settled.hazard) == hazard;
            }
        }
    }

    /// The loss report that names the record, if one does.
    pub fn reported_lost(&self, rec: &Rec) -> Option<(u32, u64)> {
        let known = rec.known?;
        let part = self.parts.get(&rec.key)?;
        part.losses.iter().copied().find(|(generation, first)| {
            *generation >= known.first_generation && *first <= known.offset
        })
    }

    pub fn shard_of(&self, key: Key) -> Option<u16> {
        self.queues
            .get(&key.0)?
            .shards
            .get(usize::from(key.1))
            .copied()
    }

    pub fn is_declared(&self, queue_id: u64) -> bool {
        self.queues
            .get(&queue_id)
            .is_some_and(|queue| queue.state == QueueState::Declared)
    }
}

impl Journal {
    pub fn declare_begins(&mut self, name: &str) {
        *self.declaring.entry(name.to_owned()).or_default() += 1;
    }

    pub fn declare_ends(&mut self, name: &str) {
        if let Some(count) = self.declaring.get_mut(name) {
            *count = count.saturating_sub(1);
        }
    }

    /// A purge was sent: what is there may go.
    pub fn purge_begins(&mut self, key: Key) {
        self.parts.entry(key).or_default().purging += 1;
        for rec in self.records.iter_mut().filter(|rec| rec.key == key) {
            rec.maybe_purged = true;
        }
    }

    pub fn purge_ends(&mut self, key: Key) {
        let part = self.parts.entry(key).or_default();
        part.purging = part.purging.saturating_sub(1);
    }
}
