//! Replicas that lost their memory: retired, and joined anew under another peer id.
//!
//! A log that may have forgotten what it answered at written takes no part in such
//! groups under its old names (R2). It asks group 0 for new ones, opens its replicas
//! under them with what survived, and their leaders bring them back: the old name is
//! removed, the new one joins as a learner, catches up, is promoted (R3).
//!
//! 1. Retirement is told by the log itself, never inferred.
//! 2. One step at a time, the next when the last is durable on a majority of all
//!    replicas there should be, removed ones included.
//! 3. A learner is promoted when it is durable up to what was committed when it was
//!    last looked at.

use wire::node::NodeMessage;

use super::{
    core::Engine,
    gates::{majority, At, GroupSlot, Origin},
    types::{Notice, ShardMessage},
};
use crate::{
    group::{Group, GroupId, MembershipChange, MembershipStep, PeerId},
    io::BatchBuffer,
    state::meta::MetaCommand,
};

/// Between two requests for a new name, in ms.
const ASK_MS: u64 = 300;

impl<B: BatchBuffer> Engine<B> {
    /// Replicas that every group should have.
    pub(super) fn replicas(&self) -> usize {
        self.config.nodes.len().max(1)
    }

    /// A shard of this node asks for a new name for its replica (shard 0).
    pub(super) fn want_rejoin(&mut self, group: GroupId, retired: PeerId) {
        self.rejoins.insert((group.0, retired.0), 0);
    }

    /// Asks group 0's leader, again and again until the answer is applied here.
    pub(super) fn ask_rejoins(&mut self) {
        let now = self.server_ms;
        let due: Vec<(u32, u64)> = self
            .rejoins
            .iter()
            .filter(|(_, asked_ms)| **asked_ms == 0 || **asked_ms + ASK_MS <= now)
            .map(|(rejoin, _)| *rejoin)
            .collect();
        for (group, retired) in due {
            self.rejoins.insert((group, retired), now);
            self.ask_rejoin(group, retired);
        }
    }

    fn ask_rejoin(&mut self, group: u32, retired: u64) {
        if self.leads(GroupId::META) {
            return self.on_rejoin(group, retired);
        }
        let meta = self.groups.get(&GroupId::META.0);
        let leader = meta.and_then(|slot| slot.group.leader());
        if let Some(out) = leader.and_then(|peer| self.links.output(peer.node())) {
            NodeMessage::Rejoin { group, retired }.encode(out);
        }
    }

    /// A node asks group 0's leader for a new name.
    pub(super) fn on_rejoin(&mut self, group: u32, retired: u64) {
        let known = self.meta.as_ref().and_then(|meta| meta.state.group(group));
        let done = known.is_some_and(|history| history.replaced.contains_key(&retired));
        if done || !self.leads(GroupId::META) {
            return;
        }
        let command = MetaCommand::Rejoin {
            group,
            retired_peer: retired,
        };
        // Asked for again if it is not taken.
        let _ = self.try_propose_meta(&command, Origin::Nobody);
    }

    /// Group 0 gave a replica a new name (shard 0): whoever has one of that group is told.
    pub(super) fn replaced(&mut self, group: u32, retired: u64, new: u64) {
        self.rejoins.remove(&(group, retired));
        if let Some(shard) = self.config.place.shard_of(GroupId(group)) {
            self.outbound.push((
                shard,
                ShardMessage::Replaced {
                    group: GroupId(group),
                    retired,
                    new,
                },
            ));
        }
    }

    /// A replica of the group has a new name.
    pub(super) fn on_replaced(&mut self, group: GroupId, retired: u64, new: u64) {
        if let Some(slot) = self.groups.get_mut(&group.0) {
            slot.group.retire(retired);
            slot.replaced.insert(retired, new);
        }
        let waits = self.awaiting_recovery.get(&group.0);
        if waits.is_some_and(|recovered| recovered.state.peer.0 == retired) {
            self.open_rejoined(group, PeerId(new));
        }
    }

    /// The replica goes on under its new name, with what survived.
    fn open_rejoined(&mut self, group: GroupId, peer: PeerId) {
        let Some(mut recovered) = self.awaiting_recovery.remove(&group.0) else {
            return;
        };
        recovered.state.peer = peer;
        recovered.state.vote = 0;
        let opened = Group::open(group, &recovered, self.config.random)
            .and_then(|mut node| node.announce(&mut self.log).map(|end| (node, end)));
        match opened {
            Ok((node, end)) => {
                self.announced = self.announced.max(end);
                self.groups.insert(group.0, GroupSlot::new(node));
                self.notices.push(Notice::Rejoined { group: group.0 });
            }
            // The log refused: it is latched, and opened anew.
            Err(error) => {
                self.group_problem(
                    group.0,
                    &format!("its replica here could not join anew: {error}"),
                );
            }
        }
    }

    /// Takes the next step of membership in groups that this replica leads.
    pub(super) fn tend_membership(&mut self) {
        let copies = majority(self.replicas());
        let ids: Vec<u32> = self.groups.keys().copied().collect();
        for id in ids {
            let frontiers = self.frontiers;
            let Some(slot) = self.groups.get_mut(&id) else {
                continue;
            };
            if !slot.leads() || !slot.serving || slot.replaced.is_empty() {
                continue;
            }
            let settled = slot.changed.is_none_or(|at| {
                let boundary = wire::vocabulary::Boundary::Durable;
                slot.is_reached(at, boundary, copies, &frontiers)
            });
            let Some(change) = next_step(slot).filter(|_| settled) else {
                continue;
            };
            if let Ok(index) = slot.group.propose_membership(&mut self.log, change) {
                let end = self.log.frontiers().appended;
                slot.changed = Some(At { index, end });
                slot.dirty = true;
            }
        }
    }
}

/// What the group's membership wants next.
fn next_step(slot: &mut GroupSlot) -> Option<MembershipChange> {
    let members = slot.group.members();
    let change = |step, peer| Some(MembershipChange { step, peer });
    for (retired, new) in &slot.replaced {
        if members.contains(*retired) {
            return change(MembershipStep::Remove, *retired);
        }
        // A name that was itself retired since does not come back.
        if slot.replaced.contains_key(new) {
            continue;
        }
        if !members.contains(*new) {
            return change(MembershipStep::AddLearner, *new);
        }
    }
    let learner = members.learners.first().copied()?;
    let until = slot
        .catch_up
        .get_or_insert((learner, slot.group.committed()));
    if until.0 != learner {
        *until = (learner, slot.group.committed());
    }
    let reached = slot.group.durable_of(learner) >= until.1;
    if !reached {
        return None;
    }
    slot.catch_up = None;
    change(MembershipStep::Promote, learner)
}
