//! Many queues and long backlogs: what they cost in memory.

use std::collections::HashSet;

use client::{Client, DeclareOptions, Mode};
use tokio::task::JoinSet;

use crate::support::{
    load::{batch_of, id_of, payload, put},
    server::{disk_bytes, segments, Home},
    size, soon, PATIENCE,
};

const MIB: u64 = 1 << 20;
/// Of an idle queue with one partition, on two shards.
const BYTES_PER_QUEUE: u64 = 1 << 10;
/// Of a record of the backlog; 24 and the growth of what holds them.
const BYTES_PER_RECORD: u64 = 48;
/// Requests under way together.
const TOGETHER: usize = 64;

/// Calls `ask` for each number, some together.
async fn each<F, R>(numbers: std::ops::Range<usize>, ask: F)
where
    F: Fn(usize) -> R,
    R: std::future::Future<Output = ()> + Send + 'static,
{
    let mut asked = JoinSet::new();
    for number in numbers {
        if asked.len() >= TOGETHER {
            soon("an answer", asked.join_next()).await.unwrap().unwrap();
        }
        asked.spawn(ask(number));
    }
    while let Some(done) = soon("an answer", asked.join_next()).await {
        done.unwrap();
    }
}

fn name(number: usize) -> String {
    format!("idle-{number}")
}

async fn declare_all(client: &Client, queues: std::ops::Range<usize>) {
    each(queues, |number| {
        let client = client.clone();
        async move {
            let mode = Mode::ALL[number % 3];
            let options = DeclareOptions::new(name(number)).mode(mode);
            assert!(client.declare(options).await.unwrap().created);
        }
    })
    .await;
}

/// F66: memory per queue, also after a restart; all are listed, served and
/// deleted, for good.
#[tokio::test]
async fn f66_idle_queues_cost_what_is_stated_and_are_given_back() {
    let queues = size(5_000, 100_000);
    let home = Home::new(2).short_segments();
    let server = home.start();
    let client = server.client().await;
    let before = server.memory();
    declare_all(&client, 0..queues).await;
    let bound = before + queues as u64 * BYTES_PER_QUEUE + 8 * MIB;
    let declared = server.memory();
    assert!(declared < bound, "{} MiB", declared / MIB);
    server.kill();

    let server = home.start();
    let client = server.client().await;
    let started = server.memory();
    println!("F66: {before} bytes, {declared} with {queues} queues, {started} after a start");
    assert!(started < bound, "{} MiB", started / MIB);
    let names: HashSet<String> = client
        .list()
        .await
        .unwrap()
        .into_iter()
        .map(|queue| queue.name)
        .collect();
    assert_eq!(names, (0..queues).map(name).collect::<HashSet<_>>());
    for number in (0..queues).step_by(queues / 50) {
        let queue = name(number);
        client.publish(&queue, &b"one"[..]).await.unwrap();
        assert_eq!(client.info(&queue).await.unwrap().totals().ready, 1);
    }
    each(0..queues, |number| {
        let client = client.clone();
        async move {
            client.delete(&name(number)).await.unwrap();
        }
    })
    .await;
    assert!(client.list().await.unwrap().is_empty());
    // Until a checkpoint does not know them any more: a start then has nothing of
    // them to replay.
    let rolled = roll_every_log(&client, &home);
    let rolled = tokio::time::timeout(PATIENCE * 3, rolled).await;
    rolled.expect("every log lets its first segments go");
    server.kill();

    let server = home.start();
    let client = server.client().await;
    assert!(client.list().await.unwrap().is_empty());
    let left = server.memory();
    println!("F66: {left} bytes when all are gone and after a start");
    assert!(left < before + 6 * MIB, "{} MiB", left / MIB);
    server.stop();
}

/// Lets segments of each shard's log go that were written before.
async fn roll_every_log(client: &Client, home: &Home) {
    let options = DeclareOptions::new("last").partitions(16);
    client.declare(options).await.unwrap();
    let publisher = client.publisher("last").await.unwrap();
    let batch = batch_of([&payload("passes", 50_000)[..]]);
    let last = [0, 1].map(|shard| segments(&home.data(), shard).pop());
    let is_gone = |shard: u16| {
        let first = segments(&home.data(), shard).into_iter().next();
        first > last[usize::from(shard)]
    };
    while !(is_gone(0) && is_gone(1)) {
        for _ in 0..16 {
            put(&publisher, &batch).await;
        }
        client.purge("last").await.unwrap();
    }
    client.delete("last").await.unwrap();
}

/// F68: a backlog far beyond what is kept in memory, read by a consumer that
/// is slow at first.
#[tokio::test]
async fn f68_a_backlog_lives_on_disk() {
    let records: usize = size(160_000, 4_000_000);
    let home = Home::new(1)
        .with("cache_size = \"4MiB\"")
        .with("backlog_limit = \"4MiB\"");
    let server = home.start();
    let client = server.client().await;
    let options = DeclareOptions::new("backlog").mode(Mode::Buffered);
    client.declare(options).await.unwrap();
    let before = server.peak_memory();
    // The caches, what is on its way, the buffers of a pack job.
    let bound = before + records as u64 * BYTES_PER_RECORD + 64 * MIB;
    assert!(bound < before + records as u64 * 1_000, "nothing is shown");
    let publisher = client.publisher("backlog").await.unwrap();
    let mut deliveries = client.subscribe("backlog").await.unwrap();
    for first in (0..records).step_by(500) {
        let numbers = first..records.min(first + 500);
        let payloads: Vec<Vec<u8>> = numbers.map(|n| payload(&n.to_string(), 1_000)).collect();
        put(&publisher, &batch_of(payloads.iter().map(Vec::as_slice))).await;
        // As slow as that.
        let number = first / 500;
        let delivery = soon("a delivery", deliveries.next()).await;
        let delivery = delivery.unwrap().unwrap();
        assert_eq!(id_of(delivery.payload()), number.to_string());
        delivery.ack();
    }
    let peak = server.peak_memory();
    println!("F68: {before} bytes at first, {peak} at most with {records} records");
    assert!(peak < bound, "{} MiB", peak / MIB);
    assert!(disk_bytes(&home.data()) > records as u64 * 1_000);
    for number in records.div_ceil(500)..records {
        let delivery = soon("a delivery", deliveries.next()).await;
        let delivery = delivery.unwrap().unwrap();
        assert_eq!(id_of(delivery.payload()), number.to_string());
        delivery.ack();
    }
    let peak = server.peak_memory();
    println!("F68: {peak} bytes at most when all were read");
    assert!(peak < bound, "{} MiB", peak / MIB);
    server.stop();
}
