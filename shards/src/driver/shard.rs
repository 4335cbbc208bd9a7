//! One shard on its executor: the engine, and everything that feeds it.

use std::{
    cell::{Cell, RefCell},
    fmt::Display,
    future::Future,
    os::fd::OwnedFd,
    path::PathBuf,
    rc::Rc,
    sync::{
        atomic::{AtomicBool, AtomicI64, Ordering},
        Arc,
    },
};

use ahash::HashMap;
use glommio::{io::DmaBuffer, TaskQueueHandle};
use wire::{error::ErrorCode, frame::FrameHeader};

use super::{
    bringup::CleanMarkers,
    clock,
    connection::{self, Socket},
    disk_space,
    fs_disk::FsDisk,
    helper::Helper,
    links::{self, Called, Links},
    listener::{self, Listener},
    local_event::LocalEvent,
    mailbox::{Letter, Outbox, Receiver, Sender},
    peer_watch::{self, PeerLimits},
    segments::Segments,
    store_job,
    timer::ShardTimer,
};
use crate::{
    engine::{
        ConnKey, Effect, Engine, Event, HelloFacts, Notice, ReadResult, ShardMessage, KEPT_ENTRIES,
    },
    io::Disk,
    log::{segment_name, IoFailure, LogEffect},
    state::level::{why_outdated, OWN_LEVEL},
    store::StoreJob,
};

/// Letters handled before other tasks get their turn.
const LETTER_BUDGET: usize = 256;

/// What a shard tells the process.
#[derive(Debug)]
pub enum Report {
    Notice {
        shard: u16,
        notice: Notice,
    },
    /// The shard could not start or go on.
    Failed {
        shard: u16,
        reason: String,
    },
    /// Drained: everything is durable up to the end, nothing is in flight.
    Drained {
        shard: u16,
        quiet: bool,
    },
    Listening {
        shard: u16,
    },
    /// This node was removed from its cluster: the process is to end.
    Removed {
        reason: String,
    },
}

/// Connections of the whole process, and how many there may be.
#[derive(Clone)]
pub(super) struct Crowd {
    pub now: Arc<AtomicI64>,
    pub most: i64,
}

/// See [`ShardParts::prepare`].
pub(super) type Prepare = Arc<dyn Fn(u64, Option<u64>) -> Result<(), IoFailure> + Send + Sync>;

/// What a shard is made of.
pub(super) struct ShardParts {
    pub number: u16,
    pub hello: HelloFacts,
    pub segments: Segments,
    pub outboxes: Vec<Rc<Outbox>>,
    pub own_mail: Sender,
    pub helper: Helper,
    pub queue: TaskQueueHandle,
    pub reports: flume::Sender<Report>,
    pub crowd: Crowd,
    pub listen: std::net::SocketAddr,
    pub peers: PeerLimits,
    pub clean: Arc<CleanMarkers>,
    /// Turns taken so far.
    pub turns: Rc<Cell<u64>>,
    /// Set while batches wait for a segment: it is then prepared at full speed.
    pub hurry: Arc<AtomicBool>,
    /// Makes a segment file, out of another one if one is named, zeroes and
    /// syncs it; runs on a helper.
    pub prepare: Prepare,
    pub directory: PathBuf,
    /// For what may take long and nobody waits for.
    pub store_helper: Helper,
    /// See [`disk_space::is_low`].
    pub disk_low_water: Option<u64>,
    /// `None`: this node is alone.
    pub links: Option<Links>,
}

pub(super) struct Shard {
    pub number: u16,
    pub hello: HelloFacts,
    engine: RefCell<Engine<DmaBuffer>>,
    parts: ShardParts,
    sockets: RefCell<HashMap<ConnKey, Rc<Socket>>>,
    turn: LocalEvent,
    timer: Rc<ShardTimer>,
    effects: RefCell<Vec<Effect<DmaBuffer>>>,
    next_connection: Cell<u64>,
    draining: Cell<bool>,
    disk_low: Cell<bool>,
    listener_closed: Arc<AtomicBool>,
    /// It was said that a node called the port for clients.
    node_called: Cell<bool>,
    pub(super) latched: LocalEvent,
}

impl Shard {
    pub(super) fn new(parts: ShardParts, engine: Engine<DmaBuffer>) -> Rc<Self> {
        Rc::new(Shard {
            number: parts.number,
            hello: parts.hello.clone(),
            engine: RefCell::new(engine),
            parts,
            sockets: RefCell::default(),
            turn: LocalEvent::default(),
            timer: Rc::new(ShardTimer::default()),
            effects: RefCell::default(),
            next_connection: Cell::new(1),
            draining: Cell::new(false),
            disk_low: Cell::new(false),
            listener_closed: Arc::new(AtomicBool::new(false)),
            node_called: Cell::new(false),
            latched: LocalEvent::default(),
        })
    }

    /// Starts the shard's loops; they run until the process ends.
    pub(super) fn start(self: &Rc<Self>, mail: Receiver) {
        for outbox in &self.parts.outboxes {
            self.spawn(outbox.clone().run());
        }
        self.spawn(self.clone().run_turns());
        self.spawn(peer_watch::run(self.clone()));
        self.spawn(self.clone().read_mail(mail));
        let shard = self.clone();
        let timer = self.timer.clone();
        self.spawn(async move { timer.run(|| shard.turn.set()).await });
        self.spawn(self.clone().watch_disk());
        if let Some(links) = &self.parts.links {
            self.listen_for_nodes(links);
            links.start(self);
        }
        self.turn.set();
    }

    /// Looks at the free space now and then.
    async fn watch_disk(self: Rc<Self>) {
        loop {
            let directory = self.parts.directory.clone();
            let mail = self.parts.own_mail.clone();
            let low_water = self.parts.disk_low_water;
            self.parts.helper.run(move || {
                if let Some(low) = disk_space::is_low(&directory, low_water) {
                    // The receiver is gone only when the process ends.
                    let _ = mail.send(Letter::DiskLow(low));
                }
            });
            glommio::timer::sleep(disk_space::LOOK).await;
        }
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        match glommio::spawn_local_into(task, self.parts.queue) {
            Ok(task) => drop(task.detach()),
            Err(error) => self.problem(&format!("a task could not be started: {error}")),
        }
    }

    fn event(&self, event: Event<'_>) {
        self.engine.borrow_mut().handle(clock::mono_ms(), event);
        self.turn.set();
    }

    // --- turns ---

    /// Turns run behind the tasks that were ready before: what arrived
    /// together is handled, written and answered together.
    async fn run_turns(self: Rc<Self>) {
        loop {
            self.turn.wait().await;
            self.parts.turns.set(self.parts.turns.get() + 1);
            let mut effects = self.effects.take();
            self.engine
                .borrow_mut()
                .end_turn(clock::mono_ms(), &mut effects);
            for effect in effects.drain(..) {
                self.execute(effect);
            }
            effects.shrink_to(KEPT_ENTRIES);
            self.effects.replace(effects);
            let (again, next) = {
                let engine = self.engine.borrow();
                let waits = engine.log().backlog_bytes() > HURRY_BYTES;
                self.parts.hurry.store(waits, Ordering::Relaxed);
                (engine.wants_turn(), engine.next_timer_ms())
            };
            self.timer.arm(next);
            if again {
                self.turn.set();
                glommio::executor().yield_task_queue_now().await;
            }
        }
    }

    fn execute(self: &Rc<Self>, effect: Effect<DmaBuffer>) {
        match effect {
            Effect::Log(effect) => self.execute_log(effect),
            Effect::Output { conn } => {
                if let Some(socket) = self.sockets.borrow().get(&conn) {
                    socket.output.set();
                }
            }
            Effect::Close { conn } => {
                if let Some(socket) = self.sockets.borrow().get(&conn) {
                    socket.close();
                }
            }
            Effect::NodeOutput { node } => {
                if let Some(links) = &self.parts.links {
                    links.output(node);
                }
            }
            Effect::NodeRefused { node, reason } => self.refuse_node(node, reason),
            Effect::LogKnown { node, open } => {
                if let Some(links) = &self.parts.links {
                    links.log_known(node, open, &self.parts.helper);
                }
            }
            Effect::SeatKnown { node, seat } => {
                if let Some(links) = &self.parts.links {
                    links.seat_known(node, &seat);
                }
            }
            Effect::RosterKnown(roster) => {
                let links = self.parts.links.as_ref();
                let ended = links.map(|links| links.roster_known(self, &roster));
                for node in ended.unwrap_or_default() {
                    self.node_down(node);
                }
            }
            Effect::LevelKnown(level) => {
                if let Some(reason) = why_outdated(level, OWN_LEVEL) {
                    let shard = self.number;
                    self.report(Report::Failed { shard, reason });
                }
                let links = self.parts.links.as_ref();
                let ended = links.map(|links| links.level_known(level));
                for node in ended.unwrap_or_default() {
                    self.node_down(node);
                }
            }
            Effect::ToShard { shard, message } if shard == self.number => {
                self.event(Event::Message(message));
            }
            Effect::ToShard { shard, message } => self.send(shard, Letter::Message(message)),
            Effect::Store(job) => self.store(job),
            Effect::Read {
                id,
                file,
                offset,
                len,
            } => {
                let shard = self.clone();
                self.spawn(async move {
                    let read = shard.parts.segments.read(file, offset, len).await;
                    let result = read.map(|bytes| ReadResult { bytes });
                    shard.event(Event::ReadDone { id, result });
                });
            }
            Effect::Notice(notice) => {
                if matches!(notice, Notice::Latched { .. }) {
                    self.latched.set();
                }
                self.report(Report::Notice {
                    shard: self.number,
                    notice,
                });
            }
        }
    }

    fn execute_log(self: &Rc<Self>, effect: LogEffect<DmaBuffer>) {
        let shard = self.clone();
        match effect {
            LogEffect::Write {
                id,
                segment,
                offset,
                buffer,
                dsync,
            } => self.spawn(async move {
                let result = shard
                    .parts
                    .segments
                    .write(segment, offset, buffer, dsync)
                    .await;
                shard.event(Event::Written { id, result });
            }),
            LogEffect::Sync { id, segments } => self.spawn(async move {
                let result = shard.parts.segments.sync(&segments).await;
                shard.event(Event::Synced { id, result });
            }),
            LogEffect::RemoveSegments { sequences } => self.remove_segments(sequences),
            LogEffect::PrepareSegment { sequence, recycle } => {
                self.parts.segments.forget(recycle.as_slice());
                let prepare = self.parts.prepare.clone();
                let mail = self.parts.own_mail.clone();
                let handed = self.parts.helper.run(move || {
                    let result = prepare(sequence, recycle);
                    // The receiver is gone only when the process ends.
                    let _ = mail.send(Letter::Segment { sequence, result });
                });
                if !handed {
                    let message = "the helper threads are overloaded".to_owned();
                    let result = Err(IoFailure {
                        message,
                        out_of_space: false,
                    });
                    self.event(Event::SegmentReady { sequence, result });
                }
            }
        }
    }

    /// Leaves what fails to the next open.
    fn remove_segments(&self, sequences: Vec<u64>) {
        self.parts.segments.forget(&sequences);
        let directory = self.parts.directory.clone();
        self.parts.store_helper.run(move || {
            if let Ok(disk) = FsDisk::open(directory) {
                for sequence in sequences {
                    let _ = disk.remove(&segment_name(sequence));
                }
            }
        });
    }

    fn store(self: &Rc<Self>, job: StoreJob) {
        let directory = self.parts.directory.clone();
        let mail = self.parts.own_mail.clone();
        let hurry = self.parts.hurry.clone();
        let refused = job.refused("the helper threads are overloaded");
        let handed = self.parts.store_helper.run(move || {
            let done = store_job::run(&directory, job, hurry);
            // The receiver is gone only when the process ends.
            let _ = mail.send(Letter::Stored(done));
        });
        if !handed {
            self.event(Event::Stored(refused));
        }
    }

    // --- mail ---

    fn send(&self, shard: u16, letter: Letter) {
        if let Some(outbox) = self.parts.outboxes.get(usize::from(shard)) {
            outbox.push(letter);
        }
    }

    async fn read_mail(self: Rc<Self>, mail: Receiver) {
        while let Ok(letter) = mail.recv_async().await {
            self.open(letter);
            for _ in 0..LETTER_BUDGET {
                let Ok(letter) = mail.try_recv() else { break };
                self.open(letter);
            }
            // A busy executor would not see the next wake-up for long.
            glommio::executor().yield_task_queue_now().await;
        }
    }

    fn open(self: &Rc<Self>, letter: Letter) {
        match letter {
            Letter::Message(message) => self.event(Event::Message(message)),
            Letter::Adopt {
                socket,
                window_bytes,
                correlation,
            } => {
                let shard = self.clone();
                self.spawn(async move {
                    shard.count_connection(1);
                    connection::adopt(shard.clone(), socket, window_bytes, correlation).await;
                    shard.count_connection(-1);
                });
            }
            Letter::Accepted { socket } => {
                self.spawn(listener::receive(self.clone(), socket));
            }
            Letter::NodeAccepted { socket } => self.spawn(links::called(self.clone(), socket)),
            Letter::NodeCalled(called) => self.spawn(links::answered(self.clone(), called)),
            Letter::DiskLow(low) => {
                if self.disk_low.replace(low) != low {
                    self.event(Event::DiskLow(low));
                }
            }
            Letter::Stored(done) => self.event(Event::Stored(done)),
            Letter::Segment { sequence, result } => self.segment_prepared(sequence, result),
            Letter::Accept => self.listen(),
            Letter::Drain => {
                let shard = self.clone();
                self.spawn(async move { shard.drain().await });
            }
        }
    }

    fn listen(&self) {
        let listener = Listener {
            shard: self.number,
            mail: self.parts.own_mail.clone(),
            reports: self.parts.reports.clone(),
            closed: self.listener_closed.clone(),
            letter: |socket| Letter::Accepted { socket },
            name: "accept",
        };
        match listener.start(self.parts.listen) {
            Ok(()) => self.report(Report::Listening { shard: self.number }),
            Err(error) => self.report(Report::Failed {
                shard: self.number,
                reason: format!("cannot listen on {}: {error}", self.parts.listen),
            }),
        }
    }

    /// Until the process ends: nodes may come while others drain.
    fn listen_for_nodes(&self, links: &Links) {
        let Some(address) = links.listen() else {
            return;
        };
        let listener = Listener {
            shard: self.number,
            mail: self.parts.own_mail.clone(),
            reports: self.parts.reports.clone(),
            closed: Arc::default(),
            letter: |socket| Letter::NodeAccepted { socket },
            name: "nodes",
        };
        if let Err(error) = listener.start(address) {
            self.report(Report::Failed {
                shard: self.number,
                reason: format!("cannot listen for nodes on {address}: {error}"),
            });
        }
    }

    fn segment_prepared(self: &Rc<Self>, sequence: u64, result: Result<(), IoFailure>) {
        let shard = self.clone();
        self.spawn(async move {
            let result = match result {
                Ok(()) => shard.parts.segments.warm(sequence).await,
                failed => failed,
            };
            shard.event(Event::SegmentReady { sequence, result });
        });
    }

    pub(super) fn hand_over(
        &self,
        shard: u16,
        socket: OwnedFd,
        window_bytes: u32,
        correlation: u64,
    ) {
        self.send(
            shard,
            Letter::Adopt {
                socket,
                window_bytes,
                correlation,
            },
        );
    }

    // --- connections ---

    pub(super) fn opened(&self, socket: Rc<Socket>, window_bytes: u32) -> ConnKey {
        let number = self.next_connection.replace(self.next_connection.get() + 1);
        let conn = ConnKey::new(self.number, number);
        self.sockets.borrow_mut().insert(conn, socket);
        self.engine
            .borrow_mut()
            .handle(clock::mono_ms(), Event::Opened { conn, window_bytes });
        conn
    }

    pub(super) fn closed(&self, conn: ConnKey) {
        self.sockets.borrow_mut().remove(&conn);
        self.event(Event::Closed { conn });
    }

    pub(super) fn frame(&self, conn: ConnKey, header: FrameHeader, body: &[u8]) {
        self.event(Event::Frame { conn, header, body });
    }

    pub(super) fn protocol_error(&self, conn: ConnKey, code: ErrorCode, error: &dyn Display) {
        self.engine
            .borrow_mut()
            .refuse_connection(conn, code, error.to_string());
        self.turn.set();
    }

    pub(super) fn peers(&self) -> PeerLimits {
        self.parts.peers
    }

    /// Shows every connection of this shard; `look` must not enter the shard.
    pub(super) fn each_socket(&self, look: &mut dyn FnMut(&Socket)) {
        for socket in self.sockets.borrow().values() {
            look(socket);
        }
    }

    pub(super) fn take_output(&self, conn: ConnKey, into: &mut Vec<u8>) -> bool {
        let mut engine = self.engine.borrow_mut();
        let taken = engine.take_output(conn, into);
        if engine.wants_turn() {
            self.turn.set();
        }
        taken
    }

    pub(super) fn output_is_full(&self, conn: ConnKey) -> bool {
        self.engine.borrow().output_is_full(conn)
    }

    pub(super) fn count_connection(&self, change: i64) {
        self.parts.crowd.now.fetch_add(change, Ordering::Relaxed);
    }

    pub(super) fn is_crowded(&self) -> bool {
        self.parts.crowd.now.load(Ordering::Relaxed) >= self.parts.crowd.most
    }

    // --- other nodes ---

    pub(super) fn links(&self) -> Option<&Links> {
        self.parts.links.as_ref()
    }

    /// What a node is told that calls the port for clients.
    pub(super) fn refuse_node_here(&self, at: &str) -> Vec<u8> {
        let (refusal, frame) = links::client_port();
        match &self.parts.links {
            Some(links) => links.refused_stranger(at, &refusal),
            None if self.node_called.replace(true) => {}
            None => self.problem(&format!(
                "a connection from {at} is refused: {}",
                refusal.reason
            )),
        }
        frame
    }

    pub(super) fn hand_link_over(&self, shard: u16, called: Called) {
        self.send(shard, Letter::NodeCalled(called));
    }

    pub(super) fn node_up(&self, node: u32) {
        self.event(Event::NodeUp { node });
    }

    pub(super) fn node_down(&self, node: u32) {
        self.event(Event::NodeDown { node });
    }

    pub(super) fn node_body(&self, node: u32, body: &[u8]) {
        self.event(Event::NodeBody { node, body });
    }

    pub(super) fn take_node_output(&self, node: u32, into: &mut Vec<u8>) -> bool {
        let mut engine = self.engine.borrow_mut();
        let taken = engine.take_node_output(node, into);
        if engine.wants_turn() {
            self.turn.set();
        }
        taken
    }

    /// Ends the link to a node that broke the protocol.
    pub(super) fn refuse_node(&self, node: u32, reason: String) {
        let links = self.parts.links.as_ref();
        if links.is_some_and(|links| links.refuse(node, reason)) {
            self.node_down(node);
        }
    }

    // --- the end ---

    /// Stops admitting, lets what is in flight finish, makes everything durable.
    async fn drain(self: &Rc<Self>) {
        if self.draining.replace(true) {
            return;
        }
        self.listener_closed.store(true, Ordering::Relaxed);
        self.event(Event::Drain);
        let mut marker = None;
        for _ in 0..DRAIN_ROUNDS {
            marker = self.with_engine(|engine| {
                engine.demand_durable();
                engine.seal()
            });
            if marker.is_some() {
                break;
            }
            self.turn.set();
            glommio::timer::sleep(DRAIN_PAUSE).await;
        }
        match marker {
            Some(marker) => self.parts.clean.add(marker),
            None => self.say_why_not_clean(),
        }
        let quiet = marker.is_some();
        if let Some(links) = &self.parts.links {
            links.finish().await;
        }
        self.report(Report::Drained {
            shard: self.number,
            quiet,
        });
    }

    fn say_why_not_clean(&self) {
        let failure = self.with_engine(|engine| engine.log().segment_failure().cloned());
        if let Some(failure) = failure {
            self.problem(&format!(
                "what was asked last waits for room in the log ({}) and is given up: what was confirmed is safe, and the next start finds it",
                failure.message
            ));
        }
    }

    /// Runs `look` on the engine; never across an await.
    pub(super) fn with_engine<T>(&self, look: impl FnOnce(&mut Engine<DmaBuffer>) -> T) -> T {
        look(&mut self.engine.borrow_mut())
    }

    /// Puts a rebuilt engine in place: every connection and link of the old one is
    /// closed.
    pub(super) fn replace_engine(&self, engine: Engine<DmaBuffer>, open_counter: u64) {
        for socket in self.sockets.borrow().values() {
            socket.close();
        }
        if let Some(links) = &self.parts.links {
            links.reopen(open_counter);
        }
        *self.engine.borrow_mut() = engine;
        self.event(Event::DiskLow(self.disk_low.get()));
        for shard in 0..self.hello.shards {
            if shard != self.number {
                let from = self.number;
                self.send(
                    shard,
                    Letter::Message(ShardMessage::Reopened { shard: from }),
                );
            }
        }
        self.turn.set();
    }

    /// Closes the segment descriptors, so that their locks are free.
    pub(super) fn close_segments(&self) {
        self.parts.segments.clear();
    }

    pub(super) fn reports(&self) -> flume::Sender<Report> {
        self.parts.reports.clone()
    }

    pub(super) fn problem(&self, message: &str) {
        let notice = Notice::Problem(message.to_owned());
        self.report(Report::Notice {
            shard: self.number,
            notice,
        });
    }

    pub(super) fn report(&self, report: Report) {
        // The receiver is gone only when the process ends.
        let _ = self.parts.reports.send(report);
    }
}

/// Unwritten bytes beyond what two writes in flight and one filling explain.
const HURRY_BYTES: u64 = 2 << 20;

/// A drain gives up waiting after rounds × pause: 5 s.
const DRAIN_ROUNDS: u32 = 1000;
const DRAIN_PAUSE: std::time::Duration = std::time::Duration::from_millis(5);
