//! Packing: which records still live in the oldest segments, and in packed
//! files that are mostly dead, and where they went.

use std::{collections::BTreeSet, sync::Arc};

use super::{PackFile, Phase, Upkeep, TURN_PARTITIONS, TURN_RECORDS};
use crate::{
    engine::{core::Engine, partition::PartitionKey},
    io::BatchBuffer,
    log::{Extent, IoFailure, LogPosition},
    state::queue::RecordLocation,
    store::{PackJob, PackRecord, Packed, RecordSource, StoreJob, MAX_PACK_BYTES},
};

/// Most records one job packs.
const MAX_RECORDS: usize = 64 << 10;
/// Most jobs of one cycle: then a checkpoint makes their work count.
const MAX_JOBS: u32 = 16;
/// Packed files with fewer bytes of records are small; this many are too many.
const SMALL_PACK_BYTES: u64 = 1 << 20;
const MANY_SMALL: usize = 8;

/// Looking for records to pack.
pub(in crate::engine) struct Collecting {
    /// By group, then by key: records are packed in this order.
    keys: Vec<(u32, PartitionKey)>,
    at: usize,
    /// The offset to go on at.
    from: u64,
    /// Records below this place of the log are packed.
    cut: LogPosition,
    /// Packed files that are emptied.
    victims: BTreeSet<u32>,
    jobs: u32,
    records: Vec<PackRecord>,
    extents: Vec<Extent>,
    bytes: u64,
    /// Partitions whose records below the cut are all in this job or packed,
    /// with the offset up to where.
    done: Vec<(PartitionKey, u64)>,
}

impl Upkeep {
    /// Packed files to empty: those below half live, and small ones once there
    /// are many of them, so that neither dead bytes nor file heads add up.
    fn victims(&self) -> BTreeSet<u32> {
        let is_small = |pack: &PackFile| pack.record_bytes < SMALL_PACK_BYTES;
        let small = self.packs.values().filter(|pack| is_small(pack)).count();
        let is_victim = |pack: &PackFile| {
            pack.live_bytes * 2 < pack.record_bytes || small >= MANY_SMALL && is_small(pack)
        };
        let packs = self.packs.iter().filter(|(_, pack)| is_victim(pack));
        packs.map(|(file, _)| *file).collect()
    }
}

impl Collecting {
    /// Nothing to look at: the capture begins in the next turn.
    fn nothing() -> Self {
        Collecting {
            keys: Vec::new(),
            at: 0,
            from: 0,
            cut: LogPosition(0),
            victims: BTreeSet::new(),
            jobs: 0,
            records: Vec::new(),
            extents: Vec::new(),
            bytes: 0,
            done: Vec::new(),
        }
    }

    fn is_full(&self) -> bool {
        self.bytes >= MAX_PACK_BYTES || self.records.len() >= MAX_RECORDS
    }
}

impl<B: BatchBuffer> Engine<B> {
    pub(super) fn begin_collecting(&mut self, cut: LogPosition) -> Collecting {
        let victims = match std::mem::take(&mut self.upkeep.spare_victims) {
            true => BTreeSet::new(),
            false => self.upkeep.victims(),
        };
        let old_segments = self.log.geometry().segment_of(cut) > self.log.kept_from();
        let mut keys = Vec::new();
        if old_segments || !victims.is_empty() {
            let partitions = self.partitions.values();
            keys = partitions.map(|slot| (slot.group.0, slot.key)).collect();
            // The map's order must not show.
            keys.sort_unstable();
        }
        Collecting {
            keys,
            cut,
            victims,
            ..Collecting::nothing()
        }
    }

    /// Looks on for a turn's worth of records.
    pub(super) fn collect(&mut self, mut collecting: Collecting) -> Phase {
        let mut budget = TURN_RECORDS;
        for _ in 0..TURN_PARTITIONS {
            let Some((_, key)) = collecting.keys.get(collecting.at).copied() else {
                return self.pack(collecting);
            };
            if collecting.is_full() {
                return self.pack(collecting);
            }
            if budget == 0 {
                break;
            }
            self.collect_partition(&mut collecting, key, &mut budget);
        }
        Phase::Collecting(collecting)
    }

    fn collect_partition(
        &mut self,
        collecting: &mut Collecting,
        key: PartitionKey,
        budget: &mut usize,
    ) {
        let Some(slot) = self.partitions.get(&key) else {
            (collecting.at, collecting.from) = (collecting.at + 1, 0);
            return;
        };
        let hint = if collecting.victims.is_empty() {
            slot.packed_below
        } else {
            0
        };
        let from = collecting.from.max(hint);
        let mut seen = 0;
        let mut passed_cut = false;
        let resume = slot
            .machine
            .visit_places(from, *budget, &mut |offset, location, len| {
                seen += 1;
                if let RecordLocation::Packed { file, .. } = location {
                    if !collecting.victims.contains(&file) {
                        return true;
                    }
                }
                let extents = &mut collecting.extents;
                let Some(source) = self.source_below(collecting.cut, location, len, extents) else {
                    passed_cut = true;
                    return false;
                };
                if collecting.bytes > 0 && collecting.bytes + u64::from(len) > MAX_PACK_BYTES {
                    collecting.bytes = MAX_PACK_BYTES;
                    return false;
                }
                collecting.bytes += u64::from(len);
                let record = slot.pack_record(offset, len, source);
                collecting.records.push(record);
                collecting.records.len() < MAX_RECORDS
            });
        *budget = budget.saturating_sub(seen.max(1));
        match resume {
            Some(offset) if !passed_cut => collecting.from = offset,
            end => {
                let next = end.unwrap_or(slot.machine.next_offset());
                collecting.done.push((key, next));
                (collecting.at, collecting.from) = (collecting.at + 1, 0);
            }
        }
    }

    /// What was found is packed; without any, the capture begins.
    fn pack(&mut self, mut collecting: Collecting) -> Phase {
        if collecting.records.is_empty() {
            self.note_packed(&mut collecting);
            return self.begin_capture();
        }
        let file = self.upkeep.next_pack;
        self.upkeep.next_pack += 1;
        collecting.jobs += 1;
        collecting.bytes = 0;
        let job = Arc::new(PackJob {
            file,
            log_id: self.log.log_id(),
            records: std::mem::take(&mut collecting.records),
            extents: std::mem::take(&mut collecting.extents),
        });
        self.upkeep.start(StoreJob::Pack(job.clone()));
        Phase::Packing(collecting, job)
    }

    pub(super) fn on_packed(&mut self, file: u32, result: Result<Packed, IoFailure>) {
        let phase = std::mem::replace(&mut self.upkeep.phase, Phase::Idle);
        let (collecting, job) = match phase {
            Phase::Packing(collecting, job) if job.file == file => (collecting, job),
            other => {
                self.upkeep.phase = other;
                return;
            }
        };
        match result {
            Ok(packed) => {
                let record_bytes = job.records.iter().map(|record| u64::from(record.len)).sum();
                let pack = PackFile {
                    bytes: packed.bytes,
                    record_bytes,
                    live_bytes: record_bytes,
                };
                self.upkeep.packs.insert(file, pack);
                self.tell_bad_records(&job.records, &packed.bad);
                self.upkeep.phase = Phase::Relocating(collecting, job, packed, 0);
            }
            Err(failure) => {
                // A checkpoint may still free what needs no packing.
                self.upkeep_failed("packing old records", &failure);
                self.upkeep.spare_victims = true;
                self.upkeep.phase = Phase::Collecting(Collecting::nothing());
            }
        }
    }

    /// Where a record is read from; `None` for what stands in the log at or above
    /// `cut`.
    pub(super) fn source_below(
        &self,
        cut: LogPosition,
        location: RecordLocation,
        len: u32,
        extents: &mut Vec<Extent>,
    ) -> Option<RecordSource> {
        match location {
            RecordLocation::Ring(position) if position >= cut.0 => None,
            RecordLocation::Ring(position) => {
                let first = extents.len() as u32;
                self.log
                    .visit_extents(LogPosition(position), len, &mut |extent| {
                        extents.push(extent);
                    });
                let extents = extents.len() as u32 - first;
                Some(RecordSource::Ring { first, extents })
            }
            RecordLocation::Packed { file, at } => Some(RecordSource::Packed { file, at }),
        }
    }

    /// Says where a turn's worth of the packed records are now.
    pub(super) fn relocate(
        &mut self,
        mut collecting: Collecting,
        job: Arc<PackJob>,
        packed: Packed,
        at: usize,
    ) -> Phase {
        let end = (at + TURN_RECORDS).min(job.records.len());
        let moved = job.records.iter().zip(&packed.places);
        for (record, place) in moved.skip(at).take(end - at) {
            let from = match record.source {
                RecordSource::Ring { first, .. } => match job.extents.get(first as usize) {
                    Some(extent) => {
                        let start = self.log.geometry().start_of(extent.segment);
                        RecordLocation::Ring(start.0 + extent.offset)
                    }
                    None => continue,
                },
                RecordSource::Packed { file, at } => RecordLocation::Packed { file, at },
            };
            let to = RecordLocation::Packed {
                file: packed.file,
                at: *place,
            };
            if let Some(slot) = self.partitions.get_mut(&PartitionKey::of(record)) {
                slot.machine.relocate(record.offset, from, to);
            }
        }
        if end < job.records.len() {
            return Phase::Relocating(collecting, job, packed, end);
        }
        self.note_packed(&mut collecting);
        if collecting.jobs >= MAX_JOBS {
            self.upkeep.unfinished = true;
            return self.begin_capture();
        }
        Phase::Collecting(collecting)
    }

    /// Next time these partitions are looked at from further on.
    fn note_packed(&mut self, collecting: &mut Collecting) {
        for (key, next) in collecting.done.drain(..) {
            if let Some(slot) = self.partitions.get_mut(&key) {
                slot.packed_below = slot.packed_below.max(next);
            }
        }
    }
}
