//! Reading a log back: what survived, where it ends, what is damaged.
//!
//! Owns the walk over the batches, the decision table it obeys, the scan of
//! what lies behind the end, and the assembly of items.
//!
//! Invariants:
//! 1. A batch is handed out only if header and body verify, it stands where
//!    its header says, and it follows its predecessor (checksum, sequence,
//!    epoch); after damage the next header that can belong to the chain.
//! 2. Nothing below the last known durable frontier ends the log: it is damage,
//!    reported by place and skipped.
//! 3. The last known durable frontier comes from successful syncs only: the
//!    superblock, the clean marker, a latch record, and what intact headers of
//!    this log stamped.
//!
//! Never writes.

mod items;
mod scan;
mod table;
mod walk;

pub(super) use items::ItemAssembler;
pub use items::{place_in, RecoveredItem};
pub(super) use table::{Action, Boot};
pub use walk::DamagedRange;
pub(super) use walk::{walk, BatchVisitor, WalkEnd, WalkError, WalkFacts};
