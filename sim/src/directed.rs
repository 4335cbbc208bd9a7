//! Directed scenarios of one log: what stands where is arranged, not left to
//! chance. Each takes a seed for what does not matter, and says which promise
//! was broken.

use std::time::Duration;

use shards::io::Disk;
use shards::log::{
    self, Appended, BootId, ItemHeader, ItemKind, LogId, LogOptions, LogPosition, OpenFacts,
    Opened, SyncMethod,
};
use wire::vocabulary::Boundary;

use crate::{LogDriver, Random, SimDisk};

/// Bytes of a block and of a segment of [`options`].
pub const BLOCK: u64 = 4096;
pub const SEGMENT: u64 = 16 * BLOCK;

/// A scenario, run with a seed.
pub type Scenario = fn(u64) -> Result<(), String>;

/// All of them, by name.
pub const SCENARIOS: &[(&str, Scenario)] = &[
    ("stale, same bytes", a_stale_batch_behind_the_same_bytes),
    ("stale, other bytes", a_stale_batch_behind_other_bytes),
    ("hole", a_hole_in_what_was_answered),
];

/// Two writes of a life are in flight when the power goes: the first is lost,
/// the second landed. The next life writes where the first one stood, the very
/// same bytes (a client's retry). The second one must not come to light.
///
/// # Errors
/// It did, or what was promised is gone.
pub fn a_stale_batch_behind_the_same_bytes(seed: u64) -> Result<(), String> {
    stale_batch(seed, true)
}

/// The same, and the next life writes something else there.
///
/// # Errors
/// As before.
pub fn a_stale_batch_behind_other_bytes(seed: u64) -> Result<(), String> {
    stale_batch(seed, false)
}

fn stale_batch(seed: u64, same_bytes: bool) -> Result<(), String> {
    let mut rig = Rig::new(seed)?;
    let kept = 1 + seed % 4;
    let (mut driver, _) = rig.life()?;
    for index in 0..kept {
        rig.put(&mut driver, index, Boundary::Durable)?;
    }
    rig.power_cut();
    let (mut driver, _) = rig.life()?;
    let lost = rig.submit(&mut driver, kept, Boundary::Durable)?;
    rig.submit(&mut driver, kept + 1, Boundary::Durable)?;
    while driver.complete_one(&mut rig.random) {}
    rig.power_cut();
    rig.undo(lost.payload)?;
    let retry = if same_bytes { kept } else { 200 };
    let (mut driver, _) = rig.life()?;
    rig.put(&mut driver, retry, Boundary::Durable)?;
    let expected: Vec<u64> = (0..kept).chain([retry]).collect();
    for _ in 0..2 {
        match rig.random.chance(1, 2) {
            true => rig.power_cut(),
            false => rig.disk.process_crash(),
        }
        let (opened, seen) = rig.open()?;
        if seen != expected {
            let report = opened.report;
            return Err(format!("items {seen:?} instead of {expected:?}; {report}"));
        }
    }
    Ok(())
}

/// Items were written, and answered as written, one after the other. Then one
/// with at least two behind it is gone from the disk, in the same boot: the log
/// must say that it forgot.
///
/// # Errors
/// It does not.
pub fn a_hole_in_what_was_answered(seed: u64) -> Result<(), String> {
    let mut rig = Rig::new(seed)?;
    let (mut driver, _) = rig.life()?;
    let count = 3 + seed % 4;
    let mut places = Vec::new();
    for index in 0..count {
        places.push(rig.put(&mut driver, index, Boundary::Written)?);
    }
    // With one behind it, it would be what a crash with two in flight leaves.
    let gone = rig.random.below(count - 2) as usize;
    rig.disk.process_crash();
    rig.undo(places[gone])?;
    let (opened, seen) = rig.open()?;
    if !opened.report.amnesiac && seen.len() < places.len() {
        let (report, there, all) = (opened.report, seen.len(), places.len());
        return Err(format!(
            "{there} of {all} written items are there and nothing is said; {report}"
        ));
    }
    Ok(())
}

/// One log, an item to a batch and a batch to a block.
struct Rig {
    disk: SimDisk,
    random: Random,
    boot: u128,
}

impl Rig {
    fn new(seed: u64) -> Result<Self, String> {
        let mut random = Random::new(seed);
        let disk = SimDisk::new(random.fork());
        log::create(&disk, LogId(77), &options()).map_err(|error| error.to_string())?;
        let boot = 1;
        Ok(Rig { disk, random, boot })
    }

    fn open(&self) -> Result<(Opened, Vec<u64>), String> {
        let facts = OpenFacts {
            boot_id: BootId(self.boot),
            clean_marker: None,
            boot_directory: None,
            lock_wait: Duration::ZERO,
            base: None,
        };
        let mut seen = Vec::new();
        let opened = log::open(&self.disk, &options(), &facts, &mut |item| {
            seen.push(item.header.index);
        });
        Ok((opened.map_err(|error| error.to_string())?, seen))
    }

    fn life(&self) -> Result<(LogDriver, Vec<u64>), String> {
        let (opened, seen) = self.open()?;
        let driver = LogDriver::new(self.disk.clone(), opened.start, options());
        Ok((driver, seen))
    }

    /// Appends an item, alone in its batch, and submits it.
    fn submit(
        &self,
        driver: &mut LogDriver,
        index: u64,
        demand: Boundary,
    ) -> Result<Appended, String> {
        let item = ItemHeader {
            kind: ItemKind::Entry,
            group: 1,
            term: 1,
            index,
            sync: true,
        };
        let payload = vec![index as u8; 100];
        let appended = driver.log.append(item, &[&payload], demand);
        driver.submit();
        appended.map_err(|error| error.to_string())
    }

    /// The same, and waits for the boundary.
    fn put(
        &mut self,
        driver: &mut LogDriver,
        index: u64,
        demand: Boundary,
    ) -> Result<LogPosition, String> {
        let appended = self.submit(driver, index, demand)?;
        loop {
            let frontiers = driver.log.frontiers();
            let reached = match demand {
                Boundary::Durable => frontiers.durable_next,
                Boundary::Written => frontiers.written_next,
            };
            if reached >= appended.end {
                return Ok(appended.payload);
            }
            driver.submit();
            if !driver.complete_one(&mut self.random) {
                return Err(format!("item {index} never came to be {demand:?}"));
            }
        }
    }

    fn power_cut(&mut self) {
        self.disk.power_cut();
        self.boot += 1;
    }

    /// The block that `payload` stands in is zero, as if never written.
    fn undo(&self, payload: LogPosition) -> Result<(), String> {
        let start = payload.0 / BLOCK * BLOCK;
        let file = self.disk.open(&log::segment_name(start / SEGMENT));
        let undone = file.and_then(|file| {
            file.write_at(start % SEGMENT, &[0; BLOCK as usize])?;
            file.sync()
        });
        undone.map_err(|error| error.to_string())
    }
}

/// Short segments, one item to a batch, nothing held back.
pub fn options() -> LogOptions {
    LogOptions {
        segment_bytes: SEGMENT,
        block_bytes: BLOCK as u32,
        background_sync_interval_ms: 0,
        sync_method: SyncMethod::Dsync,
        cache_bytes: 1 << 20,
        backlog_bytes: 1 << 20,
        spare_segments: 1,
        ..LogOptions::default()
    }
}
