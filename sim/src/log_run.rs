//! A seeded history of one log: appends with both demands, completions in any
//! order, crashes, power cuts, clean stops and I/O errors, also while opening;
//! checked at every restart.
//!
//! Checked: what survives is a prefix of what was appended, unchanged; nothing
//! reported durable is missing, ever; nothing reported written is missing
//! unless the power went; the log says it may have forgotten exactly when that
//! is so; every surviving byte is where the log says it is.

use std::fmt;
use std::time::Duration;

use shards::log::{
    self, BootId, CleanMarker, ItemHeader, ItemKind, LatchRecord, LogId, LogOptions, LogPosition,
    OpenFacts, Opened, SyncMethod,
};
use wire::vocabulary::Boundary;

use crate::{Event, LogDriver, Random, SimDisk};

/// What a run did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunSummary {
    pub appended: u64,
    pub opens: u64,
    pub power_cuts: u64,
    pub latches: u64,
    pub survivors: u64,
    pub trace: Vec<Event>,
}

/// A promise that was broken.
#[derive(Debug)]
pub struct RunFailure {
    pub seed: u64,
    pub message: String,
}

impl fmt::Display for RunFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: {}", self.seed, self.message)
    }
}

/// Runs the history of `seed`.
pub fn run(seed: u64) -> Result<RunSummary, RunFailure> {
    let mut run = Run::new(seed);
    run.lives()
        .map_err(|message| RunFailure { seed, message })?;
    let trace = run.disk.trace();
    run.summary.trace = trace;
    run.summary.survivors = run.history.len() as u64;
    Ok(run.summary)
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Item {
    header: ItemHeader,
    payload: Vec<u8>,
    position: LogPosition,
    end: LogPosition,
}

struct Run {
    random: Random,
    disk: SimDisk,
    boot: Option<SimDisk>,
    boot_id: u128,
    options: LogOptions,
    history: Vec<Item>,
    /// How many items, from the first, were reported as written and durable.
    written: usize,
    durable: usize,
    /// How many must survive.
    floor: usize,
    power_cut: bool,
    /// Stopped cleanly, and nothing has happened since.
    clean: bool,
    /// An open has failed since.
    interrupted: bool,
    /// An I/O error is recorded.
    latch: Option<LatchRecord>,
    /// The process that latched is still there.
    latched_lives: bool,
    /// A verdict of amnesia the layers above have not acted upon.
    unsettled: bool,
    next_index: u64,
    summary: RunSummary,
}

type Checked<T> = Result<T, String>;

fn check(condition: bool, message: impl FnOnce() -> String) -> Checked<()> {
    if condition {
        Ok(())
    } else {
        Err(message())
    }
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let block_bytes = random.pick(&[512, 4096]);
        let blocks = random.pick(&[4, 8, 16]);
        let options = LogOptions {
            segment_bytes: u64::from(block_bytes) * blocks,
            block_bytes,
            background_sync_interval_ms: random.pick(&[0, 10, 100]),
            sync_method: random.pick(&[SyncMethod::Dsync, SyncMethod::Fdatasync]),
            cache_bytes: random.pick(&[0, 20_000, 1 << 20]),
            backlog_bytes: random.pick(&[20_000, 1 << 20]),
            spare_segments: random.pick(&[0, 1, 2]) as u32,
            reserve_segments: u32::from(blocks > 4),
        };
        let boot = random.chance(2, 3).then(|| SimDisk::new(random.fork()));
        let disk = SimDisk::new(random.fork());
        disk.set_physical_bytes(block_bytes as usize);
        Run {
            disk,
            boot,
            boot_id: 1,
            options,
            history: Vec::new(),
            written: 0,
            durable: 0,
            floor: 0,
            power_cut: false,
            clean: true,
            interrupted: false,
            latch: None,
            latched_lives: false,
            unsettled: false,
            next_index: 0,
            summary: RunSummary {
                appended: 0,
                opens: 0,
                power_cuts: 0,
                latches: 0,
                survivors: 0,
                trace: Vec::new(),
            },
            random,
        }
    }

    fn lives(&mut self) -> Checked<()> {
        let log_id = LogId(u128::from(self.random.number()));
        log::create(&self.disk, log_id, &self.options).map_err(|error| error.to_string())?;
        let lives = 2 + self.random.below(5);
        for _ in 0..lives {
            let mut driver = self.open()?;
            self.work(&mut driver)?;
            self.stop(driver)?;
        }
        // Whatever a restart hides, a second one may show.
        for _ in 0..2 {
            let driver = self.open()?;
            self.stop(driver)?;
        }
        Ok(())
    }

    fn open(&mut self) -> Checked<LogDriver> {
        for attempt in 0..8 {
            let last = attempt == 7;
            if !last && self.random.chance(1, 4) {
                self.disk.crash_after(Some(self.random.below(14)));
            }
            let faulty = !last && self.random.chance(1, 10);
            if faulty {
                let fail_writes = self.random.chance(1, 2);
                self.disk.fail_writes(u64::from(fail_writes));
                self.disk.fail_syncs(u64::from(!fail_writes));
            }
            let mut seen = Vec::new();
            let result = self.try_open(&mut seen);
            self.disk.crash_after(None);
            self.disk.fail_writes(0);
            self.disk.fail_syncs(0);
            match result {
                Ok(opened) => return self.opened(opened, seen),
                Err(_) if self.disk.is_stopped() => {
                    self.interrupted = true;
                    self.crash();
                }
                // The process goes on and tries again.
                Err(_) if faulty => self.interrupted = true,
                Err(error) => return Err(format!("cannot open: {error}")),
            }
        }
        Err("eight opens failed".to_owned())
    }

    fn try_open(&mut self, seen: &mut Vec<Item>) -> Checked<Opened> {
        let markers = log::take_clean_markers(&self.disk).map_err(|error| error.to_string())?;
        let marker: Option<CleanMarker> = markers.first().copied();
        let facts = OpenFacts {
            boot_id: BootId(self.boot_id),
            clean_marker: marker,
            boot_directory: self.boot.as_ref().map(|boot| boot as &dyn shards::io::Disk),
            lock_wait: Duration::ZERO,
            base: None,
        };
        let mut on_item = |item: log::RecoveredItem<'_>| {
            seen.push(Item {
                header: item.header,
                payload: item.payload.to_vec(),
                position: item.position,
                end: item.position,
            });
        };
        // The process that latched goes on with what it knows itself; one after
        // it has only what was recorded.
        let opened = match self.latch.filter(|_| self.latched_lives) {
            Some(latch) => log::reopen(&self.disk, &self.options, &facts, &latch, &mut on_item),
            None => log::open(&self.disk, &self.options, &facts, &mut on_item),
        };
        opened.map_err(|error| error.to_string())
    }

    fn opened(&mut self, opened: Opened, seen: Vec<Item>) -> Checked<LogDriver> {
        let report = &opened.report;
        self.summary.opens += 1;
        self.disk.note("opened", seen.len() as u64, report.end.0);
        check(seen.len() >= self.floor, || {
            format!(
                "{} of {} promised items survived; {report}",
                seen.len(),
                self.floor
            )
        })?;
        check(seen.len() <= self.history.len(), || {
            format!("{} items from nowhere", seen.len())
        })?;
        for (at, (seen, item)) in seen.iter().zip(&self.history).enumerate() {
            let same = seen.header == item.header && seen.payload == item.payload;
            check(same, || format!("item {at} changed; {report}"))?;
        }
        check(
            report.damaged.is_empty() && !report.durable_memory_lost,
            || format!("damage where none was done; {report}"),
        )?;
        check(report.amnesiac || seen.len() >= self.written, || {
            format!("written items are gone and the log does not say so; {report}")
        })?;
        let lost_power = self.power_cut && !self.clean && self.summary.opens > 1;
        let forgot = self.unsettled || self.latch.is_some() || lost_power;
        // An open that died on its way may have settled the question, or
        // have latched, or count as one that answered something.
        check(report.amnesiac == forgot || self.interrupted, || {
            format!("amnesiac should be {forgot}; {report}")
        })?;
        self.unsettled = report.amnesiac;
        if report.amnesiac && self.random.chance(3, 4) {
            log::amnesia_settled(&self.disk, report.incarnation)
                .map_err(|error| error.to_string())?;
            self.unsettled = false;
        }
        self.history = seen;
        self.written = self.history.len();
        self.durable = self.history.len();
        self.power_cut = false;
        self.clean = false;
        self.interrupted = false;
        self.latch = None;
        let driver = LogDriver::new(self.disk.clone(), opened.start, self.options.clone());
        for _ in 0..3 {
            self.read_back(&driver, self.written)?;
        }
        Ok(driver)
    }

    fn work(&mut self, driver: &mut LogDriver) -> Checked<()> {
        let steps = self.random.below(80);
        if self.random.chance(1, 5) {
            let count = self.random.pick(&[1, 1_000]);
            if self.random.chance(1, 2) {
                self.disk.fail_writes(count);
            } else {
                self.disk.fail_syncs(count);
            }
        }
        for _ in 0..steps {
            match self.random.below(10) {
                0..=3 => self.append(driver)?,
                4..=5 => driver.submit(),
                6..=7 => {
                    driver.complete_one(&mut self.random);
                }
                8 => driver.pass(self.random.below(40)),
                _ if self.random.chance(1, 2) => {
                    let at = self.random.below(self.history.len() as u64 + 1) as usize;
                    let position = self.history.get(at).map(|item| item.end);
                    driver
                        .log
                        .demand_durable(position.unwrap_or(LogPosition(u64::MAX)));
                }
                _ => self.read_back(driver, self.written)?,
            }
            self.observe(driver)?;
        }
        Ok(())
    }

    fn append(&mut self, driver: &mut LogDriver) -> Checked<()> {
        let segment = self.options.segment_bytes;
        let len = match self.random.below(20) {
            0 => 0,
            1..=13 => self.random.below(300),
            14..=17 => self.random.below(segment),
            _ => self.random.below(3 * segment),
        };
        let demand = self.random.pick(&[Boundary::Written, Boundary::Durable]);
        self.next_index += 1;
        let header = ItemHeader {
            kind: self.random.pick(&[ItemKind::Entry, ItemKind::GroupState]),
            group: self.random.below(3) as u32,
            term: self.summary.opens,
            index: self.next_index,
            sync: demand == Boundary::Durable,
        };
        let key = self.random.number();
        let payload: Vec<u8> = (0..len)
            .map(|at| (key.wrapping_mul(at | 1) >> 32) as u8)
            .collect();
        let (front, back) = payload.split_at(self.random.below(len + 1) as usize);
        match driver.log.append(header, &[front, back], demand) {
            Ok(appended) => {
                self.summary.appended += 1;
                self.history.push(Item {
                    header,
                    position: appended.payload,
                    end: appended.end,
                    payload,
                });
                Ok(())
            }
            Err(log::AppendError::Backlog { .. }) => Ok(()),
            Err(log::AppendError::Latched) if driver.log.is_latched() => Ok(()),
            Err(error) => Err(format!("append refused: {error}")),
        }
    }

    /// Takes note of what the log reports, as a confirm would.
    fn observe(&mut self, driver: &LogDriver) -> Checked<()> {
        let log::LogFrontiers {
            appended,
            submitted,
            written_next,
            durable_next,
        } = driver.log.frontiers();
        let ordered =
            appended >= submitted && submitted >= written_next && written_next >= durable_next;
        check(ordered, || {
            format!("frontiers out of order: {:?}", driver.log.frontiers())
        })?;
        if driver.log.is_latched() {
            return check(written_next == durable_next, || {
                "latched, yet written".to_owned()
            });
        }
        let reached = |from: usize, frontier: LogPosition| {
            let rest = self.history.get(from..).unwrap_or_default();
            from + rest.iter().take_while(|item| item.end <= frontier).count()
        };
        let (written, durable) = (
            reached(self.written, written_next),
            reached(self.durable, durable_next),
        );
        self.written = written;
        self.durable = durable;
        Ok(())
    }

    /// A random piece of a random item, from memory or else from disk.
    fn read_back(&mut self, driver: &LogDriver, on_disk: usize) -> Checked<()> {
        if self.history.is_empty() {
            return Ok(());
        }
        let at = self.random.below(self.history.len() as u64) as usize;
        let item = &self.history[at];
        let len = item.payload.len() as u64;
        let from = self.random.below(len + 1);
        let count = self.random.below(len - from + 1);
        let expected = &item.payload[from as usize..(from + count) as usize];
        let place = driver.log.advance(item.position, from as u32);
        let mut bytes = Vec::new();
        let cached = driver.log.visit_cached(place, count as u32, &mut |piece| {
            bytes.extend_from_slice(piece)
        });
        if !cached {
            check(at < on_disk, || {
                format!("item {at}, not written, is not in memory")
            })?;
            for extent in driver.log.extents(place, count as u32) {
                let file = self.disk.contents(&log::segment_name(extent.segment));
                let file = file.ok_or_else(|| format!("segment {} is gone", extent.segment))?;
                let start = extent.offset as usize;
                let piece = file.get(start..start + extent.len as usize);
                bytes.extend_from_slice(piece.unwrap_or_default());
            }
        }
        check(bytes == expected, || {
            format!("item {at} reads back wrong (cached {cached})")
        })
    }

    fn stop(&mut self, mut driver: LogDriver) -> Checked<()> {
        self.floor = self.written;
        if driver.log.is_latched() {
            return self.stop_latched(driver);
        }
        if self.random.chance(1, 4) {
            driver.log.demand_durable(LogPosition(u64::MAX));
            check(driver.settle(&mut self.random), || {
                "the log does not come to rest".to_owned()
            })?;
            self.observe(&driver)?;
            if driver.log.is_latched() {
                self.floor = self.written;
                return self.stop_latched(driver);
            }
            check(self.durable == self.history.len(), || {
                "settled, yet not durable".to_owned()
            })?;
            let marker = driver.log.clean_marker();
            let marker = marker.ok_or_else(|| "settled, yet no clean marker".to_owned())?;
            self.leave(marker);
            self.floor = self.history.len();
        }
        self.stop_where_it_may(&driver)?;
        self.crash();
        Ok(())
    }

    /// A clean stop at any moment at which the log says that it is at rest.
    fn stop_where_it_may(&mut self, driver: &LogDriver) -> Checked<()> {
        if !self.random.chance(1, 6) {
            return Ok(());
        }
        if let Some(marker) = driver.log.clean_marker() {
            self.leave(marker);
        }
        Ok(())
    }

    /// A fault may strike in it: then the stop is not clean.
    fn leave(&mut self, marker: log::CleanMarker) {
        self.clean |= log::put_clean_markers(&self.disk, &[marker]).is_ok();
    }

    fn stop_latched(&mut self, mut driver: LogDriver) -> Checked<()> {
        self.summary.latches += 1;
        while driver.complete_one(&mut self.random) {}
        self.observe(&driver)?;
        check(driver.log.is_quiet(), || {
            "answered, yet not quiet".to_owned()
        })?;
        let record = driver.log.latch_record();
        let record = record.ok_or_else(|| "latched without a record".to_owned())?;
        self.disk.fail_writes(0);
        self.disk.fail_syncs(0);
        let boot = self.boot.as_ref().map(|boot| boot as &dyn shards::io::Disk);
        let recorded = log::record_latch(&self.disk, boot, &record);
        check(recorded.is_recorded(), || {
            "the latch could not be recorded".to_owned()
        })?;
        self.latch = Some(record);
        self.latched_lives = true;
        let marker = driver.log.clean_marker();
        check(marker.is_none(), || {
            "latched, yet a clean marker".to_owned()
        })?;
        if self.random.chance(1, 2) {
            self.crash();
        }
        Ok(())
    }

    /// The process dies, or the power goes.
    fn crash(&mut self) {
        self.latched_lives = false;
        self.disk.fail_writes(0);
        self.disk.fail_syncs(0);
        if self.random.chance(1, 2) {
            self.disk.process_crash();
            return;
        }
        self.summary.power_cuts += 1;
        self.disk.power_cut();
        self.boot_id += 1;
        if self.boot.is_some() {
            self.boot = Some(SimDisk::new(self.random.fork()));
        }
        self.power_cut = true;
        self.floor = self.floor.min(self.durable);
    }
}
