//! The proof that the generator does not omit what it could not send: the
//! server is frozen for 100 ms in mid-run, and the percentiles must show it.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use wire::{message::ANY_SHARD, vocabulary::Mode};

use crate::{
    conn::{Connection, REQUEST_TIMEOUT},
    error::LoadError,
    plan::{Drive, Settings},
    report::RunReport,
    run,
    sys::{self, Signal},
    units::SizeRange,
};

/// How long the server is frozen.
const FREEZE_MS: u64 = 100;
const RATE: f64 = 1000.0;
const DURATION_MS: u64 = 4000;

/// Freezes the server at `server` once, in the middle of a run.
///
/// # Errors
/// The run could not be made, or no process was found to freeze.
pub fn frozen_run(server: &str, given_pid: Option<u32>) -> Result<RunReport, LoadError> {
    let settings = settings(server, given_pid);
    let Some(pid) = run::server_pid(&settings) else {
        return Err(LoadError::Impossible(
            "the server's process was not found on this machine; name it with --server-pid".into(),
        ));
    };
    let freezer = thread::spawn(move || {
        sys::sleep_until(sys::now_ns() + DURATION_MS / 2 * 1_000_000);
        let frozen = sys::send_signal(pid, Signal::Stop);
        sys::sleep_until(sys::now_ns() + FREEZE_MS * 1_000_000);
        // Always thawed, whatever happened before.
        frozen.and(sys::send_signal(pid, Signal::Continue))
    });
    let findings = run::run(&settings);
    let freezing = freezer.join();
    freezing
        .map_err(|_| LoadError::Impossible("the freezing thread panicked".into()))?
        .map_err(LoadError::io("cannot freeze the server"))?;
    Ok(RunReport::new("frozen 100 ms", &settings, &findings?))
}

/// What the frozen run must show; empty when it does.
///
/// Records due in the freeze wait for its end: of 1000/s, those of the first
/// half of it (about 50) wait longer than 50 ms, and the longest close to
/// 100 ms. A generator that waits for answers would show one slow record.
pub fn missing_evidence(report: &RunReport) -> Vec<String> {
    let mut missing = report.failures.clone();
    let Some(latencies) = report.latencies.first() else {
        return vec!["no latencies".into()];
    };
    let mut expect = |holds: bool, what: String| {
        if !holds {
            missing.push(what);
        }
    };
    let confirm = &latencies.confirm;
    let ms = |ns: u64| ns as f64 / 1e6;
    let due_early = (RATE * FREEZE_MS as f64 / 2.0 / 1e3 * 0.8) as u64;
    expect(
        confirm.max_ns >= (FREEZE_MS - 10) * 1_000_000,
        format!(
            "the longest confirm took {:.1} ms; it must show the freeze of {FREEZE_MS} ms",
            ms(confirm.max_ns)
        ),
    );
    expect(
        confirm.p99_ns >= 20_000_000,
        format!(
            "p99 is {:.1} ms; 2.5 % of the records were due in the freeze",
            ms(confirm.p99_ns)
        ),
    );
    expect(
        latencies.confirms_above_50_ms >= due_early,
        format!(
            "{} confirms took more than 50 ms; at least {due_early} were due early in the freeze",
            latencies.confirms_above_50_ms
        ),
    );
    expect(
        latencies.receive.max_ns >= (FREEZE_MS - 10) * 1_000_000,
        format!(
            "the longest receive took {:.1} ms",
            ms(latencies.receive.max_ns)
        ),
    );
    missing
}

fn settings(server: &str, server_pid: Option<u32>) -> Settings {
    Settings {
        server: server.to_owned(),
        queue: "loadgen-selftest".into(),
        modes: vec![Mode::Durable],
        queues: 1,
        partitions: 0,
        producers: 1,
        consumers: 1,
        size: SizeRange { min: 256, max: 256 },
        batch: 1,
        drive: Drive::Open {
            rate: RATE,
            bursts: vec![],
            every: Duration::ZERO,
        },
        warmup: Duration::ZERO,
        duration: Duration::from_millis(DURATION_MS),
        drain: Duration::from_secs(10),
        deadline_ms: 0,
        credit_records: 0,
        credit_bytes: 0,
        settle_sample: 16,
        spin: Duration::ZERO,
        series: false,
        pin_core: None,
        server_pid,
    }
}

/// A server started for the test; killed and its directory removed when dropped.
pub struct OwnServer {
    child: Child,
    dir: PathBuf,
    pub address: String,
}

impl OwnServer {
    /// Starts `program serve` in a new temporary directory on a free port and
    /// waits until it answers.
    ///
    /// # Errors
    /// It does not start, or does not answer within ten seconds.
    pub fn start(program: &Path) -> Result<OwnServer, LoadError> {
        let io = || LoadError::io("cannot start the server");
        let dir = std::env::temp_dir().join(format!(
            "loadgen-selftest-{}-{}",
            std::process::id(),
            sys::now_ns()
        ));
        std::fs::create_dir(&dir).map_err(io())?;
        let free = TcpListener::bind("127.0.0.1:0").map_err(io())?;
        let address = free.local_addr().map_err(io())?.to_string();
        drop(free);
        let child = Command::new(program)
            .args(["serve", "--shards", "1", "--listen", &address, "--data"])
            .arg(dir.join("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(io())?;
        let mut server = OwnServer {
            child,
            dir,
            address,
        };
        let deadline = sys::now_ns() + 10_000_000_000;
        loop {
            if let Some(status) = server.child.try_wait().map_err(io())? {
                return Err(LoadError::Impossible(format!("the server ended: {status}")));
            }
            match Connection::open(&server.address, ANY_SHARD, REQUEST_TIMEOUT) {
                Ok(_) => return Ok(server),
                Err(error) if sys::now_ns() >= deadline => return Err(error),
                Err(_) => sys::sleep_until(sys::now_ns() + 50_000_000),
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to stop.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
