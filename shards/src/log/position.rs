//! Places in a log, and the geometry they are counted in.

use crate::mutation::{removed, Rule};

/// Largest write: header, items and padding of one batch, in bytes.
pub const MAX_BATCH_BYTES: u32 = 512 * 1024;

/// Batches that are submitted and not yet released (completed, and everything
/// before them too). Recovery rests on it: behind a batch that never arrived
/// stands at most one more that nothing was answered from.
pub const MAX_UNRELEASED_BATCHES: usize = 2;

/// The first segment's sequence number; position 0 is never used.
pub const FIRST_SEGMENT: u64 = 1;

const MIN_BLOCK_BYTES: u32 = 512;
const MAX_BLOCK_BYTES: u32 = 64 * 1024;
const MIN_SEGMENT_BLOCKS: u64 = 4;
const MAX_SEGMENT_BYTES: u64 = 4 << 30;

const _: () = assert!(MAX_BATCH_BYTES.is_multiple_of(MAX_BLOCK_BYTES));
const _: () = assert!(MIN_BLOCK_BYTES.is_power_of_two() && MAX_BLOCK_BYTES.is_power_of_two());

/// A byte place in a log: segment sequence number × segment size + offset.
/// Places grow along the log; only a jump leaves a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LogPosition(pub u64);

impl std::fmt::Display for LogPosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A log's identity: random, drawn when the log is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct LogId(pub u128);

impl std::fmt::Display for LogId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Contiguous bytes inside one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub segment: u64,
    /// Byte offset in the segment, not aligned.
    pub offset: u64,
    pub len: u32,
}

/// Sizes fixed when a log is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    segment_bytes: u64,
    block_bytes: u32,
}

/// Sizes no log can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    #[error("block size {0} is not a power of two between 512 and 65536")]
    Block(u32),
    #[error(
        "segment size {0} is not a multiple of the block size with at least 4 blocks and at most 4 GiB"
    )]
    Segment(u64),
}

impl Geometry {
    /// Checks the sizes, in bytes.
    pub fn new(segment_bytes: u64, block_bytes: u32) -> Result<Self, GeometryError> {
        if !block_bytes.is_power_of_two()
            || !(MIN_BLOCK_BYTES..=MAX_BLOCK_BYTES).contains(&block_bytes)
        {
            return Err(GeometryError::Block(block_bytes));
        }
        let block = u64::from(block_bytes);
        if !segment_bytes.is_multiple_of(block)
            || segment_bytes < MIN_SEGMENT_BLOCKS * block
            || segment_bytes > MAX_SEGMENT_BYTES
        {
            return Err(GeometryError::Segment(segment_bytes));
        }
        Ok(Geometry {
            segment_bytes,
            block_bytes,
        })
    }

    pub fn segment_bytes(self) -> u64 {
        self.segment_bytes
    }

    pub fn block_bytes(self) -> u32 {
        self.block_bytes
    }

    /// Sequence number of the segment that holds `position`.
    pub fn segment_of(self, position: LogPosition) -> u64 {
        position.0 / self.segment_bytes
    }

    /// Offset of `position` in its segment.
    pub fn offset_of(self, position: LogPosition) -> u64 {
        position.0 % self.segment_bytes
    }

    /// First place of a segment; saturates for numbers no log reaches.
    pub fn start_of(self, segment: u64) -> LogPosition {
        LogPosition(segment.saturating_mul(self.segment_bytes))
    }

    /// Bytes from `position` to the end of its segment, at least 1.
    pub fn left_in_segment(self, position: LogPosition) -> u64 {
        self.segment_bytes - self.offset_of(position)
    }

    /// `bytes` rounded up to whole blocks.
    pub fn padded(self, bytes: u64) -> u64 {
        if removed(Rule::WholeBlocks) {
            return bytes.next_multiple_of(u64::from(MIN_BLOCK_BYTES));
        }
        bytes.next_multiple_of(u64::from(self.block_bytes))
    }

    /// Whether a segment of this number has places that fit 64 bits.
    pub fn is_addressable(self, segment: u64) -> bool {
        segment >= FIRST_SEGMENT && segment < (u64::MAX / self.segment_bytes) - 1
    }

    /// Largest batch that may start at `position`, in bytes.
    pub fn batch_capacity(self, position: LogPosition) -> usize {
        let left = self.left_in_segment(position);
        // At most MAX_BATCH_BYTES, so it fits every usize.
        left.min(u64::from(MAX_BATCH_BYTES)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_checked() {
        assert!(Geometry::new(64 << 20, 4096).is_ok());
        assert!(Geometry::new(2048, 512).is_ok());
        assert_eq!(
            Geometry::new(64 << 20, 1000),
            Err(GeometryError::Block(1000))
        );
        assert_eq!(Geometry::new(64 << 20, 0), Err(GeometryError::Block(0)));
        assert_eq!(Geometry::new(4096, 4096), Err(GeometryError::Segment(4096)));
        assert_eq!(
            Geometry::new(16385, 4096),
            Err(GeometryError::Segment(16385))
        );
        assert_eq!(
            Geometry::new(u64::MAX, 512),
            Err(GeometryError::Segment(u64::MAX))
        );
    }

    #[test]
    fn places_translate_both_ways() {
        let geometry = Geometry::new(64 * 1024, 4096).unwrap();
        let position = LogPosition(3 * 64 * 1024 + 5);
        assert_eq!(geometry.segment_of(position), 3);
        assert_eq!(geometry.offset_of(position), 5);
        assert_eq!(geometry.left_in_segment(position), 64 * 1024 - 5);
        assert_eq!(geometry.start_of(3).0 + 5, position.0);
        assert_eq!(geometry.padded(4097), 8192);
        assert!(!geometry.is_addressable(u64::MAX / 4));
        assert!(!geometry.is_addressable(0));
    }
}
