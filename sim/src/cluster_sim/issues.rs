//! Who said what a client is told, and when at the earliest: a frame may come
//! over another node, late.
//!
//! Output of a connection that goes over another node waits for the piece before it
//! to be taken there. What comes out then may have been said at any time since that
//! piece left ([`Pieces`]).

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;

use wire::{
    codec,
    frame::{FrameHeader, Kind, HEADER_BYTES},
    message::{Confirm, Deliver},
    node::{NodeMessage, NodeMessages},
};

/// What was said, on one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Said {
    /// An answer, by correlation.
    Answer(u64),
    /// Subscription, generation, offset, attempt.
    Delivery(u32, u32, u64, u32),
}

/// By whom and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Issue {
    pub node: usize,
    /// The engine's life on that node.
    pub life: u64,
    /// Not said before this.
    pub not_before_us: u64,
}

/// What other nodes said on a connection and its client does not have yet, in the
/// order in which it arrived at the client's node.
#[derive(Debug, Default)]
pub(super) struct Issues {
    of: BTreeMap<Said, VecDeque<Issue>>,
}

impl Issues {
    pub fn note(&mut self, said: Said, issue: Issue) {
        self.of.entry(said).or_default().push_back(issue);
    }

    /// Who said it, if another node did.
    pub fn take(&mut self, said: Said) -> Option<Issue> {
        let issues = self.of.get_mut(&said)?;
        let issue = issues.pop_front();
        if issues.is_empty() {
            self.of.remove(&said);
        }
        issue
    }
}

/// Of one connection, the pieces of output that a node sends to the client's node.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Pieces {
    /// When the last one left.
    left_us: u64,
    /// The node's turns when it was told that it was taken.
    freed_turn: u64,
}

impl Pieces {
    /// The last piece was taken, `turns` turns after the node's engine began.
    pub fn taken(&mut self, turns: u64) {
        self.freed_turn = turns;
    }

    /// A piece leaves that was ready at `ready_us`, after so many turns: when what is
    /// in it was said at the earliest.
    pub fn leave(&mut self, ready_us: u64, turns: u64) -> u64 {
        let left_us = std::mem::replace(&mut self.left_us, ready_us);
        // What was said before the last piece was taken leaves in the next turn.
        let waited = left_us > 0 && turns <= self.freed_turn + 1;
        if waited {
            left_us
        } else {
            ready_us
        }
    }
}

/// Connections that a body between nodes carries output for, and what it says.
pub(super) fn said_in(body: &[u8]) -> Vec<(u64, Vec<Said>)> {
    let messages = NodeMessages::new(body).flatten();
    let outputs = messages.filter_map(|message| match message {
        NodeMessage::Output(output) => Some((output.conn, said_in_frames(output.bytes))),
        _ => None,
    });
    outputs.collect()
}

/// Connections whose last piece a body says was taken.
pub(super) fn taken_in(body: &[u8]) -> Vec<u64> {
    let messages = NodeMessages::new(body).flatten();
    let taken = messages.filter_map(|message| match message {
        NodeMessage::OutputTaken { conn } => Some(conn),
        _ => None,
    });
    taken.collect()
}

/// A body in a line.
pub(super) fn describe(body: &[u8]) -> String {
    let mut line = String::new();
    for message in NodeMessages::new(body).flatten() {
        // Writing to a string cannot fail.
        let _ = match message {
            NodeMessage::Raft(raft) => {
                let head = raft.head;
                let reject = if head.reject { " rejected" } else { "" };
                write!(
                    line,
                    " {:?}{reject} g{} t{} i{} lt{} c{} n{}",
                    head.kind,
                    head.group,
                    head.term,
                    head.index,
                    head.log_term,
                    head.commit,
                    head.entries
                )
            }
            NodeMessage::DurableReport(report) => write!(
                line,
                " Durable g{} t{} i{}",
                report.group, report.term, report.index
            ),
            NodeMessage::Forward(forward) => write!(
                line,
                " Forward {:x} kind {} {}",
                forward.conn, forward.kind, forward.correlation
            ),
            NodeMessage::Output(output) => write!(
                line,
                " Output {:x} {} bytes close {}",
                output.conn,
                output.bytes.len(),
                output.close
            ),
            NodeMessage::SnapshotPiece(piece) => write!(
                line,
                " SnapshotPiece {} of g{} to {:x} t{} i{}: {} bytes",
                piece.number,
                piece.id.group,
                piece.id.to,
                piece.id.term,
                piece.id.index,
                piece.bytes.len()
            ),
            NodeMessage::SnapshotTaken(taken) => write!(
                line,
                " SnapshotTaken {} of g{}: {:?}",
                taken.number, taken.id.group, taken.answer
            ),
            other => write!(line, " {other:?}"),
        };
    }
    line
}

fn said_in_frames(mut bytes: &[u8]) -> Vec<Said> {
    let mut found = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() {
        let Ok(header) = FrameHeader::decode(head, u32::MAX) else {
            break;
        };
        let Some((body, rest)) = rest.split_at_checked(header.length as usize) else {
            break;
        };
        bytes = rest;
        match Kind::from_raw(header.kind) {
            Some(Kind::Confirm) => {
                if let Ok(body) = codec::decode::<Confirm>(body) {
                    let items = body.items.iter();
                    found.extend(items.map(|item| Said::Answer(item.correlation.to_native())));
                }
            }
            Some(Kind::Deliver) => {
                if let Ok(body) = codec::decode::<Deliver>(body) {
                    let (sub, generation) =
                        (body.subscription.to_native(), body.generation.to_native());
                    found.extend(body.deliveries.iter().map(|delivery| {
                        let offset = delivery.offset.to_native();
                        Said::Delivery(sub, generation, offset, delivery.attempt.to_native())
                    }));
                }
            }
            _ if header.correlation != 0 => found.push(Said::Answer(header.correlation)),
            _ => {}
        }
    }
    found
}
