//! Requests that read or change a partition as a whole.

use wire::{
    codec,
    error::{ErrorCode, Outcome},
    limits::MAX_PEEK_RECORDS,
    message::{
        Barrier as BarrierRequest, BarrierReply, Frontiers, FrontiersReply, Peek, PeekReply,
        Peeked, Purge, QueueInfo,
    },
    vocabulary::Boundary,
};

use super::{
    core::Engine,
    gates::{At, Origin},
    partition::PartitionKey,
    publish::{unavailable, unknown_queue, DEFAULT_DEADLINE_MS},
    reads,
    relay::Routed,
    turn::Deferred,
    types::ConnKey,
};
use crate::{
    io::BatchBuffer,
    state::command::{Command, DeliveryIds},
};

/// Record bytes one peek reply carries at most, one record excepted.
const PEEK_BYTES: usize = 1 << 20;
/// Barriers and peeks that may wait at once.
const MAX_WAITING: usize = 4096;
/// Peeks of one connection that may wait: their answers are large and come at once.
const MAX_PEEKS_OF_CONNECTION: usize = 16;
/// Purges that may wait for room in the log; each names all that is leased.
const MAX_WAITING_PURGES: usize = 64;

/// Waits until everything before it is durable.
pub(super) struct Barrier {
    pub at: At,
    pub conn: ConnKey,
    pub correlation: u64,
    pub key: PartitionKey,
    pub deadline_ms: u64,
    /// On how many copies, where the queue's setting was changed behind it.
    pub copies: Option<usize>,
}

/// Waits until its records are read back.
pub(super) struct PendingPeek {
    pub conn: ConnKey,
    pub correlation: u64,
    pub key: PartitionKey,
    /// Where to go on.
    pub from: u64,
    pub max: u32,
    pub deadline_ms: u64,
    /// Gathered so far.
    pub peeked: Vec<Peeked>,
    pub records: Vec<u8>,
}

/// Decodes a request, finds its partition's shard and forwards if it is another.
macro_rules! partition_request {
    ($engine:ident, $conn:ident, $correlation:ident, $body:ident, $type:ty) => {{
        let request = match codec::decode::<$type>($body) {
            Ok(request) => request,
            Err(error) => {
                let message = error.to_string();
                return $engine.refuse($conn, $correlation, ErrorCode::Invalid, message);
            }
        };
        let key = PartitionKey {
            queue_id: request.queue_id.to_native(),
            partition: request.partition.to_native(),
        };
        let kind = <$type as codec::Body>::KIND;
        match $engine.route($conn, key, kind, $correlation, $body) {
            Ok(Routed::Away { .. }) => return,
            Ok(Routed::Here) => {}
            Err((code, message)) => return $engine.refuse($conn, $correlation, code, message),
        }
        if !$engine.partitions.contains_key(&key) {
            let (code, message) = $engine.no_partition(key);
            return $engine.refuse($conn, $correlation, code, message);
        }
        (request, key)
    }};
}

impl<B: BatchBuffer> Engine<B> {
    pub(super) fn on_queue_info(&mut self, conn: ConnKey, correlation: u64, body: &[u8]) {
        let (_, key) = partition_request!(self, conn, correlation, body, QueueInfo);
        match self.info(key) {
            Some(reply) => self.reply(conn, correlation, &reply),
            None => {
                let (code, message) = unknown_queue();
                self.refuse(conn, correlation, code, message);
            }
        }
    }

    pub(super) fn on_frontiers(&mut self, conn: ConnKey, correlation: u64, body: &[u8]) {
        let (_, key) = partition_request!(self, conn, correlation, body, Frontiers);
        let copies = self.copies_below_frontier(key);
        let Some(slot) = self.partitions.get(&key) else {
            return;
        };
        let reply = FrontiersReply {
            generation: slot.generation,
            written_next: slot.machine.next_offset(),
            durable_next: slot.durable_next,
            copies: u8::try_from(copies).unwrap_or(u8::MAX),
            extensions: Vec::new(),
        };
        self.reply(conn, correlation, &reply);
    }

    pub(super) fn on_barrier(&mut self, conn: ConnKey, correlation: u64, body: &[u8]) {
        let (request, key) = partition_request!(self, conn, correlation, body, BarrierRequest);
        if self.barriers.len() >= MAX_WAITING {
            let message = "too many barriers wait already; retry later".to_owned();
            return self.refuse(conn, correlation, ErrorCode::Overloaded, message);
        }
        let wait = match request.deadline_ms.to_native() {
            0 => DEFAULT_DEADLINE_MS,
            wait => wait,
        };
        let deadline_ms = self.server_ms + u64::from(wait);
        self.timers.deadline_ms = self.timers.deadline_ms.min(deadline_ms);
        // Acknowledges that still look for company came before it.
        self.propose_gathered(key);
        let index = self.demand_everywhere(key);
        // Everything appended so far on this log, which holds all of the queue before it.
        let end = self.log.frontiers().appended;
        self.log.demand_durable(end);
        self.barriers.push_back(Barrier {
            at: At { index, end },
            conn,
            correlation,
            key,
            deadline_ms,
            copies: None,
        });
    }

    /// An entry of its own for a barrier: one that was proposed before could have been
    /// committed by a leader that is none any more, behind whose back another confirms.
    /// Returns the index of the entry to wait for.
    fn demand_everywhere(&mut self, key: PartitionKey) -> u64 {
        let group = self.partitions.get(&key).map(|slot| slot.group.0);
        let Some((group, slot)) = group.and_then(|id| Some((id, self.groups.get_mut(&id)?))) else {
            return 0;
        };
        let last = slot.group.last_index();
        if !slot.group.is_replicated() {
            return last;
        }
        slot.demanded = 0;
        self.demand_of(group).max(last + 1)
    }

    /// Followers sync for entries that say so, and otherwise when their timers do:
    /// one that says so covers everything in front of it. Returns the index of the
    /// entry to wait for.
    pub(super) fn demand_of(&mut self, group: u32) -> u64 {
        let Some(slot) = self.groups.get_mut(&group) else {
            return 0;
        };
        let last = slot.group.last_index();
        if !slot.group.is_replicated() || slot.demanded == last {
            return last;
        }
        match slot.group.propose(&mut self.log, &[], Boundary::Durable) {
            Ok(index) => {
                slot.demanded = index;
                slot.dirty = true;
                index
            }
            // Without room: the followers' timers remain.
            Err(_) => last,
        }
    }

    /// Answers the barriers whose queue is durable up to them.
    pub(super) fn open_barriers(&mut self) {
        if self.barriers.is_empty() {
            return;
        }
        // What was applied since gates were opened counts in the answer.
        self.open_gates();
        let barriers = std::mem::take(&mut self.barriers);
        for barrier in barriers {
            if !self.open_barrier(&barrier) {
                self.barriers.push_back(barrier);
            }
        }
    }

    /// False when what it waits for is not there yet.
    fn open_barrier(&mut self, barrier: &Barrier) -> bool {
        let Some(slot) = self.partitions.get(&barrier.key) else {
            let (code, message) = unknown_queue();
            self.refuse(barrier.conn, barrier.correlation, code, message);
            return true;
        };
        let copies = barrier.copies;
        let copies = copies.unwrap_or_else(|| self.copies_of(barrier.key, Boundary::Durable));
        let Some(group) = self.groups.get(&slot.group.0) else {
            return false;
        };
        let applied = group.group.last_applied().0 >= barrier.at.index;
        let reached =
            applied && group.is_reached(barrier.at, Boundary::Durable, copies, &self.frontiers);
        if !reached {
            return false;
        }
        let copies = group.group.copies_of(Boundary::Durable, barrier.at.index);
        let reply = BarrierReply {
            generation: slot.generation,
            written_next: slot.machine.next_offset(),
            durable_next: slot.durable_next,
            copies: u8::try_from(copies).unwrap_or(u8::MAX),
            extensions: Vec::new(),
        };
        self.reply(barrier.conn, barrier.correlation, &reply);
        true
    }

    /// Ends late barriers and peeks; returns the next deadline.
    pub(super) fn expire_barriers(&mut self) -> u64 {
        let now = self.server_ms;
        let mut late: Vec<(ConnKey, u64)> = Vec::new();
        let mut next = u64::MAX;
        let mut keep = |deadline: u64, conn: ConnKey, correlation: u64| {
            if deadline <= now {
                late.push((conn, correlation));
                return false;
            }
            next = next.min(deadline);
            true
        };
        self.barriers
            .retain(|b| keep(b.deadline_ms, b.conn, b.correlation));
        self.peeks
            .retain(|p| keep(p.deadline_ms, p.conn, p.correlation));
        for (conn, correlation) in late {
            let message = "the deadline passed; what it waited for may still come".to_owned();
            self.error(
                conn,
                correlation,
                ErrorCode::Deadline,
                Outcome::Unknown,
                message,
            );
        }
        next
    }

    pub(super) fn on_purge(&mut self, conn: ConnKey, correlation: u64, body: &[u8]) {
        let (_, key) = partition_request!(self, conn, correlation, body, Purge);
        let Some(slot) = self.partitions.get(&key) else {
            return;
        };
        if !slot.dropping && !self.has_begun(slot) {
            let (code, message) = unavailable();
            return self.refuse(conn, correlation, code, message);
        }
        let is_purge = |deferred: &&Deferred| matches!(deferred.origin, Origin::Purge(_));
        if self.deferred.iter().filter(is_purge).count() >= MAX_WAITING_PURGES {
            let message = "too many purges wait for room in the log; retry later".to_owned();
            return self.refuse(conn, correlation, ErrorCode::Overloaded, message);
        }
        let below = slot.machine.next_offset();
        let mut leased = Vec::new();
        slot.machine.leased_below(below, &mut leased);
        let mut keep = Vec::new();
        for (offset, attempt) in leased {
            DeliveryIds::push(&mut keep, offset, attempt);
        }
        let command = Command::Purge {
            queue_id: key.queue_id,
            partition: key.partition,
            below,
            keep: DeliveryIds(&keep),
        };
        let asked = self.asked(conn, correlation);
        self.propose_or_defer(key, &command, Origin::Purge(asked));
    }

    pub(super) fn on_peek(&mut self, conn: ConnKey, correlation: u64, body: &[u8]) {
        let (request, key) = partition_request!(self, conn, correlation, body, Peek);
        if self.peeks.len() >= MAX_WAITING {
            let message = "too many peeks wait already; retry later".to_owned();
            return self.refuse(conn, correlation, ErrorCode::Overloaded, message);
        }
        let waiting = self.peeks.iter().filter(|peek| peek.conn == conn).count();
        if waiting >= MAX_PEEKS_OF_CONNECTION || self.output_is_full(conn) {
            let message = format!(
                "{waiting} peeks of this connection wait and its unread answers are many; read them, then retry"
            );
            return self.refuse(conn, correlation, ErrorCode::Overloaded, message);
        }
        let deadline_ms = self.server_ms + u64::from(DEFAULT_DEADLINE_MS);
        let mut peek = PendingPeek {
            conn,
            correlation,
            key,
            from: request.from_offset.to_native(),
            max: request.max_records.to_native().clamp(1, MAX_PEEK_RECORDS),
            deadline_ms,
            peeked: Vec::new(),
            records: Vec::new(),
        };
        if !self.answer_peek(&mut peek) {
            self.timers.deadline_ms = self.timers.deadline_ms.min(deadline_ms);
            self.peeks.push(peek);
        }
    }

    /// Tries again what waited for reads.
    pub(super) fn retry_peeks(&mut self) {
        if self.peeks.is_empty() {
            return;
        }
        let peeks = std::mem::take(&mut self.peeks);
        for mut peek in peeks {
            if !self.answer_peek(&mut peek) {
                self.peeks.push(peek);
            }
        }
    }

    /// Gathers what is at hand, in order, and answers once that is all. False
    /// when a record has to be read back first; it was asked for. What was
    /// gathered is kept, so that each read brings the answer nearer, however
    /// little the read cache holds.
    fn answer_peek(&mut self, peek: &mut PendingPeek) -> bool {
        let Some(slot) = self.partitions.get(&peek.key) else {
            let (code, message) = unknown_queue();
            self.refuse(peek.conn, peek.correlation, code, message);
            return true;
        };
        let generation = slot.generation;
        let mut room = PEEK_BYTES.saturating_sub(peek.records.len());
        let mut found = Vec::new();
        let left = peek.max.saturating_sub(peek.peeked.len() as u32);
        let mut first = peek.peeked.is_empty();
        slot.machine.peek(
            peek.from,
            left,
            &mut |offset, state, attempts, location, len| {
                if !std::mem::take(&mut first) && len as usize > room {
                    room = 0;
                    return;
                }
                room = room.saturating_sub(len as usize);
                let state = state as u8;
                let peeked = Peeked {
                    offset,
                    state,
                    attempts,
                    len,
                };
                found.push((peeked, location));
            },
        );
        for (peeked, location) in found {
            if !self.at_hand(location, peeked.len) {
                return false;
            }
            if !self.is_sound(location, peeked.len) {
                self.tell_bad_record(peek.key, peeked.offset);
                peek.from = peeked.offset + 1;
                continue;
            }
            let (log, records) = (&self.log, &mut peek.records);
            reads::visit(log, &self.reads, location, peeked.len, &mut |piece| {
                records.extend_from_slice(piece);
            });
            peek.from = peeked.offset + 1;
            peek.peeked.push(peeked);
        }
        let body = PeekReply {
            generation,
            peeked: std::mem::take(&mut peek.peeked),
            records: std::mem::take(&mut peek.records),
            extensions: Vec::new(),
        };
        self.reply(peek.conn, peek.correlation, &body);
        true
    }
}
