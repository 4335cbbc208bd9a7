//! The simple model: a list of records, every question answered by looking at
//! all of them.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::state::command::Command;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Live,
    Acknowledged,
    Dropped,
    Purged,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    Nobody,
    Leased { by: ConsumerId, ends_ms: u64 },
    Settling,
    Ended,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Rec {
    pub(super) len: u32,
    /// As the log says.
    log_due_ms: u64,
    /// 0 once it has come due.
    due_ms: u64,
    pub(super) attempts: u32,
    pub(super) fate: Fate,
    pub(super) hold: Hold,
    /// Was handed out in this leadership.
    touched: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Credit {
    pub(super) records: u64,
    pub(super) bytes: i64,
    window_records: u64,
    window_bytes: i64,
    /// Who was served since this one has been waiting.
    passed_by: BTreeSet<ConsumerId>,
}

impl Credit {
    pub(super) fn is_some(&self) -> bool {
        self.records > 0 && self.bytes > 0
    }

    fn grant(&mut self, records: u32, bytes: u64) {
        self.records += u64::from(records);
        self.bytes += bytes as i64;
        self.window_records = self.window_records.max(self.records);
        self.window_bytes = self.window_bytes.max(self.bytes);
    }

    fn lapse(&mut self, len: u32) {
        self.records = self
            .records
            .max((self.records + 1).min(self.window_records));
        let more = (self.bytes + i64::from(len)).min(self.window_bytes);
        self.bytes = self.bytes.max(more);
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Model {
    pub(super) records: Vec<Rec>,
    pub(super) open: u64,
    pub(super) mark: u64,
    pub(super) opened_mark: u64,
    flagged_below: u64,
    pub(super) consumers: BTreeMap<ConsumerId, Credit>,
    redelivered: u64,
    /// Of the last change.
    pub(super) change: Option<Change>,
    pub(super) setting: Option<(Mode, u8)>,
}

impl Model {
    pub(super) fn new() -> Self {
        Model {
            mark: mark::FIRST_MARK,
            opened_mark: mark::FIRST_MARK,
            ..Model::default()
        }
    }

    /// Applies a command; returns how many records it affected.
    pub(super) fn apply(&mut self, command: &Command<'_>, appended: &[AppendedRecord]) -> u64 {
        match *command {
            Command::Append { .. } => {
                self.records.extend(appended.iter().map(|record| Rec {
                    len: record.len,
                    log_due_ms: record.not_before_ms,
                    due_ms: record.not_before_ms,
                    attempts: 0,
                    fate: Fate::Live,
                    hold: Hold::Nobody,
                    touched: false,
                }));
                appended.len() as u64
            }
            Command::Settle {
                kind,
                due_ms,
                items,
                ..
            } => items
                .iter()
                .map(|id| match kind {
                    SettleKind::Acknowledge => self.finish(id, Fate::Acknowledged),
                    SettleKind::Reject => self.finish(id, Fate::Dropped),
                    SettleKind::Release => self.give_back(id, due_ms),
                })
                .sum(),
            Command::LeaseEnded { items, .. } => items.iter().map(|id| self.give_back(id, 0)).sum(),
            Command::DispatchMark { mark, .. } => {
                self.mark = self.mark.max(mark);
                0
            }
            Command::Purge { below, keep, .. } => {
                let mut count = 0;
                for at in 0..self.records.len().min(below as usize) {
                    let id = (at as u64, self.records[at].attempts + 1);
                    if !keep.iter().any(|kept| kept == id) {
                        count += self.finish(id, Fate::Purged);
                    }
                }
                count
            }
            Command::NewGeneration { .. } => {
                self.flagged_below = self.records.len() as u64;
                0
            }
            Command::Change {
                mode,
                copies,
                revision,
                ..
            } => {
                let newest = self.change.map_or(0, |change| change.revision);
                if revision > newest {
                    self.change = Some(Change {
                        revision,
                        since: self.records.len() as u64,
                        copies_before: self.setting.map_or(0, |(_, copies)| copies),
                    });
                    self.setting = Some((mode, copies));
                }
                u64::from(revision > newest)
            }
            Command::Create(_) | Command::Drop { .. } | Command::Weaken => 0,
        }
    }

    fn current(&mut self, (offset, attempt): (u64, u32)) -> Option<&mut Rec> {
        let rec = self.records.get_mut(usize::try_from(offset).ok()?)?;
        (rec.fate == Fate::Live && rec.attempts + 1 == attempt).then_some(rec)
    }

    fn finish(&mut self, id: (u64, u32), fate: Fate) -> u64 {
        self.current(id).map_or(0, |rec| {
            rec.fate = fate;
            1
        })
    }

    fn give_back(&mut self, id: (u64, u32), due_ms: u64) -> u64 {
        self.current(id).map_or(0, |rec| {
            rec.attempts += 1;
            (rec.due_ms, rec.log_due_ms) = (due_ms, due_ms);
            rec.hold = Hold::Nobody;
            1
        })
    }

    /// As a capture shows it: a due time that came is not in it.
    pub(super) fn as_captured(&self) -> Self {
        let mut captured = self.clone();
        for rec in &mut captured.records {
            rec.log_due_ms = rec.due_ms;
        }
        captured
    }

    /// A new leadership, after replay.
    pub(super) fn restart(&mut self) {
        for rec in &mut self.records {
            rec.hold = Hold::Nobody;
            rec.due_ms = rec.log_due_ms;
            rec.touched = false;
        }
        self.open = 0;
        self.opened_mark = self.mark;
        let marked = self.mark.min(self.records.len() as u64);
        self.flagged_below = self.flagged_below.max(marked);
        self.consumers.clear();
        self.redelivered = 0;
    }

    pub(super) fn grant(&mut self, id: ConsumerId, records: u32, bytes: u64) {
        self.consumers.entry(id).or_default().grant(records, bytes);
    }

    fn behind_gate(&self, at: usize) -> bool {
        self.records[at].fate == Fate::Live && (at as u64) < self.open
    }

    fn is_ready(&self, at: usize) -> bool {
        let rec = &self.records[at];
        self.behind_gate(at) && rec.hold == Hold::Nobody && rec.due_ms == 0
    }

    fn is_plain_first(&self, at: usize) -> bool {
        let rec = &self.records[at];
        self.is_ready(at) && !rec.touched && rec.attempts == 0 && rec.log_due_ms == 0
    }

    pub(super) fn pass_time(&mut self, now_ms: u64) {
        for at in 0..self.records.len() {
            if self.behind_gate(at) && self.records[at].due_ms <= now_ms {
                self.records[at].due_ms = 0;
            }
        }
    }

    /// Checks a delivery against everything that must hold of it.
    pub(super) fn delivered(
        &mut self,
        dispatch: &Dispatch,
        now_ms: u64,
        blocked: &dyn Fn(ConsumerId) -> bool,
    ) {
        let at = dispatch.offset as usize;
        assert!(self.is_ready(at), "{dispatch:?} of {:?}", self.records[at]);
        assert!(dispatch.offset < self.opened_mark, "above the mark");
        let rec = self.records[at];
        assert_eq!(dispatch.attempt, rec.attempts + 1, "attempts");
        assert_eq!(dispatch.len, rec.len);
        let flagged = rec.attempts > 0 || dispatch.offset < self.flagged_below;
        assert_eq!(dispatch.redelivered, flagged, "flag of {dispatch:?}");
        if self.is_plain_first(at) {
            let earlier = (0..at).find(|before| self.is_plain_first(*before));
            assert_eq!(earlier, None, "overtaken by {at}");
        }
        let id = dispatch.consumer;
        assert!(!blocked(id) && self.consumers[&id].is_some());
        for (other, credit) in &mut self.consumers {
            if *other == id || !credit.is_some() || blocked(*other) {
                credit.passed_by.clear();
            } else {
                assert!(credit.passed_by.insert(id), "{id:?} twice before {other:?}");
            }
        }
        let credit = self.consumers.get_mut(&id).unwrap();
        credit.records -= 1;
        credit.bytes -= i64::from(rec.len);
        self.redelivered += u64::from(flagged);
        self.records[at].touched = true;
        self.records[at].hold = Hold::Leased {
            by: id,
            ends_ms: now_ms + LEASE_MS,
        };
    }

    /// Nothing was delivered: nothing could have been. Who was found blocked
    /// lost its turn, as in [`Model::delivered`].
    pub(super) fn delivered_nothing(&mut self, blocked: &dyn Fn(ConsumerId) -> bool) {
        for (id, credit) in &mut self.consumers {
            if blocked(*id) {
                credit.passed_by.clear();
            }
        }
        let mut consumers = self.consumers.iter();
        if !consumers.any(|(id, credit)| credit.is_some() && !blocked(*id)) {
            return;
        }
        let below = self.records.len().min(self.opened_mark as usize);
        let ready = (0..below).find(|at| self.is_ready(*at));
        assert_eq!(ready, None, "ready, but not delivered");
    }

    pub(super) fn undo(&mut self, offset: u64) {
        let rec = &mut self.records[offset as usize];
        if let Hold::Leased { by, .. } = rec.hold {
            rec.hold = Hold::Nobody;
            let flagged = rec.attempts > 0 || offset < self.flagged_below;
            self.redelivered -= u64::from(flagged);
            let credit = self.consumers.get_mut(&by).unwrap();
            credit.records += 1;
            credit.bytes += i64::from(rec.len);
        }
    }

    pub(super) fn begin_settle(
        &mut self,
        connection: u64,
        id: (u64, u32),
    ) -> Result<(), SettleRefusal> {
        let rec = self.current(id).ok_or(SettleRefusal::Stale)?;
        match rec.hold {
            Hold::Leased { by, .. } if by.connection == connection => {
                rec.hold = Hold::Settling;
                Ok(())
            }
            Hold::Settling => Err(SettleRefusal::InProgress),
            _ => Err(SettleRefusal::Stale),
        }
    }

    /// Ends the leases that `ends` says; returns their ids in offset order.
    pub(super) fn end_leases(
        &mut self,
        ends: impl Fn(ConsumerId, u64) -> bool,
        lapse: bool,
    ) -> Vec<(u64, u32)> {
        let mut ended = Vec::new();
        for (offset, rec) in (0u64..).zip(&mut self.records) {
            let Hold::Leased { by, ends_ms } = rec.hold else {
                continue;
            };
            if rec.fate == Fate::Live && ends(by, ends_ms) {
                rec.hold = Hold::Ended;
                ended.push((offset, rec.attempts + 1));
                if lapse {
                    self.consumers.get_mut(&by).unwrap().lapse(rec.len);
                }
            }
        }
        ended
    }

    /// Ids under a lease, whoever holds it.
    pub(super) fn leased(&self) -> Vec<(ConsumerId, u64, u32)> {
        let live = (0u64..).zip(&self.records);
        live.filter(|(_, rec)| rec.fate == Fate::Live)
            .filter_map(|(offset, rec)| match rec.hold {
                Hold::Leased { by, .. } => Some((by, offset, rec.attempts + 1)),
                _ => None,
            })
            .collect()
    }

    /// Earliest lease end or due time.
    pub(super) fn deadline_ms(&self) -> Option<u64> {
        (0..self.records.len())
            .filter(|at| self.behind_gate(*at))
            .filter_map(|at| match self.records[at].hold {
                Hold::Leased { ends_ms, .. } => Some(ends_ms),
                Hold::Nobody => Some(self.records[at].due_ms).filter(|due| *due > 0),
                _ => None,
            })
            .min()
    }

    pub(super) fn counts(&self) -> PartitionCounts {
        let mut counts = PartitionCounts {
            published: self.records.len() as u64,
            redelivered: self.redelivered,
            consumers: self.consumers.len() as u32,
            ..PartitionCounts::default()
        };
        for (at, rec) in self.records.iter().enumerate() {
            match (rec.fate, rec.hold) {
                (Fate::Acknowledged, _) => counts.acknowledged += 1,
                (Fate::Dropped, _) => counts.dropped += 1,
                (Fate::Purged, _) => counts.purged += 1,
                (Fate::Live, _) if at as u64 >= self.open => counts.gated += 1,
                (Fate::Live, Hold::Nobody) if rec.due_ms == 0 => counts.ready += 1,
                (Fate::Live, Hold::Nobody) => counts.delayed += 1,
                (Fate::Live, Hold::Ended) => counts.ready += 1,
                (Fate::Live, _) => counts.leased += 1,
            }
        }
        counts
    }

    /// Unsettled records: offset, attempts, length.
    pub(super) fn persistent(&self) -> Vec<(u64, u32, u32)> {
        (0u64..)
            .zip(&self.records)
            .filter(|(_, rec)| rec.fate == Fate::Live)
            .map(|(offset, rec)| (offset, rec.attempts, rec.len))
            .collect()
    }
}
