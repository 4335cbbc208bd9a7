//! A queue's mode and W change while it runs.
//!
//! Group 0 has the setting that is desired, with its revision; the log of each group with a
//! partition of the queue has the one in force, by an entry of its own. Whoever leads that
//! group proposes it as soon as its node hears of the change, begins to lead, or makes the
//! partition; the state machine takes only a newer revision than it has.
//!
//! 1. What was admitted before the entry keeps its promise: each gate is the one that the
//!    log's setting at its entry asks for, and none moves.
//! 2. A change is *applied* once its entry is durable on as many copies as either setting
//!    asks for, whatever the modes are: nothing takes it back then.
//! 3. A group that answers at durable is weakened first where the new mode delivers at
//!    written, as for a new queue of that mode.
//!
//! Never: moves a partition; what a group answers at is not made stronger again.

use std::sync::Arc;

use wire::{
    codec,
    error::ErrorCode,
    frame::Kind,
    message::{ChangeQueue, Extension, QueueChanged, ANY_REVISION, CHANGE_COPIES},
    setting::{InForce, Standing},
    vocabulary::{Boundary, Mode},
};

use super::{
    core::Engine,
    deadlines::Asked,
    gates::{copies_needed, majority, At, GateAction, Origin},
    partition::{PartitionKey, PartitionSlot},
    publish::{unavailable, unknown_queue, Refusal},
    relay::Routed,
    shortfall::{Awaited, Shortfall},
    types::{ConnKey, ShardMessage},
};
use crate::{
    group::{GroupId, PeerId},
    io::BatchBuffer,
    mutation::{removed, Rule},
    state::{
        command::Command,
        meta::{MetaCommand, MetaOutcome, QueueDeclaration},
    },
};

/// A change as it was asked for.
struct Wanted {
    queue_id: u64,
    mode: Option<Mode>,
    copies: Option<u8>,
    revision: Option<u32>,
}

fn read(body: &[u8]) -> Result<Wanted, Refusal> {
    let invalid = |message: String| (ErrorCode::Invalid, message);
    let change = codec::decode::<ChangeQueue>(body).map_err(|error| invalid(error.to_string()))?;
    let mode = match change.mode {
        0 => None,
        raw => {
            let mode = Mode::from_raw(raw);
            Some(mode.ok_or_else(|| invalid(format!("mode {raw} is not known")))?)
        }
    };
    let flags = change.flags.to_native();
    if flags & !CHANGE_COPIES != 0 {
        let message = format!("flags {flags:#x} of a change are not known");
        return Err(invalid(message));
    }
    let revision = change.revision.to_native();
    Ok(Wanted {
        queue_id: change.queue_id.to_native(),
        mode,
        copies: (flags & CHANGE_COPIES != 0).then_some(change.copies),
        revision: Some(revision).filter(|revision| *revision != ANY_REVISION),
    })
}

/// W in words.
pub(super) fn say_copies(copies: u8) -> String {
    match copies {
        0 => "majority".to_owned(),
        255 => "all".to_owned(),
        number => number.to_string(),
    }
}

/// The revision of a queue's setting, where it was changed.
pub(super) fn says_revision(queue: &QueueDeclaration) -> Option<Extension> {
    (queue.revision > 0).then(|| Extension {
        kind: Extension::REVISION,
        bytes: queue.revision.to_le_bytes().to_vec(),
    })
}

impl<B: BatchBuffer> Engine<B> {
    pub(super) fn on_change_queue(&mut self, conn: ConnKey, correlation: u64, body: &[u8]) {
        let done = read(body).and_then(|wanted| {
            if self.config.shard != 0 {
                self.forward(0, conn, Kind::ChangeQueue, correlation, body);
                return Ok(());
            }
            let kind = Kind::ChangeQueue;
            match self.route_group(conn, GroupId::META, kind, correlation, body)? {
                Routed::Away { .. } => Ok(()),
                Routed::Here => self.order_change(conn, correlation, &wanted),
            }
        });
        if let Err((code, message)) = done {
            self.refuse(conn, correlation, code, message);
        }
    }

    /// What is left out is kept; what no confirm could keep is refused. Group 0 has the
    /// last word on the revision.
    fn order_change(
        &mut self,
        conn: ConnKey,
        correlation: u64,
        wanted: &Wanted,
    ) -> Result<(), Refusal> {
        if self.draining || self.latched {
            let message = "the server takes no changes now; retry later".to_owned();
            return Err((ErrorCode::Unavailable, message));
        }
        let meta = self.meta.as_ref().ok_or_else(unavailable)?;
        let stands = meta.state.by_id(wanted.queue_id);
        let stands = stands.ok_or_else(unknown_queue)?;
        let mode = wanted.mode.unwrap_or(stands.mode);
        let copies = wanted.copies.unwrap_or(stands.copies);
        let base = wanted.revision.unwrap_or(stands.revision);
        self.check_w(mode, copies)?;
        let command = MetaCommand::Change {
            queue_id: wanted.queue_id,
            mode,
            copies,
            base,
        };
        let asked = self.asked(conn, correlation);
        let named = wanted.revision.is_some();
        self.try_propose_meta(&command, Origin::Change { asked, named })
    }

    /// Group 0 decided: the shards are told, and whoever asked.
    pub(super) fn decided_change(&mut self, outcome: &MetaOutcome, asked: Option<(Asked, bool)>) {
        let queue = match outcome {
            MetaOutcome::Changed { queue_id, .. } | MetaOutcome::Stale { queue_id } => {
                let meta = self.meta.as_ref();
                meta.and_then(|meta| meta.state.by_id(*queue_id).cloned())
            }
            _ => None,
        };
        if let (Some(queue), MetaOutcome::Changed { changed: true, .. }) = (&queue, outcome) {
            for shard in 0..self.config.place.shards {
                let news = ShardMessage::Declared(queue.clone());
                self.outbound.push((shard, news));
            }
        }
        let Some((asked, named)) = asked else {
            return;
        };
        let (conn, correlation) = (asked.conn, asked.correlation);
        let (code, message) = match (outcome, queue) {
            (MetaOutcome::Changed { changed, .. }, Some(queue)) => {
                let body = QueueChanged {
                    changed: u8::from(*changed),
                    revision: queue.revision,
                    mode: queue.mode as u8,
                    copies: queue.copies,
                    extensions: Vec::new(),
                };
                return self.reply(conn, correlation, &body);
            }
            (MetaOutcome::Stale { .. }, Some(queue)) if named => {
                (ErrorCode::StaleRevision, say_stale(&queue))
            }
            (MetaOutcome::Stale { .. }, Some(_)) => {
                let message = "another change of this queue came first; ask again".to_owned();
                (ErrorCode::Unavailable, message)
            }
            (MetaOutcome::Refused { reason }, _) => (ErrorCode::Conflict, reason.clone()),
            _ => unknown_queue(),
        };
        self.refuse(conn, correlation, code, message);
    }

    /// This replica leads the partition's group: its log gets the setting that group 0
    /// has, unless it is there or on its way.
    pub(super) fn drive_change(&mut self, key: PartitionKey, queue: &QueueDeclaration) {
        let Some(slot) = self.partitions.get_mut(&key) else {
            return;
        };
        let proposed = slot.changing.as_ref().and_then(|it| it.proposed);
        let newest = proposed.map_or(0, |(revision, _)| revision);
        if queue.revision <= newest.max(slot.revision()) || slot.dropping {
            return;
        }
        let group = slot.group;
        let changing = slot.changing.get_or_insert_default();
        changing.proposed = Some((queue.revision, queue.mode));
        self.weaken_for(group, queue.mode);
        let command = Command::Change {
            queue_id: key.queue_id,
            partition: key.partition,
            mode: queue.mode,
            copies: queue.copies,
            revision: queue.revision,
        };
        self.propose_to_group(group, &command);
    }

    /// As [`Engine::drive_change`], by what this shard was told of the queue.
    pub(super) fn drive_change_of(&mut self, key: PartitionKey) {
        if let Some(queue) = self.directory.by_id(key.queue_id).cloned() {
            self.drive_change(key, &queue);
        }
    }

    /// The entry is applied where this replica leads: what comes behind it has the new
    /// setting, what waits has the one that ended.
    pub(super) fn after_change(
        &mut self,
        group: u32,
        at: At,
        key: PartitionKey,
        (mode, copies): (Mode, u8),
    ) {
        let replicas = self.replicas_of(group);
        let before = copies_needed(copies, replicas, Boundary::Durable);
        let barriers = self.barriers.iter_mut();
        for barrier in barriers.filter(|it| it.key == key && it.at.index < at.index) {
            barrier.copies.get_or_insert(before);
        }
        if removed(Rule::ChangeFenced) {
            self.move_gates(group, key);
        }
        let Some((next, revision)) = self.note_change(key, at, before) else {
            return;
        };
        // From here on the durable frontier is one on as many copies as the new setting asks
        // for, also where what is below waits for more.
        let frontier = GateAction::Append {
            key,
            first: next,
            count: 0,
            bytes: 0,
            open: false,
            confirm: None,
        };
        let copies_now = self.copies_of(key, Boundary::Durable);
        self.gate(group, at, Boundary::Durable, copies_now, frontier);
        let (mut boundary, mut most) = (Boundary::Durable, self.copies_of_change(key));
        if removed(Rule::ChangeDurable) {
            let now = self.partitions.get(&key).map(|slot| slot.mode());
            boundary = now.map_or(boundary, |now| now.confirm_gate().min(mode.confirm_gate()));
            most = before.min(self.copies_of(key, boundary));
        }
        let action = GateAction::Changed { key, revision };
        self.gate(group, at, boundary, most, action);
        // A later one may have come while this was on its way.
        self.drive_change_of(key);
    }

    /// The partition remembers the change that is in force now, and what waits under the
    /// setting before. Gives where that ends, and the revision.
    fn note_change(&mut self, key: PartitionKey, at: At, before: usize) -> Option<(u64, u32)> {
        let slot = self.partitions.get_mut(&key)?;
        let (opened, next) = (slot.machine.opened(), slot.machine.next_offset());
        let revision = slot.revision();
        let changing = slot.changing.get_or_insert_default();
        if !removed(Rule::ChangeHoldsBack) {
            changing.stretches.end(opened, next);
        }
        let least = match changing.at.is_some() && !changing.applied {
            true => changing.least_copies.min(before),
            false => before,
        };
        changing.begin(at, least);
        let newest = changing.proposed.map(|(newest, _)| newest);
        if newest.is_some_and(|newest| newest <= revision) {
            changing.proposed = None;
        }
        Some((next, revision))
    }

    /// A leadership begins. Whether the last changes of its partitions are as durable as
    /// they have to be is not known: this leadership's own entry, which is behind them,
    /// tells.
    pub(super) fn follow_changes(&mut self, group: u32, at: At) {
        for key in self.keys_of_group(group) {
            let least = majority(self.replicas_of(group));
            let Some(slot) = self.partitions.get_mut(&key) else {
                continue;
            };
            let Some(change) = slot.machine.change().copied() else {
                continue;
            };
            let changing = slot.changing.get_or_insert_default();
            if changing.at.is_none() {
                changing.begin(at, least);
                let revision = change.revision;
                let copies = self.copies_of_change(key);
                let action = GateAction::Changed { key, revision };
                self.gate(group, at, Boundary::Durable, copies, action);
            }
        }
    }

    /// The gate of a change opened.
    pub(super) fn changed(&mut self, key: PartitionKey, revision: u32) {
        if let Some(slot) = self.partitions.get_mut(&key) {
            let current = slot.revision() == revision;
            if let Some(changing) = slot.changing.as_mut().filter(|_| current) {
                changing.applied = true;
            }
        }
    }

    /// On how many copies the last change has to be durable: as many as either setting
    /// asks for.
    fn copies_of_change(&self, key: PartitionKey) -> usize {
        let slot = self.partitions.get(&key);
        let change = slot.and_then(|slot| slot.machine.change());
        let before = change.map_or(0, |change| change.copies_before);
        let replicas = slot.map_or(1, |slot| self.replicas_of(slot.group.0));
        let before = copies_needed(before, replicas, Boundary::Durable);
        before.max(self.copies_of(key, Boundary::Durable))
    }

    /// On how many copies everything below the durable frontier is: what was published
    /// under a lower W may be on fewer until the change that raised it is applied.
    pub(super) fn copies_below_frontier(&self, key: PartitionKey) -> usize {
        let now = self.copies_of(key, Boundary::Durable);
        let slot = self.partitions.get(&key);
        let changing = slot.and_then(|slot| slot.changing.as_ref());
        match changing.filter(|it| it.at.is_some() && !it.applied) {
            Some(changing) => now.min(changing.least_copies),
            None => now,
        }
    }

    /// What the check of the rule looks for: gates of earlier entries by the new setting.
    fn move_gates(&mut self, group: u32, key: PartitionKey) {
        let mode = self.partitions.get(&key).map(|slot| slot.mode());
        let Some(boundary) = mode.map(Mode::confirm_gate) else {
            return;
        };
        let copies = self.copies_of(key, boundary);
        if let Some(slot) = self.groups.get_mut(&group) {
            slot.move_gates(key, boundary, copies);
        }
    }

    /// What is in force in a partition and how far the desired setting is; nothing where
    /// the queue's was never changed.
    pub(super) fn says_in_force(&self, key: PartitionKey) -> Option<Extension> {
        let slot = self.partitions.get(&key)?;
        let desired = self.directory.by_id(key.queue_id)?.revision;
        if desired.max(slot.revision()) == 0 {
            return None;
        }
        let changing = slot.changing.as_ref();
        let (standing, reason) = self.standing(key, slot, desired);
        let spec = slot.machine.spec();
        let in_force = InForce {
            mode: spec.mode,
            copies: spec.copies,
            revision: slot.revision(),
            since: slot.machine.change().map_or(0, |change| change.since),
            standing,
            replicas: match changing.and_then(|changing| changing.at) {
                Some(at) => self.copies_at(slot.group, at),
                None => Vec::new(),
            },
            reason,
        };
        Some(Extension {
            kind: Extension::IN_FORCE,
            bytes: in_force.encode(),
        })
    }

    fn standing(
        &self,
        key: PartitionKey,
        slot: &PartitionSlot,
        desired: u32,
    ) -> (Standing, String) {
        if slot.revision() < desired {
            let reason = match slot.changing.as_ref().and_then(|it| it.proposed) {
                Some(_) => "its entry is on its way into the group's log",
                None => "the group's leader is about to begin",
            };
            return (Standing::Pending, reason.to_owned());
        }
        let changing = slot.changing.as_ref();
        let Some(at) = changing.filter(|it| !it.applied).and_then(|it| it.at) else {
            return match changing.is_some_and(|changing| changing.applied) {
                true => (Standing::Applied, String::new()),
                false => (Standing::InForce, "a leadership begins".to_owned()),
            };
        };
        let replicas = self.replicas_of(slot.group.0);
        let copies = self.copies_of_change(key);
        if copies > replicas {
            let reason = format!(
                "it needs {copies} copies, and there are {replicas} replicas: it can never be applied; ask for fewer copies"
            );
            return (Standing::InForce, reason);
        }
        let awaited = Awaited {
            index: at.index,
            boundary: Boundary::Durable,
            copies,
        };
        let group = self.groups.get(&slot.group.0);
        let lacks = group.and_then(|group| Shortfall::of(&group.group, &awaited));
        let reason = match lacks {
            Some(lacks) => lacks.copies(),
            None => "this node's own copy is not durable yet".to_owned(),
        };
        (Standing::InForce, reason)
    }

    /// The boundary that an entry has reached on each voter, as its leader knows.
    fn copies_at(&self, group: GroupId, at: At) -> Vec<(u32, Option<Boundary>)> {
        let Some(slot) = self.groups.get(&group.0) else {
            return Vec::new();
        };
        let own = match (
            at.end <= self.frontiers.durable_next,
            at.end <= self.frontiers.written_next,
        ) {
            (true, _) => Some(Boundary::Durable),
            (_, true) => Some(Boundary::Written),
            _ => None,
        };
        let others: Vec<(u64, u64, u64)> = slot.group.progress().collect();
        let reached = |peer: u64| {
            let (_, written, durable) = others.iter().find(|(it, ..)| *it == peer)?;
            match (*durable >= at.index, *written >= at.index) {
                (true, _) => Some(Boundary::Durable),
                (_, true) => Some(Boundary::Written),
                _ => None,
            }
        };
        let voters = slot.group.members().voters.iter();
        let each = voters.map(|peer| match *peer == slot.group.peer().0 {
            true => (PeerId(*peer).node(), own),
            false => (PeerId(*peer).node(), reached(*peer)),
        });
        each.collect()
    }
}

fn say_stale(queue: &Arc<QueueDeclaration>) -> String {
    format!(
        "the setting of queue {:?} is at revision {} (mode {}, copies {}), and the change names another one: look at it, then change it again",
        queue.name,
        queue.revision,
        queue.mode.name(),
        say_copies(queue.copies)
    )
}
