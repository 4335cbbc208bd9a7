//! Traits only: what the layers below the driver ask of the world. The glommio
//! driver and the simulator implement them.
//!
//! Two kinds of I/O meet here and never mix: the hot path is effects (the pure
//! code says what to write, the driver does it, with [`BatchBuffer`]s), and
//! bring-up is blocking calls on a [`Disk`], made on helper threads or before
//! a shard's loop starts.

mod buffer;
mod disk;

pub use buffer::BatchBuffer;
pub use disk::{Disk, DiskError, DiskErrorKind, DiskFile};
