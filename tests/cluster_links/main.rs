//! Links between nodes, with real processes: who is linked, who is refused and
//! why, and what strangers on the port for nodes can do.

#[path = "../support/mod.rs"]
mod support;

mod admin;
mod copies;
mod crowds;
mod directory;
mod failover;
mod forced;
mod forged;
mod halts;
mod levels;
mod linking;
mod members;
mod modes;
mod net;
mod once;
mod rawnode;
mod refused;
mod replace;
mod replication;
mod spread;
mod stops;
mod straight;
