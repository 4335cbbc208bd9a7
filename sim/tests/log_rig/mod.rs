//! A log on a simulated disk, one item to a batch.

// Each test program uses its part.
#![allow(dead_code)]

use std::time::Duration;

use shards::io::Disk;
use shards::log::{
    self, BootId, ItemHeader, ItemKind, LogId, LogOptions, LogPosition, OpenFacts, Opened,
    RecoveryReport,
};
pub use tidegate_sim::directed::{options, BLOCK, SEGMENT};
use tidegate_sim::{LogDriver, Random, SimDisk};
use wire::vocabulary::Boundary;

pub const FIRST: LogPosition = LogPosition(SEGMENT);

pub struct Rig {
    pub options: LogOptions,
    pub disk: SimDisk,
    pub random: Random,
    pub boot: u128,
    pub appended: u64,
}

pub type Survivors = Vec<u64>;

impl Rig {
    pub fn new() -> Self {
        Rig::seeded(1)
    }

    /// `seed` decides what power cuts leave.
    pub fn seeded(seed: u64) -> Self {
        let disk = SimDisk::new(Random::new(seed));
        log::create(&disk, LogId(77), &options()).unwrap();
        Rig {
            options: options(),
            disk,
            random: Random::new(2),
            boot: 1,
            appended: 0,
        }
    }

    pub fn try_open(&self) -> Result<(Opened, Survivors), String> {
        let markers = log::take_clean_markers(&self.disk).map_err(|error| error.to_string())?;
        let facts = OpenFacts {
            boot_id: BootId(self.boot),
            clean_marker: markers.first().copied(),
            boot_directory: None,
            lock_wait: Duration::ZERO,
            base: None,
        };
        let mut seen = Vec::new();
        let opened = log::open(&self.disk, &self.options, &facts, &mut |item| {
            assert_eq!(item.payload, payload(item.header.index));
            seen.push(item.header.index);
        });
        Ok((opened.map_err(|error| error.to_string())?, seen))
    }

    pub fn open(&self) -> (LogDriver, Survivors, RecoveryReport) {
        let (opened, seen) = self.try_open().unwrap();
        let driver = LogDriver::new(self.disk.clone(), opened.start, self.options.clone());
        (driver, seen, opened.report)
    }

    /// Appends one item, alone in its batch, and waits until it is durable.
    pub fn put(&mut self, driver: &mut LogDriver) -> LogPosition {
        let appended = self.append(driver, Boundary::Durable);
        driver.submit();
        while driver.log.frontiers().durable_next < appended.end {
            driver.submit();
            assert!(driver.complete_one(&mut self.random));
        }
        appended.payload
    }

    pub fn append(&mut self, driver: &mut LogDriver, demand: Boundary) -> log::Appended {
        let index = self.appended;
        self.appended += 1;
        let item = ItemHeader {
            kind: ItemKind::Entry,
            group: 1,
            term: 1,
            index,
            sync: true,
        };
        driver.log.append(item, &[&payload(index)], demand).unwrap()
    }

    pub fn power_cut(&mut self) {
        self.disk.power_cut();
        self.boot += 1;
    }

    pub fn write_raw(&self, position: LogPosition, bytes: &[u8]) {
        let file = self
            .disk
            .open(&log::segment_name(position.0 / SEGMENT))
            .unwrap();
        file.write_at(position.0 % SEGMENT, bytes).unwrap();
        file.sync().unwrap();
    }

    pub fn flip(&self, position: LogPosition) {
        let name = log::segment_name(position.0 / SEGMENT);
        self.disk.flip(&name, position.0 % SEGMENT, 0x20).unwrap();
    }
}

pub fn payload(index: u64) -> Vec<u8> {
    vec![index as u8 + 1; 100 + index as usize]
}

pub fn indexes(range: std::ops::Range<u64>) -> Survivors {
    range.collect()
}

/// The batch that holds a payload which is alone in it.
pub fn batch_of(payload: LogPosition) -> LogPosition {
    LogPosition(payload.0 - payload.0 % BLOCK)
}
