//! Checkpoint files.
//!
//! Head, little-endian, in the first 4 096 bytes of the file; the body follows:
//!
//! | at | size | field |
//! |----|------|-------|
//! | 0 | 8 | magic `TIDECKPT` |
//! | 8 | 4 | format, 1 |
//! | 12 | 4 | next number of a packed file |
//! | 16 | 16 | log id |
//! | 32 | 8 | serial |
//! | 40 | 8 × 4 | anchor: position, sequence, header checksum, epoch |
//! | 72 | 8 | the log is durable up to at least here |
//! | 80 | 8 | no byte of the log below is needed |
//! | 88 | 8 | body length in bytes |
//! | 96 | 8 | XXH3-64 of the body |
//! | 104 | 8 | XXH3-64 of bytes 0 to 104 |
//!
//! Publishing writes over the file that is *not* the published one: body, sync,
//! head, sync; a crash in between leaves a head whose body does not match. In
//! place where the file is long enough, so that a full disk can be emptied.

use std::{collections::BTreeSet, fmt};

use thiserror::Error;
use xxhash_rust::xxh3::{xxh3_64, Xxh3};

use super::{
    sections::{SectionKind, Sections, SectionsError},
    PackError,
};
use crate::{
    io::{Disk, DiskError, DiskErrorKind, DiskFile},
    log::{
        bytes::{get_u128, get_u32, get_u64},
        other_format, Anchor, LogBase, LogId, LogPosition, OtherFormat,
    },
    mutation::{removed, Rule},
};

/// The two files; they take turns.
pub const CHECKPOINT_FILES: [&str; 2] = ["ckpt-a", "ckpt-b"];

const MAGIC: [u8; 8] = *b"TIDECKPT";
const FORMAT: u32 = 1;
const HEAD_BYTES: usize = 112;
const HEAD_BLOCK: usize = 4096;
/// Of a log's first checkpoint.
const FIRST_SERIAL: u64 = 1;
/// Of the head that stands for "no checkpoint yet": see [`prepare`].
const NO_SERIAL: u64 = 0;
/// A file is never shorter, and grows by doubling: most publishing needs no
/// new space.
const LEAST_FILE_BYTES: u64 = 64 << 10;
/// Bytes written, or read, at once.
const PIECE_BYTES: usize = 256 << 10;
/// Longest body that is read, in bytes.
const MAX_BODY_BYTES: u64 = 16 << 30;

/// What a checkpoint is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointHead {
    pub log_id: LogId,
    /// Counts the checkpoints of a log.
    pub serial: u64,
    /// Replay begins here.
    pub anchor: Anchor,
    /// Where a batch ends. Everything captured stands below; durable before publishing.
    pub durable_next: LogPosition,
    /// No byte below is needed: no live record is there, and no entry to replay.
    pub keep_from: LogPosition,
    /// No packed file has this number or a higher one.
    pub next_pack: u32,
}

/// A checkpoint as loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    pub head: CheckpointHead,
    /// Sections, verified.
    pub body: Vec<u8>,
}

impl Checkpoint {
    /// What opening the log needs of it.
    ///
    /// # Errors
    /// The body is not one that this build reads.
    pub fn base(&self) -> Result<LogBase, SectionsError> {
        let mut links = Vec::new();
        self.each(SectionKind::Links, LINK_BYTES, &mut |entry| {
            if let (Some(end), Some(next)) = (get_u64(entry, 0), get_u64(entry, 8)) {
                links.push((LogPosition(end), LogPosition(next)));
            }
        })?;
        let ascend = links
            .windows(2)
            .all(|two| matches!(two, [a, b] if a.0 < b.0));
        if !ascend || links.iter().any(|(end, next)| end >= next) {
            return Err(SectionsError::Links);
        }
        Ok(LogBase {
            anchor: self.head.anchor,
            durable_next: self.head.durable_next,
            keep_from: self.head.keep_from,
            links,
        })
    }

    /// Numbers of the packed files that it names.
    ///
    /// # Errors
    /// The body is not one that this build reads.
    pub fn packs(&self) -> Result<BTreeSet<u32>, SectionsError> {
        let mut packs = BTreeSet::new();
        self.each(SectionKind::Packs, PACK_ENTRY_BYTES, &mut |entry| {
            packs.extend(get_u32(entry, 0));
        })?;
        Ok(packs)
    }

    fn each(
        &self,
        kind: SectionKind,
        entry_bytes: usize,
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<(), SectionsError> {
        for section in Sections::new(&self.body) {
            let section = section?;
            if section.kind == kind {
                section
                    .payload
                    .chunks_exact(entry_bytes)
                    .for_each(&mut *visit);
            }
        }
        Ok(())
    }
}

/// Bytes of an entry in the sections that this layer reads.
const LINK_BYTES: usize = 16;
/// `file u32, file bytes u64, record bytes u64, live record bytes u64`.
pub const PACK_ENTRY_BYTES: usize = 28;

/// No usable checkpoint was found, though there is something.
#[derive(Debug, Error)]
pub enum CheckpointError {
    #[error(transparent)]
    Format(#[from] OtherFormat),
    #[error("{file} is the checkpoint of another log")]
    ForeignLog { file: &'static str },
    #[error("neither {} nor {} holds a whole checkpoint, and one of them did: what it named cannot be found without it; restore them from a copy of this directory", CHECKPOINT_FILES[0], CHECKPOINT_FILES[1])]
    Damaged,
    #[error(transparent)]
    Sections(#[from] SectionsError),
    #[error(transparent)]
    Pack(#[from] PackError),
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Writes checkpoint `head.serial` over the file of its turn, durably, then
/// makes the other file unusable. `rest` is called after each piece with the
/// bytes done and to do, and may sleep. The caller has made the log durable up
/// to `head.durable_next`.
///
/// True when the other file is unusable: only then may what it named be let go.
///
/// # Errors
/// The disk; the published checkpoint is as it was, and the one that failed
/// takes its turn again.
pub fn publish(
    disk: &dyn Disk,
    head: &CheckpointHead,
    body: &[Vec<u8>],
    rest: &mut dyn FnMut(u64, u64),
) -> Result<bool, DiskError> {
    let [file, other] = turn(head.serial);
    if head.serial == FIRST_SERIAL {
        // Where there was no room for it before.
        prepare(disk, head.log_id)?;
    }
    let bytes: u64 = body.iter().map(|piece| piece.len() as u64).sum();
    let out = with_room(disk, file, HEAD_BLOCK as u64 + bytes)?;
    // Whoever made the file may have died, or failed, before its name was durable.
    disk.sync_dir()?;
    write(
        out.as_ref(),
        head,
        body.iter().map(Vec::as_slice),
        bytes,
        rest,
    )?;
    if removed(Rule::OtherRetired) {
        return Ok(true);
    }
    Ok(retire(disk, other).is_ok())
}

/// Body, sync, head, sync.
fn write<'a>(
    out: &dyn DiskFile,
    head: &CheckpointHead,
    body: impl Iterator<Item = &'a [u8]>,
    bytes: u64,
    rest: &mut dyn FnMut(u64, u64),
) -> Result<(), DiskError> {
    let mut hash = Xxh3::new();
    let mut staged = Vec::with_capacity(PIECE_BYTES);
    let mut at = HEAD_BLOCK as u64;
    let mut flush = |staged: &mut Vec<u8>| {
        hash.update(staged);
        out.write_at(at, staged)?;
        at += staged.len() as u64;
        staged.clear();
        rest(at - HEAD_BLOCK as u64, bytes);
        Ok::<(), DiskError>(())
    };
    for mut piece in body {
        while !piece.is_empty() {
            let room = PIECE_BYTES - staged.len();
            let (now, later) = piece.split_at(room.min(piece.len()));
            staged.extend_from_slice(now);
            piece = later;
            if staged.len() == PIECE_BYTES {
                flush(&mut staged)?;
            }
        }
    }
    flush(&mut staged)?;
    if !removed(Rule::BodyBeforeHead) {
        out.sync()?;
    }
    out.write_at(0, &encode(head, bytes, hash.digest()))?;
    out.sync()
}

/// Makes the files of a log that has none yet, so that its first checkpoint
/// needs no room: on a disk that is full by then, nothing could be reclaimed
/// without it.
///
/// One of them holds a checkpoint of number 0, of nothing. It stands for the
/// whole log, as an older checkpoint does: while it is there, checkpoint 1 may
/// not be durable. It is made whole and first: from then on one of the files
/// always holds a whole checkpoint.
pub(super) fn prepare(disk: &dyn Disk, log_id: LogId) -> Result<(), DiskError> {
    let [none, first] = turn(NO_SERIAL);
    if !is_there(disk, none)? && !is_there(disk, first)? {
        let head = CheckpointHead {
            log_id,
            serial: NO_SERIAL,
            anchor: Anchor::default(),
            durable_next: LogPosition(0),
            keep_from: LogPosition(0),
            next_pack: 1,
        };
        let mut bytes = encode(&head, 0, xxh3_64(&[]));
        bytes.resize(LEAST_FILE_BYTES as usize, 0);
        disk.create_whole(none, &bytes)?;
    }
    make_unusable(disk, first)
}

/// The file of a serial's turn, and the other.
fn turn(serial: u64) -> [&'static str; 2] {
    let [a, b] = CHECKPOINT_FILES;
    if serial.is_multiple_of(2) || removed(Rule::CheckpointTurns) {
        [a, b]
    } else {
        [b, a]
    }
}

/// The file, at least `bytes` long.
fn with_room(disk: &dyn Disk, name: &str, bytes: u64) -> Result<Box<dyn DiskFile>, DiskError> {
    let old = match disk.open(name) {
        Ok(file) => match file.len()? {
            len if len >= bytes => return Ok(file),
            len => len,
        },
        Err(error) if error.kind == DiskErrorKind::NotFound => LEAST_FILE_BYTES,
        Err(error) => return Err(error),
    };
    disk.remove(name)?;
    let wanted = bytes.next_power_of_two().max(LEAST_FILE_BYTES);
    let made = disk.create_zeroed(name, wanted);
    let exact = bytes.next_multiple_of(HEAD_BLOCK as u64);
    match made {
        Err(error) if error.kind == DiskErrorKind::OutOfSpace => {
            if let Err(error) = disk.create_zeroed(name, exact) {
                // The room that the old one had stays ours, for a shorter body.
                let _ = disk.create_zeroed(name, old);
                return Err(error);
            }
        }
        made => made?,
    }
    disk.open(name)
}

/// What its head names may be gone from now on.
fn retire(disk: &dyn Disk, name: &str) -> Result<(), DiskError> {
    match disk.open(name) {
        Ok(file) if file.len()? >= HEAD_BLOCK as u64 => {
            file.write_at(0, &[0; HEAD_BLOCK])?;
            file.sync()
        }
        Err(error) if error.kind != DiskErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Makes the file, with no checkpoint in it, if it is not there.
fn make_unusable(disk: &dyn Disk, name: &str) -> Result<(), DiskError> {
    match is_there(disk, name)? {
        true => Ok(()),
        false => disk.create_zeroed(name, LEAST_FILE_BYTES),
    }
}

fn is_there(disk: &dyn Disk, name: &str) -> Result<bool, DiskError> {
    match disk.open(name) {
        Ok(_) => Ok(true),
        Err(error) if error.kind == DiskErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The published checkpoint of log `log_id`, to go on from; `None` if there is
/// none that is whole (a half-written one counts as none).
///
/// A process may have died between writing a checkpoint and making it durable,
/// or a sync may have failed it. So while the older one is whole, the newest is
/// written anew, which no failed sync of the past touches, and only then the older
/// one is made unusable. If that fails the older one counts, which still has all it
/// names. A checkpoint that something was let go under stands alone, and is never
/// written over.
///
/// # Errors
/// Another format or log, or the disk.
pub fn load(disk: &dyn Disk, log_id: LogId) -> Result<Option<Checkpoint>, CheckpointError> {
    let mut whole = whole(disk, log_id)?.into_iter();
    let Some((newest, file)) = whole.next().filter(|(newest, _)| is_real(newest)) else {
        return Ok(None);
    };
    let older = whole.next();
    let serial = newest.head.serial;
    if removed(Rule::LoadRetiresOther) {
        return Ok(Some(newest));
    }
    if removed(Rule::CheckpointMadeDurable) {
        retire(disk, turn(serial)[1])?;
        return Ok(Some(newest));
    }
    let [_, other] = turn(serial);
    let Some((older, _)) = older else {
        // The other one was made unusable after this one was durable, but
        // perhaps not durably.
        retire(disk, other)?;
        return Ok(Some(newest));
    };
    let bytes = newest.body.len() as u64;
    let body = std::iter::once(newest.body.as_slice());
    if write(file.as_ref(), &newest.head, body, bytes, &mut |_, _| {}).is_ok() {
        retire(disk, other)?;
        return Ok(Some(newest));
    }
    // What the newer one names is about to go: it must not come back.
    let [file, _] = turn(serial);
    retire(disk, file)?;
    Ok(Some(older).filter(is_real))
}

/// The published checkpoint of log `log_id`, to look at. Changes nothing.
///
/// # Errors
/// As [`load`].
pub fn look(disk: &dyn Disk, log_id: LogId) -> Result<Option<Checkpoint>, CheckpointError> {
    Ok(whole(disk, log_id)?
        .into_iter()
        .next()
        .map(|(newest, _)| newest)
        .filter(is_real))
}

/// Not the one that [`prepare`] makes.
fn is_real(checkpoint: &Checkpoint) -> bool {
    checkpoint.head.serial != NO_SERIAL
}

type Whole = (Checkpoint, Box<dyn DiskFile>);

/// Every checkpoint that is whole, the newest first; none only where none was
/// ever made (see [`prepare`]).
fn whole(disk: &dyn Disk, log_id: LogId) -> Result<Vec<Whole>, CheckpointError> {
    let mut found = Vec::new();
    let mut files = 0;
    for name in CHECKPOINT_FILES {
        let file = match disk.open(name) {
            Ok(file) => file,
            Err(error) if error.kind == DiskErrorKind::NotFound => continue,
            Err(error) => return Err(error.into()),
        };
        files += 1;
        let mut block = vec![0; HEAD_BLOCK];
        // What cannot be read is no head.
        let read = file.read_at(0, &mut block).unwrap_or(0);
        let Some((head, bytes, hash)) = decode(block.get(..read).unwrap_or_default(), name)? else {
            continue;
        };
        if head.log_id != log_id {
            return Err(CheckpointError::ForeignLog { file: name });
        }
        found.push((head, bytes, hash, file));
    }
    found.sort_by_key(|(head, ..)| std::cmp::Reverse(head.serial));
    let mut whole = Vec::new();
    for (head, bytes, hash, file) in found {
        if let Some(body) = read_body(file.as_ref(), bytes, hash)? {
            whole.push((Checkpoint { head, body }, file));
        }
    }
    if whole.is_empty() && files > 0 {
        return Err(CheckpointError::Damaged);
    }
    Ok(whole)
}

/// The body, if it is the one the head tells of.
fn read_body(file: &dyn DiskFile, bytes: u64, hash: u64) -> Result<Option<Vec<u8>>, DiskError> {
    let there = file.len()?.saturating_sub(HEAD_BLOCK as u64);
    if bytes > there.min(MAX_BODY_BYTES) {
        return Ok(None);
    }
    let mut body = vec![0; bytes as usize];
    let mut at = HEAD_BLOCK as u64;
    for piece in body.chunks_mut(4 * PIECE_BYTES) {
        let read = file.read_at(at, piece);
        if read.ok() != Some(piece.len()) {
            return Ok(None);
        }
        at += piece.len() as u64;
    }
    let whole = xxh3_64(&body) == hash || removed(Rule::CheckpointVerified);
    Ok(whole.then_some(body))
}

fn encode(head: &CheckpointHead, body_bytes: u64, body_hash: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD_BLOCK);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    bytes.extend_from_slice(&head.next_pack.to_le_bytes());
    bytes.extend_from_slice(&head.log_id.0.to_le_bytes());
    for word in [
        head.serial,
        head.anchor.position.0,
        head.anchor.sequence,
        head.anchor.checksum,
        head.anchor.epoch,
        head.durable_next.0,
        head.keep_from.0,
        body_bytes,
        body_hash,
    ] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    let checksum = xxh3_64(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes.resize(HEAD_BLOCK, 0);
    bytes
}

/// Head, body length and body checksum; `None` for what is no whole head.
///
/// Another format is never taken for no head, wherever its checksum is: the log
/// below that checkpoint may be gone.
fn decode(
    block: &[u8],
    file: &'static str,
) -> Result<Option<(CheckpointHead, u64, u64)>, CheckpointError> {
    let verifies = |block: &[u8]| {
        let covered = block.get(..HEAD_BYTES - 8);
        covered.map(xxh3_64) == get_u64(block, HEAD_BYTES - 8)
    };
    if let Some(format) = other_format(block, &MAGIC, &FORMAT.to_le_bytes(), verifies) {
        return Err(CheckpointError::Format(OtherFormat {
            what: file.to_owned(),
            format,
            reads: FORMAT,
        }));
    }
    let whole = block.starts_with(&MAGIC) && get_u32(block, 8) == Some(FORMAT) && verifies(block);
    Ok(whole.then(|| parse(block)).flatten())
}

fn parse(block: &[u8]) -> Option<(CheckpointHead, u64, u64)> {
    let word = |n: usize| get_u64(block, 32 + 8 * n);
    let head = CheckpointHead {
        log_id: LogId(get_u128(block, 16)?),
        serial: word(0)?,
        anchor: Anchor {
            position: LogPosition(word(1)?),
            sequence: word(2)?,
            checksum: word(3)?,
            epoch: word(4)?,
        },
        durable_next: LogPosition(word(5)?),
        keep_from: LogPosition(word(6)?),
        next_pack: get_u32(block, 12)?,
    };
    Some((head, word(7)?, word(8)?))
}

impl fmt::Display for CheckpointHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "checkpoint {}: replay begins at {}, durable up to {}, needed from {}",
            self.serial, self.anchor.position, self.durable_next, self.keep_from
        )
    }
}

/// For the page of the format.
#[cfg(test)]
pub(crate) fn golden() -> crate::format_page::Golden {
    let head = CheckpointHead {
        log_id: LogId(3),
        serial: 4,
        anchor: Anchor {
            position: LogPosition(5),
            sequence: 6,
            checksum: 7,
            epoch: 8,
        },
        durable_next: LogPosition(9),
        keep_from: LogPosition(10),
        next_pack: 2,
    };
    let fields = vec![
        ("format", 1),
        ("no packed file has this number or a higher one", 2),
        ("log id", 3),
        ("serial", 4),
        ("anchor", 5),
        ("anchor", 6),
        ("anchor", 7),
        ("anchor", 8),
        ("the log is durable up to here; the end of a batch", 9),
        ("no byte of the log below is needed", 10),
        ("body bytes", 11),
        ("checksum of the body", 12),
    ];
    crate::format_page::Golden {
        bytes: encode(&head, 11, 12),
        fields,
    }
}
