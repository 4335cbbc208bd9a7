//! A batch that items are still copied into, or that waits to be written.

use crate::io::BatchBuffer;
use crate::log::batch::{body_checksum, BatchHeader, BATCH_HEADER_BYTES};
use crate::log::item::{FragmentHeader, FRAGMENT_HEADER_BYTES};
use crate::log::position::{Geometry, LogPosition};

/// Smallest buffer a batch starts with, in bytes.
const MIN_BUFFER_BYTES: usize = 8 * 1024;

/// A shorter piece of a payload is not worth a fragment of its own.
const MIN_FRAGMENT_BYTES: usize = 256;

// The smallest batch (one block of 512 bytes) takes a fragment.
const _: () = assert!(BATCH_HEADER_BYTES + FRAGMENT_HEADER_BYTES + MIN_FRAGMENT_BYTES <= 512);

/// Header space, then fragments back to back, then zeros.
pub(super) struct OpenBatch<B> {
    buffer: B,
    /// Usable bytes of `buffer`, a multiple of the block size.
    allocated: usize,
    position: LogPosition,
    used: usize,
    /// Bound on `allocated`: the largest batch, or what the segment has left.
    capacity: usize,
    fragments: u32,
    /// Some item is to be durable.
    pub(super) wants_durable: bool,
    /// Every item asked for durable when it was appended.
    pub(super) all_durable: bool,
    /// Where the last item's payload starts (perhaps in an earlier batch), if
    /// it goes on in the next batch.
    pub(super) continues_from: Option<LogPosition>,
}

impl<B: BatchBuffer> OpenBatch<B> {
    /// An empty batch at `position`, its buffer sized for about `expected` bytes.
    pub(super) fn new(geometry: Geometry, position: LogPosition, expected: usize) -> Self {
        let capacity = geometry.batch_capacity(position);
        let smallest = MIN_BUFFER_BYTES.max(geometry.block_bytes() as usize);
        let allocated = expected
            .max(smallest)
            .checked_next_power_of_two()
            .map_or(capacity, |size| size.min(capacity));
        OpenBatch {
            buffer: B::allocate(allocated),
            allocated,
            position,
            used: BATCH_HEADER_BYTES,
            capacity,
            fragments: 0,
            wants_durable: false,
            all_durable: true,
            continues_from: None,
        }
    }

    pub(super) fn position(&self) -> LogPosition {
        self.position
    }

    /// The end of the last item.
    pub(super) fn used_end(&self) -> LogPosition {
        LogPosition(self.position.0 + self.used as u64)
    }

    /// Where the next batch will start if nothing more is added.
    pub(super) fn padded_end(&self, geometry: Geometry) -> LogPosition {
        LogPosition(self.position.0 + geometry.padded(self.used as u64))
    }

    /// Payload bytes that the next fragment of an item with `left` payload
    /// bytes to go may have; `None` if the batch is full.
    pub(super) fn room(&self, left: usize) -> Option<usize> {
        let room = (self.capacity - self.used).checked_sub(FRAGMENT_HEADER_BYTES)?;
        (room >= left.min(MIN_FRAGMENT_BYTES)).then(|| room.min(left))
    }

    /// Adds a fragment header and makes room for its payload; returns the place
    /// of the payload. Then [`OpenBatch::push`] exactly `header.len` bytes.
    pub(super) fn begin_fragment(&mut self, header: &FragmentHeader) -> LogPosition {
        self.grow(FRAGMENT_HEADER_BYTES + header.len as usize);
        self.push(&header.encode());
        self.fragments += 1;
        self.used_end()
    }

    /// Copies bytes that [`OpenBatch::begin_fragment`] made room for.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let end = self.used + bytes.len();
        debug_assert!(end <= self.allocated);
        if let Some(place) = self.buffer.bytes_mut().get_mut(self.used..end) {
            place.copy_from_slice(bytes);
        }
        self.used = end;
    }

    /// The `len` bytes at `position`, if this batch holds them all.
    pub(super) fn find(&self, position: LogPosition, len: usize) -> Option<&[u8]> {
        let from = usize::try_from(position.0.checked_sub(self.position.0)?).ok()?;
        let end = from.checked_add(len)?;
        if end > self.used {
            return None;
        }
        self.buffer.bytes().get(from..end)
    }

    /// Completes header and padding.
    pub(super) fn seal(mut self, geometry: Geometry, link: &SealLink) -> Sealed<B> {
        let padded = geometry.padded(self.used as u64) as usize;
        let body = self.buffer.bytes().get(BATCH_HEADER_BYTES..self.used);
        let body = body.unwrap_or_default();
        let header = BatchHeader {
            log_id: link.log_id,
            position: self.position,
            epoch: link.epoch,
            sequence: link.sequence,
            predecessor: link.predecessor,
            durable_next: link.durable_next,
            body_bytes: body.len() as u32,
            fragments: self.fragments,
            body_checksum: body_checksum(body),
        };
        let checksum = header.encode(self.buffer.bytes_mut());
        // The buffer came as it was: nothing of its past reaches the disk.
        if let Some(padding) = self.buffer.bytes_mut().get_mut(self.used..padded) {
            padding.fill(0);
        }
        self.buffer.trim(padded);
        Sealed {
            start: self.position,
            end: LogPosition(self.position.0 + padded as u64),
            used: self.used,
            allocated: self.allocated as u64,
            checksum,
            continues_from: self.continues_from,
            buffer: self.buffer,
        }
    }

    fn grow(&mut self, need: usize) {
        let target = self.used + need;
        if target <= self.allocated {
            return;
        }
        debug_assert!(target <= self.capacity);
        let size = target
            .checked_next_power_of_two()
            .map_or(self.capacity, |size| size.min(self.capacity));
        let mut larger = B::allocate(size);
        let used = self.buffer.bytes().get(..self.used);
        if let (Some(to), Some(from)) = (larger.bytes_mut().get_mut(..self.used), used) {
            to.copy_from_slice(from);
        }
        self.buffer = larger;
        self.allocated = size;
    }
}

/// What a batch's header says about its place in the chain.
pub(super) struct SealLink {
    pub log_id: crate::log::LogId,
    pub epoch: u64,
    pub sequence: u64,
    pub predecessor: u64,
    pub durable_next: LogPosition,
}

/// A batch ready to be written.
pub(super) struct Sealed<B> {
    pub start: LogPosition,
    pub end: LogPosition,
    pub used: usize,
    pub allocated: u64,
    pub checksum: u64,
    pub continues_from: Option<LogPosition>,
    pub buffer: B,
}
