//! One queue partition: a pure state machine, time handed in.
//!
//! Owns, applied from the log and the same on every replica: which offsets are
//! unsettled, where their bytes are, how many deliveries of each have ended,
//! when a delayed one is due, the dispatch mark, and the counters published,
//! acknowledged, dropped and purged, and which publishes of idempotent producers
//! are stored. Owns, as the leader's memory: the delivery
//! gate, leases, consumers and their credit.
//!
//! A record is gated → (delayed) → ready → leased → under settle → settled:
//!
//! ```text
//! apply_append ─► Gated ── open_delivery ─► Fresh ───── next_delivery ─► Leased
//!                   └────── not before ──► Delayed ─ due ─► Returned ──────┘ │
//! Leased ─ begin_settle ─► Settling ─ apply_settle ─► settled, Returned, Delayed
//! Leased ─ expire, unsubscribe, disconnect ─► Ended ─ apply_lease_ended ─► Returned
//! ```
//!
//! Invariants:
//! 1. The `apply_*` results depend on the commands before them alone. An id
//!    (offset, attempt) names one delivery: attempt is the number of ended
//!    deliveries plus one, and an id whose attempt is another has no effect.
//! 2. published = gated + delayed + ready + leased + acknowledged + dropped +
//!    purged, at every step. Leased includes under settle and ended.
//! 3. A settled record is never delivered; nothing is delivered that is gated
//!    or at or above the opened dispatch mark.
//! 4. A lease either comes under settle or ends, never both.
//!
//! Never does: read a clock, do I/O, look into a record.
//!
//! A crash leaves nothing behind but the log: replaying the commands into a
//! new `Partition`, then [`Partition::finish_replay`], gives the same state
//! with nothing leased.

mod apply;
mod capture;
mod consumers;
mod delayed;
mod delivery;
mod leases;
mod mark;
mod ready;
mod slots;
mod stamps;
#[cfg(test)]
mod tests;

use wire::vocabulary::RecordState;

pub use self::capture::RestoreError;
use self::{
    consumers::Consumers, delayed::Delayed, leases::Leases, mark::DispatchMark, ready::Ready,
    slots::SlotState, slots::Slots, stamps::Stamps,
};
use super::{command::PartitionSpec, producer::Producers};

/// Where a record's bytes are, as the engine said; opaque here but for its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordLocation {
    /// A place in the log. Records of a partition stand there in offset order.
    Ring(u64),
    /// From byte `at` of a packed file on.
    Packed { file: u32, at: u32 },
}

/// A record as `apply_append` takes it.
#[derive(Debug, Clone, Copy)]
pub struct AppendedRecord {
    pub location: RecordLocation,
    /// Encoded bytes.
    pub len: u32,
    /// Server time, ms; 0 = at once.
    pub not_before_ms: u64,
}

/// Who consumes: a connection (opaque to the state machine) and its subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConsumerId {
    pub connection: u64,
    pub subscription: u32,
}

/// One record handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dispatch {
    pub consumer: ConsumerId,
    pub offset: u64,
    /// 1 for the first delivery.
    pub attempt: u32,
    /// May have been handed out before.
    pub redelivered: bool,
    pub location: RecordLocation,
    /// Encoded bytes.
    pub len: u32,
}

/// Why a settle is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SettleRefusal {
    #[error("not leased by this connection under this attempt")]
    Stale,
    #[error("a settle of this delivery is already under way")]
    InProgress,
}

/// Numbers of one partition. The first four add up with `acknowledged`,
/// `dropped` and `purged` to `published`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PartitionCounts {
    pub gated: u64,
    pub ready: u64,
    pub delayed: u64,
    /// Handed out and not settled, whether or not the lease has ended meanwhile.
    pub leased: u64,
    pub published: u64,
    pub acknowledged: u64,
    pub dropped: u64,
    pub purged: u64,
    /// Deliveries flagged as redelivered since this leadership began.
    pub redelivered: u64,
    pub consumers: u32,
    /// Time since the oldest ready record was published; up to 100 ms more, or
    /// more than that only where a long history is unsettled.
    pub oldest_ready_age_ms: u64,
}

/// The last change of a partition's mode and W.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// From 1 on.
    pub revision: u32,
    /// Offsets from here on were published under it.
    pub since: u64,
    /// W before.
    pub copies_before: u8,
}

/// What a record takes beside its slot where it waits in an order of its own,
/// by due time, by offset or by the end of its lease.
const LISTED_BYTES: u64 = 32;

/// Time a release is to be delayed when the client asks for none, in ms, by
/// the attempt that it ends: a record that is released again and again must
/// not keep a core busy.
pub fn release_backoff_ms(attempt: u32) -> u64 {
    const FREE_ATTEMPTS: u32 = 4;
    const FIRST_MS: u64 = 10;
    const MAX_DOUBLINGS: u32 = 9;
    match attempt.checked_sub(FREE_ATTEMPTS + 1) {
        None => 0,
        Some(further) => FIRST_MS << further.min(MAX_DOUBLINGS),
    }
}

/// One queue partition; see the module head.
pub struct Partition {
    spec: PartitionSpec,
    slots: Slots,
    ready: Ready,
    delayed: Delayed,
    leases: Leases,
    /// None: most queues of many have none at a time.
    consumers: Option<Box<Consumers>>,
    mark: DispatchMark,
    stamps: Stamps,
    /// None: most queues have no producer that wants it.
    producers: Option<Box<Producers>>,
    /// None: most queues keep the setting they were declared with.
    change: Option<Box<Change>>,
    /// Exclusive end of what has passed the delivery gate.
    open: u64,
    acknowledged: u64,
    dropped: u64,
    purged: u64,
    redelivered: u64,
    /// Latest time handed in.
    now_ms: u64,
}

impl Partition {
    /// An empty partition with the first 1 024 deliveries marked.
    pub fn new(spec: PartitionSpec) -> Self {
        Partition {
            spec,
            slots: Slots::default(),
            ready: Ready::default(),
            delayed: Delayed::default(),
            leases: Leases::default(),
            consumers: None,
            mark: DispatchMark::new(),
            stamps: Stamps::default(),
            producers: None,
            change: None,
            open: 0,
            acknowledged: 0,
            dropped: 0,
            purged: 0,
            redelivered: 0,
            now_ms: 0,
        }
    }

    /// What the partition is: as it was created, with the setting in force.
    pub fn spec(&self) -> &PartitionSpec {
        &self.spec
    }

    /// The last change of its setting.
    pub fn change(&self) -> Option<&Change> {
        self.change.as_deref()
    }

    /// Exclusive end of what has passed the delivery gate.
    pub fn opened(&self) -> u64 {
        self.open
    }

    /// Exclusive end of the offsets given out.
    pub fn next_offset(&self) -> u64 {
        self.slots.next_offset()
    }

    /// Server time of the newest unsettled records, about.
    pub fn newest_stamp_ms(&self) -> Option<u64> {
        self.stamps.newest()
    }

    /// The dispatch mark as applied.
    pub fn mark(&self) -> u64 {
        self.mark.applied()
    }

    /// The lowest unsettled offset.
    pub fn first_unsettled(&self) -> Option<u64> {
        let first = self.slots.walk(0, self.slots.next_offset()).next();
        first.map(|(offset, _)| offset)
    }

    /// Numbers as of `now_ms`. A delayed record that came due counts as
    /// delayed until the next delivery or expiry looks at the time. One whose
    /// lease ended counts as ready from then on: nobody holds it any more,
    /// though it goes out only once its end is applied, which a log without
    /// room holds up.
    pub fn counts(&self, now_ms: u64) -> PartitionCounts {
        let count = |state| self.slots.count(state);
        let consumers = self.consumers.as_ref().map_or(0, |all| all.len());
        let oldest = self.ready.first(&self.slots);
        let oldest_ms = oldest.and_then(|offset| self.stamps.of(offset));
        PartitionCounts {
            gated: count(SlotState::Gated),
            ready: count(SlotState::Fresh) + count(SlotState::Returned) + count(SlotState::Ended),
            delayed: count(SlotState::Delayed),
            leased: count(SlotState::Leased) + count(SlotState::Settling),
            published: self.slots.next_offset(),
            acknowledged: self.acknowledged,
            dropped: self.dropped,
            purged: self.purged,
            redelivered: self.redelivered,
            consumers: u32::try_from(consumers).unwrap_or(u32::MAX),
            oldest_ready_age_ms: oldest_ms.map_or(0, |stamp_ms| now_ms.saturating_sub(stamp_ms)),
        }
    }

    /// Visits unsettled records from `from` on, at most `max`, in offset
    /// order: offset, state, ended deliveries, location, encoded bytes.
    pub fn peek(
        &self,
        from: u64,
        max: u32,
        visit: &mut dyn FnMut(u64, RecordState, u32, RecordLocation, u32),
    ) {
        let slots = self.slots.walk(from, self.slots.next_offset());
        for (offset, slot) in slots.take(max as usize) {
            let state = match slot.state {
                SlotState::Settled => continue,
                SlotState::Gated => RecordState::Gated,
                SlotState::Delayed => RecordState::Delayed,
                SlotState::Fresh | SlotState::Returned | SlotState::Ended => RecordState::Ready,
                SlotState::Leased | SlotState::Settling => RecordState::Leased,
            };
            visit(offset, state, slot.attempts, slot.location(), slot.len());
        }
    }

    /// Memory that knowing the unsettled records takes, in bytes, about.
    pub fn index_bytes(&self) -> u64 {
        let listed = [
            SlotState::Delayed,
            SlotState::Returned,
            SlotState::Leased,
            SlotState::Settling,
        ];
        let listed: u64 = listed
            .into_iter()
            .map(|state| self.slots.count(state))
            .sum();
        let producers = self.producers.as_ref().map_or(0, |all| all.held_bytes());
        self.slots.held_bytes() + listed * LISTED_BYTES + producers
    }

    /// Not back in the ready ones yet.
    fn handed_out(&self) -> u64 {
        self.slots.count(SlotState::Leased)
            + self.slots.count(SlotState::Settling)
            + self.slots.count(SlotState::Ended)
    }
}
