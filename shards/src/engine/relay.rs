//! Any node serves any client: frames that name what another node leads go there,
//! and what it answers comes back.
//!
//! The shard that has a replica of the group passes the frame to the same shard of
//! the leader's node, under its own name for the connection. There the client is a
//! connection without a socket, whose output goes back over the link.
//!
//! 1. A frame is passed on once: a node that does not lead answers.
//! 2. Output of one connection from one node comes in order, one piece at a time:
//!    the next when the last was taken.
//! 3. A client whose publish or subscribe came through another node is told who leads
//!    the partition, once per connection and leadership; it may come straight then. A
//!    subscribe that asks for it is told each time, and refused: it comes straight.
//! 4. When the link goes, what went through it is unknown: the client's connection
//!    is closed, so that it learns that and connects again.

use wire::{
    error::ErrorCode,
    frame::Kind,
    message::{Extension, Redirect},
    node::{Forward, NodeMessage, Output},
};

use super::{
    connection::{Connection, MAX_TOLD},
    core::Engine,
    gates::majority,
    partition::PartitionKey,
    publish::Refusal,
    types::ConnKey,
};
use crate::{group::GroupId, io::BatchBuffer};

/// The shard in the key of a connection without a socket here.
pub(super) const NO_SHARD: u16 = u16::MAX;

/// Where a frame is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Routed {
    Here,
    /// It was passed on; to another node's shard, if one is named.
    Away {
        shard: u16,
        node: u32,
    },
}

impl<B: BatchBuffer> Engine<B> {
    /// Passes a frame to whoever leads the partition it names, unless this shard does.
    ///
    /// # Errors
    /// Nobody is known to lead it, or there is no such partition.
    pub(super) fn route(
        &mut self,
        conn: ConnKey,
        key: PartitionKey,
        kind: Kind,
        correlation: u64,
        body: &[u8],
    ) -> Result<Routed, Refusal> {
        let (group, shard) = self.owner(key)?;
        if shard != self.config.shard {
            if conn.shard() == NO_SHARD {
                // The nodes place groups alike: cannot happen.
                return Err(super::publish::unavailable());
            }
            self.forward(shard, conn, kind, correlation, body);
            return Ok(Routed::Away { shard, node: 0 });
        }
        self.route_group(conn, group, kind, correlation, body)
    }

    /// As [`Engine::route`], of a group with a replica on this shard.
    pub(super) fn route_group(
        &mut self,
        conn: ConnKey,
        group: GroupId,
        kind: Kind,
        correlation: u64,
        body: &[u8],
    ) -> Result<Routed, Refusal> {
        if !self.is_cluster() {
            return Ok(Routed::Here);
        }
        let Some(slot) = self.groups.get(&group.0) else {
            return self.route_to(conn, group, kind, correlation, body);
        };
        if slot.leads() {
            // Before its own first entry is durable on a majority it may not know what
            // earlier leaders confirmed. Consumers may wait for that.
            let waits = matches!(kind, Kind::Subscribe | Kind::Credit | Kind::Unsubscribe);
            let closed = kind == Kind::Publish && slot.resigning.is_some();
            return match slot.serving && !closed || waits {
                true => Ok(Routed::Here),
                false => Err(self.no_leader(group)),
            };
        }
        self.route_to(conn, group, kind, correlation, body)
    }

    /// Passes a frame to the node that leads the group.
    fn route_to(
        &mut self,
        conn: ConnKey,
        group: GroupId,
        kind: Kind,
        correlation: u64,
        body: &[u8],
    ) -> Result<Routed, Refusal> {
        let shard = self.config.shard;
        let node = self.leading_node(group.0);
        let node = node.filter(|node| *node != self.config.node && conn.shard() != NO_SHARD);
        let node = node.ok_or_else(|| self.no_leader(group))?;
        if !self.relay(node, conn, kind, correlation, body) {
            return Err(self.no_leader(group));
        }
        Ok(Routed::Away { shard, node })
    }

    /// Passes a frame over the link to a node; false when it is not linked.
    pub(super) fn relay(
        &mut self,
        node: u32,
        conn: ConnKey,
        kind: Kind,
        correlation: u64,
        body: &[u8],
    ) -> bool {
        let Some(connection) = self.connections.get_mut(&conn) else {
            return false;
        };
        let Some(output) = self.links.output(node) else {
            return false;
        };
        if !connection.nodes.contains(&node) {
            connection.nodes.push(node);
        }
        let window_bytes = u32::try_from(connection.output_high).unwrap_or(u32::MAX);
        NodeMessage::Forward(Forward {
            conn: conn.0,
            kind: kind as u8,
            correlation,
            window_bytes,
            body,
        })
        .encode(output);
        true
    }

    /// A frame of a client of another node.
    pub(super) fn on_node_forward(&mut self, node: u32, forward: &Forward<'_>) {
        let conn = match self.remote_conns.get(&(node, forward.conn)) {
            Some(conn) => *conn,
            None => {
                let conn = ConnKey::new(NO_SHARD, self.next_remote);
                self.next_remote += 1;
                self.remote_conns.insert((node, forward.conn), conn);
                let mut connection = Connection::new(false, forward.window_bytes);
                connection.remote = Some((node, forward.conn));
                self.connections.insert(conn, connection);
                conn
            }
        };
        let is_open = self.connections.get(&conn).is_some_and(|c| !c.closing);
        if let Some(kind) = Kind::from_raw(forward.kind).filter(|_| is_open) {
            self.dispatch_frame(conn, kind, forward.correlation, forward.body);
        }
    }

    /// This node leads the partition that a publish or a subscribe of the connection
    /// names: a client that came through another node may come straight the next time.
    pub(super) fn tell_leader(&mut self, conn: ConnKey, key: PartitionKey) {
        let Some(term) = self.can_redirect(conn, key) else {
            return;
        };
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        let known = connection.told.get(&key).copied();
        if known == Some(term) || (known.is_none() && connection.told.len() >= MAX_TOLD) {
            return;
        }
        connection.told.insert(key, term);
        self.redirect(conn, key);
    }

    /// A subscribe that wants to come straight, and came through another node: it is
    /// told the way and refused. False where it did not, or no way is known.
    pub(super) fn send_straight(
        &mut self,
        conn: ConnKey,
        correlation: u64,
        key: PartitionKey,
    ) -> bool {
        if self.can_redirect(conn, key).is_none() {
            return false;
        }
        self.redirect(conn, key);
        let message = format!(
            "node {} leads this partition, and the subscribe asked to come straight to it: \
             connect to {} and subscribe there, or subscribe here without extension {}",
            self.config.node,
            self.config.advertise,
            Extension::STRAIGHT
        );
        self.refuse(conn, correlation, ErrorCode::NotOwner, message);
        true
    }

    /// The term in which this node leads the partition, if the connection's client is
    /// another node's and can be told where this one is.
    fn can_redirect(&self, conn: ConnKey, key: PartitionKey) -> Option<u64> {
        let connection = self.connections.get(&conn)?;
        if connection.remote.is_none() || self.config.advertise.is_empty() {
            return None;
        }
        let group = self.partitions.get(&key)?.group.0;
        self.groups.get(&group)?.leading
    }

    fn redirect(&mut self, conn: ConnKey, key: PartitionKey) {
        let body = Redirect {
            queue_id: key.queue_id,
            partition: key.partition,
            node: self.config.node,
            shard: self.config.shard,
            extensions: vec![Extension {
                kind: Extension::ADDRESS,
                bytes: self.config.advertise.clone().into_bytes(),
            }],
        };
        self.reply(conn, 0, &body);
    }

    /// What another node answers to a client whose frames went through here.
    pub(super) fn on_node_output(&mut self, node: u32, output: &Output<'_>) {
        let conn = ConnKey(output.conn);
        let is_open = |connection: &&mut Connection| !connection.closing;
        let Some(connection) = self.connections.get_mut(&conn).filter(is_open) else {
            return;
        };
        connection.note_answers(output.bytes);
        connection.output.extend_from_slice(output.bytes);
        connection.release(output.released);
        if output.bytes.is_empty() {
            self.tell_taken(node, conn);
        } else if !connection.owes_nodes.contains(&node) {
            connection.owes_nodes.push(node);
        }
        self.list_connection(conn);
        if output.close {
            self.close(conn);
        }
    }

    fn tell_taken(&mut self, node: u32, conn: ConnKey) {
        if let Some(output) = self.links.output(node) {
            NodeMessage::OutputTaken { conn: conn.0 }.encode(output);
        }
    }

    /// The connection's output went on its way: nodes that sent some may send more.
    pub(super) fn pay_nodes(&mut self, conn: ConnKey) {
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        for node in std::mem::take(&mut connection.owes_nodes) {
            self.tell_taken(node, conn);
        }
    }

    /// The node with the client's socket took what we sent.
    pub(super) fn on_node_taken(&mut self, node: u32, conn: u64) {
        if let Some(conn) = self.remote_conns.get(&(node, conn)).copied() {
            self.on_output_taken(conn);
        }
    }

    /// A client of another node is gone.
    pub(super) fn on_node_closed(&mut self, node: u32, conn: u64) {
        if let Some(conn) = self.remote_conns.remove(&(node, conn)) {
            self.on_closed(conn);
        }
    }

    /// Tells nodes that answered a connection that it is gone.
    pub(super) fn tell_nodes_closed(&mut self, conn: ConnKey, connection: &Connection) {
        if let Some(remote) = connection.remote {
            self.remote_conns.remove(&remote);
        }
        for node in &connection.nodes {
            if let Some(output) = self.links.output(*node) {
                NodeMessage::ConnClosed { conn: conn.0 }.encode(output);
            }
        }
    }

    /// The link is gone: clients of that node are, and ours that it answered
    /// must learn that outcomes are unknown.
    pub(super) fn drop_relays(&mut self, node: u32) {
        let mut theirs: Vec<ConnKey> = self
            .remote_conns
            .iter()
            .filter(|((of, _), _)| *of == node)
            .map(|(_, conn)| *conn)
            .collect();
        // The map's order must not show.
        theirs.sort_unstable();
        for conn in theirs {
            self.on_closed(conn);
        }
        let mut ours: Vec<ConnKey> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.nodes.contains(&node))
            .map(|(conn, _)| *conn)
            .collect();
        ours.sort_unstable();
        for conn in ours {
            if let Some(connection) = self.connections.get_mut(&conn) {
                connection.nodes.retain(|other| *other != node);
                connection.owes_nodes.retain(|other| *other != node);
            }
            let reason = format!(
                "the link to node {node}, which answered this connection, is gone; connect again"
            );
            self.send_away(conn, &reason);
        }
    }

    /// Moves a connection's output onto the link to the node that has its socket.
    pub(super) fn push_remote_output(&mut self, conn: ConnKey) {
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        let Some((node, remote)) = connection.remote else {
            return;
        };
        let Some(out) = self.links.output(node) else {
            return;
        };
        NodeMessage::Output(Output {
            conn: remote,
            released: std::mem::take(&mut connection.released),
            close: connection.closing,
            bytes: &connection.output,
        })
        .encode(out);
        connection.output.clear();
        connection.in_flight = true;
    }
}

impl<B: BatchBuffer> Engine<B> {
    /// Nobody is known to lead it, and why that may be.
    fn no_leader(&self, group: GroupId) -> Refusal {
        let (others, all) = (self.links.up(), self.members().len());
        let stopped = self
            .groups
            .get(&group.0)
            .is_some_and(|slot| slot.group.is_stopped());
        let message = match others + 1 >= majority(all) {
            true if stopped => format!(
                "group {} stopped, to go on as a new generation: too few of its replicas remember what they confirmed; `tidegate cluster status` says what it waits for",
                group.0
            ),
            true => "no node is known to lead this now: an election is under way, or a majority of the replicas is out of reach; retry shortly".to_owned(),
            false => format!(
                "no node is known to lead this: this node is linked to {others} of the {} others, and serves nobody alone; ask another node; `tidegate cluster status` and this node's log say what keeps them away",
                all - 1
            ),
        };
        (ErrorCode::Unavailable, message)
    }
}
