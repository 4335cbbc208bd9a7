//! Runs a scope and tells what came of it.

use crate::model::Spec;
use crate::promises::Promise;
use crate::rules::Dropped;
use crate::scope::Scope;
use crate::state::State;
use crate::step::{Action, World};
use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// A broken promise and the shortest way to it.
pub struct Counterexample {
    pub promise: &'static str,
    pub steps: Vec<Action>,
    pub last: State,
}

/// What to look for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub dropped: Dropped,
    /// The only promise to look at, or all.
    pub only: Option<Promise>,
    /// Heal one state in so many; 0 for none.
    pub heal_every: u64,
}

/// What a run found.
pub struct Outcome {
    /// Different states visited, renamings of nodes counted once.
    pub states: usize,
    /// States generated, the same one again counted again.
    pub generated: usize,
    /// The length of the longest path, in steps.
    pub depth: usize,
    pub counterexample: Option<Counterexample>,
    /// What should have been possible and was not reached.
    pub unreached: Vec<&'static str>,
}

/// Explores the scope breadth first, until a promise is broken or nothing is left.
pub fn explore(scope: Scope, options: Options) -> Outcome {
    let world = World {
        scope,
        dropped: options.dropped,
    };
    let spec = Spec::new(world, options.only, options.heal_every);
    let checker = spec
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .threads(1)
        .spawn_bfs()
        .join();
    let properties = checker.model().properties();
    let mut counterexample: Option<Counterexample> = None;
    let mut unreached = Vec::new();
    for property in properties {
        let path = checker.discovery(property.name);
        match (property.expectation, path) {
            (Expectation::Always, Some(path)) => {
                let last = *path.last_state();
                let steps = path.into_actions();
                if counterexample
                    .as_ref()
                    .is_none_or(|known| steps.len() < known.steps.len())
                {
                    counterexample = Some(Counterexample {
                        promise: property.name,
                        steps,
                        last,
                    });
                }
            }
            (Expectation::Sometimes, None) => unreached.push(property.name),
            _ => {}
        }
    }
    Outcome {
        states: checker.unique_state_count(),
        generated: checker.state_count(),
        depth: checker.max_depth().saturating_sub(1),
        counterexample,
        unreached,
    }
}
