//! Bring-up of the server process: options into the driver, reports into
//! lines, signals into a drain.
//!
//! Standard output carries the first lines for the user, standard error what
//! happens later. A crash leaves behind what the logs hold; see
//! `docs/durability.md`.

use std::{
    io::Write,
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use shards::{
    driver::{Report, Server, ServerOptions},
    engine::Notice,
    log::{LogOptions, SyncMethod},
};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::config::{LogLevel, ServeOptions, SyncChoice};

/// The start is done: from here on a signal drains.
static SERVING: AtomicBool = AtomicBool::new(false);

/// Name and version as hello carries them.
const VERSION: &str = concat!("tidegate ", env!("CARGO_PKG_VERSION"));
/// Bytes read back from disk that a shard keeps.
const READ_CACHE_BYTES: u64 = 16 << 20;

/// Runs the server until SIGTERM or SIGINT, then drains.
pub fn run(options: ServeOptions) -> ExitCode {
    abort_on_panic();
    let signals = match watch_signals() {
        Ok(signals) => signals,
        Err(error) => return fail(&format!("cannot watch signals: {error}")),
    };
    let lines = Lines {
        level: options.log_level,
    };
    let started = Server::start(driver_options(&options), &mut |shard, notice| {
        lines.notice(shard, notice);
    });
    let server = match started {
        Ok(server) => server,
        Err(error) => return fail(&error.to_string()),
    };
    SERVING.store(true, Ordering::Relaxed);
    greet(&options, &server);
    let failed = watch(&server, &signals, &lines);
    if let Some(reason) = failed {
        return fail(&reason);
    }
    drain(server, &signals, &lines)
}

/// A line for the operator. Standard error that nobody reads any more is no
/// reason to stop serving.
fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn fail(reason: &str) -> ExitCode {
    complain(&format!("tidegate: {reason}"));
    ExitCode::FAILURE
}

/// A shard that panicked must not leave the others serving half a server: the
/// next start recovers everything that was confirmed.
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report(info);
        std::process::abort();
    }));
}

fn watch_signals() -> std::io::Result<flume::Receiver<i32>> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let (send, receive) = flume::unbounded();
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                if !SERVING.load(Ordering::Relaxed) {
                    // Nothing was admitted yet: ending now is as safe as a kill.
                    std::process::exit(1);
                }
                if send.send(signal).is_err() {
                    return;
                }
            }
        })?;
    Ok(receive)
}

fn driver_options(options: &ServeOptions) -> ServerOptions {
    ServerOptions {
        data: options.data.clone(),
        listen: options.listen,
        shards: options.shards,
        node: options.node_id,
        data_groups: options.data_groups,
        log: LogOptions {
            segment_bytes: options.segment_bytes,
            background_sync_interval_ms: options.background_sync_interval.as_millis() as u64,
            cache_bytes: options.cache_bytes,
            backlog_bytes: options.backlog_bytes,
            spare_segments: options.spare_segments,
            ..LogOptions::default()
        },
        sync_method: match options.sync_method {
            SyncChoice::Auto => None,
            SyncChoice::Dsync => Some(SyncMethod::Dsync),
            SyncChoice::Fdatasync => Some(SyncMethod::Fdatasync),
        },
        window_bytes: options.window_bytes,
        max_connections: options.max_connections,
        io_memory: usize::try_from(options.io_memory_bytes).unwrap_or(usize::MAX),
        read_cache_bytes: READ_CACHE_BYTES,
        pin_cores: options.pin_cores,
        allow_any_file_system: options.allow_any_file_system,
        version: VERSION.to_owned(),
    }
}

/// The first lines: where it listens, where the data is, what to type next.
fn greet(options: &ServeOptions, server: &Server) {
    let shards = server.identity.place.shards;
    let made = if server.created { "new" } else { "found" };
    let plural = if shards == 1 { "" } else { "s" };
    let server_flag = if server.address.port() == 7420 && server.address.ip().is_loopback() {
        String::new()
    } else {
        format!(" --server {}", server.address)
    };
    let lines = format!(
        "Tidegate {} listening on {}\n\
         Data in {} ({made}, {shards} shard{plural}); {}\n\
         Next, in another terminal:\n  \
           tidegate queue declare orders{server_flag}\n  \
           tidegate publish orders 'hello'{server_flag}\n  \
           tidegate consume orders --max 1{server_flag}\n",
        env!("CARGO_PKG_VERSION"),
        server.address,
        options.data.display(),
        server.sync_line()
    );
    // Whoever read it may be gone (`tidegate serve | head -1`): serve on.
    let mut output = std::io::stdout();
    let _ = output
        .write_all(lines.as_bytes())
        .and_then(|()| output.flush());
}

/// Prints what the shards report, until a signal or a shard that cannot go on.
fn watch(server: &Server, signals: &flume::Receiver<i32>, lines: &Lines) -> Option<String> {
    enum Next {
        Report(Report),
        Signal,
    }
    loop {
        let next = flume::Selector::new()
            .recv(server.reports(), |report| {
                report.map_or(Next::Signal, Next::Report)
            })
            .recv(signals, |_| Next::Signal)
            .wait();
        match next {
            Next::Report(Report::Notice { shard, notice }) => lines.notice(shard, &notice),
            Next::Report(Report::Failed { shard, reason }) => {
                return Some(format!("shard {shard} cannot go on: {reason}"));
            }
            Next::Report(Report::Drained { .. } | Report::Listening { .. }) => {}
            Next::Signal => return None,
        }
    }
}

fn drain(server: Server, signals: &flume::Receiver<i32>, lines: &Lines) -> ExitCode {
    complain("tidegate: draining; a second signal stops at once");
    let signals = signals.clone();
    // Detached: it ends with the process.
    let impatient = thread::Builder::new()
        .name("impatient".into())
        .spawn(move || {
            if signals.recv().is_ok() {
                std::process::exit(1);
            }
        });
    drop(impatient);
    match server.drain(&mut |shard, notice| lines.notice(shard, notice)) {
        Ok(true) => {
            complain("tidegate: stopped; everything is durable");
            ExitCode::SUCCESS
        }
        Ok(false) => fail("stopped without a clean marker: a shard did not come to rest in time; the next start recovers"),
        Err(error) => fail(&format!("stopped, but the clean marker could not be written: {error}; the next start recovers")),
    }
}

/// Lines for an operator, on standard error.
struct Lines {
    level: LogLevel,
}

impl Lines {
    fn notice(&self, shard: u16, notice: &Notice) {
        let (level, text) = describe(notice);
        if level <= self.level {
            complain(&format!("tidegate: shard {shard}: {text}"));
        }
    }
}

fn describe(notice: &Notice) -> (LogLevel, String) {
    match notice {
        Notice::Serving => (LogLevel::Info, "serves again".to_owned()),
        Notice::Recovered { text } => (LogLevel::Info, text.clone()),
        Notice::Latched { cause } => (
            LogLevel::Error,
            format!("{cause}; nothing is confirmed until the log is reopened, which is tried by itself"),
        ),
        Notice::Loss { queue, queue_id, partition, generation, first_lost, begins } => (
            LogLevel::Warn,
            format!(
                "queue {queue:?} (id {queue_id}) partition {partition} begins generation {begins}: every offset of generation {generation} at or above {first_lost} is gone, every one below is present"
            ),
        ),
        Notice::BadRecord { queue_id, partition, offset } => (
            LogLevel::Error,
            format!("the record at offset {offset} of queue id {queue_id} partition {partition} does not verify on disk; its neighbours are served"),
        ),
        Notice::DiskFull(true) => (
            LogLevel::Error,
            "the disk has no room for another log segment; publishes are refused until there is".to_owned(),
        ),
        Notice::DiskFull(false) => (LogLevel::Info, "the disk has room again".to_owned()),
        Notice::Problem(text) => (LogLevel::Warn, text.clone()),
    }
}
