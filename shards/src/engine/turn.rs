//! The turn: everything that was handed in becomes effects at once.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::{
    connection::OUTPUT_FULL_BYTES,
    core::Engine,
    gates::{GroupSlot, Origin},
    partition::PartitionKey,
    types::{ConnKey, Effect, Notice, ShardMessage},
};
use crate::{
    group::{GroupError, GroupId, PeerId},
    io::BatchBuffer,
    log::LogPosition,
    state::command::LeaseEndCause,
};

/// A command that waits for room in the log. It must not be lost.
pub(super) struct Deferred {
    pub key: PartitionKey,
    pub payload: Vec<u8>,
    pub origin: Origin,
}

/// Stands in a deferred command's key for "the group itself".
const GROUP_COMMAND: u16 = u16::MAX;

impl Deferred {
    pub(super) fn is_of_group(&self, group: u32) -> bool {
        self.key.partition == GROUP_COMMAND && self.key.queue_id == u64::from(group)
    }

    pub(super) fn for_group(group: GroupId, payload: Vec<u8>) -> Self {
        let key = PartitionKey {
            queue_id: u64::from(group.0),
            partition: GROUP_COMMAND,
        };
        Deferred {
            key,
            payload,
            origin: Origin::Nobody,
        }
    }
}

/// What is due when, in server time.
pub(super) struct Timers {
    partitions: BinaryHeap<Reverse<(u64, PartitionKey)>>,
    /// Earliest publish, barrier or peek deadline; `u64::MAX` = none.
    pub deadline_ms: u64,
    /// The next look at deadlines comes no earlier (see `expire_deadlines`).
    pub deadline_look_ms: u64,
    /// When gathered acknowledges go without company; `u64::MAX` = there are none.
    pub settles_ms: u64,
    /// Partitions that wait for a read.
    pub reading: Vec<PartitionKey>,
    /// The next tick of groups with several replicas.
    pub tick_ms: u64,
    /// How many there were.
    pub ticks: u64,
    /// Recoveries to ask group 0 for again.
    pub recover_again: Vec<(u16, GroupId, u32, PeerId)>,
}

impl Timers {
    pub(super) fn new() -> Self {
        Timers {
            partitions: BinaryHeap::new(),
            deadline_ms: u64::MAX,
            deadline_look_ms: 0,
            settles_ms: u64::MAX,
            reading: Vec::new(),
            tick_ms: 0,
            ticks: 0,
            recover_again: Vec::new(),
        }
    }

    /// When deadlines are to be looked at; `u64::MAX` = not at all.
    pub(super) fn deadlines_due_ms(&self) -> u64 {
        self.deadline_ms.max(self.deadline_look_ms)
    }

    pub(super) fn arm(&mut self, due_ms: u64, key: PartitionKey) {
        self.partitions.push(Reverse((due_ms, key)));
    }
}

impl<B: BatchBuffer> Engine<B> {
    /// Ends the turn: applies, answers, dispatches and submits, and pushes
    /// everything the driver has to do.
    pub fn end_turn(&mut self, mono_ms: u64, effects: &mut Vec<Effect<B>>) {
        if self.sealed {
            self.push_outputs(effects);
            return self.push_effects(effects);
        }
        self.set_time(mono_ms);
        self.take_frontiers();
        self.fire_ticks();
        self.fire_timers();
        self.flush_settles();
        self.retry_deferred();
        self.pump_groups();
        self.watch_own_writes();
        self.open_gates();
        self.retry_peeks();
        self.dispatch_dirty();
        self.retry_deferred();
        self.tend_resigning();
        self.raise_level();
        self.pump_groups();
        self.talk_to_nodes();
        self.open_barriers();
        self.expire_deadlines();
        self.tell_stalled();
        self.tell_directory();
        self.tell_roster();
        self.tell_level();
        self.tell_opens();
        self.say_serving();
        self.say_deposed();
        self.upkeep_turn();
        self.submit(effects);
        self.push_reads(effects);
        self.push_store_jobs(effects);
        self.push_outputs(effects);
        self.push_effects(effects);
    }

    /// Work is left that needs no event: the driver should end another turn soon.
    pub fn wants_turn(&self) -> bool {
        if self.sealed {
            return !self.outbound.is_empty();
        }
        !self.dirty_partitions.is_empty()
            || self.upkeep.is_busy()
            || !self.outbound.is_empty()
            || !self.timers.recover_again.is_empty()
            || self.links.has_news()
    }

    /// Monotonic time in ms at which a turn is due if nothing happens.
    pub fn next_timer_ms(&self) -> Option<u64> {
        if self.sealed {
            return None;
        }
        let partition = self.timers.partitions.peek().map(|Reverse((due, _))| *due);
        let deadline = Some(self.timers.deadlines_due_ms()).filter(|due| *due != u64::MAX);
        let settles = Some(self.timers.settles_ms).filter(|due| *due != u64::MAX);
        let upkeep = self.upkeep_due_ms();
        let own = [
            partition,
            deadline,
            settles,
            self.stall_due_ms(),
            upkeep,
            self.tick_due_ms(),
            self.snapshot_due_ms(),
            self.pace_due_ms(),
        ]
        .into_iter()
        .flatten()
        .min();
        let own = own.map(|due| due.saturating_sub(self.clock_offset_ms));
        [own, self.log.next_timer_ms()].into_iter().flatten().min()
    }

    fn take_frontiers(&mut self) {
        if self.log.is_latched() && !self.latched {
            self.latched = true;
            self.fail_pending();
            let cause = "a log write or sync failed; the log is latched".to_owned();
            self.notices.push(Notice::Latched { cause });
        }
        let frontiers = self.log.frontiers();
        if frontiers == self.frontiers {
            return;
        }
        self.frontiers = frontiers;
        for slot in self.groups.values_mut() {
            slot.dirty |= slot.group.persisted(&frontiers, &mut slot.outcome);
        }
    }

    fn fire_timers(&mut self) {
        let now = self.server_ms;
        let mut ended = Vec::new();
        for (shard, group, generation, peer) in std::mem::take(&mut self.timers.recover_again) {
            self.on_recover_group(shard, group, generation, peer);
        }
        while let Some(Reverse((due, key))) = self.timers.partitions.peek().copied() {
            if due > now {
                return;
            }
            self.timers.partitions.pop();
            let time = self.time_at(key);
            let Some(slot) = self.partitions.get_mut(&key) else {
                continue;
            };
            slot.armed_ms = u64::MAX;
            ended.clear();
            slot.machine.expire(time, &mut ended);
            self.end_leases(key, LeaseEndCause::Expired, &ended);
        }
    }

    /// Keeps a timer armed for the partition's next lease end or due time.
    pub(super) fn arm_timer(&mut self, key: PartitionKey) {
        let ahead_ms = self.time_at(key) - self.server_ms;
        let Some(slot) = self.partitions.get_mut(&key) else {
            return;
        };
        let Some(due) = slot.machine.next_deadline_ms() else {
            return;
        };
        let due = due.saturating_sub(ahead_ms);
        if due < slot.armed_ms {
            slot.armed_ms = due;
            self.timers.arm(due, key);
        }
    }

    fn retry_deferred(&mut self) {
        if self.latched {
            return self.fail_deferred();
        }
        while let Some(Deferred {
            key,
            payload,
            origin,
        }) = self.deferred.pop_front()
        {
            let outcome = if key.partition == GROUP_COMMAND {
                self.propose_raw(key.queue_id as u32, &payload, origin)
            } else {
                self.try_propose(key, &[&payload], origin)
            };
            if let Err(origin) = outcome {
                self.deferred.push_front(Deferred {
                    key,
                    payload,
                    origin,
                });
                return;
            }
        }
    }

    fn propose_raw(&mut self, group: u32, payload: &[u8], origin: Origin) -> Result<(), Origin> {
        let Some(slot) = self.groups.get_mut(&group) else {
            return Err(origin);
        };
        let demand = wire::vocabulary::Boundary::Durable;
        match slot.group.propose(&mut self.log, &[payload], demand) {
            Ok(index) => {
                slot.origins.push_back((index, origin));
                slot.set_proposed();
                Ok(())
            }
            // Whoever leads proposes it.
            Err(GroupError::NotLeader(_)) if !slot.group.is_leader() => Ok(()),
            Err(_) => Err(origin),
        }
    }

    /// Runs Raft and applies until nothing is ready.
    fn pump_groups(&mut self) {
        let mut from = 0;
        while let Some(id) = self.group_where(from, |slot| slot.dirty) {
            from = id.saturating_add(1);
            while let Some(slot) = self.groups.get_mut(&id) {
                slot.dirty = false;
                slot.proposed = false;
                let mut outcome = std::mem::take(&mut slot.outcome);
                let pumped = slot.group.pump(&mut self.log, &mut outcome);
                self.absorb(id, outcome);
                if !matches!(pumped, Ok(true)) {
                    break;
                }
            }
        }
    }

    /// The first group from number `from` on that is so.
    pub(super) fn group_where(
        &self,
        from: u32,
        mut is_so: impl FnMut(&GroupSlot) -> bool,
    ) -> Option<u32> {
        let mut groups = self.groups.range(from..);
        groups.find(|(_, slot)| is_so(slot)).map(|(id, _)| *id)
    }

    fn submit(&mut self, effects: &mut Vec<Effect<B>>) {
        // What is to be applied is read from the tail cache: it must stay there.
        let unapplied = self
            .groups
            .values()
            .filter_map(|slot| slot.group.first_unapplied());
        let floor = unapplied.min().unwrap_or(LogPosition(u64::MAX));
        self.log.set_cache_floor(floor);
        if self.is_cluster() {
            let cached_from = self.log.cached_from();
            for slot in self.groups.values_mut() {
                slot.group.set_cached_from(cached_from);
            }
        }
        let mut started = std::mem::take(&mut self.started);
        let mono_ms = self.server_ms.saturating_sub(self.clock_offset_ms);
        self.log.submit(mono_ms, &mut started);
        effects.extend(started.drain(..).map(Effect::Log));
        self.started = started;
    }

    /// One frame of confirms per connection, then its output moves on.
    fn push_outputs(&mut self, effects: &mut Vec<Effect<B>>) {
        let mut listed = std::mem::take(&mut self.listed_connections);
        for conn in listed.drain(..) {
            self.push_output(conn, effects);
        }
        listed.append(&mut self.listed_connections);
        self.listed_connections = listed;
    }

    fn push_output(&mut self, conn: ConnKey, effects: &mut Vec<Effect<B>>) {
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        connection.listed = false;
        connection.flush_confirms();
        if connection.home {
            if !connection.output.is_empty() {
                effects.push(Effect::Output { conn });
            }
            return;
        }
        if connection.remote.is_some() && !connection.in_flight {
            let idle =
                connection.output.is_empty() && connection.released == 0 && !connection.closing;
            if !idle {
                self.push_remote_output(conn);
            }
            return;
        }
        if connection.in_flight {
            // Stays listed: it goes when the home shard's socket took the last.
            connection.listed = true;
            self.listed_connections.push(conn);
            let piles_up = connection.output.len() > OUTPUT_FULL_BYTES;
            let piles_up = piles_up && connection.remote.is_none();
            if piles_up && !std::mem::replace(&mut connection.told_stalled, true) {
                let from = self.config.shard;
                let stalled = ShardMessage::Stalled { from, conn };
                self.outbound.push((conn.shard(), stalled));
            }
            return;
        }
        let (close, released) = (connection.closing, std::mem::take(&mut connection.released));
        if connection.output.is_empty() && released == 0 && !close {
            return;
        }
        let bytes = std::mem::take(&mut connection.output);
        connection.in_flight = true;
        connection.told_stalled = false;
        let from = self.config.shard;
        let message = ShardMessage::Output {
            from,
            conn,
            bytes,
            released,
            close,
        };
        self.outbound.push((conn.shard(), message));
    }
}
