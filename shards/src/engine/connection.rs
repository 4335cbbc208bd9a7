//! What the engine keeps of a connection it answers: its own, or one of
//! another shard that forwarded a frame.

use std::collections::BTreeMap;

use wire::{
    codec::{self, Body},
    error::{ErrorCode, Outcome},
    frame::{FrameHeader, Kind, HEADER_BYTES},
    message::{Confirm, ConfirmItem, Error},
};

use super::partition::PartitionKey;

/// Output above which a connection's consumers are passed over.
pub(super) const OUTPUT_HIGH_BYTES: usize = 1 << 20;
/// Output above which the driver should stop reading the connection.
pub(super) const OUTPUT_FULL_BYTES: usize = 8 << 20;
/// Forwarded bytes, not yet handled, above which the connection is not read.
pub(super) const FORWARDED_FULL_BYTES: u64 = 8 << 20;
/// Handled bytes that the home shard is told of, fewer with many shards.
pub(super) const HANDLED_STEP_BYTES: u64 = 256 << 10;
/// What a forwarded frame counts beside its body.
pub(super) const FORWARD_BYTES: u64 = 128;
/// Longest text of an error.
const MAX_MESSAGE_BYTES: usize = 4096;
/// Subscriptions of one connection.
pub(super) const MAX_SUBSCRIPTIONS: usize = 16_384;

/// Partitions of which a connection is told the leader.
pub(super) const MAX_TOLD: usize = 1024;

/// A subscription of a connection, as the shard at hand knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Subscription {
    pub id: u32,
    pub queue_id: u64,
    pub partition: u16,
    /// The shard that owns the partition.
    pub shard: u16,
    /// The node that leads it; 0 = this one, or not known at this shard.
    pub node: u32,
}

pub(super) struct Connection {
    /// The socket is this shard's.
    pub home: bool,
    /// Deliveries are held back above this much unsent output.
    pub output_high: usize,
    /// Publish bytes not answered yet (home only).
    pub unanswered: u64,
    /// Publish bytes answered since the last output went to the home shard.
    pub released: u64,
    pub output: Vec<u8>,
    /// Record bytes picked in this run and not yet in the output.
    pub planned: usize,
    pub confirms: Confirm,
    pub subscriptions: Vec<Subscription>,
    /// Subscribes that other shards or nodes have not answered: correlation, and number.
    pub asked: Vec<(u64, u32)>,
    /// Shards that answered frames of this connection (home only), a bit each.
    pub others: u64,
    /// Shards to tell once the socket took what they sent (home only).
    pub owes_taken: u64,
    /// Output is under way to the home shard (not home only).
    pub in_flight: bool,
    /// Bytes forwarded to other shards and not known as handled (home only).
    pub forwarded: u64,
    /// Bytes of forwarded frames handled since the home shard was told (not home only).
    pub handled: u64,
    /// Shards whose output piles up (home only), a bit each.
    pub stalled: u64,
    /// The home shard was told that output piles up (not home only).
    pub told_stalled: bool,
    /// Already on the turn's list of connections with output.
    pub listed: bool,
    pub closing: bool,
    /// The socket is another node's: that node, and its name for the connection.
    pub remote: Option<(u32, u64)>,
    /// Nodes that frames of it were passed to.
    pub nodes: Vec<u32>,
    /// Nodes to tell once what they sent is on its way to the socket.
    pub owes_nodes: Vec<u32>,
    /// Partitions whose leader it was told, with the term of that leadership; at
    /// most [`MAX_TOLD`].
    pub told: BTreeMap<PartitionKey, u64>,
}

impl Connection {
    pub(super) fn new(home: bool, window_bytes: u32) -> Self {
        Connection {
            home,
            output_high: (window_bytes as usize).clamp(64 << 10, OUTPUT_HIGH_BYTES),
            unanswered: 0,
            released: 0,
            output: Vec::new(),
            planned: 0,
            confirms: Confirm::default(),
            subscriptions: Vec::new(),
            asked: Vec::new(),
            others: 0,
            owes_taken: 0,
            in_flight: false,
            forwarded: 0,
            handled: 0,
            stalled: 0,
            told_stalled: false,
            listed: false,
            closing: false,
            remote: None,
            nodes: Vec::new(),
            owes_nodes: Vec::new(),
            told: BTreeMap::new(),
        }
    }

    /// Appends a frame. What is too long for a frame is answered as an error;
    /// the caller bounds bodies so that it does not happen.
    pub(super) fn send<T>(&mut self, correlation: u64, body: &T)
    where
        T: Body
            + for<'a> rkyv::Serialize<
                rkyv::api::high::HighSerializer<
                    Vec<u8>,
                    rkyv::ser::allocator::ArenaHandle<'a>,
                    rkyv::rancor::Error,
                >,
            >,
    {
        if let Err(error) = codec::encode(&mut self.output, correlation, body) {
            self.error(
                correlation,
                ErrorCode::TooLarge,
                Outcome::Unknown,
                error.to_string(),
            );
        }
    }

    pub(super) fn error(
        &mut self,
        correlation: u64,
        code: ErrorCode,
        outcome: Outcome,
        mut message: String,
    ) {
        // What a peer sent may be quoted in it: an error must always fit.
        let fits = |at: &usize| message.is_char_boundary(*at);
        let end = (0..=MAX_MESSAGE_BYTES).rev().find(fits).unwrap_or(0);
        message.truncate(end);
        let body = Error {
            code: code as u16,
            outcome: outcome as u8,
            message,
            extensions: Vec::new(),
        };
        // Now far below the frame limit: cannot fail.
        let _ = codec::encode(&mut self.output, correlation, &body);
    }

    /// Adds a confirm to the turn's frame.
    pub(super) fn confirm(&mut self, item: ConfirmItem) {
        self.confirms.items.push(item);
    }

    /// Turns the confirms of this turn into one frame.
    pub(super) fn flush_confirms(&mut self) {
        if self.confirms.items.is_empty() {
            return;
        }
        let mut confirms = std::mem::take(&mut self.confirms);
        self.send(0, &confirms);
        confirms.items.clear();
        self.confirms = confirms;
    }

    pub(super) fn subscription(&self, id: u32) -> Option<&Subscription> {
        self.subscriptions
            .iter()
            .find(|subscription| subscription.id == id)
    }

    pub(super) fn forget_subscription(&mut self, id: u32) {
        self.subscriptions
            .retain(|subscription| subscription.id != id);
    }

    /// Whole frames that another shard or node answers with: a subscribe that was refused
    /// there is none here either, and its number free again.
    pub(super) fn note_answers(&mut self, mut frames: &[u8]) {
        while !self.asked.is_empty() {
            let header = frames.first_chunk::<HEADER_BYTES>();
            let Some(Ok(header)) = header.map(|bytes| FrameHeader::decode(bytes, u32::MAX)) else {
                return;
            };
            let kind = Kind::from_raw(header.kind);
            let answers = matches!(kind, Some(Kind::Subscribed | Kind::Error));
            let answered = |(correlation, _): &(u64, u32)| *correlation == header.correlation;
            let at = self.asked.iter().position(answered).filter(|_| answers);
            if let Some((_, id)) = at.map(|at| self.asked.swap_remove(at)) {
                if kind == Some(Kind::Error) {
                    self.forget_subscription(id);
                }
            }
            frames = frames
                .get(HEADER_BYTES + header.length as usize..)
                .unwrap_or_default();
        }
    }

    /// Publish bytes were answered.
    pub(super) fn release(&mut self, bytes: u64) {
        if self.home {
            self.unanswered = self.unanswered.saturating_sub(bytes);
        } else {
            self.released += bytes;
        }
    }
}
