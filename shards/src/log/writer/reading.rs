//! Reading back what was appended: from memory, or where it is on disk.

use super::LogWriter;
use crate::io::BatchBuffer;
use crate::log::position::{Extent, LogPosition};

impl<B: BatchBuffer> LogWriter<B> {
    /// Calls `visit` with the bytes at `position`, piece by piece, if all of
    /// them are in memory (open batches and tail cache); otherwise false and
    /// `visit` is not called. An item that is not wholly written always is in
    /// memory; any other one can be read from its [`extents`](Self::extents).
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

    /// Where the bytes are on disk, across fragments; each in one segment.
    pub fn extents(&self, position: LogPosition, len: u32) -> Vec<Extent> {
        self.links
            .pieces(position, len)
            .map(|(place, len)| Extent {
                segment: self.geometry.segment_of(place),
                offset: self.geometry.offset_of(place),
                len,
            })
            .collect()
    }

    /// The cache keeps what is at or above `position`, until this is called
    /// again; without a call it keeps nothing but what is not durable.
    pub fn set_cache_floor(&mut self, position: LogPosition) {
        self.cache.set_floor(position);
    }

    /// Memory the tail cache holds, in bytes.
    pub fn cache_bytes(&self) -> u64 {
        self.cache.bytes()
    }

    /// Forgets how fragments below `position` hang together: nothing there is
    /// addressed any more.
    pub fn forget_below(&mut self, position: LogPosition) {
        self.links.forget_below(position);
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
