//! The simulator: the code that ships, on a disk that tears, drops and
//! reorders what was not synced. One thread, one seed, bit for bit repeatable.
//!
//! - [`Random`]: the only source of chance.
//! - [`SimDisk`]: a directory as bring-up code sees it, with in-flight writes,
//!   power cuts, process crashes and injected faults.
//! - [`LogDriver`]: runs a log writer's effects against it, completing them in
//!   any order.
//! - [`log_run`]: a seeded history of one log, checked at every restart.
//! - [`rot_run`]: damage below the durable frontier of one log.
//! - [`directed`]: windows of one log that are too small for chance.
//! - `mutation` (a feature): rules are removed, and one of these must notice.
//! - [`engine_sim`]: a node with its clients, faults and an oracle.
//! - [`cluster_sim`]: several nodes, the links between them, clients, faults, an oracle.

mod buffer;
pub mod cluster_sim;
pub mod directed;
mod disk;
pub mod engine_sim;
mod log_driver;
pub mod log_run;
#[cfg(feature = "mutations")]
pub mod mutation;
mod promises;
mod random;
mod record;
pub mod rot_run;
pub mod tape;
mod trace;

pub use buffer::VecBuffer;
pub use disk::{Event, SimDisk, SimSync, SimWrite, SECTOR_BYTES};
pub use log_driver::LogDriver;
pub use random::Random;
