//! Runs a log writer's effects against a simulated disk.

use shards::io::{BatchBuffer, Disk};
use shards::log::{
    prepare_segment, segment_name, IoFailure, LogEffect, LogOptions, LogStart, LogWriter,
};

use crate::{Random, SimDisk, SimSync, SimWrite, VecBuffer};

/// Steps after which a log that does not come to rest is said never to.
const MOST_STEPS: u32 = 100_000;

/// A writer and what it has in flight. Completions come when the caller asks,
/// in any order.
pub struct LogDriver {
    pub log: LogWriter<VecBuffer>,
    disk: SimDisk,
    now_ms: u64,
    effects: Vec<LogEffect<VecBuffer>>,
    writes: Vec<(u64, SimWrite, bool)>,
    sync: Option<(u64, SimSync)>,
    preparing: Option<(u64, Option<u64>)>,
}

impl LogDriver {
    pub fn new(disk: SimDisk, start: LogStart, options: LogOptions) -> Self {
        LogDriver {
            log: LogWriter::new(start, options),
            disk,
            now_ms: 0,
            effects: Vec::new(),
            writes: Vec::new(),
            sync: None,
            preparing: None,
        }
    }

    /// Simulated monotonic time.
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Lets time pass.
    pub fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
    }

    /// Lets the writer start what it may, and issues it.
    pub fn submit(&mut self) {
        self.log.submit(self.now_ms, &mut self.effects);
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                LogEffect::Write {
                    id,
                    segment,
                    offset,
                    buffer,
                    dsync,
                } => {
                    let name = segment_name(segment);
                    match self.disk.begin_write(&name, offset, buffer.bytes()) {
                        Ok(write) => self.writes.push((id, write, dsync)),
                        Err(error) => self.log.write_done(id, Err(error.into())),
                    }
                }
                LogEffect::Sync { id, segments } => {
                    let names: Vec<_> = segments.into_iter().map(segment_name).collect();
                    match self.disk.begin_sync(&names) {
                        Ok(sync) => self.sync = Some((id, sync)),
                        Err(error) => self.log.sync_done(id, Err(error.into())),
                    }
                }
                LogEffect::PrepareSegment { sequence, recycle } => {
                    self.preparing = Some((sequence, recycle));
                }
                LogEffect::RemoveSegments { sequences } => {
                    for sequence in sequences {
                        // What fails is left to the next open.
                        let _ = self.disk.remove(&segment_name(sequence));
                    }
                }
            }
        }
    }

    /// Completes one thing in flight, any one; false if there is none.
    pub fn complete_one(&mut self, random: &mut Random) -> bool {
        let writes = self.writes.len() as u64;
        let waiting = writes + u64::from(self.sync.is_some()) + u64::from(self.preparing.is_some());
        if waiting == 0 {
            return false;
        }
        let choice = random.below(waiting);
        if choice < writes {
            let (id, write, dsync) = self.writes.swap_remove(choice as usize);
            let result = self.disk.end_write(write, dsync);
            self.log.write_done(id, result.map_err(IoFailure::from));
        } else if choice == writes && self.sync.is_some() {
            self.complete_sync();
        } else {
            self.complete_segment();
        }
        true
    }

    /// Completes everything and starts what follows, until nothing is left;
    /// false if that does not end.
    pub fn settle(&mut self, random: &mut Random) -> bool {
        for _ in 0..MOST_STEPS {
            self.submit();
            if self.complete_one(random) {
                continue;
            }
            match self.log.next_timer_ms() {
                Some(at) if at > self.now_ms => self.now_ms = at,
                Some(_) => self.now_ms += 1,
                None => return true,
            }
        }
        false
    }

    fn complete_sync(&mut self) {
        if let Some((id, sync)) = self.sync.take() {
            let result = self.disk.end_sync(sync);
            self.log.sync_done(id, result.map_err(IoFailure::from));
        }
    }

    fn complete_segment(&mut self) {
        if let Some((sequence, recycle)) = self.preparing.take() {
            let result = prepare_segment(&self.disk, self.log.geometry(), sequence, recycle);
            self.log
                .segment_ready(sequence, result.map_err(IoFailure::from));
        }
    }
}
