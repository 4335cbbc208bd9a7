//! Records whose bytes say who they are.
//!
//! The key of record `id` is a mark and the id; the payload is made from the
//! id, and ends, if it is long enough, in another mark and the id. So a record
//! is known wherever its bytes are found: in a frame, or on the disk.

use wire::record::{Record, RecordParts};

const HEAD: [u8; 8] = *b"\x1fTGkey\x1f\x1e";
const TAIL: [u8; 8] = *b"\x1fTGend\x1f\x1e";

/// Bytes of a mark with its id.
pub(crate) const MARK_BYTES: usize = 16;

/// Appends record `id` with a payload of `len` bytes to a batch.
pub(crate) fn encode(id: u64, len: usize, not_before_ms: u64, out: &mut Vec<u8>) {
    let key = mark(HEAD, id);
    let payload = payload(id, len);
    let parts = RecordParts {
        key: &key,
        headers: &[],
        payload: &payload,
        not_before_ms,
    };
    // The lengths a run draws are far below the limits.
    let encoded = parts.encode(out);
    debug_assert!(encoded.is_ok());
}

fn mark(what: [u8; 8], id: u64) -> [u8; MARK_BYTES] {
    let mut bytes = [0; MARK_BYTES];
    bytes[..8].copy_from_slice(&what);
    bytes[8..].copy_from_slice(&id.to_le_bytes());
    bytes
}

fn payload(id: u64, len: usize) -> Vec<u8> {
    let seed = id.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes: Vec<u8> = (0..len as u64)
        .map(|at| (seed.wrapping_mul(at | 1) >> 56) as u8 | 0x80)
        .collect();
    if let Some(from) = len.checked_sub(MARK_BYTES) {
        bytes[from..].copy_from_slice(&mark(TAIL, id));
    }
    bytes
}

/// The id of a record, if its bytes are those of this id.
pub(crate) fn identify(record: &Record<'_>) -> Option<u64> {
    let id = record.key.strip_prefix(&HEAD[..])?;
    let id = u64::from_le_bytes(id.try_into().ok()?);
    let sound = record.verify(0).is_ok() && record.payload == payload(id, record.payload.len());
    sound.then_some(id)
}

/// Where marks of records stand in `bytes`: (offset, id).
pub(crate) fn marks(bytes: &[u8]) -> Vec<(usize, u64)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(next) = bytes
        .get(at..)
        .and_then(|rest| rest.iter().position(|b| *b == 0x1f))
    {
        at += next;
        if let Some(mark) = bytes.get(at..at + MARK_BYTES) {
            if mark.starts_with(&HEAD) || mark.starts_with(&TAIL) {
                let mut id = [0; 8];
                id.copy_from_slice(&mark[8..]);
                found.push((at, u64::from_le_bytes(id)));
            }
        }
        at += 1;
    }
    found
}

/// Whether the mark that stands here is of a record's key, not of its payload's end.
pub(crate) fn is_head(mark: &[u8]) -> bool {
    mark.starts_with(&HEAD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_known_by_its_bytes() {
        for len in [0, 5, 16, 400] {
            let mut bytes = Vec::new();
            encode(7, len, 3, &mut bytes);
            assert_eq!(identify(&Record::parse(&bytes, 0).unwrap()), Some(7));
            let marks = marks(&bytes);
            assert_eq!(marks.len(), if len < MARK_BYTES { 1 } else { 2 });
            assert!(marks.iter().all(|(_, id)| *id == 7));
        }
        let mut bytes = Vec::new();
        encode(7, 400, 3, &mut bytes);
        bytes[200] ^= 1;
        assert_eq!(identify(&Record::parse(&bytes, 0).unwrap()), None);
    }
}
