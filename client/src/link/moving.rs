//! Subscriptions on their way between connections: where a partition is led, they go.
//!
//! A subscription is asked for at a base link or, once that is known, at the straight
//! link to the leader. Unless it is to go *through* (the leader cannot be reached from
//! here), it asks to come straight: a node that is not the leader's refuses it then and
//! tells the way. A straight link gives to its fallback what it cannot serve.
//!
//! Invariants:
//! 1. A subscription is at one link at most, so its credit is given once. On its way
//!    nobody owes it anything: it was refused, or its connection is gone.
//! 2. It ends wherever it is: who is past [`Seat::leave`] sits down nowhere.
//! 3. It comes to rest: sent on too often from the last success on, it goes through.
//! 4. States are locked in one order: a link, its fallback, a seat.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    feed::{Feed, FeedPhase},
    state::{Phase, Shared, State, Status},
};
use crate::config::{MAX_SENT_ON, STRAIGHT_PATIENCE};

impl Shared {
    /// Takes a subscription on; it is asked for when a connection stands. A straight link
    /// that cannot be of use to it gives it to its fallback.
    pub fn adopt_feed(self: &Arc<Self>, subscription: u32, mut feed: Feed) {
        let mut state = self.lock();
        if state.closed {
            drop(state);
            feed.closed();
            return;
        }
        if let Some(fallback) = &self.fallback {
            let stands = matches!(state.phase, Phase::Up);
            let drains = matches!(state.phase, Phase::Draining { .. });
            if drains || self.was_never_reached(&state) || (stands && !self.leads_to(&feed)) {
                drop(state);
                feed.through = !drains;
                fallback.adopt_feed(subscription, feed);
                return;
            }
        }
        if !feed.seat.sit(self) {
            return;
        }
        feed.since = Instant::now();
        state.feeds.insert(subscription, feed);
        if self.fallback.is_some() && matches!(state.phase, Phase::Down { .. }) {
            self.hurry.notify_one();
        }
        drop(state);
        self.work();
    }

    /// The answer to a subscribe was that another node leads, which was told before.
    pub(super) fn send_on(self: &Arc<Self>, subscription: u32) {
        let removed = {
            let mut state = self.lock();
            // It knows a leader, so it is not cut off from the other nodes.
            state.stuck.went_on();
            state.feeds.remove(&subscription)
        };
        let Some(mut feed) = removed else {
            return;
        };
        feed.sent_on += 1;
        let links = self.links.upgrade().filter(|_| feed.sent_on <= MAX_SENT_ON);
        let straight = links.and_then(|links| {
            let place = links.place(feed.queue_id, feed.partition)?;
            feed.node = place.node;
            links.to_place(place)
        });
        feed.phase = FeedPhase::Wanted;
        feed.through = straight.is_none();
        let base = self.fallback.as_ref().unwrap_or(self);
        straight
            .as_ref()
            .unwrap_or(base)
            .adopt_feed(subscription, feed);
    }

    /// The leader at hand does not serve just now: perhaps another one does, after the
    /// pause that the subscription makes. False without a fallback.
    pub(super) fn try_elsewhere(&self, state: &mut State, subscription: u32) -> bool {
        let Some(fallback) = &self.fallback else {
            return false;
        };
        if let Some(mut feed) = state.feeds.remove(&subscription) {
            self.places.forget(feed.queue_id, feed.partition);
            feed.put_off();
            fallback.adopt_feed(subscription, feed);
        }
        true
    }

    /// Gives the fallback, if there is one, every subscription that the server at hand
    /// has not been asked for. The caller holds this link's state.
    pub(super) fn hand_over_feeds(&self, state: &mut State, which: impl Fn(&Feed) -> bool) {
        let Some(fallback) = self.fallback.as_ref().filter(|_| !state.closed) else {
            return;
        };
        let goes = |_: &u32, feed: &mut Feed| feed.phase != FeedPhase::Asked && which(feed);
        for (subscription, feed) in state.feeds.extract_if(goes) {
            fallback.adopt_feed(subscription, feed);
        }
    }

    /// The leader could not be reached: what waits for it goes through.
    pub(super) fn give_up_straight(&self, state: &mut State) {
        self.send_through(state, |_| true);
    }

    /// The same for what has waited long enough.
    pub(super) fn expire_straight(&self, state: &mut State, now: Instant) {
        if matches!(state.phase, Phase::Down { .. }) {
            self.send_through(state, |feed| feed.since + STRAIGHT_PATIENCE <= now);
        }
    }

    /// Another node answers at the leader's address: what wants the leader goes through.
    pub(super) fn check_node(&self, state: &mut State) {
        self.send_through(state, |feed| !self.leads_to(feed));
    }

    fn send_through(&self, state: &mut State, which: impl Fn(&Feed) -> bool) {
        if self.fallback.is_some() {
            let gone = state.feeds.values_mut().filter(|feed| which(feed));
            gone.for_each(|feed| feed.through = true);
            self.hand_over_feeds(state, |feed| feed.through);
        }
    }

    /// The node at the other end is the one that the subscription was sent to.
    fn leads_to(&self, feed: &Feed) -> bool {
        self.node() == feed.node
    }

    fn was_never_reached(&self, state: &State) -> bool {
        !state.ever_up && matches!(&*self.status.borrow(), Status::Failed(_))
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::{client::Client, link::Seat, links::Links};

    /// The stream ends while its subscription is between two links.
    #[tokio::test]
    async fn who_left_sits_down_nowhere() {
        let config = Arc::new(Client::builder().config);
        let links = Links::start(config, &"".into());
        let link = links.home();
        let seat = Arc::new(Seat::new(link.clone(), 1));
        let (sender, _deliveries) = mpsc::unbounded_channel();
        let _first = link.subscribe(7, (1, 0), seat.clone(), 1, sender);
        let feed = link.lock().feeds.remove(&7).unwrap();
        assert!(seat.sit(link));
        assert!(seat.leave().is_some());
        link.adopt_feed(7, feed);
        assert!(link.lock().feeds.is_empty());
        assert!(seat.leave().is_none());
    }
}
