//! What a group keeps durable beside its entries, as one log item.
//!
//! ```text
//! 0  version     u8   1
//! 1  answers_at  u8   a Boundary
//! 2  reserved    u16  zero
//! 4  generation  u32 LE
//! 8  peer        u64 LE  this replica
//! 16 term        u64 LE
//! 24 vote        u64 LE
//! 32 commit      u64 LE  as known when it was written
//! 40 base_index  u64 LE  index before the first entry of this generation
//! 48 base_term   u64 LE
//! 56 voters      u32 LE  count, then that many u64 LE
//! ```

use thiserror::Error;
use wire::vocabulary::Boundary;

use super::PeerId;

const VERSION: u8 = 1;
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
    pub voters: Vec<u64>,
}

/// Why a group state item was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum GroupStateError {
    #[error("group state item is truncated")]
    Truncated,
    #[error("group state item has version {0}, this build reads version 1")]
    Version(u8),
    #[error("group state item names boundary {0}")]
    Boundary(u8),
}

impl GroupState {
    /// The item's payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FIXED_BYTES + 8 * self.voters.len());
        out.extend_from_slice(&[VERSION, self.answers_at as u8, 0, 0]);
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
        out.extend_from_slice(&(self.voters.len() as u32).to_le_bytes());
        for voter in &self.voters {
            out.extend_from_slice(&voter.to_le_bytes());
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
        if fixed[0] != VERSION {
            return Err(GroupStateError::Version(fixed[0]));
        }
        let answers_at = Boundary::from_raw(fixed[1]).ok_or(GroupStateError::Boundary(fixed[1]))?;
        let mut words = fixed[8..56].chunks_exact(8).map(word);
        let mut next = || words.next().unwrap_or_default();
        let (peer, term, vote, commit) = (next(), next(), next(), next());
        let (base_index, base_term) = (next(), next());
        let count = u32::from_le_bytes([fixed[56], fixed[57], fixed[58], fixed[59]]) as usize;
        let voters: Vec<u64> = bytes[FIXED_BYTES..]
            .chunks_exact(8)
            .take(count)
            .map(word)
            .collect();
        if voters.len() != count {
            return Err(GroupStateError::Truncated);
        }
        Ok(GroupState {
            answers_at,
            generation: u32::from_le_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]),
            peer: PeerId(peer),
            term,
            vote,
            commit,
            base_index,
            base_term,
            voters,
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
        voters: vec![10, 11],
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
            voters: vec![4, 1 << 50],
        }
    }

    #[test]
    fn a_group_state_reads_back() {
        assert_eq!(GroupState::decode(&example().encode()), Ok(example()));
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
