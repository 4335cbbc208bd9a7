//! Which scope shows what a dropped rule was for.

use crate::promises::Promise;
use crate::rules::{Dropped, Rule};
use crate::run::{explore, Options, Outcome};
use crate::scope::*;

/// What dropping the rules must come to.
#[derive(Clone, Copy, Debug)]
pub enum Expect {
    /// This promise is broken (others may be broken on the way).
    Broken(Promise),
    /// A state is reached from which there is no way out without the operator.
    Stuck,
    /// Nothing within these bounds; the reason.
    Nothing(&'static str),
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Drop {
    pub rules: &'static [Rule],
    pub scope: Scope,
    pub expect: Expect,
    /// Small enough for every test run.
    pub quick: bool,
}

const fn broken(rules: &'static [Rule], scope: Scope, promise: Promise) -> Drop {
    Drop {
        rules,
        scope,
        expect: Expect::Broken(promise),
        quick: true,
    }
}

const fn nothing(rules: &'static [Rule], scope: Scope, why: &'static str) -> Drop {
    Drop {
        rules,
        scope,
        expect: Expect::Nothing(why),
        quick: false,
    }
}

const fn stuck(rules: &'static [Rule], scope: Scope) -> Drop {
    Drop {
        rules,
        scope,
        expect: Expect::Stuck,
        quick: false,
    }
}

impl Drop {
    /// Explores, and says whether it came out as expected.
    pub fn run(&self) -> (Outcome, bool) {
        let only = match self.expect {
            Expect::Broken(promise) => Some(promise),
            Expect::Stuck | Expect::Nothing(_) => None,
        };
        let stuck = matches!(self.expect, Expect::Stuck);
        let options = Options {
            dropped: Dropped::of(self.rules),
            only,
            heal_every: u64::from(stuck),
        };
        let outcome = explore(self.scope, options);
        let good = outcome.counterexample.is_some() != matches!(self.expect, Expect::Nothing(_));
        (outcome, good)
    }

    const fn slow(self) -> Drop {
        Drop {
            quick: false,
            ..self
        }
    }
}

use Promise::*;

/// The table of `docs/replication-model.md`, rules of the design first, then those
/// that it lacks (`rules::MENDS`).
pub const DROPS: &[Drop] = &[
    broken(&[Rule::R1OpenCounter], HARMED, DurableNeverLost),
    broken(&[Rule::R1JoinNumber], WRITTEN, RetiredNeverCounts),
    broken(&[Rule::R2Retire], WRITTEN, WrittenLostOnlyWithItsCopies),
    broken(&[Rule::Quarantine], DAMAGED, DurableNeverLost),
    broken(&[Rule::R3Learner], HASTY, DurableNeverLost),
    broken(
        &[Rule::R3CatchUp, Rule::R3OneAtATime],
        HASTY,
        DurableNeverLost,
    )
    .slow(),
    nothing(
        &[Rule::R3CatchUp],
        HASTY,
        "the removal before it, durable on a majority, covers it",
    ),
    nothing(&[Rule::R3OneAtATime], HASTY, "catch-up covers it"),
    nothing(
        &[Rule::R3OwnTerm],
        MEMBERSHIP,
        "an entry is in force when applied, so after the own term's first entry in any case",
    ),
    broken(&[Rule::R4Lower], MEMBERSHIP, CopiesHonest),
    nothing(
        &[Rule::R5ConfDurable],
        MEMBERSHIP,
        "who forgets a membership that was in force is retired (R2)",
    ),
    nothing(
        &[Rule::R5ConfDurable],
        HARMED,
        "in a group that answers at durable, who forgets it is merely behind",
    ),
    broken(&[Rule::R6AllTrusted], WRITTEN, WrittenLostOnlyWithItsCopies),
    broken(&[Rule::R6Count], WRITTEN, DurableNeverLost),
    broken(&[Rule::R6FullCount], NOBODY, DurableNeverLost),
    broken(&[Rule::R6Kept], DAMAGED_WRITTEN, DurableNeverLost),
    broken(&[Rule::R6Fence], FENCES, WrittenLostOnlyWithItsCopies),
    broken(&[Rule::R6Sync], ANSWERS, ReportExact),
    broken(&[Rule::R6Longest], TAILS, DurableNeverLost).slow(),
    broken(&[Rule::R6Generation], FENCES, WrittenLostOnlyWithItsCopies),
    nothing(
        &[Rule::R6Second],
        AGAIN,
        "who is not rebuilt is of an older generation and cannot answer, so the count waits",
    ),
    broken(&[Rule::R7Vote], DURABLE, DurableNeverLost),
    broken(&[Rule::R7Vote], VOTES, OneLeaderConfirms),
    nothing(
        &[Rule::R7Vote],
        WRITTEN,
        "in a group that answers at written R2 implies it",
    ),
    broken(&[Rule::R7Fence], FENCES, WrittenLostOnlyWithItsCopies),
    broken(&[Rule::R7Answer], DURABLE, DurableNeverLost),
    broken(&[Rule::Barrier], PARTS, ReportExact).slow(),
    broken(&[Rule::Barrier], PARTS, DurableNeverLost).slow(),
    broken(&[Rule::BarrierDurable], PARTS, ReportExact).slow(),
    broken(&[Rule::BarrierDurable], PARTS, DurableNeverLost).slow(),
    broken(
        &[Rule::WeakenDurable],
        WEAKENING,
        WrittenLostOnlyWithItsCopies,
    ),
    broken(&[Rule::WeakenBoot], WEAKENING, WrittenLostOnlyWithItsCopies),
    broken(&[Rule::DurableReport], TAILS, DurableNeverLost).slow(),
    nothing(
        &[Rule::GateOwner],
        SLOW,
        "W other copies are as safe; the owner's copy is what it delivers from",
    ),
    broken(&[Rule::R4Harmed], DAMAGED, CopiesHonest),
    broken(
        &[Rule::R6PromotedKnown],
        MEMBERSHIP,
        WrittenLostOnlyWithItsCopies,
    )
    .slow(),
    stuck(&[Rule::R6Trigger], MEMBERSHIP),
    broken(&[Rule::BarrierFull], FOUR_TAILS, ReportExact).slow(),
    broken(&[Rule::CopiesFull], FOUR, DurableNeverLost).slow(),
    broken(&[Rule::DurableMajority], PAIR_ONE, DurableNeverLost),
    broken(&[Rule::DurableMajority], THREE_ONE, DurableNeverLost),
];
