//! One function per decoder: any bytes in, and what must hold whatever they are.
//!
//! Owns: the claims about decoders under arbitrary input. The fuzz targets and
//! the property tests of the wire crate call the same functions.
//!
//! Invariants, checked by assertions:
//! 1. No input makes a decoder panic.
//! 2. What is accepted is within the limits.
//! 3. What is accepted can be written again and then reads the same.

// The simulator's crate includes that file by itself.
#[cfg(not(test))]
#[path = "store_entries.rs"]
pub mod store;

use rkyv::rancor::Error as RkyvError;
use tidegate_wire::{
    codec::{decode, encode},
    frame::{FrameHeader, Kind, HEADER_BYTES},
    limits::{
        MAX_FRAME_BYTES, MAX_HEADERS_BYTES, MAX_HELLO_BYTES, MAX_KEY_BYTES, MAX_NAME_BYTES,
        MAX_RECORD_BYTES,
    },
    message::*,
    name::check_name,
    node::{
        is_cluster_name, messages_within, NodeFrameHeader, NodeHello, NodeMessage, NodeMessages,
        Refusal, MAX_MEMBERS, MAX_NODE_BODY_BYTES, MAX_NODE_HELLO_BYTES, MAX_REFUSAL_BYTES,
        NODE_HEADER_BYTES,
    },
    record::{check_batch, Record, RecordParts, Records},
};

/// The frame header, under the limit before and after hello.
pub fn header(data: &[u8]) {
    let Some((bytes, _)) = data.split_first_chunk::<HEADER_BYTES>() else {
        return;
    };
    for limit in [0, MAX_HELLO_BYTES, MAX_FRAME_BYTES, u32::MAX] {
        if let Ok(read) = FrameHeader::decode(bytes, limit) {
            assert!(read.length <= limit.min(MAX_FRAME_BYTES));
            assert_eq!(&read.encode(), bytes);
        }
    }
}

macro_rules! read_as {
    ($kind:expr, $body:expr, $($name:ident)*) => {
        match $kind {
            $(Kind::$name => {
                let Ok(read) = decode::<$name>($body) else { return };
                let owned: $name = rkyv::deserialize::<_, RkyvError>(read)
                    .expect("a validated body is readable");
                let mut frame = Vec::new();
                encode(&mut frame, 1, &owned).expect("no longer than what was read");
                let again = decode::<$name>(&frame[HEADER_BYTES..])
                    .expect("what was encoded decodes");
                let again: $name = rkyv::deserialize::<_, RkyvError>(again)
                    .expect("a validated body is readable");
                assert_eq!(again, owned);
            })*
        }
    };
}

/// A body; the first byte picks its kind.
pub fn bodies(data: &[u8]) {
    let Some((first, body)) = data.split_first() else {
        return;
    };
    let kind = Kind::ALL[usize::from(*first) % Kind::ALL.len()];
    read_as!(kind, body,
        Hello HelloReply Declare Declared Publish Confirm Subscribe Subscribed Credit Deliver
        Settle SettleConfirm QueueInfo QueueInfoReply List ListReply Frontiers FrontiersReply
        Barrier BarrierReply Peek PeekReply Purge Purged Delete Deleted Ping Pong GoingAway
        Error Locate LocateReply Redirect Unsubscribe Unsubscribed Extend Extended
        ClusterStatus ClusterStatusReply ClusterOrder ClusterOrdered ChangeQueue
        QueueChanged);
}

/// A batch of records; the first two bytes state how many there are.
pub fn records(data: &[u8]) {
    let Some((count, batch)) = data.split_first_chunk::<2>() else {
        return;
    };
    let count = u32::from(u16::from_le_bytes(*count));
    let mut walked = Vec::new();
    let mut good = 0;
    let mut failed = false;
    for (index, record) in Records::new(batch).enumerate() {
        assert!(!failed, "a walk ends at the first bad record");
        match record {
            Ok(record) => {
                within_limits(&record);
                walked.extend_from_slice(record.bytes);
                if record.verify(index as u32).is_ok() {
                    assert_eq!(encoded_again(&record), record.bytes);
                    good += 1;
                } else {
                    failed = true;
                    break;
                }
            }
            Err(_) => failed = true,
        }
    }
    assert_eq!(walked, batch[..walked.len()]);
    let accepted = check_batch(batch, count).is_ok();
    assert_eq!(accepted, !failed && good == count);
    if accepted {
        assert_eq!(walked.len(), batch.len(), "every byte belongs to a record");
    }
}

fn within_limits(record: &Record<'_>) {
    assert!(record.payload.len() <= MAX_RECORD_BYTES as usize);
    assert!(record.headers.len() <= MAX_HEADERS_BYTES as usize);
    assert!(record.key.len() <= usize::from(MAX_KEY_BYTES));
}

fn encoded_again(record: &Record<'_>) -> Vec<u8> {
    let parts = RecordParts {
        key: record.key,
        headers: record.headers,
        payload: record.payload,
        not_before_ms: record.not_before_ms,
    };
    let mut out = Vec::new();
    parts.encode(&mut out).expect("within the limits");
    out
}

/// A queue name, where the bytes are text at all.
pub fn name(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(name) = check_name(text) {
        assert_eq!(name, text);
        assert!((1..=MAX_NAME_BYTES).contains(&name.len()));
        assert!(!name.chars().any(char::is_control));
    }
}

/// The header of a frame between nodes, under the limit before and after the link is up.
pub fn node_header(data: &[u8]) {
    let Some((bytes, _)) = data.split_first_chunk::<NODE_HEADER_BYTES>() else {
        return;
    };
    for limit in [0, MAX_NODE_HELLO_BYTES, MAX_NODE_BODY_BYTES] {
        if let Ok(read) = NodeFrameHeader::decode(bytes, limit) {
            assert!(read.length <= limit);
            assert_eq!(&read.encode(), bytes);
        }
    }
}

/// What a stranger's first frame may carry: a node's hello, or a refusal.
pub fn node_hello(data: &[u8]) {
    let refusal = Refusal::decode(data);
    assert!(refusal.reason.len() <= data.len().max(MAX_REFUSAL_BYTES) * 3);
    let again = Refusal::decode(&refusal.encode());
    assert_eq!(again.code, refusal.code);
    let Ok(hello) = NodeHello::decode(data) else {
        return;
    };
    assert!(is_cluster_name(&hello.cluster));
    assert!(hello.members.len() <= MAX_MEMBERS);
    // Behind it are extensions that have no meaning yet.
    let said = hello.encode();
    let fields = said.split_last().map_or(&[][..], |(_, fields)| fields);
    assert!(
        data.starts_with(fields),
        "what is read is all that was said"
    );
}

/// A body between nodes.
pub fn node_body(data: &[u8]) {
    let mut again = Vec::new();
    let mut whole = true;
    for message in NodeMessages::new(data) {
        assert!(whole, "a walk ends at the first bad message");
        match message {
            Ok(message) => {
                if let NodeMessage::Raft(raft) = &message {
                    let entries = raft.entries.iter().count();
                    assert_eq!(entries as u64, u64::from(raft.head.entries));
                }
                message.encode(&mut again);
            }
            Err(_) => whole = false,
        }
    }
    assert_eq!(again, data[..again.len()], "what is read is what was said");
    assert!(!whole || again.len() == data.len());
    for limit in [0, 64, data.len()] {
        if let Some(within) = messages_within(data, limit) {
            assert!(within <= data.len());
        }
    }
}
