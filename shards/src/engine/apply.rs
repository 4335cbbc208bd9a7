//! Committed entries, applied, and what becomes of whoever waits for them.

use wire::{
    error::{ErrorCode, Outcome},
    vocabulary::Boundary,
};

use super::{
    applier::{Applied, Applier},
    core::Engine,
    gates::{Gate, GateAction, Origin},
    partition::{PartitionKey, PartitionSlot},
    types::{Loss, Notice},
};
use crate::{
    group::{Committed, GroupId},
    io::BatchBuffer,
    log::LogPosition,
    state::meta::MetaCommand,
};

impl<B: BatchBuffer> Engine<B> {
    /// Applies a committed entry and answers whoever waits for it.
    pub(super) fn apply(&mut self, group: u32, entry: &Committed) {
        let origin = self.take_origin(group, entry.index);
        if entry.len == 0 {
            return self.gate_or_act(group, entry.end, GateAction::Serving { group });
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
        let cached = self
            .log
            .visit_cached(entry.payload, entry.len, &mut |piece| {
                payload.extend_from_slice(piece);
            });
        match MetaCommand::decode(&payload) {
            Ok(command) if cached => self.apply_meta(&command, origin),
            _ => self.not_applied(GroupId::META.0, entry, origin, "it does not decode"),
        }
    }

    /// Reads the entry where the log's buffers hold it; only an entry in
    /// fragments is put together first.
    fn apply_payload(&mut self, group: u32, entry: &Committed) -> Result<Applied, String> {
        let generation = self
            .groups
            .get(&group)
            .map_or(0, |slot| slot.group.generation());
        let mut stamp_ms = 0;
        let mut applier = Applier {
            partitions: &mut self.partitions,
            appended: &mut self.appended,
            group: GroupId(group),
            generation,
            stamp_ms: &mut stamp_ms,
            index_bytes: &mut self.room.index_bytes,
        };
        let (log, position, len) = (&self.log, entry.payload, entry.len as usize);
        let mut gathered = Vec::new();
        let mut outcome = None;
        let cached = log.visit_cached(position, entry.len, &mut |piece| {
            if piece.len() == len {
                let place = |at: u32| LogPosition(position.0 + u64::from(at));
                outcome = Some(applier.apply(piece, &place));
            } else {
                gathered.extend_from_slice(piece);
            }
        });
        if !cached {
            return Err("its bytes left the tail cache too early".to_owned());
        }
        outcome.unwrap_or_else(|| applier.apply(&gathered, &|at| log.advance(position, at)))
    }

    fn after_apply(&mut self, group: u32, entry: &Committed, applied: Applied, origin: Origin) {
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
                let append = GateAction::Append {
                    key,
                    first,
                    count,
                    bytes,
                    open: true,
                    confirm,
                };
                self.gate_append(group, entry.end, append);
            }
            (Applied::Settled { key }, Origin::Settles { replies, .. }) => {
                self.mark_dirty(key);
                if !replies.is_empty() {
                    self.gate_by_mode(group, entry.end, key, GateAction::Settles { key, replies });
                }
            }
            (Applied::Settled { key } | Applied::Readied { key }, _) => self.mark_dirty(key),
            (Applied::Marked { key, mark }, _) => {
                let delivery = self
                    .partitions
                    .get(&key)
                    .map(|slot| slot.mode.delivery_gate());
                let action = GateAction::Mark { key, mark };
                match delivery {
                    Some(Boundary::Durable) => self.gate_or_act(group, entry.end, action),
                    _ => self.act(action, Boundary::Written),
                }
            }
            (Applied::Purged { key, records }, Origin::Purge(asked)) => {
                let action = GateAction::Purged { asked, records };
                self.gate_by_mode(group, entry.end, key, action);
            }
            (Applied::Created { key }, _) => self.gate_begun(group, entry.end, key),
            (Applied::Weakened, _) => {
                if let Some(slot) = self.groups.get_mut(&group) {
                    slot.group.weaken();
                }
            }
            (
                Applied::NewGeneration {
                    key,
                    lost_from,
                    first_lost,
                },
                _,
            ) => {
                self.tell_loss(key, lost_from, first_lost);
                self.gate_begun(group, entry.end, key);
            }
            (_, origin) => self.answer_gone(origin),
        }
    }

    /// The partition, or its new generation, serves once `end` is durable.
    fn gate_begun(&mut self, group: u32, end: LogPosition, key: PartitionKey) {
        if let Some(slot) = self.partitions.get_mut(&key) {
            slot.begun = slot.begun.max(end);
        }
        self.gate_or_act(group, end, GateAction::Begun { key });
    }

    pub(super) fn has_begun(&self, slot: &PartitionSlot) -> bool {
        let group = self.groups.get(&slot.group.0);
        let current =
            group.is_some_and(|group| group.serving && group.group.generation() == slot.generation);
        current && slot.begun <= self.frontiers.durable_next
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

    /// Splits an append's gate: what waits for written happens now, what waits
    /// for durable when the frontier is there.
    fn gate_append(&mut self, group: u32, end: LogPosition, append: GateAction) {
        let GateAction::Append {
            key,
            first,
            count,
            bytes,
            confirm,
            ..
        } = append
        else {
            return;
        };
        if end <= self.frontiers.durable_next {
            return self.act(append, Boundary::Durable);
        }
        let delivery = self
            .partitions
            .get(&key)
            .map(|slot| slot.mode.delivery_gate());
        let open = delivery == Some(Boundary::Durable);
        let waits = confirm.filter(|reply| reply.boundary == Boundary::Durable);
        let now = confirm.filter(|reply| reply.boundary == Boundary::Written);
        if now.is_some() || !open {
            let action = GateAction::Append {
                key,
                first,
                count,
                bytes,
                open: !open,
                confirm: now,
            };
            self.act(action, Boundary::Written);
        }
        let action = GateAction::Append {
            key,
            first,
            count,
            bytes,
            open,
            confirm: waits,
        };
        self.push_gate(group, end, action);
    }

    /// Acts at the boundary that the queue's mode confirms at.
    fn gate_by_mode(
        &mut self,
        group: u32,
        end: LogPosition,
        key: PartitionKey,
        action: GateAction,
    ) {
        let confirm = self
            .partitions
            .get(&key)
            .map(|slot| slot.mode.confirm_gate());
        match confirm {
            Some(Boundary::Written) if end > self.frontiers.durable_next => {
                self.act(action, Boundary::Written);
            }
            _ => self.gate_or_act(group, end, action),
        }
    }

    /// Acts at durable: now if the entry is, or when it is.
    fn gate_or_act(&mut self, group: u32, end: LogPosition, action: GateAction) {
        if end <= self.frontiers.durable_next {
            self.act(action, Boundary::Durable);
        } else {
            self.push_gate(group, end, action);
        }
    }

    fn push_gate(&mut self, group: u32, end: LogPosition, action: GateAction) {
        if let Some(slot) = self.groups.get_mut(&group) {
            slot.gates.push_back(Gate { end, action });
        }
    }
}
