//! Snapshots: a replica that is too far behind, or empty, gets the group's state.
//!
//! Owns: what is on its way out (one at a time) and in (one per group).
//!
//! 1. The pieces stand in the receiver's log before anything counts; its old state
//!    stays until a last item says that the new one is in force, and what rests on
//!    it is answered only when that item is persisted (R10).
//! 2. What the sender captured stays readable until the snapshot is through.
//! 3. No checkpoint begins behind pieces that are not installed yet.
//!
//! Never: gives a record's bytes on that do not verify.
//!
//! A crash leaves behind: pieces without the last item, which mean nothing.

mod piece;
mod receive;
mod send;
mod staged;

pub(super) use piece::{installed as installed_piece, Piece};
pub(super) use receive::Receiving;
pub(super) use send::Sending;
pub(super) use staged::{drop_partitions, Staged};
