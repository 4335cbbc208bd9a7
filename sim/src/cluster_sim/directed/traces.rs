//! The traces T1 to T6 of replication in a group that answers at written.

use wire::vocabulary::Mode;

use super::{
    super::{
        journal::{Fate, Key},
        world::World,
        Checked,
    },
    play, play_with_syncs,
    rig::{Cast, CLIENT, OTHER},
};

/// Records of one publish.
const RECORDS: usize = 5;
const SYNC_LAG_US: u64 = 20_000;
/// Longer than any election, in ms.
const ELECTIONS_MS: u64 = 5_000;

/// T1: records are written on the leader and one follower and nowhere durable; the
/// follower loses power. It comes back under another name, the leader brings it what
/// it lost, and it votes again. Nothing is lost, nothing reported.
///
/// # Errors
/// The promise that was broken.
pub fn t1_a_follower_that_lost_power_is_repaired(seed: u64) -> Result<(), String> {
    play(seed, |world| {
        let (key, cast) = world.written_on_two(Mode::Buffered)?;
        world.cut_power_to_nothing(cast.second);
        world.join_all(cast.third);
        world.start_later(cast.second, 50);
        world.await_repair()?;
        world.bring(CLIENT, cast.second)?;
        world.confirm_records(CLIENT, key, RECORDS)?;
        world.finish()?;
        world.nothing_is_lost()
    })
}

/// T2: as T1, and the leader goes down before the follower is back, while the third
/// lacks the records: nobody may lead the group, and nothing is confirmed or shown.
///
/// # Errors
/// The promise that was broken.
pub fn t2_without_the_leader_the_group_waits(seed: u64) -> Result<(), String> {
    play(seed, |world| world.wait_without_leader().map(drop))
}

/// T3: as T2, and the leader's process returns on the same boot: everything is there.
///
/// # Errors
/// The promise that was broken.
pub fn t3_the_leader_returns_on_the_same_boot(seed: u64) -> Result<(), String> {
    play(seed, |world| {
        let (key, cast) = world.wait_without_leader()?;
        world.start_later(cast.leader, 50);
        world.await_repair()?;
        world.bring(CLIENT, cast.second)?;
        world.confirm_records(CLIENT, key, RECORDS)?;
        world.finish()?;
        world.nothing_is_lost()
    })
}

/// T4: as T2, and the leader's machine loses power, too: all copies are gone. The
/// group goes on as a new generation with an exact report.
///
/// # Errors
/// The promise that was broken.
pub fn t4_the_leader_returns_after_its_own_power_cut(seed: u64) -> Result<(), String> {
    play(seed, |world| {
        let (key, cast) = world.wait_without_leader()?;
        world.cut_power_to_nothing(cast.leader);
        world.start_later(cast.leader, 50);
        world.await_repair()?;
        world.bring(CLIENT, cast.second)?;
        world.confirm_records(CLIENT, key, RECORDS)?;
        world.finish()?;
        let part = world.journal.parts.get(&key);
        let reported = part.is_some_and(|part| part.losses.len() == 1);
        match reported && world.journal.lost >= RECORDS as u64 {
            true => Ok(()),
            false => Err(format!("{part:?} reports no loss")),
        }
    })
}

/// T5: the leader stands still, or is cut off, and another one takes over and
/// confirms. What the old one is asked from then on it never confirms.
///
/// # Errors
/// The promise that was broken.
pub fn t5_a_stale_leader_confirms_nothing_more(seed: u64) -> Result<(), String> {
    let mode = [Mode::Buffered, Mode::Durable, Mode::Speculative][(seed % 3) as usize];
    play(seed, |world| {
        let key = world.declare_at((seed % 2) as usize, mode)?;
        world.confirm_records(CLIENT, key, RECORDS)?;
        let cast = world.cast(key)?;
        world.bring(CLIENT, cast.leader)?;
        world.confirm_records(CLIENT, key, RECORDS)?;
        let halts = seed % 4 < 2;
        match halts {
            true => world.stand_still(cast.leader),
            // What it says still comes through; it hears nothing.
            false => {
                world.cut_way(cast.second, cast.leader);
                world.cut_way(cast.third, cast.leader);
            }
        }
        // Proposed in its term, and on its way when it is taken over.
        let early = world.send_with(CLIENT, key, RECORDS, false, 60_000);
        let next = world.await_other_leader(world.group(key)?, cast.leader)?;
        world.bring(OTHER, next)?;
        world.confirm_records(OTHER, key, RECORDS)?;
        let late = world.send_with(CLIENT, key, RECORDS, false, 60_000);
        if halts {
            world.resume(cast.leader);
        }
        world.pass(ELECTIONS_MS)?;
        world.finish()?;
        for batch in [early, late] {
            if world.journal.batches[batch].confirmed_by == Some(cast.leader) {
                return Err(format!("the old leader confirms batch {batch}"));
            }
        }
        world.nothing_is_lost()
    })
}

/// T6: a follower's vote for a new leader is the fence against the old one. It loses
/// power as soon as it has voted; the new leader is out of reach, and the old one,
/// which stood still, goes on. It must not confirm anything with that follower.
///
/// # Errors
/// The promise that was broken.
pub fn t6_a_vote_outlives_a_power_cut(seed: u64) -> Result<(), String> {
    let mode = [Mode::Durable, Mode::Buffered][(seed % 2) as usize];
    play_with_syncs(seed, |world| {
        let key = world.declare_at(0, mode)?;
        world.confirm_records(CLIENT, key, RECORDS)?;
        let old = world.cast(key)?.leader;
        let group = world.group(key)?;
        world.bring(CLIENT, old)?;
        world.confirm_records(CLIENT, key, RECORDS)?;
        // Their syncs take far longer than a message.
        for node in (0..3).filter(|node| *node != old) {
            world.nodes[node].sync_lag_us = SYNC_LAG_US;
        }
        world.stand_still(old);
        let next = world.await_other_leader(group, old)?;
        for node in 0..3 {
            world.nodes[node].sync_lag_us = 0;
        }
        let voter = (0..3).find(|node| ![old, next].contains(node));
        let voter = voter.ok_or("three nodes are needed")?;
        world.cut_power_to_nothing(voter);
        world.isolate(next);
        world.start_later(voter, 20);
        world.await_that("the voter", 5_000, |world| world.nodes[voter].accepts())?;
        world.send_with(CLIENT, key, RECORDS, false, 60_000);
        world.resume(old);
        // Long enough for anything that the old leader could still do in its term; then
        // the two elect one of them.
        world.pass(250)?;
        world.isolate(old);
        world.join(next, voter);
        world.pass(ELECTIONS_MS)?;
        world.finish()?;
        world.nothing_is_lost()
    })
}

impl World {
    /// Records are confirmed on the leader and one follower; the third is cut off and
    /// lacks them, and nobody synced them.
    fn written_on_two(&mut self, mode: Mode) -> Checked<(Key, Cast)> {
        let key = self.declare_at(0, mode)?;
        self.confirm_records(CLIENT, key, RECORDS)?;
        let cast = self.cast(key)?;
        self.bring(CLIENT, cast.leader)?;
        self.pass(200)?;
        self.isolate(cast.third);
        let batch = self.confirm_records(CLIENT, key, RECORDS)?;
        let first = self.journal.batches[batch].first_id;
        let rec = self.journal.record(first)?;
        let expected = 1 << cast.leader | 1 << cast.second;
        if rec.written_on != expected || rec.durable_on != 0 {
            return Err(format!(
                "not arranged: the records are on others than {expected:b}, or durable: {rec:?}"
            ));
        }
        Ok((key, cast))
    }

    /// T2: the follower is back without the records, the third never had them, the
    /// leader is down.
    fn wait_without_leader(&mut self) -> Checked<(Key, Cast)> {
        let (key, cast) = self.written_on_two(Mode::Buffered)?;
        let group = self.group(key)?;
        let before = self.newest_reign(group);
        self.crash(cast.leader);
        self.cut_power_to_nothing(cast.second);
        self.join_all(cast.third);
        self.start_later(cast.second, 50);
        self.bring(CLIENT, cast.third)?;
        let waiting = self.send_with(CLIENT, key, RECORDS, false, 2_000);
        self.pass(ELECTIONS_MS)?;
        let after = self.newest_reign(group);
        if after != before {
            return Err(format!("group {group} is led again, in {after:?}"));
        }
        if self.fate(waiting) == Fate::Confirmed {
            return Err("a group that waits confirms".to_owned());
        }
        Ok((key, cast))
    }

    /// No record is reported as lost. A new generation that lost nothing is no loss:
    /// one may be ordered while the replica that has everything is down.
    fn nothing_is_lost(&self) -> Checked<()> {
        match self.journal.lost {
            0 => Ok(()),
            lost => Err(format!("{lost} records are reported lost")),
        }
    }
}
