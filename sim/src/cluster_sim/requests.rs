//! What a client waits for an answer to, and what came back.

use wire::{
    setting::{InForce, Standing},
    vocabulary::{Mode, SettleKind},
};

use super::journal::Key;
use crate::promises::Setting;

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
        /// The revision that was said to be applied when it was sent.
        applied: u32,
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
    Change {
        queue_id: u64,
        setting: Setting,
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
    /// The setting that is desired, and the one in force where it was changed.
    pub revision: u32,
    pub in_force: Option<InForce>,
}

impl Info {
    /// Records that are not settled.
    pub fn unsettled(&self) -> u64 {
        self.gated + self.ready + self.delayed + self.leased
    }

    /// What is desired is applied.
    pub fn is_applied(&self) -> bool {
        let said = self.in_force.as_ref();
        let applied =
            |said: &InForce| said.standing == Standing::Applied && said.revision == self.revision;
        said.map_or(self.revision == 0, applied)
    }
}
