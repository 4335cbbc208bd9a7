//! Records as a publisher gives them: payload, key, headers, due time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use wire::{
    error::WireError,
    limits::MAX_BATCH_RECORDS,
    record::{RecordParts, RECORD_HEADER_BYTES},
};

use crate::{config::BATCH_BYTES, headers::Headers};

/// One record to publish, borrowed until it is sent.
///
/// ```
/// use tidegate_client::{Headers, Record};
/// let headers = Headers::new().with("content-type", "text/plain");
/// let record = Record::new("hello").key("customer-7").headers(&headers);
/// assert_eq!(record.payload(), b"hello");
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Record<'a> {
    parts: RecordParts<'a>,
}

impl<'a> Record<'a> {
    /// A record with this payload (0 to 8 MiB), no key and no headers.
    pub fn new<P: AsRef<[u8]> + ?Sized>(payload: &'a P) -> Self {
        Record {
            parts: RecordParts {
                payload: payload.as_ref(),
                ..RecordParts::default()
            },
        }
    }

    /// Key, at most 1 024 bytes. Records of one key go to one partition.
    pub fn key<K: AsRef<[u8]> + ?Sized>(mut self, key: &'a K) -> Self {
        self.parts.key = key.as_ref();
        self
    }

    /// Headers, at most 64 KiB encoded.
    pub fn headers(mut self, headers: &'a Headers) -> Self {
        self.parts.headers = headers.as_bytes();
        self
    }

    /// Not delivered before this moment (millisecond resolution, the server's clock).
    pub fn not_before(mut self, moment: SystemTime) -> Self {
        let since = moment.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        // Rounded up: a fraction of a millisecond early is still early.
        let ms = since.as_nanos().div_ceil(1_000_000);
        self.parts.not_before_ms = u64::try_from(ms).unwrap_or(u64::MAX);
        self
    }

    /// The payload.
    pub fn payload(&self) -> &'a [u8] {
        self.parts.payload
    }

    pub(crate) fn key_bytes(&self) -> &'a [u8] {
        self.parts.key
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) -> Result<(), WireError> {
        self.parts.encode(out)
    }

    pub(crate) fn encoded_len(&self) -> usize {
        self.parts.encoded_len()
    }
}

impl<'a, P: AsRef<[u8]> + ?Sized> From<&'a P> for Record<'a> {
    fn from(payload: &'a P) -> Self {
        Record::new(payload)
    }
}

/// Records that go to one partition in one frame and are confirmed together.
/// The first record's key decides the partition of all of them.
///
/// ```
/// use tidegate_client::{Batch, Record};
/// let mut batch = Batch::new();
/// batch.push(Record::new("one"))?;
/// batch.push(Record::new("two"))?;
/// assert_eq!(batch.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    count: u32,
    first_key: Vec<u8>,
}

/// Most encoded bytes a [`Batch`] takes, unless it holds a single record.
pub const MAX_BATCH_BYTES: usize = 8 * 1024 * 1024;

const _: () = assert!(BATCH_BYTES <= MAX_BATCH_BYTES && RECORD_HEADER_BYTES < BATCH_BYTES);

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Batch::default()
    }

    /// Adds a record, copied and checksummed here.
    ///
    /// # Errors
    /// The record is above a limit, or the batch is full (4 096 records,
    /// 8 MiB encoded); the batch is then unchanged.
    pub fn push<'a>(&mut self, record: impl Into<Record<'a>>) -> Result<(), WireError> {
        let record = record.into();
        let full = |reason| WireError::BadRecord {
            index: self.count,
            reason,
        };
        if self.count >= MAX_BATCH_RECORDS {
            return Err(full("the batch already holds 4096 records; send it first"));
        }
        if self.count > 0 && self.bytes.len() + record.encoded_len() > MAX_BATCH_BYTES {
            return Err(full("the batch would exceed 8 MiB; send it first"));
        }
        record.encode(&mut self.bytes)?;
        if self.count == 0 {
            self.first_key.clear();
            self.first_key.extend_from_slice(record.key_bytes());
        }
        self.count += 1;
        Ok(())
    }

    /// Records in it.
    pub fn len(&self) -> u32 {
        self.count
    }

    /// True when nothing was pushed.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Encoded bytes.
    pub fn encoded_len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn first_key(&self) -> &[u8] {
        &self.first_key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_refuses_the_4097th_record() {
        let mut batch = Batch::new();
        for _ in 0..MAX_BATCH_RECORDS {
            batch.push("").unwrap();
        }
        assert!(matches!(
            batch.push("").unwrap_err(),
            WireError::BadRecord { index: 4096, .. }
        ));
        assert_eq!(batch.len(), 4096);
        wire::record::check_batch(batch.bytes(), 4096).unwrap();
    }

    #[test]
    fn a_batch_refuses_to_grow_past_its_bytes_but_takes_one_record_of_any_legal_size() {
        let mut batch = Batch::new();
        let largest = vec![7; wire::limits::MAX_RECORD_BYTES as usize];
        batch.push(&largest).unwrap();
        assert!(batch.push("x").is_err());
        assert_eq!(batch.len(), 1);
    }

    #[test]
    fn a_record_above_the_limit_is_refused_and_leaves_the_batch_alone() {
        let mut batch = Batch::new();
        let huge = vec![0; wire::limits::MAX_RECORD_BYTES as usize + 1];
        assert!(batch.push(&huge).is_err());
        assert!(batch.is_empty());
        assert_eq!(batch.encoded_len(), 0);
    }

    #[test]
    fn a_due_time_before_1970_means_at_once() {
        let early = UNIX_EPOCH - Duration::from_secs(5);
        let record = Record::new("x").not_before(early);
        assert_eq!(record.parts.not_before_ms, 0);
    }
}
