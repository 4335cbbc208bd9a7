//! The plain fixed header in front of every frame body.
//!
//! ```text
//! 0  magic        4 bytes  "TDGT"
//! 4  version      u8       1
//! 5  kind         u8       see [`Kind`]
//! 6  flags        u16 LE   reserved, zero
//! 8  length       u32 LE   body bytes that follow
//! 12 reserved     u32 LE   zero
//! 16 correlation  u64 LE   chosen by the asking side, echoed in the reply
//! ```
//!
//! Owns: these 24 bytes and the numbers of the kinds. It never reads a body
//! and never allocates.
//!
//! Invariants:
//! 1. What [`FrameHeader::decode`] accepts, [`FrameHeader::encode`] writes back
//!    byte for byte.
//! 2. A length is compared with its limit before anyone sees it.
//! 3. A kind's number never changes meaning.

use crate::{error::WireError, limits::MAX_FRAME_BYTES};

/// Header length in bytes.
pub const HEADER_BYTES: usize = 24;
/// First four bytes of every frame.
pub const MAGIC: [u8; 4] = *b"TDGT";
/// The protocol version this crate speaks.
pub const VERSION: u8 = 1;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// What a frame's body is. Numbers never change meaning.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Kind { $($(#[$doc])* $name = $number,)* }

        impl Kind {
            /// Every kind this version knows, in numeric order.
            pub const ALL: &'static [Kind] = &[$(Kind::$name,)*];

            /// The kind for `raw`, or `None` if this version does not know it.
            pub fn from_raw(raw: u8) -> Option<Kind> {
                match raw { $($number => Some(Kind::$name),)* _ => None }
            }

            /// The kind's name as the protocol page spells it.
            pub fn name(self) -> &'static str {
                match self { $(Kind::$name => stringify!($name),)* }
            }
        }
    };
}

kinds! {
    Hello = 1, HelloReply = 2,
    Declare = 3, Declared = 4,
    Publish = 5, Confirm = 6,
    Subscribe = 7, Subscribed = 8,
    Credit = 9,
    Deliver = 10,
    Settle = 11, SettleConfirm = 12,
    QueueInfo = 13, QueueInfoReply = 14,
    List = 15, ListReply = 16,
    Frontiers = 17, FrontiersReply = 18,
    Barrier = 19, BarrierReply = 20,
    Peek = 21, PeekReply = 22,
    Purge = 23, Purged = 24,
    Delete = 25, Deleted = 26,
    Ping = 27, Pong = 28,
    GoingAway = 29,
    Error = 30,
    /// Resolve a queue name to its id and the places of its partitions.
    Locate = 31, LocateReply = 32,
    /// Who leads a partition whose publish came through another node.
    Redirect = 33,
    Unsubscribe = 34, Unsubscribed = 35,
    /// Reserved: extend leases.
    Extend = 36, Extended = 37,
    /// What one shard of a node sees of the cluster.
    ClusterStatus = 38, ClusterStatusReply = 39,
    /// An operator's order to the cluster, see `ClusterAction`.
    ClusterOrder = 40, ClusterOrdered = 41,
    /// A queue's mode or copies are to change while it runs.
    ChangeQueue = 50, QueueChanged = 51,
}

/// A decoded frame header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// Kind as sent; [`Kind::from_raw`] says whether it is known.
    pub kind: u8,
    /// Body length in bytes, at most the limit it was decoded with.
    pub length: u32,
    /// Echoed in replies.
    pub correlation: u64,
}

/// Checks as much of a header as came: a peer that speaks something else is
/// known by its first four bytes, and may wait for an answer behind them.
///
/// # Errors
/// Bad magic. Anything is good before the fourth byte.
pub fn check_start(bytes: &[u8]) -> Result<(), WireError> {
    match bytes.first_chunk::<4>() {
        Some(found) if *found != MAGIC => Err(WireError::BadMagic { found: *found }),
        _ => Ok(()),
    }
}

impl FrameHeader {
    /// Reads a header. `limit` is the longest body accepted here (a server
    /// passes a small one until hello is done).
    ///
    /// # Errors
    /// Bad magic, other version, reserved bits, or a length above `limit`.
    pub fn decode(bytes: &[u8; HEADER_BYTES], limit: u32) -> Result<Self, WireError> {
        check_start(bytes)?;
        if bytes[4] != VERSION {
            return Err(WireError::Version {
                found: bytes[4],
                supported: VERSION,
            });
        }
        let flags = u16::from_le_bytes([bytes[6], bytes[7]]);
        let reserved = u32_at(bytes, 12);
        if flags != 0 || reserved != 0 {
            return Err(WireError::ReservedBits {
                bits: u32::from(flags) | reserved,
            });
        }
        let length = u32_at(bytes, 8);
        let limit = limit.min(MAX_FRAME_BYTES);
        if length > limit {
            return Err(WireError::FrameTooLong { len: length, limit });
        }
        let mut correlation = [0; 8];
        correlation.copy_from_slice(&bytes[16..24]);
        Ok(FrameHeader {
            kind: bytes[5],
            length,
            correlation: u64::from_le_bytes(correlation),
        })
    }

    /// The header's bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..4].copy_from_slice(&MAGIC);
        out[4] = VERSION;
        out[5] = self.kind;
        out[8..12].copy_from_slice(&self.length.to_le_bytes());
        out[16..24].copy_from_slice(&self.correlation.to_le_bytes());
        out
    }
}

fn u32_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
