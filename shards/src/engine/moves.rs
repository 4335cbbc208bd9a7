//! Nodes are added and removed, and replicas go from one node to another: what an operator
//! orders, and what group 0's leader orders by itself (shard 0).
//!
//! 1. Group 0 first: what is to be; each group's leader brings it about, and says when it
//!    is ([`super::membership`]). Whoever leads then goes on from there.
//! 2. One replica of a group at a time, [`MOST_MOVES`] groups at a time.
//! 3. Nothing is moved where that could cost a group its majority: most members are linked,
//!    so is the node that gets the replica, and so are so many holders of the group that
//!    they are a majority without the one that goes.
//! 4. A move never brings replicas of a group closer together, by zones, than another
//!    member could hold them; only a forced order does.
//! 5. By itself: replicas of a node that is to be removed go to others; and where one
//!    member holds two groups more than another, one goes over, slowly, when all is calm.

use std::collections::BTreeMap;

use wire::{
    error::ErrorCode,
    message::ORDER_FORCE,
    node::{Roster, MAX_MEMBERS, MAX_ROSTER_TEXT_BYTES},
};

use super::{
    core::Engine,
    gates::{majority, Origin},
    operator::{Decision, Order},
    publish::{unavailable, Refusal},
};
use crate::{
    group::GroupId,
    io::BatchBuffer,
    state::meta::{numbers, too_few, MemberCommand, MetaCommand},
};

/// Groups on their way at once.
pub(super) const MOST_MOVES: usize = 4;
/// Between two moves for the sake of balance, a part of `spread_after_ms`.
const PACE_PART: u64 = 5;

fn conflict<T>(message: String) -> Result<T, Refusal> {
    Err((ErrorCode::Conflict, message))
}

fn invalid<T>(message: String) -> Result<T, Refusal> {
    Err((ErrorCode::Invalid, message))
}

/// Pairs of replicas of the same group in one zone.
fn crowding(roster: &Roster, holders: &[u32]) -> usize {
    let zone = |node: &u32| roster.members.get(node).map_or("", |it| it.zone.as_str());
    let pairs = holders.iter().enumerate().flat_map(|(at, one)| {
        let others = holders.iter().skip(at + 1);
        others.map(move |other| (one, other))
    });
    let same = |(one, other): &(&u32, &u32)| !zone(one).is_empty() && zone(one) == zone(other);
    pairs.filter(same).count()
}

/// The holders with one in the place of another.
fn with(holders: &[u32], from: u32, to: u32) -> Vec<u32> {
    let new = |node: &u32| if *node == from { to } else { *node };
    holders.iter().map(new).collect()
}

/// How many data groups each member holds.
fn held(roster: &Roster, groups: u32) -> BTreeMap<u32, usize> {
    let mut held: BTreeMap<u32, usize> = roster.members.keys().map(|it| (*it, 0)).collect();
    for group in 1..=groups {
        for node in roster.holders(group) {
            *held.entry(node).or_default() += 1;
        }
    }
    held
}

impl<B: BatchBuffer> Engine<B> {
    /// The first command about members: what there was before.
    pub(super) fn found_cluster(&mut self) -> Result<(), Refusal> {
        let state = &self.meta.as_ref().ok_or_else(unavailable)?.state;
        if state.roster().is_some() {
            return Ok(());
        }
        let members = self.config.addresses.clone();
        let found = MetaCommand::Members(MemberCommand::Found { members });
        self.try_propose_meta(&found, Origin::Nobody)
    }

    pub(super) fn decide_add(&self, order: &Order<'_>) -> Result<Decision, Refusal> {
        let (node, address, zone) = (order.node, order.address, order.zone);
        let members = self.members();
        let is_address = |text: &str| text.parse::<std::net::SocketAddr>().is_ok();
        if !(1..1 << 24).contains(&node) || !is_address(address) {
            return invalid(format!(
                "{node}={address} is no node; name a number from 1 to {} and where the others call it, like 4=10.0.0.4:7501",
                (1 << 24) - 1
            ));
        }
        if zone.len() > MAX_ROSTER_TEXT_BYTES || zone.contains(|c: char| c.is_control()) {
            return invalid("a zone is a word of at most 255 bytes".to_owned());
        }
        let state = &self.meta.as_ref().ok_or_else(unavailable)?.state;
        let at = |node: &u32| match state.roster() {
            Some(roster) => roster.members.get(node).map(|it| it.address.clone()),
            None => {
                let mut all = self.config.addresses.iter();
                all.find(|(it, _)| it == node).map(|(_, at)| at.clone())
            }
        };
        let mut others = members.iter().filter(|other| **other != node);
        if let Some(other) = others.find(|other| at(other).as_deref() == Some(address)) {
            return conflict(format!("node {other} has the address {address}"));
        }
        if !members.contains(&node) && members.len() >= MAX_MEMBERS {
            return conflict(format!(
                "the cluster has {} members, the most there can be; remove one first",
                members.len()
            ));
        }
        let known = state.roster().and_then(|it| it.members.get(&node));
        if known.is_some_and(|it| it.address == address && it.zone == zone && !it.leaves) {
            return Ok(Decision::Stands(format!(
                "node {node} is a member at {address} already"
            )));
        }
        let former = state.roster().is_some_and(|it| it.former.contains(&node));
        let (address, zone) = (address.to_owned(), zone.to_owned());
        let command = match former {
            true => MemberCommand::Readmit {
                node,
                address,
                zone,
            },
            false => MemberCommand::Add {
                node,
                address,
                zone,
            },
        };
        Ok(Decision::Propose(MetaCommand::Members(command)))
    }

    pub(super) fn decide_move(&self, order: &Order<'_>) -> Result<Decision, Refusal> {
        let (group, from, to) = (order.group, order.node, order.to);
        let groups = self.config.place.data_groups();
        if !(1..=groups).contains(&group) {
            return invalid(format!(
                "there is no group {group} that could be moved: the cluster has {groups}, numbered from 1, and group 0 is on every member"
            ));
        }
        self.check_node(from)?;
        self.check_node(to)?;
        let holders = self.holders(group);
        if holders.contains(&to) && !holders.contains(&from) {
            return Ok(Decision::Stands(match self.shift_of(group) {
                Some(_) => format!("group {group} is on its way from node {from} to node {to}"),
                None => format!("group {group} is on node {to} already"),
            }));
        }
        if !holders.contains(&from) || holders.contains(&to) || from == to {
            return conflict(format!(
                "group {group} has its replicas on nodes {}, each on one of its own; name one of them with --from and another node with --to",
                numbers(&holders)
            ));
        }
        let back = self.shift_of(group);
        let back = back.is_some_and(|shift| (shift.from, shift.to) == (to, from));
        if !back {
            self.may_move(group, from, to, order.flags & ORDER_FORCE != 0)?;
        }
        let command = MemberCommand::Move { group, from, to };
        Ok(Decision::Propose(MetaCommand::Members(command)))
    }

    /// Whether the replica may go there now.
    ///
    /// # Errors
    /// Why not.
    fn may_move(&self, group: u32, from: u32, to: u32, force: bool) -> Result<(), Refusal> {
        let state = &self.meta.as_ref().ok_or_else(unavailable)?.state;
        if let Some(shift) = self.shift_of(group) {
            return conflict(format!(
                "group {group} is on its way from node {} to node {}; wait until it is there, or call it back with `tidegate cluster move {group} --from {} --to {}`",
                shift.from, shift.to, shift.to, shift.from
            ));
        }
        let shifts = self.roster().map_or(0, |roster| roster.shifts.len());
        if shifts >= MOST_MOVES {
            let message = format!("{shifts} groups are on their way, the most at once; ask again");
            return Err((ErrorCode::Unavailable, message));
        }
        if state.group(group).is_some_and(|it| it.collecting.is_some()) {
            return conflict(format!("group {group} is being recovered; wait for that"));
        }
        let there = |node: &u32| *node == self.config.node || self.links.is_up(*node);
        if !there(&to) {
            return conflict(format!(
                "node {to} is not linked to node {}, which leads group 0: start it first",
                self.config.node
            ));
        }
        if let Some(roster) = self.roster() {
            if roster.members.get(&to).is_some_and(|it| it.leaves) && !force {
                return conflict(format!("node {to} is to be removed"));
            }
        }
        let holders = self.holders(group);
        let rest = holders.iter().filter(|node| **node != from);
        let (here, needed) = (
            rest.filter(|node| there(node)).count(),
            majority(holders.len()),
        );
        if here < needed {
            return conflict(format!(
                "without node {from} only {here} of the {} nodes that hold group {group} are linked, and it needs {needed} of them while its replica goes: bring one back first",
                holders.len()
            ));
        }
        match self.roster().filter(|_| !force) {
            Some(roster) => self.keeps_zones(roster, &holders, from, to),
            None => Ok(()),
        }
    }

    fn keeps_zones(
        &self,
        roster: &Roster,
        holders: &[u32],
        from: u32,
        to: u32,
    ) -> Result<(), Refusal> {
        let now = crowding(roster, holders);
        let then = crowding(roster, &with(holders, from, to));
        let free = |node: &&u32| !holders.contains(node);
        let others = roster.members.keys().filter(free);
        let best = others.map(|other| crowding(roster, &with(holders, from, *other)));
        if then > now && best.min().is_some_and(|best| best < then) {
            return conflict(format!(
                "node {to} is in a zone that holds a replica of the group already, and another node is not; name that one, or force it"
            ));
        }
        Ok(())
    }

    pub(super) fn decide_remove(&self, order: &Order<'_>) -> Result<Decision, Refusal> {
        let node = order.node;
        if let Some(roster) = self.roster() {
            if roster.former.contains(&node) {
                return Ok(Decision::Stands(format!("node {node} was removed before")));
            }
            if roster.members.get(&node).is_some_and(|it| it.leaves) {
                return Ok(Decision::Stands(format!("node {node} is being removed")));
            }
        }
        self.check_node(node)?;
        let roster = self.roster();
        let leaving = roster.map_or(0, |it| it.members.values().filter(|it| it.leaves).count());
        let staying = self.members().len() - leaving;
        let copies = self.replicas_of(GroupId::META.0 + 1);
        if staying <= copies {
            return conflict(format!(
                "node {node} cannot be removed: {}",
                too_few(staying, copies)
            ));
        }
        let command = MemberCommand::Leave { node };
        Ok(Decision::Propose(MetaCommand::Members(command)))
    }

    /// What an operator is told once the order is in force.
    pub(super) fn say_members(command: &MemberCommand) -> String {
        match command {
            MemberCommand::Add { node, address, .. }
            | MemberCommand::Readmit { node, address, .. } => format!(
                "node {node} is a member at {address}; if it is new, start it on an empty directory with `tidegate serve --join` and a configuration whose nodes list it and one other node at least"
            ),
            MemberCommand::Move { group, from, to } => {
                format!("group {group} goes from node {from} to node {to}")
            }
            MemberCommand::Leave { node } => format!(
                "node {node} is being removed: its replicas go to other nodes, and then it is no member any more"
            ),
            _ => "noted".to_owned(),
        }
    }

    /// Group 0 knows it (shard 0).
    pub(super) fn members_changed(&mut self, command: &MetaCommand) {
        self.tell_roster();
        match command {
            MetaCommand::Members(MemberCommand::Move { group, .. })
            | MetaCommand::Members(MemberCommand::Moved { group, .. }) => self.tell_history(*group),
            MetaCommand::Members(MemberCommand::Add { .. } | MemberCommand::Readmit { .. }) => {
                self.opens_told = false;
            }
            MetaCommand::Members(MemberCommand::Remove { .. }) => {
                for group in 0..=self.config.place.data_groups() {
                    self.tell_history(group);
                }
            }
            _ => {}
        }
    }

    /// What group 0's leader orders by itself: a step at a time.
    pub(super) fn order_moves(&mut self) {
        let Some(roster) = self.roster().cloned() else {
            return;
        };
        let meta = self.groups.get(&GroupId::META.0);
        // What was ordered last has to be known here first.
        let calm = meta.is_some_and(|slot| slot.group.unapplied() == 0 && slot.origins.is_empty());
        let current = self.meta.as_ref().and_then(|it| it.state.roster());
        let current = current.is_some_and(|it| it.revision == roster.revision);
        if !calm || !current || self.draining {
            return;
        }
        let command = self.next_removal(&roster);
        let command = command.or_else(|| self.next_of_balance(&roster));
        if let Some(command) = command {
            // Ordered again if it is not taken.
            let _ = self.try_propose_meta(&MetaCommand::Members(command), Origin::Nobody);
        }
    }

    /// For nodes that are to be removed.
    fn next_removal(&mut self, roster: &Roster) -> Option<MemberCommand> {
        let groups = self.config.place.data_groups();
        let leaving = roster.members.iter().filter(|(_, it)| it.leaves);
        let leaving: Vec<u32> = leaving.map(|(node, _)| *node).collect();
        for node in leaving {
            let mut held = (1..=groups).filter(|group| roster.is_holder(*group, node));
            if let Some(group) = held.clone().find(|it| !roster.shifts.contains_key(it)) {
                if let Some(to) = self.best_for(roster, group, node) {
                    return Some(MemberCommand::Move {
                        group,
                        from: node,
                        to,
                    });
                }
            }
            let parts = (1..=groups).any(|group| roster.has_part(group, node));
            if held.next().is_some() || parts {
                continue;
            }
            if node == self.config.node {
                // Who leads group 0 then removes it.
                let now = self.server_ms;
                if let Some(slot) = self.groups.get_mut(&GroupId::META.0) {
                    slot.resign(now, &self.links);
                }
                continue;
            }
            return Some(MemberCommand::Remove { node });
        }
        None
    }

    /// The member that a replica goes to best: by zones, then by how much it holds.
    fn best_for(&self, roster: &Roster, group: u32, from: u32) -> Option<u32> {
        let holders = roster.holders(group);
        let held = held(roster, self.config.place.data_groups());
        let stays = roster.members.iter().filter(|(_, it)| !it.leaves);
        let free = stays
            .map(|(node, _)| *node)
            .filter(|it| !holders.contains(it));
        let may = free.filter(|to| self.may_move(group, from, *to, true).is_ok());
        may.min_by_key(|to| {
            let crowd = crowding(roster, &with(&holders, from, *to));
            (crowd, held.get(to).copied().unwrap_or(0), *to)
        })
    }

    /// One holds two groups more than another, and all is calm.
    fn next_of_balance(&mut self, roster: &Roster) -> Option<MemberCommand> {
        let (now, after) = (self.server_ms, self.config.spread_after_ms);
        if after == 0 || now < self.balance_from_ms || !roster.shifts.is_empty() {
            return None;
        }
        let own = self.config.node;
        let there = |node: &u32| *node == own || self.links.may_lead(*node);
        let stays = |node: &u32| roster.members.get(node).is_some_and(|it| !it.leaves);
        if !roster.members.keys().all(there) || self.leads_nothing {
            self.balance_from_ms = now + after;
            return None;
        }
        let groups = self.config.place.data_groups();
        let held = held(roster, groups);
        let held: Vec<(usize, u32)> = held
            .into_iter()
            .filter(|(node, _)| stays(node))
            .map(|(node, count)| (count, node))
            .collect();
        let (least, to) = *held.iter().min()?;
        let mut giving = held.clone();
        giving.retain(|(count, _)| *count >= least + 2);
        giving.sort_unstable_by_key(|(count, node)| (std::cmp::Reverse(*count), *node));
        let goes = giving.into_iter().find_map(|(_, from)| {
            let mut all = 1..=groups;
            let group = all.find(|group| self.may_even_out(roster, *group, from, to))?;
            Some(MemberCommand::Move { group, from, to })
        })?;
        self.balance_from_ms = now + after / PACE_PART;
        Some(goes)
    }

    /// The replica may go for the sake of balance: its group's are no closer by it.
    fn may_even_out(&self, roster: &Roster, group: u32, from: u32, to: u32) -> bool {
        let holders = roster.holders(group);
        let crowd = crowding(roster, &with(&holders, from, to));
        let apart = crowd <= crowding(roster, &holders);
        let goes = holders.contains(&from) && !holders.contains(&to);
        goes && apart && self.may_move(group, from, to, true).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use wire::node::Member;

    use super::*;

    #[test]
    fn replicas_in_one_zone_are_counted_and_nodes_without_one_are_apart() {
        let member = |zone: &str| Member {
            address: String::new(),
            zone: zone.to_owned(),
            leaves: false,
        };
        let roster = Roster {
            founders: vec![1, 2, 3],
            members: [(1, "a"), (2, "b"), (3, "a"), (4, ""), (5, "")]
                .map(|(node, zone)| (node, member(zone)))
                .into(),
            ..Roster::default()
        };
        assert_eq!(crowding(&roster, &[1, 2, 3]), 1);
        assert_eq!(crowding(&roster, &with(&[1, 2, 3], 3, 4)), 0);
        assert_eq!(crowding(&roster, &[2, 4, 5]), 0);
        let held = held(&roster, 4);
        assert_eq!((held[&1], held[&4]), (4, 0));
    }
}
