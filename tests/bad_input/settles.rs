//! Settles of deliveries that are not the settler's to settle.

use wire::{
    codec,
    error::ErrorCode,
    frame::Kind,
    limits::MAX_SETTLE_ITEMS,
    message::{
        Credit, Deliver, Peek, PeekReply, Publish, QueueInfo, QueueInfoReply, Settle,
        SettleConfirm, SettleItem, SETTLE_CONFIRM,
    },
    record::RecordParts,
    vocabulary::{Mode, RecordState},
};

use crate::rawwire::{await_that, Peer, Server};

/// Receives this many deliveries: (offset, attempt).
fn receive(peer: &mut Peer, count: usize) -> Vec<(u64, u32)> {
    let mut received = Vec::new();
    while received.len() < count {
        let (_, body) = peer.expect(Kind::Deliver);
        let deliver = codec::decode::<Deliver>(&body).expect("a delivery");
        let ids = deliver.deliveries.iter();
        received.extend(ids.map(|one| (one.offset.to_native(), one.attempt.to_native())));
    }
    received
}

fn settle(queue_id: u64, kind: u8, ids: &[(u64, u32)]) -> Settle {
    let item = |(offset, attempt): &(u64, u32)| SettleItem {
        offset: *offset,
        attempt: *attempt,
    };
    Settle {
        queue_id,
        generation: 1,
        subscription: 1,
        kind,
        flags: SETTLE_CONFIRM,
        items: ids.iter().map(item).collect(),
        ..Default::default()
    }
}

/// Sends a settle: how many were accepted, and the codes of those refused.
fn outcome(peer: &mut Peer, settle: &Settle) -> (u32, Vec<ErrorCode>) {
    peer.send(6, settle);
    let (_, body) = peer.expect(Kind::SettleConfirm);
    let confirm = codec::decode::<SettleConfirm>(&body).expect("a confirm");
    let codes = confirm.refused.iter();
    let codes = codes.map(|one| ErrorCode::from_raw(one.code.to_native()).expect("a code"));
    (confirm.accepted.to_native(), codes.collect())
}

/// Ready, delayed, leased, acknowledged.
fn counts(peer: &mut Peer, queue_id: u64) -> [u64; 4] {
    peer.send(
        7,
        &QueueInfo {
            queue_id,
            ..Default::default()
        },
    );
    let (_, body) = peer.expect(Kind::QueueInfoReply);
    let info = codec::decode::<QueueInfoReply>(&body).expect("an info");
    [info.ready, info.delayed, info.leased, info.acknowledged].map(|count| count.to_native())
}

const STALE: ErrorCode = ErrorCode::StaleDelivery;

#[test]
fn settles_of_unknown_stale_foreign_and_settled_deliveries_change_nothing() {
    let mut server = Server::start();
    // From the owner's shard and from the other one.
    for shard in [0, 1] {
        let mut peer = server.hello_to(shard);
        let mut other = server.hello_to(1 - shard);
        let queue = peer.declare(&format!("settled {shard}"));
        peer.publish(queue, &[b"0", b"1", b"2", b"3"]);
        peer.subscribe(queue, 1, 2);
        let mine = receive(&mut peer, 2);
        assert_eq!(mine, [(0, 1), (1, 1)]);
        other.subscribe(queue, 1, 1);
        assert_eq!(receive(&mut other, 1), [(2, 1)]);

        let unknown = [(3, 1), (4, 1), (u64::MAX, 1), (0, 0), (0, 2), (0, u32::MAX)];
        let (accepted, codes) = outcome(&mut peer, &settle(queue, 1, &unknown));
        assert_eq!((accepted, codes), (0, vec![STALE; unknown.len()]));
        let (accepted, codes) = outcome(&mut peer, &settle(queue, 1, &[(2, 1)]));
        assert_eq!((accepted, codes), (0, vec![STALE]), "another connection's");
        for generation in [0, 2, u32::MAX] {
            let wrong = Settle {
                generation,
                ..settle(queue, 1, &mine)
            };
            assert_eq!(outcome(&mut peer, &wrong), (0, vec![STALE; 2]));
        }
        assert_eq!(counts(&mut peer, queue), [1, 0, 3, 0]);

        let twice = settle(queue, 1, &[(0, 1), (0, 1)]);
        assert_eq!(outcome(&mut peer, &twice), (1, vec![STALE]));
        assert_eq!(outcome(&mut peer, &twice), (0, vec![STALE; 2]));
        assert_eq!(counts(&mut peer, queue), [1, 0, 2, 1]);
        // Given back and handed to the other: the first holder's id is old.
        assert_eq!(
            outcome(&mut peer, &settle(queue, 2, &[(1, 1)])),
            (1, vec![])
        );
        other.send(
            5,
            &Credit {
                subscription: 1,
                records: 9,
                bytes: 9999,
                ..Default::default()
            },
        );
        let mut handed = receive(&mut other, 2);
        handed.sort_unstable();
        assert_eq!(handed, [(1, 2), (3, 1)]);
        for kind in [1, 2, 3] {
            let old = settle(queue, kind, &[(1, 1), (1, 2)]);
            assert_eq!(outcome(&mut peer, &old), (0, vec![STALE; 2]));
        }
        assert_eq!(
            outcome(&mut other, &settle(queue, 1, &[(1, 2), (2, 1), (3, 1)])),
            (3, vec![])
        );
        assert_eq!(counts(&mut peer, queue), [0, 0, 0, 4]);
    }
    server.assert_well();
}

#[test]
fn settles_that_make_no_sense_are_refused_whole() {
    let mut server = Server::start();
    let mut peer = server.hello();
    let queue = peer.declare("sense");
    for kind in [0, 4, 255] {
        peer.send(6, &settle(queue, kind, &[(0, 1)]));
        peer.refused(ErrorCode::Invalid);
    }
    peer.send(
        6,
        &settle(queue, 1, &vec![(0, 1); MAX_SETTLE_ITEMS as usize + 1]),
    );
    peer.refused(ErrorCode::TooLarge);
    peer.send(
        6,
        &Settle {
            partition: 1,
            ..settle(queue, 1, &[(0, 1)])
        },
    );
    peer.refused(ErrorCode::UnknownPartition);
    let gone = settle(queue + 7, 1, &[(0, 1)]);
    assert_eq!(
        outcome(&mut peer, &gone),
        (0, vec![ErrorCode::UnknownQueue])
    );
    assert_eq!(outcome(&mut peer, &settle(queue, 1, &[])), (0, vec![]));
    // More than an answer could hold, for a queue that is not there.
    peer.send(6, &settle(queue + 7, 1, &vec![(0, 1); 1_300_000]));
    peer.refused(ErrorCode::TooLarge);
    server.assert_well();
}

/// A release or a due time as far off as numbers go stays delayed, and
/// nothing overflows on the way.
#[test]
fn delays_and_due_times_may_be_as_long_as_numbers_go() {
    let mut server = Server::start();
    let mut peer = server.hello();
    let queue = peer.declare_as("delayed", Mode::Durable, 1, 1);
    peer.publish(queue, &[b"0", b"1", b"2", b"3"]);
    let delays = [u64::MAX, u64::MAX - 1, 1 << 63, i64::MAX as u64];
    let mut far = 0;
    // The lease is 1 ms: a settle may come too late, then the next attempt.
    peer.subscribe(queue, 1, 1000);
    while far < delays.len() {
        for id in receive(&mut peer, 1) {
            let delay_ms = delays[far.min(delays.len() - 1)];
            peer.send(
                6,
                &Settle {
                    delay_ms,
                    ..settle(queue, 2, &[id])
                },
            );
            loop {
                let (header, body) = peer.frame().expect("open");
                if header.kind == Kind::SettleConfirm as u8 {
                    let confirm = codec::decode::<SettleConfirm>(&body).expect("a confirm");
                    far += confirm.accepted.to_native() as usize;
                    break;
                }
                assert_eq!(header.kind, Kind::Deliver as u8);
            }
        }
    }
    let mut encoded = Vec::new();
    for not_before_ms in [u64::MAX, u64::MAX - 1, 1 << 63, 1] {
        let parts = RecordParts {
            not_before_ms,
            ..Default::default()
        };
        parts.encode(&mut encoded).expect("within limits");
    }
    let mut fresh = server.hello();
    fresh.send(
        8,
        &Publish {
            queue_id: queue,
            count: 4,
            records: encoded,
            ..Default::default()
        },
    );
    fresh.confirmed();
    let mut states = Vec::new();
    await_that("what is due to be delivered", || {
        fresh.send(
            9,
            &Peek {
                queue_id: queue,
                max_records: 100,
                ..Default::default()
            },
        );
        let (_, body) = fresh.expect(Kind::PeekReply);
        let reply = codec::decode::<PeekReply>(&body).expect("a reply");
        states = reply.peeked.iter().map(|one| one.state).collect();
        states.len() == 8
    });
    let delayed = |state: &&u8| **state == RecordState::Delayed as u8;
    assert_eq!(states.iter().filter(delayed).count(), 7, "{states:?}");
    server.assert_well();
}
