//! Whether what clients of queues saw can be put into one order: linearizability of
//! publishes, deliveries, settles and barriers, of histories that tests record.
//!
//! Owns: the record of a run ([`History`]), the specification of a queue's partition
//! ([`spec`]) and the way from one to the other ([`check`](History::check)). The search
//! itself is that of Wing, Gong and Lowe with a cache of what was tried, by the crate
//! `todc-utils`. It is used by the cluster simulator and by the tests with real
//! processes.
//!
//! 1. Partitions are independent objects, so each is checked by itself: a history is
//!    linearizable exactly if each of them is (Herlihy and Wing's locality).
//! 2. So is its log (publishes, barriers, ends of generations), and each publish with
//!    what became of its records. That is no weaker than all of it in one search: every
//!    operation says where it took effect, so that which of two that touch each other
//!    came first is known, and a publish counts as over when one of its records was seen.
//! 3. A log's history is cut where, by its offsets, everything before was over: a search
//!    is as long as the busiest stretch, not as the run.
//! 4. Nothing is assumed that a client did not see, but for one kind of thing: an
//!    unknown publish that nobody ever saw a record of is left out. It never happened,
//!    or a new generation lost it, and then the offsets it took may be missing there.
//! 5. A search that takes too many steps ends as a violation, never as a success.
//!
//! Never: reads a clock. Times are the caller's, in microseconds; what has the same
//! time is taken to overlap.

mod check;
mod history;
mod search;
mod spans;
pub mod spec;
#[cfg(test)]
mod tests;

pub use check::{Checked, Violation};
pub use history::{Ended, History, Key, Outcome, Seen, Settled};
