//! Declare, delete, locate, list: the queue directory. Group 0 decides, on
//! shard 0; every shard keeps a copy and makes its partitions exist.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use wire::{
    codec,
    error::{ErrorCode, Outcome},
    frame::Kind,
    limits::{MAX_LIST_QUEUES, MAX_PARTITIONS},
    message::{
        ArchivedDeclare, Declare, Declared, Delete, Deleted, Extension, List, ListReply, Locate,
        LocateReply, Unsubscribed, ON_LOSS_HALT, ON_LOSS_RECOVER,
    },
    name::check_name,
    vocabulary::{Boundary, Mode},
};

use super::{
    core::Engine,
    deadlines::Asked,
    gates::majority,
    gates::Origin,
    partition::PartitionKey,
    publish::refused_by_log,
    relay::Routed,
    setting::says_revision,
    turn::Deferred,
    types::{ConnKey, ShardMessage},
};
use crate::{
    group::{GroupId, PeerId},
    io::BatchBuffer,
    state::{
        command::{Command, PartitionSpec},
        meta::{
            is_nameless, DeclareRequest, MetaCommand, MetaOutcome, MetaState, QueueDeclaration,
        },
    },
};

/// Queues a server holds at most.
const MAX_QUEUES: usize = 1_000_000;
/// Lease bounds in ms: 1 ms to 7 days.
const MAX_LEASE_MS: u64 = 7 * 24 * 3600 * 1000;

/// A declare that waits for its partitions to exist, and for every shard to
/// know of it: whoever is told of the queue may use it on any connection.
#[derive(Default)]
pub(super) struct DeclareWait {
    missing: BTreeSet<u16>,
    unaware: BTreeSet<u16>,
    /// And whether it created the queue.
    asked: Vec<(Asked, bool)>,
}

/// Group 0's state machine and the declares on their way (shard 0).
pub(super) struct MetaSlot {
    pub state: MetaState,
    pub waits: BTreeMap<u64, DeclareWait>,
    /// Highest join number in an order of this leadership.
    pub promised_join: u64,
}

impl MetaSlot {
    /// Drops those who wait for a declare and whom `take` takes.
    pub(super) fn take_askers(&mut self, take: &mut dyn FnMut(Asked) -> bool) {
        for wait in self.waits.values_mut() {
            wait.asked.retain(|(asked, _)| !take(*asked));
        }
    }
}

/// What a declare asks for on total loss; `None`: keep.
fn asks_to_halt(request: &ArchivedDeclare) -> Result<Option<bool>, String> {
    const KIND: u16 = Extension::CRITICAL | Extension::ON_TOTAL_LOSS;
    let asked = request.extensions.iter().find(|one| one.kind == KIND);
    match asked.map(|one| one.bytes.as_slice()) {
        None => Ok(None),
        Some([ON_LOSS_RECOVER]) => Ok(Some(false)),
        Some([ON_LOSS_HALT]) => Ok(Some(true)),
        Some(other) => Err(format!("on_total_loss has an unknown value {other:?}")),
    }
}

/// What is told of a queue beside its description.
pub(super) fn says_of(queue: &QueueDeclaration) -> Vec<Extension> {
    let revision = says_revision(queue).into_iter();
    says_halts(queue).chain(revision).collect()
}

/// What becomes of it on total loss: nothing where its group just goes on.
fn says_halts(queue: &QueueDeclaration) -> impl Iterator<Item = Extension> {
    let halts = queue.halts.then(|| Extension {
        kind: Extension::ON_TOTAL_LOSS,
        bytes: vec![ON_LOSS_HALT],
    });
    halts.into_iter()
}

impl<B: BatchBuffer> Engine<B> {
    pub(super) fn on_declare(&mut self, conn: ConnKey, correlation: u64, body: &[u8]) {
        let request = match codec::decode::<Declare>(body) {
            Ok(request) => request,
            Err(error) => {
                return self.refuse(conn, correlation, ErrorCode::Invalid, error.to_string())
            }
        };
        let request = DeclareRequest {
            name: request.name.as_str().to_owned(),
            mode: match request.mode {
                0 => None,
                raw => match Mode::from_raw(raw) {
                    Some(mode) => Some(mode),
                    None => {
                        let message = format!("mode {raw} is not known");
                        return self.refuse(conn, correlation, ErrorCode::Invalid, message);
                    }
                },
            },
            copies: Some(request.copies).filter(|copies| *copies != 0),
            partitions: Some(request.partitions.to_native()).filter(|count| *count != 0),
            lease_ms: Some(request.lease_ms.to_native()).filter(|lease| *lease != 0),
            halts: match asks_to_halt(request) {
                Ok(halts) => halts,
                Err(message) => return self.refuse(conn, correlation, ErrorCode::Invalid, message),
            },
        };
        if let Err((code, message)) = self.check_declare(&request) {
            return self.refuse(conn, correlation, code, message);
        }
        if self.config.shard != 0 {
            return self.forward(0, conn, Kind::Declare, correlation, body);
        }
        match self.route_group(conn, GroupId::META, Kind::Declare, correlation, body) {
            Ok(Routed::Away { .. }) => return,
            Ok(Routed::Here) => {}
            Err((code, message)) => return self.refuse(conn, correlation, code, message),
        }
        let asked = self.asked(conn, correlation);
        if let Some(queue_id) = self.declared_alike(&request) {
            return self.declared(queue_id, false, Origin::Declare(asked));
        }
        let known = self.meta.as_ref().map(|meta| &meta.state);
        if known.is_some_and(|state| state.by_name(&request.name).is_none()) {
            // A queue that exists takes no room: it is confirmed or contradicted.
            if let Err((code, message)) = self.refuses_for_room() {
                return self.refuse(conn, correlation, code, message);
            }
        }
        let command = MetaCommand::Declare(request);
        self.propose_meta(&command, asked, Origin::Declare(asked));
    }

    /// The queue that exists exactly as asked for, so that nothing has to be
    /// logged. Nothing may be on its way in group 0: it could be a deletion.
    fn declared_alike(&self, request: &DeclareRequest) -> Option<u64> {
        let group = self.groups.get(&GroupId::META.0)?;
        if !group.serving || !group.origins.is_empty() {
            return None;
        }
        let queue = self.meta.as_ref()?.state.by_name(&request.name)?;
        let alike = request.mode.is_none_or(|mode| mode == queue.mode)
            && request.copies.is_none_or(|copies| copies == queue.copies)
            && request.lease_ms.is_none_or(|lease| lease == queue.lease_ms)
            && request.halts.is_none_or(|halts| halts == queue.halts)
            && request
                .partitions
                .is_none_or(|count| usize::from(count) == queue.groups.len());
        alike.then_some(queue.queue_id)
    }

    fn check_declare(&self, request: &DeclareRequest) -> Result<(), (ErrorCode, String)> {
        check_name(&request.name).map_err(|error| (ErrorCode::Invalid, error.to_string()))?;
        if let Some(count) = request.partitions.filter(|count| *count > MAX_PARTITIONS) {
            let message = format!("{count} partitions are above the limit of {MAX_PARTITIONS}");
            return Err((ErrorCode::TooLarge, message));
        }
        if let Some(copies) = request.copies {
            self.check_w(request.mode.unwrap_or(Mode::Durable), copies)?;
        }
        if request.lease_ms.is_some_and(|lease| lease > MAX_LEASE_MS) {
            return Err((ErrorCode::Invalid, "a lease is at most 7 days".to_owned()));
        }
        if request.halts == Some(true) {
            self.check_halts(request)?;
        }
        if self.draining || self.latched {
            let message = "the server takes no declarations now; retry later".to_owned();
            return Err((ErrorCode::Unavailable, message));
        }
        Ok(())
    }

    /// Nothing that a durable queue confirmed is lost by itself, and a node alone has
    /// nobody to wait for.
    fn check_halts(&self, request: &DeclareRequest) -> Result<(), (ErrorCode, String)> {
        let stands = self
            .directory
            .by_name(&request.name)
            .map(|queue| queue.mode);
        let mode = request.mode.or(stands).unwrap_or(Mode::Durable);
        let message = if !self.is_cluster() {
            "on_total_loss = halt is for clusters: this server is alone, and what its machine lost no operator brings back"
        } else if mode == Mode::Durable {
            "on_total_loss = halt is for buffered and speculative queues: groups of durable queues never go on without what they confirmed; leave it away, or name the mode"
        } else {
            return Ok(());
        };
        Err((ErrorCode::Invalid, message.to_owned()))
    }

    /// More copies than replicas can never be met; fewer than a majority at durable
    /// would not keep what a confirm promises.
    pub(super) fn check_w(&self, mode: Mode, copies: u8) -> Result<(), (ErrorCode, String)> {
        // Of any data group: they all have as many.
        let replicas = self.replicas_of(GroupId::META.0 + 1);
        if matches!(copies, 0 | 255) {
            return Ok(());
        }
        if usize::from(copies) > replicas {
            let there_are = match replicas {
                1 => "this server has 1 replica".to_owned(),
                _ => format!("each queue has {replicas} replicas"),
            };
            let message = format!(
                "{copies} copies are asked for, and {there_are}: no confirm could ever be given; ask for majority or all"
            );
            return Err((ErrorCode::MissingCopies, message));
        }
        let least = majority(replicas);
        if mode != Mode::Buffered && usize::from(copies) < least {
            let copies = match copies {
                1 => "1 copy is".to_owned(),
                _ => format!("{copies} copies are"),
            };
            let message = format!(
                "{copies} fewer than a majority of {replicas} replicas, and a durable confirm on so few could be lost; ask for {least}, majority or all, or for a buffered queue"
            );
            return Err((ErrorCode::Invalid, message));
        }
        Ok(())
    }

    pub(super) fn on_delete(&mut self, conn: ConnKey, correlation: u64, body: &[u8]) {
        let queue_id = match codec::decode::<Delete>(body) {
            Ok(request) => request.queue_id.to_native(),
            Err(error) => {
                return self.refuse(conn, correlation, ErrorCode::Invalid, error.to_string())
            }
        };
        if self.config.shard != 0 {
            return self.forward(0, conn, Kind::Delete, correlation, body);
        }
        match self.route_group(conn, GroupId::META, Kind::Delete, correlation, body) {
            Ok(Routed::Away { .. }) => return,
            Ok(Routed::Here) => {}
            Err((code, message)) => return self.refuse(conn, correlation, code, message),
        }
        let command = MetaCommand::Delete { queue_id };
        let asked = self.asked(conn, correlation);
        self.propose_meta(&command, asked, Origin::Delete(asked));
    }

    fn propose_meta(&mut self, command: &MetaCommand, asked: Asked, origin: Origin) {
        let (conn, correlation) = (asked.conn, asked.correlation);
        let full = self
            .meta
            .as_ref()
            .is_some_and(|meta| meta.state.len() >= MAX_QUEUES);
        if full && matches!(command, MetaCommand::Declare(_)) {
            let message = format!("{MAX_QUEUES} queues are declared, the limit; delete some");
            return self.refuse(conn, correlation, ErrorCode::LimitReached, message);
        }
        if let Err((code, message)) = self.try_propose_meta(command, origin) {
            self.refuse(conn, correlation, code, message);
        }
    }

    pub(super) fn try_propose_meta(
        &mut self,
        command: &MetaCommand,
        origin: Origin,
    ) -> Result<(), (ErrorCode, String)> {
        self.check_level(command.level())?;
        let slot = self
            .groups
            .get_mut(&GroupId::META.0)
            .ok_or_else(super::publish::unavailable)?;
        let payload = command.encode();
        let index = slot
            .group
            .propose(&mut self.log, &[&payload], Boundary::Durable)
            .map_err(refused_by_log)?;
        slot.origins.push_back((index, origin));
        slot.dirty = true;
        Ok(())
    }

    /// A command of group 0 was committed: change the state and answer.
    pub(super) fn apply_meta(&mut self, command: &MetaCommand, origin: Origin) {
        let Some(meta) = self.meta.as_mut() else {
            return;
        };
        let outcome = meta.state.apply(command);
        if let MetaCommand::Forget { node } = *command {
            self.tell_forgotten(node);
        }
        if let MetaCommand::Change { .. } = command {
            let asked = match origin {
                Origin::Change { asked, named } => Some((asked, named)),
                _ => None,
            };
            return self.decided_change(&outcome, asked);
        }
        let origin = match origin {
            Origin::Order(asked) => {
                self.on_ordered(command, &outcome, asked);
                Origin::Nobody
            }
            other => other,
        };
        match (outcome, origin) {
            (MetaOutcome::Declared { created, queue_id }, origin) => {
                self.declared(queue_id, created, origin);
            }
            (
                MetaOutcome::Conflict {
                    field,
                    stands,
                    asked: other,
                },
                Origin::Declare(asked),
            ) => {
                let way = match field {
                    "mode" | "copies" => "change it with `tidegate queue change`",
                    _ => "delete it first",
                };
                let message = format!(
                    "the queue exists with {field} {stands}, and {other} was asked for; declare it as it is, or {way}"
                );
                self.refuse(asked.conn, asked.correlation, ErrorCode::Conflict, message);
            }
            (MetaOutcome::Refused { reason }, Origin::Declare(asked)) => {
                self.refuse(asked.conn, asked.correlation, ErrorCode::Invalid, reason);
            }
            (MetaOutcome::Deleted { existed }, origin) => self.deleted(command, existed, origin),
            (MetaOutcome::Replaced { .. }, _) => {
                if let MetaCommand::Rejoin {
                    group,
                    retired_peer,
                    ..
                } = *command
                {
                    self.tell_history(group);
                    // The first name that a directory is given is its node's seat.
                    self.opens_told &= !is_nameless(retired_peer);
                    // Of a number that was given again another one may lose it by that.
                    if self.was_given_again(retired_peer) {
                        self.vacated();
                    }
                }
            }
            // Another recovery got the join number first: ask for the next one.
            (MetaOutcome::Refused { .. }, Origin::Recover { shard, group }) => {
                if let MetaCommand::Recovered {
                    generation,
                    retired_peer,
                    ..
                } = command
                {
                    let (generation, peer) = (*generation, PeerId(*retired_peer));
                    let asked = (shard, group, generation - 1, peer);
                    self.timers.recover_again.push(asked);
                }
            }
            (_, Origin::Recover { shard, group }) => {
                if let MetaCommand::Recovered {
                    generation,
                    new_peer,
                    ..
                } = command
                {
                    let (generation, peer) = (*generation, PeerId(*new_peer));
                    self.outbound.push((
                        shard,
                        ShardMessage::GroupRecovered {
                            group,
                            generation,
                            peer,
                        },
                    ));
                }
            }
            (MetaOutcome::History { group }, _) => self.tell_history(group),
            (MetaOutcome::Opened { .. }, _) => self.opens_told = false,
            (MetaOutcome::Vacated { .. }, _) => self.vacated(),
            (MetaOutcome::Members, _) => self.members_changed(command),
            _ => {}
        }
    }

    fn declared(&mut self, queue_id: u64, created: bool, origin: Origin) {
        let leads = self.leads(GroupId::META);
        let Some(meta) = self.meta.as_mut() else {
            return;
        };
        let Some(queue) = meta.state.by_id(queue_id).cloned() else {
            return;
        };
        if created && leads {
            let missing = (0..queue.groups.len()).map(|index| index as u16).collect();
            meta.waits.insert(
                queue_id,
                DeclareWait {
                    missing,
                    unaware: (0..self.config.place.shards).collect(),
                    asked: Vec::new(),
                },
            );
        }
        if created {
            for shard in 0..self.config.place.shards {
                self.outbound
                    .push((shard, ShardMessage::Declared(queue.clone())));
            }
        }
        let Origin::Declare(asked) = origin else {
            return;
        };
        match self
            .meta
            .as_mut()
            .and_then(|meta| meta.waits.get_mut(&queue_id))
        {
            Some(wait) => wait.asked.push((asked, created)),
            None => self.answer_declare(asked, &queue, created),
        }
    }

    fn answer_declare(&mut self, asked: Asked, queue: &QueueDeclaration, created: bool) {
        let body = Declared {
            created: u8::from(created),
            queue: self.describe(queue),
            extensions: says_of(queue),
        };
        self.reply(asked.conn, asked.correlation, &body);
    }

    fn deleted(&mut self, command: &MetaCommand, existed: bool, origin: Origin) {
        let MetaCommand::Delete { queue_id } = *command else {
            return;
        };
        if existed {
            for shard in 0..self.config.place.shards {
                self.outbound
                    .push((shard, ShardMessage::Deleted { queue_id }));
            }
            let wait = self
                .meta
                .as_mut()
                .and_then(|meta| meta.waits.remove(&queue_id));
            for (asked, _) in wait.unwrap_or_default().asked {
                let (code, message) = super::publish::unknown_queue();
                self.refuse(asked.conn, asked.correlation, code, message);
            }
        }
        let Origin::Delete(asked) = origin else {
            return;
        };
        let (conn, correlation) = (asked.conn, asked.correlation);
        if existed {
            self.reply(
                conn,
                correlation,
                &Deleted {
                    queue_id,
                    extensions: Vec::new(),
                },
            );
        } else {
            let (code, message) = super::publish::unknown_queue();
            self.refuse(conn, correlation, code, message);
        }
    }

    /// A partition exists in its group's log.
    pub(super) fn on_partition_ready(&mut self, key: PartitionKey) {
        let Some(meta) = self.meta.as_mut() else {
            return;
        };
        let Some(wait) = meta.waits.get_mut(&key.queue_id) else {
            return;
        };
        wait.missing.remove(&key.partition);
        self.end_wait(key.queue_id);
    }

    /// A shard knows every queue up to this id.
    pub(super) fn on_known(&mut self, shard: u16, queue_id: u64) {
        let Some(meta) = self.meta.as_mut() else {
            return;
        };
        let known: Vec<u64> = meta.waits.range(..=queue_id).map(|(id, _)| *id).collect();
        for id in known {
            if let Some(wait) = self.meta.as_mut().and_then(|meta| meta.waits.get_mut(&id)) {
                wait.unaware.remove(&shard);
            }
            self.end_wait(id);
        }
    }

    /// Answers a declare once nothing it waits for is left.
    fn end_wait(&mut self, queue_id: u64) {
        let Some(meta) = self.meta.as_mut() else {
            return;
        };
        let Some(wait) = meta.waits.get(&queue_id) else {
            return;
        };
        if !wait.missing.is_empty() || !wait.unaware.is_empty() {
            return;
        }
        let wait = meta.waits.remove(&queue_id).unwrap_or_default();
        let Some(queue) = meta.state.by_id(queue_id).cloned() else {
            return;
        };
        for (asked, created) in wait.asked {
            self.answer_declare(asked, &queue, created);
        }
    }

    /// Shard 0 told of a new queue: keep it and make our partitions exist.
    pub(super) fn on_declared(&mut self, queue: Arc<QueueDeclaration>) {
        if self.directory_known {
            self.tell_known(queue.queue_id);
        }
        self.ensure_partitions(&queue);
        self.directory.insert(queue);
        self.check_serving();
    }

    /// Shard 0 told of all queues there are: what it does not name was deleted.
    pub(super) fn on_directory(&mut self, queues: Vec<Arc<QueueDeclaration>>, next_id: u64) {
        if self.directory.outruns(next_id) {
            // A copy of group 0 that is being brought up to date: it deletes nothing.
            return;
        }
        self.directory_known = true;
        self.directory.knows_below(next_id);
        let named: BTreeSet<u64> = queues.iter().map(|queue| queue.queue_id).collect();
        for gone in self.directory.ids_beside(&named) {
            self.on_deleted(gone);
        }
        for queue in queues {
            self.ensure_partitions(&queue);
            self.directory.insert(queue);
        }
        self.drop_orphans();
        if let Some(last) = named.last() {
            self.tell_known(*last);
        }
        self.check_serving();
    }

    fn tell_known(&mut self, queue_id: u64) {
        let shard = self.config.shard;
        self.outbound
            .push((0, ShardMessage::Known { shard, queue_id }));
    }

    /// Partitions whose queue was deleted, before a crash kept them from being
    /// dropped.
    pub(super) fn drop_orphans(&mut self) {
        let mut orphans: Vec<(PartitionKey, GroupId)> = self
            .partitions
            .values()
            .filter(|slot| !slot.dropping && self.directory.is_deleted(slot.key.queue_id))
            .filter(|slot| self.leads(slot.group))
            .map(|slot| (slot.key, slot.group))
            .collect();
        // The map's order must not show.
        orphans.sort_unstable();
        for (key, group) in orphans {
            self.drop_partition(key, group);
        }
    }

    /// This replica leads the group.
    pub(super) fn leads(&self, group: GroupId) -> bool {
        self.groups.get(&group.0).is_some_and(|slot| slot.leads())
    }

    /// Makes the declared partitions of a group exist, as its new leader.
    pub(super) fn make_partitions(&mut self, group: GroupId) {
        let of_group = |queue: &&Arc<QueueDeclaration>| queue.groups.contains(&group.0);
        let queues: Vec<_> = self.directory.all().filter(of_group).cloned().collect();
        for queue in queues {
            self.ensure_partitions(&queue);
        }
    }

    fn ensure_partitions(&mut self, queue: &QueueDeclaration) {
        for (partition, group) in queue.groups.iter().enumerate() {
            let group = GroupId(*group);
            if self.config.place.shard_of(group) != Some(self.config.shard) {
                continue;
            }
            let leads = self.leads(group) || !self.is_cluster();
            let key = PartitionKey {
                queue_id: queue.queue_id,
                partition: partition as u16,
            };
            if let Some(slot) = self.partitions.get(&key) {
                // Otherwise its gate tells.
                if slot.begun || !leads {
                    self.tell_ready(key);
                }
                if leads {
                    self.drive_change(key, queue);
                }
                continue;
            }
            if !leads {
                // Whoever leads makes it, and its entry comes here.
                continue;
            }
            let spec = PartitionSpec {
                queue_id: queue.queue_id,
                partition: partition as u16,
                mode: queue.mode,
                copies: queue.copies,
                lease_ms: queue.lease_ms,
            };
            self.create_partition(group, spec);
        }
    }

    fn create_partition(&mut self, group: GroupId, spec: PartitionSpec) {
        self.weaken_for(group, spec.mode);
        self.propose_to_group(group, &Command::Create(spec));
    }

    /// Weakens the group where a queue of the mode needs answers at written.
    pub(super) fn weaken_for(&mut self, group: GroupId, mode: Mode) {
        let needs_written = mode.delivery_gate() == Boundary::Written;
        let weak = self
            .groups
            .get(&group.0)
            .is_some_and(|slot| slot.group.answers_at() == Boundary::Written);
        if needs_written && !weak {
            if let Some(slot) = self.groups.get_mut(&group.0) {
                slot.group.will_weaken();
            }
            self.propose_to_group(group, &Command::Weaken);
        }
    }

    /// Proposes a command that belongs to a group rather than a partition.
    pub(super) fn propose_to_group(&mut self, group: GroupId, command: &Command<'_>) {
        let payload = command.head().bytes().to_vec();
        let deferred = Deferred::for_group(group, payload);
        self.deferred.push_back(deferred);
    }

    pub(super) fn tell_ready(&mut self, key: PartitionKey) {
        self.tell_ready_elsewhere(key);
        let (queue_id, partition) = (key.queue_id, key.partition);
        self.outbound.push((
            0,
            ShardMessage::PartitionReady {
                queue_id,
                partition,
            },
        ));
    }

    /// Shard 0 told that a queue is deleted.
    pub(super) fn on_deleted(&mut self, queue_id: u64) {
        let Some(queue) = self.directory.remove(queue_id) else {
            return;
        };
        for (partition, group) in queue.groups.iter().enumerate() {
            let group = GroupId(*group);
            if self.config.place.shard_of(group) == Some(self.config.shard) {
                self.drop_partition(
                    PartitionKey {
                        queue_id,
                        partition: partition as u16,
                    },
                    group,
                );
            }
        }
        self.end_subscriptions_to(queue_id);
    }

    pub(super) fn drop_partition(&mut self, key: PartitionKey, group: GroupId) {
        if let Some(slot) = self.partitions.get_mut(&key) {
            slot.dropping = true;
        }
        if self.is_cluster() && !self.leads(group) {
            return;
        }
        let (queue_id, partition) = (key.queue_id, key.partition);
        self.propose_to_group(
            group,
            &Command::Drop {
                queue_id,
                partition,
            },
        );
    }

    /// Tells consumers of our partitions that their queue is gone: whoever
    /// delivers says so, behind its last delivery.
    fn end_subscriptions_to(&mut self, queue_id: u64) {
        let shard = self.config.shard;
        let mut ended = Vec::new();
        for (conn, connection) in &mut self.connections {
            let ours = connection
                .subscriptions
                .iter()
                .filter(|sub| sub.queue_id == queue_id && sub.shard == shard);
            ended.extend(ours.map(|sub| (*conn, sub.id)));
            connection
                .subscriptions
                .retain(|sub| sub.queue_id != queue_id);
        }
        // The map's order must not show.
        ended.sort_unstable();
        for (conn, subscription) in ended {
            let body = Unsubscribed {
                subscription,
                extensions: Vec::new(),
            };
            self.reply(conn, 0, &body);
        }
    }

    pub(super) fn on_locate(&mut self, conn: ConnKey, correlation: u64, body: &[u8]) {
        let name = match codec::decode::<Locate>(body) {
            Ok(request) => request.name.as_str(),
            Err(error) => {
                return self.refuse(conn, correlation, ErrorCode::Invalid, error.to_string())
            }
        };
        if let Err(error) = check_name(name) {
            return self.refuse(conn, correlation, ErrorCode::Invalid, error.to_string());
        }
        match self.directory.by_name(name) {
            Some(queue) => {
                let body = LocateReply {
                    queue: self.describe(queue),
                    extensions: says_revision(queue).into_iter().collect(),
                };
                self.reply(conn, correlation, &body);
            }
            None if !self.directory_known => {
                let (code, message) = super::publish::unavailable();
                self.refuse(conn, correlation, code, message);
            }
            None => self.locate_elsewhere(conn, correlation, name, body),
        }
    }

    /// This shard knows no queue of that name: in a cluster it may be behind, and
    /// who leads group 0 has the last word.
    fn locate_elsewhere(&mut self, conn: ConnKey, correlation: u64, name: &str, body: &[u8]) {
        if self.is_cluster() {
            if self.config.shard != 0 {
                return self.forward(0, conn, Kind::Locate, correlation, body);
            }
            match self.route_group(conn, GroupId::META, Kind::Locate, correlation, body) {
                Ok(Routed::Away { .. }) => return,
                Ok(Routed::Here) => {}
                Err((code, message)) => return self.refuse(conn, correlation, code, message),
            }
        }
        let message = format!("no queue is called {name:?}; declare it first");
        let (code, outcome) = (ErrorCode::UnknownQueue, Outcome::Failed);
        self.error(conn, correlation, code, outcome, message);
    }

    pub(super) fn on_list(&mut self, conn: ConnKey, correlation: u64, body: &[u8]) {
        let request = match codec::decode::<List>(body) {
            Ok(request) => request,
            Err(error) => {
                return self.refuse(conn, correlation, ErrorCode::Invalid, error.to_string())
            }
        };
        if self.is_cluster() {
            // This node's copy may be behind: who leads group 0 has them all.
            if self.config.shard != 0 {
                return self.forward(0, conn, Kind::List, correlation, body);
            }
            match self.route_group(conn, GroupId::META, Kind::List, correlation, body) {
                Ok(Routed::Away { .. }) => return,
                Ok(Routed::Here) => {}
                Err((code, message)) => return self.refuse(conn, correlation, code, message),
            }
        }
        if !self.directory_known {
            let (code, message) = super::publish::unavailable();
            return self.refuse(conn, correlation, code, message);
        }
        let limit = match request.limit.to_native() {
            0 => MAX_LIST_QUEUES,
            limit => limit.min(MAX_LIST_QUEUES),
        } as usize;
        let mut queues: Vec<_> = self
            .directory
            .after(&request.after)
            .take(limit + 1)
            .map(|queue| self.describe(queue))
            .collect();
        let more = u8::from(queues.len() > limit);
        queues.truncate(limit);
        let body = ListReply {
            queues,
            more,
            extensions: Vec::new(),
        };
        self.reply(conn, correlation, &body);
    }

    /// A weakened group on an amnesiac log asks to go on as a new generation.
    pub(super) fn on_recover_group(
        &mut self,
        shard: u16,
        group: GroupId,
        generation: u32,
        peer: PeerId,
    ) {
        let Some(meta) = self.meta.as_mut() else {
            return;
        };
        // Others may have been promised a number that is not applied yet.
        let join = meta.state.next_join_number().max(meta.promised_join + 1);
        meta.promised_join = join;
        // An earlier order may have reached group 0 and not the group's log.
        let next = meta.state.generation(group.0).max(generation) + 1;
        let command = MetaCommand::Recovered {
            group: group.0,
            generation: next,
            retired_peer: peer.0,
            new_peer: PeerId::new(self.config.node, join).0,
        };
        let origin = Origin::Recover { shard, group };
        if self.try_propose_meta(&command, origin).is_err() {
            // Group 0 does not lead yet: ask again next turn.
            self.timers
                .recover_again
                .push((shard, group, generation, peer));
        }
    }
}
