//! Checking offline every record that a checkpoint names: in packed files, and
//! in segments that are kept below the checkpoint's anchor, which the walk of
//! the log does not read.

use std::collections::BTreeMap;

use wire::record::Record;

use super::{RestoreFailure, Restored};
use crate::{
    engine::types::ReadFile,
    io::{Disk, DiskError, DiskFile},
    log::{FragmentMap, Geometry, LogPosition},
    state::queue::RecordLocation,
    store::Checkpoint,
};

/// Bytes read at once: neighbours come next.
const READ_BYTES: usize = 1 << 20;
/// Damaged records that are listed.
const MAX_LISTED: usize = 100;
/// Where the queues of a checkpoint are placed is of no interest here.
const ANY_DATA_GROUPS: u32 = 2;

/// What a checkpoint names, checked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoredRecords {
    pub records: u64,
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
    /// One of each kind: packed or segment.
    files: BTreeMap<bool, OpenFile>,
    bytes: Vec<u8>,
}

struct OpenFile {
    name: ReadFile,
    file: Box<dyn DiskFile>,
    /// What was read ahead, from byte `start` of the file on.
    start: u64,
    ahead: Vec<u8>,
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
        let read = match location {
            RecordLocation::Packed { file, at } => {
                self.read(ReadFile::Pack(file), u64::from(at), len, &mut bytes)
            }
            RecordLocation::Ring(position) => links
                .pieces(LogPosition(position), len)
                .try_for_each(|(place, len)| {
                    let file = ReadFile::Segment(geometry.segment_of(place));
                    self.read(file, geometry.offset_of(place), len, &mut bytes)
                }),
        };
        let sound = read.is_ok()
            && Record::parse(&bytes, 0)
                .is_ok_and(|record| record.bytes.len() == len as usize && record.verify(0).is_ok());
        self.bytes = bytes;
        sound
    }

    /// Appends the bytes to `out`, as far as the file has them.
    fn read(
        &mut self,
        file: ReadFile,
        offset: u64,
        len: u32,
        out: &mut Vec<u8>,
    ) -> Result<(), DiskError> {
        let kind = matches!(file, ReadFile::Pack(_));
        let known = self.files.get(&kind).is_some_and(|open| open.name == file);
        if !known {
            let open = OpenFile {
                name: file,
                file: self.disk.open(&file.name())?,
                start: 0,
                ahead: Vec::new(),
            };
            self.files.insert(kind, open);
        }
        let Some(open) = self.files.get_mut(&kind) else {
            return Ok(());
        };
        let end = offset + u64::from(len);
        if offset < open.start || end > open.start + open.ahead.len() as u64 {
            open.start = offset - offset % 4096;
            let want = (end - open.start).max(READ_BYTES as u64);
            open.ahead.clear();
            open.ahead.resize(want as usize, 0);
            let there = open.file.read_at(open.start, &mut open.ahead)?;
            open.ahead.truncate(there);
        }
        let from = (offset - open.start) as usize;
        let there = open.ahead.get(from..).unwrap_or_default();
        out.extend_from_slice(
            there
                .get(..(len as usize).min(there.len()))
                .unwrap_or_default(),
        );
        Ok(())
    }
}
