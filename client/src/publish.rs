//! Publishing: one record, a batch, or many at once under a window.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        atomic::{AtomicU32, Ordering},
        Arc,
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    sync::oneshot,
    time::{timeout_at, Instant},
};
use wire::{error::WireError, vocabulary::Boundary};

use crate::{
    client::Client,
    config::RECORD_OVERHEAD_BYTES,
    error::{Error, Reason},
    link::{PublishKey, Shared},
    places::UnderWay,
    producer::{Numbers, ProducerId},
    record::{Batch, Record},
    route::Route,
};

/// What a confirm says: the record, or the batch from `offset` on, met
/// `boundary` on `copies` copies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confirmed {
    pub queue_id: u64,
    pub partition: u16,
    /// Generation of the partition's history.
    pub generation: u32,
    /// Offset of the record, or of the batch's first; the others follow it.
    pub offset: u64,
    /// Records confirmed: 1, or the batch's.
    pub count: u32,
    /// The boundary that was met: written survives a process crash, durable a power cut.
    pub boundary: Boundary,
    /// How many copies met it, the owner among them.
    pub copies: u8,
}

impl fmt::Display for Confirmed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "offset={} generation={} partition={} boundary={} copies={}",
            self.offset,
            self.generation,
            self.partition,
            self.boundary.name(),
            self.copies
        )
    }
}

/// A confirm under way; resolves by the publish's deadline and a little
/// grace, in [`Confirmed`], failed or unknown. The record is sent whether or
/// not this is awaited.
#[derive(Debug)]
#[must_use = "the record is sent anyway; await this to learn what became of it"]
pub struct Confirm {
    receiver: oneshot::Receiver<Result<Confirmed, Error>>,
}

impl Future for Confirm {
    type Output = Result<Confirmed, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.receiver)
            .poll(context)
            // The link resolves every waiter it has; without a link nothing was sent.
            .map(|answer| answer.unwrap_or_else(|_| Err(Error::failed(Reason::Closed))))
    }
}

/// Publishes to one queue. Made by [`Client::publisher`]; cheap to keep and to
/// share behind an `Arc`. It names the queue by id: after a delete its
/// publishes fail with `UnknownQueue`, also when a queue of that name is
/// declared again.
///
/// **Partition.** A record with a key goes to partition `crc32c(key) mod
/// partitions`, so one key stays in one partition; one without goes round.
///
/// **Order.** Records given one after the other to the same partition get
/// ascending offsets, as long as none of them fails, no connection is lost, and
/// the server [puts none off](crate::Builder::retry_publishes) while others are
/// under way.
///
/// ```no_run
/// # async fn example(client: tidegate_client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use tidegate_client::Record;
/// let publisher = client.publisher("orders").await?;
/// let mut confirms = Vec::new();
/// for number in 0..1000 {
///     let payload = format!("order {number}");
///     // Waits only while the window is full.
///     confirms.push(publisher.send(Record::new(&payload).key("customer-7")).await?);
/// }
/// for confirm in confirms {
///     match confirm.await {
///         Ok(confirmed) => println!("{confirmed}"),
///         Err(error) if error.is_unknown() => eprintln!("perhaps: {error}"),
///         Err(error) => eprintln!("not published: {error}"),
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Publisher {
    client: Client,
    route: Arc<Route>,
    durable: bool,
    deadline: Duration,
    numbers: Option<Arc<Numbers>>,
    turn: AtomicU32,
}

impl Publisher {
    pub(crate) fn new(client: Client, route: Arc<Route>) -> Self {
        let deadline = client.config().publish_deadline;
        Publisher {
            client,
            route,
            durable: false,
            deadline,
            numbers: None,
            turn: AtomicU32::new(0),
        }
    }

    /// Asks for confirms at durable, whatever the queue's mode.
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// By then each publish is confirmed, failed or unknown; counted from the
    /// call that sends it. At least 1 ms; a local grace of 2 s covers an
    /// answer on its way.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline.max(Duration::from_millis(1));
        self
    }

    /// Makes it an idempotent producer: a publish whose connection is lost, or whose
    /// outcome the server does not know, is sent again until its deadline, and the
    /// server stores it once. What remains unknown is what could not be sent again in
    /// time. One publisher per [`ProducerId`]: two would use the same numbers.
    pub fn idempotent(mut self, producer: ProducerId) -> Self {
        let numbers = Numbers::new(producer, self.route.partitions());
        self.numbers = Some(Arc::new(numbers));
        self
    }

    /// Id of the queue.
    pub fn queue_id(&self) -> u64 {
        self.route.queue_id()
    }

    /// How many partitions the queue has.
    pub fn partitions(&self) -> u16 {
        self.route.partitions()
    }

    /// The partition that records of `key` (not empty) go to.
    pub fn partition_of(&self, key: &[u8]) -> u16 {
        self.route.partition_of(key)
    }

    /// Publishes one record and waits for its confirm.
    ///
    /// # Errors
    /// [`Error`]: failed, or unknown.
    pub async fn publish<'a>(&self, record: impl Into<Record<'a>>) -> Result<Confirmed, Error> {
        self.send(record).await?.await
    }

    /// Publishes one record; waits while the publish window is full, and
    /// returns its confirm to come. Records sent while the connection is busy
    /// travel in one frame.
    ///
    /// # Errors
    /// Failed: the record is above a limit, the window stayed full until the
    /// deadline, or the client is closed.
    pub async fn send<'a>(&self, record: impl Into<Record<'a>>) -> Result<Confirm, Error> {
        let record = record.into();
        let mut bytes = Vec::with_capacity(record.encoded_len().min(1 << 24));
        record
            .encode(&mut bytes)
            .map_err(|error| Error::failed(Reason::Invalid(error)))?;
        let partition = self.choose(record.key_bytes());
        self.send_encoded(partition, &bytes, 1, false).await
    }

    /// Publishes a batch in one frame to one partition: the one of its first
    /// record's key, or the next in turn.
    ///
    /// # Errors
    /// As [`Publisher::send`]; an empty batch is refused.
    pub async fn send_batch(&self, batch: &Batch) -> Result<Confirm, Error> {
        let partition = self.choose(batch.first_key());
        self.send_batch_to(partition, batch).await
    }

    /// Publishes a batch in one frame to `partition`.
    ///
    /// # Errors
    /// As [`Publisher::send`]; an empty batch and an unknown partition are refused.
    pub async fn send_batch_to(&self, partition: u16, batch: &Batch) -> Result<Confirm, Error> {
        if batch.is_empty() {
            return Err(Error::failed(Reason::Invalid(WireError::BadRecord {
                index: 0,
                reason: "a batch holds at least one record",
            })));
        }
        if partition >= self.partitions() {
            return Err(Error::failed(Reason::Limit(
                "the queue has no partition of that number",
            )));
        }
        self.send_encoded(partition, batch.bytes(), batch.len(), true)
            .await
    }

    fn choose(&self, key: &[u8]) -> u16 {
        if key.is_empty() {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            (turn % u32::from(self.partitions())) as u16
        } else {
            self.partition_of(key)
        }
    }

    async fn send_encoded(
        &self,
        partition: u16,
        bytes: &[u8],
        count: u32,
        alone: bool,
    ) -> Result<Confirm, Error> {
        let deadline = Instant::now() + self.deadline;
        let window = self.client.publish_window();
        let cost = bytes.len() + RECORD_OVERHEAD_BYTES;
        let share = u32::try_from(cost)
            .unwrap_or(u32::MAX)
            .min(self.client.config().publish_window_bytes);
        let permit = timeout_at(deadline, window.acquire_many_owned(share))
            .await
            .map_err(|_| {
                Error::failed(Reason::NotSent {
                    server: self.client.server().to_owned(),
                    cause: "the publish window stayed full".to_owned(),
                })
            })?
            .map_err(|_| Error::failed(Reason::Closed))?;
        let key = PublishKey {
            queue_id: self.route.queue_id(),
            partition,
            durable: self.durable,
            deadline: self.deadline,
            numbers: self.numbers.clone(),
        };
        let (link, under_way) = self.enter(partition, deadline).await?;
        let held = (permit, under_way);
        let receiver = link.publish(key, bytes, count, deadline, alone, held);
        Ok(Confirm { receiver })
    }

    /// The connection for the next record of a partition. Where that is another one
    /// than for those under way, these are awaited first: so they stay in order.
    async fn enter(
        &self,
        partition: u16,
        deadline: Instant,
    ) -> Result<(Arc<Shared>, UnderWay), Error> {
        let Some(lane) = self.route.lane(partition) else {
            return Err(Error::failed(Reason::Limit(
                "the queue has no partition of that number",
            )));
        };
        let try_enter = || {
            let (queue_id, shard) = (self.route.queue_id(), self.route.shard(partition));
            let link = self.client.links().to_lead(queue_id, partition, shard);
            let under_way = lane.enter(link.id())?;
            Some((link, under_way))
        };
        if let Some(entered) = try_enter() {
            return Ok(entered);
        }
        loop {
            let emptied = lane.emptied.notified();
            tokio::pin!(emptied);
            emptied.as_mut().enable();
            if let Some(entered) = try_enter() {
                return Ok(entered);
            }
            timeout_at(deadline, emptied).await.map_err(|_| {
                Error::failed(Reason::NotSent {
                    server: self.client.server().to_owned(),
                    cause: "records before it wait for their answers".to_owned(),
                })
            })?;
        }
    }
}
