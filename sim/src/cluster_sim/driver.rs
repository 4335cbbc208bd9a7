//! The driver's part: effects into simulated I/O, completions into events.

use shards::engine::{Effect, Event, Notice, ReadResult};
use shards::io::{BatchBuffer, Disk};
use shards::log::{prepare_segment, segment_name, IoFailure, LogEffect, LogPosition};
use shards::store::StoreJob;

use super::{
    links::index,
    world::{OnNode, PendingRead, World},
    Checked,
};
use crate::{SimSync, SimWrite, VecBuffer};

/// Turns of one life after which a node is said to spin.
const MOST_TURNS: u64 = 2_000_000;

impl World {
    /// Hands an event to a node's engine and plans its turn.
    pub(super) fn event(&mut self, node: usize, event: Event<'_>) {
        let sim = &mut self.nodes[node];
        let mono_ms = sim.mono_ms(self.now_us);
        if let Some(engine) = &mut sim.engine {
            engine.handle(mono_ms, event);
            self.want_turn(node);
        }
    }

    pub(super) fn want_turn(&mut self, node: usize) {
        if !std::mem::replace(&mut self.nodes[node].turn_planned, true) {
            let after = 1 + self.random.below(40);
            self.plan_on(node, after, OnNode::Turn);
        }
    }

    pub(super) fn timer(&mut self, node: usize, at_us: u64) {
        let sim = &mut self.nodes[node];
        if sim.timer_us == Some(at_us) {
            sim.timer_us = None;
            self.want_turn(node);
        }
    }

    /// Ends a turn and does what comes out of it.
    pub(super) fn end_turn(&mut self, node: usize) -> Checked<()> {
        let sim = &mut self.nodes[node];
        let mono_ms = sim.mono_ms(self.now_us);
        sim.turn_planned = false;
        sim.turns += 1;
        if sim.turns > MOST_TURNS {
            return Err(format!("node {node} took {MOST_TURNS} turns: it spins"));
        }
        let Some(engine) = &mut sim.engine else {
            return Ok(());
        };
        let mut effects = Vec::new();
        engine.end_turn(mono_ms, &mut effects);
        for effect in effects {
            self.execute(node, effect)?;
        }
        self.check_frontiers(node)?;
        self.look_who_leads(node)?;
        let Some(engine) = &self.nodes[node].engine else {
            return Ok(());
        };
        let (again, next) = (engine.wants_turn(), engine.next_timer_ms());
        if let Some(next_ms) = next {
            self.arm(node, next_ms);
        }
        if again {
            self.want_turn(node);
        }
        Ok(())
    }

    fn arm(&mut self, node: usize, due_ms: u64) {
        let now_us = self.now_us;
        let sim = &mut self.nodes[node];
        let at_us = sim.when(due_ms).max(now_us + 1);
        if sim.timer_us.is_none_or(|at| at_us < at) {
            sim.timer_us = Some(at_us);
            self.plan_on(node, at_us - now_us, OnNode::Timer { at_us });
        }
    }

    fn execute(&mut self, node: usize, effect: Effect<VecBuffer>) -> Checked<()> {
        match effect {
            Effect::Log(effect) => self.execute_log(node, effect),
            Effect::Output { conn } => self.want_output(node, conn),
            Effect::Close { conn } => self.close(node, conn),
            Effect::NodeOutput { node: peer } => self.want_node_output(node, index(peer)),
            Effect::LogKnown { .. } => {}
            Effect::SeatKnown { node: of, seat } => {
                self.nodes[node].seats.insert(of, *seat);
                let peer = index(of);
                if self.settings.reshapes && peer != node && !self.may_link(node, peer) {
                    self.break_standing(node, peer, 2_000);
                }
            }
            Effect::RosterKnown(roster) => self.roster_known(node, roster),
            Effect::LevelKnown(level) => return self.level_known(node, level),
            // It was removed, and not everybody knows it yet.
            Effect::NodeRefused { node: peer, .. } if self.settings.reshapes => {
                self.break_standing(node, index(peer), 2_000);
            }
            Effect::NodeRefused { node: peer, reason } => {
                return Err(format!("node {node} refuses {}: {reason}", index(peer)));
            }
            // One shard each.
            Effect::ToShard { message, .. } => self.event(node, Event::Message(message)),
            Effect::Read {
                id,
                file,
                offset,
                len,
            } => {
                let after = self.delay(self.settings.write_us * 4) + self.disk_lag(node);
                // Through a descriptor that is open by now, as the driver's.
                let open = self.nodes[node].disk.id_of(&file.name());
                let read = PendingRead {
                    id,
                    file,
                    open,
                    offset,
                    len,
                };
                self.plan_on(node, after, OnNode::Read(read));
            }
            Effect::Store(job) => {
                let after = self.delay(self.settings.sync_us * 4) + self.disk_lag(node);
                self.plan_on(node, after, OnNode::Store(job));
            }
            Effect::Notice(notice) => return self.notice(node, notice),
        }
        Ok(())
    }

    /// How much longer the node's disk takes now.
    fn disk_lag(&self, node: usize) -> u64 {
        let (lag_us, until_us) = self.nodes[node].slow_disk;
        if self.now_us < until_us {
            lag_us
        } else {
            0
        }
    }

    fn execute_log(&mut self, node: usize, effect: LogEffect<VecBuffer>) {
        let lag_us = self.disk_lag(node);
        match effect {
            LogEffect::Write {
                id,
                segment,
                offset,
                buffer,
                dsync,
            } => {
                let bytes = buffer.bytes();
                let name = segment_name(segment);
                self.note(format_args!(
                    "{node} write {id} at {segment}+{offset} of {} dsync {dsync}",
                    bytes.len()
                ));
                let sim = &mut self.nodes[node];
                sim.places.issued(id, segment, offset, bytes);
                match sim.disk.begin_write(&name, offset, bytes) {
                    Ok(write) => {
                        let sync_us = if dsync { self.settings.sync_us } else { 0 };
                        let after = self.delay(self.settings.write_us + sync_us) + lag_us;
                        self.plan_on(node, after, OnNode::Written { id, write, dsync });
                    }
                    Err(error) => {
                        let result = Err(error.into());
                        self.event(node, Event::Written { id, result });
                    }
                }
            }
            LogEffect::Sync { id, segments } => {
                self.note(format_args!("{node} sync {id} of {segments:?}"));
                let names: Vec<String> = segments.into_iter().map(segment_name).collect();
                match self.nodes[node].disk.begin_sync(&names) {
                    Ok(sync) => {
                        let lag_us = lag_us + self.nodes[node].sync_lag_us;
                        let after = self.delay(self.settings.sync_us) + lag_us;
                        self.plan_on(node, after, OnNode::Synced { id, sync });
                    }
                    Err(error) => {
                        let result = Err(error.into());
                        self.event(node, Event::Synced { id, result });
                    }
                }
            }
            LogEffect::PrepareSegment { sequence, recycle } => {
                let after = self.delay(self.settings.sync_us * 2) + lag_us;
                self.plan_on(node, after, OnNode::Prepare { sequence, recycle });
            }
            LogEffect::RemoveSegments { sequences } => {
                for sequence in sequences {
                    // What fails is left to the next open.
                    let _ = self.nodes[node].disk.remove(&segment_name(sequence));
                }
            }
        }
    }

    pub(super) fn written(&mut self, node: usize, id: u64, write: SimWrite, dsync: bool) {
        let sim = &mut self.nodes[node];
        let result = sim.disk.end_write(write, dsync).map_err(IoFailure::from);
        match result.is_ok() {
            true => {
                let whole = sim.places.written(id);
                self.journal.written_on(node, &whole);
                if dsync {
                    self.look_what_is_safe(node);
                }
            }
            false => self.hurt(node),
        }
        self.note(format_args!("{node} written {id}: {}", result.is_ok()));
        self.event(node, Event::Written { id, result });
    }

    pub(super) fn synced(&mut self, node: usize, id: u64, sync: SimSync) {
        let result = self.nodes[node]
            .disk
            .end_sync(sync)
            .map_err(IoFailure::from);
        match result.is_ok() {
            true => self.look_what_is_safe(node),
            false => self.hurt(node),
        }
        self.note(format_args!("{node} synced {id}: {}", result.is_ok()));
        self.event(node, Event::Synced { id, result });
    }

    /// What this node has and has not synced may be lost, from now on for good.
    pub(super) fn hurt(&mut self, node: usize) {
        self.nodes[node].hurt_us = Some(self.now_us);
        self.journal.hurt(node);
    }

    pub(super) fn look_what_is_safe(&mut self, node: usize) {
        let sim = &mut self.nodes[node];
        let safe = sim.places.take_safe(&sim.disk);
        self.journal.durable_on(node, &safe);
    }

    pub(super) fn prepare(&mut self, node: usize, sequence: u64, recycle: Option<u64>) {
        let sim = &self.nodes[node];
        let Some(engine) = &sim.engine else {
            return;
        };
        let geometry = engine.log().geometry();
        let result = prepare_segment(&sim.disk, geometry, sequence, recycle);
        let result = result.map_err(IoFailure::from);
        let after = self.delay(100);
        self.plan_on(node, after, OnNode::Prepared { sequence, result });
    }

    pub(super) fn prepared(&mut self, node: usize, sequence: u64, result: Result<(), IoFailure>) {
        self.note(format_args!(
            "{node} segment {sequence}: {}",
            result.is_ok()
        ));
        self.event(node, Event::SegmentReady { sequence, result });
    }

    pub(super) fn read(&mut self, node: usize, read: PendingRead) {
        let (id, name) = (read.id, read.file.name());
        let (offset, len) = (read.offset, read.len);
        let disk = &self.nodes[node].disk;
        let bytes = read
            .open
            .and_then(|open| disk.read_open(open, offset, u64::from(len)));
        let result = bytes
            .map(|bytes| ReadResult { bytes })
            .ok_or_else(|| IoFailure {
                message: "short read".to_owned(),
                out_of_space: false,
            });
        self.note(format_args!(
            "{node} read {id} at {name}+{offset} of {len}: {}",
            result.is_ok()
        ));
        self.event(node, Event::ReadDone { id, result });
    }

    /// A store job, done in one go.
    pub(super) fn store(&mut self, node: usize, job: StoreJob) {
        match &job {
            StoreJob::Publish { head, .. } => self.note(format_args!("{node} publishes {head:?}")),
            job => {
                let line = format!("{job:?}");
                self.note(format_args!("{node} store job {line:.60}"));
            }
        }
        let done = job.run(&self.nodes[node].disk, &mut |_, _| {});
        let after = self.delay(self.settings.sync_us * 4);
        self.plan_on(node, after, OnNode::Stored(done));
    }

    fn note_latched(&mut self, node: usize) {
        if !std::mem::replace(&mut self.nodes[node].latched, true) {
            self.counts.latches += 1;
            let after = self.delay(5_000);
            self.plan_on(node, after, OnNode::RecordLatch);
        }
    }

    fn notice(&mut self, node: usize, notice: Notice) -> Checked<()> {
        self.note(format_args!("{node} notice {notice:?}"));
        match notice {
            Notice::Serving => self.nodes[node].serving = true,
            Notice::MovedAway { .. } => self.counts.moves += 1,
            Notice::Latched { .. } => self.note_latched(node),
            Notice::BadRecord { .. } => return Err(format!("node {node}: {notice:?}")),
            Notice::Problem(text) if text.contains("not applied") || text.contains("encoded") => {
                return Err(format!("node {node}: {text}"));
            }
            _ => {}
        }
        Ok(())
    }

    /// What the log calls durable is safe on the disk, to the byte.
    fn check_frontiers(&mut self, node: usize) -> Checked<()> {
        let sim = &mut self.nodes[node];
        let Some(engine) = &sim.engine else {
            return Ok(());
        };
        let frontiers = engine.log_frontiers();
        if frontiers.written_next < frontiers.durable_next {
            return Err(format!(
                "node {node}: frontiers out of order: {frontiers:?}"
            ));
        }
        let geometry = engine.log().geometry();
        while sim.checked_durable < frontiers.durable_next {
            let from = sim.checked_durable;
            let segment = geometry.segment_of(from);
            let end = geometry.start_of(segment + 1).min(frontiers.durable_next);
            let offset = geometry.offset_of(from);
            let name = segment_name(segment);
            if !sim.disk.is_safe(&name, offset, offset + end.0 - from.0) {
                return Err(format!(
                    "node {node}: bytes {from} to {end} are called durable and are not safe"
                ));
            }
            sim.checked_durable = LogPosition(end.0);
        }
        Ok(())
    }
}
