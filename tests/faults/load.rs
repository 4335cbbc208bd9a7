//! Sizes at their limits, a log with no room, and what goes on beside them.

use std::{
    sync::{
        atomic::{AtomicBool, Ordering},
        Arc,
    },
    time::Duration,
};

use client::{Batch, Client, DeclareOptions, Error, ErrorCode, Headers, Mode, Record};
use wire::limits::MAX_RECORD_BYTES;

use crate::support::{
    assert_conserved, await_counts,
    load::{consume, drain, publish, Shared},
    server::{quick, Home},
    size, soon, Random,
};

const QUEUE: &str = "loaded";

async fn count(client: &Client) -> client::Counts {
    let info = client.info(QUEUE).await.unwrap();
    assert_conserved(&info);
    info.totals()
}

#[tokio::test]
async fn f72_empty_payloads_travel_like_any_other() {
    let home = Home::new(1);
    let server = home.start();
    let client = server.client().await;
    client.declare(QUEUE).await.unwrap();
    let headers = Headers::new().with("kind", "empty");
    let publisher = client.publisher(QUEUE).await.unwrap();
    publisher.publish("").await.unwrap();
    publisher
        .publish(Record::new("").headers(&headers))
        .await
        .unwrap();
    let mut batch = Batch::new();
    for payload in ["", "full", ""] {
        batch.push(payload).unwrap();
    }
    assert_eq!(
        publisher
            .send_batch(&batch)
            .await
            .unwrap()
            .await
            .unwrap()
            .count,
        3
    );
    drop(publisher);
    server.kill();
    let server = home.start();
    let client = server.client().await;
    let mut subscription = client.subscribe(QUEUE).await.unwrap();
    for expected in ["", "", "", "full", ""] {
        let delivery = soon("a delivery", subscription.next())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(delivery.payload(), expected.as_bytes());
        let header = delivery.headers().get("kind").is_some();
        assert_eq!(header, delivery.offset() == 1);
        delivery.ack_confirmed().await.unwrap();
    }
    assert_eq!(count(&client).await.acknowledged, 5);
}

#[tokio::test]
async fn f74_the_largest_record_passes_a_larger_one_is_refused() {
    let home = Home::new(1);
    let server = home.start();
    let client = server.client().await;
    client.declare(QUEUE).await.unwrap();
    let mut largest = vec![0x5a_u8; MAX_RECORD_BYTES as usize];
    largest[0] = 1;
    *largest.last_mut().unwrap() = 2;
    client.publish(QUEUE, &largest).await.unwrap();
    for bytes in [MAX_RECORD_BYTES as usize + 1, 100 << 20] {
        let error = client.publish(QUEUE, &vec![0_u8; bytes]).await.unwrap_err();
        assert!(matches!(error, Error::Failed { .. }), "{error}");
    }
    client.publish(QUEUE, "small").await.unwrap();
    drop(client);
    server.kill();
    let server = home.start();
    let client = server.client().await;
    let mut subscription = client.subscribe(QUEUE).await.unwrap();
    // Whichever comes first: the large one is read back in many pieces.
    for _ in 0..2 {
        let delivery = soon("a delivery", subscription.next())
            .await
            .unwrap()
            .unwrap();
        let expected = [&largest[..], b"small"][usize::from(delivery.offset() > 0)];
        let (offset, len) = (delivery.offset(), delivery.payload().len());
        assert!(
            delivery.payload() == expected,
            "offset {offset}: {len} bytes"
        );
        delivery.ack_confirmed().await.unwrap();
    }
    assert_eq!(count(&client).await.published, 2);
}

#[tokio::test]
async fn f78_purge_and_delete_while_consuming_end_at_zero_and_resurrect_nothing() {
    let mut random = Random::new("F78");
    let home = Home::new(2);
    let server = home.start();
    let client = server.client().await;
    let options = || {
        DeclareOptions::new(QUEUE)
            .mode(Mode::Buffered)
            .partitions(2)
    };
    let mut last_id = 0;
    for round in 0..size(6, 60) {
        let queue_id = client.declare(options()).await.unwrap().queue.queue_id;
        assert!(queue_id > last_id, "ids are never reused");
        last_id = queue_id;
        let stop = Arc::new(AtomicBool::new(false));
        let publishing = tokio::spawn(publish_on(client.clone(), stop.clone()));
        let consuming = tokio::spawn(consume_on(server.client().await, stop.clone()));
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(random.between(1, 60))).await;
            client.purge(QUEUE).await.unwrap();
            assert_conserved(&client.info(QUEUE).await.unwrap());
        }
        let emptied = round % 2 == 0;
        if !emptied {
            client.delete(QUEUE).await.unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        soon("the publisher", publishing).await.unwrap();
        soon("the consumer", consuming).await.unwrap();
        if emptied {
            await_counts(&client, QUEUE, "leases to end", |c| c.leased == 0).await;
            client.purge(QUEUE).await.unwrap();
            let c = count(&client).await;
            assert_eq!(c.gated + c.ready + c.delayed + c.leased, 0);
            client.delete(QUEUE).await.unwrap();
        }
    }
    client.declare(options()).await.unwrap();
    assert_eq!(count(&client).await, client::Counts::default());
    drop(client);
    server.kill();
    let server = home.start();
    let client = server.client().await;
    assert_eq!(client.list().await.unwrap().len(), 1);
    assert_eq!(count(&client).await, client::Counts::default());
}

async fn publish_on(client: Client, stop: Arc<AtomicBool>) {
    let publisher = client.publisher(QUEUE).await.unwrap();
    let mut waiting = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        match publisher.send("some work").await {
            Ok(confirm) => waiting.push(confirm),
            Err(error) => panic!("{error}"),
        }
        if waiting.len() >= 50 {
            for confirm in waiting.drain(..) {
                deleted_or_done(confirm.await.map(drop));
            }
        }
    }
    for confirm in waiting {
        deleted_or_done(confirm.await.map(drop));
    }
}

/// Confirmed, or refused because the queue is gone.
fn deleted_or_done(answer: Result<(), Error>) {
    if let Err(error) = answer {
        assert_eq!(error.code(), Some(ErrorCode::UnknownQueue), "{error}");
    }
}

async fn consume_on(client: Client, stop: Arc<AtomicBool>) {
    let Ok(mut subscription) = client.subscribe(QUEUE).await else {
        return;
    };
    let mut settles = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let next = tokio::time::timeout(Duration::from_millis(10), subscription.next());
        match next.await {
            Ok(Some(Ok(delivery))) => settles.push(delivery.ack_confirmed()),
            Ok(Some(Err(_)) | None) => break, // deleted
            Err(_) => {}
        }
    }
    for settle in settles {
        // Confirmed, or refused with its queue; but answered.
        drop(soon("a settle's answer", settle).await);
    }
}

#[tokio::test]
async fn settles_flow_while_publishes_are_refused_for_lack_of_room() {
    let home = Home::new(1).with("backlog_limit = \"1MiB\"");
    let server = home.start();
    let client = server.client().await;
    let lease = Duration::from_secs(600);
    client
        .declare(DeclareOptions::new(QUEUE).lease(lease))
        .await
        .unwrap();
    client.declare("flood").await.unwrap();
    let work = size(300, 3000);
    let publisher = client.publisher(QUEUE).await.unwrap();
    for _ in 0..work {
        publisher.publish("settle me").await.unwrap();
    }
    let stop = Arc::new(AtomicBool::new(false));
    let flooders: Vec<_> = (0..3)
        .map(|_| {
            let (address, stop) = (server.address.to_string(), stop.clone());
            tokio::spawn(flood(address, stop))
        })
        .collect();
    let consumer = server.client().await;
    let mut subscription = consumer.subscribe(QUEUE).await.unwrap();
    // Ten at a time, so that the flood has many chances to starve them.
    for _ in 0..work / 10 {
        let mut settles = Vec::new();
        for _ in 0..10 {
            let delivery = soon("a delivery", subscription.next()).await.unwrap();
            settles.push(delivery.unwrap().ack_confirmed());
        }
        for settle in settles {
            soon("a settle under flood", settle).await.unwrap();
        }
    }
    stop.store(true, Ordering::Relaxed);
    let mut refused = 0;
    for flooder in flooders {
        refused += soon("a flooder", flooder).await.unwrap();
    }
    println!("settles under flood: {work} confirmed, {refused} publishes refused meanwhile");
    assert!(
        refused > 0,
        "the log never ran out of room: the test proves nothing"
    );
    assert_eq!(count(&client).await.acknowledged, work);
    assert_conserved(&client.info("flood").await.unwrap());
    client.publish("flood", "room again").await.unwrap();
}

/// Publishes big records as fast as it can; gives how many were refused.
async fn flood(address: String, stop: Arc<AtomicBool>) -> u64 {
    let client = quick().connect(address).await.unwrap();
    let publisher = client.publisher("flood").await.unwrap();
    let payload = vec![3_u8; 700 << 10];
    let mut refused = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut waiting = Vec::new();
        for _ in 0..8 {
            waiting.push(publisher.send(Record::new(&payload)).await.unwrap());
        }
        for confirm in waiting {
            match confirm.await {
                Ok(_) => {}
                Err(error) if error.code() == Some(ErrorCode::Overloaded) => {
                    assert!(!error.is_unknown(), "refused is not unknown");
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    refused
}

#[tokio::test]
async fn sigterm_under_load_drains_marks_the_directory_clean_and_loses_nothing() {
    let mut random = Random::new("sigterm");
    let home = Home::new(2);
    let journal = Shared::default();
    for round in 0..size(2, 20) {
        let server = home.start();
        if round > 0 {
            let said = server.errors().join("\n");
            assert!(!said.contains("not been stopped cleanly"), "{said}");
        }
        let client = server.client().await;
        client
            .declare(DeclareOptions::new(QUEUE).partitions(2))
            .await
            .unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let mut load = tokio::task::JoinSet::new();
        for number in 0..2 {
            let name = format!("r{round}p{number}");
            let builder = quick().publish_deadline(Duration::from_secs(5));
            let publisher = server.client_with(builder).await;
            let (journal, stop) = (journal.clone(), stop.clone());
            load.spawn(publish(
                publisher,
                QUEUE.into(),
                name,
                journal,
                stop,
                random.fork(),
            ));
        }
        let consumer = server.client().await;
        load.spawn(consume(
            consumer,
            QUEUE.into(),
            journal.clone(),
            stop.clone(),
            random.fork(),
        ));
        tokio::time::sleep(Duration::from_millis(random.between(300, 800))).await;
        let ending = tokio::task::spawn_blocking(move || server.terminate());
        let (status, said) = soon("the drain", ending).await.unwrap();
        stop.store(true, Ordering::Relaxed);
        assert_eq!(status.code(), Some(0), "{said:?}");
        assert!(said
            .iter()
            .any(|line| line.contains("everything is durable")));
        assert!(home.data().join("clean").exists());
        while let Some(done) = soon("the load to end", load.join_next()).await {
            done.expect("a publisher or consumer failed");
        }
        journal.lock().unwrap().round_ended();
    }
    let server = home.start();
    let client = server.client().await;
    drain(&client, QUEUE, &journal).await;
    let summary = journal.lock().unwrap().check_drained();
    println!("sigterm under load: {summary:?}");
    assert!(summary.confirmed > 0);
    assert_eq!(
        count(&client).await.published,
        journal.lock().unwrap().places() as u64
    );
}

/// Publishes small records in batches until one is refused as overloaded; gives
/// how many were confirmed.
async fn fill_index(client: &Client) -> u64 {
    let publisher = client.publisher(QUEUE).await.unwrap();
    let mut batch = Batch::new();
    for _ in 0..4096 {
        batch.push("small").unwrap();
    }
    for sent in 0..100 {
        match publisher.send_batch(&batch).await.unwrap().await {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.code(), Some(ErrorCode::Overloaded), "{error}");
                assert!(!error.is_unknown(), "refused is not unknown");
                assert!(
                    error.to_string().contains("index_memory (1 MiB)"),
                    "{error}"
                );
                return sent * 4096;
            }
        }
    }
    panic!("409 600 records went into 1 MiB of index");
}

async fn is_accepted(client: &Client) -> bool {
    match client.publish(QUEUE, "one more").await {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.code(), Some(ErrorCode::Overloaded), "{error}");
            false
        }
    }
}

#[tokio::test]
async fn an_index_at_its_memory_mark_refuses_publishes_and_nothing_else() {
    let home = Home::new(1).with("index_memory = \"1MiB\"");
    let server = home.start();
    let client = server.client().await;
    client.declare(QUEUE).await.unwrap();
    let full = fill_index(&client).await;
    // 20 bytes a record and what a chunk and a queue take.
    assert!((40_000..57_000).contains(&full), "{full}");
    assert!(!is_accepted(&client).await);
    let declared = client.declare("another").await;
    let refused = declared.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::Overloaded), "{refused}");

    // All the same after a crash: what is confirmed is served first.
    server.kill();
    let server = home.start();
    let client = server.client().await;
    assert_eq!(count(&client).await.ready, full);
    assert!(!is_accepted(&client).await);
    let said = server.errors();
    assert!(
        said.iter().any(|line| line.contains("index_memory")),
        "{said:?}"
    );

    let options = client::SubscribeOptions {
        max_deliveries: Some(10_000),
        ..Default::default()
    };
    let mut subscription = client.subscribe_with(QUEUE, options).await.unwrap();
    let mut settles = Vec::new();
    for _ in 0..10_000 {
        let delivery = soon("a delivery", subscription.next()).await.unwrap();
        settles.push(delivery.unwrap().ack_confirmed());
    }
    for settle in settles {
        soon("a settle", settle).await.unwrap();
    }
    assert_eq!(count(&client).await.acknowledged, 10_000);
    assert!(is_accepted(&client).await, "an eighth is free again");
    fill_index(&client).await;
    client.purge(QUEUE).await.unwrap();
    assert!(is_accepted(&client).await);
    client.declare("another").await.unwrap();
    fill_index(&client).await;
    client.delete(QUEUE).await.unwrap();
    // The shard drops its part after group 0 said so.
    let room = async { while client.publish("another", "room").await.is_err() {} };
    soon("room for another", room).await;
    server.stop();
}
