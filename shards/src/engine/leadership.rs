//! Leadership of groups that have replicas on several nodes: ticks, what becomes
//! of those who wait when it is lost, and what a new leader owes.
//!
//! 1. What was proposed here and not confirmed when leadership is lost is unknown;
//!    what was not proposed yet failed.
//! 2. Leases, credit and gates are the leader's memory: they go with it. Whoever
//!    consumed is told to connect again.
//! 3. A leader serves once the empty entry of its term is durable on a majority.

use std::collections::VecDeque;

use wire::{
    error::{ErrorCode, Outcome},
    message::GoingAway,
    vocabulary::Boundary,
};

use super::{
    core::Engine,
    deadlines::Late,
    gates::{majority, GroupSlot},
    partition::PartitionKey,
    slow_owner::OwnWrites,
    turn::Deferred,
    types::{ConnKey, Notice},
};
use crate::{
    group::{GroupId, PeerId, TICK_MS},
    io::BatchBuffer,
    mutation::{removed, Rule},
    state::command::Command,
};

const MOVED: &str =
    "leadership moved to another node before this was confirmed; it may or may not take effect";
const MOVED_BEFORE: &str =
    "leadership moved to another node; nothing was done: retry, any node passes it on";

impl<B: BatchBuffer> Engine<B> {
    /// Groups have replicas on other nodes.
    pub(super) fn is_cluster(&self) -> bool {
        self.config.nodes.len() > 1
    }

    /// Server time of the next tick; solo groups do not tick.
    pub(super) fn tick_due_ms(&self) -> Option<u64> {
        (self.is_cluster() && !self.latched).then_some(self.timers.tick_ms)
    }

    /// One tick, however late: while this node's thread had no core it could not hear
    /// a leader either, so that time is no evidence of anybody's silence.
    pub(super) fn fire_ticks(&mut self) {
        let now = self.server_ms;
        if self.tick_due_ms().is_none_or(|due| due > now) {
            return;
        }
        let passed = (now - self.timers.tick_ms) / TICK_MS + 1;
        self.timers.tick_ms += passed * TICK_MS;
        self.timers.ticks += 1;
        // All groups led here send their heartbeats in one frame: two ticks at every
        // second one, whenever each was elected.
        let of_leaders = 2 * (self.timers.ticks % 2);
        let blind = self.knows_no_founders();
        for (id, slot) in &mut self.groups {
            let ticks = match slot.group.is_leader() {
                true => of_leaders,
                // It would lead without knowing how many copies make a majority.
                false => u64::from(*id == GroupId::META.0 || !blind),
            };
            for _ in 0..ticks {
                slot.group.tick();
            }
            slot.group.set_reluctant(self.leads_nothing);
            slot.group.hold_for_followers();
            if self.draining || self.leads_nothing {
                slot.resign(now, &self.links);
            }
            slot.dirty = true;
        }
        self.tell_leads_nothing();
        self.leave_to_faster_disks();
        self.spread_leaders();
        self.hand_over_where_due();
        self.tend_orders();
        self.tend_recovery();
        self.tend_membership();
        self.sort_out_replicas();
    }

    /// Somebody is there who could take over what this node leads, now or when it is close
    /// behind.
    pub(super) fn leads_with_others(&self) -> bool {
        self.groups.values().any(|slot| {
            let voters = slot.group.members().voters.iter();
            let mut nodes = voters.map(|peer| PeerId(*peer).node());
            slot.group.is_leader() && nodes.any(|node| self.links.may_lead(node))
        })
    }

    /// Voters of the group whose nodes are there, this one among them.
    pub(super) fn voters_present(&self, slot: &GroupSlot) -> usize {
        let there = |peer: &&u64| {
            let node = PeerId(**peer).node();
            node == self.config.node || self.links.is_up(node)
        };
        slot.group.members().voters.iter().filter(there).count()
    }

    /// Nodes for a majority of the group are there.
    pub(super) fn has_majority(&self, slot: &GroupSlot) -> bool {
        self.voters_present(slot) >= majority(slot.group.members().voters.len())
    }

    /// Notes who leads the group now.
    pub(super) fn watch_leadership(&mut self, id: u32) {
        let Some(slot) = self.groups.get_mut(&id) else {
            return;
        };
        let leads = slot.group.is_leader().then(|| slot.group.term());
        let before = std::mem::replace(&mut slot.leading, leads);
        if before == leads {
            return;
        }
        slot.serving = false;
        slot.changed = None;
        slot.catch_up = None;
        (slot.resigning, slot.heir) = (None, None);
        slot.turn.led_since_ms = self.server_ms;
        slot.own_writes = OwnWrites::default();
        if before.is_some() {
            self.deposed.push(id);
            self.step_down(id);
        }
        // A start takes a group for weakened whose entry it finds, though that may never
        // have been committed: then the others have to learn it, or they would not report
        // what is durable and the barrier would wait for ever.
        let weak = self
            .groups
            .get(&id)
            .is_some_and(|slot| slot.leads() && slot.group.answers_at() == Boundary::Written);
        if weak {
            self.propose_to_group(GroupId(id), &Command::Weaken);
        }
        if leads.is_some() && removed(Rule::LeaderBarrier) {
            self.began_serving(id);
        }
    }

    /// The replica is about to go, whatever it leads.
    pub(super) fn lose_leadership(&mut self, id: u32) {
        let led = self
            .groups
            .get_mut(&id)
            .and_then(|slot| slot.leading.take());
        if led.is_some() {
            self.deposed.push(id);
            self.step_down(id);
        }
    }

    /// One line for all groups that lost their leader in this turn.
    pub(super) fn say_deposed(&mut self) {
        if !self.deposed.is_empty() {
            let groups = std::mem::take(&mut self.deposed);
            self.notices.push(Notice::Deposed { groups });
        }
    }

    /// Leadership of the group is lost: everything that is the leader's goes.
    fn step_down(&mut self, id: u32) {
        let mut late = Late::at(u64::MAX);
        if let Some(slot) = self.groups.get_mut(&id) {
            late.take_group(slot);
            slot.origins.clear();
            slot.clear_gates();
        }
        if id == GroupId::META.0 {
            if let Some(meta) = self.meta.as_mut() {
                meta.take_askers(&mut |asked| late.take(asked));
                meta.waits.clear();
            }
        }
        self.tell_late(late, ErrorCode::Unavailable, MOVED, MOVED);
        let keys = self.keys_of_group(id);
        self.fail_unproposed(id, &keys);
        for key in &keys {
            if let Some(slot) = self.partitions.get_mut(key) {
                slot.machine.step_down();
                slot.changing = None;
                slot.acknowledges.clear();
                slot.settle_replies.clear();
                slot.armed_ms = u64::MAX;
            }
        }
        self.end_waits_of(&keys);
        self.send_consumers_away(&keys);
    }

    /// Partitions of the group, in order.
    pub(super) fn keys_of_group(&self, id: u32) -> Vec<PartitionKey> {
        let slots = self.partitions.values();
        let mut keys: Vec<PartitionKey> = slots
            .filter(|slot| slot.group.0 == id)
            .map(|slot| slot.key)
            .collect();
        // The map's order must not show.
        keys.sort_unstable();
        keys
    }

    /// Commands that waited for room.
    fn fail_unproposed(&mut self, id: u32, keys: &[PartitionKey]) {
        let of_group = |deferred: &Deferred| {
            deferred.is_of_group(id) || keys.binary_search(&deferred.key).is_ok()
        };
        let deferred = std::mem::take(&mut self.deferred);
        let (gone, kept): (VecDeque<_>, _) = deferred.into_iter().partition(of_group);
        self.deferred = kept;
        for deferred in gone {
            self.answer_moved(deferred.origin);
        }
    }

    /// What was not proposed because another node leads.
    pub(super) fn answer_moved(&mut self, origin: super::gates::Origin) {
        let (code, outcome) = (ErrorCode::Unavailable, Outcome::Failed);
        self.answer_origin(origin, code, outcome, MOVED_BEFORE);
    }

    /// Barriers and peeks of these partitions.
    fn end_waits_of(&mut self, keys: &[PartitionKey]) {
        let of_group = |key: &PartitionKey| keys.binary_search(key).is_ok();
        let mut told: Vec<(ConnKey, u64)> = Vec::new();
        self.barriers.retain(|barrier| {
            let gone = of_group(&barrier.key);
            if gone {
                told.push((barrier.conn, barrier.correlation));
            }
            !gone
        });
        self.peeks.retain(|peek| {
            let gone = of_group(&peek.key);
            if gone {
                told.push((peek.conn, peek.correlation));
            }
            !gone
        });
        for (conn, correlation) in told {
            self.refuse(
                conn,
                correlation,
                ErrorCode::Unavailable,
                MOVED_BEFORE.to_owned(),
            );
        }
    }

    /// Connections that consume here are closed, so that their clients connect and
    /// subscribe again, wherever the leader is.
    fn send_consumers_away(&mut self, keys: &[PartitionKey]) {
        let shard = self.config.shard;
        let consumes = |connection: &super::connection::Connection| {
            connection.subscriptions.iter().any(|sub| {
                let key = PartitionKey {
                    queue_id: sub.queue_id,
                    partition: sub.partition,
                };
                sub.shard == shard && sub.node == 0 && keys.binary_search(&key).is_ok()
            })
        };
        let mut conns: Vec<ConnKey> = self
            .connections
            .iter()
            .filter(|(_, connection)| consumes(connection))
            .map(|(conn, _)| *conn)
            .collect();
        // The map's order must not show.
        conns.sort_unstable();
        for conn in conns {
            self.send_away(
                conn,
                "the leader of a queue it consumes moved to another node; connect again",
            );
        }
    }

    pub(super) fn send_away(&mut self, conn: ConnKey, reason: &str) {
        let reason = reason.to_owned();
        let body = GoingAway {
            reason,
            extensions: Vec::new(),
        };
        self.reply(conn, 0, &body);
        self.close(conn);
    }

    /// A leader of several makes what the directory names exist, and what it does
    /// not name go.
    pub(super) fn lead_partitions(&mut self, id: u32) {
        for key in self.keys_of_group(id) {
            if let Some(slot) = self.partitions.get_mut(&key) {
                // A leadership begins; everything here is durable on a majority.
                slot.machine.finish_replay();
                slot.durable_next = slot.machine.next_offset();
                slot.unsynced_bytes = 0;
                slot.begun = true;
            }
        }
        self.finish_generations();
        if self.directory_known {
            self.make_partitions(GroupId(id));
            self.drop_orphans();
        }
    }

    /// Raft did not take it, or the log.
    pub(super) fn group_problem(&mut self, id: u32, reason: &str) {
        let message = format!("group {id}: {reason}");
        self.notices.push(Notice::Problem(message));
    }
}
