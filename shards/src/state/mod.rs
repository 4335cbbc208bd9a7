//! Pure state machines over the commands of a group's log.

pub mod command;
pub mod level;
pub mod meta;
pub mod producer;
pub mod queue;
mod reader;
