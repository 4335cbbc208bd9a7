//! What a run is made of: drawn from its seed, coloured by its scenario.

use shards::log::{LogOptions, SyncMethod};

use crate::Random;

/// Names of the scenarios a seed can be run in.
pub const SCENARIOS: [&str; 8] = [
    "mixed", "power", "errors", "boot", "leases", "full", "shards", "modes",
];

/// How often what goes wrong, in per cent of the chances there are.
#[derive(Debug, Clone, Copy)]
pub struct FaultRates {
    /// A life ends by a power cut.
    pub power_cut: u64,
    /// A life ends by a clean drain.
    pub clean_stop: u64,
    /// A life sees a failing write or sync.
    pub io_error: u64,
    /// An opening is interrupted.
    pub boot_crash: u64,
    /// An opening meets a failing write or sync.
    pub boot_error: u64,
    /// The process dies in a store job; an error strikes in one.
    pub store_crash: u64,
    pub store_error: u64,
    /// A life runs out of disk for a while.
    pub disk_full: u64,
    /// The wall clock steps between and during lives.
    pub clock_step: u64,
    /// A client stops reading for a while.
    pub stall: u64,
}

/// One run.
#[derive(Debug, Clone)]
pub struct Settings {
    pub shards: u16,
    pub data_groups: u32,
    pub clients: usize,
    pub lives: u64,
    /// Longest life, in simulated ms.
    pub life_ms: u64,
    /// Shortest and longest lease of a queue, in ms.
    pub lease_ms: (u64, u64),
    pub log: LogOptions,
    /// There is a directory that a reboot empties.
    pub boot_directory: bool,
    pub window_bytes: u32,
    pub read_cache_bytes: u64,
    pub index_memory_bytes: u64,
    pub scrub_interval_ms: u64,
    pub rates: FaultRates,
    /// Longest delay of a write, a sync and a message between shards, in us.
    pub write_us: u64,
    pub sync_us: u64,
    pub mail_us: u64,
    /// So many of a thousand things that a client does are changes of a queue's setting.
    pub changes: u64,
}

impl Settings {
    /// A run with nothing random but delays and nothing going wrong: what a
    /// directed scenario starts from.
    pub fn calm(shards: u16) -> Self {
        Settings {
            shards,
            data_groups: 4,
            clients: 2,
            lives: 0,
            life_ms: 0,
            lease_ms: (30_000, 30_000),
            log: LogOptions {
                segment_bytes: 64 << 10,
                block_bytes: 4096,
                background_sync_interval_ms: 100,
                sync_method: SyncMethod::Fdatasync,
                cache_bytes: 1 << 20,
                backlog_bytes: 4 << 20,
                spare_segments: 1,
                reserve_segments: 1,
            },
            boot_directory: true,
            window_bytes: 1 << 20,
            read_cache_bytes: 1 << 20,
            index_memory_bytes: u64::MAX,
            scrub_interval_ms: 0,
            rates: FaultRates {
                power_cut: 0,
                clean_stop: 0,
                io_error: 0,
                boot_crash: 0,
                boot_error: 0,
                store_crash: 0,
                store_error: 0,
                disk_full: 0,
                clock_step: 0,
                stall: 0,
            },
            write_us: 300,
            sync_us: 1_000,
            mail_us: 100,
            changes: 0,
        }
    }

    /// Draws a run; `scenario` is one of [`SCENARIOS`], anything else is `mixed`.
    pub fn draw(random: &mut Random, scenario: &str) -> Self {
        let block_bytes = random.pick(&[512, 4096, 4096]);
        // A segment is whole pages: reads are.
        let blocks = random
            .pick(&[4, 8, 32, 128])
            .max(4096 / u64::from(block_bytes));
        let interval = random.pick(&[0, 1, 20, 100, 100]);
        let mut settings = Settings {
            shards: random.pick(&[1, 1, 2, 2, 3]),
            data_groups: random.pick(&[1, 2, 4, 4, 8]),
            clients: 2 + random.below(5) as usize,
            lives: 1 + random.below(5),
            life_ms: random.pick(&[40, 200, 800, 2_500]),
            lease_ms: random.pick(&[(20, 60), (50, 400), (200, 30_000), (30_000, 30_000)]),
            log: LogOptions {
                segment_bytes: u64::from(block_bytes) * blocks,
                block_bytes,
                background_sync_interval_ms: interval,
                sync_method: random.pick(&[SyncMethod::Dsync, SyncMethod::Fdatasync]),
                cache_bytes: random.pick(&[4 << 10, 64 << 10, 4 << 20]),
                backlog_bytes: random.pick(&[32 << 10, 256 << 10, 4 << 20]),
                spare_segments: 1 + random.below(2) as u32,
                reserve_segments: u32::from(blocks > 8),
            },
            boot_directory: random.chance(3, 4),
            window_bytes: random.pick(&[64 << 10, 1 << 20]),
            read_cache_bytes: random.pick(&[1 << 20, 8 << 20]),
            index_memory_bytes: u64::MAX,
            scrub_interval_ms: 20,
            rates: FaultRates {
                power_cut: 45,
                clean_stop: 15,
                io_error: 25,
                boot_crash: 25,
                boot_error: 8,
                store_crash: 4,
                store_error: 6,
                disk_full: 10,
                clock_step: 20,
                stall: 5,
            },
            write_us: random.pick(&[50, 500, 5_000, 40_000]),
            sync_us: random.pick(&[50, 2_000, 20_000, 150_000]),
            mail_us: random.pick(&[10, 500, 10_000]),
            changes: match scenario {
                "modes" => random.pick(&[10, 40, 150]),
                _ => 0,
            },
        };
        settings.colour(scenario);
        // A lease that ends before a settle can arrive would never be settled.
        let shortest = 30 + (settings.mail_us + settings.write_us) * 8 / 1000;
        let (low, high) = settings.lease_ms;
        settings.lease_ms = (low.max(shortest), high.max(shortest));
        settings
    }

    fn colour(&mut self, scenario: &str) {
        let rates = &mut self.rates;
        match scenario {
            "power" => {
                rates.power_cut = 100;
                rates.io_error = 0;
                self.lives += 3;
            }
            "errors" => rates.io_error = 100,
            "boot" => {
                rates.boot_crash = 85;
                rates.boot_error = 20;
                self.life_ms = self.life_ms.min(200);
                self.lives += 4;
            }
            "leases" => {
                self.lease_ms = (5, 40);
                self.life_ms = 2_500;
                rates.stall = 15;
            }
            "modes" => {
                rates.power_cut = 60;
                self.lives += 1;
            }
            "full" => rates.disk_full = 100,
            "shards" => {
                self.shards = self.shards.max(2);
                self.data_groups = self.data_groups.max(4);
                rates.io_error = 60;
            }
            _ => {}
        }
    }
}
