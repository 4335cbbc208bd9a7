//! The mutation check: rules of the log, the store and replication that can be taken
//! out, one by one, to see whether the simulator notices.
//!
//! Owns the list of rules and, with the feature `mutations`, which of them are
//! removed on this thread. Each rule has its place in the code, which asks
//! [`removed`] just where the rule is about to decide.
//!
//! 1. Without the feature [`removed`] is the constant `false`: nothing of this
//!    module is left in the program.
//! 2. With the feature, and no rule removed, the program behaves as without.
//!
//! Never: part of the server. Only the simulator's runner turns the feature on.

macro_rules! rules {
    ($($(#[doc = $doc:literal])+ $rule:ident = $name:literal,)+) => {
        /// A rule that can be removed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Rule {
            $($(#[doc = $doc])+ $rule,)+
        }

        #[cfg(feature = "mutations")]
        impl Rule {
            /// Every rule, in the order of the list.
            pub const ALL: &'static [Rule] = &[$(Rule::$rule),+];

            /// The rule's name on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(Rule::$rule => $name,)+
                }
            }

            /// The rule, in a sentence.
            pub fn text(self) -> &'static str {
                match self {
                    $(Rule::$rule => concat!($($doc),+).trim_ascii(),)+
                }
            }

            /// The rule of that name.
            pub fn named(name: &str) -> Option<Rule> {
                Rule::ALL.iter().copied().find(|rule| rule.name() == name)
            }
        }
    };
}

rules! {
    // What a log writes where.
    /// A batch fills whole blocks: no later write touches a block that may be durable.
    WholeBlocks = "whole-blocks",
    /// Where the bytes behind the end are not all zero, the log goes on in a fresh segment.
    FreshSegment = "fresh-segment",
    /// Segments are filled with zeros before they are used again.
    ZeroedSegments = "zeroed-segments",
    /// At most two batches are submitted and not released.
    TwoInFlight = "two-in-flight",

    // Frontiers and syncs.
    /// Writes that complete out of order are released in order.
    ContiguousRelease = "contiguous-release",
    /// A sync covers only what was written when it was issued.
    SyncCoversIssued = "sync-covers-issued",
    /// A sync covers every segment with unsynced bytes.
    SyncEverySegment = "sync-every-segment",
    /// `O_DSYNC` only while no plain batch is in flight or unsynced.
    DsyncAlone = "dsync-alone",
    /// An `O_DSYNC` completion counts only where everything before it is durable.
    DsyncContiguous = "dsync-contiguous",
    /// A log that goes idle records how far it is durable.
    IdleFrontier = "idle-frontier",

    // Latch and reopening.
    /// After a failed sync nothing is answered: it is not tried again.
    FailedSyncLatches = "failed-sync-latches",
    /// After a failed write nothing is answered.
    FailedWriteLatches = "failed-write-latches",
    /// A start honours the recorded latch of the process before it.
    RecordedLatch = "recorded-latch",
    /// Reopening copies the tail past the last successful sync.
    ReopenCopies = "reopen-copies",
    /// The copy is synced before the jump to it is written.
    CopySyncedBeforeJump = "copy-synced-before-jump",
    /// The jump to the copy is in the superblock before the log goes on.
    ReopenJump = "reopen-jump",
    /// No clean marker after a latch, or over what is not durable.
    MarkerAtRest = "marker-at-rest",

    // Recovery.
    /// A batch is read only behind the predecessor whose checksum it carries.
    PredecessorCheck = "predecessor-check",
    /// A batch is read only where its header says it stands.
    PositionCheck = "position-check",
    /// A batch is read only if its epoch is none of an earlier life's.
    EpochCheck = "epoch-check",
    /// Each open has its own epoch, kept in the superblock, not derived from the scan.
    EpochPersisted = "epoch-persisted",
    /// Bad bytes below a recorded successful sync are damage, never the log's end.
    NoCutBelowSync = "no-cut-below-sync",
    /// Only a hole in front of one next batch proves that nothing was answered.
    HoleProof = "hole-proof",
    /// The surviving tail is synced before anything is told of it.
    TailSynced = "tail-synced",
    /// That is so in the same boot too, where a read shows what is not durable.
    TailSyncedEveryOpen = "tail-synced-every-open",
    /// The surviving tail is synced before the superblock tells of it.
    TailSyncedFirst = "tail-synced-first",
    /// A log is read only once a killed process's last writes have landed.
    WaitForWriters = "wait-for-writers",
    /// The clean marker is removed before a log is opened.
    MarkerTakenFirst = "marker-taken-first",
    /// A clean marker counts only for the open that was stopped.
    MarkerOfLastOpen = "marker-of-last-open",
    /// The superblock's copies take turns.
    SuperblockTurns = "superblock-turns",

    // Checkpoints, packed files, reclaim.
    /// A checkpoint is published once the log is durable up to what it holds.
    SyncBeforeCheckpoint = "sync-before-checkpoint",
    /// Replay begins in front of an unfinished item.
    AnchorUnfinished = "anchor-unfinished",
    /// Replay begins in front of what is not applied.
    AnchorApplied = "anchor-applied",
    /// Only what a published checkpoint does not name is let go.
    ReclaimPublished = "reclaim-published",
    /// What a checkpoint names is let go only once the one before it is unusable.
    OtherRetired = "other-retired",
    /// A checkpoint of a dead process is made durable before it is used.
    CheckpointMadeDurable = "checkpoint-made-durable",
    /// The checkpoint that was not chosen is made unusable before the other is used.
    LoadRetiresOther = "load-retires-other",
    /// A checkpoint is never written over the published one.
    CheckpointTurns = "checkpoint-turns",
    /// A checkpoint counts only if its body is the one its head tells of.
    CheckpointVerified = "checkpoint-verified",
    /// A checkpoint's body is durable before its head.
    BodyBeforeHead = "body-before-head",
    /// What a read under way needs is not let go.
    ReadsHoldFiles = "reads-hold-files",
    /// A packed file is durable before a record is said to be in it.
    PackDurable = "pack-durable",
    /// A record is relocated only from where it was packed from.
    RelocateChecked = "relocate-checked",
    /// What a checkpoint covers is not applied again.
    CoveredOnce = "covered-once",
    /// What a checkpoint covers of group 0 is not applied again.
    MetaCoveredOnce = "meta-covered-once",

    // Replicas: who counts (R1 to R5).
    /// R1: a join number is never given out again.
    JoinNumbers = "join-numbers",
    /// R2: a log that may have forgotten takes no part under its old names in groups that answer at written.
    Retire = "retire",
    /// R2: nor, after damage below the durable frontier, in any other.
    Quarantine = "quarantine",
    /// R3: a replica joins as a learner.
    LearnerFirst = "learner-first",
    /// R3: a learner is promoted once it is durable up to what was committed.
    CatchUp = "catch-up",
    /// R3: the next step of membership waits until the last is durable on a majority.
    OneAtATime = "one-at-a-time",
    /// R4: of a retired replica only what it reported durable still counts.
    RetiredCopies = "retired-copies",
    /// A replica that goes to another node votes there only once it does not vote here.
    OneSeat = "one-seat",
    /// While a replica goes to another node a recovery needs enough answers without the one
    /// and without the other.
    ShiftQuorums = "shift-quorums",
    /// R5: a change of membership takes effect once it is durable.
    ConfDurable = "conf-durable",
    /// A group's replica is taken for weakened at boot if the entry is in its log at all.
    WeakenBoot = "weaken-boot",
    /// The weakening entry is acted on once it is applied and durable.
    WeakenDurable = "weaken-durable",

    // A new generation (R6).
    /// Every trusted voter answers before the next generation begins.
    R6AllTrusted = "r6-all-trusted",
    /// As many answers as meet every majority are needed.
    R6Count = "r6-count",
    /// An answer counts only from a replica that kept all it ever reported durable.
    R6Kept = "r6-kept",
    /// A replica that answers has stopped its generation.
    R6Fence = "r6-fence",
    /// What it answers is durable first.
    R6Sync = "r6-sync",
    /// The longest history is the one that goes on.
    R6Longest = "r6-longest",
    /// While a new generation is on fewer than a majority, others keep what they have.
    R6KeepCopies = "r6-keep-copies",
    /// Frames of an ended generation are refused.
    R6Generation = "r6-generation",

    // What may be said, and when (R7 to R10, gates).
    /// R7: no vote leaves before it is durable.
    VoteDurable = "vote-durable",
    /// R7: a leader's messages wait until its term is durable.
    HeldMessages = "held-messages",
    /// R8: nothing is delivered in front of its gate.
    DeliveryGate = "delivery-gate",
    /// R9: a log that was reopened after an I/O error may have forgotten.
    ReopenedForgot = "reopened-forgot",
    /// R10: a snapshot is acknowledged, and reported durable, once it is durable.
    SnapshotDurable = "snapshot-durable",
    /// A durable report counts only in the leader's term it was made in.
    ReportTerm = "report-term",
    /// A durable report counts no further than what Raft counts as matched.
    ReportMatched = "report-matched",
    /// A follower reports no more than it acknowledged to that leader in that term.
    ReportAcknowledged = "report-acknowledged",
    /// A new leader serves only once its first entry is committed and durable on a majority.
    LeaderBarrier = "leader-barrier",
    /// For that it is not enough that the entry is written on them.
    BarrierDurable = "barrier-durable",
    /// Followers know which entries somebody waits for at durable.
    SyncBit = "sync-bit",
    /// Nothing is delivered above the dispatch mark.
    MarkFirst = "mark-first",
    /// What waits for written never waits for what waits for durable.
    PerBoundary = "per-boundary",
    /// The owner's copy is one of those that a gate waits for.
    GateOwner = "gate-owner",
    /// A gate waits for as many copies as were asked for.
    GateCopies = "gate-copies",
    /// What was admitted before a change of mode or W waits for what it was promised.
    ChangeFenced = "change-fenced",
    /// A delivery never overtakes one that waits under an earlier setting.
    ChangeHoldsBack = "change-holds-back",
    /// A change is said to be applied once it is durable on as many copies as either setting asks for.
    ChangeDurable = "change-durable",
}

#[cfg(not(feature = "mutations"))]
#[inline(always)]
pub(crate) const fn removed(_rule: Rule) -> bool {
    false
}

#[cfg(feature = "mutations")]
pub use armed::{hits, removed, set_removed};

#[cfg(feature = "mutations")]
mod armed {
    use std::cell::Cell;

    use super::Rule;

    thread_local! {
        static REMOVED: Cell<u128> = const { Cell::new(0) };
        static HITS: Cell<u64> = const { Cell::new(0) };
    }

    // One bit each.
    const _: () = assert!(Rule::ALL.len() <= 128);

    /// Removes these rules on this thread, and no others; counts anew.
    pub fn set_removed(rules: &[Rule]) {
        REMOVED.set(rules.iter().fold(0, |set, rule| set | 1 << *rule as u32));
        HITS.set(0);
    }

    /// Whether the rule is removed on this thread.
    pub fn removed(rule: Rule) -> bool {
        let is_removed = REMOVED.get() & 1 << rule as u32 != 0;
        if is_removed {
            HITS.set(HITS.get() + 1);
        }
        is_removed
    }

    /// How often a removed rule was asked for since it was removed.
    pub fn hits() -> u64 {
        HITS.get()
    }
}
