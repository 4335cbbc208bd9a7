//! Making a new, empty log.

use super::contract::LogOptions;
use super::position::{Geometry, GeometryError, LogId, FIRST_SEGMENT};
use super::segment_files::{segment_name, SegmentFiles};
use super::superblock::{BootId, Superblock, SuperblockError, SuperblockStore, SUPERBLOCK_FILES};
use crate::io::{Disk, DiskError};

/// A log could not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    #[error("there is a log here already")]
    Exists,
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
}

/// Whether the directory holds a log, or what is left of one.
pub fn exists(disk: &dyn Disk) -> Result<bool, DiskError> {
    let names = disk.list()?;
    Ok(SUPERBLOCK_FILES
        .iter()
        .any(|name| names.iter().any(|there| there == name)))
}

/// Makes an empty log with the sizes in `options`. Blocking. The superblocks
/// come last: a crash before leaves a directory that is still no log, and
/// another call starts over. `log_id` must be random.
pub fn create(disk: &dyn Disk, log_id: LogId, options: &LogOptions) -> Result<(), CreateError> {
    let geometry = Geometry::new(options.segment_bytes, options.block_bytes)?;
    if exists(disk)? {
        return Err(CreateError::Exists);
    }
    let leftover: Vec<u64> = SegmentFiles::list(disk, geometry)?.from(0).collect();
    for sequence in leftover {
        disk.remove(&segment_name(sequence))?;
    }
    disk.sync_dir()?;
    disk.create_zeroed(&segment_name(FIRST_SEGMENT), geometry.segment_bytes())?;
    let start = geometry.start_of(FIRST_SEGMENT);
    let superblock = Superblock {
        log_id,
        geometry,
        epoch: 0,
        open_counter: 0,
        boot_id: BootId::default(),
        incarnation: 0,
        amnesiac: false,
        start,
        resume_at: start,
        resume_epoch: 0,
        latch_cleared: 0,
        token_counter: 0,
        jumps: Vec::new(),
    };
    SuperblockStore::create(disk, superblock)?;
    Ok(())
}
