//! The fuzz entries under plain `cargo test`, with a fixed budget, and round
//! trips of arbitrary bodies. `PROPTEST_CASES` raises the budget.

mod common;
#[path = "../../fuzz/src/entries.rs"]
mod entries;

use common::{
    decode_owned,
    draw::{Draw, Source},
    examples, split_frame,
};
use proptest::{collection::vec, prelude::*, sample::Index};
use tidegate_wire::{
    codec::{encode, encode_deliver, encode_publish},
    frame::{Kind, HEADER_BYTES},
    message::*,
    node::{
        encode_raft, DurableReport, Entry, Forward, NodeFrameHeader, NodeFrameKind, NodeHello,
        NodeMessage, Output, RaftHead, RaftKind, Refusal, RefusalCode, SnapshotAnswer, SnapshotId,
        SnapshotPiece, SnapshotTaken, NODE_CHECKSUM_BYTES,
    },
    record::{check_batch, RecordParts, Records},
};

/// 2 048 cases of each property, about a second in all.
fn budget() -> ProptestConfig {
    let standard = ProptestConfig::default();
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => standard,
        None => ProptestConfig {
            cases: 2_048,
            ..standard
        },
    }
}

/// A few changes to otherwise valid bytes: they reach deeper than noise.
#[derive(Debug, Clone)]
enum Change {
    Set(Index, u8),
    Cut(Index),
    Remove(Index),
    Insert(Index, u8),
    Copy { from: Index, to: Index },
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => (any::<Index>(), any::<u8>()).prop_map(|(at, to)| Change::Set(at, to)),
        1 => any::<Index>().prop_map(Change::Cut),
        1 => any::<Index>().prop_map(Change::Remove),
        1 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Insert(at, byte)),
        1 => (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Change::Copy { from, to }),
    ]
}

fn bend(bytes: &mut Vec<u8>, changes: &[Change]) {
    for change in changes {
        if bytes.is_empty() {
            return;
        }
        let len = bytes.len();
        match change {
            Change::Set(at, to) => bytes[at.index(len)] = *to,
            Change::Cut(at) => bytes.truncate(at.index(len)),
            Change::Remove(at) => drop(bytes.remove(at.index(len))),
            Change::Insert(at, byte) => bytes.insert(at.index(len), *byte),
            Change::Copy { from, to } => {
                let byte = bytes[from.index(len)];
                bytes[to.index(len)] = byte;
            }
        }
    }
}

/// Each kind's example as the `bodies` entry takes it: kind, then body.
fn example_bodies() -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    macro_rules! visit {
        ($name:ident, $example:ident) => {
            let mut frame = Vec::new();
            encode(&mut frame, 1, &examples::$example()).expect("within the limits");
            let place = Kind::ALL.iter().position(|kind| *kind == Kind::$name);
            let mut input = vec![place.expect("a kind of this version") as u8];
            input.extend_from_slice(&frame[HEADER_BYTES..]);
            out.push(input);
        };
    }
    for_each_body!(visit);
    out
}

#[test]
fn every_kind_passes_through_the_bodies_entry() {
    for input in example_bodies() {
        entries::bodies(&input);
    }
}

/// A body between nodes with a message of each kind.
fn node_body() -> Vec<u8> {
    let head = RaftHead {
        group: 3,
        generation: 2,
        kind: RaftKind::Append,
        reject: false,
        from: 1 << 40 | 1,
        to: 2 << 40 | 1,
        term: 7,
        log_term: 6,
        index: 40,
        commit: 39,
        commit_term: 6,
        reject_hint: 0,
        request_snapshot: 0,
        entries: 2,
    };
    let mut out = Vec::new();
    encode_raft(&head, b"context", &mut out, |out| {
        for index in 41..43 {
            let entry = Entry {
                term: 7,
                index,
                sync: index == 41,
                membership: index == 42,
                payload: b"a command",
            };
            entry.encode_head(out);
            out.extend_from_slice(entry.payload);
        }
    });
    let id = SnapshotId {
        group: 3,
        generation: 2,
        from: head.from,
        to: head.to,
        term: 7,
        index: 40,
        index_term: 6,
    };
    let messages = [
        NodeMessage::DurableReport(DurableReport {
            group: 3,
            generation: 2,
            from: head.to,
            to: head.from,
            term: 7,
            index: 39,
        }),
        NodeMessage::Forward(Forward {
            conn: 77,
            kind: 5,
            correlation: 9,
            window_bytes: 1 << 20,
            body: b"a body",
        }),
        NodeMessage::Output(Output {
            conn: 77,
            released: 40,
            close: false,
            bytes: b"frames",
        }),
        NodeMessage::OutputTaken { conn: 77 },
        NodeMessage::ConnClosed { conn: 77 },
        NodeMessage::SnapshotPiece(SnapshotPiece {
            id,
            number: 4,
            bytes: b"a piece",
        }),
        NodeMessage::SnapshotTaken(SnapshotTaken {
            id,
            number: 4,
            answer: SnapshotAnswer::Taken,
        }),
        NodeMessage::Propose {
            command: b"a command",
        },
        NodeMessage::Leaderless {
            group: 3,
            generation: 2,
        },
        NodeMessage::Named {
            generation: 3,
            retired: head.to,
            new: 2 << 40 | 9,
        },
    ];
    for message in messages {
        message.encode(&mut out);
    }
    out
}

fn node_hello() -> Vec<u8> {
    let hello = NodeHello {
        from: 1,
        to: 2,
        shard: 0,
        shards: 1,
        data_groups: 32,
        cookie: 5,
        open_counter: 6,
        nonce: 7,
        challenge: [8; 32],
        token: 11,
        last_token: 10,
        recorded: 5,
        level: 2,
        roster: 3,
        joins: true,
        has_secret: true,
        members: vec![1, 2, 3],
        cluster: "a-cluster".to_owned(),
    };
    hello.encode()
}

#[test]
fn what_nodes_say_passes_through_its_entries() {
    let body = node_body();
    let messages = tidegate_wire::node::NodeMessages::new(&body);
    assert_eq!(
        messages.filter(Result::is_ok).count(),
        11,
        "one of each kind"
    );
    entries::node_body(&body);
    entries::node_hello(&node_hello());
    let refusal = Refusal::new(RefusalCode::Protocol, "no");
    entries::node_hello(&refusal.encode());
    entries::node_header(&node_header());
}

fn node_header() -> Vec<u8> {
    let header = NodeFrameHeader {
        kind: NodeFrameKind::Body,
        length: 900,
        sequence: 3,
        checksum: [7; NODE_CHECKSUM_BYTES],
    };
    header.encode().to_vec()
}

/// For `scripts/fuzz`: where the corpus of what nodes say begins.
#[test]
#[ignore = "writes fuzz/corpus"]
fn write_the_seeds_of_the_fuzz_targets() {
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    let seeds = [
        ("node_header", node_header()),
        ("node_hello", node_hello()),
        ("node_body", node_body()),
    ];
    for (name, seed) in seeds {
        let directory = corpus.join(name);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("seed"), seed).unwrap();
    }
}

/// Key, headers, payload, not-before of one record.
type Parts = (Vec<u8>, Vec<u8>, Vec<u8>, u64);

fn batch() -> impl Strategy<Value = (Vec<u8>, Vec<Parts>)> {
    let part = || vec(any::<u8>(), 0..40);
    vec((part(), part(), part(), any::<u64>()), 0..8).prop_map(|all| {
        let mut bytes = Vec::new();
        for (key, headers, payload, not_before_ms) in &all {
            let parts = RecordParts {
                key,
                headers,
                payload,
                not_before_ms: *not_before_ms,
            };
            parts.encode(&mut bytes).expect("within the limits");
        }
        (bytes, all)
    })
}

proptest! {
    #![proptest_config(budget())]

    #[test]
    fn arbitrary_bytes_never_break_the_header_decoder(data in vec(any::<u8>(), 0..64)) {
        entries::header(&data);
    }

    #[test]
    fn bent_headers_never_break_the_header_decoder(changes in vec(change(), 0..4)) {
        let mut frame = Vec::new();
        encode(&mut frame, 1, &Ping::default()).expect("within the limits");
        bend(&mut frame, &changes);
        entries::header(&frame);
    }

    #[test]
    fn arbitrary_bytes_never_break_a_body_decoder(data in vec(any::<u8>(), 0..400)) {
        for kind in 0..Kind::ALL.len() {
            let mut input = vec![kind as u8];
            input.extend_from_slice(&data);
            entries::bodies(&input);
        }
    }

    #[test]
    fn bent_bodies_never_break_a_body_decoder(changes in vec(change(), 1..6)) {
        for mut input in example_bodies() {
            bend(&mut input, &changes);
            entries::bodies(&input);
        }
    }

    #[test]
    fn arbitrary_bytes_never_break_the_record_decoder(data in vec(any::<u8>(), 0..400)) {
        entries::records(&data);
    }

    #[test]
    fn bent_batches_never_break_the_record_decoder(
        (bytes, parts) in batch(),
        changes in vec(change(), 0..4),
    ) {
        let mut input = (parts.len() as u16).to_le_bytes().to_vec();
        input.extend_from_slice(&bytes);
        bend(&mut input, &changes);
        entries::records(&input);
    }

    #[test]
    fn arbitrary_names_are_accepted_or_refused(data in vec(any::<u8>(), 0..300), text in ".*") {
        entries::name(&data);
        entries::name(text.as_bytes());
    }

    #[test]
    fn arbitrary_bytes_never_break_what_nodes_decode(data in vec(any::<u8>(), 0..400)) {
        entries::node_header(&data);
        entries::node_hello(&data);
        entries::node_body(&data);
    }

    #[test]
    fn bent_words_between_nodes_never_break_what_nodes_decode(changes in vec(change(), 1..6)) {
        let (mut header, mut hello, mut body) = (node_header(), node_hello(), node_body());
        bend(&mut header, &changes);
        bend(&mut hello, &changes);
        bend(&mut body, &changes);
        entries::node_header(&header);
        entries::node_hello(&hello);
        entries::node_body(&body);
    }

    #[test]
    fn batches_read_back_as_they_were_written((bytes, parts) in batch()) {
        prop_assert_eq!(check_batch(&bytes, parts.len() as u32), Ok(()));
        let read: Vec<Parts> = Records::new(&bytes)
            .map(|record| {
                let record = record.expect("a valid record");
                (
                    record.key.to_vec(),
                    record.headers.to_vec(),
                    record.payload.to_vec(),
                    record.not_before_ms,
                )
            })
            .collect();
        prop_assert_eq!(read, parts);
    }

    #[test]
    fn arbitrary_bodies_read_back_as_they_were_written(random in vec(any::<u8>(), 0..600)) {
        macro_rules! visit {
            ($name:ident, $example:ident) => {
                let body = $name::draw(&mut Source(&random));
                let mut frame = Vec::new();
                encode(&mut frame, 9, &body).expect("within the limits");
                let (header, bytes) = split_frame(&frame);
                prop_assert_eq!(header.kind, Kind::$name as u8);
                prop_assert_eq!(decode_owned::<$name>(bytes).expect("a valid body"), body);
            };
        }
        for_each_body!(visit);
    }

    #[test]
    fn borrowed_records_make_the_bytes_of_owned_ones(
        random in vec(any::<u8>(), 0..600),
        records in vec(any::<u8>(), 0..300),
    ) {
        let owned = Publish { records: records.clone(), ..Draw::draw(&mut Source(&random)) };
        let (mut expected, mut frame) = (Vec::new(), Vec::new());
        encode(&mut expected, 3, &owned).expect("within the limits");
        let body = Publish { records: vec![], ..owned };
        encode_publish(&mut frame, 3, &body, &records).expect("within the limits");
        prop_assert_eq!(frame, expected);

        let owned = Deliver { records: records.clone(), ..Draw::draw(&mut Source(&random)) };
        let (mut expected, mut frame) = (Vec::new(), Vec::new());
        encode(&mut expected, 0, &owned).expect("within the limits");
        let body = Deliver { records: vec![], ..owned };
        encode_deliver(&mut frame, &body, |out| out.extend_from_slice(&records))
            .expect("within the limits");
        prop_assert_eq!(frame, expected);
    }
}
