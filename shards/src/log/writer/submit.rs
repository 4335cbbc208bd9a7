//! Starting what may start: writes, syncs, spare segments; and completions.

use std::rc::Rc;

use super::open_batch::{OpenBatch, SealLink};
use super::{LogWriter, Unreleased, Unstamped};
use crate::io::BatchBuffer;
use crate::log::base::Anchor;
use crate::log::contract::{IoFailure, LogEffect, SyncMethod};
use crate::log::position::{LogPosition, MAX_UNRELEASED_BATCHES};
use crate::mutation::{removed, Rule};

/// How a batch is written.
enum Way {
    /// By `O_DSYNC`.
    Dsync,
    /// Without; a sync makes it durable, at once if somebody waits.
    Plain { wants_durable: bool },
}

impl<B: BatchBuffer> LogWriter<B> {
    /// Starts what may start now: seals and writes batches, syncs, spare
    /// segments. `effects` is appended to; a latched log adds nothing.
    pub fn submit(&mut self, now_ms: u64, effects: &mut Vec<LogEffect<B>>) {
        if self.latch.is_some() {
            return;
        }
        self.submit_segments(now_ms, effects);
        while self.unreleased.len() < MAX_UNRELEASED_BATCHES || removed(Rule::TwoInFlight) {
            if !self.submit_batch(now_ms, effects) {
                break;
            }
        }
        self.submit_frontier(now_ms, effects);
        self.submit_sync(now_ms, effects);
        self.cache.evict(self.on_disk_below, self.durable_next);
    }

    /// When `submit` wants to be called again at the latest, if nothing happens.
    pub fn next_timer_ms(&self) -> Option<u64> {
        if self.latch.is_some() {
            return None;
        }
        let timers = [
            self.sync.timer_at_ms(),
            self.segments.retry_at_ms(),
            self.frontier_due_ms(),
        ];
        timers.into_iter().flatten().min()
    }

    /// The write `id` was answered.
    pub fn write_done(&mut self, id: u64, result: Result<(), IoFailure>) {
        self.unanswered = self.unanswered.saturating_sub(1);
        if self.latch.is_some() {
            return;
        }
        match result {
            Ok(()) => self.release(id),
            Err(_) if removed(Rule::FailedWriteLatches) => self.release(id),
            Err(failure) => self.latch_by(failure),
        }
    }

    /// The sync `id` was answered.
    pub fn sync_done(&mut self, id: u64, result: Result<(), IoFailure>) {
        self.unanswered = self.unanswered.saturating_sub(1);
        if self.latch.is_some() {
            return;
        }
        match result {
            Ok(()) => {
                if let Some(mut covers) = self.sync.completed(id) {
                    if removed(Rule::SyncCoversIssued) {
                        covers = self.written_next;
                    }
                    self.durable_next = self.durable_next.max(covers);
                }
            }
            Err(_) if removed(Rule::FailedSyncLatches) => drop(self.sync.completed(id)),
            Err(failure) => self.latch_by(failure),
        }
    }

    /// The segment `sequence` is open for writing, or could not be made.
    pub fn segment_ready(&mut self, sequence: u64, result: Result<(), IoFailure>) {
        self.segments.prepared(sequence, result);
    }

    fn submit_segments(&mut self, now_ms: u64, effects: &mut Vec<LogEffect<B>>) {
        // The place where the next byte goes, not the last one: at a segment's
        // end that is already the next segment.
        let next = match self.pending.back() {
            Some(batch) => batch.padded_end(self.geometry),
            None => self.submitted,
        };
        let current = self.geometry.segment_of(next);
        if let Some(next) = self.segments.next_to_prepare(now_ms, current) {
            effects.push(LogEffect::PrepareSegment {
                sequence: next.sequence,
                recycle: next.recycle,
            });
        }
        if !self.given_up.is_empty() {
            let sequences = std::mem::take(&mut self.given_up);
            effects.push(LogEffect::RemoveSegments { sequences });
        }
    }

    /// Writes the oldest pending batch if its segment is ready.
    fn submit_batch(&mut self, now_ms: u64, effects: &mut Vec<LogEffect<B>>) -> bool {
        let Some(batch) = self.pending.front() else {
            return false;
        };
        let segment = self.geometry.segment_of(batch.position());
        if !self.segments.is_ready(segment) {
            return false;
        }
        let Some(batch) = self.pending.pop_front() else {
            return false;
        };
        let may_dsync = self.sync_method == SyncMethod::Dsync
            && batch.all_durable
            && (!self.sync.has_plain_beyond(self.durable_next) || removed(Rule::DsyncAlone));
        let way = if may_dsync {
            Way::Dsync
        } else {
            Way::Plain {
                wants_durable: batch.wants_durable,
            }
        };
        self.unstamped = Some(Unstamped {
            at_ms: now_ms,
            stamp: self.durable_next,
        });
        let used = self.write(batch, way, effects);
        self.average_batch_bytes = (self.average_batch_bytes * 7 + used) / 8;
        true
    }

    /// A log that goes idle records once how far it is durable, so that a bad
    /// last batch is later known as corruption and not taken for a torn tail.
    fn submit_frontier(&mut self, now_ms: u64, effects: &mut Vec<LogEffect<B>>) {
        if self.frontier_due_ms().is_none_or(|due| now_ms < due) {
            return;
        }
        if removed(Rule::IdleFrontier) {
            self.unstamped = None;
            return;
        }
        let segment = self.geometry.segment_of(self.submitted);
        if !self.segments.is_ready(segment) {
            // Not worth waiting for: the next open records the same.
            self.unstamped = None;
            return;
        }
        self.unstamped = None;
        let batch = OpenBatch::new(self.geometry, self.submitted, 0);
        let way = match self.sync_method {
            SyncMethod::Dsync => Way::Dsync,
            SyncMethod::Fdatasync => Way::Plain {
                wants_durable: true,
            },
        };
        self.write(batch, way, effects);
    }

    /// When the frontier-only batch is due, if the log is idle from now on.
    fn frontier_due_ms(&self) -> Option<u64> {
        let unstamped = self.unstamped.as_ref()?;
        let at_rest = self.pending.is_empty()
            && self.unreleased.is_empty()
            && !self.sync.is_in_flight()
            && self.durable_next == self.submitted
            && self.durable_next > unstamped.stamp;
        at_rest.then(|| unstamped.at_ms.saturating_add(self.idle_after_ms))
    }

    fn submit_sync(&mut self, now_ms: u64, effects: &mut Vec<LogEffect<B>>) {
        if !self
            .sync
            .is_due(now_ms, self.written_next, self.durable_next)
        {
            return;
        }
        let id = self.take_id();
        let mut first = self.geometry.segment_of(self.durable_next);
        // `written_next` is above `durable_next`, so not 0.
        let last = LogPosition(self.written_next.0 - 1);
        let last = self.geometry.segment_of(last);
        if removed(Rule::SyncEverySegment) {
            first = last;
        }
        self.sync.issued(id, self.written_next);
        effects.push(LogEffect::Sync {
            id,
            segments: (first..=last).collect(),
        });
    }

    /// Seals and writes `batch`, whose segment is ready; returns its used bytes.
    fn write(&mut self, batch: OpenBatch<B>, way: Way, effects: &mut Vec<LogEffect<B>>) -> usize {
        let sealed = batch.seal(
            self.geometry,
            &SealLink {
                log_id: self.log_id,
                epoch: self.epoch,
                sequence: self.last_sequence + 1,
                predecessor: self.last_checksum,
                durable_next: self.durable_next,
            },
        );
        debug_assert_eq!(sealed.start, self.submitted);
        self.last_sequence += 1;
        self.last_checksum = sealed.checksum;
        self.submitted = sealed.end;
        self.anchors.push(
            Anchor {
                position: sealed.end,
                sequence: self.last_sequence,
                checksum: sealed.checksum,
                epoch: self.epoch,
            },
            sealed.continues_from,
        );
        let dsync = match way {
            Way::Dsync => true,
            Way::Plain { wants_durable } => {
                self.sync.plain_submitted(sealed.end, wants_durable);
                false
            }
        };
        let id = self.take_id();
        self.unreleased.push_back(Unreleased {
            id,
            start: sealed.start,
            end: sealed.end,
            dsync,
            done: false,
            continues_from: sealed.continues_from,
        });
        let buffer = Rc::new(sealed.buffer);
        self.cache
            .push(sealed.start, sealed.allocated, Rc::clone(&buffer));
        effects.push(LogEffect::Write {
            id,
            segment: self.geometry.segment_of(sealed.start),
            offset: self.geometry.offset_of(sealed.start),
            buffer,
            dsync,
        });
        sealed.used
    }

    /// Marks the write complete and moves the frontiers over every completed
    /// batch that nothing incomplete stands before.
    fn release(&mut self, id: u64) {
        if let Some(batch) = self.unreleased.iter_mut().find(|batch| batch.id == id) {
            batch.done = true;
            if removed(Rule::ContiguousRelease) {
                self.written_next = self.written_next.max(batch.end);
            }
        }
        while let Some(batch) = self.unreleased.front().filter(|batch| batch.done) {
            self.written_next = match removed(Rule::ContiguousRelease) {
                true => self.written_next.max(batch.end),
                false => batch.end,
            };
            self.on_disk_below = batch.continues_from.unwrap_or(batch.end);
            if batch.dsync && (self.durable_next == batch.start || removed(Rule::DsyncContiguous)) {
                self.durable_next = batch.end;
            }
            self.unreleased.pop_front();
        }
    }

    fn latch_by(&mut self, failure: IoFailure) {
        self.latch = Some(failure);
        self.written_next = self.durable_next;
    }

    /// A number for an effect that will be answered.
    fn take_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.unanswered += 1;
        id
    }
}
