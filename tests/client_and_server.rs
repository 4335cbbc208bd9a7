//! The client crate against a real server.

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use client::{
    Batch, Boundary, Client, Copies, DeclareOptions, Delivery, ErrorCode, Headers, Mode,
    PeekOptions, Record, RecordState, SettleError, SubscribeOptions, Subscription,
};
use common::{Server, PATIENCE};

async fn connect(server: &Server) -> Client {
    let builder = Client::builder().backoff(Duration::from_millis(5), Duration::from_millis(50));
    builder.connect(server.address.to_string()).await.unwrap()
}

async fn next(subscription: &mut Subscription) -> Delivery {
    tokio::time::timeout(PATIENCE, subscription.next())
        .await
        .expect("a delivery in time")
        .expect("the stream goes on")
        .expect("a delivery")
}

/// Waits until the queue's totals satisfy `good`.
async fn totals(client: &Client, name: &str, good: impl Fn(&client::Counts) -> bool) {
    let wait = async {
        loop {
            let totals = client.info(name).await.unwrap().totals();
            if good(&totals) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    if tokio::time::timeout(PATIENCE, wait).await.is_err() {
        panic!("{:?}", client.info(name).await.unwrap().totals());
    }
}

#[tokio::test]
async fn f22_pipelined_records_over_shards_arrive_once_in_order_and_the_counters_agree() {
    const RECORDS: u64 = 20_000;
    let server = Server::start(2);
    let client = connect(&server).await;
    for mode in Mode::ALL {
        let name = mode.name();
        let options = DeclareOptions::new(name).mode(mode).partitions(4);
        let queue = client.declare(options).await.unwrap().queue;
        let shards: BTreeSet<u16> = queue.shards.iter().copied().collect();
        assert_eq!(shards.len(), 2, "spread over both shards");
        let publisher = client.publisher(name).await.unwrap();
        let produce = async {
            let mut confirms = Vec::new();
            for number in 0..RECORDS {
                let payload = number.to_string();
                confirms.push(publisher.send(&payload).await.unwrap());
            }
            let mut seen = BTreeSet::new();
            for confirm in confirms {
                let confirmed = confirm.await.unwrap();
                assert_eq!(confirmed.boundary, mode.confirm_gate());
                assert!(seen.insert((confirmed.partition, confirmed.offset)));
            }
            seen
        };
        let consume = async {
            let mut subscription = client.subscribe(name).await.unwrap();
            let mut places = BTreeMap::new();
            let mut last = [None; 4];
            let mut acks = Vec::new();
            while (places.len() as u64) < RECORDS {
                let delivery = next(&mut subscription).await;
                assert!(!delivery.redelivered());
                let number: u64 = std::str::from_utf8(delivery.payload())
                    .unwrap()
                    .parse()
                    .unwrap();
                let previous = &mut last[usize::from(delivery.partition())];
                assert!(previous.is_none_or(|p| p < number), "order per partition");
                *previous = Some(number);
                let place = (delivery.partition(), delivery.offset());
                assert!(places.insert(number, place).is_none(), "{number} twice");
                acks.push(delivery.ack_confirmed());
            }
            for ack in acks {
                assert_eq!(ack.await.unwrap().boundary, mode.confirm_gate());
            }
            places
        };
        let (confirmed, delivered) = tokio::join!(produce, consume);
        let places: BTreeSet<_> = delivered.into_values().collect();
        assert_eq!(places, confirmed);
        let totals = client.info(name).await.unwrap().totals();
        assert_eq!((totals.published, totals.acknowledged), (RECORDS, RECORDS));
        assert_eq!((totals.ready, totals.leased, totals.gated), (0, 0, 0));
    }
}

#[tokio::test]
async fn f72_f74_records_come_out_as_they_went_in() {
    let server = Server::start(1);
    let client = connect(&server).await;
    client.declare("q").await.unwrap();
    let publisher = client.publisher("q").await.unwrap();
    let headers = Headers::new().with("type", "x").with("", [0, 255]);
    let largest = vec![0xa5; 8 << 20];
    let payloads: [&[u8]; 4] = [b"", b"plain", &[0, 1, 255], &largest];
    for payload in payloads {
        let record = Record::new(payload).key("key").headers(&headers);
        publisher.publish(record).await.unwrap();
    }
    let mut batch = Batch::new();
    batch.push("").unwrap();
    batch.push(Record::new("last").headers(&headers)).unwrap();
    let confirmed = publisher.send_batch(&batch).await.unwrap().await.unwrap();
    assert_eq!((confirmed.offset, confirmed.count), (4, 2));
    let peeked = client.peek("q", PeekOptions::default()).await.unwrap();
    assert_eq!(peeked.len(), 6);
    assert!(peeked
        .iter()
        .all(|record| record.state == RecordState::Ready));
    assert_eq!(peeked[3].payload, largest);
    let mut subscription = client.subscribe("q").await.unwrap();
    for (offset, payload) in (0..).zip(payloads) {
        let delivery = next(&mut subscription).await;
        assert_eq!((delivery.offset(), delivery.attempt()), (offset, 1));
        assert!(delivery.payload() == payload);
        assert_eq!(delivery.key(), b"key");
        assert_eq!(delivery.headers().as_bytes(), headers.as_bytes());
        assert!(delivery.durable());
        delivery.ack();
    }
    assert_eq!(next(&mut subscription).await.payload(), b"");
    let last = next(&mut subscription).await;
    assert_eq!(last.headers().get("type"), Some(&b"x"[..]));
}

#[tokio::test]
async fn a_single_record_asks_for_durable_and_a_barrier_for_all() {
    let server = Server::start(1);
    let client = connect(&server).await;
    let options = DeclareOptions::new("q").mode(Mode::Buffered);
    client.declare(options).await.unwrap();
    let written = client.publish("q", "a").await.unwrap();
    assert_eq!(written.boundary, Boundary::Written);
    let publisher = client.publisher("q").await.unwrap().durable(true);
    let durable = publisher.publish("b").await.unwrap();
    assert_eq!((durable.boundary, durable.offset), (Boundary::Durable, 1));
    client.publish("q", "c").await.unwrap();
    let reached = client.barrier("q", PATIENCE).await.unwrap();
    assert_eq!((reached.len(), reached[0].durable_next), (1, 3));
    let frontiers = client.frontiers("q").await.unwrap();
    assert_eq!(
        (frontiers[0].written_next, frontiers[0].durable_next),
        (3, 3)
    );
}

#[tokio::test]
async fn records_of_a_key_stay_in_order_in_one_partition() {
    let server = Server::start(2);
    let client = connect(&server).await;
    client
        .declare(DeclareOptions::new("q").partitions(8))
        .await
        .unwrap();
    let publisher = client.publisher("q").await.unwrap();
    let mut confirms = Vec::new();
    for number in 0..600 {
        let key = format!("key-{}", number % 20);
        let payload = format!("{key} {number}");
        let record = Record::new(&payload).key(&key);
        confirms.push((key.clone(), publisher.send(record).await.unwrap()));
    }
    for (key, confirm) in confirms {
        let confirmed = confirm.await.unwrap();
        assert_eq!(confirmed.partition, publisher.partition_of(key.as_bytes()));
    }
    let mut subscription = client.subscribe("q").await.unwrap();
    let mut last: BTreeMap<String, i32> = BTreeMap::new();
    for _ in 0..600 {
        let delivery = next(&mut subscription).await;
        let text = String::from_utf8(delivery.payload().to_vec()).unwrap();
        let (key, number) = text.split_once(' ').unwrap();
        let number: i32 = number.parse().unwrap();
        let previous = last.insert(key.to_owned(), number);
        assert!(previous.is_none_or(|previous| previous < number), "{text}");
        delivery.ack();
    }
    assert_eq!(last.len(), 20);
}

#[tokio::test]
async fn released_rejected_and_expired_records_go_their_ways() {
    let server = Server::start(1);
    let client = connect(&server).await;
    let lease = Duration::from_millis(300);
    client
        .declare(DeclareOptions::new("q").lease(lease))
        .await
        .unwrap();
    let publisher = client.publisher("q").await.unwrap();
    for payload in ["released", "rejected", "kept too long"] {
        publisher.publish(payload).await.unwrap();
    }
    let mut subscription = client.subscribe("q").await.unwrap();
    let released = next(&mut subscription).await;
    let rejected = next(&mut subscription).await;
    let kept = next(&mut subscription).await;
    released
        .release_confirmed(Duration::from_millis(50))
        .await
        .unwrap();
    rejected.reject_confirmed().await.unwrap();
    let again = next(&mut subscription).await;
    assert_eq!(again.payload(), b"released");
    assert_eq!((again.attempt(), again.redelivered()), (2, true));
    again.ack_confirmed().await.unwrap();
    let again = next(&mut subscription).await;
    assert_eq!(
        (again.payload(), again.attempt()),
        (&b"kept too long"[..], 2)
    );
    // F40: the settle of the attempt that ran out touches nothing.
    let stale = kept.ack_confirmed().await.unwrap_err();
    assert!(matches!(stale, SettleError::Stale { .. }), "{stale:?}");
    again.ack_confirmed().await.unwrap();
    totals(&client, "q", |totals| {
        totals.acknowledged == 2 && totals.dropped == 1 && totals.leased + totals.ready == 0
    })
    .await;
}

#[tokio::test]
async fn a_due_record_waits_for_its_time() {
    let server = Server::start(1);
    let client = connect(&server).await;
    client.declare("q").await.unwrap();
    let due = std::time::SystemTime::now() + Duration::from_secs(1);
    let publisher = client.publisher("q").await.unwrap();
    publisher
        .publish(Record::new("later").not_before(due))
        .await
        .unwrap();
    publisher.publish("now").await.unwrap();
    let mut subscription = client.subscribe("q").await.unwrap();
    assert_eq!(next(&mut subscription).await.payload(), b"now");
    let later = next(&mut subscription).await;
    assert_eq!(later.payload(), b"later");
    assert!(std::time::SystemTime::now() >= due, "before its time");
    assert!(later.not_before().is_some());
}

#[tokio::test]
async fn f35_what_a_vanished_consumer_held_comes_back_at_once() {
    let server = Server::start(2);
    let client = connect(&server).await;
    client.declare("q").await.unwrap();
    let publisher = client.publisher("q").await.unwrap();
    for payload in ["1", "2", "3", "4", "5"] {
        publisher.publish(payload).await.unwrap();
    }
    let gone = connect(&server).await;
    let mut subscription = gone.subscribe("q").await.unwrap();
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(next(&mut subscription).await);
    }
    totals(&client, "q", |totals| totals.leased == 5).await;
    drop((subscription, gone));
    totals(&client, "q", |totals| {
        totals.ready == 5 && totals.leased == 0
    })
    .await;
    let mut subscription = client.subscribe("q").await.unwrap();
    let again = next(&mut subscription).await;
    assert_eq!((again.attempt(), again.redelivered()), (2, true));
    let stale = held.remove(0).ack_confirmed().await.unwrap_err();
    assert!(matches!(stale, SettleError::Stale { .. }));
}

#[tokio::test]
async fn two_consumers_share_and_a_slow_one_holds_up_nobody() {
    let server = Server::start(1);
    let client = connect(&server).await;
    client.declare("q").await.unwrap();
    let slow = connect(&server).await;
    let options = SubscribeOptions {
        credit_records: 1,
        ..Default::default()
    };
    // It takes nothing from its stream.
    let _slow = slow.subscribe_with("q", options).await.unwrap();
    let mut fast = client.subscribe("q").await.unwrap();
    let publisher = client.publisher("q").await.unwrap();
    for number in 0..100 {
        let payload = number.to_string();
        drop(publisher.send(&payload).await.unwrap());
    }
    for _ in 0..99 {
        next(&mut fast).await.ack();
    }
    totals(&client, "q", |totals| {
        totals.acknowledged == 99 && totals.leased == 1
    })
    .await;
}

#[tokio::test]
async fn a_redeclare_checks_and_a_name_used_again_gets_a_new_id() {
    let server = Server::start(1);
    let client = connect(&server).await;
    let first = client.declare("q").await.unwrap();
    assert!(first.created);
    assert_eq!(first.queue.copies, Copies::Majority);
    let same = client.declare("q").await.unwrap();
    assert!(!same.created);
    assert_eq!(same.queue, first.queue);
    let other = DeclareOptions::new("q").mode(Mode::Speculative);
    let error = client.declare(other).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::Conflict));
    client.publish("q", "gone").await.unwrap();
    let stale = client.publisher("q").await.unwrap();
    assert_eq!(client.delete("q").await.unwrap(), first.queue.queue_id);
    let error = client.info("q").await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::UnknownQueue));
    let again = client.declare("q").await.unwrap();
    assert!(again.created);
    assert_ne!(again.queue.queue_id, first.queue.queue_id);
    let error = stale.publish("x").await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::UnknownQueue));
    // By name it finds the new one.
    let confirmed = client.publish("q", "x").await.unwrap();
    assert_eq!(confirmed.queue_id, again.queue.queue_id);
    assert_eq!(confirmed.offset, 0);
}

#[tokio::test]
async fn f78_purge_and_delete_while_consuming() {
    let server = Server::start(1);
    let client = connect(&server).await;
    client.declare("q").await.unwrap();
    let publisher = client.publisher("q").await.unwrap();
    for payload in ["held", "b", "c"] {
        publisher.publish(payload).await.unwrap();
    }
    let options = SubscribeOptions {
        max_deliveries: Some(1),
        ..Default::default()
    };
    let mut subscription = client.subscribe_with("q", options).await.unwrap();
    let held = next(&mut subscription).await;
    assert_eq!(client.purge("q").await.unwrap(), 2);
    held.ack_confirmed().await.unwrap();
    totals(&client, "q", |t| {
        (t.acknowledged, t.purged, t.ready, t.leased) == (1, 2, 0, 0)
    })
    .await;
    publisher.publish("d").await.unwrap();
    client.delete("q").await.unwrap();
    assert!(client.list().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_client_that_is_not_shard_aware_reaches_every_partition() {
    let server = Server::start(2);
    let builder = Client::builder().shard_aware(false);
    let client = builder.connect(server.address.to_string()).await.unwrap();
    client
        .declare(DeclareOptions::new("q").partitions(4))
        .await
        .unwrap();
    let publisher = client.publisher("q").await.unwrap();
    let mut partitions = BTreeSet::new();
    for _ in 0..4 {
        partitions.insert(publisher.publish("x").await.unwrap().partition);
    }
    assert_eq!(partitions.len(), 4);
    let mut subscription = client.subscribe("q").await.unwrap();
    for _ in 0..4 {
        next(&mut subscription).await.ack_confirmed().await.unwrap();
    }
    assert_eq!(client.barrier("q", PATIENCE).await.unwrap().len(), 4);
    let totals = client.info("q").await.unwrap().totals();
    assert_eq!(totals.acknowledged, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_confirmed_is_lost_while_the_server_is_killed_and_restarted_under_load() {
    let mut server = Server::start(2);
    let client = connect(&server).await;
    client
        .declare(DeclareOptions::new("q").partitions(2))
        .await
        .unwrap();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let publishing = tokio::spawn(publish_until(client.clone(), stopped));
    let consuming = tokio::spawn(consume_all(client.clone()));
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        server.kill();
        server.restart();
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    stop.send_replace(true);
    let (confirmed, unknown) = publishing.await.unwrap();
    // The end mark goes to every partition, behind everything else.
    let publisher = client.publisher("q").await.unwrap();
    for partition in 0..2 {
        let mut end = Batch::new();
        end.push("end").unwrap();
        let confirm = publisher.send_batch_to(partition, &end).await.unwrap();
        confirm.await.unwrap();
    }
    let delivered = tokio::time::timeout(PATIENCE, consuming)
        .await
        .expect("both ends arrive")
        .unwrap();
    assert!(confirmed.len() > 100, "{} confirmed", confirmed.len());
    let missing: Vec<_> = confirmed.difference(&delivered).collect();
    assert!(
        missing.is_empty(),
        "confirmed and not delivered: {missing:?}"
    );
    let phantom = delivered
        .iter()
        .find(|number| !confirmed.contains(number) && !unknown.contains(number));
    assert_eq!(
        phantom, None,
        "delivered, yet neither confirmed nor unknown"
    );
}

/// Publishes ascending numbers; gives those confirmed and those unknown.
async fn publish_until(
    client: Client,
    stopped: tokio::sync::watch::Receiver<bool>,
) -> (BTreeSet<u64>, BTreeSet<u64>) {
    let publisher = client.publisher("q").await.unwrap();
    let (mut confirmed, mut unknown) = (BTreeSet::new(), BTreeSet::new());
    let mut number = 0;
    while !*stopped.borrow() {
        let mut confirms = Vec::new();
        for _ in 0..50 {
            let payload = number.to_string();
            confirms.push((number, publisher.send(&payload).await.unwrap()));
            number += 1;
        }
        for (number, confirm) in confirms {
            match confirm.await {
                Ok(_) => confirmed.insert(number),
                Err(error) => {
                    assert!(error.is_unknown(), "{number}: {error}");
                    unknown.insert(number)
                }
            };
        }
    }
    (confirmed, unknown)
}

/// Acknowledges everything until both partitions' end marks came.
async fn consume_all(client: Client) -> BTreeSet<u64> {
    let mut subscription = client.subscribe("q").await.unwrap();
    let mut delivered = BTreeSet::new();
    let mut ended = BTreeSet::new();
    while ended.len() < 2 {
        let delivery = subscription.next().await.unwrap().unwrap();
        match std::str::from_utf8(delivery.payload()).unwrap() {
            "end" => {
                ended.insert(delivery.partition());
            }
            number => {
                let new = delivered.insert(number.parse().unwrap());
                assert!(new || delivery.redelivered(), "an unflagged duplicate");
            }
        }
        delivery.ack();
    }
    delivered
}
