//! A subscription: the deliveries of all partitions of a queue as one stream.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{
        atomic::{AtomicU32, Ordering},
        Arc,
    },
    task::{ready, Context, Poll, Waker},
    time::Duration,
};

use futures_core::Stream;
use tokio::{
    sync::mpsc,
    time::{timeout_at, Instant},
};
use wire::message::Unsubscribed;

use crate::{
    client::Client,
    delivery::{Delivery, Origin},
    error::{Error, Reason, SubscribeError},
    link::{Fed, PendingReply, Seat},
    queue::Queue,
};

/// Subscription ids, unique in the process and so on every connection.
static NEXT_ID: AtomicU32 = AtomicU32::new(1);

/// How much may be on its way to a subscription that the application has not
/// taken from the stream yet, per partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubscribeOptions {
    /// Default 256, at least 1.
    pub credit_records: u32,
    /// Encoded record bytes; one record may overdraw it. Default 4 MiB, at least 1.
    pub credit_bytes: u64,
    /// The stream ends after this many deliveries, and no partition is given
    /// more credit than that. Default: none, it goes on.
    pub max_deliveries: Option<u64>,
}

impl Default for SubscribeOptions {
    fn default() -> Self {
        SubscribeOptions {
            credit_records: 256,
            credit_bytes: 4 << 20,
            max_deliveries: None,
        }
    }
}

/// The deliveries of a queue, all partitions in one [`Stream`].
///
/// Taking a delivery from the stream gives its credit back, settled or not,
/// so an application bounds its unsettled deliveries by how fast it takes
/// them. After a reconnect it subscribes again by itself; deliveries of the
/// lost connection that were not taken yet are skipped, since they come again.
/// In a cluster each partition's deliveries come
/// [straight](crate::Builder::leader_aware) from the node that leads it.
///
/// Dropping it ends it: the server gives every record that is still leased
/// through it back to the queue, at once. Settles given before are sent first.
///
/// ```no_run
/// # async fn example(client: tidegate_client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let mut deliveries = client.subscribe("orders").await?;
/// while let Some(delivery) = deliveries.next().await {
///     let delivery = delivery?;
///     println!("{}", String::from_utf8_lossy(delivery.payload()));
///     delivery.ack();
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Subscription {
    /// Keeps the connections.
    _client: Client,
    receiver: mpsc::UnboundedReceiver<Fed>,
    parts: HashMap<u32, Part>,
    /// Deliveries that the stream may still give.
    remaining: u64,
}

/// One partition's share.
#[derive(Debug)]
struct Part {
    seat: Arc<Seat>,
    credit_bytes: u64,
    /// Connection that the next three count for.
    connection: u64,
    /// Records with credit that the stream has not given yet.
    outstanding: u64,
    /// Taken, and their credit not given back yet.
    taken_records: u32,
    taken_bytes: u64,
}

impl Client {
    /// Subscribes to all partitions of the queue called `name`.
    ///
    /// # Errors
    /// `UnknownQueue`, a limit of the server, or as any request.
    pub async fn subscribe(&self, name: &str) -> Result<Subscription, Error> {
        self.subscribe_with(name, SubscribeOptions::default()).await
    }

    /// The same with stated credit.
    ///
    /// # Errors
    /// As [`Client::subscribe`].
    pub async fn subscribe_with(
        &self,
        name: &str,
        options: SubscribeOptions,
    ) -> Result<Subscription, Error> {
        let queue: Queue = self.locate(name).await?;
        let remaining = options.max_deliveries.unwrap_or(u64::MAX);
        let most = u32::try_from(remaining).unwrap_or(u32::MAX);
        let credit = (
            options.credit_records.min(most).max(1),
            options.credit_bytes.max(1),
        );
        let deadline = Instant::now() + self.config().request_timeout;
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut subscription = Subscription {
            _client: self.clone(),
            receiver,
            parts: HashMap::new(),
            remaining,
        };
        let mut answers = Vec::new();
        for (partition, shard) in (0_u16..).zip(&queue.shards) {
            let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
            let place = (queue.queue_id, partition);
            let link = self.links().to_lead(place.0, place.1, Some(*shard));
            let seat = Arc::new(Seat::new(link.clone(), credit.0));
            answers.push(link.subscribe(id, place, seat.clone(), credit.1, sender.clone()));
            let part = Part {
                seat,
                credit_bytes: credit.1,
                connection: 0,
                outstanding: 0,
                taken_records: 0,
                taken_bytes: 0,
            };
            subscription.parts.insert(id, part);
        }
        for answer in answers {
            let timeout = Error::failed(Reason::Timeout {
                server: self.server().to_owned(),
            });
            let answer = timeout_at(deadline, answer).await.map_err(|_| timeout)?;
            // Dropping the subscription on an error takes the others back.
            answer.unwrap_or_else(|_| Err(Error::failed(Reason::Closed)))?;
        }
        Ok(subscription)
    }
}

impl Subscription {
    /// The next delivery. `None` after the stated maximum, or when no partition
    /// is left: each was ended by the server and reported by an error before.
    pub async fn next(&mut self) -> Option<Result<Delivery, SubscribeError>> {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// Ends it and waits until the server has given its leased records back,
    /// at most `timeout` (per partition, on a connection that answers late).
    pub async fn close(mut self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        for reply in self.end() {
            let answer = reply.read::<Unsubscribed, _>(|_| ());
            // Without an answer the end of the connection gives them back.
            let _ = timeout_at(deadline, answer).await;
        }
    }

    fn end(&mut self) -> Vec<PendingReply> {
        self.parts
            .drain()
            .filter_map(|(id, part)| part.seat.leave()?.unsubscribe(id))
            .collect()
    }

    /// Notes a delivery as taken and gives credit back, some at a time.
    fn taken(&mut self, origin: &Origin, bytes: u64) {
        let remaining = self.remaining;
        let Some(part) = self.parts.get_mut(&origin.subscription) else {
            return;
        };
        let mut credit_records = part.seat.credit_records();
        if part.connection != origin.connection {
            part.connection = origin.connection;
            part.outstanding = u64::from(credit_records);
            part.taken_records = 0;
            part.taken_bytes = 0;
        }
        part.outstanding = part.outstanding.saturating_sub(1);
        part.taken_records += 1;
        part.taken_bytes += bytes;
        if remaining < u64::from(credit_records) {
            credit_records = remaining.max(1) as u32;
            part.seat.limit_credit(credit_records);
        }
        let most = remaining.saturating_sub(part.outstanding);
        let records = u32::try_from(most).map_or(part.taken_records, |m| m.min(part.taken_records));
        let records_due = records > 0 && records.saturating_mul(2) >= credit_records;
        // Bytes go back also when no more records may: those with credit need them.
        let bytes_due = part.taken_bytes.saturating_mul(2) >= part.credit_bytes;
        if !records_due && !bytes_due {
            return;
        }
        let bytes = std::mem::take(&mut part.taken_bytes);
        part.taken_records -= records;
        part.outstanding += u64::from(records);
        let (link, connection) = (&origin.link, origin.connection);
        link.give_credit(connection, origin.subscription, records, bytes);
    }

    /// The next delivery, if it is here already.
    pub fn try_next(&mut self) -> Option<Result<Delivery, SubscribeError>> {
        let mut context = Context::from_waker(Waker::noop());
        match Pin::new(self).poll_next(&mut context) {
            Poll::Ready(next) => next,
            Poll::Pending => None,
        }
    }
}

impl Stream for Subscription {
    type Item = Result<Delivery, SubscribeError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        while !self.parts.is_empty() && self.remaining > 0 {
            match ready!(self.receiver.poll_recv(context)) {
                Some(Fed::Delivery(delivery)) if delivery.is_current() => {
                    self.remaining -= 1;
                    self.taken(delivery.origin(), delivery.encoded_len());
                    return Poll::Ready(Some(Ok(delivery)));
                }
                // Its connection is gone and its lease with it: it comes again.
                Some(Fed::Delivery(_)) => {}
                Some(Fed::Damaged { origin, len, error }) => {
                    self.taken(&origin, u64::from(len));
                    return Poll::Ready(Some(Err(error)));
                }
                Some(Fed::Ended {
                    subscription,
                    error,
                }) => {
                    self.parts.remove(&subscription);
                    return Poll::Ready(Some(Err(error)));
                }
                // The links are closed.
                None => self.parts.clear(),
            }
        }
        Poll::Ready(None)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // Sent without waiting for the answers.
        drop(self.end());
    }
}
