//! What group 0 knows of a log's opens (R1): no other directory, no older copy and no
//! second copy of one takes a node's place.

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
}

/// Why an open cannot follow the one that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contradiction {
    /// Another data directory was this node's.
    Foreign,
    /// It was opened more often already: an older copy.
    RolledBack { known: u64, says: u64 },
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
        let cloned = next.counter == self.counter && next.nonce != self.nonce;
        cloned.then_some(Contradiction::Cloned {
            counter: self.counter,
        })
    }
}
