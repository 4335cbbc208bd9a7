//! Nodes of different versions: what needs a feature level that one of them does not know
//! waits for it, and who knows less than the cluster uses is refused.

use std::{io::Read, net::Shutdown, time::Instant};

use serde_json::Value;
use wire::node::{NodeFrameKind, NodeHello, NodeMessage, RefusalCode};

use crate::{
    admin::{assert_done, assert_refused, await_status, list, status},
    net::{await_said, Net, Node},
    rawnode::{frame, hello, RawLink, RawNode},
    support::{server::Home, PATIENCE},
};

/// Of the data directory that node 3 is said to have.
const COOKIE: u64 = 77;

/// Node 3 as another version of the program that knows that level, at its `start`th start:
/// it is linked to nodes 1 and 2, and asks that group 0 records the open of its log, in the
/// layout of the page.
fn says(net: &Net, start: u64, level: u16) {
    let mut command = vec![3, 3];
    command.extend_from_slice(&3u32.to_le_bytes());
    command.extend_from_slice(&0u16.to_le_bytes());
    for word in [COOKIE, start, start, 0, 0, 0] {
        command.extend_from_slice(&word.to_le_bytes());
    }
    command.extend_from_slice(&level.to_le_bytes());
    let mut body = Vec::new();
    NodeMessage::Propose { command: &command }.encode(&mut body);
    for to in [1, 2] {
        let hello = hello_of(to, start, level);
        let mut link = RawLink::make(net.address(to), &hello, b"").unwrap();
        let bytes = frame(&link.own, NodeFrameKind::Body, link.sequence, &body);
        link.node.send(&bytes);
        // It answers no status: nobody is to wait for that.
        link.node.stream.shutdown(Shutdown::Write).unwrap();
        while link
            .node
            .stream
            .read(&mut [0; 1 << 16])
            .is_ok_and(|n| n > 0)
        {}
    }
}

/// It says so until that is known.
fn await_said_by(net: &Net, one: &Node, start: u64, level: u16) -> Value {
    let begun = Instant::now();
    loop {
        says(net, start, level);
        let now = status(one);
        if level_of(&now, 3) == level {
            return now;
        }
        assert!(begun.elapsed() < PATIENCE, "{now:#}");
    }
}

fn hello_of(to: u32, start: u64, level: u16) -> NodeHello {
    NodeHello {
        from: 3,
        to,
        cookie: COOKIE,
        open_counter: start,
        nonce: start,
        level,
        ..hello()
    }
}

/// What is recorded of a node.
fn level_of(status: &Value, node: u32) -> Value {
    let mut nodes = list(&status["nodes"]).iter();
    nodes.find(|it| it["node"] == node).unwrap()["level"].clone()
}

/// A node of the version before keeps the cluster at its level; with its upgrade the level
/// rises by itself, and then the version before is refused.
#[test]
fn a_command_waits_for_the_last_node_that_does_not_know_it() {
    let net = Net::new(3);
    let [one, two] = [1, 2].map(|node| {
        let home = net.home(node, 1).with("spread_leaders = \"0s\"");
        Node::start(home.listening_on(&net.for_clients(node)))
    });
    let at = format!("4={}", net.address(4));
    let add = ["cluster", "add", &at];
    await_status(&one, "two nodes said what they know", |now| {
        level_of(now, 1) == 2 && level_of(now, 2) == 2
    });
    assert_done(&one.cli(&add), "is a member at");
    assert_done(
        &one.cli(&["cluster", "remove", "4", "--yes"]),
        "was removed",
    );

    // The number of a removed node is given again from level 2 on.
    let refused = one.cli(&add);
    assert_refused(
        &refused,
        "this needs feature level 2, and the cluster is at 1",
    );
    assert_refused(&refused, "node 3 has not said what it knows");
    let now = await_said_by(&net, &one, 1, 1);
    assert_eq!(now["level"], 1);
    assert_refused(&two.cli(&add), "node 3 knows 1; start each of them");
    let shown = one.cli(&["cluster", "status"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.contains("knows feature level 1 of 2: UPGRADE it"),
        "{shown}"
    );
    assert!(shown.contains("; feature level 1"), "{shown}");

    await_said_by(&net, &one, 2, 2);
    await_status(&one, "the level rises", |now| now["level"] == 2);
    assert_done(&one.cli(&add), "is a member at");

    for (node, number) in [(&one, 1), (&two, 2)] {
        let hello = hello_of(number, 3, 1);
        let refused = RawNode::refused_as(net.address(number), &hello);
        assert_eq!(refused, RefusalCode::Outdated);
        let told = await_said(node, "upgrade node 3", 1);
        assert!(told.contains("is at 2, which never goes down"), "{told}");
    }
}

/// Nobody else is asked, and it is so after a start, too.
#[test]
fn a_lone_node_raises_its_level_by_itself() {
    let home = Home::new(2).short_segments();
    for _ in 0..2 {
        let lone = home.start();
        let shown = await_status(&lone, "it is at its level", |now| now["level"] == 2);
        assert_eq!(level_of(&shown, 1), 2);
        lone.terminate();
    }
}
