//! The batch: what one log write carries. Little-endian header of
//! [`BATCH_HEADER_BYTES`], the items, zeros up to the next block boundary.
//!
//! | at | size | field |
//! |----|------|-------|
//! | 0 | 8 | magic `TIDEGATB` |
//! | 8 | 2 | format, 1 |
//! | 10 | 2 | flags: 1 frontier only (no items) |
//! | 12 | 4 | body bytes |
//! | 16 | 16 | log id |
//! | 32 | 8 | log position of this header |
//! | 40 | 8 | epoch |
//! | 48 | 8 | batch sequence, from 1, without gaps |
//! | 56 | 8 | predecessor's header checksum (0 for the first batch) |
//! | 64 | 8 | `durable_next` as known when the batch was sealed |
//! | 72 | 4 | fragments in the body |
//! | 76 | 4 | zero |
//! | 80 | 8 | XXH3-64 of the body |
//! | 88 | 8 | XXH3-64 of bytes 0 to 87 |
//!
//! The header checksum covers the body's, and the next header carries it: a
//! header that follows proves everything before it.

use xxhash_rust::xxh3::xxh3_64;

use super::bytes::{get_u128, get_u16, get_u32, get_u64};
use super::format::{other_format, OtherFormat};
use super::position::{Geometry, LogId, LogPosition, MAX_BATCH_BYTES};

/// Bytes in front of a batch's items.
pub const BATCH_HEADER_BYTES: usize = 96;

const MAGIC: [u8; 8] = *b"TIDEGATB";
const FORMAT: u16 = 1;
const FLAG_FRONTIER_ONLY: u16 = 1;
const CHECKSUM_AT: usize = 88;

/// A batch's header, checksums aside from the body's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchHeader {
    pub log_id: LogId,
    pub position: LogPosition,
    pub epoch: u64,
    pub sequence: u64,
    /// The predecessor's header checksum.
    pub predecessor: u64,
    /// At or below `position`: everything under it was durable.
    pub durable_next: LogPosition,
    pub body_bytes: u32,
    /// Fragments in the body; 0 only for a frontier-only batch.
    pub fragments: u32,
    pub body_checksum: u64,
}

impl BatchHeader {
    /// Writes the header over the start of `batch` and returns its checksum.
    /// `batch` is at least [`BATCH_HEADER_BYTES`] long, or nothing is written.
    pub(super) fn encode(&self, batch: &mut [u8]) -> u64 {
        let mut bytes = [0u8; BATCH_HEADER_BYTES];
        let flags = if self.fragments == 0 {
            FLAG_FRONTIER_ONLY
        } else {
            0
        };
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[10..12].copy_from_slice(&flags.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.log_id.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.position.0.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.predecessor.to_le_bytes());
        bytes[64..72].copy_from_slice(&self.durable_next.0.to_le_bytes());
        bytes[72..76].copy_from_slice(&self.fragments.to_le_bytes());
        bytes[80..88].copy_from_slice(&self.body_checksum.to_le_bytes());
        let checksum = xxh3_64(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        if let Some(head) = batch.get_mut(..BATCH_HEADER_BYTES) {
            head.copy_from_slice(&bytes);
        }
        checksum
    }

    /// The header at the start of `bytes` and its checksum, or `None` if no
    /// intact header of this format stands there. Lengths are within bounds.
    pub(super) fn decode(bytes: &[u8]) -> Option<(Self, u64)> {
        let head = bytes.get(..BATCH_HEADER_BYTES)?;
        if !head.starts_with(&MAGIC) || get_u16(head, 8)? != FORMAT {
            return None;
        }
        let checksum = get_u64(head, CHECKSUM_AT)?;
        if xxh3_64(head.get(..CHECKSUM_AT)?) != checksum {
            return None;
        }
        let header = BatchHeader {
            log_id: LogId(get_u128(head, 16)?),
            position: LogPosition(get_u64(head, 32)?),
            epoch: get_u64(head, 40)?,
            sequence: get_u64(head, 48)?,
            predecessor: get_u64(head, 56)?,
            durable_next: LogPosition(get_u64(head, 64)?),
            body_bytes: get_u32(head, 12)?,
            fragments: get_u32(head, 72)?,
            body_checksum: get_u64(head, 80)?,
        };
        let flags = get_u16(head, 10)?;
        let frontier_only = flags == FLAG_FRONTIER_ONLY;
        let sound = (flags == 0 || frontier_only)
            && frontier_only == (header.fragments == 0)
            && header.body_bytes <= MAX_BATCH_BYTES - BATCH_HEADER_BYTES as u32
            && header.durable_next <= header.position;
        sound.then_some((header, checksum))
    }

    /// The other format of the batch of log `log_id` that stands at `position`,
    /// where `bytes` are from. Damage is none: magic, format, log id, position and
    /// the header's checksum stand where they stand here in every format of a
    /// batch.
    pub(super) fn other_format(
        bytes: &[u8],
        log_id: LogId,
        position: LogPosition,
    ) -> Option<OtherFormat> {
        let head = bytes.get(..BATCH_HEADER_BYTES)?;
        let never = |_: &[u8]| false;
        let format = other_format(head, &MAGIC, &FORMAT.to_le_bytes(), never)?;
        let intact = get_u64(head, CHECKSUM_AT)? == xxh3_64(head.get(..CHECKSUM_AT)?)
            && get_u128(head, 16)? == log_id.0
            && get_u64(head, 32)? == position.0;
        intact.then(|| OtherFormat {
            what: format!("the batch at {position}"),
            format,
            reads: FORMAT.into(),
        })
    }

    /// Header and body, in bytes.
    pub fn used_bytes(&self) -> u64 {
        BATCH_HEADER_BYTES as u64 + u64::from(self.body_bytes)
    }

    /// Where the next batch starts.
    pub fn end(&self, geometry: Geometry) -> LogPosition {
        LogPosition(
            self.position
                .0
                .saturating_add(geometry.padded(self.used_bytes())),
        )
    }
}

/// The header checksum of a batch whose header is intact.
pub(super) fn checksum_of(batch: &[u8]) -> u64 {
    get_u64(batch, CHECKSUM_AT).unwrap_or_default()
}

/// The checksum of a batch body.
pub(super) fn body_checksum(body: &[u8]) -> u64 {
    xxh3_64(body)
}

/// For the page of the format.
#[cfg(test)]
pub(crate) fn golden() -> crate::format_page::Golden {
    let header = BatchHeader {
        log_id: LogId(3),
        position: LogPosition(1 << 20),
        epoch: 5,
        sequence: 6,
        predecessor: 7,
        durable_next: LogPosition(8),
        body_bytes: 9,
        fragments: 0,
        body_checksum: 11,
    };
    let mut bytes = vec![0; BATCH_HEADER_BYTES];
    header.encode(&mut bytes);
    let fields = vec![
        ("format", 1),
        ("flags", 1),
        ("body bytes", 9),
        ("log id", 3),
        ("log position of this header", 1 << 20),
        ("epoch", 5),
        ("batch sequence", 6),
        ("predecessor's header checksum", 7),
        ("durable_next as known when the batch was sealed", 8),
        ("fragments in the body", 0),
        ("checksum of the body", 11),
    ];
    crate::format_page::Golden { bytes, fields }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> BatchHeader {
        BatchHeader {
            log_id: LogId(0x1234_5678_9abc_def0_1122_3344_5566_7788),
            position: LogPosition(1 << 20),
            epoch: 3,
            sequence: 17,
            predecessor: 0xdead_beef,
            durable_next: LogPosition(77),
            body_bytes: 40,
            fragments: 1,
            body_checksum: 99,
        }
    }

    #[test]
    fn a_header_round_trips_with_its_checksum() {
        let mut bytes = vec![0u8; 4096];
        let checksum = header().encode(&mut bytes);
        assert_eq!(BatchHeader::decode(&bytes), Some((header(), checksum)));
    }

    #[test]
    fn any_flipped_bit_of_a_header_is_noticed() {
        let mut bytes = vec![0u8; BATCH_HEADER_BYTES];
        header().encode(&mut bytes);
        for at in 0..BATCH_HEADER_BYTES {
            for bit in 0..8 {
                bytes[at] ^= 1 << bit;
                assert_eq!(BatchHeader::decode(&bytes), None, "byte {at} bit {bit}");
                bytes[at] ^= 1 << bit;
            }
        }
    }

    /// F18: a length that checks out but is out of bounds is no header.
    #[test]
    fn f18_lengths_out_of_bounds_are_refused() {
        for body_bytes in [MAX_BATCH_BYTES, u32::MAX, MAX_BATCH_BYTES - 95] {
            let mut bytes = vec![0u8; BATCH_HEADER_BYTES];
            BatchHeader {
                body_bytes,
                ..header()
            }
            .encode(&mut bytes);
            assert_eq!(BatchHeader::decode(&bytes), None);
        }
    }

    #[test]
    fn an_intact_header_of_a_later_format_is_told_from_damage() {
        let mut bytes = vec![0u8; BATCH_HEADER_BYTES];
        header().encode(&mut bytes);
        let other = |bytes: &[u8]| {
            let of = header();
            BatchHeader::other_format(bytes, of.log_id, of.position).map(|other| other.format)
        };
        assert_eq!(other(&bytes), None);
        bytes[8] = 2;
        assert_eq!(other(&bytes), None, "a damaged number");
        let checksum = xxh3_64(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(other(&bytes), Some(2));
        let elsewhere = LogPosition(header().position.0 + 4096);
        let there = BatchHeader::other_format(&bytes, header().log_id, elsewhere);
        assert_eq!(there, None, "a stale copy");
    }

    #[test]
    fn short_input_is_no_header() {
        let mut bytes = vec![0u8; BATCH_HEADER_BYTES];
        header().encode(&mut bytes);
        for len in 0..BATCH_HEADER_BYTES {
            assert_eq!(BatchHeader::decode(&bytes[..len]), None);
        }
    }
}
