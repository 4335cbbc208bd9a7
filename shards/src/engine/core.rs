//! The engine's state and the door events come in by.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ahash::RandomState;
use wire::{
    error::{ErrorCode, Outcome},
    frame::{FrameHeader, Kind},
    message::GoingAway,
};

use super::{
    connection::{Connection, FORWARDED_FULL_BYTES, FORWARD_BYTES, HANDLED_STEP_BYTES},
    directory::Directory,
    elsewhere::Hints,
    gates::GroupSlot,
    level::Level,
    links::Links,
    meta::MetaSlot,
    orders::Orders,
    pace::Pace,
    partition::{PartitionKey, PartitionSlot},
    reads::ReadCache,
    recovery::Leaderless,
    requests::{Barrier, PendingPeek},
    room::Room,
    roster::Known,
    snapshot::{Receiving, Sending},
    turn::{Deferred, Timers},
    types::{ConnKey, Effect, EngineConfig, Event, Notice, ShardMessage},
    upkeep::Upkeep,
};
use crate::{
    group::GroupId,
    io::BatchBuffer,
    log::{CleanMarker, LogEffect, LogFrontiers, LogPosition, LogWriter},
    state::{
        meta::{GroupHistory, Open, Seat},
        queue::AppendedRecord,
    },
};

/// A list that is used again keeps room for so many entries: a start, or a
/// burst over very many queues, must not be paid for ever after.
pub(crate) const KEPT_ENTRIES: usize = 4096;
/// See [`Engine::is_quiet`].
const GONE_MS: u64 = 500;

/// Hashing with fixed seeds: iteration order must not differ between runs, and
/// these maps are never iterated where order shows.
pub(super) type Map<K, V> = std::collections::HashMap<K, V, RandomState>;

pub(super) fn map<K, V>() -> Map<K, V> {
    Map::with_hasher(RandomState::with_seeds(0x7469, 0x6465, 0x6761, 0x7465))
}

/// One shard's engine; see the module head.
pub struct Engine<B> {
    pub(super) config: EngineConfig,
    pub(super) log: LogWriter<B>,
    pub(super) frontiers: LogFrontiers,
    pub(super) groups: BTreeMap<u32, GroupSlot>,
    /// Boxed: a table of them would be half empty.
    pub(super) partitions: Map<PartitionKey, Box<PartitionSlot>>,
    pub(super) directory: Directory,
    /// Shard 0 only.
    pub(super) meta: Option<MetaSlot>,
    pub(super) connections: Map<ConnKey, Connection>,
    pub(super) links: Links,
    /// Who belongs to the cluster.
    pub(super) known: Known,
    /// What every member's version knows.
    pub(super) level: Level,
    /// Who leads groups that have no replica here.
    pub(super) hints: Hints,
    /// Connections whose socket is another node's, by that node and its name for them.
    pub(super) remote_conns: BTreeMap<(u32, u64), ConnKey>,
    pub(super) next_remote: u64,
    /// Nodes whose link is to end, and why.
    pub(super) refused_nodes: Vec<(u32, String)>,
    /// Shard 0: what this node wants of group 0, and what group 0's leader orders.
    pub(super) orders: Orders,
    /// What group 0 knows of groups here, as told last.
    pub(super) histories: BTreeMap<u32, Box<GroupHistory>>,
    /// Replicas that know no leader.
    pub(super) leaderless: BTreeMap<u32, Leaderless>,
    /// Groups that this node does not lead any more since this turn.
    pub(super) deposed: Vec<u32>,
    /// Snapshots on their way.
    pub(super) sending: Option<Box<Sending>>,
    /// Of what is brought to followers that are behind.
    pub(super) pace: Pace,
    pub(super) receiving: BTreeMap<u32, Receiving>,
    pub(super) reads: ReadCache,
    pub(super) upkeep: Upkeep,
    /// Damaged records that were told of.
    pub(super) bad_records: BTreeSet<(PartitionKey, u64)>,
    pub(super) barriers: VecDeque<Barrier>,
    pub(super) peeks: Vec<PendingPeek>,
    pub(super) deferred: VecDeque<Deferred>,
    pub(super) timers: Timers,
    /// Partitions to dispatch, connections with output: this turn's lists; partitions
    /// with gathered acknowledges.
    pub(super) dirty_partitions: Vec<PartitionKey>,
    pub(super) listed_connections: Vec<ConnKey>,
    pub(super) settled_partitions: Vec<PartitionKey>,
    pub(super) outbound: Vec<(u16, ShardMessage)>,
    pub(super) notices: Vec<Notice>,
    pub(super) closing: Vec<ConnKey>,
    /// Connections that may be read again.
    pub(super) resumed: Vec<ConnKey>,
    /// Buffers used again.
    pub(super) scratch: Vec<u8>,
    pub(super) appended: Vec<AppendedRecord>,
    pub(super) picks: Vec<crate::state::queue::Dispatch>,
    pub(super) started: Vec<LogEffect<B>>,
    pub(super) server_ms: u64,
    /// Server time minus monotonic time.
    pub(super) clock_offset_ms: u64,
    pub(super) draining: bool,
    /// Server time of that.
    pub(super) drained_ms: u64,
    /// An operator told this node to hand over what it leads, and to lead nothing.
    pub(super) leads_nothing: bool,
    /// No leader is handed to the node whose turn it is before; server time.
    pub(super) spread_from_ms: u64,
    /// No group goes to another node for the sake of balance before; server time.
    pub(super) balance_from_ms: u64,
    /// Nodes that an operator gave up, as told last.
    pub(super) forgotten: BTreeSet<u32>,
    /// See `seal`.
    pub(super) sealed: bool,
    pub(super) room: Room,
    pub(super) serving: bool,
    /// See `say_serving`.
    pub(super) serving_in_doubt: bool,
    pub(super) latched: bool,
    /// Groups that wait for group 0's order before they may lead.
    pub(super) awaiting_recovery: BTreeMap<u32, crate::group::Recovered>,
    /// Groups that this node has no part in, and what is left of its replicas.
    pub(super) absent: BTreeMap<u32, crate::group::Recovered>,
    /// End of the last new name of a replica of ours.
    pub(super) announced: LogPosition,
    /// Group 0's new identity, if it had to give itself one.
    pub(super) own_order: Option<crate::group::GroupState>,
    pub(super) directory_known: bool,
    /// Shard 0 of a cluster: the shards were sent the directory.
    pub(super) directory_told: bool,
    /// Shard 0 of a cluster: the shards know of every log that group 0 knows.
    pub(super) opens_told: bool,
    /// Last entry of group 0 whose opens were looked at.
    pub(super) opens_seen: u64,
    /// What this shard was told of them in this turn.
    pub(super) known_logs: Vec<(u32, Open)>,
    pub(super) known_seats: Vec<(u32, Box<Seat>)>,
}

impl<B: BatchBuffer> Engine<B> {
    /// Takes an event in. Effects come from [`Engine::end_turn`], which the
    /// driver calls after it handed in all that was at hand.
    pub fn handle(&mut self, mono_ms: u64, event: Event<'_>) {
        if self.sealed {
            return self.handle_sealed(event);
        }
        self.set_time(mono_ms);
        match event {
            Event::Opened { conn, window_bytes } => {
                self.connections
                    .insert(conn, Connection::new(true, window_bytes));
            }
            Event::Frame { conn, header, body } => self.on_home_frame(conn, header, body),
            Event::Closed { conn } => self.on_closed(conn),
            Event::Written { id, result } => {
                self.log.write_done(id, result);
            }
            Event::Synced { id, result } => {
                self.log.sync_done(id, result);
            }
            Event::SegmentReady { sequence, result } => self.on_segment(sequence, result),
            Event::ReadDone { id, result } => self.on_read_done(id, result),
            Event::Stored(done) => self.on_stored(done),
            Event::Message(message) => self.on_message(message),
            Event::NodeUp { node } => self.on_node_up(node),
            Event::NodeDown { node } => self.on_node_down(node),
            Event::NodeBody { node, body } => self.on_node_body(node, body),
            Event::DiskLow(low) => self.on_disk_low(low),
            Event::Tick => {}
            Event::Drain => self.on_drain(),
        }
    }

    pub(super) fn set_time(&mut self, mono_ms: u64) {
        self.server_ms = self.server_ms.max(mono_ms + self.clock_offset_ms);
    }

    /// Time as a group's entries and due times have it, in ms.
    pub(super) fn time_in(&self, group: GroupId) -> u64 {
        let slot = self.groups.get(&group.0);
        self.server_ms + slot.map_or(0, |slot| slot.ahead_ms)
    }

    pub(super) fn time_at(&self, key: PartitionKey) -> u64 {
        let slot = self.partitions.get(&key);
        slot.map_or(self.server_ms, |slot| self.time_in(slot.group))
    }

    /// An entry with that stamp was applied, or is in what was installed.
    pub(super) fn note_stamp(&mut self, group: u32, stamp_ms: u64) {
        let now = self.server_ms;
        if let Some(slot) = self.groups.get_mut(&group) {
            // Of a leader here the group's time is what it stamps with.
            if !slot.leads() {
                slot.ahead_ms = slot.ahead_ms.max(stamp_ms.saturating_sub(now));
            }
        }
    }

    /// A frame of a connection of this shard.
    fn on_home_frame(&mut self, conn: ConnKey, header: FrameHeader, body: &[u8]) {
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        if connection.closing {
            return;
        }
        let Some(kind) = Kind::from_raw(header.kind) else {
            let message = format!(
                "frame kind {} is not known to this server (protocol version 1)",
                header.kind
            );
            self.error(
                conn,
                header.correlation,
                ErrorCode::UnknownKind,
                Outcome::Failed,
                message,
            );
            return;
        };
        if kind == Kind::Publish {
            // One publish may always be under way, however long: a record at
            // its limit must fit through a small window.
            let alone = connection.unanswered == 0;
            connection.unanswered += body.len() as u64;
            let window = u64::from(self.config.window_bytes);
            if connection.unanswered > window && !alone {
                let message = format!(
                    "{} unanswered publish bytes exceed the window of {window} granted in hello; wait for confirms",
                    connection.unanswered
                );
                self.protocol_error(conn, ErrorCode::WindowExceeded, message);
                return;
            }
        }
        self.dispatch_frame(conn, kind, header.correlation, body);
    }

    /// Answers the frame here, or passes it to the shard that owns what it names.
    pub(super) fn dispatch_frame(
        &mut self,
        conn: ConnKey,
        kind: Kind,
        correlation: u64,
        body: &[u8],
    ) {
        match kind {
            Kind::Publish => self.on_publish(conn, correlation, body),
            Kind::Settle => self.on_settle(conn, correlation, body),
            Kind::Credit => self.on_credit(conn, correlation, body),
            Kind::Subscribe => self.on_subscribe(conn, correlation, body),
            Kind::Unsubscribe => self.on_unsubscribe(conn, correlation, body),
            Kind::Declare => self.on_declare(conn, correlation, body),
            Kind::Delete => self.on_delete(conn, correlation, body),
            Kind::Locate => self.on_locate(conn, correlation, body),
            Kind::List => self.on_list(conn, correlation, body),
            Kind::QueueInfo => self.on_queue_info(conn, correlation, body),
            Kind::Frontiers => self.on_frontiers(conn, correlation, body),
            Kind::Barrier => self.on_barrier(conn, correlation, body),
            Kind::Peek => self.on_peek(conn, correlation, body),
            Kind::Purge => self.on_purge(conn, correlation, body),
            Kind::ClusterOrder => self.on_cluster_order(conn, correlation, body),
            Kind::ChangeQueue => self.on_change_queue(conn, correlation, body),
            Kind::ClusterStatus => self.on_cluster_status(conn, correlation, body),
            Kind::Ping => self.reply(conn, correlation, &wire::message::Pong::default()),
            Kind::Pong | Kind::GoingAway => {}
            Kind::Extend => {
                let message = "extending leases is not supported yet".to_owned();
                self.error(
                    conn,
                    correlation,
                    ErrorCode::Unsupported,
                    Outcome::Failed,
                    message,
                );
            }
            Kind::Hello => {
                let message = "hello was already done on this connection".to_owned();
                self.protocol_error(conn, ErrorCode::Protocol, message);
            }
            _ => {
                let message = format!("{} is sent by servers, not by clients", kind.name());
                self.protocol_error(conn, ErrorCode::Protocol, message);
            }
        }
    }

    /// Passes a frame to the owning shard.
    pub(super) fn forward(
        &mut self,
        shard: u16,
        conn: ConnKey,
        kind: Kind,
        correlation: u64,
        body: &[u8],
    ) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.others |= 1 << shard;
            connection.forwarded += body.len() as u64 + FORWARD_BYTES;
        }
        let kind = kind as u8;
        let body = body.to_vec();
        self.outbound.push((
            shard,
            ShardMessage::Forward {
                conn,
                kind,
                correlation,
                body,
            },
        ));
    }

    fn on_message(&mut self, message: ShardMessage) {
        match message {
            ShardMessage::Forward {
                conn,
                kind,
                correlation,
                body,
            } => {
                let connection = self
                    .connections
                    .entry(conn)
                    .or_insert_with(|| Connection::new(false, u32::MAX));
                connection.handled += body.len() as u64 + FORWARD_BYTES;
                // What is kept back by all shards together stays below the bound.
                let shards = u64::from(self.config.place.shards.max(1));
                let step = HANDLED_STEP_BYTES.min(FORWARDED_FULL_BYTES / 2 / shards);
                if connection.handled >= step {
                    let bytes = std::mem::take(&mut connection.handled);
                    let handled = ShardMessage::Handled { conn, bytes };
                    self.outbound.push((conn.shard(), handled));
                }
                if let Some(kind) = Kind::from_raw(kind) {
                    self.dispatch_frame(conn, kind, correlation, &body);
                }
            }
            ShardMessage::Output {
                from,
                conn,
                bytes,
                released,
                close,
            } => {
                self.on_remote_output(from, conn, &bytes, released, close);
            }
            ShardMessage::Handled { conn, bytes } => {
                if let Some(connection) = self.connections.get_mut(&conn) {
                    connection.forwarded = connection.forwarded.saturating_sub(bytes);
                    self.resumed.push(conn);
                }
            }
            ShardMessage::Stalled { from, conn } => {
                if let Some(connection) = self.connections.get_mut(&conn) {
                    connection.stalled |= 1 << from;
                }
            }
            ShardMessage::OutputTaken { conn } => self.on_output_taken(conn),
            ShardMessage::ConnClosed { conn } => self.on_closed(conn),
            ShardMessage::Declared(queue) => self.on_declared(queue),
            ShardMessage::Directory { queues, next_id } => self.on_directory(queues, next_id),
            ShardMessage::Known { shard, queue_id } => self.on_known(shard, queue_id),
            ShardMessage::Deleted { queue_id } => self.on_deleted(queue_id),
            ShardMessage::PartitionReady {
                queue_id,
                partition,
            } => {
                self.on_partition_ready(PartitionKey {
                    queue_id,
                    partition,
                });
            }
            ShardMessage::RecoverGroup {
                shard,
                group,
                generation,
                peer,
            } => {
                self.on_recover_group(shard, group, generation, peer);
            }
            ShardMessage::History { group, history } => {
                self.on_history(group, &history);
                self.histories.insert(group.0, history);
            }
            ShardMessage::LogKnown { node, open } => self.known_logs.push((node, open)),
            ShardMessage::Seat {
                node,
                seat,
                forgotten,
            } => self.on_seat(node, seat, forgotten),
            ShardMessage::Roster(roster) => self.on_own_roster(roster),
            ShardMessage::Level(level) => self.on_level(level),
            ShardMessage::AskMeta(command) => self.ask_meta(*command),
            ShardMessage::Leaderless { group, generation } => {
                self.note_leaderless(group, generation);
            }
            ShardMessage::LeadNothing(on) => self.lead_nothing(on),
            ShardMessage::Forgotten { node } => self.on_forgotten(node),
            ShardMessage::Reopened { shard } => self.on_reopened(shard),
            ShardMessage::WantDirectory { shard } => self.send_directory(shard),
            ShardMessage::GroupRecovered {
                group,
                generation,
                peer,
            } => {
                self.on_group_recovered(group, generation, peer);
            }
        }
    }

    /// Another shard forgot our connections: those it served are closed, so
    /// that their clients connect and subscribe again.
    fn on_reopened(&mut self, shard: u16) {
        if self.leads_nothing {
            self.outbound.push((shard, ShardMessage::LeadNothing(true)));
        }
        let mut touched: Vec<ConnKey> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.home && connection.others & 1 << shard != 0)
            .map(|(conn, _)| *conn)
            .collect();
        // The map's order must not show.
        touched.sort_unstable();
        for conn in touched {
            let reason = format!("shard {shard} reopened its log; connect again");
            self.reply(
                conn,
                0,
                &GoingAway {
                    reason,
                    extensions: Vec::new(),
                },
            );
            self.close(conn);
        }
        // Its own connections are closed there: what they held here goes back.
        let mut theirs: Vec<ConnKey> = self
            .connections
            .keys()
            .copied()
            .filter(|conn| conn.shard() == shard)
            .collect();
        theirs.sort_unstable();
        for conn in theirs {
            self.on_closed(conn);
        }
    }

    /// The driver could not read the connection any further: say why, then close.
    pub fn refuse_connection(&mut self, conn: ConnKey, code: ErrorCode, message: String) {
        self.protocol_error(conn, code, message);
    }

    /// Output of another shard for a connection of ours.
    fn on_remote_output(
        &mut self,
        from: u16,
        conn: ConnKey,
        bytes: &[u8],
        released: u64,
        close: bool,
    ) {
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        if connection.closing {
            // Its last frame said why: nothing follows that, least of all what
            // a shard says in another life than the one it subscribed in.
            return;
        }
        connection.note_answers(bytes);
        connection.output.extend_from_slice(bytes);
        connection.release(released);
        connection.stalled &= !(1 << from);
        if bytes.is_empty() {
            // No socket will take it: the next may come at once.
            self.outbound
                .push((from, ShardMessage::OutputTaken { conn }));
        } else {
            connection.owes_taken |= 1 << from;
        }
        self.list_connection(conn);
        if close {
            self.close(conn);
        }
    }

    /// The home shard's socket took our last output.
    pub(super) fn on_output_taken(&mut self, conn: ConnKey) {
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        connection.in_flight = false;
        self.pay_nodes(conn);
        self.output_went(conn);
    }

    /// Moves a connection's output into `into` (which should be empty); false
    /// when there is none. The driver calls it when the socket is free.
    pub fn take_output(&mut self, conn: ConnKey, into: &mut Vec<u8>) -> bool {
        let Some(connection) = self.connections.get_mut(&conn) else {
            return false;
        };
        if connection.output.is_empty() {
            return false;
        }
        let held_back = connection.output.len() > connection.output_high / 2;
        std::mem::swap(&mut connection.output, into);
        let owes = std::mem::take(&mut connection.owes_taken);
        for shard in (0..self.config.place.shards).filter(|shard| owes & 1 << shard != 0) {
            self.outbound
                .push((shard, ShardMessage::OutputTaken { conn }));
        }
        self.pay_nodes(conn);
        if held_back {
            self.output_went(conn);
        }
        true
    }

    /// Unsent output in bytes is at its bound, here or at a shard that answers
    /// the connection, or that shard has much of it still to handle: the driver
    /// stops reading it until the next `Effect::Output` or its peer reads.
    pub fn output_is_full(&self, conn: ConnKey) -> bool {
        self.connections.get(&conn).is_some_and(|connection| {
            connection.stalled != 0
                || connection.forwarded > FORWARDED_FULL_BYTES
                || connection.output.len() > super::connection::OUTPUT_FULL_BYTES
        })
    }

    /// Room for deliveries again: its partitions may dispatch.
    fn output_went(&mut self, conn: ConnKey) {
        let Some(connection) = self.connections.get(&conn) else {
            return;
        };
        let shard = self.config.shard;
        for index in 0..connection.subscriptions.len() {
            let Some(sub) = self
                .connections
                .get(&conn)
                .and_then(|c| c.subscriptions.get(index))
            else {
                break;
            };
            if sub.shard == shard && sub.node == 0 {
                let key = PartitionKey {
                    queue_id: sub.queue_id,
                    partition: sub.partition,
                };
                self.mark_dirty(key);
            }
        }
    }

    pub(super) fn mark_dirty(&mut self, key: PartitionKey) {
        if let Some(slot) = self.partitions.get_mut(&key) {
            if !std::mem::replace(&mut slot.dirty, true) {
                self.dirty_partitions.push(key);
            }
        }
    }

    pub(super) fn list_connection(&mut self, conn: ConnKey) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            if !std::mem::replace(&mut connection.listed, true) {
                self.listed_connections.push(conn);
            }
        }
    }

    /// Sends one frame to a connection.
    pub(super) fn reply<T>(&mut self, conn: ConnKey, correlation: u64, body: &T)
    where
        T: wire::codec::Body
            + for<'a> rkyv::Serialize<
                rkyv::api::high::HighSerializer<
                    Vec<u8>,
                    rkyv::ser::allocator::ArenaHandle<'a>,
                    rkyv::rancor::Error,
                >,
            >,
    {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.send(correlation, body);
            self.list_connection(conn);
        }
    }

    /// Answers a request with an error.
    pub(super) fn error(
        &mut self,
        conn: ConnKey,
        correlation: u64,
        code: ErrorCode,
        outcome: Outcome,
        message: String,
    ) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.error(correlation, code, outcome, message);
            self.list_connection(conn);
        }
    }

    /// The peer broke the protocol: say why, then close.
    pub(super) fn protocol_error(&mut self, conn: ConnKey, code: ErrorCode, message: String) {
        self.error(conn, 0, code, Outcome::Unknown, message);
        self.close(conn);
    }

    pub(super) fn close(&mut self, conn: ConnKey) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            if !std::mem::replace(&mut connection.closing, true) {
                self.closing.push(conn);
                self.list_connection(conn);
            }
        }
    }

    fn on_drain(&mut self) {
        self.draining = true;
        self.drained_ms = self.server_ms;
        let mut homes: Vec<ConnKey> = self
            .connections
            .iter()
            .filter(|(_, c)| c.home)
            .map(|(conn, _)| *conn)
            .collect();
        homes.sort_unstable();
        for conn in homes {
            let reason = "the server is shutting down".to_owned();
            self.reply(
                conn,
                0,
                &GoingAway {
                    reason,
                    extensions: Vec::new(),
                },
            );
        }
    }

    pub(super) fn on_closed(&mut self, conn: ConnKey) {
        let Some(connection) = self.connections.remove(&conn) else {
            return;
        };
        if connection.home {
            for shard in 0..self.config.place.shards {
                if connection.others & 1 << shard != 0 {
                    self.outbound
                        .push((shard, ShardMessage::ConnClosed { conn }));
                }
            }
        }
        self.tell_nodes_closed(conn, &connection);
        self.end_subscriptions_of(conn, &connection);
    }

    /// Frontiers, for the driver's own use (drain, clean marker).
    pub fn log_frontiers(&self) -> LogFrontiers {
        self.log.frontiers()
    }

    /// The log, for what only the driver may ask (clean marker facts).
    pub fn log(&self) -> &LogWriter<B> {
        &self.log
    }

    /// Makes everything appended durable without waiting for the timer.
    pub fn demand_durable(&mut self) {
        let end = self.log.frontiers().appended;
        self.log.demand_durable(end);
    }

    /// Other shards may still have answers for connections of this one; nothing
    /// else is taken in any more.
    fn handle_sealed(&mut self, event: Event<'_>) {
        if let Event::Message(message @ ShardMessage::Output { .. }) = event {
            self.on_message(message);
        }
    }

    /// Comes to its end if nothing is in flight and everything is durable:
    /// tells what a clean stop records. From then on nothing is asked of the
    /// log, since the record would not cover it.
    pub fn seal(&mut self) -> Option<CleanMarker> {
        if !self.is_quiet() {
            return None;
        }
        let marker = self.log.clean_marker();
        self.sealed = marker.is_some();
        marker
    }

    /// Nothing is in flight: every proposal was applied and every gate opened, and nothing
    /// that was received waits to be proposed.
    ///
    /// What waits for copies on nodes that are gone, all stopping at once say, is waited
    /// for no longer than [`GONE_MS`]: it is on this one, and whoever asked is not told.
    pub fn is_quiet(&self) -> bool {
        let gone = self.server_ms >= self.drained_ms.saturating_add(GONE_MS);
        let waits = |slot: &GroupSlot| {
            slot.waiting() > 0 && (!gone || !slot.group.is_replicated() || self.has_majority(slot))
        };
        let frontiers = self.log.frontiers();
        self.deferred.is_empty()
            && self.settled_partitions.is_empty()
            && !self.leads_with_others()
            && frontiers.durable_next >= frontiers.appended
            && self
                .groups
                .values()
                .all(|slot| slot.group.is_settled() && !waits(slot))
    }

    /// What the log may have forgotten is told: every group whose memory was in doubt
    /// goes on under another name, and that is durable.
    pub fn memory_is_settled(&self) -> bool {
        self.serving
            && self.awaiting_recovery.is_empty()
            && self.announced <= self.frontiers.durable_next
    }

    /// True once every group leads and serves.
    pub fn is_serving(&self) -> bool {
        self.serving
    }

    pub(super) fn push_effects(&mut self, effects: &mut Vec<Effect<B>>) {
        effects.extend(self.notices.drain(..).map(Effect::Notice));
        self.push_roster_effect(effects);
        self.push_level_effect(effects);
        self.push_node_effects(effects);
        let known = self.known_logs.drain(..);
        effects.extend(known.map(|(node, open)| Effect::LogKnown { node, open }));
        let known = self.known_seats.drain(..);
        effects.extend(known.map(|(node, seat)| Effect::SeatKnown { node, seat }));
        effects.extend(
            self.outbound
                .drain(..)
                .map(|(shard, message)| Effect::ToShard { shard, message }),
        );
        self.outbound.shrink_to(KEPT_ENTRIES);
        effects.extend(self.resumed.drain(..).map(|conn| Effect::Output { conn }));
        effects.extend(self.closing.drain(..).map(|conn| Effect::Close { conn }));
    }
}
