//! A replica's part in the recovery of its group (R6): it stops its generation,
//! answers, and goes on in the next: with its own history if group 0 chose it, else
//! emptied, to be rebuilt from that one. Only as many are emptied at once as the chosen
//! one lacks to a majority: the others keep what they have until that majority is there.
//!
//! 1. It answers only when its stop, and everything in front of it, is durable.
//! 2. Only a replica that stopped begins the next generation, and only with all of its
//!    history applied.
//! 3. A replica of an ended generation takes part in nothing until it has a new name. What
//!    it keeps is for an operator who takes a loss: its answer counts for nothing else, and
//!    stands behind every answer of the generation that goes on.
//!
//! A crash leaves behind a replica that stopped, or one of the new generation: what
//! group 0 says is followed from there.

use std::collections::BTreeMap;

use super::{
    boot::ask_for_name,
    core::Engine,
    gates::GroupSlot,
    snapshot::drop_partitions,
    types::{Notice, ShardMessage},
};
use crate::{
    group::{Group, GroupId, GroupState, Members, PeerId, Recovered},
    io::BatchBuffer,
    log::LogPosition,
    mutation::{removed, Rule},
    state::meta::{is_vacant, Answer, GroupHistory, MetaCommand, MetaState},
};

/// Between two times that a replica says it knows no leader, in ms.
const SAY_MS: u64 = 500;

/// Longest that a copy is kept for a majority that does not come, in ms: without it the
/// group could wait for ever for the one that keeps it.
const KEEP_MS: u64 = 30_000;

/// Since when a replica knows no leader, and when that was last said; server time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Leaderless {
    since_ms: u64,
    said_ms: u64,
}

impl<B: BatchBuffer> Engine<B> {
    /// What group 0 knows of a group that has a replica here.
    pub(super) fn on_history(&mut self, group: GroupId, history: &GroupHistory) {
        let id = group.0;
        let Some(own) = self.own_state(id) else {
            return;
        };
        if history.generation < own.generation {
            return;
        }
        if history.generation > own.generation {
            return self.leave_generation(group, history, &own);
        }
        self.follow_names(group, history);
        if let Some(slot) = self.groups.get_mut(&id) {
            slot.promotable.clone_from(&history.promoted);
            slot.left.clone_from(&history.left);
            for peer in &history.left {
                slot.group.retire(*peer, false);
            }
        }
        if history.collecting.is_some() {
            self.stop_generation(id);
        }
    }

    fn follow_names(&mut self, group: GroupId, history: &GroupHistory) {
        for (retired, new) in &history.replaced {
            let harmed = history.harmed.contains(retired);
            self.on_replaced(group, (*retired, *new), harmed);
            if history.name_of(*retired).is_some() {
                self.take_name(group, (*retired, *new));
            }
        }
    }

    /// What this node's replica of the group last said of itself in the log.
    fn own_state(&self, id: u32) -> Option<GroupState> {
        match self.groups.get(&id) {
            Some(slot) => Some(slot.group.state()),
            None => Some(self.awaiting_recovery.get(&id)?.state.clone()),
        }
    }

    fn stop_generation(&mut self, id: u32) {
        let Some(slot) = self.groups.get_mut(&id) else {
            return;
        };
        if slot.stopping.is_some() {
            return;
        }
        match slot.group.stop(&mut self.log) {
            Ok(end) => {
                slot.stopping = Some(end);
                slot.outcome.messages.clear();
                self.watch_leadership(id);
            }
            // The log has no room or is latched: tried again.
            Err(error) => {
                self.group_problem(id, &format!("it could not stop its generation: {error}"));
            }
        }
    }

    /// Answers of replicas whose stop is durable, and who knows no leader.
    pub(super) fn tend_recovery(&mut self) {
        self.try_histories_again();
        self.answer_orders();
        self.say_leaderless();
    }

    /// What could not be followed when it was told.
    fn try_histories_again(&mut self) {
        let open = self.histories.iter().filter(|(id, history)| {
            // At every tick: without a copy of each replica's state.
            let Some(slot) = self.groups.get(id) else {
                return self.awaiting_recovery.contains_key(id);
            };
            let own = slot.group.generation();
            let stops = history.generation == own && history.collecting.is_some();
            history.generation > own || stops && !slot.group.is_stopped()
        });
        let open: Vec<(u32, Box<GroupHistory>)> =
            open.map(|(id, history)| (*id, history.clone())).collect();
        for (id, history) in open {
            self.on_history(GroupId(id), &history);
        }
    }

    fn answer_orders(&mut self) {
        let durable = self.frontiers.durable_next;
        let mut answers = Vec::new();
        for (id, slot) in &mut self.groups {
            let is_durable = |end| end <= durable || removed(Rule::R6Sync);
            let stopped = slot.stopping.is_some_and(is_durable);
            let own = slot.group.generation();
            let newer = newer(&self.histories, *id, own);
            let generation = match newer {
                None => own,
                Some(history) if history.collecting.is_some() => history.generation,
                Some(_) => continue,
            };
            if !stopped || slot.answered >= Some(generation) {
                continue;
            }
            slot.answered = Some(generation);
            answers.push(MetaCommand::Answered {
                group: *id,
                generation,
                answer: answer_of(&slot.group, newer.is_some()),
            });
        }
        for answer in answers {
            self.ask_shard_0(answer);
        }
    }

    pub(super) fn ask_shard_0(&mut self, command: MetaCommand) {
        self.outbound
            .push((0, ShardMessage::AskMeta(Box::new(command))));
    }

    /// Where a replica has known no leader for longer than the grace, group 0's leader
    /// is told.
    fn say_leaderless(&mut self) {
        let (now, grace) = (self.server_ms, self.config.recovery_grace_ms);
        let mut without: Vec<(u32, u32)> = Vec::new();
        for (id, slot) in &self.groups {
            // Whatever it answers at itself: it may be behind the weakening entry.
            let own = slot.group.generation();
            let newer = newer(&self.histories, *id, own);
            if let Some(history) = newer {
                // It is in no part of that one, and knows nothing of its leader.
                without.push((*id, history.generation));
            } else if slot.group.is_replicated() && !slot.group.is_stopped() && has_no_leader(slot)
            {
                without.push((*id, own));
            }
        }
        let waiting = self.awaiting_recovery.iter();
        without.extend(waiting.map(|(id, recovered)| (*id, recovered.state.generation)));
        self.leaderless
            .retain(|id, _| without.iter().any(|(it, _)| it == id));
        for (group, generation) in without {
            let known = self.leaderless.entry(group).or_insert(Leaderless {
                since_ms: now,
                said_ms: 0,
            });
            if known.since_ms + grace <= now && known.said_ms + SAY_MS <= now {
                known.said_ms = now;
                let news = ShardMessage::Leaderless { group, generation };
                self.outbound.push((0, news));
            }
        }
    }

    /// The group goes on without this replica's generation.
    fn leave_generation(&mut self, group: GroupId, history: &GroupHistory, own: &GroupState) {
        let id = group.0;
        let newest = PeerId(history.newest_peer);
        let follows = self.groups.get(&id).is_some_and(|slot| {
            let durable = self.frontiers.durable_next;
            slot.group.is_stopped()
                && slot.stopping.is_none_or(|end| end <= durable)
                && (slot.group.generation() + 1 == history.generation
                    || history.retired.contains(&own.peer.0))
        });
        let chosen = newest.node() == self.config.node && follows;
        if chosen && !history.replaced.contains_key(&newest.0) {
            return self.begin_generation(group, history);
        }
        // Whatever it was in the ended generation is over.
        self.stop_generation(id);
        if self.keeps_its_copy(group, history) || !self.has_part(id) {
            // Or it has no place in the new one.
            return;
        }
        let named = history.replaced.get(&own.peer.0);
        match named.filter(|new| !is_vacant(**new)) {
            Some(new) => {
                let first = Members::of_voters(vec![history.newest_peer]);
                let (generation, peer) = (history.generation, PeerId(*new));
                let of = Recovered::emptied(own.answers_at, generation, peer, first);
                if self.open_emptied(group, &of) {
                    self.follow_names(group, history);
                }
            }
            None => {
                let ask = ask_for_name(id, own.peer, !own.keeps_reported);
                self.outbound.push((0, ask));
            }
        }
    }

    /// What this node has of the ended generation is not given up yet: all of it is in the
    /// next one, that is not on a majority, and others are on their way there; or it is
    /// collected itself.
    fn keeps_its_copy(&mut self, group: GroupId, history: &GroupHistory) -> bool {
        let (id, now) = (group.0, self.server_ms);
        let in_turn = self.gives_up_now(id, history);
        let Some(slot) = self.groups.get_mut(&id) else {
            return false;
        };
        if !slot.group.is_stopped() || !history.kept.contains(&slot.group.peer().0) {
            return false;
        }
        let since = *slot.kept_since_ms.get_or_insert(now);
        let is_kept = !in_turn && now < since.saturating_add(KEEP_MS);
        (history.collecting.is_some() || is_kept) && !removed(Rule::R6KeepCopies)
    }

    /// This node is among the first that the new generation needs for a majority, or it
    /// has that: the holders in a ring from the chosen one on, of those that are here.
    fn gives_up_now(&self, id: u32, history: &GroupHistory) -> bool {
        let holders = self.holders(id);
        let lacking = (holders.len() / 2).saturating_sub(history.promoted.len());
        let (own, chosen) = (self.config.node, PeerId(history.newest_peer).node());
        let behind = holders.iter().filter(|node| **node > chosen);
        let before = holders.iter().filter(|node| **node < chosen);
        let ring = behind.chain(before).copied();
        let here = ring.filter(|node| *node == own || self.links.is_up(*node));
        lacking == 0 || here.take(lacking).any(|node| node == own)
    }

    /// This replica's history is the group's from now on.
    fn begin_generation(&mut self, group: GroupId, history: &GroupHistory) {
        let id = group.0;
        let Some(slot) = self.groups.get(&id) else {
            return;
        };
        let rest = slot.group.rest_of_history();
        let peer = PeerId(history.newest_peer);
        let recovered = slot.group.begun_anew(history.generation, peer);
        // Where the log has no room for it now it is tried again: nothing is applied before.
        if let Some(node) = self.open_announced(group, &recovered) {
            for entry in &rest {
                self.apply(id, entry);
            }
            self.groups.insert(id, GroupSlot::new(node));
            self.notices.push(Notice::Problem(format!(
                "group {id}: its generation {} begins from what this node holds",
                history.generation
            )));
            self.follow_names(group, history);
        }
    }

    /// The replica goes on with nothing, as a learner that is brought everything.
    pub(super) fn open_emptied(&mut self, group: GroupId, of: &Recovered) -> bool {
        let id = group.0;
        let Some(node) = self.open_announced(group, of) else {
            return false;
        };
        self.awaiting_recovery.remove(&id);
        drop_partitions(group, &mut self.partitions, &mut self.room.index_bytes);
        self.groups.insert(id, GroupSlot::new(node));
        if let Some(meta) = self.meta.as_mut().filter(|_| group == GroupId::META) {
            meta.state = MetaState::new(self.config.place.data_groups());
        }
        self.notices.push(Notice::Rejoined { group: id });
        true
    }

    /// A replica under a new identity, which is in the log before anything leaves it.
    pub(super) fn open_announced(&mut self, group: GroupId, as_of: &Recovered) -> Option<Group> {
        let opened = Group::open(group, as_of, self.is_cluster(), self.config.random)
            .and_then(|mut node| node.announce(&mut self.log).map(|end| (node, end)));
        match opened {
            Ok((node, end)) => {
                self.announced = self.announced.max(end);
                Some(node)
            }
            // The log refused: it is latched and opened anew, or asked again.
            Err(error) => {
                self.group_problem(group.0, &format!("its replica could not go on: {error}"));
                None
            }
        }
    }
}

/// What group 0 says of a generation of the group that goes on without this one.
fn newer(
    histories: &BTreeMap<u32, Box<GroupHistory>>,
    group: u32,
    generation: u32,
) -> Option<&GroupHistory> {
    let known = histories
        .get(&group)
        .filter(|it| it.generation > generation);
    known.map(Box::as_ref)
}

/// Nobody leads, or this replica does and does not come to serve: where too few voters are
/// left that remember, its first entry is never durable on a majority.
fn has_no_leader(slot: &GroupSlot) -> bool {
    match slot.group.is_leader() {
        true => !slot.serving,
        false => slot.group.leader().is_none(),
    }
}

/// What a replica that stopped says of its history. One of a generation that ended before
/// stands behind everything of the one that goes on: term 0.
fn answer_of(group: &Group, is_over: bool) -> Answer {
    let (last_index, last_term) = group.last();
    Answer {
        peer: group.peer().0,
        last_term: if is_over { 0 } else { last_term },
        last_index,
        counts: !is_over && group.keeps_reported(),
    }
}

/// Where the stop of a replica that stopped in an earlier life ends: it is durable.
pub(super) fn stopped_before(group: &Group) -> Option<LogPosition> {
    group.is_stopped().then_some(LogPosition(0))
}
