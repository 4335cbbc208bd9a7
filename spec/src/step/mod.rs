//! What can happen. Each file owns one theme: which of its actions are possible in
//! a state, and what each of them does.

pub mod election;
pub mod faults;
pub mod membership;
pub mod recovery;
pub mod replication;

use crate::rules::{Dropped, Rule};
use crate::scope::Scope;
use crate::state::{Node, State};
use std::fmt;

/// One step. Nodes are named by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The leader appends a record and starts the write and the sends.
    Append { leader: u8 },
    /// The leader appends the weakening entry.
    Weaken { leader: u8 },
    /// The leader's own write of all it appended completes.
    Write { node: u8 },
    /// A follower takes the leader's entries, writes them, and acknowledges.
    Replicate { leader: u8, follower: u8 },
    /// A sync completes and covers all that was written; progress is reported.
    Sync { node: u8 },
    /// A node stands for election.
    Campaign { node: u8 },
    /// A node grants its vote.
    Vote { candidate: u8, voter: u8 },
    /// A node is elected in a term by these nodes beside itself (bits).
    Elect { candidate: u8, term: u8, voters: u8 },
    /// Power fails on a node: all that is not durable is gone.
    PowerCut { node: u8 },
    /// The process dies and is opened again on the same boot.
    ProcessCrash { node: u8 },
    /// A node that lost power opens its log: R1 and R2 decide what it is.
    Open { node: u8 },
    /// An older copy of a directory is put back.
    RollBack { node: u8, keeps: u8 },
    /// Bytes below the durable frontier go bad.
    Damage { node: u8, keeps: u8 },
    /// A leader learns that a peer id is retired (R4).
    LearnRetired { leader: u8, node: u8 },
    /// The leader proposes to remove a node's retired peer id.
    Remove { leader: u8, node: u8 },
    /// The leader proposes to promote a learner.
    Promote { leader: u8, node: u8 },
    /// The operator declares a node gone.
    Forget { node: u8 },
    /// Group 0 orders a recovery: answers are collected.
    OrderRecovery,
    /// A replica answers the collect order.
    Collect { node: u8 },
    /// The longest history wins and starts the new generation.
    Recover { winner: u8 },
    /// A replica is rebuilt from the winner's snapshot.
    Rebuild { node: u8 },
}

/// Nodes of a set of bits, for people.
fn nodes(set: u8) -> String {
    let names: Vec<_> = (0..8)
        .filter(|n| set & 1 << n != 0)
        .map(|n| format!("n{n}"))
        .collect();
    names.join(", ")
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Action::Append { leader } => write!(f, "Append: n{leader} appends a record"),
            Action::Weaken { leader } => write!(f, "Weaken: n{leader} appends the weakening entry"),
            Action::Write { node } => write!(f, "Write: n{node}'s write completes"),
            Action::Replicate { leader, follower } => {
                write!(
                    f,
                    "Replicate: n{follower} writes what n{leader} sends, and acknowledges"
                )
            }
            Action::Sync { node } => write!(f, "Sync: all that n{node} has written is durable"),
            Action::Campaign { node } => write!(f, "Campaign: n{node} stands in its next term"),
            Action::Vote { candidate, voter } => write!(f, "Vote: n{voter} votes for n{candidate}"),
            Action::Elect {
                candidate,
                term,
                voters,
            } => {
                write!(
                    f,
                    "Elect: n{candidate} leads term {term} by the votes of itself and {}",
                    nodes(voters)
                )
            }
            Action::PowerCut { node } => write!(f, "PowerCut: n{node} loses what is not durable"),
            Action::ProcessCrash { node } => write!(
                f,
                "ProcessCrash: n{node} dies and opens again on the same boot"
            ),
            Action::Open { node } => write!(f, "Open: n{node} opens its log after a power cut"),
            Action::RollBack { node, keeps } => {
                write!(
                    f,
                    "RollBack: n{node} is put back to an older copy with {keeps} entries"
                )
            }
            Action::Damage { node, keeps } => {
                write!(f, "Damage: n{node} keeps {keeps} of its durable entries")
            }
            Action::LearnRetired { leader, node } => {
                write!(
                    f,
                    "LearnRetired: n{leader} learns that n{node}'s old peer id is retired"
                )
            }
            Action::Remove { leader, node } => write!(
                f,
                "Remove: n{leader} proposes to remove n{node}'s old peer id"
            ),
            Action::Promote { leader, node } => {
                write!(f, "Promote: n{leader} proposes to promote n{node}")
            }
            Action::Forget { node } => write!(f, "Forget: the operator declares n{node} gone"),
            Action::OrderRecovery => write!(f, "OrderRecovery: group 0 orders a new generation"),
            Action::Collect { node } => write!(f, "Collect: n{node} stops, syncs, answers"),
            Action::Recover { winner } => write!(f, "Recover: n{winner}'s history wins"),
            Action::Rebuild { node } => write!(f, "Rebuild: n{node} takes the winner's snapshot"),
        }
    }
}

/// The bounds and the rules in force.
#[derive(Clone, Copy, Debug)]
pub struct World {
    pub scope: Scope,
    pub dropped: Dropped,
}

impl World {
    pub fn keeps(&self, rule: Rule) -> bool {
        self.dropped.keeps(rule)
    }

    /// The frontier at which a replica answers.
    pub fn answer_next(&self, node: &Node) -> u8 {
        if node.weak || !self.keeps(Rule::R7Answer) {
            node.written_next
        } else {
            node.durable_next
        }
    }

    /// All that can happen now.
    pub fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        replication::actions(self, state, actions);
        election::actions(self, state, actions);
        if self.scope.membership {
            membership::actions(self, state, actions);
        }
        if self.scope.recovery {
            recovery::actions(self, state, actions);
        }
        faults::actions(self, state, actions);
    }

    /// The state after the step.
    pub fn after(&self, state: &State, action: Action) -> State {
        let mut next = *state;
        let at = usize::from;
        match action {
            Action::Append { leader } => replication::append(self, &mut next, at(leader)),
            Action::Weaken { leader } => replication::weaken(self, &mut next, at(leader)),
            Action::Write { node } => replication::write(self, &mut next, at(node)),
            Action::Replicate { leader, follower } => {
                replication::replicate(self, &mut next, at(leader), at(follower))
            }
            Action::Sync { node } => replication::sync(self, &mut next, at(node)),
            Action::Campaign { node } => election::campaign(self, &mut next, at(node)),
            Action::Vote { candidate, voter } => {
                election::vote(self, &mut next, at(candidate), at(voter))
            }
            Action::Elect {
                candidate,
                term,
                voters,
            } => election::elect(self, &mut next, at(candidate), term, voters),
            Action::PowerCut { node } => faults::power_cut(self, &mut next, at(node)),
            Action::ProcessCrash { node } => faults::process_crash(self, &mut next, at(node)),
            Action::Open { node } => faults::open(self, &mut next, at(node)),
            Action::RollBack { node, keeps } => faults::roll_back(&mut next, at(node), keeps),
            Action::Damage { node, keeps } => faults::damage(&mut next, at(node), keeps),
            Action::Forget { node } => faults::forget(&mut next, at(node)),
            Action::LearnRetired { leader, node } => {
                membership::learn_retired(self, &mut next, at(leader), at(node))
            }
            Action::Remove { leader, node } => {
                membership::remove(self, &mut next, at(leader), at(node))
            }
            Action::Promote { leader, node } => {
                membership::promote(self, &mut next, at(leader), at(node))
            }
            Action::OrderRecovery => recovery::order(&mut next),
            Action::Collect { node } => recovery::collect(self, &mut next, at(node)),
            Action::Recover { winner } => recovery::recover(self, &mut next, at(winner)),
            Action::Rebuild { node } => recovery::rebuild(self, &mut next, at(node)),
        }
        next
    }
}
