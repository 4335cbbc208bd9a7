//! Who said what a client is told, and when at the earliest: a frame may come
//! over another node, late.

use std::collections::BTreeMap;
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

/// What other nodes said on a connection and its client does not have yet.
#[derive(Debug, Default)]
pub(super) struct Issues {
    of: BTreeMap<Said, Issue>,
}

impl Issues {
    pub fn note(&mut self, said: Said, issue: Issue) {
        self.of.insert(said, issue);
    }

    /// Who said it, if another node did.
    pub fn take(&mut self, said: Said) -> Option<Issue> {
        self.of.remove(&said)
    }
}

/// What a body between nodes carries for clients: (connection, what).
pub(super) fn said_in(body: &[u8]) -> Vec<(u64, Said)> {
    let mut found = Vec::new();
    for message in NodeMessages::new(body).flatten() {
        if let NodeMessage::Output(output) = message {
            let said = said_in_frames(output.bytes);
            found.extend(said.into_iter().map(|said| (output.conn, said)));
        }
    }
    found
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
            other => write!(line, " {other:.60?}"),
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
