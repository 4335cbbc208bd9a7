//! The bodies. Each is a fixed struct plus byte ranges, archived by rkyv with
//! little-endian, unaligned fields and 32-bit relative pointers, the root
//! struct at the end of the body. Bodies do not evolve: what comes later goes
//! into the extension list that ends each of them.
//!
//! Owns: the fields of every frame kind, their order and their units. It holds
//! no rule about who sends what when; `docs/protocol.md` does, with the byte
//! offsets, which a test compares with these structs.
//!
//! Invariants:
//! 1. The order and types of fields never change: the golden vectors in
//!    `wire/tests/vectors` pin the bytes.
//! 2. Every body ends in its extension list.
//! 3. One-byte and two-byte words (mode, boundary, code, …) travel as numbers
//!    and are judged by the reader: an unknown one is not a broken body.

use rkyv::{Archive, Deserialize, Serialize};

pub(crate) mod with_records;

/// One entry of the list that ends each body.
#[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
#[rkyv(derive(Debug))]
pub struct Extension {
    /// Kinds at or above [`Extension::CRITICAL`] must be understood or refused.
    pub kind: u16,
    /// Meaning given by `kind`.
    pub bytes: Vec<u8>,
}

impl Extension {
    /// First critical kind.
    pub const CRITICAL: u16 = 0x8000;
    /// In a redirect: where clients reach the node, `HOST:PORT` in UTF-8.
    pub const ADDRESS: u16 = 1;
    /// What becomes of a queue's group where so many copies are lost that confirmed records
    /// may be: one byte, [`ON_LOSS_RECOVER`] or [`ON_LOSS_HALT`]. In a declare with
    /// [`Extension::CRITICAL`] added; in `Declared` and `QueueInfoReply` as it is.
    pub const ON_TOTAL_LOSS: u16 = 2;
    /// In `ClusterStatusReply`: nodes whose data directory was given up and that have no
    /// new one yet, u32 (LE) each. Left out where there are none.
    pub const VACANT: u16 = 3;
    /// In `ClusterStatusReply` of shard 0: who belongs to the cluster and which nodes hold
    /// which groups, the bytes of [`crate::node::Roster`]. Left out where that never changed.
    pub const ROSTER: u16 = 4;
    /// In a `ClusterOrder` to add a node: a word for where it stands, UTF-8.
    pub const ZONE: u16 = 5;
    /// In a `ClusterOrder` to move a group: the node that it goes to, u32 (LE).
    pub const TO: u16 = 6;
    /// In `Declared`, `LocateReply` and `QueueInfoReply`: the revision of the queue's setting,
    /// u32 (LE). Left out where it was never changed.
    pub const REVISION: u16 = 12;
    /// In `QueueInfoReply`: the setting that is in force in the partition, and how far it is
    /// applied ([`crate::setting::InForce`]). Left out where the queue's was never changed.
    pub const IN_FORCE: u16 = 13;
    /// In a subscribe, without bytes: should another node lead the partition, it is told
    /// where (`Redirect`) and refused (`NotOwner`), to subscribe there itself.
    pub const STRAIGHT: u16 = 14;
    /// In `ClusterStatusReply` of shard 0, all (LE): the cluster's feature level u16, the one
    /// that the node's version knows u16, then of each member, u32, the one that its version
    /// was recorded to know, u16 (0: none was).
    pub const LEVEL: u16 = 15;
}

macro_rules! bodies {
    ($($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Archive, Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
        #[rkyv(derive(Debug))]
        pub struct $name {
            $($(#[$fdoc])* pub $field: $type,)*
            /// What later versions add; see the module head.
            pub extensions: Vec<Extension>,
        }

        impl crate::codec::Body for $name {
            const KIND: crate::frame::Kind = crate::frame::Kind::$name;

            fn check_extensions(archived: &Self::Archived) -> Result<(), crate::error::WireError> {
                crate::codec::refuse_critical(Self::KIND, &archived.extensions)
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
        /// Longest frame body, bytes.
        frame_bytes: u32,
        /// Longest payload of one record, bytes.
        record_bytes: u32,
        /// Longest queue name, bytes of UTF-8.
        name_bytes: u32,
        /// Most header bytes of one record.
        headers_bytes: u32,
        /// Most records in one publish.
        batch_records: u32,
    }
    /// Where a partition lives.
    PartitionPlace {
        /// The replicated log that holds the partition.
        group: u32,
        /// The node that leads it, as far as the answering node knows; 0 = not known.
        node: u32,
        /// The shard to name in hello to reach the owner without a hop.
        shard: u16,
    }
    /// A queue as declared.
    QueueDescription {
        /// Never reused.
        queue_id: u64,
        /// 1 to 255 bytes, no control characters.
        name: String,
        /// A `Mode`.
        mode: u8,
        /// Copies W: 0 = majority, 255 = all.
        copies: u8,
        /// How long a delivery may stay unsettled, milliseconds.
        lease_ms: u64,
        /// Index = partition number.
        partitions: Vec<PartitionPlace>,
    }
    /// One confirmed publish.
    ConfirmItem {
        /// Correlation id of the publish.
        correlation: u64,
        /// As published.
        queue_id: u64,
        /// As published.
        partition: u16,
        /// The `Boundary` that was met.
        boundary: u8,
        /// How many copies met it.
        copies: u8,
        /// The partition's generation the offsets belong to.
        generation: u32,
        /// Offset of the batch's first record; the others follow it.
        first_offset: u64,
        /// Records in the batch.
        count: u32,
    }
    /// One record inside a deliver frame, in the order of the record bytes.
    Delivery {
        /// Place of the record in its partition.
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
        /// As delivered.
        offset: u64,
        /// As delivered; an older attempt is refused.
        attempt: u32,
    }
    /// A settle item that was not accepted.
    RefusedSettle {
        /// As named in the settle.
        offset: u64,
        /// As named in the settle.
        attempt: u32,
        /// An `ErrorCode`.
        code: u16,
    }
    /// What a loss took from a partition: every offset of `generation` at or
    /// above `first_lost` is gone, every one below is present.
    LossReport {
        /// The generation that lost its end.
        generation: u32,
        /// Lowest offset that is gone.
        first_lost: u64,
        /// Highest offset known to have been confirmed, plus one; 0 = not known.
        highest_known_confirmed_next: u64,
    }
    /// One record in a peek reply, in the order of the record bytes.
    Peeked {
        /// Place of the record in its partition.
        offset: u64,
        /// A `RecordState`.
        state: u8,
        /// Deliveries that have ended.
        attempts: u32,
        /// Encoded record length in bytes.
        len: u32,
    }
    /// A node of the cluster, as one shard of another sees it.
    NodeStatus {
        /// Its number.
        node: u32,
        /// 1 when this shard is linked to the same shard of it; of the node itself, too.
        linked: u8,
    }
    /// How far a replica is, as its group's leader knows.
    ReplicaProgress {
        /// The replica: its node in the high 24 bits, its join number in the low 40.
        peer: u64,
        /// Last index it has written.
        written: u64,
        /// Last index it has reported durable.
        durable: u64,
    }
    /// A replica that a shard has of a group.
    GroupStatus {
        /// The group; 0 is the metadata's.
        group: u32,
        /// Counter of the group's history.
        generation: u32,
        /// A `ReplicaRole`.
        role: u8,
        /// Of a leader: 1 once it serves.
        serving: u8,
        /// The `Boundary` that the group answers at.
        answers_at: u8,
        /// So many more nodes may fail before the group stands still, as this node sees it.
        tolerates: u8,
        /// The node that leads, 0 where none is known.
        leader: u32,
        /// Raft's.
        term: u64,
        /// This replica: its node in the high 24 bits, its join number in the low 40.
        peer: u64,
        /// Last entry of its log.
        last: u64,
        /// Last entry that it knows to be committed.
        committed: u64,
        /// Last entry that it applied.
        applied: u64,
        /// Last entry that is durable on it.
        durable: u64,
        /// Replicas that vote, as applied here.
        voters: Vec<u64>,
        /// Replicas that are brought up.
        learners: Vec<u64>,
        /// Of a leader: the other replicas.
        others: Vec<ReplicaProgress>,
    }
    /// A recovery that group 0 ordered and that is not through.
    RecoveryStatus {
        /// The group.
        group: u32,
        /// The generation that ends.
        generation: u32,
        /// 1 when an operator accepts loss; 2 when the answers are enough and an operator is
        /// to decide, as a queue of the group asks.
        accepts_loss: u8,
        /// So many more answers are needed that count.
        missing: u8,
        /// Nodes that answered.
        answered: Vec<u32>,
        /// Replicas whose answers it waits for.
        waits_for: Vec<u64>,
    }
}

/// [`Extension::ON_TOTAL_LOSS`]: the group goes on by itself, and says what is gone.
pub const ON_LOSS_RECOVER: u8 = 1;
/// [`Extension::ON_TOTAL_LOSS`]: the group waits for an operator.
pub const ON_LOSS_HALT: u8 = 2;

/// [`ClusterOrder::flags`]: also where it is refused for its danger.
pub const ORDER_FORCE: u32 = 1;
/// [`ClusterOrder::flags`]: what is lost by it is accepted.
pub const ORDER_ACCEPT_LOSS: u32 = 2;

/// [`Delivery::flags`]: may have been delivered before.
pub const DELIVERY_REDELIVERED: u32 = 1;
/// [`Delivery::flags`]: durable on the queue's copies when it was sent.
pub const DELIVERY_DURABLE: u32 = 2;

/// [`Publish::flags`]: confirm at durable whatever the queue's mode.
pub const PUBLISH_DURABLE: u32 = 1;

/// [`ChangeQueue::flags`]: the copies are to change, too.
pub const CHANGE_COPIES: u32 = 1;
/// [`ChangeQueue::revision`]: whatever the queue's is.
pub const ANY_REVISION: u32 = u32::MAX;

/// [`Settle::flags`]: answer with a settle confirm when the queue's mode is met.
pub const SETTLE_CONFIRM: u32 = 1;

/// [`Hello::wished_shard`]: any shard will do.
pub const ANY_SHARD: u16 = u16::MAX;

bodies! {
    /// First frame of a connection; nothing may follow it before the reply.
    Hello {
        /// Lowest protocol version spoken.
        version_min: u8,
        /// Highest protocol version spoken.
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
    /// Accepts the connection and says what holds on it.
    HelloReply {
        /// The version spoken from here on.
        version: u8,
        /// The node that answers.
        node: u32,
        /// The shard that now serves this connection.
        shard: u16,
        /// Shards of that node.
        shards: u16,
        /// Publish body bytes the client may have unanswered.
        window_bytes: u32,
        /// Limits in force.
        limits: Limits,
        /// For logs: program name and version.
        server: String,
    }
    /// Create a queue, or check that it exists as described.
    Declare {
        /// 1 to 255 bytes, no control characters.
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
    /// Answers declare.
    Declared {
        /// 1 when this declare created it.
        created: u8,
        /// The queue as it stands.
        queue: QueueDescription,
    }
    /// Records for one partition, all or none of them stored.
    Publish {
        /// From `Declared` or `LocateReply`.
        queue_id: u64,
        /// Below the number of partitions.
        partition: u16,
        /// [`PUBLISH_DURABLE`].
        flags: u32,
        /// Milliseconds from receipt; 0 = 30 000.
        deadline_ms: u32,
        /// An idempotent producer, as it chose; 0 = none.
        producer_id: u64,
        /// Of that producer; an older one than the newest seen is refused.
        producer_epoch: u32,
        /// Number of the publish in its epoch and partition, from 0 on upwards.
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
        /// In the order in which they were met.
        items: Vec<ConfirmItem>,
    }
    /// Start deliveries of one partition to this connection.
    Subscribe {
        /// From `Declared` or `LocateReply`.
        queue_id: u64,
        /// Below the number of partitions.
        partition: u16,
        /// Chosen by the client, unique on this connection.
        subscription: u32,
        /// Records that may be delivered before more credit is given.
        credit_records: u32,
        /// Encoded record bytes likewise; one record may overdraw it.
        credit_bytes: u64,
    }
    /// Answers subscribe; deliveries follow.
    Subscribed {
        /// As asked.
        subscription: u32,
        /// The partition's generation now.
        generation: u32,
    }
    /// Adds to the credit of a subscription. Not answered.
    Credit {
        /// As subscribed.
        subscription: u32,
        /// Records more.
        records: u32,
        /// Encoded record bytes more.
        bytes: u64,
    }
    /// Records handed out under a lease.
    Deliver {
        /// The subscription that is served.
        subscription: u32,
        /// As subscribed.
        queue_id: u64,
        /// As subscribed.
        partition: u16,
        /// Of every offset in `deliveries`.
        generation: u32,
        /// One per record.
        deliveries: Vec<Delivery>,
        /// Encoded records back to back, in the order of `deliveries`.
        records: Vec<u8>,
    }
    /// Says what became of deliveries.
    Settle {
        /// As delivered.
        queue_id: u64,
        /// As delivered.
        partition: u16,
        /// As delivered; another one is refused.
        generation: u32,
        /// As delivered.
        subscription: u32,
        /// A `SettleKind`.
        kind: u8,
        /// [`SETTLE_CONFIRM`].
        flags: u32,
        /// For release: not before this many milliseconds.
        delay_ms: u64,
        /// What to settle, in any order.
        items: Vec<SettleItem>,
    }
    /// Answers one settle frame: when asked for, or when items were refused.
    SettleConfirm {
        /// Items that took effect.
        accepted: u32,
        /// The `Boundary` met, 0 when nothing was accepted.
        boundary: u8,
        /// How many copies met it.
        copies: u8,
        /// Items that took no effect, with the reason of each.
        refused: Vec<RefusedSettle>,
    }
    /// Asks for one partition's state.
    QueueInfo {
        /// The queue asked about.
        queue_id: u64,
        /// The partition asked about.
        partition: u16,
    }
    /// One partition's state, as one moment of its owner.
    QueueInfoReply {
        /// The queue as declared.
        queue: QueueDescription,
        /// As asked.
        partition: u16,
        /// The partition's generation now.
        generation: u32,
        /// Next offset that is not yet written; exclusive end.
        written_next: u64,
        /// Next offset that is not yet durable; exclusive end, at most `written_next`.
        durable_next: u64,
        /// Waiting for the delivery gate.
        gated: u64,
        /// Waiting for a consumer with credit.
        ready: u64,
        /// Waiting for their due time.
        delayed: u64,
        /// Delivered and not yet settled.
        leased: u64,
        /// Totals since the queue was declared.
        published: u64,
        /// Settled by acknowledge.
        acknowledged: u64,
        /// Settled by reject.
        dropped: u64,
        /// Reserved, 0.
        expired: u64,
        /// Reserved, 0.
        dead_lettered: u64,
        /// Dropped by purge.
        purged: u64,
        /// Since this process started.
        redelivered: u64,
        /// Written but not yet durable.
        unsynced_records: u64,
        /// Likewise, encoded record bytes.
        unsynced_bytes: u64,
        /// 0 when nothing is ready.
        oldest_ready_age_ms: u64,
        /// Subscriptions now.
        consumers: u32,
        /// 1 when the owning log is latched.
        latched: u8,
        /// Copies that hold the partition now.
        copies_present: u8,
        /// Copies that a confirm needs.
        copies_needed: u8,
        /// Every loss since the queue was declared, oldest first.
        losses: Vec<LossReport>,
    }
    /// Queues by name, in byte order.
    List {
        /// Only names after this one; empty = from the start.
        after: String,
        /// At most this many; 0 = the limit.
        limit: u32,
    }
    /// Answers list.
    ListReply {
        /// In byte order of their names.
        queues: Vec<QueueDescription>,
        /// 1 when more follow the last one.
        more: u8,
    }
    /// Asks how far a partition is written and durable.
    Frontiers {
        /// The queue asked about.
        queue_id: u64,
        /// The partition asked about.
        partition: u16,
    }
    /// Answers frontiers, as one moment of the owner.
    FrontiersReply {
        /// The partition's generation now.
        generation: u32,
        /// Exclusive end of what is written.
        written_next: u64,
        /// Exclusive end of what is durable, at most `written_next`.
        durable_next: u64,
        /// Copies that hold both.
        copies: u8,
    }
    /// Answered when all of the partition before it is durable.
    Barrier {
        /// The queue to wait for.
        queue_id: u64,
        /// The partition to wait for.
        partition: u16,
        /// Milliseconds; 0 = 30 000.
        deadline_ms: u32,
    }
    /// Answers barrier when it is met.
    BarrierReply {
        /// The partition's generation now.
        generation: u32,
        /// Exclusive end of what is written.
        written_next: u64,
        /// Exclusive end of what is durable; at or above what the barrier waited for.
        durable_next: u64,
        /// Copies on which it is durable.
        copies: u8,
    }
    /// Read without disturbing order, leases or counters.
    Peek {
        /// The queue to look into.
        queue_id: u64,
        /// The partition to look into.
        partition: u16,
        /// First offset of interest.
        from_offset: u64,
        /// 0 = 1.
        max_records: u32,
    }
    /// Answers peek.
    PeekReply {
        /// The partition's generation now.
        generation: u32,
        /// One per record, by offset.
        peeked: Vec<Peeked>,
        /// Encoded records back to back, in the order of `peeked`.
        records: Vec<u8>,
    }
    /// Drop everything that is not leased.
    Purge {
        /// The queue to purge.
        queue_id: u64,
        /// The partition to purge.
        partition: u16,
    }
    /// Answers purge.
    Purged {
        /// How many were dropped.
        records: u64,
    }
    /// Deletes a queue; its id is never used again.
    Delete {
        /// The queue to delete, with its records.
        queue_id: u64,
    }
    /// Answers delete.
    Deleted {
        /// As asked.
        queue_id: u64,
    }
    /// Asks for a sign of life.
    Ping {}
    /// Answers ping.
    Pong {}
    /// The peer will close this connection; what is unanswered is unknown.
    GoingAway {
        /// For people.
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
    /// Resolves a queue name to its id and the places of its partitions.
    Locate {
        /// The name to resolve.
        name: String,
    }
    /// Answers locate.
    LocateReply {
        /// The queue of that name, with the places of its partitions.
        queue: QueueDescription,
    }
    /// Says who leads a partition whose publish or subscribe another node passed on. That
    /// is answered all the same; the next ones can go there at once.
    Redirect {
        /// As published.
        queue_id: u64,
        /// As published.
        partition: u16,
        /// The node that leads it.
        node: u32,
        /// The shard to name in hello there.
        shard: u16,
    }
    /// Ends a subscription; its leased records are given back.
    Unsubscribe {
        /// As subscribed.
        subscription: u32,
    }
    /// Answers unsubscribe; no delivery of it follows.
    Unsubscribed {
        /// As asked.
        subscription: u32,
    }
    /// Reserved.
    Extend {
        /// As delivered.
        queue_id: u64,
        /// As delivered.
        partition: u16,
        /// As delivered.
        generation: u32,
        /// As delivered.
        subscription: u32,
        /// From now, milliseconds.
        lease_ms: u64,
        /// Deliveries to extend.
        items: Vec<SettleItem>,
    }
    /// Reserved.
    Extended {
        /// Items that took effect.
        accepted: u32,
        /// Items that did not, with the reason of each.
        refused: Vec<RefusedSettle>,
    }
    /// Asks one shard of a node what it sees of the cluster.
    ClusterStatus {
        /// The node, reached over the links; 0 = the one asked.
        node: u32,
        /// Below its number of shards.
        shard: u16,
    }
    /// Answers cluster status, as one moment of that shard.
    ClusterStatusReply {
        /// The node that says it.
        node: u32,
        /// The shard that says it.
        shard: u16,
        /// Shards of that node.
        shards: u16,
        /// 1 when the shard's log is latched.
        latched: u8,
        /// 1 when it hands over what it leads: it was told to, or stops.
        draining: u8,
        /// Every node of the cluster, ascending; a lone node: itself.
        nodes: Vec<NodeStatus>,
        /// Every group of the shard that has a replica here, ascending.
        groups: Vec<GroupStatus>,
        /// Shard 0, from its copy of group 0.
        recoveries: Vec<RecoveryStatus>,
        /// Shard 0, from its copy of group 0: nodes that were given up.
        forgotten: Vec<u32>,
    }
    /// An operator's order.
    ClusterOrder {
        /// A `ClusterAction`.
        action: u8,
        /// Sum of [`ORDER_FORCE`] and [`ORDER_ACCEPT_LOSS`].
        flags: u32,
        /// The node it is about, or 0.
        node: u32,
        /// The group it is about, or 0.
        group: u32,
        /// For recover: the generation that is to end. For replace: the order's own number,
        /// drawn anew for each: one that comes twice does nothing the second time.
        generation: u32,
    }
    /// Answers a cluster order that is in force.
    ClusterOrdered {
        /// 0 when it was in force before.
        changed: u8,
        /// For people: what it comes to.
        message: String,
    }
    /// Change a queue's mode, its copies, or both, while it runs.
    ChangeQueue {
        /// From `Declared` or `LocateReply`.
        queue_id: u64,
        /// A `Mode`; 0 = keep.
        mode: u8,
        /// Copies W: 0 = majority, 255 = all; kept without [`CHANGE_COPIES`].
        copies: u8,
        /// 0 or [`CHANGE_COPIES`].
        flags: u32,
        /// Refused unless the queue's setting is at this revision, or was when the same change
        /// was made; [`ANY_REVISION`] = whatever it is.
        revision: u32,
    }
    /// Answers change queue: group 0 has it, and each partition's log gets it.
    QueueChanged {
        /// 0 when that was the setting before.
        changed: u8,
        /// The setting's revision now.
        revision: u32,
        /// A `Mode`.
        mode: u8,
        /// Copies W: 0 = majority, 255 = all.
        copies: u8,
    }
}
