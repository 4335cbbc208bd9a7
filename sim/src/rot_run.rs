//! Damage below the durable frontier: a log of some lives, bytes of its files
//! changed, and what the next opens make of it.
//!
//! Checked: only what lies in reported damage is missing; what survives is
//! unchanged, in order, and stands where the log says; and the log says that it
//! lost what it promised.

use std::fmt::Display;
use std::time::Duration;

use shards::io::Disk;
use shards::log::{
    self, BootId, DamagedRange, Extent, ItemHeader, ItemKind, LogId, LogOptions, LogPosition,
    OpenFacts, Opened, SyncMethod,
};
use wire::vocabulary::Boundary;

use crate::{LogDriver, Random, SimDisk};

/// A log, and what was appended to it.
pub struct RotLog {
    pub disk: SimDisk,
    pub options: LogOptions,
    pub items: Vec<RotItem>,
}

/// An item and where it stands.
pub struct RotItem {
    pub payload: Vec<u8>,
    pub position: LogPosition,
    pub pieces: Vec<Extent>,
}

/// An item that an open showed.
pub struct RotSeen {
    pub index: u64,
    pub position: LogPosition,
    pub payload: Vec<u8>,
}

/// What a run did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RotSummary {
    /// Opens that reported damage.
    pub damaged: u64,
}

fn text(error: impl Display) -> String {
    error.to_string()
}

/// A log of a few lives, everything in it durable, and known to be so: the log
/// went idle at the end.
///
/// # Errors
/// Something that has nothing to do with rot.
pub fn build(random: &mut Random) -> Result<RotLog, String> {
    let block_bytes = random.pick(&[512u32, 4096]);
    let options = LogOptions {
        segment_bytes: u64::from(block_bytes) * 8,
        block_bytes,
        background_sync_interval_ms: 0,
        sync_method: random.pick(&[SyncMethod::Dsync, SyncMethod::Fdatasync]),
        cache_bytes: 0,
        backlog_bytes: 1 << 20,
        spare_segments: 1,
        ..LogOptions::default()
    };
    let disk = SimDisk::new(random.fork());
    log::create(&disk, LogId(u128::from(random.number())), &options).map_err(text)?;
    let items = Vec::new();
    let mut log = RotLog {
        disk,
        options,
        items,
    };
    for life in 1..4 {
        log.live(life, random)?;
    }
    Ok(log)
}

impl RotLog {
    fn live(&mut self, life: u64, random: &mut Random) -> Result<(), String> {
        let (opened, seen) = self.open(1)?;
        if seen.len() != self.items.len() {
            let (seen, all) = (seen.len(), self.items.len());
            return Err(format!("{seen} of {all} items before any damage"));
        }
        let mut driver = LogDriver::new(self.disk.clone(), opened.start, self.options.clone());
        for _ in 0..random.below(12) {
            let len = random.pick(&[0, 10, 300, 3_000, 9_000]);
            let payload: Vec<u8> = (0..len).map(|_| random.number() as u8).collect();
            let item = ItemHeader {
                kind: ItemKind::Entry,
                group: 1,
                term: life,
                index: self.items.len() as u64,
                sync: true,
            };
            let appended = driver.log.append(item, &[&payload], Boundary::Durable);
            let position = appended.map_err(text)?.payload;
            let mut pieces = driver.log.extents(position, len as u32);
            if pieces.is_empty() {
                let geometry = driver.log.geometry();
                pieces.push(Extent {
                    segment: geometry.segment_of(position),
                    offset: geometry.offset_of(position),
                    len: 0,
                });
            }
            self.items.push(RotItem {
                payload,
                position,
                pieces,
            });
            if random.chance(1, 2) {
                driver.submit();
                driver.complete_one(random);
            }
        }
        if !driver.settle(random) {
            return Err("the log does not come to rest".to_owned());
        }
        if random.chance(1, 2) {
            self.disk.process_crash();
        }
        Ok(())
    }

    /// Opens the log in this boot.
    ///
    /// # Errors
    /// It does not open.
    pub fn open(&self, boot: u128) -> Result<(Opened, Vec<RotSeen>), String> {
        let facts = OpenFacts {
            boot_id: BootId(boot),
            clean_marker: None,
            boot_directory: None,
            lock_wait: Duration::ZERO,
            base: None,
        };
        let mut seen = Vec::new();
        let opened = log::open(&self.disk, &self.options, &facts, &mut |item| {
            seen.push(RotSeen {
                index: item.header.index,
                position: item.position,
                payload: item.payload.to_vec(),
            });
        });
        Ok((opened.map_err(text)?, seen))
    }

    /// Changes a byte of an item or of the header in front of it.
    fn flip(&self, random: &mut Random) -> Result<(), String> {
        let at = random.below(self.items.len() as u64) as usize;
        let piece = random.pick(&self.items[at].pieces);
        let near = piece.offset + random.below(u64::from(piece.len) + 1);
        let near = near.saturating_sub(random.below(200));
        let name = log::segment_name(piece.segment);
        let flipped = self.disk.flip(&name, near, 1 << random.below(8));
        flipped.map_err(text)
    }

    /// The device wrote a block of one batch over that of an earlier one, and
    /// lost the block in front of that.
    fn misdirect(&self, random: &mut Random) -> Result<(), String> {
        let at = random.below(self.items.len() as u64) as usize;
        let later = (at + 1 + random.below(3) as usize).min(self.items.len() - 1);
        let block = self.options.block_bytes as usize;
        let (segment, offset) = self.block_of(later);
        let name = log::segment_name(segment);
        if let Some(bytes) = self.disk.read(&name, offset, block as u64) {
            self.write_block(at, &bytes)?;
        }
        match at.checked_sub(1) {
            Some(before) => self.write_block(before, &vec![0x5a; block]),
            None => Ok(()),
        }
    }

    /// Where the block stands that item `at` begins in.
    fn block_of(&self, at: usize) -> (u64, u64) {
        let block = u64::from(self.options.block_bytes);
        let piece = self.items[at].pieces[0];
        (piece.segment, piece.offset / block * block)
    }

    fn write_block(&self, at: usize, bytes: &[u8]) -> Result<(), String> {
        let (segment, offset) = self.block_of(at);
        let file = self.disk.open(&log::segment_name(segment)).map_err(text)?;
        file.write_at(offset, bytes).map_err(text)?;
        file.sync().map_err(text)
    }

    fn check(&self, opened: &Opened, seen: &[RotSeen]) -> Result<(), String> {
        let report = &opened.report;
        let mut left = seen.iter().peekable();
        for (index, item) in self.items.iter().enumerate() {
            if let Some(seen) = left.next_if(|seen| seen.index == index as u64) {
                if seen.payload != item.payload {
                    return Err(format!("item {index} changed; {report}"));
                }
                if seen.position != item.position {
                    let (there, here) = (seen.position, item.position);
                    return Err(format!(
                        "item {index} stands at {here}, and is shown at {there}; {report}"
                    ));
                }
            } else if !is_hit(item, self.options.segment_bytes, &report.damaged) {
                return Err(format!("item {index} is missing; {report}"));
            }
        }
        if left.next().is_some() {
            return Err(format!("items from nowhere or out of order; {report}"));
        }
        if report.durable_memory_lost == report.damaged.is_empty() {
            return Err(format!("memory and damage do not agree; {report}"));
        }
        Ok(())
    }
}

/// Whether the item's own bytes, or a header in front of them, lie in a range.
fn is_hit(item: &RotItem, segment_bytes: u64, ranges: &[DamagedRange]) -> bool {
    item.pieces.iter().any(|piece| {
        let from = piece.segment * segment_bytes + piece.offset;
        let to = from + u64::from(piece.len);
        ranges
            .iter()
            .any(|range| from < range.to.0 && range.from.0 < to.max(from + 1))
            || ranges
                .iter()
                .any(|range| range.from.0 < from && from <= range.to.0)
    })
}

/// Damages the log of `seed` and opens it in three boots.
///
/// # Errors
/// The promise that was broken.
pub fn run(seed: u64) -> Result<RotSummary, String> {
    let random = &mut Random::new(seed);
    let log = build(random)?;
    let mut summary = RotSummary::default();
    if log.items.is_empty() {
        return Ok(summary);
    }
    if random.chance(1, 2) {
        // Otherwise only the idle log's last batch says that all is durable.
        log.open(1)?;
    }
    match random.chance(1, 4) {
        true => log.misdirect(random)?,
        false => {
            for _ in 0..1 + random.below(3) {
                log.flip(random)?;
            }
        }
    }
    for boot in [1, 2, 3] {
        let (opened, seen) = log.open(boot)?;
        log.check(&opened, &seen)?;
        summary.damaged += u64::from(opened.report.durable_memory_lost);
    }
    Ok(summary)
}
