//! What lies behind a place that holds no acceptable batch.

use super::table::After;
use super::walk::Chained;
use crate::log::batch::{body_checksum, BatchHeader, BATCH_HEADER_BYTES};
use crate::log::bytes::all_zero;
use crate::log::format::OtherFormat;
use crate::log::position::{Geometry, LogId, LogPosition, MAX_BATCH_BYTES};
use crate::log::segment_files::SegmentFiles;
use crate::mutation::{removed, Rule};

/// How much of each further segment is looked at first; only one with bytes
/// there is looked through, unless everything is to be.
const WINDOW_BYTES: u64 = 2 * MAX_BATCH_BYTES as u64;

/// Bytes behind the end of a log.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tail {
    /// Highest durable frontier that a header there stamped.
    pub stamped: LogPosition,
    /// First and last (exclusive) block that is not zero.
    pub bytes: Option<(LogPosition, LogPosition)>,
    /// Batches there that verify.
    pub batches: u64,
    /// Blocks that are neither zero nor part of one.
    junk: bool,
    /// The first batch is the next but one of the chain, close by.
    next_but_one: bool,
}

impl Tail {
    pub(super) fn after(&self) -> After {
        match self.bytes {
            None => After::Nothing,
            Some(_) if removed(Rule::HoleProof) => After::Unanswered,
            Some(_) if self.batches == 1 && self.next_but_one && !self.junk => After::Unanswered,
            Some(_) => After::More,
        }
    }
}

/// Reads block by block.
pub(super) struct Scanner<'s, 'd> {
    pub files: &'s mut SegmentFiles<'d>,
    pub geometry: Geometry,
    pub log_id: LogId,
}

impl Scanner<'_, '_> {
    /// Looks through everything from `from` on. `everything` false leaves out
    /// segments whose first part is zero.
    ///
    /// # Errors
    /// A batch there is of another format: what it means cannot be known.
    pub(super) fn tail(
        &mut self,
        from: LogPosition,
        chain: &Chained,
        everything: bool,
    ) -> Result<Tail, OtherFormat> {
        let mut tail = Tail::default();
        let first = self.geometry.segment_of(from);
        let segments: Vec<u64> = self.files.from(first).collect();
        let mut position = from;
        for segment in segments {
            let start = self.geometry.start_of(segment).max(from);
            // A batch may not cross segments, so none reaches behind `start`.
            position = position.max(start);
            let end = LogPosition(start.0 + self.geometry.left_in_segment(start));
            if segment != first && !everything {
                let seen = tail.bytes;
                let window = LogPosition(end.0.min(start.0 + WINDOW_BYTES));
                position = self.stretch(position, window, from, chain, &mut tail)?;
                if tail.bytes == seen {
                    break;
                }
            }
            position = self.stretch(position, end, from, chain, &mut tail)?;
        }
        Ok(tail)
    }

    /// Looks at the blocks in `[position, end)` of one segment; returns where
    /// it stopped, which is behind `end` if a batch reaches further.
    fn stretch(
        &mut self,
        mut position: LogPosition,
        end: LogPosition,
        from: LogPosition,
        chain: &Chained,
        tail: &mut Tail,
    ) -> Result<LogPosition, OtherFormat> {
        let block = u64::from(self.geometry.block_bytes());
        let mut chunk = Vec::new();
        while position < end {
            let capacity = self.geometry.batch_capacity(position) as u64;
            chunk.resize(capacity.min(end.0 - position.0) as usize, 0);
            self.files.read(position, &mut chunk);
            if all_zero(&chunk) {
                position = LogPosition(position.0 + chunk.len() as u64);
                continue;
            }
            let zeros = chunk
                .chunks(block as usize)
                .take_while(|piece| all_zero(piece))
                .count() as u64;
            position = LogPosition(position.0 + zeros * block);
            let header = self.header_at(position)?;
            if let Some(header) = &header {
                // A header that verifies tells the truth, whatever its body does.
                tail.note_stamp(header, chain);
            }
            let next = match header.filter(|header| self.is_body_intact(header)) {
                Some(header) => {
                    tail.note_batch(&header, from, chain);
                    header.end(self.geometry)
                }
                None => {
                    tail.junk = true;
                    LogPosition(position.0 + block)
                }
            };
            let first = tail.bytes.map_or(position, |bytes| bytes.0);
            tail.bytes = Some((first, next));
            position = next;
        }
        Ok(position)
    }

    /// The header at `position` if it is this log's and stands where it says.
    ///
    /// # Errors
    /// It is one of another format.
    pub(super) fn header_at(
        &mut self,
        position: LogPosition,
    ) -> Result<Option<BatchHeader>, OtherFormat> {
        let mut block = vec![0; self.geometry.block_bytes() as usize];
        self.files.read(position, &mut block);
        let Some((header, _)) = BatchHeader::decode(&block) else {
            let other = BatchHeader::other_format(&block, self.log_id, position);
            return other.map_or(Ok(None), Err);
        };
        let padded = self.geometry.padded(header.used_bytes());
        let here = header.log_id == self.log_id
            && (header.position == position || removed(Rule::PositionCheck))
            && padded <= self.geometry.batch_capacity(position) as u64;
        Ok(here.then_some(header))
    }

    fn is_body_intact(&mut self, header: &BatchHeader) -> bool {
        let mut batch = vec![0; header.used_bytes() as usize];
        self.files.read(header.position, &mut batch);
        let body = batch.get(BATCH_HEADER_BYTES..).map(body_checksum);
        body == Some(header.body_checksum)
    }
}

impl Tail {
    fn note_stamp(&mut self, header: &BatchHeader, chain: &Chained) {
        if chain.can_be_later(header) {
            self.stamped = self.stamped.max(header.durable_next);
        }
    }

    fn note_batch(&mut self, header: &BatchHeader, from: LogPosition, chain: &Chained) {
        self.batches += 1;
        self.next_but_one |= self.batches == 1
            && chain.can_be_later(header)
            && chain.is_next_but_one(header)
            && header.durable_next <= from
            && header.position.0 - from.0 <= u64::from(MAX_BATCH_BYTES);
    }
}
