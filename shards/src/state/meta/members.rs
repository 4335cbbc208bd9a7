//! Who belongs to the cluster, and which nodes hold a replica of each group.
//!
//! What is here is what there *should* be; what there *is* stands in each group's own log,
//! and its leader brings it about, step by step. A cluster that never changed has no
//! roster: its members and every group's holders are its founders.
//!
//! 1. A group has as many holders as the cluster has founders. One of them changes at a
//!    time: its replica is *shifted* from one node to another, the next shift of the group
//!    begins when the last is over.
//! 2. A shift is over when the group's leader says that the new replica votes, the old one
//!    does not, and both are durable on a majority: until then both nodes have a part in
//!    the group, and a recovery needs what would be enough without the one, and what would
//!    be enough without the other.
//! 3. It can be called back while group 0 has not said that the new replica may vote.
//! 4. Replicas of a node that has no part in a group any more have left it: their answers,
//!    votes and questions mean nothing.
//! 5. A node is removed when it holds nothing but group 0.

use std::collections::BTreeSet;

use wire::node::{Member, Roster, Shift, MAX_MEMBERS};

use super::{
    nameless_peer, peer_id, peer_node, GroupHistory, MetaOutcome, MetaState, FIRST_GENERATION,
    FOUNDING_JOIN,
};
use crate::mutation::{removed, Rule};

const META: u32 = 0;

/// An order about members, or what a leader says of a shift.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberCommand {
    /// What the cluster began with: its founders and where they are called.
    Found { members: Vec<(u32, String)> },
    /// A node belongs to the cluster, at that address; of one that does, they change.
    Add {
        node: u32,
        address: String,
        zone: String,
    },
    /// The same of a number that was removed: no directory that had it, or asked for a
    /// name under it, is in the way of the one that comes.
    Readmit {
        node: u32,
        address: String,
        zone: String,
    },
    /// A group's replica goes from one node to another.
    Move { group: u32, from: u32, to: u32 },
    /// The shift is over.
    Moved {
        group: u32,
        generation: u32,
        from: u32,
        to: u32,
    },
    /// A node's replicas are to go to others.
    Leave { node: u32 },
    /// A node that holds nothing any more belongs to the cluster no more.
    Remove { node: u32 },
}

fn refused(reason: String) -> MetaOutcome {
    MetaOutcome::Refused { reason }
}

impl MetaState {
    /// `None`: nothing ever changed.
    pub fn roster(&self) -> Option<&Roster> {
        self.roster.as_ref()
    }

    /// Nodes that the cluster began with: `nodes`, unless it is known better.
    pub(super) fn founders<'a>(&'a self, nodes: &'a [u32]) -> &'a [u32] {
        self.roster.as_ref().map_or(nodes, |it| &it.founders)
    }

    /// Nodes that are to hold a replica of the group; `nodes` where nothing ever changed.
    pub fn holders(&self, group: u32, nodes: &[u32]) -> Vec<u32> {
        let known = self.roster.as_ref();
        known.map_or_else(|| nodes.to_vec(), |it| it.holders(group))
    }

    /// Each of these sets of nodes has to answer as if it were all: the holders, and while
    /// one of them is shifted those from before.
    pub(super) fn quorums(&self, group: u32, nodes: &[u32]) -> Vec<Vec<u32>> {
        let holders = self.holders(group, nodes);
        let shift = self.roster.as_ref().and_then(|it| it.shifts.get(&group));
        let Some(shift) = shift.filter(|_| !removed(Rule::ShiftQuorums)) else {
            return vec![holders];
        };
        let from = |node: &u32| if *node == shift.to { shift.from } else { *node };
        let before = holders.iter().map(from).collect();
        vec![holders, before]
    }

    /// The node has a part in the group.
    pub fn has_part(&self, group: u32, node: u32) -> bool {
        let known = self.roster.as_ref();
        known.is_none_or(|it| it.has_part(group, node))
    }

    pub(super) fn on_members(&mut self, command: &MemberCommand) -> MetaOutcome {
        match command {
            MemberCommand::Found { members } => self.found(members),
            MemberCommand::Add {
                node,
                address,
                zone,
            } => self.add(*node, address, zone),
            MemberCommand::Readmit {
                node,
                address,
                zone,
            } => self.readmit(*node, address, zone),
            MemberCommand::Move { group, from, to } => self.shift(*group, *from, *to),
            MemberCommand::Moved {
                group,
                generation,
                from,
                to,
            } => self.shifted(*group, *generation, (*from, *to)),
            MemberCommand::Leave { node } => self.leave(*node),
            MemberCommand::Remove { node } => self.remove(*node),
        }
    }

    fn found(&mut self, members: &[(u32, String)]) -> MetaOutcome {
        if self.roster.is_some() {
            return MetaOutcome::Noted;
        }
        let member = |(node, address): &(u32, String)| {
            let (address, zone) = (address.clone(), String::new());
            let leaves = false;
            let member = Member {
                address,
                zone,
                leaves,
            };
            (*node, member)
        };
        let mut founders: Vec<u32> = members.iter().map(|(node, _)| *node).collect();
        founders.sort_unstable();
        founders.dedup();
        if !(1..=MAX_MEMBERS).contains(&founders.len()) {
            return refused(format!("a cluster has 1 to {MAX_MEMBERS} founders"));
        }
        self.roster = Some(Roster {
            revision: 1,
            founders,
            members: members.iter().map(member).collect(),
            ..Roster::default()
        });
        MetaOutcome::Members
    }

    fn add(&mut self, node: u32, address: &str, zone: &str) -> MetaOutcome {
        let Some(roster) = self.roster.as_mut() else {
            return refused("who founded the cluster is not known yet".to_owned());
        };
        let member = Member {
            address: address.to_owned(),
            zone: zone.to_owned(),
            leaves: false,
        };
        let stands = roster.members.get(&node);
        if stands == Some(&member) {
            return MetaOutcome::Noted;
        }
        let mut others = roster.members.iter().filter(|(other, _)| **other != node);
        if let Some((other, _)) = others.find(|(_, other)| other.address == address) {
            return refused(format!("node {other} has the address {address}"));
        }
        let new = stands.is_none();
        if new && roster.members.len() >= MAX_MEMBERS {
            return refused(format!("a cluster has at most {MAX_MEMBERS} members"));
        }
        roster.members.insert(node, member);
        roster.former.remove(&node);
        roster.revision += 1;
        if new {
            // Its directory is one that was made to join.
            self.seats.entry(node).or_default();
        }
        MetaOutcome::Members
    }

    fn readmit(&mut self, node: u32, address: &str, zone: &str) -> MetaOutcome {
        let roster = self.roster.as_ref();
        let former = roster.is_some_and(|it| it.former.contains(&node));
        let outcome = self.add(node, address, zone);
        if former && outcome == MetaOutcome::Members {
            self.seats.entry(node).or_default().readmitted = true;
        }
        outcome
    }

    fn shift(&mut self, group: u32, from: u32, to: u32) -> MetaOutcome {
        let last = self.placement.groups();
        let collecting = self.group(group).is_some_and(|it| it.collecting.is_some());
        let voting = self.has_voting_name(group, from);
        let Some(roster) = self.roster.as_mut() else {
            return refused("who founded the cluster is not known yet".to_owned());
        };
        if group == META || group > last {
            return refused(format!("there is no group {group} that could be moved"));
        }
        let mut holders = roster.holders(group);
        if holders.contains(&to) && !holders.contains(&from) {
            return MetaOutcome::Noted;
        }
        if !holders.contains(&from) || holders.contains(&to) || from == to {
            return refused(format!(
                "group {group} has its replicas on nodes {}",
                numbers(&holders)
            ));
        }
        if !roster.members.contains_key(&to) {
            return refused(format!("node {to} is no member of the cluster"));
        }
        if collecting {
            return refused(format!("group {group} is being recovered"));
        }
        let back = match roster.shifts.get(&group) {
            None => false,
            Some(shift) if (shift.from, shift.to) == (to, from) && !voting => true,
            Some(shift) => {
                return refused(format!(
                    "group {group} is on its way from node {} to node {}",
                    shift.from, shift.to
                ))
            }
        };
        holders.retain(|node| *node != from);
        holders.push(to);
        holders.sort_unstable();
        match holders == roster.founders {
            true => roster.sets.remove(&group),
            false => roster.sets.insert(group, holders),
        };
        match back {
            true => roster.shifts.remove(&group),
            false => roster.shifts.insert(group, Shift { from, to }),
        };
        roster.revision += 1;
        if back {
            self.leave_group(group, from);
        }
        MetaOutcome::Members
    }

    /// Group 0 said that a replica of the node may vote in the group.
    fn has_voting_name(&self, group: u32, node: u32) -> bool {
        let promoted = self.group(group).map(|it| &it.promoted);
        let mut promoted = promoted.into_iter().flatten();
        promoted.any(|peer| peer_node(*peer) == node && self.counts(group, *peer))
    }

    fn shifted(&mut self, group: u32, generation: u32, (from, to): (u32, u32)) -> MetaOutcome {
        let collecting = self.group(group).is_some_and(|it| it.collecting.is_some());
        if collecting || self.generation(group) != generation {
            return refused(format!("group {group} is in another generation"));
        }
        let Some(roster) = self.roster.as_mut() else {
            return MetaOutcome::Noted;
        };
        if roster.shifts.get(&group) != Some(&Shift { from, to }) {
            return MetaOutcome::Noted;
        }
        roster.shifts.remove(&group);
        roster.revision += 1;
        self.leave_group(group, from);
        MetaOutcome::Members
    }

    /// The node's replicas of the group mean nothing any more.
    fn leave_group(&mut self, group: u32, node: u32) {
        let founders = self.founders(&[]).to_vec();
        let history = self.history(group);
        let names = history.names_of(node, &founders);
        history.left.extend(names);
    }

    /// A generation begins with that replica: a shift away from another node is over,
    /// since nothing of that node's is in it.
    pub(super) fn begin_with(&mut self, group: u32, newest_peer: u64) {
        let Some(roster) = self.roster.as_mut() else {
            return;
        };
        let shift = roster.shifts.get(&group);
        if shift.is_some_and(|shift| shift.from != peer_node(newest_peer)) {
            roster.shifts.remove(&group);
            roster.revision += 1;
        }
    }

    fn leave(&mut self, node: u32) -> MetaOutcome {
        let Some(roster) = self.roster.as_mut() else {
            return refused("who founded the cluster is not known yet".to_owned());
        };
        let staying = roster.members.iter().filter(|(_, it)| !it.leaves).count();
        let Some(member) = roster.members.get(&node) else {
            return MetaOutcome::Noted;
        };
        if member.leaves {
            return MetaOutcome::Noted;
        }
        if staying <= roster.founders.len() {
            return refused(too_few(staying, roster.founders.len()));
        }
        if let Some(member) = roster.members.get_mut(&node) {
            member.leaves = true;
        }
        roster.revision += 1;
        MetaOutcome::Members
    }

    fn remove(&mut self, node: u32) -> MetaOutcome {
        let last = self.placement.groups();
        let Some(roster) = self.roster.as_mut() else {
            return MetaOutcome::Noted;
        };
        let Some(member) = roster.members.get(&node) else {
            return MetaOutcome::Noted;
        };
        let holds = (1..=last).any(|group| roster.has_part(group, node));
        let awaited = roster.shifts.values().any(|shift| shift.to == node);
        if !member.leaves || holds || awaited {
            return refused(format!("node {node} holds replicas of groups"));
        }
        roster.members.remove(&node);
        roster.former.insert(node);
        roster.revision += 1;
        for group in META..=last {
            self.leave_group(group, node);
        }
        // As of a directory that was given up: it never comes back, whatever is added.
        let opens = self.opens.range((node, 0)..=(node, u16::MAX));
        let mut former: BTreeSet<u64> = opens
            .map(|(_, open)| nameless_peer(node, open.cookie))
            .collect();
        self.opens.retain(|(of, _), _| *of != node);
        let first_join = self.next_join;
        let seat = self.seats.entry(node).or_default();
        former.extend(seat.holder.take());
        seat.former.append(&mut former);
        seat.first_join = first_join;
        seat.readmitted = false;
        self.forgotten.remove(&node);
        MetaOutcome::Members
    }
}

impl GroupHistory {
    /// Names of the node's replicas that count, in a cluster with these founders.
    pub(super) fn names_of(&self, node: u32, founders: &[u32]) -> BTreeSet<u64> {
        let replaced = self.replaced.values().copied();
        let mut names: BTreeSet<u64> = replaced
            .chain(self.promoted.iter().copied())
            .chain([self.newest_peer])
            .collect();
        if self.generation == FIRST_GENERATION && founders.contains(&node) {
            names.insert(peer_id(node, FOUNDING_JOIN));
        }
        let counts = |peer: u64| !self.retired.contains(&peer) && !self.left.contains(&peer);
        names.retain(|peer| peer_node(*peer) == node && !super::is_vacant(*peer) && counts(*peer));
        names
    }
}

/// Why no member can go.
pub fn too_few(staying: usize, copies: usize) -> String {
    format!(
        "{staying} members stay, and every group has {copies} replicas, each on a node of its own: add a node first (cluster add)"
    )
}

/// `1, 2, 4`
pub fn numbers(nodes: &[u32]) -> String {
    let nodes: Vec<String> = nodes.iter().map(u32::to_string).collect();
    nodes.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::meta::{Answer, Collected, MetaCommand};

    const NODES: [u32; 3] = [1, 2, 3];

    fn founder(node: u32) -> u64 {
        peer_id(node, FOUNDING_JOIN)
    }

    fn order(state: &mut MetaState, command: MemberCommand) -> MetaOutcome {
        state.apply(&MetaCommand::Members(command))
    }

    fn add(state: &mut MetaState, node: u32) -> MetaOutcome {
        let address = format!("127.0.0.1:{}", 7500 + node);
        let zone = String::new();
        order(
            state,
            MemberCommand::Add {
                node,
                address,
                zone,
            },
        )
    }

    fn shift(state: &mut MetaState, group: u32, from: u32, to: u32) -> MetaOutcome {
        order(state, MemberCommand::Move { group, from, to })
    }

    fn is_refused(outcome: &MetaOutcome) -> bool {
        matches!(outcome, MetaOutcome::Refused { .. })
    }

    /// Three founders and node 4, which has a name in group 1 if it holds it.
    fn founded() -> MetaState {
        let mut state = MetaState::new(4);
        let address = |node: u32| (node, format!("127.0.0.1:{}", 7500 + node));
        let members = NODES.map(address).to_vec();
        assert!(is_refused(&add(&mut state, 4)), "who founded it?");
        order(&mut state, MemberCommand::Found { members });
        assert_eq!(add(&mut state, 4), MetaOutcome::Members);
        assert_eq!(add(&mut state, 4), MetaOutcome::Noted);
        state
    }

    fn rejoin(state: &mut MetaState, group: u32) -> MetaOutcome {
        state.apply(&MetaCommand::Rejoin {
            group,
            retired_peer: nameless_peer(4, 40),
            harmed: true,
        })
    }

    fn named(state: &mut MetaState, group: u32) -> u64 {
        match rejoin(state, group) {
            MetaOutcome::Replaced { new_peer } => new_peer,
            other => panic!("{other:?}"),
        }
    }

    fn promoting(state: &mut MetaState, peer: u64) -> MetaOutcome {
        state.apply(&MetaCommand::Promoting {
            group: 1,
            generation: 1,
            peer,
        })
    }

    fn moved(state: &mut MetaState) -> MetaOutcome {
        let (group, generation, from, to) = (1, 1, 3, 4);
        order(
            state,
            MemberCommand::Moved {
                group,
                generation,
                from,
                to,
            },
        )
    }

    #[test]
    fn a_node_has_names_where_it_has_a_part_and_nowhere_else() {
        let mut state = founded();
        assert!(is_refused(&rejoin(&mut state, 1)));
        let in_group_0 = named(&mut state, 0);
        assert_eq!(peer_node(in_group_0), 4);
        shift(&mut state, 1, 3, 4);
        let new = named(&mut state, 1);
        assert_eq!(state.holders(1, &[]), [1, 2, 4]);
        assert_eq!(state.holders(2, &[]), NODES);
        assert!(!state.trusted(1, &NODES).contains(&new));
        assert!(state.trusted(1, &NODES).contains(&founder(3)));
        assert_eq!(
            promoting(&mut state, new),
            MetaOutcome::History { group: 1 }
        );
        assert_eq!(moved(&mut state), MetaOutcome::Members);
        let trusted = state.trusted(1, &NODES);
        assert_eq!(trusted, BTreeSet::from([founder(1), founder(2), new]));
        // Node 3 has left: it may come back under another name only.
        assert!(is_refused(&promoting(&mut state, founder(3))));
        assert_eq!(moved(&mut state), MetaOutcome::Noted);
    }

    #[test]
    fn one_shift_of_a_group_at_a_time_and_it_is_called_back_before_the_new_one_may_vote() {
        let mut state = founded();
        add(&mut state, 5);
        assert_eq!(shift(&mut state, 1, 3, 4), MetaOutcome::Members);
        assert_eq!(shift(&mut state, 1, 3, 4), MetaOutcome::Noted);
        assert!(is_refused(&shift(&mut state, 1, 2, 5)));
        assert!(is_refused(&shift(&mut state, 1, 1, 2)));
        assert!(is_refused(&shift(&mut state, 0, 1, 4)));
        assert!(is_refused(&shift(&mut state, 1, 1, 9)));
        let first = named(&mut state, 1);
        assert_eq!(shift(&mut state, 1, 4, 3), MetaOutcome::Members);
        assert_eq!(state.holders(1, &[]), NODES);
        assert!(is_refused(&promoting(&mut state, first)));
        // Under another name the next time.
        shift(&mut state, 1, 3, 4);
        let second = named(&mut state, 1);
        assert_ne!(first, second);
        promoting(&mut state, second);
        assert!(is_refused(&shift(&mut state, 1, 4, 3)), "it may vote");
    }

    /// A confirm was met among the holders, or among those before: answers that would be
    /// enough for the one and not for the other are not enough.
    #[test]
    fn a_recovery_in_the_middle_of_a_shift_needs_answers_for_both_sets() {
        let mut state = founded();
        shift(&mut state, 1, 3, 4);
        let new = named(&mut state, 1);
        promoting(&mut state, new);
        state.apply(&MetaCommand::Collect {
            group: 1,
            generation: 1,
            accepts_loss: false,
        });
        // All but node 2 lost their memory.
        let mut answers = Vec::new();
        for peer in [founder(1), founder(3), new] {
            let rejoined = state.apply(&MetaCommand::Rejoin {
                group: 1,
                retired_peer: peer,
                harmed: false,
            });
            let MetaOutcome::Replaced { new_peer } = rejoined else {
                panic!("{rejoined:?}");
            };
            answers.push(new_peer);
        }
        let mut answer = |peer| {
            let answer = Answer {
                peer,
                last_term: 1,
                last_index: 1,
                counts: true,
            };
            state.apply(&MetaCommand::Answered {
                group: 1,
                generation: 1,
                answer,
            });
            state.collected(1, &NODES)
        };
        answer(founder(2));
        let waits = answer(answers[1]);
        assert!(matches!(waits, Some(Collected::Waits { counting: 1, .. })));
        let enough = answer(answers[2]);
        assert!(matches!(enough, Some(Collected::Enough { .. })));
    }

    #[test]
    fn a_node_is_removed_when_it_holds_nothing_and_its_directory_never_comes_back() {
        let mut state = founded();
        let leave = |node| MemberCommand::Leave { node };
        let remove = |node| MemberCommand::Remove { node };
        assert_eq!(order(&mut state, leave(3)), MetaOutcome::Members);
        assert!(is_refused(&order(&mut state, leave(2))), "3 have to stay");
        assert!(is_refused(&order(&mut state, remove(3))), "it holds groups");
        for group in 1..=4 {
            shift(&mut state, group, 3, 4);
            let (generation, from, to) = (1, 3, 4);
            order(
                &mut state,
                MemberCommand::Moved {
                    group,
                    generation,
                    from,
                    to,
                },
            );
        }
        assert_eq!(order(&mut state, remove(3)), MetaOutcome::Members);
        assert!(!state.trusted(0, &NODES).contains(&founder(3)));
        add(&mut state, 3);
        let seat = &state.seats()[&3];
        assert!(seat.admits(3, 33, true).is_ok());
        assert!(seat.admits(3, 33, false).is_err());
        let mut bytes = Vec::new();
        state.capture(&mut bytes);
        let mut again = Vec::new();
        MetaState::restore(4, &bytes).unwrap().capture(&mut again);
        assert_eq!(bytes, again);
    }
}
