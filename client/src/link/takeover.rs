//! Publishes on their way between connections: given to one, taken over by another.
//! (Subscriptions: [`super::moving`].)
//!
//! A link to one leader has a *fallback*, which takes over what it cannot send: when
//! its connection is gone, when the node goes away, and what the node puts off, since
//! another one may lead by then.
//!
//! Invariants:
//! 1. What is taken over was never written, or the server said that nothing of it was
//!    done, or its producer's number tells it from another one.
//! 2. It keeps its order: a link gives everything at once, holding its own state.
//! 3. States are locked in one order, a link before its fallback, which has none.

use std::sync::atomic::Ordering;

use tokio::{
    sync::{oneshot, OwnedSemaphorePermit},
    time::Instant,
};

use super::{
    outbox::{PublishKey, PublishWaiter, QueuedPublish},
    state::{Phase, Shared, State},
};
use crate::{
    error::{Error, Reason},
    places::UnderWay,
    publish::Confirmed,
};

impl Shared {
    /// Queues encoded records. `alone`: they share their frame with nothing.
    pub fn publish(
        &self,
        key: PublishKey,
        bytes: &[u8],
        count: u32,
        deadline: Instant,
        alone: bool,
        (permit, under_way): (OwnedSemaphorePermit, UnderWay),
    ) -> oneshot::Receiver<Result<Confirmed, Error>> {
        let (answer, receiver) = oneshot::channel();
        let waiter = PublishWaiter {
            answer: Some(answer),
            count,
            len: bytes.len(),
            deadline,
            held: Some((permit, under_way)),
        };
        self.queue(key, bytes, waiter, alone);
        receiver
    }

    fn queue(&self, key: PublishKey, bytes: &[u8], waiter: PublishWaiter, alone: bool) {
        let mut state = self.lock();
        match &self.fallback {
            Some(fallback) if state.closed || !matches!(state.phase, Phase::Up) => {
                drop(state);
                fallback.queue(key, bytes, waiter, alone);
            }
            _ if state.closed => {
                drop(state);
                waiter.resolve(Err(Error::failed(Reason::Closed)));
            }
            _ => {
                state.outbox.push(key, bytes, waiter, alone);
                drop(state);
                self.work();
            }
        }
    }

    /// Gives what is queued to the fallback, if there is one. The caller holds this
    /// link's state, so that nothing comes between.
    pub(super) fn hand_over(&self, state: &mut State) {
        if let Some(fallback) = &self.fallback {
            fallback.adopt(state.outbox.take_all());
        }
        self.hand_over_feeds(state, |_| true);
    }

    fn adopt(&self, frames: Vec<QueuedPublish>) {
        if frames.is_empty() {
            return;
        }
        let mut state = self.lock();
        if state.closed {
            drop(state);
            frames.into_iter().for_each(QueuedPublish::closed);
            return;
        }
        for frame in frames {
            state.outbox.adopt(frame);
        }
        drop(state);
        self.work();
    }

    /// The server put off a publish of this link: it waits and is sent again, by the
    /// fallback if there is one, for the leader may be another by now.
    pub(super) fn put_off(
        &self,
        state: &mut State,
        correlation: u64,
        frame: QueuedPublish,
        error: Error,
    ) {
        let now = Instant::now();
        let Some(fallback) = &self.fallback else {
            state.stuck.put_off();
            state.outbox.put_back(correlation, frame, error, now);
            return;
        };
        self.places.forget(frame.key.queue_id, frame.key.partition);
        let rest = state.outbox.take_all();
        {
            let mut state = fallback.lock();
            if !state.closed {
                state.outbox.put_back(correlation, frame, error, now);
            } else {
                frame.fail(&error);
            }
        }
        fallback.adopt(rest);
        fallback.work();
    }

    /// The connection takes no more new work.
    pub(super) fn drains(&self, cause: String) {
        let mut state = self.lock();
        self.node_leaves(&mut state, cause);
    }

    /// The same for who holds the state.
    pub(super) fn node_leaves(&self, state: &mut State, cause: String) {
        self.node.store(0, Ordering::Release);
        state.phase = Phase::Draining {
            since: Instant::now(),
            cause,
        };
        self.hand_over(state);
    }
}
