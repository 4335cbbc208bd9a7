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
//! 4. Where a replica goes from one node to another the new one joins and catches up
//!    first; then the old one is removed, and only then the new one promoted: the two
//!    never vote at once, so that a group never has more than E replicas that count. In
//!    between, for as long as two entries take, the group needs the others.
//! 5. That is begun only while so many of the others are there that they are a majority.

use wire::node::Shift;

use super::{
    core::Engine,
    gates::{majority, At, GroupSlot},
    types::Notice,
};
use crate::{
    group::{GroupId, Members, MembershipChange, MembershipStep, PeerId, Recovered},
    io::BatchBuffer,
    mutation::{removed, Rule},
    state::meta::{is_vacant, MemberCommand, MetaCommand, FIRST_GENERATION},
};

const META: u32 = GroupId::META.0;

/// What a group's membership should come to.
struct Target {
    /// Nodes that are to hold it; `None`: whoever does.
    holders: Option<Vec<u32>>,
    /// It goes from one node to another.
    shift: Option<Shift>,
    /// Voters there should be.
    copies: usize,
    own: u32,
}

/// What a leader does next about its group's membership.
enum Next {
    Step(MembershipChange),
    /// Another one has to lead: this node's replica is about to go.
    HandOver,
    /// The replica goes; group 0 has to know first that the other may vote.
    Announce(u64),
    /// The replica has gone.
    Gone(Shift),
}

impl<B: BatchBuffer> Engine<B> {
    /// A replica of the group has a new name.
    pub(super) fn on_replaced(&mut self, group: GroupId, (retired, new): (u64, u64), harmed: bool) {
        if let Some(slot) = self.groups.get_mut(&group.0) {
            slot.group.retire(retired, harmed);
            slot.replaced.insert(retired, new);
        }
    }

    /// A replica that waits for a name has one.
    pub(super) fn take_name(&mut self, group: GroupId, (retired, new): (u64, u64)) {
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
            // What it was made with may be less than the founders.
            let founders = self.founding_peers();
            let founders = founders.filter(|_| state.generation == FIRST_GENERATION);
            let members = founders.map_or(state.members, Members::of_voters);
            let of = Recovered::emptied(state.answers_at, state.generation, peer, members);
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
        let ids: Vec<u32> = self.groups.keys().copied().collect();
        for id in ids {
            let idle = |slot: &GroupSlot| !slot.leads() || slot.replaced.is_empty();
            let still = self.groups.get(&id).is_none_or(idle);
            if still && !self.is_out_of_place(id) {
                continue;
            }
            self.tend_membership_of(id);
        }
    }

    /// A group that this replica leads has others than it should.
    fn is_out_of_place(&self, id: u32) -> bool {
        let (Some(roster), Some(slot)) = (self.roster(), self.groups.get(&id)) else {
            return false;
        };
        let members = slot.group.members();
        let mut all = members.voters.iter().chain(&members.learners);
        let mut gone = || {
            all.any(|peer| slot.left.contains(peer) || !roster.is_holder(id, PeerId(*peer).node()))
        };
        slot.leads() && (roster.shifts.contains_key(&id) || gone())
    }

    fn target_of(&self, id: u32) -> Target {
        let holders = self.roster().map(|roster| roster.holders(id));
        let copies = match (&holders, id) {
            (Some(members), META) => members.len(),
            _ => self.replicas_of(id),
        };
        Target {
            holders,
            shift: self.shift_of(id),
            copies,
            own: self.config.node,
        }
    }

    fn tend_membership_of(&mut self, id: u32) {
        let (target, frontiers) = (self.target_of(id), self.frontiers);
        let copies = majority(self.replicas_of(id));
        let others = self.others_there(id);
        let Some(slot) = self.groups.get_mut(&id) else {
            return;
        };
        // A new generation begins with one voter: until they are a majority of all
        // replicas, the ones there are have to do, and nothing is confirmed yet.
        let voters = slot.group.members().voters.len();
        if !slot.leads() || !(slot.serving || voters < copies) {
            return;
        }
        let settled = slot.changed.is_none_or(|at| {
            let boundary = wire::vocabulary::Boundary::Durable;
            slot.is_reached(at, boundary, copies.min(voters), &frontiers)
        });
        let one_at_a_time = settled || removed(Rule::OneAtATime);
        let looked_at = slot.catch_up;
        let next = next_step(slot, &target, others >= copies);
        if slot.catch_up != looked_at {
            // A learner waits to be durable: where no timer syncs it and nobody
            // publishes durably, it would wait for ever.
            self.demand_of(id);
        }
        match next {
            Some(Next::Gone(shift)) if settled => self.say_gone(id, shift),
            Some(Next::Step(change)) if one_at_a_time => self.take_step(id, change),
            Some(Next::HandOver) => self.hand_away(id),
            Some(Next::Announce(peer)) => self.announce_voter(id, peer),
            _ => {}
        }
    }

    /// Voters of a group that would be left without the one that goes, and are linked and
    /// close behind; this one is one of them.
    fn others_there(&self, id: u32) -> usize {
        let Some(slot) = self.groups.get(&id) else {
            return 0;
        };
        let own = self.config.node;
        let there = |peer: &&u64| {
            let node = PeerId(**peer).node();
            let goes = self.shift_of(id).is_some_and(|shift| shift.from == node);
            let near = self.links.is_up(node) && slot.group.can_take_over(**peer);
            !goes && (node == own || near)
        };
        slot.group.members().voters.iter().filter(there).count()
    }

    fn take_step(&mut self, id: u32, change: MembershipChange) {
        let peer = change.peer;
        let known = |slot: &GroupSlot| slot.promotable.contains(&peer);
        let known = self.groups.get(&id).is_some_and(known);
        if change.step == MembershipStep::Promote && !known {
            return self.announce_voter(id, peer);
        }
        let Some(slot) = self.groups.get_mut(&id) else {
            return;
        };
        if let Ok(index) = slot.group.propose_membership(&mut self.log, change) {
            let end = self.log.frontiers().appended;
            slot.catch_up = None;
            slot.changed = Some(At { index, end });
            slot.dirty = true;
        }
    }

    /// Whoever may vote is known to group 0 first (`R6-promoted-known`).
    fn announce_voter(&mut self, id: u32, peer: u64) {
        let Some(slot) = self.groups.get(&id) else {
            return;
        };
        let generation = slot.group.generation();
        self.ask_shard_0(MetaCommand::Promoting {
            group: id,
            generation,
            peer,
        });
    }

    /// This node's replica goes: another one leads first.
    fn hand_away(&mut self, id: u32) {
        let now = self.server_ms;
        if let Some(slot) = self.groups.get_mut(&id) {
            slot.resign(now, &self.links);
        }
    }

    fn say_gone(&mut self, id: u32, shift: Shift) {
        let Some(slot) = self.groups.get(&id) else {
            return;
        };
        let generation = slot.group.generation();
        self.ask_shard_0(MetaCommand::Members(MemberCommand::Moved {
            group: id,
            generation,
            from: shift.from,
            to: shift.to,
        }));
    }
}

/// What the group's membership wants next. `others`: without the replica that goes there
/// is a majority.
fn next_step(slot: &mut GroupSlot, target: &Target, others: bool) -> Option<Next> {
    if let Some(change) = unwanted(slot, target).or_else(|| missing(slot, target)) {
        return Some(Next::Step(change));
    }
    let members = slot.group.members();
    let (voters, learners) = (members.voters.clone(), members.learners.clone());
    let on = |peers: &[u64], node: u32| {
        let mut peers = peers.iter().copied();
        peers.find(|peer| PeerId(*peer).node() == node)
    };
    let leaver = voters
        .iter()
        .copied()
        .find(|peer| is_astray(slot, target, *peer));
    let remove = |peer| {
        if PeerId(peer).node() == target.own {
            return Some(Next::HandOver);
        }
        let step = MembershipStep::Remove;
        Some(Next::Step(MembershipChange { step, peer }))
    };
    if let Some(peer) = leaver.filter(|_| slot.group.id() == GroupId::META) {
        // Nobody comes in its place: the node is no member any more.
        return remove(peer);
    }
    let full = voters.len() >= target.copies;
    let comes = target.shift.map(|shift| shift.to);
    if let (Some(peer), Some(to)) = (leaver.filter(|_| full), comes) {
        if let Some(new) = on(&learners, to).filter(|new| has_caught_up(slot, *new)) {
            if removed(Rule::OneSeat) {
                return promote(new);
            }
            return match slot.promotable.contains(&new) {
                false => Some(Next::Announce(new)),
                true if others => remove(peer),
                true => None,
            };
        }
    }
    if let Some(shift) = target.shift.filter(|_| leaver.is_none()) {
        if on(&voters, shift.to).is_some() && on(&learners, shift.from).is_none() {
            return Some(Next::Gone(shift));
        }
    }
    // The one that comes takes the place of the one that goes.
    let waits = |peer: &u64| leaver.is_some() && comes == Some(PeerId(*peer).node());
    let room = target.holders.is_none() || !full;
    let next = learners.iter().copied().find(|peer| !waits(peer));
    let next = next.filter(|_| room)?;
    has_caught_up(slot, next).then(|| promote(next)).flatten()
}

fn promote(peer: u64) -> Option<Next> {
    let step = MembershipStep::Promote;
    Some(Next::Step(MembershipChange { step, peer }))
}

/// A replica that is to be no member: its name is retired, or it is a learner on a node
/// that is not to hold the group, or goes by another name by now.
fn unwanted(slot: &GroupSlot, target: &Target) -> Option<MembershipChange> {
    let members = slot.group.members();
    let retired = slot.replaced.keys().copied();
    let mut retired = retired.filter(|peer| members.contains(*peer));
    let learners = members.learners.iter().copied();
    let mut astray =
        learners.filter(|peer| is_astray(slot, target, *peer) || is_superseded(slot, *peer));
    let peer = retired.next().or_else(|| astray.next())?;
    let step = MembershipStep::Remove;
    Some(MembershipChange { step, peer })
}

/// Its node is not to hold the group, or is to under another name.
fn is_astray(slot: &GroupSlot, target: &Target, peer: u64) -> bool {
    let holders = target.holders.as_ref();
    let held = holders.is_none_or(|holders| holders.contains(&PeerId(peer).node()));
    !held || slot.left.contains(&peer)
}

/// Its node goes by a newer name: it got two, one for what it held and one for what a
/// recovery made of that, and names are never used again.
fn is_superseded(slot: &GroupSlot, peer: u64) -> bool {
    let named = slot.replaced.values().filter(|name| !is_vacant(**name));
    let members = slot.group.members();
    let mut names = named.chain(&members.voters).chain(&members.learners);
    names.any(|name| PeerId(*name).node() == PeerId(peer).node() && *name > peer)
}

/// A replica with a name that is to join.
fn missing(slot: &GroupSlot, target: &Target) -> Option<MembershipChange> {
    let members = slot.group.members();
    for new in slot.replaced.values() {
        // A name that was itself retired since does not come back, and nobody is in the
        // place of a replica that was given up until its node has a new directory.
        let held = target
            .holders
            .as_ref()
            .is_none_or(|holders| holders.contains(&PeerId(*new).node()));
        let gone = slot.replaced.contains_key(new) || slot.left.contains(new);
        if gone || is_vacant(*new) || !held || is_superseded(slot, *new) {
            continue;
        }
        if !members.contains(*new) {
            let step = match removed(Rule::LearnerFirst) {
                true => MembershipStep::Promote,
                false => MembershipStep::AddLearner,
            };
            return Some(MembershipChange { step, peer: *new });
        }
    }
    None
}

/// The learner is durable up to what was committed when it was last looked at.
fn has_caught_up(slot: &mut GroupSlot, learner: u64) -> bool {
    let until = slot
        .catch_up
        .get_or_insert((learner, slot.group.committed()));
    if until.0 != learner {
        *until = (learner, slot.group.committed());
    }
    slot.group.durable_of(learner) >= until.1 || removed(Rule::CatchUp)
}
