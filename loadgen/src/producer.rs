//! One producer: one connection, one thread that sends by the schedule and
//! reads confirms, woken by whichever comes first (`ppoll`, timer slack off).
//!
//! Invariants:
//! 1. A record's latency counts from its due time, whenever it left.
//! 2. What is due is sent, late or not; nothing is skipped. What a full window
//!    kept back at the end of the drain is counted as unsent.
//! 3. Unanswered publish bytes never exceed the window of the hello reply.
//! 4. A publish is sent once: what was unanswered when its connection was lost is
//!    unknown, and stays so.

use std::{
    collections::BTreeMap,
    sync::{atomic::Ordering::Relaxed, Arc},
};

use wire::{
    codec,
    error::Outcome,
    frame::{FrameHeader, Kind, HEADER_BYTES},
    message::{Confirm, Error as ErrorBody, Publish},
    vocabulary::Mode,
};

use crate::{
    conn::{self, Connection, Place},
    door::Door,
    error::LoadError,
    inflight::{InFlight, Pending},
    latency::Latency,
    payload::{PayloadMaker, Trace},
    resumed::Resumed,
    schedule::Schedule,
    series::Recorder,
    session::Session,
    sys,
    track::Bitmap,
};

/// Most bytes queued for the socket before a write is tried.
const OUT_BYTES: usize = 256 * 1024;
/// More than an archived publish body without its records takes.
const BODY_OVERHEAD_BYTES: u64 = 256;
/// How often a blocked producer looks again.
const RECHECK_NS: u64 = 200_000;
const IDLE_NS: u64 = 5_000_000;
/// How long answers are waited for that a server going away still owes.
const LEAVE_NS: u64 = 1_000_000_000;

/// One partition that is published to.
#[derive(Debug, Clone)]
pub struct Target {
    pub queue_id: u64,
    pub partition: u16,
    pub shard: u16,
    pub mode: Mode,
    /// Which latency row it counts for.
    pub row: usize,
}

/// When a producer sends.
#[derive(Debug, Clone)]
pub enum Pace {
    /// By due times, whatever the server does.
    Open(Schedule),
    /// As soon as there is room: measures throughput, not latency.
    Closed {
        /// Publishes in flight; 0 = as many as the window holds.
        batches: usize,
        /// Records sent and not yet received by anybody, over all producers.
        max_lag: u64,
    },
}

/// What a producer is told to do.
pub struct ProducerSpec {
    pub number: u32,
    pub targets: Vec<Target>,
    pub pace: Pace,
    pub batch: u32,
    pub deadline_ms: u32,
    /// Poll without sleeping for this long before a due time.
    pub spin_ns: u64,
    pub rows: usize,
    /// Measure second by second too.
    pub series: bool,
}

/// What a producer found.
#[derive(Default)]
pub struct ProducerReport {
    pub number: u32,
    /// Intended to confirm, per row.
    pub confirm: Vec<Latency>,
    /// The same per second, if it was asked for.
    pub series: Recorder,
    /// Intended to handed to the socket: the generator's own lateness.
    pub lateness: Latency,
    pub confirmed: Bitmap,
    pub failed: Bitmap,
    /// Sent and never answered.
    pub unanswered: u64,
    /// Due before the end and never sent.
    pub unsent: u64,
    /// Confirms whose boundary was below what the mode promises.
    pub weak_confirms: u64,
    /// Error code to records.
    pub errors: BTreeMap<u16, u64>,
    /// Connections that were lost and made again.
    pub reconnects: u64,
    /// Records that were unanswered then.
    pub lost_answers: u64,
    /// For each fault that was told, when each row was confirmed again.
    pub resumed: Vec<Resumed>,
    pub failure: Option<LoadError>,
}

pub struct Producer {
    door: Door,
    connection: Connection,
    session: Arc<Session>,
    spec: ProducerSpec,
    payloads: PayloadMaker,
    report: ProducerReport,
    inflight: InFlight,
    sequence: u64,
    next_target: usize,
    records: Vec<u8>,
    /// Closed pace only: hold back after a refusal until then.
    paused_until_ns: u64,
    /// The server goes away: nothing more is sent, and this long is waited.
    leave_ns: Option<u64>,
    /// Another node leads the partition: nothing more is sent until all is answered, so
    /// that the order stands, and then straight there.
    moving: Option<Place>,
}

impl Producer {
    /// Connects.
    ///
    /// # Errors
    /// Nobody is there.
    pub fn new(
        mut door: Door,
        session: Arc<Session>,
        spec: ProducerSpec,
        payloads: PayloadMaker,
    ) -> Result<Self, LoadError> {
        let connection = door.open()?;
        let report = ProducerReport {
            number: spec.number,
            confirm: (0..spec.rows).map(|_| Latency::default()).collect(),
            ..Default::default()
        };
        Ok(Producer {
            door,
            connection,
            session,
            spec,
            payloads,
            report,
            inflight: InFlight::default(),
            sequence: 0,
            next_target: 0,
            records: Vec::new(),
            paused_until_ns: 0,
            leave_ns: None,
            moving: None,
        })
    }

    /// Runs to the end of the schedule and drain. Always reports.
    pub fn run(mut self) -> ProducerReport {
        sys::remove_timer_slack();
        if let Err(error) = self.drive() {
            self.session.abort();
            self.report.failure = Some(error);
        }
        self.report.unanswered = self.inflight.records();
        if let Pace::Open(schedule) = &self.spec.pace {
            let until = self.session.end_ns() - self.session.start_ns();
            self.report.unsent = schedule.outstanding(until);
        }
        self.report
    }

    fn drive(&mut self) -> Result<(), LoadError> {
        self.connection.start()?;
        sys::sleep_until(self.session.start_ns());
        loop {
            match self.turn() {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) if self.door.has_others() && error.is_loss() => {
                    if !self.reconnect()? {
                        return Ok(());
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends what is due, waits, reads what came; true at the end.
    fn turn(&mut self) -> Result<bool, LoadError> {
        let now = sys::now_ns();
        let waits = self.moves()?;
        let blocked = match self.leave_ns {
            None => waits || self.send_due(now)?,
            Some(until) if self.inflight.batches() == 0 || now >= until => {
                return Err(LoadError::Closed("the server is going away"));
            }
            Some(_) => true,
        };
        let flushed = self.connection.flush()?;
        if self.finished(now) {
            return Ok(true);
        }
        let timeout = self.wait_ns(now, blocked || !flushed);
        if self.connection.wait(timeout)?.read {
            self.connection.fill()?;
            self.read_frames(sys::now_ns())?;
        }
        Ok(false)
    }

    /// Goes to the node that leads as soon as nothing is under way; true while it waits.
    fn moves(&mut self) -> Result<bool, LoadError> {
        let is_idle = self.inflight.batches() == 0 && self.connection.out.is_empty();
        let Some(place) = self.moving.take_if(|_| is_idle) else {
            return Ok(self.moving.is_some());
        };
        // Where that fails the way so far is as good: the node there passes frames on.
        if let Ok(connection) = self.door.follow(&place) {
            connection.start()?;
            self.connection = connection;
        }
        Ok(false)
    }

    /// Goes on elsewhere; false when the run is over.
    fn reconnect(&mut self) -> Result<bool, LoadError> {
        let lost = self.inflight.lose();
        self.report.lost_answers += lost;
        self.session.counters.unknown.fetch_add(lost, Relaxed);
        self.leave_ns = None;
        self.moving = None;
        let session = self.session.clone();
        let over = || session.aborted() || sys::now_ns() >= session.give_up_ns();
        let Some(connection) = self.door.reopen(&over)? else {
            return Ok(false);
        };
        connection.start()?;
        self.connection = connection;
        self.report.reconnects += 1;
        Ok(true)
    }

    fn finished(&self, now: u64) -> bool {
        let nothing_due = match self.spec.pace {
            Pace::Open(_) => self.next_due_ns().is_none(),
            Pace::Closed { .. } => now >= self.session.end_ns(),
        };
        let all_answered = self.inflight.batches() == 0 && self.connection.out.is_empty();
        (nothing_due && all_answered) || now >= self.session.give_up_ns() || self.session.aborted()
    }

    fn next_due_ns(&self) -> Option<u64> {
        match &self.spec.pace {
            Pace::Open(schedule) => {
                let due = schedule.next()?;
                Some(self.session.start_ns() + due.due_ns)
            }
            Pace::Closed { .. } => None,
        }
    }

    fn wait_ns(&self, now: u64, blocked: bool) -> u64 {
        match (&self.spec.pace, self.next_due_ns()) {
            // Woken by the answer or the socket; the recheck only bounds the wait.
            (Pace::Closed { .. }, _) if blocked => RECHECK_NS,
            (Pace::Closed { .. }, _) => 0,
            // Nothing left to wait within the spin: polls, so that confirms
            // are read meanwhile.
            (_, Some(due)) if !blocked => due
                .saturating_sub(now)
                .saturating_sub(self.spec.spin_ns)
                .min(IDLE_NS * 20),
            _ => IDLE_NS,
        }
    }

    /// Encodes what is due and fits; true when something due had to stay.
    fn send_due(&mut self, now: u64) -> Result<bool, LoadError> {
        let sequence_before = self.sequence;
        let blocked = match self.spec.pace {
            Pace::Open(_) => self.send_open(now)?,
            Pace::Closed { batches, max_lag } => self.send_closed(batches, max_lag)?,
        };
        let sent = self.sequence - sequence_before;
        if sent > 0 {
            self.session.counters.sent.fetch_add(sent, Relaxed);
        }
        Ok(blocked)
    }

    fn send_open(&mut self, now: u64) -> Result<bool, LoadError> {
        let start = self.session.start_ns();
        loop {
            let Pace::Open(schedule) = &self.spec.pace else {
                return Ok(false);
            };
            let Some(due) = schedule.next() else {
                return Ok(false);
            };
            let intended = start + due.due_ns;
            if intended > now {
                return Ok(false);
            }
            if self.connection.out.bytes.len() >= OUT_BYTES {
                // Write first, then come back: blocked only if the socket is.
                return Ok(!self.connection.flush()?);
            }
            let count = due.records.min(self.spec.batch.into()) as u32;
            if !self.encode_batch(count, intended)? {
                return Ok(true);
            }
            if intended >= self.session.measure_from_ns() {
                self.report.lateness.record(now - intended, count.into());
            }
            if let Pace::Open(schedule) = &mut self.spec.pace {
                schedule.take(count.into());
            }
        }
    }

    fn send_closed(&mut self, batches: usize, max_lag: u64) -> Result<bool, LoadError> {
        let end = self.session.end_ns();
        let counters = &self.session.counters;
        let lag = counters.sent.load(Relaxed).saturating_sub(
            counters.received.load(Relaxed)
                + counters.failed.load(Relaxed)
                + counters.unknown.load(Relaxed),
        );
        let mut room = max_lag.saturating_sub(lag);
        loop {
            let now = sys::now_ns();
            if now >= end || now < self.paused_until_ns || room == 0 {
                return Ok(true);
            }
            if batches > 0 && self.inflight.batches() >= batches {
                return Ok(true);
            }
            if self.connection.out.bytes.len() >= OUT_BYTES {
                return Ok(!self.connection.flush()?);
            }
            if !self.encode_batch(self.spec.batch, now)? {
                return Ok(true);
            }
            room = room.saturating_sub(self.spec.batch.into());
        }
    }

    /// Puts one publish into the out buffer; false when the window is full.
    fn encode_batch(&mut self, count: u32, intended_ns: u64) -> Result<bool, LoadError> {
        let window = self.connection.peer.window_bytes;
        if self.inflight.bytes() >= window {
            return Ok(false);
        }
        self.records.clear();
        for sequence in self.sequence..self.sequence + u64::from(count) {
            let trace = Trace {
                run: self.session.run,
                producer: self.spec.number,
                sequence,
                intended_ns,
            };
            self.payloads.append(&mut self.records, &trace)?;
        }
        let bound = self.records.len() as u64 + BODY_OVERHEAD_BYTES;
        if bound > window {
            return Err(LoadError::Impossible(format!(
                "a batch of {bound} bytes does not fit the server's window of {window} bytes; choose a smaller --batch or --size"
            )));
        }
        if self.inflight.bytes() + bound > window {
            return Ok(false);
        }
        let Some(target) = self.spec.targets.get(self.next_target) else {
            return Err(LoadError::Impossible("a producer needs a queue".into()));
        };
        let correlation = self.inflight.next_correlation();
        let body = Publish {
            queue_id: target.queue_id,
            partition: target.partition,
            deadline_ms: self.spec.deadline_ms,
            count,
            ..Default::default()
        };
        let before = self.connection.out.bytes.len();
        codec::encode_publish(
            &mut self.connection.out.bytes,
            correlation,
            &body,
            &self.records,
        )?;
        let body_bytes = (self.connection.out.bytes.len() - before - HEADER_BYTES) as u64;
        self.inflight.push(Pending {
            first_sequence: self.sequence,
            count,
            intended_ns,
            sent_ns: sys::now_ns(),
            body_bytes,
            row: target.row,
            gate: target.mode.confirm_gate() as u8,
        });
        self.sequence += u64::from(count);
        self.next_target = (self.next_target + 1) % self.spec.targets.len();
        Ok(true)
    }

    fn read_frames(&mut self, now: u64) -> Result<(), LoadError> {
        let (mut confirmed, mut failed, mut unknown) = (0, 0, 0);
        let measure_from = self.session.measure_from_ns();
        while let Some((header, body)) = self.connection.frames.next_frame()? {
            match Kind::from_raw(header.kind) {
                Some(Kind::Confirm) => {
                    for item in codec::decode::<Confirm>(body)?.items.iter() {
                        let answered = self.inflight.answered(item.correlation.to_native())?;
                        let count = item.count.to_native();
                        note_confirm(&mut self.report, &answered, count, item.boundary)?;
                        confirmed += u64::from(count);
                        let (row, sent) = (answered.row, answered.sent_ns);
                        Resumed::note(&mut self.report.resumed, &self.session, row, sent, now);
                        if answered.intended_ns >= measure_from {
                            let latency = now.saturating_sub(answered.intended_ns);
                            if let Some(row) = self.report.confirm.get_mut(answered.row) {
                                row.record(latency, count.into());
                            }
                            if self.spec.series {
                                let due = answered.intended_ns - measure_from;
                                self.report.series.record(due, latency, count);
                            }
                        }
                    }
                }
                Some(Kind::Error) if header.correlation != 0 => {
                    let answered = self.inflight.answered(header.correlation)?;
                    let count = u64::from(answered.count);
                    match note_error(&mut self.report, &answered, body)? {
                        Outcome::Failed => failed += count,
                        Outcome::Unknown => unknown += count,
                    }
                    self.paused_until_ns = now + IDLE_NS;
                }
                Some(Kind::Redirect) => {
                    let told = Place::told(body)?;
                    // One connection cannot go to the leaders of several.
                    self.moving = told.filter(|_| self.spec.targets.len() == 1);
                }
                Some(Kind::GoingAway) if self.door.has_others() => {
                    self.leave_ns.get_or_insert(now + LEAVE_NS);
                }
                _ => return Err(other_frame(&header, body)),
            }
        }
        let counters = &self.session.counters;
        counters.confirmed.fetch_add(confirmed, Relaxed);
        if failed + unknown > 0 {
            counters.failed.fetch_add(failed, Relaxed);
            counters.unknown.fetch_add(unknown, Relaxed);
        }
        Ok(())
    }
}

fn note_confirm(
    report: &mut ProducerReport,
    answered: &Pending,
    count: u32,
    boundary: u8,
) -> Result<(), LoadError> {
    if count != answered.count {
        return Err(LoadError::Protocol(format!(
            "a publish of {} records was confirmed as {count}",
            answered.count
        )));
    }
    if boundary < answered.gate {
        report.weak_confirms += u64::from(count);
    }
    for sequence in answered.first_sequence..answered.first_sequence + u64::from(count) {
        report.confirmed.set(sequence);
    }
    Ok(())
}

fn note_error(
    report: &mut ProducerReport,
    answered: &Pending,
    body: &[u8],
) -> Result<Outcome, LoadError> {
    let error = codec::decode::<ErrorBody>(body)?;
    let count = u64::from(answered.count);
    *report.errors.entry(error.code.to_native()).or_default() += count;
    if error.outcome != Outcome::Failed as u8 {
        return Ok(Outcome::Unknown);
    }
    for sequence in answered.first_sequence..answered.first_sequence + count {
        report.failed.set(sequence);
    }
    Ok(Outcome::Failed)
}

fn other_frame(header: &FrameHeader, body: &[u8]) -> LoadError {
    match Kind::from_raw(header.kind) {
        Some(Kind::Error) => conn::refusal("the connection", body),
        Some(Kind::GoingAway) => LoadError::Closed("the server is going away"),
        _ => conn::unexpected("publishing", header),
    }
}
