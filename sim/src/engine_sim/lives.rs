//! Lives of the process: start, boot, latch and reopening, drain, crash.

use std::time::Duration;

use shards::engine::{Boot, Engine, EngineConfig, Event, Memory, ShardMessage};
use shards::io::Disk;
use shards::log::{
    self, BootId, LatchRecord, LogId, LogPosition, LogWriter, OpenFacts, RecoveryReport,
};

use shards::state::level::FIRST_LEVEL;
use shards::store::{self, Checkpoint};

use super::{
    node::Rebuilt,
    world::{Fault, Happening, World},
    Checked,
};
use crate::SimDisk;

/// The driver's pauses between tries to reopen a latched log.
const REOPEN_PAUSE_US: u64 = 200_000;
const REOPEN_PAUSE_MOST_US: u64 = 10_000_000;
/// How the driver waits for a drain.
const DRAIN_ROUNDS: u32 = 1000;
const DRAIN_PAUSE_US: u64 = 5_000;

/// Why a log did not open.
enum NotOpen {
    /// The process died meanwhile.
    Died,
    /// An injected fault.
    Failed(String),
}

impl World {
    /// A process starts on what the last one left.
    pub(super) fn start_life(&mut self) -> Checked<()> {
        self.node.life += 1;
        self.node.life_start_us = self.now_us;
        self.node.down = false;
        let markers = log::take_clean_markers(&self.node.data);
        self.node.markers = markers.map_err(|error| error.to_string())?;
        let (life, markers) = (self.node.life, self.node.markers.len());
        self.note(format_args!("life {life} starts, {markers} clean markers"));
        for shard in 0..self.settings.shards {
            let after = self.delay(3_000);
            self.plan(after, Happening::Boot { shard });
            if self.settings.rates.disk_full > 0 {
                // A disk that was full may be so for a while yet.
                let after = self.delay(2_000_000);
                self.plan(after, Happening::Fault(Fault::DiskFree { shard }));
            }
        }
        Ok(())
    }

    /// Starts lives until one serves.
    pub(super) fn start(&mut self) -> Checked<()> {
        for _ in 0..12 {
            self.start_life()?;
            self.await_that("the shards to serve", 60_000, |world| {
                world.node.accepting || world.node.down
            })?;
            if !self.node.down {
                return Ok(());
            }
        }
        // Whatever kept them from it is over now.
        let rates = self.settings.rates;
        self.spare();
        self.start_life()?;
        self.await_that("the shards to serve", 60_000, |world| world.node.accepting)?;
        self.settings.rates = rates;
        Ok(())
    }

    /// Nothing strikes in openings and store jobs any more.
    pub(super) fn spare(&mut self) {
        let rates = &mut self.settings.rates;
        (rates.boot_crash, rates.boot_error) = (0, 0);
        (rates.store_crash, rates.store_error) = (0, 0);
    }

    pub(super) fn boot(&mut self, shard: u16) -> Checked<()> {
        match self.open_engine(shard, None)? {
            Ok(rebuilt) => self.put_engine(shard, rebuilt),
            Err(NotOpen::Died) => self.die(),
            Err(NotOpen::Failed(reason)) => {
                self.note(format_args!("{shard} did not start: {reason}"));
                let sim = self.node.shard(shard);
                sim.hazard += 1;
                sim.may_forget = true;
                sim.disk.set_free_bytes(None);
                self.crash(false);
            }
        }
        Ok(())
    }

    /// An interrupted blocking call: the process dies there.
    pub(super) fn die(&mut self) {
        let power = self.random.chance(self.settings.rates.power_cut, 100);
        let power = power && self.power_goes();
        self.crash(power);
    }

    /// Without it the process only dies.
    pub(super) fn power_goes(&mut self) -> bool {
        self.happens(|| "a power cut".to_owned())
    }

    fn open_engine(
        &mut self,
        shard: u16,
        latch: Option<LatchRecord>,
    ) -> Checked<Result<Rebuilt, NotOpen>> {
        let disk = self.node.shard(shard).disk.clone();
        let faulty = self.spoil_opening(shard, &disk);
        let opened = self.open_log(shard, &disk, latch);
        disk.crash_after(None);
        if faulty {
            disk.fail_writes(0);
            disk.fail_syncs(0);
        }
        match opened? {
            Ok(rebuilt) if !disk.is_stopped() => Ok(Ok(rebuilt)),
            _ if disk.is_stopped() => {
                // It may have latched, or be taken for one that answered something.
                self.node.shard(shard).may_forget = true;
                Ok(Err(NotOpen::Died))
            }
            // Copying the tail of a latched log needs room.
            Err(reason) if reason.contains("no space left") => Ok(Err(NotOpen::Failed(reason))),
            Err(reason) if !faulty && latch.is_none() => {
                Err(format!("shard {shard} cannot open its log: {reason}"))
            }
            Err(reason) => Ok(Err(NotOpen::Failed(reason))),
            Ok(rebuilt) => Ok(Ok(rebuilt)),
        }
    }

    /// Perhaps the process dies, or an I/O error strikes, in the opening.
    fn spoil_opening(&mut self, shard: u16, disk: &SimDisk) -> bool {
        let rates = self.settings.rates;
        if self.random.chance(rates.boot_crash, 100) {
            let calls = self.random.below(16);
            if self.happens(|| format!("{shard} death {calls} calls into an opening")) {
                self.count("opening cut short");
                disk.crash_after(Some(calls));
            }
        }
        if !self.random.chance(rates.boot_error, 100) {
            return false;
        }
        let of_write = self.random.chance(1, 2);
        let what = if of_write { "write" } else { "sync" };
        if !self.happens(|| format!("{shard} a {what} fails in an opening")) {
            return false;
        }
        self.count("error in an opening");
        match of_write {
            true => disk.fail_writes(1),
            false => disk.fail_syncs(1),
        }
        true
    }

    /// The inner error is what the opening ran into; the outer one is a broken promise.
    fn open_log(
        &mut self,
        shard: u16,
        disk: &SimDisk,
        latch: Option<LatchRecord>,
    ) -> Checked<Result<Rebuilt, String>> {
        let log_id = LogId(u128::from(self.node.cookie) << 64 | u128::from(shard));
        let options = self.settings.log.clone();
        let there = log::exists(disk).map_err(|error| error.to_string())?;
        if !there {
            if let Err(error) = log::create(disk, log_id, &options) {
                return Ok(Err(error.to_string()));
            }
        }
        let config = self.engine_config(shard);
        let checkpoint = match load_checkpoint(disk) {
            Ok(checkpoint) => checkpoint,
            Err(error) => return Ok(Err(error)),
        };
        let base = checkpoint.as_ref().map(Checkpoint::base).transpose();
        let base = base.map_err(|error| format!("shard {shard}: {error}"))?;
        let marker = self
            .node
            .markers
            .iter()
            .find(|marker| marker.log_id == log_id);
        let facts = OpenFacts {
            boot_id: BootId(self.node.boot_id),
            clean_marker: marker.copied().filter(|_| latch.is_none()),
            boot_directory: self.node.boot_disk.as_ref().map(|boot| boot as &dyn Disk),
            lock_wait: Duration::ZERO,
            base: base.as_ref(),
        };
        let mut boot = Boot::new(config);
        if let Some(checkpoint) = &checkpoint {
            let restored = boot.restore(checkpoint);
            restored.map_err(|error| format!("shard {shard}: {error}"))?;
        }
        let mut refused = None;
        let mut on_item = |item: log::RecoveredItem<'_>| {
            let place = |at| log::place_in(item.position, item.links, at);
            if let Err(error) = boot.replay(&item.header, item.payload, &place) {
                refused.get_or_insert(error.to_string());
            }
        };
        let opened = match &latch {
            None => log::open(disk, &options, &facts, &mut on_item),
            Some(latch) => log::reopen(disk, &options, &facts, latch, &mut on_item),
        };
        let opened = match opened {
            Ok(opened) => opened,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let report = opened.report;
        if let Some(reason) = refused {
            return Err(format!(
                "shard {shard}: what was recovered does not replay: {reason}"
            ));
        }
        if !report.damaged.is_empty() || report.durable_memory_lost {
            return Err(format!(
                "shard {shard}: damage where none was done: {report}"
            ));
        }
        let sim = self.node.shard(shard);
        if report.amnesiac && !sim.may_forget {
            return Err(format!(
                "shard {shard}: amnesiac, and nothing happened that it could forget by: {report}"
            ));
        }
        sim.may_forget = report.amnesiac;
        let writer = LogWriter::new(opened.start, options);
        let memory = Memory {
            amnesiac: report.amnesiac,
            durable_memory_lost: report.durable_memory_lost,
        };
        let engine = boot.finish(writer, memory);
        let engine = engine.map_err(|error| format!("shard {shard}: {error}"))?;
        Ok(Ok(Rebuilt { engine, report }))
    }

    fn engine_config(&mut self, shard: u16) -> EngineConfig {
        self.node.server_offset_ms = self.node.server_offset_ms.max(self.node.wall_offset_ms);
        EngineConfig {
            shard,
            node: 1,
            cookie: 1,
            nonce: 1,
            lineage: shards::state::meta::Lineage::default(),
            joins: false,
            // As of the first version: kept seeds keep their histories.
            level: FIRST_LEVEL,
            nodes: vec![1],
            place: self.node.place(self.settings.data_groups),
            start_wall_ms: self.wall_ms(),
            start_mono_ms: self.mono_ms(),
            random: self.random.number(),
            window_bytes: self.settings.window_bytes,
            read_cache_bytes: self.settings.read_cache_bytes,
            scrub_interval_ms: self.settings.scrub_interval_ms,
            recovery_grace_ms: 1_000,
            catch_up_bytes_per_s: 32 << 20,
            spread_after_ms: 0,
            addresses: Vec::new(),
            force_group_0: None,
            index_memory_bytes: self.settings.index_memory_bytes,
            server: "tidegate-sim".to_owned(),
            advertise: String::new(),
        }
    }

    /// A shard goes on with this engine.
    fn put_engine(&mut self, shard: u16, rebuilt: Rebuilt) {
        let Rebuilt { engine, report } = rebuilt;
        self.note(format_args!("{shard} opened: {report}"));
        self.node.opens += 1;
        let sim = self.node.shard(shard);
        sim.checked_durable = engine.log_frontiers().durable_next;
        sim.engine = Some(engine);
        sim.life += 1;
        sim.hazard_at_open = sim.hazard;
        sim.latched = false;
        sim.turns = 0;
        sim.places.clear();
        for message in std::mem::take(&mut sim.waiting) {
            self.event(shard, Event::Message(message));
        }
        self.want_turn(shard);
        self.plan_amnesia(shard, &report);
    }

    fn plan_amnesia(&mut self, shard: u16, report: &RecoveryReport) {
        if report.amnesiac || report.durable_memory_lost {
            let incarnation = report.incarnation;
            let ready = false;
            self.plan(
                1,
                Happening::Amnesia {
                    shard,
                    incarnation,
                    ready,
                },
            );
        }
    }

    pub(super) fn settle_amnesia(
        &mut self,
        shard: u16,
        incarnation: u64,
        ready: bool,
    ) -> Checked<()> {
        let sim = self.node.shard(shard);
        let serving = sim
            .engine
            .as_ref()
            .is_some_and(|engine| engine.is_serving());
        let (after, ready_now) = match (ready, serving) {
            (false, false) => (20_000, false),
            (false, true) => (self.delay(10_000), true),
            (true, _) => {
                let disk = self.node.shard(shard).disk.clone();
                let crash = self.random.chance(self.settings.rates.boot_crash, 300);
                let calls = crash.then(|| self.random.below(4));
                if calls.is_some()
                    && self.happens(|| format!("{shard} death while amnesia is settled"))
                {
                    self.count("opening cut short");
                    disk.crash_after(calls);
                }
                let settled = log::amnesia_settled(&disk, incarnation);
                disk.crash_after(None);
                self.note(format_args!("{shard} amnesia settled: {}", settled.is_ok()));
                if disk.is_stopped() {
                    self.die();
                } else if settled.is_ok() {
                    let sim = self.node.shard(shard);
                    sim.may_forget &= sim.hazard != sim.hazard_at_open;
                }
                return Ok(());
            }
        };
        self.plan(
            after,
            Happening::Amnesia {
                shard,
                incarnation,
                ready: ready_now,
            },
        );
        Ok(())
    }

    // --- after a latch ---

    pub(super) fn record_latch(&mut self, shard: u16) -> Checked<()> {
        let boot = self.node.boot_disk.clone();
        let sim = self.node.shard(shard);
        let record = sim
            .engine
            .as_ref()
            .and_then(|engine| engine.log().latch_record());
        let Some(latch) = record else {
            return Err(format!(
                "shard {shard} says it is latched and has no record"
            ));
        };
        let boot = boot.as_ref().map(|boot| boot as &dyn Disk);
        let recorded = log::record_latch(&sim.disk, boot, &latch).is_recorded();
        self.note(format_args!("{shard} latch recorded: {recorded}"));
        if recorded {
            let latch = Some(latch);
            let pause_us = REOPEN_PAUSE_US;
            self.plan(
                pause_us,
                Happening::Reopen {
                    shard,
                    latch,
                    pause_us,
                },
            );
        } else {
            self.plan(REOPEN_PAUSE_MOST_US, Happening::RecordLatch { shard });
        }
        Ok(())
    }

    pub(super) fn reopen(
        &mut self,
        shard: u16,
        latch: Option<LatchRecord>,
        pause_us: u64,
    ) -> Checked<()> {
        let sim = self.node.shard(shard);
        if !sim.engine.as_ref().is_some_and(Engine::files_are_idle) {
            self.plan(
                5_000,
                Happening::Reopen {
                    shard,
                    latch,
                    pause_us,
                },
            );
            return Ok(());
        }
        match self.open_engine(shard, latch)? {
            Ok(rebuilt) => {
                self.node.shard(shard).rebuilt = Some(rebuilt);
                let after = self.delay(20_000);
                self.plan(after, Happening::Replace { shard });
            }
            Err(NotOpen::Died) => self.die(),
            Err(NotOpen::Failed(reason)) => {
                self.note(format_args!("{shard} could not reopen: {reason}"));
                let sim = self.node.shard(shard);
                sim.hazard += 1;
                sim.may_forget = true;
                let pause_us = (pause_us * 2).min(REOPEN_PAUSE_MOST_US);
                self.plan(
                    pause_us,
                    Happening::Reopen {
                        shard,
                        latch,
                        pause_us,
                    },
                );
            }
        }
        Ok(())
    }

    pub(super) fn replace(&mut self, shard: u16) -> Checked<()> {
        let Some(rebuilt) = self.node.shard(shard).rebuilt.take() else {
            return Ok(());
        };
        self.note(format_args!("{shard} goes on with a rebuilt engine"));
        let conns: Vec<_> = self
            .node
            .sockets
            .iter()
            .filter(|(_, socket)| socket.shard == shard)
            .map(|(conn, _)| *conn)
            .collect();
        self.put_engine(shard, rebuilt);
        for conn in conns {
            self.close(conn);
        }
        for other in (0..self.settings.shards).filter(|other| *other != shard) {
            self.send_mail(shard, other, ShardMessage::Reopened { shard });
        }
        Ok(())
    }

    // --- the end ---

    /// Starts a clean stop; [`World::finish_drain`] ends it.
    pub(super) fn begin_drain(&mut self) {
        self.node.draining = true;
        for shard in 0..self.settings.shards {
            let sim = self.node.shard(shard);
            sim.drained = false;
            sim.marker = None;
            self.event(shard, Event::Drain);
            self.plan(1, Happening::Drain { shard, rounds: 0 });
        }
    }

    pub(super) fn drain_round(&mut self, shard: u16, rounds: u32) -> Checked<()> {
        let sim = self.node.shard(shard);
        let Some(engine) = &mut sim.engine else {
            return Ok(());
        };
        engine.demand_durable();
        sim.marker = engine.seal();
        if sim.marker.is_some() || rounds >= DRAIN_ROUNDS {
            sim.drained = true;
            return Ok(());
        }
        self.want_turn(shard);
        self.plan(
            DRAIN_PAUSE_US,
            Happening::Drain {
                shard,
                rounds: rounds + 1,
            },
        );
        Ok(())
    }

    /// Waits for the drain and ends the process; true if it was clean.
    pub(super) fn finish_drain(&mut self) -> Checked<bool> {
        self.await_that("the drain", 20_000, |world| {
            world.node.down || world.node.shards.iter().all(|sim| sim.drained)
        })?;
        if self.node.down {
            return Ok(false);
        }
        let markers: Vec<_> = self
            .node
            .shards
            .iter()
            .filter_map(|sim| sim.marker)
            .collect();
        let clean = markers.len() == self.node.shards.len();
        if clean {
            let put = log::put_clean_markers(&self.node.data, &markers);
            put.map_err(|error| error.to_string())?;
        }
        let at_rest = self.node.shards.iter().all(|sim| {
            sim.engine.as_ref().is_some_and(|engine| {
                let frontiers = engine.log_frontiers();
                frontiers.durable_next >= frontiers.appended && engine.log().is_quiet()
            })
        });
        if at_rest {
            let hazards: Vec<u64> = self.node.shards.iter().map(|sim| sim.hazard).collect();
            self.journal.all_durable(&hazards);
        }
        self.note(format_args!("drained, clean {clean}, at rest {at_rest}"));
        self.crash(false);
        Ok(clean)
    }

    /// A process that has latched stays up until that is recorded. (One that is
    /// killed in between leaves no trace of the failed sync; nothing here
    /// protects from that.)
    fn record_latches(&mut self) {
        let boot = self.node.boot_disk.clone();
        let boot = boot.as_ref().map(|boot| boot as &dyn Disk);
        for sim in &self.node.shards {
            let engine = sim.engine.as_ref();
            if let Some(latch) = engine.and_then(|engine| engine.log().latch_record()) {
                sim.disk.set_free_bytes(None);
                log::record_latch(&sim.disk, boot, &latch);
            }
        }
    }

    /// The process dies, or the power goes.
    pub(super) fn crash(&mut self, power: bool) {
        let what = if power { "POWER CUT" } else { "CRASH" };
        self.note(format_args!("{what}"));
        if !power {
            self.process_crashes += 1;
            self.record_latches();
        }
        self.queue.clear();
        self.node.mail_due.clear();
        self.node.sockets.clear();
        self.node.down = true;
        self.node.accepting = false;
        self.node.draining = false;
        let stays_full = self.random.chance(1, 4);
        for sim in &mut self.node.shards {
            sim.engine = None;
            sim.rebuilt = None;
            sim.waiting.clear();
            sim.turn_planned = false;
            sim.timer_us = None;
            sim.serving = false;
            sim.latched = false;
            sim.checked_durable = LogPosition(0);
            sim.places.clear();
            sim.disk.fail_writes(0);
            sim.disk.fail_syncs(0);
            sim.disk.crash_after(None);
            if !stays_full {
                sim.disk.set_free_bytes(None);
            }
            match power {
                true => sim.disk.power_cut(),
                false => sim.disk.process_crash(),
            }
            sim.hazard += u64::from(power);
            sim.may_forget |= power;
        }
        match power {
            true => self.node.data.power_cut(),
            false => self.node.data.process_crash(),
        }
        if power {
            self.node.power_cuts += 1;
            self.node.boot_id += 1;
            if self.node.boot_disk.is_some() {
                self.node.boot_disk = Some(SimDisk::new(self.random.fork()));
            }
        }
        for client in 0..self.clients.len() {
            self.link_died(client);
        }
        for part in self.journal.parts.values_mut() {
            part.purging = 0;
        }
    }
}

fn load_checkpoint(disk: &SimDisk) -> Result<Option<Checkpoint>, String> {
    let log_id = log::id_of(disk).map_err(|error| error.to_string())?;
    store::take_over(disk, log_id).map_err(|error| error.to_string())
}
