//! What a client can be told before it connects. Every bound of the client is here.

use std::time::Duration;

use crate::{client::Client, error::ConnectError, servers::Servers};

/// Settings of a [`Client`], with a stated default for each.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// let client = tidegate_client::Client::builder()
///     .name("billing")
///     .publish_window_bytes(4 << 20)
///     .backoff(Duration::from_millis(20), Duration::from_secs(2))
///     .connect("127.0.0.1:7420")
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Builder {
    pub(crate) config: Config,
}

#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub name: String,
    pub publish_window_bytes: u32,
    pub receive_window_bytes: u32,
    pub request_timeout: Duration,
    pub publish_deadline: Duration,
    pub connect_timeout: Duration,
    pub patience: Duration,
    pub backoff_min: Duration,
    pub backoff_max: Duration,
    pub heartbeat: Duration,
    pub shard_aware: bool,
    pub retry_publishes: bool,
    pub leader_aware: bool,
}

/// Most bytes of records that are put together into one publish frame.
pub(crate) const BATCH_BYTES: usize = 256 * 1024;
/// Most requests (publishes, settles and credit aside) that wait to be sent on one
/// connection; those sent are bounded by what the server answers and their timeout.
pub(crate) const MAX_REQUESTS: usize = 4096;
/// Most queue names remembered with their places.
pub(crate) const MAX_ROUTES: usize = 4096;
/// Most leaders of partitions remembered.
pub(crate) const MAX_PLACES: usize = 65_536;
/// Most connections to leaders.
pub(crate) const MAX_LEADERS: usize = 256;
/// How long a subscription waits for the connection to a leader before it goes through
/// the node that the client is connected to.
pub(crate) const STRAIGHT_PATIENCE: Duration = Duration::from_secs(2);
/// How often, from the last success on, a subscription lets itself be sent to another node
/// before it stays where it is.
pub(crate) const MAX_SENT_ON: u32 = 3;
/// Memory a queued record costs beside its bytes, counted into the publish window.
pub(crate) const RECORD_OVERHEAD_BYTES: usize = 128;
/// How long after its deadline a sent publish may still be answered by the
/// server before the client calls it unknown.
pub(crate) const ANSWER_GRACE: Duration = Duration::from_secs(2);
/// Pause before a publish that the server put off is sent again; doubled with
/// each time, up to the longest.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(20);
pub(crate) const LONGEST_RETRY_PAUSE: Duration = Duration::from_millis(250);
/// Of several servers, one that only puts things off for so long is left for the next;
/// doubled each time that the next ones are no better, up to the longest.
pub(crate) const STUCK: Duration = Duration::from_secs(2);
pub(crate) const LONGEST_STUCK: Duration = Duration::from_secs(64);
/// How long a connection that the server drains is kept for the answers.
pub(crate) const DRAIN_TIME: Duration = Duration::from_secs(10);

impl Config {
    /// Publishes and subscribes may go by connections of their own to leaders.
    pub fn goes_straight(&self) -> bool {
        self.leader_aware && self.shard_aware
    }
}

impl Default for Builder {
    fn default() -> Self {
        Builder {
            config: Config {
                name: concat!("tidegate-client/", env!("CARGO_PKG_VERSION")).to_owned(),
                publish_window_bytes: 8 << 20,
                receive_window_bytes: 16 << 20,
                request_timeout: Duration::from_secs(30),
                publish_deadline: Duration::from_secs(30),
                connect_timeout: Duration::from_secs(5),
                patience: Duration::ZERO,
                backoff_min: Duration::from_millis(50),
                backoff_max: Duration::from_secs(5),
                heartbeat: Duration::from_secs(5),
                shard_aware: true,
                retry_publishes: true,
                leader_aware: true,
            },
        }
    }
}

impl Builder {
    /// Name of the program, for the server's log. Default: this crate and its
    /// version. Cut to 200 bytes.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        let mut name: String = name.into();
        let mut end = name.len().min(200);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        name.truncate(end);
        self.config.name = name;
        self
    }

    /// Bytes of publishes that may be queued or unanswered in this client,
    /// all connections together; above it publishing waits. Default 8 MiB, at
    /// least 64 KiB. One record larger than the window takes all of it. The
    /// server's own window per connection is obeyed besides.
    pub fn publish_window_bytes(mut self, bytes: u32) -> Self {
        self.config.publish_window_bytes = bytes.max(64 * 1024);
        self
    }

    /// Bytes of deliveries the server may have in flight towards this client
    /// per connection. Default 16 MiB, at least 64 KiB.
    pub fn receive_window_bytes(mut self, bytes: u32) -> Self {
        self.config.receive_window_bytes = bytes.max(64 * 1024);
        self
    }

    /// How long a request other than a publish waits for its answer, queueing
    /// and reconnecting included. Default 30 s.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.config.request_timeout = timeout;
        self
    }

    /// Deadline of publishes that name none. Default 30 s.
    pub fn publish_deadline(mut self, deadline: Duration) -> Self {
        self.config.publish_deadline = deadline;
        self
    }

    /// Bound on one attempt to connect, hello included. Default 5 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.config.connect_timeout = timeout;
        self
    }

    /// How long [`Builder::connect`] goes on trying when the first attempt (of
    /// several servers: the first round) fails. Default: not at all.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.config.patience = patience;
        self
    }

    /// Pause before a reconnect: `min`, doubled with each failure up to `max`,
    /// each time a random share between one half and all of it. It starts
    /// again at `min` after a connection that lasted at least `max`. Of several
    /// servers the next one is tried at once, with a pause after each round.
    /// Attempts go on until the client is dropped. Default 50 ms to 5 s.
    pub fn backoff(mut self, min: Duration, max: Duration) -> Self {
        self.config.backoff_min = min.max(Duration::from_millis(1));
        self.config.backoff_max = max.max(self.config.backoff_min);
        self
    }

    /// A connection silent for this long is pinged; silent for three times as
    /// long it counts as lost. Default 5 s, at least 10 ms.
    pub fn heartbeat(mut self, heartbeat: Duration) -> Self {
        self.config.heartbeat = heartbeat.max(Duration::from_millis(10));
        self
    }

    /// One connection per shard that owns a partition in use, each request
    /// sent straight to the owner (default), or one connection for everything,
    /// the server passing requests on.
    pub fn shard_aware(mut self, on: bool) -> Self {
        self.config.shard_aware = on;
        self
    }

    /// In a cluster, once a node tells who leads a partition, publishes to it and its
    /// deliveries go straight there and come straight from there, by a connection of
    /// their own (default), or always through the node that the client is connected to.
    /// Where that connection cannot be made, they go through that node as well. Needs
    /// [shard awareness](Builder::shard_aware).
    pub fn leader_aware(mut self, on: bool) -> Self {
        self.config.leader_aware = on;
        self
    }

    /// Sends a publish again, until its deadline, that the server answered with
    /// `Unavailable` and the word that nothing was done: an election is under
    /// way, a node is starting or stopping (default). Otherwise that is the
    /// answer. What was sent and whose outcome is unknown is never sent again.
    pub fn retry_publishes(mut self, on: bool) -> Self {
        self.config.retry_publishes = on;
        self
    }

    /// Connects to the first of `servers` that answers (`HOST:PORT`, several
    /// separated by commas or in a list), and later to the next when that one
    /// is gone or going away. Must run inside a tokio runtime with time and
    /// I/O enabled.
    ///
    /// # Errors
    /// [`ConnectError`] when none of them answers within the
    /// [patience](Builder::patience).
    pub async fn connect(self, servers: impl Into<Servers>) -> Result<Client, ConnectError> {
        Client::open(self.config, servers.into()).await
    }
}
