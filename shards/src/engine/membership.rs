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

use super::{
    core::Engine,
    gates::{majority, At, GroupSlot},
    types::Notice,
};
use crate::{
    group::{GroupId, MembershipChange, MembershipStep, PeerId, Recovered},
    io::BatchBuffer,
    mutation::{removed, Rule},
    state::meta::{is_vacant, MetaCommand},
};

impl<B: BatchBuffer> Engine<B> {
    /// Replicas that every group should have.
    pub(super) fn replicas(&self) -> usize {
        self.config.nodes.len().max(1)
    }

    /// A replica of the group has a new name.
    pub(super) fn on_replaced(&mut self, group: GroupId, (retired, new): (u64, u64), harmed: bool) {
        if let Some(slot) = self.groups.get_mut(&group.0) {
            slot.group.retire(retired, harmed);
            slot.replaced.insert(retired, new);
        }
        let waits = self.awaiting_recovery.get(&group.0);
        let waits = waits.is_some_and(|recovered| recovered.state.peer.0 == retired);
        if waits && !is_vacant(new) {
            self.open_rejoined(group, PeerId(new));
        }
    }

    /// The replica goes on under its new name: with what survived, or with nothing if
    /// what it reported durable is in doubt.
    pub(super) fn open_rejoined(&mut self, group: GroupId, peer: PeerId) {
        let Some(mut recovered) = self.awaiting_recovery.get(&group.0).cloned() else {
            return;
        };
        if !recovered.state.keeps_reported {
            let state = recovered.state;
            let of = Recovered::emptied(state.answers_at, state.generation, peer, state.members);
            self.open_emptied(group, &of);
            return;
        }
        recovered.state.peer = peer;
        recovered.state.vote = 0;
        // Where the log has no room for it now it waits on, and is tried again.
        if let Some(node) = self.open_announced(group, &recovered) {
            self.awaiting_recovery.remove(&group.0);
            self.groups.insert(group.0, GroupSlot::new(node));
            self.notices.push(Notice::Rejoined { group: group.0 });
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
            // A new generation begins with one voter: until they are a majority of all
            // replicas, the ones there are have to do, and nothing is confirmed yet.
            let voters = slot.group.members().voters.len();
            let may = slot.serving || voters < copies;
            if !slot.leads() || !may || slot.replaced.is_empty() {
                continue;
            }
            let settled = slot.changed.is_none_or(|at| {
                let boundary = wire::vocabulary::Boundary::Durable;
                slot.is_reached(at, boundary, copies.min(voters), &frontiers)
            });
            let settled = settled || removed(Rule::OneAtATime);
            let looked_at = slot.catch_up;
            let step = next_step(slot);
            if slot.catch_up != looked_at {
                // A learner waits to be durable: where no timer syncs it and nobody
                // publishes durably, it would wait for ever.
                self.demand_of(id);
            }
            let Some(change) = step.filter(|_| settled) else {
                continue;
            };
            let Some(slot) = self.groups.get_mut(&id) else {
                continue;
            };
            let peer = change.peer;
            if change.step == MembershipStep::Promote && !slot.promotable.contains(&peer) {
                // Whoever may vote is known to group 0 first (`R6-promoted-known`).
                let generation = slot.group.generation();
                self.ask_shard_0(MetaCommand::Promoting {
                    group: id,
                    generation,
                    peer,
                });
                continue;
            }
            if let Ok(index) = slot.group.propose_membership(&mut self.log, change) {
                let end = self.log.frontiers().appended;
                slot.catch_up = None;
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
        // A name that was itself retired since does not come back, and nobody is in the
        // place of a replica that was given up until its node has a new directory.
        if slot.replaced.contains_key(new) || is_vacant(*new) {
            continue;
        }
        if !members.contains(*new) {
            if removed(Rule::LearnerFirst) {
                return change(MembershipStep::Promote, *new);
            }
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
    let reached = reached || removed(Rule::CatchUp);
    reached
        .then(|| change(MembershipStep::Promote, learner))
        .flatten()
}
