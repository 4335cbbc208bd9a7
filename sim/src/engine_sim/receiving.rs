//! What the clients are told, held against the journal.

use wire::{
    codec,
    error::{ErrorCode, Outcome},
    frame::{FrameHeader, Kind, HEADER_BYTES},
    message::{
        ArchivedDeliver, ArchivedQueueInfoReply, BarrierReply, Confirm, Declared, Deleted, Deliver,
        Error, FrontiersReply, ListReply, LocateReply, PeekReply, Purged, QueueChanged,
        QueueInfoReply, SettleConfirm, Subscribed, Unsubscribed, DELIVERY_DURABLE,
        DELIVERY_REDELIVERED,
    },
    record::Record,
    setting::Standing,
    vocabulary::{Boundary, Mode, SettleKind},
};

use super::{
    journal::{Fate, Key, Moment, Queue, QueueState, Settled},
    record,
    requests::{Answer, Held, Info, Request, Seen},
    world::World,
    Checked,
};
use crate::promises::{said_in, Setting};

/// Time after which every shard knows of a deletion.
const KNOWN_EVERYWHERE_US: u64 = 100_000;

impl World {
    /// A client takes what its connection brought.
    pub(super) fn receive(
        &mut self,
        client: usize,
        mut bytes: &[u8],
        moments: &[Moment],
    ) -> Checked<()> {
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
            self.frame(client, kind, header.correlation, body, moments)?;
        }
        Ok(())
    }

    fn frame(
        &mut self,
        client: usize,
        kind: Kind,
        correlation: u64,
        body: &[u8],
        moments: &[Moment],
    ) -> Checked<()> {
        match kind {
            Kind::Confirm => return self.on_confirm(client, body, moments),
            Kind::Deliver => {
                return self.on_deliver(
                    client,
                    codec::decode::<Deliver>(body).map_err(bad)?,
                    moments,
                )
            }
            Kind::GoingAway => return Ok(()),
            Kind::Unsubscribed if correlation == 0 => {
                let body = codec::decode::<Unsubscribed>(body).map_err(bad)?;
                if let Some(link) = self.clients[client].link.as_mut() {
                    link.subscriptions.remove(&body.subscription.to_native());
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
        let link = self.clients[client].link.as_mut();
        let request = link.and_then(|link| link.pending.remove(&correlation));
        let Some((request, sent_us)) = request else {
            return self.unasked(client, kind, correlation);
        };
        self.asked_at_us = sent_us;
        let answer = self.answered(client, kind, body, request, moments)?;
        if self.clients[client].keep_answers {
            self.clients[client].answers.insert(correlation, answer);
        }
        Ok(())
    }

    fn unasked(&mut self, client: usize, kind: Kind, correlation: u64) -> Checked<()> {
        Err(format!(
            "client {client} gets {kind:?} for {correlation}, which it does not wait for"
        ))
    }

    fn answered(
        &mut self,
        client: usize,
        kind: Kind,
        body: &[u8],
        request: Request,
        moments: &[Moment],
    ) -> Checked<Answer> {
        match (kind, request) {
            (Kind::Error, request) => self.on_error(client, body, request),
            (Kind::Declared, Request::Declare { name, mode }) => {
                let body = codec::decode::<Declared>(body).map_err(bad)?;
                self.journal.declare_ends(&name);
                let shards = body.queue.partitions.iter();
                let queue = Queue {
                    name,
                    mode: Mode::from_raw(body.queue.mode).unwrap_or(mode),
                    lease_ms: body.queue.lease_ms.to_native(),
                    shards: shards.map(|place| place.shard.to_native()).collect(),
                    state: QueueState::Declared,
                    created: body.created == 1,
                    learned_us: self.now_us,
                };
                let queue_id = body.queue.queue_id.to_native();
                let (revision, _) = said_in(&body.extensions)?;
                let setting = Setting::raw(body.queue.mode, body.queue.copies);
                self.journal.promises.told(queue_id, revision, setting)?;
                self.learn_queue(queue_id, queue)?;
                Ok(Answer::Queue {
                    queue_id,
                    created: body.created == 1,
                })
            }
            (Kind::LocateReply, Request::Locate { name }) => {
                let body = codec::decode::<LocateReply>(body).map_err(bad)?;
                let queue_id = body.queue.queue_id.to_native();
                self.located(&name, queue_id)?;
                Ok(Answer::Queue {
                    queue_id,
                    created: false,
                })
            }
            (Kind::Deleted, Request::Delete { queue_id }) => {
                codec::decode::<Deleted>(body).map_err(bad)?;
                let now_us = self.now_us;
                if let Some(queue) = self.journal.queues.get_mut(&queue_id) {
                    queue.state = QueueState::Deleted;
                    queue.learned_us = now_us;
                }
                Ok(Answer::Done)
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
                self.on_settle_confirm(body, &request, moments)
            }
            (Kind::QueueInfoReply, Request::Info { key }) => {
                let body = codec::decode::<QueueInfoReply>(body).map_err(bad)?;
                let moment = self.moment(key, moments);
                self.on_info(key, body, moment)
            }
            (Kind::FrontiersReply, Request::Frontiers { key }) => {
                let body = codec::decode::<FrontiersReply>(body).map_err(bad)?;
                let (generation, written_next, durable_next) = (
                    body.generation.to_native(),
                    body.written_next.to_native(),
                    body.durable_next.to_native(),
                );
                self.on_frontiers(key, generation, written_next, durable_next)?;
                Ok(Answer::Frontiers {
                    generation,
                    written_next,
                    durable_next,
                })
            }
            (Kind::BarrierReply, Request::Barrier { key, confirmed }) => {
                let body = codec::decode::<BarrierReply>(body).map_err(bad)?;
                let (generation, written_next, durable_next) = (
                    body.generation.to_native(),
                    body.written_next.to_native(),
                    body.durable_next.to_native(),
                );
                if generation == confirmed.0 && durable_next < confirmed.1 {
                    return Err(format!("the barrier of {key:?} ends at {durable_next}, below {} which was confirmed before", confirmed.1));
                }
                self.on_frontiers(key, generation, written_next, durable_next)?;
                Ok(Answer::Frontiers {
                    generation,
                    written_next,
                    durable_next,
                })
            }
            (Kind::PeekReply, Request::Peek { key, from }) => {
                self.on_peek(key, from, body, moments)
            }
            (Kind::Purged, Request::Purge { key }) => {
                codec::decode::<Purged>(body).map_err(bad)?;
                self.journal.purge_ends(key);
                Ok(Answer::Done)
            }
            (Kind::ListReply, Request::List) => {
                codec::decode::<ListReply>(body).map_err(bad)?;
                Ok(Answer::Done)
            }
            (Kind::QueueChanged, Request::Change { queue_id, setting }) => {
                let body = codec::decode::<QueueChanged>(body).map_err(bad)?;
                self.journal.promises.changed(queue_id, setting, body)?;
                Ok(Answer::Done)
            }
            (Kind::Pong, Request::Ping) => Ok(Answer::Done),
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
        let queue_id = match &request {
            Request::Publish { batch, .. } => Some(self.journal.batches[*batch].key.0),
            request => request.key().map(|key| key.0),
        };
        match &request {
            Request::Publish { batch, bytes } => {
                let fate = if unknown { Fate::Unknown } else { Fate::Failed };
                let batch = &mut self.journal.batches[*batch];
                batch.fate = fate;
                if fate == Fate::Failed && batch.first_offset.is_some() {
                    return Err(format!("{batch:?} is said to have failed, and was seen"));
                }
                if let Some(link) = self.clients[client].link.as_mut() {
                    link.unanswered_bytes = link.unanswered_bytes.saturating_sub(*bytes);
                }
            }
            Request::Change { queue_id, setting } if !unknown => {
                let promises = &mut self.journal.promises;
                promises.asked_no_more(*queue_id, *setting);
            }
            Request::Declare { name, .. } => self.journal.declare_ends(name),
            // It may yet take place.
            Request::Purge { .. } if unknown => {}
            Request::Purge { key } => self.journal.purge_ends(*key),
            Request::Subscribe { subscription, .. } => {
                if let Some(link) = self.clients[client].link.as_mut() {
                    link.subscriptions.remove(subscription);
                }
            }
            Request::Delete { queue_id } if code == ErrorCode::UnknownQueue => {
                self.undeclared(*queue_id)?;
            }
            Request::Locate { name } if code == ErrorCode::UnknownQueue => {
                self.not_located(name)?
            }
            _ => {}
        }
        let missing = code == ErrorCode::UnknownQueue || code == ErrorCode::UnknownPartition;
        if missing && queue_id.is_some_and(|queue_id| self.journal.is_declared(queue_id)) {
            return Err(format!(
                "queue {queue_id:?} is declared, and {request:?} is told that it is not"
            ));
        }
        // A deleted queue, or a shard that reopened, may have ended it before.
        let ended = matches!(request, Request::Unsubscribe { .. });
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
        let partitions = queue.shards.len() as u16;
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
        if known.shards != queue.shards {
            return Err(format!("queue {queue_id} changed: {known:?}, {queue:?}"));
        }
        known.created |= queue.created;
        Ok(())
    }

    /// Whether what is answered now was asked after the queue's state was
    /// known everywhere.
    fn asked_after(&self, queue: &Queue) -> bool {
        self.asked_at_us >= queue.learned_us + KNOWN_EVERYWHERE_US
    }

    /// A name stands for a queue: not for a deleted one, nor in place of one
    /// that is declared.
    fn located(&mut self, name: &str, queue_id: u64) -> Checked<()> {
        let known = self.journal.queues.get(&queue_id);
        let deleted = known.filter(|queue| queue.state == QueueState::Deleted);
        if deleted.is_some_and(|queue| self.asked_after(queue)) {
            return Err(format!(
                "queue {queue_id} ({name:?}) was deleted, and is there"
            ));
        }
        let other = self.journal.queues.iter().find(|(id, queue)| {
            queue.name == name
                && queue.state == QueueState::Declared
                && **id != queue_id
                && self.asked_at_us >= queue.learned_us
        });
        match other {
            Some((id, _)) => Err(format!(
                "{name:?} is queue {id}, and is said to be {queue_id}"
            )),
            None => Ok(()),
        }
    }

    fn not_located(&mut self, name: &str) -> Checked<()> {
        let mut queues = self.journal.queues.values();
        let there = queues.any(|queue| {
            queue.name == name
                && queue.state == QueueState::Declared
                && self.asked_at_us >= queue.learned_us
        });
        match there {
            true => Err(format!("{name:?} is declared, and cannot be located")),
            false => Ok(()),
        }
    }

    /// A delete was told that there is no such queue: someone else's came first.
    fn undeclared(&mut self, queue_id: u64) -> Checked<()> {
        match self.journal.is_declared(queue_id) {
            true => Err(format!(
                "queue {queue_id} is declared, and a delete does not find it"
            )),
            false => Ok(()),
        }
    }

    // --- publishes and deliveries ---

    fn moment(&self, key: Key, moments: &[Moment]) -> Moment {
        let shard = self.journal.shard_of(key).unwrap_or(0);
        moments.get(usize::from(shard)).copied().unwrap_or_default()
    }

    fn on_confirm(&mut self, client: usize, body: &[u8], moments: &[Moment]) -> Checked<()> {
        let body = codec::decode::<Confirm>(body).map_err(bad)?;
        for item in body.items.iter() {
            let correlation = item.correlation.to_native();
            let link = self.clients[client].link.as_mut();
            let request = link.and_then(|link| link.pending.remove(&correlation));
            let Some((Request::Publish { batch, bytes }, _)) = request else {
                return self.unasked(client, Kind::Confirm, correlation);
            };
            if let Some(link) = self.clients[client].link.as_mut() {
                link.unanswered_bytes = link.unanswered_bytes.saturating_sub(bytes);
            }
            let boundary =
                Boundary::from_raw(item.boundary).ok_or("a confirm without a boundary")?;
            let known = self.journal.batches[batch].clone();
            let key = (item.queue_id.to_native(), item.partition.to_native());
            if key != known.key || u64::from(item.count.to_native()) != known.count {
                return Err(format!(
                    "the confirm of {known:?} names {key:?} and {} records",
                    item.count.to_native()
                ));
            }
            let (generation, first) = (item.generation.to_native(), item.first_offset.to_native());
            self.note(format_args!(
                "  {correlation} at {boundary:?}: {key:?} generation {generation} offset {first}"
            ));
            let moment = self.moment(key, moments);
            for id in known.first_id..known.first_id + known.count {
                self.check_on_disk(key, id, boundary, moment)?;
            }
            self.journal
                .confirm(batch, boundary, generation, first, moment)?;
            if self.clients[client].keep_answers {
                let durable = boundary == Boundary::Durable;
                let answer = Answer::Confirmed {
                    durable,
                    generation,
                    first_offset: first,
                };
                self.clients[client].answers.insert(correlation, answer);
            }
        }
        Ok(())
    }

    /// What is said to have met a boundary is on the disk as that boundary says.
    fn check_on_disk(&self, key: Key, id: u64, boundary: Boundary, moment: Moment) -> Checked<()> {
        let shard = self.journal.shard_of(key).unwrap_or(0);
        let sim = &self.node.shards[usize::from(shard)];
        if sim.life != moment.life {
            return Ok(());
        }
        let met = match boundary {
            Boundary::Written => sim.is_written(id),
            Boundary::Durable => sim.is_safe(id),
        };
        if met {
            return Ok(());
        }
        Err(format!(
            "record {id} of {key:?} is said to be {boundary:?} and is not"
        ))
    }

    fn on_deliver(
        &mut self,
        client: usize,
        body: &ArchivedDeliver,
        moments: &[Moment],
    ) -> Checked<()> {
        let key = (body.queue_id.to_native(), body.partition.to_native());
        let (subscription, generation) =
            (body.subscription.to_native(), body.generation.to_native());
        let subscribed = self.clients[client]
            .link
            .as_ref()
            .and_then(|link| link.subscriptions.get(&subscription));
        if subscribed != Some(&key) {
            return Err(format!("client {client} gets a delivery of {key:?} for subscription {subscription}, which is {subscribed:?}"));
        }
        let moment = self.moment(key, moments);
        self.journal.sight_generation(key, generation, moment)?;
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
            let redelivered = flags & DELIVERY_REDELIVERED != 0;
            self.note(format_args!("  {held:?} flags {flags}"));
            self.check_delivery(client, &held, redelivered, moment)?;
            let durable = flags & DELIVERY_DURABLE != 0;
            let promises = &self.journal.promises;
            let gate = promises.delivery_gate(key, generation, offset);
            let met = if durable { Boundary::Durable } else { gate };
            self.check_on_disk(key, id, met, moment)?;
            if self
                .check_on_disk(key, id, Boundary::Durable, moment)
                .is_err()
            {
                let promises = &mut self.journal.promises;
                promises.delivered_early(key, generation, offset);
            }
            self.journal.sight(
                key,
                generation,
                offset,
                id,
                met == Boundary::Durable,
                moment,
            )?;
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
            self.settle(client, SettleKind::Acknowledge, settles, true, 0, true);
            self.credit(client, subscription, records, 1 << 20);
        }
        Ok(())
    }

    fn check_delivery(
        &mut self,
        client: usize,
        held: &Held,
        redelivered: bool,
        moment: Moment,
    ) -> Checked<()> {
        let server_ms = ((self.now_us / 1000) as i64 + self.node.server_offset_ms) as u64;
        let now_us = self.now_us;
        let rec = self.journal.record(held.id)?;
        let wrong = |what: &str| {
            Err(format!(
                "{what}: {held:?}, redelivered {redelivered}, {rec:?}"
            ))
        };
        if rec.not_before_ms > server_ms + 2 {
            return wrong("delivered before its time");
        }
        if held.attempt == 0 || (held.attempt > 1 && !redelivered) {
            return wrong("a later attempt without the redelivered flag");
        }
        if rec.attempts.0 == moment.life && rec.attempts.1.contains(&held.attempt) {
            return wrong("one attempt delivered twice");
        }
        if rec.delivered && rec.attempts.0 < moment.life && !redelivered {
            return wrong("delivered again after a restart without the flag");
        }
        if let Some((attempt, earliest_us, life)) = rec.released {
            let next = life == moment.life && held.attempt == attempt + 1;
            if next && now_us + 2_000 < earliest_us {
                return wrong("delivered before its delay was over");
            }
        }
        if let Some(settled) = rec.settled {
            let later = settled.life == moment.life && held.attempt > settled.attempt;
            let stands = settled.durable || settled.hazard == moment.hazard;
            if later || (settled.life < moment.life && stands) {
                return wrong("delivered again after its settle was confirmed");
            }
        }
        if rec.attempts.0 != moment.life {
            rec.attempts = (moment.life, Vec::new());
        }
        rec.attempts.1.push(held.attempt);
        rec.delivered = true;
        let fresh = !redelivered && rec.not_before_ms == 0;
        if let Some(link) = self.clients[client].link.as_mut().filter(|_| fresh) {
            let last = link.last_first.insert(held.subscription, held.offset);
            if last.is_some_and(|last| last >= held.offset) {
                return Err(format!(
                    "first deliveries out of order: {held:?} after {last:?}"
                ));
            }
        }
        Ok(())
    }

    // --- settles ---

    fn on_settle_confirm(
        &mut self,
        body: &[u8],
        request: &Request,
        moments: &[Moment],
    ) -> Checked<Answer> {
        let Request::Settle {
            kind,
            items,
            confirm,
            applied,
            delay_ms,
            sent_us,
            own,
        } = request
        else {
            return Err("a settle confirm for something else".to_owned());
        };
        let body = codec::decode::<SettleConfirm>(body).map_err(bad)?;
        let accepted = body.accepted.to_native();
        let refused: Vec<(u64, u32)> = body
            .refused
            .iter()
            .map(|item| (item.offset.to_native(), item.attempt.to_native()))
            .collect();
        self.note(format_args!("  accepted {accepted}, refused {refused:?}"));
        if !own && (accepted > 0 || refused.len() != items.len()) {
            return Err(format!(
                "a settle of somebody else's deliveries took effect: {request:?}"
            ));
        }
        if *confirm && accepted as usize + refused.len() != items.len() {
            return Err(format!(
                "{accepted} accepted and {} refused of {request:?}",
                refused.len()
            ));
        }
        if !own {
            return Ok(Answer::Settled {
                accepted: 0,
                durable: false,
            });
        }
        let boundary = Boundary::from_raw(body.boundary);
        let durable = boundary == Some(Boundary::Durable);
        for item in items {
            let is_refused = refused.contains(&(item.offset, item.attempt));
            if is_refused {
                self.refused(*kind, item)?;
            } else if accepted > 0 {
                let moment = self.moment(item.key, moments);
                let met = boundary.ok_or("a settle confirm without a boundary")?;
                self.journal
                    .promises
                    .settled(item.key, *applied, (met, 1))?;
                let earliest_us = sent_us + delay_ms * 1000;
                self.accepted(*kind, item, durable, earliest_us, moment)?;
            }
        }
        Ok(Answer::Settled { accepted, durable })
    }

    fn refused(&mut self, kind: SettleKind, item: &Held) -> Checked<()> {
        let rec = self.journal.record(item.id)?;
        if kind != SettleKind::Release {
            rec.open_settles = rec.open_settles.saturating_sub(1);
        }
        Ok(())
    }

    fn accepted(
        &mut self,
        kind: SettleKind,
        item: &Held,
        durable: bool,
        earliest_us: u64,
        moment: Moment,
    ) -> Checked<()> {
        self.journal.settled += 1;
        let rec = self.journal.record(item.id)?;
        if kind == SettleKind::Release {
            rec.released = Some((item.attempt, earliest_us, moment.life));
            return Ok(());
        }
        if let Some(before) = rec.settled.filter(|before| before.life == moment.life) {
            return Err(format!(
                "{item:?} was settled before, as attempt {}",
                before.attempt
            ));
        }
        rec.settled = Some(Settled {
            attempt: item.attempt,
            durable,
            hazard: moment.hazard,
            life: moment.life,
        });
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
        self.journal.durable_below(key, generation, durable_next);
        Ok(())
    }

    fn on_info(
        &mut self,
        key: Key,
        body: &ArchivedQueueInfoReply,
        moment: Moment,
    ) -> Checked<Answer> {
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
            purged: body.purged.to_native(),
            consumers: body.consumers.to_native(),
            losses: losses
                .map(|loss| (loss.generation.to_native(), loss.first_lost.to_native()))
                .collect(),
        };
        self.note(format_args!("  {key:?} {info:?}"));
        let published = body.published.to_native();
        let settled = info.acknowledged + info.dropped + info.purged;
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
                self.is_behind_what_is_durable(key, info.generation, said.since, moment)?;
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

    /// A change is said to be applied whose entry is behind these.
    fn is_behind_what_is_durable(
        &mut self,
        key: Key,
        generation: u32,
        since: u64,
        moment: Moment,
    ) -> Checked<()> {
        let Some(part) = self.journal.parts.get(&key) else {
            return Ok(());
        };
        let below = part.places.range((generation, 0)..(generation, since));
        for (_, id) in below {
            let durable = self.check_on_disk(key, *id, Boundary::Durable, moment);
            durable.map_err(|wrong| format!("a change is said to be applied: {wrong}"))?;
        }
        self.journal.durable_below(key, generation, since);
        Ok(())
    }

    fn on_peek(&mut self, key: Key, from: u64, body: &[u8], moments: &[Moment]) -> Checked<Answer> {
        let body = codec::decode::<PeekReply>(body).map_err(bad)?;
        let generation = body.generation.to_native();
        let moment = self.moment(key, moments);
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
            self.journal
                .sight(key, generation, offset, id, false, moment)?;
            seen.push(Seen {
                offset,
                id,
                attempts: peeked.attempts.to_native(),
            });
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
