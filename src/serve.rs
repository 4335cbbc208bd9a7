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
    time::Duration,
};

use shards::{
    driver::{PeerLimits, Report, Server, ServerOptions, StartError},
    log::{LogOptions, SyncMethod},
};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::{
    config::{ServeOptions, SyncChoice},
    notices::{complain, Lines},
};

/// The start is done: from here on a signal drains.
static SERVING: AtomicBool = AtomicBool::new(false);

/// Name and version as hello carries them.
const VERSION: &str = concat!("tidegate ", env!("CARGO_PKG_VERSION"));
/// Segments per log that are written to only on a full disk. One of the default
/// size takes the whole default backlog and the largest frame behind it.
const RESERVE_SEGMENTS: u32 = 1;
/// Bytes read back from disk that a shard keeps.
const READ_CACHE_BYTES: u64 = 16 << 20;
/// Exit code of a node that was removed from its cluster: no use in starting it again.
const REMOVED: u8 = 3;
/// Losses that come no further apart are told together.
const LOSSES_TOGETHER: Duration = Duration::from_millis(200);

/// Runs the server until SIGTERM or SIGINT, then drains.
pub fn run(options: ServeOptions) -> ExitCode {
    abort_on_panic();
    let signals = match watch_signals() {
        Ok(signals) => signals,
        Err(error) => return fail(&format!("cannot watch signals: {error}")),
    };
    let mut lines = Lines::new(options.log_level);
    let started = Server::start(driver_options(&options), &mut |shard, notice| {
        lines.notice(shard, notice);
    });
    let server = match started {
        Ok(server) => server,
        Err(error @ StartError::Removed { .. }) => return removed(&error.to_string()),
        Err(error) => return fail(&error.to_string()),
    };
    SERVING.store(true, Ordering::Relaxed);
    lines.started(server.identity.place.shards);
    for warning in server.warning.iter().chain(&options.remarks) {
        lines.warning(warning);
    }
    greet(&options, &server);
    match watch(&server, &signals, &mut lines) {
        Watched::Signal => drain(server, &signals, &mut lines),
        Watched::Failed(reason) => fail(&reason),
        Watched::Removed(reason) => removed(&reason),
    }
}

/// Why the shards are watched no more.
enum Watched {
    Signal,
    Failed(String),
    /// The node was removed from its cluster.
    Removed(String),
}

fn removed(reason: &str) -> ExitCode {
    complain(&format!("tidegate: {reason}"));
    ExitCode::from(REMOVED)
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
        advertise: options.advertise.clone(),
        shards: options.shards,
        node: options.node_id,
        data_groups: options.data_groups,
        log: LogOptions {
            segment_bytes: options.segment_bytes,
            background_sync_interval_ms: options.background_sync_interval.as_millis() as u64,
            cache_bytes: options.cache_bytes,
            backlog_bytes: options.backlog_bytes,
            spare_segments: options.spare_segments,
            reserve_segments: RESERVE_SEGMENTS,
            ..LogOptions::default()
        },
        sync_method: match options.sync_method {
            SyncChoice::Auto => None,
            SyncChoice::Dsync => Some(SyncMethod::Dsync),
            SyncChoice::Fdatasync => Some(SyncMethod::Fdatasync),
        },
        disk_low_water: options.disk_low_water,
        index_memory: options.index_memory,
        scrub_interval: options.scrub_interval,
        recovery_grace: options.recovery_grace,
        catch_up_rate: options.catch_up_rate,
        spread_leaders: options.spread_leaders,
        window_bytes: options.window_bytes,
        max_connections: options.max_connections,
        peers: PeerLimits {
            heartbeat: options.heartbeat,
            frame_deadline: options.frame_deadline,
        },
        io_memory: usize::try_from(options.io_memory_bytes).unwrap_or(usize::MAX),
        read_cache_bytes: READ_CACHE_BYTES,
        pin_cores: options.pin_cores,
        allow_any_file_system: options.allow_any_file_system,
        version: VERSION.to_owned(),
        cluster: options.cluster.clone(),
        join: options.join,
        force_group_0: options.force_group_0,
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
    // As it was called, so that the lines work where it is not on the path.
    let program = std::env::args().next();
    let program = program.as_deref().unwrap_or("tidegate");
    let lines = format!(
        "Tidegate {} listening on {}\n\
         Data in {} ({made}, {shards} shard{plural}); {}\n\
         Next, in another terminal:\n  \
           {program} queue declare orders{server_flag}\n  \
           {program} publish orders 'hello'{server_flag}\n  \
           {program} consume orders --max 1{server_flag}\n",
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
fn watch(server: &Server, signals: &flume::Receiver<i32>, lines: &mut Lines) -> Watched {
    enum Next {
        Report(Report),
        Signal,
    }
    loop {
        let next = flume::Selector::new()
            .recv(server.reports(), |report| {
                report.map_or(Next::Signal, Next::Report)
            })
            .recv(signals, |_| Next::Signal);
        let next = match lines.owes_losses() {
            true => next.wait_timeout(LOSSES_TOGETHER),
            false => Ok(next.wait()),
        };
        let Ok(next) = next else {
            lines.tell_losses();
            continue;
        };
        match next {
            Next::Report(Report::Notice { shard, notice }) => lines.notice(shard, &notice),
            Next::Report(Report::Failed { shard, reason }) => {
                return Watched::Failed(format!("shard {shard} cannot go on: {reason}"));
            }
            Next::Report(Report::Removed { reason }) => return Watched::Removed(reason),
            Next::Report(Report::Drained { .. } | Report::Listening { .. }) => {}
            Next::Signal => return Watched::Signal,
        }
    }
}

fn drain(server: Server, signals: &flume::Receiver<i32>, lines: &mut Lines) -> ExitCode {
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
    let drained = server.drain(&mut |shard, notice| lines.notice(shard, notice));
    lines.tell_losses();
    match drained {
        Ok(true) => {
            complain("tidegate: stopped; everything is durable");
            ExitCode::SUCCESS
        }
        Ok(false) => fail("stopped without a clean marker: a shard did not come to rest in time; the next start recovers"),
        Err(error) => fail(&format!("stopped, but the clean marker could not be written: {error}; the next start recovers")),
    }
}
