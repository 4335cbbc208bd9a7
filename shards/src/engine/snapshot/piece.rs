//! The pieces of a snapshot, as they travel and as they stand in the receiver's log.
//!
//! ```text
//! 0  kind  u8
//! 1 begin      answers_at u8, then the members as of the snapshot's entry: nothing
//!              of an earlier try counts
//! 2 partition  as a checkpoint's section of that kind (covered index and all)
//! 3 records    count u32, then (offset u64, attempts u32, len u32) each, then the
//!              records back to back; of the partition before
//! 4 meta       group 0's state
//! 5 end        empty: everything is there
//! 6 installed  index u64, index_term u64, members: only in the log: what came
//!              before is the group's state from here on
//! ```
//!
//! Plain little-endian; members as [`Members::encode`] has them.

use wire::vocabulary::Boundary;

use crate::{
    group::Members,
    log::bytes::{get_u32, get_u64},
};

/// Bytes in front of the records for each of them.
const ENTRY_BYTES: usize = 16;

/// One record of a records piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct RecordEntry {
    pub offset: u64,
    pub attempts: u32,
    pub len: u32,
}

/// A piece, in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) enum Piece<'a> {
    Begin {
        answers_at: Boundary,
        members: Members,
    },
    Partition(&'a [u8]),
    Records(RecordsPiece<'a>),
    Meta(&'a [u8]),
    End,
    Installed {
        index: u64,
        index_term: u64,
        members: Members,
    },
}

/// Records and what is known of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct RecordsPiece<'a> {
    entries: &'a [u8],
    records: &'a [u8],
    /// Byte of the piece at which the records begin.
    records_at: u32,
}

impl<'a> RecordsPiece<'a> {
    fn decode(bytes: &'a [u8]) -> Option<Self> {
        let count = get_u32(bytes, 1)? as usize;
        let records_at = 5 + count.checked_mul(ENTRY_BYTES)?;
        let (head, records) = bytes.split_at_checked(records_at)?;
        let piece = RecordsPiece {
            entries: head.get(5..)?,
            records,
            records_at: u32::try_from(records_at).ok()?,
        };
        let total: u64 = piece.iter().map(|(entry, _)| u64::from(entry.len)).sum();
        (total == records.len() as u64).then_some(piece)
    }

    /// Each record, and the byte of the piece at which it stands.
    pub(in crate::engine) fn iter(&self) -> impl Iterator<Item = (RecordEntry, u32)> + 'a {
        let mut at = self.records_at;
        self.entries.chunks_exact(ENTRY_BYTES).map(move |entry| {
            let entry = RecordEntry {
                offset: get_u64(entry, 0).unwrap_or_default(),
                attempts: get_u32(entry, 8).unwrap_or_default(),
                len: get_u32(entry, 12).unwrap_or_default(),
            };
            let stands = at;
            at = at.saturating_add(entry.len);
            (entry, stands)
        })
    }

    /// A record's bytes.
    pub(in crate::engine) fn record(&self, entry: &RecordEntry, at: u32) -> Option<&'a [u8]> {
        let from = at.checked_sub(self.records_at)? as usize;
        self.records
            .get(from..from.checked_add(entry.len as usize)?)
    }
}

impl<'a> Piece<'a> {
    /// The piece that the bytes are; `None` if they are none.
    pub(in crate::engine) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        Some(match kind {
            1 => Piece::Begin {
                answers_at: Boundary::from_raw(*rest.first()?)?,
                members: Members::decode(rest.get(1..)?)?,
            },
            2 => Piece::Partition(rest),
            3 => Piece::Records(RecordsPiece::decode(bytes)?),
            4 => Piece::Meta(rest),
            5 if rest.is_empty() => Piece::End,
            6 => Piece::Installed {
                index: get_u64(rest, 0)?,
                index_term: get_u64(rest, 8)?,
                members: Members::decode(rest.get(16..)?)?,
            },
            _ => return None,
        })
    }
}

pub(super) fn begin(answers_at: Boundary, members: &Members) -> Vec<u8> {
    let mut out = vec![1, answers_at as u8];
    members.encode(&mut out);
    out
}

pub(super) fn partition(fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = vec![2];
    fill(&mut out);
    out
}

pub(super) fn records(entries: &[RecordEntry], bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(5 + entries.len() * ENTRY_BYTES + bytes.len());
    out.push(3);
    out.extend_from_slice(&(entries.len() as u32).to_le_bytes());
    for entry in entries {
        out.extend_from_slice(&entry.offset.to_le_bytes());
        out.extend_from_slice(&entry.attempts.to_le_bytes());
        out.extend_from_slice(&entry.len.to_le_bytes());
    }
    out.extend_from_slice(bytes);
    out
}

pub(super) fn meta(fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = vec![4];
    fill(&mut out);
    out
}

pub(super) fn end() -> Vec<u8> {
    vec![5]
}

pub(in crate::engine) fn installed(index: u64, index_term: u64, members: &Members) -> Vec<u8> {
    let mut out = vec![6];
    out.extend_from_slice(&index.to_le_bytes());
    out.extend_from_slice(&index_term.to_le_bytes());
    members.encode(&mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_reads_back() {
        let members = Members::of_voters(vec![3, 4]);
        let begin = begin(Boundary::Written, &members);
        let expected = Piece::Begin {
            answers_at: Boundary::Written,
            members: members.clone(),
        };
        assert_eq!(Piece::decode(&begin), Some(expected));
        let head = partition(|out| out.extend_from_slice(b"head"));
        assert_eq!(Piece::decode(&head), Some(Piece::Partition(b"head")));
        let state = meta(|out| out.extend_from_slice(b"state"));
        assert_eq!(Piece::decode(&state), Some(Piece::Meta(b"state")));
        assert_eq!(Piece::decode(&end()), Some(Piece::End));
        let (index, index_term) = (7, 8);
        let done = installed(index, index_term, &members);
        let expected = Piece::Installed {
            index,
            index_term,
            members,
        };
        assert_eq!(Piece::decode(&done), Some(expected));
    }

    #[test]
    fn records_are_found_at_their_place_and_cut_pieces_are_refused() {
        let entry = |offset, len| RecordEntry {
            offset,
            attempts: 2,
            len,
        };
        let entries = [entry(5, 3), entry(9, 2)];
        let bytes = records(&entries, b"abcde");
        let Some(Piece::Records(piece)) = Piece::decode(&bytes) else {
            panic!("it is a piece of records");
        };
        let found: Vec<_> = piece
            .iter()
            .map(|(entry, at)| (entry, &bytes[at as usize..][..entry.len as usize]))
            .collect();
        assert_eq!(found, [(entries[0], &b"abc"[..]), (entries[1], &b"de"[..])]);
        for cut in 0..bytes.len() {
            assert_eq!(Piece::decode(&bytes[..cut]), None, "{cut}");
        }
    }
}
