//! Which rule is found where.

use shards::mutation::Rule::{self, *};

use super::{
    Check,
    Expected::{self, Covered, Violation},
    Hunt::{self, Directed, Engine, Log, Rot},
    ALL,
};
use crate::directed::{
    a_hole_in_what_was_answered, a_stale_batch_behind_other_bytes,
    a_stale_batch_behind_the_same_bytes,
};
use crate::engine_sim::directed::declares_during_a_capture;

const fn check(removed: &'static [Rule], hunts: &'static [Hunt], expected: Expected) -> Check {
    Check {
        removed,
        hunts,
        expected,
    }
}

const SAME: Hunt = Directed("stale, same bytes", a_stale_batch_behind_the_same_bytes, 16);
const OTHER: Hunt = Directed("stale, other bytes", a_stale_batch_behind_other_bytes, 16);
const DECLARES: Hunt = Directed("declares during a capture", declares_during_a_capture, 4);
const HOLE: Hunt = Directed("hole", a_hole_in_what_was_answered, 16);

/// Every check.
#[rustfmt::skip]
pub const CHECKS: &[Check] = &[
    check(&[], &[SAME, OTHER, HOLE, DECLARES, Log(2_000), Rot(2_000), Engine(ALL, 140)], Covered("the rules")),
    check(&[WholeBlocks], &[Log(2_000)], Violation),
    check(&[FreshSegment], &[Log(500)], Violation),
    check(&[ZeroedSegments], &[Engine(ALL, 140)], Violation),
    check(&[TwoInFlight], &[Log(500)], Violation),
    check(&[ContiguousRelease], &[Log(500)], Violation),
    check(&[SyncCoversIssued], &[Log(500)], Violation),
    check(&[SyncEverySegment], &[Log(500)], Violation),
    check(&[DsyncAlone], &[Log(500)], Violation),
    check(&[DsyncContiguous], &[Log(500)], Covered("dsync-alone")),
    check(&[DsyncAlone, DsyncContiguous], &[Log(500)], Violation),
    check(&[IdleFrontier], &[Rot(500)], Violation),
    check(&[FailedSyncLatches], &[Log(500)], Violation),
    check(&[FailedWriteLatches], &[Log(500)], Violation),
    check(&[RecordedLatch], &[Log(2_000)], Violation),
    check(&[ReopenCopies], &[Log(500)], Violation),
    check(&[CopySyncedBeforeJump], &[Log(2_000)], Violation),
    check(&[ReopenJump], &[Log(500)], Violation),
    check(&[MarkerAtRest], &[Log(500)], Violation),
    check(&[PredecessorCheck], &[SAME, OTHER, Log(2_000)], Covered("fresh-segment, epoch-check")),
    check(&[EpochCheck], &[SAME, OTHER, Log(2_000)], Covered("fresh-segment, predecessor-check")),
    check(&[EpochPersisted], &[SAME, OTHER, Log(2_000)], Covered("fresh-segment")),
    check(&[FreshSegment, PredecessorCheck], &[SAME, OTHER], Covered("epoch-check")),
    check(&[FreshSegment, EpochCheck], &[SAME, OTHER], Covered("predecessor-check")),
    check(&[FreshSegment, PredecessorCheck, EpochCheck], &[SAME, OTHER], Violation),
    check(&[FreshSegment, EpochPersisted], &[SAME], Violation),
    check(&[FreshSegment, EpochPersisted], &[OTHER], Covered("predecessor-check")),
    check(&[FreshSegment, EpochPersisted, PredecessorCheck], &[OTHER], Violation),
    check(&[PositionCheck], &[Rot(2_000)], Violation),
    check(&[NoCutBelowSync], &[Rot(500)], Violation),
    check(&[HoleProof], &[HOLE], Violation),
    check(&[TailSynced], &[Log(500)], Violation),
    check(&[TailSyncedEveryOpen], &[Log(500)], Violation),
    check(&[TailSyncedFirst], &[Log(2_000)], Violation),
    check(&[WaitForWriters], &[Log(2_000)], Violation),
    check(&[MarkerTakenFirst], &[Log(2_000)], Covered("marker-of-last-open")),
    check(&[MarkerOfLastOpen], &[Log(2_000)], Covered("marker-taken-first")),
    check(&[MarkerTakenFirst, MarkerOfLastOpen], &[Log(2_000)], Violation),
    check(&[SuperblockTurns], &[Log(2_000)], Violation),
    check(&[SyncBeforeCheckpoint], &[Engine(ALL, 700)], Violation),
    check(&[AnchorUnfinished], &[Engine(ALL, 700)], Violation),
    check(&[AnchorApplied], &[Engine(ALL, 1_400)], Violation),
    check(&[ReclaimPublished], &[Engine(ALL, 700)], Violation),
    check(&[CheckpointTurns], &[Engine(ALL, 700)], Violation),
    check(&[OtherRetired], &[Engine(ALL, 700)], Violation),
    check(&[CheckpointMadeDurable], &[Engine(ALL, 700)], Violation),
    check(&[LoadRetiresOther], &[Engine(ALL, 1_400)], Violation),
    check(&[BodyBeforeHead], &[Engine(ALL, 280)], Covered("checkpoint-verified")),
    check(&[CheckpointVerified], &[Engine(ALL, 1_400)], Violation),
    check(&[BodyBeforeHead, CheckpointVerified], &[Engine(ALL, 700)], Violation),
    check(&[ReadsHoldFiles], &[Engine(ALL, 700)], Violation),
    check(&[PackDurable], &[Engine(ALL, 700)], Violation),
    check(&[RelocateChecked], &[Engine(ALL, 700)], Covered("one job of a cycle at a time: nothing else moves a record")),
    check(&[CoveredOnce], &[Engine(ALL, 140)], Violation),
    check(&[MetaCoveredOnce], &[DECLARES], Violation),
];
