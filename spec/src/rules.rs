//! The rules that can be dropped.

/// One rule of the design that the model can run without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Rule {
    R1OpenCounter,
    R1JoinNumber,
    R2Retire,
    Quarantine,
    R3Learner,
    R3CatchUp,
    R3OneAtATime,
    R3OwnTerm,
    R4Lower,
    R4Harmed,
    R5ConfDurable,
    R6AllTrusted,
    R6PromotedKnown,
    R6Count,
    R6FullCount,
    R6Kept,
    R6Fence,
    R6Sync,
    R6Trigger,
    R6Longest,
    R6Generation,
    R6Second,
    R7Vote,
    R7Fence,
    R7Answer,
    Barrier,
    BarrierDurable,
    BarrierFull,
    WeakenDurable,
    WeakenBoot,
    DurableReport,
    GateOwner,
    CopiesFull,
    DurableMajority,
}

/// Every rule, its name on the command line, and what dropping it means.
pub const RULES: &[(Rule, &str, &str)] = &[
    (Rule::R1OpenCounter, "R1-open-counter", "a rolled-back directory is opened as if it were current"),
    (Rule::R1JoinNumber, "R1-join-number", "a retired replica rejoins under its old peer id"),
    (Rule::R2Retire, "R2-retire", "an amnesiac of a group that answers at written keeps its peer id"),
    (Rule::Quarantine, "quarantine", "a replica damaged below its durable frontier goes on with what is left"),
    (Rule::R3Learner, "R3-learner", "a new peer id takes the old one's place in one step, whatever it holds"),
    (Rule::R3CatchUp, "R3-catch-up", "a learner is promoted whatever it holds"),
    (Rule::R3OneAtATime, "R3-one-at-a-time", "a membership change does not wait until the last is durable on a majority"),
    (Rule::R3OwnTerm, "R3-own-term", "membership changes before an entry of the own term is applied"),
    (Rule::R4Lower, "R4-lower", "a retired id's `matched` is not lowered to its last durable report"),
    (Rule::R4Harmed, "R4-harmed", "`matched` of an id retired for lost durable bytes falls to its last durable report, not to nothing"),
    (Rule::R5ConfDurable, "R5-conf-durable", "a membership entry takes effect before it is durable on that replica"),
    (Rule::R6AllTrusted, "R6-all-trusted", "a recovery does not wait for every trusted voter (retirement inferred from silence)"),
    (Rule::R6PromotedKnown, "R6-promoted-known", "group 0 does not know a promoted replica as a voter"),
    (Rule::R6Count, "R6-count", "a recovery is content with one answer fewer"),
    (Rule::R6FullCount, "R6-full-count", "the answers needed are computed from the voters left, not from the full replica count"),
    (Rule::R6Kept, "R6-kept", "a wiped or damaged replica's answer counts before it is promoted"),
    (Rule::R6Fence, "R6-fence", "an answer to the collect order does not stop the generation on that replica"),
    (Rule::R6Sync, "R6-sync", "a replica answers the collect order without a sync"),
    (Rule::R6Trigger, "R6-trigger", "a recovery is due when the voters that group 0 knows of are fewer than a quorum, not when nobody can be elected"),
    (Rule::R6Longest, "R6-longest", "the highest index wins, whatever its term"),
    (Rule::R6Generation, "R6-generation", "frames of older generations are accepted"),
    (Rule::R6Second, "R6-second", "a second recovery does not wait until a majority is rebuilt"),
    (Rule::R7Vote, "R7-vote", "term and vote are not durable before the vote leaves"),
    (Rule::R7Fence, "R7-fence", "the fence of an answer is held in memory only"),
    (Rule::R7Answer, "R7-answer", "a group that answers at durable answers at written"),
    (Rule::Barrier, "barrier", "a new leader confirms as soon as Raft commits"),
    (Rule::BarrierDurable, "barrier-durable", "the barrier has to be committed only, not durable"),
    (Rule::BarrierFull, "barrier-full", "the barrier's majority is that of the voters left, not of the full replica count"),
    (Rule::WeakenDurable, "weaken-durable", "the weakening entry is acted on when applied, before it is durable in the own log"),
    (Rule::WeakenBoot, "weaken-boot", "at boot the group is taken for weakened only if the entry was known as applied"),
    (Rule::DurableReport, "durable-report", "a durable report is not bound to (leader's term, matched)"),
    (Rule::GateOwner, "gate-owner", "a confirm does not need the owner's own copy"),
    (Rule::CopiesFull, "copies-full", "W = majority is computed from the voters left, not from the full replica count"),
    (Rule::DurableMajority, "durable-majority", "a durable confirm of W copies is given with fewer than a majority"),
];

impl Rule {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        RULES.iter().find(|r| r.0 == self).map_or("", |r| r.1)
    }

    /// The rule of that name.
    pub fn named(name: &str) -> Option<Rule> {
        RULES.iter().find(|r| r.1 == name).map(|r| r.0)
    }
}

/// Rules that the design does not have, or leaves open: the model found that it needs
/// them. `docs/replication-model.md` shows the trace without each.
pub const MENDS: &[Rule] = &[
    Rule::R4Harmed,
    Rule::R6PromotedKnown,
    Rule::R6Trigger,
    Rule::BarrierFull,
    Rule::CopiesFull,
    Rule::DurableMajority,
];

/// A set of dropped rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped(u64);

impl Dropped {
    /// The set of these.
    pub fn of(rules: &[Rule]) -> Dropped {
        Dropped(rules.iter().fold(0, |set, rule| set | 1 << (*rule as u8)))
    }

    /// Whether the rule is in force.
    pub fn keeps(self, rule: Rule) -> bool {
        self.0 & 1 << (rule as u8) == 0
    }
}
