//! What a start does with a log's checkpoint and packed files before it goes on
//! from them.

use super::{
    check_packs,
    checkpoint::{load, look, prepare, Checkpoint, CheckpointError},
    pack_id,
};
use crate::{
    io::{Disk, DiskErrorKind},
    log::LogId,
};

/// Looks whether this build reads the checkpoints of log `log_id`, all sections
/// of the one in force, and the packed files that it names, and whether they are
/// this log's. Changes nothing. A packed file that is damaged or missing passes: a
/// start tells of its records.
///
/// # Errors
/// No whole checkpoint though there was one; another format, log or file; the disk.
pub fn check_formats(disk: &dyn Disk, log_id: LogId) -> Result<(), CheckpointError> {
    if let Some(checkpoint) = look(disk, log_id)? {
        check_packs(disk, log_id, &checkpoint.packs()?)?;
    }
    Ok(())
}

/// Removes packed files that the published checkpoint (if there is one) does
/// not name: a job that was not heard of left them.
///
/// # Errors
/// The disk, or a body that this build does not read.
pub fn remove_orphans(
    disk: &dyn Disk,
    checkpoint: Option<&Checkpoint>,
) -> Result<(), CheckpointError> {
    let named = checkpoint.map(Checkpoint::packs).transpose()?;
    let named = named.unwrap_or_default();
    let names = disk.list()?;
    let orphans = names
        .iter()
        .filter(|name| pack_id(name).is_some_and(|file| !named.contains(&file)));
    let mut removed = false;
    for name in orphans {
        disk.remove(name)?;
        removed = true;
    }
    if removed {
        disk.sync_dir()?;
    }
    Ok(())
}

/// What a start goes on from: the published checkpoint, as [`load`] makes it
/// safe, with packed files that this build reads and no others beside them.
///
/// # Errors
/// Another format or log, or the disk.
pub fn take_over(disk: &dyn Disk, log_id: LogId) -> Result<Option<Checkpoint>, CheckpointError> {
    // A name that is there may not be durable: whoever made it may have died.
    disk.sync_dir()?;
    match prepare(disk, log_id) {
        // The first checkpoint needs the room then, or the next start.
        Err(error) if error.kind == DiskErrorKind::OutOfSpace => {}
        prepared => prepared?,
    }
    let loaded = load(disk, log_id)?;
    if let Some(checkpoint) = &loaded {
        check_packs(disk, log_id, &checkpoint.packs()?)?;
        // Without one nothing says what is not needed; the first one will.
        remove_orphans(disk, Some(checkpoint))?;
    }
    Ok(loaded)
}
