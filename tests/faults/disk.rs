//! What keeps disk, and what must give it back.

use std::sync::Arc;

use client::{Client, DeclareOptions, Mode, Subscription};

use crate::support::{
    load::{batch_of, id_of, payload, put},
    server::{disk_bytes, Home},
    size, soon, PATIENCE,
};

const SEGMENT_BYTES: u64 = 1 << 20;
/// A ring while packing lags, its spares and reserve, checkpoints, packed files.
const MOST_SEGMENTS: u64 = 16;
const RECORDS_PER_ROUND: usize = 64;

async fn declare(client: &Client, name: &str) {
    let options = DeclareOptions::new(name)
        .mode(Mode::Buffered)
        .lease(PATIENCE * 20);
    client.declare(options).await.unwrap();
}

async fn settle(deliveries: &mut Subscription, count: usize) {
    let mut settles = Vec::new();
    for _ in 0..count {
        let delivery = soon("a delivery", deliveries.next()).await;
        settles.push(delivery.unwrap().unwrap().ack_confirmed());
    }
    for settle in settles {
        settle.await.unwrap();
    }
}

/// F28: one record stays unsettled while a hundred times its segment passes.
#[tokio::test]
async fn f28_one_unsettled_record_does_not_keep_the_log() {
    let home = Home::new(1).short_segments();
    let server = home.start();
    let client = server.client().await;
    declare(&client, "held").await;
    declare(&client, "work").await;
    let kept = payload("kept", 5_000);
    client.publish("held", &kept).await.unwrap();
    let mut holder = client.subscribe("held").await.unwrap();
    let held = soon("what is held", holder.next()).await.unwrap().unwrap();

    let mut deliveries = client.subscribe("work").await.unwrap();
    let record = payload("passes", 16 << 10);
    let passing = size(64 << 20, 10 << 30) / (record.len() * RECORDS_PER_ROUND);
    let publisher = client.publisher("work").await.unwrap();
    let batch = batch_of([&record[..]; RECORDS_PER_ROUND / 8]);
    let mut most = 0;
    for _ in 0..passing {
        for _ in 0..8 {
            put(&publisher, &batch).await;
        }
        settle(&mut deliveries, RECORDS_PER_ROUND).await;
        most = most.max(disk_bytes(&home.data()));
    }
    println!("F28: at most {} KiB", most >> 10);
    assert!(most <= MOST_SEGMENTS * SEGMENT_BYTES, "{most} bytes");
    server.kill();

    let server = home.start();
    let client = server.client().await;
    let mut holder = client.subscribe("held").await.unwrap();
    let again = soon("what was held", holder.next()).await.unwrap().unwrap();
    assert_eq!(again.payload(), kept);
    assert_eq!(again.offset(), held.offset());
    again.ack_confirmed().await.unwrap();
    server.stop();
}

/// F29: many queues with a record now and then, each settled.
#[tokio::test]
async fn f29_quiet_queues_give_their_space_back() {
    let home = Home::new(1).short_segments();
    let server = home.start();
    let client = server.client().await;
    let queues = size(100, 1_000);
    let mut subscriptions = Vec::new();
    for number in 0..queues {
        let name = format!("quiet-{number}");
        declare(&client, &name).await;
        let publisher = client.publisher(&name).await.unwrap();
        let subscription = client.subscribe(&name).await.unwrap();
        subscriptions.push((Arc::new(publisher), subscription));
    }
    let mut most = 0;
    for round in 0..size(100, 600) {
        let mut published = tokio::task::JoinSet::new();
        for (publisher, _) in &subscriptions {
            let publisher = publisher.clone();
            let batch = batch_of([&payload(&round.to_string(), 4_000)[..]]);
            published.spawn(async move { put(&publisher, &batch).await });
        }
        while let Some(done) = published.join_next().await {
            done.unwrap();
        }
        for (_, subscription) in &mut subscriptions {
            let delivery = soon("a delivery", subscription.next()).await;
            let delivery = delivery.unwrap().unwrap();
            assert_eq!(id_of(delivery.payload()), round.to_string());
            delivery.ack_confirmed().await.unwrap();
        }
        most = most.max(disk_bytes(&home.data()));
    }
    println!("F29: at most {} KiB", most >> 10);
    assert!(most <= MOST_SEGMENTS * SEGMENT_BYTES, "{most} bytes");
    server.stop();
}
