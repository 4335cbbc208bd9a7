//! A client: one connection at a time, what it waits for, what it holds.

use std::collections::BTreeMap;

use shards::engine::{ConnKey, Event};
use wire::frame::{FrameHeader, HEADER_BYTES};

use super::{
    journal::Fate,
    node::Socket,
    requests::{Answer, Held, Request},
    world::{Happening, World},
    Checked,
};

/// The client's end of a connection.
pub(super) struct Link {
    pub conn: ConnKey,
    /// Requests and when they were sent.
    pub pending: BTreeMap<u64, (Request, u64)>,
    pub next_correlation: u64,
    /// Subscriptions and their partitions.
    pub subscriptions: BTreeMap<u32, super::journal::Key>,
    pub next_subscription: u32,
    /// Subscriptions whose end was asked for.
    pub leaving: std::collections::BTreeSet<u32>,
    /// Highest offset of a first delivery, by subscription.
    pub last_first: BTreeMap<u32, u64>,
    /// Deliveries not settled yet.
    pub held: Vec<Held>,
    /// Some that were settled or lapsed.
    pub stale: Vec<Held>,
    pub unanswered_bytes: u64,
}

pub(super) struct Client {
    pub link: Option<Link>,
    /// Answers somebody asked to be kept, by correlation.
    pub answers: BTreeMap<u64, Answer>,
    pub keep_answers: bool,
    /// Settles everything it gets, at once.
    pub drains: bool,
    /// Takes no output before this time.
    pub stalled_until_us: u64,
}

impl Client {
    pub fn new() -> Self {
        Client {
            link: None,
            answers: BTreeMap::new(),
            keep_answers: false,
            drains: false,
            stalled_until_us: 0,
        }
    }
}

impl World {
    /// Connects a client to a shard.
    pub(super) fn connect(&mut self, client: usize, shard: u16) {
        let sim = self.node.shard(shard);
        let conn = ConnKey::new(shard, sim.next_conn);
        sim.next_conn += 1;
        self.note(format_args!("client {client} connects: {:x}", conn.0));
        let moments = self.node.moments();
        let socket = Socket {
            shard,
            client: Some(client),
            up: Default::default(),
            arriving: false,
            taking: false,
            closing: false,
            moments,
        };
        self.node.sockets.insert(conn, socket);
        let window_bytes = self.random.pick(&[64 << 10, 1 << 20]);
        self.event(shard, Event::Opened { conn, window_bytes });
        self.clients[client].link = Some(Link {
            conn,
            pending: BTreeMap::new(),
            next_correlation: 1,
            subscriptions: BTreeMap::new(),
            next_subscription: 1,
            leaving: Default::default(),
            last_first: BTreeMap::new(),
            held: Vec::new(),
            stale: Vec::new(),
            unanswered_bytes: 0,
        });
    }

    /// The client goes away without a word; some of what it sent last arrives.
    pub(super) fn disconnect(&mut self, client: usize) {
        let Some(conn) = self.clients[client].link.as_ref().map(|link| link.conn) else {
            return;
        };
        self.note(format_args!("client {client} disconnects"));
        if let Some(socket) = self.node.sockets.get_mut(&conn) {
            socket.client = None;
            let keep = self.random.below(socket.up.len() as u64 + 1) as usize;
            socket.up.truncate(keep);
        }
        self.link_died(client);
        let after = self.delay(2_000);
        self.plan(after, Happening::HungUp { conn });
    }

    pub(super) fn hung_up(&mut self, conn: ConnKey) {
        if let Some(socket) = self.node.sockets.remove(&conn) {
            if let Some(client) = socket.client {
                self.link_died(client);
            }
            self.event(socket.shard, Event::Closed { conn });
        }
    }

    /// What the client waited for will not be answered.
    pub(super) fn link_died(&mut self, client: usize) {
        let Some(link) = self.clients[client].link.take() else {
            return;
        };
        for (correlation, (request, _)) in link.pending {
            match &request {
                Request::Publish { batch, .. } => {
                    self.journal.batches[*batch].fate = Fate::Unknown;
                }
                Request::Declare { name, .. } => self.journal.declare_ends(name),
                _ => {}
            }
            if self.clients[client].keep_answers {
                self.clients[client]
                    .answers
                    .insert(correlation, Answer::Gone);
            }
        }
    }

    /// Puts a frame of the client on its way.
    pub(super) fn send_bytes(&mut self, client: usize, frame: Vec<u8>) {
        let Some(conn) = self.clients[client].link.as_ref().map(|link| link.conn) else {
            return;
        };
        let Some(socket) = self.node.sockets.get_mut(&conn) else {
            return;
        };
        socket.up.push_back(frame);
        if !std::mem::replace(&mut socket.arriving, true) {
            let after = self.delay(400);
            self.plan(after, Happening::Arrive { conn });
        }
    }

    /// One or more frames reach the server.
    pub(super) fn arrive(&mut self, conn: ConnKey) -> Checked<()> {
        let count = 1 + self.random.below(4);
        for _ in 0..count {
            let Some(socket) = self.node.sockets.get_mut(&conn) else {
                return Ok(());
            };
            let shard = socket.shard;
            let engine = self.node.shards[usize::from(shard)].engine.as_ref();
            let full = engine.is_some_and(|engine| engine.output_is_full(conn));
            if full || socket.closing {
                break;
            }
            let Some(frame) = socket.up.pop_front() else {
                break;
            };
            let Some((head, body)) = frame.split_first_chunk::<HEADER_BYTES>() else {
                return Err("a client sent half a header".to_owned());
            };
            let header = FrameHeader::decode(head, u32::MAX).map_err(|error| error.to_string())?;
            self.event(shard, Event::Frame { conn, header, body });
        }
        let after = self.delay(400);
        if let Some(socket) = self.node.sockets.get_mut(&conn) {
            socket.arriving = !socket.up.is_empty() && !socket.closing;
            if socket.arriving {
                self.plan(after, Happening::Arrive { conn });
            }
        }
        Ok(())
    }

    /// The engine has output for the connection.
    pub(super) fn want_output(&mut self, conn: ConnKey) {
        let now_us = self.now_us;
        let after = self.delay(150);
        let stall = self.random.chance(self.settings.rates.stall, 400);
        let mut stall_us = if stall { self.random.below(400_000) } else { 0 };
        if stall && !self.happens(|| format!("a client reads nothing for {stall_us} us")) {
            stall_us = 0;
        }
        if stall_us > 0 {
            self.count("client that reads nothing");
        }
        let Some(socket) = self.node.sockets.get_mut(&conn) else {
            return;
        };
        if std::mem::replace(&mut socket.taking, true) {
            return;
        }
        let client = socket.client;
        let mut after = after;
        if let Some(client) = client.and_then(|client| self.clients.get_mut(client)) {
            if stall_us > 0 {
                client.stalled_until_us = now_us + stall_us;
            }
            after = after.max(client.stalled_until_us.saturating_sub(now_us));
        }
        self.plan(after, Happening::TakeOutput { conn });
    }

    /// The server closes the connection once its output is taken.
    pub(super) fn close(&mut self, conn: ConnKey) {
        if let Some(socket) = self.node.sockets.get_mut(&conn) {
            socket.closing = true;
            self.want_output(conn);
        }
    }

    pub(super) fn take_output(&mut self, conn: ConnKey) -> Checked<()> {
        let Some(socket) = self.node.sockets.get_mut(&conn) else {
            return Ok(());
        };
        socket.taking = false;
        let (shard, client, closing) = (socket.shard, socket.client, socket.closing);
        let moments = socket.moments.clone();
        let mut bytes = Vec::new();
        let Some(engine) = &mut self.node.shard(shard).engine else {
            return Ok(());
        };
        let taken = engine.take_output(conn, &mut bytes);
        if engine.wants_turn() {
            self.want_turn(shard);
        }
        if let Some(client) = client {
            self.receive(client, &bytes, &moments)?;
        }
        if taken {
            self.want_output(conn);
        } else if closing {
            self.note(format_args!("connection {:x} is closed", conn.0));
            self.hung_up(conn);
        }
        Ok(())
    }
}
