//! Clients that were told of several nodes go on by themselves, whichever dies.

use std::{
    collections::BTreeSet,
    io::Write,
    process::Stdio,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use client::{Client, DeclareOptions, Mode, Publisher};

use crate::{
    net::{await_said, Net, Node},
    support::{served, server::quick, size, soon, PATIENCE},
};

const QUEUES: [(&str, Mode); 2] = [("orders", Mode::Durable), ("clicks", Mode::Buffered)];

/// Running nodes whose addresses for clients stay the same.
fn start(net: &Net, shards: u16) -> Vec<Option<Node>> {
    (1..=3)
        .map(|node| net.home(node, shards).listening_on(&net.for_clients(node)))
        .map(|home| Some(Node::start(home)))
        .collect()
}

/// The list, from this node on.
fn servers(net: &Net, first: u32) -> Vec<String> {
    (0..3)
        .map(|step| net.for_clients((first - 1 + step) % 3 + 1))
        .collect()
}

async fn declare(client: &Client) {
    for (name, mode) in QUEUES {
        served(|| client.declare(DeclareOptions::new(name).mode(mode))).await;
    }
}

/// What arrived, by a consumer that acknowledges everything and never looks at
/// its connection.
fn consume(client: Client, queue: &'static str) -> Arc<Mutex<BTreeSet<String>>> {
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let arrived = seen.clone();
    tokio::spawn(async move {
        // Only the first one is asked for here.
        let mut subscription = served(|| client.subscribe(queue)).await;
        while let Some(next) = subscription.next().await {
            let delivery = next.expect("the subscription goes on");
            let payload = String::from_utf8(delivery.payload().to_vec()).unwrap();
            let flagged = delivery.redelivered();
            delivery.ack();
            let new = seen.lock().unwrap().insert(payload.clone());
            assert!(new || flagged, "{payload} came again without the flag");
        }
        panic!("the subscription ended");
    });
    arrived
}

/// Publishes for this long, one record after the other; those confirmed go into `confirmed`.
async fn publish(publishers: &[Publisher], confirmed: &mut [BTreeSet<String>], until: Instant) {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    while Instant::now() < until {
        for (publisher, confirmed) in publishers.iter().zip(confirmed.iter_mut()) {
            let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let payload = format!("record {number}");
            match soon("an outcome", publisher.publish(payload.as_str())).await {
                Ok(met) => {
                    assert!(met.copies >= 2, "{met:?}");
                    confirmed.insert(payload);
                }
                // It was sent to a node that died: nobody sends it again.
                Err(error) => assert!(error.is_unknown(), "{error}"),
            }
        }
    }
}

/// F01: each node is killed in turn under a producer and a consumer that know all
/// three. Both go on by themselves, and nothing confirmed is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f01_clients_of_three_nodes_go_on_while_each_is_killed_in_turn() {
    let net = Net::new(3);
    let mut nodes = start(&net, 1);
    let producer = quick().connect(servers(&net, 1)).await.unwrap();
    declare(&producer).await;
    let consumer = quick().connect(servers(&net, 2)).await.unwrap();
    let arrived: Vec<_> = QUEUES
        .iter()
        .map(|(name, _)| consume(consumer.clone(), name))
        .collect();
    let mut publishers = Vec::new();
    for (name, _) in QUEUES {
        publishers.push(served(|| producer.publisher(name)).await);
    }
    let mut confirmed = [BTreeSet::new(), BTreeSet::new()];
    for round in 0..size(3, 30) {
        let dies = round % 3;
        let before: Vec<usize> = confirmed.iter().map(BTreeSet::len).collect();
        let load = Duration::from_millis(300);
        publish(&publishers, &mut confirmed, Instant::now() + load).await;
        let home = nodes[dies].take().unwrap().kill();
        publish(&publishers, &mut confirmed, Instant::now() + load).await;
        nodes[dies] = Some(Node::start(home));
        await_said(nodes[dies].as_ref().unwrap(), "is linked", 2);
        for (confirmed, before) in confirmed.iter().zip(before) {
            assert!(confirmed.len() > before, "nothing was confirmed");
        }
    }
    let start = Instant::now();
    for (confirmed, arrived) in confirmed.iter().zip(&arrived) {
        loop {
            let missing = confirmed.difference(&arrived.lock().unwrap()).count();
            if missing == 0 {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "{missing} did not arrive");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A producer that was told who leads needs the node that told it no more: when that
/// one dies, nothing is unknown. When the leader dies it goes on with the others.
#[tokio::test]
async fn f13_publishes_go_straight_to_the_leader_and_follow_it() {
    let net = Net::new(3);
    let mut nodes = start(&net, 1);
    let all = servers(&net, 1);
    let first = quick().connect(&all).await.unwrap();
    declare(&first).await;
    for (name, _) in QUEUES {
        served(|| first.publish(name, "one")).await;
        let leader = served(|| first.info(name)).await.queue.leaders[0];
        let through = leader % 3 + 1;
        let others = servers(&net, through);
        let client = quick().connect(&others).await.unwrap();
        let publisher = served(|| client.publisher(name)).await;
        let start = Instant::now();
        while !client.nodes().contains(&leader) {
            served(|| publisher.publish("told")).await;
            assert!(start.elapsed() < PATIENCE, "{:?}", client.nodes());
        }
        let dies = through as usize - 1;
        let home = nodes[dies].take().unwrap().kill();
        for _ in 0..20 {
            // It is not on the way any more.
            let met = soon("an outcome", publisher.publish("straight")).await;
            assert!(met.unwrap().copies >= 2);
        }
        nodes[dies] = Some(Node::start(home));
        await_said(nodes[dies].as_ref().unwrap(), "is linked", 2);
        let dies = leader as usize - 1;
        let home = nodes[dies].take().unwrap().kill();
        let start = Instant::now();
        while let Err(error) = soon("an outcome", publisher.publish("again")).await {
            assert!(error.is_unknown(), "{error}");
            assert!(start.elapsed() < PATIENCE, "{error}");
        }
        nodes[dies] = Some(Node::start(home));
        await_said(nodes[dies].as_ref().unwrap(), "is linked", 2);
    }
}

/// A command takes whichever of the named nodes answers.
#[test]
fn a_command_uses_the_first_node_that_answers() {
    let net = Net::new(3);
    let mut nodes = start(&net, 1);
    nodes[0].take().unwrap().kill();
    let node = nodes[1].as_ref().unwrap();
    let all = servers(&net, 1);
    let output = node.command(&["queue", "declare", "q", "--server", &all.join(",")]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let words = [
        "publish", "q", "x", "--server", &all[0], "--server", &all[2],
    ];
    let output = node.command(&words);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    for node in nodes.iter_mut().skip(1) {
        node.take().unwrap().kill();
    }
}

/// F13: lines published through several nodes are each confirmed and stored once,
/// though the leader dies in the middle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f13_a_command_with_several_nodes_knows_every_outcome() {
    const LINES: usize = 400;
    let net = Net::new(3);
    let mut nodes = start(&net, 1);
    let all = servers(&net, 1);
    let client = quick().connect(&all).await.unwrap();
    declare(&client).await;
    let leader = served(|| client.info("orders")).await.queue.leaders[0];
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["publish", "orders", "--server", &all.join(",")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let feeder = std::thread::spawn(move || {
        for number in 0..LINES {
            writeln!(stdin, "{number}").unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let started = Instant::now();
    while served(|| client.info("orders")).await.totals().published < 50 {
        assert!(started.elapsed() < PATIENCE);
    }
    let dies = leader as usize - 1;
    nodes[dies].take().unwrap().kill();
    let ended = tokio::task::spawn_blocking(move || child.wait_with_output());
    let output = soon("its end", ended).await.unwrap().unwrap();
    feeder.join().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let confirms = String::from_utf8(output.stdout).unwrap();
    assert_eq!(confirms.lines().count(), LINES);
    let stored = served(|| client.info("orders")).await.totals().published;
    assert_eq!(stored, LINES as u64);
}

/// Nobody there: the sentence names everyone who was asked.
#[test]
fn a_command_names_every_node_that_it_could_not_reach() {
    let net = Net::new(3);
    let all = servers(&net, 1);
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["publish", "q", "x", "--server", &all.join(",")])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for address in &all {
        assert!(said.contains(address.as_str()), "{said}");
    }
}
