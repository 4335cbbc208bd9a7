//! Consumers that die, hoard, give back at once, or come with old ids.

use std::{collections::HashSet, time::Duration};

use client::{Client, DeclareOptions, Delivery, Mode, Record, SubscribeOptions, Subscription};

use crate::support::{
    assert_conserved, await_counts,
    raw::RawConsumer,
    server::{Home, Server},
    size, soon,
};

const QUEUE: &str = "work";

async fn setup(server: &Server, records: u64, lease: Duration) -> Client {
    let client = server.client().await;
    let options = DeclareOptions::new(QUEUE).mode(Mode::Buffered).lease(lease);
    client.declare(options).await.unwrap();
    publish(&client, 0, records).await;
    client
}

async fn publish(client: &Client, from: u64, to: u64) {
    let publisher = client.publisher(QUEUE).await.unwrap();
    let mut waiting = Vec::new();
    for number in from..to {
        let payload = number.to_string();
        waiting.push(publisher.send(Record::new(&payload)).await.unwrap());
    }
    for confirm in waiting {
        confirm.await.unwrap();
    }
}

async fn next(subscription: &mut Subscription) -> Delivery {
    let next = soon("a delivery", subscription.next()).await;
    next.expect("a stream that goes on")
        .expect("a whole record")
}

#[tokio::test]
async fn f35_records_of_a_killed_client_are_ready_again_without_a_new_fetch() {
    let home = Home::new(2);
    let server = home.start();
    let client = setup(&server, 100, Duration::from_secs(600)).await;
    let mut words = vec!["consume", QUEUE, "--no-ack", "--server"];
    let address = server.address.to_string();
    words.push(&address);
    let mut consumer = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(words)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    await_counts(&client, QUEUE, "all to be leased", |c| c.leased == 100).await;
    consumer.kill().unwrap();
    consumer.wait().unwrap();
    let counts = await_counts(&client, QUEUE, "all to be back", |c| c.ready == 100).await;
    assert_eq!((counts.leased, counts.consumers), (0, 0));
    assert_conserved(&client.info(QUEUE).await.unwrap());
    let mut subscription = client.subscribe(QUEUE).await.unwrap();
    let delivery = next(&mut subscription).await;
    assert_eq!((delivery.attempt(), delivery.redelivered()), (2, true));
}

#[tokio::test]
async fn f36_lapsed_leases_give_their_credit_back() {
    let home = Home::new(1);
    let server = home.start();
    let client = setup(&server, 10, Duration::from_millis(200)).await;
    let queue_id = client.locate(QUEUE).await.unwrap().queue_id;
    // It never gives credit: only lapses can.
    let mut raw = RawConsumer::connect(&server, 1 << 20).await;
    raw.subscribe(queue_id, 0, 10).await;
    for attempt in 1..=5 {
        let mut offsets = HashSet::new();
        while offsets.len() < 10 {
            for id in raw.deliveries().await {
                assert_eq!(id.attempt, attempt, "of offset {}", id.offset);
                offsets.insert(id.offset);
            }
        }
    }
    let counts = client.info(QUEUE).await.unwrap().totals();
    assert_eq!(counts.published, 10);
}

#[tokio::test]
async fn f39_release_then_unsubscribe_in_one_write_gives_every_record_back() {
    let home = Home::new(1);
    let server = home.start();
    let client = setup(&server, 20, Duration::from_secs(600)).await;
    let options = SubscribeOptions {
        credit_records: 5,
        ..SubscribeOptions::default()
    };
    for round in 0..size(100, 1000) {
        let mut subscription = client.subscribe_with(QUEUE, options).await.unwrap();
        let delivery = next(&mut subscription).await;
        delivery.release(Duration::ZERO);
        drop(subscription);
        // A release after many attempts waits a little: then it is delayed.
        let back = |c: &client::Counts| c.leased == 0 && c.ready + c.delayed == 20;
        await_counts(&client, QUEUE, "all to be back", back).await;
        if round % 10 == 0 {
            assert_conserved(&client.info(QUEUE).await.unwrap());
        }
    }
    await_counts(&client, QUEUE, "all to be ready", |c| c.ready == 20).await;
}

/// Acknowledges that ask for no confirm wait for an entry to be logged with; a barrier
/// that came behind them does not leave them waiting.
#[tokio::test]
async fn what_was_acknowledged_before_a_barrier_outlives_a_kill() {
    let home = Home::new(1);
    let mut server = home.start();
    let mut client = setup(&server, 100, Duration::from_secs(600)).await;
    for round in 1..=5 {
        let mut subscription = client.subscribe(QUEUE).await.unwrap();
        for _ in 0..20 {
            next(&mut subscription).await.ack();
        }
        client
            .barrier(QUEUE, Duration::from_secs(10))
            .await
            .unwrap();
        server.kill();
        server = home.start();
        client = server.client().await;
        let counts = client.info(QUEUE).await.unwrap().totals();
        assert!(counts.acknowledged >= 20 * round, "{round}: {counts:?}");
    }
}

/// So does a clean stop: what was received before it is logged.
#[tokio::test]
async fn what_was_acknowledged_before_a_clean_stop_is_kept() {
    let home = Home::new(1);
    let mut server = home.start();
    let mut client = setup(&server, 100, Duration::from_secs(600)).await;
    for round in 1..=5 {
        let mut subscription = client.subscribe(QUEUE).await.unwrap();
        for _ in 0..20 {
            next(&mut subscription).await.ack();
        }
        // Behind them on the same connection: they were received.
        client.info(QUEUE).await.unwrap();
        server.stop();
        server = home.start();
        client = server.client().await;
        let counts = client.info(QUEUE).await.unwrap().totals();
        assert_eq!(counts.acknowledged, 20 * round);
    }
}

#[tokio::test]
async fn f40_old_and_foreign_settles_touch_nothing_after_a_restart() {
    let home = Home::new(1);
    let server = home.start();
    let client = setup(&server, 20, Duration::from_secs(600)).await;
    let queue_id = client.locate(QUEUE).await.unwrap().queue_id;
    let mut raw = RawConsumer::connect(&server, 1 << 20).await;
    raw.subscribe(queue_id, 0, 10).await;
    let old = raw.at_least(10).await;
    drop(client);
    server.kill();

    let server = home.start();
    let client = server.client().await;
    let mut owner = RawConsumer::connect(&server, 1 << 20).await;
    owner.subscribe(queue_id, 0, 20).await;
    let held = owner.at_least(20).await;
    let mut stranger = RawConsumer::connect(&server, 1 << 20).await;
    // Ids of before the restart, from a connection that holds nothing.
    assert_eq!(stranger.acknowledge(&old).await, (0, 10));
    // Ids that are good, but somebody else's.
    assert_eq!(stranger.acknowledge(&held).await, (0, 20));
    // Of another attempt, and of offsets never delivered.
    let mut wrong = held.clone();
    for id in &mut wrong {
        id.attempt += 1;
    }
    assert_eq!(owner.acknowledge(&wrong).await, (0, 20));
    let mut beyond = held.clone();
    for id in &mut beyond {
        id.offset += 1000;
    }
    assert_eq!(owner.acknowledge(&beyond).await, (0, 20));
    let counts = client.info(QUEUE).await.unwrap().totals();
    assert_eq!((counts.leased, counts.acknowledged), (20, 0));
    assert_eq!(owner.acknowledge(&held).await, (20, 0));
    // A second time: settled already.
    assert_eq!(owner.acknowledge(&held).await, (0, 20));
    let counts = client.info(QUEUE).await.unwrap().totals();
    assert_eq!((counts.leased, counts.acknowledged), (0, 20));
}

#[tokio::test]
async fn f49_a_hot_release_loop_does_not_burn_a_core_and_healthy_records_pass() {
    let home = Home::new(1);
    let server = home.start();
    let client = setup(&server, 10, Duration::from_secs(600)).await;
    let mut poison = client.subscribe(QUEUE).await.unwrap();
    let span = Duration::from_secs(size(3, 20));
    let until = tokio::time::Instant::now() + span;
    let before = server.cpu();
    let (mut released, mut healthy) = (0_u64, 0_u64);
    let mut number = 10;
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    while tokio::time::Instant::now() < until {
        // A few healthy ones, so that the CPU time is that of the releases.
        if healthy + 10 == number {
            pace.tick().await;
            publish(&client, number, number + 1).await;
            number += 1;
        }
        let wait = Duration::from_millis(20);
        let Ok(Some(delivery)) = tokio::time::timeout(wait, poison.next()).await else {
            continue;
        };
        let delivery = delivery.unwrap();
        if delivery.offset() < 10 {
            released += 1;
            delivery.release(Duration::ZERO);
        } else {
            healthy += 1;
            delivery.ack_confirmed().await.unwrap();
        }
    }
    let used = server.cpu() - before;
    println!(
        "F49: {released} releases and {healthy} healthy records in {span:?}, server CPU {used:?}"
    );
    assert!(healthy > 10, "healthy records pass");
    assert!(used < span / 2, "{used:?} of CPU in {span:?}");
    // Ten records, each backing off up to seconds.
    assert!(released < 10 * 40, "{released} deliveries of ten records");
}

#[tokio::test]
async fn a_consumer_whose_socket_is_full_blocks_nobody_else() {
    let home = Home::new(2);
    let server = home.start();
    let client = server.client().await;
    let options = DeclareOptions::new(QUEUE)
        .mode(Mode::Buffered)
        .lease(Duration::from_secs(600));
    let queue_id = client.declare(options).await.unwrap().queue.queue_id;
    // Many records of credit, a small window, and it never reads.
    let mut stuck = RawConsumer::connect(&server, 64 << 10).await;
    stuck.subscribe(queue_id, 0, 1_000_000).await;
    let publisher = client.publisher(QUEUE).await.unwrap();
    let payload = vec![9_u8; 16 << 10];
    let records = size(1500, 6000);
    let publishing = async {
        let mut waiting = Vec::new();
        for _ in 0..records {
            waiting.push(publisher.send(Record::new(&payload)).await.unwrap());
        }
        for confirm in waiting {
            confirm.await.unwrap();
        }
    };
    soon("every publish to be confirmed", publishing).await;
    // Its socket took some megabytes; it holds those and the window, no more.
    let held = client.info(QUEUE).await.unwrap().totals().leased;
    assert!(held < records, "the stuck consumer got all {held}");
    let mut subscription = client.subscribe(QUEUE).await.unwrap();
    let mut taken = 0;
    while taken + client.info(QUEUE).await.unwrap().totals().leased < records || taken == 0 {
        next(&mut subscription).await.ack_confirmed().await.unwrap();
        taken += 1;
        while let Some(delivery) = subscription.try_next() {
            delivery.unwrap().ack_confirmed().await.unwrap();
            taken += 1;
        }
    }
    println!("stuck consumer: held {held} of {records}, the other took {taken}");
    // Gone: what it held comes to the other one.
    drop(stuck);
    while taken < records {
        next(&mut subscription).await.ack_confirmed().await.unwrap();
        taken += 1;
    }
    let counts = client.info(QUEUE).await.unwrap().totals();
    assert_eq!((counts.acknowledged, counts.leased), (records, 0));
}
