//! The look at a data directory before a start changes anything in it: is all
//! of it in formats that this program reads?

use std::{path::Path, thread};

use super::{data_directory::shard_directory, fs_disk::FsDisk, offline::clean_bytes};
use crate::{
    log::{self, SuperblockError},
    store::{self, CheckpointError, PackError, SectionsError},
};

/// Looks at the clean marker and at every shard's log, checkpoint and packed
/// files. Blocking; reads checkpoints whole, all shards' at once. Damage and
/// what cannot be read pass: the start itself tells of them.
///
/// # Errors
/// What is in another format, in words.
pub(super) fn check(data: &Path, shards: u16) -> Result<(), String> {
    let clean = clean_bytes(data).unwrap_or_default();
    log::check_clean_format(&clean).map_err(|other| other.to_string())?;
    thread::scope(|scope| {
        let looking: Vec<_> = (0..shards)
            .map(|shard| scope.spawn(move || check_shard(&shard_directory(data, shard))))
            .collect();
        for (shard, looked) in looking.into_iter().enumerate() {
            match looked.join() {
                Ok(Some(other)) => return Err(format!("shard {shard}: {other}")),
                Ok(None) => {}
                Err(_) => return Err(format!("shard {shard}: its files could not be looked at")),
            }
        }
        Ok(())
    })
}

/// What is in another format there.
fn check_shard(path: &Path) -> Option<String> {
    let disk = FsDisk::open(path).ok()?;
    if let Err(error @ SuperblockError::Format(_)) = log::check_formats(&disk) {
        return Some(error.to_string());
    }
    let log_id = log::id_of(&disk).ok()?;
    let error = store::check_formats(&disk, log_id).err()?;
    let is_other = matches!(
        error,
        CheckpointError::Format(_)
            | CheckpointError::Sections(SectionsError::Unknown { .. })
            | CheckpointError::Pack(PackError::Format(_))
    );
    is_other.then(|| error.to_string())
}
