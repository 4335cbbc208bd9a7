//! Subscriptions and credit.

use wire::{
    codec,
    error::{ErrorCode, Outcome},
    frame::Kind,
    message::{Credit, Extension, Subscribe, Subscribed, Unsubscribe, Unsubscribed},
};

use super::{
    connection::{Connection, Subscription, MAX_SUBSCRIPTIONS},
    core::Engine,
    gates::Origin,
    partition::PartitionKey,
    relay::Routed,
    types::ConnKey,
};
use crate::{
    io::BatchBuffer,
    state::{
        command::{Command, DeliveryIds, LeaseEndCause},
        queue::ConsumerId,
    },
};

impl<B: BatchBuffer> Engine<B> {
    /// An error reply to a request of which nothing happened.
    pub(super) fn refuse(
        &mut self,
        conn: ConnKey,
        correlation: u64,
        code: ErrorCode,
        message: String,
    ) {
        self.error(conn, correlation, code, Outcome::Failed, message);
    }

    pub(super) fn on_subscribe(&mut self, conn: ConnKey, correlation: u64, body: &[u8]) {
        let request = match codec::decode::<Subscribe>(body) {
            Ok(request) => request,
            Err(error) => {
                return self.refuse(conn, correlation, ErrorCode::Invalid, error.to_string())
            }
        };
        let id = request.subscription.to_native();
        let key = PartitionKey {
            queue_id: request.queue_id.to_native(),
            partition: request.partition.to_native(),
        };
        if let Err((code, message)) = self.owner(key) {
            return self.refuse(conn, correlation, code, message);
        }
        let Some(connection) = self.connections.get(&conn) else {
            return;
        };
        if connection.subscription(id).is_some() {
            let message =
                format!("subscription {id} exists on this connection; choose another number");
            return self.refuse(conn, correlation, ErrorCode::Conflict, message);
        }
        if connection.subscriptions.len() >= MAX_SUBSCRIPTIONS {
            let message =
                format!("{MAX_SUBSCRIPTIONS} subscriptions on one connection are the limit");
            return self.refuse(conn, correlation, ErrorCode::LimitReached, message);
        }
        let routed = match self.route(conn, key, Kind::Subscribe, correlation, body) {
            Ok(routed) => routed,
            Err((code, message)) => return self.refuse(conn, correlation, code, message),
        };
        let mut extensions = request.extensions.iter();
        let straight = extensions.any(|one| one.kind == Extension::STRAIGHT);
        if straight && routed == Routed::Here && self.send_straight(conn, correlation, key) {
            return;
        }
        let (shard, node) = match routed {
            Routed::Here => (self.config.shard, 0),
            Routed::Away { shard, node } => (shard, node),
        };
        if let Some(connection) = self.connections.get_mut(&conn) {
            if routed != Routed::Here {
                connection.asked.push((correlation, id));
            }
            connection.subscriptions.push(Subscription {
                id,
                queue_id: key.queue_id,
                partition: key.partition,
                shard,
                node,
            });
        }
        if routed != Routed::Here {
            return;
        }
        self.tell_leader(conn, key);
        let (records, bytes) = (
            request.credit_records.to_native(),
            request.credit_bytes.to_native(),
        );
        self.start_subscription(conn, correlation, id, key, (records, bytes));
    }

    fn start_subscription(
        &mut self,
        conn: ConnKey,
        correlation: u64,
        id: u32,
        key: PartitionKey,
        (records, bytes): (u32, u64),
    ) {
        let consumer = ConsumerId {
            connection: conn.0,
            subscription: id,
        };
        let slot = self.partitions.get_mut(&key).filter(|slot| !slot.dropping);
        let generation = slot.and_then(|slot| {
            slot.machine
                .subscribe(consumer, records, bytes)
                .then_some(slot.generation)
        });
        let Some(generation) = generation else {
            if let Some(connection) = self.connections.get_mut(&conn) {
                connection.forget_subscription(id);
            }
            let (code, message) = self.no_partition(key);
            return self.refuse(conn, correlation, code, message);
        };
        let body = Subscribed {
            subscription: id,
            generation,
            extensions: Vec::new(),
        };
        self.reply(conn, correlation, &body);
        self.mark_dirty(key);
    }

    pub(super) fn on_credit(&mut self, conn: ConnKey, correlation: u64, body: &[u8]) {
        let credit = match codec::decode::<Credit>(body) {
            Ok(credit) => credit,
            Err(error) => {
                return self.refuse(conn, correlation, ErrorCode::Invalid, error.to_string())
            }
        };
        let id = credit.subscription.to_native();
        let Some(subscription) = self
            .connections
            .get(&conn)
            .and_then(|connection| connection.subscription(id).copied())
        else {
            // Credit may cross an unsubscribe or a deletion: harmless.
            return;
        };
        if subscription.shard != self.config.shard {
            return self.forward(subscription.shard, conn, Kind::Credit, correlation, body);
        }
        if subscription.node != 0 {
            // A link that is gone ends the connection.
            self.relay(subscription.node, conn, Kind::Credit, correlation, body);
            return;
        }
        let key = PartitionKey {
            queue_id: subscription.queue_id,
            partition: subscription.partition,
        };
        let consumer = ConsumerId {
            connection: conn.0,
            subscription: id,
        };
        if let Some(slot) = self.partitions.get_mut(&key) {
            let (records, bytes) = (credit.records.to_native(), credit.bytes.to_native());
            slot.machine.add_credit(consumer, records, bytes);
            self.mark_dirty(key);
        }
    }

    pub(super) fn on_unsubscribe(&mut self, conn: ConnKey, correlation: u64, body: &[u8]) {
        let request = match codec::decode::<Unsubscribe>(body) {
            Ok(request) => request,
            Err(error) => {
                return self.refuse(conn, correlation, ErrorCode::Invalid, error.to_string())
            }
        };
        let id = request.subscription.to_native();
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        let Some(subscription) = connection.subscription(id).copied() else {
            let message = format!("subscription {id} does not exist on this connection");
            return self.refuse(conn, correlation, ErrorCode::Invalid, message);
        };
        connection.forget_subscription(id);
        if subscription.shard != self.config.shard {
            return self.forward(
                subscription.shard,
                conn,
                Kind::Unsubscribe,
                correlation,
                body,
            );
        }
        if subscription.node != 0 {
            self.relay(
                subscription.node,
                conn,
                Kind::Unsubscribe,
                correlation,
                body,
            );
            return;
        }
        let key = PartitionKey {
            queue_id: subscription.queue_id,
            partition: subscription.partition,
        };
        let mut ended = Vec::new();
        if let Some(slot) = self.partitions.get_mut(&key) {
            let consumer = ConsumerId {
                connection: conn.0,
                subscription: id,
            };
            slot.machine.unsubscribe(consumer, &mut ended);
        }
        self.end_leases(key, LeaseEndCause::Unsubscribed, &ended);
        self.reply(
            conn,
            correlation,
            &Unsubscribed {
                subscription: id,
                extensions: Vec::new(),
            },
        );
    }

    /// Gives back what a gone connection held in this shard's partitions.
    pub(super) fn end_subscriptions_of(&mut self, conn: ConnKey, connection: &Connection) {
        let mut keys: Vec<PartitionKey> = connection
            .subscriptions
            .iter()
            .filter(|sub| sub.shard == self.config.shard && sub.node == 0)
            .map(|s| PartitionKey {
                queue_id: s.queue_id,
                partition: s.partition,
            })
            .collect();
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            let mut ended = Vec::new();
            if let Some(slot) = self.partitions.get_mut(&key) {
                slot.machine.disconnect(conn.0, &mut ended);
            }
            self.end_leases(key, LeaseEndCause::Disconnected, &ended);
        }
    }

    /// Logs that leases ended; the records are ready again once that is applied.
    pub(super) fn end_leases(
        &mut self,
        key: PartitionKey,
        cause: LeaseEndCause,
        ended: &[(u64, u32)],
    ) {
        for chunk in ended.chunks(16_384) {
            let mut ids = Vec::with_capacity(chunk.len() * super::settle::ID_BYTES);
            for (offset, attempt) in chunk {
                DeliveryIds::push(&mut ids, *offset, *attempt);
            }
            let command = Command::LeaseEnded {
                queue_id: key.queue_id,
                partition: key.partition,
                cause,
                items: DeliveryIds(&ids),
            };
            self.propose_or_defer(key, &command, Origin::Nobody);
        }
        self.mark_dirty(key);
    }
}
