//! Noticing that a server does nothing but put off: it may be cut off from the other
//! nodes, which go on without it.

use std::time::Duration;

use tokio::time::Instant;

use crate::config::{LONGEST_STUCK, STUCK};

/// Whether the server only puts things off: it may be cut off from the others.
#[derive(Debug)]
pub(super) struct Stuck {
    since: Option<Instant>,
    patience: Duration,
    /// It is left: its deliveries are not waited for.
    pub left: bool,
}

impl Default for Stuck {
    fn default() -> Self {
        Stuck {
            since: None,
            patience: STUCK,
            left: false,
        }
    }
}

impl Stuck {
    /// Something was put off.
    pub fn put_off(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    /// Something went through.
    pub fn went_on(&mut self) {
        if self.since.is_some() {
            *self = Stuck::default();
        }
    }

    /// It is time to try the next server.
    pub fn is_over(&mut self, now: Instant) -> bool {
        let over = self.since.is_some_and(|since| since + self.patience <= now);
        if over {
            self.since = None;
            self.left = true;
            self.patience = (self.patience * 2).min(LONGEST_STUCK);
        }
        over
    }
}
