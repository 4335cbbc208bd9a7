//! Reading back what was appended: from memory, or where it is on disk.

use super::LogWriter;
use crate::io::BatchBuffer;
use crate::log::position::{Extent, LogPosition};

impl<B: BatchBuffer> LogWriter<B> {
    /// Calls `visit` with the bytes at `position`, piece by piece, if all of
    /// them are in memory (open batches and tail cache); otherwise false and
    /// `visit` is not called. An item that is not wholly written always is in
    /// memory; any other one can be read from its [extents](Self::visit_extents).
    pub fn visit_cached(
        &self,
        position: LogPosition,
        len: u32,
        visit: &mut dyn FnMut(&[u8]),
    ) -> bool {
        let mut pieces = self.links.pieces(position, len);
        if !pieces.all(|(place, len)| self.find(place, len).is_some()) {
            return false;
        }
        for (place, len) in self.links.pieces(position, len) {
            if let Some(bytes) = self.find(place, len) {
                visit(bytes);
            }
        }
        true
    }

    /// The place `bytes` further on in an item's payload, across fragments.
    pub fn advance(&self, position: LogPosition, bytes: u32) -> LogPosition {
        self.links.advance(position, bytes)
    }

    /// Calls `visit` with where the bytes are on disk, across fragments; each
    /// extent is in one segment.
    pub fn visit_extents(&self, position: LogPosition, len: u32, visit: &mut dyn FnMut(Extent)) {
        for (place, len) in self.links.pieces(position, len) {
            visit(Extent {
                segment: self.geometry.segment_of(place),
                offset: self.geometry.offset_of(place),
                len,
            });
        }
    }

    /// As [`LogWriter::visit_extents`], gathered.
    pub fn extents(&self, position: LogPosition, len: u32) -> Vec<Extent> {
        let mut extents = Vec::new();
        self.visit_extents(position, len, &mut |extent| extents.push(extent));
        extents
    }

    /// The cache keeps what is at or above `position`, until this is called
    /// again; without a call it keeps nothing but what is not durable.
    pub fn set_cache_floor(&mut self, position: LogPosition) {
        self.cache.set_floor(position);
    }

    /// Everything at or above stands in memory.
    pub fn cached_from(&self) -> LogPosition {
        self.cache.start().unwrap_or(self.submitted)
    }

    /// Memory the tail cache holds, in bytes.
    pub fn cache_bytes(&self) -> u64 {
        self.cache.bytes()
    }

    fn find(&self, position: LogPosition, len: u32) -> Option<&[u8]> {
        let len = len as usize;
        if position < self.submitted {
            return self.cache.find(position, len);
        }
        let after = self
            .pending
            .partition_point(|batch| batch.position() <= position);
        self.pending.get(after.checked_sub(1)?)?.find(position, len)
    }
}
