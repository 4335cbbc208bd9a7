//! What waits for a boundary: proposals on their way, and gates of entries that
//! are applied and have not reached it on as many copies as are asked for.
//!
//! 1. Gates exist where this replica leads, and go with its leadership.
//! 2. A gate opens only if the owner is one of its copies.
//! 3. Within one boundary and number of copies they open in index order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use wire::{message::ConfirmItem, vocabulary::Boundary};

use super::{
    core::Engine,
    deadlines::Asked,
    partition::{PartitionKey, SettleReply},
    recovery::stopped_before,
    shortfall::Awaited,
    slow_owner::OwnWrites,
    spread::Turn,
    types::ConnKey,
};
use crate::{
    group::{Group, GroupId, Outcome},
    io::BatchBuffer,
    log::{LogFrontiers, LogPosition},
    mutation::{removed, Rule},
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
    /// It asked for durable, whatever the mode.
    pub durable: bool,
    /// The boundary the confirm waits for: by the setting that is in force at its entry.
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
    Settles {
        replies: Vec<SettleReply>,
    },
    Purge(Asked),
    Declare(Asked),
    Delete(Asked),
    /// A change of a queue's setting; `named`: from a revision that whoever asks named.
    Change {
        asked: Asked,
        named: bool,
    },
    /// An operator's.
    Order(Asked),
    Recover {
        shard: u16,
        group: GroupId,
    },
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
        at: At,
    },
    /// A change of setting is in force, and as durable as the stronger one asks for.
    Changed {
        key: PartitionKey,
        revision: u32,
    },
}

impl GateAction {
    /// The partition whose records, settles or mark it is about.
    fn key(&self) -> Option<PartitionKey> {
        match self {
            GateAction::Append { key, .. }
            | GateAction::Settles { key, .. }
            | GateAction::Mark { key, .. } => Some(*key),
            _ => None,
        }
    }
}

/// An entry, as a gate sees it: its index for the other copies, its end for ours.
#[derive(Debug, Clone, Copy)]
pub(super) struct At {
    pub index: u64,
    pub end: LogPosition,
}

pub(super) struct Gate {
    pub at: At,
    pub action: GateAction,
}

/// What waits for one boundary on so many copies, in index order.
pub(super) struct GateQueue {
    boundary: Boundary,
    /// The owner's is one of them.
    copies: usize,
    gates: VecDeque<Gate>,
}

/// A group of this shard and what waits on it.
pub(super) struct GroupSlot {
    pub group: Group,
    pub origins: VecDeque<(u64, Origin)>,
    /// One for each boundary and number of copies: none waits for a stronger one.
    gates: Vec<GateQueue>,
    /// Raft may have something ready.
    pub dirty: bool,
    /// Something was proposed and waits for this turn's end: what comes now goes with it.
    pub proposed: bool,
    /// The empty entry of this leadership is durable: confirms and deliveries
    /// may leave (barrier of a new leader).
    pub serving: bool,
    /// The term in which this replica leads, as the engine knows it.
    pub leading: Option<u64>,
    /// Not sent and applied yet; its memory is used again.
    pub outcome: Outcome,
    /// Peer ids that were retired, and those in their place.
    pub replaced: BTreeMap<u64, u64>,
    /// Learners that group 0 knows as voters by now: they may be promoted.
    pub promotable: BTreeSet<u64>,
    /// Names of replicas that left the group for good.
    pub left: BTreeSet<u64>,
    /// The replica stopped its generation: durable up to here it may answer.
    pub stopping: Option<LogPosition>,
    /// The generation whose end group 0 was told this replica's history for.
    pub answered: Option<u32>,
    /// Since when a stopped replica keeps its copy although its generation ended; server
    /// time.
    pub kept_since_ms: Option<u64>,
    /// The last change of membership that this leadership proposed.
    pub changed: Option<At>,
    /// Since when this leader takes no publishes, to hand over; server time.
    pub resigning: Option<u64>,
    /// The voter that is to take over; `None`: whoever is furthest.
    pub heir: Option<u64>,
    /// When it may go to the node whose turn it is.
    pub turn: Turn,
    /// Not again before this time, and how long the next pause is, in ms.
    pub resign_from_ms: u64,
    pub resign_pause_ms: u64,
    /// How confirms waited for this node's own writes.
    pub own_writes: OwnWrites,
    /// A learner, and the entry up to which it is to be durable.
    pub catch_up: Option<(u64, u64)>,
    /// The last entry that asked followers to sync, and nothing else.
    pub demanded: u64,
    /// By so much the group's time is ahead of this node's: it never falls below the
    /// stamps of earlier leaders, whose clocks may have been. Leases last by the
    /// difference of two times of it, so that it does not end any.
    pub ahead_ms: u64,
    /// The last reason for which a message was refused and said.
    pub told_refusal: Option<String>,
}

impl GroupSlot {
    /// Something was proposed in this turn.
    pub(super) fn set_proposed(&mut self) {
        self.proposed = true;
        self.dirty = true;
    }

    pub(super) fn new(group: Group) -> Self {
        GroupSlot {
            promotable: BTreeSet::new(),
            left: BTreeSet::new(),
            stopping: stopped_before(&group),
            answered: None,
            kept_since_ms: None,
            group,
            origins: VecDeque::new(),
            gates: Vec::new(),
            dirty: true,
            proposed: false,
            serving: false,
            leading: None,
            outcome: Outcome::default(),
            replaced: BTreeMap::new(),
            changed: None,
            resigning: None,
            heir: None,
            turn: Turn::default(),
            resign_from_ms: 0,
            resign_pause_ms: 0,
            own_writes: OwnWrites::default(),
            catch_up: None,
            demanded: 0,
            ahead_ms: 0,
            told_refusal: None,
        }
    }

    /// This replica leads, as far as the engine was told.
    pub(super) fn leads(&self) -> bool {
        self.leading.is_some()
    }

    /// The entry has reached the boundary on so many copies, the owner's one of them.
    pub(super) fn is_reached(
        &self,
        at: At,
        boundary: Boundary,
        copies: usize,
        frontiers: &LogFrontiers,
    ) -> bool {
        let others = copies.saturating_sub(1);
        let own = at.end <= frontiers.at(boundary) || removed(Rule::GateOwner);
        let rest = self.group.others_reached(boundary, others) >= at.index;
        own && (rest || removed(Rule::GateCopies))
    }

    pub(super) fn push_gate(&mut self, boundary: Boundary, copies: usize, gate: Gate) {
        let same = |queue: &&mut GateQueue| queue.boundary == boundary && queue.copies == copies;
        if let Some(queue) = self.gates.iter_mut().find(same) {
            return queue.gates.push_back(gate);
        }
        self.gates.push(GateQueue {
            boundary,
            copies,
            gates: VecDeque::from([gate]),
        });
    }

    /// Gates that are not open yet.
    pub(super) fn waiting(&self) -> usize {
        self.gates.iter().map(|queue| queue.gates.len()).sum()
    }

    /// Shows every gate to `keep`; drops those it returns false for.
    pub(super) fn retain_gates(&mut self, keep: &mut dyn FnMut(Awaited, &mut GateAction) -> bool) {
        for queue in &mut self.gates {
            let (boundary, copies) = (queue.boundary, queue.copies);
            queue.gates.retain_mut(|gate| {
                let index = gate.at.index;
                let awaited = Awaited {
                    index,
                    boundary,
                    copies,
                };
                keep(awaited, &mut gate.action)
            });
        }
    }

    /// Takes a partition's gates from where they wait, to wait for this instead: what no
    /// change may do.
    pub(super) fn move_gates(&mut self, key: PartitionKey, boundary: Boundary, copies: usize) {
        let mut moved = Vec::new();
        for queue in &mut self.gates {
            let gates = queue.gates.drain(..);
            let (of_it, rest): (VecDeque<_>, VecDeque<_>) =
                gates.partition(|gate| gate.action.key() == Some(key));
            queue.gates = rest;
            moved.extend(of_it);
        }
        moved.sort_by_key(|gate| gate.at.index);
        for gate in moved {
            self.push_gate(boundary, copies, gate);
        }
    }

    pub(super) fn clear_gates(&mut self) {
        self.gates.clear();
    }

    /// A gate of an earlier entry is not open yet, at whatever boundary.
    fn waits_in_front(&self, at: At) -> bool {
        let mut fronts = self.gates.iter().filter_map(|queue| queue.gates.front());
        fronts.any(|front| front.at.index < at.index)
    }

    /// The next gate that is open, its boundary and how many copies met it.
    fn pop_open(&mut self, frontiers: &LogFrontiers) -> Option<(GateAction, Met)> {
        let is_open = |queue: &&GateQueue| {
            let front = queue.gates.front();
            front.is_some_and(|gate| {
                self.is_reached(gate.at, queue.boundary, queue.copies, frontiers)
                    && !(removed(Rule::PerBoundary) && self.waits_in_front(gate.at))
            })
        };
        let found = self.gates.iter().position(|queue| is_open(&queue))?;
        let queue = self.gates.get_mut(found)?;
        let (boundary, gate) = (queue.boundary, queue.gates.pop_front()?);
        let copies = self.group.copies_of(boundary, gate.at.index);
        Some((gate.action, Met { boundary, copies }))
    }
}

/// What a gate was met with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Met {
    pub boundary: Boundary,
    pub copies: usize,
}

impl Met {
    /// As it is said in a frame.
    pub(super) fn copies(self) -> u8 {
        u8::try_from(self.copies).unwrap_or(u8::MAX)
    }
}

/// Voting replicas of `voters` that make a majority.
pub(super) fn majority(voters: usize) -> usize {
    voters / 2 + 1
}

/// How many copies a queue's `copies` (0 = majority, 255 = all) asks for at a
/// boundary. At durable never fewer than a majority: with fewer, a durable confirm
/// could be lost in a recovery that nobody ordered (found by the model,
/// `durable-majority`).
pub(super) fn copies_needed(copies: u8, voters: usize, boundary: Boundary) -> usize {
    let asked = match copies {
        0 => majority(voters),
        255 => voters,
        number => usize::from(number),
    };
    match boundary {
        Boundary::Written => asked,
        Boundary::Durable => asked.max(majority(voters)),
    }
}

impl<B: BatchBuffer> Engine<B> {
    /// Opens every gate whose boundary is reached on its copies.
    pub(super) fn open_gates(&mut self) {
        let frontiers = self.frontiers;
        let mut from = 0;
        while let Some(id) = self.group_where(from, |slot| slot.waiting() > 0) {
            from = id.saturating_add(1);
            while let Some((action, met)) = self
                .groups
                .get_mut(&id)
                .and_then(|slot| slot.pop_open(&frontiers))
            {
                self.act(action, met);
            }
        }
    }

    /// Does what an entry's gate held back; `met` is what it has reached.
    pub(super) fn act(&mut self, action: GateAction, met: Met) {
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
                    if met.boundary == Boundary::Durable {
                        slot.durable_next = slot.durable_next.max(next);
                        slot.unsynced_bytes = slot.unsynced_bytes.saturating_sub(bytes);
                    }
                    if open {
                        slot.open_delivery(next);
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
                if let Some(slot) = self.partitions.get_mut(&key) {
                    slot.begun = true;
                }
                self.tell_ready(key);
                self.mark_dirty(key);
                self.check_serving();
            }
            GateAction::Serving { group, at } => {
                self.began_serving(group);
                self.follow_changes(group, at);
            }
            GateAction::Changed { key, revision } => self.changed(key, revision),
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
        met: Met,
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
            boundary: met.boundary as u8,
            copies: met.copies(),
            generation: reply.generation,
            first_offset,
            count,
        });
        self.list_connection(reply.conn);
    }
}
