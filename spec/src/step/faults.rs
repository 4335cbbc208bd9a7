//! Power cuts, process crashes, opens, and harm to durable bytes.
//!
//! A process crash and its open on the same boot are one step: in between the node
//! is silent, and silence is always possible.

use super::{Action, World};
use crate::rules::Rule;
use crate::state::{Harm, Kind, Role, Standing, State};

pub fn actions(world: &World, state: &State, actions: &mut Vec<Action>) {
    for id in state.ids() {
        let node = &state.nodes[id];
        let name = id as u8;
        let (may_join, left) = (node.join < world.scope.joins, &state.left);
        if !node.on {
            if !retires(world, state, id) || may_join {
                actions.push(Action::Open { node: name });
            }
            continue;
        }
        if left.power_cuts > 0 && (may_join || !node.weak) {
            actions.push(Action::PowerCut { node: name });
        }
        if left.crashes > 0
            && (node.role != Role::Follower || node.durable_next < node.log.len() || node.fenced)
        {
            actions.push(Action::ProcessCrash { node: name });
        }
        let answered = state.group0.answers[id].is_some();
        if may_join && !answered {
            harms(state, id, actions);
        }
        if left.forgets > 0 && world.scope.recovery && state.group0.forgotten & 1 << id == 0 {
            actions.push(Action::Forget { node: name });
        }
    }
}

fn harms(state: &State, id: usize, actions: &mut Vec<Action>) {
    let node = id as u8;
    let durable = state.nodes[id].durable_next;
    let mut cuts = vec![0];
    if durable > 1 {
        cuts.push(durable - 1);
    }
    for keeps in cuts {
        if state.left.rollbacks > 0 {
            actions.push(Action::RollBack { node, keeps });
        }
        if state.left.damages > 0 {
            actions.push(Action::Damage { node, keeps });
        }
    }
}

pub fn power_cut(world: &World, state: &mut State, id: usize) {
    state.left.power_cuts -= 1;
    go_dark(world, state, id);
}

fn go_dark(world: &World, state: &mut State, id: usize) {
    lose_memory(state, id);
    let node = &mut state.nodes[id];
    node.on = false;
    node.log = node.synced;
    node.cut(node.log.len());
    (node.written_next, node.durable_next) = (node.log.len(), node.log.len());
    node.term = node.durable_term;
    node.vote = node.durable_vote;
    if !world.keeps(Rule::R7Fence) {
        node.fenced = false;
    }
    for seen in &mut state.observer.confirmed {
        seen.holders &= !(1 << id);
    }
    state.nodes[id].weak = boots_weak(world, state, id, false);
}

/// What only a running process holds.
fn lose_memory(state: &mut State, id: usize) {
    let node = &mut state.nodes[id];
    node.step_down();
}

/// At boot the group is weakened if the entry is in the log at all.
fn boots_weak(world: &World, state: &State, id: usize, applied: bool) -> bool {
    let node = &state.nodes[id];
    let entry = node.log.last_of(|e| e.kind() == Kind::Weaken);
    world.scope.weak || entry.is_some() && (world.keeps(Rule::WeakenBoot) || applied)
}

pub fn process_crash(world: &World, state: &mut State, id: usize) {
    state.left.crashes -= 1;
    lose_memory(state, id);
    let node = &mut state.nodes[id];
    node.cut(node.written_next);
    // The surviving tail is synced before anything is told of it.
    node.sync();
    if !world.keeps(Rule::R7Fence) {
        node.fenced = false;
    }
    node.commit_next = node.conf_next;
    state.nodes[id].weak = boots_weak(world, state, id, false);
}

/// Whether opening this log retires its peer id.
fn retires(world: &World, state: &State, id: usize) -> bool {
    let node = &state.nodes[id];
    match node.harm {
        Harm::RolledBack if world.keeps(Rule::R1OpenCounter) => true,
        Harm::Damaged if world.keeps(Rule::Quarantine) => true,
        Harm::None => node.weak && world.keeps(Rule::R2Retire),
        _ => false,
    }
}

/// R1 and R2: what this log is now, announced to group 0.
pub fn open(world: &World, state: &mut State, id: usize) {
    let retired = retires(world, state, id);
    let node = &mut state.nodes[id];
    node.on = true;
    node.commit_next = node.conf_next;
    let harm = std::mem::take(&mut node.harm);
    if !retired {
        return;
    }
    if harm != Harm::None {
        node.kept = false;
    }
    if world.keeps(Rule::R1JoinNumber) {
        node.join += 1;
        node.standing = Standing::Learner;
    } else {
        node.reused = true;
    }
}

pub fn roll_back(state: &mut State, id: usize, keeps: u8) {
    state.left.rollbacks -= 1;
    harm(state, id, keeps, Harm::RolledBack);
}

pub fn damage(state: &mut State, id: usize, keeps: u8) {
    state.left.damages -= 1;
    harm(state, id, keeps, Harm::Damaged);
}

/// The node goes down and comes back with less than was durable: a shorter log, and
/// term and vote as they were before the last vote.
fn harm(state: &mut State, id: usize, keeps: u8, harm: Harm) {
    lose_memory(state, id);
    let node = &mut state.nodes[id];
    node.on = false;
    node.harm = harm;
    node.cut(keeps);
    node.sync();
    node.term = node.log.last().0.max(1).min(node.durable_term);
    node.vote = crate::state::NONE;
    (node.durable_term, node.durable_vote) = (node.term, node.vote);
    node.fenced = false;
    for seen in &mut state.observer.confirmed {
        seen.holders &= !(1 << id);
    }
}

/// The operator's word: it need not answer a collect order, and its copies do not
/// count. It may well be alive somewhere.
pub fn forget(state: &mut State, id: usize) {
    state.left.forgets -= 1;
    state.group0.forgotten |= 1 << id;
    for seen in &mut state.observer.confirmed {
        seen.holders &= !(1 << id);
    }
}
