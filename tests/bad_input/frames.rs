//! Frame headers, lengths, splits, kinds and the handshake.

use std::time::Duration;

use wire::{
    error::ErrorCode,
    frame::{Kind, HEADER_BYTES},
    limits::{MAX_FRAME_BYTES, MAX_HELLO_BYTES},
    message::{Hello, List, Ping, ANY_SHARD},
};

use crate::rawwire::{code, frame, hello, publish, raw_frame, Server};

fn with_length(kind: Kind, length: u32) -> Vec<u8> {
    let mut bytes = raw_frame(kind as u8, 9, &[]);
    bytes[8..12].copy_from_slice(&length.to_le_bytes());
    bytes
}

#[test]
fn garbage_is_answered_with_an_error_and_the_end() {
    let mut server = Server::start();
    let mut watcher = server.hello();
    let garbage: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        &[0; 64],
        &[0xff; 64],
        b"TDGS\x01\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        &[
            0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14,
        ],
    ];
    for bytes in garbage {
        let mut before = server.connect();
        before.raw(bytes);
        before.refused_and_closed(ErrorCode::Protocol);
        let mut after = server.hello();
        after.raw(bytes);
        after.refused_and_closed(ErrorCode::Protocol);
        watcher.ping();
    }
    server.assert_well();
}

/// A peer of another protocol may wait for an answer behind a few bytes.
#[test]
fn four_foreign_bytes_are_enough_to_be_refused() {
    let mut server = Server::start();
    for bytes in [b"PRI ", b"TDGX", &[0; 4]] {
        let mut before = server.connect();
        before.raw(bytes);
        let error = before.refused_and_closed(ErrorCode::Protocol);
        assert!(error.contains("not a Tidegate frame"), "{error}");
        let mut after = server.hello();
        after.raw(bytes);
        let error = after.refused_and_closed(ErrorCode::Protocol);
        assert!(error.contains("not a Tidegate frame"), "{error}");
    }
    server.assert_well();
}

#[test]
fn a_begun_frame_that_gets_no_further_byte_ends_its_connection() {
    let mut server = Server::start_with(1, "", &["frame_deadline = \"300ms\""]);
    let mut idle = server.hello();
    let whole = frame(5, &publish(1, &[b"half"]));
    for cut in [1, HEADER_BYTES - 1, HEADER_BYTES, whole.len() - 1] {
        let mut peer = server.hello();
        peer.raw(&whole[..cut]);
        let error = peer.refused_and_closed(ErrorCode::Protocol);
        assert!(error.contains("a frame was begun"), "cut at {cut}: {error}");
    }
    // Silence between frames is no fault.
    idle.ping();
    server.assert_well();
}

#[test]
fn a_truncated_frame_ends_with_its_connection_alone() {
    let mut server = Server::start();
    let whole = frame(1, &hello(ANY_SHARD));
    for cut in 0..whole.len() {
        let mut peer = server.connect();
        peer.raw(&whole[..cut]);
        peer.half_close();
        assert!(peer.frame().is_none(), "cut at {cut}");
    }
    let whole = frame(5, &publish(1, &[b"half"]));
    for cut in [1, HEADER_BYTES - 1, HEADER_BYTES, whole.len() - 1] {
        let mut peer = server.hello();
        peer.raw(&whole[..cut]);
        peer.half_close();
        assert!(peer.frame().is_none(), "cut at {cut}");
    }
    server.assert_well();
}

#[test]
fn lengths_beyond_the_limit_are_refused_before_anything_is_read() {
    let mut server = Server::start();
    for length in [MAX_HELLO_BYTES + 1, MAX_FRAME_BYTES, u32::MAX] {
        let mut peer = server.connect();
        peer.raw(&with_length(Kind::Hello, length));
        peer.refused_and_closed(ErrorCode::TooLarge);
    }
    for length in [MAX_FRAME_BYTES + 1, 1 << 31, u32::MAX] {
        let mut peer = server.hello();
        let before = server.resident();
        peer.raw(&with_length(Kind::Publish, length));
        peer.refused_and_closed(ErrorCode::TooLarge);
        assert!(server.resident() < before + (64 << 20));
    }
    server.assert_well();
}

#[test]
fn bodies_of_no_or_one_byte_are_invalid_and_the_connection_goes_on() {
    let mut server = Server::start();
    for body in [&[][..], &[0], &[0xff]] {
        let mut peer = server.connect();
        peer.raw(&raw_frame(Kind::Hello as u8, 3, body));
        peer.refused_and_closed(ErrorCode::Invalid);
        let mut peer = server.hello();
        for kind in REQUESTS {
            peer.raw(&raw_frame(kind as u8, 3, body));
            peer.refused(ErrorCode::Invalid);
        }
        // Extending leases is not offered at all.
        peer.raw(&raw_frame(Kind::Extend as u8, 3, body));
        peer.refused(ErrorCode::Unsupported);
        peer.ping();
    }
    server.assert_well();
}

/// Every kind that a client may send and whose body the server reads.
pub const REQUESTS: [Kind; 17] = [
    Kind::Declare,
    Kind::Publish,
    Kind::Subscribe,
    Kind::Credit,
    Kind::Settle,
    Kind::QueueInfo,
    Kind::List,
    Kind::Frontiers,
    Kind::Barrier,
    Kind::Peek,
    Kind::Purge,
    Kind::Delete,
    Kind::Locate,
    Kind::Unsubscribe,
    Kind::ClusterStatus,
    Kind::ClusterOrder,
    Kind::ChangeQueue,
];

#[test]
fn a_frame_may_arrive_byte_by_byte_or_many_at_once() {
    let mut server = Server::start();
    let mut peer = server.connect();
    for byte in frame(1, &hello(ANY_SHARD)) {
        peer.raw(&[byte]);
    }
    peer.expect(Kind::HelloReply);
    let queue = peer.declare("dribbled");
    let whole = frame(5, &publish(queue, &[b"dribbled record"]));
    for cut in 1..whole.len() {
        peer.raw(&whole[..cut]);
        // Two segments: the server most often sees the cut.
        std::thread::sleep(Duration::from_micros(200));
        peer.raw(&whole[cut..]);
        assert_eq!(peer.confirmed().first_offset, cut as u64 - 1);
    }
    let mut many = Vec::new();
    for number in 0..1000 {
        many.extend(frame(number + 1, &Ping::default()));
    }
    many.extend_from_slice(&whole);
    peer.raw(&many);
    for number in 0..1000 {
        let (header, _) = peer.expect(Kind::Pong);
        assert_eq!(header.correlation, number + 1);
    }
    peer.confirmed();
    server.assert_well();
}

#[test]
fn reserved_header_bits_and_other_versions_are_refused() {
    let mut server = Server::start();
    let good = frame(9, &Ping::default());
    for (at, expected) in [
        (0, ErrorCode::Protocol),
        (4, ErrorCode::Version),
        (6, ErrorCode::Protocol),
        (7, ErrorCode::Protocol),
        (12, ErrorCode::Protocol),
        (15, ErrorCode::Protocol),
    ] {
        let mut bytes = good.clone();
        bytes[at] ^= 0x82;
        let mut peer = server.hello();
        peer.raw(&bytes);
        peer.refused_and_closed(expected);
    }
    let newer = Hello {
        version_min: 2,
        version_max: 9,
        ..hello(ANY_SHARD)
    };
    let mut peer = server.connect();
    peer.raw(&frame(1, &newer));
    let text = peer.refused_and_closed(ErrorCode::Version);
    assert!(text.contains("version 1"), "{text}");
    server.assert_well();
}

#[test]
fn unknown_kinds_are_answered_and_kinds_of_servers_end_the_connection() {
    let mut server = Server::start();
    let mut peer = server.hello();
    for raw in (0..=u8::MAX).filter(|raw| Kind::from_raw(*raw).is_none()) {
        peer.raw(&raw_frame(raw, 41, b"whatever"));
        let (header, body) = peer.frame().expect("open");
        assert_eq!(header.correlation, 41);
        assert_eq!(code(&(header, body)), Some(ErrorCode::UnknownKind));
    }
    let theirs = |kind: &Kind| {
        let known = [
            Kind::Hello,
            Kind::Ping,
            Kind::Pong,
            Kind::GoingAway,
            Kind::Extend,
        ];
        !known.contains(kind) && !REQUESTS.contains(kind)
    };
    for kind in Kind::ALL.iter().filter(|kind| theirs(kind)) {
        let mut peer = server.hello();
        peer.raw(&raw_frame(*kind as u8, 41, b"whatever"));
        peer.refused_and_closed(ErrorCode::Protocol);
    }
    server.assert_well();
}

#[test]
fn the_handshake_is_one_hello_first_and_alone() {
    let mut server = Server::start();
    let mut twice = server.hello();
    twice.send(2, &hello(ANY_SHARD));
    twice.refused_and_closed(ErrorCode::Protocol);

    let mut early = server.connect();
    early.send(1, &List::default());
    early.refused_and_closed(ErrorCode::Protocol);

    let mut hasty = server.connect();
    let mut bytes = frame(1, &hello(ANY_SHARD));
    bytes.extend(frame(2, &Ping::default()));
    hasty.raw(&bytes);
    let text = hasty.refused_and_closed(ErrorCode::Protocol);
    assert!(text.contains("before its reply"), "{text}");

    for wished in [2, 63, 64, u16::MAX - 1] {
        let mut nowhere = server.connect();
        nowhere.send(1, &hello(wished));
        nowhere.refused_and_closed(ErrorCode::Invalid);
    }

    let mut named = server.connect();
    let authentication = b"secret".to_vec();
    named.send(
        1,
        &Hello {
            authentication,
            ..hello(ANY_SHARD)
        },
    );
    named.refused_and_closed(ErrorCode::Unsupported);
    for window_bytes in [0, u32::MAX] {
        let mut odd = server.connect();
        odd.send(
            1,
            &Hello {
                window_bytes,
                ..hello(ANY_SHARD)
            },
        );
        odd.expect(Kind::HelloReply);
        odd.ping();
    }
    server.assert_well();
}
