//! Looking, before anything is changed, whether a log is one that this program
//! reads. An open raises the superblock's counters before it reads a batch: it
//! would be too late to find out there that a later version has been here.

use std::collections::BTreeSet;

use super::batch::BatchHeader;
use super::latch;
use super::position::{Geometry, LogId, LogPosition};
use super::segment_files::SegmentFiles;
use super::superblock::{SuperblockError, SuperblockStore};
use crate::io::Disk;

/// Looks at the superblocks, the latch record, the batches with which segments,
/// copied tails and the last open begin, and all of the last segment that holds
/// any: a version that writes another format began to do so in one of those
/// places. Changes nothing. Damage passes, and so does a log that is not there:
/// the open tells of those.
///
/// # Errors
/// [`SuperblockError::Format`]: something is in another format; or the disk.
pub fn check_formats(disk: &dyn Disk) -> Result<(), SuperblockError> {
    let store = match SuperblockStore::load(disk) {
        Ok(store) => store,
        Err(SuperblockError::Missing | SuperblockError::Damaged(_)) => return Ok(()),
        Err(other) => return Err(other),
    };
    latch::check_format(disk)?;
    let superblock = &store.current;
    let geometry = superblock.geometry;
    let files = SegmentFiles::list(disk, geometry)?;
    let jumps = superblock.jumps.iter().map(|jump| jump.to);
    let mut places: BTreeSet<_> = jumps.chain([superblock.resume_at]).collect();
    places.extend(files.from(0).map(|segment| geometry.start_of(segment)));
    let mut looking = Looking {
        files,
        geometry,
        log_id: superblock.log_id,
    };
    let mut begun = Vec::new();
    for place in places {
        if looking.header_at(place)?.is_some() {
            begun.push(place);
        }
    }
    let last = begun.last().map(|place| geometry.segment_of(*place));
    for place in begun {
        if Some(geometry.segment_of(place)) == last {
            looking.follow(place)?;
        }
    }
    Ok(())
}

struct Looking<'d> {
    files: SegmentFiles<'d>,
    geometry: Geometry,
    log_id: LogId,
}

impl Looking<'_> {
    /// Goes from batch to batch to the end of the segment, or of the log.
    fn follow(&mut self, mut place: LogPosition) -> Result<(), SuperblockError> {
        let segment = self.geometry.segment_of(place);
        while self.geometry.segment_of(place) == segment {
            match self.header_at(place)? {
                Some(header) => place = header.end(self.geometry),
                None => break,
            }
        }
        Ok(())
    }

    /// The intact header of this format, log and place at `place`.
    fn header_at(&mut self, place: LogPosition) -> Result<Option<BatchHeader>, SuperblockError> {
        let mut block = vec![0; self.geometry.block_bytes() as usize];
        self.files.read(place, &mut block);
        if let Some(other) = BatchHeader::other_format(&block, self.log_id, place) {
            return Err(other.into());
        }
        let header = BatchHeader::decode(&block).map(|(header, _)| header);
        let here = |header: &BatchHeader| header.log_id == self.log_id && header.position == place;
        Ok(header.filter(here))
    }
}
