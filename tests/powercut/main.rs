//! The real server on a disk that loses its power, fails and fills up: a file
//! system of the test process (`tests/powercut-fs`) carries the server's direct
//! I/O. `TIDEGATE_TEST_SIZE=full` runs them at full size.
//!
//! Where no FUSE file system can be mounted (`/dev/fuse` and root are needed)
//! nothing of this is tested; each test says so, loudly, and passes.

#[path = "../support/mod.rs"]
mod support;

mod creation;
mod cuts;
mod failures;
mod full_disk;
mod machine;
mod retries;
mod traffic;
