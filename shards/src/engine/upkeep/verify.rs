//! Checking offline every record that a checkpoint names: in packed files, and
//! in segments that are kept below the checkpoint's anchor, which the walk of
//! the log does not read.

use std::collections::BTreeMap;

use wire::record::Record;

use super::{RestoreFailure, Restored};
use crate::{
    engine::types::ReadFile,
    io::{Disk, DiskError},
    log::{FragmentMap, Geometry, LogPosition},
    state::queue::RecordLocation,
    store::{Checkpoint, ForwardReader},
};

/// Damaged records that are listed.
const MAX_LISTED: usize = 100;
/// Where the queues of a checkpoint are placed is of no interest here.
const ANY_DATA_GROUPS: u32 = 2;

/// What a checkpoint names, checked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoredRecords {
    pub records: u64,
    /// Of them, those in packed files.
    pub packed: u64,
    pub damaged: u64,
    /// Queue id, partition and offset of the first damaged ones.
    pub listed: Vec<(u64, u16, u64)>,
}

/// Reads every unsettled record that the checkpoint names and checks it.
///
/// # Errors
/// The checkpoint's body is not one that this build reads.
pub fn verify_stored(
    disk: &dyn Disk,
    geometry: Geometry,
    checkpoint: &Checkpoint,
) -> Result<StoredRecords, RestoreFailure> {
    let restored = Restored::read(&checkpoint.body, ANY_DATA_GROUPS)?;
    let mut links = FragmentMap::default();
    for (end, next) in checkpoint.base()?.links {
        links.push(end, next);
    }
    let mut reader = Reader {
        disk,
        files: BTreeMap::new(),
        bytes: Vec::new(),
    };
    let mut found = StoredRecords::default();
    let mut slots: Vec<_> = restored.partitions.values().collect();
    slots.sort_unstable_by_key(|slot| slot.key);
    for slot in slots {
        let (queue_id, partition) = (slot.key.queue_id, slot.key.partition);
        slot.machine
            .visit_places(0, usize::MAX, &mut |offset, location, len| {
                let anchor = checkpoint.head.anchor.position.0;
                if matches!(location, RecordLocation::Ring(at) if at >= anchor) {
                    // The walk of the log checks it.
                    return true;
                }
                found.records += 1;
                if matches!(location, RecordLocation::Packed { .. }) {
                    found.packed += 1;
                }
                if !reader.is_sound(&links, geometry, location, len) {
                    found.damaged += 1;
                    if found.listed.len() < MAX_LISTED {
                        found.listed.push((queue_id, partition, offset));
                    }
                }
                true
            });
    }
    Ok(found)
}

struct Reader<'d> {
    disk: &'d dyn Disk,
    /// The last one of each kind, packed or segment.
    files: BTreeMap<bool, (ReadFile, ForwardReader)>,
    bytes: Vec<u8>,
}

impl Reader<'_> {
    fn is_sound(
        &mut self,
        links: &FragmentMap,
        geometry: Geometry,
        location: RecordLocation,
        len: u32,
    ) -> bool {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        bytes.resize(len as usize, 0);
        let read = match location {
            RecordLocation::Packed { file, at } => {
                self.read(ReadFile::Pack(file), u64::from(at), &mut bytes)
            }
            RecordLocation::Ring(position) => {
                let mut rest = bytes.as_mut_slice();
                let mut pieces = links.pieces(LogPosition(position), len);
                pieces.try_for_each(|(place, len)| {
                    // All pieces together are as long as the record.
                    let whole = std::mem::take(&mut rest);
                    let Some((to, behind)) = whole.split_at_mut_checked(len as usize) else {
                        return Ok(());
                    };
                    rest = behind;
                    let file = ReadFile::Segment(geometry.segment_of(place));
                    self.read(file, geometry.offset_of(place), to)
                })
            }
        };
        let sound = read.is_ok() && Record::is_intact(&bytes);
        self.bytes = bytes;
        sound
    }

    fn read(&mut self, file: ReadFile, offset: u64, to: &mut [u8]) -> Result<(), DiskError> {
        let kind = matches!(file, ReadFile::Pack(_));
        let known = self.files.get(&kind).is_some_and(|(open, _)| *open == file);
        if !known {
            let open = ForwardReader::new(self.disk.open(&file.name())?);
            self.files.insert(kind, (file, open));
        }
        match self.files.get_mut(&kind) {
            Some((_, open)) => open.read(offset, to),
            None => Ok(()),
        }
    }
}
