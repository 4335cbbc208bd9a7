//! The client: its connections and the routes it remembers.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Semaphore,
    time::{timeout_at, Instant},
};
use wire::error::ErrorCode;

use crate::{
    config::{Builder, Config, MAX_ROUTES},
    error::{ConnectError, Error, Reason},
    link::{Shared, Status},
    links::Links,
    publish::{Confirmed, Publisher},
    record::Record,
    route::Route,
    servers::Servers,
};

/// A client of one server, or of a cluster through any of its nodes. Cloning it
/// is cheap and shares its connections; they end when the last clone, publisher
/// and subscription is dropped.
///
/// A lost connection is made again by itself, to the next of the servers that
/// it was given, with the pauses of [`Builder::backoff`]; of several servers, one
/// that does nothing but put off (it may be cut off from the others) is left after
/// two seconds, later and later if the next ones are no better. What was not sent yet
/// waits for it until its deadline, what was sent and not answered is
/// [unknown](Error::Unknown) and never sent again, and subscriptions go on.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use tidegate_client::Client;
/// let client = Client::connect("127.0.0.1:7420").await?;
/// client.declare("greetings").await?;
/// let confirmed = client.publish("greetings", "hello").await?;
/// println!("{confirmed}");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: Arc<Config>,
    /// The addresses as it was told them, for messages.
    server: String,
    links: Arc<Links>,
    /// Names resolved; cleared when it reaches its bound.
    routes: Mutex<HashMap<String, Arc<Route>>>,
    window: Arc<Semaphore>,
}

impl Client {
    /// Connects to the first of `servers` (`HOST:PORT`, several separated by
    /// commas) that answers, with the default settings. Must run inside a tokio
    /// runtime with time and I/O enabled.
    ///
    /// # Errors
    /// [`ConnectError`] when the first attempt at each fails.
    pub async fn connect(servers: impl Into<Servers>) -> Result<Self, ConnectError> {
        Client::builder().connect(servers).await
    }

    /// Settings other than the defaults.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) async fn open(config: Config, servers: Servers) -> Result<Self, ConnectError> {
        let give_up = Instant::now() + config.patience;
        let config = Arc::new(config);
        let links = Links::start(config.clone(), &servers);
        let mut status = links.home().status();
        let granted = loop {
            let failure = match &*status.borrow_and_update() {
                Status::Up(granted) => break granted.clone(),
                Status::Failed(error) => Some(error.clone()),
                Status::Connecting => None,
            };
            match failure {
                None => {
                    // The link outlives this wait, so its status cannot close.
                    let _ = status.changed().await;
                }
                Some(error) if Instant::now() >= give_up => return Err(error),
                Some(error) => {
                    if timeout_at(give_up, status.changed()).await.is_err() {
                        return Err(error);
                    }
                }
            }
        };
        links.came_up(granted);
        Ok(Client {
            inner: Arc::new(Inner {
                window: Arc::new(Semaphore::new(config.publish_window_bytes as usize)),
                config,
                server: servers.to_string(),
                links,
                routes: Mutex::default(),
            }),
        })
    }

    /// The addresses it was told to connect to, separated by commas.
    pub fn server(&self) -> &str {
        &self.inner.server
    }

    /// How many shards the server has.
    pub fn shards(&self) -> u16 {
        self.inner.links.shards()
    }

    /// A publisher to the queue called `name`.
    ///
    /// # Errors
    /// `UnknownQueue`, or as any request.
    pub async fn publisher(&self, name: &str) -> Result<Publisher, Error> {
        let route = self.route(name).await?;
        Ok(Publisher::new(self.clone(), route))
    }

    /// Publishes one record and waits for its confirm. A [`Publisher`] does
    /// it with fewer look-ups, and many at once.
    ///
    /// # Errors
    /// [`Error`]: failed, or unknown.
    pub async fn publish<'a>(
        &self,
        name: &str,
        record: impl Into<Record<'a>>,
    ) -> Result<Confirmed, Error> {
        let record = record.into();
        let first = self.publisher(name).await?.publish(record).await;
        match first {
            // The remembered queue is gone; one of that name may stand again.
            Err(error @ Error::Failed { .. }) if error.code() == Some(ErrorCode::UnknownQueue) => {
                self.forget_route(name);
                self.publisher(name).await?.publish(record).await
            }
            other => other,
        }
    }

    /// True while every connection in use stands, but for those to leaders, whose work
    /// the others do meanwhile. A lost one is made again by itself; this is for telling
    /// people about it.
    pub fn is_connected(&self) -> bool {
        let mut links = self.links().all_base().into_iter();
        links.all(|link| link.connection() != 0)
    }

    /// The nodes that connections lead to at this moment, each once, in order; of a
    /// server that is alone, its number.
    pub fn nodes(&self) -> Vec<u32> {
        let links = self.links().all();
        let mut nodes: Vec<u32> = links.iter().map(|link| link.node()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes.retain(|node| *node != 0);
        nodes
    }

    /// Settles without confirm that the server refused, so far: their leases
    /// had run out, or their connection was lost first. Their records come again.
    pub fn refused_settles(&self) -> u64 {
        let links = self.links().all().into_iter();
        links.map(|link| link.refused_settles()).sum()
    }

    /// Waits until everything queued is sent and everything sent is answered,
    /// at most `timeout`, then ends all connections. What is left then is
    /// failed (not sent) or unknown (sent). Later calls fail.
    pub async fn close(&self, timeout: Duration) {
        let until = Instant::now() + timeout;
        let links = self.links().all();
        for link in &links {
            let left = until.saturating_duration_since(Instant::now());
            link.close(left).await;
        }
        for link in &links {
            link.wait_ended().await;
        }
        self.inner.window.close();
    }

    pub(crate) fn config(&self) -> &Config {
        &self.inner.config
    }

    pub(crate) fn publish_window(&self) -> Arc<Semaphore> {
        self.inner.window.clone()
    }

    pub(crate) fn links(&self) -> &Links {
        &self.inner.links
    }

    pub(crate) fn home(&self) -> &Arc<Shared> {
        self.links().home()
    }

    pub(crate) fn link_of(&self, queue: &crate::queue::Queue, partition: u16) -> Arc<Shared> {
        self.links()
            .base(queue.shards.get(usize::from(partition)).copied())
    }

    async fn route(&self, name: &str) -> Result<Arc<Route>, Error> {
        if let Some(route) = self.routes().get(name) {
            return Ok(route.clone());
        }
        let queue = self.locate(name).await?;
        let route = Route::new(&queue).map(Arc::new).ok_or_else(|| {
            Error::failed(Reason::BadAnswer {
                server: self.server().to_owned(),
                cause: "a queue without partitions".to_owned(),
            })
        })?;
        let mut routes = self.routes();
        if routes.len() >= MAX_ROUTES {
            routes.clear();
        }
        routes.insert(name.to_owned(), route.clone());
        Ok(route)
    }

    pub(crate) fn forget_route(&self, name: &str) {
        self.routes().remove(name);
    }

    fn routes(&self) -> MutexGuard<'_, HashMap<String, Arc<Route>>> {
        lock(&self.inner.routes)
    }
}

/// A panic elsewhere cannot have left it half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
