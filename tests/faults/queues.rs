//! Queues over several shards, and what a restart does to declarations.

use std::collections::{HashMap, HashSet};

use client::{Builder, Client, DeclareOptions, ErrorCode, Mode, Record};

use wire::{
    codec,
    frame::Kind,
    message::{Declare, Declared, Delete},
};

use crate::support::{
    assert_conserved, await_counts,
    log_bytes::batches,
    raw::RawConsumer,
    server::{quick, Home},
    size, soon,
};

const QUEUE: &str = "spread";
const PARTITIONS: u16 = 8;

#[tokio::test]
async fn partitions_over_two_shards_through_one_connection() {
    over_two_shards(quick().shard_aware(false)).await;
}

#[tokio::test]
async fn partitions_over_two_shards_through_a_connection_to_each() {
    over_two_shards(quick().shard_aware(true)).await;
}

async fn over_two_shards(builder: Builder) {
    let home = Home::new(2);
    let server = home.start();
    let client = server.client_with(builder.clone()).await;
    let options = DeclareOptions::new(QUEUE).partitions(PARTITIONS);
    let queue = client.declare(options).await.unwrap().queue;
    let shards: HashSet<u16> = queue.shards.iter().copied().collect();
    assert_eq!(shards.len(), 2, "the partitions lie on both shards");
    let records = size(400, 20_000);
    let expected = publish_keys(&client, records).await;

    let mut subscription = client.subscribe(QUEUE).await.unwrap();
    let mut last: HashMap<u16, u64> = HashMap::new();
    for taken in 0..records / 2 {
        let delivery = soon("a delivery", subscription.next())
            .await
            .unwrap()
            .unwrap();
        let place = (delivery.partition(), delivery.offset());
        assert_eq!(expected[&place].as_bytes(), delivery.payload());
        let before = last.insert(place.0, place.1);
        assert!(before < Some(place.1), "order within partition {}", place.0);
        assert!(!delivery.redelivered());
        // Half with a confirm, half without.
        if taken % 2 == 0 {
            delivery.ack_confirmed().await.unwrap();
        } else {
            delivery.ack();
        }
    }
    let frontiers = client
        .barrier(QUEUE, std::time::Duration::from_secs(30))
        .await
        .unwrap();
    let written: u64 = frontiers.iter().map(|f| f.durable_next).sum();
    assert_eq!(written, records);
    drop(subscription);
    let half = records / 2;
    let settled = |c: &client::Counts| c.acknowledged == half && c.ready == records - half;
    await_counts(&client, QUEUE, "half to be settled", settled).await;
    assert_conserved(&client.info(QUEUE).await.unwrap());
    client.close(std::time::Duration::from_secs(5)).await;
    server.kill();

    let server = home.start();
    let client = server.client_with(builder).await;
    let mut subscription = client.subscribe(QUEUE).await.unwrap();
    for _ in half..records {
        let delivery = soon("a delivery", subscription.next())
            .await
            .unwrap()
            .unwrap();
        let place = (delivery.partition(), delivery.offset());
        assert_eq!(expected[&place].as_bytes(), delivery.payload());
        delivery.ack_confirmed().await.unwrap();
    }
    assert_eq!(
        client.info(QUEUE).await.unwrap().totals().acknowledged,
        records
    );
}

/// (partition, offset) → payload.
async fn publish_keys(client: &Client, records: u64) -> HashMap<(u16, u64), String> {
    let publisher = client.publisher(QUEUE).await.unwrap();
    let mut waiting = Vec::new();
    for number in 0..records {
        let payload = format!("record {number}");
        let key = format!("key {}", number % 50);
        let record = Record::new(&payload).key(&key);
        let partition = publisher.partition_of(key.as_bytes());
        let confirm = publisher.send(record).await.unwrap();
        waiting.push((partition, payload, confirm));
    }
    let mut places = HashMap::new();
    for (partition, payload, confirm) in waiting {
        let confirmed = confirm.await.unwrap();
        assert_eq!(confirmed.partition, partition);
        let place = (confirmed.partition, confirmed.offset);
        assert!(places.insert(place, payload).is_none());
    }
    places
}

#[tokio::test]
async fn a_deleted_queue_is_not_resurrected_by_a_restart() {
    let home = Home::new(2);
    let server = home.start();
    let client = server.client().await;
    let options = || DeclareOptions::new(QUEUE).partitions(4);
    let old = client.declare(options()).await.unwrap().queue.queue_id;
    client.declare("other").await.unwrap();
    for name in [QUEUE, "other"] {
        for _ in 0..20 {
            client.publish(name, "old").await.unwrap();
        }
    }
    assert_eq!(client.delete(QUEUE).await.unwrap(), old);
    drop(client);
    server.kill();
    let server = home.start();
    let client = server.client().await;
    let error = client.locate(QUEUE).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::UnknownQueue));
    let names: Vec<String> = client
        .list()
        .await
        .unwrap()
        .into_iter()
        .map(|q| q.name)
        .collect();
    assert_eq!(names, ["other"]);
    assert_eq!(client.info("other").await.unwrap().totals().ready, 20);
    // A new queue of that name is a new queue.
    let new = client.declare(options()).await.unwrap();
    assert!(new.created && new.queue.queue_id > old);
    assert_eq!(
        client.info(QUEUE).await.unwrap().totals(),
        client::Counts::default()
    );
    let confirmed = client.publish(QUEUE, "new").await.unwrap();
    assert_eq!(confirmed.offset, 0);
    drop(client);
    server.kill();
    let server = home.start();
    let client = server.client().await;
    let mut subscription = client.subscribe(QUEUE).await.unwrap();
    let delivery = soon("a delivery", subscription.next())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(delivery.payload(), b"new");
}

#[tokio::test]
async fn a_redeclare_with_equal_values_adds_nothing_to_the_log() {
    let home = Home::new(2);
    let server = home.start();
    let client = server.client().await;
    let options = DeclareOptions::new("q")
        .partitions(3)
        .lease(std::time::Duration::from_secs(5));
    let declared = client.declare(options.clone()).await.unwrap();
    assert!(declared.created);
    // Group 0 logs in shard 0; at rest nothing else does.
    soon("the log to come to rest", async {
        let at_rest = || {
            let batches = batches(&home.data(), 0);
            batches.last().is_some_and(|last| last.fragments == 0)
        };
        while !at_rest() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
    let before = batches(&home.data(), 0).len();
    for _ in 0..10 {
        for again in [options.clone(), DeclareOptions::new("q")] {
            let again = client.declare(again).await.unwrap();
            assert!(!again.created);
            assert_eq!(again.queue, declared.queue);
        }
    }
    assert_eq!(batches(&home.data(), 0).len(), before);
}

#[tokio::test]
async fn a_redeclare_does_not_overtake_the_deletion_in_front_of_it() {
    let home = Home::new(2);
    let server = home.start();
    let mut raw = RawConsumer::connect(&server, 1 << 20).await;
    let declare = Declare {
        name: "q".to_owned(),
        ..Declare::default()
    };
    raw.send(|out| codec::encode(out, 2, &declare)).await;
    for _ in 0..20 {
        let body = raw.expect(Kind::Declared).await;
        let declared = codec::decode::<Declared>(&body).unwrap();
        assert_eq!(declared.created, 1);
        let delete = Delete {
            queue_id: declared.queue.queue_id.to_native(),
            ..Delete::default()
        };
        raw.send(|out| {
            codec::encode(out, 3, &delete)?;
            codec::encode(out, 4, &declare)
        })
        .await;
    }
}

#[tokio::test]
async fn a_redeclare_with_another_mode_is_refused_and_names_both() {
    let home = Home::new(1);
    let server = home.start();
    let client = server.client().await;
    for (has, asks) in [
        (Mode::Durable, Mode::Buffered),
        (Mode::Buffered, Mode::Speculative),
        (Mode::Speculative, Mode::Durable),
    ] {
        let name = has.name();
        client
            .declare(DeclareOptions::new(name).mode(has))
            .await
            .unwrap();
        let redeclare = client.declare(DeclareOptions::new(name).mode(asks)).await;
        let error = redeclare.unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::Conflict));
        let text = error.to_string().replacen(&format!("{name:?}"), "", 1);
        assert!(
            text.contains(has.name()) && text.contains(asks.name()),
            "{error}"
        );
        let output = server.cli(&["queue", "declare", name, "--mode", asks.name()]);
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(client.locate(name).await.unwrap().mode, has);
        // What is left out keeps its value.
        assert!(!client.declare(name).await.unwrap().created);
    }
}
