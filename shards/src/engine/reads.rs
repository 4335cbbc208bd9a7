//! Bytes that left the tail cache: read back in chunks, kept a short while.

use std::{cmp::Ordering, collections::VecDeque};

use wire::record::Record;

use super::{
    core::Engine,
    types::{Effect, ReadFile, ReadResult},
};
use crate::{
    io::BatchBuffer,
    log::{IoFailure, LogPosition, LogWriter},
    state::queue::RecordLocation,
};

/// Least bytes one read asks for: neighbours of a record are wanted next.
/// Room for what is larger than the cache is kept for so long after it was wanted, in ms.
const STRETCH_MS: u64 = 1_000;
const CHUNK_BYTES: u64 = 256 << 10;
/// Direct reads start and end on this.
const ALIGN: u64 = 4096;

/// How long a failed read is remembered, in ms of server time.
const FAILED_MS: u64 = 60_000;
/// So many that failed alone, and the whole file counts as unreadable.
const FAILED_IN_A_FILE: usize = 3;
/// Most failed reads that are remembered.
const MAX_FAILED: usize = 64;

/// Contiguous bytes of one file.
#[derive(Debug, Clone, Copy)]
struct Piece {
    file: ReadFile,
    offset: u64,
    len: u32,
}

struct Chunk {
    file: ReadFile,
    offset: u64,
    bytes: Vec<u8>,
}

struct Pending {
    id: u64,
    file: ReadFile,
    offset: u64,
    len: u32,
    /// Bytes from `offset` on that were written when it was asked for: what
    /// lies behind them may be written while the read is under way, or later.
    written: u64,
    /// Nothing is read ahead: a read around here failed.
    alone: bool,
}

/// A read that failed, until it is tried again.
struct Failed {
    file: ReadFile,
    from: u64,
    to: u64,
    alone: bool,
    until_ms: u64,
}

/// Chunks read back, oldest first, and reads under way.
pub(super) struct ReadCache {
    chunks: VecDeque<Chunk>,
    held: u64,
    limit: u64,
    /// Something larger than the limit is being read, piece by piece: room for it, or its
    /// pieces would drive each other out for ever. Until this server time, in ms.
    stretch: (u64, u64),
    pending: Vec<Pending>,
    wanted: Vec<Pending>,
    failed: Vec<Failed>,
    next_id: u64,
}

impl ReadCache {
    /// `open_counter`: of the log. A read that an engine before this one asked
    /// for may still be answered: its number must mean nothing here.
    pub(super) fn new(limit: u64, open_counter: u64) -> Self {
        ReadCache {
            chunks: VecDeque::new(),
            held: 0,
            limit,
            stretch: (0, 0),
            pending: Vec::new(),
            wanted: Vec::new(),
            failed: Vec::new(),
            next_id: open_counter << 32 | 1,
        }
    }

    /// Notes a read that failed.
    fn note_failed(&mut self, read: &Pending, now_ms: u64) {
        let until_ms = now_ms + FAILED_MS;
        self.failed.retain(|failed| failed.until_ms > now_ms);
        let alone = |failed: &&Failed| failed.alone && failed.file == read.file;
        let whole = read.alone && self.failed.iter().filter(alone).count() >= FAILED_IN_A_FILE;
        let (from, to) = match whole {
            true => (0, u64::MAX),
            false => (read.offset, read.offset + u64::from(read.len)),
        };
        if self.failed.len() < MAX_FAILED {
            self.failed.push(Failed {
                file: read.file,
                from,
                to,
                alone: read.alone,
                until_ms,
            });
        }
    }

    /// A read of the piece failed a while ago; `alone`: one of it and nothing else.
    fn has_failed(&self, piece: &Piece, alone: bool, now_ms: u64) -> bool {
        let end = piece.offset + u64::from(piece.len);
        self.failed.iter().any(|failed| {
            let overlaps = failed.from < end && piece.offset < failed.to;
            let counts = failed.alone || !alone;
            failed.file == piece.file && overlaps && counts && failed.until_ms > now_ms
        })
    }

    /// A read is under way.
    pub(super) fn is_reading(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Files that reads under way need.
    pub(super) fn files(&self) -> impl Iterator<Item = ReadFile> + '_ {
        self.pending
            .iter()
            .chain(&self.wanted)
            .map(|read| read.file)
    }

    fn find(&self, piece: &Piece) -> Option<&[u8]> {
        let end = piece.offset + u64::from(piece.len);
        self.chunks.iter().rev().find_map(|chunk| {
            let inside = chunk.file == piece.file
                && chunk.offset <= piece.offset
                && end <= chunk.offset + chunk.bytes.len() as u64;
            let at = usize::try_from(piece.offset.checked_sub(chunk.offset)?).ok()?;
            inside
                .then(|| chunk.bytes.get(at..at + piece.len as usize))
                .flatten()
        })
    }

    /// Asks for a piece unless a read under way brings it. `written_end`: how
    /// far its file is written; `file_bytes`: its length.
    fn want(&mut self, piece: &Piece, written_end: u64, file_bytes: u64, now_ms: u64) {
        let end = piece.offset + u64::from(piece.len);
        let covered = self.pending.iter().chain(&self.wanted).any(|read| {
            read.file == piece.file
                && read.offset <= piece.offset
                && end <= read.offset + read.written
        });
        if covered {
            return;
        }
        let (offset, piece_end) = (piece.offset / ALIGN * ALIGN, end);
        // Where a read failed nothing else is put at risk.
        let alone = self.has_failed(piece, false, now_ms);
        let ahead = if alone { 0 } else { CHUNK_BYTES };
        let end = end.max(offset + ahead).min(file_bytes);
        let end = end.div_ceil(ALIGN) * ALIGN;
        let len = u32::try_from(end - offset).unwrap_or(u32::MAX);
        // The piece itself is written: it left the tail cache.
        let written = written_end.max(piece_end) - offset;
        let written = written.min(u64::from(len));
        let id = self.next_id;
        self.next_id += 1;
        self.wanted.push(Pending {
            id,
            file: piece.file,
            offset,
            len,
            written,
            alone,
        });
    }

    /// What is read takes so many bytes in all.
    fn make_room(&mut self, bytes: u64, now_ms: u64) {
        if bytes > self.limit {
            self.stretch = (self.stretch.0.max(bytes), now_ms + STRETCH_MS);
        } else if self.stretch.1 < now_ms {
            self.stretch.0 = 0;
        }
    }

    fn keep(&mut self, chunk: Chunk) {
        self.held += chunk.bytes.len() as u64;
        self.chunks.push_back(chunk);
        let limit = self.limit.max(self.stretch.0);
        while self.held > limit && self.chunks.len() > 1 {
            let Some(old) = self.chunks.pop_front() else {
                break;
            };
            self.held -= old.bytes.len() as u64;
        }
    }
}

/// Calls `each` with the pieces that a record's bytes stand in.
fn pieces<B: BatchBuffer>(
    log: &LogWriter<B>,
    location: RecordLocation,
    len: u32,
    each: &mut dyn FnMut(Piece),
) {
    match location {
        RecordLocation::Ring(position) => {
            log.visit_extents(LogPosition(position), len, &mut |extent| {
                each(Piece {
                    file: ReadFile::Segment(extent.segment),
                    offset: extent.offset,
                    len: extent.len,
                });
            });
        }
        RecordLocation::Packed { file, at } => each(Piece {
            file: ReadFile::Pack(file),
            offset: u64::from(at),
            len,
        }),
    }
}

fn is_cached<B: BatchBuffer>(log: &LogWriter<B>, location: RecordLocation, len: u32) -> bool {
    match location {
        RecordLocation::Ring(position) => log.visit_cached(LogPosition(position), len, &mut |_| {}),
        RecordLocation::Packed { .. } => false,
    }
}

impl<B: BatchBuffer> Engine<B> {
    /// True when the record's bytes are at hand; otherwise they are asked for.
    pub(super) fn at_hand(&mut self, location: RecordLocation, len: u32) -> bool {
        if is_cached(&self.log, location, len) {
            return true;
        }
        let mut missing = Vec::new();
        let mut room = u64::from(len);
        let reads = &self.reads;
        pieces(&self.log, location, len, &mut |piece| {
            room += CHUNK_BYTES + 2 * ALIGN;
            if reads.find(&piece).is_none() {
                missing.push(piece);
            }
        });
        self.reads.make_room(room, self.server_ms);
        for piece in &missing {
            let (written_end, file_bytes) = self.extent_of(piece.file);
            let now_ms = self.server_ms;
            self.reads.want(piece, written_end, file_bytes, now_ms);
        }
        missing.is_empty()
    }

    /// Whether a record at hand is what was written. What is still in memory
    /// was checked when it came in.
    pub(super) fn is_sound(&mut self, location: RecordLocation, len: u32) -> bool {
        if is_cached(&self.log, location, len) {
            return true;
        }
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        let there = visit(&self.log, &self.reads, location, len, &mut |piece| {
            bytes.extend_from_slice(piece);
        });
        let sound = there && Record::is_intact(&bytes);
        self.scratch = bytes;
        sound
    }

    /// How far a file is written, and how long it is.
    fn extent_of(&self, file: ReadFile) -> (u64, u64) {
        let (geometry, next) = (self.log.geometry(), self.log.frontiers().written_next);
        let bytes = geometry.segment_bytes();
        match file {
            ReadFile::Pack(file) => {
                let bytes = self.upkeep.pack_bytes(file);
                (bytes, bytes)
            }
            ReadFile::Segment(segment) => match geometry.segment_of(next).cmp(&segment) {
                Ordering::Less => (0, bytes),
                Ordering::Equal => (geometry.offset_of(next), bytes),
                Ordering::Greater => (bytes, bytes),
            },
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
                    file: read.file,
                    offset: read.offset,
                    bytes: result.bytes,
                });
            }
            Err(failure) => self.on_read_failed(&read, &failure),
        }
        self.after_read();
    }

    fn on_read_failed(&mut self, read: &Pending, failure: &IoFailure) {
        if !self
            .reads
            .failed
            .iter()
            .any(|failed| failed.file == read.file)
        {
            let message = format!(
                "reading {} failed: {}; records that cannot be read are named and held back, those around them go on",
                read.file.name(),
                failure.message
            );
            self.notices.push(super::types::Notice::Problem(message));
        }
        self.reads.note_failed(read, self.server_ms);
        self.pause_reads();
    }

    /// The record could not be read, alone, a while ago.
    pub(super) fn is_unreadable(&self, location: RecordLocation, len: u32) -> bool {
        if self.reads.failed.is_empty() {
            return false;
        }
        let mut unreadable = false;
        pieces(&self.log, location, len, &mut |piece| {
            unreadable |= self.reads.has_failed(&piece, true, self.server_ms);
        });
        unreadable
    }

    pub(super) fn push_reads(&mut self, effects: &mut Vec<Effect<B>>) {
        if self.latched {
            // The files are about to be opened anew, and whoever waits here is
            // then told to connect again.
            self.reads.wanted.clear();
        }
        for read in self.reads.wanted.drain(..) {
            effects.push(Effect::Read {
                id: read.id,
                file: read.file,
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
    log: &LogWriter<B>,
    reads: &ReadCache,
    location: RecordLocation,
    len: u32,
    visit: &mut dyn FnMut(&[u8]),
) -> bool {
    if let RecordLocation::Ring(position) = location {
        if log.visit_cached(LogPosition(position), len, visit) {
            return true;
        }
    }
    let mut all = true;
    pieces(log, location, len, &mut |piece| match reads.find(&piece) {
        Some(bytes) if all => visit(bytes),
        _ => all = false,
    });
    all
}
