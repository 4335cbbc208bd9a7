//! Bytes that left the tail cache: read back in chunks, kept a short while.

use std::{cmp::Ordering, collections::VecDeque};

use super::{
    core::Engine,
    types::{Effect, ReadResult},
};
use crate::{
    io::BatchBuffer,
    log::{Extent, IoFailure, LogPosition},
    state::queue::RecordLocation,
};

/// Least bytes one read asks for: neighbours of a record are wanted next.
const CHUNK_BYTES: u64 = 256 << 10;
/// Direct reads start and end on this.
const ALIGN: u64 = 4096;

struct Chunk {
    segment: u64,
    offset: u64,
    bytes: Vec<u8>,
}

struct Pending {
    id: u64,
    segment: u64,
    offset: u64,
    len: u32,
    /// Bytes from `offset` on that were written when it was asked for: what
    /// lies behind them may be written while the read is under way, or later.
    written: u64,
}

/// Chunks read back, oldest first, and reads under way.
pub(super) struct ReadCache {
    chunks: VecDeque<Chunk>,
    held: u64,
    limit: u64,
    segment_bytes: u64,
    pending: Vec<Pending>,
    wanted: Vec<Pending>,
    next_id: u64,
}

impl ReadCache {
    /// `open_counter`: of the log. A read that an engine before this one asked
    /// for may still be answered: its number must mean nothing here.
    pub(super) fn new(limit: u64, segment_bytes: u64, open_counter: u64) -> Self {
        ReadCache {
            chunks: VecDeque::new(),
            held: 0,
            limit,
            segment_bytes,
            pending: Vec::new(),
            wanted: Vec::new(),
            next_id: open_counter << 32 | 1,
        }
    }

    fn find(&self, extent: &Extent) -> Option<&[u8]> {
        let end = extent.offset + u64::from(extent.len);
        self.chunks.iter().rev().find_map(|chunk| {
            let inside = chunk.segment == extent.segment
                && chunk.offset <= extent.offset
                && end <= chunk.offset + chunk.bytes.len() as u64;
            let at = usize::try_from(extent.offset.checked_sub(chunk.offset)?).ok()?;
            inside
                .then(|| chunk.bytes.get(at..at + extent.len as usize))
                .flatten()
        })
    }

    /// Asks for an extent unless a read under way brings it. `written_end`:
    /// how far its segment is written.
    fn want(&mut self, extent: &Extent, written_end: u64) {
        let end = extent.offset + u64::from(extent.len);
        let covered = self.pending.iter().chain(&self.wanted).any(|read| {
            read.segment == extent.segment
                && read.offset <= extent.offset
                && end <= read.offset + read.written
        });
        if covered {
            return;
        }
        let (offset, extent_end) = (extent.offset / ALIGN * ALIGN, end);
        let end = end.max(offset + CHUNK_BYTES).min(self.segment_bytes);
        let end = end.div_ceil(ALIGN) * ALIGN;
        let len = u32::try_from(end - offset).unwrap_or(u32::MAX);
        // The extent itself is written: it left the tail cache.
        let written = written_end.max(extent_end) - offset;
        let written = written.min(u64::from(len));
        let id = self.next_id;
        self.next_id += 1;
        self.wanted.push(Pending {
            id,
            segment: extent.segment,
            offset,
            len,
            written,
        });
    }

    fn keep(&mut self, chunk: Chunk) {
        self.held += chunk.bytes.len() as u64;
        self.chunks.push_back(chunk);
        while self.held > self.limit && self.chunks.len() > 1 {
            let Some(old) = self.chunks.pop_front() else {
                break;
            };
            self.held -= old.bytes.len() as u64;
        }
    }
}

impl<B: BatchBuffer> Engine<B> {
    /// True when the record's bytes are at hand; otherwise they are asked for.
    pub(super) fn at_hand(&mut self, location: RecordLocation, len: u32) -> bool {
        let RecordLocation::Ring(position) = location else {
            return false;
        };
        if self.log.visit_cached(position, len, &mut |_| {}) {
            return true;
        }
        let mut all = true;
        for extent in self.log.extents(position, len) {
            if self.reads.find(&extent).is_none() {
                let written_end = self.written_end(extent.segment);
                self.reads.want(&extent, written_end);
                all = false;
            }
        }
        all
    }

    /// How far a segment is written, as an offset in it.
    fn written_end(&self, segment: u64) -> u64 {
        let (geometry, next) = (self.log.geometry(), self.log.frontiers().written_next);
        match geometry.segment_of(next).cmp(&segment) {
            Ordering::Less => 0,
            Ordering::Equal => geometry.offset_of(next),
            Ordering::Greater => geometry.segment_bytes(),
        }
    }

    pub(super) fn on_read_done(&mut self, id: u64, result: Result<ReadResult, IoFailure>) {
        let Some(at) = self.reads.pending.iter().position(|read| read.id == id) else {
            return;
        };
        let read = self.reads.pending.swap_remove(at);
        match result {
            Ok(mut result) => {
                result.bytes.truncate(read.written as usize);
                self.reads.keep(Chunk {
                    segment: read.segment,
                    offset: read.offset,
                    bytes: result.bytes,
                });
            }
            Err(failure) => self.on_read_failed(read.segment, &failure),
        }
        self.after_read();
    }

    fn on_read_failed(&mut self, segment: u64, failure: &IoFailure) {
        let message = format!(
            "reading segment {segment} failed: {}; its records wait, fresh ones go on",
            failure.message
        );
        self.notices.push(super::types::Notice::Problem(message));
        self.pause_reads();
    }

    pub(super) fn push_reads(&mut self, effects: &mut Vec<Effect<B>>) {
        for read in self.reads.wanted.drain(..) {
            let (id, segment) = (read.id, read.segment);
            effects.push(Effect::Read {
                id,
                segment,
                offset: read.offset,
                len: read.len,
            });
            self.reads.pending.push(read);
        }
    }
}

/// Visits a record's bytes, from the tail cache or from chunks read back.
/// False when they are not at hand; what was visited is then not the record.
pub(super) fn visit<B: BatchBuffer>(
    log: &crate::log::LogWriter<B>,
    reads: &ReadCache,
    position: LogPosition,
    len: u32,
    visit: &mut dyn FnMut(&[u8]),
) -> bool {
    if log.visit_cached(position, len, visit) {
        return true;
    }
    log.extents(position, len)
        .iter()
        .all(|extent| match reads.find(extent) {
            Some(bytes) => {
                visit(bytes);
                true
            }
            None => false,
        })
}
