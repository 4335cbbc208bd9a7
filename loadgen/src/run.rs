//! One run from declare to verdict.
//!
//! Invariants:
//! 1. A run always ends: sending stops with the duration, waiting with the drain.
//! 2. Server CPU, memory and rates are taken over the measured window only,
//!    that is without warm-up and drain.

use std::{
    io::{IsTerminal, Write},
    net::{SocketAddr, ToSocketAddrs},
    sync::{atomic::Ordering::Relaxed, Arc},
    thread::{self, JoinHandle},
};

use wire::message::ANY_SHARD;

use crate::{
    conn::Connection,
    consumer::{Consumer, ConsumerReport, ConsumerSpec},
    door::{self, Door},
    error::LoadError,
    payload::{self, PayloadMaker},
    plan::{self, Drive, Settings},
    process::{self, Sample, Usage},
    producer::{Pace, Producer, ProducerReport, ProducerSpec, Target},
    schedule::{Plan, Schedule},
    series::Moment,
    session::{Session, Snapshot},
    sys, units,
};

const SECOND_NS: u64 = 1_000_000_000;
const TICK_NS: u64 = 100_000_000;
/// Between the last connection and the first due time.
const START_DELAY_NS: u64 = 50_000_000;
/// After everything expected arrived: an unexpected duplicate may still come.
const SETTLE_DOWN_NS: u64 = 200_000_000;

/// Everything a run found, before it is put into words.
pub struct Findings {
    pub producers: Vec<ProducerReport>,
    pub consumers: Vec<ConsumerReport>,
    /// Counters at the edges of the measured window and at the end.
    pub window: (Snapshot, Snapshot),
    pub total: Snapshot,
    pub window_s: f64,
    pub server: Option<Usage>,
    pub generator: Option<Usage>,
    /// Records not settled after the run; absent when it could not be asked.
    pub left: Option<u64>,
    /// At the begin of the measured window and at the end of each of its seconds,
    /// if it was asked for.
    pub moments: Vec<Moment>,
    /// The server's name and version, and how many shards it has.
    pub peer: String,
    pub shards: u16,
}

/// Declares, connects, drives the load, drains and gathers.
///
/// # Errors
/// The run could not start. What breaks a running one is inside the findings.
pub fn run(settings: &Settings) -> Result<Findings, LoadError> {
    beside(settings, |_, _| ())
}

/// The same, with something that happens meanwhile, on a thread of its own: it
/// begins with the load and is awaited at the end.
///
/// # Errors
/// As [`run`].
pub fn beside<F>(settings: &Settings, meanwhile: F) -> Result<Findings, LoadError>
where
    F: FnOnce(Arc<Session>, Vec<Target>) + Send + 'static,
{
    let pid = server_pid(settings);
    let before = sys::affinity().map_err(LoadError::io("affinity"))?;
    if let Some(core) = settings.pin_core {
        sys::set_affinity(&[core]).map_err(LoadError::io("cannot pin to that core"))?;
    }
    let found = pinned(settings, pid, meanwhile);
    if settings.pin_core.is_some() {
        sys::set_affinity(&before).map_err(LoadError::io("affinity"))?;
    }
    found
}

fn pinned<F>(settings: &Settings, pid: Option<u32>, meanwhile: F) -> Result<Findings, LoadError>
where
    F: FnOnce(Arc<Session>, Vec<Target>) + Send + 'static,
{
    let mut control = Door::new(&settings.server, ANY_SHARD, 0).open()?;
    let targets = plan::declare(&mut control, settings)?;
    let session = Arc::new(Session::new(payload::mix(
        sys::now_ns() ^ u64::from(std::process::id()) << 32,
    )));
    let consumers = open_consumers(settings, &targets, &session)?;
    let producers = open_producers(settings, &targets, &session)?;
    let (warmup, duration) = (settings.warmup.as_nanos(), settings.duration.as_nanos());
    session.schedule(
        sys::now_ns() + START_DELAY_NS,
        warmup as u64,
        duration as u64,
        settings.drain.as_nanos() as u64,
    );
    let consumers = spawn("consumer", consumers, Consumer::run)?;
    let producers = spawn("producer", producers, Producer::run)?;
    let beside = (session.clone(), targets.clone());
    let beside = thread::Builder::new()
        .name("meanwhile".to_owned())
        .spawn(move || meanwhile(beside.0, beside.1))
        .map_err(LoadError::io("cannot start a thread"))?;

    let mut moments = Vec::new();
    let window = Window::observe(&session, pid, &mut || {
        if settings.series {
            let depth = plan::depth(&mut control, &targets).unwrap_or_default();
            moments.push(Moment {
                unsettled: depth.unsettled,
                unsynced: depth.unsynced,
                server: pid.and_then(|pid| Sample::take(pid).ok()),
            });
        }
    });
    let producers = join(producers)?;
    await_consumers(&session, &producers, settings.consumers);
    session.stop_consumers();
    let consumers = join(consumers)?;

    let left = if session.aborted() {
        None
    } else {
        if door::addresses(&settings.server).count() > 1 {
            // The node that it was with may be gone.
            control = Door::new(&settings.server, ANY_SHARD, 0).open()?;
        }
        await_empty(&mut control, &targets, settings.consumers > 0)
    };
    join(vec![beside])?;
    Ok(Findings {
        producers,
        consumers,
        window: window.counters,
        total: session.counters.snapshot(),
        window_s: window.seconds,
        server: window.server,
        generator: window.generator,
        left,
        moments,
        peer: control.peer.server.clone(),
        shards: control.peer.shards,
    })
}

/// The server's process: as given, or found by its port.
pub fn server_pid(settings: &Settings) -> Option<u32> {
    settings.server_pid.or_else(|| {
        let mut addresses = door::addresses(&settings.server);
        let server = addresses.next()?;
        // One of several would be taken for all of them.
        let alone = addresses.next().is_none();
        let address: Option<SocketAddr> = server.to_socket_addrs().ok()?.next().filter(|_| alone);
        process::listener_pid(&address.filter(|address| address.ip().is_loopback())?)
    })
}

fn open_consumers(
    settings: &Settings,
    targets: &[Target],
    session: &Arc<Session>,
) -> Result<Vec<Consumer>, LoadError> {
    (0..settings.consumers)
        .map(|number| {
            let targets = plan::share(targets, number, settings.consumers);
            let shard = plan::wished_shard(&targets);
            let door = Door::new(&settings.server, shard, number as usize);
            let (credit_records, credit_bytes) = settings.credit(targets.len());
            let spec = ConsumerSpec {
                targets,
                producers: settings.producers as usize,
                credit_records,
                credit_bytes,
                settle_sample: settings.settle_sample,
                rows: settings.modes.len(),
                series: settings.series,
            };
            let mut consumer = Consumer::new(door, session.clone(), spec)?;
            consumer.subscribe()?;
            Ok(consumer)
        })
        .collect()
}

fn open_producers(
    settings: &Settings,
    targets: &[Target],
    session: &Arc<Session>,
) -> Result<Vec<Producer>, LoadError> {
    (0..settings.producers)
        .map(|number| {
            let targets = plan::share(targets, number, settings.producers);
            let shard = plan::wished_shard(&targets);
            let door = Door::new(&settings.server, shard, number as usize);
            let spec = ProducerSpec {
                number,
                targets,
                pace: pace(settings, number),
                batch: settings.batch,
                deadline_ms: settings.deadline_ms,
                spin_ns: settings.spin.as_nanos() as u64,
                rows: settings.modes.len(),
                series: settings.series,
            };
            let payloads = PayloadMaker::new(settings.size, session.run ^ u64::from(number));
            Producer::new(door, session.clone(), spec, payloads)
        })
        .collect()
}

fn pace(settings: &Settings, number: u32) -> Pace {
    match &settings.drive {
        Drive::Open {
            rate,
            bursts,
            every,
        } => {
            let plan = Plan {
                rate: *rate,
                batch: settings.batch,
                bursts: bursts.clone(),
                burst_every_ns: every.as_nanos() as u64,
                end_ns: (settings.warmup + settings.duration).as_nanos() as u64,
            };
            Pace::Open(Schedule::new(plan, number, settings.producers))
        }
        Drive::Closed { batches, max_lag } => Pace::Closed {
            batches: *batches,
            // Without consumers nothing is ever received.
            max_lag: if settings.consumers == 0 {
                u64::MAX
            } else {
                *max_lag
            },
        },
    }
}

fn spawn<W: Send + 'static, R: Send + 'static>(
    name: &str,
    workers: Vec<W>,
    run: fn(W) -> R,
) -> Result<Vec<JoinHandle<R>>, LoadError> {
    let start = |(number, worker)| {
        thread::Builder::new()
            .name(format!("{name}-{number}"))
            .spawn(move || run(worker))
            .map_err(LoadError::io("cannot start a thread"))
    };
    workers.into_iter().enumerate().map(start).collect()
}

fn join<R>(threads: Vec<JoinHandle<R>>) -> Result<Vec<R>, LoadError> {
    let ended = |thread: JoinHandle<R>| {
        thread
            .join()
            .map_err(|_| LoadError::Impossible("a generator thread panicked".into()))
    };
    threads.into_iter().map(ended).collect()
}

/// What the main thread sees while the others work.
struct Window {
    counters: (Snapshot, Snapshot),
    seconds: f64,
    server: Option<Usage>,
    generator: Option<Usage>,
}

impl Window {
    /// Samples at the start and at the end of the measured window. `look` is
    /// called at its begin and then after each second.
    fn observe(session: &Session, pid: Option<u32>, look: &mut dyn FnMut()) -> Window {
        let progress = Progress::new();
        let sample = || {
            let of = |pid: u32| Sample::take(pid).ok();
            let own = of(std::process::id());
            (
                sys::now_ns(),
                session.counters.snapshot(),
                pid.and_then(of),
                own,
            )
        };
        progress.until(session, session.measure_from_ns());
        let first = sample();
        look();
        let mut second = session.measure_from_ns() + SECOND_NS;
        while second <= session.end_ns() && !session.aborted() {
            progress.until(session, second);
            look();
            second += SECOND_NS;
        }
        progress.until(session, session.end_ns());
        let last = sample();
        progress.clear();
        let seconds = (last.0 - first.0) as f64 / 1e9;
        let confirmed = last.1.confirmed - first.1.confirmed;
        let usage = |pid, first: Option<Sample>, last: Option<Sample>| {
            Some(first?.until(&last?, pid, seconds, confirmed))
        };
        Window {
            counters: (first.1, last.1),
            seconds,
            server: pid.and_then(|pid| usage(pid, first.2, last.2)),
            generator: usage(std::process::id(), first.3, last.3),
        }
    }
}

/// One line on standard error, once a second, on a terminal only.
struct Progress(bool);

impl Progress {
    fn new() -> Self {
        Progress(std::io::stderr().is_terminal())
    }

    fn until(&self, session: &Session, deadline_ns: u64) {
        let mut shown = session.counters.snapshot();
        let mut next_line = sys::now_ns() + 1_000_000_000;
        loop {
            let now = sys::now_ns();
            if now >= deadline_ns || session.aborted() {
                return;
            }
            if self.0 && now >= next_line {
                let counters = session.counters.snapshot();
                self.line(session, now, &shown, &counters);
                shown = counters;
                next_line += 1_000_000_000;
            }
            sys::sleep_until(deadline_ns.min(now + TICK_NS));
        }
    }

    fn line(&self, session: &Session, now: u64, before: &Snapshot, counters: &Snapshot) {
        let elapsed = now.saturating_sub(session.start_ns()) / 1_000_000_000;
        let total = (session.end_ns() - session.start_ns()) / 1_000_000_000;
        let per_second = |now: u64, before: u64| units::group_thousands(now - before);
        // Progress is a courtesy: a closed standard error stops nothing.
        let _ = write!(
            std::io::stderr(),
            "\r\x1b[K{elapsed}/{total} s  sent {}/s  confirmed {}/s  received {}/s  unconfirmed {}",
            per_second(counters.sent, before.sent),
            per_second(counters.confirmed, before.confirmed),
            per_second(counters.received, before.received),
            units::group_thousands(counters.sent.saturating_sub(counters.confirmed)),
        );
    }

    fn clear(&self) {
        if self.0 {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// Waits until all that was confirmed has arrived, or the drain is over.
fn await_consumers(session: &Session, producers: &[ProducerReport], consumers: u32) {
    let uncertain = producers.iter().any(|report| report.unanswered > 0);
    let counters = &session.counters;
    while consumers > 0 && !session.aborted() {
        let unknown = uncertain || counters.unknown.load(Relaxed) > 0;
        let arrived = counters.received.load(Relaxed) >= counters.confirmed.load(Relaxed);
        let now = sys::now_ns();
        if (arrived && !unknown) || now >= session.give_up_ns() {
            break;
        }
        sys::sleep_until(now + TICK_NS / 10);
    }
    if !session.aborted() {
        sys::sleep_until(sys::now_ns() + SETTLE_DOWN_NS);
    }
}

/// Asks what is left, for up to two seconds while it goes down to nothing.
fn await_empty(control: &mut Connection, targets: &[Target], consumed: bool) -> Option<u64> {
    let deadline = sys::now_ns() + 2_000_000_000;
    loop {
        let left = plan::depth(control, targets).ok()?.unsettled;
        if left == 0 || !consumed || sys::now_ns() >= deadline {
            return Some(left);
        }
        sys::sleep_until(sys::now_ns() + TICK_NS);
    }
}
