//! The record: the unit that travels unchanged from socket to log to consumer.
//!
//! ```text
//! 0   crc           u32 LE  CRC-32C over bytes 4..end
//! 4   payload_len   u32 LE
//! 8   headers_len   u32 LE
//! 12  key_len       u16 LE
//! 14  flags         u16 LE  reserved, zero
//! 16  ttl_ms        u32 LE  reserved, zero (no expiry)
//! 20  not_before_ms u64 LE  Unix time in ms before which it is not delivered, 0 = at once
//! 28  priority      u8      reserved, zero
//! 29  reserved      3 bytes zero
//! 32  key, then headers, then payload
//! ```
//!
//! Headers are a sequence of `name_len u16, value_len u32, name, value`; the
//! server bounds them and does not look inside.
//!
//! Owns: the record format, on the wire and in the log alike. It never copies
//! or re-encodes a record that it reads.
//!
//! Invariants:
//! 1. A [`Record`]'s parts lie back to back inside its `bytes`.
//! 2. Stated lengths are compared with their limits before they are added up,
//!    so that no sum overflows and nothing is allocated for them.
//! 3. The checksum covers everything behind it: any changed bit is found by
//!    [`Record::verify`] or was refused by [`Record::parse`].

use crate::{
    error::WireError,
    limits::{MAX_HEADERS_BYTES, MAX_KEY_BYTES, MAX_RECORD_BYTES},
};

/// Bytes in front of key, headers and payload.
pub const RECORD_HEADER_BYTES: usize = 32;

/// What a publisher gives for one record.
#[derive(Debug, Clone, Copy, Default)]
pub struct RecordParts<'a> {
    /// At most 1 024 bytes; empty = no key.
    pub key: &'a [u8],
    /// Encoded headers, at most 64 KiB; see the module head.
    pub headers: &'a [u8],
    /// At most 8 MiB; may be empty.
    pub payload: &'a [u8],
    /// Unix time in milliseconds; 0 = deliver at once.
    pub not_before_ms: u64,
}

impl RecordParts<'_> {
    /// Length of the encoded record in bytes.
    pub fn encoded_len(&self) -> usize {
        RECORD_HEADER_BYTES + self.key.len() + self.headers.len() + self.payload.len()
    }

    /// Appends the encoded record, checksum included, to `out`.
    ///
    /// # Errors
    /// Key, headers or payload above its limit; `out` is then unchanged.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), WireError> {
        let bad = |reason| WireError::BadRecord { index: 0, reason };
        if self.payload.len() > MAX_RECORD_BYTES as usize {
            return Err(bad("payload above 8 MiB"));
        }
        if self.headers.len() > MAX_HEADERS_BYTES as usize {
            return Err(bad("headers above 64 KiB"));
        }
        if self.key.len() > usize::from(MAX_KEY_BYTES) {
            return Err(bad("key above 1024 bytes"));
        }
        let start = out.len();
        out.reserve(self.encoded_len());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&(self.payload.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.headers.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.key.len() as u16).to_le_bytes());
        out.extend_from_slice(&[0; 6]);
        out.extend_from_slice(&self.not_before_ms.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(self.key);
        out.extend_from_slice(self.headers);
        out.extend_from_slice(self.payload);
        let crc = crc32c::crc32c(&out[start + 4..]);
        out[start..start + 4].copy_from_slice(&crc.to_le_bytes());
        Ok(())
    }
}

/// One record read in place from encoded bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// The whole encoded record.
    pub bytes: &'a [u8],
    /// Empty = no key.
    pub key: &'a [u8],
    /// Encoded headers; see the module head.
    pub headers: &'a [u8],
    /// The publisher's bytes.
    pub payload: &'a [u8],
    /// Unix time in milliseconds; 0 = deliver at once.
    pub not_before_ms: u64,
    /// Checksum as stated, not yet verified.
    pub crc: u32,
}

impl<'a> Record<'a> {
    /// Reads the record at the front of `bytes`; `index` names it in errors.
    /// Lengths and reserved fields are checked, the checksum is not.
    ///
    /// # Errors
    /// Truncated, above a limit, or a reserved field set.
    pub fn parse(bytes: &'a [u8], index: u32) -> Result<Self, WireError> {
        let bad = |reason| WireError::BadRecord { index, reason };
        let Some((header, _)) = bytes.split_first_chunk::<RECORD_HEADER_BYTES>() else {
            return Err(bad("truncated header"));
        };
        let u32_at = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let (crc, payload_len, headers_len) = (u32_at(0), u32_at(4), u32_at(8));
        let key_len = u16::from_le_bytes([header[12], header[13]]);
        if payload_len > MAX_RECORD_BYTES {
            return Err(bad("payload above 8 MiB"));
        }
        if headers_len > MAX_HEADERS_BYTES {
            return Err(bad("headers above 64 KiB"));
        }
        if key_len > MAX_KEY_BYTES {
            return Err(bad("key above 1024 bytes"));
        }
        if header[14..20]
            .iter()
            .chain(&header[28..32])
            .any(|byte| *byte != 0)
        {
            return Err(bad("flags, TTL and priority are reserved and must be zero"));
        }
        let not_before_ms = u64::from(u32_at(20)) | u64::from(u32_at(24)) << 32;
        let headers_at = RECORD_HEADER_BYTES + usize::from(key_len);
        let payload_at = headers_at + headers_len as usize;
        let end = payload_at + payload_len as usize;
        let Some(bytes) = bytes.get(..end) else {
            return Err(bad("truncated body"));
        };
        Ok(Record {
            bytes,
            key: &bytes[RECORD_HEADER_BYTES..headers_at],
            headers: &bytes[headers_at..payload_at],
            payload: &bytes[payload_at..],
            not_before_ms,
            crc,
        })
    }

    /// Whether `bytes` are one record, no more and no less, whose checksum agrees.
    pub fn is_intact(bytes: &[u8]) -> bool {
        Record::parse(bytes, 0)
            .is_ok_and(|record| record.bytes.len() == bytes.len() && record.verify(0).is_ok())
    }

    /// Computes the checksum over the record's bytes and compares.
    ///
    /// # Errors
    /// [`WireError::RecordChecksum`] naming both values.
    pub fn verify(&self, index: u32) -> Result<(), WireError> {
        let computed = crc32c::crc32c(&self.bytes[4..]);
        if computed == self.crc {
            Ok(())
        } else {
            Err(WireError::RecordChecksum {
                index,
                stated: self.crc,
                computed,
            })
        }
    }
}

/// Walks the records of an encoded batch.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    rest: &'a [u8],
    index: u32,
}

impl<'a> Records<'a> {
    /// A walk over `bytes`, which hold encoded records back to back.
    pub fn new(bytes: &'a [u8]) -> Self {
        Records {
            rest: bytes,
            index: 0,
        }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let parsed = Record::parse(self.rest, self.index);
        match &parsed {
            Ok(record) => self.rest = &self.rest[record.bytes.len()..],
            Err(_) => self.rest = &[],
        }
        self.index += 1;
        Some(parsed)
    }
}

/// Checks every record of a published batch: lengths, limits, checksums, and
/// that there are exactly `count` of them.
///
/// # Errors
/// The first record that fails, by index.
pub fn check_batch(bytes: &[u8], count: u32) -> Result<(), WireError> {
    let mut seen = 0;
    for record in Records::new(bytes) {
        record?.verify(seen)?;
        seen += 1;
        if seen > count {
            break;
        }
    }
    if seen != count {
        return Err(WireError::BadRecord {
            index: seen,
            reason: "the stated record count differs",
        });
    }
    Ok(())
}
