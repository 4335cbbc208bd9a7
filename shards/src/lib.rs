//! What one core owns: its log, its groups, its queues and the engine that
//! joins them. Layers, strictly downward: `io`, `log`, `store`, `group`, `state`,
//! `engine`, `driver`. Only `driver` does I/O, reads a clock, owns threads or
//! draws random numbers; everything else is a pure state machine.

pub mod driver;
pub mod engine;
#[cfg(test)]
mod format_page;
pub mod group;
pub mod io;
pub mod log;
pub mod mutation;
pub mod state;
pub mod store;
