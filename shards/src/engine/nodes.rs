//! What other nodes send, to whom it belongs; and what goes to them.

use raft::eraftpb::{Message, MessageType};
use wire::node::{NodeMessage, NodeMessages, RaftMessage};

use super::{
    core::Engine,
    reads,
    types::{Effect, Notice},
};
use crate::{
    group::{GroupError, MembershipChange, Outcome, PeerId},
    io::BatchBuffer,
    mutation::{removed, Rule},
    state::{command::Command, queue::RecordLocation},
};

impl<B: BatchBuffer> Engine<B> {
    pub(super) fn on_node_up(&mut self, node: u32) {
        if self.forgotten.contains(&node) {
            return self.refuse_forgotten(node);
        }
        if self.is_no_member(node) {
            let reason = format!("node {node} is no member of the cluster any more");
            return self.refused_nodes.push((node, reason));
        }
        self.links.ensure(node);
        if self.links.is_up(node) {
            self.on_node_down(node);
        }
        self.links.set_up(node, true);
        self.send_roster(node);
        self.tell_led(node);
        self.pause_spreading();
        for slot in self.groups.values_mut() {
            slot.group.report_again();
        }
    }

    pub(super) fn on_node_down(&mut self, node: u32) {
        if !self.links.set_up(node, false) {
            return;
        }
        self.pause_spreading();
        self.drop_relays(node);
        for slot in self.groups.values_mut() {
            slot.group.unreachable_node(node);
        }
    }

    /// One frame of a link.
    pub(super) fn on_node_body(&mut self, node: u32, body: &[u8]) {
        if !self.links.is_up(node) {
            return;
        }
        for message in NodeMessages::new(body) {
            match message {
                Ok(message) => self.on_node_message(node, &message),
                Err(error) => {
                    let reason = error.to_string();
                    self.refused_nodes.push((node, reason));
                    return;
                }
            }
        }
    }

    fn on_node_message(&mut self, node: u32, message: &NodeMessage<'_>) {
        match message {
            NodeMessage::Raft(message) => self.on_raft(node, message),
            NodeMessage::DurableReport(report) => {
                let group = self.groups.get_mut(&report.group);
                if let Some(slot) = group.filter(|_| PeerId(report.from).node() == node) {
                    slot.group.durable_report(report);
                }
            }
            NodeMessage::Forward(forward) => self.on_node_forward(node, forward),
            NodeMessage::Output(output) => self.on_node_output(node, output),
            NodeMessage::OutputTaken { conn } => self.on_node_taken(node, *conn),
            NodeMessage::ConnClosed { conn } => self.on_node_closed(node, *conn),
            NodeMessage::Propose { command } => self.on_propose(node, command),
            NodeMessage::Named {
                retired,
                new,
                generation,
            } => self.on_named(*retired, *new, *generation),
            NodeMessage::Roster { bytes } => self.on_node_roster(node, bytes),
            NodeMessage::Leads {
                group,
                generation,
                term,
            } => self.on_leads(node, *group, (*generation, *term)),
            NodeMessage::Ready {
                queue_id,
                partition,
            } => self.on_ready_elsewhere(*queue_id, *partition),
            NodeMessage::LeadsNothing { on } => self.links.set_leads_nothing(node, *on),
            NodeMessage::Leaderless { group, generation } => {
                self.on_leaderless(node, *group, *generation);
            }
            NodeMessage::SnapshotPiece(piece) => self.on_snapshot_piece(node, piece),
            NodeMessage::SnapshotTaken(taken) => self.on_snapshot_taken(taken),
        }
    }

    fn on_raft(&mut self, node: u32, message: &RaftMessage<'_>) {
        let id = message.head.group;
        if self.latched || PeerId(message.head.from).node() != node {
            return;
        }
        if !message
            .entries
            .iter()
            .all(|entry| is_sound(entry.payload, entry.membership, id))
        {
            let reason = format!("an entry of group {id} does not verify");
            return self.refused_nodes.push((node, reason));
        }
        let Some(slot) = self.groups.get_mut(&id) else {
            return;
        };
        let mut outcome = std::mem::take(&mut slot.outcome);
        let stepped = slot.group.step(&mut self.log, message, &mut outcome);
        if removed(Rule::WeakenDurable)
            && message.entries.iter().any(|entry| weakens(entry.payload))
        {
            slot.group.weaken();
        }
        slot.dirty = true;
        self.absorb(id, outcome);
        match stepped {
            // As if it had been lost: it is sent again.
            Ok(()) | Err(GroupError::NotLeader(_) | GroupError::Log(_)) => {}
            Err(GroupError::Raft(reason)) => self.note_raft_refusal(id, &reason),
        }
    }

    /// Said once per group and reason: messages of an earlier life come in crowds.
    fn note_raft_refusal(&mut self, id: u32, reason: &str) {
        let Some(slot) = self.groups.get_mut(&id) else {
            return;
        };
        if slot.told_refusal.as_deref() != Some(reason) {
            slot.told_refusal = Some(reason.to_owned());
            self.group_problem(
                id,
                &format!("a message of another replica was not taken: {reason}"),
            );
        }
    }

    /// Sends what the group has ready, and applies.
    pub(super) fn absorb(&mut self, id: u32, mut outcome: Outcome) {
        self.watch_leadership(id);
        self.send_messages(id, &mut outcome.messages);
        let last = outcome.committed.last().map(|entry| entry.index);
        for entry in &outcome.committed {
            self.apply(id, entry);
        }
        outcome.committed.clear();
        let frontiers = self.frontiers;
        if let Some(slot) = self.groups.get_mut(&id) {
            if let Some(index) = last {
                slot.group.applied(index);
            }
            // A Ready without anything to persist counts at once.
            slot.group.persisted(&frontiers, &mut outcome);
            slot.outcome = outcome;
        }
    }

    fn send_messages(&mut self, id: u32, messages: &mut Vec<Message>) {
        for message in messages.drain(..) {
            if message.get_msg_type() == MessageType::MsgSnapshot {
                self.begin_snapshot(id, &message);
                continue;
            }
            let Some(slot) = self.groups.get(&id) else {
                continue;
            };
            if let Some(out) = self.links.output(PeerId(message.to).node()) {
                slot.group.encode(&self.log, &message, out);
            }
        }
    }

    /// Sends what became ready by what is persisted now, and what followers owe
    /// their leaders.
    pub(super) fn talk_to_nodes(&mut self) {
        if !self.is_cluster() || self.latched {
            return;
        }
        let mut from = 0;
        let has_messages = |slot: &super::gates::GroupSlot| !slot.outcome.messages.is_empty();
        while let Some(id) = self.group_where(from, has_messages) {
            from = id.saturating_add(1);
            let slot = self.groups.get_mut(&id);
            let mut messages = slot.map(|slot| std::mem::take(&mut slot.outcome.messages));
            if let Some(messages) = &mut messages {
                self.send_messages(id, messages);
            }
            if let Some((slot, messages)) = self.groups.get_mut(&id).zip(messages) {
                slot.outcome.messages = messages;
            }
        }
        for slot in self.groups.values_mut() {
            if let Some(report) = slot.group.take_report() {
                if let Some(out) = self.links.output(PeerId(report.to).node()) {
                    NodeMessage::DurableReport(report).encode(out);
                }
            }
        }
        self.read_for_followers();
        self.send_snapshot();
        self.ask_for_pieces();
        self.drop_stale_snapshots();
    }

    /// Whether more may be brought to followers that are behind.
    pub(super) fn pace_is_free(&mut self) -> bool {
        if !self.pace.is_free() {
            let groups = self.groups.values();
            let taken_in = groups.map(|slot| slot.group.taken_in()).sum();
            self.pace.fill(self.server_ms, taken_in);
        }
        self.pace.is_free()
    }

    /// Server time at which more may be brought to them. A latched shard brings nothing, and
    /// would only be woken again and again.
    pub(super) fn pace_due_ms(&self) -> Option<u64> {
        Some(self.pace.free_ms()).filter(|due| *due > 0 && !self.latched)
    }

    /// Entries that a follower needs and that left memory are read back.
    fn read_for_followers(&mut self) {
        let ids: Vec<u32> = self.groups.keys().copied().collect();
        for id in ids {
            if !self.pace_is_free() {
                return;
            }
            let wanted = match self.groups.get_mut(&id) {
                Some(slot) if slot.leads() => slot.group.wanted(),
                _ => continue,
            };
            let mut fetched = Vec::new();
            let mut bytes = 0;
            for entry in wanted {
                let (index, place, len) = (entry.index, entry.place, entry.len);
                let location = RecordLocation::Ring(place.0);
                if len > 0 && !self.at_hand(location, len) {
                    break;
                }
                let mut payload = Vec::with_capacity(len as usize);
                reads::visit(&self.log, &self.reads, location, len, &mut |piece| {
                    payload.extend_from_slice(piece);
                });
                if !is_sound(&payload, entry.membership, id) {
                    self.notices.push(Notice::Problem(format!(
                        "entry {index} of group {id} does not verify on this node's disk: it cannot be sent to a follower that needs it"
                    )));
                    break;
                }
                bytes += payload.len() as u64;
                fetched.push((index, payload));
            }
            if fetched.is_empty() {
                continue;
            }
            self.pace.spend(bytes);
            if let Some(slot) = self.groups.get_mut(&id) {
                slot.group.fetched(fetched);
                slot.dirty = true;
            }
        }
    }

    pub(super) fn push_node_effects(&mut self, effects: &mut Vec<Effect<B>>) {
        let refused = self.refused_nodes.drain(..);
        effects.extend(refused.map(|(node, reason)| Effect::NodeRefused { node, reason }));
        self.links.tell(effects);
    }
}

fn weakens(payload: &[u8]) -> bool {
    matches!(Command::decode(payload), Ok(Command::Weaken))
}

/// What came or was read back is a command, and its records verify.
fn is_sound(payload: &[u8], membership: bool, group: u32) -> bool {
    if membership {
        return MembershipChange::decode(payload).is_some();
    }
    if payload.is_empty() {
        return true;
    }
    if group == crate::group::GroupId::META.0 {
        return crate::state::meta::MetaCommand::decode(payload).is_ok();
    }
    match Command::decode(payload) {
        Ok(Command::Append { count, records, .. }) => {
            wire::record::check_batch(records, count).is_ok()
        }
        Ok(_) => true,
        Err(_) => false,
    }
}
