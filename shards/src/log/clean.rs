//! The clean marker: proof that every log of a data directory was stopped with
//! everything durable. One small file holds all logs' markers; it is taken away,
//! and the directory synced, before any of them is opened.
//!
//! Little-endian: magic `TIDECLN1`, u32 count, then per log: id u128, open
//! counter u64, end u64, checksum u64; then XXH3-64 of all before; then zeros.
//!
//! While logs are open the file is there under another name, so that a stop on
//! a full disk can be clean: it is written in place, synced and renamed.

use xxhash_rust::xxh3::xxh3_64;

use super::bytes::{get_u128, get_u32, get_u64};
use super::format::{other_digit, OtherFormat};
use super::position::{LogId, LogPosition};
use crate::io::{Disk, DiskError, DiskErrorKind, DiskFile};
use crate::mutation::{removed, Rule};

/// The markers' file, in the data directory.
pub const CLEAN_FILE: &str = "clean";
/// Its room while logs are open; what it holds says nothing.
const SPARE_FILE: &str = "clean-room";
/// Enough for the markers of as many logs as there can be.
const FILE_BYTES: usize = 4096;

const MAGIC: [u8; 8] = *b"TIDECLN1";
const MARKER_BYTES: usize = 40;
const MAX_FILE_BYTES: usize = 64 * 1024;

/// Where one log ended when it was stopped, everything durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CleanMarker {
    pub log_id: LogId,
    /// The open that was stopped.
    pub open_counter: u64,
    pub end: LogPosition,
    /// Header checksum of the last batch, 0 if the log is empty.
    pub checksum: u64,
}

impl CleanMarker {
    /// The file for these logs.
    pub fn encode_all(markers: &[CleanMarker]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(20 + markers.len() * MARKER_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&(markers.len() as u32).to_le_bytes());
        for marker in markers {
            bytes.extend_from_slice(&marker.log_id.0.to_le_bytes());
            bytes.extend_from_slice(&marker.open_counter.to_le_bytes());
            bytes.extend_from_slice(&marker.end.0.to_le_bytes());
            bytes.extend_from_slice(&marker.checksum.to_le_bytes());
        }
        let checksum = xxh3_64(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// The markers in a file, or `None` if it is not whole.
    pub fn decode_all(bytes: &[u8]) -> Option<Vec<CleanMarker>> {
        let body = intact_body(bytes)?;
        body.get(12..)?
            .chunks_exact(MARKER_BYTES)
            .map(|entry| {
                Some(CleanMarker {
                    log_id: LogId(get_u128(entry, 0)?),
                    open_counter: get_u64(entry, 16)?,
                    end: LogPosition(get_u64(entry, 24)?),
                    checksum: get_u64(entry, 32)?,
                })
            })
            .collect()
    }
}

/// What the checksum covers, if it does; zeros may follow.
fn intact_body(bytes: &[u8]) -> Option<&[u8]> {
    let count = get_u32(bytes, 8)? as usize;
    let body = bytes.get(..count.checked_mul(MARKER_BYTES)?.checked_add(12)?)?;
    let intact = body.starts_with(&MAGIC) && get_u64(bytes, body.len())? == xxh3_64(body);
    intact.then_some(body)
}

/// Looks whether a marker file's bytes, if there are any, are of this format.
/// Damage passes: it counts as no marker.
///
/// # Errors
/// They are of another one.
pub fn check_clean_format(bytes: &[u8]) -> Result<(), OtherFormat> {
    match other_digit(bytes, &MAGIC, |bytes| intact_body(bytes).is_some()) {
        None => Ok(()),
        Some(format) => Err(OtherFormat {
            what: format!("the file `{CLEAN_FILE}`"),
            format,
            reads: 1,
        }),
    }
}

/// Reads the data directory's markers and takes the file away, durably: call it
/// before opening any log. A file that is not whole counts as absent.
pub fn take_clean_markers(data: &dyn Disk) -> Result<Vec<CleanMarker>, DiskError> {
    let bytes = data.read_small(CLEAN_FILE, MAX_FILE_BYTES)?;
    if removed(Rule::MarkerTakenFirst) {
        let bytes = bytes.unwrap_or_default();
        return Ok(CleanMarker::decode_all(&bytes).unwrap_or_default());
    }
    if bytes.is_some() {
        data.rename(CLEAN_FILE, SPARE_FILE)?;
        data.sync_dir()?;
    }
    keep_room(data)?;
    Ok(CleanMarker::decode_all(&bytes.unwrap_or_default()).unwrap_or_default())
}

/// Sees to it that a stop finds room for the markers.
fn keep_room(data: &dyn Disk) -> Result<(), DiskError> {
    if room(data)?.is_some() {
        return Ok(());
    }
    data.remove(SPARE_FILE)?;
    match data.create_zeroed(SPARE_FILE, FILE_BYTES as u64) {
        // There may be some by then.
        Err(error) if error.kind == DiskErrorKind::OutOfSpace => Ok(()),
        made => made,
    }
}

/// The file that the markers can be written to in place.
fn room(data: &dyn Disk) -> Result<Option<Box<dyn DiskFile>>, DiskError> {
    match data.open(SPARE_FILE) {
        Ok(file) if file.len()? >= FILE_BYTES as u64 => Ok(Some(file)),
        Err(error) if error.kind != DiskErrorKind::NotFound => Err(error),
        _ => Ok(None),
    }
}

/// Records a clean stop of all logs; call it when every one is at rest.
pub fn put_clean_markers(data: &dyn Disk, markers: &[CleanMarker]) -> Result<(), DiskError> {
    let mut bytes = CleanMarker::encode_all(markers);
    let room = room(data)?.filter(|_| bytes.len() <= FILE_BYTES);
    let Some(file) = room else {
        return data.replace_small(CLEAN_FILE, &bytes);
    };
    bytes.resize(FILE_BYTES, 0);
    file.write_at(0, &bytes)?;
    file.sync()?;
    data.rename(SPARE_FILE, CLEAN_FILE)?;
    data.sync_dir()
}

/// For the page of the format.
#[cfg(test)]
pub(crate) fn golden() -> crate::format_page::Golden {
    let markers = [3u8, 7].map(|n| CleanMarker {
        log_id: LogId(n.into()),
        open_counter: u64::from(n) + 1,
        end: LogPosition(u64::from(n) + 2),
        checksum: u64::from(n) + 3,
    });
    let mut bytes = CleanMarker::encode_all(&markers);
    bytes.resize(FILE_BYTES, 0);
    let mut fields = vec![("logs", 2)];
    for n in [3, 7] {
        fields.extend([
            ("log id", n),
            ("open counter", n + 1),
            ("end", n + 2),
            ("last header checksum", n + 3),
        ]);
    }
    crate::format_page::Golden { bytes, fields }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_round_trip_and_damage_is_noticed() {
        let markers: Vec<_> = (1..4)
            .map(|n| CleanMarker {
                log_id: LogId(n),
                open_counter: 5,
                end: LogPosition(n as u64 * 4096),
                checksum: 9,
            })
            .collect();
        let bytes = CleanMarker::encode_all(&markers);
        assert_eq!(CleanMarker::decode_all(&bytes), Some(markers));
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert_eq!(CleanMarker::decode_all(&bad), None, "byte {at}");
            assert_eq!(CleanMarker::decode_all(&bytes[..at]), None, "length {at}");
        }
        assert_eq!(
            CleanMarker::decode_all(&CleanMarker::encode_all(&[])),
            Some(vec![])
        );
    }

    #[test]
    fn a_marker_file_of_a_later_format_is_named() {
        let mut bytes = CleanMarker::encode_all(&[]);
        bytes[7] = b'2';
        assert_eq!(check_clean_format(&bytes), Ok(()), "a damaged number");
        bytes.insert(12, 0);
        let refused = check_clean_format(&bytes).unwrap_err();
        assert_eq!(refused.format, 2);
        assert_eq!(check_clean_format(b""), Ok(()));
    }
}
