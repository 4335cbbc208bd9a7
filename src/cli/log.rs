//! `tidegate log`: looking at a data directory offline.

use std::{path::PathBuf, process::ExitCode};

use argh::FromArgs;

/// Look at the logs of a data directory whose server is not running.
#[derive(Debug, FromArgs)]
#[argh(subcommand, name = "log", help_triggers("-h", "--help"))]
pub struct Log {
    #[argh(subcommand)]
    action: Action,
}

#[derive(Debug, FromArgs)]
#[argh(subcommand)]
enum Action {
    Inspect(Inspect),
    Verify(Verify),
}

/// Walk the segments and print every batch and both frontiers. Reads only.
#[derive(Debug, FromArgs)]
#[argh(subcommand, name = "inspect", help_triggers("-h", "--help"))]
struct Inspect {
    /// data directory
    #[argh(positional)]
    dir: PathBuf,

    /// print one JSON object per batch
    #[argh(switch)]
    json: bool,
}

/// Say what recovery would do with each log. Reads only. Exit code 1 when
/// something is damaged.
#[derive(Debug, FromArgs)]
#[argh(subcommand, name = "verify", help_triggers("-h", "--help"))]
struct Verify {
    /// data directory
    #[argh(positional)]
    dir: PathBuf,

    /// print one JSON object per log
    #[argh(switch)]
    json: bool,
}

impl Log {
    pub fn run(self) -> ExitCode {
        let (dir, json) = match self.action {
            Action::Inspect(args) => (args.dir, args.json),
            Action::Verify(args) => (args.dir, args.json),
        };
        eprintln!(
            "tidegate: this build cannot read {} offline yet (json: {json})",
            dir.display()
        );
        ExitCode::FAILURE
    }
}
