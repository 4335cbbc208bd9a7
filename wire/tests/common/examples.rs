//! One fixed body per frame kind, every field set to a value of its own, so
//! that a swapped, lost or moved field shows in the pinned bytes.

use tidegate_wire::{
    error::{ErrorCode, Outcome},
    limits::*,
    message::*,
    record::RecordParts,
    vocabulary::{Boundary, ClusterAction, Mode, RecordState, ReplicaRole, SettleKind},
};

/// Calls `$visit!(Body, example_function)` for every frame kind in numeric order.
#[macro_export]
macro_rules! for_each_body {
    ($visit:ident) => {
        $visit!(Hello, hello);
        $visit!(HelloReply, hello_reply);
        $visit!(Declare, declare);
        $visit!(Declared, declared);
        $visit!(Publish, publish);
        $visit!(Confirm, confirm);
        $visit!(Subscribe, subscribe);
        $visit!(Subscribed, subscribed);
        $visit!(Credit, credit);
        $visit!(Deliver, deliver);
        $visit!(Settle, settle);
        $visit!(SettleConfirm, settle_confirm);
        $visit!(QueueInfo, queue_info);
        $visit!(QueueInfoReply, queue_info_reply);
        $visit!(List, list);
        $visit!(ListReply, list_reply);
        $visit!(Frontiers, frontiers);
        $visit!(FrontiersReply, frontiers_reply);
        $visit!(Barrier, barrier);
        $visit!(BarrierReply, barrier_reply);
        $visit!(Peek, peek);
        $visit!(PeekReply, peek_reply);
        $visit!(Purge, purge);
        $visit!(Purged, purged);
        $visit!(Delete, delete);
        $visit!(Deleted, deleted);
        $visit!(Ping, ping);
        $visit!(Pong, pong);
        $visit!(GoingAway, going_away);
        $visit!(Error, error);
        $visit!(Locate, locate);
        $visit!(LocateReply, locate_reply);
        $visit!(Redirect, redirect);
        $visit!(Unsubscribe, unsubscribe);
        $visit!(Unsubscribed, unsubscribed);
        $visit!(Extend, extend);
        $visit!(Extended, extended);
        $visit!(ClusterStatus, cluster_status);
        $visit!(ClusterStatusReply, cluster_status_reply);
        $visit!(ClusterOrder, cluster_order);
        $visit!(ClusterOrdered, cluster_ordered);
        $visit!(ChangeQueue, change_queue);
        $visit!(QueueChanged, queue_changed);
    };
}

/// Correlation id of every example frame but the deliver, whose id is 0.
pub const CORRELATION: u64 = 0x0102_0304_0506_0708;

const QUEUE_ID: u64 = 0x1112_1314_1516_1718;
const PARTITION: u16 = 0x2122;
const GENERATION: u32 = 0x3132_3334;
const SUBSCRIPTION: u32 = 0x4142_4344;
const LEASE_MS: u64 = 45_000;

/// Not critical, so that decoding accepts it.
fn extensions() -> Vec<Extension> {
    vec![Extension {
        kind: 0x7FFE,
        bytes: vec![0xE0, 0xE1, 0xE2],
    }]
}

/// An encoded record with every field set.
pub fn record_full() -> Vec<u8> {
    let mut out = Vec::new();
    RecordParts {
        key: b"user-17",
        headers: b"\x05\x00\x02\x00\x00\x00traceok",
        payload: b"hello, record",
        not_before_ms: 1_900_000_000_123,
    }
    .encode(&mut out)
    .expect("within the limits");
    out
}

/// The shortest record: nothing but its header.
pub fn record_empty() -> Vec<u8> {
    let mut out = Vec::new();
    RecordParts::default()
        .encode(&mut out)
        .expect("within the limits");
    out
}

/// Both example records back to back, as a batch carries them.
pub fn records() -> Vec<u8> {
    [record_full(), record_empty()].concat()
}

fn queue() -> QueueDescription {
    QueueDescription {
        queue_id: QUEUE_ID,
        name: "orders/ünïted".into(),
        mode: Mode::Buffered as u8,
        copies: 2,
        lease_ms: LEASE_MS,
        partitions: vec![
            PartitionPlace {
                group: 17,
                node: 1,
                shard: 0,
            },
            PartitionPlace {
                group: 18,
                node: 2,
                shard: 3,
            },
        ],
    }
}

pub fn hello() -> Hello {
    Hello {
        version_min: 1,
        version_max: 3,
        wished_shard: 2,
        window_bytes: 8 << 20,
        client: "example-client/1.2".into(),
        authentication: vec![0xA0, 0xA1],
        extensions: extensions(),
    }
}

pub fn hello_reply() -> HelloReply {
    HelloReply {
        version: 1,
        node: 7,
        shard: 2,
        shards: 4,
        window_bytes: 4 << 20,
        limits: Limits {
            frame_bytes: MAX_FRAME_BYTES,
            record_bytes: MAX_RECORD_BYTES,
            name_bytes: MAX_NAME_BYTES as u32,
            headers_bytes: MAX_HEADERS_BYTES,
            batch_records: MAX_BATCH_RECORDS,
        },
        server: "tidegate/0.1.0".into(),
        extensions: extensions(),
    }
}

pub fn declare() -> Declare {
    Declare {
        name: "orders".into(),
        mode: Mode::Speculative as u8,
        copies: 255,
        partitions: 16,
        lease_ms: LEASE_MS,
        extensions: extensions(),
    }
}

pub fn declared() -> Declared {
    Declared {
        created: 1,
        queue: queue(),
        extensions: extensions(),
    }
}

pub fn publish() -> Publish {
    Publish {
        queue_id: QUEUE_ID,
        partition: PARTITION,
        flags: PUBLISH_DURABLE,
        deadline_ms: 5_000,
        producer_id: 0x5152_5354_5556_5758,
        producer_epoch: 0x6162_6364,
        sequence: 0x7172_7374_7576_7778,
        trace: *b"0123456789abcdef",
        count: 2,
        records: records(),
        extensions: extensions(),
    }
}

pub fn confirm() -> Confirm {
    Confirm {
        items: vec![
            ConfirmItem {
                correlation: CORRELATION,
                queue_id: QUEUE_ID,
                partition: PARTITION,
                boundary: Boundary::Durable as u8,
                copies: 3,
                generation: GENERATION,
                first_offset: 1_000,
                count: 64,
            },
            ConfirmItem {
                correlation: CORRELATION + 1,
                queue_id: QUEUE_ID,
                partition: PARTITION + 1,
                boundary: Boundary::Written as u8,
                copies: 2,
                generation: GENERATION,
                first_offset: 2_000,
                count: 1,
            },
        ],
        extensions: extensions(),
    }
}

pub fn subscribe() -> Subscribe {
    Subscribe {
        queue_id: QUEUE_ID,
        partition: PARTITION,
        subscription: SUBSCRIPTION,
        credit_records: 256,
        credit_bytes: 1 << 20,
        extensions: extensions(),
    }
}

pub fn subscribed() -> Subscribed {
    Subscribed {
        subscription: SUBSCRIPTION,
        generation: GENERATION,
        extensions: extensions(),
    }
}

pub fn credit() -> Credit {
    Credit {
        subscription: SUBSCRIPTION,
        records: 128,
        bytes: 1 << 19,
        extensions: extensions(),
    }
}

pub fn deliver() -> Deliver {
    Deliver {
        subscription: SUBSCRIPTION,
        queue_id: QUEUE_ID,
        partition: PARTITION,
        generation: GENERATION,
        deliveries: vec![
            Delivery {
                offset: 1_000,
                attempt: 2,
                flags: DELIVERY_REDELIVERED | DELIVERY_DURABLE,
                len: record_full().len() as u32,
            },
            Delivery {
                offset: 1_001,
                attempt: 1,
                flags: DELIVERY_DURABLE,
                len: record_empty().len() as u32,
            },
        ],
        records: records(),
        extensions: extensions(),
    }
}

fn settle_items() -> Vec<SettleItem> {
    vec![
        SettleItem {
            offset: 1_000,
            attempt: 2,
        },
        SettleItem {
            offset: 1_001,
            attempt: 1,
        },
    ]
}

fn refused() -> Vec<RefusedSettle> {
    vec![RefusedSettle {
        offset: 1_001,
        attempt: 1,
        code: ErrorCode::StaleDelivery as u16,
    }]
}

pub fn settle() -> Settle {
    Settle {
        queue_id: QUEUE_ID,
        partition: PARTITION,
        generation: GENERATION,
        subscription: SUBSCRIPTION,
        kind: SettleKind::Release as u8,
        flags: SETTLE_CONFIRM,
        delay_ms: 2_500,
        items: settle_items(),
        extensions: extensions(),
    }
}

pub fn settle_confirm() -> SettleConfirm {
    SettleConfirm {
        accepted: 1,
        boundary: Boundary::Durable as u8,
        copies: 3,
        refused: refused(),
        extensions: extensions(),
    }
}

pub fn queue_info() -> QueueInfo {
    QueueInfo {
        queue_id: QUEUE_ID,
        partition: PARTITION,
        extensions: extensions(),
    }
}

pub fn queue_info_reply() -> QueueInfoReply {
    QueueInfoReply {
        queue: queue(),
        partition: PARTITION,
        generation: GENERATION,
        written_next: 5_000,
        durable_next: 4_900,
        gated: 101,
        ready: 102,
        delayed: 103,
        leased: 104,
        published: 105,
        acknowledged: 106,
        dropped: 107,
        expired: 108,
        dead_lettered: 109,
        purged: 110,
        redelivered: 111,
        unsynced_records: 112,
        unsynced_bytes: 113,
        oldest_ready_age_ms: 114,
        consumers: 115,
        latched: 1,
        copies_present: 3,
        copies_needed: 2,
        losses: vec![LossReport {
            generation: GENERATION - 1,
            first_lost: 4_000,
            highest_known_confirmed_next: 4_100,
        }],
        extensions: extensions(),
    }
}

pub fn list() -> List {
    List {
        after: "invoices-2031".into(),
        limit: 100,
        extensions: extensions(),
    }
}

pub fn list_reply() -> ListReply {
    let short = QueueDescription {
        name: "eightchr".into(),
        partitions: vec![],
        ..queue()
    };
    ListReply {
        queues: vec![queue(), short],
        more: 1,
        extensions: extensions(),
    }
}

pub fn frontiers() -> Frontiers {
    Frontiers {
        queue_id: QUEUE_ID,
        partition: PARTITION,
        extensions: extensions(),
    }
}

pub fn frontiers_reply() -> FrontiersReply {
    FrontiersReply {
        generation: GENERATION,
        written_next: 5_000,
        durable_next: 4_900,
        copies: 3,
        extensions: extensions(),
    }
}

pub fn barrier() -> Barrier {
    Barrier {
        queue_id: QUEUE_ID,
        partition: PARTITION,
        deadline_ms: 10_000,
        extensions: extensions(),
    }
}

pub fn barrier_reply() -> BarrierReply {
    BarrierReply {
        generation: GENERATION,
        written_next: 5_000,
        durable_next: 4_999,
        copies: 2,
        extensions: extensions(),
    }
}

pub fn peek() -> Peek {
    Peek {
        queue_id: QUEUE_ID,
        partition: PARTITION,
        from_offset: 990,
        max_records: 20,
        extensions: extensions(),
    }
}

pub fn peek_reply() -> PeekReply {
    PeekReply {
        generation: GENERATION,
        peeked: vec![
            Peeked {
                offset: 1_000,
                state: RecordState::Leased as u8,
                attempts: 1,
                len: record_full().len() as u32,
            },
            Peeked {
                offset: 1_001,
                state: RecordState::Delayed as u8,
                attempts: 4,
                len: record_empty().len() as u32,
            },
        ],
        records: records(),
        extensions: extensions(),
    }
}

pub fn purge() -> Purge {
    Purge {
        queue_id: QUEUE_ID,
        partition: PARTITION,
        extensions: extensions(),
    }
}

pub fn purged() -> Purged {
    Purged {
        records: 321,
        extensions: extensions(),
    }
}

pub fn delete() -> Delete {
    Delete {
        queue_id: QUEUE_ID,
        extensions: extensions(),
    }
}

pub fn deleted() -> Deleted {
    Deleted {
        queue_id: QUEUE_ID,
        extensions: extensions(),
    }
}

pub fn ping() -> Ping {
    Ping {
        extensions: extensions(),
    }
}

pub fn pong() -> Pong {
    Pong {
        extensions: extensions(),
    }
}

pub fn going_away() -> GoingAway {
    GoingAway {
        reason: "the server is shutting down".into(),
        extensions: extensions(),
    }
}

/// Its message is long enough for a length of two bytes.
pub fn error() -> Error {
    Error {
        code: ErrorCode::Deadline as u16,
        outcome: Outcome::Unknown as u8,
        message: "the deadline of 5000 ms passed before the confirm: the records \
                  may still be stored"
            .into(),
        extensions: extensions(),
    }
}

pub fn locate() -> Locate {
    Locate {
        name: "orders".into(),
        extensions: extensions(),
    }
}

pub fn locate_reply() -> LocateReply {
    LocateReply {
        queue: queue(),
        extensions: extensions(),
    }
}

pub fn redirect() -> Redirect {
    Redirect {
        queue_id: QUEUE_ID,
        partition: PARTITION,
        node: 7,
        shard: 3,
        extensions: extensions(),
    }
}

pub fn unsubscribe() -> Unsubscribe {
    Unsubscribe {
        subscription: SUBSCRIPTION,
        extensions: extensions(),
    }
}

pub fn unsubscribed() -> Unsubscribed {
    Unsubscribed {
        subscription: SUBSCRIPTION,
        extensions: extensions(),
    }
}

pub fn extend() -> Extend {
    Extend {
        queue_id: QUEUE_ID,
        partition: PARTITION,
        generation: GENERATION,
        subscription: SUBSCRIPTION,
        lease_ms: LEASE_MS,
        items: settle_items(),
        extensions: extensions(),
    }
}

pub fn extended() -> Extended {
    Extended {
        accepted: 1,
        refused: refused(),
        extensions: extensions(),
    }
}

pub fn cluster_status() -> ClusterStatus {
    ClusterStatus {
        node: 0x00C1_C2C3,
        shard: 0x2324,
        extensions: extensions(),
    }
}

fn peer(node: u64, join: u64) -> u64 {
    node << 40 | join
}

pub fn cluster_status_reply() -> ClusterStatusReply {
    let node = |node, linked| NodeStatus { node, linked };
    let group = GroupStatus {
        group: 17,
        generation: GENERATION,
        role: ReplicaRole::Leader as u8,
        serving: 1,
        answers_at: Boundary::Written as u8,
        tolerates: 2,
        leader: 7,
        term: 0x8182_8384_8586_8788,
        peer: peer(7, 12),
        last: 1_005,
        committed: 1_004,
        applied: 1_003,
        durable: 1_002,
        voters: vec![peer(7, 12), peer(8, 1)],
        learners: vec![peer(9, 13)],
        others: vec![ReplicaProgress {
            peer: peer(8, 1),
            written: 1_001,
            durable: 1_000,
        }],
    };
    let recovery = RecoveryStatus {
        group: 18,
        generation: GENERATION,
        accepts_loss: 1,
        missing: 3,
        answered: vec![7, 8],
        waits_for: vec![peer(9, 1)],
    };
    ClusterStatusReply {
        node: 7,
        shard: 1,
        shards: 4,
        latched: 1,
        draining: 2,
        nodes: vec![node(7, 1), node(8, 1), node(9, 0)],
        groups: vec![group],
        recoveries: vec![recovery],
        forgotten: vec![9],
        extensions: extensions(),
    }
}

pub fn cluster_order() -> ClusterOrder {
    ClusterOrder {
        action: ClusterAction::Recover as u8,
        flags: ORDER_FORCE | ORDER_ACCEPT_LOSS,
        node: 7,
        group: 18,
        generation: GENERATION,
        extensions: extensions(),
    }
}

pub fn cluster_ordered() -> ClusterOrdered {
    ClusterOrdered {
        changed: 1,
        message: "node 3 is forgotten: no recovery waits for it".into(),
        extensions: extensions(),
    }
}

pub fn change_queue() -> ChangeQueue {
    ChangeQueue {
        queue_id: QUEUE_ID,
        mode: Mode::Speculative as u8,
        copies: 255,
        flags: CHANGE_COPIES,
        revision: 0x5152_5354,
        extensions: extensions(),
    }
}

pub fn queue_changed() -> QueueChanged {
    QueueChanged {
        changed: 1,
        revision: 0x5152_5355,
        mode: Mode::Buffered as u8,
        copies: 2,
        extensions: extensions(),
    }
}
