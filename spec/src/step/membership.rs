//! Retirement as a leader learns it, and the single steps of a membership change.
//!
//! Adding a learner is no step of its own: a learner never counts.

use super::replication::append_written;
use super::{Action, World};
use crate::gates;
use crate::rules::Rule;
use crate::state::{quorum, Entry, Kind, Role, Standing, State};

pub fn actions(world: &World, state: &State, actions: &mut Vec<Action>) {
    for id in state.ids() {
        let node = &state.nodes[id];
        if node.role != Role::Leader || !node.acts() {
            continue;
        }
        let leader = id as u8;
        let conf = state.conf(id);
        let may = node.log.len() < world.scope.entries && may_change(world, state, id);
        for other in state.ids() {
            let (name, bit) = (other as u8, 1 << other);
            let retired = conf[other].is_some_and(|join| join < state.nodes[other].join);
            if other != id
                && retired
                && node.known_retired & bit == 0
                && same_generation(state, id, other)
            {
                actions.push(Action::LearnRetired { leader, node: name });
            }
            let gone = node.known_retired & bit != 0 || state.group0.forgotten & bit != 0;
            if may && other != id && conf[other].is_some() && gone {
                actions.push(Action::Remove { leader, node: name });
            }
            let free = conf[other].is_none() || retired && !world.keeps(Rule::R3Learner);
            if may && free && may_promote(world, state, id, other) {
                actions.push(Action::Promote { leader, node: name });
            }
        }
    }
}

fn same_generation(state: &State, a: usize, b: usize) -> bool {
    state.nodes[a].generation == state.nodes[b].generation
}

/// R3: after an entry of the own term is applied, and when the last change is
/// durable on a majority.
fn may_change(world: &World, state: &State, id: usize) -> bool {
    let node = &state.nodes[id];
    let own = node
        .commit_next
        .checked_sub(1)
        .and_then(|last| node.log.get(last));
    let own_term = own.is_some_and(|e| e.term() == node.term) || !world.keeps(Rule::R3OwnTerm);
    let last = node.log.last_of(Entry::changes_conf);
    let settled = last.is_none_or(|index| {
        let durable = gates::count(state, id, |n| gates::durable_next(state, id, n) > index);
        node.conf_next > index && durable >= quorum(&state.conf(id))
    });
    own_term && (settled || !world.keeps(Rule::R3OneAtATime))
}

fn may_promote(world: &World, state: &State, id: usize, other: usize) -> bool {
    let (node, learner) = (&state.nodes[id], &state.nodes[other]);
    let caught_up = learner.log == node.log && learner.durable_next == learner.log.len();
    learner.acts()
        && state.group0.forgotten & 1 << other == 0
        && same_generation(state, id, other)
        && (caught_up || !world.keeps(Rule::R3CatchUp) || !world.keeps(Rule::R3Learner))
}

/// R4: `matched` falls to the last durable report, and the leader recounts.
pub fn learn_retired(world: &World, state: &mut State, leader: usize, node: usize) {
    let leads = &mut state.nodes[leader];
    leads.known_retired |= 1 << node;
    if world.keeps(Rule::R4Lower) {
        leads.matched[node] = leads.matched[node].min(leads.reported[node]);
    }
    // Nothing is known of what is left of a log that lost durable bytes.
    if !state.nodes[node].kept && world.keeps(Rule::R4Harmed) {
        let leads = &mut state.nodes[leader];
        (leads.matched[node], leads.reported[node]) = (0, 0);
    }
    gates::settle(world, state, leader);
}

pub fn remove(world: &World, state: &mut State, leader: usize, node: usize) {
    let entry = Entry::new(
        Kind::Remove,
        state.nodes[leader].term,
        leader as u8,
        node as u8,
        0,
    );
    append_written(world, state, leader, entry);
}

/// Group 0 knows a replica as a voter before its promotion is proposed.
pub fn promote(world: &World, state: &mut State, leader: usize, node: usize) {
    if world.keeps(Rule::R6PromotedKnown) {
        state.nodes[node].standing = Standing::Voter;
    }
    let join = state.nodes[node].join;
    let entry = Entry::new(
        Kind::Promote,
        state.nodes[leader].term,
        leader as u8,
        node as u8,
        join,
    );
    append_written(world, state, leader, entry);
}
