//! Typed failures: of decoding, and the error codes that travel in frames.
//!
//! Owns: the numbers of [`ErrorCode`] and [`Outcome`] and the texts of
//! [`WireError`]. It decides nothing: who meets an error says what follows.
//!
//! Invariants:
//! 1. A number never changes meaning and is never used again.
//! 2. An error of this side ([`WireError`]) never travels; its text and a code do.

use thiserror::Error;

/// Why bytes were not accepted as a frame, a body or a record.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WireError {
    /// The peer does not speak this protocol.
    #[error("not a Tidegate frame: the first four bytes are {found:02x?}, expected \"TDGT\"; is the peer speaking another protocol?")]
    BadMagic { found: [u8; 4] },
    /// The peer speaks an older or newer version.
    #[error("protocol version {found} is not supported; this side speaks version {supported}")]
    Version { found: u8, supported: u8 },
    /// A stated length above the limit, or a body that grew above it.
    #[error("frame body of {len} bytes is above the limit of {limit}")]
    FrameTooLong { len: u32, limit: u32 },
    /// Flags or the reserved field of a header are not zero.
    #[error("reserved header bits are set ({bits:#x}); this side cannot know what they ask for")]
    ReservedBits { bits: u32 },
    /// A kind that this version does not know.
    #[error("unknown frame kind {kind}")]
    UnknownKind { kind: u8 },
    /// The body is not what its kind says.
    #[error("body of kind {kind} does not validate: {reason}")]
    BadBody { kind: &'static str, reason: String },
    /// The peer asks for something that must not be passed over.
    #[error("unknown critical extension {kind:#x}")]
    CriticalExtension { kind: u16 },
    /// A record that is cut, above a limit, or sets a reserved field;
    /// `index` counts from 0 in its batch.
    #[error("record {index}: {reason}")]
    BadRecord { index: u32, reason: &'static str },
    /// The record's bytes changed on the way.
    #[error(
        "record {index}: checksum mismatch (stated {stated:#010x}, computed {computed:#010x})"
    )]
    RecordChecksum {
        index: u32,
        stated: u32,
        computed: u32,
    },
    /// Not a queue name; `reason` says what a name is.
    #[error("name refused: {reason}")]
    BadName { reason: &'static str },
}

/// Error codes of the protocol. Numbers never change meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum ErrorCode {
    /// The peer broke the protocol; the connection closes after this.
    Protocol = 1,
    /// A protocol version this side does not speak.
    Version = 2,
    /// A frame kind this side does not know.
    UnknownKind = 3,
    /// A frame, record, batch or name above its limit.
    TooLarge = 4,
    /// The body, a record or a name did not validate.
    Invalid = 5,
    /// No queue of that name or id.
    UnknownQueue = 6,
    /// The queue exists with another value for a field; the message names it.
    Conflict = 7,
    /// No such partition of that queue.
    UnknownPartition = 8,
    /// A settle named a delivery that is not this connection's to settle.
    StaleDelivery = 9,
    /// Memory watermark: publish less or consume more, then retry.
    Overloaded = 10,
    /// Disk watermark: consume, purge or delete, then retry.
    DiskFull = 11,
    /// The deadline passed. `outcome` says whether it failed or is unknown.
    Deadline = 12,
    /// The log of the owning shard met an I/O error and is latched.
    Latched = 13,
    /// The server is shutting down or still starting.
    Unavailable = 14,
    /// The window granted in hello was exceeded.
    WindowExceeded = 15,
    /// Not the owner: the redirect names node and shard.
    NotOwner = 16,
    /// A feature of the protocol that this server does not implement yet.
    Unsupported = 17,
    /// Too many connections, subscriptions or queues.
    LimitReached = 18,
    /// The required copies are not reachable.
    MissingCopies = 19,
    /// Generation is not the current one.
    StaleGeneration = 20,
    /// Not expected; please report it.
    Internal = 21,
    /// A newer epoch of the producer has published: this one is over.
    Fenced = 22,
    /// The publish is older than what is remembered of its producer.
    Forgotten = 23,
    /// The queue's setting is at another revision than the one named.
    StaleRevision = 32,
    /// Some node's version does not know this yet; the message names those that are behind.
    FeatureLevel = 33,
}

impl ErrorCode {
    /// The code for `raw`, or `None` for a number this version does not know.
    pub fn from_raw(raw: u16) -> Option<Self> {
        use ErrorCode::*;
        const ALL: [ErrorCode; 25] = [
            Protocol,
            Version,
            UnknownKind,
            TooLarge,
            Invalid,
            UnknownQueue,
            Conflict,
            UnknownPartition,
            StaleDelivery,
            Overloaded,
            DiskFull,
            Deadline,
            Latched,
            Unavailable,
            WindowExceeded,
            NotOwner,
            Unsupported,
            LimitReached,
            MissingCopies,
            StaleGeneration,
            Internal,
            Fenced,
            Forgotten,
            StaleRevision,
            FeatureLevel,
        ];
        ALL.into_iter().find(|code| *code as u16 == raw)
    }
}

/// What became of a request that ended in an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Outcome {
    /// Nothing of it happened, nor will.
    Failed = 1,
    /// It may have happened or may yet happen.
    Unknown = 2,
}
