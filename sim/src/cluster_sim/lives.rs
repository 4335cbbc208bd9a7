//! Lives of a process: start, boot, latch and reopening, crash, power cut.

use std::collections::BTreeSet;
use std::time::Duration;

use shards::engine::{Boot, Engine, EngineConfig, Memory, ShardPlace};
use shards::io::Disk;
use shards::log::{
    self, BootId, LatchRecord, LogId, LogPosition, LogWriter, OpenFacts, RecoveryReport,
};
use shards::state::level::{FIRST_LEVEL, OWN_LEVEL};
use shards::store::{self, Checkpoint};

use super::{
    links::number,
    node::Rebuilt,
    world::{Happening, OnNode, World},
    Checked,
};

/// The driver's pauses between tries to reopen a latched log.
const REOPEN_PAUSE_US: u64 = 200_000;
const REOPEN_PAUSE_MOST_US: u64 = 10_000_000;
/// Peers learn of a dead process at once, of a dead machine when it is silent
/// for long.
const PROCESS_GONE_US: u64 = 2_000;
const MACHINE_GONE_US: u64 = 2_500_000;

impl World {
    /// Starts the process of a node that is down, after a while.
    pub(super) fn start_later(&mut self, node: usize, most_ms: u64) {
        let after = 1_000 + self.random.below(most_ms * 1000);
        self.plan(after, Happening::Start { node });
    }

    pub(super) fn start(&mut self, node: usize) -> Checked<()> {
        if self.nodes[node].up || self.is_lost(node) || !self.nodes[node].belongs {
            return Ok(());
        }
        if self.nodes[node].seeded {
            self.nodes[node].seed = self.some_member_beside(node);
        }
        let drift = self.settings.drift_ppm as i64;
        let drift_ppm = drift - self.random.below(2 * drift as u64 + 1) as i64;
        let now_us = self.now_us;
        let sim = &mut self.nodes[node];
        sim.life += 1;
        sim.up = true;
        sim.life_start_us = now_us;
        sim.drift_ppm = drift_ppm;
        let markers = log::take_clean_markers(&sim.data);
        sim.markers = markers.map_err(|error| error.to_string())?;
        let life = sim.life;
        self.note(format_args!("{node} starts, life {life}"));
        let after = self.delay(3_000);
        self.plan_on(node, after, OnNode::Boot);
        Ok(())
    }

    pub(super) fn boot(&mut self, node: usize) -> Checked<()> {
        match self.open_log(node, None)? {
            Ok(rebuilt) => self.put_engine(node, rebuilt),
            Err(reason) => {
                self.note(format_args!("{node} did not start: {reason}"));
                self.hurt(node);
                self.crash(node);
                self.start_later(node, 100);
            }
        }
        Ok(())
    }

    /// The inner error is what the opening ran into; the outer one is a broken promise.
    fn open_log(
        &mut self,
        node: usize,
        latch: Option<LatchRecord>,
    ) -> Checked<Result<Rebuilt, String>> {
        let config = self.engine_config(node);
        let options = self.settings.log.clone();
        let sim = &self.nodes[node];
        let disk = sim.disk.clone();
        let log_id = LogId(u128::from(sim.cookie) << 64);
        if !log::exists(&disk).map_err(|error| error.to_string())? {
            if let Err(error) = log::create(&disk, log_id, &options) {
                return Ok(Err(error.to_string()));
            }
        }
        let log_id = log::id_of(&disk).map_err(|error| error.to_string())?;
        let checkpoint = match store::take_over(&disk, log_id) {
            Ok(checkpoint) => checkpoint,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let base = checkpoint.as_ref().map(Checkpoint::base).transpose();
        let base = base.map_err(|error| format!("node {node}: {error}"))?;
        let marker = sim.markers.iter().find(|marker| marker.log_id == log_id);
        let facts = OpenFacts {
            boot_id: BootId(sim.boot_id),
            clean_marker: marker.copied().filter(|_| latch.is_none()),
            boot_directory: Some(&sim.boot_disk as &dyn Disk),
            lock_wait: Duration::ZERO,
            base: base.as_ref(),
        };
        let mut boot = Boot::new(config);
        if let Some(checkpoint) = &checkpoint {
            let restored = boot.restore(checkpoint);
            restored.map_err(|error| format!("node {node}: {error}"))?;
        }
        let mut refused = None;
        let mut on_item = |item: log::RecoveredItem<'_>| {
            let place = |at| log::place_in(item.position, item.links, at);
            if let Err(error) = boot.replay(&item.header, item.payload, &place) {
                refused.get_or_insert(error.to_string());
            }
        };
        let opened = match &latch {
            None => log::open(&disk, &options, &facts, &mut on_item),
            Some(latch) => log::reopen(&disk, &options, &facts, latch, &mut on_item),
        };
        let opened = match opened {
            Ok(opened) => opened,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let report = opened.report;
        if let Some(reason) = refused {
            return Err(format!(
                "node {node}: what was recovered does not replay: {reason}"
            ));
        }
        if !report.damaged.is_empty() || report.durable_memory_lost {
            return Err(format!("node {node}: damage where none was done: {report}"));
        }
        let writer = LogWriter::new(opened.start, options);
        let memory = Memory {
            amnesiac: report.amnesiac,
            durable_memory_lost: report.durable_memory_lost,
        };
        let engine = boot.finish(writer, memory);
        let engine = engine.map_err(|error| format!("node {node}: {error}"))?;
        Ok(Ok(Rebuilt { engine, report }))
    }

    /// Where members change one founder is upgraded when it starts for the second time;
    /// elsewhere kept seeds keep their histories.
    pub(super) fn level_of(&self, node: usize) -> u16 {
        let upgraded = node != 1 || self.nodes[node].life > 1;
        match self.settings.reshapes && upgraded {
            true => OWN_LEVEL,
            false => FIRST_LEVEL,
        }
    }

    fn engine_config(&mut self, node: usize) -> EngineConfig {
        let random = self.random.number();
        let sim = &self.nodes[node];
        let listed = match sim.seeded {
            true => BTreeSet::from([sim.seed, node]),
            false => (0..self.settings.nodes).collect(),
        };
        let address = |it: &usize| (number(*it), format!("127.0.0.1:{}", 7500 + it));
        EngineConfig {
            shard: 0,
            node: number(node),
            cookie: if sim.joins { sim.cookie } else { 1 },
            nonce: 1,
            lineage: shards::state::meta::Lineage::default(),
            joins: sim.joins,
            level: self.level_of(node),
            nodes: listed.iter().copied().map(number).collect(),
            addresses: listed.iter().map(address).collect(),
            place: ShardPlace::spread(self.settings.data_groups, 1),
            start_wall_ms: sim.wall_ms(self.now_us),
            start_mono_ms: sim.mono_ms(self.now_us),
            random,
            window_bytes: self.settings.window_bytes,
            read_cache_bytes: self.settings.read_cache_bytes,
            scrub_interval_ms: 0,
            recovery_grace_ms: 1_000,
            catch_up_bytes_per_s: self.settings.catch_up_bytes_per_s,
            spread_after_ms: self.settings.spread_after_ms,
            force_group_0: None,
            index_memory_bytes: u64::MAX,
            server: "tidegate-sim".to_owned(),
            advertise: String::new(),
        }
    }

    /// A node goes on with this engine.
    fn put_engine(&mut self, node: usize, rebuilt: Rebuilt) {
        let Rebuilt { engine, report } = rebuilt;
        self.note(format_args!("{node} opened: {report}"));
        self.counts.opens += 1;
        let sim = &mut self.nodes[node];
        sim.checked_durable = engine.log_frontiers().durable_next;
        sim.engine = Some(engine);
        sim.engine_life += 1;
        sim.latched = false;
        sim.turns = 0;
        sim.pieces.clear();
        sim.roster = None;
        let names = sim.disk.list().unwrap_or_default();
        let there = sim.places.scan(&sim.disk, &names);
        self.journal.written_on(node, &there);
        self.look_what_is_safe(node);
        self.want_turn(node);
        self.plan_dials(node);
        self.plan_amnesia(node, &report);
    }

    fn plan_amnesia(&mut self, node: usize, report: &RecoveryReport) {
        if report.amnesiac || report.durable_memory_lost {
            let what = OnNode::Amnesia {
                incarnation: report.incarnation,
                ready: false,
            };
            self.plan_on(node, 1, what);
        }
    }

    pub(super) fn settle_amnesia(&mut self, node: usize, incarnation: u64, ready: bool) {
        let sim = &self.nodes[node];
        if ready {
            // What fails is told again at the next opening.
            let settled = log::amnesia_settled(&sim.disk, incarnation);
            return self.note(format_args!("{node} amnesia settled: {}", settled.is_ok()));
        }
        let engine = sim.engine.as_ref();
        let settled = engine.is_some_and(Engine::memory_is_settled);
        let after = if settled { self.delay(10_000) } else { 20_000 };
        let what = OnNode::Amnesia {
            incarnation,
            ready: settled,
        };
        self.plan_on(node, after, what);
    }

    // --- after a latch ---

    pub(super) fn record_latch(&mut self, node: usize) -> Checked<()> {
        let sim = &self.nodes[node];
        let record = sim
            .engine
            .as_ref()
            .and_then(|engine| engine.log().latch_record());
        let Some(latch) = record else {
            return Err(format!("node {node} says it is latched and has no record"));
        };
        let boot = Some(&sim.boot_disk as &dyn Disk);
        let recorded = log::record_latch(&sim.disk, boot, &latch).is_recorded();
        self.note(format_args!("{node} latch recorded: {recorded}"));
        let (after, what) = match recorded {
            true => {
                let (latch, pause_us) = (Some(latch), REOPEN_PAUSE_US);
                (pause_us, OnNode::Reopen { latch, pause_us })
            }
            false => (REOPEN_PAUSE_MOST_US, OnNode::RecordLatch),
        };
        self.plan_on(node, after, what);
        Ok(())
    }

    pub(super) fn reopen(
        &mut self,
        node: usize,
        latch: Option<LatchRecord>,
        pause_us: u64,
    ) -> Checked<()> {
        let engine = self.nodes[node].engine.as_ref();
        if !engine.is_some_and(Engine::files_are_idle) {
            self.plan_on(node, 5_000, OnNode::Reopen { latch, pause_us });
            return Ok(());
        }
        match self.open_log(node, latch)? {
            Ok(rebuilt) => {
                self.nodes[node].rebuilt = Some(rebuilt);
                let after = self.delay(20_000);
                self.plan_on(node, after, OnNode::Replace);
            }
            Err(reason) => {
                self.note(format_args!("{node} could not reopen: {reason}"));
                self.hurt(node);
                let pause_us = (pause_us * 2).min(REOPEN_PAUSE_MOST_US);
                self.plan_on(node, pause_us, OnNode::Reopen { latch, pause_us });
            }
        }
        Ok(())
    }

    pub(super) fn replace(&mut self, node: usize) {
        let Some(rebuilt) = self.nodes[node].rebuilt.take() else {
            return;
        };
        self.note(format_args!("{node} goes on with a rebuilt engine"));
        self.unlink(node, PROCESS_GONE_US);
        let conns: Vec<_> = self.nodes[node].sockets.keys().copied().collect();
        for conn in conns {
            self.hung_up(node, conn);
        }
        self.put_engine(node, rebuilt);
    }

    // --- the end ---

    /// A process that has latched stays up until that is recorded.
    fn record_a_latch(&mut self, node: usize) {
        let sim = &self.nodes[node];
        let engine = sim.engine.as_ref();
        if let Some(latch) = engine.and_then(|engine| engine.log().latch_record()) {
            log::record_latch(&sim.disk, Some(&sim.boot_disk as &dyn Disk), &latch);
        }
    }

    /// The process dies.
    pub(super) fn crash(&mut self, node: usize) {
        self.note(format_args!("{node} CRASH"));
        self.counts.crashes += 1;
        self.record_a_latch(node);
        self.unlink(node, PROCESS_GONE_US);
        self.end_process(node);
        let sim = &self.nodes[node];
        sim.disk.process_crash();
        sim.data.process_crash();
    }

    /// The machine's power goes.
    pub(super) fn power_cut(&mut self, node: usize) {
        self.note(format_args!("{node} POWER CUT"));
        self.counts.power_cuts += 1;
        self.unlink(node, MACHINE_GONE_US);
        self.end_process(node);
        let boot_disk = crate::SimDisk::new(self.random.fork());
        let sim = &mut self.nodes[node];
        self.journal.lost_power(node);
        sim.disk.power_cut();
        sim.data.power_cut();
        sim.boot_id += 1;
        sim.boot_disk = boot_disk;
        self.hurt(node);
    }

    fn end_process(&mut self, node: usize) {
        let sim = &mut self.nodes[node];
        let sockets = std::mem::take(&mut sim.sockets);
        sim.engine = None;
        sim.rebuilt = None;
        sim.turn_planned = false;
        sim.timer_us = None;
        sim.up = false;
        sim.serving = false;
        sim.latched = false;
        sim.paused_until_us = 0;
        sim.halted_us = None;
        sim.checked_durable = LogPosition(0);
        sim.disk.fail_writes(0);
        sim.disk.fail_syncs(0);
        for client in sockets.into_values().filter_map(|socket| socket.client) {
            self.link_died(client);
        }
    }
}
