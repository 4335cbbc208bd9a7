//! Where a worker connects, and where it goes on when that is gone.
//!
//! With one address a lost connection ends the run, since nothing else could be
//! measured. With several (nodes of one cluster) the worker connects to the
//! next and goes on; what was unanswered then is *unknown*. A worker of one
//! partition goes straight to the node that leads it, as a client library would.

use std::time::Duration;

use crate::{
    conn::{Connection, Place, REQUEST_TIMEOUT},
    error::LoadError,
    sys,
};

/// How long one of several may take to answer hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(1);
/// Between two rounds in which nobody answered.
const PAUSE_NS: u64 = 5_000_000;
/// After this long without anybody the run has failed.
const LONGEST_ABSENCE_NS: u64 = 30_000_000_000;

/// The addresses of one worker, and which is in turn.
#[derive(Debug, Clone)]
pub struct Door {
    addresses: Vec<String>,
    turn: usize,
    wished_shard: u16,
}

impl Door {
    /// `servers`: one address, or several separated by commas; begins with
    /// number `first` of them, so that workers spread.
    pub fn new(servers: &str, wished_shard: u16, first: usize) -> Self {
        let addresses: Vec<String> = addresses(servers).map(str::to_owned).collect();
        Door {
            turn: first % addresses.len().max(1),
            addresses,
            wished_shard,
        }
    }

    /// There is somewhere else to go.
    pub fn has_others(&self) -> bool {
        self.addresses.len() > 1
    }

    /// Connects to the first that answers, each tried once.
    ///
    /// # Errors
    /// Nobody does: what the last one said.
    pub fn open(&mut self) -> Result<Connection, LoadError> {
        let mut last = LoadError::Impossible("an address to connect to is missing".into());
        let timeout = match self.has_others() {
            true => HELLO_TIMEOUT,
            false => REQUEST_TIMEOUT,
        };
        for _ in 0..self.addresses.len() {
            let Some(address) = self.addresses.get(self.turn) else {
                break;
            };
            match Connection::open(address, self.wished_shard, timeout) {
                Ok(connection) => return Ok(connection),
                Err(error) => last = error,
            }
            self.turn = (self.turn + 1) % self.addresses.len();
        }
        Err(last)
    }

    /// Connects where a partition is led. The list stays as it is: the next loss goes on
    /// with it.
    ///
    /// # Errors
    /// It is not there.
    pub fn follow(&self, place: &Place) -> Result<Connection, LoadError> {
        Connection::open(&place.address, place.shard, HELLO_TIMEOUT)
    }

    /// Connects elsewhere; `None` when `stop` says that nobody needs it any more.
    ///
    /// # Errors
    /// Nobody answered for half a minute.
    pub fn reopen(&mut self, stop: &dyn Fn() -> bool) -> Result<Option<Connection>, LoadError> {
        self.turn = (self.turn + 1) % self.addresses.len().max(1);
        let give_up = sys::now_ns() + LONGEST_ABSENCE_NS;
        loop {
            if stop() {
                return Ok(None);
            }
            match self.open() {
                Ok(connection) => return Ok(Some(connection)),
                Err(error) if sys::now_ns() >= give_up => return Err(error),
                Err(_) => sys::sleep_until(sys::now_ns() + PAUSE_NS),
            }
        }
    }
}

/// The addresses in a comma-separated list.
pub fn addresses(servers: &str) -> impl Iterator<Item = &str> {
    let trimmed = servers.split(',').map(str::trim);
    trimmed.filter(|address| !address.is_empty())
}
