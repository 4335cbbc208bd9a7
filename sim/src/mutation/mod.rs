//! The mutation check: rules are removed, and the simulator must notice.
//!
//! A rule that can be removed without a violation is one of three things: not
//! needed, not reached by any run, or kept by another rule as well. The table
//! says which ([`CHECKS`]): a rule that another one covers is shown to be
//! missed once that one is gone too.
//!
//! Never: leaves a rule removed behind [`hunt`] and [`with_removed`].

mod table;

use std::panic::{self, AssertUnwindSafe};

pub use shards::mutation::Rule;
use shards::mutation::{hits, set_removed};

use crate::{cluster_sim, directed, engine_sim, log_run, rot_run};
pub use table::CHECKS;

/// Rules that are removed together, where to look, and what must come of it.
pub struct Check {
    pub removed: &'static [Rule],
    /// In this order, each up to its bound.
    pub hunts: &'static [Hunt],
    pub expected: Expected,
}

impl Check {
    /// Most runs that it takes.
    pub fn bound(&self) -> u64 {
        self.hunts.iter().map(Hunt::bound).sum()
    }
}

/// What a check must show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// A violation, within the hunts' bounds.
    Violation,
    /// None within them: the rule is kept by others too, as said.
    Covered(&'static str),
}

/// Runs of one kind, with seeds from 0 up to the bound.
#[derive(Debug, Clone, Copy)]
pub enum Hunt {
    /// [`log_run`].
    Log(u64),
    /// [`rot_run`].
    Rot(u64),
    /// [`engine_sim`] in one scenario, or in all in turn if it is [`ALL`].
    Engine(&'static str, u64),
    /// [`cluster_sim`] with so many nodes in one scenario, or in all in turn.
    Cluster(&'static str, usize, u64),
    /// One of [`directed`], or of [`cluster_sim::directed`].
    Directed(&'static str, directed::Scenario, u64),
}

/// All scenarios in turn.
pub const ALL: &str = "all";

/// A violation, and what it took.
#[derive(Debug, Clone)]
pub struct Found {
    /// Runs, the last one included.
    pub runs: u64,
    /// The kind of run and its seed.
    pub place: String,
    pub what: String,
    /// Scenario and seed, if it was a run of the engine simulator.
    pub engine: Option<(&'static str, u64)>,
}

/// How a hunt ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub found: Option<Found>,
    pub runs: u64,
    /// How often a removed rule was asked for.
    pub hits: u64,
}

impl Outcome {
    /// Whether it is as the check says.
    pub fn is(&self, expected: Expected) -> bool {
        self.found.is_some() == (expected == Expected::Violation)
    }
}

/// Runs the hunts with these rules removed until one finds a violation.
pub fn hunt(removed: &[Rule], hunts: &[Hunt]) -> Outcome {
    set_removed(removed);
    let mut runs = 0;
    let mut found = None;
    'hunts: for hunt in hunts {
        for seed in 0..hunt.bound() {
            runs += 1;
            if let Err(what) = hunt.run(seed) {
                let place = format!("{} {seed}", hunt.name(seed));
                let engine = match hunt {
                    Hunt::Engine(scenario, _) => Some((scenario_of(scenario, seed), seed)),
                    _ => None,
                };
                found = Some(Found {
                    runs,
                    place,
                    what,
                    engine,
                });
                break 'hunts;
            }
        }
    }
    let hits = hits();
    set_removed(&[]);
    Outcome { found, runs, hits }
}

/// Does something with these rules removed.
pub fn with_removed<T>(removed: &[Rule], what: impl FnOnce() -> T) -> T {
    set_removed(removed);
    let done = what();
    set_removed(&[]);
    done
}

impl Hunt {
    /// Runs in the scenario of that name, or in all in turn if there is none.
    pub fn engine(scenario: &str, seeds: u64) -> Self {
        let known = engine_sim::SCENARIOS.into_iter();
        let scenario = known.into_iter().find(|known| *known == scenario);
        Hunt::Engine(scenario.unwrap_or(ALL), seeds)
    }

    fn bound(&self) -> u64 {
        match self {
            Hunt::Log(bound) | Hunt::Rot(bound) => *bound,
            Hunt::Engine(_, bound) => *bound,
            Hunt::Cluster(_, _, bound) | Hunt::Directed(_, _, bound) => *bound,
        }
    }

    fn name(&self, seed: u64) -> String {
        match self {
            Hunt::Log(_) => "log".to_owned(),
            Hunt::Rot(_) => "rot".to_owned(),
            Hunt::Engine(scenario, _) => format!("engine {}", scenario_of(scenario, seed)),
            Hunt::Cluster(scenario, nodes, _) => {
                format!("cluster of {nodes} {}", cluster_scenario_of(scenario, seed))
            }
            Hunt::Directed(name, ..) => format!("\"{name}\""),
        }
    }

    /// A broken promise, or a panic, which is one too.
    fn run(&self, seed: u64) -> Result<(), String> {
        let run = || match self {
            Hunt::Log(_) => log_run::run(seed)
                .map(drop)
                .map_err(|failure| failure.message),
            Hunt::Rot(_) => rot_run::run(seed).map(drop),
            Hunt::Engine(scenario, _) => engine_sim::run(seed, scenario_of(scenario, seed), 0)
                .map(drop)
                .map_err(|failure| failure.message),
            Hunt::Cluster(scenario, nodes, _) => {
                let scenario = cluster_scenario_of(scenario, seed);
                cluster_sim::run(seed, scenario, *nodes, 0)
                    .map(drop)
                    .map_err(|failure| failure.message)
            }
            Hunt::Directed(_, scenario, _) => scenario(seed),
        };
        panic::catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| {
            let text = payload
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| payload.downcast_ref::<&str>().copied());
            Err(format!("panic: {}", text.unwrap_or("?")))
        })
    }
}

fn scenario_of(scenario: &'static str, seed: u64) -> &'static str {
    let all = engine_sim::SCENARIOS;
    match scenario {
        ALL => all[(seed % all.len() as u64) as usize],
        one => one,
    }
}

fn cluster_scenario_of(scenario: &'static str, seed: u64) -> &'static str {
    let all = cluster_sim::SCENARIOS;
    match scenario {
        ALL => all[(seed % all.len() as u64) as usize],
        one => one,
    }
}

/// Of the cluster simulator: runs in the scenario of that name, or in all in turn and
/// the directed ones.
pub fn cluster_hunts(scenario: Option<&str>, nodes: usize, seeds: u64) -> Vec<Hunt> {
    let mut known = cluster_sim::SCENARIOS.into_iter();
    let one = scenario.and_then(|name| known.find(|known| *known == name));
    if let Some(scenario) = one {
        return vec![Hunt::Cluster(scenario, nodes, seeds)];
    }
    let directed = cluster_sim::directed::SCENARIOS.iter();
    let mut hunts: Vec<Hunt> = directed
        .map(|(name, scenario)| Hunt::Directed(name, *scenario, seeds.min(16)))
        .collect();
    hunts.push(Hunt::Cluster(ALL, nodes, seeds));
    hunts
}

/// Everything there is, `seeds` of each: for rules that no check names.
pub fn everything(seeds: u64) -> Vec<Hunt> {
    let directed = directed::SCENARIOS.iter();
    let directed = directed.chain(cluster_sim::directed::SCENARIOS);
    let mut hunts: Vec<Hunt> = directed
        .map(|(name, scenario)| Hunt::Directed(name, *scenario, seeds.min(64)))
        .collect();
    hunts.extend([Hunt::Log(seeds), Hunt::Rot(seeds), Hunt::Engine(ALL, seeds)]);
    hunts.push(Hunt::Cluster(ALL, 3, seeds));
    hunts
}
