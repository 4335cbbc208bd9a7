//! The memory of a latch, kept where the log's own I/O error cannot reach it.
//!
//! Two places: the file `latched` in the log's directory, and a file named by
//! the log's id in a boot-scoped directory (`/run`, `/dev/shm`). The second
//! counts only because each open leaves a token there: a start in the same boot
//! that finds no token cannot know and is treated as latched.
//!
//! 1. A latch at open counter n stays in force until a superblock with
//!    `latch_cleared >= n` is durable.
//! 2. A record that cannot be read whole counts as a latch of unknown place.
//!
//! Little-endian: magic `TIDELAT1`, state u64 (1 open, 2 latched), log id u128,
//! open counter u64, `durable_next` u64, XXH3-64 of all before.

use xxhash_rust::xxh3::xxh3_64;

use super::bytes::{get_u128, get_u64};
use super::format::{other_digit, OtherFormat};
use super::position::{LogId, LogPosition};
use super::superblock::{Superblock, SuperblockError};
use crate::io::{Disk, DiskError, DiskErrorKind};
use crate::mutation::{removed, Rule};

/// The record's file in the log's directory.
pub const LATCHED_FILE: &str = "latched";

const MAGIC: [u8; 8] = *b"TIDELAT1";
const RECORD_BYTES: usize = 56;
const MAX_FILE_BYTES: usize = 4096;
const STATE_OPEN: u64 = 1;
const STATE_LATCHED: u64 = 2;

/// That a log latched, and how far it was durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatchRecord {
    pub log_id: LogId,
    /// The open that latched.
    pub open_counter: u64,
    /// The last successful sync's end.
    pub durable_next: LogPosition,
}

/// Where a latch could be recorded.
#[derive(Debug)]
pub struct LatchRecorded {
    pub in_log_directory: Result<(), DiskError>,
    /// `None` without a boot-scoped directory.
    pub in_boot_directory: Option<Result<(), DiskError>>,
}

impl LatchRecorded {
    /// Whether the next process is sure to learn of the latch. Until then this
    /// process stays up, latched.
    pub fn is_recorded(&self) -> bool {
        self.in_log_directory.is_ok() || matches!(self.in_boot_directory, Some(Ok(())))
    }
}

/// Records a latch in both places. Blocking; not on a shard thread.
pub fn record_latch(
    disk: &dyn Disk,
    boot_directory: Option<&dyn Disk>,
    record: &LatchRecord,
) -> LatchRecorded {
    let bytes = encode(STATE_LATCHED, record);
    LatchRecorded {
        in_boot_directory: boot_directory
            .map(|boot| boot.replace_small(&token_name(record.log_id), &bytes)),
        in_log_directory: disk.replace_small(LATCHED_FILE, &bytes),
    }
}

/// Leaves the token of an open that found (or made) the log sound.
pub(super) fn put_token(
    boot: &dyn Disk,
    log_id: LogId,
    open_counter: u64,
) -> Result<(), DiskError> {
    let record = LatchRecord {
        log_id,
        open_counter,
        durable_next: LogPosition(0),
    };
    boot.replace_small(&token_name(log_id), &encode(STATE_OPEN, &record))
}

/// A latch that is still in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Latch {
    At(LatchRecord),
    /// Nothing says how far the log was durable.
    Unknown,
}

/// Whether the log was left latched.
pub(super) fn find_latch(
    disk: &dyn Disk,
    boot: Option<&dyn Disk>,
    superblock: &Superblock,
    same_boot: bool,
) -> Result<Option<Latch>, SuperblockError> {
    if removed(Rule::RecordedLatch) {
        return Ok(None);
    }
    check_format(disk)?;
    let file = disk.read_small(LATCHED_FILE, MAX_FILE_BYTES)?;
    let file = file.map(|bytes| judge(&bytes, superblock));
    let token = match boot {
        Some(boot) if same_boot => find_token(boot, superblock)?,
        _ => None,
    };
    // A known place says more than an unknown one; of two, the lower is safe.
    let found = [file.flatten(), token];
    let known = found.iter().flatten().filter_map(|latch| match latch {
        Latch::At(record) => Some(*record),
        Latch::Unknown => None,
    });
    Ok(known
        .min_by_key(|record| record.durable_next)
        .map(Latch::At)
        .or(found.into_iter().flatten().next()))
}

fn find_token(boot: &dyn Disk, superblock: &Superblock) -> Result<Option<Latch>, DiskError> {
    let bytes = boot.read_small(&token_name(superblock.log_id), MAX_FILE_BYTES)?;
    let Some(bytes) = bytes else {
        let expected = superblock.token_counter > superblock.latch_cleared;
        return Ok(expected.then_some(Latch::Unknown));
    };
    match decode(&bytes) {
        Some((STATE_OPEN, record)) => {
            let current = record.log_id == superblock.log_id
                && record.open_counter >= superblock.token_counter;
            Ok((!current).then_some(Latch::Unknown))
        }
        _ => Ok(judge(&bytes, superblock)),
    }
}

/// The latch a record stands for; `None` if it was cleared since.
fn judge(bytes: &[u8], superblock: &Superblock) -> Option<Latch> {
    match decode(bytes) {
        Some((STATE_LATCHED, record)) if record.log_id == superblock.log_id => {
            (record.open_counter > superblock.latch_cleared).then_some(Latch::At(record))
        }
        _ => Some(Latch::Unknown),
    }
}

/// Looks whether the record in the log's directory, if there is one, is of this
/// format. Damage passes: it counts as a latch.
///
/// # Errors
/// It is of another one, or cannot be read.
pub(super) fn check_format(disk: &dyn Disk) -> Result<(), SuperblockError> {
    let bytes = match disk.read_small(LATCHED_FILE, MAX_FILE_BYTES) {
        Ok(bytes) => bytes.unwrap_or_default(),
        Err(error) if error.kind == DiskErrorKind::TooLong => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    match other_digit(&bytes, &MAGIC, |bytes| decode(bytes).is_some()) {
        None => Ok(()),
        Some(format) => Err(SuperblockError::Format(OtherFormat {
            what: format!("the file `{LATCHED_FILE}`"),
            format,
            reads: 1,
        })),
    }
}

fn token_name(log_id: LogId) -> String {
    format!("tidegate-log-{log_id}")
}

fn encode(state: u64, record: &LatchRecord) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(RECORD_BYTES);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&state.to_le_bytes());
    bytes.extend_from_slice(&record.log_id.0.to_le_bytes());
    bytes.extend_from_slice(&record.open_counter.to_le_bytes());
    bytes.extend_from_slice(&record.durable_next.0.to_le_bytes());
    let checksum = xxh3_64(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<(u64, LatchRecord)> {
    let body = bytes.get(..RECORD_BYTES - 8)?;
    let whole = bytes.len() == RECORD_BYTES
        && body.starts_with(&MAGIC)
        && get_u64(bytes, RECORD_BYTES - 8)? == xxh3_64(body);
    if !whole {
        return None;
    }
    let record = LatchRecord {
        log_id: LogId(get_u128(body, 16)?),
        open_counter: get_u64(body, 32)?,
        durable_next: LogPosition(get_u64(body, 40)?),
    };
    Some((get_u64(body, 8)?, record))
}

/// For the page of the format.
#[cfg(test)]
pub(crate) fn golden() -> crate::format_page::Golden {
    let record = LatchRecord {
        log_id: LogId(3),
        open_counter: 4,
        durable_next: LogPosition(5),
    };
    let fields = vec![
        ("state", 2),
        ("log id", 3),
        ("open counter", 4),
        ("durable_next", 5),
    ];
    crate::format_page::Golden {
        bytes: encode(STATE_LATCHED, &record),
        fields,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_and_damage_is_noticed() {
        let record = LatchRecord {
            log_id: LogId(7),
            open_counter: 3,
            durable_next: LogPosition(4096),
        };
        let bytes = encode(STATE_LATCHED, &record);
        assert_eq!(decode(&bytes), Some((STATE_LATCHED, record)));
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 4;
            assert_eq!(decode(&bad), None);
            assert_eq!(decode(&bytes[..at]), None);
        }
    }
}
