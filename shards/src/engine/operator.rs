//! What an operator orders: a node is forgotten, a group goes on with what is left, a
//! node hands over what it leads.
//!
//! 1. Forget and recover are decided by group 0's leader and in force once group 0 has
//!    them, durable on a majority; one such order at a time.
//! 2. An order that stands already is answered as done, and changes nothing.
//! 3. A forgotten node takes part in nothing: its links are refused.
//!
//! A crash leaves behind what group 0 has. That a node was told to lead nothing is
//! forgotten with its process.

use wire::{
    codec,
    error::ErrorCode,
    frame::Kind,
    message::{ClusterOrder, ClusterOrdered, Extension, ORDER_ACCEPT_LOSS, ORDER_FORCE},
    vocabulary::ClusterAction,
};

use super::{
    core::Engine,
    deadlines::Asked,
    gates::{majority, Origin},
    publish::{unavailable, Refusal},
    relay::Routed,
    types::{ConnKey, ShardMessage},
};
use crate::{
    group::{GroupId, PeerId},
    io::BatchBuffer,
    state::meta::{Collected, MetaCommand, MetaOutcome},
};

/// An order, read.
#[derive(Clone, Copy)]
pub(super) struct Order<'a> {
    pub action: ClusterAction,
    pub flags: u32,
    pub node: u32,
    pub group: u32,
    generation: u32,
    /// The node that a group goes to.
    pub to: u32,
    /// Of a node that is added; empty: not said.
    pub address: &'a str,
    pub zone: &'a str,
}

/// What group 0's leader makes of an order.
pub(super) enum Decision {
    Propose(MetaCommand),
    /// It is in force already.
    Stands(String),
}

fn read(body: &[u8]) -> Result<Order<'_>, Refusal> {
    let invalid = |message: String| (ErrorCode::Invalid, message);
    let order = codec::decode::<ClusterOrder>(body).map_err(|error| invalid(error.to_string()))?;
    let action = ClusterAction::from_raw(order.action)
        .ok_or_else(|| invalid(format!("order {} is not known", order.action)))?;
    let flags = order.flags.to_native();
    if flags & !(ORDER_FORCE | ORDER_ACCEPT_LOSS) != 0 {
        return Err(invalid(format!(
            "flags {flags:#x} of an order are not known"
        )));
    }
    let extension = |kind: u16| {
        let mut all = order.extensions.iter();
        let found = all.find(|it| it.kind.to_native() == kind);
        found.map_or(&[][..], |it| it.bytes.as_slice())
    };
    let text = |kind: u16| {
        let text = std::str::from_utf8(extension(kind));
        text.map_err(|_| invalid("an order's text is not UTF-8".to_owned()))
    };
    let to = extension(Extension::TO).try_into();
    Ok(Order {
        to: to.map_or(0, u32::from_le_bytes),
        address: text(Extension::ADDRESS)?,
        zone: text(Extension::ZONE)?,
        action,
        flags,
        node: order.node.to_native(),
        group: order.group.to_native(),
        generation: order.generation.to_native(),
    })
}

impl<B: BatchBuffer> Engine<B> {
    pub(super) fn on_cluster_order(&mut self, conn: ConnKey, correlation: u64, body: &[u8]) {
        let done = read(body).and_then(|order| match order.action {
            ClusterAction::Drain | ClusterAction::Undrain => {
                self.order_drain(conn, correlation, order, body)
            }
            _ => self.order_meta(conn, correlation, order, body),
        });
        if let Err((code, message)) = done {
            self.refuse(conn, correlation, code, message);
        }
    }

    fn answer_order(&mut self, conn: ConnKey, correlation: u64, changed: bool, message: String) {
        let body = ClusterOrdered {
            changed: u8::from(changed),
            message,
            extensions: Vec::new(),
        };
        self.reply(conn, correlation, &body);
    }

    fn order_drain(
        &mut self,
        conn: ConnKey,
        correlation: u64,
        order: Order<'_>,
        body: &[u8],
    ) -> Result<(), Refusal> {
        let node = order.node;
        self.check_node(node)?;
        let kind = Kind::ClusterOrder;
        if self.route_node(conn, (node, 0), kind, correlation, body)? != Routed::Here {
            return Ok(());
        }
        let drains = order.action == ClusterAction::Drain;
        if drains && !self.links.any_up() {
            let message = match self.is_cluster() {
                true => format!(
                    "node {node} is linked to no other node: nobody could take over what it leads; link another one first"
                ),
                false => format!("node {node} is alone: nobody could take over what it leads"),
            };
            return Err((ErrorCode::Conflict, message));
        }
        let changed = self.leads_nothing != drains;
        for shard in 0..self.config.place.shards {
            let message = ShardMessage::LeadNothing(drains);
            self.outbound.push((shard, message));
        }
        let message = match drains {
            true => format!(
                "node {node} hands over what it leads, and leads nothing until it is undrained or started again"
            ),
            false => format!("node {node} may lead again"),
        };
        self.answer_order(conn, correlation, changed, message);
        Ok(())
    }

    /// An operator's word, by shard 0.
    pub(super) fn lead_nothing(&mut self, on: bool) {
        self.leads_nothing = on;
        for slot in self.groups.values_mut() {
            slot.group.set_reluctant(on);
            slot.resigning = slot.resigning.filter(|_| on);
            slot.heir = None;
        }
    }

    fn order_meta(
        &mut self,
        conn: ConnKey,
        correlation: u64,
        order: Order<'_>,
        body: &[u8],
    ) -> Result<(), Refusal> {
        if self.config.shard != 0 {
            self.forward(0, conn, Kind::ClusterOrder, correlation, body);
            return Ok(());
        }
        self.check_order(order)?;
        let kind = Kind::ClusterOrder;
        if self.route_group(conn, GroupId::META, kind, correlation, body)? != Routed::Here {
            return Ok(());
        }
        let meta = self.groups.get(&GroupId::META.0).ok_or_else(unavailable)?;
        let is_order = |(_, origin): &(u64, Origin)| matches!(origin, Origin::Order(_));
        if meta.origins.iter().any(is_order) {
            let message = "another order to the cluster is on its way; ask again".to_owned();
            return Err((ErrorCode::Unavailable, message));
        }
        let decision = match order.action {
            ClusterAction::Forget => self.decide_forget(order)?,
            ClusterAction::Replace => self.decide_replace(order.node, order.generation)?,
            ClusterAction::Add => self.decide_add(&order)?,
            ClusterAction::Move => self.decide_move(&order)?,
            ClusterAction::Remove => self.decide_remove(&order)?,
            _ => self.decide_recover(order)?,
        };
        match decision {
            Decision::Stands(message) => self.answer_order(conn, correlation, false, message),
            Decision::Propose(command) => {
                let asked = self.asked(conn, correlation);
                if matches!(command, MetaCommand::Members(_)) {
                    self.found_cluster()?;
                }
                self.try_propose_meta(&command, Origin::Order(asked))?;
            }
        }
        Ok(())
    }

    /// What every node can tell.
    fn check_order(&self, order: Order<'_>) -> Result<(), Refusal> {
        let of_node = matches!(order.action, ClusterAction::Forget | ClusterAction::Replace);
        if of_node {
            self.check_node(order.node)?;
        }
        let of_members = matches!(
            order.action,
            ClusterAction::Add | ClusterAction::Move | ClusterAction::Remove
        );
        if of_members && self.is_cluster() {
            return Ok(());
        }
        if !self.is_cluster() {
            let own = self.config.node;
            let message = format!(
                "node {own} is alone: nobody waits for another node, and what it lost it recovers by itself when it starts"
            );
            return Err((ErrorCode::Invalid, message));
        }
        if of_node {
            return Ok(());
        }
        if order.group == GroupId::META.0 {
            let message = "group 0 gives this order, so it cannot be recovered by it; in this version there is no way but to bring a majority of its nodes back".to_owned();
            return Err((ErrorCode::Unsupported, message));
        }
        if self.config.place.shard_of(GroupId(order.group)).is_none() {
            let groups = self.config.place.shard_of_group.len().saturating_sub(1);
            let message = format!(
                "there is no group {}: the cluster has {groups}, numbered from 1",
                order.group
            );
            return Err((ErrorCode::Invalid, message));
        }
        if order.flags & ORDER_ACCEPT_LOSS == 0 {
            let message = "recovering a group by order may lose what was confirmed; the order has to accept that".to_owned();
            return Err((ErrorCode::Invalid, message));
        }
        Ok(())
    }

    fn decide_forget(&self, order: Order<'_>) -> Result<Decision, Refusal> {
        let (node, own) = (order.node, self.config.node);
        let meta = self.meta.as_ref().ok_or_else(unavailable)?;
        let conflict = |message: String| Err((ErrorCode::Conflict, message));
        let forgotten = meta.state.forgotten();
        if forgotten.contains(&node) {
            return Ok(Decision::Stands(format!(
                "node {node} was forgotten before"
            )));
        }
        if node == own {
            return conflict(format!(
                "node {node} leads group 0 and answers this, so it is not gone; if it is to go for good, stop it first and ask another node"
            ));
        }
        if self.links.is_up(node) && order.flags & ORDER_FORCE == 0 {
            return conflict(format!(
                "node {node} is linked to node {own} now, so it is not gone: stop it for good first, or force it"
            ));
        }
        let nodes = self.members().len();
        let needed = majority(nodes);
        let left = nodes.saturating_sub(1 + forgotten.len());
        if left < needed {
            return conflict(format!(
                "without node {node} only {left} of the {nodes} nodes would be left, and group 0 needs {needed} of them: bring a node back"
            ));
        }
        Ok(Decision::Propose(MetaCommand::Forget { node }))
    }

    fn decide_recover(&self, order: Order<'_>) -> Result<Decision, Refusal> {
        let (group, generation) = (order.group, order.generation);
        let state = &self.meta.as_ref().ok_or_else(unavailable)?.state;
        let current = state.generation(group);
        if generation != current {
            let message = format!(
                "group {group} is in generation {current}, and the order is to end generation {generation}; look at its status again"
            );
            return Err((ErrorCode::StaleGeneration, message));
        }
        let collecting = state.group(group).and_then(|it| it.collecting.as_ref());
        if collecting.is_some_and(|it| it.accepts_loss) {
            return Ok(Decision::Stands(self.say_collected(group)));
        }
        let (nodes, without) = (
            self.holders(group).len(),
            self.without_leader(group, generation),
        );
        if collecting.is_none() && without <= nodes - majority(nodes) {
            let message = format!(
                "group {group} has a leader, as far as group 0 knows: of {nodes} nodes {without} have said that they have known none for longer than recovery_grace. While a majority may have one, the group is not to be ended"
            );
            return Err((ErrorCode::Conflict, message));
        }
        Ok(Decision::Propose(MetaCommand::Collect {
            group,
            generation,
            accepts_loss: true,
        }))
    }

    /// Group 0 has what was ordered, or did not take it.
    pub(super) fn on_ordered(
        &mut self,
        command: &MetaCommand,
        outcome: &MetaOutcome,
        asked: Asked,
    ) {
        let (conn, correlation) = (asked.conn, asked.correlation);
        let message = match (command, outcome) {
            (_, MetaOutcome::Refused { reason }) => {
                let message = format!("group 0 did not take the order: {reason}");
                return self.refuse(conn, correlation, ErrorCode::Conflict, message);
            }
            (MetaCommand::Forget { node }, _) => format!(
                "node {node} is forgotten: no recovery waits for what it holds, and the others refuse its links; do not start it again"
            ),
            (MetaCommand::Replace { node, .. }, _) => Self::say_replaced(*node),
            (MetaCommand::Members(command), _) => Self::say_members(command),
            (MetaCommand::Collect { group, .. }, _) => self.say_collected(*group),
            _ => return,
        };
        self.answer_order(conn, correlation, true, message);
    }

    /// How far the ordered recovery of a group has come.
    fn say_collected(&self, group: u32) -> String {
        let state = self.meta.as_ref().map(|meta| &meta.state);
        let collected = state.and_then(|state| state.collected(group, &self.config.nodes));
        let ends = format!("group {group} ends its generation, loss accepted");
        match collected {
            Some(Collected::Waits { of, .. }) if !of.is_empty() => {
                let mut nodes: Vec<u32> = of.iter().map(|peer| PeerId(*peer).node()).collect();
                nodes.dedup();
                let nodes: Vec<String> = nodes.iter().map(u32::to_string).collect();
                format!(
                    "{ends}; it waits for the answers of nodes {}, who voted in it: a node that is gone for good has to be forgotten",
                    nodes.join(", ")
                )
            }
            Some(Collected::Waits { .. }) => format!("{ends}, and waits for an answer that counts"),
            Some(Collected::Enough { winner, .. }) => format!(
                "{ends}, and goes on from what node {} holds, once recovery_grace is over or all have answered",
                PeerId(winner).node()
            ),
            // Not where loss is accepted.
            Some(Collected::Halted { .. }) => format!("{ends}, and waits for an operator"),
            None => format!("{ends}, and has gone on as a new one"),
        }
    }

    /// Shard 0 tells of a node that was given up.
    pub(super) fn tell_forgotten(&mut self, node: u32) {
        for shard in 0..self.config.place.shards {
            self.outbound
                .push((shard, ShardMessage::Forgotten { node }));
        }
    }

    pub(super) fn on_forgotten(&mut self, node: u32) {
        if self.forgotten.insert(node) && self.links.is_up(node) {
            self.refuse_forgotten(node);
        }
    }

    pub(super) fn refuse_forgotten(&mut self, node: u32) {
        let reason = format!("node {node} was forgotten by an operator, and takes part no more");
        self.refused_nodes.push((node, reason));
    }
}
