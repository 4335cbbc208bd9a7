//! Raft groups over the shard's log.
//!
//! Owns: the Raft state machine of each group that has a replica on this log,
//! which completion counts as its "persisted" (the boundary the group answers
//! at), and the items that make term, vote, identity and generation durable.
//!
//! Invariants:
//! 1. Every entry Raft knows is in the log, in index order, before Raft is
//!    told that it is persisted.
//! 2. A Ready is reported persisted only when every Ready before it is. A
//!    change of term or vote counts as persisted at *durable*, whatever the
//!    group answers at.
//! 3. Payload bytes never enter Raft: its entries are empty, the handle to the
//!    payload is kept beside them, by index.
//! 4. A group that answers at written never answers at durable again within
//!    its life.
//!
//! 5. No message leaves before the term and vote it was made under are durable,
//!    whatever the group answers at (R7).
//! 6. A durable report is bound to the leader's term and never goes beyond what
//!    was acknowledged to that leader in it.
//! 7. A replica that stopped its generation does nothing in it any more.
//!
//! Never: parses protobuf bytes, sends anything itself, reuses a Raft node whose
//! log was cut.
//!
//! A crash leaves behind: items in the log; `Recovered` rebuilds from them.

mod copies;
mod generation;
mod identity;
mod laggards;
mod membership;
mod messages;
mod node;
mod recovered;
mod state_item;
mod storage;

pub use identity::{GroupId, PeerId};
pub use laggards::Held as HeldForFollowers;
pub use membership::{Members, MembershipChange, MembershipStep};
pub use node::{Committed, Group, GroupError, Outcome, TICK_MS};
pub use recovered::{Held, Recovered, Tail};
#[cfg(test)]
pub(crate) use state_item::golden as golden_state;
pub use state_item::{GroupState, GroupStateError};
