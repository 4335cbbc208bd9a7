//! Queues as the server describes them, in the client's own types.

use std::time::Duration;

use wire::{
    message::{
        ArchivedExtension, ArchivedFrontiersReply, ArchivedQueueDescription,
        ArchivedQueueInfoReply, Declare, Extension, ON_LOSS_HALT, ON_LOSS_RECOVER,
    },
    vocabulary::{Mode, RecordState},
};

use crate::{
    headers::HeadersView,
    setting::{self, InForce, Setting},
};

/// W of a queue: how many copies a confirm waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copies {
    Majority,
    All,
    Exactly(u8),
}

impl Copies {
    pub(crate) fn to_raw(self) -> u8 {
        match self {
            Copies::Majority => 0,
            Copies::All => 255,
            Copies::Exactly(count) => count,
        }
    }

    pub(crate) fn from_raw(raw: u8) -> Self {
        match raw {
            0 => Copies::Majority,
            255 => Copies::All,
            count => Copies::Exactly(count),
        }
    }
}

/// What to declare. Fields left out keep their value, or get the default of a
/// new queue: durable, majority, 1 partition, 30 s lease.
///
/// ```
/// use std::time::Duration;
/// use tidegate_client::{DeclareOptions, Mode};
/// let options = DeclareOptions::new("orders")
///     .mode(Mode::Buffered)
///     .partitions(4)
///     .lease(Duration::from_secs(60));
/// ```
#[derive(Debug, Clone)]
pub struct DeclareOptions {
    body: Declare,
}

impl DeclareOptions {
    /// Declares `name`: 1 to 255 bytes, no control characters.
    pub fn new(name: impl Into<String>) -> Self {
        DeclareOptions {
            body: Declare {
                name: name.into(),
                ..Declare::default()
            },
        }
    }

    /// Durability mode.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.body.mode = mode as u8;
        self
    }

    /// Number of partitions, 1 to 1 024; fixed at the first declare.
    pub fn partitions(mut self, partitions: u16) -> Self {
        self.body.partitions = partitions;
        self
    }

    /// How long a delivery may stay unsettled (millisecond resolution, at least 1 ms).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.body.lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX).max(1);
        self
    }

    /// W. Majority is what a new queue gets.
    pub fn copies(mut self, copies: Copies) -> Self {
        self.body.copies = copies.to_raw();
        self
    }

    /// What becomes of the queue's groups where so many copies lost their memory that
    /// records confirmed at written may be gone. For buffered and speculative queues of a
    /// cluster; a new queue gets [`OnTotalLoss::Recover`].
    pub fn on_total_loss(mut self, then: OnTotalLoss) -> Self {
        let value = match then {
            OnTotalLoss::Recover => ON_LOSS_RECOVER,
            OnTotalLoss::Halt => ON_LOSS_HALT,
        };
        self.body.extensions = vec![Extension {
            kind: Extension::CRITICAL | Extension::ON_TOTAL_LOSS,
            bytes: vec![value],
        }];
        self
    }

    pub(crate) fn body(&self) -> &Declare {
        &self.body
    }
}

impl From<&str> for DeclareOptions {
    fn from(name: &str) -> Self {
        DeclareOptions::new(name)
    }
}

/// A queue as declared, with the setting that is desired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    /// Never reused.
    pub queue_id: u64,
    pub name: String,
    pub mode: Mode,
    pub copies: Copies,
    pub lease: Duration,
    /// Shard that owns each partition; index = partition.
    pub shards: Vec<u16>,
    /// Node that leads each partition, as far as the node that answered knew; 0 =
    /// not known. Index = partition.
    pub leaders: Vec<u32>,
}

impl Queue {
    /// Fails on a mode that this version does not know.
    pub(crate) fn read(raw: &ArchivedQueueDescription) -> Result<Self, String> {
        Ok(Queue {
            queue_id: raw.queue_id.to_native(),
            name: raw.name.to_string(),
            mode: Mode::from_raw(raw.mode)
                .ok_or_else(|| format!("unknown durability mode {}", raw.mode))?,
            copies: Copies::from_raw(raw.copies),
            lease: Duration::from_millis(raw.lease_ms.to_native()),
            shards: raw
                .partitions
                .iter()
                .map(|place| place.shard.to_native())
                .collect(),
            leaders: raw
                .partitions
                .iter()
                .map(|place| place.node.to_native())
                .collect(),
        })
    }
}

/// What becomes of a queue's groups on total loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnTotalLoss {
    /// They go on by themselves as a new generation, which says exactly what is gone.
    Recover,
    /// They wait until an operator accepts the loss.
    Halt,
}

impl OnTotalLoss {
    /// What a reply says of a queue.
    pub(crate) fn read(extensions: &[ArchivedExtension]) -> Self {
        let says = extensions
            .iter()
            .find(|one| one.kind == Extension::ON_TOTAL_LOSS);
        match says.map(|one| one.bytes.as_slice()) {
            Some([ON_LOSS_HALT]) => OnTotalLoss::Halt,
            _ => OnTotalLoss::Recover,
        }
    }
}

/// The answer to a declare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    /// True when this declare created the queue.
    pub created: bool,
    pub queue: Queue,
    pub on_total_loss: OnTotalLoss,
}

/// What a loss took: every offset of `generation` at or above `first_lost` is
/// gone, every one below is present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    pub generation: u32,
    pub first_lost: u64,
    /// Highest offset known to have been confirmed, plus one, if known.
    pub highest_known_confirmed_next: Option<u64>,
}

/// Numbers of one partition, or of several added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Waiting for the delivery gate.
    pub gated: u64,
    pub ready: u64,
    pub delayed: u64,
    pub leased: u64,
    /// Totals since the queue was declared.
    pub published: u64,
    pub acknowledged: u64,
    pub dropped: u64,
    pub expired: u64,
    pub dead_lettered: u64,
    pub purged: u64,
    /// Since the server process started.
    pub redelivered: u64,
    pub unsynced_records: u64,
    pub unsynced_bytes: u64,
    pub consumers: u32,
}

impl Counts {
    /// Adds `other`'s numbers.
    pub fn add(&mut self, other: &Counts) {
        self.gated += other.gated;
        self.ready += other.ready;
        self.delayed += other.delayed;
        self.leased += other.leased;
        self.published += other.published;
        self.acknowledged += other.acknowledged;
        self.dropped += other.dropped;
        self.expired += other.expired;
        self.dead_lettered += other.dead_lettered;
        self.purged += other.purged;
        self.redelivered += other.redelivered;
        self.unsynced_records += other.unsynced_records;
        self.unsynced_bytes += other.unsynced_bytes;
        self.consumers += other.consumers;
    }
}

/// One partition at one moment of its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionInfo {
    pub partition: u16,
    pub generation: u32,
    /// Exclusive end of what is written.
    pub written_next: u64,
    /// Exclusive end of what is durable, at most `written_next`.
    pub durable_next: u64,
    pub counts: Counts,
    /// Zero when nothing is ready.
    pub oldest_ready_age: Duration,
    /// The owning log met an I/O error and is latched.
    pub latched: bool,
    /// Copies that hold the partition now.
    pub copies_present: u8,
    /// Copies that a confirm needs.
    pub copies_needed: u8,
    /// Losses reported for it, oldest first.
    pub losses: Vec<Loss>,
    /// Of the queue.
    pub on_total_loss: OnTotalLoss,
    /// Of the queue, as far as the partition's leader knows.
    pub desired: Setting,
    /// What its confirms and deliveries wait for.
    pub in_force: InForce,
}

impl PartitionInfo {
    pub(crate) fn read(raw: &ArchivedQueueInfoReply) -> Result<Self, String> {
        let (desired, in_force) = setting::read(raw)?;
        Ok(PartitionInfo {
            partition: raw.partition.to_native(),
            generation: raw.generation.to_native(),
            written_next: raw.written_next.to_native(),
            durable_next: raw.durable_next.to_native(),
            counts: Counts {
                gated: raw.gated.to_native(),
                ready: raw.ready.to_native(),
                delayed: raw.delayed.to_native(),
                leased: raw.leased.to_native(),
                published: raw.published.to_native(),
                acknowledged: raw.acknowledged.to_native(),
                dropped: raw.dropped.to_native(),
                expired: raw.expired.to_native(),
                dead_lettered: raw.dead_lettered.to_native(),
                purged: raw.purged.to_native(),
                redelivered: raw.redelivered.to_native(),
                unsynced_records: raw.unsynced_records.to_native(),
                unsynced_bytes: raw.unsynced_bytes.to_native(),
                consumers: raw.consumers.to_native(),
            },
            oldest_ready_age: Duration::from_millis(raw.oldest_ready_age_ms.to_native()),
            latched: raw.latched != 0,
            copies_present: raw.copies_present,
            copies_needed: raw.copies_needed,
            on_total_loss: OnTotalLoss::read(&raw.extensions),
            losses: raw
                .losses
                .iter()
                .map(|loss| Loss {
                    generation: loss.generation.to_native(),
                    first_lost: loss.first_lost.to_native(),
                    highest_known_confirmed_next: Some(
                        loss.highest_known_confirmed_next.to_native(),
                    )
                    .filter(|next| *next > 0),
                })
                .collect(),
            desired,
            in_force,
        })
    }
}

/// A queue with the state of each partition. The partitions are asked at the
/// same time, but each answers for its own moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueInfo {
    pub queue: Queue,
    /// Index = partition.
    pub partitions: Vec<PartitionInfo>,
}

impl QueueInfo {
    /// The partitions' numbers added up.
    pub fn totals(&self) -> Counts {
        let mut totals = Counts::default();
        for partition in &self.partitions {
            totals.add(&partition.counts);
        }
        totals
    }

    /// The setting that is desired, as far as those who answered know.
    pub fn desired(&self) -> Option<Setting> {
        let desired = self.partitions.iter().map(|partition| partition.desired);
        desired.max_by_key(|desired| desired.revision)
    }

    /// What becomes of its groups on total loss.
    pub fn on_total_loss(&self) -> OnTotalLoss {
        let first = self.partitions.first();
        first.map_or(OnTotalLoss::Recover, |first| first.on_total_loss)
    }

    /// Age of the oldest ready record; zero when nothing is ready.
    pub fn oldest_ready_age(&self) -> Duration {
        let ages = self.partitions.iter().map(|p| p.oldest_ready_age);
        ages.max().unwrap_or_default()
    }
}

/// Both frontiers of a partition: exclusive ends of what is written and what
/// is durable, `written_next >= durable_next`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionFrontiers {
    pub partition: u16,
    pub generation: u32,
    pub written_next: u64,
    pub durable_next: u64,
    pub copies: u8,
}

impl PartitionFrontiers {
    pub(crate) fn read(partition: u16, raw: &ArchivedFrontiersReply) -> Self {
        PartitionFrontiers {
            partition,
            generation: raw.generation.to_native(),
            written_next: raw.written_next.to_native(),
            durable_next: raw.durable_next.to_native(),
            copies: raw.copies,
        }
    }
}

/// A record as peek shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeekedRecord {
    pub partition: u16,
    pub generation: u32,
    pub offset: u64,
    pub state: RecordState,
    /// Deliveries that have ended.
    pub attempts: u32,
    pub key: Vec<u8>,
    pub(crate) headers: Vec<u8>,
    pub payload: Vec<u8>,
}

impl PeekedRecord {
    /// The headers.
    pub fn headers(&self) -> HeadersView<'_> {
        HeadersView::new(&self.headers)
    }
}
