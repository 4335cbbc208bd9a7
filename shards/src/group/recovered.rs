//! What recovery knows of a group, gathered item by item in log order.
//!
//! A group of one has no entry that was not its leader's: what survived is
//! committed and applied as it is read. In a group of several the end of the log
//! may have been replaced, and may yet be: an entry is applied once the log says
//! that it is committed, or when everything was read.

use std::collections::{BTreeMap, VecDeque};

use super::{
    storage::{Handle, KEPT_ENTRIES},
    GroupState,
};
use crate::log::{ItemHeader, ItemKind, LogPosition};

/// What recovery knows of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    pub state: GroupState,
    /// Last entry that survived, and its term.
    pub last_index: u64,
    pub last_term: u64,
    /// Entries of a group of several; empty in a group of one.
    pub tail: Tail,
}

impl Recovered {
    /// Index and term of the last entry, whether or not it is applied.
    pub fn last(&self) -> (u64, u64) {
        (self.last_index, self.last_term).max(self.tail.last())
    }
}

/// An entry that is not known to be committed yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub term: u64,
    /// It changes the membership.
    pub membership: bool,
    pub payload: Vec<u8>,
    /// Where its bytes stand: from which byte on, and where. Ascending.
    pub pieces: Vec<(u32, LogPosition)>,
}

impl Held {
    /// The place of payload byte `at`.
    pub fn place(&self, at: u32) -> LogPosition {
        let after = self.pieces.partition_point(|(start, _)| *start <= at);
        let piece = after.checked_sub(1).and_then(|i| self.pieces.get(i));
        let (start, position) = piece.copied().unwrap_or_default();
        LogPosition(position.0 + u64::from(at - start))
    }
}

/// The end of a group's log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tail {
    base: (u64, u64),
    handles: VecDeque<Handle>,
    /// Not applied yet, by index.
    held: BTreeMap<u64, Held>,
    /// Known as committed.
    commit: u64,
}

impl Tail {
    /// Behind what a checkpoint covers.
    pub fn new(index: u64, term: u64) -> Self {
        Tail {
            base: (index, term),
            commit: 0,
            ..Tail::default()
        }
    }

    /// Index and term of the last entry.
    pub fn last(&self) -> (u64, u64) {
        let index = self.base.0 + self.handles.len() as u64;
        let term = self.handles.back().map_or(self.base.1, |last| last.term);
        (index, term)
    }

    /// Takes an entry; those at or above it are replaced. False when entries in
    /// front of it are missing.
    pub fn push(
        &mut self,
        item: &ItemHeader,
        payload: &[u8],
        place: &dyn Fn(u32) -> LogPosition,
    ) -> bool {
        let (index, term) = (item.index, item.term);
        let membership = item.kind == ItemKind::Membership;
        let contiguous = index <= self.last().0 + 1;
        self.held.split_off(&index);
        let handle = Handle {
            term,
            payload: place(0),
            len: payload.len() as u32,
            sync: item.sync,
            membership,
            // What survived was synced when the log was opened.
            end: LogPosition(0),
        };
        match index.checked_sub(self.base.0 + 1) {
            Some(at) if contiguous => {
                self.handles.truncate(at as usize);
                self.handles.push_back(handle);
            }
            _ => {
                self.base = (index, term);
                self.handles.clear();
            }
        }
        if self.handles.len() > KEPT_ENTRIES && self.base.0 < self.commit {
            if let Some(first) = self.handles.pop_front() {
                self.base = (self.base.0 + 1, first.term);
            }
        }
        let held = Held {
            term,
            membership,
            payload: payload.to_vec(),
            pieces: pieces(payload.len() as u32, place),
        };
        self.held.insert(index, held);
        contiguous
    }

    /// Everything up to `index` is committed: what was held of it, in order.
    pub fn commit(&mut self, index: u64) -> BTreeMap<u64, Held> {
        self.commit = self.commit.max(index);
        let later = self.held.split_off(&(index.saturating_add(1)));
        std::mem::replace(&mut self.held, later)
    }

    /// The entry in front of the first that is kept.
    pub fn begins_behind(&self) -> u64 {
        self.base.0
    }

    /// Known as committed so far.
    pub fn known_commit(&self) -> u64 {
        self.commit
    }

    /// What a checkpoint covers and the log no longer shows is the end.
    pub fn cover(&mut self, index: u64, term: u64) {
        if self.last().0 < index {
            *self = Tail {
                base: (index, term),
                commit: self.commit,
                ..Tail::default()
            };
        }
    }

    pub(super) fn into_parts(self) -> TailParts {
        let held = self.held.into_iter();
        TailParts {
            base: self.base,
            handles: self.handles,
            payloads: held.map(|(index, held)| (index, held.payload)).collect(),
        }
    }
}

pub(super) struct TailParts {
    pub base: (u64, u64),
    pub handles: VecDeque<Handle>,
    pub payloads: BTreeMap<u64, Vec<u8>>,
}

/// The stretches in which a payload's bytes stand side by side.
fn pieces(len: u32, place: &dyn Fn(u32) -> LogPosition) -> Vec<(u32, LogPosition)> {
    let mut pieces = vec![(0, place(0))];
    if len == 0 {
        return pieces;
    }
    let mut start = 0;
    loop {
        let first = place(start);
        let beside = |at: u32| place(at).0 == first.0 + u64::from(at - start);
        if beside(len - 1) {
            break;
        }
        // The first byte that is not beside: places only ever jump ahead.
        let (mut low, mut high) = (start, len - 1);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if beside(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        start = high;
        pieces.push((start, place(start)));
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(position: u64) -> impl Fn(u32) -> LogPosition {
        move |byte| LogPosition(position + u64::from(byte))
    }

    fn item(index: u64, term: u64) -> ItemHeader {
        ItemHeader {
            kind: ItemKind::Entry,
            group: 1,
            term,
            index,
            sync: false,
        }
    }

    #[test]
    fn an_entry_that_was_replaced_is_never_applied() {
        let mut tail = Tail::new(4, 1);
        assert!(tail.push(&item(5, 1), b"old", &at(100)));
        assert!(tail.push(&item(6, 1), b"older", &at(200)));
        assert!(tail.push(&item(5, 2), b"new", &at(300)));
        assert_eq!(tail.last(), (5, 2));
        let applied = tail.commit(9);
        assert_eq!(applied.len(), 1);
        assert_eq!(applied[&5].payload, b"new");
        assert_eq!(applied[&5].place(2), LogPosition(302));
        assert!(tail.commit(9).is_empty());
    }

    #[test]
    fn entries_from_below_a_checkpoint_begin_the_tail_anew() {
        let mut tail = Tail::new(10, 3);
        for index in 8..=12 {
            assert!(tail.push(&item(index, 3), b"", &at(index)));
        }
        assert_eq!(tail.last(), (12, 3));
        let parts = tail.clone().into_parts();
        assert_eq!((parts.base, parts.handles.len()), ((8, 3), 4));
        tail.cover(12, 3);
        assert_eq!(tail.last(), (12, 3));
        tail.cover(20, 4);
        assert_eq!(tail.last(), (20, 4));
    }

    #[test]
    fn a_gap_is_told() {
        let mut tail = Tail::new(1, 1);
        assert!(!tail.push(&item(3, 1), b"x", &at(1)));
        assert_eq!(tail.last(), (3, 1));
    }

    #[test]
    fn places_are_kept_across_fragments() {
        let place = |byte: u32| {
            LogPosition(match byte {
                0..=9 => 1000 + u64::from(byte),
                10..=49 => 5000 + u64::from(byte),
                _ => 9000 + u64::from(byte),
            })
        };
        let mut tail = Tail::new(0, 0);
        tail.push(&item(1, 1), &[7; 60], &place);
        let held = tail.commit(1);
        for byte in 0..60 {
            assert_eq!(held[&1].place(byte), place(byte), "byte {byte}");
        }
    }
}
