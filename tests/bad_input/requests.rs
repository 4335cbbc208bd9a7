//! Publishes, subscriptions, credit and names that make no sense.

use wire::{
    codec,
    error::ErrorCode,
    frame::Kind,
    limits::{MAX_BATCH_RECORDS, MAX_PARTITIONS},
    message::{
        Barrier, Credit, Declare, Declared, Delete, Deliver, Frontiers, List, ListReply, Locate,
        Peek, PeekReply, Publish, Purge, QueueInfo, Subscribe, Unsubscribe, Unsubscribed,
    },
};

use crate::rawwire::{publish, records, Peer, Server};

fn refused(peer: &mut Peer, publish: Publish, expected: ErrorCode) -> String {
    peer.send(8, &publish);
    peer.refused(expected)
}

#[test]
fn queues_and_partitions_that_do_not_exist_are_named() {
    let mut server = Server::start();
    let mut peer = server.hello();
    let known = peer.declare("known");
    for (queue_id, partition, expected) in [
        (0, 0, ErrorCode::UnknownQueue),
        (u64::MAX, u16::MAX, ErrorCode::UnknownQueue),
        (known, 1, ErrorCode::UnknownPartition),
        (known, u16::MAX, ErrorCode::UnknownPartition),
    ] {
        let body = Publish {
            partition,
            ..publish(queue_id, &[b"x"])
        };
        refused(&mut peer, body, expected);
        peer.send(
            9,
            &Subscribe {
                queue_id,
                partition,
                subscription: 1,
                ..Default::default()
            },
        );
        peer.refused(expected);
        peer.send(
            9,
            &QueueInfo {
                queue_id,
                partition,
                ..Default::default()
            },
        );
        peer.refused(expected);
        peer.send(
            9,
            &Frontiers {
                queue_id,
                partition,
                ..Default::default()
            },
        );
        peer.refused(expected);
        peer.send(
            9,
            &Barrier {
                queue_id,
                partition,
                ..Default::default()
            },
        );
        peer.refused(expected);
        peer.send(
            9,
            &Peek {
                queue_id,
                partition,
                ..Default::default()
            },
        );
        peer.refused(expected);
        peer.send(
            9,
            &Purge {
                queue_id,
                partition,
                ..Default::default()
            },
        );
        peer.refused(expected);
    }
    peer.send(
        9,
        &Delete {
            queue_id: known + 1,
            ..Default::default()
        },
    );
    peer.refused(ErrorCode::UnknownQueue);
    peer.send(
        9,
        &Unsubscribe {
            subscription: 1,
            ..Default::default()
        },
    );
    peer.refused(ErrorCode::Invalid);
    server.assert_well();
}

#[test]
fn publishes_that_contradict_themselves_store_nothing() {
    let mut server = Server::start();
    let mut peer = server.hello();
    let queue = peer.declare("contradicted");
    let good = publish(queue, &[b"one", b"two"]);
    let cases = [
        (
            Publish {
                count: 0,
                ..good.clone()
            },
            ErrorCode::Invalid,
        ),
        (
            Publish {
                count: 0,
                records: vec![],
                ..good.clone()
            },
            ErrorCode::Invalid,
        ),
        (
            Publish {
                count: 1,
                ..good.clone()
            },
            ErrorCode::Invalid,
        ),
        (
            Publish {
                count: 3,
                ..good.clone()
            },
            ErrorCode::Invalid,
        ),
        (
            Publish {
                count: u32::MAX,
                ..good.clone()
            },
            ErrorCode::TooLarge,
        ),
        (
            Publish {
                records: vec![],
                ..good.clone()
            },
            ErrorCode::Invalid,
        ),
        (
            Publish {
                flags: 2,
                ..good.clone()
            },
            ErrorCode::Invalid,
        ),
        (
            Publish {
                flags: u32::MAX,
                ..good.clone()
            },
            ErrorCode::Invalid,
        ),
        (
            Publish {
                producer_epoch: 1,
                ..good.clone()
            },
            ErrorCode::Invalid,
        ),
        (
            Publish {
                sequence: 1,
                ..good.clone()
            },
            ErrorCode::Invalid,
        ),
    ];
    for (body, expected) in cases {
        refused(&mut peer, body, expected);
    }
    // One flipped bit anywhere in a record, and every cut of it.
    let whole = records(&[b"payload"]);
    for at in 0..whole.len() {
        let mut records = whole.clone();
        records[at] ^= 0x10;
        refused(
            &mut peer,
            Publish {
                count: 1,
                records,
                ..good.clone()
            },
            ErrorCode::Invalid,
        );
        let records = whole[..at].to_vec();
        refused(
            &mut peer,
            Publish {
                count: 1,
                records,
                ..good.clone()
            },
            ErrorCode::Invalid,
        );
    }
    let most = MAX_BATCH_RECORDS as usize;
    refused(
        &mut peer,
        publish(queue, &vec![&b"x"[..]; most + 1]),
        ErrorCode::TooLarge,
    );
    // Nothing of all this is there: the first good batch starts at 0.
    let item = peer.publish(queue, &vec![&b"x"[..]; most]);
    assert_eq!((item.first_offset, item.count), (0, MAX_BATCH_RECORDS));
    server.assert_well();
}

/// F73: a name works everywhere or is refused at its creation.
#[test]
fn f73_odd_names_work_everywhere_or_nowhere() {
    let mut server = Server::start();
    let mut peer = server.hello();
    let long = "n".repeat(255);
    let wide = "\u{1f980}".repeat(63);
    let good = [
        "a/b",
        "..",
        ".",
        "/",
        "%2F",
        "a b",
        " ",
        "-",
        "--json",
        "\\",
        "\"",
        "\u{e9}",
        "e\u{301}",
        "\u{202e}rtl",
        "\u{feff}",
        "orders\u{200b}",
        &long,
        &wide,
    ];
    for name in good {
        let queue_id = peer.declare(name);
        peer.send(
            5,
            &Locate {
                name: name.into(),
                ..Default::default()
            },
        );
        peer.expect(Kind::LocateReply);
        peer.publish(queue_id, &[name.as_bytes()]);
    }
    let long = "n".repeat(256);
    let wide = "\u{1f980}".repeat(64);
    let bad = [
        "", "\n", "a\nb", "\0", "a\0", "\u{7f}", "\u{85}", "\u{9f}", "\t", &long, &wide,
    ];
    for name in bad {
        peer.send(
            5,
            &Declare {
                name: name.into(),
                ..Default::default()
            },
        );
        peer.refused(ErrorCode::Invalid);
        peer.send(
            5,
            &Locate {
                name: name.into(),
                ..Default::default()
            },
        );
        peer.refused(ErrorCode::Invalid);
    }
    // Every one once, in byte order, one per page.
    let mut seen: Vec<String> = Vec::new();
    loop {
        let after = seen.last().cloned().unwrap_or_default();
        peer.send(
            6,
            &List {
                after,
                limit: 1,
                ..Default::default()
            },
        );
        let (_, body) = peer.expect(Kind::ListReply);
        let reply = codec::decode::<ListReply>(&body).expect("a list");
        seen.extend(
            reply
                .queues
                .iter()
                .map(|queue| queue.name.as_str().to_owned()),
        );
        if reply.more == 0 {
            break;
        }
    }
    let mut expected: Vec<String> = good.iter().map(|name| (*name).to_owned()).collect();
    expected.sort();
    assert_eq!(seen, expected);
    for name in good {
        let queue_id = peer.declare_existing(name);
        peer.send(
            7,
            &Delete {
                queue_id,
                ..Default::default()
            },
        );
        peer.expect(Kind::Deleted);
    }
    peer.send(6, &List::default());
    let (_, body) = peer.expect(Kind::ListReply);
    let reply = codec::decode::<ListReply>(&body).expect("a list");
    assert_eq!(reply.queues.len(), 0);
    server.assert_well();
}

impl Peer {
    /// Declares with everything kept as it is; gives the id.
    fn declare_existing(&mut self, name: &str) -> u64 {
        self.send(
            2,
            &Declare {
                name: name.into(),
                ..Default::default()
            },
        );
        let (_, body) = self.expect(Kind::Declared);
        let declared = codec::decode::<Declared>(&body).expect("declared");
        assert_eq!(declared.created, 0);
        declared.queue.queue_id.to_native()
    }
}

#[test]
fn declarations_out_of_bounds_are_refused() {
    let mut server = Server::start();
    let mut peer = server.hello();
    let good = || Declare {
        name: "bounded".into(),
        ..Default::default()
    };
    let cases = [
        (Declare { mode: 4, ..good() }, ErrorCode::Invalid),
        (
            Declare {
                mode: 255,
                ..good()
            },
            ErrorCode::Invalid,
        ),
        (
            Declare {
                copies: 2,
                ..good()
            },
            ErrorCode::MissingCopies,
        ),
        (
            Declare {
                copies: 254,
                ..good()
            },
            ErrorCode::MissingCopies,
        ),
        (
            Declare {
                partitions: MAX_PARTITIONS + 1,
                ..good()
            },
            ErrorCode::TooLarge,
        ),
        (
            Declare {
                partitions: u16::MAX,
                ..good()
            },
            ErrorCode::TooLarge,
        ),
        (
            Declare {
                lease_ms: 604_800_001,
                ..good()
            },
            ErrorCode::Invalid,
        ),
        (
            Declare {
                lease_ms: u64::MAX,
                ..good()
            },
            ErrorCode::Invalid,
        ),
    ];
    for (body, expected) in cases {
        peer.send(5, &body);
        peer.refused(expected);
    }
    peer.send(
        5,
        &Declare {
            partitions: MAX_PARTITIONS,
            copies: 255,
            lease_ms: 1,
            ..good()
        },
    );
    peer.expect(Kind::Declared);
    for body in [
        Declare { mode: 2, ..good() },
        Declare {
            partitions: 1,
            ..good()
        },
        Declare {
            lease_ms: 2,
            ..good()
        },
    ] {
        peer.send(5, &body);
        peer.refused(ErrorCode::Conflict);
    }
    server.assert_well();
}

#[test]
fn credit_of_nothing_delivers_nothing_and_too_much_does_no_harm() {
    let mut server = Server::start();
    let mut peer = server.hello();
    let queue_id = peer.declare("credited");
    peer.publish(queue_id, &[b"1", b"2", b"3"]);
    peer.subscribe(queue_id, 1, 0);
    let credit = |subscription, records, bytes| Credit {
        subscription,
        records,
        bytes,
        ..Default::default()
    };
    peer.send(5, &credit(1, 0, u64::MAX));
    peer.send(5, &credit(1, 0, 0));
    peer.send(5, &credit(2, 9, 9)); // no such subscription: passed over
    peer.ping();
    for _ in 0..1000 {
        peer.send(5, &credit(1, u32::MAX, u64::MAX));
    }
    let mut delivered = 0;
    while delivered < 3 {
        let (_, body) = peer.expect(Kind::Deliver);
        let deliver = codec::decode::<Deliver>(&body).expect("a delivery");
        delivered += deliver.deliveries.len();
    }
    peer.ping();
    server.assert_well();
}

#[test]
fn a_subscription_number_is_used_once_at_a_time() {
    let mut server = Server::start();
    let mut peer = server.hello();
    let queue_id = peer.declare("numbered");
    for _ in 0..3 {
        peer.subscribe(queue_id, u32::MAX, 1);
        let again = Subscribe {
            queue_id,
            subscription: u32::MAX,
            ..Default::default()
        };
        peer.send(6, &again);
        peer.refused(ErrorCode::Conflict);
        peer.send(
            7,
            &Unsubscribe {
                subscription: u32::MAX,
                ..Default::default()
            },
        );
        peer.expect(Kind::Unsubscribed);
    }
    server.assert_well();
}

#[test]
fn a_deleted_queue_ends_its_subscriptions_and_takes_no_new_ones() {
    let mut server = Server::start();
    let mut peers = [server.hello_to(0), server.hello_to(1)];
    for round in 0..4 {
        let queue_id = peers[0].declare(&format!("deleted {round}"));
        for peer in &mut peers {
            peer.subscribe(queue_id, 5, 10);
        }
        peers[1].send(
            9,
            &Delete {
                queue_id,
                ..Default::default()
            },
        );
        for peer in &mut peers {
            let mut frame = peer.frame().expect("open");
            if frame.0.kind == Kind::Deleted as u8 {
                frame = peer.frame().expect("open");
            }
            assert_eq!(frame.0.kind, Kind::Unsubscribed as u8);
            let ended = codec::decode::<Unsubscribed>(&frame.1).expect("unsubscribed");
            assert_eq!(ended.subscription, 5);
        }
        peers[0].send(
            9,
            &Subscribe {
                queue_id,
                subscription: 5,
                ..Default::default()
            },
        );
        peers[0].refused(ErrorCode::UnknownQueue);
        // The other one may still have its `Deleted` to come.
        peers[1].send(98, &publish(queue_id, &[b"late"]));
        loop {
            let frame = peers[1].frame().expect("open");
            if frame.0.correlation == 98 {
                assert_eq!(crate::rawwire::code(&frame), Some(ErrorCode::UnknownQueue));
                break;
            }
        }
    }
    server.assert_well();
}

#[test]
fn peeks_of_any_size_from_anywhere_are_answered() {
    let mut server = Server::start();
    let mut peer = server.hello();
    let queue_id = peer.declare("peeked");
    let large = vec![7; 100_000];
    for _ in 0..30 {
        peer.publish(queue_id, &[&large, b"small"]);
    }
    for (from_offset, max_records) in [
        (0, u32::MAX),
        (59, 0),
        (60, 9),
        (u64::MAX, u32::MAX),
        (u64::MAX - 255, 1),
        (1 << 63, 1),
    ] {
        peer.send(
            6,
            &Peek {
                queue_id,
                from_offset,
                max_records,
                ..Default::default()
            },
        );
        let (_, body) = peer.expect(Kind::PeekReply);
        let reply = codec::decode::<PeekReply>(&body).expect("a reply");
        assert_eq!(reply.peeked.is_empty(), from_offset >= 60);
        assert!(reply.records.len() <= 2 << 20);
    }
    server.assert_well();
}
