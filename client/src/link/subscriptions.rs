//! Subscribing, credit and settling, as callers ask for them.

use std::sync::Arc;

use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use wire::message::{SettleItem, Unsubscribe};

use super::{
    feed::{Fed, Feed, FeedPhase, Seat},
    request::{Effect, PendingReply},
    settles::{SettleAnswer, SettleKey},
    state::Shared,
};
use crate::error::{Error, SettleError};

/// Why a settle of a delivery of another connection is refused.
const CONNECTION_GONE: &str =
    "its connection is gone, so the server gave the record to the queue back; it comes again";

impl Shared {
    /// Asks for the deliveries of one partition, now and after each reconnect, here or
    /// wherever the partition is led. The receiver gets the first answer.
    pub fn subscribe(
        self: &Arc<Self>,
        subscription: u32,
        (queue_id, partition): (u64, u16),
        seat: Arc<Seat>,
        credit_bytes: u64,
        sender: mpsc::UnboundedSender<Fed>,
    ) -> oneshot::Receiver<Result<(), Error>> {
        let (first, receiver) = oneshot::channel();
        let feed = Feed {
            queue_id,
            partition,
            credit_bytes,
            sender,
            seat,
            phase: FeedPhase::Wanted,
            node: self.node(),
            through: false,
            sent_on: 0,
            since: Instant::now(),
            granted: 0,
            overdrawn: 0,
            first: Some(first),
            put_off: 0,
        };
        self.adopt_feed(subscription, feed);
        receiver
    }

    /// Ends a subscription; the answer comes when the server has taken its
    /// leased records back. `None` when no connection knows of it.
    pub fn unsubscribe(&self, subscription: u32) -> Option<PendingReply> {
        let feed = self.lock().feeds.remove(&subscription)?;
        // On a connection that is lost before this is written it has no meaning,
        // and the server answers that one harmlessly on the next.
        (feed.phase == FeedPhase::Asked).then(|| {
            let body = Unsubscribe {
                subscription,
                ..Unsubscribe::default()
            };
            self.request(&body, Effect::Once)
        })
    }

    /// Gives credit back for deliveries that the application has taken.
    pub fn give_credit(&self, connection: u64, subscription: u32, records: u32, bytes: u64) {
        let mut state = self.lock();
        if self.connection() != connection {
            return;
        }
        let Some(feed) = state.feeds.get_mut(&subscription) else {
            return;
        };
        feed.granted += u64::from(records);
        feed.overdrawn = 0;
        let (owed_records, owed_bytes) = state.credits.entry(subscription).or_default();
        *owed_records = owed_records.saturating_add(records);
        *owed_bytes = owed_bytes.saturating_add(bytes);
        drop(state);
        self.work();
    }

    /// Queues one settle of a delivery of `connection`.
    pub fn settle(
        &self,
        connection: u64,
        key: SettleKey,
        item: SettleItem,
        answer: Option<SettleAnswer>,
    ) {
        let mut state = self.lock();
        if !state.closed && self.connection() == connection {
            state.settles.push(key, item, answer);
            drop(state);
            self.work();
            return;
        }
        drop(state);
        match answer {
            Some(answer) => {
                let _ = answer.send(Err(SettleError::Stale {
                    cause: CONNECTION_GONE,
                }));
            }
            None => self.count_refused_settles(1),
        }
    }
}
