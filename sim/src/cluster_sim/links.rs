//! Joins the connections between nodes and the engines.

use shards::engine::{ConnKey, Event};

use super::{
    issues::{describe, said_in, taken_in, Issue},
    net::Body,
    node::Told,
    world::{Happening, OnNode, World},
};

/// The dialer's pause before it tries again.
const DIAL_PAUSE_US: u64 = 50_000;
const DIAL_PAUSE_MOST_US: u64 = 1_000_000;
/// A connection on which a way is cut is given up after this, and up to half
/// as much more.
const SILENCE_US: u64 = 2_000_000;

/// The number by which the cluster knows the node of this index.
pub(super) fn number(node: usize) -> u32 {
    node as u32 + 1
}

pub(super) fn index(number: u32) -> usize {
    (number as usize).saturating_sub(1)
}

impl World {
    /// A node is there: whoever dials it, or whom it dials, does so.
    pub(super) fn plan_dials(&mut self, node: usize) {
        for peer in 0..node {
            let after = self.delay(2_000);
            self.plan(after, Happening::Dial { node, peer });
        }
    }

    fn dial_later(&mut self, node: usize, peer: usize) {
        let pause = DIAL_PAUSE_US << self.random.below(5);
        let after = pause.min(DIAL_PAUSE_MOST_US) + self.random.below(DIAL_PAUSE_US);
        self.plan(after, Happening::Dial { node, peer });
    }

    /// The node with the higher number dials.
    pub(super) fn dial(&mut self, node: usize, peer: usize) {
        let end = self.net.end(node, peer);
        let ready = |world: &World, node: usize| world.nodes[node].engine.is_some();
        if !self.nodes[node].up || end.up.is_some() || end.coming.is_some() {
            return;
        }
        let there = ready(self, node) && ready(self, peer) && self.nodes[peer].up;
        if !there || !self.net.can_connect(node, peer) {
            return self.dial_later(node, peer);
        }
        if !self.may_link(node, peer) {
            self.tell_removed(node, peer);
            return self.dial_later(node, peer);
        }
        let epoch = self.net.connect(node, peer);
        self.note(format_args!("link {node} to {peer}: connection {epoch}"));
        for (end, other) in [(node, peer), (peer, node)] {
            let after = self.delay(self.settings.hop_us * 2);
            self.plan_on(end, after, OnNode::LinkUp { peer: other, epoch });
        }
    }

    pub(super) fn link_up(&mut self, node: usize, peer: usize, epoch: u64) {
        let Some(replaces) = self.net.told_up(node, peer, epoch) else {
            return;
        };
        self.note(format_args!("{node} linked to {peer} ({epoch})"));
        self.nodes[node].to_peers.remove(&peer);
        let number = number(peer);
        if replaces {
            self.event(node, Event::NodeDown { node: number });
        }
        self.event(node, Event::NodeUp { node: number });
    }

    pub(super) fn link_down(&mut self, node: usize, peer: usize, epoch: u64) {
        if !self.net.told_down(node, peer, epoch) {
            if node > peer {
                self.dial_later(node, peer);
            }
            return;
        }
        self.note(format_args!("{node} not linked to {peer} ({epoch})"));
        self.nodes[node].to_peers.remove(&peer);
        let number = number(peer);
        self.event(node, Event::NodeDown { node: number });
        if node > peer {
            self.dial_later(node, peer);
        }
    }

    /// The connection breaks; each end learns of it within `learn_us`.
    pub(super) fn break_link(&mut self, a: usize, b: usize, epoch: u64, learn_us: u64) {
        let mut random = self.random.fork();
        let broke = self
            .net
            .break_up(a, b, epoch, |count| random.below(count as u64 + 1) as usize);
        if !broke {
            return;
        }
        self.counts.link_losses += 1;
        self.note(format_args!("link {a} to {b} breaks ({epoch})"));
        for (node, peer) in [(a, b), (b, a)] {
            let after = self.delay(learn_us);
            self.plan_on(node, after, OnNode::LinkDown { peer, epoch });
        }
    }

    pub(super) fn break_standing(&mut self, a: usize, b: usize, learn_us: u64) {
        if let Some(epoch) = self.net.standing(a, b) {
            self.break_link(a, b, epoch, learn_us);
        }
    }

    /// A process is gone: its peers learn of it within `learn_us`.
    pub(super) fn unlink(&mut self, node: usize, learn_us: u64) {
        for peer in (0..self.nodes.len()).filter(|peer| *peer != node) {
            self.break_standing(node, peer, learn_us);
        }
        self.net.forget(node);
        self.nodes[node].to_peers.clear();
    }

    /// From one node to another nothing comes through any more.
    pub(super) fn cut_way(&mut self, from: usize, to: usize) {
        self.net.block((from, to));
        if let Some(epoch) = self.net.standing(from, to) {
            let (a, b) = (from, to);
            let after = SILENCE_US + self.random.below(SILENCE_US / 2);
            self.plan(after, Happening::Silent { a, b, epoch });
        }
    }

    pub(super) fn open_way(&mut self, from: usize, to: usize) {
        if self.net.unblock((from, to)) {
            let after = self.delay(self.settings.hop_us);
            self.plan(after, Happening::Arrive { from, to });
        }
    }

    // --- bodies ---

    /// The engine has output for a node.
    pub(super) fn want_node_output(&mut self, node: usize, peer: usize) {
        let now_us = self.now_us;
        if peer >= self.nodes.len() || peer == node {
            return;
        }
        let sim = &mut self.nodes[node];
        let told = sim.to_peers.entry(peer).or_insert(Told {
            at_us: now_us,
            turns: sim.turns,
            planned: false,
        });
        if !std::mem::replace(&mut told.planned, true) {
            let after = self.delay(60);
            self.plan_on(node, after, OnNode::TakeNode { peer });
        }
    }

    pub(super) fn take_node(&mut self, node: usize, peer: usize) {
        if !self.net.has_room(node, peer) {
            // Something has to arrive first.
            let after = 200 + self.random.below(200);
            if self.net.end(node, peer).up.is_some() {
                self.plan_on(node, after, OnNode::TakeNode { peer });
            }
            return;
        }
        let Some(told) = self.nodes[node].to_peers.remove(&peer) else {
            return;
        };
        let mut bytes = Vec::new();
        let Some(engine) = &mut self.nodes[node].engine else {
            return;
        };
        let taken = engine.take_node_output(number(peer), &mut bytes);
        if engine.wants_turn() {
            self.want_turn(node);
        }
        if !taken {
            return;
        }
        let said = self.issues_of(node, peer, told, &bytes);
        self.want_node_output(node, peer);
        let after = self.delay(self.settings.hop_us) + self.net.slow_us(node, peer);
        let due = self.now_us + after;
        let line = describe(&bytes);
        if let Some(due) = self.net.send(node, peer, due, bytes, said) {
            self.note(format_args!("{node} to {peer}:{line}"));
            let (from, to) = (node, peer);
            self.plan(due - self.now_us, Happening::Arrive { from, to });
        }
    }

    /// Who says what a body carries to clients: by connection.
    fn issues_of(
        &mut self,
        node: usize,
        peer: usize,
        told: Told,
        body: &[u8],
    ) -> Vec<(u64, Issue)> {
        let sim = &mut self.nodes[node];
        let life = sim.engine_life;
        let mut issues = Vec::new();
        for (conn, _) in said_in(body) {
            let pieces = sim.pieces.entry((peer, conn)).or_default();
            let issue = Issue {
                node,
                life,
                not_before_us: pieces.leave(told.at_us, told.turns),
            };
            issues.push((conn, issue));
        }
        issues
    }

    /// Notes what a body that arrived says to clients, and what it says was taken.
    fn note_issues(&mut self, from: usize, to: usize, body: &Body) {
        let sim = &mut self.nodes[to];
        for ((conn, said), (of, issue)) in said_in(&body.bytes).into_iter().zip(&body.issues) {
            debug_assert_eq!(conn, *of);
            let Some(socket) = sim.sockets.get_mut(&ConnKey(conn)) else {
                continue;
            };
            for said in said {
                socket.issues.note(said, *issue);
            }
        }
        let turns = sim.turns;
        for conn in taken_in(&body.bytes) {
            if let Some(pieces) = sim.pieces.get_mut(&(from, conn)) {
                pieces.taken(turns);
            }
        }
    }

    pub(super) fn arrive_body(&mut self, from: usize, to: usize) {
        if !self.nodes[to].up {
            return;
        }
        let paused_us = self.nodes[to].pause_us(self.now_us);
        if paused_us > 0 {
            return self.plan(paused_us, Happening::Arrive { from, to });
        }
        while let Some(body) = self.net.arrive(from, to, self.now_us) {
            if let Some(epoch) = self.net.end(to, from).coming {
                if epoch == body.epoch {
                    self.link_up(to, from, epoch);
                }
            }
            if self.net.end(to, from).up != Some(body.epoch) {
                continue;
            }
            self.counts.bodies += 1;
            self.note_issues(from, to, &body);
            let node = number(from);
            let bytes = &body.bytes;
            self.note(format_args!("{to} from {from}:{}", describe(bytes)));
            self.event(to, Event::NodeBody { node, body: bytes });
        }
    }
}
