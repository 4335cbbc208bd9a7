//! The subscriptions of one connection: what must be asked for again after a
//! reconnect, and how many deliveries are allowed at once.

use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use crate::{
    delivery::Delivery,
    error::{Error, SubscribeError},
};

/// What flows from the reader to a subscription's stream. The channel has no
/// bound of its own: what is in it is bounded by the credit, which the reader
/// enforces.
#[derive(Debug)]
pub(crate) enum Fed {
    Delivery(Delivery),
    /// A record that arrived damaged; the rest is what a delivery would count.
    Damaged {
        subscription: u32,
        connection: u64,
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

/// One partition subscribed to.
#[derive(Debug)]
pub(crate) struct Feed {
    pub queue_id: u64,
    pub partition: u16,
    pub credit_records: u32,
    pub credit_bytes: u64,
    pub sender: mpsc::UnboundedSender<Fed>,
    pub phase: FeedPhase,
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
    }
}
