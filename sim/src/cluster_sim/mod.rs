//! The cluster simulator: nodes with their disks, clocks and processes, the
//! connections between them, and clients of any node; in one thread, from one
//! seed.
//!
//! It runs the engine that ships and does what the driver does, as
//! [`crate::engine_sim`] does for one node, with one shard a node: effects into
//! I/O that completes late and in any order, completions into events, bodies
//! between nodes that arrive in order or, once a connection broke, not at all.
//! Processes crash and stand still, the power of some or all nodes goes, ways
//! between nodes are cut in one direction or both, disks fail or get slow,
//! clocks drift and step.
//!
//! Owns the oracle: what clients were told is held against what they are told
//! later, and against the simulated disks: a confirm that names a boundary and
//! copies is true of so many disks. And what the clients saw is put into one order
//! by a check that knows nothing of nodes ([`linear`]).
//!
//! 1. A seed, a scenario and a number of nodes are a run, bit for bit.
//! 2. Whatever a run finds is an `Err` with a sentence; a panic of the engine is one.
//!
//! Modules: [`settings`] (what a run is made of), `world` (what happens when),
//! `node`, `driver` and `lives` (a machine), `net` and `links` (between them),
//! `faults`, `replacing` (a disk that is lost), `reshaping` (who belongs to the cluster), `client`, `sending`, `receiving`, `traffic` (the clients),
//! `journal`, `leaders`, `issues` and `audit` (the oracle), [`directed`] (runs in which
//! what goes wrong is arranged).

mod audit;
mod client;
pub mod directed;
mod driver;
mod faults;
mod issues;
mod journal;
mod leaders;
mod links;
mod lives;
mod net;
mod node;
mod receiving;
mod replacing;
mod requests;
mod reshaping;
mod sending;
pub mod settings;
mod traffic;
mod world;

use std::any::Any;
use std::fmt;
use std::panic::{catch_unwind, AssertUnwindSafe};

use crate::{trace::Trace, Random};
use settings::Settings;
pub use settings::SCENARIOS;
pub use world::Counts;
use world::World;

type Checked<T> = Result<T, String>;

/// What a run did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    pub confirmed: u64,
    pub delivered: u64,
    pub settled: u64,
    /// Records that loss reports named, counted at each audit.
    pub lost: u64,
    pub counts: Counts,
    /// Changes of a partition's setting that were said to be applied, and confirms of
    /// which the setting is known exactly.
    pub changes: u64,
    pub judged: usize,
    pub simulated_ms: u64,
    /// What the clients saw, put in order.
    pub linear: linear::Checked,
    pub trace: Trace,
}

/// A promise that was broken.
#[derive(Debug, Clone)]
pub struct Failure {
    pub seed: u64,
    pub scenario: String,
    pub nodes: usize,
    pub message: String,
    /// What is wrong with what clients saw up to then, by itself.
    pub history: Option<String>,
    pub trace: Trace,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed {} in {} with {} nodes: {}",
            self.seed, self.scenario, self.nodes, self.message
        )
    }
}

/// Runs a seed in a scenario (one of [`SCENARIOS`]) with a number of nodes (1 to
/// 9) and keeps the last lines of its trace, at most `keep`.
///
/// # Errors
/// The first promise that was broken, with the end of what happened.
pub fn run(seed: u64, scenario: &str, nodes: usize, keep: usize) -> Result<Summary, Box<Failure>> {
    let mut random = Random::new(seed);
    let settings = Settings::draw(&mut random, scenario, nodes.clamp(1, 9));
    let mut world = World::new(random, settings);
    world.trace = Trace::new(keep);
    // The world is not used any more but for its trace.
    let lived = catch_unwind(AssertUnwindSafe(|| world.lives()));
    let lived = lived.unwrap_or_else(|panic| Err(format!("a panic: {}", said_by(&*panic))));
    let ordered = match lived.is_ok() {
        true => world.journal.history.check(),
        false => world.journal.history.check_so_far(),
    };
    let history = ordered
        .as_ref()
        .err()
        .map(|violation| violation.to_string());
    match (lived, ordered) {
        (Ok(()), Ok(linear)) => Ok(world.summary(linear)),
        (lived, _) => Err(Box::new(Failure {
            seed,
            scenario: scenario.to_owned(),
            nodes,
            message: match lived {
                Err(message) => message,
                Ok(()) => format!("not linearizable: {}", history.as_deref().unwrap_or("?")),
            },
            history,
            trace: world.trace,
        })),
    }
}

fn said_by(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("without a word")
}

impl World {
    fn summary(&self, linear: linear::Checked) -> Summary {
        Summary {
            confirmed: self.journal.confirmed,
            delivered: self.journal.delivered,
            settled: self.journal.settled,
            lost: self.journal.lost,
            counts: self.counts,
            changes: self.journal.promises.changes,
            judged: self.journal.promises.exact(),
            simulated_ms: self.now_us / 1000,
            linear,
            trace: self.trace.clone(),
        }
    }

    /// A whole run: load and faults, then heal, check, drain, check, restart
    /// everything, check again, once by crashes and once by power cuts.
    fn lives(&mut self) -> Checked<()> {
        let line = format!("{:?}", self.settings);
        self.note(format_args!("{line}"));
        for node in 0..self.settings.nodes {
            self.start_later(node, 20);
        }
        self.await_nodes()?;
        self.set_busy();
        self.plan_strike();
        self.plan_reshaping();
        self.pass(self.settings.busy_ms)?;
        self.heal();
        self.await_replacement()?;
        self.await_shape()?;
        self.await_answers()?;
        self.await_spread()?;
        for client in 0..self.clients.len() {
            self.disconnect(client);
        }
        self.audit()?;
        self.drain_queues()?;
        self.audit()?;
        for node in 0..self.nodes.len() {
            if self.nodes[node].belongs {
                self.crash(node);
                self.start_later(node, 100);
            }
        }
        self.audit()?;
        if self.settings.kinds.power_cut > 0 {
            self.cut_all_power()?;
            self.audit()?;
        }
        Ok(())
    }

    /// The power of all nodes goes: of one after the other, or at once.
    fn cut_all_power(&mut self) -> Checked<()> {
        for node in 0..self.nodes.len() {
            if !self.nodes[node].belongs {
                continue;
            }
            if !self.settings.overlapping_cuts {
                self.await_repair()?;
            }
            self.power_cut(node);
            self.start_later(node, 100);
        }
        Ok(())
    }
}
