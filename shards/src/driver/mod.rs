//! The only layer that knows glommio, threads, clocks and files: engine
//! effects into I/O, completions into events.
//!
//! Owns: one executor per core and the shards it runs, the sockets (of clients,
//! and of other nodes in `links`), the segment descriptors, the mailboxes between shards, the helper threads, and
//! the data directory around the logs (lock, identity, clean marker).
//!
//! Invariants:
//! 1. The engine is entered from its own thread only, never across an await.
//! 2. Creating, zeroing, renaming files and syncing directories happen on
//!    helper threads only.
//! 3. Tasks run to completion: they end by a flag or a closed socket, never by
//!    being cancelled.
//! 4. The first file that an executor opens has written, synced content on the
//!    data device (glommio decides about polling by it).
//! 5. No descriptor of the log is shared with a second open file description
//!    that writes without holding the segment's lock.
//!
//! Never: decides anything about promises; that is the engine's.
//!
//! A crash leaves behind: the data directory without its clean marker.

mod boot_directory;
mod bringup;
mod buffer;
mod clock;
mod connection;
mod data_directory;
pub mod device_probe;
mod disk_space;
mod fd;
mod formats;
pub mod fs_disk;
mod helper;
mod identity;
mod lineage;
mod links;
mod listener;
mod local_event;
mod machine;
mod mailbox;
pub mod offline;
mod peer_watch;
mod pulse;
mod segments;
mod server;
mod shard;
mod store_job;
mod timer;

pub use boot_directory::boot_directory;
pub use data_directory::{shard_directory, DirectoryError};
pub use identity::{Identity, Membership};
pub use links::{ClusterOptions, Secret};
pub use machine::MachineError;
pub use peer_watch::PeerLimits;
pub use server::{Server, ServerOptions, StartError};
pub use shard::Report;
