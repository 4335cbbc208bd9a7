//! What waits for a boundary: proposals on their way, and gates of entries
//! that are applied but not yet durable.

use std::collections::VecDeque;

use wire::{message::ConfirmItem, vocabulary::Boundary};

use super::{
    core::Engine,
    deadlines::Asked,
    partition::{PartitionKey, SettleReply},
    types::ConnKey,
};
use crate::{
    group::{Group, GroupId},
    io::BatchBuffer,
    log::LogPosition,
};

/// Whom a publish is answered to.
#[derive(Debug, Clone, Copy)]
pub(super) struct PublishReply {
    pub conn: ConnKey,
    pub correlation: u64,
    /// Server time; after it the answer is "unknown".
    pub deadline_ms: u64,
    /// Publish body bytes, for the window.
    pub bytes: u32,
    /// The boundary the confirm waits for.
    pub boundary: Boundary,
    /// Of the partition when it was proposed; the partition may be gone when
    /// it is confirmed.
    pub generation: u32,
    /// The deadline passed and the client was told.
    pub answered: bool,
}

/// Where a proposed entry came from.
#[derive(Debug)]
pub(super) enum Origin {
    Nobody,
    Publish(PublishReply),
    Settles { replies: Vec<SettleReply> },
    Purge(Asked),
    Declare(Asked),
    Delete(Asked),
    Recover { shard: u16, group: GroupId },
}

/// What happens once an applied entry is durable.
pub(super) enum GateAction {
    Append {
        key: PartitionKey,
        first: u64,
        count: u32,
        bytes: u64,
        /// Deliveries wait for this gate.
        open: bool,
        confirm: Option<PublishReply>,
    },
    Settles {
        key: PartitionKey,
        replies: Vec<SettleReply>,
    },
    Mark {
        key: PartitionKey,
        mark: u64,
    },
    Purged {
        asked: Asked,
        records: u64,
    },
    /// A partition, or a new generation of it, exists.
    Begun {
        key: PartitionKey,
    },
    /// The empty entry of a new leadership: from here on the group serves.
    Serving {
        group: u32,
    },
}

pub(super) struct Gate {
    pub end: LogPosition,
    pub action: GateAction,
}

/// A group of this shard and what waits on it. Both lists are in index order,
/// so the positions in `gates` ascend.
pub(super) struct GroupSlot {
    pub group: Group,
    pub origins: VecDeque<(u64, Origin)>,
    pub gates: VecDeque<Gate>,
    /// Raft may have something ready.
    pub dirty: bool,
    /// The empty entry of this leadership is durable: confirms and deliveries
    /// may leave (barrier of a new leader).
    pub serving: bool,
}

impl GroupSlot {
    pub(super) fn new(group: Group) -> Self {
        GroupSlot {
            group,
            origins: VecDeque::new(),
            gates: VecDeque::new(),
            dirty: true,
            serving: false,
        }
    }
}

impl<B: BatchBuffer> Engine<B> {
    /// Opens every gate that the durable frontier has passed.
    pub(super) fn open_gates(&mut self) {
        let durable = self.frontiers.durable_next;
        let opens = |slot: &GroupSlot| slot.gates.front().is_some_and(|gate| gate.end <= durable);
        let mut from = 0;
        while let Some(id) = self.group_where(from, opens) {
            from = id.saturating_add(1);
            while let Some(gate) = self.pop_open_gate(id) {
                self.act(gate.action, Boundary::Durable);
            }
        }
    }

    fn pop_open_gate(&mut self, group: u32) -> Option<Gate> {
        let durable = self.frontiers.durable_next;
        let gates = &mut self.groups.get_mut(&group)?.gates;
        if gates.front()?.end > durable {
            return None;
        }
        gates.pop_front()
    }

    /// Does what an entry's gate held back; `met` is the boundary it has reached.
    pub(super) fn act(&mut self, action: GateAction, met: Boundary) {
        match action {
            GateAction::Append {
                key,
                first,
                count,
                bytes,
                open,
                confirm,
            } => {
                if let Some(reply) = confirm {
                    self.confirm_publish(key, first, count, reply, met);
                }
                let next = first + u64::from(count);
                if let Some(slot) = self.partitions.get_mut(&key) {
                    if met == Boundary::Durable {
                        slot.durable_next = slot.durable_next.max(next);
                        slot.unsynced_bytes = slot.unsynced_bytes.saturating_sub(bytes);
                    }
                    if open {
                        slot.machine.open_delivery(next);
                        self.mark_dirty(key);
                    }
                }
            }
            GateAction::Settles { key, replies } => self.confirm_settles(key, replies, met),
            GateAction::Mark { key, mark } => {
                if let Some(slot) = self.partitions.get_mut(&key) {
                    slot.machine.open_mark(mark);
                    self.mark_dirty(key);
                }
            }
            GateAction::Begun { key } => {
                self.tell_ready(key);
                self.mark_dirty(key);
                self.check_serving();
            }
            GateAction::Serving { group } => self.began_serving(group),
            GateAction::Purged { asked, records } => {
                let body = wire::message::Purged {
                    records,
                    extensions: Vec::new(),
                };
                self.reply(asked.conn, asked.correlation, &body);
            }
        }
    }

    fn confirm_publish(
        &mut self,
        key: PartitionKey,
        first_offset: u64,
        count: u32,
        reply: PublishReply,
        met: Boundary,
    ) {
        if reply.answered {
            return;
        }
        let Some(connection) = self.connections.get_mut(&reply.conn) else {
            return;
        };
        connection.release(u64::from(reply.bytes));
        connection.confirm(ConfirmItem {
            correlation: reply.correlation,
            queue_id: key.queue_id,
            partition: key.partition,
            boundary: met as u8,
            copies: 1,
            generation: reply.generation,
            first_offset,
            count,
        });
        self.list_connection(reply.conn);
    }
}
