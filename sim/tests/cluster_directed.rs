//! Directed scenarios of the cluster simulator, each with a few seeds.

use tidegate_sim::cluster_sim::directed::{self, Scenario};

/// What a seed decides: who leads, how syncs are done, when things happen.
const SEEDS: u64 = 6;

fn play(scenario: Scenario) {
    for seed in 0..SEEDS {
        if let Err(message) = scenario(seed) {
            panic!("seed {seed}: {message}");
        }
    }
}

#[test]
fn t1_a_follower_that_lost_power_is_repaired() {
    play(directed::t1_a_follower_that_lost_power_is_repaired);
}

#[test]
fn t2_without_the_leader_the_group_waits() {
    play(directed::t2_without_the_leader_the_group_waits);
}

#[test]
fn t3_the_leader_returns_on_the_same_boot() {
    play(directed::t3_the_leader_returns_on_the_same_boot);
}

#[test]
fn t4_the_leader_returns_after_its_own_power_cut() {
    play(directed::t4_the_leader_returns_after_its_own_power_cut);
}

#[test]
fn t5_a_stale_leader_confirms_nothing_more() {
    play(directed::t5_a_stale_leader_confirms_nothing_more);
}

#[test]
fn t6_a_vote_outlives_a_power_cut() {
    play(directed::t6_a_vote_outlives_a_power_cut);
}

#[test]
fn a_buffered_confirm_does_not_wait_for_a_durable_one() {
    play(directed::a_buffered_confirm_behind_a_durable_one);
}

#[test]
fn what_a_leader_handed_out_before_it_knew_of_the_next_is_flagged() {
    play(directed::deliveries_of_a_leader_that_was_cut_off);
}

#[test]
fn a_copy_that_was_lost_is_not_counted() {
    play(directed::a_copy_that_was_lost_is_not_counted);
}

#[test]
fn a_replica_answers_at_written_once_it_knows_that_for_good() {
    play(directed::a_weakening_entry_that_is_not_durable);
}

#[test]
fn a_snapshot_counts_once_it_is_durable() {
    play(directed::a_snapshot_that_is_not_durable);
}

/// One seed: it takes more entries than a leader keeps for nobody.
#[test]
fn a_follower_is_brought_up_while_records_come() {
    directed::a_snapshot_while_records_come(1).unwrap();
}

#[test]
fn an_owner_whose_disk_is_slower_than_the_others_hands_over() {
    play(directed::a_slow_disk_of_the_owner);
}

#[test]
fn a_leader_whose_followers_wait_for_their_disks_leads_on() {
    play(directed::followers_whose_disks_stand_still);
}

#[test]
fn a_disk_that_is_lost_while_a_group_is_rebuilt_from_it_is_not_the_only_copy() {
    play(directed::the_disk_that_a_group_goes_on_from);
}
