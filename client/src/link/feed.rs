//! The subscriptions of one connection: what must be asked for again after a
//! reconnect, and how many deliveries are allowed at once.

use std::{
    sync::{
        atomic::{AtomicU32, Ordering},
        Arc, Mutex, MutexGuard, PoisonError,
    },
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::state::Shared;
use crate::{
    delivery::{Delivery, Origin},
    error::{Error, Reason, SubscribeError},
};

/// First and longest pause before a subscription that the server put off is asked for
/// again; doubled with each time.
const PUT_OFF: Duration = Duration::from_millis(100);
const LONGEST_PUT_OFF: Duration = Duration::from_secs(5);

/// What flows from the reader to a subscription's stream. The channel has no
/// bound of its own: what is in it is bounded by the credit, which the reader
/// enforces.
#[derive(Debug)]
pub(crate) enum Fed {
    Delivery(Delivery),
    /// A record that arrived damaged; the rest is what a delivery would count.
    Damaged {
        origin: Arc<Origin>,
        len: u32,
        error: SubscribeError,
    },
    Ended {
        subscription: u32,
        error: SubscribeError,
    },
}

/// How far asking for a subscription has come on the connection that stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FeedPhase {
    /// To be asked for as soon as a connection stands.
    Wanted,
    /// The server could not just now; ask again at this time.
    Later(Instant),
    /// Sent.
    Asked,
}

/// Where a subscription is, for its stream: it moves between links by itself.
#[derive(Debug)]
pub(crate) struct Seat {
    /// `None`: it is over.
    at: Mutex<Option<Arc<Shared>>>,
    /// Records of credit to ask for.
    credit_records: AtomicU32,
}

impl Seat {
    pub fn new(at: Arc<Shared>, credit_records: u32) -> Self {
        Seat {
            at: Mutex::new(Some(at)),
            credit_records: AtomicU32::new(credit_records),
        }
    }

    /// Moves to a link, unless the subscription is over.
    pub fn sit(&self, link: &Arc<Shared>) -> bool {
        let mut at = self.lock();
        if let Some(at) = at.as_mut() {
            *at = link.clone();
        }
        at.is_some()
    }

    /// Ends it for good; gives the link that it was at last, if it was not over.
    pub fn leave(&self) -> Option<Arc<Shared>> {
        self.lock().take()
    }

    pub fn credit_records(&self) -> u32 {
        self.credit_records.load(Ordering::Relaxed)
    }

    /// So much is asked for when it subscribes again.
    pub fn limit_credit(&self, records: u32) {
        self.credit_records.store(records, Ordering::Relaxed);
    }

    /// A panic elsewhere cannot have left it half changed.
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Shared>>> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One partition subscribed to.
#[derive(Debug)]
pub(crate) struct Feed {
    pub queue_id: u64,
    pub partition: u16,
    pub credit_bytes: u64,
    pub sender: mpsc::UnboundedSender<Fed>,
    pub seat: Arc<Seat>,
    pub phase: FeedPhase,
    /// At a straight link: the node that it was sent to.
    pub node: u32,
    /// It is served wherever it is, through that node if need be.
    pub through: bool,
    /// How often it was sent on since a server accepted it last.
    pub sent_on: u32,
    /// Since when it is at its link.
    pub since: Instant,
    /// Records granted and not delivered yet on the connection that stands.
    pub granted: u64,
    /// Records delivered beyond that since the last grant.
    pub overdrawn: u64,
    /// Who waits for the first answer.
    pub first: Option<oneshot::Sender<Result<(), Error>>>,
    /// Attempts that the server has put off since it last accepted.
    pub put_off: u32,
}

impl Feed {
    /// Forgets what belonged to a lost connection.
    pub fn reset(&mut self) {
        self.phase = FeedPhase::Wanted;
        self.granted = 0;
        self.overdrawn = 0;
        self.ask_for_the_way();
    }

    /// The server accepted it.
    pub fn accepted(&mut self) {
        self.put_off = 0;
        self.sent_on = 0;
        if let Some(first) = self.first.take() {
            let _ = first.send(Ok(()));
        }
    }

    /// The server could not just now: it is asked for again after a pause.
    pub fn put_off(&mut self) {
        let pause = PUT_OFF
            .saturating_mul(1 << self.put_off.min(10))
            .min(LONGEST_PUT_OFF);
        self.put_off += 1;
        self.phase = FeedPhase::Later(Instant::now() + pause);
        self.ask_for_the_way();
    }

    /// Another node may lead by now, and be in reach.
    fn ask_for_the_way(&mut self) {
        self.through = false;
        self.sent_on = 0;
    }

    /// The client is closed.
    pub fn closed(self) {
        if let Some(first) = self.first {
            let _ = first.send(Err(Error::failed(Reason::Closed)));
        }
    }
}
