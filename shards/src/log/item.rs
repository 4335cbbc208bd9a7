//! Items: what a batch carries, each in one or more fragments.
//!
//! Fragment header, little-endian, [`FRAGMENT_HEADER_BYTES`] long:
//!
//! | at | size | field |
//! |----|------|-------|
//! | 0 | 1 | kind |
//! | 1 | 1 | flags: 1 sync, 2 first fragment, 4 last fragment |
//! | 2 | 2 | zero |
//! | 4 | 4 | group |
//! | 8 | 8 | term |
//! | 16 | 8 | index |
//! | 24 | 4 | payload bytes of this fragment |
//! | 28 | 4 | first fragment: payload bytes of the whole item; else where this fragment's payload starts in it |

use super::bytes::{get_u16, get_u32, get_u64};

/// Bytes in front of each fragment's payload.
pub const FRAGMENT_HEADER_BYTES: usize = 32;

/// Largest payload of one item, in bytes.
pub const MAX_ITEM_BYTES: u32 = 256 * 1024 * 1024;

const FLAG_SYNC: u8 = 1;
const FLAG_FIRST: u8 = 2;
const FLAG_LAST: u8 = 4;
const FLAGS: u8 = FLAG_SYNC | FLAG_FIRST | FLAG_LAST;

/// What an item of a batch is. Opaque to the log but for the routing fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemHeader {
    pub kind: ItemKind,
    pub group: u32,
    pub term: u64,
    pub index: u64,
    /// The leader's durable demand, kept so that followers and recovery know it.
    pub sync: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ItemKind {
    /// A Raft entry: payload is the group layer's.
    Entry = 1,
    /// A group's term, vote, membership, generation: payload is the group layer's.
    GroupState = 2,
    /// Entries of the group up to `index` are committed; no payload. Only in logs
    /// of a cluster.
    Commit = 3,
    /// A piece of a group's state that came from another node; payload is the
    /// engine's. Only in logs of a cluster.
    Snapshot = 4,
    /// A Raft entry that changes the group's membership: payload is the group
    /// layer's. Only in logs of a cluster.
    Membership = 5,
}

impl ItemKind {
    fn from_raw(raw: u8) -> Option<Self> {
        match raw {
            1 => Some(ItemKind::Entry),
            2 => Some(ItemKind::GroupState),
            3 => Some(ItemKind::Commit),
            4 => Some(ItemKind::Snapshot),
            5 => Some(ItemKind::Membership),
            _ => None,
        }
    }
}

/// One fragment of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FragmentHeader {
    pub item: ItemHeader,
    pub part: Part,
    /// Payload bytes that follow.
    pub len: u32,
}

/// Which piece of its item a fragment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Whole,
    First { total: u32 },
    Middle { start: u32 },
    Last { start: u32 },
}

impl FragmentHeader {
    pub(super) fn encode(&self) -> [u8; FRAGMENT_HEADER_BYTES] {
        let (flags, number) = match self.part {
            Part::Whole => (FLAG_FIRST | FLAG_LAST, self.len),
            Part::First { total } => (FLAG_FIRST, total),
            Part::Middle { start } => (0, start),
            Part::Last { start } => (FLAG_LAST, start),
        };
        let sync = if self.item.sync { FLAG_SYNC } else { 0 };
        let mut bytes = [0; FRAGMENT_HEADER_BYTES];
        bytes[0] = self.item.kind as u8;
        bytes[1] = flags | sync;
        bytes[4..8].copy_from_slice(&self.item.group.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.item.term.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.item.index.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.len.to_le_bytes());
        bytes[28..32].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    /// The header at the start of `bytes`, or `None` if it is none.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let kind = ItemKind::from_raw(*bytes.first()?)?;
        let flags = *bytes.get(1)?;
        if flags & !FLAGS != 0 || get_u16(bytes, 2)? != 0 {
            return None;
        }
        let len = get_u32(bytes, 24)?;
        let number = get_u32(bytes, 28)?;
        let part = match (flags & FLAG_FIRST != 0, flags & FLAG_LAST != 0) {
            (true, true) if number == len => Part::Whole,
            (true, true) => return None,
            (true, false) => Part::First { total: number },
            (false, false) => Part::Middle { start: number },
            (false, true) => Part::Last { start: number },
        };
        let item = ItemHeader {
            kind,
            group: get_u32(bytes, 4)?,
            term: get_u64(bytes, 8)?,
            index: get_u64(bytes, 16)?,
            sync: flags & FLAG_SYNC != 0,
        };
        Some(FragmentHeader { item, part, len })
    }
}

/// For the page of the format.
#[cfg(test)]
pub(crate) fn golden() -> crate::format_page::Golden {
    let item = ItemHeader {
        kind: ItemKind::GroupState,
        group: 3,
        term: 4,
        index: 5,
        sync: true,
    };
    let part = Part::First { total: 7 };
    let header = FragmentHeader { item, part, len: 6 };
    let fields = vec![
        ("kind", 2),
        ("flags", 1 + 2),
        ("group", 3),
        ("term", 4),
        ("index", 5),
        ("payload bytes of this fragment", 6),
        ("first fragment", 7),
    ];
    crate::format_page::Golden {
        bytes: header.encode().to_vec(),
        fields,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_round_trips() {
        let item = ItemHeader {
            kind: ItemKind::GroupState,
            group: 7,
            term: u64::MAX,
            index: 3,
            sync: true,
        };
        for part in [
            Part::Whole,
            Part::First { total: 99 },
            Part::Middle { start: 11 },
            Part::Last { start: 88 },
        ] {
            let fragment = FragmentHeader {
                item,
                part,
                len: 11,
            };
            assert_eq!(FragmentHeader::decode(&fragment.encode()), Some(fragment));
        }
    }

    #[test]
    fn malformed_headers_are_refused() {
        let item = ItemHeader {
            kind: ItemKind::Entry,
            group: 1,
            term: 1,
            index: 1,
            sync: false,
        };
        let good = FragmentHeader {
            item,
            part: Part::Whole,
            len: 5,
        }
        .encode();
        for (at, value) in [(0, 0), (0, 9), (1, 0xff), (2, 1), (28, 6)] {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(FragmentHeader::decode(&bad), None, "byte {at} = {value}");
        }
        assert_eq!(FragmentHeader::decode(&good[..31]), None);
    }
}
