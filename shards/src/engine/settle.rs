//! Settles: acknowledges of one turn become one command per partition. Where nobody asked
//! for a confirm they wait a moment for an entry of the group to ride along with: an entry
//! of their own costs every copy a write, and each follower a message and an answer.

use wire::{
    codec,
    error::ErrorCode,
    frame::Kind,
    limits::MAX_SETTLE_ITEMS,
    message::{ArchivedSettle, RefusedSettle, Settle, SettleConfirm, SETTLE_CONFIRM},
    vocabulary::SettleKind,
};

use super::{
    core::Engine,
    gates::{Met, Origin},
    partition::{PartitionKey, SettleReply},
    relay::Routed,
    turn::Deferred,
    types::ConnKey,
};
use crate::{
    group::GroupError,
    io::BatchBuffer,
    state::{
        command::{Command, DeliveryIds},
        queue::release_backoff_ms,
    },
};

/// Most delivery ids one settle command carries; more are split over several.
const MAX_IDS_PER_COMMAND: usize = 16_384;
/// So long acknowledges nobody waits for look for company, in ms, or until they are
/// [`FULL_BYTES`]. What is lost of them by a crash comes again, flagged, as ever.
const COMPANY_MS: u64 = 5;
/// So many bytes of delivery ids go by themselves.
const FULL_BYTES: usize = 256 * ID_BYTES;
/// Encoded length of one delivery id.
pub(super) const ID_BYTES: usize = 12;

impl<B: BatchBuffer> Engine<B> {
    pub(super) fn on_settle(&mut self, conn: ConnKey, correlation: u64, body: &[u8]) {
        let settle = match codec::decode::<Settle>(body) {
            Ok(settle) => settle,
            Err(error) => {
                return self.refuse(conn, correlation, ErrorCode::Invalid, error.to_string())
            }
        };
        let key = PartitionKey {
            queue_id: settle.queue_id.to_native(),
            partition: settle.partition.to_native(),
        };
        match self.route(conn, key, Kind::Settle, correlation, body) {
            Ok(Routed::Away { .. }) => return,
            Ok(Routed::Here) => {}
            // A queue that is gone took its deliveries with it.
            Err((ErrorCode::UnknownQueue, _)) => {
                return self.refuse_all(conn, correlation, settle, ErrorCode::UnknownQueue);
            }
            Err((code, message)) => return self.refuse(conn, correlation, code, message),
        }
        let Some(kind) = SettleKind::from_raw(settle.kind) else {
            let message = format!("settle kind {} is not known", settle.kind);
            return self.refuse(conn, correlation, ErrorCode::Invalid, message);
        };
        if settle.items.len() > MAX_SETTLE_ITEMS as usize {
            let message = format!(
                "{} items are above the limit of {MAX_SETTLE_ITEMS} in one settle",
                settle.items.len()
            );
            return self.refuse(conn, correlation, ErrorCode::TooLarge, message);
        }
        self.begin_settles(conn, correlation, key, kind, settle);
    }

    fn begin_settles(
        &mut self,
        conn: ConnKey,
        correlation: u64,
        key: PartitionKey,
        kind: SettleKind,
        settle: &ArchivedSettle,
    ) {
        let Some(slot) = self.partitions.get_mut(&key) else {
            return self.refuse_all(conn, correlation, settle, ErrorCode::UnknownQueue);
        };
        let wants_confirm = settle.flags.to_native() & SETTLE_CONFIRM != 0;
        let current = settle.generation.to_native() == slot.generation;
        let mut refused = Vec::new();
        let mut ids = std::mem::take(&mut self.scratch);
        ids.clear();
        let gathered = kind == SettleKind::Acknowledge;
        let out = if gathered {
            &mut slot.acknowledges
        } else {
            &mut ids
        };
        let mut accepted = 0;
        for item in settle.items.iter() {
            let (offset, attempt) = (item.offset.to_native(), item.attempt.to_native());
            if current && slot.machine.begin_settle(conn.0, offset, attempt).is_ok() {
                DeliveryIds::push(out, offset, attempt);
                accepted += 1;
            } else {
                let code = ErrorCode::StaleDelivery as u16;
                refused.push(RefusedSettle {
                    offset,
                    attempt,
                    code,
                });
            }
        }
        if accepted == 0 || !wants_confirm {
            // Nothing waits for a gate, or nobody asked: refusals go at once.
            if wants_confirm || !refused.is_empty() {
                self.answer_settle(conn, correlation, 0, None, std::mem::take(&mut refused));
            }
        }
        if accepted > 0 {
            let reply = wants_confirm.then(|| SettleReply {
                asked: self.asked(conn, correlation),
                accepted,
                refused,
            });
            if gathered {
                self.gather(key, reply);
            } else {
                let delay_ms = settle.delay_ms.to_native();
                self.propose_by_due(key, kind, delay_ms, &ids, reply.into_iter().collect());
            }
        }
        self.scratch = ids;
    }

    /// A release without a delay backs off by its attempt, so that a consumer
    /// that gives everything back at once does not keep a core busy (F49).
    /// Replies ride on the last command: its boundary covers the others'.
    fn propose_by_due(
        &mut self,
        key: PartitionKey,
        kind: SettleKind,
        delay_ms: u64,
        ids: &[u8],
        replies: Vec<SettleReply>,
    ) {
        let now = self.time_at(key);
        let due_of = |attempt: u32| match (kind, delay_ms) {
            (SettleKind::Release, 0) => match release_backoff_ms(attempt) {
                0 => 0,
                backoff => now.saturating_add(backoff),
            },
            (SettleKind::Release, delay) => now.saturating_add(delay),
            _ => 0,
        };
        let mut items: Vec<(u64, u64, u32)> = DeliveryIds(ids)
            .iter()
            .map(|(offset, attempt)| (due_of(attempt), offset, attempt))
            .collect();
        items.sort_unstable();
        let mut replies = Some(replies);
        let mut groups = items.chunk_by(|a, b| a.0 == b.0).peekable();
        while let Some(group) = groups.next() {
            let mut ids = Vec::with_capacity(group.len() * ID_BYTES);
            for (_, offset, attempt) in group {
                DeliveryIds::push(&mut ids, *offset, *attempt);
            }
            let due_ms = group.first().map_or(0, |(due, _, _)| *due);
            let last = groups.peek().is_none();
            let replies = if last { replies.take() } else { None }.unwrap_or_default();
            self.propose_settle(key, kind, due_ms, &ids, replies);
        }
    }

    fn gather(&mut self, key: PartitionKey, reply: Option<SettleReply>) {
        let Some(slot) = self.partitions.get_mut(&key) else {
            return;
        };
        slot.settle_replies.extend(reply);
        if !std::mem::replace(&mut slot.gathered, true) {
            self.settled_partitions.push(key);
            let due_ms = self.server_ms.saturating_add(COMPANY_MS);
            self.timers.settles_ms = self.timers.settles_ms.min(due_ms);
        }
    }

    /// Proposes the acknowledges that were gathered and wait for no company any more.
    pub(super) fn flush_settles(&mut self) {
        if self.settled_partitions.is_empty() {
            return;
        }
        let all = self.draining || self.server_ms >= self.timers.settles_ms;
        let mut waiting = std::mem::take(&mut self.settled_partitions);
        waiting.retain(|key| {
            let goes = all || self.settles_go(*key);
            if goes {
                self.propose_gathered(*key);
                if let Some(slot) = self.partitions.get_mut(key) {
                    slot.gathered = false;
                }
            }
            !goes
        });
        if waiting.is_empty() {
            self.timers.settles_ms = u64::MAX;
        }
        waiting.append(&mut self.settled_partitions);
        self.settled_partitions = waiting;
    }

    /// Somebody waits for the partition's acknowledges, they are many, or an entry of the
    /// group goes in this turn anyway.
    fn settles_go(&self, key: PartitionKey) -> bool {
        let Some(slot) = self.partitions.get(&key) else {
            return true;
        };
        !slot.settle_replies.is_empty()
            || slot.acknowledges.len() >= FULL_BYTES
            || self
                .groups
                .get(&slot.group.0)
                .is_none_or(|group| group.proposed || group.resigning.is_some())
    }

    /// The acknowledges gathered for a partition, if there are any, go now. It may stay
    /// listed: then there is nothing to do for it later.
    pub(super) fn propose_gathered(&mut self, key: PartitionKey) {
        let slot = self.partitions.get_mut(&key);
        let Some(slot) = slot.filter(|slot| !slot.acknowledges.is_empty()) else {
            return;
        };
        let mut ids = std::mem::take(&mut slot.acknowledges);
        let mut replies = Some(std::mem::take(&mut slot.settle_replies));
        let mut chunks = ids.chunks(MAX_IDS_PER_COMMAND * ID_BYTES).peekable();
        while let Some(chunk) = chunks.next() {
            // Replies ride on the last command: it is durable last.
            let last = chunks.peek().is_none();
            let replies = if last { replies.take() } else { None }.unwrap_or_default();
            self.propose_settle(key, SettleKind::Acknowledge, 0, chunk, replies);
        }
        if let Some(slot) = self.partitions.get_mut(&key) {
            ids.clear();
            slot.acknowledges = ids;
        }
    }

    fn propose_settle(
        &mut self,
        key: PartitionKey,
        kind: SettleKind,
        due_ms: u64,
        ids: &[u8],
        replies: Vec<SettleReply>,
    ) {
        let command = Command::Settle {
            queue_id: key.queue_id,
            partition: key.partition,
            stamp_ms: self.time_at(key),
            kind,
            due_ms,
            items: DeliveryIds(ids),
        };
        self.propose_or_defer(key, &command, Origin::Settles { replies });
    }

    /// Proposes a command that must not be lost; when the log has no room it
    /// waits for the next turns.
    pub(super) fn propose_or_defer(
        &mut self,
        key: PartitionKey,
        command: &Command<'_>,
        origin: Origin,
    ) {
        if self.deferred.is_empty() {
            match self.try_propose(key, &[command.head().bytes(), command.tail()], origin) {
                Ok(()) => {}
                Err(origin) => self.defer(key, command, origin),
            }
        } else {
            self.defer(key, command, origin);
        }
    }

    fn defer(&mut self, key: PartitionKey, command: &Command<'_>, origin: Origin) {
        let mut payload = command.head().bytes().to_vec();
        payload.extend_from_slice(command.tail());
        self.deferred.push_back(Deferred {
            key,
            payload,
            origin,
        });
    }

    /// Proposes to the partition's group; gives the origin back when the log
    /// has no room. A partition that is gone swallows the command.
    pub(super) fn try_propose(
        &mut self,
        key: PartitionKey,
        parts: &[&[u8]],
        origin: Origin,
    ) -> Result<(), Origin> {
        let Some(slot) = self.partitions.get(&key) else {
            self.answer_gone(origin);
            return Ok(());
        };
        let demand = slot.demand();
        let Some(group) = self.groups.get_mut(&slot.group.0) else {
            self.answer_gone(origin);
            return Ok(());
        };
        match group.group.propose(&mut self.log, parts, demand) {
            Ok(index) => {
                group.origins.push_back((index, origin));
                group.set_proposed();
                Ok(())
            }
            Err(GroupError::NotLeader(_)) if !group.group.is_leader() => {
                self.answer_moved(origin);
                Ok(())
            }
            Err(_) => Err(origin),
        }
    }

    pub(super) fn confirm_settles(
        &mut self,
        key: PartitionKey,
        replies: Vec<SettleReply>,
        met: Met,
    ) {
        debug_assert!(self.partitions.contains_key(&key) || !replies.is_empty());
        for reply in replies {
            self.answer_settle(
                reply.asked.conn,
                reply.asked.correlation,
                reply.accepted,
                Some(met),
                reply.refused,
            );
        }
    }

    fn answer_settle(
        &mut self,
        conn: ConnKey,
        correlation: u64,
        accepted: u32,
        met: Option<Met>,
        refused: Vec<RefusedSettle>,
    ) {
        let body = SettleConfirm {
            accepted,
            boundary: met.map_or(0, |met| met.boundary as u8),
            copies: met.map_or(0, Met::copies),
            refused,
            extensions: Vec::new(),
        };
        self.reply(conn, correlation, &body);
    }

    fn refuse_all(
        &mut self,
        conn: ConnKey,
        correlation: u64,
        settle: &ArchivedSettle,
        code: ErrorCode,
    ) {
        let refuse = |item: &wire::message::ArchivedSettleItem| RefusedSettle {
            offset: item.offset.to_native(),
            attempt: item.attempt.to_native(),
            code: code as u16,
        };
        let refused = settle.items.iter().map(refuse).collect();
        self.answer_settle(conn, correlation, 0, None, refused);
    }
}
