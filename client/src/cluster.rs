//! What operators ask of nodes and order: status, forget, replace, recover, drain, and who
//! belongs to the cluster: add, move, remove.

use std::{
    fmt,
    hash::{BuildHasher, Hasher, RandomState},
};

use wire::{
    message::{
        ArchivedClusterStatusReply, ArchivedGroupStatus, ArchivedRecoveryStatus, ClusterOrder,
        ClusterOrdered, ClusterStatus, ClusterStatusReply, Extension, ORDER_ACCEPT_LOSS,
        ORDER_FORCE,
    },
    node::Roster,
    vocabulary::{Boundary, ClusterAction, ReplicaRole},
};

use crate::{
    client::Client,
    error::{Error, Reason},
    levels::Levels,
    link::Effect,
};

/// One replica of a group: a node, under the number of its joining.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    pub node: u32,
    /// 1 for the replicas that the cluster began with.
    pub join: u64,
}

const JOIN_BITS: u32 = 40;

/// Another number each time, from the seeds of the standard library's hash maps.
fn random() -> u32 {
    let drawn = RandomState::new().build_hasher().finish();
    (drawn >> 32 ^ drawn) as u32
}

impl Peer {
    fn of(raw: u64) -> Self {
        Peer {
            node: (raw >> JOIN_BITS) as u32,
            join: raw & ((1 << JOIN_BITS) - 1),
        }
    }
}

/// `NODE.JOIN`
impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.node, self.join)
    }
}

/// How far another replica is, as its group's leader knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub peer: Peer,
    /// Last index at each boundary.
    pub written: u64,
    pub durable: u64,
}

/// A node's replica of a group, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    pub group: u32,
    pub generation: u32,
    pub role: ReplicaRole,
    /// Of a leader: it serves.
    pub serving: bool,
    pub answers_at: Boundary,
    /// So many more nodes may fail before the group stands still, as this node sees it.
    pub tolerates: u8,
    /// The node that leads.
    pub leader: Option<u32>,
    pub term: u64,
    pub peer: Peer,
    /// Indexes of entries: the last of the log, known to be committed, applied, durable.
    pub last: u64,
    pub committed: u64,
    pub applied: u64,
    pub durable: u64,
    pub voters: Vec<Peer>,
    pub learners: Vec<Peer>,
    /// Of a leader: how far the others are.
    pub others: Vec<Progress>,
}

/// A recovery that was ordered and is not through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    pub group: u32,
    /// The one that ends.
    pub generation: u32,
    pub accepts_loss: bool,
    /// So many more answers are needed that count.
    pub missing: u8,
    /// Nodes that answered.
    pub answered: Vec<u32>,
    pub waits_for: Vec<Peer>,
    /// There are enough answers, and a queue of the group asks that an operator decides.
    pub halted: bool,
}

/// A node of the cluster, as another sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub node: u32,
    /// Shards of the other that are not linked to it; empty: all are.
    pub unlinked_shards: Vec<u16>,
}

/// A node and its shards, each at its own moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeStatus {
    pub node: u32,
    pub shards: u16,
    /// Shards whose log is latched.
    pub latched_shards: Vec<u16>,
    /// It hands over what it leads: it was told to, or stops.
    pub draining: bool,
    /// Every node of the cluster, ascending, this one included.
    pub nodes: Vec<Seen>,
    /// Every group, ascending.
    pub replicas: Vec<Replica>,
    pub recoveries: Vec<Recovery>,
    /// Nodes that were given up.
    pub forgotten: Vec<u32>,
    /// Nodes whose data directory was given up and that have no new one yet.
    pub vacant: Vec<u32>,
    /// Who belongs to the cluster and which nodes hold which groups; `None`: its founders,
    /// all of them all groups.
    pub roster: Option<Roster>,
    /// `None`: of a version that tells none.
    pub levels: Option<Levels>,
}

/// What an order came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ordered {
    /// False: it was in force before.
    pub changed: bool,
    /// What it means, in a sentence of the server's.
    pub message: String,
}

impl Client {
    /// What every shard of a node sees of the cluster; `None`: the node that this
    /// client is connected to. Another is asked over its link.
    ///
    /// # Errors
    /// There is no such node, it is not linked, or as any request.
    pub async fn node_status(&self, node: Option<u32>) -> Result<NodeStatus, Error> {
        let mut status = NodeStatus::default();
        // As many as the node says it has, once it was asked.
        let mut shard = 0;
        while shard == 0 || shard < status.shards {
            let body = ClusterStatus {
                node: node.unwrap_or(0),
                shard,
                ..ClusterStatus::default()
            };
            let reply = self.home().request(&body, Effect::Read);
            let taken = reply.read::<ClusterStatusReply, _>(|reply| status.take(shard, reply));
            taken.await?.map_err(|cause| {
                Error::failed(Reason::BadAnswer {
                    server: self.server().to_owned(),
                    cause,
                })
            })?;
            shard += 1;
        }
        status.replicas.sort_by_key(|replica| replica.group);
        Ok(status)
    }

    /// A node is gone for good: recoveries do not wait for what it holds any more.
    /// `force`: also if it is linked now.
    ///
    /// # Errors
    /// There is no such node, it is linked, too few would be left, or as any request.
    pub async fn forget(&self, node: u32, force: bool) -> Result<Ordered, Error> {
        self.order(ClusterOrder {
            action: ClusterAction::Forget as u8,
            flags: if force { ORDER_FORCE } else { 0 },
            node,
            ..ClusterOrder::default()
        })
        .await
    }

    /// A node's data directory is lost for good: a new one, made to join, may take its
    /// place, and nothing that was in it counts any more.
    ///
    /// # Errors
    /// There is no such node, it is linked, too few replicas would be left, or as any
    /// request.
    pub async fn replace(&self, node: u32) -> Result<Ordered, Error> {
        self.order(ClusterOrder {
            action: ClusterAction::Replace as u8,
            node,
            generation: random(),
            ..ClusterOrder::default()
        })
        .await
    }

    /// A group without a leader goes on as a new generation, from fewer answers than
    /// what was confirmed would need: it may be lost. `generation` is the one that ends.
    ///
    /// # Errors
    /// The group has a leader, is in another generation, or as any request.
    pub async fn recover(&self, group: u32, generation: u32) -> Result<Ordered, Error> {
        self.order(ClusterOrder {
            action: ClusterAction::Recover as u8,
            flags: ORDER_ACCEPT_LOSS,
            group,
            generation,
            ..ClusterOrder::default()
        })
        .await
    }

    /// A node hands over what it leads, and leads nothing until it may again or is
    /// restarted. [`Client::node_status`] tells when it leads nothing any more.
    ///
    /// # Errors
    /// There is no such node, nobody could take over, or as any request.
    pub async fn drain(&self, node: u32) -> Result<Ordered, Error> {
        self.order(ClusterOrder {
            action: ClusterAction::Drain as u8,
            node,
            ..ClusterOrder::default()
        })
        .await
    }

    /// A node may lead again.
    ///
    /// # Errors
    /// There is no such node, or as any request.
    pub async fn undrain(&self, node: u32) -> Result<Ordered, Error> {
        self.order(ClusterOrder {
            action: ClusterAction::Undrain as u8,
            node,
            ..ClusterOrder::default()
        })
        .await
    }

    /// A node belongs to the cluster from now on; the others call it at `address`
    /// (`IP:PORT`). Of one that does, address and zone change. `zone` is empty where nobody
    /// says where it stands.
    ///
    /// # Errors
    /// There are as many as there can be, another has the address, or as any request.
    pub async fn add_node(&self, node: u32, address: &str, zone: &str) -> Result<Ordered, Error> {
        let text = |kind, text: &str| Extension {
            kind,
            bytes: text.as_bytes().to_vec(),
        };
        self.order(ClusterOrder {
            action: ClusterAction::Add as u8,
            node,
            extensions: vec![
                text(Extension::ADDRESS, address),
                text(Extension::ZONE, zone),
            ],
            ..ClusterOrder::default()
        })
        .await
    }

    /// A group's replica goes from one node to another. [`Client::node_status`] tells when
    /// it is there. `force`: also into a zone that holds the group already.
    ///
    /// # Errors
    /// It could cost the group its majority, it is on its way already, too many are, or as
    /// any request.
    pub async fn move_group(
        &self,
        group: u32,
        from: u32,
        to: u32,
        force: bool,
    ) -> Result<Ordered, Error> {
        self.order(ClusterOrder {
            action: ClusterAction::Move as u8,
            flags: if force { ORDER_FORCE } else { 0 },
            node: from,
            group,
            extensions: vec![Extension {
                kind: Extension::TO,
                bytes: to.to_le_bytes().to_vec(),
            }],
            ..ClusterOrder::default()
        })
        .await
    }

    /// A node's replicas go to others, and then it belongs to the cluster no more.
    ///
    /// # Errors
    /// Too few nodes would be left, or as any request.
    pub async fn remove_node(&self, node: u32) -> Result<Ordered, Error> {
        self.order(ClusterOrder {
            action: ClusterAction::Remove as u8,
            node,
            ..ClusterOrder::default()
        })
        .await
    }

    async fn order(&self, body: ClusterOrder) -> Result<Ordered, Error> {
        self.home()
            .request(&body, Effect::Idempotent)
            .read::<ClusterOrdered, _>(|reply| Ordered {
                changed: reply.changed != 0,
                message: reply.message.as_str().to_owned(),
            })
            .await
    }
}

impl NodeStatus {
    fn take(&mut self, shard: u16, reply: &ArchivedClusterStatusReply) -> Result<(), String> {
        let said = (reply.node.to_native(), reply.shard.to_native());
        if said.1 != shard || shard > 0 && said.0 != self.node {
            return Err(format!(
                "shard {shard} was asked, and shard {} of node {} answered",
                said.1, said.0
            ));
        }
        self.node = said.0;
        self.shards = reply.shards.to_native();
        if reply.latched != 0 {
            self.latched_shards.push(shard);
        }
        self.draining |= reply.draining != 0;
        for seen in reply.nodes.iter() {
            let node = seen.node.to_native();
            let at = match self.nodes.iter().position(|seen| seen.node == node) {
                Some(at) => at,
                None => {
                    self.nodes.push(Seen {
                        node,
                        unlinked_shards: Vec::new(),
                    });
                    self.nodes.len() - 1
                }
            };
            if let Some(known) = self.nodes.get_mut(at).filter(|_| seen.linked == 0) {
                known.unlinked_shards.push(shard);
            }
        }
        for group in reply.groups.iter() {
            self.replicas.push(replica(group)?);
        }
        self.recoveries
            .extend(reply.recoveries.iter().map(recovery));
        let forgotten = reply.forgotten.iter();
        self.forgotten
            .extend(forgotten.map(|node| node.to_native()));
        let extension = |kind: u16| {
            let mut all = reply.extensions.iter();
            let found = all.find(|one| one.kind.to_native() == kind);
            found.map(|one| one.bytes.as_slice())
        };
        if let Some(bytes) = extension(Extension::LEVEL) {
            self.levels = Some(Levels::decode(bytes).ok_or("its feature levels are cut short")?);
        }
        if let Some(bytes) = extension(Extension::ROSTER) {
            let roster = Roster::decode(bytes).map_err(|error| error.to_string())?;
            self.roster = Some(roster);
        }
        let vacant = extension(Extension::VACANT).unwrap_or_default();
        let nodes = vacant.as_chunks::<4>().0.iter();
        self.vacant
            .extend(nodes.map(|node| u32::from_le_bytes(*node)));
        Ok(())
    }
}

fn replica(raw: &ArchivedGroupStatus) -> Result<Replica, String> {
    let peers = |list: &[_]| -> Vec<Peer> { list.iter().map(peer).collect() };
    let others = raw.others.iter().map(|other| Progress {
        peer: peer(&other.peer),
        written: other.written.to_native(),
        durable: other.durable.to_native(),
    });
    Ok(Replica {
        group: raw.group.to_native(),
        generation: raw.generation.to_native(),
        role: ReplicaRole::from_raw(raw.role)
            .ok_or_else(|| format!("unknown role {} of a replica", raw.role))?,
        serving: raw.serving != 0,
        answers_at: Boundary::from_raw(raw.answers_at)
            .ok_or_else(|| format!("unknown boundary {}", raw.answers_at))?,
        tolerates: raw.tolerates,
        leader: Some(raw.leader.to_native()).filter(|node| *node != 0),
        term: raw.term.to_native(),
        peer: peer(&raw.peer),
        last: raw.last.to_native(),
        committed: raw.committed.to_native(),
        applied: raw.applied.to_native(),
        durable: raw.durable.to_native(),
        voters: peers(&raw.voters),
        learners: peers(&raw.learners),
        others: others.collect(),
    })
}

fn recovery(raw: &ArchivedRecoveryStatus) -> Recovery {
    Recovery {
        group: raw.group.to_native(),
        generation: raw.generation.to_native(),
        accepts_loss: raw.accepts_loss == 1,
        missing: raw.missing,
        answered: raw.answered.iter().map(|node| node.to_native()).collect(),
        waits_for: raw.waits_for.iter().map(peer).collect(),
        halted: raw.accepts_loss == 2,
    }
}

fn peer(raw: &rkyv::rend::unaligned::u64_ule) -> Peer {
    Peer::of(raw.to_native())
}

#[cfg(test)]
mod tests {
    use wire::{
        codec::{decode, encode},
        frame::HEADER_BYTES,
        message::{GroupStatus, NodeStatus as RawNode},
    };

    use super::*;

    fn said(node: u32, shard: u16, role: u8, linked: u8) -> Vec<u8> {
        let group = GroupStatus {
            group: 9 - u32::from(shard),
            role,
            answers_at: 1,
            peer: 2 << JOIN_BITS | 5,
            ..GroupStatus::default()
        };
        let reply = ClusterStatusReply {
            node,
            shard,
            shards: 2,
            latched: u8::from(shard == 1),
            nodes: vec![RawNode { node: 3, linked }],
            groups: vec![group],
            extensions: vec![Extension {
                kind: Extension::VACANT,
                bytes: vec![7, 0, 0, 0, 9, 1, 0, 0],
            }],
            ..ClusterStatusReply::default()
        };
        let mut frame = Vec::new();
        encode(&mut frame, 1, &reply).unwrap();
        frame.split_off(HEADER_BYTES)
    }

    fn taken(status: &mut NodeStatus, shard: u16, body: &[u8]) -> Result<(), String> {
        status.take(shard, decode::<ClusterStatusReply>(body).unwrap())
    }

    #[test]
    fn shards_of_a_node_are_put_together() {
        let mut status = NodeStatus::default();
        taken(&mut status, 0, &said(2, 0, 1, 1)).unwrap();
        taken(&mut status, 1, &said(2, 1, 2, 0)).unwrap();
        assert_eq!((status.node, status.shards), (2, 2));
        assert_eq!(status.latched_shards, [1]);
        assert_eq!(status.vacant[..2], [7, 265]);
        let seen = Seen {
            node: 3,
            unlinked_shards: vec![1],
        };
        assert_eq!(status.nodes, [seen]);
        let roles: Vec<ReplicaRole> = status.replicas.iter().map(|it| it.role).collect();
        assert_eq!(roles, [ReplicaRole::Leader, ReplicaRole::Follower]);
        assert_eq!(status.replicas[0].peer.to_string(), "2.5");
    }

    #[test]
    fn an_answer_of_another_node_or_shard_or_an_unknown_word_is_refused() {
        let mut status = NodeStatus::default();
        taken(&mut status, 0, &said(2, 0, 1, 1)).unwrap();
        taken(&mut status, 1, &said(3, 1, 1, 1)).unwrap_err();
        taken(&mut status, 1, &said(2, 0, 1, 1)).unwrap_err();
        taken(&mut status, 1, &said(2, 1, 9, 1)).unwrap_err();
    }
}
