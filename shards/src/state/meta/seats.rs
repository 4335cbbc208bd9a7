//! Which data directory is a node's, once an operator gave up the one that was (R1).
//!
//! A directory that was made to join has no name in any group. Until group 0 gives it
//! one it goes by its node's number and by its own cookie ([`nameless_peer`]).
//!
//! 1. A node that was never replaced has no seat: its directory is known by its opens.
//! 2. A seat is taken once, by a directory that was made to join; only another
//!    replacement makes it free again.
//! 3. A directory that was given up never takes a seat again.
//! 4. Of a number that was removed and given again: a directory that asked for a name
//!    before it heard of its removal can have taken the seat. The next one that asks takes
//!    it over, while nothing rests on the first: it voted nowhere, and said that it opened
//!    its logs nowhere, so that it may not even know that it has a name.
//! 5. With the directory every replica in it is given up: retired as harmed, in every
//!    group. Nobody has its place until the seat's holder asks for a name there.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::{peer_id, peer_join, peer_node, GroupHistory, MetaOutcome, MetaState};

/// Join numbers from here on are no join numbers: group 0 counts up from 1.
const NAMELESS: u64 = 1 << 39;

/// What a directory that was made to join is called before it has a name: 39 bits of its
/// cookie in the place of a join number.
pub fn nameless_peer(node: u32, cookie: u64) -> u64 {
    peer_id(node, NAMELESS | cookie & (NAMELESS - 1))
}

/// The peer is a directory without a name, see [`nameless_peer`].
pub fn is_nameless(peer: u64) -> bool {
    peer_join(peer) >= NAMELESS
}

/// Stands in the place of a replica that was given up, until another one joins.
pub fn vacant_peer(node: u32) -> u64 {
    peer_id(node, 0)
}

/// Nobody: see [`vacant_peer`].
pub fn is_vacant(peer: u64) -> bool {
    peer_join(peer) == 0
}

/// A node whose directory was given up. Directories are [`nameless_peer`]s.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seat {
    /// The directory that took it.
    pub holder: Option<u64>,
    /// Those that were given up.
    pub former: BTreeSet<u64>,
    /// Replicas under lower join numbers were theirs.
    pub first_join: u64,
    /// The order by which it was given up last.
    pub order: u32,
    /// The number was removed, and given again.
    pub readmitted: bool,
}

/// Why a directory cannot be the node's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unseated {
    GivenUp,
    NotMadeToJoin,
    Taken,
    /// The node's directory was not given up.
    NotReplaced {
        node: u32,
    },
}

impl fmt::Display for Unseated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unseated::GivenUp => f.write_str(
                "its data directory was given up by an operator (cluster replace or remove) and cannot come back; delete it, and start the node on an empty directory with --join if none has taken its place",
            ),
            Unseated::NotMadeToJoin => f.write_str(
                "the node's data directory was given up by an operator, and this one, be it that one or new, was not made to take its place; start the node on an empty directory with `tidegate serve --join`",
            ),
            Unseated::Taken => f.write_str(
                "another data directory has taken the place of the one that was given up; use that one, or if it is lost, too, give it up with `tidegate cluster replace`",
            ),
            Unseated::NotReplaced { node } => write!(
                f,
                "its data directory was made to join, and the one that was node {node}'s is not given up; if that is lost for good, run `tidegate cluster replace {node} --confirm` at another node"
            ),
        }
    }
}

impl Seat {
    /// Whether the directory is the node's, or may become it.
    ///
    /// # Errors
    /// Why it is not.
    pub fn admits(&self, node: u32, cookie: u64, joins: bool) -> Result<(), Unseated> {
        let directory = nameless_peer(node, cookie);
        if self.former.contains(&directory) {
            return Err(Unseated::GivenUp);
        }
        match self.holder {
            Some(holder) if holder == directory => Ok(()),
            _ if !joins => Err(Unseated::NotMadeToJoin),
            Some(_) => Err(Unseated::Taken),
            None => Ok(()),
        }
    }
}

impl MetaState {
    /// Nodes that were replaced.
    pub fn seats(&self) -> &BTreeMap<u32, Seat> {
        &self.seats
    }

    /// Whether a directory that was made to join may have names.
    ///
    /// # Errors
    /// Why not.
    pub fn may_sit(&self, directory: u64) -> Result<(), Unseated> {
        let node = peer_node(directory);
        let seat = self.seats.get(&node);
        let seat = seat.ok_or(Unseated::NotReplaced { node })?;
        match seat.admits(node, peer_join(directory), true) {
            Err(Unseated::Taken) if self.is_unsettled(node) => Ok(()),
            judged => judged,
        }
    }

    /// Another directory may take the seat over.
    pub fn is_unsettled(&self, node: u32) -> bool {
        let readmitted = self.seats.get(&node).is_some_and(|seat| seat.readmitted);
        let opened = || self.level_of(node).is_some();
        let votes = |(group, history): (&u32, &GroupHistory)| {
            let mut voters = history.promoted.iter().chain([&history.newest_peer]);
            voters.any(|peer| peer_node(*peer) == node && self.counts(*group, *peer))
        };
        readmitted && !opened() && !self.groups.iter().any(votes)
    }

    /// It takes the seat with the first name that it asks for.
    pub(super) fn sit(&mut self, directory: u64) -> Result<(), Unseated> {
        self.may_sit(directory)?;
        let node = peer_node(directory);
        let holder = self.seats.get(&node).and_then(|seat| seat.holder);
        if holder.is_some_and(|holder| holder != directory) {
            self.vacate(node);
        }
        if let Some(seat) = self.seats.get_mut(&node) {
            seat.holder = Some(directory);
        }
        Ok(())
    }

    /// The replica was in a directory that was given up: whatever it still asks for or
    /// answers is late.
    pub fn is_former(&self, peer: u64) -> bool {
        let seat = self.seats.get(&peer_node(peer));
        seat.is_some_and(|seat| peer_join(peer) < seat.first_join)
    }

    /// The order was carried out: it may come again, when its answer was lost.
    pub fn is_given_up_by(&self, node: u32, order: u32) -> bool {
        let seat = self.seats.get(&node);
        seat.is_some_and(|seat| seat.order == order)
    }

    /// A node's directory is given up, and with it all of its replicas.
    pub(super) fn replace(&mut self, node: u32, order: u32) -> MetaOutcome {
        if self.is_given_up_by(node, order) {
            return MetaOutcome::Noted;
        }
        let seat = self.vacate(node);
        seat.order = order;
        seat.readmitted = false;
        self.forgotten.remove(&node);
        MetaOutcome::Vacated { node }
    }

    /// Nothing of the node's directory counts any more.
    fn vacate(&mut self, node: u32) -> &mut Seat {
        let founders = self.founders(&[node]).to_vec();
        for group in 0..=self.placement.groups() {
            let history = self.history(group);
            for peer in history.names_of(node, &founders) {
                history.retired.insert(peer);
                history.harmed.insert(peer);
                history.replaced.insert(peer, vacant_peer(node));
            }
            if let Some(collecting) = &mut history.collecting {
                collecting.answers.remove(&node);
            }
        }
        let opens = self.opens.range((node, 0)..=(node, u16::MAX));
        let mut former: BTreeSet<u64> = opens
            .map(|(_, open)| nameless_peer(node, open.cookie))
            .collect();
        self.opens.retain(|(of, _), _| *of != node);
        let seat = self.seats.entry(node).or_default();
        former.extend(seat.holder.take());
        seat.former.append(&mut former);
        seat.first_join = self.next_join;
        seat
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::meta::{Lineage, MemberCommand, MetaCommand, Open, FOUNDING_JOIN};

    const NODES: [u32; 3] = [1, 2, 3];

    fn rejoin(state: &mut MetaState, group: u32, retired_peer: u64) -> MetaOutcome {
        state.apply(&MetaCommand::Rejoin {
            group,
            retired_peer,
            harmed: true,
        })
    }

    fn open(node: u32, cookie: u64) -> MetaCommand {
        let open = Open {
            cookie,
            counter: 1,
            nonce: 7,
            lineage: Lineage::default(),
            level: 1,
        };
        MetaCommand::Opened { node, log: 0, open }
    }

    fn is_refused(outcome: &MetaOutcome) -> bool {
        matches!(outcome, MetaOutcome::Refused { .. })
    }

    #[test]
    fn one_new_directory_takes_the_place_of_one_that_was_given_up() {
        let mut state = MetaState::new(2);
        state.apply(&open(3, 30));
        let (new, other) = (nameless_peer(3, 31), nameless_peer(3, 32));
        // Nobody was replaced.
        assert!(is_refused(&rejoin(&mut state, 0, new)));
        assert_eq!(state.may_sit(new), Err(Unseated::NotReplaced { node: 3 }));

        state.apply(&MetaCommand::Replace { node: 3, order: 5 });
        for group in 0..=2 {
            assert!(state.is_retired(group, peer_id(3, FOUNDING_JOIN)));
            assert_eq!(state.trusted(group, &NODES).len(), 2);
        }
        let seat = state.seats()[&3].clone();
        assert_eq!(seat.admits(3, 30, true), Err(Unseated::GivenUp));
        assert_eq!(seat.admits(3, 30, false), Err(Unseated::GivenUp));
        assert_eq!(seat.admits(3, 31, false), Err(Unseated::NotMadeToJoin));
        assert_eq!(seat.admits(3, 31, true), Ok(()));
        assert!(is_refused(&rejoin(&mut state, 0, nameless_peer(3, 30))));
        // Late words of the old one's replicas.
        assert!(is_refused(&rejoin(
            &mut state,
            2,
            peer_id(3, FOUNDING_JOIN)
        )));
        // Nobody's open is noted before the place is taken.
        assert!(is_refused(&state.apply(&open(3, 31))));

        let named = rejoin(&mut state, 0, new);
        let MetaOutcome::Replaced { new_peer } = named else {
            panic!("{named:?}");
        };
        assert_eq!(rejoin(&mut state, 0, new), named);
        assert!(!is_nameless(new_peer) && peer_node(new_peer) == 3);
        assert!(is_refused(&rejoin(&mut state, 0, other)));
        assert!(is_refused(&state.apply(&open(3, 32))));
        assert!(!is_refused(&state.apply(&open(3, 31))));
        let seat = &state.seats()[&3];
        assert_eq!(seat.admits(3, 32, true), Err(Unseated::Taken));
        assert_eq!(seat.admits(3, 31, true), Ok(()));
    }

    #[test]
    fn a_node_is_replaced_again_before_and_after_it_counted() {
        let mut state = MetaState::new(1);
        for (number, cookie) in [41, 42, 43].into_iter().enumerate() {
            let order = number as u32;
            state.apply(&MetaCommand::Replace { node: 2, order });
            let directory = nameless_peer(2, cookie);
            let MetaOutcome::Replaced { new_peer } = rejoin(&mut state, 1, directory) else {
                panic!("not named");
            };
            if number == 1 {
                state.apply(&MetaCommand::Promoting {
                    group: 1,
                    generation: 1,
                    peer: new_peer,
                });
                assert!(state.trusted(1, &NODES).contains(&new_peer));
            }
        }
        let history = state.group(1).unwrap();
        let alive = |peer: &&u64| !history.retired.contains(*peer) && !is_vacant(**peer);
        let alive: Vec<u64> = history.replaced.values().filter(alive).copied().collect();
        assert_eq!(alive.len(), 1);
        assert_eq!(history.replaced[&nameless_peer(2, 43)], alive[0]);
        assert_eq!(state.seats()[&2].former.len(), 2);
        // The same order once more is late.
        let before = state.group(1).cloned();
        state.apply(&MetaCommand::Replace { node: 2, order: 2 });
        assert_eq!(state.group(1), before.as_ref());
        assert_eq!(state.seats()[&2].holder, Some(nameless_peer(2, 43)));
        state.apply(&MetaCommand::Replace { node: 2, order: 3 });
        assert_eq!(state.seats()[&2].holder, None);
        assert_eq!(state.trusted(1, &NODES).len(), 2);
    }

    /// Simulator, members, seed 5042: a late question of a directory that was removed
    /// before it had a name.
    #[test]
    fn a_late_question_of_a_removed_directory_does_not_keep_the_seat() {
        let member = |command| MetaCommand::Members(command);
        let address = |node: u32| format!("127.0.0.1:750{node}");
        let mut state = MetaState::new(2);
        let members = NODES.map(|node| (node, address(node))).to_vec();
        state.apply(&member(MemberCommand::Found { members }));
        let (node, zone) = (4, String::new());
        let again = MemberCommand::Readmit {
            node,
            address: address(4),
            zone: zone.clone(),
        };
        let (address, late) = (address(4), nameless_peer(4, 41));
        let add = MemberCommand::Add {
            node,
            address,
            zone,
        };
        let (leave, remove) = (
            member(MemberCommand::Leave { node }),
            member(MemberCommand::Remove { node }),
        );
        let (new, other) = (nameless_peer(4, 42), nameless_peer(4, 43));
        let named = |state: &mut MetaState, directory| match rejoin(state, 0, directory) {
            MetaOutcome::Replaced { new_peer } => Some(new_peer),
            _ => None,
        };
        // Without the order that says so the first one that asks has it.
        let mut before = MetaState::new(2);
        for command in [&member(add.clone()), &leave, &remove, &member(add)] {
            before.apply(command);
            state.apply(command);
        }
        assert!(named(&mut state, late).is_some());
        assert_eq!(state.may_sit(new), Err(Unseated::Taken));
        for command in [&leave, &remove, &member(again)] {
            state.apply(command);
        }
        assert_eq!(state.may_sit(late), Err(Unseated::GivenUp), "it had a name");
        let late = nameless_peer(4, 44);
        let old = named(&mut state, late).unwrap();
        let mut bytes = Vec::new();
        state.capture(&mut bytes);
        let mut state = MetaState::restore(2, &bytes).unwrap();
        // The one that was started since takes it over, in every group.
        let name = named(&mut state, new).unwrap();
        assert!(state.is_retired(0, old) && !state.is_retired(0, name));
        assert_eq!(state.may_sit(late), Err(Unseated::GivenUp));
        assert!(is_refused(&rejoin(&mut state, 1, late)));
        // Until it has shown that it knows.
        assert_eq!(state.may_sit(other), Ok(()));
        let mut votes = MetaState::restore(2, &bytes).unwrap();
        votes.apply(&MetaCommand::Promoting {
            group: 0,
            generation: 1,
            peer: old,
        });
        assert_eq!(votes.may_sit(other), Err(Unseated::Taken));
        assert!(!is_refused(&state.apply(&open(4, 42))));
        assert_eq!(state.may_sit(other), Err(Unseated::Taken));
        assert!(is_refused(&state.apply(&open(4, 43))));
    }

    #[test]
    fn what_a_generation_began_with_is_given_up_and_a_forgotten_node_may_come_anew() {
        let mut state = MetaState::new(1);
        let new_peer = state.next_peer_id(2);
        state.apply(&MetaCommand::Recovered {
            group: 1,
            generation: 2,
            retired_peer: peer_id(2, FOUNDING_JOIN),
            new_peer,
        });
        state.apply(&MetaCommand::Forget { node: 2 });
        state.apply(&MetaCommand::Replace { node: 2, order: 5 });
        assert!(state.is_retired(1, new_peer));
        assert!(state.forgotten().is_empty());
        assert!(state.trusted(1, &NODES).is_empty());
    }
}
