//! What must live longer than the log's short ring: checkpoints and packed files.
//!
//! Owns the files `ckpt-a`, `ckpt-b` and `pack-<id>` of a shard's directory.
//!
//! - A **checkpoint** is the state that the log made up to some place, so that
//!   replay begins there ([`Anchor`](crate::log::Anchor)). It is published only
//!   after the log is durable up to everything that was captured.
//! - A **packed file** holds records that outlived their ring segment, ordered
//!   by partition and offset, without padding, with an index. It is immutable.
//!
//! Invariants:
//! 1. A published checkpoint is whole and durable before anything that it makes
//!    needless is released; then the one before it is made unusable, so that no
//!    start ever begins from a checkpoint whose segments are gone.
//! 2. A packed file is whole and durable before a checkpoint names it, and is
//!    removed only when the published checkpoint names none of its records.
//! 3. Numbers of packed files are never used again.
//!
//! Never: decides what is captured or packed (the engine does), interprets the
//! sections of a checkpoint, changes a file that a published checkpoint names.
//!
//! A crash leaves: the last published checkpoint; perhaps packed files that it
//! does not name, which the next start removes.
//!
//! All functions block and run on helper threads or before a shard's loop starts.

mod checkpoint;
mod forward_reader;
mod job;
mod pack;
mod sections;
mod take_over;

pub use checkpoint::{
    load, look, publish, Checkpoint, CheckpointError, CheckpointHead, CHECKPOINT_FILES,
    PACK_ENTRY_BYTES,
};
pub(crate) use forward_reader::ForwardReader;
pub use job::{StoreDone, StoreJob};
pub use pack::{
    check_packs, pack_id, pack_name, read_index, scrub, verify_pack, write_pack, IndexEntry,
    PackError, PackJob, PackRecord, Packed, RecordSource, ScrubJob, Scrubbed, MAX_PACK_BYTES,
};
pub use sections::{Section, SectionKind, Sections, SectionsError};
pub use take_over::{check_formats, remove_orphans, take_over};

#[cfg(test)]
pub(crate) mod golden {
    pub(crate) use super::{
        checkpoint::golden as checkpoint,
        pack::{golden as pack, golden_entry as index_entry},
        sections::golden as section,
    };
}
