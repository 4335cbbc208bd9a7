//! A client: one connection at a time, to one node; what it waits for, what it
//! holds.

use std::collections::{BTreeMap, BTreeSet};

use shards::engine::{ConnKey, Event};
use wire::frame::{FrameHeader, HEADER_BYTES};

use super::{
    journal::{Fate, Key},
    node::Socket,
    requests::{Answer, Held, Request},
    world::{Happening, OnNode, World},
    Checked,
};

/// The client's end of a connection.
pub(super) struct Link {
    pub node: usize,
    pub conn: ConnKey,
    /// Requests and when they were sent.
    pub pending: BTreeMap<u64, (Request, u64)>,
    pub next_correlation: u64,
    /// Subscriptions and their partitions.
    pub subscriptions: BTreeMap<u32, Key>,
    pub next_subscription: u32,
    /// Subscriptions whose end was asked for.
    pub leaving: BTreeSet<u32>,
    /// Highest offset of a first delivery, by subscription, with its generation.
    pub last_first: BTreeMap<u32, (u32, u64)>,
    /// Deliveries not settled yet.
    pub held: Vec<Held>,
    pub unanswered_bytes: u64,
}

#[derive(Default)]
pub(super) struct Client {
    pub link: Option<Link>,
    /// Answers somebody asked to be kept, by correlation.
    pub answers: BTreeMap<u64, Answer>,
    pub keep_answers: bool,
    /// Settles everything it gets, at once.
    pub drains: bool,
}

impl Client {
    pub fn new() -> Self {
        Client::default()
    }
}

impl World {
    /// Connects a client to a node.
    pub(super) fn connect(&mut self, client: usize, node: usize) {
        let sim = &mut self.nodes[node];
        let conn = ConnKey::new(0, sim.next_conn);
        sim.next_conn += 1;
        let socket = Socket {
            client: Some(client),
            up: Default::default(),
            arriving: false,
            taking: false,
            closing: false,
            told_us: 0,
            issues: Default::default(),
        };
        sim.sockets.insert(conn, socket);
        self.note(format_args!(
            "client {client} connects to {node}: {:x}",
            conn.0
        ));
        let window_bytes = self.random.pick(&[64 << 10, 1 << 20]);
        self.event(node, Event::Opened { conn, window_bytes });
        self.clients[client].link = Some(Link {
            node,
            conn,
            pending: BTreeMap::new(),
            next_correlation: 1,
            subscriptions: BTreeMap::new(),
            next_subscription: 1,
            leaving: BTreeSet::new(),
            last_first: BTreeMap::new(),
            held: Vec::new(),
            unanswered_bytes: 0,
        });
    }

    /// The client goes away without a word; some of what it sent last arrives.
    pub(super) fn disconnect(&mut self, client: usize) {
        let Some(link) = self.clients[client].link.as_ref() else {
            return;
        };
        let (node, conn) = (link.node, link.conn);
        self.note(format_args!("client {client} disconnects"));
        if let Some(socket) = self.nodes[node].sockets.get_mut(&conn) {
            socket.client = None;
            let keep = self.random.below(socket.up.len() as u64 + 1) as usize;
            socket.up.truncate(keep);
        }
        self.link_died(client);
        let after = self.delay(2_000);
        self.plan(after, Happening::HungUp { node, conn });
    }

    pub(super) fn hung_up(&mut self, node: usize, conn: ConnKey) {
        if let Some(socket) = self.nodes[node].sockets.remove(&conn) {
            if let Some(client) = socket.client {
                self.link_died(client);
            }
            self.event(node, Event::Closed { conn });
        }
    }

    /// What the client waited for will not be answered.
    pub(super) fn link_died(&mut self, client: usize) {
        let Some(link) = self.clients[client].link.take() else {
            return;
        };
        for (correlation, (request, _)) in link.pending {
            if let Request::Publish { batch, .. } = &request {
                self.journal.batches[*batch].fate = Fate::Unknown;
            }
            if self.clients[client].keep_answers {
                let answers = &mut self.clients[client].answers;
                answers.insert(correlation, Answer::Gone);
            }
        }
    }

    /// Puts a frame of the client on its way.
    pub(super) fn send_bytes(&mut self, client: usize, frame: Vec<u8>) {
        let Some(link) = self.clients[client].link.as_ref() else {
            return;
        };
        let (node, conn) = (link.node, link.conn);
        let Some(socket) = self.nodes[node].sockets.get_mut(&conn) else {
            return;
        };
        socket.up.push_back(frame);
        if !std::mem::replace(&mut socket.arriving, true) {
            let after = self.delay(400);
            self.plan_on(node, after, OnNode::Frame { conn });
        }
    }

    /// One or more frames reach the server.
    pub(super) fn arrive_frame(&mut self, node: usize, conn: ConnKey) -> Checked<()> {
        let count = 1 + self.random.below(4);
        for _ in 0..count {
            let sim = &mut self.nodes[node];
            let Some(socket) = sim.sockets.get_mut(&conn) else {
                return Ok(());
            };
            let engine = sim.engine.as_ref();
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
            self.event(node, Event::Frame { conn, header, body });
        }
        let after = self.delay(400);
        if let Some(socket) = self.nodes[node].sockets.get_mut(&conn) {
            socket.arriving = !socket.up.is_empty() && !socket.closing;
            if socket.arriving {
                self.plan_on(node, after, OnNode::Frame { conn });
            }
        }
        Ok(())
    }

    /// The engine has output for the connection.
    pub(super) fn want_output(&mut self, node: usize, conn: ConnKey) {
        let now_us = self.now_us;
        let after = self.delay(150);
        let Some(socket) = self.nodes[node].sockets.get_mut(&conn) else {
            return;
        };
        if !std::mem::replace(&mut socket.taking, true) {
            socket.told_us = now_us;
            self.plan_on(node, after, OnNode::TakeOutput { conn });
        }
    }

    /// The server closes the connection once its output is taken.
    pub(super) fn close(&mut self, node: usize, conn: ConnKey) {
        if let Some(socket) = self.nodes[node].sockets.get_mut(&conn) {
            socket.closing = true;
            self.want_output(node, conn);
        }
    }

    pub(super) fn take_output(&mut self, node: usize, conn: ConnKey) -> Checked<()> {
        let sim = &mut self.nodes[node];
        let Some(socket) = sim.sockets.get_mut(&conn) else {
            return Ok(());
        };
        socket.taking = false;
        let (client, closing) = (socket.client, socket.closing);
        let mut bytes = Vec::new();
        let Some(engine) = &mut sim.engine else {
            return Ok(());
        };
        let taken = engine.take_output(conn, &mut bytes);
        if engine.wants_turn() {
            self.want_turn(node);
        }
        if let Some(client) = client {
            self.receive(client, node, conn, &bytes)?;
        }
        if taken {
            self.want_output(node, conn);
        } else if closing {
            self.note(format_args!("connection {:x} of {node} is closed", conn.0));
            self.hung_up(node, conn);
        }
        Ok(())
    }
}
