//! Bring-up of the server process.

use std::process::ExitCode;

use crate::config::ServeOptions;

/// Runs the server until it is told to stop.
pub fn run(options: ServeOptions) -> ExitCode {
    eprintln!("tidegate: this build has no server yet (asked for: {options:?})");
    ExitCode::FAILURE
}
