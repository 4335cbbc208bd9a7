//! What the random test does to a partition.

use proptest::{collection::vec, prelude::*};

use super::*;

#[derive(Debug, Clone)]
pub(super) enum Op {
    /// Lengths and delays (0 = none) of the records.
    Publish(Vec<(u32, u64)>),
    PublishMany(u32),
    /// Opens the gate for so many more records.
    Open(u64),
    Subscribe(ConsumerId, u32, u64),
    Credit(ConsumerId, u32, u64),
    Unsubscribe(ConsumerId),
    Disconnect(u64),
    /// So many, with the connections of the mask blocked.
    Deliver(u32, u8),
    Undo(usize),
    /// Which of the ids seen, whether by its holder, what to do, delay.
    Settle(usize, bool, SettleKind, u64),
    /// A command of an earlier leader, or none that any leader would propose.
    Stray(usize, u32, SettleKind, bool),
    Pass(u64),
    /// To just before the next lease end or due time, then to it.
    PassToDeadline,
    Mark,
    OpenMark,
    Purge(u64),
    /// A restart on which the group's history goes on as a new generation.
    NewGeneration,
    /// Mode, copies, revision.
    Change(Mode, u8, u32),
    /// Applies so many of the proposed commands.
    Apply(usize),
    /// Begins a capture; one under way is given up.
    Capture,
    /// Captures so many records more.
    CaptureStep(usize),
    /// So many records from there on are elsewhere now.
    Relocate(u64, usize),
    /// So many of the commands not yet applied have survived; whether the last
    /// complete capture did.
    Restart(usize, bool),
}

fn any_consumer() -> impl Strategy<Value = ConsumerId> {
    (0u64..4, 0u32..2).prop_map(|(connection, subscription)| consumer(connection, subscription))
}

fn any_kind() -> impl Strategy<Value = SettleKind> {
    prop_oneof![
        3 => Just(SettleKind::Acknowledge),
        2 => Just(SettleKind::Release),
        1 => Just(SettleKind::Reject),
    ]
}

fn any_delay() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(0), 1 => 1u64..LEASE_MS]
}

pub(super) fn any_op() -> impl Strategy<Value = Op> {
    let id = any_consumer;
    let records = || 0u32..40;
    let bytes = || prop_oneof![0u64..400, Just(1 << 40)];
    prop_oneof![
        6 => vec((1u32..200, any_delay()), 0..40).prop_map(Op::Publish),
        1 => (300u32..700).prop_map(Op::PublishMany),
        6 => prop_oneof![0u64..20, Just(10_000)].prop_map(Op::Open),
        3 => (id(), records(), bytes()).prop_map(|(id, r, b)| Op::Subscribe(id, r, b)),
        4 => (id(), prop_oneof![records(), Just(1000)], bytes())
            .prop_map(|(id, r, b)| Op::Credit(id, r, b)),
        1 => id().prop_map(Op::Unsubscribe),
        1 => (0u64..4).prop_map(Op::Disconnect),
        10 => (prop_oneof![1u32..8, 1u32..800], prop_oneof![Just(0u8), 0u8..16]).prop_map(|(n, b)| Op::Deliver(n, b)),
        3 => any::<usize>().prop_map(Op::Undo),
        16 => (any::<usize>(), prop::bool::weighted(0.9), any_kind(), any_delay())
            .prop_map(|(at, own, kind, delay)| Op::Settle(at, own, kind, delay)),
        1 => (any::<usize>(), 0u32..4, any_kind(), any::<bool>())
            .prop_map(|(at, n, kind, end)| Op::Stray(at, n, kind, end)),
        4 => prop_oneof![0u64..100, LEASE_MS / 3..LEASE_MS * 2].prop_map(Op::Pass),
        4 => Just(Op::PassToDeadline),
        3 => Just(Op::Mark),
        2 => Just(Op::OpenMark),
        1 => (0u64..2000).prop_map(Op::Purge),
        1 => Just(Op::NewGeneration),
        2 => (0..3usize, 0u8..4, 1u32..40).prop_map(|(mode, w, r)| Op::Change(Mode::ALL[mode], w, r)),
        12 => (1usize..20).prop_map(Op::Apply),
        2 => Just(Op::Capture),
        8 => prop_oneof![1usize..4, 1usize..300, Just(100_000)].prop_map(Op::CaptureStep),
        2 => (0u64..2000, 1usize..300).prop_map(|(from, count)| Op::Relocate(from, count)),
        2 => (0usize..20, prop::bool::weighted(0.8)).prop_map(|(n, kept)| Op::Restart(n, kept)),
    ]
}
