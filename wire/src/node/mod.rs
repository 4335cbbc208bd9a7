//! What nodes say to each other on a link, inside a frame's body.
//!
//! A body is messages back to back, all of one turn of the sender. Each is a
//! head of [`HEAD_BYTES`] and a payload, little-endian:
//!
//! | at | size | field |
//! |----|------|-------|
//! | 0 | 1 | kind |
//! | 1 | 3 | zero |
//! | 4 | 4 | payload bytes |
//!
//! The payloads are fixed fields in the order of the structs here, then bytes.
//!
//! Owns nothing. Never allocates for what a length claims: everything is read in
//! place. A link is between the same shard of two nodes, and in order; a message
//! that does not decode ends it.

mod client;
mod frame;
mod hello;
mod raft;
mod reader;
mod roster;
mod snapshot;

pub use client::{Forward, Output};
pub use frame::{
    messages_within, NodeFrameError, NodeFrameHeader, NodeFrameKind, Refusal, RefusalCode,
    MAX_NODE_BODY_BYTES, MAX_NODE_HELLO_BYTES, MAX_REFUSAL_BYTES, NODE_CHECKED_BYTES,
    NODE_CHECKSUM_BYTES, NODE_HEADER_BYTES, NODE_MAGIC,
};
pub use hello::{is_cluster_name, NodeHello, CHALLENGE_BYTES, MAX_CLUSTER_NAME_BYTES, MAX_MEMBERS};
pub use raft::{DurableReport, Entries, Entry, RaftHead, RaftKind, RaftMessage};
pub use reader::NodeMessageError;
pub use roster::{put_text, Member, Roster, Shift, MAX_ROSTER_TEXT_BYTES};
pub use snapshot::{SnapshotAnswer, SnapshotId, SnapshotPiece, SnapshotTaken};

use reader::Reader;

/// Version of everything on a link between nodes.
pub const NODE_PROTOCOL_VERSION: u16 = 6;
/// Bytes in front of each message's payload.
pub const HEAD_BYTES: usize = 8;

/// Which message it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Raft = 1,
    DurableReport = 2,
    Forward = 3,
    Output = 4,
    OutputTaken = 5,
    ConnClosed = 6,
    SnapshotPiece = 7,
    SnapshotTaken = 8,
    Propose = 9,
    Leaderless = 10,
    Named = 11,
    LeadsNothing = 12,
    Roster = 13,
    Leads = 14,
    Ready = 15,
}

impl Kind {
    fn from_raw(raw: u8) -> Option<Self> {
        Some(match raw {
            1 => Kind::Raft,
            2 => Kind::DurableReport,
            3 => Kind::Forward,
            4 => Kind::Output,
            5 => Kind::OutputTaken,
            6 => Kind::ConnClosed,
            7 => Kind::SnapshotPiece,
            8 => Kind::SnapshotTaken,
            9 => Kind::Propose,
            10 => Kind::Leaderless,
            11 => Kind::Named,
            12 => Kind::LeadsNothing,
            13 => Kind::Roster,
            14 => Kind::Leads,
            15 => Kind::Ready,
            _ => return None,
        })
    }
}

/// One message, its bytes borrowed from the frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeMessage<'a> {
    /// Of a group's Raft.
    Raft(RaftMessage<'a>),
    /// How far a follower is durable.
    DurableReport(DurableReport),
    /// A client's frame, to the node that leads what it names.
    Forward(Forward<'a>),
    /// Frames for a client, to the node that has its socket.
    Output(Output<'a>),
    /// The output before was taken: the next may come. The connection as the
    /// node that has its socket names it.
    OutputTaken { conn: u64 },
    /// The client's connection is gone.
    ConnClosed { conn: u64 },
    /// A piece of a group's state.
    SnapshotPiece(SnapshotPiece<'a>),
    /// What became of it.
    SnapshotTaken(SnapshotTaken),
    /// A command that group 0's leader is to propose, as group 0's log has it: about a
    /// replica of the sender's, or of a group that it leads.
    Propose { command: &'a [u8] },
    /// The sender's replica has known no leader of the group for longer than the grace.
    Leaderless { group: u32, generation: u32 },
    /// Group 0 gave the receiver's replica of it another peer id, which that replica
    /// cannot read in group 0's log itself.
    Named {
        retired: u64,
        new: u64,
        /// Of group 0.
        generation: u32,
    },
    /// The sender is to lead nothing: it is drained, or stops. Or that is over.
    LeadsNothing { on: bool },
    /// Who belongs to the cluster, as the sender knows: a [`Roster`]'s bytes.
    Roster { bytes: &'a [u8] },
    /// The sender leads the group, and serves: for whoever has no replica of it.
    Leads {
        group: u32,
        generation: u32,
        term: u64,
    },
    /// The partition exists in its group's log, as the group's leader says to whoever has
    /// no replica of it.
    Ready { queue_id: u64, partition: u16 },
}

impl<'a> NodeMessage<'a> {
    /// Appends the message to a body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let begun = begin(out, self.kind());
        match self {
            NodeMessage::Raft(message) => message.encode(out),
            NodeMessage::DurableReport(report) => report.encode(out),
            NodeMessage::Forward(forward) => forward.encode(out),
            NodeMessage::Output(output) => output.encode(out),
            NodeMessage::SnapshotPiece(piece) => piece.encode(out),
            NodeMessage::SnapshotTaken(taken) => taken.encode(out),
            NodeMessage::Propose { command } => out.extend_from_slice(command),
            NodeMessage::Named {
                retired,
                new,
                generation,
            } => {
                out.extend_from_slice(&retired.to_le_bytes());
                out.extend_from_slice(&new.to_le_bytes());
                out.extend_from_slice(&generation.to_le_bytes());
            }
            NodeMessage::LeadsNothing { on } => out.push(u8::from(*on)),
            NodeMessage::Roster { bytes } => out.extend_from_slice(bytes),
            NodeMessage::Leads {
                group,
                generation,
                term,
            } => {
                out.extend_from_slice(&group.to_le_bytes());
                out.extend_from_slice(&generation.to_le_bytes());
                out.extend_from_slice(&term.to_le_bytes());
            }
            NodeMessage::Ready {
                queue_id,
                partition,
            } => {
                out.extend_from_slice(&queue_id.to_le_bytes());
                out.extend_from_slice(&partition.to_le_bytes());
            }
            NodeMessage::Leaderless { group, generation } => {
                out.extend_from_slice(&group.to_le_bytes());
                out.extend_from_slice(&generation.to_le_bytes());
            }
            NodeMessage::OutputTaken { conn } | NodeMessage::ConnClosed { conn } => {
                out.extend_from_slice(&conn.to_le_bytes());
            }
        }
        finish(out, begun);
    }

    fn kind(&self) -> Kind {
        match self {
            NodeMessage::Raft(_) => Kind::Raft,
            NodeMessage::DurableReport(_) => Kind::DurableReport,
            NodeMessage::Forward(_) => Kind::Forward,
            NodeMessage::Output(_) => Kind::Output,
            NodeMessage::OutputTaken { .. } => Kind::OutputTaken,
            NodeMessage::ConnClosed { .. } => Kind::ConnClosed,
            NodeMessage::SnapshotPiece(_) => Kind::SnapshotPiece,
            NodeMessage::SnapshotTaken(_) => Kind::SnapshotTaken,
            NodeMessage::Propose { .. } => Kind::Propose,
            NodeMessage::Leaderless { .. } => Kind::Leaderless,
            NodeMessage::Named { .. } => Kind::Named,
            NodeMessage::LeadsNothing { .. } => Kind::LeadsNothing,
            NodeMessage::Roster { .. } => Kind::Roster,
            NodeMessage::Leads { .. } => Kind::Leads,
            NodeMessage::Ready { .. } => Kind::Ready,
        }
    }

    fn decode(kind: Kind, payload: &'a [u8]) -> Result<Self, NodeMessageError> {
        let mut reader = Reader::new(payload);
        let message = match kind {
            Kind::Raft => NodeMessage::Raft(RaftMessage::decode(&mut reader)?),
            Kind::DurableReport => NodeMessage::DurableReport(DurableReport::decode(&mut reader)?),
            Kind::Forward => NodeMessage::Forward(Forward::decode(&mut reader)?),
            Kind::Output => NodeMessage::Output(Output::decode(&mut reader)?),
            Kind::SnapshotPiece => NodeMessage::SnapshotPiece(SnapshotPiece::decode(&mut reader)?),
            Kind::SnapshotTaken => NodeMessage::SnapshotTaken(SnapshotTaken::decode(&mut reader)?),
            Kind::Propose => NodeMessage::Propose { command: payload },
            Kind::Roster => NodeMessage::Roster { bytes: payload },
            Kind::Leads => NodeMessage::Leads {
                group: reader.u32()?,
                generation: reader.u32()?,
                term: reader.u64()?,
            },
            Kind::Ready => NodeMessage::Ready {
                queue_id: reader.u64()?,
                partition: reader.u16()?,
            },
            Kind::Named => NodeMessage::Named {
                retired: reader.u64()?,
                new: reader.u64()?,
                generation: reader.u32()?,
            },
            Kind::LeadsNothing => NodeMessage::LeadsNothing {
                on: match reader.u8()? {
                    0 => false,
                    1 => true,
                    _ => return Err(NodeMessageError::Field("leads nothing")),
                },
            },
            Kind::Leaderless => NodeMessage::Leaderless {
                group: reader.u32()?,
                generation: reader.u32()?,
            },
            Kind::OutputTaken => NodeMessage::OutputTaken {
                conn: reader.u64()?,
            },
            Kind::ConnClosed => NodeMessage::ConnClosed {
                conn: reader.u64()?,
            },
        };
        if !matches!(kind, Kind::Propose | Kind::Roster) {
            reader.end()?;
        }
        Ok(message)
    }
}

/// Appends a Raft message whose entries the caller writes itself, so that no
/// payload is gathered first: `entries` appends as many as the head counts, each
/// with [`Entry::encode_head`] and its payload.
pub fn encode_raft(
    head: &RaftHead,
    context: &[u8],
    out: &mut Vec<u8>,
    entries: impl FnOnce(&mut Vec<u8>),
) {
    let begun = begin(out, Kind::Raft);
    head.encode(context, out);
    entries(out);
    finish(out, begun);
}

fn begin(out: &mut Vec<u8>, kind: Kind) -> usize {
    let begun = out.len();
    out.extend_from_slice(&[kind as u8, 0, 0, 0, 0, 0, 0, 0]);
    begun
}

fn finish(out: &mut [u8], begun: usize) {
    let len = (out.len() - begun - HEAD_BYTES) as u32;
    if let Some(field) = out.get_mut(begun + 4..begun + HEAD_BYTES) {
        field.copy_from_slice(&len.to_le_bytes());
    }
}

/// The messages of a body, in order. Ends after the first that does not decode.
pub struct NodeMessages<'a> {
    rest: &'a [u8],
}

impl<'a> NodeMessages<'a> {
    pub fn new(body: &'a [u8]) -> Self {
        NodeMessages { rest: body }
    }

    fn take(&mut self) -> Result<NodeMessage<'a>, NodeMessageError> {
        let mut reader = Reader::new(self.rest);
        let (kind, zero) = (reader.u8()?, [reader.u8()?, reader.u8()?, reader.u8()?]);
        let len = reader.u32()? as usize;
        let payload = reader.bytes(len)?;
        let kind = Kind::from_raw(kind).ok_or(NodeMessageError::Kind(kind))?;
        if zero != [0; 3] {
            return Err(NodeMessageError::Field("zero"));
        }
        let message = NodeMessage::decode(kind, payload)?;
        self.rest = reader.rest();
        Ok(message)
    }
}

impl<'a> Iterator for NodeMessages<'a> {
    type Item = Result<NodeMessage<'a>, NodeMessageError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let taken = self.take();
        if taken.is_err() {
            self.rest = &[];
        }
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(entries: u32) -> RaftHead {
        RaftHead {
            group: 3,
            generation: 2,
            kind: RaftKind::Append,
            reject: true,
            from: 1 << 40 | 1,
            to: 2 << 40 | 1,
            term: 9,
            log_term: 8,
            index: 70,
            commit: 69,
            commit_term: 8,
            reject_hint: 5,
            request_snapshot: 4,
            entries,
        }
    }

    fn entry(payload: &[u8]) -> Entry<'_> {
        Entry {
            term: 9,
            index: 71,
            sync: true,
            membership: false,
            payload,
        }
    }

    fn snapshot() -> SnapshotId {
        SnapshotId {
            group: 1,
            generation: 2,
            from: 3,
            to: 4,
            term: 5,
            index: 6,
            index_term: 7,
        }
    }

    fn body() -> Vec<u8> {
        let mut out = Vec::new();
        encode_raft(&head(2), b"context", &mut out, |out| {
            for payload in [&b"one"[..], b""] {
                entry(payload).encode_head(out);
                out.extend_from_slice(payload);
            }
        });
        let others = [
            NodeMessage::DurableReport(DurableReport {
                group: 3,
                generation: 2,
                from: 7,
                to: 8,
                term: 9,
                index: 10,
            }),
            NodeMessage::Forward(Forward {
                conn: 5,
                kind: 6,
                correlation: 7,
                window_bytes: 8,
                body: b"frame",
            }),
            NodeMessage::Output(Output {
                conn: 5,
                released: 6,
                close: true,
                bytes: b"frames",
            }),
            NodeMessage::OutputTaken { conn: 1 },
            NodeMessage::ConnClosed { conn: 2 },
            NodeMessage::SnapshotPiece(SnapshotPiece {
                id: snapshot(),
                number: 8,
                bytes: b"records",
            }),
            NodeMessage::SnapshotTaken(SnapshotTaken {
                id: snapshot(),
                number: 8,
                answer: SnapshotAnswer::Installed,
            }),
            NodeMessage::Propose {
                command: b"command",
            },
            NodeMessage::Named {
                retired: 5,
                new: 6,
                generation: 7,
            },
            NodeMessage::LeadsNothing { on: true },
            NodeMessage::Leaderless {
                group: 3,
                generation: 4,
            },
            NodeMessage::Roster { bytes: b"roster" },
            NodeMessage::Leads {
                group: 3,
                generation: 4,
                term: 5,
            },
            NodeMessage::Ready {
                queue_id: 6,
                partition: 7,
            },
        ];
        for message in &others {
            message.encode(&mut out);
        }
        out
    }

    #[test]
    fn a_body_reads_back_message_by_message() {
        let body = body();
        let messages: Vec<_> = NodeMessages::new(&body).map(Result::unwrap).collect();
        assert_eq!(messages.len(), 15);
        let mut again = Vec::new();
        for message in &messages {
            message.encode(&mut again);
        }
        assert_eq!(again, body);
        let NodeMessage::Raft(raft) = &messages[0] else {
            panic!("the first is Raft's");
        };
        assert_eq!(raft.head, head(2));
        assert_eq!(raft.context, b"context");
        let entries: Vec<_> = raft.entries.iter().collect();
        assert_eq!(entries, [entry(b"one"), entry(b"")]);
    }

    #[test]
    fn a_body_cut_anywhere_ends_in_an_error_or_between_messages() {
        let body = body();
        let mut between = 0;
        for cut in 0..body.len() {
            let mut failed = false;
            for message in NodeMessages::new(&body[..cut]) {
                failed |= message.is_err();
            }
            between += usize::from(!failed);
        }
        let messages = NodeMessages::new(&body).count();
        assert_eq!(between, messages, "cuts in front of each message");
    }

    #[test]
    fn an_unknown_kind_and_bytes_behind_a_payload_are_refused() {
        let mut body = Vec::new();
        NodeMessage::OutputTaken { conn: 1 }.encode(&mut body);
        let mut unknown = body.clone();
        unknown[0] = 99;
        let first = NodeMessages::new(&unknown).next();
        assert_eq!(first, Some(Err(NodeMessageError::Kind(99))));
        body[4] += 1;
        body.push(0);
        let first = NodeMessages::new(&body).next();
        assert_eq!(first, Some(Err(NodeMessageError::Trailing)));
    }
}
