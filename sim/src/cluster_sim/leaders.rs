//! Who leads what, as the engines have it, and what follows for who may say
//! what.
//!
//! 1. At most one node ever leads a group at a (generation, term).
//! 2. Once a client got the confirm of a leader, no leader of an earlier term
//!    confirms what is not in that leader's history (F10), and none of an earlier
//!    generation confirms anything.
//!
//! A leader that does not know yet that it was deposed may say late that a record is
//! on its copies: enough replicas told it so while they were in its term, so each
//! later leader has the record, and the client could as well have got the confirm
//! before. That is no lie, and no fence is missing. It is one where the record is not
//! among what the later leader found: it would have to stand, in its partition, in
//! front of everything that the later leader confirmed, for that was proposed in the
//! later term; and its bytes are on that leader's disk.

use std::collections::BTreeMap;

use super::{issues::Issue, journal::Key, world::World, Checked};

/// How long leaders may take to be spread, in simulated ms.
const SPREAD_MS: u64 = 400_000;

/// Records that were confirmed, as the confirm says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Confirmed {
    pub key: Key,
    pub first_id: u64,
    pub first_offset: u64,
    pub count: u64,
}

/// Generation and term.
pub(super) type Reign = (u32, u64);

/// See the module head.
#[derive(Default)]
pub(super) struct Leaders {
    /// By group, then reign: who leads in it.
    of: BTreeMap<u32, BTreeMap<Reign, usize>>,
    /// By (group, node, engine life): the reign it leads in, or led last.
    last: BTreeMap<(u32, usize, u64), Reign>,
    /// By group and reign: when a client first got a confirm of it.
    first_confirm: BTreeMap<(u32, Reign), u64>,
    /// By reign and partition: the lowest offset confirmed in it.
    lowest: BTreeMap<(Reign, Key), u64>,
}

impl Leaders {
    /// The newest leader of a group, and the reign it began.
    fn newest(&self, group: u32) -> Option<(Reign, usize)> {
        let (reign, node) = self.of.get(&group)?.last_key_value()?;
        Some((*reign, *node))
    }
}

impl World {
    /// Sees which groups the node leads after its turn.
    pub(super) fn look_who_leads(&mut self, node: usize) -> Checked<()> {
        let sim = &self.nodes[node];
        let Some(engine) = &sim.engine else {
            return Ok(());
        };
        let mut begun = Vec::new();
        for lead in engine.roles().filter(|role| role.leads) {
            let reign = (lead.generation, lead.term);
            let key = (lead.group.0, node, sim.engine_life);
            if self.leaders.last.insert(key, reign) == Some(reign) {
                continue;
            }
            begun.push((lead.group.0, reign));
        }
        for (group, reign) in begun {
            self.note(format_args!("{node} leads group {group} in {reign:?}"));
            let reigns = self.leaders.of.entry(group).or_default();
            let other = reigns.insert(reign, node).filter(|other| *other != node);
            if let Some(other) = other {
                return Err(format!(
                    "{other} and {node} both lead group {group} in {reign:?}"
                ));
            }
        }
        Ok(())
    }

    /// Whether the group is led, and all nodes vote in it under the names they have.
    pub(super) fn is_whole(&self, group: u32) -> bool {
        let Some((reign, node)) = self.leaders.newest(group) else {
            return false;
        };
        let roles = |node: usize| {
            let engine = self.nodes[node].engine.as_ref();
            let mut roles = engine.into_iter().flat_map(|engine| engine.roles());
            roles.find(|role| role.group.0 == group)
        };
        let leader = roles(node).filter(|role| role.leads);
        let Some(leader) = leader.filter(|role| (role.generation, role.term) == reign) else {
            return false;
        };
        // Each of them knows: an entry that only the leader knows to be committed does
        // not help who is left when the leader is gone.
        let votes = |node| {
            roles(node).is_some_and(|role| {
                role.voters == leader.voters && leader.voters.contains(&role.peer.0)
            })
        };
        let holders = self.holders_of(group);
        leader.voters.len() == holders.len() && holders.into_iter().all(votes)
    }

    /// With nothing going wrong every group comes to the node whose turn it is.
    pub(super) fn await_spread(&mut self) -> Checked<()> {
        let settled = self.settings.kinds.total() == 0 && self.settings.spread_after_ms > 0;
        if !settled {
            return Ok(());
        }
        let nodes = self.nodes.len();
        self.await_that("leaders to be spread", SPREAD_MS, |world| {
            let mut groups = 0..=world.settings.data_groups;
            groups.all(|group| world.newest_leader(group) == Some(group as usize % nodes))
        })
    }

    /// Who became leader of the group last.
    pub(super) fn newest_leader(&self, group: u32) -> Option<usize> {
        self.leaders.newest(group).map(|(_, node)| node)
    }

    pub(super) fn newest_reign(&self, group: u32) -> Option<Reign> {
        self.leaders.newest(group).map(|(reign, _)| reign)
    }

    fn reign_of(&self, group: u32, issue: &Issue) -> Option<Reign> {
        let key = (group, issue.node, issue.life);
        self.leaders.last.get(&key).copied()
    }

    /// Whether another node leads the group by now: what a leader said that does
    /// not know it yet is not held against it.
    pub(super) fn is_stale(&self, key: Key, issue: &Issue) -> bool {
        let group = self.journal.group_of(key).unwrap_or(0);
        let newest = self.leaders.newest(group).map(|(reign, _)| reign);
        newest > self.reign_of(group, issue)
    }

    /// A client got a confirm. `issue`: by whom.
    pub(super) fn check_owner(&mut self, what: Confirmed, issue: &Issue) -> Checked<()> {
        let Some(group) = self.journal.group_of(what.key) else {
            return Ok(());
        };
        let Some(reign) = self.reign_of(group, issue) else {
            return Err(format!(
                "{what:?} is confirmed by who does not lead group {group}: {issue:?}"
            ));
        };
        let later = (group, (reign.0, reign.1 + 1))..=(group, (u32::MAX, u64::MAX));
        let later = self.leaders.first_confirm.range(later);
        let before = later.filter(|(_, at_us)| **at_us < issue.not_before_us);
        for ((_, later), at_us) in before {
            if !self.has_in_history(group, *later, reign, what) {
                return Err(format!(
                    "{what:?} is confirmed in {reign:?}, and {later:?}, which lacks it, confirmed at {at_us}: {issue:?}"
                ));
            }
        }
        let now_us = self.now_us;
        let first = self.leaders.first_confirm.entry((group, reign));
        first.or_insert(now_us);
        let lowest = self.leaders.lowest.entry((reign, what.key));
        let lowest = lowest.or_insert(u64::MAX);
        *lowest = what.first_offset.min(*lowest);
        Ok(())
    }

    /// Whether the records may be among what the leader of a later reign found.
    fn has_in_history(&self, group: u32, later: Reign, reign: Reign, what: Confirmed) -> bool {
        let leaders = &self.leaders;
        let end = what.first_offset + what.count;
        let own = leaders.lowest.get(&(later, what.key));
        let in_front = own.is_none_or(|lowest| end <= *lowest);
        let node = leaders.of.get(&group).and_then(|of| of.get(&later));
        let there = node.is_some_and(|node| {
            let ids = what.first_id..what.first_id + what.count;
            let mut records = ids.map(|id| self.journal.records.get(id as usize));
            records.all(|rec| rec.is_some_and(|rec| rec.written_on & 1 << node != 0))
        });
        later.0 == reign.0 && in_front && there
    }
}
