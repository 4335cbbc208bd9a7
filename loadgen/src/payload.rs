//! What a generated record carries, so that whoever receives it can tell which
//! run, producer and sequence it is and when it was meant to be sent.
//!
//! ```text
//! 0   magic        u32 LE  "TGLG"
//! 4   producer     u32 LE
//! 8   run          u64 LE  drawn per run
//! 16  sequence     u64 LE  per producer, from 0, without gaps
//! 24  intended_ns  u64 LE  CLOCK_MONOTONIC of this machine
//! 32  filler
//! ```

use wire::{error::WireError, record::RecordParts};

use crate::units::SizeRange;

/// Smallest payload in bytes.
pub const HEADER_BYTES: usize = 32;
const MAGIC: u32 = u32::from_le_bytes(*b"TGLG");

/// The traced part of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trace {
    pub run: u64,
    pub producer: u32,
    pub sequence: u64,
    pub intended_ns: u64,
}

impl Trace {
    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4..8].copy_from_slice(&self.producer.to_le_bytes());
        out[8..16].copy_from_slice(&self.run.to_le_bytes());
        out[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        out[24..].copy_from_slice(&self.intended_ns.to_le_bytes());
        out
    }

    /// The trace of `payload`, or `None` if no generator made it.
    pub fn decode(payload: &[u8]) -> Option<Trace> {
        let header = payload.first_chunk::<HEADER_BYTES>()?;
        let u32_at = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        (u32_at(0) == MAGIC).then(|| Trace {
            producer: u32_at(4),
            run: u64_at(8),
            sequence: u64_at(16),
            intended_ns: u64_at(24),
        })
    }
}

/// Encodes records of one producer. The filler is pseudo-random, so that a
/// compressing device or link gains nothing from it.
pub struct PayloadMaker {
    size: SizeRange,
    buffer: Vec<u8>,
}

impl PayloadMaker {
    pub fn new(size: SizeRange, seed: u64) -> Self {
        let mut buffer = Vec::with_capacity(size.max + 8);
        let mut word = seed;
        while buffer.len() < size.max {
            word = mix(word);
            buffer.extend_from_slice(&word.to_le_bytes());
        }
        buffer.truncate(size.max);
        PayloadMaker { size, buffer }
    }

    /// Appends the encoded record to `out`. The size is a function of producer
    /// and sequence.
    ///
    /// # Errors
    /// None as long as the size range lies within the record limit.
    pub fn append(&mut self, out: &mut Vec<u8>, trace: &Trace) -> Result<(), WireError> {
        let spread = (self.size.max - self.size.min) as u64 + 1;
        let size = self.size.min
            + (mix(trace.sequence ^ u64::from(trace.producer) << 40) % spread) as usize;
        let header = trace.encode();
        if let Some(front) = self.buffer.get_mut(..HEADER_BYTES) {
            front.copy_from_slice(&header);
        }
        RecordParts {
            payload: self.buffer.get(..size).unwrap_or(&header),
            ..Default::default()
        }
        .encode(out)
    }
}

/// SplitMix64: one step of a well-spread sequence.
pub fn mix(value: u64) -> u64 {
    let mut word = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::record::Records;

    #[test]
    fn records_carry_their_trace_and_stay_in_the_size_range() {
        let size = SizeRange { min: 40, max: 90 };
        let mut maker = PayloadMaker::new(size, 1);
        let mut out = vec![];
        let trace = |sequence| Trace {
            run: 7,
            producer: 3,
            sequence,
            intended_ns: 1 << 40,
        };
        for sequence in 0..500 {
            maker.append(&mut out, &trace(sequence)).unwrap();
        }
        let mut sizes = std::collections::BTreeSet::new();
        for (sequence, record) in Records::new(&out).enumerate() {
            let record = record.unwrap();
            record.verify(0).unwrap();
            assert_eq!(Trace::decode(record.payload), Some(trace(sequence as u64)));
            sizes.insert(record.payload.len());
        }
        assert_eq!((sizes.first(), sizes.last()), (Some(&40), Some(&90)));
    }

    #[test]
    fn a_foreign_payload_has_no_trace() {
        assert_eq!(Trace::decode(b""), None);
        assert_eq!(Trace::decode(&[0; 64]), None);
    }
}
