//! A disk without room: what is refused, what goes on in the reserve, what is
//! said when that is used up, and how it ends.

use super::*;

const FULL: u16 = ErrorCode::DiskFull as u16;

/// Segments of 16 KiB and a client: four batches fill one.
fn cramped(seed: u64) -> Checked<World> {
    let mut settings = Settings::calm(1);
    settings.log.segment_bytes = 16 << 10;
    served(seed, settings)
}

impl World {
    fn set_free(&mut self, bytes: Option<u64>) {
        for shard in &self.node.shards {
            shard.disk.set_free_bytes(bytes);
        }
        self.node.data.set_free_bytes(bytes);
    }

    fn answer_to_publish(&mut self, key: Key) -> Checked<Answer> {
        let correlation = self.publish(CLIENT, key, &one(60));
        self.await_answer(CLIENT, correlation)
    }

    /// Takes the disk's room and publishes until that is refused, for sure.
    fn fill(&mut self, key: Key) -> Checked<()> {
        self.set_free(Some(0));
        for _ in 0..200 {
            match self.answer_to_publish(key)? {
                Answer::Confirmed { .. } => {}
                Answer::Error {
                    code: FULL,
                    unknown: false,
                } => return Ok(()),
                answer => return Err(format!("neither confirmed nor DiskFull: {answer:?}")),
            }
        }
        Err("200 publishes fit on a full disk".to_owned())
    }

    /// Purges, waits and publishes by turns; how many publishes were taken.
    fn take_turns(&mut self, key: Key) -> Checked<u64> {
        let mut taken = 0;
        for _ in 0..30 {
            let correlation = self.purge(CLIENT, key);
            assert_eq!(self.await_answer(CLIENT, correlation)?, Answer::Done);
            self.pass(1_000)?;
            let answer = self.answer_to_publish(key)?;
            taken += u64::from(matches!(answer, Answer::Confirmed { .. }));
        }
        Ok(taken)
    }

    fn info_of(&mut self, key: Key) -> Checked<super::super::requests::Info> {
        let correlation = self.info(CLIENT, key);
        match self.await_answer(CLIENT, correlation)? {
            Answer::Info(info) => Ok(info),
            answer => Err(format!("no info: {answer:?}")),
        }
    }

    /// Acknowledges what is held one by one, confirmed, until an answer is
    /// `DiskFull`: the reserve is used up. What is held and was not settled stays.
    fn use_up_the_reserve(&mut self) -> Checked<()> {
        loop {
            let link = self.clients[CLIENT].link.as_mut();
            let Some(item) = link.and_then(|link| link.held.pop()) else {
                return Err("every settle fitted".to_owned());
            };
            let asked_us = self.now_us;
            let kind = SettleKind::Acknowledge;
            let correlation = self.settle(CLIENT, kind, vec![item], true, 0, true);
            match self.await_answer(CLIENT, correlation)? {
                Answer::Settled { accepted: 1, .. } => {}
                Answer::Error {
                    code: FULL,
                    unknown: true,
                } => {
                    let waited_ms = (self.now_us - asked_us) / 1000;
                    assert!(waited_ms < 15_000, "told after {waited_ms} ms");
                    return Ok(());
                }
                answer => return Err(format!("neither settled nor DiskFull: {answer:?}")),
            }
        }
    }
}

/// F27: on a full disk consumers are served, and settles, purges and deletes
/// succeed. No byte of the disk is given back meanwhile.
#[test]
fn f27_settle_purge_and_delete_succeed_on_a_full_disk() {
    over(12, |seed| {
        let mut world = cramped(seed)?;
        let queue = world.declared_queue("d", Mode::Durable, 1)?;
        let other = world.declared_queue("other", Mode::Durable, 1)?;
        world.confirmed((queue, 0), 6)?;
        world.confirmed((other, 0), 2)?;
        world.fill((queue, 0))?;

        let correlation = world.declare(CLIENT, "new", Mode::Durable, 1, 30_000);
        let answer = world.await_answer(CLIENT, correlation)?;
        let refused = Answer::Error {
            code: FULL,
            unknown: false,
        };
        assert_eq!(answer, refused);
        assert_eq!(world.declared_queue("d", Mode::Durable, 1)?, queue);

        world.subscribe(CLIENT, (queue, 0), 5, 1 << 20);
        world.await_held(5)?;
        let answer = world.settle_all(SettleKind::Acknowledge)?;
        assert!(matches!(answer, Answer::Settled { accepted: 5, .. }));
        let correlation = world.purge(CLIENT, (queue, 0));
        assert_eq!(world.await_answer(CLIENT, correlation)?, Answer::Done);
        assert_eq!(world.info_of((queue, 0))?.unsettled(), 0);
        let correlation = world.delete(CLIENT, other);
        assert_eq!(world.await_answer(CLIENT, correlation)?, Answer::Done);
        world.crash(seed % 2 == 0);
        world.finish()
    });
}

/// F27: what was settled gives its segments back, and publishes are taken
/// again on the disk that is still full.
#[test]
fn f27_bytes_come_back_on_a_disk_that_stays_full() {
    over(12, |seed| {
        let mut world = cramped(seed)?;
        let queue = world.declared_queue("d", Mode::Durable, 1)?;
        world.confirmed((queue, 0), 40)?;
        world.pass(2_000)?;
        world.fill((queue, 0))?;
        let taken = world.take_turns((queue, 0))?;
        assert!(taken > 20, "{taken} publishes were taken");
        world.finish()
    });
}

/// F27: also where the disk was full before there was any checkpoint.
#[test]
fn f27_bytes_come_back_on_a_disk_that_was_full_from_the_first_record_on() {
    over(12, |seed| {
        let mut world = served(seed, Settings::calm(1))?;
        let queue = world.declared_queue("d", Mode::Durable, 1)?;
        world.pass(1_000)?;
        world.fill((queue, 0))?;
        let taken = world.take_turns((queue, 0))?;
        assert!(taken > 20, "{taken} publishes were taken");
        world.finish()
    });
}

/// F25: when there is space again, publishes are taken again, with no restart.
#[test]
fn f25_space_that_comes_back_is_taken_up_without_a_restart() {
    over(12, |seed| {
        let mut world = cramped(seed)?;
        let queue = world.declared_queue("d", Mode::Durable, 1)?;
        world.fill((queue, 0))?;
        world.set_free(None);
        // The next try to make a segment.
        world.pass(6_000)?;
        world.confirmed((queue, 0), 20)?;
        world.declared_queue("new", Mode::Buffered, 1)?;
        world.finish()
    });
}

/// F25: a start needs no new room, also after a power cut and over and over.
#[test]
fn f25_starts_on_a_full_disk_serve() {
    over(12, |seed| {
        let mut world = cramped(seed)?;
        let queue = world.declared_queue("d", Mode::Durable, 1)?;
        world.confirmed((queue, 0), 3)?;
        world.fill((queue, 0))?;
        for _ in 0..3 {
            world.crash(seed % 2 == 0);
            world.set_free(Some(0));
            world.start_life()?;
            world.await_that("serving", 1_000, |world| world.node.accepting)?;
            // Time enough to see that the disk is full, and not yet for the
            // next life's luck: the disk is only given room by this scenario.
            world.bring(CLIENT, 0);
            world.set_free(Some(0));
            world.subscribe(CLIENT, (queue, 0), 1, 1 << 20);
            world.await_held(1)?;
            let answer = world.settle_all(SettleKind::Acknowledge)?;
            assert!(matches!(answer, Answer::Settled { accepted: 1, .. }));
        }
        world.set_free(None);
        world.pass(6_000)?;
        world.confirmed((queue, 0), 3)?;
        world.finish()
    });
}

/// With the reserve used up, whoever asks is told, leases end and are counted,
/// and everything takes effect once there is room.
#[test]
fn when_the_reserve_is_used_up_everyone_is_told_and_nothing_is_lost() {
    over(12, |seed| {
        let mut world = cramped(seed)?;
        let queue = world.declared_queue("d", Mode::Durable, 1)?;
        let other = world.declared_queue("other", Mode::Durable, 1)?;
        world.confirmed((queue, 0), 60)?;
        world.subscribe(CLIENT, (queue, 0), 60, 1 << 20);
        world.await_held(60)?;
        world.fill((other, 0))?;
        world.use_up_the_reserve()?;
        let told = Answer::Error {
            code: FULL,
            unknown: true,
        };
        let correlation = world.purge(CLIENT, (other, 0));
        assert_eq!(world.await_answer(CLIENT, correlation)?, told);
        let correlation = world.delete(CLIENT, other);
        assert_eq!(world.await_answer(CLIENT, correlation)?, told);

        // One settle is on its way; every other lease runs out, and nobody
        // holds its record then.
        world.pass(40_000)?;
        let info = world.info_of((queue, 0))?;
        assert_eq!(info.leased, 1, "{info:?}");
        assert!(info.ready > 0, "{info:?}");
        let left = info.ready;

        world.disconnect(CLIENT);
        world.set_free(None);
        // The next try to make a segment.
        world.pass(6_000)?;
        world.bring(CLIENT, 0);
        let info = world.info_of((queue, 0))?;
        assert_eq!((info.ready, info.leased), (left, 0), "{info:?}");
        world.subscribe(CLIENT, (queue, 0), 100, 1 << 20);
        world.await_held(left as usize)?;
        let answer = world.settle_all(SettleKind::Acknowledge)?;
        assert!(matches!(answer, Answer::Settled { accepted, .. } if u64::from(accepted) == left));
        world.finish()
    });
}

/// A stop on a full disk is clean while there is a reserve, and comes to its
/// end all the same when there is none.
#[test]
fn a_drain_on_a_full_disk_ends() {
    over(12, |seed| {
        let mut world = cramped(seed)?;
        let queue = world.declared_queue("d", Mode::Durable, 1)?;
        let used_up = seed % 2 == 0;
        world.confirmed((queue, 0), 60)?;
        world.subscribe(CLIENT, (queue, 0), 60, 1 << 20);
        world.await_held(60)?;
        world.fill((queue, 0))?;
        if used_up {
            world.use_up_the_reserve()?;
        }
        world.begin_drain();
        assert_eq!(world.finish_drain()?, !used_up);
        world.set_free(None);
        world.finish()
    });
}
