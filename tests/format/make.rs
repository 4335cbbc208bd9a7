//! Makes the fixtures with the real server:
//! `cargo test --test format -- --ignored make_the_fixtures`

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use client::{Client, DeclareOptions, Delivery, Headers, Mode, Record, Subscription};
use powercut_fs::{available, private_mounts, Fault, Operation, PowercutFs};
use serde_json::Value;

use crate::{
    fixture::{home, keep, payload, year_2100, BOOT, SHARDS},
    support::{server::Home, soon, PATIENCE},
};

const ORDERS: &str = "orders";
const SHARED: &str = "füllung/1";
const GUESSES: &str = "guesses";
const FILLER: &str = "filler";
const PURGED: &str = "purged";
/// A long time, so that leases do not run out while a fixture is made.
const LEASE: Duration = Duration::from_secs(3600);
/// A record of this many bytes takes two batches, or three.
const LARGE_BYTES: usize = 700_000;
const FILLER_BYTES: usize = 100_000;

/// What was published and not settled: payloads by queue and place.
#[derive(Default)]
struct Known(BTreeMap<String, BTreeMap<(u16, u64), Value>>);

impl Known {
    fn published(&mut self, queue: &str, place: (u16, u64), bytes: &str) {
        let records = self.0.entry(queue.to_owned()).or_default();
        records.insert(place, payload(bytes.as_bytes()));
    }

    fn settled(&mut self, queue: &str, delivery: &Delivery) {
        let place = (delivery.partition(), delivery.offset());
        let records = self.0.get_mut(queue).unwrap();
        assert!(records.remove(&place).is_some(), "{place:?}");
    }

    /// What a server showed is exactly that.
    fn check(&self, holds: &Value) {
        for (queue, records) in &self.0 {
            let shown = holds["served"][queue]["records"].as_array().unwrap();
            let shown = shown.iter().map(|record| {
                let number = |field: &str| record[field].as_u64().unwrap();
                let place = (number("partition") as u16, number("offset"));
                (place, record["payload"].clone())
            });
            assert_eq!(&shown.collect::<BTreeMap<_, _>>(), records, "{queue}");
        }
    }
}

async fn declare(client: &Client, name: &str, mode: Mode, partitions: u16) {
    let options = DeclareOptions::new(name).mode(mode).partitions(partitions);
    client.declare(options.lease(LEASE)).await.unwrap();
}

async fn publish(client: &Client, known: &mut Known, queue: &str, record: Record<'_>) {
    let text = String::from_utf8(record.payload().to_vec()).unwrap();
    let publisher = client.publisher(queue).await.unwrap();
    let confirmed = publisher.publish(record).await.unwrap();
    known.published(queue, (confirmed.partition, confirmed.offset), &text);
}

/// `count` small records, some with keys and headers.
async fn publish_small(client: &Client, known: &mut Known, queue: &str, tag: &str, count: usize) {
    for number in 0..count {
        let text = format!("{tag} {number}");
        let key = format!("key-{}", number % 5);
        let headers = Headers::new()
            .with("number", number.to_string())
            .with("täg", tag);
        let mut record = Record::new(&text);
        if number % 3 > 0 {
            record = record.key(&key);
        }
        if number % 2 == 1 {
            record = record.headers(&headers);
        }
        publish(client, known, queue, record).await;
    }
}

async fn next(subscription: &mut Subscription) -> Delivery {
    let delivery = soon("a delivery", subscription.next()).await;
    delivery.unwrap().unwrap()
}

/// Takes records and settles them in each way.
async fn settle_some(client: &Client, known: &mut Known, queue: &str, count: usize) {
    let mut subscription = client.subscribe(queue).await.unwrap();
    for number in 0..count {
        let delivery = next(&mut subscription).await;
        if number % 5 < 3 {
            known.settled(queue, &delivery);
        }
        let years = Duration::from_secs(80 * 365 * 86_400);
        let settled = match number % 5 {
            0 | 1 => delivery.ack_confirmed().await,
            2 => delivery.reject_confirmed().await,
            3 => delivery.release_confirmed(Duration::ZERO).await,
            _ => delivery.release_confirmed(years).await,
        };
        settled.unwrap();
    }
    subscription.close(PATIENCE).await;
}

/// Publishes large records until each shard has published a checkpoint that
/// names a packed file.
async fn fill(home: &Home, client: &Client, known: &mut Known) {
    for round in 0.. {
        assert!(round < 200, "no checkpoints after {round} rounds");
        for partition in 0..4 {
            let text = format!("{round} {partition} {}", "x".repeat(FILLER_BYTES));
            let key = format!("key-{partition}");
            let record = Record::new(&text).key(&key);
            publish(client, known, FILLER, record).await;
        }
        let (_, logs, _) = home.log("inspect");
        let logs = logs.iter().filter(|object| object["kind"] == "log");
        let ready: BTreeSet<u64> = logs
            .filter(|log| log["checkpoint"].as_u64() > Some(1))
            .filter(|log| log["stored_records"].as_u64() > Some(0))
            .map(|log| log["shard"].as_u64().unwrap())
            .collect();
        let packed = (0..SHARDS).all(|shard| {
            let shard = home.data().join(format!("shard-{shard:02}"));
            let mut names = shard.read_dir().unwrap();
            names.any(|name| {
                name.unwrap()
                    .file_name()
                    .to_string_lossy()
                    .starts_with("pack-")
            })
        });
        if ready.len() == usize::from(SHARDS) && packed {
            return;
        }
    }
}

async fn first_life(client: &Client, known: &mut Known) {
    declare(client, ORDERS, Mode::Durable, 1).await;
    declare(client, SHARED, Mode::Buffered, 2).await;
    declare(client, GUESSES, Mode::Speculative, 1).await;
    declare(client, FILLER, Mode::Durable, 4).await;
    declare(client, PURGED, Mode::Durable, 1).await;
    declare(client, "idle", Mode::Durable, 1).await;
    declare(client, "deleted", Mode::Buffered, 1).await;
    for queue in [ORDERS, SHARED, GUESSES] {
        publish_small(client, known, queue, "first", 20).await;
        let late = Record::new("not before 2100").not_before(year_2100());
        publish(client, known, queue, late).await;
        settle_some(client, known, queue, 10).await;
    }
    for queue in [PURGED, "deleted"] {
        publish_small(client, &mut Known::default(), queue, "gone", 5).await;
    }
    client.purge(PURGED).await.unwrap();
    client.delete("deleted").await.unwrap();
}

/// On the same directory, in another boot: the groups that answer at written
/// begin a new generation.
async fn second_life(home: &Home, client: &Client, known: &mut Known) {
    let large = format!("large {}", "y".repeat(LARGE_BYTES));
    publish_small(client, known, PURGED, "kept", 2).await;
    for queue in [ORDERS, SHARED] {
        publish(client, known, queue, Record::new(&large)).await;
    }
    fill(home, client, known).await;
    settle_some(client, known, FILLER, 20).await;
    for queue in [ORDERS, SHARED, GUESSES] {
        publish_small(client, known, queue, "second", 6).await;
        publish(client, known, queue, Record::new(&large)).await;
        settle_some(client, known, queue, 3).await;
    }
}

/// Leaves records leased, and the log without an end.
async fn third_life(client: &Client, known: &mut Known) {
    for queue in [ORDERS, SHARED, GUESSES] {
        publish_small(client, known, queue, "third", 6).await;
        settle_some(client, known, queue, 6).await;
        let mut subscription = client.subscribe(queue).await.unwrap();
        for _ in 0..4 {
            // Neither settled nor given back: the server is killed first.
            std::mem::forget(next(&mut subscription).await);
        }
        std::mem::forget(subscription);
    }
}

#[tokio::test]
#[ignore = "writes tests/fixtures: run it when the format has got a new number"]
async fn make_the_fixtures() {
    let mut home = home();
    let mut known = Known::default();
    home.reboot("f0f0");
    let server = home.start();
    first_life(&server.client().await, &mut known).await;
    server.kill();

    home.reboot(BOOT);
    let server = home.start();
    second_life(&home, &server.client().await, &mut known).await;
    server.stop();
    known.check(&keep("stopped", &home).await);

    let server = home.start();
    third_life(&server.client().await, &mut known).await;
    server.kill();
    known.check(&keep("killed", &home).await);

    latched().await;
}

/// Of a segment that batches go to.
fn segment(name: &str) -> bool {
    name.starts_with("seg-") && !name.ends_with(".tmp")
}

/// Syncs fail, and so does every try to reopen the log, until the server is
/// killed.
async fn latched() {
    let usable = available().and_then(|()| private_mounts());
    usable.expect("a file system that fails on demand needs /dev/fuse and root");
    let mount = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let disk = PowercutFs::mount(mount.path(), 1).unwrap();
    let mut home = home()
        .with("sync_method = \"fdatasync\"")
        .data_at(&disk.path().join("data"));
    home.reboot(BOOT);
    let mut known = Known::default();
    let server = home.start();
    let client = server.client().await;
    declare(&client, ORDERS, Mode::Durable, 1).await;
    declare(&client, SHARED, Mode::Buffered, 2).await;
    for queue in [ORDERS, SHARED] {
        publish_small(&client, &mut known, queue, "synced", 8).await;
        client.barrier(queue, PATIENCE).await.unwrap();
    }
    for operation in [Operation::Sync, Operation::Write] {
        disk.fail(Fault {
            operation,
            of: segment,
            errno: libc::EIO,
            after: u64::from(operation == Operation::Write) * 4,
            times: u64::MAX,
        });
    }
    let publisher = client.publisher(SHARED).await.unwrap();
    // One for each partition, and they are in different shards.
    let _waiting = [
        publisher.send(Record::new("past the last sync")).await,
        publisher.send(Record::new("past the last sync")).await,
    ];
    let record = |shard| home.data().join(format!("shard-{shard:02}/latched"));
    let until = std::time::Instant::now() + PATIENCE;
    while !(0..SHARDS).all(|shard| record(shard).exists()) {
        assert!(std::time::Instant::now() < until, "not both latched");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.kill();
    disk.clear_faults();
    keep("latched", &home).await;
}
