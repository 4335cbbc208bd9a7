//! One queue partition (skeleton: contract). Pure: time is handed in.

use super::command::{LeaseEndCause, PartitionSpec};
use crate::log::LogPosition;
use wire::vocabulary::{RecordState, SettleKind};

/// Where a record's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordLocation {
    Ring(LogPosition),
    /// A packed file (not made yet).
    Packed {
        file: u32,
        index: u32,
    },
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
    pub attempt: u32,
    pub redelivered: bool,
    pub location: RecordLocation,
    pub len: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SettleRefusal {
    #[error("not leased by this connection under this attempt")]
    Stale,
    #[error("a settle of this delivery is already under way")]
    InProgress,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PartitionCounts {
    pub gated: u64,
    pub ready: u64,
    pub delayed: u64,
    pub leased: u64,
    pub published: u64,
    pub acknowledged: u64,
    pub dropped: u64,
    pub purged: u64,
    pub redelivered: u64,
    pub consumers: u32,
    pub oldest_ready_age_ms: u64,
}

pub struct Partition {
    _spec: PartitionSpec,
}

impl Partition {
    pub fn new(spec: PartitionSpec) -> Self {
        Partition { _spec: spec }
    }
    pub fn spec(&self) -> &PartitionSpec {
        &self._spec
    }
    /// Exclusive end of the offsets given out.
    pub fn next_offset(&self) -> u64 {
        todo!()
    }

    // --- applied from the log; deterministic ---

    /// Gives the records offsets; they stay gated until `open_delivery`.
    /// Returns the first offset.
    pub fn apply_append(&mut self, _stamp_ms: u64, _records: &[AppendedRecord]) -> u64 {
        todo!()
    }
    /// Returns how many items took effect.
    pub fn apply_settle(&mut self, _kind: SettleKind, _due_ms: u64, _items: &[(u64, u32)]) -> u32 {
        todo!()
    }
    pub fn apply_lease_ended(&mut self, _cause: LeaseEndCause, _items: &[(u64, u32)]) {
        todo!()
    }
    pub fn apply_mark(&mut self, _mark: u64) {
        todo!()
    }
    /// Returns how many records it dropped.
    pub fn apply_purge(&mut self, _below: u64) -> u64 {
        todo!()
    }
    /// After replay: everything unsettled is ready or delayed again, nothing is leased.
    pub fn finish_replay(&mut self) {
        todo!()
    }

    // --- the leader's memory ---

    /// Records below `next` have passed the delivery gate.
    pub fn open_delivery(&mut self, _next: u64) {
        todo!()
    }
    /// The applied mark up to here has passed the delivery gate.
    pub fn open_mark(&mut self, _mark: u64) {
        todo!()
    }
    /// The mark to propose now, if deliveries come near the last one proposed.
    pub fn wants_mark(&mut self) -> Option<u64> {
        todo!()
    }
    /// False when the id is already subscribed.
    pub fn subscribe(&mut self, _id: ConsumerId, _records: u32, _bytes: u64) -> bool {
        todo!()
    }
    pub fn add_credit(&mut self, _id: ConsumerId, _records: u32, _bytes: u64) -> bool {
        todo!()
    }
    /// Ends a consumer; its leases, not yet under settle, are pushed to `ended`
    /// for a `LeaseEnded` command and are nobody's until that is applied.
    pub fn unsubscribe(&mut self, _id: ConsumerId, _ended: &mut Vec<(u64, u32)>) -> bool {
        todo!()
    }
    /// All consumers of a connection.
    pub fn disconnect(&mut self, _connection: u64, _ended: &mut Vec<(u64, u32)>) {
        todo!()
    }
    /// Leases the next record to the next consumer with credit, fairly;
    /// `blocked` consumers (socket full) are passed over. Delayed records that
    /// are due become ready here.
    pub fn next_delivery(
        &mut self,
        _now_ms: u64,
        _blocked: &mut dyn FnMut(ConsumerId) -> bool,
    ) -> Option<Dispatch> {
        todo!()
    }
    /// Takes a dispatch back unseen (its bytes could not be read): no attempt is counted.
    pub fn undo_dispatch(&mut self, _offset: u64, _attempt: u32) {
        todo!()
    }
    /// Marks a delivery as under settle, if it is this connection's.
    pub fn begin_settle(
        &mut self,
        _connection: u64,
        _offset: u64,
        _attempt: u32,
    ) -> Result<(), SettleRefusal> {
        todo!()
    }
    /// Leases that ended by `now_ms`, for a `LeaseEnded` command.
    pub fn expire(&mut self, _now_ms: u64, _ended: &mut Vec<(u64, u32)>) {
        todo!()
    }
    /// Earliest lease end or delayed due time.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        todo!()
    }
    pub fn counts(&self, _now_ms: u64) -> PartitionCounts {
        todo!()
    }
    /// Visits unsettled records from `from` on, at most `max`.
    pub fn peek(
        &self,
        _from: u64,
        _max: u32,
        _visit: &mut dyn FnMut(u64, RecordState, u32, RecordLocation, u32),
    ) {
        todo!()
    }
}
