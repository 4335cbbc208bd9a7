//! Group 0: what the cluster knows (skeleton: contract).

use super::command::CommandError;
use wire::vocabulary::Mode;

/// A queue as declared. The id is never reused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueDeclaration {
    pub queue_id: u64,
    pub name: String,
    pub mode: Mode,
    /// 0 = majority, 255 = all.
    pub copies: u8,
    pub lease_ms: u64,
    /// Data group of each partition.
    pub groups: Vec<u32>,
}

/// What a declare asks for; `None` = keep, or the default for a new queue.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeclareRequest {
    pub name: String,
    pub mode: Option<Mode>,
    pub copies: Option<u8>,
    pub partitions: Option<u16>,
    pub lease_ms: Option<u64>,
}

/// A command of group 0, owned (declares are rare).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetaCommand {
    Declare(DeclareRequest),
    Delete {
        queue_id: u64,
    },
    /// A node opened its directory: (node, log) with counter and nonce.
    Opened {
        node: u32,
        log: u16,
        open_counter: u64,
        nonce: u64,
    },
    /// A group recovered into a new generation under a new peer id.
    Recovered {
        group: u32,
        generation: u32,
        retired_peer: u64,
        new_peer: u64,
    },
}

impl MetaCommand {
    pub fn encode(&self) -> Vec<u8> {
        todo!()
    }
    pub fn decode(_payload: &[u8]) -> Result<Self, CommandError> {
        todo!()
    }
}

/// What applying a command answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetaOutcome {
    Declared {
        created: bool,
        queue_id: u64,
    },
    /// The redeclare differs: the field, what stands, what was asked.
    Conflict {
        field: &'static str,
        stands: String,
        asked: String,
    },
    Deleted {
        existed: bool,
    },
    Noted,
}

pub struct MetaState {}

impl MetaState {
    /// `data_groups` data groups exist, numbered from 1; the lower half keeps
    /// durable queues, the upper half buffered and speculative ones.
    pub fn new(_data_groups: u32) -> Self {
        todo!()
    }
    pub fn apply(&mut self, _command: &MetaCommand) -> MetaOutcome {
        todo!()
    }
    pub fn by_name(&self, _name: &str) -> Option<&QueueDeclaration> {
        todo!()
    }
    pub fn by_id(&self, _queue_id: u64) -> Option<&QueueDeclaration> {
        todo!()
    }
    /// Declarations in byte order of their names.
    pub fn iter_from<'a>(
        &'a self,
        _after: &str,
    ) -> Box<dyn Iterator<Item = &'a QueueDeclaration> + 'a> {
        todo!()
    }
}
