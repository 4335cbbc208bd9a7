//! Sizes at and above their limits, windows, deadlines, counts.

use wire::{
    codec,
    error::{ErrorCode, Outcome},
    frame::Kind,
    limits::{MAX_HEADERS_BYTES, MAX_KEY_BYTES, MAX_RECORD_BYTES},
    message::{Barrier, Deliver, Error, Publish, Subscribe},
    record::{Record, RecordParts},
    vocabulary::Mode,
};

use crate::rawwire::{publish, Peer, Server};

fn encoded(parts: &RecordParts<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    parts.encode(&mut out).expect("within limits");
    out
}

/// A record that states this length of a part at `at` of its header.
fn overlong(at: usize, parts: &RecordParts<'_>, more: &[u8]) -> Vec<u8> {
    let mut out = encoded(parts);
    let stated = u32::from_le_bytes(out[at..at + 4].try_into().unwrap());
    out[at..at + 4].copy_from_slice(&(stated + more.len() as u32).to_le_bytes());
    out.extend_from_slice(more);
    let crc = crc32c(&out[4..]);
    out[..4].copy_from_slice(&crc.to_le_bytes());
    out
}

/// CRC-32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc: u32, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 }
        })
    })
}

fn one(queue_id: u64, records: Vec<u8>) -> Publish {
    Publish {
        queue_id,
        count: 1,
        records,
        ..Default::default()
    }
}

/// Subscribes and receives this many records, encoded.
fn receive(peer: &mut Peer, queue_id: u64, count: usize) -> Vec<Vec<u8>> {
    peer.subscribe(queue_id, 1, count as u32);
    let mut received = Vec::new();
    while received.len() < count {
        let (_, body) = peer.expect(Kind::Deliver);
        let deliver = codec::decode::<Deliver>(&body).expect("a delivery");
        let mut rest = &deliver.records[..];
        for delivery in deliver.deliveries.iter() {
            let (record, others) = rest.split_at(delivery.len.to_native() as usize);
            received.push(record.to_vec());
            rest = others;
        }
    }
    received
}

/// F72: an empty payload is a record like any other; so is one that is all
/// headers, and one that is all key.
#[test]
fn f72_empty_and_largest_parts_round_trip() {
    let mut server = Server::start();
    let mut peer = server.hello();
    let queue = peer.declare_as("parts", Mode::Durable, 1, 30_000);
    let key = vec![b'k'; usize::from(MAX_KEY_BYTES)];
    let headers = vec![0xff; MAX_HEADERS_BYTES as usize];
    let sent = [
        encoded(&RecordParts::default()),
        encoded(&RecordParts {
            headers: &headers,
            ..Default::default()
        }),
        encoded(&RecordParts {
            key: &key,
            ..Default::default()
        }),
        encoded(&RecordParts {
            key: &key,
            headers: &headers,
            payload: b"p",
            ..Default::default()
        }),
        encoded(&RecordParts::default()),
    ];
    let records = sent.concat();
    peer.send(
        3,
        &Publish {
            queue_id: queue,
            count: 5,
            records,
            ..Default::default()
        },
    );
    assert_eq!(peer.confirmed().count, 5);
    assert_eq!(receive(&mut peer, queue, 5), sent);
    server.assert_well();
}

/// F74: 8 MiB go through segments of 4 MiB; one byte more is refused, and so
/// is every other part that is too long.
#[test]
fn f74_the_largest_record_round_trips_and_one_byte_more_is_refused() {
    let mut server = Server::start();
    let mut watcher = server.hello();
    for shard in [0, 1] {
        let mut peer = server.hello_to(shard);
        let queue = peer.declare_as(&format!("huge {shard}"), Mode::Durable, 1, 30_000);
        let payload: Vec<u8> = (0..MAX_RECORD_BYTES).map(|at| (at / 7) as u8).collect();
        let largest = RecordParts {
            payload: &payload,
            ..Default::default()
        };
        peer.send(3, &one(queue, encoded(&largest)));
        peer.confirmed();
        watcher.ping();
        let fitting = RecordParts::default();
        let key = vec![b'k'; usize::from(MAX_KEY_BYTES)];
        let headers = vec![0; MAX_HEADERS_BYTES as usize];
        let keyed = RecordParts {
            key: &key,
            ..fitting
        };
        let headed = RecordParts {
            headers: &headers,
            ..fitting
        };
        for records in [
            overlong(4, &largest, b"+"),
            overlong(8, &headed, b"+"),
            overlong(12, &keyed, b"+"),
        ] {
            peer.send(4, &one(queue, records));
            let text = peer.refused(ErrorCode::Invalid);
            assert!(text.contains("above"), "{text}");
        }
        let received = receive(&mut peer, queue, 1);
        let record = Record::parse(&received[0], 0).expect("a record");
        assert!(record.payload == payload);
    }
    server.assert_well();
}

#[test]
fn the_window_may_be_filled_by_one_publish_and_not_exceeded() {
    let mut server = Server::start_with(1, "", &["window_size = \"64KiB\""]);
    let mut watcher = server.hello();
    let queue = watcher.declare_as("windowed", Mode::Durable, 1, 30_000);
    let mut peer = server.hello();
    // Alone, a publish may be larger than the window.
    let large = vec![1; 1 << 20];
    peer.publish(queue, &[&large]);
    peer.publish(queue, &[&large]);
    // Many at once, none confirmed before the last is read.
    let mut bytes = Vec::new();
    for number in 0..20 {
        bytes.extend(crate::rawwire::frame(
            10 + number,
            &publish(queue, &[&large[..8000]]),
        ));
    }
    peer.raw(&bytes);
    let frames = peer.drain();
    let last = frames.last().expect("an error");
    assert_eq!(crate::rawwire::code(last), Some(ErrorCode::WindowExceeded));
    watcher.publish(queue, &[b"others go on"]);
    server.assert_well();
}

/// Both ends of the deadline: what cannot be met is unknown, never failed.
#[test]
fn a_deadline_of_a_millisecond_ends_confirmed_or_unknown() {
    let mut server = Server::start();
    let mut peer = server.hello();
    let queue = peer.declare_as("late", Mode::Durable, 1, 30_000);
    let payload = vec![3; 100_000];
    for deadline_ms in [1, u32::MAX].repeat(50) {
        peer.send(
            3,
            &Publish {
                deadline_ms,
                ..publish(queue, &[&payload])
            },
        );
        let (header, body) = peer.frame().expect("open");
        if header.kind == Kind::Error as u8 {
            let error = codec::decode::<Error>(&body).expect("an error");
            assert_eq!(error.code, ErrorCode::Deadline as u16);
            assert_eq!(error.outcome, Outcome::Unknown as u8);
            assert_eq!(deadline_ms, 1);
        } else {
            assert_eq!(header.kind, Kind::Confirm as u8);
        }
        peer.send(
            4,
            &Barrier {
                queue_id: queue,
                deadline_ms,
                ..Default::default()
            },
        );
        let (header, _) = peer.frame().expect("open");
        assert!([Kind::Error as u8, Kind::BarrierReply as u8].contains(&header.kind));
    }
    server.assert_well();
}

#[test]
fn a_connection_has_16384_subscriptions_and_not_one_more() {
    let mut server = Server::start();
    let mut peer = server.hello_to(0);
    let queue_id = peer.declare_as("crowded", Mode::Buffered, 2, 30_000);
    let subscribe = |subscription: u32| Subscribe {
        queue_id,
        partition: (subscription % 2) as u16,
        subscription,
        credit_records: 1,
        credit_bytes: 100,
        ..Default::default()
    };
    let mut bytes = Vec::new();
    for number in 0..16_384 {
        bytes.extend(crate::rawwire::frame(
            u64::from(number) + 1,
            &subscribe(number),
        ));
    }
    let mut writing = Peer::new(peer.stream.try_clone().expect("cloned"));
    let writer = std::thread::spawn(move || writing.raw(&bytes));
    for _ in 0..16_384 {
        peer.expect(Kind::Subscribed);
    }
    writer.join().expect("written");
    peer.send(5, &subscribe(16_384));
    peer.refused(ErrorCode::LimitReached);
    drop(peer);
    let mut next = server.hello();
    next.send(5, &subscribe(1));
    next.expect(Kind::Subscribed);
    server.assert_well();
}
