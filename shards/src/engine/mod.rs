//! The engine of one shard: joins log, groups and state machines. Events in,
//! effects out.
//!
//! Owns: the partitions of its groups, the connections it answers, the copy of
//! the cluster's queue directory, and on shard 0 the metadata state machine.
//!
//! Invariants:
//! 1. Pure: no I/O, clock, thread, random number or randomly seeded map.
//! 2. A confirm, a delivery or a settle confirm leaves only when the boundary
//!    it names is met by the entry it rests on.
//! 3. An entry that was proposed is never reported as failed; what cannot be
//!    known is reported as unknown.
//! 4. Whatever can grow has a bound, and a typed refusal at the bound.
//!
//! Never: blocks, reads a payload it did not validate, answers for a partition
//! of another shard.
//!
//! A crash leaves behind: the log, from which `boot` rebuilds everything but
//! leases, credit and connections.

mod absent;
mod applier;
mod apply;
mod boot;
mod changing;
mod cluster;
mod connection;
mod core;
mod deadlines;
mod deliver;
mod directory;
mod elsewhere;
mod gates;
mod hello;
mod inspect;
mod leadership;
mod level;
mod links;
mod membership;
mod meta;
mod moves;
mod nodes;
mod operator;
mod orders;
mod pace;
mod partition;
mod publish;
mod reads;
mod recovery;
mod relay;
mod requests;
mod resign;
mod roles;
mod room;
mod roster;
mod seats;
mod setting;
mod settle;
mod shortfall;
mod slow_owner;
mod snapshot;
mod spread;
mod subscribe;
mod turn;
mod types;
mod upkeep;

pub use boot::{Boot, BootError};
pub use core::Engine;
pub(crate) use core::KEPT_ENTRIES;
pub(crate) use hello::error_frame;
pub use hello::{HelloAnswer, HelloFacts};
pub use roles::Role;
pub use types::{
    ConnKey, Effect, EngineConfig, Event, Loss, Memory, Notice, ReadFile, ReadResult, ShardMessage,
    ShardPlace,
};
pub use upkeep::{verify_stored, RestoreFailure, StoredRecords};
