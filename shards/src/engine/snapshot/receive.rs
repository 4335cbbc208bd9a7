//! The follower's side: pieces into the log, then one step of Raft puts the new
//! state in the old one's place (R10).

use wire::{
    node::{NodeMessage, SnapshotAnswer, SnapshotId, SnapshotPiece, SnapshotTaken},
    record::Record,
    vocabulary::Boundary,
};

use super::{installed_piece, piece::Piece, staged::Staged};
use crate::{
    engine::{core::Engine, types::Notice},
    group::{GroupId, PeerId},
    io::BatchBuffer,
    log::{ItemHeader, ItemKind, LogPosition},
};

/// A snapshot on its way in.
pub(in crate::engine) struct Receiving {
    id: SnapshotId,
    next: u32,
    /// The last piece was taken, and the next not asked for yet.
    owed: Option<SnapshotTaken>,
    pub staged: Staged,
}

/// Unwritten bytes of the log above which no further piece is asked for.
const MOST_UNWRITTEN: u64 = 1 << 20;

impl<B: BatchBuffer> Engine<B> {
    pub(in crate::engine) fn on_snapshot_piece(&mut self, node: u32, piece: &SnapshotPiece<'_>) {
        let id = piece.id;
        if PeerId(id.from).node() != node {
            return;
        }
        let answer = self.take_piece(piece);
        if answer != SnapshotAnswer::Taken {
            self.receiving.remove(&id.group);
        }
        if answer == SnapshotAnswer::Refused {
            self.decline_snapshot(&id);
        }
        let taken = SnapshotTaken {
            id,
            number: piece.number,
            answer,
        };
        if answer == SnapshotAnswer::Taken {
            if let Some(receiving) = self.receiving.get_mut(&id.group) {
                receiving.owed = Some(taken);
                return;
            }
        }
        self.answer_piece(&taken);
    }

    fn decline_snapshot(&mut self, id: &SnapshotId) {
        let Some(slot) = self.groups.get_mut(&id.group).filter(|_| !self.latched) else {
            return;
        };
        let mut outcome = std::mem::take(&mut slot.outcome);
        slot.group.decline_snapshot(&mut self.log, id, &mut outcome);
        slot.dirty = true;
        self.absorb(id.group, outcome);
    }

    fn answer_piece(&mut self, taken: &SnapshotTaken) {
        if let Some(out) = self.links.output(PeerId(taken.id.from).node()) {
            NodeMessage::SnapshotTaken(*taken).encode(out);
        }
    }

    /// Asks for the next pieces where the log has caught up.
    pub(in crate::engine) fn ask_for_pieces(&mut self) {
        if self.receiving.is_empty() || self.log.backlog_bytes() > MOST_UNWRITTEN {
            return;
        }
        let owed = self.receiving.values_mut();
        let owed: Vec<SnapshotTaken> = owed.filter_map(|receiving| receiving.owed.take()).collect();
        for taken in &owed {
            self.answer_piece(taken);
        }
    }

    fn take_piece(&mut self, piece: &SnapshotPiece<'_>) -> SnapshotAnswer {
        let id = piece.id;
        let wanted = self
            .groups
            .get(&id.group)
            .is_some_and(|slot| slot.group.wants_snapshot(&id));
        let decoded = Piece::decode(piece.bytes);
        let Some(decoded) = decoded.filter(|_| wanted && !self.latched) else {
            return SnapshotAnswer::Refused;
        };
        if !is_intact(&decoded) {
            return SnapshotAnswer::Refused;
        }
        let Some(place) = self.log_piece(&id, piece.bytes) else {
            return SnapshotAnswer::Refused;
        };
        if matches!(decoded, Piece::Begin { .. }) && piece.number == 0 {
            let data_groups = self.config.place.shard_of_group.len().saturating_sub(1) as u32;
            let staged = Staged::new(GroupId(id.group), data_groups, place);
            let next = 0;
            let receiving = Receiving {
                id,
                next,
                owed: None,
                staged,
            };
            self.receiving.insert(id.group, receiving);
        }
        let log = &self.log;
        let Some(receiving) = self.receiving.get_mut(&id.group) else {
            return SnapshotAnswer::Refused;
        };
        let fits = receiving.id == id && receiving.next == piece.number;
        if !fits
            || !receiving
                .staged
                .take(&decoded, &|at| log.advance(place, at))
        {
            return SnapshotAnswer::Refused;
        }
        receiving.next += 1;
        match receiving.staged.complete {
            false => SnapshotAnswer::Taken,
            true => self.install(&id),
        }
    }

    /// The piece into the log; where its first byte stands.
    fn log_piece(&mut self, id: &SnapshotId, bytes: &[u8]) -> Option<LogPosition> {
        let item = snapshot_item(id.group, id.term, id.index);
        // Not held to what clients may leave unwritten: one piece is under way at a
        // time, and the next is asked for when the log has caught up.
        let appended = self
            .log
            .append_admitted(item, &[bytes], Boundary::Written)
            .ok()?;
        Some(appended.payload)
    }

    /// Everything is there: Raft decides whether it is wanted.
    fn install(&mut self, id: &SnapshotId) -> SnapshotAnswer {
        let Some(receiving) = self.receiving.remove(&id.group) else {
            return SnapshotAnswer::Refused;
        };
        let Some(slot) = self.groups.get_mut(&id.group) else {
            return SnapshotAnswer::Refused;
        };
        let mut outcome = std::mem::take(&mut slot.outcome);
        let members = receiving.staged.members.clone();
        let item = installed_piece(id.index, id.index_term, &members);
        let installed = slot
            .group
            .install(&mut self.log, id, members, &item, &mut outcome);
        slot.dirty = true;
        if installed {
            self.replace_state(id, receiving.staged);
        }
        self.absorb(id.group, outcome);
        match installed {
            true => SnapshotAnswer::Installed,
            false => SnapshotAnswer::Refused,
        }
    }

    /// The group's partitions are those of the snapshot from now on.
    fn replace_state(&mut self, id: &SnapshotId, mut staged: Staged) {
        if staged.answers_at == Boundary::Written {
            if let Some(slot) = self.groups.get_mut(&id.group) {
                slot.group.weaken();
            }
        }
        let stamps = staged.partitions.iter();
        let newest = stamps
            .filter_map(|slot| slot.machine.newest_stamp_ms())
            .max();
        self.note_stamp(id.group, newest.unwrap_or(0));
        let state = staged.meta.take();
        staged.replace(&mut self.partitions, &mut self.room.index_bytes);
        if let (Some(state), Some(meta)) = (state, self.meta.as_mut()) {
            meta.state = state;
            // The shards are told of everything anew.
            self.directory_told = false;
            self.opens_told = false;
        }
        self.notices.push(Notice::Installed {
            group: id.group,
            index: id.index,
        });
    }

    /// Where the oldest piece of a snapshot that is not installed stands.
    pub(in crate::engine) fn staged_from(&self) -> Option<LogPosition> {
        let staged = self.receiving.values();
        staged.map(|receiving| receiving.staged.from).min()
    }

    /// Another leader, or none: what it sent so far is nothing.
    pub(in crate::engine) fn drop_stale_snapshots(&mut self) {
        let groups = &self.groups;
        self.receiving.retain(|group, receiving| {
            let group = groups.get(group);
            group.is_some_and(|slot| slot.group.wants_snapshot(&receiving.id))
        });
    }
}

/// Every record that the piece carries verifies.
fn is_intact(piece: &Piece<'_>) -> bool {
    let Piece::Records(records) = piece else {
        return true;
    };
    records.iter().all(|(entry, at)| {
        let record = records.record(&entry, at);
        record.is_some_and(Record::is_intact)
    })
}

/// The log item of a piece.
pub(in crate::engine) fn snapshot_item(group: u32, term: u64, index: u64) -> ItemHeader {
    ItemHeader {
        kind: ItemKind::Snapshot,
        group,
        term,
        index,
        sync: false,
    }
}
