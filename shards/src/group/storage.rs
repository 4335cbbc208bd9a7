//! What Raft may ask of the log: terms and empty entries, from memory.

use std::collections::VecDeque;

use raft::{
    eraftpb::{ConfState, Entry, HardState, Snapshot},
    Error, GetEntriesContext, RaftState, Result, Storage, StorageError,
};

use crate::log::LogPosition;

/// An entry's handle: where its payload is, and when it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Handle {
    pub term: u64,
    pub payload: LogPosition,
    pub len: u32,
    pub end: LogPosition,
}

/// Handles of the entries from the last applied one (exclusive) to the last.
pub(super) struct GroupStorage {
    /// Index and term in front of the first handle.
    base_index: u64,
    base_term: u64,
    handles: VecDeque<Handle>,
    initial: RaftState,
}

impl GroupStorage {
    pub(super) fn new(base_index: u64, base_term: u64, hard: HardState, voters: &[u64]) -> Self {
        let membership = ConfState::from((voters.to_vec(), Vec::new()));
        GroupStorage {
            base_index,
            base_term,
            handles: VecDeque::new(),
            initial: RaftState::new(hard, membership),
        }
    }

    pub(super) fn last(&self) -> u64 {
        self.base_index + self.handles.len() as u64
    }

    /// Keeps the handle of entry `index`; entries at or above it are replaced.
    pub(super) fn push(&mut self, index: u64, handle: Handle) {
        debug_assert!(index > self.base_index && index <= self.last() + 1);
        self.handles
            .truncate((index - self.base_index - 1) as usize);
        self.handles.push_back(handle);
    }

    pub(super) fn get(&self, index: u64) -> Option<&Handle> {
        let at = index.checked_sub(self.base_index + 1)?;
        self.handles.get(at as usize)
    }

    /// Place of the oldest entry that is kept, one with a payload.
    pub(super) fn first_payload(&self) -> Option<LogPosition> {
        let first = self.handles.iter().find(|handle| handle.len > 0);
        first.map(|handle| handle.payload)
    }

    /// Place of the oldest entry that is kept.
    pub(super) fn first_place(&self) -> Option<LogPosition> {
        self.handles.front().map(|handle| handle.payload)
    }

    /// Index and term of the last entry that was forgotten.
    pub(super) fn base(&self) -> (u64, u64) {
        (self.base_index, self.base_term)
    }

    /// Forgets handles up to `index`: they are applied.
    pub(super) fn release(&mut self, index: u64) {
        while self.base_index < index {
            let Some(handle) = self.handles.pop_front() else {
                return;
            };
            self.base_index += 1;
            self.base_term = handle.term;
        }
    }
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
        _context: GetEntriesContext,
    ) -> Result<Vec<Entry>> {
        if low <= self.base_index {
            return Err(Error::Store(StorageError::Compacted));
        }
        (low..high)
            .map(|index| {
                let handle = self
                    .get(index)
                    .ok_or(Error::Store(StorageError::Unavailable))?;
                let mut entry = Entry::default();
                entry.set_index(index);
                entry.set_term(handle.term);
                Ok(entry)
            })
            .collect()
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

    fn snapshot(&self, _request_index: u64, _to: u64) -> Result<Snapshot> {
        Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable))
    }
}
