//! Changes of a group's membership, as entries of its log.
//!
//! One step at a time (R3): a replica is removed, joins as a learner, or is
//! promoted. A change takes effect on a replica once it is durable there (R5).
//!
//! ```text
//! 0  step  u8   1 remove, 2 add a learner, 3 promote
//! 1  zero  7 bytes
//! 8  peer  u64 LE
//! ```

use raft::eraftpb::{ConfChange, ConfChangeType, ConfState, EntryType};

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MembershipStep {
    Remove,
    AddLearner,
    Promote,
}

/// A step and whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MembershipChange {
    pub step: MembershipStep,
    pub peer: u64,
}

const BYTES: usize = 16;

impl MembershipChange {
    /// An entry's payload.
    pub fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[0] = match self.step {
            MembershipStep::Remove => 1,
            MembershipStep::AddLearner => 2,
            MembershipStep::Promote => 3,
        };
        bytes[8..].copy_from_slice(&self.peer.to_le_bytes());
        bytes
    }

    /// Reads an entry's payload; `None` if it is none.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let (head, peer) = payload.split_first_chunk::<8>()?;
        let step = match head {
            [1, 0, 0, 0, 0, 0, 0, 0] => MembershipStep::Remove,
            [2, 0, 0, 0, 0, 0, 0, 0] => MembershipStep::AddLearner,
            [3, 0, 0, 0, 0, 0, 0, 0] => MembershipStep::Promote,
            _ => return None,
        };
        let peer = u64::from_le_bytes(peer.try_into().ok()?);
        Some(MembershipChange { step, peer })
    }

    /// That replica is a voter from now on.
    pub(crate) fn promotes(&self, peer: u64) -> bool {
        self.step == MembershipStep::Promote && self.peer == peer
    }

    pub(super) fn to_raft(self) -> ConfChange {
        let mut change = ConfChange::default();
        change.set_change_type(match self.step {
            MembershipStep::Remove => ConfChangeType::RemoveNode,
            MembershipStep::AddLearner => ConfChangeType::AddLearnerNode,
            MembershipStep::Promote => ConfChangeType::AddNode,
        });
        change.node_id = self.peer;
        change
    }

    /// Makes the change to a membership, as replay does.
    pub fn apply(self, members: &mut Members) {
        let peer = self.peer;
        members.voters.retain(|voter| *voter != peer);
        members.learners.retain(|learner| *learner != peer);
        match self.step {
            MembershipStep::Remove => {}
            MembershipStep::AddLearner => members.learners.push(peer),
            MembershipStep::Promote => members.voters.push(peer),
        }
        members.voters.sort_unstable();
        members.learners.sort_unstable();
    }
}

/// Who belongs to a group, by peer id, ascending.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Members {
    pub voters: Vec<u64>,
    /// Get everything, and never count.
    pub learners: Vec<u64>,
}

impl Members {
    pub fn of_voters(voters: Vec<u64>) -> Self {
        Members {
            voters,
            learners: Vec::new(),
        }
    }

    pub fn contains(&self, peer: u64) -> bool {
        self.voters.contains(&peer) || self.learners.contains(&peer)
    }

    /// `voters u32`, their peer ids, `learners u32`, theirs; little-endian.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_peers(out, &self.voters);
        put_peers(out, &self.learners);
    }

    /// Reads what [`Members::encode`] wrote, and nothing behind it.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (voters, rest) = take_peers(bytes)?;
        let (learners, rest) = take_peers(rest)?;
        rest.is_empty().then_some(Members { voters, learners })
    }

    /// As Raft has them.
    pub fn of_raft(state: &ConfState) -> Self {
        let mut members = Members {
            voters: state.voters.clone(),
            learners: state.learners.clone(),
        };
        members.voters.sort_unstable();
        members.learners.sort_unstable();
        members
    }

    pub(super) fn to_raft(&self) -> ConfState {
        ConfState::from((self.voters.clone(), self.learners.clone()))
    }
}

pub(super) fn put_peers(out: &mut Vec<u8>, peers: &[u64]) {
    out.extend_from_slice(&(peers.len() as u32).to_le_bytes());
    for peer in peers {
        out.extend_from_slice(&peer.to_le_bytes());
    }
}

/// A count and so many peer ids, and what stands behind.
pub(super) fn take_peers(bytes: &[u8]) -> Option<(Vec<u64>, &[u8])> {
    let (count, rest) = bytes.split_first_chunk::<4>()?;
    let len = (u32::from_le_bytes(*count) as usize).checked_mul(8)?;
    let (peers, rest) = rest.split_at_checked(len)?;
    let peers = peers.chunks_exact(8);
    let peers = peers.map(|peer| {
        peer.iter()
            .rev()
            .fold(0, |word, byte| word << 8 | u64::from(*byte))
    });
    Some((peers.collect(), rest))
}

/// Raft's own name for what an entry is.
pub(super) fn entry_type(membership: bool) -> EntryType {
    match membership {
        true => EntryType::EntryConfChange,
        false => EntryType::EntryNormal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_reads_back_and_anything_else_is_refused() {
        for step in [
            MembershipStep::Remove,
            MembershipStep::AddLearner,
            MembershipStep::Promote,
        ] {
            let change = MembershipChange {
                step,
                peer: 1 << 50,
            };
            let bytes = change.encode();
            assert_eq!(MembershipChange::decode(&bytes), Some(change));
            assert_eq!(MembershipChange::decode(&bytes[..15]), None);
            assert_eq!(MembershipChange::decode(&[&bytes[..], &[0]].concat()), None);
        }
        assert_eq!(MembershipChange::decode(&[9; 16]), None);
    }

    #[test]
    fn members_read_back_and_cut_ones_are_refused() {
        let members = Members {
            voters: vec![1, 1 << 50],
            learners: vec![7],
        };
        let mut bytes = Vec::new();
        members.encode(&mut bytes);
        assert_eq!(Members::decode(&bytes), Some(members));
        for cut in 0..bytes.len() {
            assert_eq!(Members::decode(&bytes[..cut]), None);
        }
    }

    #[test]
    fn a_replica_is_a_voter_or_a_learner_or_neither() {
        let mut members = Members::of_voters(vec![1, 2, 3]);
        let change = |step, peer| MembershipChange { step, peer };
        change(MembershipStep::Remove, 2).apply(&mut members);
        change(MembershipStep::AddLearner, 4).apply(&mut members);
        assert_eq!(
            (&members.voters[..], &members.learners[..]),
            (&[1, 3][..], &[4][..])
        );
        change(MembershipStep::Promote, 4).apply(&mut members);
        assert_eq!(members, Members::of_voters(vec![1, 3, 4]));
    }
}
