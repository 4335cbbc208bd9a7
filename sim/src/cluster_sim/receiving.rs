//! What the clients are told, held against the journal.

use shards::engine::ConnKey;
use wire::{
    codec,
    error::{ErrorCode, Outcome},
    frame::{FrameHeader, Kind, HEADER_BYTES},
    message::{
        ArchivedDeliver, ArchivedQueueInfoReply, BarrierReply, Confirm, Declared, Deliver, Error,
        FrontiersReply, ListReply, LocateReply, PeekReply, QueueChanged, QueueInfoReply,
        SettleConfirm, Subscribed, Unsubscribed, DELIVERY_DURABLE, DELIVERY_REDELIVERED,
    },
    record::Record,
    setting::Standing,
    vocabulary::{Boundary, Mode, SettleKind},
};

use super::{
    issues::{Issue, Said},
    journal::{Fate, Key, Queue},
    leaders::Confirmed,
    requests::{Answer, Held, Info, Request, Seen},
    world::World,
    Checked,
};
use crate::{
    promises::{said_in, Setting},
    record,
};

/// What an answer may take beyond its deadline.
const LATE_US: u64 = 3_000_000;

/// Where a client's frames come from.
#[derive(Clone, Copy)]
struct From {
    client: usize,
    node: usize,
    conn: ConnKey,
}

impl World {
    /// A client takes what its connection brought.
    pub(super) fn receive(
        &mut self,
        client: usize,
        node: usize,
        conn: ConnKey,
        mut bytes: &[u8],
    ) -> Checked<()> {
        let from = From { client, node, conn };
        while let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() {
            let header = FrameHeader::decode(head, u32::MAX).map_err(|error| error.to_string())?;
            let Some((body, rest)) = rest.split_at_checked(header.length as usize) else {
                return Err("the server sent part of a frame".to_owned());
            };
            bytes = rest;
            let kind = Kind::from_raw(header.kind);
            self.note(format_args!(
                "client {client} gets {kind:?} {}",
                header.correlation
            ));
            let kind = kind.ok_or("the server sent a frame of no kind")?;
            self.frame(from, kind, header.correlation, body)?;
        }
        Ok(())
    }

    fn frame(&mut self, from: From, kind: Kind, correlation: u64, body: &[u8]) -> Checked<()> {
        let client = from.client;
        match kind {
            Kind::Confirm => return self.on_confirm(from, body),
            Kind::Deliver => {
                let body = codec::decode::<Deliver>(body).map_err(bad)?;
                return self.on_deliver(from, body);
            }
            Kind::GoingAway => return Ok(()),
            Kind::Unsubscribed if correlation == 0 => {
                let body = codec::decode::<Unsubscribed>(body).map_err(bad)?;
                let subscription = body.subscription.to_native();
                self.note(format_args!("  subscription {subscription} ended"));
                if let Some(link) = self.clients[client].link.as_mut() {
                    link.subscriptions.remove(&subscription);
                    link.held.retain(|held| held.subscription != subscription);
                }
                return Ok(());
            }
            Kind::Error if correlation == 0 => {
                let error = codec::decode::<Error>(body).map_err(bad)?;
                return Err(format!(
                    "client {client} is told off: {} ({})",
                    error.message.as_str(),
                    error.code.to_native()
                ));
            }
            _ => {}
        }
        self.issue(from, Said::Answer(correlation));
        let request = self.take_pending(client, kind, correlation)?;
        let answer = self.answered(client, kind, body, request)?;
        if self.clients[client].keep_answers {
            self.clients[client].answers.insert(correlation, answer);
        }
        Ok(())
    }

    /// Who said it, and not before when.
    fn issue(&mut self, from: From, said: Said) -> Issue {
        let sim = &mut self.nodes[from.node];
        let here = Issue {
            node: from.node,
            life: sim.engine_life,
            not_before_us: self.now_us,
        };
        let Some(socket) = sim.sockets.get_mut(&from.conn) else {
            return here;
        };
        let not_before_us = socket.told_us;
        socket.issues.take(said).unwrap_or(Issue {
            not_before_us,
            ..here
        })
    }

    fn take_pending(&mut self, client: usize, kind: Kind, correlation: u64) -> Checked<Request> {
        let link = self.clients[client].link.as_mut();
        let Some((request, sent_us)) = link.and_then(|link| link.pending.remove(&correlation))
        else {
            return Err(format!(
                "client {client} gets {kind:?} for {correlation}, which it does not wait for"
            ));
        };
        self.asked_us = sent_us;
        if let Request::Publish { batch, .. } = &request {
            let deadline_us = self.journal.batches[*batch].deadline_ms * 1000;
            let late_us = self.now_us.saturating_sub(sent_us + deadline_us);
            if late_us > LATE_US + self.paused_us {
                return Err(format!(
                    "{request:?} was answered {late_us} us after its deadline"
                ));
            }
        }
        Ok(request)
    }

    fn answered(
        &mut self,
        client: usize,
        kind: Kind,
        body: &[u8],
        request: Request,
    ) -> Checked<Answer> {
        match (kind, request) {
            (Kind::Error, request) => self.on_error(client, body, request),
            (Kind::Declared, Request::Declare { name, mode }) => {
                let body = codec::decode::<Declared>(body).map_err(bad)?;
                let places = body.queue.partitions.iter();
                let queue = Queue {
                    name,
                    mode: Mode::from_raw(body.queue.mode).unwrap_or(mode),
                    lease_ms: body.queue.lease_ms.to_native(),
                    groups: places.map(|place| place.group.to_native()).collect(),
                    created: body.created == 1,
                };
                let queue_id = body.queue.queue_id.to_native();
                let (revision, _) = said_in(&body.extensions)?;
                let setting = Setting::raw(body.queue.mode, body.queue.copies);
                self.journal.promises.told(queue_id, revision, setting)?;
                self.learn_queue(queue_id, queue)?;
                Ok(Answer::Queue { queue_id })
            }
            (Kind::LocateReply, Request::Locate { name }) => {
                let body = codec::decode::<LocateReply>(body).map_err(bad)?;
                let queue_id = body.queue.queue_id.to_native();
                self.located(&name, queue_id)?;
                Ok(Answer::Queue { queue_id })
            }
            (Kind::Subscribed, Request::Subscribe { .. }) => {
                codec::decode::<Subscribed>(body).map_err(bad)?;
                Ok(Answer::Done)
            }
            (Kind::Unsubscribed, Request::Unsubscribe { subscription }) => {
                codec::decode::<Unsubscribed>(body).map_err(bad)?;
                if let Some(link) = self.clients[client].link.as_mut() {
                    link.subscriptions.remove(&subscription);
                    link.held.retain(|held| held.subscription != subscription);
                }
                Ok(Answer::Done)
            }
            (Kind::SettleConfirm, request @ Request::Settle { .. }) => {
                self.on_settle_confirm(body, &request)
            }
            (Kind::QueueInfoReply, Request::Info { key }) => {
                self.on_info(key, codec::decode::<QueueInfoReply>(body).map_err(bad)?)
            }
            (Kind::FrontiersReply, Request::Frontiers { key }) => {
                let body = codec::decode::<FrontiersReply>(body).map_err(bad)?;
                let generation = body.generation.to_native();
                let (written, durable) =
                    (body.written_next.to_native(), body.durable_next.to_native());
                self.on_frontiers(key, generation, written, durable)?;
                Ok(Answer::Done)
            }
            (Kind::BarrierReply, Request::Barrier { key, confirmed }) => {
                let body = codec::decode::<BarrierReply>(body).map_err(bad)?;
                let generation = body.generation.to_native();
                let (written, durable) =
                    (body.written_next.to_native(), body.durable_next.to_native());
                let (sent_us, now_us) = (self.asked_us, self.now_us);
                let history = &mut self.journal.history;
                history.barrier(key, generation, durable, sent_us, now_us);
                if generation == confirmed.0 && durable < confirmed.1 {
                    return Err(format!("the barrier of {key:?} ends at {durable}, below {} which was confirmed before", confirmed.1));
                }
                self.on_frontiers(key, generation, written, durable)?;
                Ok(Answer::Done)
            }
            (Kind::PeekReply, Request::Peek { key, from }) => self.on_peek(key, from, body),
            (Kind::ListReply, Request::List) => {
                let body = codec::decode::<ListReply>(body).map_err(bad)?;
                let ids = body.queues.iter().map(|queue| queue.queue_id.to_native());
                Ok(Answer::Queues(ids.collect()))
            }
            (Kind::Pong, Request::Ping) => Ok(Answer::Done),
            (Kind::ClusterOrdered, Request::Reshape { added }) => {
                if let Some(node) = added {
                    self.added(node);
                }
                Ok(Answer::Done)
            }
            (Kind::QueueChanged, Request::Change { queue_id, setting }) => {
                let body = codec::decode::<QueueChanged>(body).map_err(bad)?;
                self.journal.promises.changed(queue_id, setting, body)?;
                Ok(Answer::Done)
            }
            (Kind::ClusterOrdered, Request::Replace { node }) => {
                self.given_up(node);
                Ok(Answer::Done)
            }
            (kind, request) => Err(format!("client {client} gets {kind:?} for {request:?}")),
        }
    }

    fn on_error(&mut self, client: usize, body: &[u8], request: Request) -> Checked<Answer> {
        let error = codec::decode::<Error>(body).map_err(bad)?;
        let raw = error.code.to_native();
        let code = ErrorCode::from_raw(raw).ok_or("an error without a code")?;
        let unknown = error.outcome == Outcome::Unknown as u8;
        self.note(format_args!(
            "  error {code:?} unknown {unknown}: {}",
            error.message.as_str()
        ));
        match &request {
            Request::Publish { batch, bytes } => {
                let fate = if unknown { Fate::Unknown } else { Fate::Failed };
                let batch = &mut self.journal.batches[*batch];
                batch.fate = fate;
                if fate == Fate::Failed {
                    let history = &mut self.journal.history;
                    history.answered(batch.key, batch.first_id, linear::Outcome::Failed);
                }
                if fate == Fate::Failed && batch.first_offset.is_some() {
                    return Err(format!("{batch:?} is said to have failed, and was seen"));
                }
                if let Some(link) = self.clients[client].link.as_mut() {
                    link.unanswered_bytes = link.unanswered_bytes.saturating_sub(*bytes);
                }
            }
            Request::Subscribe { subscription } => {
                if let Some(link) = self.clients[client].link.as_mut() {
                    link.subscriptions.remove(subscription);
                    // Nothing came of it, so that the number is free again.
                    if link.next_subscription == subscription + 1 {
                        link.next_subscription = *subscription;
                    }
                }
                if code == ErrorCode::Conflict {
                    let message = error.message.as_str();
                    return Err(format!("client {client}: subscription {subscription} was refused before, and now is {message:?}"));
                }
            }
            Request::Change { queue_id, setting } if !unknown => {
                let promises = &mut self.journal.promises;
                promises.asked_no_more(*queue_id, *setting);
            }
            Request::Settle { kind, items, .. } if !unknown && *kind != SettleKind::Release => {
                for item in items {
                    let rec = self.journal.record(item.id)?;
                    rec.open_settles = rec.open_settles.saturating_sub(1);
                }
            }
            _ => {}
        }
        // What the other side ended before may be told so.
        let ended = matches!(
            request,
            Request::Unsubscribe { .. } | Request::Reshape { .. }
        );
        let told = !ended
            && matches!(
                code,
                ErrorCode::Invalid
                    | ErrorCode::Internal
                    | ErrorCode::Protocol
                    | ErrorCode::TooLarge
            );
        if told {
            return Err(format!(
                "{request:?} is refused as {code:?}: {}",
                error.message.as_str()
            ));
        }
        Ok(Answer::Error { code: raw, unknown })
    }

    // --- queues ---

    fn learn_queue(&mut self, queue_id: u64, queue: Queue) -> Checked<()> {
        self.located(&queue.name, queue_id)?;
        let partitions = queue.groups.len() as u16;
        let Some(known) = self.journal.queues.get_mut(&queue_id) else {
            for partition in 0..partitions {
                self.journal.parts.entry((queue_id, partition)).or_default();
            }
            self.journal.queues.insert(queue_id, queue);
            return Ok(());
        };
        if known.name != queue.name || (known.created && queue.created) {
            return Err(format!(
                "queue id {queue_id} is given out twice: {known:?}, {queue:?}"
            ));
        }
        if known.groups != queue.groups {
            return Err(format!("queue {queue_id} changed: {known:?}, {queue:?}"));
        }
        known.created |= queue.created;
        Ok(())
    }

    /// A name stands for one queue for good: none is deleted here.
    fn located(&mut self, name: &str, queue_id: u64) -> Checked<()> {
        let mut queues = self.journal.queues.iter();
        match queues.find(|(id, queue)| queue.name == name && **id != queue_id) {
            Some((id, _)) => Err(format!(
                "{name:?} is queue {id}, and is said to be {queue_id}"
            )),
            None => Ok(()),
        }
    }

    // --- publishes and deliveries ---

    fn on_confirm(&mut self, from: From, body: &[u8]) -> Checked<()> {
        let body = codec::decode::<Confirm>(body).map_err(bad)?;
        for item in body.items.iter() {
            let correlation = item.correlation.to_native();
            let issue = self.issue(from, Said::Answer(correlation));
            let request = self.take_pending(from.client, Kind::Confirm, correlation)?;
            let Request::Publish { batch, bytes } = request else {
                return Err(format!("a confirm for {request:?}"));
            };
            if let Some(link) = self.clients[from.client].link.as_mut() {
                link.unanswered_bytes = link.unanswered_bytes.saturating_sub(bytes);
            }
            let boundary = Boundary::from_raw(item.boundary);
            let boundary = boundary.ok_or("a confirm without a boundary")?;
            let known = self.journal.batches[batch].clone();
            let key = (item.queue_id.to_native(), item.partition.to_native());
            let count = item.count.to_native();
            if key != known.key || u64::from(count) != known.count {
                return Err(format!(
                    "the confirm of {known:?} names {key:?} and {count} records"
                ));
            }
            let (generation, first) = (item.generation.to_native(), item.first_offset.to_native());
            let copies = u32::from(item.copies);
            self.note(format_args!(
                "  {correlation} at {boundary:?} on {copies}, by {}: {key:?} generation {generation} offset {first}",
                issue.node
            ));
            let what = Confirmed {
                key,
                first_id: known.first_id,
                first_offset: first,
                count: known.count,
            };
            let told = linear::Outcome::Confirmed {
                generation,
                first_offset: first,
                durable: boundary == Boundary::Durable,
                at_us: self.now_us,
            };
            let history = &mut self.journal.history;
            history.answered(key, known.first_id, told);
            self.check_owner(what, &issue)?;
            self.journal
                .confirm(batch, boundary, copies, generation, first)?;
            self.journal.batches[batch].confirmed_by = Some(issue.node);
            if self.clients[from.client].keep_answers {
                let answers = &mut self.clients[from.client].answers;
                answers.insert(correlation, Answer::Done);
            }
        }
        Ok(())
    }

    fn on_deliver(&mut self, from: From, body: &ArchivedDeliver) -> Checked<()> {
        let client = from.client;
        let key = (body.queue_id.to_native(), body.partition.to_native());
        let (subscription, generation) =
            (body.subscription.to_native(), body.generation.to_native());
        let link = self.clients[client].link.as_ref();
        let subscribed = link.and_then(|link| link.subscriptions.get(&subscription));
        if subscribed != Some(&key) {
            return Err(format!("client {client} gets a delivery of {key:?} for subscription {subscription}, which is {subscribed:?}"));
        }
        let mut at = 0;
        let mut settles = Vec::new();
        for delivery in body.deliveries.iter() {
            let rest = body.records.get(at..).unwrap_or_default();
            let record = Record::parse(rest, 0).map_err(|error| error.to_string())?;
            at += record.bytes.len();
            let id = record::identify(&record).ok_or("a delivery of bytes nobody published")?;
            let (offset, attempt) = (delivery.offset.to_native(), delivery.attempt.to_native());
            let flags = delivery.flags.to_native();
            let held = Held {
                key,
                subscription,
                generation,
                offset,
                attempt,
                id,
            };
            let said = Said::Delivery(subscription, generation, offset, attempt);
            let issue = self.issue(from, said);
            self.note(format_args!("  {held:?} flags {flags} by {}", issue.node));
            let durable = flags & DELIVERY_DURABLE != 0;
            self.record_seen(&held, durable, &issue);
            self.check_delivery(client, &held, flags & DELIVERY_REDELIVERED != 0, &issue)?;
            let promises = &self.journal.promises;
            let gate = promises.delivery_gate(key, generation, offset);
            let met = if durable { Boundary::Durable } else { gate };
            self.journal
                .check_copies(id, met, self.journal.majority())?;
            let majority = self.journal.majority();
            let durable = self.journal.check_copies(id, Boundary::Durable, majority);
            if durable.is_err() {
                let promises = &mut self.journal.promises;
                promises.delivered_early(key, generation, offset);
            }
            self.journal.sight(key, generation, offset, id)?;
            // A speculative delivery may be gone again.
            let promises = &self.journal.promises;
            if promises.delivery_promises(key, generation, offset, met) {
                self.journal.promise(id, met)?;
            }
            self.journal.delivered += 1;
            if let Some(link) = self.clients[client].link.as_mut() {
                link.held.push(held);
            }
            settles.push(held);
        }
        if at != body.records.len() {
            return Err("a deliver frame with bytes of no delivery".to_owned());
        }
        if self.clients[client].drains {
            if let Some(link) = self.clients[client].link.as_mut() {
                link.held.clear();
            }
            let records = settles.len() as u32;
            self.settle(client, SettleKind::Acknowledge, settles, true);
            self.credit(client, subscription, records, 1 << 20);
        }
        Ok(())
    }

    /// A leader that does not know yet that it was deposed may say late what was so
    /// before: how long before is not known.
    fn record_seen(&mut self, held: &Held, durable: bool, issue: &Issue) {
        let stale = self.is_stale(held.key, issue);
        let seen = linear::Seen {
            id: held.id,
            generation: held.generation,
            offset: held.offset,
            durable,
            not_before_us: if stale { 0 } else { issue.not_before_us },
            at_us: self.now_us,
        };
        self.journal.history.seen(held.key, seen);
    }

    fn check_delivery(
        &mut self,
        client: usize,
        held: &Held,
        redelivered: bool,
        issue: &Issue,
    ) -> Checked<()> {
        let rec = self.journal.record(held.id)?.clone();
        let stale = self.is_stale(held.key, issue);
        let wrong = |what: &str| {
            Err(format!(
                "{what}: {held:?}, redelivered {redelivered}, {issue:?}, {rec:?}"
            ))
        };
        if held.attempt == 0 || (held.attempt > 1 && !redelivered) {
            return wrong("a later attempt without the redelivered flag");
        }
        let before = |at_us: u64| at_us < issue.not_before_us && !stale;
        if !redelivered && rec.delivered_us.is_some_and(before) {
            return wrong("delivered again without the flag");
        }
        if let Some(settled) = rec.settled {
            if before(settled.at_us) && !self.journal.may_be_undone(&settled) {
                return wrong("delivered again after its settle was confirmed");
            }
        }
        let now_us = self.now_us;
        self.journal.record(held.id)?.delivered_us = Some(now_us);
        if let Some(link) = self.clients[client].link.as_mut().filter(|_| !redelivered) {
            let place = (held.generation, held.offset);
            let last = link.last_first.insert(held.subscription, place);
            if last.is_some_and(|last| last >= place) {
                return Err(format!(
                    "first deliveries out of order: {held:?} after {last:?}"
                ));
            }
        }
        Ok(())
    }

    // --- settles ---

    fn on_settle_confirm(&mut self, body: &[u8], request: &Request) -> Checked<Answer> {
        let Request::Settle {
            kind,
            items,
            confirm,
            applied,
        } = request
        else {
            return Err("a settle confirm for something else".to_owned());
        };
        let body = codec::decode::<SettleConfirm>(body).map_err(bad)?;
        let accepted = body.accepted.to_native();
        let named = |item: &wire::message::ArchivedRefusedSettle| {
            (item.offset.to_native(), item.attempt.to_native())
        };
        let refused: Vec<(u64, u32)> = body.refused.iter().map(named).collect();
        self.note(format_args!("  accepted {accepted}, refused {refused:?}"));
        if *confirm && accepted as usize + refused.len() != items.len() {
            return Err(format!(
                "{accepted} accepted and {} refused of {request:?}",
                refused.len()
            ));
        }
        let boundary = Boundary::from_raw(body.boundary);
        let durable = boundary == Some(Boundary::Durable);
        for item in items {
            let is_refused = refused.contains(&(item.offset, item.attempt));
            if *kind == SettleKind::Release {
                continue;
            }
            if is_refused {
                let rec = self.journal.record(item.id)?;
                rec.open_settles = rec.open_settles.saturating_sub(1);
            } else if accepted > 0 {
                let copies = usize::from(body.copies);
                let met = boundary.ok_or("a settle confirm without a boundary")?;
                self.journal
                    .promises
                    .settled(item.key, *applied, (met, copies))?;
                if u32::from(body.copies) < self.journal.majority() {
                    return Err(format!(
                        "a settle is confirmed at {boundary:?} on {} copies: {request:?}",
                        body.copies
                    ));
                }
                let told = linear::Settled {
                    generation: item.generation,
                    offset: item.offset,
                    durable,
                    sent_us: self.asked_us,
                    at_us: self.now_us,
                };
                self.journal.history.settled(item.key, told);
                self.accepted(item, durable)?;
            }
        }
        Ok(Answer::Done)
    }

    fn accepted(&mut self, item: &Held, durable: bool) -> Checked<()> {
        self.journal.settled += 1;
        let settled = self.journal.new_settled(item.attempt, durable);
        let rec = self.journal.record(item.id)?.clone();
        if let Some(before) = rec.settled {
            if !self.journal.may_be_undone(&before) {
                return Err(format!(
                    "{item:?} was settled before, as attempt {}",
                    before.attempt
                ));
            }
        }
        self.journal.record(item.id)?.settled = Some(settled);
        Ok(())
    }

    // --- looks ---

    fn on_frontiers(
        &mut self,
        key: Key,
        generation: u32,
        written_next: u64,
        durable_next: u64,
    ) -> Checked<()> {
        self.note(format_args!(
            "  {key:?} generation {generation} written {written_next} durable {durable_next}"
        ));
        if durable_next > written_next {
            return Err(format!(
                "{key:?} is durable up to {durable_next} and written up to {written_next}"
            ));
        }
        self.journal.durable_below(key, generation, durable_next)
    }

    fn on_info(&mut self, key: Key, body: &ArchivedQueueInfoReply) -> Checked<Answer> {
        let losses = body.losses.iter();
        let (revision, in_force) = said_in(&body.extensions)?;
        let info = Info {
            revision,
            in_force,
            generation: body.generation.to_native(),
            written_next: body.written_next.to_native(),
            durable_next: body.durable_next.to_native(),
            gated: body.gated.to_native(),
            ready: body.ready.to_native(),
            delayed: body.delayed.to_native(),
            leased: body.leased.to_native(),
            acknowledged: body.acknowledged.to_native(),
            dropped: body.dropped.to_native(),
            consumers: body.consumers.to_native(),
            losses: losses
                .map(|loss| (loss.generation.to_native(), loss.first_lost.to_native()))
                .collect(),
        };
        self.note(format_args!("  {key:?} {info:?}"));
        let published = body.published.to_native();
        let settled = info.acknowledged + info.dropped;
        if published != settled + info.unsettled() || published != info.written_next {
            return Err(format!(
                "the counters of {key:?} do not add up: published {published}, {info:?}"
            ));
        }
        self.on_frontiers(key, info.generation, info.written_next, info.durable_next)?;
        let setting = Setting::raw(body.queue.mode, body.queue.copies);
        let promises = &mut self.journal.promises;
        promises.told(key.0, revision, setting)?;
        if let Some(said) = &info.in_force {
            promises.in_force(key, info.generation, said)?;
            if said.standing == Standing::Applied {
                // Its entry is behind them.
                let durable = self.journal.durable_below(key, info.generation, said.since);
                durable.map_err(|wrong| format!("a change is said to be applied: {wrong}"))?;
            }
        }
        let part = self.journal.parts.entry(key).or_default();
        if info.acknowledged > part.acknowledges || info.dropped > part.rejects {
            return Err(format!(
                "{key:?} counts more settles than were sent ({}, {}): {info:?}",
                part.acknowledges, part.rejects
            ));
        }
        Ok(Answer::Info(info))
    }

    fn on_peek(&mut self, key: Key, from: u64, body: &[u8]) -> Checked<Answer> {
        let body = codec::decode::<PeekReply>(body).map_err(bad)?;
        let generation = body.generation.to_native();
        let (mut at, mut next) = (0, from);
        let mut seen = Vec::new();
        for peeked in body.peeked.iter() {
            let rest = body.records.get(at..).unwrap_or_default();
            let record = Record::parse(rest, 0).map_err(|error| error.to_string())?;
            at += record.bytes.len();
            let id = record::identify(&record).ok_or("a peek at bytes nobody published")?;
            let offset = peeked.offset.to_native();
            if offset < next {
                return Err(format!("a peek of {key:?} from {next} shows {offset}"));
            }
            next = offset + 1;
            let told = linear::Seen {
                id,
                generation,
                offset,
                durable: false,
                // A leader that was deposed may not know it yet.
                not_before_us: 0,
                at_us: self.now_us,
            };
            self.journal.history.seen(key, told);
            self.journal.sight(key, generation, offset, id)?;
            seen.push(Seen { offset, id });
        }
        if at != body.records.len() {
            return Err("a peek with bytes of no record".to_owned());
        }
        Ok(Answer::Peeked(seen))
    }
}

fn bad(error: wire::error::WireError) -> String {
    format!("the server sent a bad body: {error}")
}
