//! Directed scenarios that the mutation check needs too, not only the tests.

use wire::vocabulary::Mode;

use super::{requests::Answer, settings::Settings, world::World, Checked};
use crate::Random;

/// The client that acts.
const CLIENT: usize = 1;
/// Partitions enough that a capture takes many turns.
const WIDE_QUEUES: usize = 3;
const WIDE_PARTITIONS: u16 = 1024;
/// Declares in a life at most.
const MOST_ROUNDS: usize = 3_000;
/// One in this many declared queues stays.
const KEPT: usize = 40;

/// Queues are declared and deleted all the time, also while a checkpoint is
/// captured; then the process dies. What the checkpoint covers must not be done
/// again: a queue that was deleted would be declared anew, and every later one
/// would get another id.
///
/// # Errors
/// The promise that was broken.
pub fn declares_during_a_capture(seed: u64) -> Result<(), String> {
    let mut settings = Settings::calm(1);
    settings.log.segment_bytes = 256 << 10;
    (settings.write_us, settings.sync_us) = (4, 4);
    let mut world = World::new(Random::new(seed), settings);
    world.start()?;
    world.bring(CLIENT, 0);
    for n in 0..WIDE_QUEUES {
        world.declare_now(&format!("wide-{n}"), WIDE_PARTITIONS)?;
    }
    for life in 0..2 {
        let checkpoints = world.node.checkpoints + 2;
        for round in 0..MOST_ROUNDS {
            let queue = world.declare_now(&format!("{life}-{round}"), 1)?;
            if round % KEPT != 0 {
                let correlation = world.delete(CLIENT, queue);
                world.await_answer(CLIENT, correlation)?;
            }
            if world.node.checkpoints >= checkpoints && round % KEPT == 0 {
                break;
            }
        }
        if world.node.checkpoints < checkpoints {
            return Err("no checkpoint was published".to_owned());
        }
        world.crash(seed.is_multiple_of(2));
        world.start()?;
        world.audit(true)?;
        world.bring(CLIENT, 0);
    }
    Ok(())
}

/// Declares so many queues of one partition each and says how much of what
/// `held` counts goes when the engine goes; `restarted`: after a start.
///
/// # Errors
/// The promise that was broken.
pub fn bytes_of_idle_queues(
    count: usize,
    restarted: bool,
    held: &dyn Fn() -> u64,
) -> Result<u64, String> {
    let mut settings = Settings::calm(1);
    settings.log.segment_bytes = 256 << 10;
    (settings.write_us, settings.sync_us) = (4, 4);
    let mut world = World::new(Random::new(0), settings);
    world.start()?;
    world.bring(CLIENT, 0);
    for number in 0..count {
        world.declare_now(&format!("idle-{number}"), 1)?;
    }
    if restarted {
        world.crash(false);
        world.start()?;
    }
    let before = held();
    drop(world.node.shard(0).engine.take());
    Ok(before.saturating_sub(held()))
}

impl World {
    fn declare_now(&mut self, name: &str, partitions: u16) -> Checked<u64> {
        let lease_ms = self.settings.lease_ms.0;
        let correlation = self.declare(CLIENT, name, Mode::Durable, partitions, lease_ms);
        match self.await_answer(CLIENT, correlation)? {
            Answer::Queue { queue_id, .. } => Ok(queue_id),
            answer => Err(format!("{name} was not declared: {answer:?}")),
        }
    }
}
