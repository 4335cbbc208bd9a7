//! The only place that does I/O.

pub mod fs_disk;
