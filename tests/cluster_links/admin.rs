//! What operators see of a cluster and order, with real processes.

use std::{
    io::{Read, Write},
    net::TcpStream,
    process::Output,
    time::{Duration, Instant},
};

use client::{Client, DeclareOptions, Mode};
use serde_json::Value;
use wire::{
    codec::{decode, encode},
    error::ErrorCode,
    frame::{FrameHeader, Kind, HEADER_BYTES},
    limits::MAX_FRAME_BYTES,
    message::{ClusterOrder, ClusterStatus, Error, Hello, ANY_SHARD},
};

use crate::{
    net::{await_said, Net, Node},
    support::{
        server::{quick, Home, Server},
        PATIENCE,
    },
};

pub fn start(net: &Net, shards: u16) -> Vec<Option<Node>> {
    let homes = (1..=3).map(|node| {
        let mut home = net.home(node, shards).listening_on(&net.for_clients(node));
        home.boot("b0");
        home
    });
    homes.map(|home| Some(Node::start(home))).collect()
}

/// What a node and those linked to it say.
pub fn status(node: &Server) -> Value {
    let output = node.cli(&["cluster", "status", "--json"]);
    serde_json::from_slice(&output.stdout).unwrap()
}

pub fn await_status(node: &Server, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        let now = status(node);
        if is(&now) {
            return now;
        }
        assert!(start.elapsed() < PATIENCE, "{what}: {now:#}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn all_led(status: &Value) -> bool {
    let groups = list(&status["groups"]);
    groups.len() == 33 && groups.iter().all(|group| group["serving"] == true)
}

pub fn is_whole(status: &Value) -> bool {
    all_led(status) && status["tolerates"] == 1
}

fn said(output: &Output) -> (Option<i32>, String) {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// Refused, and these words say why.
pub fn assert_refused(output: &Output, words: &str) {
    let (code, text) = said(output);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(words), "{text}");
}

pub fn assert_done(output: &Output, words: &str) {
    let (code, text) = said(output);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains(words), "{text}");
}

/// Every machine loses its power at once, and starts again.
pub fn cut_power_of_all(nodes: &mut [Option<Node>]) {
    let homes: Vec<Home> = nodes
        .iter_mut()
        .map(|node| node.take().unwrap().kill())
        .collect();
    for (node, mut home) in nodes.iter_mut().zip(homes) {
        home.reboot("c1");
        *node = Some(Node::start(home));
    }
}

pub async fn declare(client: &Client, name: &str, mode: Mode) {
    let start = Instant::now();
    while let Err(error) = client.declare(DeclareOptions::new(name).mode(mode)).await {
        assert!(start.elapsed() < PATIENCE, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub async fn publish(client: &Client, queue: &str) {
    let start = Instant::now();
    while let Err(error) = client.publish(queue, "record").await {
        assert!(start.elapsed() < PATIENCE, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The group that keeps the queue's only partition: the one that answers at written.
fn weak_group(status: &Value) -> u64 {
    let weak = |group: &&Value| group["replicas"][0]["answers_at"] == "written";
    let group = list(&status["groups"]).iter().find(weak);
    group.unwrap()["group"].as_u64().unwrap()
}

fn group(status: &Value, number: u64) -> &Value {
    let groups = list(&status["groups"]);
    groups.iter().find(|it| it["group"] == number).unwrap()
}

#[test]
fn status_says_who_is_gone_and_what_is_tolerated_still() {
    let net = Net::new(3);
    let mut nodes = start(&net, 2);
    let one = nodes[0].as_ref().unwrap();
    let whole = await_status(one, "all is well", is_whole);
    let led = list(&whole["nodes"])
        .iter()
        .map(|node| node["leads"].as_u64());
    assert_eq!(led.flatten().sum::<u64>(), 33);
    assert!(list(&whole["unanswered"]).is_empty());
    // Short where all is well.
    let (code, text) = said(&one.cli(&["cluster", "status"]));
    assert_eq!((code, text.lines().count()), (Some(0), 4), "{text}");
    assert!(
        text.contains("33 groups, all led; 1 more failure"),
        "{text}"
    );
    let (_, text) = said(&one.cli(&["cluster", "status", "--groups"]));
    assert_eq!(text.lines().count(), 4 + 33 * 4, "{text}");

    let home = nodes[2].take().unwrap().kill();
    let one = nodes[0].as_ref().unwrap();
    let unlinked = |node: &Value| {
        let links = list(&node["links"]).iter();
        let mut gone = links.filter(|link| link["node"] == 3);
        node["node"] == 3 || gone.all(|link| list(&link["unlinked_shards"]).len() == 2)
    };
    let hurt = await_status(one, "one node is gone", |now| {
        all_led(now) && now["tolerates"] == 0 && list(&now["nodes"]).iter().all(unlinked)
    });
    assert_eq!(hurt["nodes"][2]["answered"], false);
    let (code, text) = said(&one.cli(&["cluster", "status"]));
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("node 3: NOT LINKED to nodes 1, 2"), "{text}");
    assert!(text.contains("NO further failure"), "{text}");
    // Each address that is named has to answer.
    let all: Vec<String> = (1..=3).map(|node| net.for_clients(node)).collect();
    let named = one.command(&["cluster", "status", "--server", &all.join(",")]);
    assert_refused(&named, &all[2]);
    assert!(said(&named).1.contains("node 2: leads"), "{named:?}");

    nodes[2] = Some(Node::start(home));
    await_status(nodes[0].as_ref().unwrap(), "it is back", is_whole);
}

#[test]
fn a_lone_node_has_a_status_and_takes_no_orders() {
    let home = Home::new(1).short_segments();
    let lone = home.start();
    let output = lone.cli(&["cluster", "status"]);
    assert_done(&output, "33 groups, all led; one copy of everything");
    let json = status(&lone);
    assert_eq!(
        (&json["tolerates"], list(&json["nodes"]).len()),
        (&0.into(), 1)
    );
    for (order, words) in [
        (&["forget", "1", "--yes"][..], "is alone"),
        (&["forget", "2", "--yes"], "there is no node 2"),
        (&["recover", "1", "--accept-loss"], "is alone"),
        (&["replace", "1", "--confirm"], "is alone"),
        (&["drain", "1"], "is alone: nobody could take over"),
    ] {
        assert_refused(&lone.cli(&[&["cluster"], order].concat()), words);
    }
    assert_done(
        &lone.cli(&["cluster", "losses"]),
        "no queue has lost anything",
    );
}

#[test]
fn orders_that_mean_nothing_or_are_not_meant_are_refused() {
    let net = Net::new(3);
    let nodes = start(&net, 1);
    let one = nodes[0].as_ref().unwrap();
    let whole = await_status(one, "all is well", is_whole);
    let leader = group(&whole, 0)["leader"].as_u64().unwrap();
    let other = leader % 3 + 1;
    let (leader, other) = (leader.to_string(), other.to_string());
    for (order, words) in [
        (
            &["forget", "9", "--yes"][..],
            "this cluster's nodes are 1, 2, 3",
        ),
        (&["forget", &other], "say --yes"),
        (
            &["replace", "9", "--confirm"],
            "this cluster's nodes are 1, 2, 3",
        ),
        (&["replace", &other], "say --confirm"),
        (
            &["replace", &other, "--confirm"],
            "so its directory is not lost",
        ),
        (&["replace", &leader, "--confirm"], "leads group 0"),
        (&["forget", &other, "--yes"], "so it is not gone"),
        (&["forget", &leader, "--yes", "--force"], "leads group 0"),
        (&["drain", "9"], "there is no node 9"),
        (&["undrain", "9"], "there is no node 9"),
        (&["recover", "1"], "say --accept-loss"),
        (&["recover", "1", "--accept-loss"], "group 1 has a leader"),
        (
            &["recover", "0", "--accept-loss"],
            "cannot be recovered by it",
        ),
        (&["recover", "99", "--accept-loss"], "there is no group 99"),
    ] {
        for node in nodes.iter().flatten() {
            assert_refused(&node.cli(&[&["cluster"], order].concat()), words);
        }
    }
    let after = status(one);
    assert!(
        list(&after["forgotten"]).is_empty() && all_led(&after),
        "{after:#}"
    );
}

/// R6: two machines lose power, the third is gone for good. It may hold what nobody
/// else remembers, so the group waits for it; until an operator gives it up.
#[tokio::test]
async fn a_group_waits_for_a_node_that_is_gone_until_it_is_forgotten() {
    let net = Net::new(3);
    let mut nodes = start(&net, 1);
    let first = nodes[0].as_ref().unwrap().client_with(quick()).await;
    declare(&first, "clicks", Mode::Buffered).await;
    publish(&first, "clicks").await;
    // On every node: one that does not know yet remembers all that it answered.
    let one = nodes[0].as_ref().unwrap();
    let weak = weak_group(&await_status(one, "one group answers at written", |now| {
        list(&now["groups"]).iter().any(|group| {
            let replicas = list(&group["replicas"]);
            let weak = |replica: &Value| replica["answers_at"] == "written";
            replicas.len() == 3 && replicas.iter().all(weak)
        })
    }));
    let mut homes: Vec<Home> = nodes
        .iter_mut()
        .map(|node| node.take().unwrap().kill())
        .collect();
    let gone = homes.pop().unwrap();
    for (node, mut home) in nodes.iter_mut().zip(homes) {
        home.reboot("c1");
        *node = Some(Node::start(home));
    }
    let one = nodes[0].as_ref().unwrap();
    let waits = |now: &Value| {
        list(&now["recoveries"])
            .iter()
            .any(|it| it["group"] == weak && list(&it["answered"]).len() == 2)
    };
    let waiting = await_status(one, "the group waits", waits);
    assert_eq!(
        waiting["recoveries"][0]["waits_for"],
        serde_json::json!(["3.1"])
    );
    assert_eq!(group(&waiting, weak)["leader"], Value::Null);
    let (_, text) = said(&one.cli(&["cluster", "status"]));
    assert!(text.contains("waits for node 3 (as 3.1)"), "{text}");
    // Accepting loss alone does not do: node 3 may come back and know better.
    let number = weak.to_string();
    let order = [
        "cluster",
        "recover",
        &number,
        "--accept-loss",
        "--wait",
        "1500ms",
    ];
    assert_refused(&one.cli(&order), "waits for node 3");
    assert_eq!(status(one)["recoveries"][0]["accepts_loss"], true);

    let forget = ["cluster", "forget", "3", "--yes"];
    assert_done(&one.cli(&forget), "node 3 is forgotten");
    let after = await_status(one, "the group goes on", |now| {
        let it = group(now, weak);
        it["generation"] == 2 && it["serving"] == true && all_led(now)
    });
    assert_eq!(after["forgotten"], serde_json::json!([3]));
    assert_eq!(after["tolerates"], 0);
    let lives = one.client_with(quick()).await;
    publish(&lives, "clicks").await;
    assert_done(&one.cli(&["cluster", "losses"]), "queue clicks partition 0");
    assert_done(&one.cli(&forget), "forgotten before");
    let two = ["cluster", "forget", "2", "--yes", "--force"];
    let one_too = ["cluster", "forget", "1", "--yes", "--force"];
    let (refused, too) = (said(&one.cli(&two)).1, said(&one.cli(&one_too)).1);
    let words = "only 1 of the 3 nodes would be left";
    assert!(
        refused.contains(words) || too.contains(words),
        "{refused}{too}"
    );

    // It comes back all the same, and nobody speaks to it.
    let back = Node::start(gone);
    await_said(one, "node 3 was forgotten by an operator", 1);
    await_said(
        nodes[1].as_ref().unwrap(),
        "node 3 was forgotten by an operator",
        1,
    );
    back.kill();
}

#[tokio::test]
async fn after_a_power_cut_of_all_status_is_whole_again_and_losses_say_what_is_gone() {
    let net = Net::new(3);
    let mut nodes = start(&net, 1);
    let first = nodes[0].as_ref().unwrap().client_with(quick()).await;
    for (name, mode) in [("clicks", Mode::Buffered), ("orders", Mode::Durable)] {
        declare(&first, name, mode).await;
        publish(&first, name).await;
    }
    cut_power_of_all(&mut nodes);
    let one = nodes[0].as_ref().unwrap();
    let whole = await_status(one, "all is well again", |now| {
        is_whole(now) && list(&now["groups"]).iter().any(|it| it["generation"] == 2)
    });
    assert!(list(&whole["recoveries"]).is_empty());
    let weak = group(&whole, weak_group(&whole));
    for replica in list(&weak["replicas"]) {
        assert_eq!(list(&replica["voters"]).len(), 3, "{weak:#}");
    }
    let losses = one.json(&["cluster", "losses"]);
    assert_eq!(
        (&losses["queue"], &losses["generation"]),
        (&"clicks".into(), &1.into())
    );
}

/// A drained node leads nothing, and no publish fails or stays unknown for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_drained_one_after_the_other_under_load() {
    let net = Net::new(3);
    let nodes = start(&net, 2);
    let one = nodes[0].as_ref().unwrap();
    let client = one.client_with(quick()).await;
    let mut loads = Vec::new();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    for (name, mode) in [("clicks", Mode::Buffered), ("orders", Mode::Durable)] {
        declare(&client, name, mode).await;
        publish(&client, name).await;
        let publisher = client.publisher(name).await.unwrap();
        let stop = stop.clone();
        loads.push(tokio::spawn(async move {
            let mut confirmed = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let met = publisher.publish("record").await;
                met.unwrap_or_else(|error| panic!("after {confirmed} confirmed ones: {error}"));
                confirmed += 1;
            }
            confirmed
        }));
    }
    await_status(one, "all is well", is_whole);
    for node in ["2", "3", "1"] {
        let output = one.cli(&["cluster", "drain", node]);
        assert_done(&output, "leads nothing any more");
        let output = one.cli(&["cluster", "drain", node, "--json"]);
        let again: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(again["changed"], false);
        let now = status(one);
        let number: usize = node.parse().unwrap();
        assert_eq!(now["nodes"][number - 1]["draining"], true, "{now:#}");
        assert_done(&one.cli(&["cluster", "undrain", node]), "may lead again");
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    for load in loads {
        assert!(load.await.unwrap() > 0);
    }
    await_status(one, "all is well", is_whole);
}

/// A client that speaks for itself.
struct Raw(TcpStream);

impl Raw {
    fn connect(node: &Server) -> Self {
        let stream = TcpStream::connect(node.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut raw = Raw(stream);
        let hello = Hello {
            version_min: 1,
            version_max: 1,
            wished_shard: ANY_SHARD,
            window_bytes: 1 << 20,
            client: "raw".to_owned(),
            ..Hello::default()
        };
        let mut frame = Vec::new();
        encode(&mut frame, 1, &hello).unwrap();
        raw.0.write_all(&frame).unwrap();
        assert_eq!(raw.read().0, Kind::HelloReply as u8);
        raw
    }

    fn read(&mut self) -> (u8, Vec<u8>) {
        let mut header = [0; HEADER_BYTES];
        self.0.read_exact(&mut header).unwrap();
        let header = FrameHeader::decode(&header, MAX_FRAME_BYTES).unwrap();
        let mut body = vec![0; header.length as usize];
        self.0.read_exact(&mut body).unwrap();
        (header.kind, body)
    }

    fn ask(&mut self, kind: Kind, body: &[u8]) -> (u8, Vec<u8>) {
        let header = FrameHeader {
            kind: kind as u8,
            length: body.len() as u32,
            correlation: 7,
        };
        self.0.write_all(&header.encode()).unwrap();
        self.0.write_all(body).unwrap();
        self.read()
    }

    fn refusal(&mut self, kind: Kind, body: &[u8]) -> Option<ErrorCode> {
        let (kind, body) = self.ask(kind, body);
        assert_eq!(kind, Kind::Error as u8);
        ErrorCode::from_raw(decode::<Error>(&body).unwrap().code.to_native())
    }
}

fn body_of(frame: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame(&mut bytes);
    bytes.split_off(HEADER_BYTES)
}

#[test]
fn frames_with_garbage_are_refused_and_hurt_nobody() {
    let net = Net::new(3);
    let nodes = start(&net, 2);
    let one = nodes[0].as_ref().unwrap();
    await_status(one, "all is well", is_whole);
    let mut raw = Raw::connect(one);
    let invalid = Some(ErrorCode::Invalid);
    for kind in [Kind::ClusterStatus, Kind::ClusterOrder] {
        for body in [&[][..], &[0xFF; 3], &[0xFF; 64], &[0; 25]] {
            // 25 zeros are an order of no known kind; status is shorter.
            assert_eq!(raw.refusal(kind, body), invalid, "{kind:?} {body:?}");
        }
    }
    let status = |node, shard| {
        let body = ClusterStatus {
            node,
            shard,
            ..ClusterStatus::default()
        };
        body_of(|out| encode(out, 7, &body).unwrap())
    };
    for (node, shard) in [(0, 2), (2, u16::MAX), (4, 0), (u32::MAX, 0)] {
        let body = status(node, shard);
        assert_eq!(raw.refusal(Kind::ClusterStatus, &body), invalid);
    }
    let order = |action, flags, node| {
        let body = ClusterOrder {
            action,
            flags,
            node,
            ..ClusterOrder::default()
        };
        body_of(|out| encode(out, 7, &body).unwrap())
    };
    for (action, flags, node) in [
        (0, 0, 2),
        (99, 0, 2),
        (5, 0, 9),
        (1, 4, 2),
        (1, 0, 0),
        (3, 0, 0),
    ] {
        let body = order(action, flags, node);
        assert_eq!(raw.refusal(Kind::ClusterOrder, &body), invalid);
    }
    // The connection still serves.
    let (kind, _) = raw.ask(Kind::ClusterStatus, &status(2, 1));
    assert_eq!(kind, Kind::ClusterStatusReply as u8);
    let (kind, _) = raw.ask(
        Kind::Ping,
        &body_of(|out| {
            encode(out, 7, &wire::message::Ping::default()).unwrap();
        }),
    );
    assert_eq!(kind, Kind::Pong as u8);
    assert!(is_whole(&self::status(one)));
}
