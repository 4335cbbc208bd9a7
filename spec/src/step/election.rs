//! Elections. Pre-vote and check-quorum serve availability, not safety: left out.

use super::replication::{append_written, keep_promise};
use super::{Action, World};
use crate::promises::{break_promise, check_leader, Promise};
use crate::rules::Rule;
use crate::state::{quorum, Entry, Kind, Role, State, NONE};

pub fn actions(world: &World, state: &State, actions: &mut Vec<Action>) {
    for id in state.ids() {
        let node = &state.nodes[id];
        if !node.acts() {
            continue;
        }
        if world.scope.single_votes && node.role == Role::Candidate {
            for voter in state
                .ids()
                .filter(|v| grants(world, state, id, *v, node.term))
            {
                actions.push(Action::Vote {
                    candidate: id as u8,
                    voter: voter as u8,
                });
            }
        }
        let may = state.conf(id)[id] == Some(node.join);
        let room = node.term < world.scope.terms && node.log.len() < world.scope.entries;
        if !may || !room {
            continue;
        }
        if world.scope.single_votes {
            actions.push(Action::Campaign { node: id as u8 });
        } else {
            electors(world, state, id, actions);
        }
    }
}

/// The smallest sets of voters that elect a node, each in the first term in which
/// all of them would: those before it the candidate has tried in vain.
fn electors(world: &World, state: &State, id: usize, actions: &mut Vec<Action>) {
    let needed = quorum(&state.conf(id)) - 1;
    for voters in 0u8..1 << state.count {
        if voters.count_ones() as usize != needed {
            continue;
        }
        let willing = |term: &u8| {
            let mut members = state.ids().filter(|v| voters & 1 << v != 0);
            members.all(|v| grants(world, state, id, v, *term))
        };
        let candidate = id as u8;
        if let Some(term) = (state.nodes[id].term + 1..=world.scope.terms).find(willing) {
            actions.push(Action::Elect {
                candidate,
                term,
                voters,
            });
        }
    }
}

/// Whether a node would vote for a candidate in that term, and count.
fn grants(world: &World, state: &State, candidate: usize, voter: usize, term: u8) -> bool {
    let (asks, node) = (&state.nodes[candidate], &state.nodes[voter]);
    let counts = state.conf(candidate)[voter] == Some(node.join) && asks.votes & 1 << voter == 0;
    let free = node.term < term || node.term == term && node.vote == NONE;
    let current = asks.log.last() >= node.log.last();
    voter != candidate
        && node.acts()
        && (node.generation == asks.generation || !world.keeps(Rule::R6Generation))
        && counts
        && free
        && current
}

/// Stands for election in its next term.
pub fn campaign(world: &World, state: &mut State, id: usize) {
    let term = state.nodes[id].term + 1;
    stand(world, state, id, term);
}

fn stand(world: &World, state: &mut State, id: usize, term: u8) {
    let node = &mut state.nodes[id];
    node.step_down();
    node.role = Role::Candidate;
    node.term = term;
    node.vote = id as u8;
    node.votes = 1 << id;
    let reused = node.reused;
    keep_promise(world, node);
    if reused {
        break_promise(state, Promise::RetiredNeverCounts);
    }
    win(world, state, id);
}

pub fn vote(world: &World, state: &mut State, candidate: usize, voter: usize) {
    let term = state.nodes[candidate].term;
    let node = &mut state.nodes[voter];
    node.step_down();
    node.term = term;
    node.vote = candidate as u8;
    let reused = node.reused;
    keep_promise(world, node);
    if reused {
        break_promise(state, Promise::RetiredNeverCounts);
    }
    state.nodes[candidate].votes |= 1 << voter;
    win(world, state, candidate);
}

pub fn elect(world: &World, state: &mut State, candidate: usize, term: u8, voters: u8) {
    stand(world, state, candidate, term);
    for voter in state.ids().filter(|v| voters & 1 << v != 0) {
        vote(world, state, candidate, voter);
    }
}

/// With a quorum of votes: leads, and appends the empty entry of its term.
fn win(world: &World, state: &mut State, id: usize) {
    let votes = state.nodes[id].votes.count_ones() as usize;
    if state.nodes[id].role != Role::Candidate || votes < quorum(&state.conf(id)) {
        return;
    }
    check_leader(state, id);
    let node = &mut state.nodes[id];
    node.role = Role::Leader;
    node.votes = 0;
    let barrier = Entry::new(Kind::Barrier, node.term, id as u8, 0, 0);
    append_written(world, state, id, barrier);
}
