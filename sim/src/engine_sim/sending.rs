//! Requests of the clients: each journals what it sends.

use wire::{
    codec,
    message::{
        Barrier, Credit, Declare, Delete, Frontiers, List, Locate, Peek, Ping, Publish, Purge,
        QueueInfo, Settle, SettleItem, Subscribe, Unsubscribe, PUBLISH_DURABLE, SETTLE_CONFIRM,
    },
    vocabulary::{Mode, SettleKind},
};

use super::{
    journal::{Key, QueueState},
    record,
    requests::{Held, Request},
    world::World,
};
use crate::promises::Setting;

/// What a publish asks for.
#[derive(Debug, Clone, Default)]
pub(super) struct Publishing {
    /// Payload length of each record.
    pub lengths: Vec<usize>,
    /// Wall clock ms, 0 = at once; for all of them.
    pub not_before_ms: u64,
    pub durable: bool,
    pub deadline_ms: u32,
}

/// Encodes a body and sends it as a request of a client.
macro_rules! ask {
    ($world:ident, $client:ident, $request:expr, $body:expr) => {{
        let correlation = $world.ask($client, $request);
        let mut frame = Vec::new();
        // Far below the frame limit.
        let encoded = codec::encode(&mut frame, correlation, &$body);
        debug_assert!(encoded.is_ok());
        $world.send_bytes($client, frame);
        correlation
    }};
}

impl World {
    /// Enters a request; 0 when the client is not connected.
    fn ask(&mut self, client: usize, request: Request) -> u64 {
        let line = format!("{request:?}");
        let now_us = self.now_us;
        let Some(link) = self.clients[client].link.as_mut() else {
            return 0;
        };
        let correlation = link.next_correlation;
        link.next_correlation += 1;
        link.pending.insert(correlation, (request, now_us));
        self.note(format_args!(
            "client {client} asks {correlation}: {line:.160}"
        ));
        correlation
    }

    pub(super) fn declare(
        &mut self,
        client: usize,
        name: &str,
        mode: Mode,
        partitions: u16,
        lease_ms: u64,
    ) -> u64 {
        self.journal.declare_begins(name);
        let name = name.to_owned();
        let request = Request::Declare {
            name: name.clone(),
            mode,
        };
        let body = Declare {
            name,
            mode: mode as u8,
            partitions,
            lease_ms,
            ..Default::default()
        };
        ask!(self, client, request, body)
    }

    pub(super) fn delete(&mut self, client: usize, queue_id: u64) -> u64 {
        if let Some(queue) = self.journal.queues.get_mut(&queue_id) {
            if queue.state == QueueState::Declared {
                queue.state = QueueState::DeleteSent;
            }
        }
        let body = Delete {
            queue_id,
            ..Default::default()
        };
        ask!(self, client, Request::Delete { queue_id }, body)
    }

    /// Asks for a change from that revision on.
    pub(super) fn change(
        &mut self,
        client: usize,
        queue_id: u64,
        setting: Setting,
        revision: u32,
    ) -> u64 {
        let body = self.journal.promises.ask(queue_id, setting, revision);
        ask!(self, client, Request::Change { queue_id, setting }, body)
    }

    pub(super) fn publish(&mut self, client: usize, key: Key, what: &Publishing) -> u64 {
        let not_before = vec![what.not_before_ms; what.lengths.len()];
        let batch = self.journal.publish(key, what.durable, &not_before);
        let first_id = self.journal.batches[batch].first_id;
        let mut records = Vec::new();
        for (id, len) in (first_id..).zip(&what.lengths) {
            record::encode(id, *len, what.not_before_ms, &mut records);
        }
        let body = Publish {
            queue_id: key.0,
            partition: key.1,
            flags: if what.durable { PUBLISH_DURABLE } else { 0 },
            deadline_ms: what.deadline_ms,
            count: what.lengths.len() as u32,
            ..Default::default()
        };
        let bytes = records.len() as u64 + 512;
        let correlation = self.ask(client, Request::Publish { batch, bytes });
        self.note(format_args!("  records {first_id} and on, for {key:?}"));
        if let Some(link) = self.clients[client].link.as_mut() {
            link.unanswered_bytes += bytes;
        }
        let mut frame = Vec::new();
        let encoded = codec::encode_publish(&mut frame, correlation, &body, &records);
        debug_assert!(encoded.is_ok());
        self.send_bytes(client, frame);
        correlation
    }

    pub(super) fn subscribe(&mut self, client: usize, key: Key, records: u32, bytes: u64) -> u64 {
        let Some(link) = self.clients[client].link.as_mut() else {
            return 0;
        };
        let subscription = link.next_subscription;
        link.next_subscription += 1;
        link.subscriptions.insert(subscription, key);
        let body = Subscribe {
            queue_id: key.0,
            partition: key.1,
            subscription,
            credit_records: records,
            credit_bytes: bytes,
            ..Default::default()
        };
        ask!(self, client, Request::Subscribe { key, subscription }, body)
    }

    pub(super) fn unsubscribe(&mut self, client: usize, subscription: u32) -> u64 {
        if let Some(link) = self.clients[client].link.as_mut() {
            link.leaving.insert(subscription);
        }
        let body = Unsubscribe {
            subscription,
            ..Default::default()
        };
        ask!(self, client, Request::Unsubscribe { subscription }, body)
    }

    pub(super) fn credit(&mut self, client: usize, subscription: u32, records: u32, bytes: u64) {
        let body = Credit {
            subscription,
            records,
            bytes,
            ..Default::default()
        };
        let mut frame = Vec::new();
        let encoded = codec::encode(&mut frame, 0, &body);
        debug_assert!(encoded.is_ok());
        self.send_bytes(client, frame);
    }

    /// Settles deliveries, all of one partition. `own`: this connection holds
    /// them; otherwise they must be refused.
    pub(super) fn settle(
        &mut self,
        client: usize,
        kind: SettleKind,
        items: Vec<Held>,
        confirm: bool,
        delay_ms: u64,
        own: bool,
    ) -> u64 {
        let Some(first) = items.first().copied() else {
            return 0;
        };
        if own && kind != SettleKind::Release {
            for item in &items {
                if let Ok(rec) = self.journal.record(item.id) {
                    rec.open_settles += 1;
                }
            }
            let part = self.journal.parts.entry(first.key).or_default();
            match kind {
                SettleKind::Acknowledge => part.acknowledges += items.len() as u64,
                _ => part.rejects += items.len() as u64,
            }
        }
        let body = Settle {
            queue_id: first.key.0,
            partition: first.key.1,
            generation: first.generation,
            subscription: first.subscription,
            kind: kind as u8,
            flags: if confirm { SETTLE_CONFIRM } else { 0 },
            delay_ms,
            items: items
                .iter()
                .map(|item| SettleItem {
                    offset: item.offset,
                    attempt: item.attempt,
                })
                .collect(),
            ..Default::default()
        };
        let sent_us = self.now_us;
        let applied = items
            .first()
            .map_or(0, |item| self.journal.promises.applied(item.key));
        let request = Request::Settle {
            kind,
            items,
            confirm,
            applied,
            delay_ms,
            sent_us,
            own,
        };
        ask!(self, client, request, body)
    }

    pub(super) fn info(&mut self, client: usize, key: Key) -> u64 {
        let body = QueueInfo {
            queue_id: key.0,
            partition: key.1,
            ..Default::default()
        };
        ask!(self, client, Request::Info { key }, body)
    }

    pub(super) fn frontiers(&mut self, client: usize, key: Key) -> u64 {
        let body = Frontiers {
            queue_id: key.0,
            partition: key.1,
            ..Default::default()
        };
        ask!(self, client, Request::Frontiers { key }, body)
    }

    pub(super) fn barrier(&mut self, client: usize, key: Key, deadline_ms: u32) -> u64 {
        let generation = self
            .journal
            .parts
            .get(&key)
            .map_or(0, |part| part.generation.1);
        let next = self.journal.confirmed_next(key, generation);
        let confirmed = (generation, next);
        let body = Barrier {
            queue_id: key.0,
            partition: key.1,
            deadline_ms,
            ..Default::default()
        };
        ask!(self, client, Request::Barrier { key, confirmed }, body)
    }

    pub(super) fn peek(&mut self, client: usize, key: Key, from: u64, max: u32) -> u64 {
        let body = Peek {
            queue_id: key.0,
            partition: key.1,
            from_offset: from,
            max_records: max,
            ..Default::default()
        };
        ask!(self, client, Request::Peek { key, from }, body)
    }

    pub(super) fn purge(&mut self, client: usize, key: Key) -> u64 {
        self.journal.purge_begins(key);
        let body = Purge {
            queue_id: key.0,
            partition: key.1,
            ..Default::default()
        };
        ask!(self, client, Request::Purge { key }, body)
    }

    pub(super) fn locate(&mut self, client: usize, name: &str) -> u64 {
        let name = name.to_owned();
        let body = Locate {
            name: name.clone(),
            ..Default::default()
        };
        ask!(self, client, Request::Locate { name }, body)
    }

    pub(super) fn list(&mut self, client: usize) -> u64 {
        ask!(self, client, Request::List, List::default())
    }

    pub(super) fn ping(&mut self, client: usize) -> u64 {
        ask!(self, client, Request::Ping, Ping::default())
    }
}
