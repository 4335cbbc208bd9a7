//! Nodes that are added, get replicas of groups, and are removed, while all else goes on.
//!
//! An operator asks any node for one change after the other, whether or not the last is
//! through; what is refused is refused. A node beyond the founders starts once it was
//! added; one that was removed ends, and may be added again on a new disk.

use std::sync::Arc;

use shards::state::meta::Unseated;
use wire::{node::Roster, vocabulary::ClusterAction};

use super::{
    links::{index, number},
    node::{Node, Places},
    world::{Happening, OnNode, World},
    Checked,
};
use crate::SimDisk;

/// Who orders.
const OPERATOR: usize = 1;
/// Between two orders.
const ASK_US: u64 = 400_000;
/// How long everything may take to be where it should be, in simulated ms.
const PATIENCE_MS: u64 = 120_000;

impl World {
    /// Nodes whose replicas of a group there should be, by index.
    pub(super) fn holders_of(&self, group: u32) -> Vec<usize> {
        match &self.roster {
            Some(roster) => roster.holders(group).into_iter().map(index).collect(),
            None => (0..self.settings.nodes).collect(),
        }
    }

    /// Another node that belongs to the cluster, which one that joins asks first.
    pub(super) fn some_member_beside(&mut self, node: usize) -> usize {
        // Two that join and ask each other would wait for ever.
        let knows = |it: usize| {
            let sim = &self.nodes[it];
            sim.belongs && (!sim.seeded || sim.roster.is_some())
        };
        let others = (0..self.nodes.len()).filter(|it| *it != node && knows(*it));
        let others: Vec<usize> = others.collect();
        self.random.pick(&others)
    }

    /// A member that does not hold what these do.
    fn some_other_holder(&mut self, holders: &[usize]) -> Option<usize> {
        let roster = self.roster.as_ref()?;
        let members = roster.members.keys().map(|node| index(*node));
        let free: Vec<usize> = members.filter(|it| !holders.contains(it)).collect();
        (!free.is_empty()).then(|| self.random.pick(&free))
    }

    /// Nothing is on its way from one node to another.
    pub(super) fn is_settled(&self) -> bool {
        self.roster.as_ref().is_none_or(|roster| {
            let leaves = roster.members.values().any(|member| member.leaves);
            let known = |node: &Node| node.roster.as_ref().map(|it| it.revision);
            let mut nodes = self.nodes.iter().filter(|node| node.belongs);
            let all = nodes.all(|node| known(node) == Some(roster.revision));
            roster.shifts.is_empty() && !leaves && all
        })
    }

    pub(super) fn plan_reshaping(&mut self) {
        if self.settings.reshapes {
            let after = self.delay(ASK_US);
            self.plan(after, Happening::Reshape);
        }
    }

    /// The operator asks for something.
    pub(super) fn reshape(&mut self) {
        if !self.busy {
            return;
        }
        self.plan_reshaping();
        if self.clients[OPERATOR].link.is_none() {
            self.connect_somewhere(OPERATOR);
        }
        if self.clients[OPERATOR].link.is_none() {
            return;
        }
        let all = self.nodes.len() as u64;
        let node = self.random.below(all) as usize;
        match self.random.below(10) {
            0..=2 => self.order_add(OPERATOR, node),
            3 if self.random.chance(1, 2) => self.order(OPERATOR, ClusterAction::Remove, node),
            _ => {
                let group = 1 + self.random.below(self.settings.data_groups.into()) as u32;
                let holders = self.holders_of(group);
                let from = self.random.pick(&holders);
                // Called back now and then.
                let to = match self
                    .roster
                    .as_ref()
                    .and_then(|it| it.shifts.get(&group).copied())
                {
                    Some(shift) if self.random.chance(1, 4) => index(shift.from),
                    _ => self.some_other_holder(&holders).unwrap_or(node),
                };
                self.order_move(OPERATOR, group, (from, to))
            }
        };
        if self.random.chance(1, 4) {
            self.disconnect(OPERATOR);
        }
    }

    /// A node is a member from now on, as an answer says.
    pub(super) fn added(&mut self, node: usize) {
        let sim = &mut self.nodes[node];
        if !std::mem::replace(&mut sim.belongs, true) {
            self.note(format_args!("{node} is added"));
            self.start_later(node, 500);
        }
    }

    /// What the node's driver is told.
    pub(super) fn roster_known(&mut self, node: usize, roster: Arc<Roster>) {
        let sim = &mut self.nodes[node];
        let older = |known: &Arc<Roster>| known.revision < roster.revision;
        if !sim.roster.as_ref().is_none_or(older) {
            return;
        }
        sim.roster = Some(roster.clone());
        // One that starts may be behind.
        let known = self.roster.as_ref().map_or(0, |it| it.revision);
        if known <= roster.revision {
            self.roster = Some(roster.clone());
        }
        if !roster.members.contains_key(&number(node)) {
            return self.plan_on(node, 1, OnNode::Removed);
        }
        for other in roster.members.keys().map(|other| index(*other)) {
            // It may be known here before its own node was told.
            if known <= roster.revision {
                self.added(other);
            }
        }
        for peer in 0..self.nodes.len() {
            if peer != node && !roster.members.contains_key(&number(peer)) {
                self.break_standing(node, peer, 2_000);
            }
        }
    }

    /// The cluster is at that feature level: every member knows it when the first one hears.
    pub(super) fn level_known(&mut self, node: usize, level: u16) -> Checked<()> {
        self.note(format_args!("{node} knows level {level}"));
        if level <= self.level {
            return Ok(());
        }
        self.level = level;
        // One that was removed may not have heard of it.
        let roster = self.nodes[node].roster.as_ref();
        let member = |it: usize| roster.is_none_or(|is| is.members.contains_key(&number(it)));
        let mut members = (0..self.nodes.len()).filter(|it| member(*it) && self.nodes[*it].up);
        match members.find(|it| self.level_of(*it) < level) {
            Some(behind) => Err(format!(
                "the cluster is at feature level {level}, and node {behind} does not know it"
            )),
            None => Ok(()),
        }
    }

    /// Whether the nodes would take each other for members.
    pub(super) fn may_link(&self, a: usize, b: usize) -> bool {
        let takes = |a: usize, b: usize| match &self.nodes[a].roster {
            Some(roster) => roster.members.contains_key(&number(b)),
            // One that joins knows whom it asks first.
            None if self.nodes[a].seeded => b == self.nodes[a].seed,
            None => b < self.settings.nodes,
        };
        takes(a, b) && takes(b, a) && self.is_seated(a, b) && self.is_seated(b, a)
    }

    /// Whether `by` takes the other's directory for its node's.
    fn is_seated(&self, told: usize, by: usize) -> bool {
        !self.settings.reshapes || self.admitted(told, by).is_ok()
    }

    fn admitted(&self, told: usize, by: usize) -> Result<(), Unseated> {
        let (sim, node) = (&self.nodes[told], number(told));
        let cookie = if sim.joins { sim.cookie } else { 1 };
        let seat = self.nodes[by].seats.get(&node);
        seat.map_or(Ok(()), |seat| seat.admits(node, cookie, sim.joins))
    }

    /// One of them was removed, and the other tells it.
    pub(super) fn tell_removed(&mut self, a: usize, b: usize) {
        for (told, by) in [(a, b), (b, a)] {
            // What is behind may speak of an earlier life of the same number.
            let newest = self.roster.as_ref().map(|it| it.revision);
            let roster = self.nodes[by].roster.as_ref();
            let roster = roster.filter(|it| Some(it.revision) == newest);
            let gone = |it: &Arc<Roster>| it.former.contains(&number(told));
            // Or it was added again since, and this is the directory that it had before.
            let old = || self.admitted(told, by) == Err(Unseated::GivenUp);
            if roster.is_some_and(|it| gone(it) || old()) {
                self.plan_on(told, 1, OnNode::Removed);
            }
        }
    }

    /// The process ends for good, and its disk is wiped.
    pub(super) fn removed(&mut self, node: usize) {
        self.note(format_args!("{node} was removed"));
        self.crash(node);
        let [disk, data, boot_disk] = [(); 3].map(|()| SimDisk::new(self.random.fork()));
        disk.set_physical_bytes(self.settings.log.block_bytes as usize);
        let cookie = self.random.number();
        let sim = &mut self.nodes[node];
        (sim.disk, sim.data, sim.boot_disk) = (disk, data, boot_disk);
        (sim.cookie, sim.joins, sim.seeded) = (cookie, true, true);
        (sim.belongs, sim.roster) = (false, None);
        sim.seats.clear();
        sim.markers.clear();
        sim.places = Places::default();
        self.counts.removals += 1;
        // Who has nobody else to ask is told to ask another.
        for other in 0..self.nodes.len() {
            let sim = &self.nodes[other];
            if sim.up && sim.seeded && sim.seed == node && sim.roster.is_none() {
                self.crash(other);
                self.start_later(other, 500);
            }
        }
        let member = |it: &Arc<Roster>| it.members.contains_key(&number(node));
        if self.roster.as_ref().is_some_and(member) {
            self.added(node);
        }
    }

    /// Everything is where it should be.
    pub(super) fn await_shape(&mut self) -> Checked<()> {
        if !self.settings.reshapes {
            return Ok(());
        }
        let groups = 0..=self.settings.data_groups;
        let done = self.await_that("every replica in its place", PATIENCE_MS, |world| {
            world.is_settled() && groups.clone().all(|group| world.is_whole(group))
        });
        done.map_err(|error| format!("{error}; {:?}", self.roster))
    }
}
