//! The one direct-I/O log of a shard: everything the shard makes persistent
//! goes through it first.
//!
//! Owns the files `super-a`, `super-b`, `seg-<sequence>` and `latched` of one
//! directory. Two halves:
//!
//! - [`LogWriter`], the pure hot path: items in, effects out.
//! - [`create`], [`open`], [`reopen`], [`inspect`] and their helpers: blocking
//!   bring-up code on a [`Disk`](crate::io::Disk), for helper threads or before
//!   a shard's loop starts.
//!
//! Invariants:
//! 1. A byte that was durable is never rewritten (see `resume`).
//! 2. A batch becomes readable only if it stands where its header says and its
//!    header carries its predecessor's checksum, the next sequence number and
//!    no lower epoch: nothing of an earlier life comes back.
//! 3. Every open raises epoch and open counter, durably, before it writes
//!    anything else, and makes the surviving tail durable before it tells of it.
//! 4. After a failed write or sync nothing more is answered; a failed sync is
//!    never tried again, in no process (see `latch` and `reopen`).
//!
//! Never: rewrites or truncates what was durable; frees a segment that it was
//! not told is needed by nobody; interprets payloads.
//!
//! A crash leaves: everything durable; after a process crash everything
//! written; behind that, bytes that recovery cuts.

mod base;
mod batch;
pub(crate) mod bytes;
mod cache;
mod clean;
mod contract;
mod create;
mod format;
mod formats;
mod fragments;
mod inspect;
mod item;
mod latch;
mod open;
mod position;
mod recovery;
mod reopen;
mod report;
mod resume;
mod segment_files;
mod superblock;
#[cfg(test)]
mod testing;
mod writer;

pub use base::{Anchor, LogBase};
pub use batch::{BatchHeader, BATCH_HEADER_BYTES};
pub use clean::{
    check_clean_format, put_clean_markers, take_clean_markers, CleanMarker, CLEAN_FILE,
};
pub use contract::{
    AppendError, Appended, IoFailure, LogEffect, LogFrontiers, LogOptions, LogStart, SyncMethod,
};
pub use create::{create, exists, CreateError};
pub(crate) use format::other_format;
pub use format::OtherFormat;
pub use formats::check_formats;
pub(crate) use fragments::FragmentMap;
pub use inspect::{inspect, Inspected, Inspection};
pub use item::{ItemHeader, ItemKind, FRAGMENT_HEADER_BYTES, MAX_ITEM_BYTES};
pub use latch::{record_latch, LatchRecord, LatchRecorded, LATCHED_FILE};
pub use open::{amnesia_settled, open, reopen, OpenError, OpenFacts, Opened};
pub use position::{
    Extent, Geometry, GeometryError, LogId, LogPosition, FIRST_SEGMENT, MAX_BATCH_BYTES,
    MAX_UNRELEASED_BATCHES,
};
pub use recovery::{place_in, DamagedRange, RecoveredItem};
pub use report::{Cut, CutKind, Recopied, RecoveryReport, MAX_LISTED_DAMAGES};
pub use segment_files::{prepare_segment, segment_name, segments_end};
pub use superblock::{id_of, BootId, Jump, SuperblockError, SUPERBLOCK_FILES};
pub use writer::LogWriter;

#[cfg(test)]
pub(crate) mod golden {
    pub(crate) use super::{
        batch::golden as batch, clean::golden as clean, item::golden as fragment,
        latch::golden as latch, superblock::golden as superblock,
    };
}
