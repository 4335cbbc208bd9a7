//! Windows that are too small for chance: each shows what one rule is for.

use shards::log::{segment_name, FIRST_SEGMENT};
use wire::vocabulary::{ClusterAction, Mode};

use super::{
    super::{
        journal::{Fate, Key},
        sending::Publishing,
        world::World,
        Checked,
    },
    play, play_in, play_with_syncs,
    rig::{Cast, CLIENT, OTHER, PATIENCE_MS},
};

/// All voting replicas.
const ALL_COPIES: u8 = 255;
/// Payload bytes of a record that fills the ring.
const LARGE: usize = 60_000;
/// Large records, of whose snapshot more small ones than a leader keeps for nobody are
/// published.
const HELD_RECORDS: usize = 20;
/// Records published at once, each an entry.
const FLOOD_RECORDS: usize = 100;
/// That often, at most: some hundred thousand bytes in all.
const MOST_FLOODS: usize = 400;
/// Longer than it takes to get a new name.
const SLOW_US: u64 = 600_000;
/// Late for one write, and no reason to give a node up.
const SLOW_WRITE_US: u64 = 40_000;
/// Longer than it takes to elect a leader.
const STILL_US: u64 = 2_000_000;
/// Longer than any run.
const FOREVER_US: u64 = 1 << 40;

/// The syncs of both followers do not come back while somebody waits for durable. What
/// is published behind it and waits for written is confirmed meanwhile.
///
/// # Errors
/// The promise that was broken.
pub fn a_buffered_confirm_behind_a_durable_one(seed: u64) -> Result<(), String> {
    play_with_syncs(seed, |world| {
        let key = world.declare_at(0, Mode::Buffered)?;
        world.confirm_records(CLIENT, key, 1)?;
        let cast = world.cast(key)?;
        world.bring(CLIENT, cast.leader)?;
        world.confirm_records(CLIENT, key, 1)?;
        world.pass(500)?;
        for node in [cast.second, cast.third] {
            world.nodes[node].sync_lag_us = FOREVER_US;
        }
        let durable = world.send_with(CLIENT, key, 1, true, 0);
        world.pass(20)?;
        let written = world.send_records(CLIENT, key, 1);
        let confirmed = world.is_confirmed_within(written, 200)?;
        if !confirmed && world.newest_leader(world.group(key)?) == Some(cast.leader) {
            return Err("a buffered confirm waits for a durable one".to_owned());
        }
        if world.fate(durable) == Fate::Confirmed {
            return Err("confirmed as durable on two copies, and nobody has synced".to_owned());
        }
        // Their syncs hang for good: such a machine is turned off.
        for node in [cast.second, cast.third] {
            world.crash(node);
            world.nodes[node].sync_lag_us = 0;
            world.start_later(node, 20);
        }
        world.finish()
    })
}

/// More records than the first dispatch mark covers; their leader is cut off and
/// hands out what it may before it learns that. The next one flags every record that
/// was handed out.
///
/// # Errors
/// The promise that was broken.
pub fn deliveries_of_a_leader_that_was_cut_off(seed: u64) -> Result<(), String> {
    let mode = [Mode::Durable, Mode::Buffered, Mode::Speculative][(seed % 3) as usize];
    play(seed, |world| {
        let key = world.declare_at(0, mode)?;
        for _ in 0..30 {
            world.confirm_records(CLIENT, key, 100)?;
        }
        let leader = world.cast(key)?.leader;
        world.bring(OTHER, leader)?;
        world.isolate(leader);
        world.subscribe(OTHER, key, 10_000, 1 << 20);
        let next = world.await_other_leader(world.group(key)?, leader)?;
        world.bring(CLIENT, next)?;
        world.subscribe(CLIENT, key, 10_000, 1 << 20);
        world.await_that("deliveries", PATIENCE_MS, |world| {
            let link = world.clients[CLIENT].link.as_ref();
            link.is_none_or(|link| link.held.len() >= 2_000)
        })?;
        world.finish()
    })
}

/// A publish waits for all three copies. The second loses it with its power, and the
/// leader is told so before it hears of the third. Two copies are not three.
///
/// # Errors
/// The promise that was broken.
pub fn a_copy_that_was_lost_is_not_counted(seed: u64) -> Result<(), String> {
    play(seed, |world| {
        let key = world.declare_on(0, Mode::Buffered, ALL_COPIES)?;
        world.confirm_records(CLIENT, key, 1)?;
        // So that it is told of the loss at once.
        world.lead_group_0_too(world.group(key)?)?;
        let cast = world.cast(key)?;
        world.bring(CLIENT, cast.leader)?;
        world.confirm_records(CLIENT, key, 1)?;
        world.pass(500)?;
        // What the third says is on its way for long, all the time.
        world.net.set_slow((cast.third, cast.leader), SLOW_US);
        world.pass(1_000)?;
        let batch = world.send_records(CLIENT, key, 1);
        let id = world.journal.batches[batch].first_id as usize;
        world.await_that("three copies", PATIENCE_MS, |world| {
            world.journal.records[id].there_on == 0b111
        })?;
        // The second says so.
        world.pass(10)?;
        world.cut_power_to_nothing(cast.second);
        world.start_later(cast.second, 1);
        world.await_that("the new name", PATIENCE_MS, |world| {
            let engine = world.nodes[cast.second].engine.as_ref();
            engine.is_some_and(|engine| engine.memory_is_settled())
        })?;
        // The leader is told, too.
        world.pass(20)?;
        world.journal.copies_are_there = true;
        world.await_fate(batch)?;
        world.journal.copies_are_there = false;
        world.net.all_fast();
        world.await_repair()?;
        world.finish()
    })
}

/// A follower was away for so long that it needs a snapshot, and its syncs hang when
/// that is in place. Somebody waits for all copies at durable of what the snapshot
/// covers.
///
/// # Errors
/// The promise that was broken.
pub fn a_snapshot_that_is_not_durable(seed: u64) -> Result<(), String> {
    play_with_syncs(seed, |world| {
        let key = world.declare_on(0, Mode::Buffered, ALL_COPIES)?;
        world.confirm_records(CLIENT, key, 1)?;
        let cast = world.cast(key)?;
        world.bring(CLIENT, cast.leader)?;
        world.isolate(cast.third);
        world.bring(OTHER, cast.leader)?;
        let waits = world.send_with(OTHER, key, 1, true, 600_000);
        world.fill_rings(&[cast.leader, cast.second])?;
        world.nodes[cast.third].sync_lag_us = 1_000_000;
        world.join_all(cast.third);
        world.await_fate(waits)?;
        world.nodes[cast.third].sync_lag_us = 0;
        world.finish()
    })
}

/// A follower gets a snapshot slowly while more entries are published than a leader keeps
/// for nobody: what came in meanwhile must still be there when the snapshot is through, or
/// the follower gets one after the other and is never brought up.
///
/// # Errors
/// The promise that was broken.
pub fn a_snapshot_while_records_come(seed: u64) -> Result<(), String> {
    let mut world = World::calm(seed);
    world.settings.catch_up_bytes_per_s = 1 << 20;
    play_in(world, |world| {
        let key = world.declare_at(0, Mode::Buffered)?;
        let cast = world.cast(key)?;
        world.bring(CLIENT, cast.leader)?;
        for _ in 0..HELD_RECORDS {
            world.publish_large(CLIENT, key)?;
        }
        world.isolate(cast.third);
        world.bring(OTHER, cast.leader)?;
        world.fill_rings(&[cast.leader])?;
        world.join_all(cast.third);
        let group = world.group(key)?;
        for _ in 0..MOST_FLOODS {
            let mut batch = 0;
            for _ in 0..FLOOD_RECORDS {
                batch = world.send_records(OTHER, key, 1);
            }
            world.await_fate(batch)?;
            world.pass(20)?;
            let lacks = world.lacks(group, cast)?;
            if lacks < FLOOD_RECORDS as u64 {
                return world.finish();
            }
        }
        Err("a follower is not brought up while records come".to_owned())
    })
}

/// A group is weakened while the syncs of one follower hang. What it has of that is
/// not durable, so it may not answer at written: it would forget what it answered, and
/// not know that.
///
/// # Errors
/// The promise that was broken.
pub fn a_weakening_entry_that_is_not_durable(seed: u64) -> Result<(), String> {
    play_with_syncs(seed, |world| {
        // One that leads nothing.
        let leads = [world.newest_leader(0), world.newest_leader(1)];
        let second = (0..3).find(|node| !leads.contains(&Some(*node)));
        let (second, leader) = second
            .zip(leads[1])
            .ok_or("three nodes, and one data group with a leader")?;
        let third = 3 - second - leader;
        world.nodes[second].sync_lag_us = FOREVER_US;
        let key = world.declare_at(leader, Mode::Buffered)?;
        world.confirm_records(CLIENT, key, 1)?;
        // One for whom no other node has answered yet.
        world.bring(OTHER, leader)?;
        world.isolate(third);
        let batch = world.send_records(OTHER, key, 1);
        let confirmed = world.is_confirmed_within(batch, 200)?;
        world.nodes[second].sync_lag_us = 0;
        world.cut_power_to_nothing(second);
        world.crash(leader);
        world.join_all(third);
        world.start_later(second, 50);
        // Time enough to elect one of the two, if they may.
        world.pass(5_000)?;
        world.start_later(leader, 50);
        world.finish()?;
        match confirmed {
            true => Err("confirmed by who cannot know that it answers at written".to_owned()),
            false => Ok(()),
        }
    })
}

impl World {
    /// Restarts whoever leads group 0 until that is the leader of the other group.
    fn lead_group_0_too(&mut self, group: u32) -> Checked<()> {
        for _ in 0..20 {
            self.await_repair()?;
            let node = self.newest_leader(0).ok_or("nobody leads group 0")?;
            if self.newest_leader(group) == Some(node) {
                return Ok(());
            }
            self.crash(node);
            self.start_later(node, 20);
            self.pass(1_000)?;
        }
        Err("group 0 is always led by another node".to_owned())
    }

    /// Publishes until these nodes have let go of the ring's begin.
    fn fill_rings(&mut self, nodes: &[usize]) -> Checked<()> {
        let key = self.declare_at(nodes[0], Mode::Durable)?;
        let until_us = self.now_us + PATIENCE_MS * 1000;
        let first = segment_name(FIRST_SEGMENT);
        let has_it = |world: &World| {
            let mut disks = nodes.iter().map(|node| &world.nodes[*node].disk);
            disks.any(|disk| disk.id_of(&first).is_some())
        };
        while has_it(self) {
            self.publish_large(CLIENT, key)?;
            if self.now_us > until_us {
                return Err("nobody lets go of the first segment".to_owned());
            }
        }
        Ok(())
    }

    /// One record that takes much of a segment; waits for its end.
    fn publish_large(&mut self, client: usize, key: Key) -> Checked<()> {
        let what = Publishing {
            lengths: vec![LARGE],
            ..Publishing::default()
        };
        let batch = self.journal.batches.len();
        self.publish(client, key, &what);
        self.await_fate(batch)
    }

    /// By how many entries the third node is behind the leader.
    fn lacks(&self, group: u32, cast: Cast) -> Checked<u64> {
        let applied = |node: usize| {
            let engine = self.nodes[node].engine.as_ref()?;
            let role = engine.roles().find(|role| role.group.0 == group);
            role.map(|role| role.applied)
        };
        let leader = self.newest_leader(group).unwrap_or(cast.leader);
        let both = applied(leader).zip(applied(cast.third));
        let (led, has) = both.ok_or("a replica is not there")?;
        Ok(led.saturating_sub(has))
    }
}

/// The owner's disk gets slow: writes of the others are there long before its own. It
/// hands over by itself, nothing fails for good, and confirms are quick again.
///
/// # Errors
/// The promise that was broken.
pub fn a_slow_disk_of_the_owner(seed: u64) -> Result<(), String> {
    let mode = [Mode::Durable, Mode::Buffered][(seed % 2) as usize];
    play(seed, |world| {
        let key = world.declare_at(0, mode)?;
        world.confirm_records(CLIENT, key, 1)?;
        let leader = world.cast(key)?.leader;
        world.nodes[leader].slow_disk = (SLOW_WRITE_US, FOREVER_US);
        world.bring(CLIENT, (leader + 1) % 3)?;
        let group = world.group(key)?;
        let until_us = world.now_us + PATIENCE_MS * 1000;
        while world.newest_leader(group) == Some(leader) {
            if world.now_us > until_us {
                return Err("the owner keeps its group, though its disk is slow".to_owned());
            }
            world.send_records(CLIENT, key, 1);
            world.pass(50)?;
        }
        world.nodes[leader].slow_disk = (0, 0);
        world.finish()
    })
}

/// The disks of both followers stand still for longer than an election takes: they hear
/// their leader all the same, and it leads on.
///
/// # Errors
/// The promise that was broken.
pub fn followers_whose_disks_stand_still(seed: u64) -> Result<(), String> {
    let mode = [Mode::Durable, Mode::Buffered][(seed % 2) as usize];
    play(seed, |world| {
        let key = world.declare_at(0, mode)?;
        world.confirm_records(CLIENT, key, 1)?;
        let cast = world.cast(key)?;
        world.bring(CLIENT, cast.leader)?;
        world.confirm_records(CLIENT, key, 1)?;
        let still_until_us = world.now_us + STILL_US;
        for node in [cast.second, cast.third] {
            world.nodes[node].slow_disk = (STILL_US, still_until_us);
        }
        let batch = world.send_records(CLIENT, key, 1);
        let confirmed = world.is_confirmed_within(batch, 2 * STILL_US / 1000)?;
        if world.newest_leader(world.group(key)?) != Some(cast.leader) {
            return Err("the leader went, though everybody hears it".to_owned());
        }
        if !confirmed {
            return Err("no confirm, though both disks write again".to_owned());
        }
        for node in [cast.second, cast.third] {
            world.nodes[node].slow_disk = (0, 0);
        }
        world.finish()
    })
}

/// Every machine loses power, the group goes on from what one node holds, and the disk of
/// that one is lost before anybody was brought anything. What another one kept is taken by
/// an operator: all of it was durable there.
///
/// # Errors
/// The promise that was broken.
pub fn the_disk_that_a_group_goes_on_from(seed: u64) -> Result<(), String> {
    play_with_syncs(seed, |world| {
        let key = world.declare_on(0, Mode::Buffered, ALL_COPIES)?;
        let batch = world.send_with(CLIENT, key, 3, true, 0);
        world.await_fate(batch)?;
        if world.fate(batch) != Fate::Confirmed {
            return Err("not arranged: the records are not confirmed".to_owned());
        }
        let group = world.group(key)?;
        for node in 0..3 {
            world.cut_power_to_nothing(node);
            world.start_later(node, 20);
        }
        world.await_that("the new generation", PATIENCE_MS, |world| {
            world.generation_led(group) == Some(2)
        })?;
        let chosen = world.newest_leader(group).ok_or("nobody leads")?;
        world.isolate(chosen);
        // Long enough for what the others give up by themselves.
        world.pass(3_000)?;
        world.lose_disk(chosen);
        let other = (0..3).find(|node| *node != chosen).unwrap_or_default();
        world.order_until_done(other, |world| {
            world.order(OTHER, ClusterAction::Forget, chosen)
        })?;
        world.order_until_done(other, |world| world.order_recovery(OTHER, group, 2))?;
        world.await_that("one more generation", PATIENCE_MS, |world| {
            world.generation_led(group) == Some(3)
        })?;
        world.order_until_done(other, |world| world.give_up_now(OTHER))?;
        world.finish()?;
        match world.journal.lost {
            0 => Ok(()),
            lost => Err(format!("{lost} records are reported lost")),
        }
    })
}
