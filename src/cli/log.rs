//! `tidegate log`: looking at a data directory offline.

use std::{
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use argh::FromArgs;
use serde::Serialize;
use shards::{
    driver::offline::{inspect_directory, running_server, OfflineError, RunningServer, Stored},
    engine::StoredRecords,
    log::{Inspected, Inspection},
};
use thiserror::Error;

/// Look at the logs of a data directory. Reads only.
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

/// Walk the segments of each log and print every batch, then what the log is
/// known to hold and what recovery would do. Of a running server's directory
/// it shows some recent moment, and says so.
#[derive(Debug, FromArgs)]
#[argh(subcommand, name = "inspect", help_triggers("-h", "--help"))]
struct Inspect {
    /// data directory
    #[argh(positional)]
    dir: PathBuf,

    /// print one JSON object per batch, damaged range and log
    #[argh(switch)]
    json: bool,
}

/// Check every checksum of each log and say what recovery would do. Exit code
/// 1 when durable bytes are damaged or cannot be read, and while a server uses
/// the directory: nothing is certain of a log that is being written.
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

#[derive(Debug, Error)]
enum LogError {
    #[error(transparent)]
    Offline(#[from] OfflineError),
    #[error("standard output was closed or cannot be written ({0}), so the command stopped")]
    Output(io::Error),
    #[error("{0} holds no log yet; a server makes them when it first starts")]
    NoLogs(String),
    #[error("a server{} uses {dir}, so its logs go on while they are read and no verdict would hold; stop it first, or look at them with `tidegate log inspect`", .server.named())]
    Running { dir: String, server: RunningServer },
    #[error("cannot tell whether a server uses {dir}: {source}")]
    Lock { dir: String, source: io::Error },
    #[error("durable bytes are damaged or cannot be read; the lines above name the places, and a start of the server keeps what verifies")]
    Damaged,
}

impl Log {
    pub fn run(self) -> ExitCode {
        let result = match self.action {
            Action::Inspect(args) => inspect(&args),
            Action::Verify(args) => verify(&args),
        };
        match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("tidegate: {error}");
                ExitCode::FAILURE
            }
        }
    }
}

fn inspect(args: &Inspect) -> Result<(), LogError> {
    let server = server_of(&args.dir)?;
    if let Some(server) = &server {
        eprintln!(
            "tidegate: a server{} uses {}: this is a recent moment of its logs; their ends may still move, and until it stops they look like logs that were not stopped cleanly",
            server.named(),
            args.dir.display()
        );
    }
    let what = What {
        batches: true,
        running: server.is_some(),
    };
    look(&args.dir, args.json, what).map(drop)
}

fn verify(args: &Verify) -> Result<(), LogError> {
    let refuse_running = || match server_of(&args.dir)? {
        Some(server) => Err(LogError::Running {
            dir: args.dir.display().to_string(),
            server,
        }),
        None => Ok(()),
    };
    refuse_running()?;
    let what = What {
        batches: false,
        running: false,
    };
    let sound = look(&args.dir, args.json, what)?;
    // One that started meanwhile spoils the verdict.
    refuse_running()?;
    if sound {
        Ok(())
    } else {
        Err(LogError::Damaged)
    }
}

fn server_of(dir: &Path) -> Result<Option<RunningServer>, LogError> {
    running_server(dir).map_err(|source| LogError::Lock {
        dir: dir.display().to_string(),
        source,
    })
}

/// What of the logs is shown.
#[derive(Debug, Clone, Copy)]
struct What {
    batches: bool,
    /// A server uses the directory.
    running: bool,
}

/// Prints the logs of `dir`; true when all of them are sound.
fn look(dir: &Path, json: bool, what: What) -> Result<bool, LogError> {
    let mut sound = true;
    let mut logs = 0;
    let out = BufWriter::with_capacity(64 * 1024, io::stdout().lock());
    // Both callbacks print; the first failure is kept and silences the rest.
    let out = std::cell::RefCell::new(Printer {
        out,
        json,
        running: what.running,
        failed: None,
    });
    inspect_directory(
        dir,
        &mut |shard, item| {
            if what.batches {
                out.borrow_mut().batch(shard, &item);
            }
        },
        &mut |shard, inspection, stored| {
            logs += 1;
            sound &= inspection.is_sound() && stored.records.damaged == 0;
            out.borrow_mut().log(shard, &inspection, &stored);
        },
    )?;
    out.into_inner().finish()?;
    if logs == 0 {
        return Err(LogError::NoLogs(dir.display().to_string()));
    }
    Ok(sound)
}

struct Printer<W> {
    out: W,
    json: bool,
    running: bool,
    failed: Option<io::Error>,
}

impl<W: Write> Printer<W> {
    fn batch(&mut self, shard: u16, item: &Inspected<'_>) {
        if self.json {
            self.object(&BatchJson::new(shard, item));
        } else {
            self.line(format_args!("shard {shard}: {item}"));
        }
    }

    fn log(&mut self, shard: u16, inspection: &Inspection, stored: &Stored) {
        if self.json {
            self.object(&LogJson::new(shard, inspection, stored, self.running));
            return;
        }
        self.line(format_args!("shard {shard}: {inspection}"));
        for range in &inspection.damaged {
            self.line(format_args!(
                "shard {shard}: damaged from {} to {}",
                range.from, range.to
            ));
        }
        if let Some(checkpoint) = &stored.checkpoint {
            let StoredRecords {
                records,
                packed,
                damaged,
                ..
            } = &stored.records;
            self.line(format_args!(
                "shard {shard}: {checkpoint}; {records} records are kept from before, {packed} of them in packed files, {damaged} damaged"
            ));
        }
        for (queue_id, partition, offset) in &stored.records.listed {
            self.line(format_args!(
                "shard {shard}: the record at offset {offset} of queue id {queue_id} partition {partition} is damaged"
            ));
        }
    }

    fn object(&mut self, value: &impl Serialize) {
        match serde_json::to_string(value) {
            Ok(text) => self.line(format_args!("{text}")),
            Err(error) => self.failed = self.failed.take().or(Some(error.into())),
        }
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        if self.failed.is_none() {
            self.failed = writeln!(self.out, "{text}").err();
        }
    }

    fn finish(mut self) -> Result<(), LogError> {
        match self.failed.or_else(|| self.out.flush().err()) {
            Some(error) => Err(LogError::Output(error)),
            None => Ok(()),
        }
    }
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum BatchJson {
    Batch {
        shard: u16,
        sequence: u64,
        position: u64,
        /// Padding included.
        bytes: u64,
        /// Header and body, which the checksums cover.
        used_bytes: u64,
        epoch: u64,
        fragments: u32,
        durable_next: u64,
    },
    Damaged {
        shard: u16,
        from: u64,
        to: u64,
    },
}

impl BatchJson {
    fn new(shard: u16, item: &Inspected<'_>) -> Self {
        match item {
            Inspected::Batch { header, bytes } => BatchJson::Batch {
                shard,
                sequence: header.sequence,
                position: header.position.0,
                bytes: *bytes,
                used_bytes: header.used_bytes(),
                epoch: header.epoch,
                fragments: header.fragments,
                durable_next: header.durable_next.0,
            },
            Inspected::Damaged(range) => BatchJson::Damaged {
                shard,
                from: range.from.0,
                to: range.to.0,
            },
        }
    }
}

#[derive(Serialize)]
struct RangeJson {
    from: u64,
    to: u64,
}

#[derive(Serialize)]
struct LogJson {
    kind: &'static str,
    shard: u16,
    log_id: String,
    epoch: u64,
    open_counter: u64,
    batches: u64,
    items: u64,
    /// Positions in the log.
    known_durable_next: u64,
    end: u64,
    sound: bool,
    /// A server uses the directory: all of this may have changed since.
    running: bool,
    stopped_cleanly: bool,
    /// The next start has to take what was only written for forgotten.
    amnesiac: bool,
    latched: bool,
    cut: Option<RangeJson>,
    damaged_ranges: u64,
    /// Batches whose padding, which no checksum covers, is not zero.
    odd_paddings: u64,
    damaged: Vec<RangeJson>,
    /// Serial of the checkpoint that reading began at.
    checkpoint: Option<u64>,
    /// Records that it names from before its anchor.
    stored_records: u64,
    /// Of them, those in packed files.
    packed_records: u64,
    damaged_records: u64,
}

impl LogJson {
    fn new(shard: u16, log: &Inspection, stored: &Stored, running: bool) -> Self {
        LogJson {
            kind: "log",
            shard,
            log_id: log.log_id.to_string(),
            epoch: log.epoch,
            open_counter: log.open_counter,
            batches: log.batches,
            items: log.items,
            known_durable_next: log.known_durable_next.0,
            end: log.end.0,
            sound: log.is_sound() && stored.records.damaged == 0,
            running,
            stopped_cleanly: log.clean_marker.is_some(),
            amnesiac: log.amnesiac,
            latched: log.latched,
            cut: log.cut.map(|cut| RangeJson {
                from: cut.from.0,
                to: cut.to.0,
            }),
            damaged_ranges: log.damaged_ranges,
            odd_paddings: log.odd_paddings,
            checkpoint: stored.checkpoint.map(|head| head.serial),
            stored_records: stored.records.records,
            packed_records: stored.records.packed,
            damaged_records: stored.records.damaged,
            damaged: log
                .damaged
                .iter()
                .map(|range| RangeJson {
                    from: range.from.0,
                    to: range.to.0,
                })
                .collect(),
        }
    }
}
