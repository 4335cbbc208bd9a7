//! Directed scenarios: the order of things is arranged, not left to chance; a seed
//! decides the rest. For windows that are too small to be met, and for the traces by
//! which the rules of replication are explained.
//!
//! Each says which promise was broken. The oracle is the one of random runs.

mod rig;
mod traces;

pub use traces::*;

use super::{world::World, Checked};
use crate::trace::Trace;

/// A scenario, run with a seed.
pub type Scenario = fn(u64) -> Result<(), String>;

/// All of them, by name.
pub const SCENARIOS: &[(&str, Scenario)] = &[
    ("t1", t1_a_follower_that_lost_power_is_repaired),
    ("t2", t2_without_the_leader_the_group_waits),
    ("t3", t3_the_leader_returns_on_the_same_boot),
    ("t5", t5_a_stale_leader_confirms_nothing_more),
    ("t6", t6_a_vote_outlives_a_power_cut),
];

/// Plays a scenario in a calm world; what it did is shown if it fails and
/// `TRACE` names a number of lines.
fn play(seed: u64, scenario: impl FnOnce(&mut World) -> Checked<()>) -> Checked<()> {
    let mut world = World::calm(seed);
    let lines = std::env::var("TRACE")
        .ok()
        .and_then(|lines| lines.parse().ok());
    world.trace = Trace::new(lines.unwrap_or(0));
    let played = world.begin().and_then(|()| scenario(&mut world));
    if played.is_err() && lines.is_some() {
        for line in &world.trace.tail {
            println!("{line}");
        }
    }
    played
}
