//! Nodes that do not agree, and strangers: refused in words, said once, counted.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::Command,
};

use wire::{
    codec,
    error::ErrorCode,
    frame::{FrameHeader, Kind, HEADER_BYTES},
    message,
    node::{NodeFrameKind, NodeHello, RefusalCode},
};

use crate::{
    net::{assert_said_once, await_said, said, Net, Node},
    rawnode::{hello, plain, Heard, RawLink, RawNode},
    support::{server::Home, PATIENCE},
};

/// What is wrong with a hello, and what it is refused with.
fn wrong_hellos() -> Vec<(NodeHello, RefusalCode)> {
    let with = |change: fn(&mut NodeHello), code| {
        let mut hello = hello();
        change(&mut hello);
        (hello, code)
    };
    vec![
        with(
            |hello| hello.cluster = "other".to_owned(),
            RefusalCode::Cluster,
        ),
        with(|hello| hello.to = 3, RefusalCode::WrongNode),
        with(|hello| hello.from = 1, RefusalCode::SameNode),
        with(|hello| hello.from = 4, RefusalCode::Stranger),
        with(|hello| hello.members = vec![1, 2], RefusalCode::Members),
        with(|hello| hello.shards = 2, RefusalCode::Shards),
        with(|hello| hello.shard = 1, RefusalCode::Shards),
        with(|hello| hello.data_groups = 31, RefusalCode::Groups),
        with(|hello| hello.has_secret = true, RefusalCode::Secret),
    ]
}

#[test]
fn every_mismatch_in_hello_is_refused_by_its_kind_and_said_once() {
    let net = Net::new(3);
    let server = Node::start(net.home(1, 1));
    for round in 1..=3 {
        for (hello, code) in wrong_hellos() {
            let refused = RawNode::refused_as(net.address(1), &hello);
            assert_eq!(refused, code, "round {round}: {hello:?}");
        }
    }
    await_said(&server, "refused", 8);
    for (words, times) in [
        ("cluster \"other\" and this is cluster \"test\"", 1),
        ("means to speak with node 3 and this is node 1", 1),
        ("two nodes have the number 1", 1),
        ("node 4 is no member", 1),
        ("node 2 has the members [1, 2] and node 1 has [1, 2, 3]", 1),
        ("has 2 shards and node 1 has 1", 1),
        ("has 31 data groups and node 1 has 32", 1),
        ("node 2 has a cluster_secret and node 1 has none", 1),
        ("refused", 8),
    ] {
        assert_eq!(
            said(&server, words),
            times,
            "{words}: {:?}",
            server.errors()
        );
    }
    // One that is right is linked after all of them.
    let mut link = RawLink::make(net.address(1), &hello(), &[]).unwrap();
    await_said(&server, "node 2 is linked, after ", 1);
    link.assert_up();
    let (_, said) = server.terminate();
    let summary = said
        .iter()
        .find(|line| line.contains("refused since the start"));
    let summary = summary.unwrap_or_else(|| panic!("{said:?}"));
    assert!(
        summary.contains("strangers 3 times (another cluster)"),
        "{summary}"
    );
}

#[test]
fn a_node_with_the_lower_number_may_not_call() {
    let net = Net::new(3);
    let _server = Node::start(net.home(2, 1));
    let (from, to) = (1, 2);
    let lower = NodeHello {
        from,
        to,
        ..hello()
    };
    let refused = RawNode::refused_as(net.address(2), &lower);
    assert_eq!(refused, RefusalCode::Direction);
}

#[test]
fn a_node_of_another_number_of_groups_is_refused_and_both_say_so() {
    let net = Net::new(3);
    let two = net.home(2, 1).with("data_groups = 30");
    let one = Node::start(net.home(1, 1));
    let server = Node::start(two);
    await_said(&one, "node 2 has 30 data groups and node 1 has 32", 1);
    await_said(&server, "refuses this node: node 2 has 30 data groups", 1);
}

#[test]
fn a_node_without_the_secret_is_refused_and_is_linked_once_it_has_it() {
    let net = Net::new(3);
    let dir = tempfile::tempdir().unwrap();
    let with = |node: u32, secret: &str| {
        let path = dir.path().join(node.to_string());
        fs::write(&path, secret).unwrap();
        net.home(node, 1)
            .with(&format!("cluster_secret = {path:?}"))
    };
    let one = Node::start(with(1, "a secret that is right"));
    let home = with(2, "a secret that is wrong");
    let two = home.start();
    await_said(&two, "it does not have this cluster's secret", 1);
    await_said(
        &one,
        "refuses this node: it does not have this cluster's secret",
        1,
    );
    two.kill();
    let without = Node::start(net.home(2, 1).data_at(&home.data()));
    await_said(&one, "node 1 has a cluster_secret and node 2 has none", 1);
    await_said(
        &without,
        "refuses this node: node 1 has a cluster_secret",
        1,
    );
    without.kill();
    fs::write(dir.path().join("2"), "a secret that is right").unwrap();
    let two = home.start();
    await_said(&two, "node 1 is linked", 1);
    let line = await_said(&one, "node 2 is linked", 1);
    assert!(line.contains("refused tries"), "{line}");
    assert_eq!(said(&one, "this cluster's secret"), 1);
}

#[test]
fn other_members_and_a_wrong_address_are_refused_and_both_say_so() {
    let net = Net::new(3);
    let one = Node::start(net.home(1, 1));
    let three = Node::start(net.home(3, 1));
    await_said(&three, "node 1 is linked", 1);
    // Node 2 believes that node 1 is where node 3 is.
    let swapped = net.nodes_at(&[(1, net.address(3)), (3, net.address(1))]);
    let confused = Node::start(net.bare(2, 1).with("cluster = \"test\"").with(&swapped));
    await_said(
        &three,
        "node 2 means to speak with node 1 and this is node 3",
        1,
    );
    await_said(
        &confused,
        "refuses this node: node 2 means to speak with node 1",
        1,
    );
    confused.kill();
    let pair = Net::nodes(&net).replace(", \"3=", ", \"4=");
    let other = Node::start(net.bare(2, 1).with("cluster = \"test\"").with(&pair));
    await_said(
        &one,
        "node 2 has the members [1, 2, 4] and node 1 has [1, 2, 3]",
        1,
    );
    await_said(
        &other,
        "refuses this node: node 2 has the members [1, 2, 4]",
        1,
    );
}

#[test]
fn a_second_directory_and_a_copy_of_a_directory_are_refused() {
    let net = Net::new(3);
    let one = Node::start(net.home(1, 1));
    let two = net.home(2, 1);
    let server = two.start();
    await_said(&one, "node 2 is linked", 1);
    // Somebody else took the same number.
    let nowhere = Net::new(3);
    let twin = net
        .home(2, 1)
        .with(&format!("node_listen = \"{}\"", nowhere.address(2)));
    let second = twin.start();
    await_said(&one, "another data directory is linked as node 2", 1);
    await_said(&second, "refuses this node: another data directory", 1);
    second.kill();
    server.terminate();
    // The directory is copied while nobody uses it, and both are started.
    let beside = twin.data().with_file_name("copy");
    let copied = Command::new("cp")
        .arg("-a")
        .args([two.data(), beside.clone()])
        .status();
    assert!(copied.unwrap().success());
    let server = two.start();
    await_said(&one, "node 2 is linked again", 1);
    let copy = net
        .home(2, 1)
        .data_at(&beside)
        .with(&format!("node_listen = \"{}\"", nowhere.address(2)));
    let copy = copy.start();
    await_said(&one, "this is a copy of the directory", 1);
    await_said(&copy, "refuses this node: the log of node 2", 1);
    await_said(&server, "node 1 is linked", 1);
    assert_eq!(said(&one, "node 2 is not linked"), 1);
}

#[test]
fn a_client_on_the_port_for_nodes_is_told_where_to_go() {
    let net = Net::new(3);
    let server = Node::start(net.home(1, 1));
    for _ in 0..3 {
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["queue", "list", "--server", &net.address(1).to_string()])
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success());
        assert!(
            told.contains("clients connect to the address of listen"),
            "{told}"
        );
        assert_eq!(told.lines().count(), 1, "{told}");
    }
    assert_said_once(&server, "this port is for the cluster's nodes");
}

fn client_error(stream: &mut TcpStream) -> (ErrorCode, String) {
    let mut head = [0; HEADER_BYTES];
    stream.read_exact(&mut head).unwrap();
    let header = FrameHeader::decode(&head, 1 << 16).unwrap();
    assert_eq!(header.kind, Kind::Error as u8);
    let mut body = vec![0; header.length as usize];
    stream.read_exact(&mut body).unwrap();
    let error = codec::decode::<message::Error>(&body).unwrap();
    let code = error.code.to_native();
    (
        ErrorCode::from_raw(code).unwrap(),
        error.message.as_str().to_owned(),
    )
}

#[test]
fn a_client_s_frames_behind_its_hello_do_not_hide_why_it_is_refused() {
    let net = Net::new(3);
    let _server = Node::start(net.home(1, 1));
    let mut stream = TcpStream::connect(net.address(1)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let header = FrameHeader {
        kind: Kind::Hello as u8,
        length: 1000,
        correlation: 1,
    };
    let bytes = [&header.encode()[..], &[7; 200_000]].concat();
    stream.write_all(&bytes).unwrap();
    let (code, reason) = client_error(&mut stream);
    assert_eq!(code, ErrorCode::Protocol);
    assert!(
        reason.contains("port is for the cluster's nodes"),
        "{reason}"
    );
}

#[test]
fn a_node_on_the_port_for_clients_is_told_where_to_go() {
    let net = Net::new(3);
    let server = Node::start(net.home(1, 1));
    for _ in 0..3 {
        let refused = RawNode::refused_as(server.address, &hello());
        assert_eq!(refused, RefusalCode::ClientPort);
    }
    assert_said_once(&server, "this port is for clients");
    // A node says what it was told, and one that is alone says it as well.
    let alone = Node::start(Home::new(1));
    let nodes = net.nodes_at(&[(1, alone.address)]);
    let two = Node::start(net.bare(2, 1).with("cluster = \"test\"").with(&nodes));
    await_said(&two, "refuses this node: this port is for clients", 1);
    await_said(
        &alone,
        "this port is for clients; a node calls the address of node_listen",
        1,
    );
}

/// Something that answers calls as it likes, in place of node 1.
fn answered_by(answer: &'static [u8]) -> (Net, TcpListener, Node) {
    let net = Net::new(3);
    let listener = TcpListener::bind(net.address(1)).unwrap();
    let answering = listener.try_clone().unwrap();
    std::thread::spawn(move || {
        for stream in answering.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 2000]);
            let _ = stream.write_all(answer);
        }
    });
    let server = Node::start(net.home(2, 1));
    (net, listener, server)
}

#[test]
fn what_answers_in_place_of_a_node_is_said() {
    let (_, _listener, server) = answered_by(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    await_said(&server, "is refused: not a frame between nodes", 1);
    let (_, _listener, server) = answered_by(b"TDGT\x01\x1e\x00\x00");
    await_said(&server, "is refused: its port is for clients", 1);
}

#[test]
fn garbage_other_versions_and_oversize_lengths_are_refused_by_kind_and_said_once() {
    let net = Net::new(3);
    let server = Node::start(net.home(1, 1));
    let right = plain(NodeFrameKind::Hello, &hello().encode());
    let changed = |at: usize, byte: u8| {
        let mut bytes = right.clone();
        bytes[at] = byte;
        bytes
    };
    let cases = [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), RefusalCode::Garbage),
        (b"\x16\x03\x01\x02".to_vec(), RefusalCode::Garbage),
        (changed(4, 1), RefusalCode::Version),
        (changed(6, 77), RefusalCode::Garbage),
        (changed(7, 1), RefusalCode::Garbage),
        (changed(10, 1), RefusalCode::TooLong),
        (changed(11, 0xff), RefusalCode::TooLong),
        (changed(16, 1), RefusalCode::Garbage),
        (changed(24, right[24] ^ 1), RefusalCode::Garbage),
        (changed(45, right[45] ^ 1), RefusalCode::Garbage),
        (plain(NodeFrameKind::Hello, b"short"), RefusalCode::Garbage),
        (plain(NodeFrameKind::Body, &[]), RefusalCode::Protocol),
        (
            [right.clone(), right.clone()].concat(),
            RefusalCode::Protocol,
        ),
    ];
    for _ in 0..2 {
        for (bytes, code) in &cases {
            let mut node = RawNode::connect(net.address(1));
            node.send(bytes);
            match node.hear_plain() {
                Heard::Refused(refused, reason) => assert_eq!(refused, *code, "{reason}"),
                other => panic!("{code:?}: {other:?}"),
            }
        }
    }
    // Garbage, version, oversize; out of place twice: once without a number.
    await_said(&server, "is refused", 5);
    assert_eq!(said(&server, "is refused"), 5, "{:?}", server.errors());
    let said = server.errors().join("\n");
    assert!(
        said.contains("version 1 of the protocol between nodes"),
        "{said}"
    );
    assert!(!said.contains("panicked"), "{said}");
}
