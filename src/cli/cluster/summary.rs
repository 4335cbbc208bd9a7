//! What several nodes say of the cluster, put together: who leads what, what is wrong,
//! and how many more failures are tolerated.
//!
//! 1. Of a group, its leader's word counts; of several, that of the newest generation
//!    and term (a deposed leader may not know yet).
//! 2. Without a leader's word what the others see is taken, the least of it.

use std::collections::{BTreeMap, BTreeSet};

use client::{Levels, Recovery, Replica, ReplicaRole, Roster, Shift};

use super::gather::Gathered;

/// A voter so far behind, in entries, is said to be behind.
const BEHIND: u64 = 1_000;

/// One group, as those who answered see it.
#[derive(Debug)]
pub struct Group<'a> {
    pub group: u32,
    /// By node, ascending.
    pub replicas: Vec<(u32, &'a Replica)>,
    pub generation: u32,
    pub term: u64,
    /// The node that leads.
    pub leader: Option<u32>,
    /// What the leader says, if it answered.
    pub leads: Option<&'a Replica>,
    pub tolerates: u8,
    /// What is wrong with it; empty: nothing.
    pub wrong: Vec<String>,
}

/// The cluster, as those who answered see it.
#[derive(Debug)]
pub struct Summary<'a> {
    /// Every node there should be.
    pub nodes: BTreeSet<u32>,
    pub groups: Vec<Group<'a>>,
    pub recoveries: Vec<&'a Recovery>,
    pub forgotten: BTreeSet<u32>,
    /// Their directory was given up, and they have no new one yet.
    pub vacant: BTreeSet<u32>,
    /// Of the group that tolerates the least.
    pub tolerates: u8,
    /// The newest that was told.
    pub roster: Option<&'a Roster>,
    /// As whoever knows of the highest level has them.
    pub levels: Option<&'a Levels>,
}

impl<'a> Summary<'a> {
    pub fn of(gathered: &'a Gathered) -> Self {
        let answered = gathered.nodes.values();
        let seen = answered.flat_map(|status| &status.nodes);
        let mut nodes: BTreeSet<u32> = seen.map(|seen| seen.node).collect();
        let rosters = gathered.nodes.values().filter_map(|it| it.roster.as_ref());
        let roster = rosters.max_by_key(|roster| roster.revision);
        if let Some(roster) = roster {
            nodes = roster.members.keys().copied().collect();
        }
        let mut replicas: BTreeMap<u32, Vec<(u32, &Replica)>> = BTreeMap::new();
        for (node, status) in &gathered.nodes {
            for replica in &status.replicas {
                let of = replicas.entry(replica.group).or_default();
                of.push((*node, replica));
            }
        }
        let forgotten = gathered.nodes.values().flat_map(|status| &status.forgotten);
        let groups: Vec<Group> = replicas
            .into_iter()
            .map(|(group, replicas)| {
                let copies = roster.map_or(nodes.len(), |it| it.holders(group).len());
                let mut group = Group::of(group, replicas, copies, &gathered.silent);
                let shift = roster.and_then(|it| it.shifts.get(&group.group));
                let goes = |it: &Shift| format!("goes from node {} to node {}", it.from, it.to);
                group.wrong.extend(shift.map(goes));
                group
            })
            .collect();
        Summary {
            recoveries: recoveries(gathered, &groups),
            forgotten: forgotten.copied().collect(),
            vacant: vacant(gathered, &groups),
            tolerates: groups
                .iter()
                .map(|group| group.tolerates)
                .min()
                .unwrap_or(0),
            groups,
            nodes,
            roster,
            levels: gathered
                .nodes
                .values()
                .filter_map(|status| status.levels.as_ref())
                .max_by_key(|levels| (levels.cluster, levels.newest())),
        }
    }

    /// How many groups the node leads.
    pub fn led_by(&self, node: u32) -> usize {
        let led = self.groups.iter();
        led.filter(|group| group.leader == Some(node)).count()
    }

    /// Why the node keeps the cluster from a level that others know.
    pub fn behind(&self, node: u32) -> Option<String> {
        let levels = self.levels?;
        let newest = levels.newest();
        match levels.members.get(&node)? {
            Some(level) if *level < newest => Some(format!(
                "knows feature level {level} of {newest}: UPGRADE it"
            )),
            None if levels.cluster < newest => {
                Some("has not said which feature level it knows".to_owned())
            }
            _ => None,
        }
    }

    /// The node was added, and nobody gave a directory of it up.
    pub fn is_new(&self, node: u32) -> bool {
        let roster = self.roster;
        roster.is_some_and(|roster| !roster.founders.contains(&node))
    }

    pub fn group(&self, number: u32) -> Option<&Group<'a>> {
        self.groups.iter().find(|group| group.group == number)
    }
}

/// As the leader of group 0 has them, or else whoever knows of them.
fn vacant(gathered: &Gathered, groups: &[Group]) -> BTreeSet<u32> {
    let meta = groups.iter().find(|group| group.group == 0);
    let leader = meta.and_then(|meta| meta.leader);
    match leader.and_then(|leader| gathered.nodes.get(&leader)) {
        Some(leader) => leader.vacant.iter().copied().collect(),
        None => {
            let all = gathered.nodes.values();
            all.flat_map(|status| &status.vacant).copied().collect()
        }
    }
}

/// As the leader of group 0 has them, or else whoever knows of them.
fn recoveries<'a>(gathered: &'a Gathered, groups: &[Group]) -> Vec<&'a Recovery> {
    let meta = groups.iter().find(|group| group.group == 0);
    let leader = meta.and_then(|meta| meta.leader);
    let leader = leader.and_then(|leader| gathered.nodes.get(&leader));
    if let Some(leader) = leader {
        return leader.recoveries.iter().collect();
    }
    let all = gathered
        .nodes
        .values()
        .flat_map(|status| &status.recoveries);
    let by_group: BTreeMap<u32, &Recovery> = all.map(|it| (it.group, it)).collect();
    by_group.into_values().collect()
}

impl<'a> Group<'a> {
    fn of(
        group: u32,
        replicas: Vec<(u32, &'a Replica)>,
        nodes: usize,
        silent: &BTreeSet<u32>,
    ) -> Self {
        let newest = |replica: &&Replica| (replica.generation, replica.term);
        let all = || replicas.iter().map(|(_, replica)| *replica);
        let generation = all().map(|it| it.generation).max().unwrap_or(0);
        let leads = all()
            .filter(|it| it.role == ReplicaRole::Leader && it.generation == generation)
            .max_by_key(newest);
        let told = all().filter(|it| it.leader.is_some() && it.generation == generation);
        let known = leads.or_else(|| told.max_by_key(newest));
        let seen = || all().filter(|it| it.generation == generation && it.leader.is_some());
        let tolerates = match leads {
            // Who stands still has its links, and may be counted by the leader.
            Some(leads) => {
                let voters = leads.voters.iter();
                let still = voters.filter(|voter| silent.contains(&voter.node));
                leads.tolerates.saturating_sub(still.count() as u8)
            }
            None => seen().map(|it| it.tolerates).min().unwrap_or(0),
        };
        let mut made = Group {
            group,
            generation,
            term: all().map(|it| it.term).max().unwrap_or(0),
            leader: known.and_then(|it| it.leader),
            leads,
            tolerates,
            wrong: Vec::new(),
            replicas,
        };
        made.wrong = made.what_is_wrong(nodes);
        made
    }

    fn what_is_wrong(&self, nodes: usize) -> Vec<String> {
        let mut wrong = Vec::new();
        let with_role = |role: ReplicaRole| -> Vec<String> {
            let them = self.replicas.iter().filter(|(_, it)| it.role == role);
            them.map(|(node, _)| node.to_string()).collect()
        };
        let stopped = with_role(ReplicaRole::Stopped);
        match self.leader {
            None if !stopped.is_empty() => {
                wrong.push(format!("stopped for a recovery on {}", on_nodes(&stopped)));
            }
            None => wrong.push("no leader is known".to_owned()),
            Some(leader) if self.leads.is_some_and(|leads| !leads.serving) => {
                wrong.push(format!("node {leader} leads and does not serve yet"));
            }
            Some(_) => {}
        }
        let nameless = with_role(ReplicaRole::Nameless);
        if !nameless.is_empty() {
            wrong.push(format!(
                "the replica on {} lost its memory and waits for a new name",
                on_nodes(&nameless)
            ));
        }
        if let Some(leads) = self.leads {
            let learners: BTreeSet<u32> = leads.learners.iter().map(|it| it.node).collect();
            let learners: Vec<String> = learners.iter().map(u32::to_string).collect();
            match learners.len() {
                0 => {}
                1 => wrong.push(format!("{} is being brought up", on_nodes(&learners))),
                _ => wrong.push(format!("{} are being brought up", on_nodes(&learners))),
            }
            let (voters, all) = (
                leads.voters.len(),
                leads.learners.len() + leads.voters.len(),
            );
            if all < nodes {
                let voters = match voters {
                    1 => "1 voter".to_owned(),
                    _ => format!("{voters} voters"),
                };
                wrong.push(format!("{voters} of {nodes} replicas"));
            }
            for other in &leads.others {
                let behind = leads.committed.saturating_sub(other.written);
                if behind > BEHIND && leads.voters.contains(&other.peer) {
                    wrong.push(format!(
                        "node {} is {behind} entries behind",
                        other.peer.node
                    ));
                }
            }
        }
        wrong
    }
}

/// `node 1` or `nodes 1, 2`
pub fn on_nodes(numbers: &[String]) -> String {
    let word = if numbers.len() == 1 { "node" } else { "nodes" };
    format!("{word} {}", numbers.join(", "))
}

#[cfg(test)]
mod tests {
    use client::{Boundary, NodeStatus, Peer, Progress, Seen};

    use super::*;

    fn peer(node: u32) -> Peer {
        Peer { node, join: 1 }
    }

    fn replica(node: u32, role: ReplicaRole, leader: Option<u32>) -> Replica {
        Replica {
            group: 1,
            generation: 1,
            role,
            serving: role == ReplicaRole::Leader,
            answers_at: Boundary::Written,
            tolerates: 1,
            leader,
            term: 3,
            peer: peer(node),
            last: 10,
            committed: 10,
            applied: 10,
            durable: 9,
            voters: vec![peer(1), peer(2), peer(3)],
            learners: Vec::new(),
            others: Vec::new(),
        }
    }

    fn gathered(replicas: Vec<Replica>) -> Gathered {
        let mut gathered = Gathered::default();
        for replica in replicas {
            let seen = |node| Seen {
                node,
                unlinked_shards: Vec::new(),
            };
            let node = replica.peer.node;
            let status = NodeStatus {
                node,
                shards: 1,
                nodes: vec![seen(1), seen(2), seen(3)],
                replicas: vec![replica],
                ..NodeStatus::default()
            };
            gathered.nodes.insert(node, status);
        }
        gathered
    }

    #[test]
    fn a_healthy_group_has_nothing_wrong_and_its_leaders_word_counts() {
        let mut follower = replica(2, ReplicaRole::Follower, Some(1));
        follower.tolerates = 0;
        let gathered = gathered(vec![replica(1, ReplicaRole::Leader, Some(1)), follower]);
        let summary = Summary::of(&gathered);
        assert_eq!(summary.groups[0].wrong, Vec::<String>::new());
        assert_eq!((summary.tolerates, summary.led_by(1)), (1, 1));
        assert_eq!(summary.nodes.len(), 3);
    }

    #[test]
    fn a_deposed_leader_that_does_not_know_is_not_the_leader() {
        let mut deposed = replica(1, ReplicaRole::Leader, Some(1));
        deposed.term = 2;
        let gathered = gathered(vec![deposed, replica(3, ReplicaRole::Leader, Some(3))]);
        let summary = Summary::of(&gathered);
        assert_eq!(summary.groups[0].leader, Some(3));
        assert_eq!(summary.led_by(1), 0);
    }

    #[test]
    fn followers_know_the_leader_who_did_not_answer_and_the_least_is_believed() {
        let mut other = replica(3, ReplicaRole::Follower, Some(1));
        other.tolerates = 0;
        let gathered = gathered(vec![replica(2, ReplicaRole::Follower, Some(1)), other]);
        let summary = Summary::of(&gathered);
        assert_eq!(summary.groups[0].leader, Some(1));
        assert_eq!(summary.tolerates, 0);
    }

    #[test]
    fn a_node_that_stands_still_is_a_failure_whatever_its_links() {
        let mut gathered = gathered(vec![
            replica(1, ReplicaRole::Leader, Some(1)),
            replica(2, ReplicaRole::Follower, Some(1)),
        ]);
        gathered.silent.insert(3);
        assert_eq!(Summary::of(&gathered).tolerates, 0);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = |replicas| Summary::of(&gathered(replicas)).groups[0].wrong.join("; ");
        let none = wrong(vec![replica(2, ReplicaRole::Follower, None)]);
        assert_eq!(none, "no leader is known");
        let stopped = replica(2, ReplicaRole::Stopped, None);
        assert_eq!(wrong(vec![stopped]), "stopped for a recovery on node 2");
        let mut leads = replica(1, ReplicaRole::Leader, Some(1));
        leads.voters.pop();
        leads.learners = vec![Peer { node: 3, join: 7 }];
        assert_eq!(wrong(vec![leads.clone()]), "node 3 is being brought up");
        leads.learners.clear();
        assert_eq!(wrong(vec![leads]), "2 voters of 3 replicas");
        let mut leads = replica(1, ReplicaRole::Leader, Some(1));
        (leads.committed, leads.serving) = (5_000, false);
        leads.others = vec![Progress {
            peer: peer(2),
            written: 100,
            durable: 0,
        }];
        let said = "node 1 leads and does not serve yet; node 2 is 4900 entries behind";
        assert_eq!(wrong(vec![leads]), said);
        let nameless = replica(3, ReplicaRole::Nameless, None);
        assert!(wrong(vec![nameless]).contains("waits for a new name"));
    }
}
