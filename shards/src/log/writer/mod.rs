//! The hot path of a log: items in, effects out. Pure: no I/O, no clock, no
//! allocation per item.
//!
//! Owns the batch being filled, the batches that wait, those in flight, both
//! frontiers, the sync schedule, the supply of segments and the tail cache.
//!
//! Invariants:
//! 1. `appended >= submitted >= written_next >= durable_next`; both frontiers
//!    are ends of batches (or where the log started) and never pass a batch
//!    that has not completed.
//! 2. At most [`MAX_UNRELEASED_BATCHES`] batches are submitted and not released,
//!    completed ones behind an incomplete one included: recovery relies on it.
//! 3. `durable_next` rises by a completed sync, to what was written when it was
//!    issued, or by an `O_DSYNC` completion that starts exactly there.
//! 4. A batch goes by `O_DSYNC` only if every item in it wants durable and no
//!    plain batch is in flight or unsynced.
//! 5. After a failed write or sync nothing is emitted any more, `written_next`
//!    equals `durable_next`, and neither ever moves again.
//!
//! Never: syncs again after a failed sync; writes a byte twice; writes into a
//! segment that is not ready.
//!
//! A crash leaves released batches on the device (durable ones whatever
//! happens), and behind them at most two that nothing was answered from.

mod open_batch;
mod reading;
mod segments;
mod submit;
mod sync;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use open_batch::OpenBatch;
use segments::SegmentSupply;
use sync::SyncSchedule;
use wire::vocabulary::Boundary;

use super::base::{Anchor, AnchorTrack};
use super::cache::TailCache;
use super::clean::CleanMarker;
use super::contract::{
    AppendError, Appended, IoFailure, LogFrontiers, LogOptions, LogStart, SyncMethod,
};
use super::fragments::FragmentMap;
use super::item::{FragmentHeader, ItemHeader, ItemKind, Part, MAX_ITEM_BYTES};
use super::latch::LatchRecord;
use super::position::{Geometry, LogId, LogPosition, MAX_UNRELEASED_BATCHES};
use crate::io::BatchBuffer;
use crate::mutation::{removed, Rule};

/// See the module's head.
pub struct LogWriter<B> {
    log_id: LogId,
    geometry: Geometry,
    epoch: u64,
    open_counter: u64,
    sync_method: SyncMethod,
    backlog_bound: u64,
    idle_after_ms: u64,

    /// Batches not yet submitted, oldest first; items go into the last one.
    pending: VecDeque<OpenBatch<B>>,
    /// Running average of what a batch carries, to size the next buffer.
    average_batch_bytes: usize,
    /// Where the next batch starts once `pending` is empty; the submitted end.
    submitted: LogPosition,
    last_sequence: u64,
    last_checksum: u64,

    unreleased: VecDeque<Unreleased>,
    /// Writes and syncs without an answer yet, also after a latch.
    unanswered: usize,
    next_id: u64,
    written_next: LogPosition,
    durable_next: LogPosition,
    sync: SyncSchedule,
    segments: SegmentSupply,
    /// When a batch with items was last submitted, and what it stamped, until a
    /// frontier-only batch followed it.
    unstamped: Option<Unstamped>,
    latch: Option<IoFailure>,

    links: FragmentMap,
    cache: TailCache<B>,
    /// Below this every item is wholly written: it can be read from disk.
    on_disk_below: LogPosition,
    anchors: AnchorTrack,
    /// Segments below this were released.
    kept_from: u64,
    /// Released ones whose files are to be removed.
    given_up: Vec<u64>,
}

struct Unreleased {
    id: u64,
    start: LogPosition,
    end: LogPosition,
    dsync: bool,
    done: bool,
    /// See [`OpenBatch::continues_from`].
    continues_from: Option<LogPosition>,
}

struct Unstamped {
    at_ms: u64,
    stamp: LogPosition,
}

impl<B: BatchBuffer> LogWriter<B> {
    /// Goes on where `start` ends. The sizes in `options` do not count: the
    /// log keeps those it was created with.
    pub fn new(start: LogStart, options: LogOptions) -> Self {
        let mut links = FragmentMap::default();
        for (end, next) in start.links {
            links.push(end, next);
        }
        let interval_ms = options.background_sync_interval_ms;
        let mut segments = SegmentSupply::new(
            start.geometry.segment_of(start.end),
            start.ready_through,
            options.spare_segments,
            options.reserve_segments,
        );
        let given_up = segments.add_free(start.free.into_iter());
        LogWriter {
            log_id: start.log_id,
            geometry: start.geometry,
            epoch: start.epoch,
            open_counter: start.open_counter,
            sync_method: options.sync_method,
            backlog_bound: options.backlog_bytes,
            idle_after_ms: interval_ms.max(MIN_IDLE_MS),
            pending: VecDeque::new(),
            average_batch_bytes: 0,
            submitted: start.end,
            last_sequence: start.last_sequence,
            last_checksum: start.last_checksum,
            unreleased: VecDeque::with_capacity(MAX_UNRELEASED_BATCHES),
            unanswered: 0,
            next_id: 1,
            written_next: start.end,
            durable_next: start.end,
            sync: SyncSchedule::new(interval_ms),
            segments,
            unstamped: None,
            latch: None,
            links,
            cache: TailCache::new(options.cache_bytes),
            on_disk_below: start.end,
            anchors: AnchorTrack::new(Anchor {
                position: start.end,
                sequence: start.last_sequence,
                checksum: start.last_checksum,
                epoch: 0,
            }),
            kept_from: start.kept_from,
            given_up,
        }
    }

    /// Copies the item (payload = `parts` back to back) into the open batch,
    /// and into following ones if it is larger than what is left there. Its
    /// place is final. `demand` says which boundary somebody waits for.
    pub fn append(
        &mut self,
        item: ItemHeader,
        parts: &[&[u8]],
        demand: Boundary,
    ) -> Result<Appended, AppendError> {
        self.admit(&item, parts)?;
        self.append_admitted(item, parts, demand)
    }

    /// As [`LogWriter::append`], for what [`LogWriter::admits`] took already.
    ///
    /// # Errors
    /// The log is latched, or the item longer than any log takes.
    pub fn append_admitted(
        &mut self,
        item: ItemHeader,
        parts: &[&[u8]],
        demand: Boundary,
    ) -> Result<Appended, AppendError> {
        let total = self.checked_len(parts)?;
        let mut source = PartCursor { parts, offset: 0 };
        let mut start = 0u32;
        let mut place = None;
        let mut link_from = None;
        loop {
            let left = total - start;
            let (batch, len) = self.batch_with_room(left as usize);
            let len = len as u32;
            let header = FragmentHeader {
                item,
                part: part_of(start, len, total),
                len,
            };
            let payload = batch.begin_fragment(&header);
            source.copy_to(batch, len as usize);
            batch.wants_durable |= demand == Boundary::Durable;
            batch.all_durable &= demand == Boundary::Durable;
            let end = batch.used_end();
            let first = *place.get_or_insert(payload);
            start += len;
            let whole = start == total;
            batch.continues_from = (!whole).then_some(first);
            if let Some(from) = link_from {
                self.links.push(from, payload);
            }
            if whole {
                return Ok(Appended {
                    payload: first,
                    end,
                });
            }
            link_from = Some(end);
        }
    }

    /// Whether items of so many payload bytes together, another node's, would be
    /// taken: they come all or not at all.
    ///
    /// # Errors
    /// As [`LogWriter::append`] of one item of that length.
    pub fn admits(&self, bytes: u64) -> Result<(), AppendError> {
        if self.latch.is_some() {
            return Err(AppendError::Latched);
        }
        if self.is_beyond(bytes) {
            let bytes = self.backlog_bytes();
            return Err(AppendError::Backlog { bytes });
        }
        Ok(())
    }

    /// Makes the log durable up to `position` without waiting for the timer.
    /// Places beyond what was appended count as the end of it.
    pub fn demand_durable(&mut self, position: LogPosition) {
        if position <= self.durable_next || self.latch.is_some() {
            return;
        }
        let waiting = self
            .pending
            .iter_mut()
            .find(|batch| position <= batch.used_end());
        match waiting {
            Some(batch) if position > batch.position() => batch.wants_durable = true,
            // Between two pending batches lies only padding of the first.
            Some(_) | None => self.demand_submitted_or_last(position),
        }
    }

    /// The last durable place that a checkpoint's replay could begin at. Every
    /// item that is not wholly durable begins at or above it.
    pub fn anchor(&mut self) -> Anchor {
        self.anchors.advance(self.durable_next)
    }

    /// Fragment links that the walk from an anchor at `position` does not see.
    pub fn links_up_to(
        &self,
        position: LogPosition,
    ) -> impl Iterator<Item = (LogPosition, LogPosition)> + '_ {
        self.links.up_to(position)
    }

    /// No byte below `position` is needed any more, under the published
    /// checkpoint and by any reader: whole segments below it are recycled.
    /// Never beyond the durable frontier.
    pub fn release_below(&mut self, position: LogPosition) {
        let position = position.min(self.durable_next);
        self.links.forget_below(position);
        let keep = self.geometry.segment_of(position);
        if keep > self.kept_from {
            let free = self.segments.add_free(self.kept_from..keep);
            self.given_up.extend(free);
            self.kept_from = keep;
        }
    }

    /// The first segment that is kept.
    pub fn kept_from(&self) -> u64 {
        self.kept_from
    }

    /// The current frontiers.
    pub fn frontiers(&self) -> LogFrontiers {
        LogFrontiers {
            appended: self.appended(),
            submitted: self.submitted,
            written_next: self.written_next,
            durable_next: self.durable_next,
        }
    }

    /// How often the log has been opened, this time included.
    pub fn open_counter(&self) -> u64 {
        self.open_counter
    }

    /// Whether the log met an I/O error.
    pub fn is_latched(&self) -> bool {
        self.latch.is_some()
    }

    /// The error that latched the log.
    pub fn latch_failure(&self) -> Option<&IoFailure> {
        self.latch.as_ref()
    }

    /// What is to be recorded about the latch, outside this log's own I/O path.
    pub fn latch_record(&self) -> Option<LatchRecord> {
        self.latch.as_ref()?;
        Some(LatchRecord {
            log_id: self.log_id,
            open_counter: self.open_counter,
            durable_next: self.durable_next,
        })
    }

    /// What a clean stop records; `None` while anything is not durable, and
    /// after a latch.
    pub fn clean_marker(&self) -> Option<CleanMarker> {
        let at_rest = self.latch.is_none()
            && self.is_quiet()
            && self.pending.is_empty()
            && self.durable_next == self.submitted;
        let at_rest = at_rest || removed(Rule::MarkerAtRest);
        at_rest.then_some(CleanMarker {
            log_id: self.log_id,
            open_counter: self.open_counter,
            end: self.submitted,
            checksum: self.last_checksum,
        })
    }

    /// Whether every write and sync has been answered; a latched log may only
    /// be reopened then.
    pub fn is_quiet(&self) -> bool {
        self.unanswered == 0
    }

    /// Quiet, and no segment is being prepared: nobody but an opening process
    /// touches the log's files now.
    pub fn is_idle(&self) -> bool {
        self.is_quiet() && !self.segments.is_preparing()
    }

    /// Identity of the log.
    pub fn log_id(&self) -> LogId {
        self.log_id
    }

    /// Why the next segment could not be prepared, while it cannot.
    pub fn segment_failure(&self) -> Option<&IoFailure> {
        self.segments.failure()
    }

    /// Appended but not yet written bytes, padding of full batches included.
    pub fn backlog_bytes(&self) -> u64 {
        self.appended().0.saturating_sub(self.written_next.0)
    }

    /// The log's sizes.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn appended(&self) -> LogPosition {
        self.pending
            .back()
            .map_or(self.submitted, OpenBatch::used_end)
    }

    /// Checks that the item may be appended; returns its payload's length. What
    /// a group says of itself (its state, the empty entry of a leadership) is
    /// never refused for room: it is short and rare, and a group that was
    /// refused it would not serve any more.
    fn checked_len(&self, parts: &[&[u8]]) -> Result<u32, AppendError> {
        if self.latch.is_some() {
            return Err(AppendError::Latched);
        }
        let total: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let len = u32::try_from(total)
            .ok()
            .filter(|len| *len <= MAX_ITEM_BYTES);
        len.ok_or(AppendError::TooLarge { bytes: total })
    }

    fn admit(&self, item: &ItemHeader, parts: &[&[u8]]) -> Result<(), AppendError> {
        let len = self.checked_len(parts)?;
        let own = len == 0 || item.kind == ItemKind::GroupState;
        if !own && self.is_beyond(u64::from(len)) {
            let bytes = self.backlog_bytes();
            return Err(AppendError::Backlog { bytes });
        }
        Ok(())
    }

    /// So many more payload bytes are beyond what may wait to be written.
    fn is_beyond(&self, total: u64) -> bool {
        let bytes = self.backlog_bytes();
        let end = self.appended().0.saturating_add(total);
        let bound = self.segments.admits_below(self.geometry);
        let beyond = bound.is_some_and(|bound| end > bound.0);
        let many = bytes.saturating_add(total) > self.backlog_bound;
        bytes > 0 && (many || beyond)
    }

    /// The open batch, or a new one if it is full, and how many of `left`
    /// payload bytes it takes.
    fn batch_with_room(&mut self, left: usize) -> (&mut OpenBatch<B>, usize) {
        let full = match self.pending.back() {
            Some(batch) => batch.room(left).is_none(),
            None => true,
        };
        if full {
            let start = match self.pending.back() {
                Some(batch) => batch.padded_end(self.geometry),
                None => self.submitted,
            };
            let expected = self.average_batch_bytes * 2;
            let batch = OpenBatch::new(self.geometry, start, expected);
            self.pending.push_back(batch);
        }
        let last = self.pending.len() - 1;
        // A new batch always has room (checked at compile time), so `room`
        // is there; 0 would only make a longer item loop, never stall it.
        let batch = &mut self.pending[last];
        let room = batch.room(left).unwrap_or(0);
        (batch, room)
    }

    fn demand_submitted_or_last(&mut self, position: LogPosition) {
        if position <= self.submitted {
            self.sync.demand(position);
        } else if let Some(batch) = self.pending.back_mut() {
            batch.wants_durable = true;
        } else {
            self.sync.demand(self.submitted);
        }
    }
}

/// Shortest time without items after which a log counts as idle.
const MIN_IDLE_MS: u64 = 100;

fn part_of(start: u32, len: u32, total: u32) -> Part {
    match (start == 0, start + len == total) {
        (true, true) => Part::Whole,
        (true, false) => Part::First { total },
        (false, true) => Part::Last { start },
        (false, false) => Part::Middle { start },
    }
}

/// Where copying stands in an item's parts.
struct PartCursor<'a> {
    parts: &'a [&'a [u8]],
    /// In the first part.
    offset: usize,
}

impl PartCursor<'_> {
    fn copy_to<B: BatchBuffer>(&mut self, batch: &mut OpenBatch<B>, mut len: usize) {
        while len > 0 {
            let Some((part, rest)) = self.parts.split_first() else {
                return;
            };
            let from = part.get(self.offset..).unwrap_or_default();
            if from.len() > len {
                batch.push(from.get(..len).unwrap_or_default());
                self.offset += len;
                return;
            }
            batch.push(from);
            len -= from.len();
            self.parts = rest;
            self.offset = 0;
        }
    }
}
