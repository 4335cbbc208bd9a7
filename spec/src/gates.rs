//! When a leader commits, applies, passes its barrier and confirms.
//!
//! A confirm happens as soon as it may: later it could only meet fewer losses.

use crate::promises::{self, Boundary};
use crate::rules::Rule;
use crate::state::{quorum, Entry, Kind, Role, State, NODES};
use crate::step::World;

/// How many voters, under the leader's membership, satisfy this.
pub fn count(state: &State, leader: usize, holds: impl Fn(usize) -> bool) -> usize {
    let conf = state.conf(leader);
    state
        .ids()
        .filter(|n| conf[*n].is_some() && holds(*n))
        .count()
}

/// What a voter has acknowledged, as the leader knows it.
pub fn answered_next(world: &World, state: &State, leader: usize, node: usize) -> u8 {
    let leads = &state.nodes[leader];
    if node == leader {
        world.answer_next(leads)
    } else {
        leads.matched[node]
    }
}

/// What a voter has durable, as the leader knows it. In a group that answers at
/// durable an acknowledgement says so; in the other, a durable report does.
pub fn durable_next(state: &State, leader: usize, node: usize) -> u8 {
    let leads = &state.nodes[leader];
    if node == leader {
        leads.durable_next
    } else if leads.weak {
        leads.reported[node]
    } else {
        leads.matched[node]
    }
}

/// What a voter has written, as the leader knows it.
fn written_next(state: &State, leader: usize, node: usize) -> u8 {
    let leads = &state.nodes[leader];
    if node == leader {
        leads.written_next
    } else {
        leads.matched[node]
    }
}

/// A leader takes stock after anything it rests on has changed.
pub fn settle(world: &World, state: &mut State, leader: usize) {
    let node = &state.nodes[leader];
    if node.role != Role::Leader || !node.acts() {
        return;
    }
    loop {
        commit(world, state, leader);
        if !act(world, state, leader) {
            break;
        }
    }
    release(world, state, leader);
    confirm(world, state, leader);
}

/// Raft: an entry of the own term that a quorum has acknowledged.
fn commit(world: &World, state: &mut State, leader: usize) {
    let needed = quorum(&state.conf(leader));
    let node = &state.nodes[leader];
    let reached = (node.commit_next..node.log.len()).rev().find(|index| {
        let own = node.log.get(*index).is_some_and(|e| e.term() == node.term);
        own && count(state, leader, |n| {
            answered_next(world, state, leader, n) > *index
        }) >= needed
    });
    if let Some(index) = reached {
        state.nodes[leader].commit_next = index + 1;
    }
}

/// Brings into force what is applied here: membership entries (R5: once durable
/// here) and the weakening entry (the same). Returns whether membership changed.
pub fn act(world: &World, state: &mut State, id: usize) -> bool {
    let before = state.conf(id);
    let node = &mut state.nodes[id];
    let durable = node.commit_next.min(node.durable_next);
    let until = |rule| {
        if world.keeps(rule) {
            durable
        } else {
            node.commit_next
        }
    };
    let (conf_until, weak_until) = (until(Rule::R5ConfDurable), until(Rule::WeakenDurable));
    let last = (0..conf_until)
        .rev()
        .find(|i| node.log.get(*i).is_some_and(Entry::changes_conf));
    node.conf_next = node.conf_next.max(last.map_or(0, |index| index + 1));
    let weakens = |index| {
        node.log
            .get(index)
            .is_some_and(|e| e.kind() == Kind::Weaken)
    };
    node.weak |= (0..weak_until).any(weakens);
    let after = state.conf(id);
    if before == after {
        return false;
    }
    for other in 0..NODES {
        // A new peer id starts with nothing acknowledged.
        if before[other] != after[other] {
            let node = &mut state.nodes[id];
            (node.matched[other], node.reported[other]) = (0, 0);
            node.known_retired &= !(1 << other);
            if after[other] == Some(state.nodes[other].join) && state.nodes[id].role == Role::Leader
            {
                state.nodes[other].kept = true;
            }
        }
    }
    true
}

/// The barrier of a new leader of a group that answers at written.
fn release(world: &World, state: &mut State, leader: usize) {
    let node = &state.nodes[leader];
    if node.released || !node.weak {
        return;
    }
    let own = |e: Entry| e.kind() == Kind::Barrier && e.term() == node.term;
    let Some(index) = node.log.last_of(own) else {
        return;
    };
    let full = world.keeps(Rule::BarrierFull);
    let needed = if full {
        state.majority()
    } else {
        quorum(&state.conf(leader))
    };
    let durable = node.durable_next > index
        && count(state, leader, |n| durable_next(state, leader, n) > index) >= needed;
    let passed = node.commit_next > index && (durable || !world.keeps(Rule::BarrierDurable));
    if passed || !world.keeps(Rule::Barrier) {
        state.nodes[leader].released = true;
    }
}

fn confirm(world: &World, state: &mut State, leader: usize) {
    let node = state.nodes[leader];
    if node.weak && !node.released {
        return;
    }
    let weakened = node.log.last_of(|e| e.kind() == Kind::Weaken);
    for index in 0..node.commit_next {
        if node.log.get(index).is_none_or(|e| e.kind() != Kind::Record) {
            continue;
        }
        // A buffered queue exists only after the weakening entry.
        let buffered = node.weak && weakened.is_none_or(|at| index > at);
        let boundaries: &[Boundary] = if buffered {
            &[Boundary::Written, Boundary::Durable]
        } else {
            &[Boundary::Durable]
        };
        for boundary in boundaries {
            let frontier = |n| match boundary {
                Boundary::Written => written_next(state, leader, n),
                Boundary::Durable => durable_next(state, leader, n),
            };
            let owner = frontier(leader) > index || !world.keeps(Rule::GateOwner);
            let conf = state.conf(leader);
            let copies = state
                .ids()
                .filter(|n| conf[*n].is_some() && frontier(*n) > index);
            let copies = copies.fold(0u8, |set, n| set | 1 << n);
            if owner
                && copies.count_ones() as usize >= copies_needed(world, state, leader, *boundary)
            {
                promises::confirmed(world, state, leader, index, *boundary, copies);
            }
        }
    }
}

/// W. A majority is one of the full replica count; at durable, W is no less than that:
/// R6 rests on it.
pub fn copies_needed(world: &World, state: &State, leader: usize, boundary: Boundary) -> usize {
    let copies = if world.keeps(Rule::CopiesFull) {
        usize::from(world.scope.copies)
    } else {
        quorum(&state.conf(leader))
    };
    let least = boundary == Boundary::Durable && world.keeps(Rule::DurableMajority);
    if least && world.keeps(Rule::CopiesFull) {
        copies.max(state.majority())
    } else {
        copies
    }
}
