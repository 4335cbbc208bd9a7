//! A delivered record, and settling it.

use std::{
    fmt,
    future::Future,
    ops::Range,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::sync::oneshot;
use wire::{
    message::{ArchivedDelivery, SettleItem, DELIVERY_DURABLE, DELIVERY_REDELIVERED},
    record::{Record, RECORD_HEADER_BYTES},
    vocabulary::{Boundary, SettleKind},
};

use crate::{
    error::{Reason, SettleError},
    headers::HeadersView,
    link::{SettleKey, Shared},
};

/// What all deliveries of one frame share.
#[derive(Debug)]
pub(crate) struct Origin {
    pub link: Arc<Shared>,
    pub connection: u64,
    pub subscription: u32,
    pub queue_id: u64,
    pub partition: u16,
    pub generation: u32,
}

/// One delivered record, leased to this consumer until it is settled, its
/// lease runs out, or the connection or subscription ends.
///
/// Dropping it settles nothing: the record comes again when its lease runs
/// out. It keeps the frame it came in (its neighbours' bytes too) in memory.
pub struct Delivery {
    origin: Arc<Origin>,
    frame: Arc<Vec<u8>>,
    key: Range<usize>,
    headers: Range<usize>,
    payload: Range<usize>,
    not_before_ms: u64,
    offset: u64,
    attempt: u32,
    flags: u32,
}

impl Delivery {
    /// `at`: where in `frame` the encoded `record` starts.
    pub(crate) fn new(
        origin: Arc<Origin>,
        frame: Arc<Vec<u8>>,
        at: usize,
        item: &ArchivedDelivery,
        record: &Record<'_>,
    ) -> Self {
        let key_at = at + RECORD_HEADER_BYTES;
        let headers_at = key_at + record.key.len();
        let payload_at = headers_at + record.headers.len();
        Delivery {
            origin,
            frame,
            key: key_at..headers_at,
            headers: headers_at..payload_at,
            payload: payload_at..payload_at + record.payload.len(),
            not_before_ms: record.not_before_ms,
            offset: item.offset.to_native(),
            attempt: item.attempt.to_native(),
            flags: item.flags.to_native(),
        }
    }

    fn bytes(&self, range: &Range<usize>) -> &[u8] {
        self.frame.get(range.clone()).unwrap_or_default()
    }

    /// The payload, as it was published.
    pub fn payload(&self) -> &[u8] {
        self.bytes(&self.payload)
    }

    /// The key; empty when it was published without one.
    pub fn key(&self) -> &[u8] {
        self.bytes(&self.key)
    }

    /// The headers.
    pub fn headers(&self) -> HeadersView<'_> {
        HeadersView::new(self.bytes(&self.headers))
    }

    /// Before which moment it was not to be delivered, if one was given.
    pub fn not_before(&self) -> Option<SystemTime> {
        (self.not_before_ms > 0)
            .then(|| UNIX_EPOCH.checked_add(Duration::from_millis(self.not_before_ms)))
            .flatten()
    }

    /// Id of the queue.
    pub fn queue_id(&self) -> u64 {
        self.origin.queue_id
    }

    /// Partition of the queue.
    pub fn partition(&self) -> u16 {
        self.origin.partition
    }

    /// Generation of the partition's history.
    pub fn generation(&self) -> u32 {
        self.origin.generation
    }

    /// Offset in the partition.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// 1 for the first delivery of the record.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// True when the record may have been delivered before.
    pub fn redelivered(&self) -> bool {
        self.flags & DELIVERY_REDELIVERED != 0
    }

    /// True when the record was durable on the queue's copies when it was
    /// sent. A written record can still be lost with the power.
    pub fn durable(&self) -> bool {
        self.flags & DELIVERY_DURABLE != 0
    }

    /// Encoded bytes, which its credit counts.
    pub(crate) fn encoded_len(&self) -> u64 {
        (RECORD_HEADER_BYTES + self.key.len() + self.headers.len() + self.payload.len()) as u64
    }

    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// False when its connection is gone, and so its lease.
    pub(crate) fn is_current(&self) -> bool {
        self.origin.link.connection() == self.origin.connection
    }

    /// Done with it: the record leaves the queue. Not waited for: should the
    /// connection be lost first, the record comes again.
    ///
    /// Settles given in one go travel in one frame per partition, sent as
    /// soon as the connection can write.
    pub fn ack(self) {
        self.settle(SettleKind::Acknowledge, Duration::ZERO);
    }

    /// Like [`Delivery::ack`], and tells when it met the queue's confirm gate.
    pub fn ack_confirmed(self) -> SettleConfirm {
        self.settle_confirmed(SettleKind::Acknowledge, Duration::ZERO)
    }

    /// Gives it back: ready again after `delay` (millisecond resolution, zero = at once).
    pub fn release(self, delay: Duration) {
        self.settle(SettleKind::Release, delay);
    }

    /// Like [`Delivery::release`], and tells when it met the queue's confirm gate.
    pub fn release_confirmed(self, delay: Duration) -> SettleConfirm {
        self.settle_confirmed(SettleKind::Release, delay)
    }

    /// Refuses it for good: the server drops and counts it.
    pub fn reject(self) {
        self.settle(SettleKind::Reject, Duration::ZERO);
    }

    /// Like [`Delivery::reject`], and tells when it met the queue's confirm gate.
    pub fn reject_confirmed(self) -> SettleConfirm {
        self.settle_confirmed(SettleKind::Reject, Duration::ZERO)
    }

    fn settle(self, kind: SettleKind, delay: Duration) {
        let (key, item) = self.settle_item(kind, delay, false);
        let link = &self.origin.link;
        link.settle(self.origin.connection, key, item, None);
    }

    fn settle_confirmed(self, kind: SettleKind, delay: Duration) -> SettleConfirm {
        let (answer, receiver) = oneshot::channel();
        let (key, item) = self.settle_item(kind, delay, true);
        let link = &self.origin.link;
        link.settle(self.origin.connection, key, item, Some(answer));
        SettleConfirm { receiver }
    }

    fn settle_item(
        &self,
        kind: SettleKind,
        delay: Duration,
        confirm: bool,
    ) -> (SettleKey, SettleItem) {
        let key = SettleKey {
            subscription: self.origin.subscription,
            queue_id: self.origin.queue_id,
            partition: self.origin.partition,
            generation: self.origin.generation,
            kind,
            delay_ms: u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
            confirm,
        };
        let item = SettleItem {
            offset: self.offset,
            attempt: self.attempt,
        };
        (key, item)
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("queue_id", &self.queue_id())
            .field("partition", &self.partition())
            .field("generation", &self.generation())
            .field("offset", &self.offset)
            .field("attempt", &self.attempt)
            .field("redelivered", &self.redelivered())
            .field("payload_len", &self.payload.len())
            .finish()
    }
}

/// What a confirmed settle met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// The boundary that was met.
    pub boundary: Boundary,
    /// How many copies met it.
    pub copies: u8,
}

/// A settle under way; resolves when the server confirmed or refused it. The
/// settle is sent whether or not this is awaited.
#[derive(Debug)]
#[must_use = "the settle is sent anyway; await this to learn what became of it"]
pub struct SettleConfirm {
    receiver: oneshot::Receiver<Result<Settled, SettleError>>,
}

impl Future for SettleConfirm {
    type Output = Result<Settled, SettleError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.receiver)
            .poll(context)
            .map(|answer| answer.unwrap_or_else(|_| Err(Reason::Closed.into())))
    }
}
