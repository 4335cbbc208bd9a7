//! What keeps the log short: packing, checkpoints and reclaim, in a cycle.
//!
//! ```text
//! Idle ─► Collecting ─► Packing ─► Relocating ─┐     records that still live in
//!   ▲         ▲────────────────────────────────┘     the oldest segments move
//!   │         └─► Capturing ─► Syncing ─► Publishing ─► Idle
//!   └───────────── Scrubbing ◄─ Idle                  at a low rate
//! ```
//!
//! Owns: where the cycle is, which packed files there are, what the published
//! checkpoint needs.
//!
//! Invariants:
//! 1. What is captured stands in the log below the checkpoint's `durable_next`,
//!    and the checkpoint is published only once the log is durable up to there.
//! 2. Segments are released, and packed files removed, only by what a published
//!    checkpoint names, never by memory: a settle that is not durable may yet be
//!    undone. A segment that a read under way needs waits.
//! 3. A record is relocated only into a file that is durable.
//! 4. At most one job of the cycle is under way; each turn does a bounded piece.
//!
//! Never: changes what a client sees; holds up a publish, a delivery or a
//! settle. A failure is said once, and the cycle begins anew later.
//!
//! A crash leaves the last published checkpoint and perhaps packed files that
//! it does not name; the next start removes those.

mod capture;
mod collect;
mod restore;
mod scrub;
mod verify;

use std::{collections::BTreeMap, sync::Arc};

pub(super) use capture::{put_partition, CaptureTarget, Capturing};
pub(super) use collect::Collecting;
pub use restore::RestoreFailure;
pub(super) use restore::{read_partition, Restored};
pub(super) use scrub::Scrub;
pub use verify::{verify_stored, StoredRecords};

use super::{
    core::Engine,
    types::{Effect, Notice, ReadFile},
};
use crate::{
    io::BatchBuffer,
    log::{IoFailure, LogPosition},
    mutation::{removed, Rule},
    store::{CheckpointHead, PackJob, Packed, ScrubJob, StoreDone, StoreJob},
};

/// Segments behind the one being written whose records are not packed: most
/// are settled before they are older.
const RECENT_SEGMENTS: u64 = 2;
/// Records looked at, or relocated, in one turn.
const TURN_RECORDS: usize = 4096;
/// Partitions looked at in one turn.
const TURN_PARTITIONS: usize = 256;
/// A checkpoint's bytes are written at most once for this many of the log.
const LOG_BYTES_PER_CHECKPOINT_BYTE: u64 = 4;
/// Segments of the log that are kept for a follower that is behind.
const HELD_SEGMENTS: u64 = 4;
/// Rest after a cycle that failed, or that a full disk began.
const PAUSE_MS: u64 = 1_000;
/// Rest after a cycle that met entries not yet applied.
const APPLY_PAUSE_MS: u64 = 50;

/// A packed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PackFile {
    /// The file's length.
    pub bytes: u64,
    /// Bytes of records in it.
    pub record_bytes: u64,
    /// Bytes of records that the last capture saw live in it.
    pub live_bytes: u64,
}

pub(super) enum Phase {
    Idle,
    Collecting(Collecting),
    Packing(Collecting, Arc<PackJob>),
    Relocating(Collecting, Arc<PackJob>, Packed, usize),
    Capturing(Box<Capturing>),
    Syncing(Box<Captured>),
    Publishing(Box<Captured>),
    Scrubbing(Arc<ScrubJob>),
}

/// A capture that is complete.
pub(super) struct Captured {
    head: CheckpointHead,
    body: Vec<Vec<u8>>,
    body_bytes: u64,
    /// Bytes of live records in each packed file.
    packs: BTreeMap<u32, u64>,
}

/// See the module head.
pub(super) struct Upkeep {
    phase: Phase,
    scrub: Scrub,
    /// Of the last published checkpoint; 0 = none.
    serial: u64,
    /// Its body's length.
    body_bytes: u64,
    /// Where the last capture began.
    captured_from: LogPosition,
    packs: BTreeMap<u32, PackFile>,
    next_pack: u32,
    /// Packed files that no published checkpoint names.
    dead: Vec<u32>,
    /// Those that could not be removed: tried again after the next checkpoint.
    undead: Vec<u32>,
    /// Nothing below is needed but by readers.
    releasable: LogPosition,
    /// Jobs without an answer.
    jobs: u32,
    retry_at_ms: u64,
    /// The last cycle left records to pack: the next one need not wait.
    unfinished: bool,
    /// The last cycle failed, and that was said.
    failing: bool,
    /// Packing failed, perhaps for a packed file that cannot be read: the next
    /// cycle empties none, so that the log gets shorter all the same.
    spare_victims: bool,
    effects: Vec<StoreJob>,
}

impl Upkeep {
    /// On what the published checkpoint named, if there is one.
    pub(super) fn new(
        head: Option<&CheckpointHead>,
        body_bytes: u64,
        packs: BTreeMap<u32, PackFile>,
        start: LogPosition,
        scrub: Scrub,
    ) -> Self {
        Upkeep {
            phase: Phase::Idle,
            scrub,
            serial: head.map_or(0, |head| head.serial),
            body_bytes,
            captured_from: head.map_or(start, |head| head.anchor.position),
            next_pack: head.map_or(1, |head| head.next_pack),
            releasable: head.map_or(LogPosition(0), |head| head.keep_from),
            packs,
            dead: Vec::new(),
            undead: Vec::new(),
            jobs: 0,
            retry_at_ms: 0,
            unfinished: false,
            failing: false,
            spare_victims: false,
            effects: Vec::new(),
        }
    }

    /// Length of a packed file; 0 if there is none of that number.
    pub(super) fn pack_bytes(&self, file: u32) -> u64 {
        self.packs.get(&file).map_or(0, |pack| pack.bytes)
    }

    /// More can be done at once.
    pub(super) fn is_busy(&self) -> bool {
        !self.effects.is_empty()
            || matches!(
                self.phase,
                Phase::Collecting(_) | Phase::Relocating(..) | Phase::Capturing(_)
            )
    }

    fn start(&mut self, job: StoreJob) {
        self.jobs += 1;
        self.effects.push(job);
    }
}

impl<B: BatchBuffer> Engine<B> {
    /// Does the next piece of the cycle.
    pub(super) fn upkeep_turn(&mut self) {
        self.let_go();
        if self.latched || self.draining {
            return self.give_up_upkeep();
        }
        let phase = std::mem::replace(&mut self.upkeep.phase, Phase::Idle);
        self.upkeep.phase = match phase {
            Phase::Idle => self.begin_cycle(),
            Phase::Collecting(collecting) => self.collect(collecting),
            Phase::Relocating(collecting, job, packed, at) => {
                self.relocate(collecting, job, packed, at)
            }
            Phase::Capturing(capturing) => self.capture(capturing),
            Phase::Syncing(captured) => self.publish_if_durable(captured),
            waiting @ (Phase::Packing(..) | Phase::Publishing(_) | Phase::Scrubbing(_)) => waiting,
        };
    }

    pub(super) fn push_store_jobs(&mut self, effects: &mut Vec<Effect<B>>) {
        effects.extend(self.upkeep.effects.drain(..).map(Effect::Store));
    }

    /// Nothing is asked of the shard's files, nor will be once the log is
    /// latched: they may be opened anew.
    pub fn files_are_idle(&self) -> bool {
        self.log.is_idle() && self.upkeep.jobs == 0 && !self.reads.is_reading()
    }

    /// A capture is under way: partitions are captured for one reader at a time.
    pub(super) fn upkeep_captures(&self) -> bool {
        matches!(self.upkeep.phase, Phase::Capturing(_))
    }

    /// When a turn is due for the cycle to go on, in server time: nothing else
    /// may happen for long.
    pub(super) fn upkeep_due_ms(&self) -> Option<u64> {
        let is_idle = matches!(self.upkeep.phase, Phase::Idle);
        if !is_idle || !self.may_capture() || self.latched || self.draining {
            return None;
        }
        match self.is_cycle_due() {
            true => Some(self.upkeep.retry_at_ms),
            false => self.upkeep.scrub.due_ms(),
        }
    }

    /// A replica that waits for its new name is in no checkpoint: none is made before.
    fn may_capture(&self) -> bool {
        self.serving && self.awaiting_recovery.is_empty()
    }

    /// A cycle has something to do, now or after its rest.
    fn is_cycle_due(&self) -> bool {
        let grown = self.grown_bytes();
        let body = self.upkeep.body_bytes * LOG_BYTES_PER_CHECKPOINT_BYTE;
        let step = body.max(self.log.geometry().segment_bytes());
        let full = self.room.full && grown > 0;
        self.may_capture() && (grown >= step || full || self.upkeep.unfinished)
    }

    /// By which the durable log grew since the last capture began.
    fn grown_bytes(&self) -> u64 {
        let durable = self.frontiers.durable_next.0;
        durable.saturating_sub(self.upkeep.captured_from.0)
    }

    /// Nothing is left to pack, to capture or to publish for now.
    pub fn upkeep_is_at_rest(&self) -> bool {
        matches!(self.upkeep.phase, Phase::Idle | Phase::Scrubbing(_)) && !self.is_cycle_due()
    }

    fn begin_cycle(&mut self) -> Phase {
        if !self.is_cycle_due() {
            return self.scrub_on();
        }
        if self.server_ms < self.upkeep.retry_at_ms {
            return Phase::Idle;
        }
        self.upkeep.unfinished = false;
        if self.room.full {
            self.upkeep.retry_at_ms = self.server_ms + PAUSE_MS;
        }
        Phase::Collecting(self.begin_collecting(self.cold_below()))
    }

    /// What stands below in the log is not recent any more.
    fn cold_below(&self) -> LogPosition {
        let geometry = self.log.geometry();
        let current = geometry.segment_of(self.frontiers.durable_next);
        geometry.start_of(current.saturating_sub(RECENT_SEGMENTS))
    }

    /// A capture may begin: everything in front of the anchor is applied.
    pub(super) fn begin_capture(&mut self) -> Phase {
        let anchor = self.log.anchor();
        // Not so where more became durable than was applied yet.
        let staged = self.staged_from();
        let staged_in_front = staged.is_some_and(|from| from < anchor.position);
        let in_front = !staged_in_front
            && self.groups.values().all(|slot| {
                let first = slot.group.first_unapplied_place();
                first.is_none_or(|place| place >= anchor.position)
            });
        let waits = self.snapshot_captures() || !in_front && !removed(Rule::AnchorApplied);
        if waits {
            self.upkeep.retry_at_ms = self.server_ms + APPLY_PAUSE_MS;
            return Phase::Idle;
        }
        self.upkeep.captured_from = anchor.position;
        Phase::Capturing(Box::new(self.capturing(anchor)))
    }

    /// Everything is captured: publish once the log is durable up to here.
    pub(super) fn sync_capture(&mut self, done: CaptureTarget) -> Phase {
        let end = self.log.frontiers().appended;
        self.log.demand_durable(end);
        let head = CheckpointHead {
            log_id: self.log.log_id(),
            serial: self.upkeep.serial + 1,
            anchor: done.anchor,
            durable_next: end,
            keep_from: done.keep_from.min(done.anchor.position),
            next_pack: self.upkeep.next_pack,
        };
        let body_bytes = done.body.iter().map(|piece| piece.len() as u64).sum();
        let captured = Captured {
            head,
            body: done.body,
            body_bytes,
            packs: done.packs,
        };
        if removed(Rule::ReclaimPublished) {
            self.upkeep.releasable = head.keep_from;
            self.note_dead_packs(&captured);
        }
        // It may be so already, and then nothing else calls for a turn.
        self.publish_if_durable(Box::new(captured))
    }

    fn publish_if_durable(&mut self, mut captured: Box<Captured>) -> Phase {
        let is_durable = self.frontiers.durable_next >= captured.head.durable_next;
        if !is_durable && !removed(Rule::SyncBeforeCheckpoint) {
            return Phase::Syncing(captured);
        }
        // Where a batch ends, unlike the captured end.
        captured.head.durable_next = self.frontiers.durable_next;
        let body = std::mem::take(&mut captured.body);
        let head = captured.head;
        self.upkeep.start(StoreJob::Publish { head, body });
        Phase::Publishing(captured)
    }

    pub(super) fn on_stored(&mut self, done: StoreDone) {
        self.upkeep.jobs = self.upkeep.jobs.saturating_sub(1);
        match done {
            StoreDone::Published { serial, result } => self.on_published(serial, result),
            StoreDone::Packed { file, result } => self.on_packed(file, result),
            StoreDone::Scrubbed(result) => self.on_scrubbed(result),
            StoreDone::Removed(Ok(())) => {}
            StoreDone::Removed(Err((files, failure))) => {
                self.upkeep_failed("removing packed files", &failure);
                // With the next checkpoint again; one that is gone stays so.
                self.upkeep.undead.extend(files);
            }
        }
    }

    fn on_published(&mut self, serial: u64, result: Result<bool, IoFailure>) {
        let phase = std::mem::replace(&mut self.upkeep.phase, Phase::Idle);
        let captured = match phase {
            Phase::Publishing(captured) if captured.head.serial == serial => captured,
            other => {
                self.upkeep.phase = other;
                return;
            }
        };
        let alone = match result {
            Ok(alone) => alone,
            Err(failure) => return self.upkeep_failed("writing a checkpoint", &failure),
        };
        self.upkeep.serial = serial;
        self.upkeep.body_bytes = captured.body_bytes;
        if !alone {
            // A start could still begin from the one before: all it names stays.
            let failure = IoFailure {
                message: "the older one cannot be made unusable, so nothing is let go".to_owned(),
                out_of_space: false,
            };
            return self.upkeep_failed("taking a checkpoint into force", &failure);
        }
        self.upkeep.failing = false;
        self.upkeep.releasable = captured.head.keep_from;
        self.note_dead_packs(&captured);
        let undead = std::mem::take(&mut self.upkeep.undead);
        self.upkeep.dead.extend(undead);
        self.let_go();
    }

    /// Packed files of which the checkpoint names no record. None is made while
    /// a capture is under way, so none can have come since.
    fn note_dead_packs(&mut self, captured: &Captured) {
        for (file, pack) in &mut self.upkeep.packs {
            pack.live_bytes = captured.packs.get(file).copied().unwrap_or(0);
            if pack.live_bytes == 0 && !self.upkeep.dead.contains(file) {
                self.upkeep.dead.push(*file);
            }
        }
    }

    /// Lets go of what the published checkpoint does not need and no read under
    /// way does.
    fn let_go(&mut self) {
        if matches!(self.upkeep.phase, Phase::Scrubbing(_)) || self.sending.is_some() {
            // It reads them.
            return;
        }
        let geometry = self.log.geometry();
        if !self.upkeep.dead.is_empty() {
            self.remove_dead_packs();
        }
        let mut free = self.upkeep.releasable;
        if geometry.segment_of(free) <= self.log.kept_from() {
            return;
        }
        for file in self.reads.files() {
            if removed(Rule::ReadsHoldFiles) {
                break;
            }
            if let ReadFile::Segment(sequence) = file {
                free = free.min(geometry.start_of(sequence));
            }
        }
        free = free.min(self.held_for_followers());
        self.log.release_below(free);
        for slot in self.groups.values_mut() {
            slot.group.trim_below(free);
        }
    }

    /// What followers that are behind still need of the log begins here: of what they
    /// lack as far as [`HELD_SEGMENTS`], or all of it behind a snapshot, unless the disk
    /// is full.
    fn held_for_followers(&self) -> LogPosition {
        let geometry = self.log.geometry();
        let newest = geometry.segment_of(self.frontiers.durable_next);
        let bound = geometry.start_of(newest.saturating_sub(HELD_SEGMENTS));
        let held = self.groups.values().filter_map(|slot| slot.group.held());
        let held = held.filter(|_| !self.is_short());
        let from = held.map(|held| match held.behind_snapshot {
            true => held.from,
            false => held.from.max(bound),
        });
        let from = from.min().map(|from| geometry.segment_of(from));
        from.map_or(LogPosition(u64::MAX), |first| geometry.start_of(first))
    }

    fn remove_dead_packs(&mut self) {
        let read: Vec<ReadFile> = self.reads.files().collect();
        let dead = std::mem::take(&mut self.upkeep.dead);
        let (wait, gone): (Vec<u32>, Vec<u32>) = dead.into_iter().partition(|file| {
            read.contains(&ReadFile::Pack(*file)) && !removed(Rule::ReadsHoldFiles)
        });
        self.upkeep.dead = wait;
        for file in &gone {
            self.upkeep.packs.remove(file);
        }
        if !gone.is_empty() {
            self.upkeep.start(StoreJob::RemovePacks(gone));
        }
    }

    /// Leaves the cycle where nothing was done yet. What is being published
    /// counts all the same.
    fn give_up_upkeep(&mut self) {
        if matches!(self.upkeep.phase, Phase::Publishing(_)) {
            return;
        }
        if let Phase::Capturing(capturing) = &self.upkeep.phase {
            let key = capturing.current();
            if let Some(slot) = key.and_then(|key| self.partitions.get_mut(&key)) {
                slot.machine.end_capture();
            }
        }
        self.upkeep.phase = Phase::Idle;
    }

    fn upkeep_failed(&mut self, what: &str, failure: &IoFailure) {
        self.upkeep.retry_at_ms = self.server_ms + PAUSE_MS;
        if !std::mem::replace(&mut self.upkeep.failing, true) {
            self.notices.push(Notice::Problem(format!(
                "{what} failed: {}; the log grows meanwhile, and it is tried again",
                failure.message
            )));
        }
    }
}
