//! Bodies that do not validate, and bodies that do and say something odd.

use wire::{
    codec,
    error::ErrorCode,
    frame::{Kind, HEADER_BYTES},
    limits::MAX_FRAME_BYTES,
    message::{
        Barrier, Confirm, Credit, Declare, Delete, Extension, Frontiers, List, Locate, Peek, Ping,
        Purge, QueueInfo, Settle, SettleItem, Subscribe, Unsubscribe, SETTLE_CONFIRM,
    },
};

use crate::rawwire::{frame, publish, Encode, Frame, Peer, Server};

/// A valid frame of each request, the queue being there.
fn valid(queue_id: u64) -> Vec<Vec<u8>> {
    fn whole<T: Encode>(body: T) -> Vec<u8> {
        frame(0, &body)
    }
    let items = vec![SettleItem {
        offset: 3,
        attempt: 1,
    }];
    vec![
        whole(Declare {
            name: "a name of some length".into(),
            mode: 2,
            ..Default::default()
        }),
        whole(publish(queue_id, &[b"one", b"two"])),
        whole(Subscribe {
            queue_id,
            subscription: 7,
            credit_records: 3,
            credit_bytes: 99,
            ..Default::default()
        }),
        whole(Credit {
            subscription: 7,
            records: 1,
            bytes: 1,
            ..Default::default()
        }),
        whole(Settle {
            queue_id,
            generation: 1,
            kind: 1,
            flags: SETTLE_CONFIRM,
            items,
            ..Default::default()
        }),
        whole(QueueInfo {
            queue_id,
            ..Default::default()
        }),
        whole(List {
            after: "after this name".into(),
            limit: 9,
            ..Default::default()
        }),
        whole(Frontiers {
            queue_id,
            ..Default::default()
        }),
        whole(Barrier {
            queue_id,
            deadline_ms: 20_000,
            ..Default::default()
        }),
        whole(Peek {
            queue_id,
            max_records: 3,
            ..Default::default()
        }),
        whole(Purge {
            queue_id,
            ..Default::default()
        }),
        whole(Delete {
            queue_id: queue_id + 1000,
            ..Default::default()
        }),
        whole(Locate {
            name: "a name of some length".into(),
            ..Default::default()
        }),
        whole(Unsubscribe {
            subscription: 7,
            ..Default::default()
        }),
        whole(Ping {
            extensions: vec![Extension {
                kind: 5,
                bytes: vec![1, 2, 3],
            }],
        }),
    ]
}

/// True for the answer to the request with this correlation.
fn answers(frame: &Frame, correlation: u64) -> bool {
    let (header, body) = frame;
    if header.kind == Kind::Confirm as u8 {
        let confirm = codec::decode::<Confirm>(body).expect("a confirm");
        return confirm
            .items
            .iter()
            .any(|item| item.correlation == correlation);
    }
    header.correlation == correlation
}

/// Sends the frame and waits for its answer; for kinds without one, for the
/// answer to a ping behind it.
fn provoke(peer: &mut Peer, mut bytes: Vec<u8>, correlation: u64) {
    bytes[16..24].copy_from_slice(&correlation.to_le_bytes());
    let silent = [Kind::Credit, Kind::Settle].map(|kind| kind as u8);
    let expected = if silent.contains(&bytes[5]) {
        bytes.extend(frame(1 << 40, &Ping::default()));
        1 << 40
    } else {
        correlation
    };
    peer.raw(&bytes);
    let kind = bytes[5];
    loop {
        let frame = peer.frame();
        let frame = frame.unwrap_or_else(|| panic!("closed by a body of kind {kind}"));
        if answers(&frame, expected) {
            return;
        }
    }
}

/// Flipped bits in every byte of every body: answered or done, never a panic,
/// a hang, or the end of this or another connection. On the owner's shard and
/// from the other one.
#[test]
fn every_byte_of_every_body_may_be_flipped() {
    let mut server = Server::start();
    let mut watcher = server.hello();
    let queue = watcher.declare("flipped");
    let mut correlation = 1;
    // Small form: one byte of three, another third on the other shard.
    let full = std::env::var("TIDEGATE_TEST_SIZE").is_ok_and(|size| size == "full");
    let step = if full { 1 } else { 3 };
    for shard in [0, 1] {
        let mut peer = server.hello_to(shard);
        for bytes in valid(queue) {
            let from = HEADER_BYTES + usize::from(shard) % step;
            for at in (from..bytes.len()).step_by(step) {
                // Low and high bits in turn: half of the time of both.
                for mask in [0x80_u8 >> (7 * (at % 2)), 0xff] {
                    let mut mutated = bytes.clone();
                    mutated[at] ^= mask;
                    correlation += 1;
                    provoke(&mut peer, mutated, correlation);
                }
            }
            watcher.ping();
        }
    }
    watcher.publish(queue, &[b"still served"]);
    server.assert_well();
}

#[test]
fn a_critical_extension_is_refused_and_another_passed_over() {
    let mut server = Server::start();
    let mut peer = server.hello();
    let with = |kind| Ping {
        extensions: vec![Extension {
            kind,
            bytes: vec![0; 9],
        }],
    };
    peer.send(5, &with(0x7fff));
    peer.expect(Kind::Pong);
    let queue_id = peer.declare("critical");
    let extensions = with(0x8000).extensions;
    peer.send(
        6,
        &Frontiers {
            queue_id,
            extensions,
            ..Default::default()
        },
    );
    peer.refused(ErrorCode::Invalid);
    server.assert_well();
}

/// What a peer sent comes back in error texts; it must not make them too long
/// to be sent at all.
#[test]
fn names_as_long_as_a_frame_are_answered() {
    let mut server = Server::start();
    let mut peer = server.hello();
    let most = MAX_FRAME_BYTES as usize - 64;
    for name in [
        "x".repeat(most),
        "\u{1}".repeat(most),
        "\u{85}".repeat(most / 2),
    ] {
        peer.send(
            5,
            &Locate {
                name: name.clone(),
                ..Default::default()
            },
        );
        peer.refused(ErrorCode::Invalid);
        peer.send(
            6,
            &Declare {
                name: name.clone(),
                ..Default::default()
            },
        );
        peer.refused(ErrorCode::Invalid);
        peer.send(
            7,
            &List {
                after: name,
                ..Default::default()
            },
        );
        peer.expect(Kind::ListReply);
    }
    server.assert_well();
}
