//! Open-loop load generator for Tidegate.
//!
//! Threads and blocking waits straight on the `wire` crate: no executor, so
//! that the generator's own cost and jitter stay small. One thread per
//! connection; producers send by due times that nothing moves
//! ([`schedule`]), consumers read, note and settle once per read.
//!
//! Exit codes: 0 done, 1 failed (also: something confirmed did not arrive, or
//! out of order), 2 wrong usage.

mod abba;
mod args;
mod cluster;
mod commands;
mod conn;
mod consumer;
mod door;
mod environment;
mod error;
mod failover;
mod inflight;
mod latency;
mod limits;
mod payload;
#[cfg(test)]
mod peer;
mod plan;
mod process;
mod producer;
mod report;
mod resumed;
mod run;
mod saturate;
mod schedule;
mod selftest;
mod series;
mod session;
mod sys;
mod table;
mod track;
mod units;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let arguments = match args::parse(&words) {
        Ok(arguments) => arguments,
        Err((text, 0)) => {
            println!("{text}");
            return ExitCode::SUCCESS;
        }
        Err((text, code)) => {
            eprintln!("{text}");
            return ExitCode::from(code);
        }
    };
    match commands::execute(arguments.command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(commands::Failure::Usage(text)) => {
            eprintln!("loadgen: {text}");
            ExitCode::from(2)
        }
        Err(commands::Failure::Load(error)) => {
            eprintln!("loadgen: {error}");
            ExitCode::FAILURE
        }
    }
}
