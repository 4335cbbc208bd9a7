//! What the writer, the driver and the layers above exchange.

use std::rc::Rc;

use wire::vocabulary::Boundary;

use super::position::{Geometry, LogId, LogPosition};
use crate::io::{DiskError, DiskErrorKind};

/// Where an appended item went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Place of the payload's first byte.
    pub payload: LogPosition,
    /// The item is written (durable) once `written_next` (`durable_next`) is at or above this.
    pub end: LogPosition,
}

/// Why an item was not appended; nothing of it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    #[error("the log is latched after an I/O error")]
    Latched,
    #[error("the log's backlog of {bytes} unwritten bytes is at its bound")]
    Backlog { bytes: u64 },
    #[error("an item of {bytes} bytes is longer than any log takes")]
    TooLarge { bytes: u64 },
}

/// Exclusive ends; `appended >= submitted >= written_next >= durable_next`.
/// After a latch `written_next` falls back to `durable_next`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogFrontiers {
    pub appended: LogPosition,
    pub submitted: LogPosition,
    pub written_next: LogPosition,
    pub durable_next: LogPosition,
}

impl LogFrontiers {
    /// Exclusive end of what has reached the boundary.
    pub fn at(&self, boundary: Boundary) -> LogPosition {
        match boundary {
            Boundary::Written => self.written_next,
            Boundary::Durable => self.durable_next,
        }
    }
}

/// An I/O error as the writer needs to know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IoFailure {
    pub message: String,
    pub out_of_space: bool,
}

impl From<DiskError> for IoFailure {
    fn from(error: DiskError) -> Self {
        IoFailure {
            out_of_space: error.kind == DiskErrorKind::OutOfSpace,
            message: error.to_string(),
        }
    }
}

/// What the writer asks the driver to do.
pub enum LogEffect<B> {
    /// Write the whole buffer; answer with `write_done(id, …)`.
    Write {
        id: u64,
        segment: u64,
        offset: u64,
        buffer: Rc<B>,
        /// Through the descriptor opened with `O_DSYNC`.
        dsync: bool,
    },
    /// `fdatasync` these segments, in order; answer with `sync_done(id, …)`
    /// once, with the first error if there is one.
    Sync { id: u64, segments: Vec<u64> },
    /// Create, zero, sync and open this segment off the shard thread, out of
    /// the file of segment `recycle` if one is named; answer with
    /// `segment_ready(sequence, …)`.
    PrepareSegment { sequence: u64, recycle: Option<u64> },
    /// Remove the files of these segments, which nobody needs, off the shard
    /// thread. Needs no answer: the next open finds them if it fails.
    RemoveSegments { sequences: Vec<u64> },
}

/// How a log is run. The two sizes count when a log is created; an existing
/// log keeps its own.
#[derive(Debug, Clone)]
pub struct LogOptions {
    pub segment_bytes: u64,
    pub block_bytes: u32,
    /// Longest wait before written bytes are synced without being asked; a
    /// target, not a bound. 0 = only on demand.
    pub background_sync_interval_ms: u64,
    /// Which way durable batches go.
    pub sync_method: SyncMethod,
    /// Bound on the tail cache. Unsynced bytes may hold it at up to twice this.
    pub cache_bytes: u64,
    /// Bound on appended but unwritten bytes; one item may exceed it.
    pub backlog_bytes: u64,
    /// Ready spare segments to keep.
    pub spare_segments: u32,
    /// Ready segments to keep beside them, written to only once no further one
    /// can be made for want of space.
    pub reserve_segments: u32,
}

impl Default for LogOptions {
    fn default() -> Self {
        LogOptions {
            segment_bytes: 64 << 20,
            block_bytes: 4096,
            background_sync_interval_ms: 100,
            sync_method: SyncMethod::Fdatasync,
            cache_bytes: 64 << 20,
            backlog_bytes: 64 << 20,
            spare_segments: 1,
            reserve_segments: 0,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncMethod {
    /// Durable batches by `O_DSYNC` where the rule allows it.
    Dsync,
    /// Always write, then `fdatasync`.
    Fdatasync,
}

/// What the writer starts from; made by opening (recovery). Everything below
/// its end is durable.
#[derive(Debug, Clone)]
pub struct LogStart {
    pub(super) log_id: LogId,
    pub(super) geometry: Geometry,
    pub(super) epoch: u64,
    pub(super) open_counter: u64,
    /// Where the next batch starts.
    pub(super) end: LogPosition,
    /// Sequence of the last batch, 0 if there is none.
    pub(super) last_sequence: u64,
    /// Header checksum of the last batch, 0 if there is none.
    pub(super) last_checksum: u64,
    /// Every segment from the end's to this one is ready.
    pub(super) ready_through: u64,
    /// Fragment links of what was recovered, in log order.
    pub(super) links: Vec<(LogPosition, LogPosition)>,
    /// The first segment that is needed.
    pub(super) kept_from: u64,
    /// Segments below that one whose files are there.
    pub(super) free: Vec<u64>,
}

impl LogStart {
    /// Where the log goes on; everything below is durable.
    pub fn end(&self) -> LogPosition {
        self.end
    }

    pub fn log_id(&self) -> LogId {
        self.log_id
    }

    /// This open's epoch, above every earlier one's.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// How often the log has been opened.
    pub fn open_counter(&self) -> u64 {
        self.open_counter
    }

    /// The log's sizes, as created.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The segments that exist and are ready from the end on: the driver opens
    /// them for writing before the first effect.
    pub fn ready_segments(&self) -> std::ops::RangeInclusive<u64> {
        self.geometry.segment_of(self.end)..=self.ready_through
    }
}
