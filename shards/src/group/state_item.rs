//! What a group keeps durable beside its entries, as one log item.
//!
//! ```text
//! 0  version     u8   1
//! 1  answers_at  u8   a Boundary
//! 2  flags       u8   bit 0: stopped its generation; bit 1: does not keep all it
//!                     reported durable
//! 3  reserved    u8   zero
//! 4  generation  u32 LE
//! 8  peer        u64 LE  this replica
//! 16 term        u64 LE
//! 24 vote        u64 LE
//! 32 commit      u64 LE  as known when it was written
//! 40 base_index  u64 LE  index before the first entry of this generation
//! 48 base_term   u64 LE
//! 56 voters      u32 LE  count, then that many u64 LE
//! ```
//!
//! Version 2, written where there are learners, has their count and peer ids behind;
//! version 3, written where a flag is set, too.

use thiserror::Error;
use wire::vocabulary::Boundary;

use super::{
    membership::{put_peers, take_peers},
    Members, PeerId,
};

const VERSION: u8 = 1;
const VERSION_LEARNERS: u8 = 2;
const VERSION_FLAGS: u8 = 3;
const STOPPED: u8 = 1;
const FORGETFUL: u8 = 2;
const FIXED_BYTES: usize = 60;

/// Term, vote, identity, membership and generation of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupState {
    pub answers_at: Boundary,
    pub generation: u32,
    pub peer: PeerId,
    pub term: u64,
    pub vote: u64,
    /// At most the last index.
    pub commit: u64,
    /// The generation's history starts behind this entry.
    pub base_index: u64,
    pub base_term: u64,
    pub members: Members,
    /// It answered a recovery's order: its generation is over for it (R6).
    pub stopped: bool,
    /// What it reported durable in this generation is all there; not so where it was
    /// wiped or damaged, until it is promoted.
    pub keeps_reported: bool,
}

/// Why a group state item was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum GroupStateError {
    #[error("group state item is truncated")]
    Truncated,
    #[error("group state item has version {0}, this build reads versions 1 to 3")]
    Version(u8),
    #[error("group state item names boundary {0}")]
    Boundary(u8),
}

impl GroupState {
    /// The item's payload.
    pub fn encode(&self) -> Vec<u8> {
        let Members { voters, learners } = &self.members;
        let mut out = Vec::with_capacity(FIXED_BYTES + 8 * voters.len());
        let flags = u8::from(self.stopped) * STOPPED + u8::from(!self.keeps_reported) * FORGETFUL;
        let version = match (flags, learners.is_empty()) {
            (0, true) => VERSION,
            (0, false) => VERSION_LEARNERS,
            _ => VERSION_FLAGS,
        };
        out.extend_from_slice(&[version, self.answers_at as u8, flags, 0]);
        out.extend_from_slice(&self.generation.to_le_bytes());
        for word in [
            self.peer.0,
            self.term,
            self.vote,
            self.commit,
            self.base_index,
            self.base_term,
        ] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        put_peers(&mut out, voters);
        if version != VERSION {
            put_peers(&mut out, learners);
        }
        out
    }

    /// Reads an item's payload.
    ///
    /// # Errors
    /// Truncated, another version, or an unknown boundary.
    pub fn decode(bytes: &[u8]) -> Result<Self, GroupStateError> {
        let fixed = bytes
            .first_chunk::<FIXED_BYTES>()
            .ok_or(GroupStateError::Truncated)?;
        if !(VERSION..=VERSION_FLAGS).contains(&fixed[0]) {
            return Err(GroupStateError::Version(fixed[0]));
        }
        let answers_at = Boundary::from_raw(fixed[1]).ok_or(GroupStateError::Boundary(fixed[1]))?;
        let mut words = fixed[8..56].chunks_exact(8).map(word);
        let mut next = || words.next().unwrap_or_default();
        let (peer, term, vote, commit) = (next(), next(), next(), next());
        let (base_index, base_term) = (next(), next());
        let members = bytes.get(FIXED_BYTES - 4..).unwrap_or_default();
        let (voters, rest) = take_peers(members).ok_or(GroupStateError::Truncated)?;
        let learners = match fixed[0] {
            VERSION => Vec::new(),
            _ => take_peers(rest).ok_or(GroupStateError::Truncated)?.0,
        };
        let flags = match fixed[0] {
            VERSION_FLAGS => fixed[2],
            _ => 0,
        };
        Ok(GroupState {
            answers_at,
            generation: u32::from_le_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]),
            peer: PeerId(peer),
            term,
            vote,
            commit,
            base_index,
            base_term,
            members: Members { voters, learners },
            stopped: flags & STOPPED != 0,
            keeps_reported: flags & FORGETFUL == 0,
        })
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// For the page of the format.
#[cfg(test)]
pub(crate) fn golden() -> crate::format_page::Golden {
    let state = GroupState {
        answers_at: Boundary::Durable,
        generation: 3,
        peer: PeerId(4),
        term: 5,
        vote: 6,
        commit: 7,
        base_index: 8,
        base_term: 9,
        members: Members::of_voters(vec![10, 11]),
        stopped: false,
        keeps_reported: true,
    };
    let fields = vec![
        ("version", 1),
        ("boundary the group answers at", 2),
        ("generation", 3),
        ("peer id", 4),
        ("term", 5),
        ("vote", 6),
        ("commit as known", 7),
        ("base index", 8),
        ("base term", 9),
        ("voters", 2),
        ("peer id", 10),
        ("peer id", 11),
    ];
    crate::format_page::Golden {
        bytes: state.encode(),
        fields,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> GroupState {
        GroupState {
            answers_at: Boundary::Written,
            generation: 3,
            peer: PeerId::new(1, 2),
            term: 9,
            vote: 8,
            commit: 7,
            base_index: 6,
            base_term: 5,
            members: Members {
                voters: vec![4, 1 << 50],
                learners: vec![7],
            },
            stopped: true,
            keeps_reported: false,
        }
    }

    #[test]
    fn a_group_state_reads_back() {
        assert_eq!(GroupState::decode(&example().encode()), Ok(example()));
        let mut without = example();
        (without.stopped, without.keeps_reported) = (false, true);
        assert_eq!(without.encode()[0], VERSION_LEARNERS);
        assert_eq!(GroupState::decode(&without.encode()), Ok(without.clone()));
        without.members.learners.clear();
        assert_eq!(without.encode()[0], VERSION);
        assert_eq!(GroupState::decode(&without.encode()), Ok(without));
    }

    #[test]
    fn a_group_state_cut_anywhere_is_refused() {
        let bytes = example().encode();
        for cut in 0..bytes.len() {
            assert_eq!(
                GroupState::decode(&bytes[..cut]),
                Err(GroupStateError::Truncated)
            );
        }
    }
}
