//! The look at a data directory before a start changes anything in it: is all
//! of it there, and in formats that this program reads?

use std::{path::Path, thread};

use super::{data_directory::shard_directory, fs_disk::FsDisk, lineage, offline::clean_bytes};
use crate::{
    log::{self, SuperblockError},
    store::{self, CheckpointError, PackError, SectionsError},
};

/// Why no start may begin from a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unfit {
    /// Something is in another format, in words.
    Format(String),
    /// Something is missing, or another one's, that nothing makes up for.
    Damaged(String),
}

impl Unfit {
    fn of_shard(self, shard: usize) -> Self {
        match self {
            Unfit::Format(found) => Unfit::Format(format!("shard {shard}: {found}")),
            Unfit::Damaged(found) => Unfit::Damaged(format!("shard {shard}: {found}")),
        }
    }
}

/// Looks at the clean marker and at every shard's log, checkpoint and packed
/// files. Blocking; reads checkpoints whole, all shards' at once. Damage that
/// a start can tell of, and what cannot be read, passes. `is_new`: what is
/// missing is yet to be made.
///
/// # Errors
/// What is in another format or cannot be started from.
pub(super) fn check(data: &Path, shards: u16, is_new: bool) -> Result<(), Unfit> {
    let clean = clean_bytes(data).unwrap_or_default();
    log::check_clean_format(&clean).map_err(|other| Unfit::Format(other.to_string()))?;
    if shards > 0 {
        lineage::check(data, shards)?;
    }
    thread::scope(|scope| {
        let looking: Vec<_> = (0..shards)
            .map(|shard| scope.spawn(move || check_shard(&shard_directory(data, shard), is_new)))
            .collect();
        for (shard, looked) in looking.into_iter().enumerate() {
            let unfit = match looked.join() {
                Ok(unfit) => unfit,
                Err(_) => Some(Unfit::Damaged(
                    "its files could not be looked at".to_owned(),
                )),
            };
            if let Some(unfit) = unfit {
                return Err(unfit.of_shard(shard));
            }
        }
        Ok(())
    })
}

fn check_shard(path: &Path, is_new: bool) -> Option<Unfit> {
    if !path.exists() && !is_new {
        let found = format!("{} is missing; restore it from a copy", path.display());
        return Some(Unfit::Damaged(found));
    }
    let disk = FsDisk::open(path).ok()?;
    if let Err(error @ SuperblockError::Format(_)) = log::check_formats(&disk) {
        return Some(Unfit::Format(error.to_string()));
    }
    let log_id = log::id_of(&disk).ok()?;
    let error = store::check_formats(&disk, log_id).err()?;
    match error {
        CheckpointError::Format(_)
        | CheckpointError::Sections(SectionsError::Unknown { .. })
        | CheckpointError::Pack(PackError::Format(_)) => Some(Unfit::Format(error.to_string())),
        CheckpointError::Damaged
        | CheckpointError::ForeignLog { .. }
        | CheckpointError::Pack(PackError::Foreign(_)) => Some(Unfit::Damaged(error.to_string())),
        _ => None,
    }
}
