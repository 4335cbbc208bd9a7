//! What the threads of a mounted file system share: the disk, whether it has
//! power, what is on its way to it, and the faults it was told to have.
//!
//! 1. Without power nothing changes the disk and nothing is answered, until
//!    [`State::refuse`] says that nobody may be helped by an answer any more.
//! 2. A write or sync that takes its time has its effect at the moment of its
//!    answer. A sync covers what was answered before it was asked for.
//! 3. Requests of an earlier mount never reach the disk.

use std::{
    sync::{Condvar, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use fuser::{Errno, ReplyEmpty, ReplyWrite};

use crate::{
    cut::{CutReport, Style},
    disk::{Disk, Inode},
    file::{Tick, SECTOR_BYTES},
    random::Random,
    Counts, Fault, Operation,
};

/// Longest time that an operation takes.
const SLOW: Duration = Duration::from_millis(3);
/// How many operations of a hundred are slow, by turns.
const SLOW_PERCENT: [u64; 3] = [10, 40, 80];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Power {
    On,
    /// Requests wait.
    Off,
    /// Requests fail.
    Refusing,
}

/// A reply that can say that the disk is gone.
pub trait Refuse: Send {
    fn refuse(self: Box<Self>);
}

pub enum Job {
    Write {
        inode: Inode,
        offset: usize,
        data: Vec<u8>,
        /// Durable when it is answered.
        through: bool,
        reply: ReplyWrite,
    },
    Sync {
        inode: Inode,
        upto: Tick,
        reply: ReplyEmpty,
    },
}

struct Pending {
    due: Instant,
    job: Job,
}

pub struct State {
    pub disk: Disk,
    pub counts: Counts,
    power: Power,
    /// Which mount is served.
    life: u64,
    parked: Vec<Box<dyn Refuse>>,
    pending: Vec<Pending>,
    faults: Vec<Fault>,
    random: Random,
    /// Operations until the power goes by itself.
    countdown: Option<u64>,
    /// The cut of this life.
    report: Option<CutReport>,
    ended: bool,
}

pub struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    pub fn new(disk: Disk, seed: u64) -> Self {
        let state = State {
            disk,
            counts: Counts::default(),
            power: Power::On,
            life: 0,
            parked: Vec::new(),
            pending: Vec::new(),
            faults: Vec::new(),
            random: Random::new(seed),
            countdown: None,
            report: None,
            ended: false,
        };
        Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panicked with the disk")
    }

    /// The disk for a request of this mount; otherwise the reply waits or fails.
    pub fn admit<R: Refuse + 'static>(
        &self,
        life: u64,
        reply: R,
    ) -> Option<(MutexGuard<'_, State>, R)> {
        let mut state = self.lock();
        match state.power {
            Power::On if state.life == life => return Some((state, reply)),
            Power::Off if state.life == life => state.parked.push(Box::new(reply)),
            _ => Box::new(reply).refuse(),
        }
        None
    }

    /// The same for what changes the disk: the power may be gone before it.
    pub fn admit_change<R: Refuse + 'static>(
        &self,
        life: u64,
        reply: R,
    ) -> Option<(MutexGuard<'_, State>, R)> {
        {
            let mut state = self.lock();
            if state.power == Power::On && state.life == life {
                state.counts.changes += 1;
                if let Some(left) = state.countdown.as_mut() {
                    *left = left.saturating_sub(1);
                    if *left == 0 {
                        let style = Style::any(&mut state.random);
                        state.cut(style);
                        self.changed.notify_all();
                    }
                }
            }
        }
        self.admit(life, reply)
    }

    /// Does it now or a little later, in any order with others that wait.
    pub fn submit(&self, mut state: MutexGuard<'_, State>, job: Job) {
        let slow = SLOW_PERCENT[state.life as usize % SLOW_PERCENT.len()];
        if !state.random.percent(slow) {
            return state.perform(job);
        }
        let wait = SLOW.mul_f64(state.random.below(1000) as f64 / 1000.0);
        let due = Instant::now() + wait;
        state.pending.push(Pending { due, job });
        self.changed.notify_all();
    }

    pub fn cut(&self, style: Option<Style>) -> CutReport {
        let mut state = self.lock();
        let style = style.unwrap_or_else(|| Style::any(&mut state.random));
        state.cut(style);
        state.report.expect("just cut")
    }

    pub fn cut_after(&self, changes: u64) {
        self.lock().countdown = Some(changes);
    }

    /// The cut that [`Shared::cut_after`] asked for, once it has happened.
    pub fn await_cut(&self, patience: Duration) -> Option<CutReport> {
        let state = self.lock();
        let waiting = |state: &mut State| state.report.is_none();
        let (state, _) = self
            .changed
            .wait_timeout_while(state, patience, waiting)
            .expect("no thread panicked with the disk");
        state.report
    }

    pub fn fail(&self, fault: Fault) {
        self.lock().faults.push(fault);
    }

    pub fn clear_faults(&self) {
        self.lock().faults.clear();
    }

    pub fn refuse(&self) {
        self.lock().refuse();
    }

    /// Power for a new mount; gives its number.
    pub fn new_life(&self) -> u64 {
        let mut state = self.lock();
        state.refuse();
        state.power = Power::On;
        state.life += 1;
        state.countdown = None;
        state.report = None;
        state.life
    }

    pub fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    /// Performs slow operations when they are due, until the end.
    pub fn perform_pending(&self) {
        let mut state = self.lock();
        while !state.ended {
            let now = Instant::now();
            let due = state.pending.iter().position(|pending| pending.due <= now);
            if let Some(at) = due {
                let job = state.pending.swap_remove(at).job;
                state.perform(job);
                continue;
            }
            let next = state.pending.iter().map(|pending| pending.due).min();
            let wait = next.map_or(Duration::from_secs(1), |due| due - now);
            (state, _) = self
                .changed
                .wait_timeout(state, wait)
                .expect("no thread panicked with the disk");
        }
    }
}

impl State {
    fn perform(&mut self, job: Job) {
        match job {
            Job::Write {
                inode,
                offset,
                data,
                through,
                reply,
            } => match self.write(inode, offset, &data, through) {
                Ok(()) => reply.written(data.len() as u32),
                Err(errno) => reply.error(Errno::from_i32(errno)),
            },
            Job::Sync { inode, upto, reply } => match self.sync(inode, upto) {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(Errno::from_i32(errno)),
            },
        }
    }

    fn write(
        &mut self,
        inode: Inode,
        offset: usize,
        data: &[u8],
        through: bool,
    ) -> Result<(), i32> {
        self.counts.writes += 1;
        self.counts.writes_through += u64::from(through);
        if let Some(errno) = self.fault(Operation::Write, inode) {
            if errno == libc::EIO {
                // Some of it may be there all the same.
                self.write_torn(inode, offset, data)?;
            }
            return Err(errno);
        }
        self.disk.write(inode, offset, data, through)
    }

    /// Any of its sectors, unsynced.
    fn write_torn(&mut self, inode: Inode, offset: usize, data: &[u8]) -> Result<(), i32> {
        for (at, sector) in data.chunks(SECTOR_BYTES).enumerate() {
            if self.random.percent(50) {
                self.disk
                    .write(inode, offset + at * SECTOR_BYTES, sector, false)?;
            }
        }
        Ok(())
    }

    fn sync(&mut self, inode: Inode, upto: Tick) -> Result<(), i32> {
        self.counts.syncs += 1;
        if let Some(errno) = self.fault(Operation::Sync, inode) {
            self.counts.sectors_forgotten += self.disk.forget(inode, upto);
            return Err(errno);
        }
        self.disk.sync(inode, upto)
    }

    /// The error that this operation was told to end in.
    fn fault(&mut self, operation: Operation, inode: Inode) -> Option<i32> {
        if self.faults.is_empty() {
            return None;
        }
        let name = self.disk.name_of(inode)?;
        let at = self
            .faults
            .iter()
            .position(|fault| fault.operation == operation && (fault.of)(&name))?;
        let fault = &mut self.faults[at];
        if fault.after > 0 {
            fault.after -= 1;
            return None;
        }
        let errno = fault.errno;
        fault.times -= 1;
        if fault.times == 0 {
            self.faults.swap_remove(at);
        }
        self.counts.faults += 1;
        Some(errno)
    }

    fn cut(&mut self, style: Style) {
        let mut in_flight = 0;
        // In any order, as they would have ended.
        while !self.pending.is_empty() {
            let any = self.random.below(self.pending.len());
            match self.pending.swap_remove(any).job {
                Job::Write {
                    inode,
                    offset,
                    data,
                    reply,
                    ..
                } => {
                    in_flight += 1;
                    // What does not fit would have failed.
                    let _ = self.disk.write(inode, offset, &data, false);
                    self.parked.push(Box::new(reply));
                }
                Job::Sync { reply, .. } => self.parked.push(Box::new(reply)),
            }
        }
        let mut report = self.disk.cut(style, &mut self.random);
        report.in_flight = in_flight;
        self.power = Power::Off;
        self.countdown = None;
        self.report = Some(report);
    }

    fn refuse(&mut self) {
        self.power = Power::Refusing;
        for reply in self.parked.drain(..) {
            reply.refuse();
        }
        for pending in self.pending.drain(..) {
            match pending.job {
                Job::Write { reply, .. } => reply.error(Errno::EIO),
                Job::Sync { reply, .. } => reply.error(Errno::EIO),
            }
        }
    }
}
