//! Which segments are ready to be written, and asking for the next ones.

use crate::log::contract::IoFailure;
use crate::log::position::{Geometry, LogPosition};

const FIRST_RETRY_MS: u64 = 100;
const LAST_RETRY_MS: u64 = 5_000;

/// Ready segments ahead of the writer, prepared one at a time, in order.
///
/// 1. Sequence numbers only grow; none is asked for twice after it was ready.
/// 2. A failure is retried later and never latches the log: what needs the
///    segment waits, and the backlog bound refuses appends.
/// 3. The last `reserve` ready segments are held back until there is no space
///    for a further one: what was admitted before that was known then does not
///    stand in front of what must still go on. It may go half-way into them
///    ([`SegmentSupply::admits_below`]), so half of them is left for sure. One
///    that was given out is never taken back, except by a start.
pub(super) struct SegmentSupply {
    /// Every segment from the writer's to this one is ready.
    ready_through: u64,
    /// Every segment up to this one may be written to.
    given_out: u64,
    spares: u64,
    reserve: u64,
    preparing: Option<u64>,
    retry_at_ms: Option<u64>,
    retry_ms: u64,
    failure: Option<IoFailure>,
    /// Segments that nobody needs; their files are recycled.
    free: Vec<u64>,
}

/// What to prepare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Preparation {
    pub sequence: u64,
    pub recycle: Option<u64>,
}

impl SegmentSupply {
    /// Ready from `current`, where the log goes on, to `ready_through`.
    pub(super) fn new(current: u64, ready_through: u64, spares: u32, reserve: u32) -> Self {
        let reserve = u64::from(reserve);
        let given_out = ready_through.saturating_sub(reserve);
        SegmentSupply {
            ready_through,
            given_out: given_out.max(current.min(ready_through)),
            spares: u64::from(spares),
            reserve,
            preparing: None,
            retry_at_ms: None,
            retry_ms: FIRST_RETRY_MS,
            failure: None,
            free: Vec::new(),
        }
    }

    /// Takes segments that nobody needs any more; returns those beyond what is
    /// worth keeping.
    pub(super) fn add_free(&mut self, segments: impl Iterator<Item = u64>) -> Vec<u64> {
        self.free.extend(segments);
        let keep = self.free.len().min(self.spares as usize + 1);
        self.free.split_off(keep)
    }

    pub(super) fn is_ready(&self, segment: u64) -> bool {
        segment <= self.given_out
    }

    /// Items that would end beyond this place wait until a segment is ready;
    /// `None` where no segment is held back.
    pub(super) fn admits_below(&self, geometry: Geometry) -> Option<LogPosition> {
        let room = geometry.segment_bytes() * self.reserve / 2;
        let end = geometry.start_of(self.given_out + 1);
        (self.reserve > 0).then(|| LogPosition(end.0 + room))
    }

    /// The segment to prepare now, if the batch being filled is in `current`.
    pub(super) fn next_to_prepare(&mut self, now_ms: u64, current: u64) -> Option<Preparation> {
        let wanted = current.saturating_add(self.spares + self.reserve);
        if self.preparing.is_some() || self.ready_through >= wanted {
            return None;
        }
        if self.failure.is_some() {
            match self.retry_at_ms {
                None => {
                    self.retry_at_ms = Some(now_ms.saturating_add(self.retry_ms));
                    self.retry_ms = (self.retry_ms * 2).min(LAST_RETRY_MS);
                    return None;
                }
                Some(at) if now_ms < at => return None,
                Some(_) => self.retry_at_ms = None,
            }
        }
        let sequence = self.ready_through + 1;
        self.preparing = Some(sequence);
        // Should it fail half-way, the file is lost to us; the next open finds it.
        let recycle = self.free.pop();
        Some(Preparation { sequence, recycle })
    }

    pub(super) fn prepared(&mut self, sequence: u64, result: Result<(), IoFailure>) {
        if self.preparing != Some(sequence) {
            return;
        }
        self.preparing = None;
        match result {
            Ok(()) => {
                self.ready_through = sequence;
                self.failure = None;
                self.retry_at_ms = None;
                self.retry_ms = FIRST_RETRY_MS;
                let held = self.ready_through.saturating_sub(self.reserve);
                self.given_out = self.given_out.max(held);
            }
            Err(failure) => {
                if failure.out_of_space {
                    self.given_out = self.ready_through;
                }
                self.failure = Some(failure);
            }
        }
    }

    pub(super) fn is_preparing(&self) -> bool {
        self.preparing.is_some()
    }

    /// When to ask again after a failure.
    pub(super) fn retry_at_ms(&self) -> Option<u64> {
        self.retry_at_ms
    }

    /// Why the next segment is not there, if the last try failed.
    pub(super) fn failure(&self) -> Option<&IoFailure> {
        self.failure.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh(sequence: u64) -> Option<Preparation> {
        let recycle = None;
        Some(Preparation { sequence, recycle })
    }

    #[test]
    fn free_segments_are_recycled_and_the_rest_is_given_up() {
        let mut supply = SegmentSupply::new(9, 9, 1, 0);
        assert_eq!(supply.add_free(1..5), [3, 4]);
        let preparation = supply.next_to_prepare(0, 9);
        let recycle = preparation.and_then(|preparation| preparation.recycle);
        assert_eq!(recycle, Some(2));
    }

    #[test]
    fn prepares_one_at_a_time_up_to_the_spares() {
        let mut supply = SegmentSupply::new(3, 3, 2, 0);
        assert_eq!(supply.next_to_prepare(0, 3), fresh(4));
        assert_eq!(supply.next_to_prepare(0, 3), None);
        supply.prepared(4, Ok(()));
        assert_eq!(supply.next_to_prepare(0, 3), fresh(5));
        supply.prepared(5, Ok(()));
        assert_eq!(supply.next_to_prepare(0, 3), None);
        assert!(supply.is_ready(5) && !supply.is_ready(6));
    }

    #[test]
    fn a_failure_is_retried_later_with_the_same_number() {
        let mut supply = SegmentSupply::new(1, 1, 1, 0);
        assert_eq!(supply.next_to_prepare(0, 1), fresh(2));
        let failure = IoFailure {
            message: "full".into(),
            out_of_space: true,
        };
        supply.prepared(2, Err(failure));
        assert!(supply.failure().is_some());
        assert_eq!(supply.next_to_prepare(10, 1), None);
        assert_eq!(supply.retry_at_ms(), Some(110));
        assert_eq!(supply.next_to_prepare(109, 1), None);
        assert_eq!(supply.next_to_prepare(110, 1), fresh(2));
        supply.prepared(2, Ok(()));
        assert!(supply.failure().is_none() && supply.is_ready(2));
    }

    #[test]
    fn the_reserve_is_held_back_until_there_is_no_space() {
        let mut supply = SegmentSupply::new(3, 3, 2, 1);
        for sequence in 4..=6 {
            assert_eq!(supply.next_to_prepare(0, 3), fresh(sequence));
            supply.prepared(sequence, Ok(()));
        }
        assert_eq!(supply.next_to_prepare(0, 3), None);
        assert!(supply.is_ready(5) && !supply.is_ready(6));
        let failed = |out_of_space| IoFailure {
            message: "no".into(),
            out_of_space,
        };
        assert_eq!(supply.next_to_prepare(0, 4), fresh(7));
        supply.prepared(7, Err(failed(false)));
        assert!(!supply.is_ready(6), "another failure is waited out");
        supply.next_to_prepare(10, 4);
        assert_eq!(supply.next_to_prepare(110, 4), fresh(7));
        supply.prepared(7, Err(failed(true)));
        assert!(supply.is_ready(6) && !supply.is_ready(7));
        supply.next_to_prepare(200, 4);
        assert_eq!(supply.next_to_prepare(400, 4), fresh(7));
        supply.prepared(7, Ok(()));
        assert!(supply.is_ready(6), "never taken back");
        assert!(!supply.is_ready(7), "the next reserve");
    }

    #[test]
    fn a_start_holds_the_reserve_back_again() {
        let supply = SegmentSupply::new(3, 6, 2, 1);
        assert!(supply.is_ready(5) && !supply.is_ready(6));
        let supply = SegmentSupply::new(3, 3, 2, 1);
        assert!(supply.is_ready(3), "where the log goes on is no reserve");
        let supply = SegmentSupply::new(4, 3, 2, 1);
        assert!(!supply.is_ready(4), "it is not ready");
    }
}
