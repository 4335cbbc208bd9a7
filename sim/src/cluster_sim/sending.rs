//! Requests of the clients: each journals what it sends.

use wire::{
    codec,
    message::{
        Barrier, ClusterOrder, Credit, Declare, Extension, Frontiers, List, Locate, Peek, Ping,
        Publish, QueueInfo, Settle, SettleItem, Subscribe, Unsubscribe, ORDER_ACCEPT_LOSS,
        PUBLISH_DURABLE, SETTLE_CONFIRM,
    },
    vocabulary::{ClusterAction, Mode, SettleKind},
};

use super::{
    journal::Key,
    links::number,
    requests::{Held, Request},
    world::World,
};
use crate::{promises::Setting, record};

/// What a publish asks for.
#[derive(Debug, Clone, Default)]
pub(super) struct Publishing {
    /// Payload length of each record.
    pub lengths: Vec<usize>,
    pub durable: bool,
    /// 0 = the server's.
    pub deadline_ms: u32,
}

/// What the server takes for a deadline of 0, in ms.
pub(super) const USUAL_DEADLINE_MS: u64 = 30_000;

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
        let body = Declare {
            name: name.to_owned(),
            mode: mode as u8,
            partitions,
            lease_ms,
            ..Default::default()
        };
        self.declare_as(client, mode, body)
    }

    /// Declares what the body says.
    pub(super) fn declare_as(&mut self, client: usize, mode: Mode, body: Declare) -> u64 {
        let name = body.name.clone();
        let request = Request::Declare { name, mode };
        ask!(self, client, request, body)
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
        let deadline_ms = match what.deadline_ms {
            0 => USUAL_DEADLINE_MS,
            ms => u64::from(ms),
        };
        let count = what.lengths.len() as u64;
        let batch = self.journal.publish(key, what.durable, count, deadline_ms);
        let first_id = self.journal.batches[batch].first_id;
        let mut records = Vec::new();
        for (id, len) in (first_id..).zip(&what.lengths) {
            record::encode(id, *len, 0, &mut records);
        }
        let body = Publish {
            queue_id: key.0,
            partition: key.1,
            flags: if what.durable { PUBLISH_DURABLE } else { 0 },
            deadline_ms: what.deadline_ms,
            count: count as u32,
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
        ask!(self, client, Request::Subscribe { subscription }, body)
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

    /// Settles deliveries that this connection holds, all of one partition.
    pub(super) fn settle(
        &mut self,
        client: usize,
        kind: SettleKind,
        items: Vec<Held>,
        confirm: bool,
    ) -> u64 {
        let Some(first) = items.first().copied() else {
            return 0;
        };
        if kind != SettleKind::Release {
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
            items: items
                .iter()
                .map(|item| SettleItem {
                    offset: item.offset,
                    attempt: item.attempt,
                })
                .collect(),
            ..Default::default()
        };
        let request = Request::Settle {
            kind,
            items,
            confirm,
            applied: self.journal.promises.applied(first.key),
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
        let confirmed = self.journal.confirmed_next(key);
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

    /// An order that names a node and nothing else.
    pub(super) fn order(&mut self, client: usize, action: ClusterAction, node: usize) -> u64 {
        let body = ClusterOrder {
            action: action as u8,
            node: number(node),
            ..Default::default()
        };
        ask!(self, client, Request::Reshape { added: None }, body)
    }

    pub(super) fn order_replace(&mut self, client: usize, node: usize, order: u32) -> u64 {
        let body = ClusterOrder {
            action: ClusterAction::Replace as u8,
            node: number(node),
            generation: order,
            ..Default::default()
        };
        ask!(self, client, Request::Replace { node }, body)
    }

    pub(super) fn order_add(&mut self, client: usize, node: usize) -> u64 {
        let address = format!("127.0.0.1:{}", 7500 + node);
        let body = ClusterOrder {
            action: ClusterAction::Add as u8,
            node: number(node),
            extensions: vec![Extension {
                kind: Extension::ADDRESS,
                bytes: address.into_bytes(),
            }],
            ..Default::default()
        };
        let added = Some(node);
        ask!(self, client, Request::Reshape { added }, body)
    }

    pub(super) fn order_move(
        &mut self,
        client: usize,
        group: u32,
        (from, to): (usize, usize),
    ) -> u64 {
        let body = ClusterOrder {
            action: ClusterAction::Move as u8,
            node: number(from),
            group,
            extensions: vec![Extension {
                kind: Extension::TO,
                bytes: number(to).to_le_bytes().to_vec(),
            }],
            ..Default::default()
        };
        ask!(self, client, Request::Reshape { added: None }, body)
    }

    pub(super) fn order_recovery(&mut self, client: usize, group: u32, generation: u32) -> u64 {
        let body = ClusterOrder {
            action: ClusterAction::Recover as u8,
            flags: ORDER_ACCEPT_LOSS,
            group,
            generation,
            ..Default::default()
        };
        ask!(self, client, Request::Reshape { added: None }, body)
    }

    pub(super) fn ping(&mut self, client: usize) -> u64 {
        ask!(self, client, Request::Ping, Ping::default())
    }
}
