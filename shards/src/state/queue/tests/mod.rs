//! Behaviour of a partition, by name; and random operations against
//! a simple model (`random`, `model`).

mod captured;
mod delivery;
mod faults;
mod log;
mod model;
mod operations;
mod random;

use super::*;
use crate::state::command::LeaseEndCause;
use wire::vocabulary::{Mode, SettleKind};

pub(super) const LEASE_MS: u64 = 30_000;
pub(super) const NOW: u64 = 1_000_000;

pub(super) fn spec() -> PartitionSpec {
    PartitionSpec {
        queue_id: 1,
        partition: 0,
        mode: Mode::Durable,
        copies: 0,
        lease_ms: LEASE_MS,
    }
}

pub(super) fn record(len: u32, not_before_ms: u64) -> AppendedRecord {
    AppendedRecord {
        location: RecordLocation::Ring(4096 + u64::from(len)),
        len,
        not_before_ms,
    }
}

pub(super) fn consumer(connection: u64, subscription: u32) -> ConsumerId {
    ConsumerId {
        connection,
        subscription,
    }
}

/// A partition with `count` records of 100 bytes behind the gate.
pub(super) fn filled(count: u64) -> Partition {
    let mut partition = Partition::new(spec());
    publish(&mut partition, count);
    partition
}

pub(super) fn publish(partition: &mut Partition, count: u64) {
    let records = vec![record(100, 0); count as usize];
    partition.apply_append(NOW, &records);
    partition.open_delivery(partition.next_offset());
}

pub(super) fn deliver(partition: &mut Partition, now_ms: u64) -> Option<Dispatch> {
    partition.next_delivery(now_ms, &mut |_| false)
}

/// Delivers until nothing comes.
pub(super) fn drain(partition: &mut Partition, now_ms: u64) -> Vec<Dispatch> {
    std::iter::from_fn(|| deliver(partition, now_ms)).collect()
}

pub(super) fn offsets(dispatches: &[Dispatch]) -> Vec<u64> {
    dispatches.iter().map(|dispatch| dispatch.offset).collect()
}

/// Settles as the engine does: begin, then apply.
pub(super) fn settle(
    partition: &mut Partition,
    connection: u64,
    kind: SettleKind,
    due_ms: u64,
    ids: &[(u64, u32)],
) {
    for (offset, attempt) in ids {
        partition
            .begin_settle(connection, *offset, *attempt)
            .unwrap();
    }
    let took = partition.apply_settle(kind, due_ms, ids);
    assert_eq!(took as usize, ids.len());
}

#[track_caller]
pub(super) fn assert_conserved(partition: &Partition) {
    let counts = partition.counts(NOW);
    assert_eq!(
        counts.published,
        counts.gated
            + counts.ready
            + counts.delayed
            + counts.leased
            + counts.acknowledged
            + counts.dropped
            + counts.purged,
        "{counts:?}"
    );
}

/// What replay must restore of each record: offset, attempts, location, length.
pub(super) fn persistent(partition: &Partition) -> Vec<(u64, u32, RecordLocation, u32)> {
    let mut all = Vec::new();
    partition.peek(0, u32::MAX, &mut |offset, _, attempts, location, len| {
        all.push((offset, attempts, location, len));
    });
    all
}

pub(super) const EXPIRED: LeaseEndCause = LeaseEndCause::Expired;
