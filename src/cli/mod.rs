//! The command line: parsing, dispatch, exit codes.
//!
//! Exit codes: 0 done, 1 refused or failed, 2 wrong usage. Results go to
//! standard output, everything else to standard error.

mod barrier;
mod change;
mod cluster;
mod consume;
mod describe;
mod failure;
mod log;
mod output;
mod patience;
mod publish;
mod queue;
mod serve;
mod session;

use std::{io::Write, process::ExitCode};

use argh::FromArgs;

/// Wrong usage.
const USAGE: u8 = 2;

/// Tidegate: a message server that tells you what a confirm means.
#[derive(Debug, FromArgs)]
#[argh(
    note = "Start a server with `{command_name} serve`, then try `{command_name} queue declare orders`.\n\
            Every command explains itself: `{command_name} publish --help`.",
    error_code(0, "done"),
    error_code(1, "refused or failed; the reason is on standard error"),
    error_code(2, "wrong usage")
)]
struct Arguments {
    /// print the version and exit
    #[argh(switch)]
    version: bool,

    #[argh(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, FromArgs)]
#[argh(subcommand)]
enum Command {
    Serve(serve::Serve),
    Queue(queue::Queue),
    Publish(publish::Publish),
    Consume(consume::Consume),
    Barrier(barrier::Barrier),
    Cluster(cluster::Cluster),
    Log(log::Log),
}

/// Runs the program.
pub fn main() -> ExitCode {
    let mut words = Vec::new();
    for word in std::env::args_os().skip(1) {
        match word.into_string() {
            Ok(word) => words.push(word),
            Err(word) => {
                let shown = word.to_string_lossy();
                return wrong_usage(&format!(
                    "the argument {shown:?} is not UTF-8; give binary records by --file or standard input"
                ));
            }
        }
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match parse(&words) {
        Ok(command) => run(command),
        Err(Stop::Printed(text)) => {
            // A reader that went away has seen enough.
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(Stop::Usage(text)) => wrong_usage(&text),
    }
}

fn wrong_usage(text: &str) -> ExitCode {
    eprintln!("tidegate: {}", text.trim_end());
    ExitCode::from(USAGE)
}

/// Why there is nothing to run.
#[derive(Debug)]
enum Stop {
    /// Help or version, asked for.
    Printed(String),
    Usage(String),
}

fn parse(words: &[&str]) -> Result<Command, Stop> {
    let arguments =
        Arguments::from_args(&["tidegate"], words).map_err(|exit| match exit.status {
            Ok(()) => Stop::Printed(exit.output),
            Err(()) => Stop::Usage(exit.output),
        })?;
    if arguments.version {
        let version = concat!("tidegate ", env!("CARGO_PKG_VERSION"), "\n");
        return Err(Stop::Printed(version.to_owned()));
    }
    let command = arguments
        .command
        .ok_or_else(|| Stop::Usage("no command was given; see tidegate --help".to_owned()))?;
    command.check().map_err(Stop::Usage)?;
    Ok(command)
}

fn run(command: Command) -> ExitCode {
    match command {
        Command::Serve(serve) => serve.run(),
        Command::Queue(queue) => queue.run(),
        Command::Publish(publish) => publish.run(),
        Command::Consume(consume) => consume.run(),
        Command::Barrier(barrier) => barrier.run(),
        Command::Cluster(cluster) => cluster.run(),
        Command::Log(log) => log.run(),
    }
}

impl Command {
    /// What the parser cannot see: names, and options that exclude each other.
    fn check(&self) -> Result<(), String> {
        match self {
            Command::Serve(_) | Command::Cluster(_) | Command::Log(_) => Ok(()),
            Command::Queue(queue) => queue.check(),
            Command::Publish(publish) => publish.check(),
            Command::Consume(consume) => check_name(&consume.name),
            Command::Barrier(barrier) => check_name(&barrier.name),
        }
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let checked = wire::name::check_name(name);
    checked.map(drop).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(words: &[&str]) -> String {
        match parse(words) {
            Err(Stop::Usage(text)) => text,
            other => panic!("{words:?}: {other:?}"),
        }
    }

    #[test]
    fn wrong_usage_is_told_apart_from_help() {
        for words in [
            &[][..],
            &["frobnicate"],
            &["serve", "--shards", "many"],
            &["serve", "--segment-size", "64MB"],
            &["queue"],
            &["queue", "declare"],
            &["queue", "declare", "q", "--mode", "fast"],
            &["queue", "declare", "q", "--lease", "30"],
            &["queue", "declare", "q", "--partitions", "0"],
            &["queue", "info", ""],
            &["publish"],
            &["publish", "q", "x", "--file", "f"],
            &["publish", "q", "x", "--deadline", "0"],
            &["consume", "q", "--max", "-1"],
            &["consume", "a\nb"],
            &["barrier", "q", "extra"],
            &["log", "inspect"],
            &["cluster"],
            &["cluster", "forget"],
            &["cluster", "forget", "one"],
            &["cluster", "recover", "1", "--wait", "0s"],
            &["cluster", "add", "4"],
        ] {
            assert!(!usage(words).is_empty(), "{words:?}");
        }
    }

    #[test]
    fn help_is_printed_for_every_command_and_names_the_exit_codes() {
        for words in [
            &["--help"][..],
            &["serve", "--help"],
            &["queue", "--help"],
            &["queue", "declare", "--help"],
            &["queue", "list", "--help"],
            &["queue", "info", "--help"],
            &["queue", "peek", "--help"],
            &["queue", "purge", "--help"],
            &["queue", "delete", "--help"],
            &["publish", "--help"],
            &["consume", "--help"],
            &["barrier", "--help"],
            &["cluster", "--help"],
            &["cluster", "status", "--help"],
            &["cluster", "forget", "--help"],
            &["cluster", "recover", "--help"],
            &["cluster", "drain", "--help"],
            &["cluster", "undrain", "--help"],
            &["cluster", "losses", "--help"],
            &["log", "--help"],
            &["log", "inspect", "--help"],
            &["log", "verify", "--help"],
        ] {
            match parse(words) {
                Err(Stop::Printed(text)) => assert!(text.contains("Usage: tidegate"), "{text}"),
                other => panic!("{words:?}: {other:?}"),
            }
        }
        match parse(&["--help"]) {
            Err(Stop::Printed(text)) => assert!(text.contains("2 wrong usage"), "{text}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_payload_that_looks_like_an_option_passes_behind_two_dashes() {
        match parse(&["publish", "q", "--", "--durable"]) {
            Ok(Command::Publish(publish)) => {
                assert_eq!(publish.record.as_deref(), Some("--durable"));
                assert!(!publish.durable);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn help_is_a_word_like_any_other_for_names_and_payloads() {
        match parse(&["publish", "help", "help"]) {
            Ok(Command::Publish(publish)) => {
                assert_eq!(publish.name, "help");
                assert_eq!(publish.record.as_deref(), Some("help"));
            }
            other => panic!("{other:?}"),
        }
        assert!(parse(&["queue", "info", "help"]).is_ok());
    }

    #[test]
    fn every_command_of_the_tour_parses() {
        for words in [
            &["serve"][..],
            &[
                "serve",
                "--data",
                "d",
                "--listen",
                "127.0.0.1:0",
                "--shards",
                "2",
            ],
            &["serve", "--config", "f", "--segment-size", "4MiB"],
            &["queue", "declare", "orders"],
            &[
                "queue",
                "declare",
                "clicks",
                "--mode",
                "buffered",
                "--partitions",
                "2",
            ],
            &["queue", "declare", "clicks", "--lease", "30s", "--json"],
            &["queue", "list", "--server", "localhost:1"],
            &["queue", "info", "orders", "--json"],
            &["queue", "peek", "orders", "--max", "1"],
            &["queue", "purge", "orders"],
            &["queue", "delete", "orders"],
            &["publish", "orders", "one cappuccino"],
            &["publish", "orders"],
            &["publish", "clicks", "--durable", "the click that mattered"],
            &["publish", "q", "x", "--key", "k", "--deadline", "5s"],
            &["publish", "q", "--file", "f"],
            &["consume", "orders", "--max", "2"],
            &["consume", "orders", "--wait", "2s", "--no-ack"],
            &["barrier", "clicks"],
            &["log", "inspect", "dir"],
            &["log", "verify", "dir"],
            &[
                "cluster", "status", "--server", "a:1,b:1", "--groups", "--json",
            ],
            &["cluster", "forget", "3", "--yes", "--force"],
            &["cluster", "recover", "17", "--accept-loss", "--wait", "5s"],
            &["cluster", "drain", "2"],
            &["cluster", "undrain", "2"],
            &["cluster", "losses"],
        ] {
            if let Err(stop) = parse(words) {
                panic!("{words:?}: {stop:?}");
            }
        }
    }
}
