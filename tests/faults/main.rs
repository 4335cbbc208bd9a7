//! Crash and fault tests against real server processes; the F numbers are
//! those of the fault list. `TIDEGATE_TEST_SIZE=full` runs them at full size.

#[path = "../support/mod.rs"]
mod support;

mod clock;
mod consumers;
mod crash_loop;
mod disk;
mod leases;
mod load;
mod modes;
mod network;
mod offsets;
mod power_cut;
mod queues;
mod recovery;
mod scale;
mod scrub;
