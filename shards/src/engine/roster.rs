//! Who belongs to the cluster and which nodes hold which groups, as this shard knows it
//! from group 0.
//!
//! Shard 0 has it from this node's copy of group 0; every shard has it from other nodes
//! besides, which tell it when they are linked: a node that joins has to know whom to link
//! to before it has a copy. The highest revision counts.
//!
//! 1. A node that is no member any more is not linked; neither is one that was not added.
//! 2. A node that joined leads nothing and counts no copies before its shard 0 told
//!    whether there is a roster: what its configuration lists may not be the founders.

use std::sync::Arc;

use wire::node::{NodeMessage, Roster, Shift, MAX_MEMBERS};

use super::{
    core::Engine,
    types::{Effect, ShardMessage},
};
use crate::{group::GroupId, io::BatchBuffer, state::meta::FOUNDING_JOIN};

const META: u32 = GroupId::META.0;

/// What this shard knows.
#[derive(Default)]
pub(super) struct Known {
    roster: Option<Arc<Roster>>,
    /// Shard 0 told, if only that there is none.
    told: bool,
    /// The driver was told of this revision.
    effect_of: u64,
    /// Shard 0: the other shards were told of this one.
    shards_told_of: Option<u64>,
}

impl<B: BatchBuffer> Engine<B> {
    pub(super) fn roster(&self) -> Option<&Arc<Roster>> {
        self.known.roster.as_ref()
    }

    /// Members, ascending; before anything changed: the founders.
    pub(super) fn members(&self) -> Vec<u32> {
        match self.roster() {
            Some(roster) => roster.members.keys().copied().collect(),
            None => self.config.nodes.clone(),
        }
    }

    /// Nodes that are to hold the group, ascending.
    pub(super) fn holders(&self, group: u32) -> Vec<u32> {
        let roster = self.roster();
        roster.map_or_else(|| self.config.nodes.clone(), |it| it.holders(group))
    }

    /// This node has a part in the group.
    pub(super) fn has_part(&self, group: u32) -> bool {
        let roster = self.roster();
        roster.is_none_or(|it| it.has_part(group, self.config.node))
    }

    pub(super) fn shift_of(&self, group: u32) -> Option<Shift> {
        self.roster()?.shifts.get(&group).copied()
    }

    /// Nobody said yet how many replicas there are.
    pub(super) fn knows_no_founders(&self) -> bool {
        self.config.joins && !self.known.told
    }

    /// Replicas that the group should have: E, of which a majority makes a confirm safe.
    /// Of group 0 those that vote: what Raft needs is all that it needs.
    pub(super) fn replicas_of(&self, group: u32) -> usize {
        let voters = || {
            let slot = self.groups.get(&group);
            slot.map_or(1, |slot| slot.group.members().voters.len().max(1))
        };
        match self.roster() {
            Some(_) if group == META => voters(),
            None if group == META && self.config.joins => voters(),
            Some(roster) => roster.copies(),
            None if self.knows_no_founders() => MAX_MEMBERS,
            None => self.config.nodes.len().max(1),
        }
    }

    /// Peer ids of the replicas that the cluster began with.
    pub(super) fn founding_peers(&self) -> Option<Vec<u64>> {
        let founders = &self.roster()?.founders;
        let peer = |node: &u32| crate::state::meta::peer_id(*node, FOUNDING_JOIN);
        Some(founders.iter().map(peer).collect())
    }

    /// Shard 0 tells what its copy of group 0 says, where that is new.
    pub(super) fn tell_roster(&mut self) {
        let Some(meta) = self.meta.as_ref() else {
            return;
        };
        let roster = meta.state.roster();
        let revision = roster.map_or(0, |roster| roster.revision);
        let fresh = self.known.shards_told_of.is_some_and(|it| it >= revision);
        let here = self.groups.contains_key(&META);
        // A copy that is being brought up knows nothing yet.
        let knows = roster.is_some() || here && (!self.config.joins || self.directory_told);
        if fresh || !knows {
            return;
        }
        self.known.shards_told_of = Some(revision);
        let roster = roster.cloned().map(Arc::new);
        for shard in 0..self.config.place.shards {
            let message = ShardMessage::Roster(roster.clone());
            self.outbound.push((shard, message));
        }
    }

    pub(super) fn on_own_roster(&mut self, roster: Option<Arc<Roster>>) {
        self.known.told = true;
        if let Some(roster) = roster {
            self.on_roster(roster);
        }
    }

    /// Another node says what it knows.
    pub(super) fn on_node_roster(&mut self, node: u32, bytes: &[u8]) {
        match Roster::decode(bytes) {
            Ok(roster) => self.on_roster(Arc::new(roster)),
            Err(error) => self.refused_nodes.push((node, error.to_string())),
        }
    }

    fn on_roster(&mut self, roster: Arc<Roster>) {
        let known = self.roster().map_or(0, |it| it.revision);
        if roster.revision <= known {
            return;
        }
        let own = self.config.node;
        for node in roster.members.keys().filter(|node| **node != own) {
            self.links.ensure(*node);
        }
        self.known.roster = Some(roster.clone());
        for node in self.links.nodes() {
            if !roster.members.contains_key(&node) {
                self.on_node_down(node);
                self.links.remove(node);
            }
        }
        self.pause_spreading();
        for node in self.links.nodes() {
            self.send_roster(node);
        }
        self.sort_out_replicas();
    }

    pub(super) fn send_roster(&mut self, node: u32) {
        let Some(roster) = self.known.roster.clone() else {
            return;
        };
        if let Some(out) = self.links.output(node) {
            let mut bytes = Vec::new();
            roster.encode(&mut bytes);
            NodeMessage::Roster { bytes: &bytes }.encode(out);
        }
    }

    /// The node takes part in nothing, as this shard knows.
    pub(super) fn is_no_member(&self, node: u32) -> bool {
        let roster = self.roster();
        roster.is_some_and(|it| !it.members.contains_key(&node))
    }

    pub(super) fn push_roster_effect(&mut self, effects: &mut Vec<Effect<B>>) {
        let Some(roster) = self.known.roster.as_ref() else {
            return;
        };
        if self.known.effect_of < roster.revision {
            self.known.effect_of = roster.revision;
            effects.push(Effect::RosterKnown(roster.clone()));
        }
    }
}
