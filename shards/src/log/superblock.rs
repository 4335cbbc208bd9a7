//! The superblock: what a log knows about itself that its batches cannot say.
//!
//! Two copies, `super-a` and `super-b`, each checksummed; the valid one with
//! the higher serial counts. Each is one block of 4 KiB, more only when the
//! jump table needs it.
//!
//! 1. At every moment a whole copy is durable. Which one, a process cannot know
//!    when it starts: what it reads may be in the page cache only, left by a
//!    process that died before its sync, or by a write that failed half-way and
//!    made a copy *look* whole that a power cut had torn. So its first write
//!    touches no byte of either copy: it puts a new file in the place of one,
//!    of the damaged one, or else of the *newer* one (the older one is safe,
//!    unless its write failed). Later writes go in place, over the copy that
//!    this process did not make durable last. On a disk without room for the
//!    new file the first write goes in place as well.
//! 2. So the newer copy can be lost, and nothing rests on it alone: an open
//!    writes once to raise epoch and open counter, before it reads the log, and
//!    twice (both copies) when it is done, before anything is appended.
//! 3. The boot id is that of the last open that *completed*: an open that died
//!    half-way cannot make a later one believe nothing was lost.

use xxhash_rust::xxh3::xxh3_64;

use super::bytes::{get_u128, get_u32, get_u64};
use super::format::{other_format, OtherFormat};
use super::position::{Geometry, LogId, LogPosition};
use super::recovery::WalkError;
use crate::io::{Disk, DiskError, DiskErrorKind};
use crate::mutation::{removed, Rule};

/// The two copies' names.
pub const SUPERBLOCK_FILES: [&str; 2] = ["super-a", "super-b"];

const MAGIC: [u8; 8] = *b"TIDESUPR";
const FORMAT: u32 = 1;
const UNIT_BYTES: usize = 4096;
const MAX_BYTES: usize = 64 * 1024;
const FIXED_BYTES: usize = 176;
const JUMP_BYTES: usize = 24;
const CHECKSUM_BYTES: usize = 8;
/// Most jumps a superblock holds.
pub(super) const MAX_JUMPS: usize = (MAX_BYTES - FIXED_BYTES - CHECKSUM_BYTES) / JUMP_BYTES;

const FLAG_AMNESIAC: u32 = 1;

/// An id of the running kernel (`/proc/sys/kernel/random/boot_id`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BootId(pub u128);

/// The log does not go on at `from`, where a batch ends, but at `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Jump {
    pub from: LogPosition,
    pub to: LogPosition,
    /// The open that jumped.
    pub epoch: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Superblock {
    pub log_id: LogId,
    pub geometry: Geometry,
    pub epoch: u64,
    pub open_counter: u64,
    /// Boot of the last completed open.
    pub boot_id: BootId,
    /// Raised by every amnesiac open.
    pub incarnation: u64,
    /// The incarnation has not been acted upon by the layers above.
    pub amnesiac: bool,
    /// Where the first batch stands.
    pub start: LogPosition,
    /// Where the last completed open went on; everything below was durable.
    pub resume_at: LogPosition,
    /// That open's epoch: no batch at or above `resume_at` has a lower one.
    pub resume_epoch: u64,
    /// Latches of opens up to this one have been dealt with.
    pub latch_cleared: u64,
    /// The last completed open that left a boot-scoped token, 0 if it did not.
    pub token_counter: u64,
    /// In log order.
    pub jumps: Vec<Jump>,
}

/// The superblock could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SuperblockError {
    #[error("there is no log here: no superblock")]
    Missing,
    #[error("both superblocks are damaged: {0}")]
    Damaged(&'static str),
    #[error(transparent)]
    Format(#[from] OtherFormat),
    #[error("the jump table is full: the log has been cut or reopened too often")]
    JumpTableFull,
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl From<WalkError> for SuperblockError {
    fn from(error: WalkError) -> Self {
        match error {
            WalkError::Format(other) => SuperblockError::Format(other),
            WalkError::Disk(error) => SuperblockError::Disk(error),
        }
    }
}

/// The identity of the log in `disk`.
///
/// # Errors
/// There is none, or both superblocks are damaged.
pub fn id_of(disk: &dyn Disk) -> Result<LogId, SuperblockError> {
    SuperblockStore::load(disk).map(|store| store.current.log_id)
}

/// A superblock as loaded, and which copy to write next.
pub(super) struct SuperblockStore {
    pub current: Superblock,
    serial: u64,
    /// Index into [`SUPERBLOCK_FILES`]; see invariant 1.
    next: usize,
    /// Whether this process has made a copy durable; see invariant 1.
    relied: bool,
    /// A copy that had to be ignored.
    pub damaged: Option<&'static str>,
}

impl SuperblockStore {
    /// Makes both copies of a new log. The last step of creating one.
    pub(super) fn create(disk: &dyn Disk, superblock: Superblock) -> Result<(), SuperblockError> {
        for (serial, name) in (1..).zip(SUPERBLOCK_FILES) {
            disk.replace_small(name, &encode(&superblock, serial)?)?;
        }
        Ok(())
    }

    pub(super) fn load(disk: &dyn Disk) -> Result<Self, SuperblockError> {
        let mut valid: Option<(u64, usize, Superblock)> = None;
        let mut damaged = None;
        let mut missing = 0;
        let mut reason = "no copy is whole";
        for (index, name) in SUPERBLOCK_FILES.into_iter().enumerate() {
            let bytes = match disk.read_small(name, MAX_BYTES) {
                Ok(Some(bytes)) => bytes,
                Ok(None) => {
                    missing += 1;
                    damaged = Some(name);
                    continue;
                }
                Err(error) if error.kind == DiskErrorKind::TooLong => Vec::new(),
                Err(error) => return Err(error.into()),
            };
            match decode(&bytes, name) {
                Ok((serial, superblock)) => {
                    if valid.as_ref().is_none_or(|best| best.0 < serial) {
                        valid = Some((serial, index, superblock));
                    }
                }
                Err(SuperblockError::Damaged(why)) => {
                    reason = why;
                    damaged = Some(name);
                }
                Err(other) => return Err(other),
            }
        }
        match valid {
            Some((serial, index, current)) => Ok(SuperblockStore {
                current,
                serial,
                next: if damaged.is_some() { 1 - index } else { index },
                relied: false,
                damaged,
            }),
            None if missing == SUPERBLOCK_FILES.len() => Err(SuperblockError::Missing),
            None => Err(SuperblockError::Damaged(reason)),
        }
    }

    /// Writes `current` over one copy, durably.
    pub(super) fn store(&mut self, disk: &dyn Disk) -> Result<(), SuperblockError> {
        self.serial += 1;
        let bytes = encode(&self.current, self.serial)?;
        let name = SUPERBLOCK_FILES.get(self.next).copied().unwrap_or_default();
        match self.relied {
            true => overwrite(disk, name, &bytes)?,
            false => replace(disk, name, &bytes)?,
        }
        self.relied = true;
        if !removed(Rule::SuperblockTurns) {
            self.next = 1 - self.next;
        }
        Ok(())
    }

    /// Writes `current` over both copies, durably, one after the other.
    pub(super) fn store_both(&mut self, disk: &dyn Disk) -> Result<(), SuperblockError> {
        self.store(disk)?;
        self.store(disk)
    }
}

/// By a new file where there is room: what the copies hold stays as it is until
/// the new one is durable.
fn replace(disk: &dyn Disk, name: &str, bytes: &[u8]) -> Result<(), DiskError> {
    match disk.replace_small(name, bytes) {
        Err(error) if error.kind == DiskErrorKind::OutOfSpace => overwrite(disk, name, bytes),
        done => done,
    }
}

/// In place where the size allows: a full disk must not keep a log from opening.
fn overwrite(disk: &dyn Disk, name: &str, bytes: &[u8]) -> Result<(), DiskError> {
    match disk.open(name) {
        Ok(file) if file.len()? == bytes.len() as u64 => {
            file.write_at(0, bytes)?;
            file.sync()
        }
        Ok(_) => disk.replace_small(name, bytes),
        Err(error) if error.kind == DiskErrorKind::NotFound => disk.replace_small(name, bytes),
        Err(error) => Err(error),
    }
}

impl Superblock {
    /// Follows the jumps at `position`, if any.
    pub(super) fn follow(&self, mut position: LogPosition) -> LogPosition {
        for jump in &self.jumps {
            if jump.from == position {
                position = jump.to;
            }
        }
        position
    }

    /// Forgets jumps from places that no walk begins in front of any more.
    pub(super) fn forget_jumps_below(&mut self, position: LogPosition) {
        self.jumps.retain(|jump| jump.from >= position);
    }

    /// Adds a jump; one that starts where the last one landed takes its place,
    /// for nothing was ever read there, unless a walk begins there (`anchor`).
    pub(super) fn add_jump(&mut self, jump: Jump, anchor: Option<LogPosition>) {
        match self.jumps.last_mut() {
            Some(last) if last.to == jump.from && anchor != Some(jump.from) => {
                last.to = jump.to;
                last.epoch = jump.epoch;
            }
            _ => self.jumps.push(jump),
        }
    }
}

fn encode(superblock: &Superblock, serial: u64) -> Result<Vec<u8>, SuperblockError> {
    if superblock.jumps.len() > MAX_JUMPS {
        return Err(SuperblockError::JumpTableFull);
    }
    let used = FIXED_BYTES + superblock.jumps.len() * JUMP_BYTES + CHECKSUM_BYTES;
    let total = used.next_multiple_of(UNIT_BYTES);
    let flags = if superblock.amnesiac {
        FLAG_AMNESIAC
    } else {
        0
    };
    let mut bytes = Vec::with_capacity(total);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    bytes.extend_from_slice(&(total as u32).to_le_bytes());
    bytes.extend_from_slice(&superblock.log_id.0.to_le_bytes());
    bytes.extend_from_slice(&superblock.boot_id.0.to_le_bytes());
    for field in [
        serial,
        superblock.epoch,
        superblock.open_counter,
        superblock.geometry.segment_bytes(),
        superblock.incarnation,
        superblock.start.0,
        superblock.resume_at.0,
        superblock.resume_epoch,
        superblock.latch_cleared,
        superblock.token_counter,
    ] {
        bytes.extend_from_slice(&field.to_le_bytes());
    }
    bytes.extend_from_slice(&superblock.geometry.block_bytes().to_le_bytes());
    bytes.extend_from_slice(&flags.to_le_bytes());
    bytes.extend_from_slice(&(superblock.jumps.len() as u64).to_le_bytes());
    bytes.resize(FIXED_BYTES, 0);
    for jump in &superblock.jumps {
        for field in [jump.from.0, jump.to.0, jump.epoch] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
    }
    bytes.resize(total - CHECKSUM_BYTES, 0);
    let checksum = xxh3_64(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    Ok(bytes)
}

fn decode(bytes: &[u8], name: &str) -> Result<(u64, Superblock), SuperblockError> {
    if !bytes.starts_with(&MAGIC) {
        return Err(SuperblockError::Damaged("not a superblock"));
    }
    let verifies = |bytes: &[u8]| intact(bytes).is_some();
    if let Some(format) = other_format(bytes, &MAGIC, &FORMAT.to_le_bytes(), verifies) {
        return Err(SuperblockError::Format(OtherFormat {
            what: name.to_owned(),
            format,
            reads: FORMAT,
        }));
    }
    parse(bytes).ok_or(SuperblockError::Damaged(
        "checksum or contents do not match",
    ))
}

/// All but the checksum, if it verifies and the number is this format's.
fn intact(bytes: &[u8]) -> Option<&[u8]> {
    if get_u32(bytes, 8)? != FORMAT {
        return None;
    }
    let total = get_u32(bytes, 12)? as usize;
    let body = bytes.get(..bytes.len().checked_sub(CHECKSUM_BYTES)?)?;
    let whole = total == bytes.len() && get_u64(bytes, body.len())? == xxh3_64(body);
    whole.then_some(body)
}

fn parse(bytes: &[u8]) -> Option<(u64, Superblock)> {
    let body = intact(bytes)?;
    let field = |n: usize| get_u64(body, 48 + n * 8);
    let flags = get_u32(body, 132)?;
    let count = usize::try_from(get_u64(body, 136)?).ok()?;
    if flags & !FLAG_AMNESIAC != 0 || count > MAX_JUMPS {
        return None;
    }
    let jumps = body
        .get(FIXED_BYTES..FIXED_BYTES + count * JUMP_BYTES)?
        .chunks_exact(JUMP_BYTES)
        .map(|entry| {
            Some(Jump {
                from: LogPosition(get_u64(entry, 0)?),
                to: LogPosition(get_u64(entry, 8)?),
                epoch: get_u64(entry, 16)?,
            })
        })
        .collect::<Option<Vec<_>>>()?;
    let geometry = Geometry::new(field(3)?, get_u32(body, 128)?).ok()?;
    let superblock = Superblock {
        log_id: LogId(get_u128(body, 16)?),
        boot_id: BootId(get_u128(body, 32)?),
        geometry,
        epoch: field(1)?,
        open_counter: field(2)?,
        incarnation: field(4)?,
        amnesiac: flags & FLAG_AMNESIAC != 0,
        start: LogPosition(field(5)?),
        resume_at: LogPosition(field(6)?),
        resume_epoch: field(7)?,
        latch_cleared: field(8)?,
        token_counter: field(9)?,
        jumps,
    };
    let sound = superblock.start <= superblock.resume_at
        && superblock.jumps.iter().all(|jump| jump.from < jump.to);
    sound.then_some((field(0)?, superblock))
}

/// For the page of the format.
#[cfg(test)]
pub(crate) fn golden() -> crate::format_page::Golden {
    let jump = |n| Jump {
        from: LogPosition(n),
        to: LogPosition(n + 1),
        epoch: n + 2,
    };
    // 4096 and 65536 are given; the other numbers differ.
    let superblock = Superblock {
        log_id: LogId(1 << 100),
        geometry: Geometry::new(65536, 4096).unwrap(),
        epoch: 5,
        open_counter: 6,
        boot_id: BootId(7),
        incarnation: 8,
        amnesiac: true,
        start: LogPosition(9),
        resume_at: LogPosition(10),
        resume_epoch: 11,
        latch_cleared: 12,
        token_counter: 13,
        jumps: vec![jump(20), jump(30)],
    };
    let mut fields = vec![
        ("format", 1),
        ("bytes of this copy", 4096),
        ("log id", 1 << 100),
        ("boot id of the last completed open", 7),
        ("serial", 4),
        ("epoch", 5),
        ("open counter", 6),
        ("segment bytes", 65536),
        ("incarnation", 8),
        ("start", 9),
        ("resume", 10),
        (
            "that open's epoch; no batch at or above resume has a lower one",
            11,
        ),
        ("latches of opens up to this one are dealt with", 12),
        ("last open that left a boot-scoped token", 13),
        ("block bytes", 4096),
        ("flags", 1),
        ("jumps", 2),
    ];
    for n in [20, 30] {
        fields.extend([("from", n), ("to", n + 1), ("epoch", n + 2)]);
    }
    crate::format_page::Golden {
        bytes: encode(&superblock, 4).unwrap(),
        fields,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock(jumps: usize) -> Superblock {
        Superblock {
            log_id: LogId(42),
            geometry: Geometry::new(65536, 4096).unwrap(),
            epoch: 9,
            open_counter: 8,
            boot_id: BootId(77),
            incarnation: 2,
            amnesiac: true,
            start: LogPosition(65536),
            resume_at: LogPosition(200_000),
            resume_epoch: 7,
            latch_cleared: 3,
            token_counter: 6,
            jumps: (0..jumps as u64)
                .map(|n| Jump {
                    from: LogPosition(n * 10 + 1),
                    to: LogPosition(n * 10 + 5),
                    epoch: n,
                })
                .collect(),
        }
    }

    #[test]
    fn round_trips_with_few_and_many_jumps() {
        for jumps in [0, 1, 160, 170, MAX_JUMPS] {
            let bytes = encode(&superblock(jumps), 5).unwrap();
            assert_eq!(bytes.len() % UNIT_BYTES, 0);
            assert!(bytes.len() <= MAX_BYTES);
            assert_eq!(decode(&bytes, "super-a"), Ok((5, superblock(jumps))));
        }
        assert_eq!(
            encode(&superblock(MAX_JUMPS + 1), 5),
            Err(SuperblockError::JumpTableFull)
        );
    }

    #[test]
    fn any_damage_is_noticed() {
        let bytes = encode(&superblock(2), 5).unwrap();
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x10;
            assert!(decode(&bad, "super-a").is_err(), "byte {at}");
        }
        for len in [0, 1, 100, 4095] {
            assert!(decode(&bytes[..len], "super-a").is_err());
        }
    }

    #[test]
    fn a_newer_format_is_named_wherever_its_checksum_stands() {
        let mut bytes = encode(&superblock(0), 5).unwrap();
        bytes[8] = 2;
        bytes[3000] = 7;
        let named = SuperblockError::Format(OtherFormat {
            what: "super-b".to_owned(),
            format: 2,
            reads: 1,
        });
        assert_eq!(decode(&bytes, "super-b"), Err(named.clone()));
        let body = bytes.len() - 8;
        let checksum = xxh3_64(&bytes[..body]);
        bytes[body..].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(decode(&bytes, "super-b"), Err(named));
    }

    #[test]
    fn a_jump_from_an_unused_landing_replaces_it() {
        let mut superblock = superblock(0);
        let jump = |from, to, epoch| Jump {
            from: LogPosition(from),
            to: LogPosition(to),
            epoch,
        };
        superblock.add_jump(jump(10, 20, 1), None);
        superblock.add_jump(jump(20, 30, 2), Some(LogPosition(10)));
        superblock.add_jump(jump(40, 50, 3), None);
        assert_eq!(superblock.jumps, [jump(10, 30, 2), jump(40, 50, 3)]);
        assert_eq!(superblock.follow(LogPosition(10)), LogPosition(30));
        assert_eq!(superblock.follow(LogPosition(11)), LogPosition(11));
        // A walk that begins at the landing must find the way on.
        superblock.add_jump(jump(50, 60, 4), Some(LogPosition(50)));
        assert_eq!(superblock.follow(LogPosition(40)), LogPosition(60));
        assert_eq!(superblock.follow(LogPosition(50)), LogPosition(60));
    }
}
