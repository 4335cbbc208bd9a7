//! What an operator asks: who is linked, what the replicas of this shard are, how far
//! they are, and how many failures the groups still tolerate.
//!
//! Owns nothing: an answer is this shard's view at this moment, no more. Only a leader
//! knows how far its others are.

use wire::{
    codec,
    error::ErrorCode,
    frame::Kind,
    message::{
        ClusterStatus, ClusterStatusReply, Extension, GroupStatus, NodeStatus, RecoveryStatus,
        ReplicaProgress,
    },
    vocabulary::ReplicaRole,
};

use super::{
    core::Engine,
    gates::{majority, GroupSlot},
    publish::{unavailable, Refusal},
    relay::{Routed, NO_SHARD},
    types::ConnKey,
};
use crate::{
    group::{PeerId, Recovered},
    io::BatchBuffer,
    state::meta::{is_nameless, vacant_peer, Collected},
};

impl<B: BatchBuffer> Engine<B> {
    pub(super) fn on_cluster_status(&mut self, conn: ConnKey, correlation: u64, body: &[u8]) {
        let (node, shard) = match codec::decode::<ClusterStatus>(body) {
            Ok(request) => (request.node.to_native(), request.shard.to_native()),
            Err(error) => {
                return self.refuse(conn, correlation, ErrorCode::Invalid, error.to_string())
            }
        };
        let kind = Kind::ClusterStatus;
        match self.route_node(conn, (node, shard), kind, correlation, body) {
            Ok(Routed::Away { .. }) => {}
            Ok(Routed::Here) => {
                let status = self.cluster_status();
                self.reply(conn, correlation, &status);
            }
            Err((code, message)) => self.refuse(conn, correlation, code, message),
        }
    }

    /// Passes a frame to a shard of a node; 0 is the node of the client's connection.
    ///
    /// # Errors
    /// There is no such node or shard, or it is not linked.
    pub(super) fn route_node(
        &mut self,
        conn: ConnKey,
        (node, shard): (u32, u16),
        kind: Kind,
        correlation: u64,
        body: &[u8],
    ) -> Result<Routed, Refusal> {
        let own = self.config.node;
        let here = node == 0 || node == own;
        if !here {
            self.check_node(node)?;
        }
        let shards = self.config.place.shards;
        if shard >= shards {
            let message = format!(
                "node {own} has {shards} shards, numbered from 0, and no shard {shard}; ask for one of them"
            );
            return Err((ErrorCode::Invalid, message));
        }
        if shard != self.config.shard {
            if conn.shard() == NO_SHARD {
                // Nodes have their shards alike: cannot happen.
                return Err(unavailable());
            }
            self.forward(shard, conn, kind, correlation, body);
            return Ok(Routed::Away { shard, node: 0 });
        }
        if here {
            return Ok(Routed::Here);
        }
        if conn.shard() == NO_SHARD || !self.relay(node, conn, kind, correlation, body) {
            let message = format!(
                "node {node} is not linked to node {own}, so it cannot be asked through it; ask node {node} itself, or a node that is linked to it"
            );
            return Err((ErrorCode::Unavailable, message));
        }
        Ok(Routed::Away { shard, node })
    }

    /// The cluster has a node of this number.
    ///
    /// # Errors
    /// It has none.
    pub(super) fn check_node(&self, node: u32) -> Result<(), Refusal> {
        let nodes = self.members();
        if nodes.contains(&node) {
            return Ok(());
        }
        let numbers: Vec<String> = nodes.iter().map(u32::to_string).collect();
        let message = match &numbers[..] {
            [one] => format!(
                "there is no node {node}: node {one} is alone, and belongs to no cluster; ask a node of the cluster that is meant"
            ),
            several => format!(
                "there is no node {node}: this cluster's nodes are {}; name one of them",
                several.join(", ")
            ),
        };
        Err((ErrorCode::Invalid, message))
    }

    fn cluster_status(&self) -> ClusterStatusReply {
        let slots = self.groups.values().map(|slot| self.group_status(slot));
        let waiting = self.awaiting_recovery.iter();
        let waiting = waiting.map(|(group, recovered)| self.nameless_status(*group, recovered));
        let mut groups: Vec<GroupStatus> = slots.chain(waiting).collect();
        groups.sort_unstable_by_key(|group| group.group);
        let forgotten = self.meta.as_ref().map(|meta| meta.state.forgotten());
        ClusterStatusReply {
            node: self.config.node,
            shard: self.config.shard,
            shards: self.config.place.shards,
            latched: u8::from(self.latched),
            draining: u8::from(self.leads_nothing || self.draining),
            nodes: self.nodes_status(),
            groups,
            recoveries: self.recoveries_status(),
            forgotten: forgotten.into_iter().flatten().copied().collect(),
            extensions: self
                .vacant_nodes()
                .into_iter()
                .chain(self.roster_told())
                .chain(self.level_status())
                .collect(),
        }
    }

    /// Shard 0: who belongs to the cluster, and which nodes hold what.
    fn roster_told(&self) -> Option<Extension> {
        let roster = self.roster().filter(|_| self.config.shard == 0)?;
        let mut bytes = Vec::new();
        roster.encode(&mut bytes);
        let kind = Extension::ROSTER;
        Some(Extension { kind, bytes })
    }

    /// Nodes that wait for a new directory, if there are any.
    fn vacant_nodes(&self) -> Option<Extension> {
        let seats = self.meta.as_ref()?.state.seats().iter();
        let vacant =
            seats.filter(|(node, seat)| seat.holder.is_none() && !self.is_no_member(**node));
        let bytes: Vec<u8> = vacant.flat_map(|(node, _)| node.to_le_bytes()).collect();
        let kind = Extension::VACANT;
        (!bytes.is_empty()).then_some(Extension { kind, bytes })
    }

    fn nodes_status(&self) -> Vec<NodeStatus> {
        let linked = |node: u32| u8::from(self.is_there(node));
        let nodes = self.members().into_iter();
        nodes
            .map(|node| NodeStatus {
                node,
                linked: linked(node),
            })
            .collect()
    }

    /// It is this node, or linked.
    fn is_there(&self, node: u32) -> bool {
        node == self.config.node || self.links.is_up(node)
    }

    fn group_status(&self, slot: &GroupSlot) -> GroupStatus {
        let group = &slot.group;
        let members = group.members();
        let peer = group.peer();
        let role = if group.is_stopped() {
            ReplicaRole::Stopped
        } else if group.is_leader() {
            ReplicaRole::Leader
        } else if members.voters.contains(&peer.0) {
            ReplicaRole::Follower
        } else {
            ReplicaRole::Learner
        };
        let leads = role == ReplicaRole::Leader;
        let progress = |(peer, written, durable)| ReplicaProgress {
            peer,
            written,
            durable,
        };
        let others = group.progress().map(progress);
        GroupStatus {
            group: group.id().0,
            generation: group.generation(),
            role: role as u8,
            serving: u8::from(leads && slot.serving),
            answers_at: group.answers_at() as u8,
            tolerates: self.tolerates(slot),
            leader: self.leader_of(slot),
            term: group.term(),
            peer: peer.0,
            last: group.last_index(),
            committed: group.committed(),
            applied: group.last_applied().0,
            durable: group.durable_index(&self.frontiers),
            voters: members.voters.clone(),
            learners: members.learners.clone(),
            others: if leads { others.collect() } else { Vec::new() },
        }
    }

    /// The node that leads; 0 where none is known.
    pub(super) fn leader_of(&self, slot: &GroupSlot) -> u32 {
        if slot.group.is_leader() {
            return self.config.node;
        }
        slot.group.leader().map_or(0, PeerId::node)
    }

    /// So many voters may fail before the rest are no majority of all replicas that
    /// there should be: those that are there and remember, as this node sees it.
    fn tolerates(&self, slot: &GroupSlot) -> u8 {
        if self.leader_of(slot) == 0 {
            return 0;
        }
        let voters = &slot.group.members().voters;
        let counts = |peer: &&u64| {
            let there = self.is_there(PeerId(**peer).node());
            there && !slot.replaced.contains_key(*peer) && slot.group.is_close(**peer)
        };
        let there = voters.iter().filter(counts).count();
        let needed = majority(voters.len().max(self.replicas_of(slot.group.id().0)));
        u8::try_from(there.saturating_sub(needed)).unwrap_or(u8::MAX)
    }

    /// A replica that waits for its new name.
    fn nameless_status(&self, group: u32, recovered: &Recovered) -> GroupStatus {
        let (state, (last, _)) = (&recovered.state, recovered.last());
        GroupStatus {
            group,
            generation: state.generation,
            role: ReplicaRole::Nameless as u8,
            serving: 0,
            answers_at: state.answers_at as u8,
            tolerates: 0,
            leader: 0,
            term: state.term,
            peer: shown(state.peer.0),
            last,
            committed: recovered.tail.known_commit().min(last),
            applied: recovered.last_index,
            // What survived was synced when the log was opened.
            durable: last,
            voters: state.members.voters.clone(),
            learners: state.members.learners.clone(),
            others: Vec::new(),
        }
    }

    fn recoveries_status(&self) -> Vec<RecoveryStatus> {
        let Some(meta) = self.meta.as_ref() else {
            return Vec::new();
        };
        let ordered = meta.state.histories().filter_map(|(group, history)| {
            let collecting = history.collecting.as_ref()?;
            let collected = meta.state.collected(group, &self.config.nodes)?;
            let halted = matches!(collected, Collected::Halted { .. });
            let (waits_for, missing) = match collected {
                Collected::Waits { of, counting } => (of, counting),
                Collected::Enough { .. } | Collected::Halted { .. } => (Vec::new(), 0),
            };
            Some(RecoveryStatus {
                group,
                generation: history.generation,
                accepts_loss: if halted {
                    2
                } else {
                    u8::from(collecting.accepts_loss)
                },
                missing: u8::try_from(missing).unwrap_or(u8::MAX),
                answered: collecting.answers.keys().copied().collect(),
                waits_for,
            })
        });
        ordered.collect()
    }
}

/// A replica that never had a name is shown as nobody's.
fn shown(peer: u64) -> u64 {
    match is_nameless(peer) {
        true => vacant_peer(PeerId(peer).node()),
        false => peer,
    }
}
