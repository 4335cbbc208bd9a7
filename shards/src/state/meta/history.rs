//! What group 0 knows of a data group's history: its generation, who may vote in it,
//! and the answers that a recovery collects (R6).
//!
//! 1. A replica is known as a voter before its promotion is proposed to its group, so
//!    that nobody who may have voted or acknowledged is left out of a recovery.
//! 2. A recovery begins the next generation from an answer that counts, once every
//!    trusted voter answered and enough answers count.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    peer_id, peer_node, MetaOutcome, MetaState, QueueDeclaration, FIRST_GENERATION, FOUNDING_JOIN,
};
use crate::mutation::{removed, Rule};

/// What group 0 knows of a data group's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupHistory {
    pub generation: u32,
    /// Peer ids that never answer again.
    pub retired: BTreeSet<u64>,
    /// The peer id that the last recovery made; the generation began with it alone.
    pub newest_peer: u64,
    /// Replicas that joined anew: the retired peer id, and the one that replaces it.
    pub replaced: BTreeMap<u64, u64>,
    /// Of the retired, those that may have lost what they reported durable.
    pub harmed: BTreeSet<u64>,
    /// Replicas that joined this generation later and may vote in it.
    pub promoted: BTreeSet<u64>,
    /// Replicas of nodes that have no part in the group any more.
    pub left: BTreeSet<u64>,
    /// Replicas of ended generations whose history is in the present one whole: they may
    /// keep it until that is on a majority, and answer for it.
    pub kept: BTreeSet<u64>,
    /// A recovery was ordered, and what it knows so far.
    pub collecting: Option<Collecting>,
}

/// A recovery under way: every replica stops the generation and answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Collecting {
    /// An operator takes fewer answers than nothing lost would need.
    pub accepts_loss: bool,
    /// By node.
    pub answers: BTreeMap<u32, Answer>,
}

/// What a replica that stopped answered: how far its log goes, all of it durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    pub peer: u64,
    pub last_term: u64,
    pub last_index: u64,
    /// It kept all that it ever reported durable in this generation.
    pub counts: bool,
}

impl Answer {
    /// It is about a generation that ended before: it stands behind all others.
    pub fn is_of_ended(&self) -> bool {
        self.last_term == 0 && self.last_index > 0
    }

    /// All of this history is in that one: a term has one leader.
    fn is_in(&self, other: &Answer) -> bool {
        self.last_term == other.last_term && self.last_index <= other.last_index
    }
}

/// How far a recovery has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Collected {
    /// More answers are needed: of these trusted voters, and so many that count.
    Waits { of: Vec<u64>, counting: usize },
    /// The replica whose history is the longest; `all` nodes answered.
    Enough { winner: u64, all: bool },
    /// The answers are enough, and this queue asks that an operator decides first: it may
    /// lose what was confirmed at written.
    Halted { queue_id: u64 },
}

impl GroupHistory {
    pub(super) fn new() -> Self {
        GroupHistory {
            generation: FIRST_GENERATION,
            retired: BTreeSet::new(),
            newest_peer: 0,
            replaced: BTreeMap::new(),
            harmed: BTreeSet::new(),
            promoted: BTreeSet::new(),
            left: BTreeSet::new(),
            kept: BTreeSet::new(),
            collecting: None,
        }
    }

    /// The name that replaces a retired one, and has not left the group since.
    pub fn name_of(&self, retired: u64) -> Option<u64> {
        let new = self.replaced.get(&retired).copied();
        new.filter(|new| !self.left.contains(new))
    }

    /// Those that answered, and whose history is in the one that goes on.
    fn kept_behind(&self, winner: u64) -> BTreeSet<u64> {
        let answers = || self.collecting.iter().flat_map(|it| it.answers.values());
        let won = answers().find(|answer| answer.peer == winner);
        let in_it = |answer: &&Answer| won.is_some_and(|won| answer.is_in(won));
        let kept = answers().filter(in_it).map(|answer| answer.peer);
        kept.filter(|peer| *peer != winner).collect()
    }

    /// Something that a capture's last part has to tell.
    pub(super) fn is_eventful(&self) -> bool {
        !self.promoted.is_empty() || !self.harmed.is_empty() || self.collecting.is_some()
    }
}

impl MetaState {
    /// Every replica that may have voted in the group's generation and is in it still, in
    /// a cluster founded by these nodes.
    pub fn voters_ever(&self, group: u32, nodes: &[u32]) -> BTreeSet<u64> {
        let founders = self.founders(nodes).iter();
        let founders = founders.map(|node| peer_id(*node, FOUNDING_JOIN));
        let Some(history) = self.group(group) else {
            return founders.collect();
        };
        let mut voters = history.promoted.clone();
        match history.generation {
            FIRST_GENERATION => voters.extend(founders),
            _ => voters.extend([history.newest_peer]),
        }
        voters.retain(|peer| !history.left.contains(peer));
        voters
    }

    /// Those of them that remember what they answered and were not given up.
    pub fn trusted(&self, group: u32, nodes: &[u32]) -> BTreeSet<u64> {
        let mut voters = self.voters_ever(group, nodes);
        voters.retain(|peer| {
            !self.is_retired(group, *peer) && !self.forgotten.contains(&peer_node(*peer))
        });
        voters
    }

    /// Whether the group's ordered recovery may begin the next generation; `None` when
    /// none is ordered.
    pub fn collected(&self, group: u32, nodes: &[u32]) -> Option<Collected> {
        let collecting = self.group(group)?.collecting.as_ref()?;
        let answers = &collecting.answers;
        let answered = |peer: &u64| answers.values().any(|answer| answer.peer == *peer);
        let trusted = self.trusted(group, nodes);
        let of: Vec<u64> = trusted.into_iter().filter(|peer| !answered(peer)).collect();
        let loss = collecting.accepts_loss;
        let kept = |answer: &&Answer| answer.counts || loss || removed(Rule::R6Kept);
        let counting = answers.values().filter(kept);
        let missing = self.answers_missing(group, nodes, collecting, counting.clone());
        let longest = counting.max_by_key(|answer| {
            let node = Reverse(peer_node(answer.peer));
            match removed(Rule::R6Longest) {
                true => (0, 0, node),
                false => (answer.last_term, answer.last_index, node),
            }
        });
        let of_all = of.is_empty() || removed(Rule::R6AllTrusted);
        let enough = missing == 0 || removed(Rule::R6Count);
        let halting = self.halting(group).filter(|_| !loss);
        Some(match longest {
            Some(_) if of_all && enough && halting.is_some() => Collected::Halted {
                queue_id: halting.unwrap_or_default(),
            },
            Some(longest) if of_all && enough => Collected::Enough {
                winner: longest.peer,
                all: self
                    .quorums(group, nodes)
                    .iter()
                    .flatten()
                    .all(|node| answers.contains_key(node)),
            },
            _ => Collected::Waits {
                of,
                counting: missing,
            },
        })
    }

    /// A queue with a partition in the group that asks for an operator on total loss.
    fn halting(&self, group: u32) -> Option<u64> {
        let of_group = |queue: &&Arc<QueueDeclaration>| queue.groups.contains(&group);
        let mut halting = self.queues.iter().filter(|queue| queue.halts);
        halting.find(of_group).map(|queue| queue.queue_id)
    }

    /// Replicas whose answer says the same as the winner's, and counts as it does.
    pub fn as_long_as(&self, group: u32, winner: u64) -> Vec<u64> {
        let history = self.group(group);
        let collecting = history.and_then(|history| history.collecting.as_ref());
        let answers = || collecting.into_iter().flat_map(|it| it.answers.values());
        let Some(won) = answers().find(|answer| answer.peer == winner) else {
            return Vec::new();
        };
        let same = |answer: &&Answer| {
            let last = (answer.last_term, answer.last_index);
            last == (won.last_term, won.last_index) && answer.counts >= won.counts
        };
        answers().filter(same).map(|answer| answer.peer).collect()
    }

    /// E - majority + 1 answers meet every majority. Where fewer ever voted in the
    /// generation (it is still being rebuilt), all of those do, too. So it is of the
    /// nodes that hold the group, and while one is shifted of those before as well: a
    /// confirm was met among the ones or among the others.
    fn answers_missing<'a>(
        &self,
        group: u32,
        nodes: &[u32],
        collecting: &Collecting,
        counting: impl Iterator<Item = &'a Answer> + Clone,
    ) -> usize {
        let any = 1usize.saturating_sub(counting.clone().count());
        if collecting.accepts_loss {
            return any;
        }
        let voters = self.voters_ever(group, nodes);
        let of_set = |set: Vec<u32>| {
            let meets = set.len() + 1 - (set.len() / 2 + 1);
            let voted = voters
                .iter()
                .filter(|peer| set.contains(&peer_node(**peer)));
            let there = counting.clone();
            let there = there.filter(|answer| set.contains(&peer_node(answer.peer)));
            meets.min(voted.count()).saturating_sub(there.count())
        };
        let sets = self.quorums(group, nodes);
        sets.into_iter().map(of_set).max().unwrap_or(0).max(any)
    }

    /// The replica of the group is neither retired nor did its node leave.
    pub(super) fn counts(&self, group: u32, peer: u64) -> bool {
        let history = self.group(group);
        history.is_none_or(|it| !it.retired.contains(&peer) && !it.left.contains(&peer))
    }

    pub(super) fn history(&mut self, group: u32) -> &mut GroupHistory {
        self.groups.entry(group).or_insert_with(GroupHistory::new)
    }

    /// Asked for twice it answers the same.
    pub(super) fn rejoin(&mut self, group: u32, retired_peer: u64, harmed: bool) -> MetaOutcome {
        let nameless = super::is_nameless(retired_peer);
        if nameless {
            if let Err(unseated) = self.sit(retired_peer) {
                let reason = unseated.to_string();
                return MetaOutcome::Refused { reason };
            }
        }
        if self.is_former(retired_peer) {
            let reason = format!("the directory of peer {retired_peer:#x} was given up");
            return MetaOutcome::Refused { reason };
        }
        if !self.has_part(group, peer_node(retired_peer)) {
            let node = peer_node(retired_peer);
            let reason = format!("node {node} has no part in group {group}");
            return MetaOutcome::Refused { reason };
        }
        let next_join = self.next_join;
        let history = self.history(group);
        if harmed {
            history.harmed.insert(retired_peer);
        }
        if let Some(new_peer) = history.name_of(retired_peer) {
            return MetaOutcome::Replaced { new_peer };
        }
        let again = removed(Rule::JoinNumbers);
        if super::peer_join(retired_peer) >= next_join && !again && !nameless {
            let reason =
                format!("peer {retired_peer:#x} of group {group} is none that could join anew");
            return MetaOutcome::Refused { reason };
        }
        let new_peer = peer_id(peer_node(retired_peer), next_join);
        history.retired.insert(retired_peer);
        history.replaced.insert(retired_peer, new_peer);
        self.next_join += u64::from(!again);
        MetaOutcome::Replaced { new_peer }
    }

    /// Every replica that joined anew: group, the retired peer id, the new one.
    pub fn replaced(&self) -> impl Iterator<Item = (u32, u64, u64)> + '_ {
        self.groups.iter().flat_map(|(group, history)| {
            let replaced = history.replaced.iter();
            replaced.map(|(retired, new)| (*group, *retired, *new))
        })
    }

    /// Every group that has a history.
    pub fn histories(&self) -> impl Iterator<Item = (u32, &GroupHistory)> {
        self.groups.iter().map(|(group, history)| (*group, history))
    }

    pub(super) fn promoting(&mut self, group: u32, generation: u32, peer: u64) -> MetaOutcome {
        let known = self.roster.as_ref();
        let held = known.is_none_or(|it| it.is_holder(group, peer_node(peer)));
        let counts = self.counts(group, peer);
        let history = self.history(group);
        let stopped = history.collecting.is_some() || history.generation != generation;
        if stopped || !counts || !held {
            let reason = format!("peer {peer:#x} of group {group} is not to vote any more");
            return MetaOutcome::Refused { reason };
        }
        history.promoted.insert(peer);
        MetaOutcome::History { group }
    }

    pub(super) fn collect(&mut self, group: u32, generation: u32, loss: bool) -> MetaOutcome {
        let history = self.history(group);
        if history.generation != generation {
            let reason = format!("group {group} is in generation {}", history.generation);
            return MetaOutcome::Refused { reason };
        }
        history.collecting.get_or_insert_default().accepts_loss |= loss;
        MetaOutcome::History { group }
    }

    /// An answer to an order that stands; the last of a node counts.
    pub(super) fn answered(&mut self, group: u32, generation: u32, answer: Answer) -> MetaOutcome {
        let node = peer_node(answer.peer);
        let gone = self.forgotten.contains(&node)
            || self.is_former(answer.peer)
            || !self.has_part(group, node);
        let history = self.history(group);
        // Of an ended generation only what is known to be in this one: what is reported as
        // lost would not be exact.
        let strays = answer.is_of_ended() && !history.kept.contains(&answer.peer);
        let current = history.generation == generation && !gone && !strays;
        match history.collecting.as_mut().filter(|_| current) {
            Some(collecting) => {
                collecting.answers.insert(peer_node(answer.peer), answer);
                MetaOutcome::Noted
            }
            None => MetaOutcome::Refused {
                reason: format!("nobody collects answers of group {group}"),
            },
        }
    }

    pub(super) fn recovered(
        &mut self,
        group: u32,
        generation: u32,
        retired_peer: u64,
        new_peer: u64,
    ) -> MetaOutcome {
        let known = self.groups.get(&group);
        let current = self.generation(group);
        if known.is_some_and(|known| {
            generation == known.generation
                && new_peer == known.newest_peer
                && known.retired.contains(&retired_peer)
        }) {
            return MetaOutcome::History { group };
        }
        if generation <= current {
            return MetaOutcome::Refused {
                reason: format!(
                    "group {group} is in generation {current}, which {generation} does not follow"
                ),
            };
        }
        if self.is_former(retired_peer) {
            let reason = format!("the directory of peer {retired_peer:#x} was given up");
            return MetaOutcome::Refused { reason };
        }
        if new_peer == retired_peer || super::peer_join(new_peer) < self.next_join {
            return MetaOutcome::Refused {
                reason: format!(
                    "join number {} of the new peer of group {group} was given out before",
                    super::peer_join(new_peer)
                ),
            };
        }
        self.next_join = super::peer_join(new_peer) + 1;
        let history = self.history(group);
        history.generation = generation;
        history.newest_peer = new_peer;
        history.retired.insert(retired_peer);
        // Names of the ended generation mean nothing in the new one.
        history.replaced.clear();
        history.promoted.clear();
        history.left.clear();
        history.kept = history.kept_behind(retired_peer);
        history.collecting = None;
        self.begin_with(group, new_peer);
        MetaOutcome::History { group }
    }

    /// A node that an operator gave up: nobody waits for its answers any more, and what
    /// it answered is gone with it.
    pub(super) fn forget(&mut self, node: u32) -> MetaOutcome {
        self.forgotten.insert(node);
        for history in self.groups.values_mut() {
            if let Some(collecting) = &mut history.collecting {
                collecting.answers.remove(&node);
            }
        }
        MetaOutcome::Noted
    }

    /// Nodes that an operator gave up.
    pub fn forgotten(&self) -> &BTreeSet<u32> {
        &self.forgotten
    }
}

#[cfg(test)]
mod tests {
    use wire::vocabulary::Mode;

    use super::*;
    use crate::state::meta::{DeclareRequest, MetaCommand};

    const NODES: [u32; 3] = [1, 2, 3];

    fn founder(node: u32) -> u64 {
        peer_id(node, FOUNDING_JOIN)
    }

    fn answered(peer: u64, last: (u64, u64), counts: bool) -> MetaCommand {
        let (last_term, last_index) = last;
        let answer = Answer {
            peer,
            last_term,
            last_index,
            counts,
        };
        MetaCommand::Answered {
            group: 4,
            generation: 1,
            answer,
        }
    }

    fn ordered() -> MetaState {
        let mut state = MetaState::new(8);
        for node in [1, 2] {
            state.apply(&MetaCommand::Rejoin {
                group: 4,
                retired_peer: founder(node),
                harmed: false,
            });
        }
        state.apply(&MetaCommand::Collect {
            group: 4,
            generation: 1,
            accepts_loss: false,
        });
        state
    }

    #[test]
    fn every_trusted_voter_is_waited_for() {
        let mut state = ordered();
        assert_eq!(state.trusted(4, &NODES), BTreeSet::from([founder(3)]));
        state.apply(&answered(peer_id(1, 2), (3, 9), true));
        state.apply(&answered(peer_id(2, 3), (3, 7), true));
        let waits = Collected::Waits {
            of: vec![founder(3)],
            counting: 0,
        };
        assert_eq!(state.collected(4, &NODES), Some(waits));
        state.apply(&answered(founder(3), (2, 20), true));
        let enough = Collected::Enough {
            winner: peer_id(1, 2),
            all: true,
        };
        assert_eq!(state.collected(4, &NODES), Some(enough));
        assert_eq!(state.as_long_as(4, peer_id(1, 2)), [peer_id(1, 2)]);
        // Another that says the same may begin the generation as well.
        state.apply(&answered(peer_id(2, 3), (3, 9), true));
        let both = [peer_id(1, 2), peer_id(2, 3)];
        assert_eq!(state.as_long_as(4, peer_id(1, 2)), both);
    }

    #[test]
    fn a_queue_that_halts_makes_its_group_wait_until_loss_is_accepted() {
        let mut state = ordered();
        let asked = |name: &str, halts| DeclareRequest {
            name: name.to_owned(),
            mode: Some(Mode::Buffered),
            partitions: Some(8),
            halts: Some(halts),
            ..DeclareRequest::default()
        };
        // Groups 5 to 8 are of buffered queues.
        state.apply(&MetaCommand::Declare(asked("any", false)));
        let order = |group, accepts_loss| MetaCommand::Collect {
            group,
            generation: 1,
            accepts_loss,
        };
        let answered_of = |group, node| {
            let answer = Answer {
                peer: founder(node),
                last_term: 3,
                last_index: 9,
                counts: true,
            };
            let generation = 1;
            MetaCommand::Answered {
                group,
                generation,
                answer,
            }
        };
        state.apply(&order(6, false));
        for node in NODES {
            state.apply(&answered_of(6, node));
        }
        let enough = Some(Collected::Enough {
            winner: founder(1),
            all: true,
        });
        assert_eq!(state.collected(6, &NODES), enough);
        state.apply(&MetaCommand::Declare(asked("careful", true)));
        let queue_id = state.by_name("careful").unwrap().queue_id;
        let halted = Some(Collected::Halted { queue_id });
        assert_eq!(state.collected(6, &NODES), halted);
        let restored = MetaState::restore(8, &{
            let mut bytes = Vec::new();
            state.capture(&mut bytes);
            bytes
        });
        assert_eq!(restored.unwrap().collected(6, &NODES), halted);
        state.apply(&order(6, true));
        assert_eq!(state.collected(6, &NODES), enough);
    }

    #[test]
    fn a_forgotten_node_is_not_waited_for() {
        let mut state = ordered();
        state.apply(&answered(peer_id(1, 2), (3, 9), true));
        state.apply(&answered(peer_id(2, 3), (3, 9), true));
        state.apply(&MetaCommand::Forget { node: 3 });
        let enough = Collected::Enough {
            winner: peer_id(1, 2),
            all: false,
        };
        assert_eq!(state.collected(4, &NODES), Some(enough));
    }

    #[test]
    fn answers_of_the_wiped_do_not_count_unless_loss_is_accepted() {
        let mut state = ordered();
        state.apply(&answered(founder(3), (2, 5), true));
        state.apply(&answered(peer_id(1, 2), (3, 9), false));
        let waits = Collected::Waits {
            of: Vec::new(),
            counting: 1,
        };
        assert_eq!(state.collected(4, &NODES), Some(waits));
        state.apply(&MetaCommand::Collect {
            group: 4,
            generation: 1,
            accepts_loss: true,
        });
        let enough = |winner| Some(Collected::Enough { winner, all: false });
        // The longest of what there is.
        assert_eq!(state.collected(4, &NODES), enough(peer_id(1, 2)));
        // What a forgotten node answered is gone with it.
        state.apply(&MetaCommand::Forget { node: 1 });
        assert_eq!(state.collected(4, &NODES), enough(founder(3)));
        state.apply(&answered(peer_id(1, 2), (9, 99), true));
        assert_eq!(state.collected(4, &NODES), enough(founder(3)));
    }

    #[test]
    fn a_generation_that_only_its_winner_voted_in_recovers_from_it_alone() {
        let mut state = ordered();
        for peer in [peer_id(1, 2), peer_id(2, 3), founder(3)] {
            state.apply(&answered(peer, (3, 9), true));
        }
        let new_peer = state.next_peer_id(1);
        let recovered = state.apply(&MetaCommand::Recovered {
            group: 4,
            generation: 2,
            retired_peer: peer_id(1, 2),
            new_peer,
        });
        assert_eq!(recovered, MetaOutcome::History { group: 4 });
        assert_eq!(state.collected(4, &NODES), None);
        assert_eq!(state.voters_ever(4, &NODES), BTreeSet::from([new_peer]));
        state.apply(&MetaCommand::Collect {
            group: 4,
            generation: 2,
            accepts_loss: false,
        });
        state.apply(&MetaCommand::Answered {
            group: 4,
            generation: 2,
            answer: Answer {
                peer: new_peer,
                last_term: 4,
                last_index: 12,
                counts: true,
            },
        });
        let enough = Collected::Enough {
            winner: new_peer,
            all: false,
        };
        assert_eq!(state.collected(4, &NODES), Some(enough));
        // Late words of the ended generation change nothing.
        let before = state.group(4).cloned();
        state.apply(&answered(founder(3), (9, 99), true));
        state.apply(&MetaCommand::Promoting {
            group: 4,
            generation: 1,
            peer: founder(3),
        });
        assert_eq!(state.group(4), before.as_ref());
    }
}
