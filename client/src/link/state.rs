//! What the two tasks of a link and its callers share, and how it changes.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
        Arc, Mutex, MutexGuard, PoisonError, Weak,
    },
    time::Duration,
};

use tokio::{
    sync::{watch, Notify},
    time::Instant,
};

use super::{
    feed::{Feed, FeedPhase},
    outbox::{Outbox, QueuedPublish, SentPublish},
    request::{QueuedRequest, SentRequest},
    settles::{SentSettle, Settles},
    stuck::Stuck,
};
use crate::{
    config::Config,
    error::{ConnectError, Error, Reason, SettleError},
    links::Links,
    places::Places,
    servers::Turns,
};

/// What the server granted in its hello reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Granted {
    pub node: u32,
    pub shard: u16,
    pub shards: u16,
    pub window_bytes: u32,
    pub server: String,
}

/// How the link stands, for those who wait for it.
#[derive(Debug, Clone)]
pub(crate) enum Status {
    Connecting,
    Up(Granted),
    /// The last attempt failed; another follows.
    Failed(ConnectError),
}

/// Whether the connection takes new work.
#[derive(Debug)]
pub(super) enum Phase {
    /// No connection; `cause` is why, as far as known.
    Down {
        cause: String,
    },
    Up,
    /// The server is going away: only settles are written.
    Draining {
        since: Instant,
        cause: String,
    },
}

/// A frame that was written and needs an answer.
#[derive(Debug)]
pub(super) enum Sent {
    Publish(SentPublish),
    Request(SentRequest),
    Settle(SentSettle),
    Subscribe(u32),
}

#[derive(Debug)]
pub(super) struct State {
    /// The address of the connection that stands, or of the last attempt.
    pub server: Arc<str>,
    pub phase: Phase,
    /// The link takes no more work and ends.
    pub closed: bool,
    pub window_bytes: usize,
    pub control: Vec<u8>,
    pub settles: Settles,
    /// Credit to give, by subscription: records and bytes.
    pub credits: HashMap<u32, (u32, u64)>,
    pub feeds: HashMap<u32, Feed>,
    /// A connection stood once.
    pub ever_up: bool,
    pub requests: VecDeque<QueuedRequest>,
    pub outbox: Outbox,
    pub sent: HashMap<u64, Sent>,
    /// Publish body bytes in `sent`.
    pub unanswered_bytes: usize,
    pub stuck: Stuck,
}

impl State {
    /// True when nothing is queued and nothing unanswered.
    pub fn is_idle(&self) -> bool {
        self.sent.is_empty()
            && self.requests.is_empty()
            && self.outbox.is_empty()
            && self.settles.is_empty()
            && self.credits.is_empty()
            && self.control.is_empty()
    }

    /// Nothing is unanswered, and nobody holds deliveries of this connection.
    pub fn owes_nothing(&self) -> bool {
        let asked = |sent: &Sent| matches!(sent, Sent::Subscribe(_));
        self.sent.values().all(asked)
            && self.settles.is_empty()
            && (!self.is_asked() || self.stuck.left)
    }

    fn is_asked(&self) -> bool {
        let mut feeds = self.feeds.values();
        feeds.any(|feed| feed.phase == FeedPhase::Asked)
    }

    pub fn server(&self) -> String {
        self.server.to_string()
    }

    pub fn down_cause(&self) -> String {
        match &self.phase {
            Phase::Down { cause } | Phase::Draining { cause, .. } => cause.clone(),
            Phase::Up => "the server left its window full".to_owned(),
        }
    }
}

/// The part of a link that callers and both its tasks hold.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Number of this link in this process, from 1.
    id: u64,
    pub(super) servers: Arc<Turns>,
    /// Of a link to one leader: the link that takes over what could not be sent.
    /// Never one that has another itself.
    pub(super) fallback: Option<Arc<Shared>>,
    pub(super) places: Arc<Places>,
    /// Gone with the client.
    pub(super) links: Weak<Links>,
    pub(super) config: Arc<Config>,
    pub(super) start: Instant,
    pub(super) state: Mutex<State>,
    /// Wakes the writer.
    pub(super) wake: Notify,
    /// Wakes the sweeper out of its idle pace.
    pub(super) busy: Notify,
    /// Ends the pause between attempts to connect.
    pub(super) hurry: Notify,
    pub(super) sweeping: AtomicBool,
    /// Told whenever something was answered, for a graceful close.
    pub(super) answered: Notify,
    pub(super) status: watch::Sender<Status>,
    pub(super) closing: watch::Sender<bool>,
    over: watch::Sender<bool>,
    /// Number of the connection that stands, unique in this process; 0 = none.
    connection: AtomicU64,
    /// The node that the connection leads to, while it takes new work; 0 = none.
    pub(super) node: AtomicU32,
    correlation: AtomicU64,
    /// Milliseconds after `start` at which bytes last arrived.
    received_ms: AtomicU64,
    refused_settles: AtomicU64,
}

/// Owns a link: dropping it ends the connection, after writing what is queued.
#[derive(Debug)]
pub(crate) struct Link {
    shared: Arc<Shared>,
}

impl Link {
    /// Starts connecting to `wished_shard` of one of `servers`. With a `fallback` it
    /// carries publishes and subscriptions only, and that one takes over what it cannot.
    pub fn start(
        config: Arc<Config>,
        known: (Arc<Places>, Weak<Links>),
        servers: Arc<Turns>,
        wished_shard: u16,
        fallback: Option<Arc<Shared>>,
    ) -> Self {
        let shared = Arc::new(Shared::new(config, known, servers, fallback));
        tokio::spawn(super::run::run(shared.clone(), wished_shard));
        Link { shared }
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.end();
    }
}

impl Shared {
    fn new(
        config: Arc<Config>,
        (places, links): (Arc<Places>, Weak<Links>),
        servers: Arc<Turns>,
        fallback: Option<Arc<Shared>>,
    ) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let server = servers.now().1;
        Shared {
            id: LAST.fetch_add(1, Ordering::Relaxed) + 1,
            servers,
            fallback,
            places,
            links,
            config,
            start: Instant::now(),
            state: Mutex::new(State {
                server,
                phase: Phase::Down {
                    cause: "no connection was made yet".to_owned(),
                },
                closed: false,
                window_bytes: 0,
                control: Vec::new(),
                settles: Settles::default(),
                credits: HashMap::new(),
                feeds: HashMap::new(),
                ever_up: false,
                requests: VecDeque::new(),
                outbox: Outbox::default(),
                sent: HashMap::new(),
                unanswered_bytes: 0,
                stuck: Stuck::default(),
            }),
            wake: Notify::new(),
            busy: Notify::new(),
            hurry: Notify::new(),
            sweeping: AtomicBool::new(true),
            answered: Notify::new(),
            status: watch::Sender::new(Status::Connecting),
            closing: watch::Sender::new(false),
            over: watch::Sender::new(false),
            connection: AtomicU64::new(0),
            node: AtomicU32::new(0),
            correlation: AtomicU64::new(1),
            received_ms: AtomicU64::new(0),
            refused_settles: AtomicU64::new(0),
        }
    }

    /// The state. A panic elsewhere while it was held cannot have left it half
    /// changed in a way that matters more than going on does.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Number of the connection that stands; 0 = none. Deliveries of another
    /// one are stale.
    pub fn connection(&self) -> u64 {
        self.connection.load(Ordering::Acquire)
    }

    /// New work can go elsewhere than to the server at hand.
    pub(super) fn has_elsewhere(&self) -> bool {
        self.servers.len() > 1 || self.fallback.is_some()
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    /// The node that new work goes to; 0 = none at this moment.
    pub fn node(&self) -> u32 {
        self.node.load(Ordering::Acquire)
    }

    pub(super) fn next_correlation(&self) -> u64 {
        self.correlation.fetch_add(1, Ordering::Relaxed)
    }

    /// Tells the writer that there is work.
    pub(super) fn work(&self) {
        self.wake.notify_one();
        if !self.sweeping.load(Ordering::Acquire) {
            self.busy.notify_one();
        }
    }

    pub(super) fn note_received(&self) {
        let ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.received_ms.store(ms, Ordering::Relaxed);
    }

    /// How long nothing has arrived.
    pub(super) fn silence(&self) -> Duration {
        let last = Duration::from_millis(self.received_ms.load(Ordering::Relaxed));
        self.start.elapsed().saturating_sub(last)
    }

    pub(super) fn count_refused_settles(&self, count: u64) {
        self.refused_settles.fetch_add(count, Ordering::Relaxed);
    }

    /// Unconfirmed settles that the server refused as stale, so far.
    pub fn refused_settles(&self) -> u64 {
        self.refused_settles.load(Ordering::Relaxed)
    }

    /// A connection stands: new work flows.
    pub(super) fn came_up(&self, granted: Granted) -> u64 {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let connection = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let mut state = self.lock();
        state.phase = Phase::Up;
        state.ever_up = true;
        state.window_bytes = granted.window_bytes as usize;
        state.stuck.left = false;
        state.unanswered_bytes = 0;
        self.connection.store(connection, Ordering::Release);
        self.node.store(granted.node, Ordering::Release);
        self.check_node(&mut state);
        drop(state);
        self.note_received();
        self.status.send_replace(Status::Up(granted));
        self.work();
        connection
    }

    /// An attempt is made at this address.
    pub(super) fn trying(&self, server: Arc<str>) {
        self.lock().server = server;
    }

    /// The attempts of this round so far failed like this; `over`: each of the
    /// servers had its turn.
    pub(super) fn attempts_failed(&self, failures: &[ConnectError], over: bool) {
        let Some(error) = ConnectError::of_round(failures) else {
            return;
        };
        let cause = error.to_string();
        {
            let mut state = self.lock();
            state.phase = Phase::Down { cause };
            self.give_up_straight(&mut state);
        }
        if over {
            self.status.send_replace(Status::Failed(error));
        }
    }

    /// The connection is gone: what was written and not answered is unknown,
    /// but for reads, which are asked again; what was not written stays queued.
    pub(super) fn went_down(&self, cause: String) {
        self.connection.store(0, Ordering::Release);
        self.node.store(0, Ordering::Release);
        let mut state = self.lock();
        let reason = Reason::ConnectionLost {
            server: state.server(),
            cause: cause.clone(),
        };
        let unknown = Error::unknown(reason.clone());
        state.phase = Phase::Down { cause };
        state.unanswered_bytes = 0;
        state.control.clear();
        state.credits.clear();
        for feed in state.feeds.values_mut() {
            feed.reset();
        }
        for answer in state.settles.drain() {
            let _ = answer.send(Err(Error::failed(reason.clone()).into()));
        }
        let mut sent: Vec<_> = state.sent.drain().collect();
        // Asked again in the order they were first asked.
        sent.sort_unstable_by_key(|(correlation, _)| std::cmp::Reverse(*correlation));
        let mut again = Vec::new();
        for (correlation, sent) in sent {
            match sent {
                // Its producer's number tells it from another one.
                Sent::Publish(publish) if publish.batch.number.is_some() => {
                    again.push(publish.batch);
                }
                Sent::Publish(publish) => publish.fail(&unknown),
                Sent::Settle(settle) => settle.resolve(|_| Err(unknown.clone().into())),
                Sent::Request(request) => match request.lost(correlation, &unknown) {
                    Some(again) => state.requests.push_front(again),
                    None => continue,
                },
                // The feed was reset above.
                Sent::Subscribe(_) => continue,
            }
        }
        if !again.is_empty() {
            // In front of what has not left yet, in their own order.
            again.reverse();
            again.extend(state.outbox.take_all());
            for frame in again {
                state.outbox.adopt(frame);
            }
        }
        self.hand_over(&mut state);
        if self.fallback.is_some() {
            // Nobody knows when there is a connection again.
            let requests = state.requests.drain(..);
            requests.for_each(|request| request.give_up(reason.clone()));
        }
        drop(state);
        self.answered.notify_waiters();
    }

    /// Waits until nothing is queued or unanswered, at most `timeout`, then ends.
    pub async fn close(&self, timeout: Duration) {
        let idle = async {
            loop {
                let answered = self.answered.notified();
                tokio::pin!(answered);
                answered.as_mut().enable();
                if self.lock().is_idle() {
                    return;
                }
                answered.await;
            }
        };
        // Whatever is left when the time is up ends as the link does.
        let _ = tokio::time::timeout(timeout, idle).await;
        self.end();
    }

    /// Waits until the link task is over, having written what was queued.
    pub async fn wait_ended(&self) {
        let mut ended = self.over.subscribe();
        // The sender is part of this very value, so it cannot be gone.
        let _ = ended.wait_for(|over| *over).await;
    }

    /// Takes no more work; the link task writes what is queued and ends.
    pub(super) fn end(&self) {
        self.lock().closed = true;
        self.wake.notify_one();
        self.closing.send_replace(true);
    }

    /// The link task is over: resolves everything that is left.
    pub(super) fn ended(&self) {
        self.went_down(super::writer::CLOSED.to_owned());
        let closed = Error::failed(Reason::Closed);
        let mut state = self.lock();
        state.closed = true;
        for request in state.requests.drain(..) {
            request.resolve(Err(closed.clone()));
        }
        let frames = state.outbox.take_all().into_iter();
        frames.for_each(QueuedPublish::closed);
        state.feeds.drain().for_each(|(_, feed)| feed.closed());
        drop(state);
        self.over.send_replace(true);
    }
}

impl From<Reason> for SettleError {
    fn from(reason: Reason) -> Self {
        SettleError::Request(Error::failed(reason))
    }
}
