//! Committed entries, applied, and what becomes of whoever waits for them.

use wire::{
    error::{ErrorCode, Outcome},
    vocabulary::{Boundary, Mode},
};

use super::{
    applier::{Applied, Applier},
    core::Engine,
    gates::{copies_needed, majority, At, Gate, GateAction, Met, Origin, PublishReply},
    partition::{PartitionKey, PartitionSlot},
    types::{Loss, Notice},
};
use crate::{
    group::{Committed, GroupId, MembershipChange},
    io::BatchBuffer,
    log::LogPosition,
    mutation::{removed, Rule},
    state::meta::{MetaCommand, FIRST_GENERATION},
};

impl<B: BatchBuffer> Engine<B> {
    /// Applies a committed entry and answers whoever waits for it.
    pub(super) fn apply(&mut self, group: u32, entry: &Committed) {
        let origin = self.take_origin(group, entry.index);
        if entry.membership {
            return self.apply_membership(group, entry);
        }
        if entry.len == 0 {
            return self.on_leaders_entry(group, entry);
        }
        if group == GroupId::META.0 {
            return self.apply_meta_entry(entry, origin);
        }
        let applied = self.apply_payload(group, entry);
        self.watch_index();
        match applied {
            Ok(applied) => self.after_apply(group, entry, applied, origin),
            Err(reason) => self.not_applied(group, entry, origin, &reason),
        }
    }

    /// Cannot happen to what was checked before it was proposed. It is in the
    /// log: a start may yet make something of it.
    fn not_applied(&mut self, group: u32, entry: &Committed, origin: Origin, reason: &str) {
        let index = entry.index;
        let problem = format!("entry {index} of group {group} was not applied: {reason}");
        self.answer_origin(origin, ErrorCode::Internal, Outcome::Unknown, &problem);
        self.notices.push(Notice::Problem(problem));
    }

    /// The empty entry that a leader begins with: once it is durable on a majority,
    /// ours being one of them, it serves. One of another leader means nothing here.
    fn on_leaders_entry(&mut self, group: u32, entry: &Committed) {
        let Some(slot) = self.groups.get(&group) else {
            return;
        };
        let ours = slot.group.is_leader() && slot.group.term() == entry.term;
        if ours && !slot.serving {
            let at = at(entry);
            let action = GateAction::Serving { group, at };
            if removed(Rule::BarrierDurable) {
                let copies = majority(self.replicas_of(group));
                return self.gate(group, at, Boundary::Written, copies, action);
            }
            self.gate_majority(group, at, action);
        }
    }

    fn apply_membership(&mut self, group: u32, entry: &Committed) {
        let mut payload = Vec::new();
        let Some(slot) = self.groups.get_mut(&group) else {
            return;
        };
        let visit = &mut |piece: &[u8]| payload.extend_from_slice(piece);
        slot.group.visit_entry(&self.log, entry.index, visit);
        let changed = match MembershipChange::decode(&payload) {
            Some(change) => slot.group.change_membership(&mut self.log, change),
            None => return self.group_problem(group, "a change of membership does not decode"),
        };
        if let Err(error) = changed {
            self.group_problem(
                group,
                &format!("a change of membership was not applied: {error}"),
            );
        }
    }

    fn take_origin(&mut self, group: u32, index: u64) -> Origin {
        let Some(slot) = self.groups.get_mut(&group) else {
            return Origin::Nobody;
        };
        match slot.origins.front() {
            Some((at, _)) if *at == index => slot
                .origins
                .pop_front()
                .map_or(Origin::Nobody, |(_, origin)| origin),
            _ => Origin::Nobody,
        }
    }

    fn apply_meta_entry(&mut self, entry: &Committed, origin: Origin) {
        let mut payload = Vec::with_capacity(entry.len as usize);
        let cached = self.groups.get(&GroupId::META.0).is_some_and(|slot| {
            let group = &slot.group;
            group.visit_entry(&self.log, entry.index, &mut |piece| {
                payload.extend_from_slice(piece);
            })
        });
        match MetaCommand::decode(&payload) {
            Ok(command) if cached => self.apply_meta(&command, origin),
            _ => self.not_applied(GroupId::META.0, entry, origin, "it does not decode"),
        }
    }

    /// Reads the entry where the log's buffers hold it; only an entry in
    /// fragments is put together first.
    fn apply_payload(&mut self, group: u32, entry: &Committed) -> Result<Applied, String> {
        let slot = self.groups.get(&group).ok_or("its group is gone")?;
        let generation = slot.group.generation();
        let mut stamp_ms = 0;
        let mut applier = Applier {
            partitions: &mut self.partitions,
            appended: &mut self.appended,
            group: GroupId(group),
            generation,
            index: entry.index,
            stamp_ms: &mut stamp_ms,
            index_bytes: &mut self.room.index_bytes,
        };
        let (log, position, len) = (&self.log, entry.payload, entry.len as usize);
        let mut gathered = Vec::new();
        let mut outcome = None;
        // Nearly all are: no record's place has to be looked up then.
        let side_by_side = log.advance(position, entry.len).0 == position.0 + u64::from(entry.len);
        let visit = &mut |piece: &[u8]| {
            if piece.len() == len {
                let place = |at: u32| match side_by_side {
                    true => LogPosition(position.0 + u64::from(at)),
                    false => log.advance(position, at),
                };
                outcome = Some(applier.apply(piece, &place));
            } else {
                gathered.extend_from_slice(piece);
            }
        };
        if !slot.group.visit_entry(log, entry.index, visit) {
            return Err("its bytes left the tail cache too early".to_owned());
        }
        let applied =
            outcome.unwrap_or_else(|| applier.apply(&gathered, &|at| log.advance(position, at)));
        if stamp_ms > self.server_ms {
            self.note_stamp(group, stamp_ms);
        }
        applied
    }

    fn after_apply(&mut self, group: u32, entry: &Committed, applied: Applied, origin: Origin) {
        if let Applied::Weakened = applied {
            if let Some(slot) = self.groups.get_mut(&group) {
                slot.group.weaken();
            }
        }
        if !self.leads(GroupId(group)) {
            return self.after_apply_elsewhere(applied);
        }
        let at = at(entry);
        match (applied, origin) {
            (
                Applied::Appended {
                    key,
                    first,
                    count,
                    bytes,
                },
                origin,
            ) => {
                let confirm = match origin {
                    Origin::Publish(reply) => Some(reply),
                    _ => None,
                };
                let append = Append {
                    key,
                    first,
                    count,
                    bytes,
                    again: false,
                };
                if removed(Rule::DeliveryGate) {
                    self.open_recovered(key);
                }
                self.gate_append(group, at, append, confirm);
            }
            (Applied::SentAgain { key, first, count }, Origin::Publish(reply)) => {
                // The first one is in front of this entry in the same log: where this
                // one is, that one is, too.
                let append = Append {
                    key,
                    first,
                    count,
                    bytes: 0,
                    again: true,
                };
                self.gate_append(group, at, append, Some(reply));
            }
            (Applied::Fenced { epoch }, Origin::Publish(reply)) => {
                let message = fenced(epoch);
                self.answer_once(&reply, ErrorCode::Fenced, Outcome::Failed, message);
            }
            (Applied::Forgotten, Origin::Publish(reply)) => {
                let message = FORGOTTEN.to_owned();
                self.answer_once(&reply, ErrorCode::Forgotten, Outcome::Unknown, message);
            }
            (Applied::SentAgain { .. } | Applied::Fenced { .. } | Applied::Forgotten, _) => {}
            (Applied::Settled { key }, Origin::Settles { replies, .. }) => {
                self.mark_dirty(key);
                if !replies.is_empty() {
                    self.gate_by_mode(group, at, key, GateAction::Settles { key, replies });
                }
            }
            (Applied::Settled { key } | Applied::Readied { key }, _) => self.mark_dirty(key),
            (Applied::Marked { key, mark }, _) => {
                let boundary = self
                    .partitions
                    .get(&key)
                    .map(|slot| slot.mode().delivery_gate());
                let action = GateAction::Mark { key, mark };
                self.gate_at(
                    group,
                    at,
                    key,
                    boundary.unwrap_or(Boundary::Durable),
                    action,
                );
            }
            (Applied::Purged { key, records }, Origin::Purge(asked)) => {
                let action = GateAction::Purged { asked, records };
                self.gate_by_mode(group, at, key, action);
            }
            (Applied::Created { key }, _) => {
                self.gate_begun(group, at, key);
                // It began as declared, or with a setting whose revision it does not have.
                self.drive_change_of(key);
            }
            (Applied::Changed { key, before }, _) => self.after_change(group, at, key, before),
            (Applied::Weakened, _) => {}
            (
                Applied::NewGeneration {
                    key,
                    lost_from,
                    first_lost,
                },
                _,
            ) => {
                self.tell_loss(key, lost_from, first_lost);
                self.gate_begun(group, at, key);
            }
            (_, origin) => self.answer_gone(origin),
        }
    }

    fn answer_once(
        &mut self,
        reply: &PublishReply,
        code: ErrorCode,
        outcome: Outcome,
        message: String,
    ) {
        if !reply.answered {
            self.answer_publish(reply, code, outcome, message);
        }
    }

    /// Another replica leads: it answers. Here only what is to be known is noted.
    fn after_apply_elsewhere(&mut self, applied: Applied) {
        match applied {
            Applied::Created { key } => self.tell_ready(key),
            Applied::NewGeneration {
                key,
                lost_from,
                first_lost,
            } => self.tell_loss(key, lost_from, first_lost),
            _ => {}
        }
    }

    /// The partition, or its new generation, serves once the entry is durable on a
    /// majority: a power cut would take it back, and what was confirmed in it would
    /// be lost unreported.
    fn gate_begun(&mut self, group: u32, at: At, key: PartitionKey) {
        if let Some(slot) = self.partitions.get_mut(&key) {
            slot.begun = false;
        }
        self.gate_majority(group, at, GateAction::Begun { key });
    }

    pub(super) fn has_begun(&self, slot: &PartitionSlot) -> bool {
        let group = self.groups.get(&slot.group.0);
        let current =
            group.is_some_and(|group| group.serving && group.group.generation() == slot.generation);
        current && slot.begun
    }

    fn tell_loss(&mut self, key: PartitionKey, generation: u32, first_lost: u64) {
        let name = self
            .directory
            .by_id(key.queue_id)
            .map(|queue| queue.name.to_string());
        let slot = self.partitions.get(&key);
        self.notices.push(Notice::Loss(Loss {
            queue: name.unwrap_or_default(),
            queue_id: key.queue_id,
            partition: key.partition,
            generation,
            first_lost,
            begins: slot.map_or(generation + 1, |slot| slot.generation),
        }));
    }

    /// How many copies the partition asks for at a boundary.
    pub(super) fn copies_of(&self, key: PartitionKey, boundary: Boundary) -> usize {
        let Some(slot) = self.partitions.get(&key) else {
            return 1;
        };
        // Of all replicas there should be, also while one is being replaced (found
        // by the model, `copies-full` and `barrier-full`).
        let replicas = self.replicas_of(slot.group.0);
        copies_needed(slot.machine.spec().copies, replicas, boundary)
    }

    /// Splits an append's gate: what waits for written opens there, what waits
    /// for durable when that is reached.
    fn gate_append(&mut self, group: u32, at: At, append: Append, confirm: Option<PublishReply>) {
        let key = append.key;
        let durable_copies = self.copies_of(key, Boundary::Durable);
        if let Some(met) = self.met(group, at, Boundary::Durable, durable_copies) {
            return self.act(append.action(true, confirm), met);
        }
        let mode = self.partitions.get(&key).map(|slot| slot.mode());
        let mode = mode.unwrap_or(Mode::Durable);
        let open = mode.delivery_gate() == Boundary::Durable;
        let confirm = confirm.map(|reply| PublishReply {
            boundary: match reply.durable {
                true => Boundary::Durable,
                false => mode.confirm_gate(),
            },
            ..reply
        });
        let waits = confirm.filter(|reply| reply.boundary == Boundary::Durable);
        let now = confirm.filter(|reply| reply.boundary == Boundary::Written);
        if now.is_some() || !open {
            let copies = self.copies_of(key, Boundary::Written);
            let action = append.action(!open, now);
            self.gate(group, at, Boundary::Written, copies, action);
        }
        let action = append.action(open, waits);
        self.push_gate(group, at, Boundary::Durable, durable_copies, action);
    }

    /// Acts at the boundary that the queue's mode confirms at.
    fn gate_by_mode(&mut self, group: u32, at: At, key: PartitionKey, action: GateAction) {
        let confirm = self
            .partitions
            .get(&key)
            .map(|slot| slot.mode().confirm_gate());
        self.gate_at(group, at, key, confirm.unwrap_or(Boundary::Durable), action);
    }

    /// Acts at a boundary on as many copies as the queue asks for; at durable if
    /// that is reached already.
    fn gate_at(
        &mut self,
        group: u32,
        at: At,
        key: PartitionKey,
        boundary: Boundary,
        action: GateAction,
    ) {
        let durable_copies = self.copies_of(key, Boundary::Durable);
        if let Some(met) = self.met(group, at, Boundary::Durable, durable_copies) {
            return self.act(action, met);
        }
        let copies = self.copies_of(key, boundary);
        self.gate(group, at, boundary, copies, action);
    }

    /// Acts once the entry is durable on a majority of all replicas.
    fn gate_majority(&mut self, group: u32, at: At, action: GateAction) {
        let mut copies = majority(self.replicas_of(group));
        if group == GroupId::META.0 {
            // One that an operator forced to go on has to do with the voters there are.
            let slot = self.groups.get(&group).filter(|_| self.is_cluster());
            let forced = slot.filter(|slot| slot.group.generation() > FIRST_GENERATION);
            let voters = forced.map(|slot| slot.group.members().voters.len());
            copies = copies.min(voters.unwrap_or(copies));
        }
        self.gate(group, at, Boundary::Durable, copies, action);
    }

    pub(super) fn gate(
        &mut self,
        group: u32,
        at: At,
        boundary: Boundary,
        copies: usize,
        action: GateAction,
    ) {
        match self.met(group, at, boundary, copies) {
            Some(met) => self.act(action, met),
            None => self.push_gate(group, at, boundary, copies, action),
        }
    }

    /// What the entry has reached, if that is enough.
    fn met(&self, group: u32, at: At, boundary: Boundary, copies: usize) -> Option<Met> {
        let slot = self.groups.get(&group)?;
        let behind = removed(Rule::PerBoundary) && slot.waiting() > 0;
        if behind || !slot.is_reached(at, boundary, copies, &self.frontiers) {
            return None;
        }
        let copies = slot.group.copies_of(boundary, at.index);
        Some(Met { boundary, copies })
    }

    fn push_gate(
        &mut self,
        group: u32,
        at: At,
        boundary: Boundary,
        copies: usize,
        action: GateAction,
    ) {
        if let Some(slot) = self.groups.get_mut(&group) {
            slot.push_gate(boundary, copies, Gate { at, action });
        }
    }
}

/// Why a publish of an older epoch is refused.
pub(super) fn fenced(epoch: u32) -> String {
    format!("epoch {epoch} of this producer has published: an older one publishes nothing more; stop, or take a higher epoch")
}

const FORGOTTEN: &str = "this publish is older than what is remembered of its producer (its latest 32 of a partition): it may be stored already; it was not stored again";

fn at(entry: &Committed) -> At {
    At {
        index: entry.index,
        end: entry.end,
    }
}

/// Records that were appended.
#[derive(Debug, Clone, Copy)]
struct Append {
    key: PartitionKey,
    first: u64,
    count: u32,
    bytes: u64,
    /// They are those of an earlier entry, whose own gate opens them for delivery.
    again: bool,
}

impl Append {
    fn action(self, open: bool, confirm: Option<PublishReply>) -> GateAction {
        let Append {
            key,
            first,
            count,
            bytes,
            again,
        } = self;
        GateAction::Append {
            key,
            first,
            count,
            bytes,
            open: open && !again,
            confirm,
        }
    }
}
