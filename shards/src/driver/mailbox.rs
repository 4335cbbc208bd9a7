//! Bounded mailboxes between shards and helper threads.

use std::{cell::RefCell, collections::VecDeque, os::fd::OwnedFd, rc::Rc};

use super::{links::Called, local_event::LocalEvent};
use crate::{engine::ShardMessage, log::IoFailure, store::StoreDone};

/// Letters a mailbox holds before senders wait.
const MAILBOX_LETTERS: usize = 4096;

/// What reaches a shard from another thread.
pub(super) enum Letter {
    Message(ShardMessage),
    /// A connection that this shard's listener accepted.
    Accepted {
        socket: OwnedFd,
    },
    /// A connection whose hello wished this shard.
    Adopt {
        socket: OwnedFd,
        window_bytes: u32,
        correlation: u64,
    },
    /// A connection that the listener for nodes accepted.
    NodeAccepted {
        socket: OwnedFd,
    },
    /// A node's connection whose hello, judged, names this shard.
    NodeCalled(Called),
    /// A helper prepared a segment (or could not).
    Segment {
        sequence: u64,
        result: Result<(), IoFailure>,
    },
    /// The disk is below its low-water mark, or not.
    DiskLow(bool),
    /// A helper did a store job.
    Stored(StoreDone),
    /// Every shard serves: accept connections.
    Accept,
    Drain,
}

pub(super) type Sender = flume::Sender<Letter>;
pub(super) type Receiver = flume::Receiver<Letter>;

/// A mailbox per shard: senders for everyone, one receiver each.
pub(super) fn mailboxes(shards: u16) -> (Vec<Sender>, Vec<Receiver>) {
    (0..shards).map(|_| flume::bounded(MAILBOX_LETTERS)).unzip()
}

/// Letters of one shard to another, in order. A full mailbox makes them wait
/// here; connection windows bound how many there can be.
pub(super) struct Outbox {
    waiting: RefCell<VecDeque<Letter>>,
    wake: LocalEvent,
    to: Sender,
}

impl Outbox {
    pub(super) fn new(to: Sender) -> Rc<Self> {
        Rc::new(Outbox {
            waiting: RefCell::new(VecDeque::new()),
            wake: LocalEvent::default(),
            to,
        })
    }

    pub(super) fn push(&self, letter: Letter) {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.is_empty() {
            match self.to.try_send(letter) {
                Ok(()) => return,
                Err(
                    flume::TrySendError::Full(letter) | flume::TrySendError::Disconnected(letter),
                ) => {
                    waiting.push_back(letter);
                }
            }
        } else {
            waiting.push_back(letter);
        }
        self.wake.set();
    }

    /// Moves waiting letters on; runs until the receiver is gone.
    pub(super) async fn run(self: Rc<Self>) {
        loop {
            self.wake.wait().await;
            while let Some(letter) = self.next() {
                if self.to.send_async(letter).await.is_err() {
                    return;
                }
                self.sent();
            }
        }
    }

    /// The front letter is taken but its place is kept, so that `push` does
    /// not overtake it.
    fn next(&self) -> Option<Letter> {
        self.waiting
            .borrow_mut()
            .front_mut()
            .map(|letter| std::mem::replace(letter, Letter::Accept))
    }

    fn sent(&self) {
        let mut waiting = self.waiting.borrow_mut();
        waiting.pop_front();
        if waiting.is_empty() {
            // A start sends a letter for every partition.
            waiting.shrink_to(MAILBOX_LETTERS);
        }
    }
}
