//! Links: one TCP connection per other node and shard, between this shard and
//! the same one there. The node with the higher number calls.
//!
//! Owns: the node listener's connections, the handshake, keys, and the links'
//! buffers. A shard's links live on its executor; what shards share about other
//! nodes is [`cluster::Cluster`].
//!
//! Invariants:
//! 1. The engine hears of a link only once both sides have agreed on everything
//!    in hello and proved to have the secret.
//! 2. Between `NodeUp` and `NodeDown` every body arrives whole, once and in
//!    order: a frame that does not verify or is not the next ends the link.
//! 3. An engine has at most one link per node; another one of that node ends
//!    the one before first.
//! 4. What a stranger makes us hold is bounded: 64 connections a shard of some
//!    1 KiB, 5 s each. Every length is checked before memory follows it, and
//!    memory follows bytes, not lengths.
//! 5. Each kind of refusal is said once per peer and counted.
//!
//! Never: encrypts (use a network that is yours); looks into a body.
//!
//! A crash leaves behind: nothing. The other side notices within 2 s.

mod call;
mod cluster;
mod handshake;
mod link;
mod receive;
mod refusals;
mod session;
mod strangers;

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use wire::node::{NodeFrameKind, Refusal, RefusalCode, Roster};

pub(super) use call::{answered, called, Called};
pub(super) use cluster::Cluster;
pub use cluster::{ClusterOptions, Secret};
use link::Link;
use refusals::{By, Who};
use strangers::Strangers;
pub(super) use strangers::MOST_STRANGERS;

use super::{helper::Helper, shard::Shard};
use crate::{
    engine::Notice,
    state::meta::{Open, Seat},
};

/// A node that was not linked so long after the start is mentioned.
const QUIET_START: Duration = Duration::from_secs(5);
/// Drained links get so long to send what they have.
const FLUSH_ROUNDS: u32 = 200;
const FLUSH_PAUSE: Duration = Duration::from_millis(5);

/// Another member.
struct Peer {
    node: u32,
    address: Cell<SocketAddr>,
    /// It is no member any more.
    removed: Cell<bool>,
    /// Somebody calls it.
    called: Cell<bool>,
    link: RefCell<Option<Rc<Link>>>,
    /// Why there is none, as far as it is known.
    trouble: RefCell<String>,
    /// Its state was told to the operator.
    said: Cell<bool>,
}

impl Peer {
    fn new(node: u32, address: SocketAddr) -> Self {
        Peer {
            node,
            address: Cell::new(address),
            removed: Cell::new(false),
            called: Cell::new(false),
            link: RefCell::default(),
            trouble: RefCell::new("it has not called yet".to_owned()),
            said: Cell::new(false),
        }
    }
}

/// The links of one shard.
pub(super) struct Links {
    cluster: Arc<Cluster>,
    shard: u16,
    /// Of this shard's log.
    open_counter: Cell<u64>,
    /// Ascending.
    peers: RefCell<BTreeMap<u32, Rc<Peer>>>,
    strangers: Strangers,
    /// The shard is drained: no more links.
    ended: Cell<bool>,
    random: Cell<u64>,
}

impl Links {
    pub(super) fn new(cluster: Arc<Cluster>, shard: u16, open_counter: u64, random: u64) -> Self {
        let others = cluster.others().into_iter();
        let peers = others.map(|(node, address)| (node, Rc::new(Peer::new(node, address))));
        Links {
            peers: RefCell::new(peers.collect()),
            shard,
            open_counter: Cell::new(open_counter),
            strangers: Strangers::default(),
            ended: Cell::new(false),
            random: Cell::new(random),
            cluster,
        }
    }

    /// Where this node listens for others; one shard does it for all.
    pub(super) fn listen(&self) -> Option<SocketAddr> {
        (self.shard == 0).then_some(self.cluster.options.listen)
    }

    /// Calls the nodes with lower numbers, for as long as the process lives.
    pub(super) fn start(&self, shard: &Rc<Shard>) {
        for peer in self.all() {
            self.keep_called(shard, &peer);
        }
        if self.shard == 0 {
            shard.spawn(call::keep_asking(shard.clone()));
        }
        shard.spawn(mention_missing(shard.clone()));
    }

    fn keep_called(&self, shard: &Rc<Shard>, peer: &Rc<Peer>) {
        if peer.node < self.cluster.node && !peer.called.replace(true) {
            shard.spawn(call::keep_calling(shard.clone(), peer.clone()));
        }
    }

    fn peer(&self, node: u32) -> Option<Rc<Peer>> {
        self.peers.borrow().get(&node).cloned()
    }

    fn all(&self) -> Vec<Rc<Peer>> {
        self.peers.borrow().values().cloned().collect()
    }

    /// Group 0 knows who belongs to the cluster: new members may link, and links of those
    /// that are none any more end. Returns the nodes whose link ended.
    pub(super) fn roster_known(&self, shard: &Rc<Shard>, roster: &Arc<Roster>) -> Vec<u32> {
        self.cluster.take_roster(roster);
        let others = self.cluster.others();
        for (node, address) in &others {
            let mut peers = self.peers.borrow_mut();
            let peer = peers.entry(*node);
            let peer = peer.or_insert_with(|| Rc::new(Peer::new(*node, *address)));
            peer.address.set(*address);
            let peer = peer.clone();
            drop(peers);
            self.keep_called(shard, &peer);
        }
        let is_other = |node: u32| others.iter().any(|(other, _)| *other == node);
        let mut ended = Vec::new();
        for peer in self.all() {
            if !is_other(peer.node) {
                peer.removed.set(true);
                if self.end(peer.node, cluster::removed(peer.node)) {
                    ended.push(peer.node);
                }
                self.peers.borrow_mut().remove(&peer.node);
            }
        }
        if !roster.members.contains_key(&self.cluster.node) {
            self.cluster.say_removed();
        }
        ended
    }

    /// The cluster is at that feature level: links of nodes that know less end. Returns
    /// those nodes.
    pub(super) fn level_known(&self, level: u16) -> Vec<u32> {
        let mut ended = Vec::new();
        for (node, refusal) in self.cluster.level_known(self.shard, level) {
            let whom = Who::Node(node);
            self.cluster
                .note(self.shard, whom, By::Us, "linked", &refusal);
            if self.end(node, refusal) {
                ended.push(node);
            }
        }
        ended
    }

    /// Another node says that this one was removed.
    pub(super) fn told_removed(&self) {
        self.cluster.say_removed();
    }

    /// The engine has output for the node.
    pub(super) fn output(&self, node: u32) {
        if let Some(link) = self.peer(node).and_then(|peer| peer.link.borrow().clone()) {
            link.output.set();
        }
    }

    /// The engine refuses what the node said. True if it was linked: the engine
    /// is to be told that it is not any more.
    pub(super) fn refuse(&self, node: u32, reason: String) -> bool {
        let refusal = Refusal::new(RefusalCode::Protocol, reason);
        let at = self.peer(node).map(|peer| peer.address.get().to_string());
        let (who, at) = (Who::Node(node), at.unwrap_or_default());
        self.cluster.note(self.shard, who, By::Us, &at, &refusal);
        self.end(node, refusal)
    }

    /// Ends a link at once. True if there was one.
    fn end(&self, node: u32, refusal: Refusal) -> bool {
        let Some(peer) = self.peer(node) else {
            return false;
        };
        let Some(link) = peer.link.take() else {
            return false;
        };
        self.unlinked(&peer, &refusal.reason);
        link.end(refusal);
        true
    }

    /// Takes the link for the node's. True if there was another one, which ends.
    fn put(&self, link: &Rc<Link>) -> bool {
        let Some(peer) = self.peer(link.node) else {
            return false;
        };
        let before = peer.link.replace(Some(link.clone()));
        if let Some(before) = &before {
            let reason = "the node made another link";
            before.end(Refusal::new(RefusalCode::Reopened, reason));
        }
        peer.said.set(true);
        let (node, refused) = (link.node, self.cluster.settle(link.node));
        self.cluster
            .tell(self.shard, Notice::Linked { node, refused });
        before.is_some()
    }

    /// The link ended by itself. True if it was the node's.
    fn gone(&self, link: &Rc<Link>, reason: &str) -> bool {
        let Some(peer) = self.peer(link.node) else {
            return false;
        };
        let is_its = matches!(&*peer.link.borrow(), Some(held) if Rc::ptr_eq(held, link));
        if is_its {
            peer.link.take();
            self.unlinked(&peer, reason);
        }
        is_its
    }

    fn unlinked(&self, peer: &Peer, reason: &str) {
        if self.ended.get() {
            return;
        }
        peer.said.set(true);
        let (node, reason) = (peer.node, reason.to_owned());
        self.cluster
            .tell(self.shard, Notice::Unlinked { node, reason });
    }

    /// Group 0 knows of that open of a node's log: a link that contradicts it ends. One
    /// of this node's own is noted in its directory.
    pub(super) fn log_known(&self, node: u32, open: Open, helper: &Helper) {
        if node == self.cluster.node {
            if self.cluster.hear_own(self.shard, open) {
                let cluster = self.cluster.clone();
                // With no helper free it is noted by a later start: the token stays.
                helper.run(move || cluster.keep_heard());
            }
            return;
        }
        if let Some(refusal) = self.cluster.log_known((node, self.shard), open) {
            let whom = Who::Node(node);
            self.cluster
                .note(self.shard, whom, By::Us, "linked", &refusal);
            self.end(node, refusal);
        }
    }

    /// Group 0 knows who may be the node: a link of another directory ends.
    pub(super) fn seat_known(&self, node: u32, seat: &Seat) {
        if let Some(refusal) = self.cluster.seat_known(node, self.shard, seat) {
            let whom = Who::Node(node);
            self.cluster
                .note(self.shard, whom, By::Us, "linked", &refusal);
            self.end(node, refusal);
        }
    }

    /// The engine was rebuilt from a log opened anew and knows of no link.
    pub(super) fn reopen(&self, open_counter: u64) {
        self.open_counter.set(open_counter);
        for peer in self.all() {
            let reason = format!("node {} opened its log anew", self.cluster.node);
            self.end(peer.node, Refusal::new(RefusalCode::Reopened, reason));
        }
    }

    /// Sends what the engine has for others, then ends every link.
    pub(super) async fn finish(&self) {
        self.ended.set(true);
        if self.shard == 0 {
            self.cluster.sum_up(self.shard);
        }
        for peer in self.all() {
            if let Some(link) = &*peer.link.borrow() {
                let reason = format!("node {} stops", self.cluster.node);
                link.close(Refusal::new(RefusalCode::Leaving, reason));
            }
        }
        for _ in 0..FLUSH_ROUNDS {
            if self.all().iter().all(|peer| peer.link.borrow().is_none()) {
                return;
            }
            glommio::timer::sleep(FLUSH_PAUSE).await;
        }
    }

    /// Somebody's connection, of whom nothing is known.
    pub(super) fn refused_stranger(&self, at: &str, refusal: &Refusal) {
        self.cluster
            .note(self.shard, Who::Stranger, By::Us, at, refusal);
    }

    /// splitmix64.
    fn random(&self) -> u64 {
        let state = self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.set(state);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Who was never linked since the start would never be talked about otherwise.
async fn mention_missing(shard: Rc<Shard>) {
    glommio::timer::sleep(QUIET_START).await;
    let Some(links) = shard.links() else { return };
    for peer in links.all() {
        if !peer.said.get() {
            let reason = peer.trouble.borrow().clone();
            links.unlinked(&peer, &reason);
        }
    }
}

/// What a node is told that calls a port for clients, and the whole frame.
pub(super) fn client_port() -> (Refusal, Vec<u8>) {
    let reason = "this port is for clients; a node calls the address of node_listen: check the addresses in nodes";
    let refusal = Refusal::new(RefusalCode::ClientPort, reason);
    let frame = session::plain_frame(NodeFrameKind::Refuse, &refusal.encode());
    (refusal, frame)
}
