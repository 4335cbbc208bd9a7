//! Random operations on a partition and on the model, with commands going
//! through their bytes, captures and relocations in between, and restarts that
//! replay them, on top of the last capture or from the beginning.

use proptest::{collection::vec, prelude::*};

use super::{
    captured::Captured,
    model::Model,
    operations::{any_op, Op},
    *,
};
use crate::state::command::{Command, DeliveryIds};

/// A command as the log has it; `records` is what its records would parse to.
#[derive(Clone)]
pub(super) struct Logged {
    pub(super) bytes: Vec<u8>,
    pub(super) records: Vec<AppendedRecord>,
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
pub(super) fn apply(partition: &mut Partition, entry: &Logged) -> u64 {
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
        Command::NewGeneration { .. } => {
            partition.flag_redelivered_below(partition.next_offset());
            0
        }
        Command::Change {
            mode,
            copies,
            revision,
            ..
        } => u64::from(partition.apply_change(mode, copies, revision)),
        Command::Create(_) | Command::Drop { .. } | Command::Weaken => unreachable!(),
    }
}

/// Applies the commands to both.
pub(super) fn replay(
    mut partition: Partition,
    mut model: Model,
    entries: &[Logged],
) -> (Partition, Model) {
    for entry in entries {
        apply(&mut partition, entry);
        model.apply(&Command::decode(&entry.bytes).unwrap(), &entry.records);
    }
    (partition, model)
}

struct World {
    partition: Partition,
    model: Model,
    applied: Vec<Logged>,
    proposed: Vec<Logged>,
    /// Every delivery ever made: who, offset, attempt.
    seen: Vec<(ConsumerId, u64, u32)>,
    now_ms: u64,
    capturing: Option<Captured>,
    /// The last complete capture.
    captured: Option<Captured>,
    /// Packed files made.
    packs: u32,
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
            capturing: None,
            captured: None,
            packs: 0,
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
            Op::NewGeneration => {
                self.proposed.clear();
                self.propose(Command::NewGeneration {
                    queue_id: 1,
                    partition: 0,
                    generation: 2,
                    first_lost: 0,
                });
                self.restart(1, true);
            }
            Op::Change(mode, copies, revision) => self.propose(Command::Change {
                queue_id: 1,
                partition: 0,
                mode: *mode,
                copies: *copies,
                revision: *revision,
            }),
            Op::Apply(count) => self.apply(*count),
            Op::Capture => {
                let (model, applied) = (&self.model, self.applied.len());
                let begun = Captured::begin(&mut self.partition, model, applied, self.now_ms);
                self.capturing = Some(begun);
            }
            Op::CaptureStep(budget) => self.capture_step(*budget),
            Op::Relocate(from, count) => self.relocate(*from, *count),
            Op::Restart(survivors, kept) => self.restart(*survivors, *kept),
        }
    }

    fn publish(&mut self, records: Vec<AppendedRecord>) {
        let command = Command::Append {
            queue_id: 1,
            partition: 0,
            stamp_ms: self.now_ms,
            count: records.len() as u32,
            producer: None,
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

    fn capture_step(&mut self, budget: usize) {
        if let Some(mut capturing) = self.capturing.take() {
            match capturing.step(&mut self.partition, budget) {
                true => self.capturing = Some(capturing),
                false => self.captured = Some(capturing),
            }
        }
    }

    fn relocate(&mut self, from: u64, count: usize) {
        self.packs += 1;
        let mut moves = Vec::new();
        let mut at = 0;
        let end = self
            .partition
            .visit_places(from, count, &mut |offset, location, len| {
                let to = RecordLocation::Packed {
                    file: self.packs,
                    at,
                };
                at += len;
                moves.push((offset, location, to));
                true
            });
        assert!(end.is_none() || moves.len() == count);
        let mut last = None;
        for (offset, from, to) in moves {
            assert!(offset >= last.unwrap_or(0), "in order");
            last = Some(offset);
            assert!(
                !self.partition.relocate(offset, to, from),
                "it is not there"
            );
            assert!(self.partition.relocate(offset, from, to));
        }
    }

    /// The leader's memory is gone, and so is a capture under way.
    fn restart(&mut self, survivors: usize, kept: bool) {
        self.apply(survivors);
        self.proposed.clear();
        self.capturing = None;
        self.captured = self.captured.take().filter(|_| kept);
        let expected = self.model.persistent();
        (self.partition, self.model) = match &self.captured {
            Some(captured) => captured.restart(&self.applied, self.now_ms),
            None => replay(Partition::new(spec()), Model::new(), &self.applied),
        };
        self.partition.finish_replay();
        self.model.restart();
        assert_eq!(self.model.persistent(), expected);
        assert_eq!(self.partition.mark(), self.model.mark);
    }

    fn check(&self) {
        assert_conserved(&self.partition);
        let counts = PartitionCounts {
            oldest_ready_age_ms: 0,
            ..self.partition.counts(self.now_ms)
        };
        assert_eq!(counts, self.model.counts());
        assert_eq!(self.partition.change(), self.model.change.as_ref());
        let setting = (self.partition.spec().mode, self.partition.spec().copies);
        assert_eq!(setting, self.model.setting.unwrap_or((Mode::Durable, 0)));
        let leased = self.partition.slots.count(SlotState::Leased);
        let held = self.partition.consumers.as_ref();
        assert_eq!(held.map_or(0, |all| all.leased()), leased);
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
        if self.capturing.is_none() {
            self.step(&Op::Capture);
        }
        while self.capturing.is_some() {
            self.capture_step(100);
        }
        self.restart(0, true);
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

/// `PROPTEST_CASES` if it is set, else few enough for every run.
fn budget() -> ProptestConfig {
    let standard = ProptestConfig::default();
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => standard,
        None => ProptestConfig {
            cases: 200,
            ..standard
        },
    }
}

proptest! {
    #![proptest_config(budget())]

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
