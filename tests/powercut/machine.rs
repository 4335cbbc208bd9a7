//! A machine: a disk that can lose its power, and the server on it.

use std::{
    io::{self, Write},
    time::Duration,
};

use powercut_fs::{available, private_mounts, CutReport, PowercutFs};
use tempfile::TempDir;

use crate::support::{
    journal::Summary,
    server::{Home, Server},
    Random,
};

/// A line for people, past the test harness, which hides what a test that
/// passes prints.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Totals of a run.
#[derive(Debug, Default)]
pub struct Totals {
    pub cuts: u64,
    pub process_kills: u64,
    pub sectors_dropped: u64,
    pub sectors_kept: u64,
    pub names_undone: u64,
    pub writes_in_flight: u64,
}

pub struct Machine {
    pub home: Home,
    pub disk: PowercutFs,
    pub totals: Totals,
    boots: u64,
    // Last: the disk is mounted in it.
    _directory: TempDir,
}

impl Machine {
    /// A machine with an empty disk; `configure` adds to the configuration.
    /// `None`, said loudly, where nothing can be mounted.
    pub fn new(
        shards: u16,
        random: &mut Random,
        configure: impl FnOnce(Home) -> Home,
    ) -> Option<Self> {
        let usable = available().and_then(|()| private_mounts());
        if let Err(error) = usable {
            say(&format!(
                "\nNOT TESTED: no power was cut, because FUSE file systems cannot be mounted here \
                 (/dev/fuse and root are needed): {error}"
            ));
            return None;
        }
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let disk = PowercutFs::mount(directory.path(), random.next()).unwrap();
        // Not the root of the disk: the server makes its directory there.
        let home = configure(Home::new(shards).short_segments()).data_at(&disk.path().join("data"));
        let mut machine = Machine {
            home,
            disk,
            totals: Totals::default(),
            boots: 0,
            _directory: directory,
        };
        machine.boot();
        Some(machine)
    }

    /// As after a reboot: another boot id, and nothing in `/run`.
    fn boot(&mut self) {
        self.boots += 1;
        let id = format!("{:032x}", self.boots);
        self.home.reboot(&id);
    }

    /// The power goes now; the server dies without having learnt of it, if it
    /// has not ended before.
    pub fn cut(&mut self, server: Server) -> CutReport {
        let report = self.disk.cut();
        self.fall(server, report)
    }

    /// The power goes at the `changes`th request from now that changes the
    /// disk, or when the wait is over.
    pub fn cut_after(&mut self, server: Server, changes: u64, most: Duration) -> CutReport {
        self.disk.cut_after(changes);
        let report = self.disk.await_cut(most).unwrap_or_else(|| self.disk.cut());
        self.fall(server, report)
    }

    /// The server is killed, and what it had on the way still ends; then the
    /// power goes.
    pub fn kill_then_cut(&mut self, server: Server) -> CutReport {
        server.kill();
        self.cut_stopped()
    }

    /// The power goes when no server runs.
    pub fn cut_stopped(&mut self) -> CutReport {
        let report = self.disk.cut();
        self.rise(report)
    }

    /// The power went by itself.
    pub fn fall(&mut self, server: Server, report: CutReport) -> CutReport {
        server.kill_and(|| self.disk.refuse());
        self.rise(report)
    }

    fn rise(&mut self, report: CutReport) -> CutReport {
        self.disk.power_on().unwrap();
        self.boot();
        self.totals.cuts += 1;
        self.totals.sectors_dropped += report.sectors_dropped;
        self.totals.sectors_kept += report.sectors_kept;
        self.totals.names_undone += report.names_undone;
        self.totals.writes_in_flight += report.in_flight;
        report
    }

    /// The process dies; the machine stays up.
    pub fn kill(&mut self, server: Server) {
        server.kill();
        self.totals.process_kills += 1;
    }

    /// What the run did and what was checked, as one line.
    pub fn report(&self, name: &str, summaries: &[Summary]) {
        let sum = |of: fn(&Summary) -> usize| summaries.iter().map(of).sum::<usize>();
        let (totals, counts) = (&self.totals, self.disk.counts());
        let log = std::fs::read_dir(self.home.data().join("shard-00")).unwrap();
        let mut files: Vec<_> = log.map(|entry| entry.unwrap().file_name()).collect();
        files.sort();
        println!("{name}: the log is {files:?}");
        say(&format!(
            "{name}: {} power cuts, {} process kills, {} failed operations; unsynced at the cuts: \
             {} sectors dropped, {} kept, {} names undone, {} writes in flight; checked: {} \
             confirmed records ({} of them reported lost), {} confirmed settles",
            totals.cuts,
            totals.process_kills,
            counts.faults,
            totals.sectors_dropped,
            totals.sectors_kept,
            totals.names_undone,
            totals.writes_in_flight,
            sum(|summary| summary.confirmed),
            sum(|summary| summary.reported_lost),
            sum(|summary| summary.settle_confirmed),
        ));
    }
}
