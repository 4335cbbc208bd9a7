//! Random operations on a partition and on the model, with commands going
//! through their bytes and restarts that replay them.

use proptest::{collection::vec, prelude::*};

use super::{model::Model, *};
use crate::state::command::{Command, DeliveryIds};

#[derive(Debug, Clone)]
enum Op {
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
    /// Applies so many of the proposed commands.
    Apply(usize),
    /// So many of the commands not yet applied have survived.
    Restart(usize),
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

fn any_op() -> impl Strategy<Value = Op> {
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
        12 => (1usize..20).prop_map(Op::Apply),
        2 => (0usize..20).prop_map(Op::Restart),
    ]
}

/// A command as the log has it; `records` is what its records would parse to.
#[derive(Clone)]
struct Logged {
    bytes: Vec<u8>,
    records: Vec<AppendedRecord>,
}

fn logged(command: Command<'_>, records: Vec<AppendedRecord>) -> Logged {
    let mut bytes = command.head().bytes().to_vec();
    bytes.extend_from_slice(command.tail());
    Logged { bytes, records }
}

fn ids_bytes(ids: &[(u64, u32)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (offset, attempt) in ids {
        DeliveryIds::push(&mut out, *offset, *attempt);
    }
    out
}

/// As the engine does it.
fn apply(partition: &mut Partition, entry: &Logged) -> u64 {
    match Command::decode(&entry.bytes).unwrap() {
        Command::Append { stamp_ms, .. } => {
            partition.apply_append(stamp_ms, &entry.records);
            entry.records.len() as u64
        }
        Command::Settle {
            kind,
            due_ms,
            items,
            ..
        } => {
            let items: Vec<_> = items.iter().collect();
            u64::from(partition.apply_settle(kind, due_ms, &items))
        }
        Command::LeaseEnded { cause, items, .. } => {
            let items: Vec<_> = items.iter().collect();
            let before = partition.counts(0);
            partition.apply_lease_ended(cause, &items);
            assert_eq!(before.acknowledged, partition.counts(0).acknowledged);
            u64::MAX
        }
        Command::DispatchMark { mark, .. } => {
            partition.apply_mark(mark);
            0
        }
        Command::Purge { below, keep, .. } => {
            let keep: Vec<_> = keep.iter().collect();
            partition.apply_purge(below, &keep)
        }
        Command::Create(_)
        | Command::Drop { .. }
        | Command::Weaken
        | Command::NewGeneration { .. } => unreachable!(),
    }
}

struct World {
    partition: Partition,
    model: Model,
    applied: Vec<Logged>,
    proposed: Vec<Logged>,
    /// Every delivery ever made: who, offset, attempt.
    seen: Vec<(ConsumerId, u64, u32)>,
    now_ms: u64,
}

impl World {
    fn new() -> Self {
        World {
            partition: Partition::new(spec()),
            model: Model::new(),
            applied: Vec::new(),
            proposed: Vec::new(),
            seen: Vec::new(),
            now_ms: NOW,
        }
    }

    fn step(&mut self, op: &Op) {
        match op {
            Op::Publish(records) => {
                let due = |delay: &u64| if *delay == 0 { 0 } else { self.now_ms + delay };
                let records = records.iter().map(|(len, delay)| record(*len, due(delay)));
                self.publish(records.collect());
            }
            Op::PublishMany(count) => self.publish(vec![record(10, 0); *count as usize]),
            Op::Open(more) => {
                self.partition.open_delivery(self.model.open + more);
                let end = self.model.records.len() as u64;
                self.model.open = (self.model.open + more).min(end);
            }
            Op::Subscribe(id, records, bytes) => {
                let new = !self.model.consumers.contains_key(id);
                assert_eq!(self.partition.subscribe(*id, *records, *bytes), new);
                if new {
                    self.model.grant(*id, *records, *bytes);
                }
            }
            Op::Credit(id, records, bytes) => {
                let known = self.model.consumers.contains_key(id);
                assert_eq!(self.partition.add_credit(*id, *records, *bytes), known);
                if known {
                    self.model.grant(*id, *records, *bytes);
                }
            }
            Op::Unsubscribe(id) => {
                let mut ended = Vec::new();
                let known = self.model.consumers.contains_key(id);
                assert_eq!(self.partition.unsubscribe(*id, &mut ended), known);
                let expected = self.model.end_leases(|by, _| by == *id, false);
                self.model.consumers.remove(id);
                self.lease_ended(ended, expected, LeaseEndCause::Unsubscribed);
            }
            Op::Disconnect(connection) => {
                let mut ended = Vec::new();
                self.partition.disconnect(*connection, &mut ended);
                let theirs = |by: ConsumerId, _| by.connection == *connection;
                let expected = self.model.end_leases(theirs, false);
                self.model
                    .consumers
                    .retain(|id, _| id.connection != *connection);
                self.lease_ended(ended, expected, LeaseEndCause::Disconnected);
            }
            Op::Deliver(count, mask) => self.deliver(*count, *mask),
            Op::Undo(at) => {
                let leased = self.model.leased();
                if !leased.is_empty() {
                    let (_, offset, attempt) = leased[at % leased.len()];
                    self.partition.undo_dispatch(offset, attempt + 1);
                    self.partition.undo_dispatch(offset, attempt - 1);
                    if at % 4 != 0 {
                        self.partition.undo_dispatch(offset, attempt);
                        self.model.undo(offset);
                    }
                }
            }
            Op::Settle(at, own, kind, delay) => self.settle(*at, *own, *kind, *delay),
            Op::Stray(at, more, kind, lease_end) => self.stray(*at, *more, *kind, *lease_end),
            Op::Pass(ms) => self.pass(*ms),
            Op::PassToDeadline => {
                let due = self.model.deadline_ms().unwrap_or(0);
                self.pass(due.saturating_sub(self.now_ms + 1));
                self.pass(1);
            }
            Op::Mark => {
                if let Some(mark) = self.partition.wants_mark() {
                    assert!(mark > self.model.mark);
                    self.propose(Command::DispatchMark {
                        queue_id: 1,
                        partition: 0,
                        mark,
                    });
                }
            }
            Op::OpenMark => {
                self.partition.open_mark(self.model.mark);
                self.model.opened_mark = self.model.mark;
            }
            Op::Purge(below) => {
                let mut keep = Vec::new();
                self.partition.leased_below(*below, &mut keep);
                self.propose(Command::Purge {
                    queue_id: 1,
                    partition: 0,
                    below: *below,
                    keep: DeliveryIds(&ids_bytes(&keep)),
                });
            }
            Op::Apply(count) => self.apply(*count),
            Op::Restart(survivors) => self.restart(*survivors),
        }
    }

    fn publish(&mut self, records: Vec<AppendedRecord>) {
        let command = Command::Append {
            queue_id: 1,
            partition: 0,
            stamp_ms: self.now_ms,
            count: records.len() as u32,
            records: b"not looked into",
        };
        self.proposed.push(logged(command, records));
    }

    fn propose(&mut self, command: Command<'_>) {
        self.proposed.push(logged(command, Vec::new()));
    }

    fn lease_ended(
        &mut self,
        mut ended: Vec<(u64, u32)>,
        expected: Vec<(u64, u32)>,
        cause: LeaseEndCause,
    ) {
        ended.sort_unstable();
        assert_eq!(ended, expected);
        self.propose(Command::LeaseEnded {
            queue_id: 1,
            partition: 0,
            cause,
            items: DeliveryIds(&ids_bytes(&ended)),
        });
    }

    fn deliver(&mut self, count: u32, mask: u8) {
        self.now_ms += 1;
        let blocked = |id: ConsumerId| u64::from(mask) >> id.connection & 1 == 1;
        self.model.pass_time(self.now_ms);
        for _ in 0..count {
            match self.partition.next_delivery(self.now_ms, &mut { blocked }) {
                Some(dispatch) => {
                    self.model.delivered(&dispatch, self.now_ms, &blocked);
                    let seen = (dispatch.consumer, dispatch.offset, dispatch.attempt);
                    self.seen.push(seen);
                }
                None => {
                    self.model.delivered_nothing(&blocked);
                    break;
                }
            }
        }
    }

    fn settle(&mut self, at: usize, own: bool, kind: SettleKind, delay_ms: u64) {
        if self.seen.is_empty() {
            return;
        }
        // Mostly recent ones, sometimes any.
        let back = if at.is_multiple_of(4) {
            self.seen.len()
        } else {
            60
        };
        let from = self.seen.len() - back.min(self.seen.len());
        let recent = &self.seen[from..];
        let mut ids = Vec::new();
        for step in 0..1 + at % 30 {
            let (by, offset, attempt) = recent[(at / 7 + step) % recent.len()];
            let connection = by.connection + u64::from(!own);
            let begun = self.partition.begin_settle(connection, offset, attempt);
            let expected = self.model.begin_settle(connection, (offset, attempt));
            assert_eq!(begun, expected);
            if begun.is_ok() {
                ids.push((offset, attempt));
            }
        }
        self.propose(Command::Settle {
            queue_id: 1,
            partition: 0,
            stamp_ms: self.now_ms,
            kind,
            due_ms: if delay_ms == 0 {
                0
            } else {
                self.now_ms + delay_ms
            },
            items: DeliveryIds(&ids_bytes(&ids)),
        });
    }

    fn stray(&mut self, at: usize, more: u32, kind: SettleKind, lease_end: bool) {
        let mut ids = vec![(at as u64 % 64, more)];
        if !self.seen.is_empty() {
            let (_, offset, attempt) = self.seen[at % self.seen.len()];
            ids.push((offset, attempt));
            ids.push((offset, attempt.wrapping_add(more)));
        }
        let items = ids_bytes(&ids);
        let items = DeliveryIds(&items);
        let (queue_id, partition, stamp_ms) = (1, 0, self.now_ms);
        self.propose(if lease_end {
            Command::LeaseEnded {
                queue_id,
                partition,
                cause: EXPIRED,
                items,
            }
        } else {
            Command::Settle {
                queue_id,
                partition,
                stamp_ms,
                kind,
                due_ms: 0,
                items,
            }
        });
    }

    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        let now_ms = self.now_ms;
        self.model.pass_time(now_ms);
        let mut ended = Vec::new();
        self.partition.expire(now_ms, &mut ended);
        let expected = self.model.end_leases(|_, ends_ms| ends_ms <= now_ms, true);
        self.lease_ended(ended, expected, EXPIRED);
        let deadline = self.partition.next_deadline_ms();
        assert!(deadline.is_none_or(|deadline| deadline > now_ms));
    }

    fn apply(&mut self, count: usize) {
        let count = count.min(self.proposed.len());
        for entry in self.proposed.drain(..count) {
            let took = apply(&mut self.partition, &entry);
            let command = Command::decode(&entry.bytes).unwrap();
            let expected = self.model.apply(&command, &entry.records);
            assert!(took == expected || took == u64::MAX, "{command:?}");
            self.applied.push(entry);
        }
    }

    fn restart(&mut self, survivors: usize) {
        self.apply(survivors);
        self.proposed.clear();
        self.partition = Partition::new(spec());
        for entry in &self.applied {
            apply(&mut self.partition, entry);
        }
        self.partition.finish_replay();
        self.model.restart();
        assert_eq!(self.partition.mark(), self.model.mark);
    }

    fn check(&self) {
        assert_conserved(&self.partition);
        let counts = PartitionCounts {
            oldest_ready_age_ms: 0,
            ..self.partition.counts(self.now_ms)
        };
        assert_eq!(counts, self.model.counts());
        let leased = self.partition.slots.count(SlotState::Leased);
        assert_eq!(self.partition.consumers.leased(), leased);
        let held = persistent(&self.partition).into_iter();
        let held: Vec<_> = held
            .map(|(at, attempts, _, len)| (at, attempts, len))
            .collect();
        assert_eq!(held, self.model.persistent());
        let deadline = self.partition.next_deadline_ms();
        if let Some(due) = self.model.deadline_ms() {
            assert!(deadline.is_some_and(|deadline| deadline <= due));
        }
    }

    /// Heals and drains: everything that is left comes out exactly once more.
    fn drain(&mut self) {
        self.apply(usize::MAX);
        self.restart(0);
        self.partition.open_delivery(u64::MAX);
        self.model.open = self.model.records.len() as u64;
        let id = consumer(9, 9);
        self.partition.subscribe(id, u32::MAX, 1 << 60);
        self.model.grant(id, u32::MAX, 1 << 60);
        self.now_ms += 10 * LEASE_MS;
        let left = self.model.persistent().len();
        let mut got = 0;
        loop {
            let before = self.seen.len();
            self.deliver(u32::MAX, 0);
            got += self.seen.len() - before;
            self.step(&Op::Mark);
            if self.seen.len() == before && self.proposed.is_empty() {
                break;
            }
            self.apply(usize::MAX);
            self.step(&Op::OpenMark);
        }
        assert_eq!(got, left);
        let ids: Vec<_> = self.model.leased();
        for (by, offset, attempt) in ids {
            assert_eq!(
                self.partition.begin_settle(by.connection, offset, attempt),
                Ok(())
            );
            self.partition
                .apply_settle(SettleKind::Acknowledge, 0, &[(offset, attempt)]);
        }
        let counts = self.partition.counts(self.now_ms);
        let settled = counts.acknowledged + counts.dropped + counts.purged;
        assert_eq!(counts.published, settled);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_partition_behaves_as_the_model(ops in vec(any_op(), 1..150)) {
        let mut world = World::new();
        for op in &ops {
            world.step(op);
            world.check();
        }
        world.drain();
    }
}
