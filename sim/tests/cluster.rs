//! Random histories of a cluster (`SEEDS=from..to` chooses others; the runner
//! `cargo run --release -p tidegate-sim -- --cluster` does many). Each run ends with the
//! linearizability check of what its clients saw (`tests/linear`).

use tidegate_sim::cluster_sim::{run, Summary, SCENARIOS};

/// Lines of the trace that a failing test shows.
const TAIL: usize = 60;

fn run_or_panic(seed: u64, scenario: &str, nodes: usize) -> Summary {
    run(seed, scenario, nodes, TAIL).unwrap_or_else(|failure| {
        for line in &failure.trace.tail {
            println!("{line}");
        }
        panic!("{failure}");
    })
}

#[test]
fn a_cluster_of_one_keeps_what_one_node_promises() {
    let (mut confirmed, mut opens) = (0, 0);
    for seed in 0..12 {
        let scenario = SCENARIOS[(seed % SCENARIOS.len() as u64) as usize];
        let done = run_or_panic(seed, scenario, 1);
        confirmed += done.confirmed;
        opens += done.counts.opens;
    }
    assert!(
        confirmed > 100 && opens > 20,
        "{confirmed} confirmed, {opens} opens"
    );
}

#[test]
fn a_seed_repeats_bit_for_bit() {
    for (seed, scenario) in [(1, "crash"), (2, "partition")] {
        let first = run_or_panic(seed, scenario, 1);
        let second = run_or_panic(seed, scenario, 1);
        assert!(first.trace.lines > 50);
        assert_eq!(first, second);
    }
}

/// Nodes that crash, links that break and stall, one node at a time that loses power
/// or latches. Seed 14 kept: a snapshot was refused for what clients left unwritten.
#[test]
fn three_nodes_keep_what_they_confirmed_on_two() {
    let mut confirmed = 0;
    let mut linear = linear::Checked::default();
    for seed in (0..8).chain([14]) {
        let scenario = match seed {
            14 => "partition",
            _ => SCENARIOS[(seed % SCENARIOS.len() as u64) as usize],
        };
        let done = run_or_panic(seed, scenario, 3);
        confirmed += done.confirmed;
        linear.add(&done.linear);
    }
    assert!(confirmed > 1000, "{confirmed} confirmed");
    // All of it was put in order, and it was not easy.
    println!("{linear:?}");
    assert!(linear.operations > 2 * confirmed, "{linear:?}");
    assert!(
        linear.longest > 20 && linear.unknown_seen > 10,
        "{linear:?}"
    );
}

/// Seeds that found that a group stayed without service after power cuts of many nodes: a
/// learner that never forgot its dead leader, a recovery that waited for a replica which had
/// all but was not promoted yet.
#[test]
fn a_group_goes_on_after_power_cuts_of_any_nodes() {
    for (seed, nodes) in [(4025, 3), (4074, 5), (81003, 5)] {
        run_or_panic(seed, "ruin", nodes);
    }
}

/// Nodes are added and removed and replicas moved, under load and with all that goes wrong.
/// Seeds kept: 8334, a leader that was taken out of its group led on; 8489, a group came
/// back to a node that had not heard that it had gone; 8551, a node with two names, of which
/// the older one was waited for; 20076, a leader that was none any more answered a barrier; 5042, a late question of a removed directory took the place of the one that
/// came after it. Histories have changed since; the trace itself is a test of group 0's
/// state (`shards/src/state/meta/seats.rs`).
#[test]
fn members_come_and_go_and_nothing_confirmed_is_lost() {
    let (mut confirmed, mut moves, mut removals) = (0, 0, 0);
    for seed in (0..3).chain([5042, 8334, 8489, 8551, 20076]) {
        let done = run_or_panic(seed, "members", 3);
        confirmed += done.confirmed;
        moves += done.counts.moves;
        removals += done.counts.removals;
    }
    assert!(
        confirmed > 1000 && moves > 10 && removals > 0,
        "{confirmed} confirmed, {moves} moves, {removals} removals"
    );
}

/// Disks are lost one after the other, and their nodes come back on empty directories.
#[test]
fn a_node_whose_disk_is_lost_is_replaced_and_nothing_confirmed_is_lost() {
    let (mut confirmed, mut replacements) = (0, 0);
    for (seed, nodes) in [(0, 3), (1, 3), (2, 5)] {
        let done = run_or_panic(seed, "replace", nodes);
        confirmed += done.confirmed;
        replacements += done.counts.replacements;
    }
    assert!(
        confirmed > 1000 && replacements > 2,
        "{confirmed} confirmed, {replacements} replacements"
    );
}

/// Settings change on nodes that crash, lose power and are cut off. Seed 11 kept: a barrier
/// was met on the copies of a weaker setting, and its frontier stood where a stronger one's
/// copies were.
#[test]
fn a_queue_keeps_each_settings_promises_while_nodes_fail() {
    let (mut changes, mut judged) = (0, 0);
    for (seed, nodes) in [(0, 3), (1, 3), (2, 3), (3, 5), (11, 5)] {
        let done = run_or_panic(seed, "modes", nodes);
        changes += done.changes;
        judged += done.judged;
    }
    println!("{changes} changes applied, {judged} confirms judged exactly");
    assert!(changes > 20 && judged > 100, "{changes}, {judged}");
}
