//! Idempotent producers: a publish that is sent again is answered with the place of
//! the first, whatever happened in between, and an older epoch stores nothing.

use std::time::{Duration, Instant};

use client::{Client, DeclareOptions, Error, Mode, ProducerId};
use wire::{error::ErrorCode, message::Publish, record::RecordParts};

use crate::{
    net::{await_said, Net, Node},
    support::{
        raw::RawConsumer,
        server::{quick, Home},
        size, soon, PATIENCE,
    },
};

const FAILED: u8 = 1;
const UNKNOWN: u8 = 2;

/// A publish of producer 77 of so many records.
fn publish(queue_id: u64, epoch: u32, sequence: u64, count: u32) -> Publish {
    let mut records = Vec::new();
    for record in 0..count {
        let payload = format!("{epoch} {sequence} {record}");
        let parts = RecordParts {
            payload: payload.as_bytes(),
            ..Default::default()
        };
        parts.encode(&mut records).unwrap();
    }
    Publish {
        queue_id,
        producer_id: 77,
        producer_epoch: epoch,
        sequence,
        count,
        records,
        ..Default::default()
    }
}

async fn declared(client: &Client, name: &str, mode: Mode) -> u64 {
    let start = Instant::now();
    loop {
        match client.declare(DeclareOptions::new(name).mode(mode)).await {
            Ok(declared) => return declared.queue.queue_id,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn published(client: &Client, name: &str) -> u64 {
    let start = Instant::now();
    loop {
        match client.info(name).await {
            Ok(info) => return info.totals().published,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_publish_sent_again_is_stored_once_across_kills_and_checkpoints() {
    for mode in [Mode::Durable, Mode::Buffered, Mode::Speculative] {
        let home = Home::new(1).short_segments();
        let mut server = home.start();
        let client = server.client().await;
        let queue_id = declared(&client, "q", mode).await;
        let mut raw = RawConsumer::connect(&server, 1 << 20).await;
        // The second while the first waits for its gate.
        raw.send_publish(11, &publish(queue_id, 1, 5, 3)).await;
        raw.send_publish(12, &publish(queue_id, 1, 5, 3)).await;
        assert_eq!(raw.answer(11).await, Ok(0), "{mode:?}");
        assert_eq!(raw.answer(12).await, Ok(0), "{mode:?}");
        assert_eq!(raw.publish(13, &publish(queue_id, 1, 6, 1)).await, Ok(3));
        server.kill();
        server = home.start();
        let mut raw = RawConsumer::connect(&server, 1 << 20).await;
        assert_eq!(served(&mut raw, &publish(queue_id, 1, 5, 3)).await, Ok(0));
        // Enough for the ring to go round: what is known stands in a checkpoint.
        let client = server.client().await;
        declared(&client, "filler", mode).await;
        let payload = vec![7; 100_000];
        for _ in 0..120 {
            let record = client::Record::new(&payload);
            soon("a confirm", client.publish("filler", record))
                .await
                .unwrap();
        }
        server.kill();
        server = home.start();
        let mut raw = RawConsumer::connect(&server, 1 << 20).await;
        assert_eq!(served(&mut raw, &publish(queue_id, 1, 6, 1)).await, Ok(3));
        assert_eq!(raw.publish(14, &publish(queue_id, 1, 7, 2)).await, Ok(4));
        let client = server.client().await;
        assert_eq!(published(&client, "q").await, 6, "{mode:?}");
        server.stop();
    }
}

/// Asks again while the server starts.
async fn served(raw: &mut RawConsumer, body: &Publish) -> Result<u64, (u16, u8)> {
    let start = Instant::now();
    loop {
        match raw.publish(99, body).await {
            Err((code, FAILED)) if code == ErrorCode::Unavailable as u16 => {
                assert!(start.elapsed() < PATIENCE);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            answer => return answer,
        }
    }
}

#[tokio::test]
async fn an_older_epoch_is_fenced_and_an_old_number_is_not_stored_again() {
    let home = Home::new(1);
    let server = home.start();
    let client = server.client().await;
    let queue_id = declared(&client, "q", Mode::Durable).await;
    let mut raw = RawConsumer::connect(&server, 1 << 20).await;
    assert_eq!(raw.publish(1, &publish(queue_id, 1, 0, 1)).await, Ok(0));
    assert_eq!(raw.publish(2, &publish(queue_id, 2, 0, 1)).await, Ok(1));
    let fenced = Err((ErrorCode::Fenced as u16, FAILED));
    assert_eq!(raw.publish(3, &publish(queue_id, 1, 0, 1)).await, fenced);
    assert_eq!(raw.publish(4, &publish(queue_id, 1, 1, 1)).await, fenced);
    // Fenced by one that is still on its way.
    raw.send_publish(5, &publish(queue_id, 3, 0, 1)).await;
    raw.send_publish(6, &publish(queue_id, 2, 1, 1)).await;
    assert_eq!(raw.answer(5).await, Ok(2));
    assert_eq!(raw.answer(6).await, fenced);
    for number in 1..=32 {
        let met = raw.publish(7, &publish(queue_id, 3, number, 1)).await;
        assert_eq!(met, Ok(2 + number));
    }
    let forgotten = Err((ErrorCode::Forgotten as u16, UNKNOWN));
    assert_eq!(raw.publish(8, &publish(queue_id, 3, 0, 1)).await, forgotten);
    assert_eq!(raw.publish(9, &publish(queue_id, 3, 1, 1)).await, Ok(3));
    assert_eq!(published(&client, "q").await, 35);
    server.stop();
}

/// The outcome of what was on its way when a leader died is resolved by sending it
/// again through another node.
#[tokio::test]
async fn f13_a_publish_sent_again_after_a_failover_is_stored_once() {
    let net = Net::new(3);
    let mut nodes: Vec<Option<Node>> = (1..=3)
        .map(|node| net.home(node, 1).listening_on(&net.for_clients(node)))
        .map(|home| Some(Node::start(home)))
        .collect();
    let all: Vec<String> = (1..=3).map(|node| net.for_clients(node)).collect();
    let client = quick().connect(&all).await.unwrap();
    for (name, mode) in [("orders", Mode::Durable), ("clicks", Mode::Buffered)] {
        let queue_id = declared(&client, name, mode).await;
        let mut stored = 0;
        for round in 0..3_u64 {
            let leader = leader(&client, name).await;
            let through = leader % 3 + 1;
            let mut raw = connected(&nodes, through).await;
            let first = served(&mut raw, &publish(queue_id, 1, 2 * round, 2)).await;
            assert_eq!(first, Ok(stored));
            // On its way while the leader dies, or answered: nobody knows.
            let body = publish(queue_id, 1, 2 * round + 1, 3);
            raw.send_publish(50, &body).await;
            let dies = leader as usize - 1;
            let home = nodes[dies].take().unwrap().kill();
            let mut raw = connected(&nodes, through).await;
            let start = Instant::now();
            let second = loop {
                match raw.try_publish(51, &body).await {
                    Some(Ok(first)) => break first,
                    Some(Err(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
                    None => raw = connected(&nodes, through).await,
                }
                assert!(start.elapsed() < PATIENCE);
            };
            assert_eq!(second, stored + 2);
            stored += 5;
            nodes[dies] = Some(Node::start(home));
            await_said(nodes[dies].as_ref().unwrap(), "is linked", 2);
            let again = publish(queue_id, 1, 2 * round, 2);
            let mut raw = connected(&nodes, through).await;
            assert_eq!(served(&mut raw, &again).await, Ok(stored - 5));
        }
        assert_eq!(published(&client, name).await, stored);
    }
}

/// A node so far behind that it gets the group's state instead of entries, and then
/// leads, knows what its predecessors stored.
#[tokio::test]
async fn what_is_known_of_a_producer_comes_with_the_state_from_another_node() {
    let net = Net::new(3);
    let mut nodes: Vec<Option<Node>> = (1..=3)
        .map(|node| net.home(node, 1).listening_on(&net.for_clients(node)))
        .map(|home| Some(Node::start(home)))
        .collect();
    let all: Vec<String> = (1..=3).map(|node| net.for_clients(node)).collect();
    let client = quick().connect(&all).await.unwrap();
    let queue_id = declared(&client, "q", Mode::Durable).await;
    let behind = leader(&client, "q").await % 3 + 1;
    let mut raw = connected(&nodes, behind).await;
    assert_eq!(served(&mut raw, &publish(queue_id, 1, 5, 3)).await, Ok(0));
    let start = Instant::now();
    let payload = vec![7; 100_000];
    // Until the others have let go what the node misses: when they do is theirs.
    while !came_from_another(nodes[behind as usize - 1].as_ref().unwrap()).await {
        assert!(start.elapsed() < PATIENCE, "it got entry by entry");
        let away = nodes[behind as usize - 1].take().unwrap().kill();
        for _ in 0..3 {
            for _ in 0..60 {
                let record = client::Record::new(&payload);
                // Whatever it is answered: bytes are to pass.
                let _ = soon("an outcome", client.publish("q", record)).await;
            }
            let _ = soon("a purge", client.purge("q")).await;
        }
        nodes[behind as usize - 1] = Some(Node::start(away));
    }
    let start = Instant::now();
    loop {
        let leader = leader(&client, "q").await;
        if leader == behind {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "it never led");
        let dies = leader as usize - 1;
        let home = nodes[dies].take().unwrap().kill();
        tokio::time::sleep(Duration::from_millis(50)).await;
        // Somebody leads again.
        published(&client, "q").await;
        nodes[dies] = Some(Node::start(home));
        await_said(nodes[dies].as_ref().unwrap(), "is linked", 2);
    }
    let mut raw = connected(&nodes, behind).await;
    assert_eq!(served(&mut raw, &publish(queue_id, 1, 5, 3)).await, Ok(0));
}

/// Within some seconds.
async fn came_from_another(node: &Node) -> bool {
    for _ in 0..100 {
        let said = |line: &String| line.contains("the state came from another node");
        if node.errors().iter().any(said) {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    false
}

/// F13: an idempotent publisher is told of every publish what became of it, however
/// often nodes die, and each is stored once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f13_an_idempotent_publisher_knows_every_outcome_while_nodes_are_killed() {
    let net = Net::new(3);
    let mut nodes: Vec<Option<Node>> = (1..=3)
        .map(|node| net.home(node, 1).listening_on(&net.for_clients(node)))
        .map(|home| Some(Node::start(home)))
        .collect();
    let all: Vec<String> = (1..=3).map(|node| net.for_clients(node)).collect();
    let client = quick().connect(&all).await.unwrap();
    let modes = [("orders", Mode::Durable), ("clicks", Mode::Buffered)];
    let mut tasks = Vec::new();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    for (name, mode) in modes {
        declared(&client, name, mode).await;
        let publisher = client.publisher(name).await.unwrap();
        let publisher = publisher.idempotent(ProducerId::random());
        let stopped = stopped.clone();
        tasks.push(tokio::spawn(async move {
            let mut offsets = std::collections::BTreeSet::new();
            while !*stopped.borrow() {
                let mut confirms = Vec::new();
                for _ in 0..10 {
                    confirms.push(publisher.send("once").await.unwrap());
                }
                for confirm in confirms {
                    let met = soon("an outcome", confirm).await;
                    let met = met.unwrap_or_else(|error| panic!("not known: {error}"));
                    assert!(offsets.insert(met.offset), "{met} was confirmed before");
                }
            }
            offsets.len() as u64
        }));
    }
    for round in 0..size(3, 30) {
        let dies = leader(&client, modes[round % 2].0).await as usize - 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let home = nodes[dies].take().unwrap().kill();
        tokio::time::sleep(Duration::from_millis(100)).await;
        nodes[dies] = Some(Node::start(home));
        await_said(nodes[dies].as_ref().unwrap(), "is linked", 2);
    }
    stop.send_replace(true);
    for ((name, _), task) in modes.iter().zip(tasks) {
        let told = soon("the end", task).await.unwrap();
        assert_eq!(published(&client, name).await, told, "{name}");
    }
}

async fn leader(client: &Client, name: &str) -> u32 {
    let start = Instant::now();
    loop {
        let info: Result<_, Error> = client.info(name).await;
        match info {
            Ok(info) => return info.queue.leaders[0],
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn connected(nodes: &[Option<Node>], node: u32) -> RawConsumer {
    let node = nodes[node as usize - 1].as_ref().unwrap();
    RawConsumer::connect(node, 1 << 20).await
}
