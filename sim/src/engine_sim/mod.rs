//! The engine simulator: one node, its shards, its clients, on simulated
//! disks, clocks and sockets, in one thread, from one seed.
//!
//! It runs the engine that ships and does what the driver does: effects into
//! I/O that completes late and in any order, completions into events, many
//! events into a turn. Clients speak real frames. The process crashes, the
//! power goes, writes and syncs fail, the disk is full, the clock steps.
//!
//! Owns the oracle: what clients were told is held against what they are told
//! later, and against the simulated disk itself.
//!
//! 1. A seed and a scenario are a run, bit for bit.
//! 2. Whatever a run finds is an `Err` with a sentence; it never panics.
//!
//! Modules: [`settings`] (what a run is made of), `world` (what happens when),
//! `node` and `driver` (the machine), `lives` (start, latch, crash), `client`,
//! `sending`, `receiving`, `traffic` (the clients), `journal` and `audit` (the
//! oracle), `record` (payloads that say who they are),
//! `trace`, `schedule` and [`shrink`] (a failing run with few events).

mod audit;
mod client;
pub mod directed;
mod driver;
mod journal;
mod lives;
mod node;
mod receiving;
mod requests;
mod rest;
#[cfg(test)]
mod scenarios;
mod schedule;
mod sending;
pub mod settings;
mod shrink;
mod traffic;
mod world;

use std::{
    collections::BTreeMap,
    fmt,
    panic::{self, AssertUnwindSafe},
};

use crate::{record, trace, Random};
pub use schedule::Event;
use settings::Settings;
pub use settings::SCENARIOS;
pub use shrink::{repeat, shrink, Shrunk};
pub use trace::{Trace, TAIL_LINES};
use world::{Fault, Happening, World};

type Checked<T> = Result<T, String>;

/// What a run did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    pub confirmed: u64,
    pub delivered: u64,
    pub settled: u64,
    /// Records that loss reports named, counted at each audit.
    pub lost: u64,
    pub opens: u64,
    pub power_cuts: u64,
    pub process_crashes: u64,
    /// Faults injected, by kind.
    pub faults: BTreeMap<&'static str, u64>,
    pub latches: u64,
    pub checkpoints: u64,
    /// Records packed.
    pub packed: u64,
    /// Changes of a partition's setting that were said to be applied, and confirms of
    /// which the setting is known exactly.
    pub changes: u64,
    pub judged: usize,
    pub simulated_ms: u64,
    pub trace: Trace,
}

/// A promise that was broken.
#[derive(Debug, Clone)]
pub struct Failure {
    pub seed: u64,
    pub scenario: String,
    pub message: String,
    /// What the run did until then.
    pub done: Summary,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed {} in {}: {}",
            self.seed, self.scenario, self.message
        )
    }
}

/// Runs a seed in a scenario (one of [`SCENARIOS`]) and keeps the last lines of
/// its trace, at most `keep`.
///
/// # Errors
/// The first promise that was broken, or the panic, with the end of what happened.
pub fn run(seed: u64, scenario: &str, keep: usize) -> Result<Summary, Box<Failure>> {
    let mut random = Random::new(seed);
    let settings = Settings::draw(&mut random, scenario);
    let mut world = World::new(random, settings);
    world.trace = Trace::new(keep);
    match world.live_through() {
        Ok(()) => Ok(world.summary()),
        Err(message) => Err(Box::new(Failure {
            seed,
            scenario: scenario.to_owned(),
            message,
            done: world.summary(),
        })),
    }
}

impl World {
    /// All of the run; a panic is a broken promise, too.
    fn live_through(&mut self) -> Checked<()> {
        panic::catch_unwind(AssertUnwindSafe(|| self.lives())).unwrap_or_else(|payload| {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
            Err(format!("panic: {}", text.unwrap_or("?")))
        })
    }

    fn summary(&self) -> Summary {
        Summary {
            confirmed: self.journal.confirmed,
            delivered: self.journal.delivered,
            settled: self.journal.settled,
            lost: self.journal.lost,
            opens: self.node.opens,
            power_cuts: self.node.power_cuts,
            process_crashes: self.process_crashes,
            faults: self.faults.clone(),
            latches: self.node.latches,
            checkpoints: self.node.checkpoints,
            packed: self.node.packed,
            changes: self.journal.promises.changes,
            judged: self.journal.promises.exact(),
            simulated_ms: self.now_us / 1000,
            trace: self.trace.clone(),
        }
    }

    /// A whole run: lives under load and faults, then heal, drain, check,
    /// restart everything, check, and once more.
    fn lives(&mut self) -> Checked<()> {
        let line = format!("{:?}", self.settings);
        self.note(format_args!("{line}"));
        for _ in 0..self.settings.lives {
            self.next_life();
            let life = self.lived;
            if self.happens(|| format!("life {life}")) {
                self.start_and_audit()?;
                self.live()?;
            }
        }
        self.next_life();
        self.start_and_audit()?;
        let rates = self.settings.rates;
        self.spare();
        self.settings.rates.stall = 0;
        self.heal()?;
        self.drain_queues()?;
        self.audit(false)?;
        self.settings.rates = rates;
        for _ in 0..2 {
            self.end_life()?;
            self.next_life();
            self.start_and_audit()?;
        }
        Ok(())
    }

    fn next_life(&mut self) {
        self.lived += 1;
        self.enter("life", 0);
    }

    fn start_and_audit(&mut self) -> Checked<()> {
        for _ in 0..12 {
            self.start()?;
            let audited = self.audit(true);
            if !self.node.down {
                return audited;
            }
            // The process died under the audit; what it saw until then counts.
        }
        // Whatever kept them from it is over now.
        let rates = self.settings.rates;
        self.spare();
        self.start()?;
        let audited = self.audit(true);
        self.settings.rates = rates;
        audited
    }

    fn live(&mut self) -> Checked<()> {
        self.plan_faults();
        self.set_busy();
        self.enter("length", 0);
        let life_ms = 1 + self.random.below(self.settings.life_ms);
        self.pass(life_ms)?;
        self.busy = false;
        self.enter("rest", 0);
        if !self.node.down && self.random.chance(1, 3) {
            self.come_to_rest()?;
        }
        self.end_life()
    }

    fn plan_faults(&mut self) {
        self.enter("faults", 0);
        let rates = self.settings.rates;
        let life_us = self.settings.life_ms * 1000;
        let shard = self.random.below(u64::from(self.settings.shards)) as u16;
        if self.random.chance(rates.io_error, 100) {
            let after = self.random.below(life_us);
            let fault = match self.random.chance(1, 2) {
                true => Fault::Write { shard },
                false => Fault::Sync { shard },
            };
            self.plan_fault(after, fault);
        }
        if self.random.chance(rates.disk_full, 100) {
            let after = self.random.below(life_us);
            let for_us = self.random.below(life_us * 2);
            self.plan_fault(after, Fault::DiskFull { shard, for_us });
        }
        if self.random.chance(rates.clock_step, 100) {
            let after = self.random.below(life_us);
            let ms = self.random.pick(&[-3_600_000, -1_000, 1_000, 3_600_000]);
            self.plan_fault(after, Fault::ClockStep { ms });
        }
    }

    fn plan_fault(&mut self, after_us: u64, fault: Fault) {
        if self.happens(|| format!("{fault:?} after {after_us} us")) {
            self.plan(after_us, Happening::Fault(fault));
        }
    }

    /// The process ends one way or another.
    fn end_life(&mut self) -> Checked<()> {
        if self.node.down {
            return Ok(());
        }
        self.enter("end", 0);
        let clean = self.random.chance(self.settings.rates.clean_stop, 100);
        if clean && self.happens(|| "a clean stop".to_owned()) {
            self.begin_drain();
            let clean = self.finish_drain()?;
            self.note(format_args!("stopped, clean {clean}"));
            self.enter("stopped", 0);
            if self.random.chance(1, 2) && self.power_goes() {
                self.crash(true);
            }
            return Ok(());
        }
        self.die();
        Ok(())
    }

    /// Faults end, and whatever is under way comes to its end.
    fn heal(&mut self) -> Checked<()> {
        self.busy = false;
        for sim in &self.node.shards {
            sim.disk.set_free_bytes(None);
        }
        self.pass(100)
    }
}
