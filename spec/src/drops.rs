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

impl Drop {
    /// Explores, and says whether it came out as expected.
    pub fn run(&self) -> (Outcome, bool) {
        let only = match self.expect {
            Expect::Broken(promise) => Some(promise),
            Expect::Nothing(_) => None,
        };
        let options = Options {
            dropped: Dropped::of(self.rules),
            only,
            heal_every: 0,
        };
        let outcome = explore(self.scope, options);
        let good = outcome.counterexample.is_some() == only.is_some();
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

/// The table of `docs/replication-model.md`.
pub const DROPS: &[Drop] = &[
    broken(&[Rule::R1OpenCounter], HARMED, DurableNeverLost),
    broken(&[Rule::R1JoinNumber], WRITTEN, RetiredNeverCounts),
    broken(&[Rule::R2Retire], WRITTEN, WrittenLostOnlyWithItsCopies),
    broken(&[Rule::Quarantine], DAMAGED, DurableNeverLost),
    broken(&[Rule::R4Lower], MEMBERSHIP, CopiesHonest),
    broken(&[Rule::R4Harmed], DAMAGED, CopiesHonest),
    broken(&[Rule::R6AllTrusted], WRITTEN, WrittenLostOnlyWithItsCopies),
    broken(&[Rule::R6Count], WRITTEN, DurableNeverLost),
    broken(&[Rule::R6Kept], DAMAGED_WRITTEN, DurableNeverLost),
    broken(&[Rule::R6Fence], FENCES, WrittenLostOnlyWithItsCopies),
    broken(&[Rule::R6Sync], ANSWERS, ReportExact),
    broken(&[Rule::R6Longest], TAILS, DurableNeverLost).slow(),
    broken(&[Rule::R6Generation], FENCES, WrittenLostOnlyWithItsCopies),
    broken(&[Rule::R7Vote], DURABLE, DurableNeverLost),
    broken(&[Rule::R7Fence], FENCES, WrittenLostOnlyWithItsCopies),
    broken(&[Rule::R7Answer], DURABLE, DurableNeverLost),
    broken(&[Rule::Barrier], PARTS, ReportExact).slow(),
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
        "W other copies are as good a promise; the owner's copy is needed to deliver, not to keep",
    ),
];
