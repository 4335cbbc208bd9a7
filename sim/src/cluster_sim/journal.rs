//! What the clients of a run sent and were told, and what the disks hold: the
//! oracle's memory, outside the system under test.
//!
//! 1. A record has one id, one queue and partition, and, once it was seen, one
//!    offset for ever.
//! 2. What was promised at durable outlives everything. What was promised at
//!    written outlives everything but the loss of unsynced bytes on a majority
//!    of the nodes, or on every node that had it; and then a loss report names
//!    it.

use std::collections::BTreeMap;

use linear::History;
use wire::vocabulary::{Boundary, Mode};

use super::Checked;
use crate::promises::Promises;

/// Queue id and partition.
pub(super) type Key = (u64, u16);

/// A set of nodes, by index.
pub(super) type Nodes = u32;

/// A node that lost unsynced bytes is taken to have all again after this, if
/// nothing else tells.
const REPAIRED_US: u64 = 15_000_000;

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
    pub deadline_ms: u64,
    pub fate: Fate,
    pub first_offset: Option<u64>,
    /// Who confirmed it.
    pub confirmed_by: Option<usize>,
}

/// Where a record is known to have stood.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    pub offset: u64,
    /// The first and the latest generation in which it was seen.
    pub first_generation: u32,
    pub generation: u32,
}

/// A settle that was confirmed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settled {
    pub attempt: u32,
    pub durable: bool,
    pub at_us: u64,
    /// Nodes that may have forgotten it.
    pub hurt: Nodes,
}

/// One record.
#[derive(Debug, Clone)]
pub(super) struct Rec {
    pub batch: usize,
    pub key: Key,
    pub known: Option<Known>,
    /// The strongest promise made about it.
    pub promised: Option<Boundary>,
    /// Nodes on whose disks it was ever written, ever safe.
    pub written_on: Nodes,
    pub durable_on: Nodes,
    /// Nodes that have it now, written or more.
    pub there_on: Nodes,
    /// Nodes that lost unsynced bytes while it was not safe there.
    pub hurt: Nodes,
    /// Acknowledges and rejects sent and not known to be refused.
    pub open_settles: u32,
    pub settled: Option<Settled>,
    /// When a delivery of it last reached a client.
    pub delivered_us: Option<u64>,
}

#[derive(Debug, Clone)]
pub(super) struct Queue {
    pub name: String,
    pub mode: Mode,
    pub lease_ms: u64,
    /// Group of each partition.
    pub groups: Vec<u32>,
    /// A declare was told that it made it.
    pub created: bool,
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
    pub acknowledges: u64,
    pub rejects: u64,
}

#[derive(Default)]
pub(super) struct Journal {
    pub batches: Vec<Batch>,
    pub records: Vec<Rec>,
    pub queues: BTreeMap<u64, Queue>,
    pub parts: BTreeMap<Key, Part>,
    /// Of each node: when it last lost unsynced bytes.
    hurt_us: BTreeMap<usize, u64>,
    pub confirmed: u64,
    pub delivered: u64,
    pub settled: u64,
    pub lost: u64,
    pub now_us: u64,
    pub nodes: usize,
    /// Every loss was told to every leader: copies that are counted are there now.
    pub copies_are_there: bool,
    /// What is known of settings.
    pub promises: Promises,
    /// The same run, for the check that needs no knowledge of nodes and disks.
    pub history: History,
}

impl Journal {
    pub fn new(nodes: usize) -> Self {
        Journal {
            nodes,
            promises: Promises::new(nodes),
            ..Journal::default()
        }
    }

    /// A batch that is about to be sent.
    pub fn publish(&mut self, key: Key, durable: bool, count: u64, deadline_ms: u64) -> usize {
        let batch = self.batches.len();
        let first_id = self.records.len() as u64;
        let hurt = self.hurt_lately();
        self.history.publish(key, first_id, count, self.now_us);
        for _ in 0..count {
            self.records.push(Rec {
                batch,
                key,
                known: None,
                promised: None,
                written_on: 0,
                durable_on: 0,
                there_on: 0,
                hurt,
                open_settles: 0,
                settled: None,
                delivered_us: None,
            });
        }
        self.batches.push(Batch {
            key,
            first_id,
            count,
            durable,
            deadline_ms,
            fate: Fate::Pending,
            first_offset: None,
            confirmed_by: None,
        });
        batch
    }

    pub fn record(&mut self, id: u64) -> Checked<&mut Rec> {
        self.records
            .get_mut(id as usize)
            .ok_or_else(|| format!("record {id} was never published"))
    }

    pub fn majority(&self) -> u32 {
        self.nodes as u32 / 2 + 1
    }

    // --- what disks hold ---

    pub fn written_on(&mut self, node: usize, ids: &[u64]) {
        for id in ids {
            if let Some(rec) = self.records.get_mut(*id as usize) {
                rec.written_on |= 1 << node;
                rec.there_on |= 1 << node;
            }
        }
    }

    pub fn durable_on(&mut self, node: usize, ids: &[u64]) {
        for id in ids {
            if let Some(rec) = self.records.get_mut(*id as usize) {
                rec.durable_on |= 1 << node;
            }
        }
    }

    /// A node lost what it had not synced.
    pub fn hurt(&mut self, node: usize) {
        self.hurt_us.insert(node, self.now_us);
        let bit: Nodes = 1 << node;
        for rec in &mut self.records {
            if rec.durable_on & bit == 0 {
                rec.hurt |= bit;
            }
            if let Some(settled) = rec.settled.as_mut().filter(|settled| !settled.durable) {
                settled.hurt |= bit;
            }
        }
    }

    /// A node's power went: what is not durable there may be gone.
    pub fn lost_power(&mut self, node: usize) {
        for rec in &mut self.records {
            rec.there_on &= rec.durable_on | !(1 << node);
        }
    }

    /// A node's disk is gone, with all that was on it.
    pub fn lost_disk(&mut self, node: usize) {
        self.hurt(node);
        let bit: Nodes = 1 << node;
        for rec in &mut self.records {
            rec.hurt |= bit;
            rec.there_on &= !bit;
        }
    }

    /// Nodes that may still lack what they lost.
    fn hurt_lately(&self) -> Nodes {
        let lately = |at_us: &u64| at_us + REPAIRED_US > self.now_us;
        let nodes = self.hurt_us.iter().filter(|(_, at_us)| lately(at_us));
        nodes.fold(0, |nodes, (node, _)| nodes | 1 << node)
    }

    /// Whether the record may be lost: a promise at durable never is.
    pub fn may_be_lost(&self, rec: &Rec) -> bool {
        match rec.promised {
            Some(Boundary::Durable) => false,
            Some(Boundary::Written) => {
                rec.hurt.count_ones() >= self.majority() || rec.written_on & !rec.hurt == 0
            }
            None => true,
        }
    }

    /// Whether a confirmed settle may have been forgotten.
    pub fn may_be_undone(&self, settled: &Settled) -> bool {
        !settled.durable && settled.hurt.count_ones() >= self.majority()
    }

    pub fn new_settled(&self, attempt: u32, durable: bool) -> Settled {
        Settled {
            attempt,
            durable,
            at_us: self.now_us,
            hurt: self.hurt_lately(),
        }
    }

    // --- what clients are told ---

    /// A confirm arrived.
    pub fn confirm(
        &mut self,
        batch: usize,
        boundary: Boundary,
        copies: u32,
        generation: u32,
        first_offset: u64,
    ) -> Checked<()> {
        let known = self.batches[batch].clone();
        let place = (generation, first_offset);
        let met = (boundary, copies as usize);
        let judged = self
            .promises
            .confirmed(known.key, place, known.durable, met);
        judged.map_err(|wrong| format!("batch {batch}: {wrong}"))?;
        if copies < self.majority() {
            return Err(format!(
                "batch {batch} of {:?} was confirmed at {boundary:?} on {copies} copies",
                known.key
            ));
        }
        self.batches[batch].fate = Fate::Confirmed;
        self.confirmed += known.count;
        for index in 0..known.count {
            let id = known.first_id + index;
            self.check_copies(id, boundary, copies)?;
            self.sight(known.key, generation, first_offset + index, id)?;
            self.promise(id, boundary)?;
        }
        Ok(())
    }

    /// What is said to have met a boundary on so many copies has.
    pub fn check_copies(&mut self, id: u64, boundary: Boundary, copies: u32) -> Checked<()> {
        let exact = self.copies_are_there;
        let rec = self.record(id)?;
        let there = match boundary {
            // A copy that was lost may be counted until the leader hears of it.
            Boundary::Written if exact => rec.there_on,
            Boundary::Written => rec.written_on,
            Boundary::Durable => rec.durable_on,
        };
        // One that may be settled need not be anywhere: a snapshot leaves it out.
        let is_needed = rec.open_settles == 0 && rec.settled.is_none();
        if is_needed && there.count_ones() < copies {
            return Err(format!(
                "record {id} is said to be {} on {copies} copies: {rec:?}",
                boundary.name()
            ));
        }
        Ok(())
    }

    pub fn promise(&mut self, id: u64, boundary: Boundary) -> Checked<()> {
        let rec = self.record(id)?;
        rec.promised = rec.promised.max(Some(boundary));
        Ok(())
    }

    /// Record `id` was seen at a place.
    pub fn sight(&mut self, key: Key, generation: u32, offset: u64, id: u64) -> Checked<()> {
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
            }
            None => {
                rec.known = Some(Known {
                    offset,
                    first_generation: generation,
                    generation,
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

    /// The end of what is known of a partition in a generation: its last
    /// generation if none is given.
    pub fn confirmed_next(&self, key: Key) -> (u32, u64) {
        let Some(part) = self.parts.get(&key) else {
            return (0, 0);
        };
        let confirmed = |id: &u64| {
            let rec = self.records.get(*id as usize);
            rec.is_some_and(|rec| rec.promised.is_some())
        };
        let mut places = part.places.iter().rev();
        let last = places.find(|(_, id)| confirmed(id));
        last.map_or((0, 0), |((generation, offset), _)| {
            (*generation, offset + 1)
        })
    }

    /// The owner said that everything below is durable on enough copies.
    pub fn durable_below(&mut self, key: Key, generation: u32, durable_next: u64) -> Checked<()> {
        let Some(part) = self.parts.get(&key) else {
            return Ok(());
        };
        let below = part
            .places
            .range((generation, 0)..(generation, durable_next));
        let ids: Vec<u64> = below.map(|(_, id)| *id).collect();
        for id in ids {
            self.check_copies(id, Boundary::Durable, self.majority())?;
            self.promise(id, Boundary::Durable)?;
        }
        Ok(())
    }

    /// The loss report that names the record, if one does.
    pub fn reported_lost(&self, rec: &Rec) -> Option<(u32, u64)> {
        let known = rec.known?;
        let part = self.parts.get(&rec.key)?;
        part.losses.iter().copied().find(|(generation, first)| {
            *generation >= known.first_generation && *first <= known.offset
        })
    }

    /// The group of a partition.
    pub fn group_of(&self, key: Key) -> Option<u32> {
        let queue = self.queues.get(&key.0)?;
        queue.groups.get(usize::from(key.1)).copied()
    }
}
