//! The driver's part: effects into simulated I/O, completions into events.

use shards::engine::{Effect, Event, Notice, ReadResult, ShardMessage};
use shards::io::{BatchBuffer, Disk};
use shards::log::{prepare_segment, segment_name, IoFailure, LogEffect, LogPosition};

use shards::store::StoreJob;

use super::{
    world::{Happening, PendingRead, World},
    Checked,
};
use crate::{SimSync, SimWrite, VecBuffer};

/// Turns of one life after which a shard is said to spin.
const MOST_TURNS: u64 = 400_000;

impl World {
    /// Monotonic ms of this process.
    pub(super) fn mono_ms(&self) -> u64 {
        (self.now_us - self.node.life_start_us) / 1000
    }

    pub(super) fn wall_ms(&self) -> u64 {
        ((self.now_us / 1000) as i64 + self.node.wall_offset_ms).max(0) as u64
    }

    /// Hands an event to a shard and plans its turn.
    pub(super) fn event(&mut self, shard: u16, event: Event<'_>) {
        let mono_ms = self.mono_ms();
        if let Some(engine) = &mut self.node.shard(shard).engine {
            engine.handle(mono_ms, event);
            self.want_turn(shard);
        }
    }

    pub(super) fn want_turn(&mut self, shard: u16) {
        if !std::mem::replace(&mut self.node.shard(shard).turn_planned, true) {
            let after = 1 + self.random.below(40);
            self.plan(after, Happening::Turn { shard });
        }
    }

    pub(super) fn timer(&mut self, shard: u16, at_us: u64) {
        let sim = self.node.shard(shard);
        if sim.timer_us == Some(at_us) {
            sim.timer_us = None;
            self.want_turn(shard);
        }
    }

    pub(super) fn turn(&mut self, shard: u16) -> Checked<()> {
        self.end_turn(shard)
    }

    /// Ends a turn and does what comes out of it.
    pub(super) fn end_turn(&mut self, shard: u16) -> Checked<()> {
        let mono_ms = self.mono_ms();
        let sim = self.node.shard(shard);
        sim.turn_planned = false;
        sim.turns += 1;
        if sim.turns > MOST_TURNS {
            return Err(format!("shard {shard} took {MOST_TURNS} turns: it spins"));
        }
        let Some(engine) = &mut sim.engine else {
            return Ok(());
        };
        let mut effects = Vec::new();
        engine.end_turn(mono_ms, &mut effects);
        for effect in effects {
            self.execute(shard, effect)?;
        }
        self.check_frontiers(shard)?;
        let sim = self.node.shard(shard);
        let Some(engine) = &sim.engine else {
            return Ok(());
        };
        let (again, next) = (engine.wants_turn(), engine.next_timer_ms());
        if let Some(next_ms) = next {
            self.arm(shard, next_ms);
        }
        if again {
            self.want_turn(shard);
        }
        Ok(())
    }

    fn arm(&mut self, shard: u16, due_ms: u64) {
        let due_us = (self.node.life_start_us + due_ms * 1000).max(self.now_us + 1);
        let sim = self.node.shard(shard);
        if sim.timer_us.is_none_or(|at| due_us < at) {
            sim.timer_us = Some(due_us);
            let after = due_us - self.now_us;
            self.plan(
                after,
                Happening::Timer {
                    shard,
                    at_us: due_us,
                },
            );
        }
    }

    fn execute(&mut self, shard: u16, effect: Effect<VecBuffer>) -> Checked<()> {
        match effect {
            Effect::Log(effect) => self.execute_log(shard, effect),
            Effect::Output { conn } => self.want_output(conn),
            Effect::Close { conn } => self.close(conn),
            // One node: nobody is linked.
            Effect::NodeOutput { .. }
            | Effect::NodeRefused { .. }
            | Effect::LogKnown { .. }
            | Effect::SeatKnown { .. }
            | Effect::RosterKnown(_)
            | Effect::LevelKnown(_) => {}
            Effect::ToShard { shard: to, message } if to == shard => {
                self.event(shard, Event::Message(message));
            }
            Effect::ToShard { shard: to, message } => self.send_mail(shard, to, message),
            Effect::Read {
                id,
                file,
                offset,
                len,
            } => {
                let after = self.delay(self.settings.write_us * 4);
                // Through a descriptor that is open by now, as the driver's: what
                // becomes of the file's name meanwhile does not matter.
                let disk = &self.node.shard(shard).disk;
                let open = disk.id_of(&file.name());
                let before = disk.read(&file.name(), offset, u64::from(len));
                let read = PendingRead {
                    id,
                    file,
                    open,
                    offset,
                    len,
                    before,
                };
                self.plan(after, Happening::Read { shard, read });
            }
            Effect::Store(job) => {
                let after = self.delay(self.settings.sync_us * 4);
                self.plan(after, Happening::Store { shard, job });
            }
            Effect::Notice(notice) => return self.notice(shard, notice),
        }
        Ok(())
    }

    fn execute_log(&mut self, shard: u16, effect: LogEffect<VecBuffer>) {
        match effect {
            LogEffect::Write {
                id,
                segment,
                offset,
                buffer,
                dsync,
            } => {
                self.note(format_args!(
                    "{shard} write {id} at {segment}+{offset} of {} dsync {dsync}",
                    buffer.bytes().len()
                ));
                let sim = self.node.shard(shard);
                sim.note_places(segment, offset, buffer.bytes());
                match sim
                    .disk
                    .begin_write(&segment_name(segment), offset, buffer.bytes())
                {
                    Ok(write) => {
                        let sync_us = if dsync { self.settings.sync_us } else { 0 };
                        let after = self.delay(self.settings.write_us + sync_us);
                        let still_us = self.still_until_us.saturating_sub(self.now_us);
                        let after = after.max(still_us);
                        self.plan(
                            after,
                            Happening::Written {
                                shard,
                                id,
                                write,
                                dsync,
                            },
                        );
                    }
                    Err(error) => {
                        let result = Err(error.into());
                        self.event(shard, Event::Written { id, result });
                    }
                }
            }
            LogEffect::Sync { id, segments } => {
                self.note(format_args!("{shard} sync {id} of {segments:?}"));
                let names: Vec<String> = segments.into_iter().map(segment_name).collect();
                match self.node.shard(shard).disk.begin_sync(&names) {
                    Ok(sync) => {
                        let after = self.delay(self.settings.sync_us);
                        self.plan(after, Happening::Synced { shard, id, sync });
                    }
                    Err(error) => {
                        let result = Err(error.into());
                        self.event(shard, Event::Synced { id, result });
                    }
                }
            }
            LogEffect::PrepareSegment { sequence, recycle } => {
                let after = self.delay(self.settings.sync_us * 2);
                self.plan(
                    after,
                    Happening::Prepare {
                        shard,
                        sequence,
                        recycle,
                    },
                );
            }
            LogEffect::RemoveSegments { sequences } => {
                let disk = &self.node.shard(shard).disk;
                for sequence in sequences {
                    // What fails is left to the next open.
                    let _ = disk.remove(&segment_name(sequence));
                }
            }
        }
    }

    pub(super) fn written(&mut self, shard: u16, id: u64, write: SimWrite, dsync: bool) {
        let sim = self.node.shard(shard);
        let result = sim.disk.end_write(write, dsync).map_err(IoFailure::from);
        sim.hazard += u64::from(result.is_err());
        sim.may_forget |= result.is_err();
        self.note(format_args!("{shard} written {id}: {}", result.is_ok()));
        self.event(shard, Event::Written { id, result });
    }

    pub(super) fn synced(&mut self, shard: u16, id: u64, sync: SimSync) {
        let sim = self.node.shard(shard);
        let result = sim.disk.end_sync(sync).map_err(IoFailure::from);
        sim.hazard += u64::from(result.is_err());
        sim.may_forget |= result.is_err();
        self.note(format_args!("{shard} synced {id}: {}", result.is_ok()));
        self.event(shard, Event::Synced { id, result });
    }

    pub(super) fn prepare(
        &mut self,
        shard: u16,
        sequence: u64,
        recycle: Option<u64>,
    ) -> Checked<()> {
        let sim = self.node.shard(shard);
        let Some(engine) = &sim.engine else {
            return Ok(());
        };
        let geometry = engine.log().geometry();
        let result = prepare_segment(&sim.disk, geometry, sequence, recycle);
        let result = result.map_err(IoFailure::from);
        let after = self.delay(100);
        self.plan(
            after,
            Happening::Prepared {
                shard,
                sequence,
                result,
            },
        );
        Ok(())
    }

    pub(super) fn prepared(&mut self, shard: u16, sequence: u64, result: Result<(), IoFailure>) {
        self.note(format_args!(
            "{shard} segment {sequence}: {}",
            result.is_ok()
        ));
        self.event(shard, Event::SegmentReady { sequence, result });
    }

    /// As the driver does it: the answer goes to whichever engine is there.
    pub(super) fn read(&mut self, shard: u16, read: PendingRead) -> Checked<()> {
        let (id, name) = (read.id, read.file.name());
        let (offset, len) = (read.offset, read.len);
        let disk = &self.node.shard(shard).disk;
        let open = read.open;
        let bytes = open.and_then(|open| disk.read_open(open, offset, u64::from(len)));
        let taken = |before: &[u8], now: &[u8]| {
            // Zeros are written once; everything else stays as it is.
            let mut pairs = before.iter().zip(now);
            pairs.any(|(before, now)| *before != 0 && before != now)
        };
        let latched = self.node.shards[usize::from(shard)].latched;
        if let (Some(before), Some(now), false) = (&read.before, &bytes, latched) {
            if taken(before, now) {
                return Err(format!("shard {shard}: {name} was let go under a read"));
            }
        }
        let result = bytes
            .map(|bytes| ReadResult { bytes })
            .ok_or_else(|| IoFailure {
                message: "short read".to_owned(),
                out_of_space: false,
            });
        self.note(format_args!(
            "{shard} read {id} at {name}+{offset} of {len}"
        ));
        self.event(shard, Event::ReadDone { id, result });
        Ok(())
    }

    /// A store job, done in one go; the process may die in the middle of it,
    /// or an error strike.
    pub(super) fn store(&mut self, shard: u16, job: StoreJob) -> Checked<()> {
        let rates = self.settings.rates;
        let disk = self.node.shard(shard).disk.clone();
        self.note(format_args!("{shard} store job {}", what(&job)));
        if self.random.chance(rates.store_crash, 100) {
            let calls = self.random.below(10);
            if self.happens(|| format!("{shard} death {calls} calls into a store job")) {
                self.count("store job cut short");
                disk.crash_after(Some(calls));
            }
        }
        let faulty = self.random.chance(rates.store_error, 100);
        let of_write = faulty && self.random.chance(1, 2);
        let what = if of_write { "write" } else { "sync" };
        let faulty = faulty && self.happens(|| format!("{shard} a {what} fails in a store job"));
        if faulty {
            self.count("error in a store job");
            match of_write {
                true => disk.fail_writes(1),
                false => disk.fail_syncs(1),
            }
        }
        let done = job.run(&disk, &mut |_, _| {});
        disk.crash_after(None);
        if faulty {
            disk.fail_writes(0);
            disk.fail_syncs(0);
        }
        if disk.is_stopped() {
            self.die();
            return Ok(());
        }
        self.node.count_stored(&done);
        let after = self.delay(self.settings.sync_us * 4);
        self.plan(after, Happening::Stored { shard, done });
        Ok(())
    }

    // --- mail ---

    pub(super) fn send_mail(&mut self, from: u16, to: u16, message: ShardMessage) {
        if usize::from(to) >= self.node.shards.len() {
            return;
        }
        let after = self.delay(self.settings.mail_us);
        let last = self.node.mail_due.get(&(from, to)).copied().unwrap_or(0);
        let due = (self.now_us + after).max(last);
        self.node.mail_due.insert((from, to), due);
        let after = due - self.now_us;
        self.plan(after, Happening::Mail { from, to, message });
    }

    pub(super) fn mail(&mut self, from: u16, to: u16, message: ShardMessage) -> Checked<()> {
        self.note(format_args!("mail {from} to {to}: {}", name_of(&message)));
        let sim = self.node.shard(to);
        if sim.engine.is_none() {
            sim.waiting.push_back(message);
            return Ok(());
        }
        let reopened = matches!(message, ShardMessage::Reopened { .. });
        self.event(to, Event::Message(message));
        if reopened {
            // What that shard said in its earlier life is flushed and closed;
            // what stays open hears only its new one.
            self.end_turn(to)?;
            let moment = self.node.shard(from).moment();
            for socket in self.node.sockets.values_mut() {
                if socket.shard == to && !socket.closing {
                    socket.moments[usize::from(from)] = moment;
                }
            }
        }
        Ok(())
    }

    fn notice(&mut self, shard: u16, notice: Notice) -> Checked<()> {
        self.note(format_args!("{shard} notice {notice:?}"));
        match notice {
            Notice::Serving => {
                self.node.shard(shard).serving = true;
                if self.node.shards.iter().all(|sim| sim.serving) {
                    self.node.accepting = true;
                }
            }
            Notice::Latched { .. } => {
                let sim = self.node.shard(shard);
                if !std::mem::replace(&mut sim.latched, true) {
                    self.node.latches += 1;
                    let after = self.delay(5_000);
                    self.plan(after, Happening::RecordLatch { shard });
                }
            }
            Notice::BadRecord { .. } => return Err(format!("shard {shard}: {notice:?}")),
            Notice::Problem(text) if text.contains("not applied") || text.contains("encoded") => {
                return Err(format!("shard {shard}: {text}"));
            }
            _ => {}
        }
        Ok(())
    }

    /// What the log calls durable is safe on the disk, to the byte.
    fn check_frontiers(&mut self, shard: u16) -> Checked<()> {
        let sim = self.node.shard(shard);
        let Some(engine) = &sim.engine else {
            return Ok(());
        };
        let frontiers = engine.log_frontiers();
        if frontiers.written_next < frontiers.durable_next {
            return Err(format!(
                "shard {shard}: frontiers out of order: {frontiers:?}"
            ));
        }
        let geometry = engine.log().geometry();
        while sim.checked_durable < frontiers.durable_next {
            let from = sim.checked_durable;
            let segment = geometry.segment_of(from);
            let end = geometry.start_of(segment + 1).min(frontiers.durable_next);
            let offset = geometry.offset_of(from);
            let safe = sim
                .disk
                .is_safe(&segment_name(segment), offset, offset + end.0 - from.0);
            if !safe {
                return Err(format!(
                    "shard {shard}: bytes {from} to {end} are called durable and are not safe"
                ));
            }
            sim.checked_durable = LogPosition(end.0);
        }
        Ok(())
    }
}

fn what(job: &StoreJob) -> String {
    match job {
        StoreJob::Publish { head, .. } => head.to_string(),
        StoreJob::Pack(job) => format!("pack {} of {} records", job.file, job.records.len()),
        StoreJob::RemovePacks(files) => format!("remove packs {files:?}"),
        StoreJob::Scrub(job) => format!("scrub {} records", job.records.len()),
    }
}

fn name_of(message: &ShardMessage) -> String {
    match message {
        ShardMessage::Forward {
            conn,
            kind,
            correlation,
            ..
        } => {
            format!("Forward {:x} kind {kind} {correlation}", conn.0)
        }
        ShardMessage::Output {
            conn, bytes, close, ..
        } => {
            format!("Output {:x} {} bytes, close {close}", conn.0, bytes.len())
        }
        other => format!("{other:?}"),
    }
}
