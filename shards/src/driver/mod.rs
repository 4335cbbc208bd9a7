//! The only place that does I/O.

pub mod boot;
pub mod device_probe;
pub mod fs_disk;
