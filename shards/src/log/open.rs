//! Opening a log: recovery, and everything that must be durable before the
//! first append.

use std::time::Duration;

use super::base::LogBase;
use super::batch::BatchHeader;
use super::clean::CleanMarker;
use super::contract::{LogOptions, LogStart};
use super::latch::{self, Latch, LatchRecord};
use super::position::{Geometry, LogPosition};
use super::recovery::{
    walk, Action, BatchVisitor, Boot, DamagedRange, ItemAssembler, RecoveredItem, WalkEnd,
    WalkError, WalkFacts,
};
use super::reopen::recopy;
use super::report::{Cut, CutKind, Recopied, RecoveryReport, MAX_LISTED_DAMAGES};
use super::resume::{self, Resume};
use super::segment_files::{segment_name, SegmentFiles};
use super::superblock::{BootId, Jump, SuperblockError, SuperblockStore};
use crate::io::{Disk, DiskError, DiskErrorKind};
use crate::mutation::{removed, Rule};

/// What the process knows when it opens a log.
pub struct OpenFacts<'a> {
    /// Of the running kernel.
    pub boot_id: BootId,
    /// This log's marker, out of [`super::take_clean_markers`].
    pub clean_marker: Option<CleanMarker>,
    /// A directory that a reboot empties (`/run/…`, `/dev/shm/…`), for tokens
    /// and latch records; `None` if there is none.
    pub boot_directory: Option<&'a dyn Disk>,
    /// How long to wait for a killed process's last writes.
    pub lock_wait: Duration,
    /// Of the published checkpoint, if there is one: only items at and above
    /// its anchor are shown.
    pub base: Option<&'a LogBase>,
}

/// A log that is ready to be written.
#[derive(Debug)]
pub struct Opened {
    pub start: LogStart,
    pub report: RecoveryReport,
}

/// A log could not be opened. Nothing was lost by trying.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    #[error("the log is in use by another process: {0}")]
    InUse(DiskError),
    /// Go on with [`reopen`] and this latch, in this process, and keep it up
    /// until it is `recorded` or reopening succeeded.
    #[error("the surviving tail could not be made durable, the log is latched: {error}")]
    TailSync {
        error: DiskError,
        latch: LatchRecord,
        recorded: bool,
    },
    #[error("the log's first segment ({0}) is missing and there is no checkpoint that replaces it: the checkpoint files are lost or damaged; restore them (ckpt-a, ckpt-b) from a copy of this directory")]
    NoBase(String),
    #[error("the tail past the last successful sync could not be copied: {0}")]
    Recopy(DiskError),
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Opens the log in `disk` and shows every surviving item to `on_item`, in log
/// order. Blocking; not on a shard thread. When it returns, everything it
/// showed is durable. Call [`super::take_clean_markers`] before.
pub fn open(
    disk: &dyn Disk,
    options: &LogOptions,
    facts: &OpenFacts<'_>,
    on_item: &mut dyn FnMut(RecoveredItem<'_>),
) -> Result<Opened, OpenError> {
    open_latched(disk, options, facts, None, on_item)
}

/// Opens a log that latched in this process: copies the verified tail past the
/// last successful sync into a fresh segment, then opens. Only once the writer
/// [is quiet](super::LogWriter::is_quiet) and its descriptors are closed.
/// `latch` is the writer's [`latch_record`](super::LogWriter::latch_record).
pub fn reopen(
    disk: &dyn Disk,
    options: &LogOptions,
    facts: &OpenFacts<'_>,
    latch: &LatchRecord,
    on_item: &mut dyn FnMut(RecoveredItem<'_>),
) -> Result<Opened, OpenError> {
    open_latched(disk, options, facts, Some(*latch), on_item)
}

fn open_latched(
    disk: &dyn Disk,
    options: &LogOptions,
    facts: &OpenFacts<'_>,
    latch: Option<LatchRecord>,
    on_item: &mut dyn FnMut(RecoveredItem<'_>),
) -> Result<Opened, OpenError> {
    let mut store = SuperblockStore::load(disk)?;
    let superblock = &store.current;
    // Before an open has completed nothing was ever answered from this log.
    let never_open = superblock.resume_epoch == 0;
    let same_boot = never_open || superblock.boot_id == facts.boot_id;
    let recorded = latch::find_latch(disk, facts.boot_directory, superblock, same_boot)?;
    let mut opening = Opening {
        disk,
        facts,
        boot: if same_boot { Boot::Same } else { Boot::Other },
        marker: facts.clean_marker.filter(|marker| {
            let of_last_open = marker.open_counter == superblock.open_counter;
            marker.log_id == superblock.log_id && (of_last_open || removed(Rule::MarkerOfLastOpen))
        }),
        latch: latch.map(Latch::At).or(recorded),
        latched_counter: superblock.open_counter,
        removed: Vec::new(),
        superblock_damaged: store.damaged,
        files: SegmentFiles::list(disk, superblock.geometry)?,
    };
    if !removed(Rule::WaitForWriters) {
        let landed = opening.files.wait_for_writers(facts.lock_wait);
        landed.map_err(in_use)?;
    }
    opening.check_base(&store)?;
    // A process that died may have left a new segment's name unsynced; what is
    // written into it from now on must not vanish with the name.
    disk.sync_dir()?;
    // Before anything else is written: this open can never be confused with
    // another one, whatever happens to it.
    store.current.epoch += 1;
    store.current.open_counter += 1;
    store.store(disk)?;
    let recopied = match opening.latch {
        Some(latch) => Some(opening.recopy(&mut store, latch)?),
        None => None,
    };
    let mut reader = Reader {
        assembler: ItemAssembler::behind(facts.base),
        damaged: Vec::new(),
        geometry: store.current.geometry,
        items_end: LogPosition(0),
        on_item,
    };
    let (epoch, scans) = (store.current.epoch, removed(Rule::EpochPersisted));
    if scans {
        (store.current.epoch, store.current.resume_epoch) = (u64::MAX, 1);
    }
    let end = opening.walk(&store, &mut reader)?;
    store.current.epoch = if scans { end.last_epoch + 1 } else { epoch };
    if !removed(Rule::TailSyncedFirst) {
        opening.sync_tail(&store, &end)?;
    }
    let resumed_at = opening.resume(&mut store, &end, options)?;
    opening.finish(store, end, reader, resumed_at, recopied)
}

/// One open in progress.
struct Opening<'a> {
    disk: &'a dyn Disk,
    facts: &'a OpenFacts<'a>,
    boot: Boot,
    marker: Option<CleanMarker>,
    latch: Option<Latch>,
    /// The open before this one.
    latched_counter: u64,
    removed: Vec<String>,
    superblock_damaged: Option<&'static str>,
    files: SegmentFiles<'a>,
}

impl Opening<'_> {
    /// Without a checkpoint everything that was ever written is needed.
    fn check_base(&self, store: &SuperblockStore) -> Result<(), OpenError> {
        let superblock = &store.current;
        let first = superblock.geometry.segment_of(superblock.start);
        let begun = superblock.resume_at > superblock.start
            || self.files.last().is_some_and(|last| last > first);
        if self.facts.base.is_none() && begun && !self.files.exists(first) {
            return Err(OpenError::NoBase(segment_name(first)));
        }
        Ok(())
    }

    fn walk(
        &mut self,
        store: &SuperblockStore,
        visitor: &mut dyn BatchVisitor,
    ) -> Result<WalkEnd, WalkError> {
        let facts = WalkFacts {
            superblock: &store.current,
            marker: self.marker,
            boot: self.boot,
            durable_next: LogPosition(0),
            base: self.facts.base,
        };
        walk(&mut self.files, &facts, visitor)
    }

    fn recopy(
        &mut self,
        store: &mut SuperblockStore,
        latch: Latch,
    ) -> Result<(Recopied, Option<Cut>), OpenError> {
        // No clean marker is written after a latch: one that is there is not
        // of the life that latched.
        self.marker = None;
        let recorded = match latch {
            Latch::At(record) => record.durable_next,
            Latch::Unknown => LogPosition(0),
        };
        let recopied = match removed(Rule::ReopenCopies) {
            true => (Recopied::default(), None),
            false => recopy(&mut self.files, store, self.facts.base, recorded, self.boot).map_err(
                |error| match error {
                    WalkError::Disk(error) => OpenError::Recopy(error),
                    other => other.into(),
                },
            )?,
        };
        store.current.latch_cleared = self.latched_counter;
        if !store.current.amnesiac && !removed(Rule::ReopenedForgot) {
            store.current.amnesiac = true;
            store.current.incarnation += 1;
        }
        store.store_both(self.disk)?;
        Ok(recopied)
    }

    /// A frontier is only told, and a message only sent, of what is durable.
    fn sync_tail(&mut self, store: &SuperblockStore, end: &WalkEnd) -> Result<(), OpenError> {
        let same_boot = self.boot == Boot::Same;
        if removed(Rule::TailSynced) || same_boot && removed(Rule::TailSyncedEveryOpen) {
            return Ok(());
        }
        let geometry = store.current.geometry;
        let first = geometry.segment_of(end.durable_next);
        let last = geometry.segment_of(end.position);
        self.files.sync(first..=last).map_err(|error| {
            let latch = LatchRecord {
                log_id: store.current.log_id,
                open_counter: store.current.open_counter,
                durable_next: end.durable_next,
            };
            // A failed sync is never tried again: the next open copies.
            let recorded = latch::record_latch(self.disk, self.facts.boot_directory, &latch);
            OpenError::TailSync {
                error,
                latch,
                recorded: recorded.is_recorded(),
            }
        })
    }

    /// Chooses where to go on and makes the segments for it.
    fn resume(
        &mut self,
        store: &mut SuperblockStore,
        end: &WalkEnd,
        options: &LogOptions,
    ) -> Result<LogPosition, OpenError> {
        self.remove_leftovers()?;
        let geometry = store.current.geometry;
        let rest_is_zero = end.tail.bytes.is_none();
        let choice = resume::choose(
            &mut self.files,
            geometry,
            end.position,
            rest_is_zero,
            &mut self.removed,
        )?;
        let resumed_at = match choice {
            Resume::InPlace => end.position,
            Resume::Fresh(segment) => {
                let jump = Jump {
                    from: end.position,
                    to: geometry.start_of(segment),
                    epoch: store.current.epoch,
                };
                let anchor = self.facts.base.map(|base| base.anchor.position);
                store.current.add_jump(jump, anchor);
                jump.to
            }
        };
        let first = geometry.segment_of(resumed_at);
        let last = first.saturating_add(u64::from(options.spare_segments));
        let keep_from = LogBase::first_needed(self.facts.base, geometry);
        match resume::ensure(&mut self.files, first, last, keep_from) {
            // A full disk must not keep the log from opening: the writer asks
            // for segments again, and refuses appends meanwhile.
            Err(error) if error.kind == DiskErrorKind::OutOfSpace => {}
            other => drop(other?),
        }
        Ok(resumed_at)
    }

    fn remove_leftovers(&mut self) -> Result<(), DiskError> {
        for name in self.disk.list()? {
            if name.ends_with(".tmp") {
                self.disk.remove(&name)?;
                self.removed.push(name);
            }
        }
        if !self.removed.is_empty() {
            self.disk.sync_dir()?;
        }
        Ok(())
    }

    fn finish(
        mut self,
        mut store: SuperblockStore,
        end: WalkEnd,
        reader: Reader<'_>,
        resumed_at: LogPosition,
        recopied: Option<(Recopied, Option<Cut>)>,
    ) -> Result<Opened, OpenError> {
        let token = self.leave_token(&store);
        self.seal(&mut store, &end, resumed_at, matches!(token, Some(Ok(()))))?;
        if removed(Rule::TailSyncedFirst) {
            self.sync_tail(&store, &end)?;
        }
        let superblock = &store.current;
        let geometry = superblock.geometry;
        let first_needed = LogBase::first_needed(self.facts.base, geometry);
        let start = LogStart {
            log_id: superblock.log_id,
            geometry,
            epoch: superblock.epoch,
            open_counter: superblock.open_counter,
            end: resumed_at,
            last_sequence: end.last_sequence,
            last_checksum: end.last_checksum,
            ready_through: resume::ready_through(&self.files, geometry.segment_of(resumed_at)),
            links: match self.facts.base {
                Some(base) => [&base.links[..], &reader.assembler.links].concat(),
                None => reader.assembler.links,
            },
            kept_from: first_needed.max(geometry.segment_of(superblock.start)),
            free: self.files.below(first_needed).collect(),
        };
        let cut = cut_of(&end);
        let damaged_in_boot =
            self.boot == Boot::Same && cut.is_some_and(|cut| cut.kind == CutKind::Damaged);
        let (recopied, cut_before) = recopied.unzip();
        let untouched = cut.is_none() && end.damaged_ranges == 0 && recopied.is_none();
        let report = RecoveryReport {
            log_id: superblock.log_id,
            epoch: superblock.epoch,
            open_counter: superblock.open_counter,
            incarnation: superblock.incarnation,
            amnesiac: superblock.amnesiac,
            durable_memory_lost: end.damaged_ranges > 0 || damaged_in_boot,
            at_rest: untouched && reader.items_end <= end.durable_next,
            clean: self.marker.is_some(),
            same_boot: self.boot == Boot::Same,
            batches: end.batches,
            items: reader.assembler.items,
            dropped_fragments: reader.assembler.dropped_fragments,
            known_durable_next: end.durable_next,
            end: end.position,
            resumed_at,
            cut: cut.or(cut_before.flatten()),
            damaged: reader.damaged,
            damaged_ranges: end.damaged_ranges,
            recopied,
            removed_files: self.removed,
            superblock_repaired: self.superblock_damaged,
            unreadable: self.files.unreadable.as_ref().map(ToString::to_string),
            token_failure: token.and_then(Result::err).map(|error| error.to_string()),
        };
        Ok(Opened { start, report })
    }

    /// Makes what this open found durable, in both superblocks; then the latch
    /// record, if there is one, is out of date.
    fn seal(
        &self,
        store: &mut SuperblockStore,
        end: &WalkEnd,
        resumed_at: LogPosition,
        has_token: bool,
    ) -> Result<(), OpenError> {
        let superblock = &mut store.current;
        if !end.remembers {
            superblock.amnesiac = true;
            superblock.incarnation += 1;
        }
        if let Some(base) = self.facts.base {
            superblock.forget_jumps_below(base.anchor.position);
        }
        superblock.boot_id = self.facts.boot_id;
        superblock.resume_at = resumed_at;
        superblock.resume_epoch = match removed(Rule::EpochPersisted) {
            true => 1,
            false => superblock.epoch,
        };
        superblock.token_counter = if has_token {
            superblock.open_counter
        } else {
            0
        };
        store.store_both(self.disk)?;
        self.disk.remove(latch::LATCHED_FILE)?;
        self.disk.sync_dir()?;
        Ok(())
    }

    fn leave_token(&self, store: &SuperblockStore) -> Option<Result<(), DiskError>> {
        let superblock = &store.current;
        self.facts
            .boot_directory
            .map(|boot| latch::put_token(boot, superblock.log_id, superblock.open_counter))
    }
}

/// The layers above have acted on `incarnation` being amnesiac, durably: later
/// opens no longer report it. Blocking; not on a shard thread.
pub fn amnesia_settled(disk: &dyn Disk, incarnation: u64) -> Result<(), SuperblockError> {
    let mut store = SuperblockStore::load(disk)?;
    if store.current.amnesiac && store.current.incarnation == incarnation {
        store.current.amnesiac = false;
        store.store_both(disk)?;
    }
    Ok(())
}

/// Puts items together and remembers damage.
struct Reader<'a> {
    assembler: ItemAssembler,
    damaged: Vec<DamagedRange>,
    geometry: Geometry,
    /// End of the last batch with items.
    items_end: LogPosition,
    on_item: &'a mut dyn FnMut(RecoveredItem<'_>),
}

impl BatchVisitor for Reader<'_> {
    fn batch(&mut self, header: &BatchHeader, bytes: &[u8]) -> Result<(), DiskError> {
        self.assembler.batch(header, bytes, self.on_item);
        if header.fragments > 0 {
            self.items_end = header.end(self.geometry);
        }
        Ok(())
    }

    fn gap(&mut self, damage: DamagedRange) {
        self.assembler.gap();
        if self.damaged.len() < MAX_LISTED_DAMAGES {
            self.damaged.push(damage);
        }
    }
}

pub(super) fn cut_of(end: &WalkEnd) -> Option<Cut> {
    let kind = match end.verdict.action {
        Action::CutUnanswered => CutKind::Unanswered,
        Action::CutTorn => CutKind::Torn,
        Action::CutDamage => CutKind::Damaged,
        Action::Accept | Action::End | Action::Damage => return None,
    };
    let to = end.tail.bytes.map_or(end.position, |bytes| bytes.1);
    Some(Cut {
        kind,
        from: end.position,
        to,
    })
}

impl From<WalkError> for OpenError {
    fn from(error: WalkError) -> Self {
        match error {
            WalkError::Format(other) => OpenError::Superblock(other.into()),
            WalkError::Disk(error) => OpenError::Disk(error),
        }
    }
}

fn in_use(error: DiskError) -> OpenError {
    match error.kind {
        DiskErrorKind::Locked => OpenError::InUse(error),
        _ => OpenError::Disk(error),
    }
}
