//! What one run is to do, and which connection does which part of it.

use std::time::Duration;

use wire::{
    codec,
    error::{ErrorCode, WireError},
    frame::Kind,
    limits::MAX_BATCH_RECORDS,
    message::{Declare, Declared, QueueInfo, QueueInfoReply, ANY_SHARD},
    vocabulary::Mode,
};

use crate::{conn::Connection, error::LoadError, producer::Target, sys, units::SizeRange};

/// How long a declaration is asked for again.
const PATIENCE_NS: u64 = 10_000_000_000;
const PAUSE_NS: u64 = 50_000_000;

/// Settings of one run, as typed or defaulted.
#[derive(Debug, Clone)]
pub struct Settings {
    /// One address, or several nodes of a cluster separated by commas.
    pub server: String,
    /// Queue name; with several queues, `-0`, `-1`… are appended.
    pub queue: String,
    /// The queues take these in turn.
    pub modes: Vec<Mode>,
    pub queues: u32,
    /// Per queue; 0 = as it is, or 1.
    pub partitions: u16,
    pub producers: u32,
    pub consumers: u32,
    pub size: SizeRange,
    pub batch: u32,
    pub drive: Drive,
    pub warmup: Duration,
    pub duration: Duration,
    pub drain: Duration,
    pub deadline_ms: u32,
    /// Per subscription; 0 = chosen from the number of subscriptions.
    pub credit_records: u32,
    pub credit_bytes: u64,
    pub settle_sample: u64,
    pub spin: Duration,
    /// Measure second by second too.
    pub series: bool,
    pub pin_core: Option<usize>,
    pub server_pid: Option<u32>,
}

/// What makes producers send.
#[derive(Debug, Clone, PartialEq)]
pub enum Drive {
    /// Open loop by intended time.
    Open {
        /// Records per second over all producers; 0 = bursts only.
        rate: f64,
        bursts: Vec<u64>,
        every: Duration,
    },
    /// Closed window: publish as fast as answers come.
    Closed {
        /// Publishes in flight per producer; 0 = fill the window.
        batches: usize,
        /// Records sent and not yet received, over all producers.
        max_lag: u64,
    },
}

impl Settings {
    /// Refuses what cannot be run.
    ///
    /// # Errors
    /// A sentence for the user: wrong usage.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=MAX_BATCH_RECORDS).contains(&self.batch) {
            return Err(format!("--batch is 1 to {MAX_BATCH_RECORDS} records"));
        }
        if self.producers == 0 || self.queues == 0 {
            return Err("--producers and --queues are at least 1".into());
        }
        if self.producers > 4096 || self.consumers > 4096 || self.queues > 100_000 {
            return Err("at most 4096 producers, 4096 consumers and 100000 queues".into());
        }
        if self.duration.is_zero() || self.duration + self.warmup > Duration::from_secs(86_400) {
            return Err("--duration is more than nothing and at most a day".into());
        }
        if let Drive::Open {
            rate,
            bursts,
            every,
        } = &self.drive
        {
            if *rate <= 0.0 && bursts.is_empty() {
                return Err("give --rate, --bursts or both".into());
            }
            if !bursts.is_empty() && every.is_zero() {
                return Err("--bursts need --every longer than nothing".into());
            }
        }
        for number in 0..self.queues {
            wire::name::check_name(&self.queue_name(number)).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn queue_name(&self, number: u32) -> String {
        if self.queues == 1 {
            self.queue.clone()
        } else {
            format!("{}-{number}", self.queue)
        }
    }

    fn mode_of(&self, queue: u32) -> (usize, Mode) {
        let row = queue as usize % self.modes.len().max(1);
        (row, self.modes.get(row).copied().unwrap_or(Mode::Durable))
    }

    /// Credit of one subscription of `subscriptions` on a connection. Together
    /// they stay within what the connection can hold in memory.
    pub fn credit(&self, subscriptions: usize) -> (u32, u64) {
        let subscriptions = subscriptions.max(1) as u64;
        let records = match self.credit_records {
            0 => (65_536 / subscriptions).clamp(256, 16_384) as u32,
            given => given,
        };
        let bytes = match self.credit_bytes {
            0 => (64 * 1024 * 1024 / subscriptions).clamp(256 * 1024, 16 * 1024 * 1024),
            given => given,
        };
        (records, bytes)
    }
}

/// Declares the queues and learns where their partitions are, in the order
/// (shard, mode, queue, partition): neighbours can share a connection.
///
/// # Errors
/// Refused (for example: the queue exists with another mode) or broken.
pub fn declare(control: &mut Connection, settings: &Settings) -> Result<Vec<Target>, LoadError> {
    let mut targets = vec![];
    for number in 0..settings.queues {
        let (row, mode) = settings.mode_of(number);
        let body = Declare {
            name: settings.queue_name(number),
            mode: mode as u8,
            partitions: settings.partitions,
            ..Default::default()
        };
        let reply = request_patiently(control, "declare", Kind::Declared, |out| {
            codec::encode(out, u64::from(number) + 1, &body)
        })?;
        let reply = codec::decode::<Declared>(&reply)?;
        for (partition, place) in reply.queue.partitions.iter().enumerate() {
            targets.push(Target {
                queue_id: reply.queue.queue_id.to_native(),
                partition: partition as u16,
                shard: place.shard.to_native(),
                mode,
                row,
            });
        }
    }
    targets.sort_by_key(|target| (target.shard, target.row));
    Ok(targets)
}

/// Asks again what a cluster puts off while it elects; nothing of it was done then.
fn request_patiently(
    control: &mut Connection,
    what: &'static str,
    expected: Kind,
    encode: impl Fn(&mut Vec<u8>) -> Result<(), WireError>,
) -> Result<Vec<u8>, LoadError> {
    let give_up = sys::now_ns() + PATIENCE_NS;
    loop {
        match control.request(what, expected, &encode) {
            Err(LoadError::Refused { code, .. })
                if code == ErrorCode::Unavailable as u16 && sys::now_ns() < give_up =>
            {
                sys::sleep_until(sys::now_ns() + PAUSE_NS);
            }
            answer => return answer,
        }
    }
}

/// What is in the queues, over all partitions.
#[derive(Debug, Clone, Copy, Default)]
pub struct Depth {
    /// Records not settled.
    pub unsettled: u64,
    /// Records written and not yet durable.
    pub unsynced: u64,
}

/// Asks what is in the queues.
///
/// # Errors
/// Refused or broken.
pub fn depth(control: &mut Connection, targets: &[Target]) -> Result<Depth, LoadError> {
    let mut depth = Depth::default();
    for (number, target) in targets.iter().enumerate() {
        let body = QueueInfo {
            queue_id: target.queue_id,
            partition: target.partition,
            ..Default::default()
        };
        let reply = control.request("queue info", Kind::QueueInfoReply, |out| {
            codec::encode(out, number as u64 + 1, &body)
        })?;
        let info = codec::decode::<QueueInfoReply>(&reply)?;
        depth.unsettled += info.gated.to_native()
            + info.ready.to_native()
            + info.delayed.to_native()
            + info.leased.to_native();
        depth.unsynced += info.unsynced_records.to_native();
    }
    Ok(depth)
}

/// The targets of worker `number` of `workers`: one shared target each when
/// there are more workers than targets, otherwise a run of neighbours.
pub fn share(targets: &[Target], number: u32, workers: u32) -> Vec<Target> {
    let (number, workers) = (number as usize, workers.max(1) as usize);
    if targets.is_empty() {
        return vec![];
    }
    if workers >= targets.len() {
        return targets
            .get(number % targets.len())
            .cloned()
            .into_iter()
            .collect();
    }
    let from = targets.len() * number / workers;
    let to = targets.len() * (number + 1) / workers;
    targets.get(from..to).unwrap_or_default().to_vec()
}

/// The shard to wish for: the owner's, when all targets have the same one.
pub fn wished_shard(targets: &[Target]) -> u16 {
    match targets.first() {
        Some(first) if targets.iter().all(|target| target.shard == first.shard) => first.shard,
        _ => ANY_SHARD,
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn settings(server: &str) -> Settings {
        Settings {
            server: server.to_owned(),
            queue: "load".into(),
            modes: vec![Mode::Durable],
            queues: 1,
            partitions: 0,
            producers: 1,
            consumers: 1,
            size: SizeRange { min: 64, max: 64 },
            batch: 1,
            drive: Drive::Open {
                rate: 1000.0,
                bursts: vec![],
                every: Duration::ZERO,
            },
            warmup: Duration::ZERO,
            duration: Duration::from_millis(300),
            drain: Duration::from_secs(10),
            deadline_ms: 0,
            credit_records: 0,
            credit_bytes: 0,
            settle_sample: 4,
            spin: Duration::ZERO,
            series: false,
            pin_core: None,
            server_pid: None,
        }
    }

    fn targets(shards: &[u16]) -> Vec<Target> {
        let target = |(partition, shard): (usize, &u16)| Target {
            queue_id: 1,
            partition: partition as u16,
            shard: *shard,
            mode: Mode::Durable,
            row: 0,
        };
        shards.iter().enumerate().map(target).collect()
    }

    #[test]
    fn every_target_is_served_and_neighbours_stay_together() {
        let all = targets(&[0, 0, 0, 1, 1, 1]);
        for workers in 1..=6 {
            let dealt: Vec<u16> = (0..workers)
                .flat_map(|number| share(&all, number, workers))
                .map(|target| target.partition)
                .collect();
            assert_eq!(dealt, [0, 1, 2, 3, 4, 5], "{workers} workers");
        }
        let two: Vec<_> = (0..2)
            .map(|number| wished_shard(&share(&all, number, 2)))
            .collect();
        assert_eq!(two, [0, 1]);
        assert_eq!(wished_shard(&all), ANY_SHARD);
    }

    #[test]
    fn more_workers_than_targets_share_them() {
        let all = targets(&[0, 1]);
        let of = |number| share(&all, number, 5)[0].partition;
        assert_eq!([of(0), of(1), of(2), of(3), of(4)], [0, 1, 0, 1, 0]);
    }

    #[test]
    fn settings_that_cannot_run_are_refused_in_words() {
        let good = settings("127.0.0.1:1");
        assert_eq!(good.check(), Ok(()));
        let wrong = [
            Settings {
                batch: 0,
                ..good.clone()
            },
            Settings {
                batch: 5000,
                ..good.clone()
            },
            Settings {
                producers: 0,
                ..good.clone()
            },
            Settings {
                duration: Duration::ZERO,
                ..good.clone()
            },
            Settings {
                queue: String::new(),
                ..good.clone()
            },
            Settings {
                drive: Drive::Open {
                    rate: 0.0,
                    bursts: vec![],
                    every: Duration::ZERO,
                },
                ..good.clone()
            },
        ];
        assert!(wrong.iter().all(|settings| settings.check().is_err()));
    }
}
