//! Consumers of queues whose partitions several nodes lead.

use std::{
    collections::{BTreeSet, HashSet},
    time::{Duration, Instant},
};

use client::{Batch, Client, DeclareOptions, Delivery, Mode, SubscribeOptions, Subscription};

use wire::{
    codec,
    error::{ErrorCode, Outcome},
    frame::Kind,
    message::{Error, Extension, Redirect, Subscribe},
};

use crate::{
    admin::{assert_done, await_status},
    net::{await_said, Net, Node},
    spread::is_spread,
    support::{await_counts, raw::RawConsumer, served, server::quick, soon, PATIENCE},
};

const PARTITIONS: u16 = 6;
const QUEUE: &str = "orders";

/// Three nodes with all leaders spread; `advertise`: where clients are told that they are.
fn started(net: &Net, shards: u16, advertise: Option<&str>) -> Vec<Option<Node>> {
    let start = |node| {
        let home = net.home(node, shards).listening_on(&net.for_clients(node));
        let home = home.with("spread_leaders = \"300ms\"");
        Node::start(match advertise {
            Some(address) => home.with(&format!("advertise = \"{address}\"")),
            None => home,
        })
    };
    let nodes: Vec<_> = (1..=3).map(|node| Some(start(node))).collect();
    await_status(nodes[0].as_ref().unwrap(), "leaders are spread", is_spread);
    nodes
}

fn servers(net: &Net) -> Vec<String> {
    (1..=3).map(|node| net.for_clients(node)).collect()
}

/// A queue with partitions of every node, and so many records in each; gives the leaders,
/// where nodes have several shards 0 for what is on another one.
async fn filled(client: &Client, mode: Mode, each: u32) -> Vec<u32> {
    let options = || {
        DeclareOptions::new(QUEUE)
            .mode(mode)
            .partitions(PARTITIONS)
            .lease(2 * PATIENCE)
    };
    served(|| client.declare(options())).await;
    publish(client, 0, each).await;
    let leaders = served(|| client.info(QUEUE)).await.queue.leaders;
    let all = (1..=3).all(|node| leaders.contains(&node));
    assert!(all, "{leaders:?}");
    leaders
}

/// Publishes records that are named by partition and number.
async fn publish(client: &Client, from: u32, each: u32) {
    let publisher = served(|| client.publisher(QUEUE)).await;
    for partition in 0..PARTITIONS {
        let mut batch = Batch::new();
        for number in from..from + each {
            let payload = format!("{partition}/{number}");
            batch.push(payload.as_str()).unwrap();
        }
        served(|| async { publisher.send_batch_to(partition, &batch).await?.await }).await;
    }
}

async fn take(subscription: &mut Subscription) -> Delivery {
    soon("a delivery", subscription.next())
        .await
        .expect("the stream goes on")
        .expect("a delivery")
}

fn name_of(delivery: &Delivery) -> String {
    String::from_utf8(delivery.payload().to_vec()).unwrap()
}

/// What a consumer saw and acknowledged.
#[derive(Default)]
struct Seen {
    acknowledged: BTreeSet<String>,
    deliveries: HashSet<(u16, u32, u64, u32)>,
}

impl Seen {
    /// Takes and acknowledges one after the other, until so many are acknowledged.
    async fn consume(&mut self, subscription: &mut Subscription, until: usize) {
        while self.acknowledged.len() < until {
            let delivery = take(subscription).await;
            let name = name_of(&delivery);
            let identity = (
                delivery.partition(),
                delivery.generation(),
                delivery.offset(),
                delivery.attempt(),
            );
            assert!(self.deliveries.insert(identity), "twice: {delivery:?}");
            assert!(!self.acknowledged.contains(&name), "again: {delivery:?}");
            // Otherwise it comes again, unless the outcome is unknown. A new leader may not
            // know of the attempt, if the last one took it to its death.
            match soon("an outcome", delivery.ack_confirmed()).await {
                Ok(_) => self.acknowledged.insert(name),
                Err(_) => self.deliveries.remove(&identity),
            };
        }
    }
}

/// Subscribes by hand, asking to come straight or not; the kinds of the answers up to
/// its own.
async fn asked(raw: &mut RawConsumer, queue_id: u64, straight: bool) -> Vec<(u64, Kind, Vec<u8>)> {
    let extension = Extension {
        kind: Extension::STRAIGHT,
        bytes: Vec::new(),
    };
    let body = Subscribe {
        queue_id,
        subscription: 1,
        credit_records: 1,
        credit_bytes: 1,
        extensions: Vec::from_iter(straight.then_some(extension)),
        ..Default::default()
    };
    raw.send(|out| codec::encode(out, 77, &body)).await;
    let mut answers = Vec::new();
    loop {
        let (header, body) = raw.frame().await;
        let kind = Kind::from_raw(header.kind).unwrap();
        answers.push((header.correlation, kind, body));
        if header.correlation == 77 {
            return answers;
        }
    }
}

/// Frame by frame: who asks to come straight is told the way each time and has subscribed
/// nothing, at a node that does not lead; at the leader it changes nothing.
#[tokio::test]
async fn a_subscribe_that_asks_to_come_straight_is_told_the_way_and_refused() {
    let net = Net::new(3);
    let nodes = started(&net, 1, None);
    let client = quick().connect(servers(&net)).await.unwrap();
    let leader = filled(&client, Mode::Durable, 1).await[0];
    let queue_id = served(|| client.locate(QUEUE)).await.queue_id;
    let at = |node: u32| nodes[node as usize - 1].as_ref().unwrap();
    let mut raw = RawConsumer::connect(at(leader % 3 + 1), 1 << 20).await;
    for _ in 0..2 {
        let answers = asked(&mut raw, queue_id, true).await;
        let [(0, Kind::Redirect, redirect), (77, Kind::Error, error)] = &answers[..] else {
            panic!("{answers:?}")
        };
        let redirect = codec::decode::<Redirect>(redirect).unwrap();
        let address = net.for_clients(leader).into_bytes();
        assert_eq!(redirect.node.to_native(), leader);
        assert_eq!(redirect.extensions[0].bytes, address);
        let error = codec::decode::<Error>(error).unwrap();
        let refused = (error.code.to_native(), error.outcome);
        let expected = (ErrorCode::NotOwner as u16, Outcome::Failed as u8);
        assert_eq!(refused, expected, "{}", error.message);
    }
    // The number is free, and whoever does not ask is served.
    let answers = asked(&mut raw, queue_id, false).await;
    assert!(matches!(answers.last(), Some((_, Kind::Subscribed, _))));
    raw.expect(Kind::Deliver).await;
    drop(raw);
    let mut raw = RawConsumer::connect(at(leader), 1 << 20).await;
    let answers = asked(&mut raw, queue_id, true).await;
    assert!(
        matches!(&answers[..], [(77, Kind::Subscribed, _)]),
        "{answers:?}"
    );
    raw.expect(Kind::Deliver).await;
}

/// What is delivered can be settled although the node that the client is connected to is
/// dead: it is not on the way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliveries_come_straight_from_every_leader() {
    let net = Net::new(3);
    let mut nodes = started(&net, 1, None);
    let client = quick().connect(servers(&net)).await.unwrap();
    let leaders = filled(&client, Mode::Durable, 10).await;
    // One that has published nothing, and so knows nothing.
    let consumer = quick().connect(servers(&net)).await.unwrap();
    assert_eq!(consumer.nodes(), [1]);
    let mut subscription = served(|| consumer.subscribe(QUEUE)).await;
    let mut held = Vec::new();
    for _ in 0..10 * PARTITIONS {
        let delivery = take(&mut subscription).await;
        // Nothing was delivered to be given back at once.
        assert_eq!(delivery.attempt(), 1, "{delivery:?}");
        held.push(delivery);
    }
    assert_eq!(consumer.nodes(), [1, 2, 3]);
    let home = nodes[0].take().unwrap().kill();
    let mut again = BTreeSet::new();
    for delivery in held {
        let name = name_of(&delivery);
        let leader = leaders[usize::from(delivery.partition())];
        let settled = soon("an outcome", delivery.ack_confirmed()).await;
        match leader {
            1 => {
                settled.expect_err("its leader is dead");
                again.insert(name);
            }
            _ => drop(settled.unwrap_or_else(|error| panic!("{name} of node {leader}: {error}"))),
        }
    }
    // Exactly what the dead node had delivered comes again, from whoever leads now.
    while !again.is_empty() {
        let delivery = take(&mut subscription).await;
        assert!(again.remove(&name_of(&delivery)), "{delivery:?}");
        assert!(delivery.redelivered(), "{delivery:?}");
        soon("an outcome", delivery.ack_confirmed()).await.unwrap();
    }
    let all = u64::from(PARTITIONS) * 10;
    let two = quick().connect(net.for_clients(2)).await.unwrap();
    await_counts(&two, QUEUE, "all to be acknowledged", |counts| {
        counts.acknowledged == all && counts.leased == 0
    })
    .await;
    drop(home);
}

/// F01, of consumers: a leader is killed in the middle, of each mode.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f01_a_consumer_follows_a_leader_that_is_killed() {
    for mode in [Mode::Durable, Mode::Buffered] {
        let net = Net::new(3);
        let mut nodes = started(&net, 2, None);
        let client = quick().connect(servers(&net)).await.unwrap();
        filled(&client, mode, 20).await;
        let options = SubscribeOptions {
            credit_records: 8,
            ..Default::default()
        };
        let subscribe = || client.subscribe_with(QUEUE, options);
        let mut subscription = served(subscribe).await;
        let mut seen = Seen::default();
        let all = 20 * usize::from(PARTITIONS);
        seen.consume(&mut subscription, all / 4).await;
        let home = nodes[1].take().unwrap().kill();
        // Where an acknowledge is unknown, the record may be done with.
        let certain = all - 8 * usize::from(PARTITIONS);
        seen.consume(&mut subscription, certain).await;
        nodes[1] = Some(Node::start(home));
        await_said(nodes[1].as_ref().unwrap(), "is linked", 2);
        publish(&client, 20, 20).await;
        let rest = drain(&mut seen, &mut subscription, &client, all * 2);
        soon("the rest", rest).await;
    }
}

/// Consumes until every record is acknowledged, as the queue counts it.
async fn drain(seen: &mut Seen, subscription: &mut Subscription, client: &Client, all: usize) {
    loop {
        let counts = served(|| client.info(QUEUE)).await.totals();
        if counts.acknowledged == all as u64 {
            return assert!(seen.acknowledged.len() <= all);
        }
        let more = seen.acknowledged.len() + 1;
        let consumed = seen.consume(subscription, more);
        // What is unknown and done with does not come.
        let _ = tokio::time::timeout(Duration::from_millis(200), consumed).await;
    }
}

/// Every node is drained in turn; the client knows the address of one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_follows_leaders_that_are_drained() {
    let net = Net::new(3);
    let nodes = started(&net, 1, None);
    let one = nodes[0].as_ref().unwrap();
    let producer = one.client_with(quick()).await;
    filled(&producer, Mode::Durable, 5).await;
    // It knows of leaders by consuming alone.
    let client = one.client_with(quick()).await;
    let mut subscription = served(|| client.subscribe(QUEUE)).await;
    let mut seen = Seen::default();
    let mut all = 5 * usize::from(PARTITIONS);
    for (round, node) in (1..).zip(["2", "1", "3"]) {
        let rest = drain(&mut seen, &mut subscription, &client, all);
        soon("the rest", rest).await;
        let output = one.cli(&["cluster", "drain", node]);
        assert_done(&output, "leads nothing any more");
        publish(&producer, round * 5, 5).await;
        all += 5 * usize::from(PARTITIONS);
        let rest = drain(&mut seen, &mut subscription, &client, all);
        soon("the rest", rest).await;
        let start = Instant::now();
        loop {
            let leaders = served(|| client.info(QUEUE)).await.queue.leaders;
            let drained: u32 = node.parse().unwrap();
            assert!(!leaders.contains(&drained), "{leaders:?}");
            if leaders.iter().all(|leader| client.nodes().contains(leader)) {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "{:?}", client.nodes());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_done(&one.cli(&["cluster", "undrain", node]), "may lead again");
    }
}

/// Nodes behind an address translation: what they say of themselves means nothing to the
/// client, which reaches one of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_leaders_are_out_of_reach_deliveries_go_through_the_node_at_hand() {
    let net = Net::new(3);
    let nowhere = net.for_clients(4);
    let nodes = started(&net, 2, Some(&nowhere));
    let client = nodes[0].as_ref().unwrap().client_with(quick()).await;
    filled(&client, Mode::Durable, 10).await;
    let mut subscription = served(|| client.subscribe(QUEUE)).await;
    let mut seen = Seen::default();
    let all = 10 * usize::from(PARTITIONS);
    seen.consume(&mut subscription, all).await;
    assert_eq!(client.nodes(), [1]);
    assert_eq!(seen.deliveries.len(), all, "some came more than once");
}
