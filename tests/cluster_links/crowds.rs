//! Many connections to the port for nodes, and slow ones.

use std::{
    io::Write,
    net::TcpStream,
    time::{Duration, Instant},
};

use wire::node::{NodeFrameKind, RefusalCode};

use crate::{
    net::{assert_said_once, await_said, said, Net, Node},
    rawnode::{hello, plain, Heard, RawLink, RawNode},
    support::PATIENCE,
};

/// F70, F71 on the port for nodes: hundreds of connections that say nothing, or a
/// part of a hello, lock no node out, cost little, and are cut.
#[test]
fn silent_connections_lock_no_node_out_and_are_cut() {
    let net = Net::new(3);
    let mut server = Node::start(net.home(1, 1));
    let before = server.memory();
    let part = &plain(NodeFrameKind::Hello, &hello().encode())[..60];
    let strangers: Vec<TcpStream> = (0..800)
        .map(|number| {
            let mut stream = TcpStream::connect(net.address(1)).unwrap();
            if number % 2 == 0 {
                let _ = stream.write_all(part);
            }
            stream
        })
        .collect();
    // The last of them are still waited for when a node comes.
    let mut link = RawLink::make(net.address(1), &hello(), &[]).unwrap();
    link.assert_up();
    for (number, stream) in strangers.into_iter().enumerate() {
        let mut stranger = RawNode::new(stream);
        match stranger.hear_plain() {
            Heard::Refused(RefusalCode::Late | RefusalCode::Crowded, _) => {}
            other => panic!("stranger {number}: {other:?}"),
        }
    }
    let grown = server.memory().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes");
    assert_said_once(&server, "too many connections that do not say who they are");
    assert_said_once(&server, "no hello came within 5 s");
    link.assert_up();
    server.assert_alive();
}

/// Bytes that come one by one do not move the deadline.
#[test]
fn a_hello_that_dribbles_is_cut_at_the_deadline() {
    let net = Net::new(3);
    let server = Node::start(net.home(1, 1));
    let mut node = RawNode::connect(net.address(1));
    let bytes = plain(NodeFrameKind::Hello, &hello().encode());
    let start = Instant::now();
    let mut at = bytes.iter().cycle();
    // So slowly that the whole would take four times as long.
    while node.stream.write_all(&[*at.next().unwrap()]).is_ok() {
        if said(&server, "no hello came within 5 s") > 0 {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "it was never cut");
        std::thread::sleep(Duration::from_millis(200));
    }
    await_said(&server, "no hello came within 5 s", 1);
    assert_eq!(node.refusal(&[0; 32]).0, RefusalCode::Late);
}

/// A node that proves nothing after hello is cut as well, and the link of the
/// real one is made meanwhile.
#[test]
fn a_caller_that_stops_half_way_is_cut() {
    let net = Net::new(3);
    let _server = Node::start(net.home(1, 1));
    let mut half = RawNode::connect(net.address(1));
    let (_, other) = half.half_way(&hello(), &[]);
    let mut link = RawLink::make(net.address(1), &hello(), &[]).unwrap();
    assert_eq!(half.refusal(&other).0, RefusalCode::Late);
    link.assert_up();
}
