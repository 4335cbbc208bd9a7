//! Append, write, answer, sync.
//!
//! An acknowledgement arrives with the write it is about: a leader that hears of it
//! later can only confirm less, and the copy may be gone all the same by the time
//! its own write completes.

use super::{Action, World};
use crate::gates;
use crate::rules::Rule;
use crate::state::{Entry, Kind, Role, State, NONE};

pub fn actions(world: &World, state: &State, actions: &mut Vec<Action>) {
    for (id, node) in state.nodes[..usize::from(state.count)].iter().enumerate() {
        if !node.on {
            continue;
        }
        let name = id as u8;
        if node.role == Role::Leader && node.acts() {
            leads(world, state, id, actions);
        }
        if node.written_next < node.log.len() {
            actions.push(Action::Write { node: name });
        }
        let forgets = node.durable_term != node.term || node.durable_vote != node.vote;
        if node.durable_next < node.written_next || forgets {
            actions.push(Action::Sync { node: name });
        }
    }
}

fn leads(world: &World, state: &State, id: usize, actions: &mut Vec<Action>) {
    let node = &state.nodes[id];
    let leader = id as u8;
    if node.log.len() < world.scope.entries {
        if state.left.records > 0 {
            actions.push(Action::Append { leader });
        }
        if state.left.weakens > 0 && node.log.last_of(|e| e.kind() == Kind::Weaken).is_none() {
            actions.push(Action::Weaken { leader });
        }
    }
    for follower in state.ids() {
        if follower != id
            && hears(world, state, id, follower)
            && has_news(world, state, id, follower)
        {
            actions.push(Action::Replicate {
                leader,
                follower: follower as u8,
            });
        }
    }
}

/// Whether a frame of the leader is taken: same generation, not an older term.
fn hears(world: &World, state: &State, leader: usize, follower: usize) -> bool {
    let (from, to) = (&state.nodes[leader], &state.nodes[follower]);
    let generation = from.generation == to.generation || !world.keeps(Rule::R6Generation);
    to.acts() && generation && to.term <= from.term && to.role != Role::Leader
        || to.acts() && generation && to.term < from.term
}

/// Whether a frame would change anything.
fn has_news(world: &World, state: &State, leader: usize, follower: usize) -> bool {
    let (from, to) = (&state.nodes[leader], &state.nodes[follower]);
    let counted = state.conf(leader)[follower] == Some(to.join);
    to.term < from.term
        || to.log != from.log
        || acting(from.commit_next, &from.log) > to.commit_next
        || counted
            && (from.matched[follower] != world.answer_next(to)
                || from.reported[follower] != to.durable_next)
}

/// A commit index, as far as a follower remembers it: up to the last entry that acts.
fn acting(commit_next: u8, log: &crate::state::Log) -> u8 {
    let acts = |index: &u8| {
        log.get(*index)
            .is_some_and(|e| e.changes_conf() || e.kind() == Kind::Weaken)
    };
    (0..commit_next)
        .rev()
        .find(acts)
        .map_or(0, |index| index + 1)
}

pub fn append(world: &World, state: &mut State, leader: usize) {
    state.left.records -= 1;
    let node = &mut state.nodes[leader];
    node.log
        .push(Entry::new(Kind::Record, node.term, leader as u8, 0, 0));
    if !world.scope.slow_writes {
        node.written_next = node.log.len();
    }
    gates::settle(world, state, leader);
}

/// Appends an entry that is not a record; its write completes at once.
pub fn append_written(world: &World, state: &mut State, leader: usize, entry: Entry) {
    let node = &mut state.nodes[leader];
    node.log.push(entry);
    node.written_next = node.log.len();
    gates::settle(world, state, leader);
}

pub fn weaken(world: &World, state: &mut State, leader: usize) {
    state.left.weakens -= 1;
    let entry = Entry::new(Kind::Weaken, state.nodes[leader].term, leader as u8, 0, 0);
    append_written(world, state, leader, entry);
}

pub fn write(world: &World, state: &mut State, id: usize) {
    let node = &mut state.nodes[id];
    node.written_next = node.log.len();
    if node.role == Role::Leader {
        gates::settle(world, state, id);
    }
}

pub fn replicate(world: &World, state: &mut State, leader: usize, follower: usize) {
    let from = state.nodes[leader];
    let to = &mut state.nodes[follower];
    if to.term < from.term {
        to.step_down();
        to.term = from.term;
        to.vote = NONE;
        keep_promise(world, to);
    }
    to.role = Role::Follower;
    to.votes = 0;
    let same = to.log.agrees(&from.log);
    if same < to.log.len() && same < from.log.len() {
        to.cut(same);
    }
    // A longer log that agrees is kept: the leader's frame says nothing about it.
    let until = if world.scope.single_entries {
        from.log.len().min(same + 1)
    } else {
        from.log.len()
    };
    for index in to.log.len()..until {
        if let Some(entry) = from.log.get(index) {
            to.log.push(entry);
        }
    }
    to.written_next = to.log.len();
    let known = to.log.agrees(&from.log).min(from.commit_next);
    to.commit_next = to.commit_next.max(acting(known, &to.log));
    gates::act(world, state, follower);
    acknowledge(world, state, leader, follower);
}

/// What the follower has, as the leader hears it; only a voter's counts.
fn acknowledge(world: &World, state: &mut State, leader: usize, follower: usize) {
    let (from, to) = (&state.nodes[leader], &state.nodes[follower]);
    if state.conf(leader)[follower] != Some(to.join) {
        return;
    }
    let agreed = to.log.agrees(&from.log);
    let matched = agreed.min(world.answer_next(to));
    let reported = if world.keeps(Rule::DurableReport) {
        agreed.min(to.durable_next)
    } else {
        to.durable_next
    };
    let reused = to.reused;
    let leads = &mut state.nodes[leader];
    leads.matched[follower] = leads.matched[follower].max(matched);
    leads.reported[follower] = leads.reported[follower].max(reported);
    if reused {
        crate::promises::break_promise(state, crate::promises::Promise::RetiredNeverCounts);
    }
    gates::settle(world, state, leader);
}

/// Term and vote are durable before anything that rests on them leaves (R7).
pub fn keep_promise(world: &World, node: &mut crate::state::Node) {
    if world.keeps(Rule::R7Vote) {
        node.durable_term = node.term;
        node.durable_vote = node.vote;
    }
}

pub fn sync(world: &World, state: &mut State, id: usize) {
    let node = &mut state.nodes[id];
    node.sync();
    node.durable_term = node.term;
    node.durable_vote = node.vote;
    if node.role == Role::Leader {
        gates::settle(world, state, id);
        if world.keeps(Rule::DurableReport) {
            return;
        }
    }
    gates::act(world, state, id);
    report(world, state, id);
}

/// A follower's progress, to the leader of its term if there is one that hears it.
fn report(world: &World, state: &mut State, follower: usize) {
    let to = state.nodes[follower];
    if !to.acts() {
        return;
    }
    let bound = world.keeps(Rule::DurableReport);
    for leader in state.ids() {
        let from = &state.nodes[leader];
        let reaches = from.generation == to.generation || !world.keeps(Rule::R6Generation);
        let leads = from.role == Role::Leader && from.acts() && reaches;
        if leader == follower || !leads || bound && from.term != to.term {
            continue;
        }
        // Unbound, the report of one term reaches the leader of another.
        if from.term != to.term {
            let leads = &mut state.nodes[leader];
            leads.reported[follower] = leads.reported[follower].max(to.durable_next);
            gates::settle(world, state, leader);
        } else {
            acknowledge(world, state, leader, follower);
        }
    }
}
