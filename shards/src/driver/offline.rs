//! Reading the logs of a data directory without starting a server.
//!
//! Changes nothing and holds no lock: of a directory whose server runs it
//! shows some recent moment. [`running_server`] says whether one does.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use thiserror::Error;

pub use super::data_directory::{running_server, RunningServer};
use super::{
    boot_directory::existing_boot_directory,
    data_directory::shard_directory,
    formats::{self, Unfit},
    fs_disk::FsDisk,
    identity::{other_format, stored_shards},
    machine,
};
use crate::{
    engine::{verify_stored, RestoreFailure, StoredRecords},
    io::{Disk, DiskError},
    log::{self, BootId, CleanMarker, Inspected, Inspection, SuperblockError, CLEAN_FILE},
    store::{self, Checkpoint, CheckpointError, CheckpointHead},
};

/// A clean marker file is small; a larger one is none.
const MAX_CLEAN_BYTES: u64 = 1 << 20;

/// Why a directory's logs could not be read. Each is one sentence for the user.
#[derive(Debug, Error)]
pub enum OfflineError {
    #[error("{} is not a Tidegate data directory: it has no readable file `identity` ({source})", path.display())]
    NoDirectory { path: PathBuf, source: io::Error },
    #[error("{} was written by another version of Tidegate ({found}); look at it with that version", path.display())]
    Format { path: PathBuf, found: String },
    #[error("{} cannot be started from: {found}", path.display())]
    Damaged { path: PathBuf, found: String },
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot read {}: {source}", path.display())]
    Disk { path: PathBuf, source: DiskError },
    #[error("the checkpoint in {} cannot be used: {source}", path.display())]
    Restore {
        path: PathBuf,
        source: RestoreFailure,
    },
    #[error("the checkpoint in {} cannot be read: {source}", path.display())]
    Checkpoint {
        path: PathBuf,
        source: CheckpointError,
    },
    #[error("the log in {} cannot be read: {source}", path.display())]
    Log {
        path: PathBuf,
        source: SuperblockError,
    },
}

/// Walks each log of `data` in shard order, shows every batch to `visit`, and
/// then hands the log's summary to `done`.
///
/// # Errors
/// See [`OfflineError`]; a log that cannot be read ends the walk.
pub fn inspect_directory(
    data: &Path,
    visit: &mut dyn FnMut(u16, Inspected<'_>),
    done: &mut dyn FnMut(u16, Inspection, Stored),
) -> Result<(), OfflineError> {
    let identity = data.join("identity");
    fs::metadata(&identity).map_err(|source| OfflineError::NoDirectory {
        path: data.to_owned(),
        source,
    })?;
    let shards = stored_shards(data).unwrap_or(0);
    let checked = match other_format(data) {
        Some(other) => Err(Unfit::Format(other.to_string())),
        None => formats::check(data, shards, false),
    };
    checked.map_err(|unfit| {
        let path = data.to_owned();
        match unfit {
            Unfit::Format(found) => OfflineError::Format { path, found },
            Unfit::Damaged(found) => OfflineError::Damaged { path, found },
        }
    })?;
    let boot_id = machine::boot_id().map_err(|source| OfflineError::Read {
        path: "/proc/sys/kernel/random/boot_id".into(),
        source,
    })?;
    let markers = clean_markers(data)?;
    let boot = existing_boot_directory();
    let boot = boot.as_ref().map(|disk| disk as &dyn Disk);
    for shard in 0..shards {
        let path = shard_directory(data, shard);
        let disk = FsDisk::open(&path).map_err(|source| OfflineError::Disk {
            path: path.clone(),
            source,
        })?;
        let checkpoint = checkpoint_of(&disk, &path)?;
        let failed = |source: CheckpointError| OfflineError::Checkpoint {
            path: path.clone(),
            source,
        };
        let base = checkpoint.as_ref().map(Checkpoint::base).transpose();
        let base = base.map_err(|error| failed(error.into()))?;
        let boot_id = BootId(boot_id);
        let inspection = log::inspect(
            &disk,
            boot_id,
            &markers,
            boot,
            base.as_ref(),
            &mut |batch| visit(shard, batch),
        )
        .map_err(|source| OfflineError::Log {
            path: path.clone(),
            source,
        })?;
        let records = match &checkpoint {
            Some(checkpoint) => verify_stored(&disk, inspection.geometry, checkpoint)
                .map_err(|source| OfflineError::Restore { path, source })?,
            None => StoredRecords::default(),
        };
        let stored = Stored {
            checkpoint: checkpoint.map(|checkpoint| checkpoint.head),
            records,
        };
        done(shard, inspection, stored);
    }
    Ok(())
}

/// What a log keeps beside its ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Reading begins at its anchor.
    pub checkpoint: Option<CheckpointHead>,
    /// Records that it names below the anchor, checked.
    pub records: StoredRecords,
}

/// The published checkpoint, if there is one.
fn checkpoint_of(disk: &FsDisk, path: &Path) -> Result<Option<Checkpoint>, OfflineError> {
    let log_id = log::id_of(disk).map_err(|source| OfflineError::Log {
        path: path.to_owned(),
        source,
    })?;
    store::look(disk, log_id).map_err(|source| OfflineError::Checkpoint {
        path: path.to_owned(),
        source,
    })
}

/// The clean markers of the last stop; none when it was not clean.
fn clean_markers(data: &Path) -> Result<Vec<CleanMarker>, OfflineError> {
    let bytes = clean_bytes(data)?;
    Ok(CleanMarker::decode_all(&bytes).unwrap_or_default())
}

/// The marker file, as it is; empty if there is none that can be one.
pub(super) fn clean_bytes(data: &Path) -> Result<Vec<u8>, OfflineError> {
    let path = data.join(CLEAN_FILE);
    let size = match fs::metadata(&path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(OfflineError::Read { path, source }),
    };
    if size > MAX_CLEAN_BYTES {
        return Ok(Vec::new());
    }
    fs::read(&path).map_err(|source| OfflineError::Read { path, source })
}
