//! Directed scenarios: the order of things is arranged, not left to chance; a seed
//! decides the rest. For windows that are too small to be met, and for the traces by
//! which the rules of replication are explained.
//!
//! Each says which promise was broken. The oracle is the one of random runs.

mod rig;
mod traces;
mod windows;

pub use traces::*;
pub use windows::*;

use shards::log::SyncMethod;

use super::{world::World, Checked};
use crate::trace::Trace;

/// In what a scenario says if what its clients saw is in no order.
pub const NOT_LINEAR: &str = "not linearizable";

/// A scenario, run with a seed.
pub type Scenario = fn(u64) -> Result<(), String>;

/// All of them, by name.
pub const SCENARIOS: &[(&str, Scenario)] = &[
    ("t1", t1_a_follower_that_lost_power_is_repaired),
    ("t2", t2_without_the_leader_the_group_waits),
    ("t3", t3_the_leader_returns_on_the_same_boot),
    ("t4", t4_the_leader_returns_after_its_own_power_cut),
    ("t5", t5_a_stale_leader_confirms_nothing_more),
    ("t6", t6_a_vote_outlives_a_power_cut),
    (
        "buffered behind durable",
        a_buffered_confirm_behind_a_durable_one,
    ),
    ("dispatch mark", deliveries_of_a_leader_that_was_cut_off),
    ("lost copy", a_copy_that_was_lost_is_not_counted),
    (
        "weakening not durable",
        a_weakening_entry_that_is_not_durable,
    ),
    ("snapshot not durable", a_snapshot_that_is_not_durable),
    ("chosen disk lost", the_disk_that_a_group_goes_on_from),
    ("slow disk", a_slow_disk_of_the_owner),
    ("snapshot while records come", a_snapshot_while_records_come),
    ("disks stand still", followers_whose_disks_stand_still),
];

/// Plays a scenario in a calm world; the end of what it did is shown if
/// `TRACE` names a number of lines.
fn play(seed: u64, scenario: impl FnOnce(&mut World) -> Checked<()>) -> Checked<()> {
    play_in(World::calm(seed), scenario)
}

/// The same where durable means that a sync of its own came back.
fn play_with_syncs(seed: u64, scenario: impl FnOnce(&mut World) -> Checked<()>) -> Checked<()> {
    let mut world = World::calm(seed);
    world.settings.log.sync_method = SyncMethod::Fdatasync;
    play_in(world, scenario)
}

fn play_in(mut world: World, scenario: impl FnOnce(&mut World) -> Checked<()>) -> Checked<()> {
    let lines = std::env::var("TRACE")
        .ok()
        .and_then(|lines| lines.parse().ok());
    world.trace = Trace::new(lines.unwrap_or(0));
    let played = world.begin().and_then(|()| scenario(&mut world));
    if lines.is_some() {
        for line in &world.trace.tail {
            println!("{line}");
        }
    }
    let ordered = world.journal.history.check_so_far();
    match (played, ordered) {
        (played, Ok(_)) => played,
        (Ok(()), Err(violation)) => Err(format!("{NOT_LINEAR}: {violation}")),
        (Err(message), Err(violation)) => Err(format!("{message}; {NOT_LINEAR}: {violation}")),
    }
}
