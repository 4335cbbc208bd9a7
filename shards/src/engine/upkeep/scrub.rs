//! Scrubbing: looking, at a low rate, whether what stands in cold segments and
//! packed files is still what was written, before somebody needs it.
//!
//! 1. Only unsettled records are looked at, each once a pass; one whose bytes do
//!    not verify is told of by name, once. It is held back when its turn comes.
//! 2. A piece is a phase of the cycle: nothing that it reads is moved or let go
//!    meanwhile. Packing and checkpoints go first.
//!
//! Never: writes, or mends. Reads go to the disk, not to memory (the files are
//! opened for direct I/O).

use std::sync::Arc;

use super::{Phase, TURN_PARTITIONS, TURN_RECORDS};
use crate::{
    engine::{core::Engine, partition::PartitionKey, types::Notice},
    io::BatchBuffer,
    log::IoFailure,
    store::{PackRecord, ScrubJob, Scrubbed, StoreJob},
};

/// Bytes of records in a piece, unless a single one is longer.
const PIECE_BYTES: u64 = 1 << 20;
/// Bytes a second that are read.
const BYTES_PER_S: u64 = 8 << 20;
/// Rest after a turn that found nothing to read.
const TURN_PAUSE_MS: u64 = 10;
/// The first pass begins so long after the start, or sooner where passes do.
const FIRST_AFTER_MS: u64 = 600_000;

/// Where the pass is.
#[derive(Default)]
pub(in crate::engine) struct Scrub {
    /// From the start of a pass to the next, in ms; 0 = off.
    interval_ms: u64,
    /// When to go on, in server time.
    due_ms: u64,
    began_ms: u64,
    /// Of this pass; empty = none is under way.
    keys: Vec<PartitionKey>,
    at: usize,
    /// The offset to go on at.
    from: u64,
    records: u64,
    bytes: u64,
    damaged: u64,
    /// A piece could not be read, and that was said.
    failing: bool,
}

impl Scrub {
    pub(in crate::engine) fn new(interval_ms: u64, now_ms: u64) -> Self {
        Scrub {
            interval_ms,
            due_ms: now_ms + interval_ms.min(FIRST_AFTER_MS),
            ..Scrub::default()
        }
    }

    pub(super) fn due_ms(&self) -> Option<u64> {
        (self.interval_ms > 0).then_some(self.due_ms)
    }
}

impl<B: BatchBuffer> Engine<B> {
    /// Does the next turn's worth of a pass, if it is time.
    pub(super) fn scrub_on(&mut self) -> Phase {
        let now = self.server_ms;
        if !self.serving || self.upkeep.scrub.due_ms().is_none_or(|due| now < due) {
            return Phase::Idle;
        }
        if self.upkeep.scrub.keys.is_empty() {
            self.begin_pass();
        }
        let job = self.next_piece();
        if !job.records.is_empty() {
            let job = Arc::new(job);
            self.upkeep.start(StoreJob::Scrub(job.clone()));
            return Phase::Scrubbing(job);
        }
        self.upkeep.scrub.due_ms = now + TURN_PAUSE_MS;
        if self.upkeep.scrub.at >= self.upkeep.scrub.keys.len() {
            self.end_pass();
        }
        Phase::Idle
    }

    fn begin_pass(&mut self) {
        let mut keys: Vec<PartitionKey> = self.partitions.keys().copied().collect();
        // The map's order must not show.
        keys.sort_unstable();
        self.upkeep.scrub = Scrub {
            keys,
            interval_ms: self.upkeep.scrub.interval_ms,
            began_ms: self.server_ms,
            ..Scrub::default()
        };
    }

    fn end_pass(&mut self) {
        let scrub = &mut self.upkeep.scrub;
        scrub.keys = Vec::new();
        scrub.due_ms = scrub.due_ms.max(scrub.began_ms + scrub.interval_ms);
        if scrub.records > 0 {
            let (records, bytes, damaged) = (scrub.records, scrub.bytes, scrub.damaged);
            self.notices.push(Notice::Scrubbed {
                records,
                bytes,
                damaged,
            });
        }
    }

    /// The next cold records, from where the pass is.
    fn next_piece(&mut self) -> ScrubJob {
        let mut job = ScrubJob::default();
        let mut bytes = 0;
        let mut budget = TURN_RECORDS;
        for _ in 0..TURN_PARTITIONS {
            let Some(key) = self.upkeep.scrub.keys.get(self.upkeep.scrub.at).copied() else {
                break;
            };
            if budget == 0 || bytes >= PIECE_BYTES {
                break;
            }
            let from = self.upkeep.scrub.from;
            match self.piece_of(key, from, &mut budget, &mut bytes, &mut job) {
                Some(offset) => self.upkeep.scrub.from = offset,
                None => {
                    (self.upkeep.scrub.at, self.upkeep.scrub.from) = (self.upkeep.scrub.at + 1, 0)
                }
            }
        }
        job
    }

    /// Adds a partition's records; the offset to go on at, `None` at its end.
    fn piece_of(
        &self,
        key: PartitionKey,
        from: u64,
        budget: &mut usize,
        bytes: &mut u64,
        job: &mut ScrubJob,
    ) -> Option<u64> {
        let slot = self.partitions.get(&key)?;
        let cut = self.cold_below();
        let mut seen = 0;
        let resume = slot
            .machine
            .visit_places(from, *budget, &mut |offset, location, len| {
                if *bytes >= PIECE_BYTES {
                    return false;
                }
                seen += 1;
                let Some(source) = self.source_below(cut, location, len, &mut job.extents) else {
                    return true;
                };
                *bytes += u64::from(len);
                job.records.push(slot.pack_record(offset, len, source));
                true
            });
        *budget = budget.saturating_sub(seen.max(1));
        resume
    }

    pub(super) fn on_scrubbed(&mut self, result: Result<Scrubbed, IoFailure>) {
        let phase = std::mem::replace(&mut self.upkeep.phase, Phase::Idle);
        let Phase::Scrubbing(job) = phase else {
            self.upkeep.phase = phase;
            return;
        };
        let bytes: u64 = job.records.iter().map(|record| u64::from(record.len)).sum();
        let scrub = &mut self.upkeep.scrub;
        // Where records lie far apart, much more is read than they have.
        let read_bytes = result
            .as_ref()
            .map_or(bytes, |scrubbed| scrubbed.read_bytes);
        scrub.due_ms = self.server_ms + (read_bytes * 1000 / BYTES_PER_S).max(TURN_PAUSE_MS);
        match result {
            Ok(Scrubbed { bad, .. }) => {
                scrub.failing = false;
                scrub.records += job.records.len() as u64;
                scrub.bytes += bytes;
                scrub.damaged += bad.len() as u64;
                self.tell_bad_records(&job.records, &bad);
            }
            Err(failure) => {
                if !std::mem::replace(&mut scrub.failing, true) {
                    self.notices.push(Notice::Problem(format!(
                        "scrubbing {} records from offset {} of queue id {} on failed: {}; the pass goes on behind them",
                        job.records.len(),
                        job.records.first().map_or(0, |record| record.offset),
                        job.records.first().map_or(0, |record| record.queue_id),
                        failure.message
                    )));
                }
            }
        }
    }

    /// Says which of the records are damaged, by their place in the list.
    pub(super) fn tell_bad_records(&mut self, records: &[PackRecord], bad: &[u32]) {
        for n in bad {
            if let Some(record) = records.get(*n as usize) {
                self.tell_bad_record(PartitionKey::of(record), record.offset);
            }
        }
    }
}
