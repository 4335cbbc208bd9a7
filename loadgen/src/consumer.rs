//! One consumer: one connection, one thread that reads deliveries, notes them,
//! and once per read settles and tops up credit, cumulated per partition.
//!
//! Invariants:
//! 1. Every delivery is settled exactly once, also one that is not of this run.
//! 2. Latency is taken once per read, right after it: what waited in the
//!    socket counts as waiting.
//! 3. A consumer never holds a delivery back: it reads on while its own writes wait.
//! 4. What it held when its connection was lost is not its to settle any more: it
//!    comes again, flagged.

use std::{
    collections::HashMap,
    sync::{atomic::Ordering::Relaxed, Arc},
};

use wire::{
    codec,
    error::ErrorCode,
    frame::{FrameHeader, Kind},
    message::{
        Credit, Deliver, Error as ErrorBody, Ping, Settle, SettleConfirm, SettleItem, Subscribe,
        Subscribed, DELIVERY_REDELIVERED, SETTLE_CONFIRM,
    },
    record::Records,
    vocabulary::SettleKind,
};

use crate::{
    conn::{self, Connection, Place},
    door::Door,
    error::LoadError,
    latency::Latency,
    payload::Trace,
    producer::Target,
    resumed::Resumed,
    series::Recorder,
    session::Session,
    sys,
    track::Arrivals,
};

const IDLE_NS: u64 = 20_000_000;
const SUBSCRIBE_TIMEOUT_S: u64 = 10;
/// Correlation ids of subscribes, above those of settles.
const SUBSCRIBE_BASE: u64 = 1 << 62;
/// Before a subscribe that the server put off is sent again.
const PUT_OFF_NS: u64 = 20_000_000;

/// What a consumer is told to do.
pub struct ConsumerSpec {
    pub targets: Vec<Target>,
    pub producers: usize,
    /// Credit per subscription.
    pub credit_records: u32,
    pub credit_bytes: u64,
    /// The first settle frame and every Nth after it ask for a confirm; 0 = none.
    pub settle_sample: u64,
    pub rows: usize,
    /// Measure second by second too.
    pub series: bool,
}

/// What a consumer found.
#[derive(Default)]
pub struct ConsumerReport {
    /// Intended to receive, per row.
    pub receive: Vec<Latency>,
    /// The same per second, if it was asked for.
    pub series: Recorder,
    /// Receive to settle confirm, sampled, per row.
    pub settle: Vec<Latency>,
    /// Per producer.
    pub arrivals: Vec<Arrivals>,
    pub order_breaks: u64,
    /// Records whose bytes do not verify.
    pub corrupt: u64,
    /// Records of other runs: settled, not measured.
    pub foreign: u64,
    pub settles_refused: u64,
    /// Connections that were lost and made again.
    pub reconnects: u64,
    /// For each fault that was told, when deliveries of each row went on.
    pub resumed: Vec<Resumed>,
    pub failure: Option<LoadError>,
}

/// One subscribed partition; the subscription number is its index.
struct Subscription {
    target: Target,
    generation: u32,
    items: Vec<SettleItem>,
    used_records: u32,
    used_bytes: u64,
    /// One past the highest unflagged offset seen.
    next_offset: u64,
    /// Per producer, one past the highest unflagged sequence seen.
    next_sequence: Vec<u64>,
}

/// A settle that asked for a confirm.
struct Sampled {
    received_ns: u64,
    row: usize,
    measured: bool,
}

pub struct Consumer {
    door: Door,
    connection: Connection,
    session: Arc<Session>,
    spec: ConsumerSpec,
    report: ConsumerReport,
    subscriptions: Vec<Subscription>,
    /// Subscriptions with something to settle this turn.
    touched: Vec<usize>,
    sampled: HashMap<u64, Sampled>,
    subscribed: usize,
    /// Subscriptions that the server put off, and when to ask again.
    put_off: Vec<(usize, u64)>,
    settle_frames: u64,
    settled: u64,
    received: u64,
    pong: bool,
    /// Where the node that leads the partition is, if a subscribe was passed on to it.
    led_at: Option<Place>,
}

impl Consumer {
    /// Connects.
    ///
    /// # Errors
    /// Nobody is there.
    pub fn new(
        mut door: Door,
        session: Arc<Session>,
        spec: ConsumerSpec,
    ) -> Result<Self, LoadError> {
        let connection = door.open()?;
        let rows = || (0..spec.rows).map(|_| Latency::default()).collect();
        let report = ConsumerReport {
            receive: rows(),
            settle: rows(),
            arrivals: vec![Arrivals::default(); spec.producers],
            ..Default::default()
        };
        let subscriptions = spec
            .targets
            .iter()
            .map(|target| Subscription {
                target: target.clone(),
                generation: 0,
                items: vec![],
                used_records: 0,
                used_bytes: 0,
                next_offset: 0,
                next_sequence: vec![0; spec.producers],
            })
            .collect();
        Ok(Consumer {
            door,
            connection,
            session,
            spec,
            report,
            subscriptions,
            touched: vec![],
            sampled: HashMap::new(),
            subscribed: 0,
            put_off: vec![],
            settle_frames: 0,
            settled: 0,
            received: 0,
            pong: false,
            led_at: None,
        })
    }

    /// Subscribes to every target and waits until all are subscribed; where another node
    /// leads a lone one, there.
    ///
    /// # Errors
    /// Refused, broken, or not answered in time.
    pub fn subscribe(&mut self) -> Result<(), LoadError> {
        self.subscribe_here()?;
        let is_alone = self.subscriptions.len() == 1;
        if let Some(place) = self.led_at.take().filter(|_| is_alone) {
            self.connection = self.door.follow(&place)?;
            self.forget_connection();
            self.subscribe_here()?;
        }
        Ok(())
    }

    fn subscribe_here(&mut self) -> Result<(), LoadError> {
        self.ask_for_all()?;
        let deadline = sys::now_ns() + SUBSCRIBE_TIMEOUT_S * 1_000_000_000;
        while self.subscribed < self.subscriptions.len() {
            if sys::now_ns() >= deadline {
                return Err(LoadError::Timeout("subscribe", SUBSCRIBE_TIMEOUT_S));
            }
            self.turn()?;
        }
        Ok(())
    }

    fn ask_for_all(&mut self) -> Result<(), LoadError> {
        for number in 0..self.subscriptions.len() {
            self.ask_for(number)?;
        }
        self.connection.start()
    }

    fn ask_for(&mut self, number: usize) -> Result<(), LoadError> {
        let Some(subscription) = self.subscriptions.get(number) else {
            return Ok(());
        };
        let body = Subscribe {
            queue_id: subscription.target.queue_id,
            partition: subscription.target.partition,
            subscription: number as u32,
            credit_records: self.spec.credit_records,
            credit_bytes: self.spec.credit_bytes,
            ..Default::default()
        };
        let correlation = SUBSCRIBE_BASE + number as u64;
        codec::encode(&mut self.connection.out.bytes, correlation, &body)?;
        Ok(())
    }

    /// Goes on elsewhere; false when the run is over.
    fn reconnect(&mut self) -> Result<bool, LoadError> {
        let session = self.session.clone();
        let over = || session.aborted() || session.consumers_stopped();
        let Some(connection) = self.door.reopen(&over)? else {
            return Ok(false);
        };
        self.connection = connection;
        self.report.reconnects += 1;
        self.forget_connection();
        self.ask_for_all()?;
        Ok(true)
    }

    /// Nothing is subscribed or held any more.
    fn forget_connection(&mut self) {
        self.touched.clear();
        self.sampled.clear();
        self.put_off.clear();
        self.subscribed = 0;
        for subscription in &mut self.subscriptions {
            subscription.items.clear();
            subscription.used_records = 0;
            subscription.used_bytes = 0;
        }
    }

    /// One turn; false when the run is over while nobody is there.
    fn turn_or_reconnect(&mut self) -> Result<bool, LoadError> {
        match self.turn() {
            Ok(()) => Ok(true),
            Err(error) if self.door.has_others() && error.is_loss() => self.reconnect(),
            Err(error) => Err(error),
        }
    }

    /// Runs until the session stops it. Always reports.
    pub fn run(mut self) -> ConsumerReport {
        sys::remove_timer_slack();
        if let Err(error) = self.drive() {
            self.session.abort();
            self.report.failure = Some(error);
        }
        self.report
    }

    fn drive(&mut self) -> Result<(), LoadError> {
        while !self.session.consumers_stopped() && !self.session.aborted() {
            if !self.turn_or_reconnect()? {
                return Ok(());
            }
        }
        // The server reads in order: with the pong it has read every settle.
        codec::encode(&mut self.connection.out.bytes, 1, &Ping::default())?;
        let deadline = sys::now_ns() + 2_000_000_000;
        while (!self.pong || !self.sampled.is_empty()) && sys::now_ns() < deadline {
            if !self.turn_or_reconnect()? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Waits, reads once, handles what came, answers.
    fn turn(&mut self) -> Result<(), LoadError> {
        self.ask_again()?;
        self.connection.flush()?;
        if !self.connection.wait(IDLE_NS)?.read {
            return Ok(());
        }
        self.connection.fill()?;
        let now = sys::now_ns();
        self.read_frames(now)?;
        self.answer(now)?;
        self.connection.flush()?;
        let counters = &self.session.counters;
        counters
            .received
            .fetch_add(std::mem::take(&mut self.received), Relaxed);
        counters
            .settled
            .fetch_add(std::mem::take(&mut self.settled), Relaxed);
        Ok(())
    }

    fn ask_again(&mut self) -> Result<(), LoadError> {
        if self.put_off.is_empty() {
            return Ok(());
        }
        let now = sys::now_ns();
        for (number, at) in std::mem::take(&mut self.put_off) {
            match at <= now {
                true => self.ask_for(number)?,
                false => self.put_off.push((number, at)),
            }
        }
        Ok(())
    }

    fn read_frames(&mut self, now: u64) -> Result<(), LoadError> {
        let mut notes = Notes {
            report: &mut self.report,
            touched: &mut self.touched,
            received: &mut self.received,
            session: &self.session,
            now,
            measure_from: self.session.measure_from_ns(),
            series: self.spec.series,
        };
        while let Some((header, body)) = self.connection.frames.next_frame()? {
            match Kind::from_raw(header.kind) {
                Some(Kind::Deliver) => notes.delivery(&mut self.subscriptions, body)?,
                Some(Kind::SettleConfirm) => {
                    let sampled = self.sampled.remove(&header.correlation);
                    notes.settle_confirm(sampled, body)?;
                }
                Some(Kind::Subscribed) => {
                    codec::decode::<Subscribed>(body)?;
                    self.subscribed += 1;
                }
                Some(Kind::Redirect) => self.led_at = Place::told(body)?,
                Some(Kind::Pong) => self.pong = true,
                Some(Kind::Error) if header.correlation != 0 && self.door.has_others() => {
                    let code = codec::decode::<ErrorBody>(body)?.code.to_native();
                    let put_off = ErrorCode::from_raw(code) == Some(ErrorCode::Unavailable);
                    match header.correlation.checked_sub(SUBSCRIBE_BASE) {
                        Some(number) if put_off => {
                            self.put_off.push((number as usize, now + PUT_OFF_NS));
                        }
                        Some(_) => return Err(conn::refusal("subscribe", body)),
                        // A settle: its record comes again, flagged, or is gone.
                        None => {
                            self.sampled.remove(&header.correlation);
                            notes.report.settles_refused += 1;
                        }
                    }
                }
                _ => return Err(other_frame(&header, body)),
            }
        }
        Ok(())
    }

    /// One settle frame per touched partition, and credit when half is used.
    fn answer(&mut self, now: u64) -> Result<(), LoadError> {
        let out = &mut self.connection.out.bytes;
        for number in self.touched.drain(..) {
            let Some(subscription) = self.subscriptions.get_mut(number) else {
                continue;
            };
            self.settle_frames += 1;
            let correlation = self.settle_frames;
            let ask =
                self.spec.settle_sample > 0 && correlation.is_multiple_of(self.spec.settle_sample);
            if ask {
                let sampled = Sampled {
                    received_ns: now,
                    row: subscription.target.row,
                    measured: now >= self.session.measure_from_ns(),
                };
                self.sampled.insert(correlation, sampled);
            }
            self.settled += subscription.items.len() as u64;
            let mut settle = Settle {
                queue_id: subscription.target.queue_id,
                partition: subscription.target.partition,
                generation: subscription.generation,
                subscription: number as u32,
                kind: SettleKind::Acknowledge as u8,
                flags: if ask { SETTLE_CONFIRM } else { 0 },
                items: std::mem::take(&mut subscription.items),
                ..Default::default()
            };
            codec::encode(out, correlation, &settle)?;
            settle.items.clear();
            subscription.items = settle.items;
            let half_used = subscription.used_records >= self.spec.credit_records.div_ceil(2)
                || subscription.used_bytes >= self.spec.credit_bytes.div_ceil(2);
            if half_used {
                let credit = Credit {
                    subscription: number as u32,
                    records: std::mem::take(&mut subscription.used_records),
                    bytes: std::mem::take(&mut subscription.used_bytes),
                    ..Default::default()
                };
                codec::encode(out, 0, &credit)?;
            }
        }
        Ok(())
    }
}

/// Where one read's findings go.
struct Notes<'a> {
    report: &'a mut ConsumerReport,
    touched: &'a mut Vec<usize>,
    received: &'a mut u64,
    session: &'a Session,
    now: u64,
    measure_from: u64,
    series: bool,
}

impl Notes<'_> {
    fn delivery(
        &mut self,
        subscriptions: &mut [Subscription],
        body: &[u8],
    ) -> Result<(), LoadError> {
        let deliver = codec::decode::<Deliver>(body)?;
        let number = deliver.subscription.to_native() as usize;
        let Some(subscription) = subscriptions.get_mut(number) else {
            return Err(LoadError::Protocol(format!(
                "a delivery for subscription {number}, which does not exist"
            )));
        };
        if subscription.items.is_empty() {
            self.touched.push(number);
        }
        subscription.generation = deliver.generation.to_native();
        subscription.used_records += deliver.deliveries.len() as u32;
        subscription.used_bytes += deliver.records.len() as u64;
        let mut records = Records::new(deliver.records.as_slice());
        for delivery in deliver.deliveries.iter() {
            let record = records.next().ok_or_else(|| {
                LoadError::Protocol("a deliver frame with fewer records than deliveries".into())
            })??;
            let offset = delivery.offset.to_native();
            let redelivered = delivery.flags.to_native() & DELIVERY_REDELIVERED != 0;
            subscription.items.push(SettleItem {
                offset,
                attempt: delivery.attempt.to_native(),
            });
            if record.verify(0).is_err() {
                self.report.corrupt += 1;
                continue;
            }
            match Trace::decode(record.payload).filter(|trace| trace.run == self.session.run) {
                Some(trace) => self.record(subscription, offset, redelivered, &trace),
                None => self.report.foreign += 1,
            }
        }
        Ok(())
    }

    fn record(
        &mut self,
        subscription: &mut Subscription,
        offset: u64,
        redelivered: bool,
        trace: &Trace,
    ) {
        let producer = trace.producer as usize;
        let (Some(arrivals), Some(next_sequence)) = (
            self.report.arrivals.get_mut(producer),
            subscription.next_sequence.get_mut(producer),
        ) else {
            self.report.corrupt += 1;
            return;
        };
        if !redelivered {
            let in_order = offset >= subscription.next_offset && trace.sequence >= *next_sequence;
            self.report.order_breaks += u64::from(!in_order);
            subscription.next_offset = subscription.next_offset.max(offset + 1);
            *next_sequence = (*next_sequence).max(trace.sequence + 1);
        }
        if !arrivals.note(trace.sequence, redelivered) {
            return;
        }
        *self.received += 1;
        let (row, due) = (subscription.target.row, trace.intended_ns);
        Resumed::note(&mut self.report.resumed, self.session, row, due, self.now);
        if trace.intended_ns >= self.measure_from {
            if let Some(row) = self.report.receive.get_mut(subscription.target.row) {
                row.record(self.now.saturating_sub(trace.intended_ns), 1);
            }
            if self.series {
                let due = trace.intended_ns - self.measure_from;
                let latency = self.now.saturating_sub(trace.intended_ns);
                self.report.series.record(due, latency, 1);
            }
        }
    }

    fn settle_confirm(&mut self, sampled: Option<Sampled>, body: &[u8]) -> Result<(), LoadError> {
        let confirm = codec::decode::<SettleConfirm>(body)?;
        self.report.settles_refused += confirm.refused.len() as u64;
        if let Some(sampled) = sampled.filter(|sampled| sampled.measured) {
            if let Some(row) = self.report.settle.get_mut(sampled.row) {
                row.record(self.now.saturating_sub(sampled.received_ns), 1);
            }
        }
        Ok(())
    }
}

fn other_frame(header: &FrameHeader, body: &[u8]) -> LoadError {
    match Kind::from_raw(header.kind) {
        Some(Kind::Error) => conn::refusal("the consumer", body),
        Some(Kind::GoingAway) => LoadError::Closed("the server is going away"),
        _ => conn::unexpected("consuming", header),
    }
}
