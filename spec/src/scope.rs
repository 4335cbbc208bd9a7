//! The bounds of a run.

use crate::state::Budget;

/// What is explored: how many of each, and what the group is.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    pub name: &'static str,
    /// E, the full replica count.
    pub replicas: u8,
    /// W, for both boundaries.
    pub copies: u8,
    /// The group answers at written from the start.
    pub weak: bool,
    /// The last term in which anybody stands for election.
    pub terms: u8,
    /// The last generation.
    pub generations: u8,
    /// The last join number of a node in a generation.
    pub joins: u8,
    /// The longest log.
    pub entries: u8,
    /// Membership changes happen.
    pub membership: bool,
    /// Collect, recover, rebuild happen.
    pub recovery: bool,
    /// Votes are given one by one, not a quorum at once.
    pub single_votes: bool,
    /// A leader's record is in memory, and sent, before its write completes.
    pub slow_writes: bool,
    /// A follower takes one entry at a time.
    pub single_entries: bool,
    pub budget: Budget,
}

const NO_BUDGET: Budget = Budget {
    records: 0,
    weakens: 0,
    power_cuts: 0,
    crashes: 0,
    rollbacks: 0,
    damages: 0,
    forgets: 0,
};

/// Three replicas, nothing goes wrong.
const QUIET: Scope = Scope {
    name: "",
    replicas: 3,
    copies: 2,
    weak: true,
    terms: 2,
    generations: 1,
    joins: 1,
    entries: 4,
    membership: false,
    recovery: false,
    single_votes: false,
    slow_writes: false,
    single_entries: false,
    budget: NO_BUDGET,
};

/// The bounds that CI runs.
pub const SMALL: &[Scope] = &[
    Scope {
        name: "written",
        terms: 3,
        recovery: true,
        budget: Budget {
            records: 1,
            power_cuts: 2,
            ..NO_BUDGET
        },
        ..QUIET
    },
    Scope {
        name: "durable",
        weak: false,
        terms: 3,
        budget: Budget {
            records: 1,
            power_cuts: 3,
            crashes: 1,
            ..NO_BUDGET
        },
        ..QUIET
    },
    Scope {
        name: "weakening",
        weak: false,
        entries: 5,
        budget: Budget {
            records: 1,
            weakens: 1,
            power_cuts: 2,
            ..NO_BUDGET
        },
        ..QUIET
    },
    Scope {
        name: "membership",
        membership: true,
        recovery: true,
        entries: 5,
        budget: Budget {
            records: 1,
            power_cuts: 2,
            ..NO_BUDGET
        },
        ..QUIET
    },
];
