//! What clients did and were told, as it is recorded.

use std::collections::BTreeMap;

/// Queue id and partition.
pub type Key = (u64, u16);

/// What became of a publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It may have happened, or may happen yet: no answer came, or "unknown" did.
    Unknown,
    /// It did not happen, and never will.
    Failed,
    Confirmed {
        generation: u32,
        first_offset: u64,
        durable: bool,
        at_us: u64,
    },
}

/// Records that were published together.
#[derive(Debug, Clone)]
pub(crate) struct Publish {
    pub first_id: u64,
    pub count: u64,
    pub sent_us: u64,
    pub outcome: Outcome,
}

/// A record was delivered, or peeked at.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    pub id: u64,
    pub generation: u32,
    pub offset: u64,
    /// The server says that it is durable.
    pub durable: bool,
    /// The server did not say it before: 0 where that is not known.
    pub not_before_us: u64,
    pub at_us: u64,
}

/// An acknowledge or a reject was confirmed.
#[derive(Debug, Clone, Copy)]
pub struct Settled {
    pub generation: u32,
    pub offset: u64,
    pub durable: bool,
    pub sent_us: u64,
    pub at_us: u64,
}

/// A barrier was answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Barrier {
    pub generation: u32,
    pub durable_next: u64,
    pub sent_us: u64,
    pub at_us: u64,
}

/// What the server says of a partition when everything was consumed and settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    pub generation: u32,
    pub written_next: u64,
}

/// One partition.
#[derive(Debug, Clone, Default)]
pub(crate) struct Part {
    /// By first id.
    pub publishes: BTreeMap<u64, Publish>,
    pub seen: Vec<Seen>,
    pub settled: Vec<Settled>,
    pub barriers: Vec<Barrier>,
    /// Generation and first lost offset, in order.
    pub losses: Vec<(u32, u64)>,
    pub ended: Option<Ended>,
}

/// A run, as its clients saw it. Record ids are the caller's; those of one publish are
/// in a row, and none is used twice.
#[derive(Debug, Clone, Default)]
pub struct History {
    pub(crate) parts: BTreeMap<Key, Part>,
}

impl History {
    pub fn new() -> Self {
        History::default()
    }

    fn part(&mut self, key: Key) -> &mut Part {
        self.parts.entry(key).or_default()
    }

    /// A publish is about to be sent; its outcome is unknown until one is told.
    pub fn publish(&mut self, key: Key, first_id: u64, count: u64, sent_us: u64) {
        let publish = Publish {
            first_id,
            count,
            sent_us,
            outcome: Outcome::Unknown,
        };
        self.part(key).publishes.insert(first_id, publish);
    }

    /// The answer to the publish that began with this id.
    pub fn answered(&mut self, key: Key, first_id: u64, outcome: Outcome) {
        if let Some(publish) = self.part(key).publishes.get_mut(&first_id) {
            publish.outcome = outcome;
        }
    }

    pub fn seen(&mut self, key: Key, seen: Seen) {
        self.part(key).seen.push(seen);
    }

    pub fn settled(&mut self, key: Key, settled: Settled) {
        self.part(key).settled.push(settled);
    }

    pub fn barrier(
        &mut self,
        key: Key,
        generation: u32,
        durable_next: u64,
        sent_us: u64,
        at_us: u64,
    ) {
        self.part(key).barriers.push(Barrier {
            generation,
            durable_next,
            sent_us,
            at_us,
        });
    }

    /// Loss reports of a partition, all that there are: (generation, first lost).
    pub fn losses(&mut self, key: Key, losses: &[(u32, u64)]) {
        self.part(key).losses = losses.to_vec();
    }

    /// Everything was consumed and settled, and this is what the server says then.
    /// From now on it counts as lost what was confirmed, is not reported lost and was
    /// never seen.
    pub fn ended(&mut self, key: Key, ended: Ended) {
        self.part(key).ended = Some(ended);
    }
}
