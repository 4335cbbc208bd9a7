//! A node whose data directory is lost: given up by an operator's order, and brought
//! back on a new directory that was made to join.
//!
//! 1. The order is taken only while the node is not linked and where every group keeps
//!    a majority of all its replicas without it.
//! 2. A directory that was made to join votes, acknowledges and answers nothing before
//!    group 0 named its replica of the group; it begins there with nothing.
//! 3. Group 0's leader names directories that hold the node's seat, and nobody else.
//!
//! A crash leaves behind what group 0 has: the order, the seat, the names given so far.
//! Whoever is without a name asks for it again.

use wire::error::ErrorCode;

use super::{
    core::Engine,
    gates::majority,
    operator::Decision,
    publish::{unavailable, Refusal},
    types::ShardMessage,
};
use crate::{
    group::{GroupId, PeerId},
    io::BatchBuffer,
    state::meta::{is_nameless, MetaCommand, Seat},
};

impl<B: BatchBuffer> Engine<B> {
    pub(super) fn decide_replace(&self, node: u32, order: u32) -> Result<Decision, Refusal> {
        let own = self.config.node;
        let state = &self.meta.as_ref().ok_or_else(unavailable)?.state;
        let conflict = |message: String| Err((ErrorCode::Conflict, message));
        let seat = state.seats().get(&node);
        let stands = state.is_given_up_by(node, order);
        let forgotten = state.forgotten().contains(&node);
        let waits = seat.is_some_and(|seat| seat.holder.is_none()) && !forgotten;
        if stands || waits {
            return Ok(Decision::Stands(format!(
                "node {node}'s directory was given up before; {}",
                next_of(node)
            )));
        }
        if node == own {
            return conflict(format!(
                "node {node} leads group 0 and answers this, so its directory is not lost; if it is to be replaced, stop it first and ask another node"
            ));
        }
        if self.links.is_up(node) {
            return conflict(format!(
                "node {node} is linked to node {own} now, so its directory is not lost: if it is to be replaced all the same, stop it for good first"
            ));
        }
        let nodes = self.members();
        let needed = majority(self.replicas_of(GroupId::META.0));
        let here = 1 + self.links.up();
        if here < needed {
            return conflict(format!(
                "without node {node} only {here} of the {} nodes are linked to each other, and group 0 needs {needed} of them: bring a node back first",
                nodes.len()
            ));
        }
        // Who was forgotten is not waited for any more: it takes no quorum with it.
        if forgotten {
            return Ok(Decision::Propose(MetaCommand::Replace { node, order }));
        }
        for group in 0..self.config.place.shard_of_group.len() as u32 {
            if !state.has_part(group, node) {
                continue;
            }
            let copies = self.replicas_of(group);
            let needed = majority(copies);
            let trusted = state.trusted(group, &self.config.nodes);
            let left = trusted.iter().filter(|peer| PeerId(**peer).node() != node);
            let left = left.count();
            if left < needed {
                let left = match left {
                    1 => "1 replica".to_owned(),
                    _ => format!("{left} replicas"),
                };
                return conflict(format!(
                    "without node {node} only {left} of group {group} would vote and remember what they answered, and it needs {needed} of {copies}: wait until `tidegate cluster status` shows that the other nodes are brought up; if node {node} is gone for good and they cannot be without it, forget it first"
                ));
            }
        }
        Ok(Decision::Propose(MetaCommand::Replace { node, order }))
    }

    /// The name is the first of a directory whose node's number was removed before.
    pub(super) fn was_given_again(&self, directory: u64) -> bool {
        let meta = self.meta.as_ref().filter(|_| is_nameless(directory));
        let seat = meta.and_then(|meta| meta.state.seats().get(&PeerId(directory).node()));
        seat.is_some_and(|seat| seat.readmitted)
    }

    /// Group 0 knows that the node's directory was given up (shard 0).
    pub(super) fn vacated(&mut self) {
        for group in 0..self.config.place.shard_of_group.len() as u32 {
            self.tell_history(group);
        }
        self.opens_told = false;
    }

    /// Tells every shard whose seats there are (shard 0).
    pub(super) fn tell_seats(&mut self) {
        let Some(meta) = self.meta.as_ref() else {
            return;
        };
        for (node, seat) in meta.state.seats() {
            if meta
                .state
                .roster()
                .is_some_and(|it| !it.members.contains_key(node))
            {
                continue;
            }
            let forgotten = meta.state.forgotten().contains(node);
            for shard in 0..self.config.place.shards {
                let mut seat = Box::new(seat.clone());
                if meta.state.is_unsettled(*node) {
                    // Another directory may still take it.
                    seat.holder = None;
                }
                let node = *node;
                let message = ShardMessage::Seat {
                    node,
                    seat,
                    forgotten,
                };
                self.outbound.push((shard, message));
            }
        }
    }

    pub(super) fn on_seat(&mut self, node: u32, seat: Box<Seat>, forgotten: bool) {
        if !forgotten {
            self.forgotten.remove(&node);
        }
        self.known_seats.push((node, seat));
    }

    /// A directory that was made to join asks for a name. False when it cannot have one:
    /// its link ends with the reason.
    pub(super) fn may_be_named(&mut self, node: u32, command: &MetaCommand) -> bool {
        let MetaCommand::Rejoin { retired_peer, .. } = *command else {
            return true;
        };
        let Some(meta) = self.meta.as_ref().filter(|_| is_nameless(retired_peer)) else {
            return true;
        };
        match meta.state.may_sit(retired_peer) {
            Ok(()) => true,
            Err(unseated) => {
                self.refused_nodes
                    .push((node, format!("node {node}: {unseated}")));
                false
            }
        }
    }

    /// What an operator is told once the order is in force.
    pub(super) fn say_replaced(node: u32) -> String {
        format!(
            "node {node}'s directory is given up: no group counts what was in it, and it cannot come back; {}",
            next_of(node)
        )
    }
}

fn next_of(node: u32) -> String {
    format!(
        "start node {node} on an empty directory with `tidegate serve --join`, and it is brought up"
    )
}
