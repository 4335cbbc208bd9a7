//! Packed files: records that outlived their ring segment.
//!
//! Head, little-endian, in the first 4 096 bytes; then the records as encoded,
//! back to back; then the index; then zeros to a multiple of 4 096 bytes.
//!
//! | at | size | field |
//! |----|------|-------|
//! | 0 | 8 | magic `TIDEPACK` |
//! | 8 | 4 | format, 1 |
//! | 12 | 4 | number of the file |
//! | 16 | 16 | log id |
//! | 32 | 4 | records |
//! | 36 | 4 | bytes of records |
//! | 40 | 8 | XXH3-64 of the index |
//! | 48 | 8 | XXH3-64 of bytes 0 to 48 |
//!
//! Index entry, 40 bytes: queue id u64, offset u64, group u32, generation u32,
//! place in the file u32, length u32, partition u16, zero u16, zero u32.
//!
//! Records carry their own checksum; the index says whose a damaged one was.

use std::collections::BTreeSet;

use thiserror::Error;
use wire::record::Record;
use xxhash_rust::xxh3::xxh3_64;

use super::ForwardReader;
use crate::{
    io::{Disk, DiskError, DiskErrorKind, DiskFile},
    log::{
        bytes::{get_u128, get_u16, get_u32, get_u64},
        other_format, segment_name, Extent, LogId, OtherFormat,
    },
    mutation::{removed, Rule},
};

/// Most bytes of records one job packs, unless a single record is longer.
pub const MAX_PACK_BYTES: u64 = 16 << 20;

const MAGIC: [u8; 8] = *b"TIDEPACK";
const FORMAT: u32 = 1;
const HEAD_BYTES: usize = 56;
const BLOCK: usize = 4096;
const ENTRY_BYTES: usize = 40;
const PREFIX: &str = "pack-";
const DIGITS: usize = 10;

/// The file name of a packed file.
pub fn pack_name(file: u32) -> String {
    format!("{PREFIX}{file:0DIGITS$}")
}

/// The number of the packed file called `name`, if it is one's name.
pub fn pack_id(name: &str) -> Option<u32> {
    let digits = name.strip_prefix(PREFIX)?;
    let plain = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}

/// A record to pack, and whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackRecord {
    pub queue_id: u64,
    pub offset: u64,
    pub group: u32,
    pub generation: u32,
    pub partition: u16,
    /// Encoded bytes.
    pub len: u32,
    pub source: RecordSource,
}

/// Where a record is so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordSource {
    /// In segments: this many of the job's extents, from that one on.
    Ring { first: u32, extents: u32 },
    /// In a packed file, from this byte on.
    Packed { file: u32, at: u32 },
}

/// What to pack, ordered by partition and offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackJob {
    pub file: u32,
    pub log_id: LogId,
    pub records: Vec<PackRecord>,
    pub extents: Vec<Extent>,
}

/// Records to look at, ordered by partition and offset.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScrubJob {
    pub records: Vec<PackRecord>,
    pub extents: Vec<Extent>,
}

/// What was packed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    pub file: u32,
    /// The file's length.
    pub bytes: u64,
    /// Place of each of the job's records, in its order.
    pub places: Vec<u32>,
    /// Which of them do not verify; they were taken along as they are.
    pub bad: Vec<u32>,
}

/// A packed file that is not what its name says, or cannot be read.
#[derive(Debug, Error)]
pub enum PackError {
    #[error("{0} is not a packed file of this log, or its head is damaged")]
    Head(String),
    #[error(transparent)]
    Format(#[from] OtherFormat),
    #[error("{0} is another packed file, of this log or of another one, under this name: what the checkpoint names is not in it; put the right one back")]
    Foreign(String),
    #[error("the index of {0} is damaged")]
    Index(String),
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// One record of a packed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexEntry {
    pub queue_id: u64,
    pub offset: u64,
    pub group: u32,
    pub generation: u32,
    pub partition: u16,
    /// From this byte of the file on.
    pub at: u32,
    /// Encoded bytes.
    pub len: u32,
}

/// Makes the packed file of `job`, durably.
///
/// # Errors
/// The disk; nothing but perhaps a leftover with another name is there then.
pub fn write_pack(disk: &dyn Disk, job: &PackJob) -> Result<Packed, DiskError> {
    let data: usize = job.records.iter().map(|record| record.len as usize).sum();
    let index_at = BLOCK + data;
    let total = (index_at + job.records.len() * ENTRY_BYTES).next_multiple_of(BLOCK);
    if u32::try_from(total).is_err() {
        return Err(too_long(job.file));
    }
    let mut bytes = vec![0; total];
    let places = places_from(BLOCK, &job.records);
    gather(disk, &job.records, &job.extents, &places, &mut bytes)?;
    let bad = bad_records(&job.records, &places, &bytes);
    for (n, (record, place)) in job.records.iter().zip(&places).enumerate() {
        let entry = index_at + n * ENTRY_BYTES;
        if let Some(slot) = bytes.get_mut(entry..entry + ENTRY_BYTES) {
            slot.copy_from_slice(&encode_entry(record, *place));
        }
    }
    let index_end = index_at + job.records.len() * ENTRY_BYTES;
    let index_hash = xxh3_64(bytes.get(index_at..index_end).unwrap_or_default());
    let head = encode_head(job, data as u32, index_hash);
    if let Some(room) = bytes.get_mut(..HEAD_BYTES) {
        room.copy_from_slice(&head);
    }
    let name = pack_name(job.file);
    let made = match removed(Rule::PackDurable) {
        true => disk
            .create_zeroed(&name, total as u64)
            .and_then(|()| disk.open(&name)?.write_at(0, &bytes)),
        false => disk.create_whole(&name, &bytes),
    };
    match made {
        // Of an earlier try that was not heard of; no checkpoint names it.
        Err(error) if error.kind == DiskErrorKind::Exists => {
            disk.remove(&name)?;
            disk.create_whole(&name, &bytes)?;
        }
        made => made?,
    }
    Ok(Packed {
        file: job.file,
        bytes: total as u64,
        places,
        bad,
    })
}

/// What a scrub found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scrubbed {
    /// Which of the records do not verify, by their place in the job.
    pub bad: Vec<u32>,
    /// Bytes that the disk was asked for.
    pub read_bytes: u64,
}

/// Reads the job's records and says which of them do not verify.
///
/// # Errors
/// The disk.
pub fn scrub(disk: &dyn Disk, job: &ScrubJob) -> Result<Scrubbed, DiskError> {
    let total = job.records.iter().map(|record| record.len as usize).sum();
    let mut bytes = vec![0; total];
    let places = places_from(0, &job.records);
    let read_bytes = gather(disk, &job.records, &job.extents, &places, &mut bytes)?;
    let bad = bad_records(&job.records, &places, &bytes);
    Ok(Scrubbed { bad, read_bytes })
}

/// Where each of the records begins, back to back from `at` on.
fn places_from(mut at: usize, records: &[PackRecord]) -> Vec<u32> {
    let place = |record: &PackRecord| {
        let place = at as u32;
        at += record.len as usize;
        place
    };
    records.iter().map(place).collect()
}

fn too_long(file: u32) -> DiskError {
    DiskError {
        operation: "pack",
        name: pack_name(file),
        kind: DiskErrorKind::Other,
        message: "the records are longer than a packed file takes".to_owned(),
    }
}

/// One contiguous piece to read, and where it goes.
struct Piece {
    /// Segment number, or packed file's with the flag.
    packed: bool,
    file: u64,
    offset: u64,
    len: u32,
    to: usize,
}

impl Piece {
    fn name(&self) -> String {
        if self.packed {
            pack_name(self.file as u32)
        } else {
            segment_name(self.file)
        }
    }
}

/// Most places of a job that may be unreadable: more than that is no bad sector,
/// but a device in trouble, and the job fails.
const MAX_UNREADABLE: usize = 8;
/// How often an unreadable place is tried; kernel and device try, too.
const TRIES: u32 = 3;

/// Reads every record into its place, each source once from front to back. A
/// place that cannot be read again and again is left as zeros, which no record
/// verifies as. Returns how many bytes the disk was asked for.
fn gather(
    disk: &dyn Disk,
    records: &[PackRecord],
    extents: &[Extent],
    places: &[u32],
    bytes: &mut [u8],
) -> Result<u64, DiskError> {
    let mut pieces = Vec::with_capacity(records.len());
    for (record, place) in records.iter().zip(places) {
        let mut to = *place as usize;
        match record.source {
            RecordSource::Packed { file, at } => pieces.push(Piece {
                packed: true,
                file: u64::from(file),
                offset: u64::from(at),
                len: record.len,
                to,
            }),
            RecordSource::Ring {
                first,
                extents: count,
            } => {
                let (first, count) = (first as usize, count as usize);
                for extent in extents.get(first..first + count).unwrap_or_default() {
                    pieces.push(Piece {
                        packed: false,
                        file: extent.segment,
                        offset: extent.offset,
                        len: extent.len,
                        to,
                    });
                    to += extent.len as usize;
                }
            }
        }
    }
    pieces.sort_unstable_by_key(|piece| (piece.packed, piece.file, piece.offset));
    let same = |a: &Piece, b: &Piece| (a.packed, a.file) == (b.packed, b.file);
    let (mut unreadable, mut read_bytes) = (0, 0);
    for run in pieces.chunk_by(same) {
        let Some(first) = run.first() else { continue };
        let mut reader = ForwardReader::new(disk.open(&first.name())?);
        for piece in run {
            let to = bytes.get_mut(piece.to..piece.to + piece.len as usize);
            let to = to.unwrap_or_default();
            let Err(error) = reader.read(piece.offset, to) else {
                continue;
            };
            if read_alone(disk, piece, to).is_err() {
                to.fill(0);
                unreadable += 1;
            }
            if unreadable > MAX_UNREADABLE {
                return Err(error);
            }
        }
        read_bytes += reader.read_bytes();
    }
    Ok(read_bytes)
}

/// Tries to read a piece and nothing beside it.
fn read_alone(disk: &dyn Disk, piece: &Piece, to: &mut [u8]) -> Result<(), DiskError> {
    let mut read = Ok(());
    for _ in 0..TRIES {
        read = disk
            .open(&piece.name())
            .and_then(|file| ForwardReader::reading(file, 0).read(piece.offset, to));
        if read.is_ok() {
            break;
        }
    }
    read
}

fn bad_records(records: &[PackRecord], places: &[u32], bytes: &[u8]) -> Vec<u32> {
    let mut bad = Vec::new();
    for (n, (record, place)) in (0..).zip(records.iter().zip(places)) {
        if !is_intact(bytes, *place, record.len) {
            bad.push(n);
        }
    }
    bad
}

fn is_intact(bytes: &[u8], at: u32, len: u32) -> bool {
    let (at, len) = (at as usize, len as usize);
    bytes
        .get(at..at.saturating_add(len))
        .is_some_and(Record::is_intact)
}

fn encode_entry(record: &PackRecord, place: u32) -> [u8; ENTRY_BYTES] {
    let mut entry = [0; ENTRY_BYTES];
    entry[0..8].copy_from_slice(&record.queue_id.to_le_bytes());
    entry[8..16].copy_from_slice(&record.offset.to_le_bytes());
    entry[16..20].copy_from_slice(&record.group.to_le_bytes());
    entry[20..24].copy_from_slice(&record.generation.to_le_bytes());
    entry[24..28].copy_from_slice(&place.to_le_bytes());
    entry[28..32].copy_from_slice(&record.len.to_le_bytes());
    entry[32..34].copy_from_slice(&record.partition.to_le_bytes());
    entry
}

fn encode_head(job: &PackJob, data: u32, index_hash: u64) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[0..8].copy_from_slice(&MAGIC);
    head[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    head[12..16].copy_from_slice(&job.file.to_le_bytes());
    head[16..32].copy_from_slice(&job.log_id.0.to_le_bytes());
    head[32..36].copy_from_slice(&(job.records.len() as u32).to_le_bytes());
    head[36..40].copy_from_slice(&data.to_le_bytes());
    head[40..48].copy_from_slice(&index_hash.to_le_bytes());
    let checksum = xxh3_64(&head[..48]);
    head[48..56].copy_from_slice(&checksum.to_le_bytes());
    head
}

/// Looks whether this build reads the packed files `files` of log `log_id`, and
/// whether they are those. Damaged and missing ones pass: that is told of each
/// record, when it is read.
///
/// # Errors
/// Another format, another log's file or another one of this log, or the disk.
pub fn check_packs(disk: &dyn Disk, log_id: LogId, files: &BTreeSet<u32>) -> Result<(), PackError> {
    for file in files {
        let name = pack_name(*file);
        match disk.open(&name) {
            Ok(open) => match read_head(open.as_ref(), &name) {
                Err(error @ PackError::Format(_)) => return Err(error),
                Ok(head) if !is_file_of(&head, *file, log_id) => {
                    return Err(PackError::Foreign(name));
                }
                _ => continue,
            },
            Err(error) if error.kind == DiskErrorKind::NotFound => continue,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn is_file_of(head: &[u8], file: u32, log_id: LogId) -> bool {
    get_u32(head, 12) == Some(file) && get_u128(head, 16) == Some(log_id.0)
}

/// The first block, if it is an intact head of this format.
fn read_head(open: &dyn DiskFile, name: &str) -> Result<Vec<u8>, PackError> {
    let mut head = vec![0; BLOCK];
    let read = open.read_at(0, &mut head)?;
    head.truncate(read);
    let verifies = |head: &[u8]| head.get(..48).map(xxh3_64) == get_u64(head, 48);
    if let Some(format) = other_format(&head, &MAGIC, &FORMAT.to_le_bytes(), verifies) {
        return Err(PackError::Format(OtherFormat {
            what: name.to_owned(),
            format,
            reads: FORMAT,
        }));
    }
    let whole = head.starts_with(&MAGIC) && get_u32(&head, 8) == Some(FORMAT) && verifies(&head);
    if !whole {
        return Err(PackError::Head(name.to_owned()));
    }
    Ok(head)
}

/// The index of the packed file `file` of log `log_id`.
///
/// # Errors
/// Damaged, another format, or the disk.
pub fn read_index(disk: &dyn Disk, log_id: LogId, file: u32) -> Result<Vec<IndexEntry>, PackError> {
    let name = pack_name(file);
    let open = disk.open(&name)?;
    let head = read_head(open.as_ref(), &name)?;
    if get_u32(&head, 12) != Some(file) || get_u128(&head, 16) != Some(log_id.0) {
        return Err(PackError::Head(name));
    }
    let field = |at| get_u32(&head, at).unwrap_or_default();
    let index_at = BLOCK as u64 + u64::from(field(36));
    let index_bytes = u64::from(field(32)) * ENTRY_BYTES as u64;
    if index_at + index_bytes > open.len()? {
        return Err(PackError::Index(name));
    }
    let mut index = vec![0; index_bytes as usize];
    open.read_at(index_at, &mut index)?;
    if get_u64(&head, 40) != Some(xxh3_64(&index)) {
        return Err(PackError::Index(name));
    }
    // Whoever reads a record allocates as much as its entry says.
    let is_inside = |entry: &IndexEntry| {
        u64::from(entry.at) >= BLOCK as u64
            && u64::from(entry.at) + u64::from(entry.len) <= index_at
    };
    let entries = index
        .chunks_exact(ENTRY_BYTES)
        .map(|entry| decode_entry(entry).filter(is_inside))
        .collect();
    Option::<Vec<_>>::ok_or(entries, PackError::Index(name))
}

fn decode_entry(entry: &[u8]) -> Option<IndexEntry> {
    Some(IndexEntry {
        queue_id: get_u64(entry, 0)?,
        offset: get_u64(entry, 8)?,
        group: get_u32(entry, 16)?,
        generation: get_u32(entry, 20)?,
        at: get_u32(entry, 24)?,
        len: get_u32(entry, 28)?,
        partition: get_u16(entry, 32)?,
    })
}

/// Reads the whole packed file and returns the records that do not verify.
/// `rest` is called after each piece with its bytes, and may sleep.
///
/// # Errors
/// As [`read_index`].
pub fn verify_pack(
    disk: &dyn Disk,
    log_id: LogId,
    file: u32,
    rest: &mut dyn FnMut(u64),
) -> Result<Vec<IndexEntry>, PackError> {
    let index = read_index(disk, log_id, file)?;
    let mut reader = ForwardReader::new(disk.open(&pack_name(file))?);
    let mut bad = Vec::new();
    let mut record = Vec::new();
    for entry in index {
        record.clear();
        record.resize(entry.len as usize, 0);
        let read = reader.read(u64::from(entry.at), &mut record);
        rest(u64::from(entry.len));
        if read.is_err() || !is_intact(&record, 0, entry.len) {
            bad.push(entry);
        }
    }
    Ok(bad)
}

/// For the page of the format.
#[cfg(test)]
pub(crate) fn golden() -> crate::format_page::Golden {
    let job = PackJob {
        file: 2,
        log_id: LogId(3),
        records: vec![golden_record(); 4],
        extents: Vec::new(),
    };
    let mut bytes = encode_head(&job, 5, 6).to_vec();
    bytes.resize(BLOCK, 0);
    let fields = vec![
        ("format", 1),
        ("number of the file", 2),
        ("log id", 3),
        ("records", 4),
        ("bytes of records", 5),
        ("checksum of the index", 6),
    ];
    crate::format_page::Golden { bytes, fields }
}

#[cfg(test)]
fn golden_record() -> PackRecord {
    PackRecord {
        queue_id: 1,
        offset: 2,
        group: 3,
        generation: 4,
        partition: 7,
        len: 6,
        source: RecordSource::Packed { file: 8, at: 9 },
    }
}

/// For the page of the format.
#[cfg(test)]
pub(crate) fn golden_entry() -> crate::format_page::Golden {
    let fields = vec![
        ("queue id", 1),
        ("offset", 2),
        ("group", 3),
        ("generation", 4),
        ("place in the file", 5),
        ("length", 6),
        ("partition", 7),
    ];
    crate::format_page::Golden {
        bytes: encode_entry(&golden_record(), 5).to_vec(),
        fields,
    }
}
