//! `SIGKILL` at random points under load: nothing confirmed is lost, nothing
//! settled comes back. Half of the rounds with segments so short that there are
//! checkpoints, packing and reclaim all the time.

use std::{
    sync::{
        atomic::{AtomicBool, Ordering},
        Arc,
    },
    time::Duration,
};

use client::{Client, DeclareOptions, Mode};
use tokio::task::JoinSet;

use crate::support::{
    assert_conserved,
    load::{consume, drain, publish, Shared},
    server::{quick, segments, Home, Server},
    size, soon, Random,
};

const QUEUE: &str = "crash";
const SHARDS: u16 = 2;
const PUBLISHERS: usize = 2;
const CONSUMERS: usize = 2;

#[tokio::test]
async fn a_durable_queue_survives_kills_under_load() {
    crash_loop(&[Mode::Durable]).await;
}

#[tokio::test]
async fn a_buffered_queue_survives_kills_under_load() {
    crash_loop(&[Mode::Buffered]).await;
}

#[tokio::test]
async fn a_speculative_queue_survives_kills_under_load() {
    crash_loop(&[Mode::Speculative]).await;
}

#[tokio::test]
async fn queues_of_all_modes_on_one_log_survive_kills_under_load() {
    crash_loop(&Mode::ALL).await;
}

fn name_of(mode: Mode) -> String {
    format!("{QUEUE}-{}", mode.name())
}

async fn crash_loop(modes: &[Mode]) {
    let names: Vec<&str> = modes.iter().map(|mode| mode.name()).collect();
    let mut random = Random::new(&format!("crash_loop {}", names.join("+")));
    rounds(&Home::new(SHARDS), modes, false, &mut random).await;
    rounds(
        &Home::new(SHARDS).short_segments(),
        modes,
        true,
        &mut random,
    )
    .await;
}

/// `is_reclaimed`: the first round goes on until segments were let go, so that
/// every later one starts from a checkpoint without which data is gone.
async fn rounds(home: &Home, modes: &[Mode], is_reclaimed: bool, random: &mut Random) {
    let journals: Vec<Shared> = modes.iter().map(|_| Shared::default()).collect();
    for round in 0..size(3, 50) {
        let mut server = home.start();
        let client = server.client().await;
        for mode in modes {
            declare_and_check(&client, *mode, round > 0).await;
        }
        let life = Duration::from_millis(random.between(20, 1200));
        let stop = Arc::new(AtomicBool::new(false));
        let mut load = JoinSet::new();
        for (mode, journal) in modes.iter().zip(&journals) {
            spawn_load(&mut load, &server, *mode, round, journal, &stop, random).await;
        }
        tokio::time::sleep(life).await;
        if is_reclaimed && round == 0 {
            soon("reclaim", await_reclaim(home)).await;
        }
        server.assert_alive();
        server.kill();
        stop.store(true, Ordering::Relaxed);
        while let Some(done) = soon("the load to end", load.join_next()).await {
            done.expect("a publisher or consumer failed");
        }
        for journal in &journals {
            journal.lock().unwrap().round_ended();
        }
    }
    heal_and_check(home, modes, &journals).await;
}

/// Until a log has let its first segment go.
async fn await_reclaim(home: &Home) {
    let begins_later = |shard| {
        let first = segments(&home.data(), shard).into_iter().next();
        first.is_some_and(|path| !path.to_string_lossy().ends_with("-00000000000000000001"))
    };
    while !(0..SHARDS).any(begins_later) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn spawn_load(
    load: &mut JoinSet<()>,
    server: &Server,
    mode: Mode,
    round: usize,
    journal: &Shared,
    stop: &Arc<AtomicBool>,
    random: &mut Random,
) {
    for number in 0..PUBLISHERS {
        // What was not sent when the server died fails by then.
        let builder = quick().publish_deadline(Duration::from_secs(2));
        let client = server.client_with(builder).await;
        let name = format!("r{round}p{number}");
        let (journal, stop) = (journal.clone(), stop.clone());
        load.spawn(publish(
            client,
            name_of(mode),
            name,
            journal,
            stop,
            random.fork(),
        ));
    }
    for _ in 0..CONSUMERS {
        let client = server.client().await;
        let (journal, stop) = (journal.clone(), stop.clone());
        load.spawn(consume(client, name_of(mode), journal, stop, random.fork()));
    }
}

/// The queue as the last round left it: same history, honest counters.
async fn declare_and_check(client: &Client, mode: Mode, exists: bool) {
    let options = DeclareOptions::new(name_of(mode))
        .mode(mode)
        .partitions(2)
        .lease(Duration::from_secs(10));
    let declared = client.declare(options).await.unwrap();
    assert_eq!(declared.created, !exists, "the queue was forgotten");
    check_info(client, mode).await;
}

async fn check_info(client: &Client, mode: Mode) {
    let info = client.info(&name_of(mode)).await.unwrap();
    assert_conserved(&info);
    for partition in &info.partitions {
        assert_eq!(partition.generation, 1, "the same boot, the same history");
        assert!(partition.losses.is_empty());
        assert_eq!(partition.written_next, partition.counts.published);
    }
}

async fn heal_and_check(home: &Home, modes: &[Mode], journals: &[Shared]) {
    let server = home.start();
    let client = server.client().await;
    let mut left = Vec::new();
    for (mode, journal) in modes.iter().zip(journals) {
        check_info(&client, *mode).await;
        drain(&client, &name_of(*mode), journal).await;
        let (summary, places) = {
            let journal = journal.lock().unwrap();
            (journal.check_drained(), journal.places() as u64)
        };
        println!("crash_loop {}: {summary:?}", mode.name());
        let counts = client.info(&name_of(*mode)).await.unwrap().totals();
        assert_eq!(counts.published, places);
        assert!(summary.confirmed > 0 && summary.settle_confirmed > 0);
        left.push(counts);
    }
    server.kill();
    let server = home.start();
    let client = server.client().await;
    for (mode, before) in modes.iter().zip(left) {
        check_info(&client, *mode).await;
        let after = client.info(&name_of(*mode)).await.unwrap().totals();
        assert_eq!(after.ready + after.delayed + after.leased + after.gated, 0);
        assert_eq!(after.published, before.published);
        assert_eq!(after.acknowledged, before.acknowledged);
        assert_eq!(after.dropped, before.dropped);
    }
}
