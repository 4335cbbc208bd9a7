//! One connection to one shard, kept up: connect, hello, write, read, and
//! again after a loss.
//!
//! Owns: the socket, the correlation ids, everything queued for it and
//! everything unanswered on it. Two tasks per link: the link task (connects,
//! writes, watches deadlines) and, while a connection stands, a reader task.
//!
//! Invariants:
//! 1. Each waiter (publish, request, settle, subscription) is resolved exactly
//!    once: by an answer, its deadline, a loss, or the end of the link.
//! 2. *Failed* is said only of what was never written to a socket, or what the
//!    server called failed. What was written and lost its connection is *unknown*.
//! 3. What was queued and not yet written outlives a reconnect, until its
//!    deadline; settles do not, because their deliveries are stale.
//! 4. Unanswered publish bytes never exceed the window the server granted.
//! 5. Correlation ids are never reused on a link, reconnects included.
//!
//! It never blocks a thread and holds its lock for memory operations only. A
//! crash of the client leaves nothing behind: the server gives the leased
//! records back and finishes what it had received.

mod answers;
mod backoff;
mod feed;
mod moving;
mod outbox;
mod reader;
mod request;
mod run;
mod settles;
mod state;
mod stuck;
mod subscriptions;
mod sweep;
mod takeover;
mod writer;

pub(crate) use feed::{Fed, Seat};
pub(crate) use outbox::PublishKey;
pub(crate) use request::{Effect, Encode, PendingReply};
pub(crate) use settles::SettleKey;
pub(crate) use state::{Granted, Link, Shared, Status};
