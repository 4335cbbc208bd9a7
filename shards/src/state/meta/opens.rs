//! What group 0 knows of a log's opens (R1): no other directory, no older copy and no
//! second copy of one takes a node's place.
//!
//! A counter alone would believe an old copy once that was started often enough. So a
//! directory draws a token, keeps it over its starts until it has heard that group 0
//! recorded it, and draws the next one only then. What group 0 recorded is the token of
//! the directory's present or last one; an old copy knows neither.
//!
//! Never does: tell a copy that was made since the last recorded start from its original.

use std::fmt;

/// One open of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Open {
    /// Of the data directory, random.
    pub cookie: u64,
    /// How often the log was opened, this time included.
    pub counter: u64,
    /// Of the process that opened it, random.
    pub nonce: u64,
    pub lineage: Lineage,
    /// What the version that opened it knows ([`crate::state::level`]).
    pub level: u16,
}

/// What the directory has heard from group 0 of its earlier starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lineage {
    /// Random, kept until group 0 is known to have recorded it for every log; 0 = none:
    /// of a version that drew none.
    pub token: u64,
    /// The one before, which was recorded; 0 = none.
    pub last_token: u64,
    /// Counter of the log's last open that it knows to be recorded; 0 = of none.
    pub recorded: u64,
}

/// Why an open cannot follow the one that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contradiction {
    /// Another data directory was this node's.
    Foreign,
    /// It was opened more often already: an older copy.
    RolledBack { known: u64, says: u64 },
    /// It knows nothing of an open that group 0 recorded: an older copy, started since.
    Strayed { known: u64, heard_of: u64 },
    /// Two processes opened it for the same time: a copy is in use.
    Cloned { counter: u64 },
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Contradiction::Foreign => f.write_str(
                "another data directory has been this node's; one that is new, or of another node, has forgotten what that one promised",
            ),
            Contradiction::RolledBack { known, says } => write!(
                f,
                "it was opened {known} times already and says {says}: this is an old copy of the directory"
            ),
            Contradiction::Strayed { known, heard_of } => write!(
                f,
                "the cluster recorded its open number {known} and it has heard of number {heard_of} at the latest: this is an old copy of the directory"
            ),
            Contradiction::Cloned { counter } => write!(
                f,
                "another process has opened it as often, {counter} times: this is a copy of the directory, or another is in use"
            ),
        }
    }
}

impl Open {
    /// Why `next` cannot come after this one.
    pub fn contradicts(self, next: Open) -> Option<Contradiction> {
        if next.cookie != self.cookie {
            return Some(Contradiction::Foreign);
        }
        if next.counter < self.counter {
            return Some(Contradiction::RolledBack {
                known: self.counter,
                says: next.counter,
            });
        }
        if next.counter == self.counter {
            return (next.nonce != self.nonce).then_some(Contradiction::Cloned {
                counter: self.counter,
            });
        }
        let heard_of = next.lineage.recorded;
        let known = [next.lineage.token, next.lineage.last_token];
        // Whoever judges may be behind itself: then it knows an earlier open only.
        let strayed = self.counter > heard_of
            && self.lineage.token != 0
            && !known.contains(&self.lineage.token);
        strayed.then_some(Contradiction::Strayed {
            known: self.counter,
            heard_of,
        })
    }
}
