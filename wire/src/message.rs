//! The bodies. Each is a fixed struct plus byte ranges, archived by rkyv with
//! little-endian, unaligned fields and 32-bit relative pointers, the root
//! struct at the end of the body. Bodies do not evolve: what comes later goes
//! into the extension list that ends each of them.

use rkyv::{Archive, Deserialize, Serialize};

pub(crate) mod with_records;

/// One entry of the list that ends each body.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[rkyv(derive(Debug))]
pub struct Extension {
    /// Kinds at or above [`Extension::CRITICAL`] must be understood or refused.
    pub kind: u16,
    pub bytes: Vec<u8>,
}

impl Extension {
    /// First critical kind.
    pub const CRITICAL: u16 = 0x8000;
}

macro_rules! bodies {
    ($($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
        #[rkyv(derive(Debug))]
        pub struct $name {
            $($(#[$fdoc])* pub $field: $type,)*
            /// Extensions; see the module head.
            pub extensions: Vec<Extension>,
        }

        impl crate::codec::Body for $name {
            const KIND: crate::frame::Kind = crate::frame::Kind::$name;

            fn check_extensions(archived: &Self::Archived) -> Result<(), crate::error::WireError> {
                crate::codec::refuse_critical(&archived.extensions)
            }
        }
    )*};
}

macro_rules! parts {
    ($($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
        #[rkyv(derive(Debug))]
        pub struct $name { $($(#[$fdoc])* pub $field: $type,)* }
    )*};
}

parts! {
    /// Limits in force, sent in the hello reply.
    Limits {
        frame_bytes: u32,
        record_bytes: u32,
        name_bytes: u32,
        headers_bytes: u32,
        batch_records: u32,
    }
    /// Where a partition lives.
    PartitionPlace {
        group: u32,
        node: u32,
        /// The shard to name in hello to reach the owner without a hop.
        shard: u16,
    }
    /// A queue as declared.
    QueueDescription {
        queue_id: u64,
        name: String,
        /// A `Mode`.
        mode: u8,
        /// Copies W: 0 = majority, 255 = all.
        copies: u8,
        lease_ms: u64,
        /// Index = partition number.
        partitions: Vec<PartitionPlace>,
    }
    /// One confirmed publish.
    ConfirmItem {
        /// Correlation id of the publish.
        correlation: u64,
        queue_id: u64,
        partition: u16,
        /// The `Boundary` that was met.
        boundary: u8,
        /// How many copies met it.
        copies: u8,
        generation: u32,
        /// Offset of the batch's first record; the others follow it.
        first_offset: u64,
        count: u32,
    }
    /// One record inside a deliver frame, in the order of the record bytes.
    Delivery {
        offset: u64,
        /// 1 for the first delivery.
        attempt: u32,
        /// [`DELIVERY_REDELIVERED`], [`DELIVERY_DURABLE`].
        flags: u32,
        /// Encoded record length in bytes.
        len: u32,
    }
    /// Names one delivery to settle.
    SettleItem {
        offset: u64,
        attempt: u32,
    }
    /// A settle item that was not accepted.
    RefusedSettle {
        offset: u64,
        attempt: u32,
        /// An `ErrorCode`.
        code: u16,
    }
    /// What a loss took from a partition: every offset of `generation` at or
    /// above `first_lost` is gone, every one below is present.
    LossReport {
        generation: u32,
        first_lost: u64,
        /// Highest offset known to have been confirmed, plus one; 0 = not known.
        highest_known_confirmed_next: u64,
    }
    /// One record in a peek reply, in the order of the record bytes.
    Peeked {
        offset: u64,
        /// A `RecordState`.
        state: u8,
        /// Deliveries that have ended.
        attempts: u32,
        /// Encoded record length in bytes.
        len: u32,
    }
}

/// [`Delivery::flags`]: may have been delivered before.
pub const DELIVERY_REDELIVERED: u32 = 1;
/// [`Delivery::flags`]: durable on the queue's copies when it was sent.
pub const DELIVERY_DURABLE: u32 = 2;

/// [`Publish::flags`]: confirm at durable whatever the queue's mode.
pub const PUBLISH_DURABLE: u32 = 1;

/// [`Settle::flags`]: answer with a settle confirm when the queue's mode is met.
pub const SETTLE_CONFIRM: u32 = 1;

/// [`Hello::wished_shard`]: any shard will do.
pub const ANY_SHARD: u16 = u16::MAX;

bodies! {
    /// First frame of a connection; nothing may follow it before the reply.
    Hello {
        /// Lowest and highest protocol version spoken.
        version_min: u8,
        version_max: u8,
        /// The shard wanted, or [`ANY_SHARD`].
        wished_shard: u16,
        /// Bytes the client is willing to have in flight towards it.
        window_bytes: u32,
        /// For logs: program name and version.
        client: String,
        /// Reserved, empty.
        authentication: Vec<u8>,
    }
    HelloReply {
        version: u8,
        node: u32,
        /// The shard that now serves this connection.
        shard: u16,
        shards: u16,
        /// Publish body bytes the client may have unanswered.
        window_bytes: u32,
        limits: Limits,
        server: String,
    }
    /// Create a queue, or check that it exists as described.
    Declare {
        name: String,
        /// A `Mode`; 0 = keep, or durable for a new queue.
        mode: u8,
        /// Copies W: 0 = keep (majority for a new queue), 255 = all.
        copies: u8,
        /// 0 = keep, or 1 for a new queue.
        partitions: u16,
        /// 0 = keep, or 30 000 for a new queue.
        lease_ms: u64,
    }
    Declared {
        /// 1 when this declare created it.
        created: u8,
        queue: QueueDescription,
    }
    Publish {
        queue_id: u64,
        partition: u16,
        /// [`PUBLISH_DURABLE`].
        flags: u32,
        /// Milliseconds from receipt; 0 = 30 000.
        deadline_ms: u32,
        /// Reserved, zero.
        producer_id: u64,
        /// Reserved, zero.
        producer_epoch: u32,
        /// Reserved, zero.
        sequence: u64,
        /// Reserved, zero: trace context.
        trace: [u8; 16],
        /// Records in `records`, 1 to the batch limit.
        count: u32,
        /// Encoded records back to back; see [`crate::record`].
        records: Vec<u8>,
    }
    /// Confirmed publishes of this connection, several at once.
    Confirm {
        items: Vec<ConfirmItem>,
    }
    /// Start deliveries of one partition to this connection.
    Subscribe {
        queue_id: u64,
        partition: u16,
        /// Chosen by the client, unique on this connection.
        subscription: u32,
        /// Records that may be delivered before more credit is given.
        credit_records: u32,
        /// Encoded record bytes likewise; one record may overdraw it.
        credit_bytes: u64,
    }
    Subscribed {
        subscription: u32,
        generation: u32,
    }
    /// Adds to the credit of a subscription. Not answered.
    Credit {
        subscription: u32,
        records: u32,
        bytes: u64,
    }
    Deliver {
        subscription: u32,
        queue_id: u64,
        partition: u16,
        generation: u32,
        deliveries: Vec<Delivery>,
        /// Encoded records back to back, in the order of `deliveries`.
        records: Vec<u8>,
    }
    Settle {
        queue_id: u64,
        partition: u16,
        generation: u32,
        subscription: u32,
        /// A `SettleKind`.
        kind: u8,
        /// [`SETTLE_CONFIRM`].
        flags: u32,
        /// For release: not before this many milliseconds.
        delay_ms: u64,
        items: Vec<SettleItem>,
    }
    /// Answers one settle frame: when asked for, or when items were refused.
    SettleConfirm {
        /// Items that took effect.
        accepted: u32,
        /// The `Boundary` met, 0 when nothing was accepted.
        boundary: u8,
        copies: u8,
        refused: Vec<RefusedSettle>,
    }
    QueueInfo {
        queue_id: u64,
        partition: u16,
    }
    /// One partition's state, as one moment of its owner.
    QueueInfoReply {
        queue: QueueDescription,
        partition: u16,
        generation: u32,
        /// Next offset that is not yet written; exclusive end.
        written_next: u64,
        /// Next offset that is not yet durable; exclusive end, at most `written_next`.
        durable_next: u64,
        /// Waiting for the delivery gate.
        gated: u64,
        ready: u64,
        delayed: u64,
        leased: u64,
        /// Totals since the queue was declared.
        published: u64,
        acknowledged: u64,
        dropped: u64,
        expired: u64,
        dead_lettered: u64,
        purged: u64,
        /// Since this process started.
        redelivered: u64,
        unsynced_records: u64,
        unsynced_bytes: u64,
        /// 0 when nothing is ready.
        oldest_ready_age_ms: u64,
        consumers: u32,
        /// 1 when the owning log is latched.
        latched: u8,
        /// Copies that hold the partition now, and how many a confirm needs.
        copies_present: u8,
        copies_needed: u8,
        losses: Vec<LossReport>,
    }
    /// Queues by name, in byte order.
    List {
        /// Only names after this one; empty = from the start.
        after: String,
        /// At most this many; 0 = the limit.
        limit: u32,
    }
    ListReply {
        queues: Vec<QueueDescription>,
        /// 1 when more follow the last one.
        more: u8,
    }
    Frontiers {
        queue_id: u64,
        partition: u16,
    }
    FrontiersReply {
        generation: u32,
        written_next: u64,
        durable_next: u64,
        copies: u8,
    }
    /// Answered when all of the partition before it is durable.
    Barrier {
        queue_id: u64,
        partition: u16,
        /// Milliseconds; 0 = 30 000.
        deadline_ms: u32,
    }
    BarrierReply {
        generation: u32,
        written_next: u64,
        durable_next: u64,
        copies: u8,
    }
    /// Read without disturbing order, leases or counters.
    Peek {
        queue_id: u64,
        partition: u16,
        from_offset: u64,
        /// 0 = 1.
        max_records: u32,
    }
    PeekReply {
        generation: u32,
        peeked: Vec<Peeked>,
        records: Vec<u8>,
    }
    /// Drop everything that is not leased.
    Purge {
        queue_id: u64,
        partition: u16,
    }
    Purged {
        records: u64,
    }
    Delete {
        queue_id: u64,
    }
    Deleted {
        queue_id: u64,
    }
    Ping {}
    Pong {}
    /// The peer will close this connection; what is unanswered is unknown.
    GoingAway {
        reason: String,
    }
    /// Answers the frame whose correlation id the header echoes; 0 = the connection.
    Error {
        /// An `ErrorCode`.
        code: u16,
        /// An `Outcome`.
        outcome: u8,
        /// What happened, why, and what to do.
        message: String,
    }
    Locate {
        name: String,
    }
    LocateReply {
        queue: QueueDescription,
    }
    /// Reserved.
    Redirect {
        queue_id: u64,
        partition: u16,
        node: u32,
        shard: u16,
    }
    Unsubscribe {
        subscription: u32,
    }
    Unsubscribed {
        subscription: u32,
    }
    /// Reserved.
    Extend {
        queue_id: u64,
        partition: u16,
        generation: u32,
        subscription: u32,
        lease_ms: u64,
        items: Vec<SettleItem>,
    }
    /// Reserved.
    Extended {
        accepted: u32,
        refused: Vec<RefusedSettle>,
    }
}
