//! Frames that somebody else made, changed, left out or says again; and links
//! that replace each other.

use std::fs;

use wire::node::{NodeFrameKind, NodeHello, RefusalCode, MAX_NODE_BODY_BYTES};

use crate::{
    net::{await_said, said, Net, Node},
    rawnode::{frame, hello, plain, Heard, RawLink, RawNode},
};

const SECRET: &[u8] = b"a secret of sixteen or more";

/// Node 1 of three, with the secret; node 2 is made by hand.
fn start() -> (Net, Node, tempfile::TempDir) {
    let net = Net::new(3);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret");
    fs::write(&path, SECRET).unwrap();
    let home = net.home(1, 1).with(&format!("cluster_secret = {path:?}"));
    (net, Node::start(home), dir)
}

/// With a challenge and an opening of its own.
fn hello_number(number: u8) -> NodeHello {
    NodeHello {
        has_secret: true,
        challenge: [number; 32],
        open_counter: number.into(),
        ..hello()
    }
}

fn link(net: &Net, number: u8) -> RawLink {
    RawLink::make(net.address(1), &hello_number(number), SECRET).unwrap()
}

#[test]
fn forged_changed_repeated_and_missing_frames_end_the_link_and_are_said_once_per_link() {
    let (net, mut server, _dir) = start();
    let body = NodeFrameKind::Body;
    let mut number = 0;
    let mut refused = |make: &dyn Fn(&mut RawLink) -> Vec<u8>| {
        number += 1;
        let mut link = link(&net, number);
        link.assert_up();
        let bytes = make(&mut link);
        link.node.send(&bytes);
        let (code, reason) = link.refusal();
        await_said(&server, &format!("node 2 is not linked: {reason}"), 1);
        code
    };
    // Made without the key: a plain checksum, and the key of the other side.
    let of_nobody = |link: &mut RawLink| frame(&[0; 32], body, link.sequence, &[]);
    assert_eq!(refused(&of_nobody), RefusalCode::Forged);
    let of_the_other = |link: &mut RawLink| frame(&link.other, body, link.sequence, &[]);
    assert_eq!(refused(&of_the_other), RefusalCode::Forged);
    // Changed on the way: the length, the number, the kind, the body.
    for (at, by) in [(16, 1), (6, 1), (24, 1), (47, 1)] {
        let changed = |link: &mut RawLink| {
            let mut bytes = frame(&link.own, body, link.sequence, &[0, 0, 0, 0, 8, 0, 0, 0]);
            bytes[at] ^= by;
            bytes
        };
        assert_eq!(refused(&changed), RefusalCode::Forged, "byte {at}");
    }
    // Said again at once, and one left out.
    let again = |link: &mut RawLink| link.empty_body().repeat(2);
    assert_eq!(refused(&again), RefusalCode::Replayed);
    let left_out = |link: &mut RawLink| {
        link.empty_body();
        link.empty_body()
    };
    assert_eq!(refused(&left_out), RefusalCode::Replayed);
    // With the key, but not what belongs there.
    let welcome = |link: &mut RawLink| frame(&link.own, NodeFrameKind::Welcome, link.sequence, &[]);
    assert_eq!(refused(&welcome), RefusalCode::Protocol);
    let long = |link: &mut RawLink| {
        let mut bytes = frame(&link.own, body, link.sequence, &[]);
        bytes[8..12].copy_from_slice(&(MAX_NODE_BODY_BYTES + 1).to_le_bytes());
        bytes
    };
    assert_eq!(refused(&long), RefusalCode::TooLong);
    let unknown =
        |link: &mut RawLink| frame(&link.own, body, link.sequence, &[99, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(refused(&unknown), RefusalCode::Protocol);
    server.assert_alive();
}

#[test]
fn a_connection_played_back_byte_for_byte_comes_to_nothing() {
    let (net, server, _dir) = start();
    let hello = hello_number(1);
    let mut node = RawNode::connect(net.address(1));
    let (own, other) = node.half_way(&hello, SECRET);
    let spoken = [
        frame(&own, NodeFrameKind::Proof, 1, &[]),
        frame(&own, NodeFrameKind::Body, 2, &[]),
    ];
    node.send(&spoken[0]);
    assert!(matches!(
        node.hear(&other),
        Heard::Frame(NodeFrameKind::Welcome, 2, _)
    ));
    node.send(&spoken[1]);
    drop(node);
    await_said(&server, "node 2 is not linked", 1);
    for round in 0..2 {
        let mut node = RawNode::connect(net.address(1));
        node.send(&plain(NodeFrameKind::Hello, &hello.encode()));
        assert!(matches!(node.hear_plain_frame(), NodeFrameKind::Hello));
        node.skip_frame();
        node.send(&spoken.concat());
        let (code, _) = node.refusal(&[0; 32]);
        assert_eq!(code, RefusalCode::Secret, "round {round}");
    }
    assert_eq!(said(&server, "node 2 is linked"), 1);
}

#[test]
fn whoever_lacks_the_secret_proves_nothing_and_harms_no_link() {
    let (net, _server, _dir) = start();
    let mut up = link(&net, 1);
    for secret in [&b""[..], b"another secret of others"] {
        let mut node = RawNode::connect(net.address(1));
        node.send(&plain(NodeFrameKind::Hello, &hello_number(9).encode()));
        assert!(matches!(node.hear_plain_frame(), NodeFrameKind::Hello));
        node.skip_frame();
        let key = blake3::derive_key("tidegate node link 1", secret);
        node.send(&frame(&key, NodeFrameKind::Proof, 1, &[]));
        assert_eq!(node.refusal(&[0; 32]).0, RefusalCode::Secret);
    }
    up.assert_up();
}

#[test]
fn another_link_of_the_same_node_replaces_the_first() {
    let (net, server, _dir) = start();
    let mut first = link(&net, 1);
    await_said(&server, "node 2 is linked", 1);
    let mut second = link(&net, 1);
    assert_eq!(first.refusal().0, RefusalCode::Reopened);
    second.assert_up();
    // What the first still says is nobody's.
    let bytes = first.empty_body();
    let _ = std::io::Write::write_all(&mut first.node.stream, &bytes);
    second.assert_up();
    assert_eq!(said(&server, "is not linked"), 0);
    // An older opening of the log is an old copy.
    let mut third = link(&net, 2);
    assert_eq!(second.refusal().0, RefusalCode::Reopened);
    let old = RawLink::make(net.address(1), &hello_number(1), SECRET);
    assert_eq!(old.err().unwrap().0, RefusalCode::RolledBack);
    third.assert_up();
}
