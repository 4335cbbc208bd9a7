//! Commands of a data group's log, as bytes of an entry (skeleton: contract).

use wire::vocabulary::{Mode, SettleKind};

/// What a partition is, as its group's log knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionSpec {
    pub queue_id: u64,
    pub partition: u16,
    pub mode: Mode,
    /// W: 0 = majority, 255 = all.
    pub copies: u8,
    pub lease_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseEndCause {
    Expired,
    Disconnected,
    Unsubscribed,
}

/// One command, read in place from an entry's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command<'a> {
    Create(PartitionSpec),
    Drop {
        queue_id: u64,
        partition: u16,
    },
    /// `records`: the client's batch, byte for byte.
    Append {
        queue_id: u64,
        partition: u16,
        stamp_ms: u64,
        count: u32,
        records: &'a [u8],
    },
    Settle {
        queue_id: u64,
        partition: u16,
        stamp_ms: u64,
        kind: SettleKind,
        /// Release: server time before which the record stays delayed; 0 = at once.
        due_ms: u64,
        items: DeliveryIds<'a>,
    },
    /// Leases that ended without a settle; attempts are counted here.
    LeaseEnded {
        queue_id: u64,
        partition: u16,
        cause: LeaseEndCause,
        items: DeliveryIds<'a>,
    },
    /// Deliveries below `mark` may have been handed out.
    DispatchMark {
        queue_id: u64,
        partition: u16,
        mark: u64,
    },
    /// Drops every record below `below` that is not leased.
    Purge {
        queue_id: u64,
        partition: u16,
        below: u64,
    },
    /// From here on the group answers at written, for good.
    Weaken,
}

/// (offset u64 LE, attempt u32 LE) back to back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveryIds<'a>(pub &'a [u8]);

impl DeliveryIds<'_> {
    pub fn iter(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        std::iter::empty()
    }
    /// Appends one id to an encoded list.
    pub fn push(_out: &mut Vec<u8>, _offset: u64, _attempt: u32) {
        todo!()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    #[error("the command does not decode: {0}")]
    Malformed(&'static str),
}

/// Longest command head in bytes.
pub const MAX_HEAD_BYTES: usize = 64;

/// A command head encoded on the stack, without its variable part.
pub struct CommandHead {
    bytes: [u8; MAX_HEAD_BYTES],
    len: usize,
}

impl CommandHead {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl<'a> Command<'a> {
    /// The fixed head; the entry payload is head followed by [`Command::tail`].
    pub fn head(&self) -> CommandHead {
        todo!()
    }
    /// The variable part (records or items), empty for the other commands.
    pub fn tail(&self) -> &'a [u8] {
        todo!()
    }
    /// Reads an entry's payload.
    pub fn decode(_payload: &'a [u8]) -> Result<Self, CommandError> {
        todo!()
    }
}
