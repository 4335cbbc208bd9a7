//! What the fault tests share: server processes that die, journals of what was
//! promised, a client that speaks frames by hand, and the log as bytes.

// Each test target uses a part of it.
#![allow(dead_code)]

pub mod journal;
pub mod load;
pub mod log_bytes;
pub mod raw;
pub mod server;

use std::{
    future::Future,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use client::{Client, Counts, Error, QueueInfo};

/// Bound on each wait; only a broken program reaches it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Asks until it is answered: a node that starts, or elects, puts requests off.
pub async fn served<T, F>(mut ask: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, Error>>,
{
    let start = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// `full` when `TIDEGATE_TEST_SIZE=full`, else `small`.
pub fn size<T>(small: T, full: T) -> T {
    match std::env::var("TIDEGATE_TEST_SIZE").as_deref() {
        Ok("full") => full,
        _ => small,
    }
}

/// Numbers that look random; a run is repeated with `TIDEGATE_TEST_SEED`.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Seeded by the environment or the clock; the seed is printed.
    pub fn new(test: &str) -> Self {
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let seed = std::env::var("TIDEGATE_TEST_SEED")
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(clock.as_nanos() as u64);
        println!("{test}: TIDEGATE_TEST_SEED={seed}");
        Random(seed)
    }

    pub fn fork(&mut self) -> Self {
        Random(self.next())
    }

    /// splitmix64.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }
}

/// Ends a wait that would otherwise hang the test.
pub async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what} took longer than {PATIENCE:?}"),
    }
}

/// Waits until the queue's totals satisfy `condition`; gives them.
pub async fn await_counts(
    client: &Client,
    queue: &str,
    what: &str,
    condition: impl Fn(&Counts) -> bool,
) -> Counts {
    let mut last = Counts::default();
    let until = tokio::time::Instant::now() + PATIENCE;
    while tokio::time::Instant::now() < until {
        last = client.info(queue).await.unwrap().totals();
        if condition(&last) {
            return last;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("waited too long for {what}; the counters are {last:?}");
}

/// Every published record is in exactly one state.
pub fn assert_conserved(info: &QueueInfo) {
    for partition in &info.partitions {
        let c = &partition.counts;
        let there = c.gated + c.ready + c.delayed + c.leased;
        let gone = c.acknowledged + c.dropped + c.expired + c.dead_lettered + c.purged;
        assert_eq!(
            c.published,
            there + gone,
            "counters disagree in queue {:?}: {partition:?}",
            info.queue.name
        );
        assert!(partition.written_next >= partition.durable_next);
    }
}
