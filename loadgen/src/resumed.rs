//! When a run goes on after a fault.

use crate::session::Session;

/// The first confirm, or delivery, of a record sent after a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resumed {
    pub row: usize,
    /// Number of the fault, from 1.
    pub fault: u64,
    pub at_ns: u64,
}

impl Resumed {
    /// Notes that row `row` goes on, with a record sent at `sent_ns`.
    pub fn note(found: &mut Vec<Resumed>, session: &Session, row: usize, sent_ns: u64, at_ns: u64) {
        let Some(fault) = session.fault_before(sent_ns) else {
            return;
        };
        let known = |other: &&Resumed| other.row == row && other.fault == fault;
        // The latest are last, and few.
        if found.iter().rev().take(64).find(known).is_none() {
            found.push(Resumed { row, fault, at_ns });
        }
    }
}
