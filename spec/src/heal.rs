//! P5, the strong form: from a state, with everybody back and no more faults, one
//! fair order of steps leads to a durable confirm of a new record, unattended.
//!
//! The run goes beyond the bounds of the scope (terms, entries, joins), within those
//! of the encoding. It is one order, not all: it shows that a way out exists.

use crate::promises::is_confirmed_durable;
use crate::state::{Budget, State};
use crate::step::{recovery, Action, World};

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Healed {
    /// A new record was confirmed at durable.
    Confirms,
    /// Too few replicas kept what they had: the operator has to decide (R6).
    Operator,
    /// Nothing moved although nothing is missing.
    Stuck(&'static str),
}

/// Steps that never hurt, in the order in which they are tried.
fn helps(action: &Action) -> bool {
    use Action::*;
    let membership = matches!(action, LearnRetired { .. } | Remove { .. } | Promote { .. });
    membership
        || matches!(
            action,
            Write { .. } | Replicate { .. } | Sync { .. } | Open { .. } | Rebuild { .. }
        )
}

/// Runs the fair order from this state.
pub fn heal(world: &World, state: &State) -> Healed {
    let mut world = *world;
    let scope = &mut world.scope;
    (scope.terms, scope.entries, scope.joins, scope.generations) = (7, 12, 3, 3);
    (scope.membership, scope.recovery, scope.single_votes) = (true, true, false);
    let mut state = *state;
    state.left = Budget {
        records: 1,
        ..Budget::default()
    };
    while let Some(open) = first(&world, &state, |a| matches!(a, Action::Open { .. })) {
        state = world.after(&state, open);
    }
    if let Some(ended) = recover(&world, &mut state) {
        return ended;
    }
    if !lead(&world, &mut state) {
        return Healed::Stuck("no leader");
    }
    settle(&world, &mut state);
    let Some(leader) = state.newest_leader() else {
        return Healed::Stuck("the leader is gone");
    };
    let index = state.nodes[leader].log.len();
    if index >= world.scope.entries {
        return Healed::Stuck("the log of the model is full");
    }
    state = world.after(
        &state,
        Action::Append {
            leader: leader as u8,
        },
    );
    settle(&world, &mut state);
    if is_confirmed_durable(&state, index) {
        Healed::Confirms
    } else {
        Healed::Stuck("no confirm")
    }
}

fn first(world: &World, state: &State, wanted: impl Fn(&Action) -> bool) -> Option<Action> {
    let mut actions = Vec::new();
    world.actions(state, &mut actions);
    actions.into_iter().find(wanted)
}

/// All that helps, until nothing is left to do.
fn settle(world: &World, state: &mut State) {
    for _ in 0..200 {
        let Some(action) = first(world, state, helps) else {
            return;
        };
        *state = world.after(state, action);
    }
}

/// Takes a recovery to its end, if one is due or under way.
fn recover(world: &World, state: &mut State) -> Option<Healed> {
    use Action::{Collect, OrderRecovery, Rebuild, Recover};
    for _ in 0..40 {
        let step = first(world, state, |a| {
            matches!(a, Collect { .. } | OrderRecovery | Rebuild { .. })
        });
        let step = step.or_else(|| first(world, state, |a| matches!(a, Recover { .. })));
        match step {
            Some(step) => *state = world.after(state, step),
            None if state.group0.collecting && recovery::lacks_copies(world, state) => {
                return Some(Healed::Operator)
            }
            None if state.group0.collecting => {
                return Some(Healed::Stuck("a recovery does not end"))
            }
            None => return None,
        }
    }
    Some(Healed::Stuck("recoveries without end"))
}

/// Elects somebody in a term that nobody has seen.
fn lead(world: &World, state: &mut State) -> bool {
    let seen = state.ids().map(|n| state.nodes[n].term).max().unwrap_or(0);
    let newest = |a: &Action| matches!(a, Action::Elect { term, .. } if *term > seen);
    // A candidate far behind has to learn the term first, as it would by standing.
    for id in state.ids() {
        let node = &mut state.nodes[id];
        if node.acts() && node.generation == state.group0.generation && node.term < seen {
            node.step_down();
            (node.term, node.vote) = (seen, crate::state::NONE);
        }
    }
    match first(world, state, newest) {
        Some(elect) => {
            *state = world.after(state, elect);
            true
        }
        None => false,
    }
}
