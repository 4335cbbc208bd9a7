//! R6: a new generation when the trusted voters are too few for good.

use super::{Action, World};
use crate::promises::check_recovery;
use crate::rules::Rule;
use crate::state::{quorum, Answer, Kind, Standing, State, NODES, NONE};

pub fn actions(world: &World, state: &State, actions: &mut Vec<Action>) {
    let group0 = &state.group0;
    for id in state.ids() {
        let node = &state.nodes[id];
        let forgotten = group0.forgotten & 1 << id != 0;
        let older = node.generation < group0.generation;
        if node.on && older && !forgotten && may_rebuild(state) {
            actions.push(Action::Rebuild { node: id as u8 });
        }
        let asked = group0.collecting && group0.answers[id].is_none();
        if node.on && asked && !forgotten && (!older || !world.keeps(Rule::R6Generation)) {
            actions.push(Action::Collect { node: id as u8 });
        }
    }
    if may_order(world, state) {
        actions.push(Action::OrderRecovery);
    }
    if group0.collecting && enough(world, state) {
        for winner in winners(world, state) {
            actions.push(Action::Recover { winner });
        }
    }
}

/// A voter of the present generation that is neither retired nor declared gone.
fn trusted(state: &State, id: usize) -> bool {
    let node = &state.nodes[id];
    let voter = node.standing != Standing::Learner && node.generation == state.group0.generation;
    voter && state.group0.forgotten & 1 << id == 0
}

fn rebuilt(state: &State) -> usize {
    state
        .ids()
        .filter(|n| state.nodes[*n].generation == state.group0.generation)
        .count()
}

fn may_order(world: &World, state: &State) -> bool {
    let group0 = &state.group0;
    let waits = rebuilt(state) < state.majority() && world.keeps(Rule::R6Second);
    let few = if world.keeps(Rule::R6Trigger) {
        !state.ids().any(|n| trusted(state, n) && may_lead(state, n))
    } else {
        state.ids().filter(|n| trusted(state, *n)).count() < state.majority()
    };
    !group0.collecting && group0.generation < world.scope.generations && few && !waits
}

/// Whether this node could be elected by trusted voters as things stand, under the
/// membership that is in force on it. Counting the voters that group 0 knows is not
/// enough: the node with the longest log may not know yet that a new voter counts.
fn may_lead(state: &State, id: usize) -> bool {
    let (node, conf) = (&state.nodes[id], state.conf(id));
    let votes = |n: &usize| {
        let voter = &state.nodes[*n];
        conf[*n] == Some(voter.join) && trusted(state, *n) && voter.log.last() <= node.log.last()
    };
    conf[id] == Some(node.join) && state.ids().filter(votes).count() >= quorum(&conf)
}

fn may_rebuild(state: &State) -> bool {
    let winner = &state.nodes[usize::from(state.group0.winner)];
    winner.on && winner.generation == state.group0.generation
}

/// Every trusted voter's answer, and enough in all.
fn enough(world: &World, state: &State) -> bool {
    let answers = &state.group0.answers;
    let missing = state
        .ids()
        .any(|n| trusted(state, n) && answers[n].is_none());
    let counted = answers.iter().flatten().filter(|a| a.counts).count();
    counted >= needed(world, state) && (!missing || !world.keeps(Rule::R6AllTrusted))
}

/// How many answers it takes: E - majority + 1.
fn needed(world: &World, state: &State) -> usize {
    let mut needed = usize::from(state.count) - state.majority() + 1;
    if !world.keeps(Rule::R6FullCount) {
        let best = state
            .ids()
            .max_by_key(|n| state.nodes[*n].conf_next)
            .unwrap_or(0);
        let voters = state.conf(best);
        needed = voters.iter().flatten().count() - quorum(&voters) + 1;
    }
    if !world.keeps(Rule::R6Count) {
        needed -= 1;
    }
    needed.max(1)
}

/// Whether too few replicas of the generation kept all they reported durable.
pub fn lacks_copies(world: &World, state: &State) -> bool {
    let generation = state.group0.generation;
    let keeps = |n: &usize| state.nodes[*n].kept && state.nodes[*n].generation == generation;
    state.ids().filter(keeps).count() < needed(world, state)
}

/// The nodes with the longest history among the answers that count.
fn winners(world: &World, state: &State) -> Vec<u8> {
    let length = |answer: Answer| {
        if world.keeps(Rule::R6Longest) {
            answer.last
        } else {
            (0, answer.last.1)
        }
    };
    let answers = &state.group0.answers;
    let longest = answers
        .iter()
        .flatten()
        .filter(|a| a.counts)
        .map(|a| length(*a))
        .max();
    let wins =
        |n: &usize| answers[*n].filter(|a| a.counts).map(length) == longest && longest.is_some();
    state.ids().filter(wins).map(|n| n as u8).collect()
}

pub fn order(state: &mut State) {
    state.group0.collecting = true;
}

/// Stops the generation here, syncs, answers. All of it is durable first.
pub fn collect(world: &World, state: &mut State, id: usize) {
    let node = &mut state.nodes[id];
    if world.keeps(Rule::R6Fence) {
        node.step_down();
        node.fenced = true;
    }
    if world.keeps(Rule::R6Sync) {
        node.written_next = node.log.len();
        node.sync();
    }
    let counts = node.kept || !world.keeps(Rule::R6Kept);
    state.group0.answers[id] = Some(Answer {
        last: node.log.last(),
        counts,
    });
}

pub fn recover(world: &World, state: &mut State, winner: usize) {
    let first_lost = state.group0.answers[winner].map_or(0, |a| a.last.1);
    check_recovery(state, winner, first_lost);
    let term = state.ids().map(|n| state.nodes[n].term).max().unwrap_or(0);
    let group0 = &mut state.group0;
    group0.generation += 1;
    group0.collecting = false;
    group0.answers = [None; NODES];
    group0.winner = winner as u8;
    group0.base = state.nodes[winner].log;
    group0.base_term = term;
    group0.base_next[usize::from(group0.generation)] = group0.base.len();
    start(world, state, winner);
}

/// The replica as the new generation starts with it: the winner's log, durable.
fn start(world: &World, state: &mut State, id: usize) {
    let group0 = &state.group0;
    let node = &mut state.nodes[id];
    let on = node.on;
    *node = crate::state::Node::new();
    node.on = on;
    let weakened = group0.base.last_of(|e| e.kind() == Kind::Weaken).is_some();
    node.weak = world.scope.weak || weakened;
    node.generation = group0.generation;
    node.log = group0.base;
    let len = node.log.len();
    node.written_next = len;
    node.sync();
    (node.commit_next, node.conf_next) = (len, len);
    node.term = group0.base_term;
    node.vote = NONE;
    (node.durable_term, node.durable_vote) = (node.term, NONE);
}

pub fn rebuild(world: &World, state: &mut State, id: usize) {
    start(world, state, id);
}
