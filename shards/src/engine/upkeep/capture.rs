//! The state as a checkpoint's sections, a piece each turn.
//!
//! Each partition is captured as of one index of its group, which its section
//! names: replay skips what is covered. Groups and group 0 come last, so that no
//! partition is ahead of its group.

use std::collections::BTreeMap;

use super::Phase;
use crate::{
    engine::{
        core::Engine,
        partition::{PartitionKey, PartitionSlot},
    },
    io::BatchBuffer,
    log::{Anchor, LogPosition},
    state::queue::RecordLocation,
    store::{Section, SectionKind},
};

/// Records captured in one turn.
const TURN_RECORDS: usize = 32 << 10;
/// Partitions captured in one turn.
const TURN_PARTITIONS: usize = 128;
/// A body's pieces are about this long.
const PIECE_BYTES: usize = 256 << 10;

/// What is captured so far.
pub(in crate::engine) struct CaptureTarget {
    pub(super) anchor: Anchor,
    /// The lowest place of the log that a captured record stands at.
    pub(super) keep_from: LogPosition,
    pub(super) body: Vec<Vec<u8>>,
    /// Bytes of live records in each packed file.
    pub(super) packs: BTreeMap<u32, u64>,
}

/// A capture under way.
pub(in crate::engine) struct Capturing {
    target: CaptureTarget,
    keys: Vec<PartitionKey>,
    at: usize,
    /// The head of the partition at hand is captured.
    begun: bool,
    piece: Vec<u8>,
}

impl Capturing {
    /// The partition at hand.
    pub(super) fn current(&self) -> Option<PartitionKey> {
        self.keys.get(self.at).copied()
    }

    fn next(&mut self) {
        self.at += 1;
        self.begun = false;
    }

    fn cut_piece(&mut self) {
        if self.piece.len() >= PIECE_BYTES {
            self.target.body.push(std::mem::take(&mut self.piece));
        }
    }
}

impl<B: BatchBuffer> Engine<B> {
    pub(super) fn capturing(&self, anchor: Anchor) -> Capturing {
        let mut keys: Vec<PartitionKey> = self.partitions.keys().copied().collect();
        // The map's order must not show.
        keys.sort_unstable();
        Capturing {
            target: CaptureTarget {
                anchor,
                keep_from: LogPosition(u64::MAX),
                body: Vec::new(),
                packs: BTreeMap::new(),
            },
            keys,
            at: 0,
            begun: false,
            piece: Vec::new(),
        }
    }

    /// Captures a turn's worth.
    pub(super) fn capture(&mut self, mut capturing: Box<Capturing>) -> Phase {
        let mut budget = TURN_RECORDS;
        for _ in 0..TURN_PARTITIONS {
            let Some(key) = capturing.current() else {
                self.capture_rest(&mut capturing);
                return self.sync_capture(capturing.target);
            };
            if budget == 0 {
                break;
            }
            let Some(slot) = self.partitions.get_mut(&key) else {
                // Dropped meanwhile; replay sees that too.
                capturing.next();
                continue;
            };
            if !std::mem::replace(&mut capturing.begun, true) {
                let group = self.groups.get(&slot.group.0);
                let covered = group.map_or(0, |slot| slot.group.last_applied().0);
                let piece = &mut capturing.piece;
                Section::put_as(piece, SectionKind::Partition, |out| {
                    put_partition(slot, covered, out);
                    slot.machine.change().is_some()
                });
            }
            if !capture_records(slot, &mut capturing, &mut budget) {
                slot.machine.end_capture();
                capturing.next();
            }
            capturing.cut_piece();
        }
        Phase::Capturing(capturing)
    }

    /// What is captured in one go at the end.
    fn capture_rest(&self, capturing: &mut Capturing) {
        let out = &mut capturing.piece;
        for (group, slot) in &self.groups {
            let (index, term) = slot.group.last_applied();
            Section::put(out, SectionKind::Group, |out| {
                out.extend_from_slice(&group.to_le_bytes());
                out.extend_from_slice(&index.to_le_bytes());
                out.extend_from_slice(&term.to_le_bytes());
                out.extend_from_slice(&slot.group.state().encode());
            });
        }
        // Their old names must not come back as if nothing had been.
        let dropped = self.absent.iter().filter(|(_, it)| it.state.is_dropped());
        for (group, recovered) in dropped {
            Section::put(out, SectionKind::Group, |out| {
                out.extend_from_slice(&group.to_le_bytes());
                out.extend_from_slice(&[0; 16]);
                out.extend_from_slice(&recovered.state.encode());
            });
        }
        if let Some(meta) = &self.meta {
            Section::put_as(out, SectionKind::Meta, |out| meta.state.capture(out));
        }
        Section::put(out, SectionKind::Shard, |out| {
            out.extend_from_slice(&self.server_ms.to_le_bytes());
        });
        Section::put(out, SectionKind::Links, |out| {
            let target = &capturing.target;
            let keep_from = target.keep_from;
            for (end, next) in self.log.links_up_to(target.anchor.position) {
                if next >= keep_from {
                    out.extend_from_slice(&end.0.to_le_bytes());
                    out.extend_from_slice(&next.0.to_le_bytes());
                }
            }
        });
        Section::put(out, SectionKind::Packs, |out| {
            for (file, pack) in &self.upkeep.packs {
                let live = capturing.target.packs.get(file).copied().unwrap_or(0);
                if live > 0 {
                    out.extend_from_slice(&file.to_le_bytes());
                    for word in [pack.bytes, pack.record_bytes, live] {
                        out.extend_from_slice(&word.to_le_bytes());
                    }
                }
            }
        });
        capturing
            .target
            .body
            .push(std::mem::take(&mut capturing.piece));
    }
}

/// Captures the partition's next records. False when there are no more.
fn capture_records(
    slot: &mut PartitionSlot,
    capturing: &mut Capturing,
    budget: &mut usize,
) -> bool {
    let mut seen = 0;
    let mut more = false;
    let target = &mut capturing.target;
    let mut note = |location: RecordLocation, len: u32| {
        seen += 1;
        match location {
            RecordLocation::Ring(position) => {
                target.keep_from = target.keep_from.min(LogPosition(position));
            }
            RecordLocation::Packed { file, .. } => {
                *target.packs.entry(file).or_default() += u64::from(len);
            }
        }
    };
    let start = capturing.piece.len();
    Section::put(&mut capturing.piece, SectionKind::Records, |out| {
        more = slot.machine.capture_records(*budget, out, &mut note);
    });
    if seen == 0 {
        capturing.piece.truncate(start);
    }
    *budget = budget.saturating_sub(seen);
    more
}

/// `applied`: up to which entry the group is. Writes
/// `group u32, covered index u64, generation u32, losses u32, then (generation
/// u32, first_lost u64, highest_known_confirmed_next u64) each, then the head of
/// the state machine`.
pub(in crate::engine) fn put_partition(slot: &mut PartitionSlot, applied: u64, out: &mut Vec<u8>) {
    // One that came in a snapshot may be ahead of what its group has applied since.
    let covered = applied.max(slot.covered);
    out.extend_from_slice(&slot.group.0.to_le_bytes());
    out.extend_from_slice(&covered.to_le_bytes());
    out.extend_from_slice(&slot.generation.to_le_bytes());
    out.extend_from_slice(&(slot.losses.len() as u32).to_le_bytes());
    for loss in &slot.losses {
        out.extend_from_slice(&loss.generation.to_le_bytes());
        out.extend_from_slice(&loss.first_lost.to_le_bytes());
        out.extend_from_slice(&loss.highest_known_confirmed_next.to_le_bytes());
    }
    slot.machine.begin_capture(out);
}
