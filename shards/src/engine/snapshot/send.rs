//! The leader's side: one snapshot at a time and shard, piece after piece.
//!
//! Each partition is captured as of one entry, as for a checkpoint; the receiver
//! passes over the entries that it covers. What stood in the ring or in packed files
//! when the snapshot began stays there until it is through.

use std::collections::VecDeque;

use raft::eraftpb::Message;
use wire::node::{NodeMessage, SnapshotAnswer, SnapshotId, SnapshotPiece, SnapshotTaken};

use super::piece::{self, RecordEntry};
use crate::{
    engine::{core::Engine, partition::PartitionKey, reads, upkeep::put_partition},
    group::{GroupId, Members, PeerId},
    io::BatchBuffer,
    state::queue::RecordLocation,
};

/// Record bytes of one piece, one record excepted.
const PIECE_BYTES: usize = 256 << 10;
/// Records of one piece.
const PIECE_RECORDS: usize = 4096;
/// Records captured in one turn.
const TURN_RECORDS: usize = 32 << 10;
/// Without an answer for so long it is given up.
const PATIENCE_MS: u64 = 10_000;

/// A record of the partition at hand that is still to be sent.
#[derive(Debug, Clone, Copy)]
struct Captured {
    entry: RecordEntry,
    location: RecordLocation,
}

/// A snapshot on its way out.
pub(in crate::engine) struct Sending {
    id: SnapshotId,
    node: u32,
    number: u32,
    /// The last piece was not answered yet.
    awaits: bool,
    since_ms: u64,
    /// Not before this time.
    next_ms: u64,
    keys: VecDeque<PartitionKey>,
    /// The partition that is being captured.
    capturing: Option<PartitionKey>,
    captured: VecDeque<Captured>,
    stage: Stage,
    /// Of the group, as of the snapshot's entry.
    members: Members,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Begin,
    Meta,
    Partitions,
    End,
    Done,
}

impl<B: BatchBuffer> Engine<B> {
    /// Raft wants this follower to get a snapshot.
    pub(in crate::engine) fn begin_snapshot(&mut self, group: u32, message: &Message) {
        let to = message.to;
        let node = PeerId(to).node();
        let Some(slot) = self.groups.get_mut(&group) else {
            return;
        };
        if self.sending.is_some() || !self.links.is_up(node) {
            return slot.group.snapshot_done(to, false);
        }
        let (index, index_term) = (
            message.get_snapshot().get_metadata().index,
            message.get_snapshot().get_metadata().term,
        );
        let id = SnapshotId {
            group,
            generation: slot.group.generation(),
            from: slot.group.peer().0,
            to,
            term: slot.group.term(),
            index,
            index_term,
        };
        self.sending = Some(Box::new(Sending {
            id,
            node,
            number: 0,
            awaits: false,
            since_ms: self.server_ms,
            next_ms: 0,
            keys: self.keys_of_group(group).into(),
            capturing: None,
            captured: VecDeque::new(),
            stage: Stage::Begin,
            members: Members::of_raft(message.get_snapshot().get_metadata().get_conf_state()),
        }));
    }

    /// Server time at which the snapshot goes on if nothing happens.
    pub(in crate::engine) fn snapshot_due_ms(&self) -> Option<u64> {
        let sending = self.sending.as_ref().filter(|_| !self.latched)?;
        Some(match sending.awaits {
            true => sending.since_ms + PATIENCE_MS,
            false => sending.next_ms.max(self.pace.free_ms()),
        })
    }

    /// A capture is under way: no other may begin.
    pub(in crate::engine) fn snapshot_captures(&self) -> bool {
        let sending = self.sending.as_ref();
        sending.is_some_and(|sending| sending.capturing.is_some())
    }

    /// Does the next step of the snapshot on its way out.
    pub(in crate::engine) fn send_snapshot(&mut self) {
        let Some(mut sending) = self.sending.take() else {
            return;
        };
        let id = sending.id;
        let leads = self.groups.get(&id.group).is_some_and(|slot| {
            slot.leads() && slot.group.term() == id.term && slot.group.generation() == id.generation
        });
        let late = sending.awaits && self.server_ms > sending.since_ms + PATIENCE_MS;
        if !leads || late || !self.links.is_up(sending.node) || self.latched {
            return self.end_snapshot(&mut sending, false);
        }
        if !sending.awaits && self.server_ms >= sending.next_ms && self.pace_is_free() {
            if let Some(bytes) = self.next_snapshot_piece(&mut sending) {
                self.send_piece(&mut sending, &bytes);
            }
        }
        self.sending = Some(sending);
    }

    fn send_piece(&mut self, sending: &mut Sending, bytes: &[u8]) {
        let Some(out) = self.links.output(sending.node) else {
            return;
        };
        NodeMessage::SnapshotPiece(SnapshotPiece {
            id: sending.id,
            number: sending.number,
            bytes,
        })
        .encode(out);
        sending.awaits = true;
        sending.since_ms = self.server_ms;
        self.pace.spend(bytes.len() as u64);
    }

    /// The piece that comes next, if it is at hand.
    fn next_snapshot_piece(&mut self, sending: &mut Sending) -> Option<Vec<u8>> {
        match sending.stage {
            Stage::Begin => {
                sending.stage = match sending.id.group == GroupId::META.0 {
                    true => Stage::Meta,
                    false => Stage::Partitions,
                };
                let slot = self.groups.get(&sending.id.group)?;
                Some(piece::begin(slot.group.answers_at(), &sending.members))
            }
            Stage::Meta => {
                sending.stage = Stage::End;
                let meta = self.meta.as_ref()?;
                Some(piece::meta(|out| {
                    meta.state.capture(out);
                }))
            }
            Stage::Partitions => self.next_of_partitions(sending),
            Stage::End => {
                sending.stage = Stage::Done;
                Some(piece::end())
            }
            Stage::Done => None,
        }
    }

    fn next_of_partitions(&mut self, sending: &mut Sending) -> Option<Vec<u8>> {
        if let Some(key) = sending.capturing {
            self.capture_for(sending, key);
            return None;
        }
        if !sending.captured.is_empty() {
            return self.records_piece(sending);
        }
        // A checkpoint's capture and this one must not meet.
        if self.upkeep_captures() {
            sending.next_ms = self.server_ms + 1;
            return None;
        }
        while let Some(key) = sending.keys.pop_front() {
            let group = self.groups.get(&sending.id.group)?;
            let covered = group.group.last_applied().0;
            if let Some(slot) = self.partitions.get_mut(&key) {
                sending.capturing = Some(key);
                return Some(piece::partition(|out| put_partition(slot, covered, out)));
            }
        }
        sending.stage = Stage::End;
        self.next_snapshot_piece(sending)
    }

    /// Captures where a turn's worth of the partition's records stands.
    fn capture_for(&mut self, sending: &mut Sending, key: PartitionKey) {
        let captured = &mut sending.captured;
        let more = self.partitions.get_mut(&key).is_some_and(|slot| {
            let more =
                slot.machine
                    .show_captured(TURN_RECORDS, &mut |offset, attempts, location, len| {
                        let entry = RecordEntry {
                            offset,
                            attempts,
                            len,
                        };
                        captured.push_back(Captured { entry, location });
                    });
            if !more {
                slot.machine.end_capture();
            }
            more
        });
        if !more {
            sending.capturing = None;
        }
    }

    /// The next records, as many as are at hand; what is not is asked for.
    fn records_piece(&mut self, sending: &mut Sending) -> Option<Vec<u8>> {
        let mut entries = Vec::new();
        let mut bytes = Vec::new();
        while let Some(next) = sending.captured.front().copied() {
            let (location, len) = (next.location, next.entry.len);
            let full = entries.len() >= PIECE_RECORDS || bytes.len() + len as usize > PIECE_BYTES;
            if full && !entries.is_empty() {
                break;
            }
            if self.is_unreadable(location, len) {
                sending.captured.pop_front();
                continue;
            }
            if !self.at_hand(location, len) {
                break;
            }
            sending.captured.pop_front();
            // One that does not verify is left out: the follower has not got it
            // either, and says so when it is to be delivered.
            if !self.is_sound(location, len) {
                continue;
            }
            reads::visit(&self.log, &self.reads, location, len, &mut |piece| {
                bytes.extend_from_slice(piece);
            });
            entries.push(next.entry);
        }
        (!entries.is_empty()).then(|| piece::records(&entries, &bytes))
    }

    pub(in crate::engine) fn on_snapshot_taken(&mut self, taken: &SnapshotTaken) {
        let Some(mut sending) = self.sending.take() else {
            return;
        };
        if sending.id != taken.id || sending.number != taken.number || !sending.awaits {
            self.sending = Some(sending);
            return;
        }
        match taken.answer {
            SnapshotAnswer::Taken => {
                sending.awaits = false;
                sending.number += 1;
                self.sending = Some(sending);
            }
            SnapshotAnswer::Installed => self.end_snapshot(&mut sending, true),
            SnapshotAnswer::Refused => self.end_snapshot(&mut sending, false),
        }
    }

    fn end_snapshot(&mut self, sending: &mut Sending, done: bool) {
        if let Some(slot) = sending
            .capturing
            .and_then(|key| self.partitions.get_mut(&key))
        {
            slot.machine.end_capture();
        }
        if let Some(slot) = self.groups.get_mut(&sending.id.group) {
            slot.group.snapshot_done(sending.id.to, done);
            slot.dirty = true;
        }
    }
}
