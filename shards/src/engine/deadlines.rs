//! Nobody waits for ever: what is owed an answer, and what becomes of it when
//! the time is up or the log latches.
//!
//! Owns no state: what waits is where it waits (origins of proposals, gates,
//! commands without room, declares on their way, barriers, peeks).
//!
//! 1. Every request that is not answered in the turn it came in has a deadline,
//!    its own or [`DEFAULT_DEADLINE_MS`], and is answered by then, or up to
//!    [`LATEST_LOOK_MS`] later where a great deal waits.
//! 2. What was proposed is never said to have failed.
//!
//! Never: takes a proposal back. What waits for room and must not be lost (a
//! settle) stays; only its answer is given up.

use wire::error::{ErrorCode, Outcome};

use super::{
    core::Engine,
    gates::{majority, GateAction, GroupSlot, Origin, PublishReply},
    partition::SettleReply,
    publish::{unknown_queue, DEFAULT_DEADLINE_MS},
    shortfall::{Awaited, Shortfall},
    types::ConnKey,
};
use crate::io::BatchBuffer;

/// What one ms until the next look at deadlines pays for.
const LOOKED_AT_PER_MS: usize = 2000;
/// Latest that a passed deadline is noticed.
const LATEST_LOOK_MS: u64 = 500;

/// ms until deadlines are looked at again after a look at so many.
fn pause_after_look(looked_at: usize) -> u64 {
    ((looked_at / LOOKED_AT_PER_MS) as u64).min(LATEST_LOOK_MS)
}

/// Whom an answer is owed, and until when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asked {
    pub conn: ConnKey,
    pub correlation: u64,
    /// Server time.
    pub deadline_ms: u64,
}

/// Those whose time is up, and when it is for the next.
pub(super) struct Late {
    now: u64,
    next: u64,
    looked_at: usize,
    /// With what is missing, where that is other nodes' copies.
    publishes: Vec<(PublishReply, Option<Shortfall>)>,
    others: Vec<Asked>,
}

impl Late {
    /// `now`: `u64::MAX` for everybody.
    pub(super) fn at(now: u64) -> Self {
        Late {
            now,
            next: u64::MAX,
            looked_at: 0,
            publishes: Vec::new(),
            others: Vec::new(),
        }
    }

    fn is_up(&mut self, deadline_ms: u64) -> bool {
        let up = deadline_ms <= self.now;
        if !up {
            self.next = self.next.min(deadline_ms);
        }
        up
    }

    pub(super) fn take(&mut self, asked: Asked) -> bool {
        let up = self.is_up(asked.deadline_ms);
        if up {
            self.others.push(asked);
        }
        up
    }

    fn take_publish(&mut self, reply: &mut PublishReply) {
        if !reply.answered && self.is_up(reply.deadline_ms) {
            reply.answered = true;
            self.publishes.push((*reply, None));
        }
    }

    /// Leaves nobody behind whose time is up.
    fn take_origin(&mut self, origin: &mut Origin) {
        match origin {
            Origin::Publish(reply) => self.take_publish(reply),
            Origin::Settles { replies } => replies.retain(|reply| !self.take(reply.asked)),
            Origin::Purge(asked)
            | Origin::Declare(asked)
            | Origin::Delete(asked)
            | Origin::Change { asked, .. }
            | Origin::Order(asked) => {
                if self.take(*asked) {
                    *origin = Origin::Nobody;
                }
            }
            Origin::Recover { .. } | Origin::Nobody => {}
        }
    }

    /// False for a gate that nobody waits at any more.
    fn take_gate(&mut self, action: &mut GateAction) -> bool {
        match action {
            GateAction::Append { confirm, .. } => {
                if let Some(reply) = confirm {
                    self.take_publish(reply);
                }
                true
            }
            GateAction::Settles { replies, .. } => {
                replies.retain(|reply| !self.take(reply.asked));
                !replies.is_empty()
            }
            GateAction::Purged { asked, .. } => !self.take(*asked),
            GateAction::Mark { .. }
            | GateAction::Begun { .. }
            | GateAction::Serving { .. }
            | GateAction::Changed { .. } => true,
        }
    }

    pub(super) fn take_group(&mut self, slot: &mut GroupSlot) {
        self.looked_at += slot.origins.len() + slot.waiting();
        // Only where time is the reason is anything missing.
        let by_deadline = self.now != u64::MAX;
        for (index, origin) in &mut slot.origins {
            let from = self.publishes.len();
            self.take_origin(origin);
            let late = self.publishes.iter_mut().skip(from);
            for (reply, missing) in late.filter(|_| by_deadline) {
                let (index, boundary) = (*index, reply.boundary);
                let copies = majority(slot.group.members().voters.len());
                let awaited = Awaited {
                    index,
                    boundary,
                    copies,
                };
                *missing = Shortfall::of(&slot.group, &awaited);
            }
        }
        let from = self.publishes.len();
        let mut taken = Vec::new();
        slot.retain_gates(&mut |awaited, action| {
            let keep = self.take_gate(action);
            taken.resize(self.publishes.len() - from, awaited);
            keep
        });
        let publishes = self.publishes.iter_mut().skip(from);
        for ((_, missing), awaited) in publishes.zip(&taken).filter(|_| by_deadline) {
            *missing = Shortfall::of(&slot.group, awaited);
        }
    }
}

impl<B: BatchBuffer> Engine<B> {
    /// Whoever asks for something that takes longer than a turn.
    pub(super) fn asked(&mut self, conn: ConnKey, correlation: u64) -> Asked {
        let deadline_ms = self.server_ms + u64::from(DEFAULT_DEADLINE_MS);
        self.timers.deadline_ms = self.timers.deadline_ms.min(deadline_ms);
        Asked {
            conn,
            correlation,
            deadline_ms,
        }
    }

    /// Tells those whose deadline passed that the outcome is unknown: what was
    /// proposed may yet take effect. A purge that was not is given up.
    ///
    /// Nothing is kept per deadline, which would cost every publish that is
    /// confirmed in time; all that waits is looked through instead, and the
    /// more there is, the longer until the next look: where publishes pile up,
    /// looking takes a small part of the time, whatever their deadlines.
    pub(super) fn expire_deadlines(&mut self) {
        let now = self.server_ms;
        if self.timers.deadlines_due_ms() > now {
            return;
        }
        let mut late = Late::at(now);
        let mut unproposed = Late::at(now);
        self.deferred.retain_mut(|deferred| {
            let is_purge = matches!(deferred.origin, Origin::Purge(_));
            let which = if is_purge { &mut unproposed } else { &mut late };
            which.take_origin(&mut deferred.origin);
            !(is_purge && matches!(deferred.origin, Origin::Nobody))
        });
        self.take_proposed(&mut late);
        for asked in unproposed.others {
            let message = "the deadline passed before there was room in the log; nothing was done";
            let (code, outcome) = (ErrorCode::Deadline, Outcome::Failed);
            self.error(
                asked.conn,
                asked.correlation,
                code,
                outcome,
                message.to_owned(),
            );
        }
        let next = late.next.min(unproposed.next);
        let waiting = self.deferred.len() + self.barriers.len() + self.peeks.len();
        let looked_at = late.looked_at + waiting;
        self.tell_late(
            late,
            ErrorCode::Deadline,
            "the deadline passed before the publish was confirmed; it may still become visible: look at the frontiers, or publish again and accept a duplicate",
            "the deadline passed; what was asked for may still take effect",
        );
        self.timers.deadline_ms = next.min(self.expire_barriers());
        self.timers.deadline_look_ms = now + pause_after_look(looked_at);
    }

    /// The log latched: everything proposed and not confirmed is unknown, what
    /// had no room yet failed.
    pub(super) fn fail_pending(&mut self) {
        let mut late = Late::at(u64::MAX);
        self.take_proposed(&mut late);
        for slot in self.groups.values_mut() {
            slot.origins.clear();
            slot.clear_gates();
        }
        self.tell_late(
            late,
            ErrorCode::Latched,
            "the log met an I/O error before the publish was confirmed; it may or may not survive the reopening",
            "the log met an I/O error before this was done; it may or may not survive the reopening",
        );
    }

    /// What waits for room while the log is latched will not be done.
    pub(super) fn fail_deferred(&mut self) {
        for deferred in std::mem::take(&mut self.deferred) {
            let message = "the log of this shard met an I/O error; nothing was done; retry later";
            let (code, outcome) = (ErrorCode::Latched, Outcome::Failed);
            self.answer_origin(deferred.origin, code, outcome, message);
        }
    }

    /// Tells whoever waits for something to be written that it will be, once
    /// there is room. They are told once: what they asked for has no asker
    /// from now on.
    pub(super) fn tell_waiting_for_room(&mut self, message: &str) {
        let mut late = Late::at(u64::MAX);
        let deferred = self
            .deferred
            .iter_mut()
            .map(|deferred| &mut deferred.origin);
        let groups = self.groups.values_mut();
        let proposed = groups.flat_map(|slot| slot.origins.iter_mut().map(|(_, origin)| origin));
        for origin in deferred.chain(proposed) {
            late.take_origin(origin);
        }
        if let Some(meta) = self.meta.as_mut() {
            meta.take_askers(&mut |asked| late.take(asked));
        }
        self.tell_late(late, ErrorCode::DiskFull, message, message);
    }

    fn take_proposed(&mut self, late: &mut Late) {
        for slot in self.groups.values_mut() {
            late.take_group(slot);
        }
        if let Some(meta) = self.meta.as_mut() {
            meta.take_askers(&mut |asked| late.take(asked));
        }
    }

    pub(super) fn tell_late(&mut self, late: Late, code: ErrorCode, publish: &str, other: &str) {
        let outcome = Outcome::Unknown;
        for (reply, missing) in late.publishes {
            let (code, message) = match missing {
                Some(missing) => (ErrorCode::MissingCopies, missing.to_string()),
                None => (code, publish.to_owned()),
            };
            self.answer_publish(&reply, code, outcome, message);
        }
        for asked in late.others {
            self.error(
                asked.conn,
                asked.correlation,
                code,
                outcome,
                other.to_owned(),
            );
        }
    }

    /// The queue went before the command took effect: whoever asked is told.
    pub(super) fn answer_gone(&mut self, origin: Origin) {
        let (code, message) = unknown_queue();
        self.answer_origin(origin, code, Outcome::Failed, &message);
    }

    /// Ends whatever waits for a command with an error.
    pub(super) fn answer_origin(
        &mut self,
        origin: Origin,
        code: ErrorCode,
        outcome: Outcome,
        message: &str,
    ) {
        let message = message.to_owned();
        match origin {
            Origin::Publish(reply) if !reply.answered => {
                self.answer_publish(&reply, code, outcome, message);
            }
            Origin::Settles { replies } => {
                for SettleReply { asked, .. } in replies {
                    let message = message.clone();
                    self.error(asked.conn, asked.correlation, code, outcome, message);
                }
            }
            Origin::Purge(asked)
            | Origin::Declare(asked)
            | Origin::Delete(asked)
            | Origin::Change { asked, .. }
            | Origin::Order(asked) => {
                self.error(asked.conn, asked.correlation, code, outcome, message);
            }
            Origin::Publish(_) | Origin::Recover { .. } | Origin::Nobody => {}
        }
    }

    /// Ends a publish with an error and gives its window back.
    pub(super) fn answer_publish(
        &mut self,
        reply: &PublishReply,
        code: ErrorCode,
        outcome: Outcome,
        message: String,
    ) {
        if let Some(connection) = self.connections.get_mut(&reply.conn) {
            connection.release(u64::from(reply.bytes));
        }
        self.error(reply.conn, reply.correlation, code, outcome, message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_that_wait_are_told_in_time_and_many_bound_the_looking() {
        assert_eq!(pause_after_look(0), 0);
        assert_eq!(pause_after_look(LOOKED_AT_PER_MS - 1), 0);
        assert_eq!(pause_after_look(200_000), 100);
        assert_eq!(pause_after_look(usize::MAX), LATEST_LOOK_MS);
    }
}
