//! Queues on three nodes: confirmed on two of them, and there whoever dies.

use std::{collections::BTreeSet, time::Duration};

use client::{Client, Copies, DeclareOptions, ErrorCode, Mode};

use crate::{
    net::{await_said, said, Net, Node},
    support::{
        server::{quick, Home},
        size, soon, PATIENCE,
    },
};

pub const QUEUES: [(&str, Mode); 2] = [("orders", Mode::Durable), ("clicks", Mode::Buffered)];

pub async fn client_of(node: &Node) -> Client {
    node.client_with(quick()).await
}

/// Publishes until it is confirmed; what fails or stays unknown is sent again, as
/// another record.
pub async fn publish(client: &Client, queue: &str, number: &mut u64) -> String {
    let start = std::time::Instant::now();
    loop {
        *number += 1;
        let payload = format!("{queue} {number}");
        match client.publish(queue, payload.as_str()).await {
            Ok(confirmed) => {
                assert!(confirmed.copies >= 2, "{confirmed:?}");
                return payload;
            }
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Everything that is in the queue, acknowledged.
pub async fn drain(client: &Client, queue: &str, expected: &BTreeSet<String>) {
    let mut missing = expected.clone();
    let start = std::time::Instant::now();
    let mut subscription = loop {
        match client.subscribe(queue).await {
            Ok(subscription) => break subscription,
            // The group is starting.
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    while !missing.is_empty() {
        let next = soon("a delivery", subscription.next()).await;
        match next {
            Some(Ok(delivery)) => {
                missing.remove(std::str::from_utf8(delivery.payload()).unwrap());
                // Refused where the leader moved meanwhile: it comes again.
                let _ = delivery.ack_confirmed().await;
            }
            Some(Err(error)) => panic!("{error}: {missing:?}"),
            None => panic!("the subscription ended: {missing:?}"),
        }
    }
}

/// F01, small: nodes are killed one after the other under load.
#[tokio::test]
async fn f01_nothing_confirmed_is_lost_when_nodes_are_killed_one_after_the_other() {
    let net = Net::new(3);
    let mut nodes: Vec<Option<Node>> = (1..=3)
        .map(|node| Some(Node::start(net.home(node, 1))))
        .collect();
    for node in nodes.iter().flatten() {
        await_said(node, "is linked", 2);
    }
    let first = client_of(nodes[0].as_ref().unwrap()).await;
    for (name, mode) in QUEUES {
        let options = || DeclareOptions::new(name).mode(mode);
        let start = std::time::Instant::now();
        while let Err(error) = first.declare(options()).await {
            assert!(start.elapsed() < PATIENCE, "{error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    let mut number = 0;
    let mut confirmed = [BTreeSet::new(), BTreeSet::new()];
    for round in 0..size(3, 50) {
        let dies = round % 3;
        let home = nodes[dies].take().unwrap().kill();
        let lives = client_of(nodes[(dies + 1) % 3].as_ref().unwrap()).await;
        for _ in 0..10 {
            for ((name, _), confirmed) in QUEUES.iter().zip(&mut confirmed) {
                confirmed.insert(publish(&lives, name, &mut number).await);
            }
        }
        nodes[dies] = Some(Node::start(home));
        await_said(nodes[dies].as_ref().unwrap(), "is linked", 2);
    }
    for node in nodes.iter().flatten() {
        let start = std::time::Instant::now();
        let listed = || String::from_utf8(node.cli(&["queue", "list"]).stdout).unwrap();
        while !QUEUES.iter().all(|(name, _)| listed().contains(name)) {
            assert!(start.elapsed() < PATIENCE, "{}", listed());
        }
    }
    let last = client_of(nodes[1].as_ref().unwrap()).await;
    for ((name, _), confirmed) in QUEUES.iter().zip(&confirmed) {
        drain(&last, name, confirmed).await;
    }
}

/// More copies than there are, and fewer than keep a durable confirm, are refused.
#[tokio::test]
async fn copies_that_mean_nothing_are_refused() {
    let net = Net::new(3);
    let nodes: Vec<Node> = (1..=3).map(|node| Node::start(net.home(node, 1))).collect();
    await_said(&nodes[0], "is linked", 2);
    let client = client_of(&nodes[0]).await;
    let refused = |copies, mode| {
        let client = client.clone();
        async move {
            let options = DeclareOptions::new("q").mode(mode).copies(copies);
            let start = std::time::Instant::now();
            loop {
                let error = client.declare(options.clone()).await.unwrap_err();
                if error.code() != Some(ErrorCode::Unavailable) {
                    return error.code();
                }
                assert!(start.elapsed() < PATIENCE);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    };
    assert_eq!(
        refused(Copies::Exactly(4), Mode::Durable).await,
        Some(ErrorCode::MissingCopies)
    );
    assert_eq!(
        refused(Copies::Exactly(1), Mode::Durable).await,
        Some(ErrorCode::Invalid)
    );
}

/// R2, R3: a node whose machine lost power may have forgotten what it answered at
/// written. It joins anew and counts again, and nothing confirmed is lost.
#[tokio::test]
async fn a_node_that_lost_power_joins_anew_and_counts_again() {
    joins_anew(|home| home).await;
}

/// The same where no timer syncs, and publishes ask for written only: whoever is brought up
/// again is asked to sync.
#[tokio::test]
async fn a_node_joins_anew_though_nothing_syncs_by_itself() {
    joins_anew(|home| home.with("background_sync_interval = \"0ms\"")).await;
}

async fn joins_anew(configured: fn(Home) -> Home) {
    let net = Net::new(3);
    let home = |node| configured(net.home(node, 1));
    let mut homes: Vec<Home> = (1..=3).map(home).collect();
    for home in &mut homes {
        home.boot("b0");
    }
    let mut nodes: Vec<Option<Node>> = homes.into_iter().map(Node::start).map(Some).collect();
    let first = client_of(nodes[0].as_ref().unwrap()).await;
    let options = || {
        let options = DeclareOptions::new("clicks").mode(Mode::Buffered);
        options.copies(Copies::All)
    };
    let start = std::time::Instant::now();
    while let Err(error) = first.declare(options()).await {
        assert!(start.elapsed() < PATIENCE, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut number = 0;
    let mut confirmed = BTreeSet::new();
    for dies in [1, 2, 0] {
        let lives = client_of(nodes[(dies + 1) % 3].as_ref().unwrap()).await;
        confirmed.insert(publish(&lives, "clicks", &mut number).await);
        let mut home = nodes[dies].take().unwrap().kill();
        home.reboot(&format!("c{dies}"));
        nodes[dies] = Some(Node::start(home));
        await_said(nodes[dies].as_ref().unwrap(), "joins anew", 1);
        // All copies: the node that joined anew is one of them.
        confirmed.insert(publish(&lives, "clicks", &mut number).await);
    }
    let last = client_of(nodes[1].as_ref().unwrap()).await;
    drain(&last, "clicks", &confirmed).await;
}

/// R6: every machine loses power at once. What was confirmed at durable is there; the
/// groups that answer at written go on by themselves as a new generation, which says
/// exactly from which offset on the one before is gone.
#[tokio::test]
async fn groups_go_on_by_themselves_after_every_machine_lost_power() {
    let net = Net::new(3);
    let mut homes: Vec<Home> = (1..=3).map(|node| net.home(node, 1)).collect();
    for home in &mut homes {
        home.boot("b0");
    }
    let mut nodes: Vec<Node> = homes.into_iter().map(Node::start).collect();
    let first = client_of(&nodes[0]).await;
    for (name, mode) in QUEUES {
        let start = std::time::Instant::now();
        while let Err(error) = first.declare(DeclareOptions::new(name).mode(mode)).await {
            assert!(start.elapsed() < PATIENCE, "{error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    let mut number = 0;
    let mut confirmed = [BTreeSet::new(), BTreeSet::new()];
    for round in 1..=2 {
        let client = client_of(&nodes[round % 3]).await;
        for _ in 0..10 {
            for ((name, _), confirmed) in QUEUES.iter().zip(&mut confirmed) {
                confirmed.insert(publish(&client, name, &mut number).await);
            }
        }
        // The files keep all: what is lost with a machine's power is its word.
        nodes = nodes
            .into_iter()
            .map(Node::kill)
            .collect::<Vec<_>>()
            .into_iter()
            .map(|mut home| {
                home.reboot(&format!("c{round}"));
                Node::start(home)
            })
            .collect();
        let lives = client_of(&nodes[0]).await;
        for ((name, mode), confirmed) in QUEUES.iter().zip(&mut confirmed) {
            confirmed.insert(publish(&lives, name, &mut number).await);
            let partition = &lives.info(name).await.unwrap().partitions[0];
            let generations = match mode {
                Mode::Durable => 1,
                _ => 1 + round as u32,
            };
            assert_eq!(partition.generation, generations, "{name}");
            assert_eq!(partition.losses.len() + 1, generations as usize);
        }
    }
    let last = client_of(&nodes[2]).await;
    for ((name, _), confirmed) in QUEUES.iter().zip(&confirmed) {
        drain(&last, name, confirmed).await;
    }
}

/// R1: a directory that was wiped, or put back from a copy, has forgotten what its node
/// promised. Group 0 knows its opens, so that nodes refuse it though they were started anew
/// themselves.
#[tokio::test]
async fn a_wiped_and_a_rolled_back_directory_are_refused_however_often_after_everybody_was_started_anew(
) {
    let net = Net::new(3);
    let mut nodes: Vec<Option<Node>> = (1..=3)
        .map(|node| Some(Node::start(net.home(node, 1))))
        .collect();
    let first = client_of(nodes[0].as_ref().unwrap()).await;
    let start = std::time::Instant::now();
    while let Err(error) = first.declare(DeclareOptions::new("orders")).await {
        assert!(start.elapsed() < PATIENCE, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut number = 0;
    let mut confirmed = BTreeSet::new();
    let copies = tempfile::tempdir().unwrap();
    let old = copies.path().join("old");
    // A copy of node 3, and more opens of it that group 0 is told of.
    nodes[2].as_ref().unwrap().await_heard();
    let (home, _) = nodes[2].take().unwrap().terminate();
    copy_directory(&home.data(), &old);
    nodes[2] = Some(Node::start(home));
    await_said(nodes[2].as_ref().unwrap(), "is linked", 2);
    confirmed.insert(publish(&first, "orders", &mut number).await);
    // Node 3 asks group 0's leader to note its open within a tick; these come behind it.
    let third = client_of(nodes[2].as_ref().unwrap()).await;
    for behind in 0..40 {
        let options = || DeclareOptions::new(format!("behind-{behind}"));
        while let Err(error) = third.declare(options()).await {
            assert!(start.elapsed() < PATIENCE, "{error}");
        }
    }
    let homes: Vec<Home> = nodes
        .iter_mut()
        .map(|node| node.take().unwrap().kill())
        .collect();
    let [one, two, three] = <[Home; 3]>::try_from(homes).ok().unwrap();
    let (one, two) = (Node::start(one), Node::start(two));
    // However often it is started: as often as the one it was copied from, and more.
    let mut rolled_back = net.home(3, 1).data_at(&old);
    for why in [
        "this is a copy",
        "this is an old copy",
        "this is an old copy",
    ] {
        let node = Node::start(rolled_back);
        await_said(&node, &format!("{why} of the directory"), 1);
        assert_eq!(said(&node, "is linked"), 0);
        rolled_back = node.kill();
    }
    let wiped = Node::start(net.home(3, 1));
    await_said(&wiped, "another data directory has been this node's", 1);
    wiped.kill();
    // Its own directory is welcome, and nothing is lost.
    let three = Node::start(three);
    await_said(&three, "is linked", 2);
    drain(&client_of(&three).await, "orders", &confirmed).await;
    drop((one, two));
}

fn copy_directory(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_directory(&entry.path(), &target),
            false => {
                std::fs::copy(entry.path(), target).unwrap();
            }
        }
    }
}
