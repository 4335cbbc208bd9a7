//! Idempotent producers of one partition: which of their publishes are stored, so
//! that one that is sent again is answered with the place of the first.
//!
//! A producer is an id that it chose, an epoch and a sequence number per publish.
//! It numbers its publishes upwards, without having to leave no gap; of one that it
//! has no good answer to, it sends the same again under the same number.
//!
//! Owns, applied from the log and the same on every replica: per producer its newest
//! epoch, the latest [`WINDOW`] numbers stored in it with their first offsets, and
//! when it last published.
//!
//! Invariants:
//! 1. Verdicts depend on the commands before them and the command's own stamp alone.
//! 2. Within an epoch no number is stored twice: one is *new* only if it is neither
//!    remembered nor at or below a forgotten one.
//! 3. An epoch below the newest stores nothing more.
//! 4. At most [`MOST`] producers, each with at most [`WINDOW`] numbers: the one that
//!    published longest ago goes for a new one, and one that was silent for
//!    [`EXPIRES_MS`] counts as gone.
//!
//! Never does: read a clock; look into records.
//!
//! A crash leaves nothing behind but the log and its checkpoints, which hold it.

mod bytes;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

pub use bytes::ProducersError;

/// Numbers remembered of a producer.
pub const WINDOW: usize = 32;
/// Producers remembered of a partition.
pub const MOST: usize = 256;
/// Silence after which a producer is forgotten, in ms of the log's stamps.
pub const EXPIRES_MS: u64 = 24 * 3600 * 1000;
/// Memory of a producer and of each number, in bytes, about.
const PRODUCER_BYTES: u64 = 128;
const STORED_BYTES: u64 = 24;

/// Who publishes, and which of its publishes it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProducerStamp {
    /// Not 0.
    pub id: u64,
    pub epoch: u32,
    pub sequence: u64,
}

/// What becomes of a publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is to be stored.
    New,
    /// It is stored already, from this offset on.
    Stored { first: u64, count: u32 },
    /// A newer epoch of the producer has published: this one is over.
    Fenced { epoch: u32 },
    /// It is older than what is remembered: whether it is stored is not known.
    Forgotten,
}

/// One publish that is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stored {
    sequence: u64,
    first: u64,
    count: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Producer {
    epoch: u32,
    /// Stamp of its latest publish.
    last_ms: u64,
    /// Numbers below are not remembered.
    floor: u64,
    /// Ascending by number.
    stored: VecDeque<Stored>,
}

/// The producers of a partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Producers {
    /// By id.
    producers: BTreeMap<u64, Producer>,
    /// Numbers remembered, all together.
    numbers: usize,
}

impl Producers {
    /// Judges a publish stamped `now_ms`.
    pub fn judge(&self, stamp: &ProducerStamp, now_ms: u64) -> Verdict {
        let known = self.producers.get(&stamp.id);
        let Some(known) = known.filter(|known| !known.is_over(now_ms)) else {
            return Verdict::New;
        };
        if stamp.epoch != known.epoch {
            return match stamp.epoch < known.epoch {
                true => Verdict::Fenced { epoch: known.epoch },
                false => Verdict::New,
            };
        }
        match known.find(stamp.sequence) {
            Ok(at) => match known.stored.get(at) {
                Some(stored) => Verdict::Stored {
                    first: stored.first,
                    count: stored.count,
                },
                None => Verdict::Forgotten,
            },
            Err(_) if stamp.sequence < known.floor => Verdict::Forgotten,
            Err(_) => Verdict::New,
        }
    }

    /// Notes a publish that was judged new and is stored.
    pub fn store(&mut self, stamp: &ProducerStamp, now_ms: u64, first: u64, count: u32) {
        self.make_room(stamp.id, now_ms);
        let producer = self.producers.entry(stamp.id).or_insert(Producer {
            epoch: stamp.epoch,
            last_ms: now_ms,
            floor: 0,
            stored: VecDeque::new(),
        });
        if producer.epoch != stamp.epoch || producer.is_over(now_ms) {
            self.numbers -= producer.stored.len();
            producer.stored.clear();
            producer.floor = 0;
            producer.epoch = stamp.epoch;
        }
        producer.last_ms = producer.last_ms.max(now_ms);
        let stored = Stored {
            sequence: stamp.sequence,
            first,
            count,
        };
        if let Err(at) = producer.find(stamp.sequence) {
            producer.stored.insert(at, stored);
            self.numbers += 1;
        }
        if producer.stored.len() > WINDOW {
            if let Some(gone) = producer.stored.pop_front() {
                producer.floor = gone.sequence.saturating_add(1);
                self.numbers -= 1;
            }
        }
    }

    /// Notes that the producer is there, with a publish that was stored before.
    pub fn touch(&mut self, id: u64, now_ms: u64) {
        if let Some(producer) = self.producers.get_mut(&id) {
            producer.last_ms = producer.last_ms.max(now_ms);
        }
    }

    /// Memory that they take, in bytes, about.
    pub fn held_bytes(&self) -> u64 {
        self.producers.len() as u64 * PRODUCER_BYTES + self.numbers as u64 * STORED_BYTES
    }

    pub fn is_empty(&self) -> bool {
        self.producers.is_empty()
    }

    /// Room for one more, if `id` is a new one: those that are over go, or else the
    /// one that published longest ago (of several, the lowest id).
    fn make_room(&mut self, id: u64, now_ms: u64) {
        if self.producers.len() < MOST || self.producers.contains_key(&id) {
            return;
        }
        self.producers
            .retain(|_, producer| !producer.is_over(now_ms));
        if self.producers.len() >= MOST {
            let oldest = self.producers.iter().min_by_key(|(_, one)| one.last_ms);
            if let Some(oldest) = oldest.map(|(id, _)| *id) {
                self.producers.remove(&oldest);
            }
        }
        self.numbers = self.producers.values().map(|one| one.stored.len()).sum();
    }
}

impl Producer {
    /// It was silent for too long.
    fn is_over(&self, now_ms: u64) -> bool {
        self.last_ms.saturating_add(EXPIRES_MS) < now_ms
    }

    /// Where the number is among those stored, or would be.
    fn find(&self, sequence: u64) -> Result<usize, usize> {
        self.stored
            .binary_search_by_key(&sequence, |one| one.sequence)
    }
}
