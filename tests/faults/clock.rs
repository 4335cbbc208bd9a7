//! A wall clock that steps under a running server and between two of them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        atomic::{AtomicBool, Ordering},
        Arc,
    },
    time::{Duration, Instant, SystemTime},
};

use client::{Client, DeclareOptions, Mode, Record, Subscription};
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::support::{
    assert_conserved, await_counts,
    load::{consume, drain, publish, Shared},
    server::Home,
    soon, Random, PATIENCE,
};

const HOUR_S: i64 = 3_600;
const LOAD: &str = "load";

/// The clock of the servers that it is preloaded into.
struct WallClock {
    directory: TempDir,
}

impl WallClock {
    fn new() -> Self {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clock-step/shim.rs");
        let compiler = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
        let compiled = Command::new(compiler)
            .args(["--edition=2021", "--crate-type=cdylib", "-o"])
            .arg(directory.path().join("shim.so"))
            .arg(source)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{said}");
        let clock = WallClock { directory };
        clock.step_to(0);
        clock
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("offset")
    }

    /// It is off by so much from now on.
    fn step_to(&self, seconds: i64) {
        let new = self.directory.path().join("new");
        fs::write(&new, seconds.to_string()).unwrap();
        fs::rename(new, self.file()).unwrap();
    }

    fn of(&self, home: Home) -> Home {
        home.environment("LD_PRELOAD", &self.directory.path().join("shim.so"))
            .environment("TIDEGATE_TEST_CLOCK_OFFSET", &self.file())
    }
}

async fn declare(client: &Client, name: &str, lease: Duration) {
    let options = DeclareOptions::new(name).mode(Mode::Durable).lease(lease);
    client.declare(options).await.unwrap();
}

async fn publish_due_in(client: &Client, queue: &str, delay: Duration) {
    let due = SystemTime::now() + delay;
    let record = Record::new("due").not_before(due);
    client.publish(queue, record).await.unwrap();
}

async fn next(deliveries: &mut Subscription) -> client::Delivery {
    soon("a delivery", deliveries.next())
        .await
        .unwrap()
        .unwrap()
}

/// Publishing, consuming and settling go on.
async fn await_progress(client: &Client) {
    let before = client.info(LOAD).await.unwrap().totals();
    let more = |c: &client::Counts| {
        c.published > before.published + 50 && c.acknowledged > before.acknowledged + 50
    };
    await_counts(client, LOAD, "the load to go on", more).await;
}

/// F64: steps of an hour, forth and back, change nothing for whoever is there.
#[tokio::test]
async fn f64_a_step_of_the_clock_halts_nothing_and_ends_no_lease_or_delay() {
    let mut random = Random::new("F64");
    let clock = WallClock::new();
    let home = clock.of(Home::new(2));
    let server = home.start();
    let client = server.client().await;
    declare(&client, LOAD, Duration::from_secs(10)).await;
    declare(&client, "long", PATIENCE * 4).await;
    declare(&client, "short", Duration::from_secs(1)).await;
    declare(&client, "delayed", PATIENCE).await;
    let journal = Shared::default();
    let stop = Arc::new(AtomicBool::new(false));
    let mut load = JoinSet::new();
    for name in ["one", "two"] {
        let (name, queue) = (name.to_owned(), LOAD.to_owned());
        let (client, journal, stop) = (client.clone(), journal.clone(), stop.clone());
        let fork = random.fork();
        load.spawn(publish(client, queue, name, journal, stop, fork));
    }
    let (queue, fork) = (LOAD.to_owned(), random.fork());
    load.spawn(consume(
        client.clone(),
        queue,
        journal.clone(),
        stop.clone(),
        fork,
    ));
    await_progress(&client).await;

    let delay = Duration::from_secs(4);
    let published = Instant::now();
    publish_due_in(&client, "delayed", delay).await;
    let mut delayed = client.subscribe("delayed").await.unwrap();
    client.publish("long", &b"held"[..]).await.unwrap();
    let mut holder = client.subscribe("long").await.unwrap();
    let held = next(&mut holder).await;

    clock.step_to(HOUR_S);
    await_progress(&client).await;
    next(&mut delayed).await.ack_confirmed().await.unwrap();
    let after = published.elapsed();
    // What a busy machine puts between two readings of a clock is not meant.
    assert!(after > delay / 2, "after {after:?}");

    client.publish("short", &b"lapses"[..]).await.unwrap();
    let mut lapsing = client.subscribe("short").await.unwrap();
    let first = next(&mut lapsing).await;
    clock.step_to(-HOUR_S);
    await_progress(&client).await;
    publish_due_in(&client, "delayed", Duration::from_secs(1)).await;
    next(&mut delayed).await.ack_confirmed().await.unwrap();
    let again = next(&mut lapsing).await;
    assert_eq!((again.offset(), again.attempt()), (first.offset(), 2));
    again.ack_confirmed().await.unwrap();

    clock.step_to(0);
    await_progress(&client).await;
    held.ack_confirmed().await.expect("its lease has not ended");
    stop.store(true, Ordering::Relaxed);
    while let Some(done) = soon("the load to end", load.join_next()).await {
        done.unwrap();
    }
    drain(&client, LOAD, &journal).await;
    let summary = journal.lock().unwrap().check_drained();
    println!("F64: {summary:?}");
    for queue in [LOAD, "long", "short", "delayed"] {
        let info = client.info(queue).await.unwrap();
        assert_conserved(&info);
        assert_eq!(
            info.totals().published,
            info.totals().acknowledged + info.totals().dropped
        );
    }
    server.stop();
}

/// F64: a server that starts an hour early or late keeps what it has, and its
/// time does not go back.
#[tokio::test]
async fn f64_a_start_with_another_clock_keeps_what_was_delayed() {
    let clock = WallClock::new();
    let home = clock.of(Home::new(1));
    let server = home.start();
    let client = server.client().await;
    declare(&client, "delayed", PATIENCE).await;
    publish_due_in(&client, "delayed", PATIENCE * 10).await;
    publish_due_in(&client, "delayed", PATIENCE * 100).await;
    let counts = client.info("delayed").await.unwrap().totals();
    assert_eq!((counts.delayed, counts.ready), (2, 0));
    server.kill();

    // An hour early: both are still to come, however long it takes by that clock.
    clock.step_to(-HOUR_S);
    let server = home.start();
    let client = server.client().await;
    let counts = client.info("delayed").await.unwrap().totals();
    assert_eq!((counts.delayed, counts.ready), (2, 0));
    // Due in 5 s by the time of the last server, in an hour by the clock.
    publish_due_in(&client, "delayed", Duration::from_secs(5)).await;
    let mut deliveries = client.subscribe("delayed").await.unwrap();
    let delivery = next(&mut deliveries).await;
    assert_eq!(delivery.offset(), 2);
    delivery.ack_confirmed().await.unwrap();
    drop(deliveries);
    server.kill();

    // An hour late: the one that is due by then comes, and only that.
    clock.step_to(HOUR_S);
    let server = home.start();
    let client = server.client().await;
    let mut deliveries = client.subscribe("delayed").await.unwrap();
    let delivery = next(&mut deliveries).await;
    assert_eq!(delivery.offset(), 0);
    delivery.ack_confirmed().await.unwrap();
    let counts = client.info("delayed").await.unwrap().totals();
    assert_eq!((counts.delayed, counts.acknowledged), (1, 2));
    server.stop();
}
