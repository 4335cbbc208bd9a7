//! The segment files of a log, for blocking bring-up code.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::bytes::all_zero;
use super::position::{Geometry, LogPosition};
use crate::io::{Disk, DiskError, DiskErrorKind, DiskFile};

const PREFIX: &str = "seg-";
const DIGITS: usize = 20;

/// What unreadable bytes are shown as: neither zero nor a batch.
const UNREADABLE: u8 = 0xee;

/// Bytes read at once: small batches would cost a device read each.
const READ_AHEAD_BYTES: u64 = 1 << 20;

/// The file name of a segment.
pub fn segment_name(sequence: u64) -> String {
    format!("{PREFIX}{sequence:0DIGITS$}")
}

fn parse_segment_name(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?;
    let plain = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}

/// Where the last segment in `disk` ends, spares included. Blocking.
///
/// # Errors
/// The directory or the segment cannot be read.
pub fn segments_end(disk: &dyn Disk) -> Result<LogPosition, DiskError> {
    let names = disk.list()?;
    let last = names
        .iter()
        .filter_map(|name| parse_segment_name(name))
        .max();
    let Some(last) = last else {
        return Ok(LogPosition(0));
    };
    let bytes = disk.open(&segment_name(last))?.len()?;
    Ok(LogPosition(last.saturating_add(1).saturating_mul(bytes)))
}

/// Makes the segment `sequence` exist, zero-filled and durable, out of the file
/// of the segment `recycle` if there is one: the answer to
/// `LogEffect::PrepareSegment`. Blocking; not on a shard thread. May be called
/// again after a failure.
pub fn prepare_segment(
    disk: &dyn Disk,
    geometry: Geometry,
    sequence: u64,
    recycle: Option<u64>,
) -> Result<(), DiskError> {
    let name = segment_name(sequence);
    let bytes = geometry.segment_bytes();
    let made = match recycle {
        Some(free) => match disk.recycle_zeroed(&segment_name(free), &name, bytes) {
            // An earlier try that failed half-way took it.
            Err(error) if error.kind == DiskErrorKind::NotFound => disk.create_zeroed(&name, bytes),
            made => made,
        },
        None => disk.create_zeroed(&name, bytes),
    };
    match made {
        Err(error) if error.kind == DiskErrorKind::Exists => {
            let mut files = SegmentFiles::list(disk, geometry)?;
            if files.is_whole(sequence) && files.is_zero(sequence) {
                // An earlier try came this far; only the name may not be durable.
                return disk.sync_dir();
            }
            Err(error)
        }
        other => other,
    }
}

/// All segments of a log; one is open at a time.
pub(super) struct SegmentFiles<'d> {
    disk: &'d dyn Disk,
    geometry: Geometry,
    lengths: BTreeMap<u64, u64>,
    open: Option<(u64, Box<dyn DiskFile>)>,
    ahead: Option<Ahead>,
    /// The first read that failed; its bytes were taken for damaged ones.
    pub unreadable: Option<DiskError>,
}

/// Bytes of a segment that were read ahead; short at the end of the file.
struct Ahead {
    segment: u64,
    offset: u64,
    bytes: Vec<u8>,
}

impl<'d> SegmentFiles<'d> {
    pub(super) fn list(disk: &'d dyn Disk, geometry: Geometry) -> Result<Self, DiskError> {
        let mut lengths = BTreeMap::new();
        for name in disk.list()? {
            let Some(sequence) = parse_segment_name(&name) else {
                continue;
            };
            if geometry.is_addressable(sequence) {
                lengths.insert(sequence, disk.open(&name)?.len()?);
            }
        }
        Ok(SegmentFiles {
            disk,
            geometry,
            lengths,
            open: None,
            ahead: None,
            unreadable: None,
        })
    }

    /// Waits until no descriptor that may still be writing is left: each one
    /// holds its segment's lock, and a killed process's write holds its
    /// descriptor. `DIR/lock` keeps others from coming after us.
    pub(super) fn wait_for_writers(&self, wait: Duration) -> Result<(), DiskError> {
        for sequence in self.lengths.keys() {
            self.disk
                .open(&segment_name(*sequence))?
                .lock_exclusive(wait)?;
        }
        Ok(())
    }

    pub(super) fn last(&self) -> Option<u64> {
        self.lengths.keys().next_back().copied()
    }

    /// Segments from `sequence` on, in order.
    pub(super) fn from(&self, sequence: u64) -> impl DoubleEndedIterator<Item = u64> + '_ {
        self.lengths
            .range(sequence..)
            .map(|(sequence, _)| *sequence)
    }

    /// Segments below `sequence`, in order.
    pub(super) fn below(&self, sequence: u64) -> impl Iterator<Item = u64> + '_ {
        self.lengths
            .range(..sequence)
            .map(|(sequence, _)| *sequence)
    }

    pub(super) fn exists(&self, sequence: u64) -> bool {
        self.lengths.contains_key(&sequence)
    }

    /// Whether the segment has its full length.
    pub(super) fn is_whole(&self, sequence: u64) -> bool {
        self.lengths.get(&sequence) == Some(&self.geometry.segment_bytes())
    }

    /// Fills `buffer` from `position`, within one segment. What is missing
    /// reads as zeros, what cannot be read as damaged bytes.
    pub(super) fn read(&mut self, position: LogPosition, buffer: &mut [u8]) {
        let segment = self.geometry.segment_of(position);
        let offset = self.geometry.offset_of(position);
        match self.try_read(segment, offset, buffer) {
            Ok(there) => {
                if let Some(missing) = buffer.get_mut(there..) {
                    missing.fill(0);
                }
            }
            Err(error) => {
                buffer.fill(UNREADABLE);
                self.unreadable.get_or_insert(error);
            }
        }
    }

    fn try_read(
        &mut self,
        segment: u64,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize, DiskError> {
        if !self.exists(segment) {
            return Ok(0);
        }
        if let Some(there) = self.copy_ahead(segment, offset, buffer) {
            return Ok(there);
        }
        let block = u64::from(self.geometry.block_bytes());
        let start = offset - offset % block;
        let length = READ_AHEAD_BYTES.min(self.geometry.segment_bytes() - start);
        let mut bytes = vec![0; length as usize];
        match self.file(segment)?.read_at(start, &mut bytes) {
            Ok(there) => {
                bytes.truncate(there);
                self.ahead = Some(Ahead {
                    segment,
                    offset: start,
                    bytes,
                });
                if let Some(there) = self.copy_ahead(segment, offset, buffer) {
                    return Ok(there);
                }
            }
            // Something in there cannot be read; perhaps not what is wanted.
            Err(_) => self.ahead = None,
        }
        self.file(segment)?.read_at(offset, buffer)
    }

    /// Copies what was read ahead, if that holds all of the range, or all of
    /// it that the file has.
    fn copy_ahead(&self, segment: u64, offset: u64, buffer: &mut [u8]) -> Option<usize> {
        let ahead = self
            .ahead
            .as_ref()
            .filter(|ahead| ahead.segment == segment)?;
        let from = usize::try_from(offset.checked_sub(ahead.offset)?).ok()?;
        let end = ahead.offset + ahead.bytes.len() as u64;
        let to_file_end = self.lengths.get(&segment).is_some_and(|len| end >= *len);
        let there = ahead.bytes.get(from.min(ahead.bytes.len())..)?;
        if there.len() < buffer.len() && !to_file_end {
            return None;
        }
        let count = there.len().min(buffer.len());
        buffer
            .get_mut(..count)?
            .copy_from_slice(there.get(..count)?);
        Some(count)
    }

    /// Whether every byte of the segment is zero.
    pub(super) fn is_zero(&mut self, sequence: u64) -> bool {
        let start = self.geometry.start_of(sequence);
        let mut chunk = vec![0; self.geometry.batch_capacity(start)];
        let mut at = 0;
        while at < self.geometry.segment_bytes() {
            let position = LogPosition(start.0 + at);
            let left = self.geometry.left_in_segment(position);
            chunk.truncate(left.min(chunk.len() as u64) as usize);
            self.read(position, &mut chunk);
            if !all_zero(&chunk) {
                return false;
            }
            at += chunk.len() as u64;
        }
        true
    }

    /// Creates the segment, zero-filled and durable.
    pub(super) fn create(&mut self, sequence: u64) -> Result<(), DiskError> {
        let bytes = self.geometry.segment_bytes();
        self.disk.create_zeroed(&segment_name(sequence), bytes)?;
        self.lengths.insert(sequence, bytes);
        Ok(())
    }

    /// Makes the segment, zero-filled and durable, out of one that nobody needs.
    pub(super) fn recycle(&mut self, free: u64, sequence: u64) -> Result<(), DiskError> {
        self.open = None;
        self.ahead = None;
        let bytes = self.geometry.segment_bytes();
        self.disk
            .recycle_zeroed(&segment_name(free), &segment_name(sequence), bytes)?;
        self.lengths.remove(&free);
        self.lengths.insert(sequence, bytes);
        Ok(())
    }

    /// Removes the segment; durable with the next directory sync.
    pub(super) fn remove(&mut self, sequence: u64) -> Result<(), DiskError> {
        self.open = None;
        self.ahead = None;
        self.disk.remove(&segment_name(sequence))?;
        self.lengths.remove(&sequence);
        Ok(())
    }

    pub(super) fn write(&mut self, position: LogPosition, bytes: &[u8]) -> Result<(), DiskError> {
        let segment = self.geometry.segment_of(position);
        let offset = self.geometry.offset_of(position);
        self.ahead = None;
        self.file(segment)?.write_at(offset, bytes)
    }

    /// Makes these segments durable, as far as they exist, in order.
    pub(super) fn sync(&mut self, segments: RangeInclusive<u64>) -> Result<(), DiskError> {
        let existing: Vec<u64> = self.lengths.range(segments).map(|(n, _)| *n).collect();
        for sequence in existing {
            self.file(sequence)?.sync()?;
        }
        Ok(())
    }

    fn file(&mut self, segment: u64) -> Result<&dyn DiskFile, DiskError> {
        let open = match self.open.take() {
            Some((sequence, file)) if sequence == segment => (sequence, file),
            _ => (segment, self.disk.open(&segment_name(segment))?),
        };
        Ok(self.open.insert(open).1.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_fixed_width_and_parsed_strictly() {
        assert_eq!(segment_name(7), "seg-00000000000000000007");
        assert_eq!(parse_segment_name(&segment_name(u64::MAX)), Some(u64::MAX));
        for bad in [
            "seg-7",
            "seg-00000000000000000007.tmp",
            "seg-99999999999999999999",
            "seg-+0000000000000000007",
            "x",
        ] {
            assert_eq!(parse_segment_name(bad), None, "{bad}");
        }
    }
}
