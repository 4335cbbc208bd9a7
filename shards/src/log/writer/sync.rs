//! When a log is synced, and what a sync covers.

use std::collections::VecDeque;

use crate::log::position::LogPosition;

/// Decides about syncs; knows positions only.
///
/// 1. At most one sync is in flight.
/// 2. A sync covers what was written, contiguously, when it was *issued*.
/// 3. A durable demand starts a sync as soon as it is written and none is in
///    flight; the timer starts one when it is due, and skips what it missed.
pub(super) struct SyncSchedule {
    interval_ms: u64,
    timer_at_ms: Option<u64>,
    in_flight: Option<InFlight>,
    /// Ends that somebody waits for and no `O_DSYNC` write covers, ascending.
    demands: VecDeque<LogPosition>,
    /// End of the last batch written without `O_DSYNC`.
    plain_end: LogPosition,
}

#[derive(Debug, Clone, Copy)]
struct InFlight {
    id: u64,
    covers: LogPosition,
}

impl SyncSchedule {
    pub(super) fn new(interval_ms: u64) -> Self {
        SyncSchedule {
            interval_ms,
            timer_at_ms: None,
            in_flight: None,
            demands: VecDeque::new(),
            plain_end: LogPosition(0),
        }
    }

    /// A batch without `O_DSYNC` was submitted.
    pub(super) fn plain_submitted(&mut self, end: LogPosition, wants_durable: bool) {
        self.plain_end = end;
        if wants_durable {
            self.demand(end);
        }
    }

    /// Something up to `position`, which is submitted, is to be durable.
    pub(super) fn demand(&mut self, position: LogPosition) {
        let at = self.demands.partition_point(|end| *end < position);
        if self.demands.get(at) != Some(&position) {
            self.demands.insert(at, position);
        }
    }

    /// Whether a plain batch is in flight or unsynced: then no batch may go by
    /// `O_DSYNC`, whose completion says nothing about the bytes before it.
    pub(super) fn has_plain_beyond(&self, durable_next: LogPosition) -> bool {
        self.plain_end > durable_next
    }

    pub(super) fn is_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Whether a sync is to be issued now. Arms the timer as needed.
    pub(super) fn is_due(
        &mut self,
        now_ms: u64,
        written_next: LogPosition,
        durable_next: LogPosition,
    ) -> bool {
        while self.demands.front().is_some_and(|end| *end <= durable_next) {
            self.demands.pop_front();
        }
        let ticked = self.timer_at_ms.is_some_and(|at| now_ms >= at);
        if ticked {
            self.timer_at_ms = None;
        }
        let demanded = self.demands.front().is_some_and(|end| *end <= written_next);
        let due = self.in_flight.is_none() && written_next > durable_next && (ticked || demanded);
        let covered = match self.in_flight {
            _ if due => written_next,
            Some(sync) => sync.covers.max(durable_next),
            None => durable_next,
        };
        if due {
            self.timer_at_ms = None;
        }
        if self.interval_ms > 0 && self.timer_at_ms.is_none() && self.plain_end > covered {
            self.timer_at_ms = Some(now_ms.saturating_add(self.interval_ms));
        }
        due
    }

    /// The sync `id` was issued with everything below `covers` written.
    pub(super) fn issued(&mut self, id: u64, covers: LogPosition) {
        self.in_flight = Some(InFlight { id, covers });
    }

    /// The sync `id` completed; returns what is durable by it, or `None` if it
    /// is not the one in flight.
    pub(super) fn completed(&mut self, id: u64) -> Option<LogPosition> {
        let sync = self.in_flight.filter(|sync| sync.id == id)?;
        self.in_flight = None;
        Some(sync.covers)
    }

    pub(super) fn timer_at_ms(&self) -> Option<u64> {
        self.timer_at_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(position: u64) -> LogPosition {
        LogPosition(position)
    }

    #[test]
    fn a_demand_syncs_once_its_write_completed() {
        let mut sync = SyncSchedule::new(0);
        sync.plain_submitted(at(10), false);
        sync.plain_submitted(at(20), true);
        assert!(!sync.is_due(0, at(10), at(0)));
        assert!(sync.is_due(0, at(20), at(0)));
        sync.issued(1, at(20));
        sync.plain_submitted(at(30), true);
        assert!(!sync.is_due(0, at(30), at(0)), "one at a time");
        assert_eq!(sync.completed(2), None);
        assert_eq!(sync.completed(1), Some(at(20)));
        assert!(sync.is_due(0, at(30), at(20)));
    }

    #[test]
    fn the_timer_syncs_what_nobody_asked_for_and_skips_missed_ticks() {
        let mut sync = SyncSchedule::new(100);
        assert_eq!(sync.timer_at_ms(), None, "an idle log sets no timer");
        sync.plain_submitted(at(10), false);
        assert!(!sync.is_due(5, at(0), at(0)));
        assert_eq!(sync.timer_at_ms(), Some(105));
        assert!(!sync.is_due(104, at(10), at(0)));
        assert!(sync.is_due(950, at(10), at(0)));
        sync.issued(1, at(10));
        assert_eq!(sync.timer_at_ms(), None);
        sync.plain_submitted(at(20), false);
        assert!(!sync.is_due(960, at(20), at(0)));
        assert_eq!(sync.timer_at_ms(), Some(1060));
        assert!(
            !sync.is_due(1060, at(20), at(0)),
            "the tick during a sync is skipped"
        );
        assert_eq!(sync.timer_at_ms(), Some(1160));
        sync.completed(1);
        assert!(!sync.is_due(1070, at(20), at(10)));
        assert!(sync.is_due(1160, at(20), at(10)));
    }

    #[test]
    fn off_means_only_on_demand() {
        let mut sync = SyncSchedule::new(0);
        sync.plain_submitted(at(10), false);
        assert!(!sync.is_due(u64::MAX, at(10), at(0)));
        assert_eq!(sync.timer_at_ms(), None);
        sync.demand(at(7));
        assert!(sync.is_due(0, at(10), at(0)));
    }
}
