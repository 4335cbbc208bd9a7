//! The one direct-I/O log of a shard (skeleton; see the writer's contract).

use std::rc::Rc;

use crate::io::BatchBuffer;
use wire::vocabulary::Boundary;

/// A byte place in a log: segment sequence number × segment size + offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LogPosition(pub u64);

/// What an item of a batch is. Opaque to the log but for the routing fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemHeader {
    pub kind: ItemKind,
    pub group: u32,
    pub term: u64,
    pub index: u64,
    /// The leader's durable demand, kept so that followers and recovery know it.
    pub sync: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ItemKind {
    /// A Raft entry: payload is the group layer's.
    Entry = 1,
    /// A group's term, vote, membership, generation: payload is the group layer's.
    GroupState = 2,
}

/// Where an appended item went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Place of the payload's first byte.
    pub payload: LogPosition,
    /// The item is written (durable) once `written_next` (`durable_next`) is at or above this.
    pub end: LogPosition,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    #[error("the log is latched after an I/O error")]
    Latched,
    #[error("the log's backlog of {bytes} unwritten bytes is at its bound")]
    Backlog { bytes: u64 },
}

/// Exclusive ends; `appended >= submitted >= written >= durable`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogFrontiers {
    pub appended: LogPosition,
    pub submitted: LogPosition,
    pub written_next: LogPosition,
    pub durable_next: LogPosition,
}

/// Contiguous bytes inside one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub segment: u64,
    /// Byte offset in the segment, not aligned.
    pub offset: u64,
    pub len: u32,
}

/// An I/O error as the writer needs to know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IoFailure {
    pub message: String,
    pub out_of_space: bool,
}

/// What the writer asks the driver to do.
pub enum LogEffect<B> {
    /// Write the whole buffer; answer with `write_done(id, …)`.
    Write {
        id: u64,
        segment: u64,
        offset: u64,
        buffer: Rc<B>,
        dsync: bool,
    },
    /// `fdatasync` these segments, in order; answer with `sync_done(id, …)` once.
    Sync { id: u64, segments: Vec<u64> },
    /// Create, zero, sync and open this segment off the shard thread; answer
    /// with `segment_ready(sequence, …)`.
    PrepareSegment { sequence: u64 },
}

pub struct LogOptions {
    pub segment_bytes: u64,
    pub block_bytes: u32,
    pub background_sync_interval_ms: u64,
    /// Which way durable batches go.
    pub sync_method: SyncMethod,
    pub cache_bytes: u64,
    /// Bound on appended but unwritten bytes.
    pub backlog_bytes: u64,
    /// Ready spare segments to keep.
    pub spare_segments: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncMethod {
    /// Durable batches by `O_DSYNC` where the rule allows it.
    Dsync,
    /// Always write, then `fdatasync`.
    Fdatasync,
}

/// What the writer starts from; made by opening (recovery).
pub struct LogStart {
    _private: (),
}

pub struct LogWriter<B> {
    _cache: Vec<Rc<B>>,
}

impl<B: BatchBuffer> LogWriter<B> {
    pub fn new(_start: LogStart, _options: LogOptions) -> Self {
        todo!()
    }

    /// Copies the item (payload = `parts` back to back) into the open batch.
    pub fn append(
        &mut self,
        _item: ItemHeader,
        _parts: &[&[u8]],
        _demand: Boundary,
    ) -> Result<Appended, AppendError> {
        todo!()
    }

    /// Starts what may start now: seals and writes batches, syncs, spare segments.
    pub fn submit(&mut self, _now_ms: u64, _effects: &mut Vec<LogEffect<B>>) {
        todo!()
    }

    pub fn write_done(&mut self, _id: u64, _result: Result<(), IoFailure>) {
        todo!()
    }

    pub fn sync_done(&mut self, _id: u64, _result: Result<(), IoFailure>) {
        todo!()
    }

    pub fn segment_ready(&mut self, _sequence: u64, _result: Result<(), IoFailure>) {
        todo!()
    }

    /// Makes the log durable up to `position` without waiting for the timer.
    pub fn demand_durable(&mut self, _position: LogPosition) {
        todo!()
    }

    pub fn frontiers(&self) -> LogFrontiers {
        todo!()
    }

    /// When `submit` wants to be called again at the latest, if nothing happens.
    pub fn next_timer_ms(&self) -> Option<u64> {
        todo!()
    }

    pub fn is_latched(&self) -> bool {
        todo!()
    }

    /// Appended but not yet written bytes.
    pub fn backlog_bytes(&self) -> u64 {
        todo!()
    }

    /// Calls `visit` with the bytes at `position`, piece by piece, if all of
    /// them are in the tail cache; otherwise false and `visit` is not called.
    pub fn visit_cached(
        &self,
        _position: LogPosition,
        _len: u32,
        _visit: &mut dyn FnMut(&[u8]),
    ) -> bool {
        todo!()
    }

    /// The place `bytes` further on in an item's payload, across fragments.
    pub fn advance(&self, _position: LogPosition, _bytes: u32) -> LogPosition {
        todo!()
    }

    /// Where the bytes are on disk, across fragments.
    pub fn extents(&self, _position: LogPosition, _len: u32) -> Vec<Extent> {
        todo!()
    }
}
