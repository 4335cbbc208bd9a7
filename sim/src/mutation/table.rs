//! Which rule is found where.

use shards::mutation::Rule::{self, *};

use super::{
    Check,
    Expected::{self, Covered, Violation},
    Hunt::{self, Cluster, Directed, Engine, Log, Rot},
    ALL,
};
use crate::cluster_sim::directed as cluster;
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
const T1: Hunt = Directed("t1", cluster::t1_a_follower_that_lost_power_is_repaired, 8);
const T3: Hunt = Directed("t3", cluster::t3_the_leader_returns_on_the_same_boot, 8);
const T6: Hunt = Directed("t6", cluster::t6_a_vote_outlives_a_power_cut, 8);
const BEHIND: Hunt = Directed(
    "buffered behind durable",
    cluster::a_buffered_confirm_behind_a_durable_one,
    8,
);
const MARK: Hunt = Directed(
    "dispatch mark",
    cluster::deliveries_of_a_leader_that_was_cut_off,
    8,
);
const LOST: Hunt = Directed("lost copy", cluster::a_copy_that_was_lost_is_not_counted, 8);
const WEAKENING: Hunt = Directed(
    "weakening not durable",
    cluster::a_weakening_entry_that_is_not_durable,
    8,
);
const CHOSEN: Hunt = Directed(
    "chosen disk lost",
    cluster::the_disk_that_a_group_goes_on_from,
    8,
);
const SNAPSHOT: Hunt = Directed(
    "snapshot not durable",
    cluster::a_snapshot_that_is_not_durable,
    8,
);
const HOLE: Hunt = Directed("hole", a_hole_in_what_was_answered, 16);

/// Not met here; the model has the shortest way to it.
const MODEL: &str = "chance; the model shows what it is for";

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
    check(&[CheckpointVerified], &[Engine("mixed", 250)], Violation),
    check(&[BodyBeforeHead, CheckpointVerified], &[Engine(ALL, 700)], Violation),
    check(&[ReadsHoldFiles], &[Engine(ALL, 700)], Violation),
    check(&[PackDurable], &[Engine(ALL, 700)], Violation),
    check(&[RelocateChecked], &[Engine(ALL, 700)], Covered("one job of a cycle at a time: nothing else moves a record")),
    check(&[CoveredOnce], &[Engine(ALL, 140)], Violation),
    check(&[MetaCoveredOnce], &[DECLARES], Violation),
    check(&[], &[T1, T3, T6, BEHIND, MARK, LOST, WEAKENING, SNAPSHOT, CHOSEN, Cluster(ALL, 3, 80)], Covered("the rules")),
    check(&[JoinNumbers], &[Cluster("powercut", 3, 30)], Violation),
    check(&[Retire], &[T1], Violation),
    check(&[LearnerFirst], &[Cluster("powercut", 3, 30)], Covered(MODEL)),
    check(&[CatchUp], &[Cluster("powercut", 3, 30)], Covered("one-at-a-time")),
    check(&[OneAtATime], &[Cluster("powercut", 3, 30)], Covered("catch-up")),
    check(&[CatchUp, OneAtATime], &[Cluster("powercut", 3, 30)], Covered(MODEL)),
    check(&[OneSeat], &[Cluster("members", 3, 60)], Violation),
    check(&[ShiftQuorums], &[Cluster("members", 3, 60)], Covered("not by chance: two nodes would have to lose power within a few entries; what group 0 makes of it is a test beside the code")),
    check(&[RetiredCopies], &[LOST], Violation),
    check(&[ConfDurable], &[Cluster("powercut", 3, 30)], Covered("retire: who forgets a membership takes no part under its old name")),
    check(&[WeakenBoot], &[WEAKENING, Cluster("powercut", 3, 30)], Covered("the entry behind it: that one is synced, and the commit with it")),
    check(&[WeakenDurable], &[WEAKENING], Violation),
    check(&[R6AllTrusted], &[T3], Violation),
    check(&[R6Count], &[T3, Cluster("ruin", 3, 30)], Covered("group 0: its own majority is up and answers within the grace")),
    check(&[R6Kept], &[T3, Cluster("ruin", 3, 30)], Covered(MODEL)),
    check(&[R6Fence], &[T3, Cluster("ruin", 3, 30)], Covered(MODEL)),
    check(&[R6Sync], &[Cluster("ruin", 3, 60)], Violation),
    check(&[R6Longest], &[T3], Violation),
    check(&[R6KeepCopies], &[CHOSEN], Violation),
    check(&[R6Generation], &[T3, Cluster("ruin", 3, 30)], Covered("join-numbers: nobody has a name of the ended generation any more")),
    check(&[VoteDurable], &[T6], Violation),
    check(&[HeldMessages], &[Cluster(ALL, 3, 32)], Covered("vote-durable: its own vote is durable before a candidate has another")),
    check(&[DeliveryGate], &[Cluster("crash", 3, 40)], Violation),
    check(&[ReopenedForgot], &[Cluster("disk", 3, 30)], Covered("reopen-copies: what verifies is there again")),
    check(&[SnapshotDurable], &[SNAPSHOT], Violation),
    check(&[ReportAcknowledged], &[Cluster("partition", 3, 30)], Covered("report-matched")),
    check(&[ReportMatched], &[Cluster("partition", 3, 30)], Covered("report-acknowledged")),
    check(&[ReportMatched, ReportAcknowledged], &[Cluster("partition", 3, 120)], Violation),
    check(&[ReportTerm], &[Cluster("partition", 3, 30)], Covered("links: a report comes in front of the vote that ends its term")),
    check(&[LeaderBarrier], &[Cluster("crash", 3, 60)], Violation),
    check(&[BarrierDurable], &[Cluster("ruin", 3, 30)], Covered(MODEL)),
    check(&[SyncBit], &[Cluster("calm", 3, 40)], Violation),
    check(&[MarkFirst], &[MARK], Violation),
    check(&[PerBoundary], &[BEHIND], Violation),
    check(&[GateOwner], &[Cluster("calm", 3, 40)], Violation),
    check(&[GateCopies], &[Cluster("calm", 3, 40)], Violation),
    check(&[], &[Engine("modes", 140), Cluster("modes", 3, 40)], Covered("the rules")),
    check(&[ChangeFenced], &[Engine("modes", 140)], Violation),
    check(&[ChangeHoldsBack], &[Engine("modes", 140)], Violation),
    check(&[ChangeDurable], &[Engine("modes", 140), Cluster("modes", 3, 40)], Violation),
];
