//! The Tidegate server and its command line, in one binary.

mod cli;
mod config;
mod link_lines;
mod notices;
mod serve;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
