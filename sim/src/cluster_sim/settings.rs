//! What a run is made of: drawn from its seed, coloured by its scenario.

use shards::log::{LogOptions, SyncMethod};
use wire::node::MAX_MEMBERS;

use crate::Random;

/// Names of the scenarios a seed can be run in.
pub const SCENARIOS: [&str; 11] = [
    "calm",
    "crash",
    "partition",
    "powercut",
    "disk",
    "mixed",
    "blackout",
    "ruin",
    "replace",
    "members",
    "modes",
];

/// What goes wrong: the weights of the kinds of fault; 0 = never.
#[derive(Debug, Clone, Copy, Default)]
pub struct FaultKinds {
    /// The process of one node dies.
    pub crash: u64,
    /// The power of some nodes goes.
    pub power_cut: u64,
    /// Nodes cannot reach each other, in one direction or both.
    pub partition: u64,
    /// A connection between two nodes breaks.
    pub link_loss: u64,
    /// A link gets slow.
    pub slow_link: u64,
    /// The disk of one node gets slow.
    pub slow_disk: u64,
    /// A write or a sync of one node fails.
    pub io_error: u64,
    /// The process of one node stands still for a while.
    pub pause: u64,
    /// A wall clock steps.
    pub clock_step: u64,
    /// The disk of one node is lost, and it is replaced.
    pub disk_loss: u64,
}

impl FaultKinds {
    /// Sum of the weights.
    pub fn total(&self) -> u64 {
        self.weights().iter().sum()
    }

    /// In the order of the fields.
    pub fn weights(&self) -> [u64; 10] {
        [
            self.crash,
            self.power_cut,
            self.partition,
            self.link_loss,
            self.slow_link,
            self.slow_disk,
            self.io_error,
            self.pause,
            self.clock_step,
            self.disk_loss,
        ]
    }
}

/// One run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Founders; each group has a replica on so many nodes.
    pub nodes: usize,
    /// Nodes that may be added.
    pub more: usize,
    /// An operator adds, removes and moves.
    pub reshapes: bool,
    pub data_groups: u32,
    pub clients: usize,
    /// How long clients act and faults strike, in simulated ms.
    pub busy_ms: u64,
    /// Mean time between faults, in ms.
    pub fault_every_ms: u64,
    pub kinds: FaultKinds,
    /// A second node may lose what it had not synced before the first one is
    /// repaired, and all of them may at once.
    pub overlapping_cuts: bool,
    /// Queues are durable, so that no group ever answers at written.
    pub durable_only: bool,
    /// Shortest and longest lease of a queue, in ms.
    pub lease_ms: (u64, u64),
    pub log: LogOptions,
    pub window_bytes: u32,
    pub read_cache_bytes: u64,
    /// Longest delay of a write, a sync and a hop between nodes, in us.
    pub write_us: u64,
    pub sync_us: u64,
    pub hop_us: u64,
    /// How long a node leads what is another one's turn to, in ms; 0 = for ever.
    pub spread_after_ms: u64,
    /// Bytes a second that followers behind are brought up with.
    pub catch_up_bytes_per_s: u64,
    /// Clocks run off by up to so many millionths.
    pub drift_ppm: u64,
    /// So many of a thousand things that a client does are changes of a queue's setting.
    pub changes: u64,
}

impl Settings {
    /// Draws a run; `scenario` is one of [`SCENARIOS`], anything else is `mixed`.
    pub fn draw(random: &mut Random, scenario: &str, nodes: usize) -> Self {
        let block_bytes = random.pick(&[512, 4096, 4096]);
        let blocks = random
            .pick(&[8, 32, 128])
            .max(4096 / u64::from(block_bytes));
        let more = match scenario {
            "members" if nodes > 1 => MAX_MEMBERS.saturating_sub(nodes),
            _ => 0,
        };
        let upheaval = scenario == "members" && random.chance(1, 2);
        let mut settings = Settings {
            nodes,
            more,
            reshapes: more > 0,
            data_groups: random.pick(&[1, 2, 2, 4]),
            clients: 2 + random.below(4) as usize,
            busy_ms: random.pick(&[500, 3_000, 10_000]),
            fault_every_ms: random.pick(&[100, 400, 1_500]),
            kinds: kinds_of(scenario),
            overlapping_cuts: nodes == 1 || matches!(scenario, "blackout" | "ruin") || upheaval,
            durable_only: scenario == "blackout",
            lease_ms: random.pick(&[(100, 400), (200, 30_000), (30_000, 30_000)]),
            log: LogOptions {
                segment_bytes: u64::from(block_bytes) * blocks,
                block_bytes,
                background_sync_interval_ms: random.pick(&[0, 20, 100, 100]),
                sync_method: random.pick(&[SyncMethod::Dsync, SyncMethod::Fdatasync]),
                cache_bytes: random.pick(&[4 << 10, 64 << 10, 4 << 20]),
                backlog_bytes: random.pick(&[256 << 10, 4 << 20]),
                spare_segments: 1 + random.below(2) as u32,
                reserve_segments: u32::from(blocks > 8),
            },
            window_bytes: random.pick(&[64 << 10, 1 << 20]),
            read_cache_bytes: random.pick(&[1 << 20, 8 << 20]),
            write_us: random.pick(&[50, 500, 5_000]),
            sync_us: random.pick(&[50, 2_000, 20_000]),
            hop_us: random.pick(&[50, 500, 5_000]),
            drift_ppm: random.pick(&[0, 100, 20_000]),
            changes: 0,
            catch_up_bytes_per_s: 32 << 20,
            spread_after_ms: match scenario {
                "calm" | "crash" | "replace" => 300,
                "members" => random.pick(&[0, 300]),
                _ => 0,
            },
        };
        if scenario == "calm" {
            settings.drift_ppm = 0;
        }
        if scenario == "members" {
            settings.busy_ms = 10_000;
            settings.fault_every_ms = settings.fault_every_ms.max(400);
        }
        if scenario == "modes" {
            settings.changes = random.pick(&[10, 40, 120]);
            settings.overlapping_cuts |= random.chance(1, 3);
        }
        if scenario == "replace" {
            // The next disk is lost only when the last is made up for.
            settings.busy_ms = 10_000;
            settings.fault_every_ms = settings.fault_every_ms.min(400);
        }
        settings
    }

    /// The smallest majority of the nodes.
    pub fn majority(&self) -> usize {
        self.nodes / 2 + 1
    }
}

fn kinds_of(scenario: &str) -> FaultKinds {
    let none = FaultKinds::default();
    match scenario {
        "calm" => none,
        "crash" => FaultKinds {
            crash: 8,
            link_loss: 1,
            clock_step: 1,
            ..none
        },
        "partition" => FaultKinds {
            partition: 6,
            link_loss: 3,
            slow_link: 2,
            pause: 2,
            ..none
        },
        "powercut" => FaultKinds {
            power_cut: 8,
            crash: 1,
            link_loss: 1,
            clock_step: 1,
            ..none
        },
        "blackout" => FaultKinds {
            power_cut: 8,
            crash: 2,
            partition: 1,
            link_loss: 1,
            slow_disk: 1,
            ..none
        },
        "ruin" => FaultKinds {
            power_cut: 6,
            crash: 3,
            partition: 2,
            link_loss: 1,
            slow_disk: 1,
            ..none
        },
        "replace" => FaultKinds {
            disk_loss: 8,
            crash: 3,
            power_cut: 1,
            partition: 2,
            link_loss: 1,
            pause: 1,
            ..none
        },
        "members" => FaultKinds {
            crash: 6,
            power_cut: 4,
            partition: 3,
            link_loss: 2,
            pause: 1,
            slow_disk: 1,
            ..none
        },
        "modes" => FaultKinds {
            crash: 4,
            power_cut: 2,
            partition: 2,
            link_loss: 1,
            slow_link: 1,
            slow_disk: 1,
            io_error: 1,
            pause: 1,
            ..none
        },
        "disk" => FaultKinds {
            slow_disk: 4,
            io_error: 4,
            crash: 1,
            ..none
        },
        _ => FaultKinds {
            crash: 4,
            power_cut: 3,
            partition: 4,
            link_loss: 2,
            slow_link: 2,
            slow_disk: 2,
            io_error: 2,
            pause: 2,
            clock_step: 1,
            ..none
        },
    }
}
