//! What a client waits for an answer to, and what came back.

use wire::vocabulary::{Mode, SettleKind};

use super::journal::Key;

/// One delivery a client knows of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    pub key: Key,
    pub subscription: u32,
    pub generation: u32,
    pub offset: u64,
    pub attempt: u32,
    pub id: u64,
}

/// A request on its way.
#[derive(Debug, Clone)]
pub(super) enum Request {
    Declare {
        name: String,
        mode: Mode,
    },
    Publish {
        batch: usize,
        bytes: u64,
    },
    Subscribe {
        subscription: u32,
    },
    Unsubscribe {
        subscription: u32,
    },
    Settle {
        kind: SettleKind,
        items: Vec<Held>,
        confirm: bool,
    },
    Info {
        key: Key,
    },
    Frontiers {
        key: Key,
    },
    Barrier {
        key: Key,
        /// Generation, and the end of what was confirmed when it was sent.
        confirmed: (u32, u64),
    },
    Peek {
        key: Key,
        from: u64,
    },
    Locate {
        name: String,
    },
    List,
    Ping,
    /// About who belongs to the cluster.
    Reshape {
        /// A node that is a member once it is answered.
        added: Option<usize>,
    },
    Replace {
        node: usize,
    },
}

/// What came back, for those who wait for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// The connection died first.
    Gone,
    Error {
        code: u16,
        unknown: bool,
    },
    Queue {
        queue_id: u64,
    },
    Info(Info),
    Peeked(Vec<Seen>),
    Queues(Vec<u64>),
    Done,
}

/// A peeked record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    pub offset: u64,
    pub id: u64,
}

/// A queue info's numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Info {
    pub generation: u32,
    pub written_next: u64,
    pub durable_next: u64,
    pub gated: u64,
    pub ready: u64,
    pub delayed: u64,
    pub leased: u64,
    pub acknowledged: u64,
    pub dropped: u64,
    pub consumers: u32,
    pub losses: Vec<(u32, u64)>,
}

impl Info {
    /// Records that are not settled.
    pub fn unsettled(&self) -> u64 {
        self.gated + self.ready + self.delayed + self.leased
    }
}
