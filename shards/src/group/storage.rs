//! What Raft may ask of the log: terms and empty entries, from memory.
//!
//! 1. Handles are contiguous: from behind the base to the last entry.
//! 2. What is not applied yet keeps its handle; of what is applied a group of
//!    several keeps some, for followers that are behind.
//! 3. A payload in `at_hand` is the one that the handle of its index names.

use std::{
    cell::Cell,
    collections::{BTreeMap, VecDeque},
};

use raft::{
    eraftpb::{ConfState, Entry, HardState, Snapshot},
    Error, GetEntriesContext, RaftState, Result, Storage, StorageError,
};

use super::membership::{entry_type, Members};
use crate::log::LogPosition;

/// Applied entries whose handles are kept for followers that are behind.
pub(super) const KEPT_ENTRIES: usize = 16 << 10;
/// Entries beyond as many as were applied that are forgotten in one step.
const FORGOTTEN_AT_ONCE: u64 = 256;
/// Payload bytes that one message to a follower carries, about.
pub(super) const MESSAGE_BYTES: u64 = 1 << 20;

/// An entry's handle: where its payload is, and when it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Handle {
    pub term: u64,
    pub payload: LogPosition,
    pub len: u32,
    /// Somebody waits for it at durable.
    pub sync: bool,
    /// It changes the membership.
    pub membership: bool,
    pub end: LogPosition,
}

/// Entries that a follower needs and whose bytes left the tail cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    pub low: u64,
    pub high: u64,
}

/// Handles of the last entries.
pub(super) struct GroupStorage {
    /// Index and term in front of the first handle.
    base_index: u64,
    base_term: u64,
    /// Where the entry at the base ends in the log; 0 if it was there from the start.
    base_end: LogPosition,
    handles: VecDeque<Handle>,
    /// Index and term of the last applied entry.
    applied: (u64, u64),
    initial: RaftState,
    /// Payloads that are in memory beside the log's own buffers.
    at_hand: BTreeMap<u64, Vec<u8>>,
    /// Payloads from this place on are in the log's buffers.
    cached_from: LogPosition,
    /// Read back for a follower, as asked last.
    wanted: Cell<Option<Wanted>>,
    /// Where entries are kept for others.
    keeps: bool,
    /// The last entry that the follower has which is furthest behind.
    held: Option<u64>,
    /// Payload bytes that were ever appended.
    taken_in: u64,
    /// Payloads that were read back for followers, until the next are.
    fetched: BTreeMap<u64, Vec<u8>>,
}

impl GroupStorage {
    /// Nothing but the base, which is applied.
    pub(super) fn new(base: (u64, u64), hard: HardState, members: &Members, keeps: bool) -> Self {
        let membership = members.to_raft();
        GroupStorage {
            base_index: base.0,
            base_term: base.1,
            base_end: LogPosition::default(),
            handles: VecDeque::new(),
            applied: base,
            initial: RaftState::new(hard, membership),
            at_hand: BTreeMap::new(),
            cached_from: LogPosition(0),
            wanted: Cell::new(None),
            keeps,
            held: None,
            taken_in: 0,
            fetched: BTreeMap::new(),
        }
    }

    /// What recovery found behind the base, applied up to `applied`, and the
    /// payloads of what is not.
    pub(super) fn fill(
        &mut self,
        handles: VecDeque<Handle>,
        applied: u64,
        at_hand: BTreeMap<u64, Vec<u8>>,
    ) {
        self.handles = handles;
        self.applied = match self.get(applied) {
            Some(handle) => (applied, handle.term),
            None => (self.base_index, self.base_term),
        };
        self.at_hand = at_hand;
    }

    pub(super) fn last(&self) -> u64 {
        self.base_index + self.handles.len() as u64
    }

    /// Index and term of the last entry.
    pub(super) fn last_entry(&self) -> (u64, u64) {
        let term = self.handles.back().map_or(self.base_term, |it| it.term);
        (self.last(), term)
    }

    /// Keeps the handle of entry `index`; entries at or above it are replaced.
    /// The entry in front of the first handle, and where it ends in the log.
    pub(super) fn base(&self) -> (u64, LogPosition) {
        (self.base_index, self.base_end)
    }

    pub(super) fn push(&mut self, index: u64, handle: Handle) {
        debug_assert!(index > self.base_index && index <= self.last() + 1);
        self.handles
            .truncate((index - self.base_index - 1) as usize);
        self.at_hand.split_off(&index);
        self.fetched.split_off(&index);
        self.taken_in += u64::from(handle.len);
        self.handles.push_back(handle);
    }

    pub(super) fn get(&self, index: u64) -> Option<&Handle> {
        let at = index.checked_sub(self.base_index + 1)?;
        self.handles.get(at as usize)
    }

    /// Entries that are not applied, with their indexes.
    fn unapplied(&self) -> impl Iterator<Item = (u64, &Handle)> {
        let skip = self.applied.0.saturating_sub(self.base_index);
        let first = self.base_index + skip + 1;
        (first..).zip(self.handles.iter().skip(skip as usize))
    }

    /// Place of the oldest payload that is to be applied and read from the log's buffers.
    pub(super) fn first_payload(&self) -> Option<LogPosition> {
        let in_log =
            |(index, handle): &(u64, &Handle)| handle.len > 0 && !self.at_hand.contains_key(index);
        let first = self.unapplied().find(in_log);
        first.map(|(_, handle)| handle.payload)
    }

    /// Place of the oldest entry that is not applied.
    pub(super) fn first_place(&self) -> Option<LogPosition> {
        self.unapplied().next().map(|(_, handle)| handle.payload)
    }

    /// Index and term of the last applied entry.
    pub(super) fn applied(&self) -> (u64, u64) {
        self.applied
    }

    /// Everything up to `index` is applied.
    pub(super) fn apply(&mut self, index: u64) {
        let newly = index.saturating_sub(self.applied.0);
        if let Some(handle) = self.get(index) {
            self.applied = (index, handle.term);
        }
        let keep = if self.keeps { KEPT_ENTRIES as u64 } else { 0 };
        let free = self.applied.0.saturating_sub(keep);
        let free = free.min(self.held.unwrap_or(free));
        // A few at once: when a follower caught up there are many.
        for _ in 0..=newly + FORGOTTEN_AT_ONCE {
            if self.base_index >= free || !self.forget_first() {
                break;
            }
        }
        if !self.at_hand.is_empty() {
            self.at_hand = self.at_hand.split_off(&(self.applied.0 + 1));
        }
    }

    /// The state as of that entry is in place: nothing in front of it is known.
    pub(super) fn restore(&mut self, index: u64, term: u64) {
        (self.base_index, self.base_term) = (index, term);
        self.base_end = LogPosition::default();
        self.applied = (index, term);
        self.handles.clear();
        self.at_hand.clear();
        self.fetched.clear();
        self.held = None;
        self.wanted.set(None);
    }

    /// A change of membership was applied.
    pub(super) fn set_membership(&mut self, membership: ConfState) {
        self.initial.conf_state = membership;
    }

    /// Forgets applied entries that stand below `position`: their place is let go.
    pub(super) fn trim_below(&mut self, position: LogPosition) {
        while self.base_index < self.applied.0
            && self
                .handles
                .front()
                .is_some_and(|handle| handle.payload < position)
        {
            if !self.forget_first() {
                return;
            }
        }
    }

    fn forget_first(&mut self) -> bool {
        let Some(handle) = self.handles.pop_front() else {
            return false;
        };
        self.base_index += 1;
        self.base_term = handle.term;
        self.base_end = handle.end;
        self.at_hand.remove(&self.base_index);
        true
    }

    /// The payload, if it is in memory beside the log's buffers.
    pub(super) fn payload_at_hand(&self, index: u64) -> Option<&[u8]> {
        let kept = self.at_hand.get(&index);
        kept.or_else(|| self.fetched.get(&index)).map(Vec::as_slice)
    }

    /// Keeps what was read back for a follower, in place of what was before.
    pub(super) fn put_fetched(&mut self, payloads: Vec<(u64, Vec<u8>)>) {
        self.fetched = payloads.into_iter().collect();
    }

    /// Entries behind that one are kept for a follower, however many were applied.
    pub(super) fn hold(&mut self, held: Option<u64>) {
        self.held = held;
        if held.is_none_or(|held| held >= self.applied.0) {
            self.fetched.clear();
        }
    }

    /// Payload bytes that were appended since it was opened.
    pub(super) fn taken_in(&self) -> u64 {
        self.taken_in
    }

    /// Where the oldest payload stands that is held for a follower, if one is.
    pub(super) fn held_from(&self) -> Option<LogPosition> {
        let first = self.held?.max(self.base_index) + 1;
        self.get(first).map(|handle| handle.payload)
    }

    /// Payloads at or above are in the log's buffers.
    pub(super) fn set_cached_from(&mut self, position: LogPosition) {
        self.cached_from = position;
    }

    /// What a follower needs that is not in memory, once.
    pub(super) fn take_wanted(&self) -> Option<Wanted> {
        self.wanted.take()
    }

    fn is_at_hand(&self, index: u64, handle: &Handle) -> bool {
        let in_log = handle.len == 0 || handle.payload >= self.cached_from;
        in_log || self.payload_at_hand(index).is_some()
    }
}

/// A snapshot as Raft sees it: index, term and membership.
pub(super) fn snapshot_of((index, term): (u64, u64), membership: ConfState) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let metadata = snapshot.mut_metadata();
    metadata.index = index;
    metadata.term = term;
    metadata.set_conf_state(membership);
    snapshot
}

impl Storage for GroupStorage {
    fn initial_state(&self) -> Result<RaftState> {
        Ok(self.initial.clone())
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        _max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> Result<Vec<Entry>> {
        if low <= self.base_index {
            return Err(Error::Store(StorageError::Compacted));
        }
        let mut entries = Vec::new();
        let mut bytes = 0;
        for index in low..high {
            let handle = self
                .get(index)
                .ok_or(Error::Store(StorageError::Unavailable))?;
            if context.can_async() {
                // For a follower: as much as one message carries, and in memory.
                if bytes >= MESSAGE_BYTES {
                    break;
                }
                bytes += u64::from(handle.len);
                if !self.is_at_hand(index, handle) {
                    if !entries.is_empty() {
                        break;
                    }
                    self.wanted.set(Some(Wanted { low, high }));
                    return Err(Error::Store(StorageError::LogTemporarilyUnavailable));
                }
            }
            let mut entry = Entry::default();
            entry.set_index(index);
            entry.set_term(handle.term);
            entry.set_entry_type(entry_type(handle.membership));
            entries.push(entry);
        }
        Ok(entries)
    }

    fn term(&self, index: u64) -> Result<u64> {
        if index == self.base_index {
            return Ok(self.base_term);
        }
        if index < self.base_index {
            return Err(Error::Store(StorageError::Compacted));
        }
        let handle = self
            .get(index)
            .ok_or(Error::Store(StorageError::Unavailable))?;
        Ok(handle.term)
    }

    fn first_index(&self) -> Result<u64> {
        Ok(self.base_index + 1)
    }

    fn last_index(&self) -> Result<u64> {
        Ok(self.last())
    }

    /// Only what it is of: the state itself is streamed beside Raft.
    fn snapshot(&self, _request_index: u64, _to: u64) -> Result<Snapshot> {
        Ok(snapshot_of(self.applied, self.initial.conf_state.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn storage_with(entries: u64) -> GroupStorage {
        let members = Members::default();
        let mut storage = GroupStorage::new((0, 0), HardState::default(), &members, true);
        for index in 1..=entries {
            let at = LogPosition(index * 100);
            storage.push(
                index,
                Handle {
                    term: 1,
                    payload: at,
                    len: 10,
                    sync: false,
                    membership: false,
                    end: LogPosition(at.0 + 10),
                },
            );
        }
        storage
    }

    fn apply_all(storage: &mut GroupStorage) {
        for index in storage.applied().0 + 1..=storage.last() {
            storage.apply(index);
        }
    }

    #[test]
    fn entries_that_a_follower_lacks_are_kept_until_it_has_them() {
        let kept = KEPT_ENTRIES as u64;
        let mut storage = storage_with(3 * kept);
        storage.hold(Some(10));
        apply_all(&mut storage);
        assert_eq!(
            storage.base(),
            (10, LogPosition(1_010)),
            "what it has is not kept"
        );
        assert_eq!(storage.held_from(), Some(LogPosition(1_100)));
        storage.hold(None);
        // Every apply forgets a few more.
        for _ in 0..2 * kept {
            storage.apply(storage.last());
        }
        assert_eq!(storage.base().0, 2 * kept);
    }

    #[test]
    fn what_was_read_for_a_follower_is_not_taken_for_an_entry_in_its_place() {
        let mut storage = storage_with(5);
        storage.put_fetched(vec![(4, vec![1]), (5, vec![2])]);
        let handle = *storage.get(5).unwrap();
        storage.push(5, handle);
        assert_eq!(storage.payload_at_hand(4), Some(&[1][..]));
        assert_eq!(storage.payload_at_hand(5), None);
    }
}
