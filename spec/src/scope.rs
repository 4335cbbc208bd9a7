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
    /// The last node was removed before the start and is a learner now.
    pub one_removed: bool,
    pub budget: Budget,
}

const NONE: Budget = Budget {
    records: 0,
    weakens: 0,
    power_cuts: 0,
    crashes: 0,
    rollbacks: 0,
    damages: 0,
    forgets: 0,
};

/// Three replicas that answer at written, one record, nothing goes wrong.
const QUIET: Scope = Scope {
    name: "quiet",
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
    one_removed: false,
    budget: Budget { records: 1, ..NONE },
};

/// A group that answers at written, power cuts, and what R6 makes of them.
pub const WRITTEN: Scope = Scope {
    name: "written",
    terms: 3,
    recovery: true,
    budget: Budget {
        records: 1,
        power_cuts: 2,
        ..NONE
    },
    ..QUIET
};

/// The same, and the answers may be hit as well.
pub const ANSWERS: Scope = Scope {
    name: "answers",
    terms: 2,
    budget: Budget {
        records: 1,
        power_cuts: 3,
        ..NONE
    },
    ..WRITTEN
};

/// Old tails of an earlier term beside what is confirmed in a later one.
pub const TAILS: Scope = Scope {
    name: "tails",
    terms: 2,
    budget: Budget {
        records: 3,
        power_cuts: 2,
        ..NONE
    },
    ..WRITTEN
};

/// Followers take one entry at a time, so a sync may cover a part.
pub const PARTS: Scope = Scope {
    name: "parts",
    single_entries: true,
    ..WRITTEN
};

/// Crashes of processes beside a power cut, and a node that the operator gave up
/// although it is alive.
pub const FENCES: Scope = Scope {
    name: "fences",
    terms: 2,
    budget: Budget {
        records: 1,
        power_cuts: 1,
        crashes: 1,
        forgets: 1,
        ..NONE
    },
    ..WRITTEN
};

/// The owner's write is the slow one.
pub const SLOW: Scope = Scope {
    name: "slow owner",
    slow_writes: true,
    recovery: false,
    terms: 2,
    budget: Budget {
        records: 1,
        power_cuts: 1,
        crashes: 1,
        ..NONE
    },
    ..WRITTEN
};

/// A group that answers at durable: plain Raft, through a power cut of every node.
pub const DURABLE: Scope = Scope {
    name: "durable",
    weak: false,
    terms: 3,
    budget: Budget {
        records: 1,
        power_cuts: 3,
        crashes: 1,
        ..NONE
    },
    ..QUIET
};

/// Votes given one by one.
pub const VOTES: Scope = Scope {
    name: "votes",
    single_votes: true,
    budget: Budget {
        records: 1,
        power_cuts: 2,
        ..NONE
    },
    ..DURABLE
};

/// Durable bytes are lost on one node, in a group that answers at durable.
pub const HARMED: Scope = Scope {
    name: "harmed",
    weak: false,
    membership: true,
    budget: Budget {
        records: 1,
        power_cuts: 1,
        rollbacks: 1,
        ..NONE
    },
    entries: 5,
    ..QUIET
};

/// The same by damage, which is the same loss found in another way.
pub const DAMAGED: Scope = Scope {
    name: "damaged",
    budget: Budget {
        records: 1,
        power_cuts: 1,
        damages: 1,
        ..NONE
    },
    ..HARMED
};

/// Damage on one node and a power cut on another, in a group that answers at written.
pub const DAMAGED_WRITTEN: Scope = Scope {
    name: "damaged written",
    terms: 2,
    budget: Budget {
        records: 1,
        power_cuts: 1,
        damages: 1,
        ..NONE
    },
    ..WRITTEN
};

/// The first buffered queue comes to a group that answered at durable.
pub const WEAKENING: Scope = Scope {
    name: "weakening",
    weak: false,
    entries: 5,
    budget: Budget {
        records: 1,
        weakens: 1,
        power_cuts: 2,
        ..NONE
    },
    ..QUIET
};

/// Retired replicas are replaced.
pub const MEMBERSHIP: Scope = Scope {
    name: "membership",
    membership: true,
    recovery: true,
    entries: 5,
    budget: Budget {
        records: 1,
        power_cuts: 2,
        ..NONE
    },
    ..QUIET
};

/// The same, until nobody trusted is left.
pub const REPLACED: Scope = Scope {
    name: "replaced",
    joins: 2,
    budget: Budget {
        records: 1,
        power_cuts: 3,
        ..NONE
    },
    ..MEMBERSHIP
};

/// A second generation after the first.
pub const AGAIN: Scope = Scope {
    name: "again",
    generations: 2,
    terms: 3,
    budget: Budget {
        records: 1,
        power_cuts: 3,
        ..NONE
    },
    ..WRITTEN
};

/// Four replicas, one of them removed: the voters left are fewer than E.
pub const FOUR: Scope = Scope {
    name: "four",
    replicas: 4,
    copies: 3,
    terms: 2,
    entries: 5,
    one_removed: true,
    budget: Budget {
        records: 1,
        power_cuts: 3,
        ..NONE
    },
    ..WRITTEN
};

/// Two replicas.
pub const PAIR: Scope = Scope {
    name: "pair",
    replicas: 2,
    membership: true,
    entries: 5,
    budget: Budget {
        records: 1,
        power_cuts: 2,
        ..NONE
    },
    ..WRITTEN
};

/// Two replicas and durable confirms of one copy.
pub const PAIR_ONE: Scope = Scope {
    name: "pair, W = 1",
    copies: 1,
    ..PAIR
};

/// Three replicas and durable confirms of one copy: a buffered queue may have W = 1,
/// and a publish into it may ask for durable.
pub const THREE_ONE: Scope = Scope {
    name: "W = 1",
    copies: 1,
    terms: 2,
    ..WRITTEN
};

/// A damaged replica is replaced, then power fails elsewhere.
pub const REPLACED_DAMAGED: Scope = Scope {
    name: "replaced, damaged",
    budget: Budget {
        records: 1,
        power_cuts: 2,
        damages: 1,
        ..NONE
    },
    ..MEMBERSHIP
};

/// The same with one leader that stays, for what a leader does too early.
pub const HASTY: Scope = Scope {
    name: "hasty",
    terms: 1,
    entries: 4,
    ..REPLACED_DAMAGED
};

/// The same with an old tail on a voter that the barrier passes by.
pub const FOUR_TAILS: Scope = Scope {
    name: "four, tails",
    entries: 4,
    budget: Budget {
        records: 3,
        power_cuts: 3,
        ..NONE
    },
    ..FOUR
};

/// Everybody is retired in turn while one leader stays.
pub const NOBODY: Scope = Scope {
    name: "nobody",
    terms: 1,
    joins: 2,
    entries: 4,
    budget: Budget {
        records: 1,
        power_cuts: 3,
        ..NONE
    },
    ..MEMBERSHIP
};

/// The bounds that CI runs.
pub const SMALL: &[Scope] = &[
    ANSWERS,
    FENCES,
    SLOW,
    HARMED,
    DAMAGED,
    DAMAGED_WRITTEN,
    WEAKENING,
    PAIR,
    PAIR_ONE,
    THREE_ONE,
    HASTY,
    NOBODY,
    MEMBERSHIP,
];

/// Every scope that can be explored to its end in minutes.
pub const FULL: &[Scope] = &[
    ANSWERS,
    FENCES,
    SLOW,
    HARMED,
    DAMAGED,
    DAMAGED_WRITTEN,
    WEAKENING,
    PAIR,
    PAIR_ONE,
    THREE_ONE,
    HASTY,
    NOBODY,
    MEMBERSHIP,
    WRITTEN,
    TAILS,
    PARTS,
    DURABLE,
    VOTES,
    REPLACED,
    REPLACED_DAMAGED,
    AGAIN,
    FOUR,
];

/// Scopes that are too large for that.
pub const HUGE: &[Scope] = &[FOUR_TAILS];
