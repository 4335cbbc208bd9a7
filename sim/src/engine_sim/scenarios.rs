//! Directed scenarios: the windows that are too small for chance.

mod full_disk;

use wire::{
    error::ErrorCode,
    vocabulary::{Mode, SettleKind},
};

use super::{
    journal::{Key, QueueState},
    requests::{Answer, Held},
    sending::Publishing,
    settings::Settings,
    world::World,
    Checked,
};
use crate::Random;

/// The client that acts.
const CLIENT: usize = 1;

/// A serving world with one client on shard 0.
fn served(seed: u64, settings: Settings) -> Checked<World> {
    let mut world = World::new(Random::new(seed), settings);
    world.start()?;
    world.bring(CLIENT, 0);
    Ok(world)
}

fn one(len: usize) -> Publishing {
    Publishing {
        lengths: vec![len],
        ..Publishing::default()
    }
}

impl World {
    fn declared_queue(&mut self, name: &str, mode: Mode, partitions: u16) -> Checked<u64> {
        let lease_ms = self.settings.lease_ms.0;
        let correlation = self.declare(CLIENT, name, mode, partitions, lease_ms);
        match self.await_answer(CLIENT, correlation)? {
            Answer::Queue { queue_id, .. } => Ok(queue_id),
            answer => Err(format!("{name} was not declared: {answer:?}")),
        }
    }

    /// Publishes `count` records, one batch each, and awaits their confirms.
    fn confirmed(&mut self, key: Key, count: usize) -> Checked<()> {
        for _ in 0..count {
            let correlation = self.publish(CLIENT, key, &one(60));
            match self.await_answer(CLIENT, correlation)? {
                Answer::Confirmed { .. } => {}
                answer => return Err(format!("not confirmed: {answer:?}")),
            }
        }
        Ok(())
    }

    /// The next life, audited.
    fn again(&mut self) -> Checked<()> {
        self.start()?;
        self.audit(true)
    }

    /// The end of every scenario: drain, check, restart, check again.
    fn finish(&mut self) -> Checked<()> {
        self.settings.rates.boot_crash = 0;
        if self.node.down {
            self.again()?;
        }
        for client in 1..self.clients.len() {
            self.disconnect(client);
        }
        self.pass(100)?;
        self.drain_queues()?;
        self.audit(false)?;
        self.crash(true);
        self.again()?;
        self.crash(false);
        self.again()
    }

    fn losses(&self, key: Key) -> &[(u32, u64)] {
        &self.journal.parts[&key].losses
    }

    /// Receives until `count` deliveries are held.
    fn await_held(&mut self, count: usize) -> Checked<()> {
        self.await_that("deliveries", 10_000, |world| {
            let link = world.clients[CLIENT].link.as_ref();
            link.is_some_and(|link| link.held.len() >= count)
        })
    }

    fn settle_all(&mut self, kind: SettleKind) -> Checked<Answer> {
        let link = self.clients[CLIENT].link.as_mut();
        let held = link.map(|link| std::mem::take(&mut link.held));
        let correlation = self.settle(CLIENT, kind, held.unwrap_or_default(), true, 0, true);
        self.await_answer(CLIENT, correlation)
    }
}

/// Runs a scenario for some seeds: the disk decides what a power cut leaves.
fn over(seeds: u64, scenario: impl Fn(u64) -> Checked<()>) {
    for seed in 0..seeds {
        if let Err(failure) = scenario(seed) {
            panic!("seed {seed}: {failure}");
        }
    }
}

#[test]
fn what_was_confirmed_durable_survives_a_power_cut() {
    over(12, |seed| {
        let mut world = served(seed, Settings::calm(1 + (seed % 2) as u16))?;
        for (name, mode) in [("d", Mode::Durable), ("s", Mode::Speculative)] {
            let queue = world.declared_queue(name, mode, 2)?;
            world.confirmed((queue, 0), 5)?;
            world.confirmed((queue, 1), 3)?;
        }
        let buffered = world.declared_queue("b", Mode::Buffered, 1)?;
        let what = Publishing {
            lengths: vec![10, 20_000, 90_000],
            durable: true,
            ..Publishing::default()
        };
        let correlation = world.publish(CLIENT, (buffered, 0), &what);
        let answer = world.await_answer(CLIENT, correlation)?;
        assert!(matches!(answer, Answer::Confirmed { durable: true, .. }));
        world.crash(true);
        world.again()?;
        world.bring(CLIENT, 0);
        let correlation = world.info(CLIENT, (buffered, 0));
        let Answer::Info(info) = world.await_answer(CLIENT, correlation)? else {
            return Err("no info".to_owned());
        };
        assert_eq!((info.ready, info.written_next), (3, 3));
        world.finish()
    });
}

#[test]
fn what_was_confirmed_written_survives_a_process_crash_and_needs_no_new_generation() {
    over(6, |seed| {
        let mut world = served(seed, Settings::calm(2))?;
        world.settings.log.background_sync_interval_ms = 0;
        let queue = world.declared_queue("b", Mode::Buffered, 2)?;
        world.confirmed((queue, 0), 6)?;
        world.confirmed((queue, 1), 6)?;
        world.crash(false);
        world.again()?;
        assert!(world.losses((queue, 0)).is_empty() && world.losses((queue, 1)).is_empty());
        world.finish()
    });
}

#[test]
fn a_loss_report_is_exact() {
    let mut lost = 0;
    for seed in 0..24 {
        let mut settings = Settings::calm(1);
        settings.log.background_sync_interval_ms = 0;
        let mut world = served(seed, settings).unwrap();
        let queue = world.declared_queue("b", Mode::Buffered, 1).unwrap();
        let key = (queue, 0);
        world.confirmed(key, 7).unwrap();
        let correlation = world.barrier(CLIENT, key, 0);
        world.await_answer(CLIENT, correlation).unwrap();
        world.confirmed(key, 9).unwrap();
        world.crash(true);
        // The audit compares every offset with the report.
        world.again().unwrap();
        let &[(1, first_lost)] = world.losses(key) else {
            panic!("seed {seed}: {:?}", world.losses(key));
        };
        assert!((7..=16).contains(&first_lost), "seed {seed}: {first_lost}");
        lost += u64::from(first_lost < 16);
        world.bring(CLIENT, 0);
        world.confirmed(key, 3).unwrap();
        world.finish().unwrap();
    }
    assert!(lost > 2, "the power cuts lost nothing");
}

/// F16, F17: the second restart shows what the first one hid.
#[test]
fn crashes_in_a_row_and_during_boot_hide_nothing() {
    over(20, |seed| {
        let mut world = served(seed, Settings::calm(2))?;
        let durable = world.declared_queue("d", Mode::Durable, 1)?;
        let buffered = world.declared_queue("b", Mode::Buffered, 1)?;
        world.confirmed((durable, 0), 3)?;
        world.confirmed((buffered, 0), 3)?;
        // Writes in flight: holes and torn batches behind what was confirmed.
        for _ in 0..6 {
            world.publish(CLIENT, (durable, 0), &one(3_000));
            world.publish(CLIENT, (buffered, 0), &one(3_000));
        }
        world.pass(seed % 3)?;
        world.crash(seed % 2 == 0);
        world.settings.rates.boot_crash = 90;
        world.settings.rates.power_cut = 50;
        for _ in 0..6 {
            world.start_life()?;
            world.await_that("an end", 60_000, |world| {
                world.node.down || world.node.accepting
            })?;
            if !world.node.down {
                world.crash(seed % 3 == 0);
            }
        }
        world.settings.rates.boot_crash = 0;
        world.again()?;
        world.bring(CLIENT, 0);
        world.confirmed((durable, 0), 2)?;
        world.subscribe(CLIENT, (durable, 0), 3, 1 << 20);
        world.await_held(3)?;
        let answer = world.settle_all(SettleKind::Acknowledge)?;
        assert_eq!(
            answer,
            Answer::Settled {
                accepted: 3,
                durable: true
            }
        );
        world.crash(true);
        world.again()?;
        world.crash(true);
        world.again()?;
        world.finish()
    });
}

/// F24: a sync fails once; a later one would "succeed".
#[test]
fn a_sync_that_fails_once_confirms_nothing_and_loses_nothing() {
    over(12, |seed| {
        let mut world = served(seed, Settings::calm(1))?;
        let durable = world.declared_queue("d", Mode::Durable, 1)?;
        let buffered = world.declared_queue("b", Mode::Buffered, 1)?;
        world.confirmed((durable, 0), 2)?;
        world.confirmed((buffered, 0), 2)?;
        world.node.shards[0].disk.fail_syncs(1);
        let correlation = world.publish(CLIENT, (durable, 0), &one(200));
        let answer = world.await_answer(CLIENT, correlation)?;
        let told = matches!(answer, Answer::Error { unknown: true, .. } | Answer::Gone);
        assert!(told, "{answer:?}");
        world.await_that("the reopening", 20_000, |world| {
            world.node.shards[0].life == 2 && world.node.shards[0].serving
        })?;
        world.pass(500)?;
        world.bring(CLIENT, 0);
        world.confirmed((durable, 0), 2)?;
        world.crash(seed % 2 == 0);
        world.again()?;
        world.finish()
    });
}

/// F47: a settle races the end of its lease.
#[test]
fn a_settle_at_the_end_of_its_lease_stands_or_is_refused() {
    let (mut stood, mut refused) = (0, 0);
    for step in 0..60u64 {
        let mut settings = Settings::calm(1);
        settings.lease_ms = (100, 100);
        let mut world = served(step, settings).unwrap();
        let mode = if step % 2 == 0 {
            Mode::Durable
        } else {
            Mode::Buffered
        };
        let queue = world.declared_queue("q", mode, 1).unwrap();
        world.confirmed((queue, 0), 1).unwrap();
        world.subscribe(CLIENT, (queue, 0), 1, 1 << 20);
        world.await_held(1).unwrap();
        world.pass(93).unwrap();
        world.now_us += step * 170;
        match world.settle_all(SettleKind::Acknowledge).unwrap() {
            Answer::Settled { accepted: 1, .. } => stood += 1,
            Answer::Settled { accepted: 0, .. } => refused += 1,
            answer => panic!("{answer:?}"),
        }
        // A second delivery of what stood breaks a rule of the oracle.
        world.pass(400).unwrap();
        world.crash(step % 3 == 0);
        world.again().unwrap();
        world.finish().unwrap();
    }
    assert!(
        stood > 5 && refused > 5,
        "{stood} stood, {refused} were refused"
    );
}

#[test]
fn a_deleted_queue_stays_deleted() {
    over(24, |seed| {
        let mut world = served(seed, Settings::calm(2))?;
        let mode = Mode::ALL[(seed % 3) as usize];
        let queue = world.declared_queue("q", mode, 3)?;
        world.confirmed((queue, 1), 4)?;
        let correlation = world.delete(CLIENT, queue);
        assert_eq!(world.await_answer(CLIENT, correlation)?, Answer::Done);
        world.pass(seed / 6)?;
        world.crash(seed % 2 == 0);
        world.again()?;
        assert_eq!(world.journal.queues[&queue].state, QueueState::Deleted);
        world.bring(CLIENT, 1);
        let other = world.declared_queue("q", mode, 3)?;
        assert_ne!(other, queue);
        world.confirmed((other, 1), 1)?;
        world.finish()
    });
}

/// Crashes at every step between group 0's entry and the partitions' entries.
#[test]
fn a_declare_that_a_crash_cuts_short_is_done_or_not_done() {
    for step in 0..60u64 {
        let mut world = served(step, Settings::calm(2)).unwrap();
        world.clients[CLIENT].keep_answers = true;
        let correlation = world.declare(CLIENT, "q", Mode::Buffered, 3, 30_000);
        world.pass_us(step * 60).unwrap();
        let answered = world.clients[CLIENT].answers.contains_key(&correlation);
        world.crash(step % 2 == 0);
        world.again().unwrap();
        world.bring(CLIENT, 1);
        let queue = world.declared_queue("q", Mode::Buffered, 3);
        let queue = match queue {
            Ok(queue) => queue,
            Err(failure) => panic!("step {step}, answered {answered}: {failure}"),
        };
        for partition in 0..3 {
            world.confirmed((queue, partition), 1).unwrap();
        }
        world.finish().unwrap();
    }
}

/// A power cut, and crashes at every step of the boot that begins the new
/// generation.
#[test]
fn a_new_generation_that_a_crash_cuts_short_loses_no_report() {
    for step in 0..60u64 {
        let mut settings = Settings::calm(2);
        settings.log.background_sync_interval_ms = 0;
        let mut world = served(step, settings).unwrap();
        let queue = world.declared_queue("b", Mode::Buffered, 3).unwrap();
        for partition in 0..3 {
            world.confirmed((queue, partition), 5).unwrap();
        }
        world.crash(true);
        world.start_life().unwrap();
        world.pass_us(step * 130).unwrap();
        world.crash(step % 2 == 0);
        world.again().unwrap();
        for partition in 0..3 {
            let losses = world.losses((queue, partition)).to_vec();
            assert_eq!(losses.first().map(|loss| loss.0), Some(1), "{losses:?}");
        }
        world.bring(CLIENT, 0);
        for partition in 0..3 {
            world.confirmed((queue, partition), 2).unwrap();
        }
        world.crash(true);
        world.again().unwrap();
        world.finish().unwrap();
    }
}

/// A consumer on a shard that latches, of a partition of another shard.
#[test]
fn what_a_reopened_shards_clients_held_elsewhere_is_given_back() {
    over(6, |seed| {
        let mut settings = Settings::calm(2);
        settings.lease_ms = (600_000, 600_000);
        let mut world = served(seed, settings)?;
        let queue = world.declared_queue("d", Mode::Durable, 2)?;
        let key = (queue, 0);
        let owner = world.journal.shard_of(key).unwrap_or(0);
        let other = 1 - owner;
        world.disconnect(CLIENT);
        world.bring(CLIENT, other);
        world.confirmed(key, 4)?;
        world.subscribe(CLIENT, key, 10, 1 << 20);
        world.await_held(4)?;
        world.node.shards[usize::from(other)].disk.fail_syncs(1);
        world.node.shards[usize::from(other)].disk.fail_writes(1);
        // Whatever makes that shard write.
        let elsewhere = (queue, 1);
        assert_eq!(world.journal.shard_of(elsewhere), Some(other));
        world.publish(CLIENT, elsewhere, &one(10));
        world.await_that("the reopening", 20_000, |world| {
            world.node.shards[usize::from(other)].life == 2
        })?;
        world.pass(500)?;
        world.bring(2, owner);
        let correlation = world.info(2, key);
        let Answer::Info(info) = world.await_answer(2, correlation)? else {
            return Err("no info".to_owned());
        };
        assert_eq!((info.ready, info.leased, info.consumers), (4, 0, 0));
        world.finish()
    });
}

/// A backlog far beyond the caches comes back in order, byte for byte.
#[test]
fn a_backlog_on_disk_is_delivered_in_order() {
    over(4, |seed| {
        let mut settings = Settings::calm(1);
        settings.log.cache_bytes = 8 << 10;
        settings.read_cache_bytes = 1 << 20;
        let mut world = served(seed, settings)?;
        let queue = world.declared_queue("b", Mode::Buffered, 1)?;
        for round in 0..60 {
            let what = Publishing {
                lengths: vec![900; 1 + (round + seed as usize) % 9],
                ..Publishing::default()
            };
            let correlation = world.publish(CLIENT, (queue, 0), &what);
            world.await_answer(CLIENT, correlation)?;
        }
        // The oracle checks bytes and order.
        world.subscribe(CLIENT, (queue, 0), 1_000, 1 << 30);
        let published = world.journal.records.len();
        world.await_held(published)?;
        // Reads went on while the log grew.
        world.confirmed((queue, 0), 3)?;
        world.finish()
    });
}

/// A write fails with leases out, acknowledges under way and a full disk.
#[test]
fn a_failed_write_on_a_full_disk_is_survived() {
    over(8, |seed| {
        let mut world = served(seed, Settings::calm(1))?;
        let queue = world.declared_queue("d", Mode::Durable, 1)?;
        world.confirmed((queue, 0), 5)?;
        world.subscribe(CLIENT, (queue, 0), 5, 1 << 20);
        world.await_held(5)?;
        let disk = world.node.shards[0].disk.clone();
        disk.set_free_bytes(Some(seed * 500));
        disk.fail_writes(1);
        let held = world.clients[CLIENT]
            .link
            .as_mut()
            .map(|link| link.held.clone());
        let items = held.unwrap_or_default();
        world.settle(CLIENT, SettleKind::Acknowledge, items, true, 0, true);
        world.pass(30_000)?;
        disk.set_free_bytes(None);
        world.await_that("the reopening", 60_000, |world| {
            world.node.shards[0].life == 2 && !world.node.shards[0].latched
        })?;
        // The next try to make a segment.
        world.pass(10_000)?;
        world.bring(CLIENT, 0);
        world.confirmed((queue, 0), 1)?;
        world.crash(seed % 2 == 0);
        world.finish()
    });
}

/// The server's own deadline, and the way of the answer.
const DEADLINE_MS: u64 = 30_000 + 500;

fn is_refused(answer: &Answer, expected: ErrorCode) -> bool {
    matches!(answer, Answer::Error { code, .. } if *code == expected as u16)
}

impl World {
    /// A settle, a purge, a declare and a delete; `held` is settled.
    fn ask_everything(&mut self, key: Key, held: &Held, name: &str) -> [u64; 4] {
        let settled = vec![*held];
        let lease_ms = self.settings.lease_ms.0;
        [
            self.settle(CLIENT, SettleKind::Acknowledge, settled, true, 0, true),
            self.purge(CLIENT, key),
            self.declare(CLIENT, name, Mode::Durable, 1, lease_ms),
            self.delete(CLIENT, 12_345),
        ]
    }

    fn held(&self) -> Vec<Held> {
        let link = self.clients[CLIENT].link.as_ref();
        link.map(|link| link.held.clone()).unwrap_or_default()
    }

    /// Every answer came, none says that it was done.
    fn all_refused(&mut self, asked: &[u64], expected: ErrorCode) -> Checked<()> {
        for correlation in asked {
            let answers = &mut self.clients[CLIENT].answers;
            match answers.remove(correlation) {
                Some(answer) if is_refused(&answer, expected) => {}
                answer => return Err(format!("{correlation}: {answer:?}")),
            }
        }
        Ok(())
    }
}

/// A disk that stands still for longer than any deadline: whatever waits for a
/// write is answered by then, and takes effect or not when the disk goes on.
#[test]
fn on_a_disk_that_stands_still_every_request_is_answered() {
    over(4, |seed| {
        let mut world = served(seed, Settings::calm(1))?;
        let queue = world.declared_queue("d", Mode::Durable, 1)?;
        let key = (queue, 0);
        world.confirmed(key, 5)?;
        world.subscribe(CLIENT, key, 5, 1 << 20);
        world.await_held(5)?;
        world.still_until_us = world.now_us + 60_000_000;
        let held = world.held();
        let item = held.first().ok_or("nothing is held")?;
        let asked = world.ask_everything(key, item, "another");
        world.pass(DEADLINE_MS)?;
        world.all_refused(&asked, ErrorCode::Deadline)?;
        world.pass(30_000)?;
        world.confirmed(key, 1)?;
        world.crash(seed % 2 == 0);
        world.finish()
    });
}

/// A log that latches and cannot be reopened yet: whoever waits is told, and
/// whoever asks is refused.
#[test]
fn a_latched_log_answers_every_request() {
    over(4, |seed| {
        let mut world = served(seed, Settings::calm(1))?;
        let queue = world.declared_queue("d", Mode::Durable, 1)?;
        let key = (queue, 0);
        world.confirmed(key, 5)?;
        world.subscribe(CLIENT, key, 5, 1 << 20);
        world.await_held(5)?;
        let held = world.held();
        let [one, other, ..] = held[..] else {
            return Err("too few are held".to_owned());
        };
        world.node.shards[0].disk.fail_syncs(1);
        world.node.shards[0].disk.fail_writes(1);
        let before = world.ask_everything(key, &one, "before");
        world.await_that("the latch", 1_000, |world| world.node.shards[0].latched)?;
        let after = world.ask_everything(key, &other, "after");
        // Less than the first try to reopen takes.
        world.pass(50)?;
        for [settle, purge, declare, delete] in [before, after] {
            world.all_refused(&[settle, purge, delete], ErrorCode::Latched)?;
            let declared = world.clients[CLIENT].answers.get(&declare);
            // It may have arrived before the latch or behind it.
            match declared.is_some_and(|answer| is_refused(answer, ErrorCode::Unavailable)) {
                true => world.all_refused(&[declare], ErrorCode::Unavailable)?,
                false => world.all_refused(&[declare], ErrorCode::Latched)?,
            }
        }
        world.await_that("the reopening", 20_000, |world| {
            world.node.shards[0].life == 2 && world.node.shards[0].serving
        })?;
        world.pass(500)?;
        world.bring(CLIENT, 0);
        world.confirmed(key, 1)?;
        world.finish()
    });
}
