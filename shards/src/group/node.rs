use std::collections::VecDeque;

use raft::{eraftpb::HardState, Config, RawNode, StateRole};
use thiserror::Error;
use wire::vocabulary::Boundary;

use super::{
    storage::{GroupStorage, Handle},
    GroupId, GroupState, PeerId,
};
use crate::{
    io::BatchBuffer,
    log::{AppendError, ItemHeader, ItemKind, LogFrontiers, LogPosition, LogWriter},
};

/// Ticks of 30 ms; solo groups do not tick.
const ELECTION_TICKS: usize = 10;
const HEARTBEAT_TICKS: usize = 2;

/// Why a group did not take a command.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GroupError {
    #[error("this replica does not lead {0}")]
    NotLeader(GroupId),
    #[error(transparent)]
    Log(#[from] AppendError),
    #[error("Raft refused: {0}")]
    Raft(String),
}

/// What recovery knows of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    pub state: GroupState,
    /// Last entry that survived, and its term.
    pub last_index: u64,
    pub last_term: u64,
}

/// A committed entry, ready to be applied. An empty payload is Raft's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    pub index: u64,
    pub payload: LogPosition,
    pub len: u32,
    /// The entry is durable once the log's durable frontier is at or above this.
    pub end: LogPosition,
}

struct PendingReady {
    number: u64,
    end: LogPosition,
    /// A term or vote changed: durable, whatever the group answers at.
    hard: bool,
}

/// One replica of a group.
pub struct Group {
    id: GroupId,
    peer: PeerId,
    generation: u32,
    answers_at: Boundary,
    base: (u64, u64),
    voters: Vec<u64>,
    raft: RawNode<GroupStorage>,
    pending: VecDeque<PendingReady>,
    last_end: LogPosition,
    /// Term and vote as last appended.
    ballot: (u64, u64),
}

impl Group {
    /// A replica on what recovery found, everything up to `last_index` applied.
    /// The term never falls below the last entry's.
    ///
    /// # Errors
    /// Raft refused the configuration.
    pub fn open(id: GroupId, recovered: &Recovered) -> Result<Self, GroupError> {
        let state = &recovered.state;
        let mut hard = HardState::default();
        hard.set_term(state.term.max(recovered.last_term));
        let vote_stands = state.term >= recovered.last_term;
        hard.set_vote(if vote_stands { state.vote } else { 0 });
        hard.set_commit(recovered.last_index);
        let ballot = (hard.get_term(), hard.get_vote());
        let storage = GroupStorage::new(
            recovered.last_index,
            recovered.last_term,
            hard,
            &state.voters,
        );
        let config = Config {
            id: state.peer.0,
            election_tick: ELECTION_TICKS,
            heartbeat_tick: HEARTBEAT_TICKS,
            applied: recovered.last_index,
            max_size_per_msg: 1 << 20,
            max_inflight_msgs: 256,
            check_quorum: true,
            pre_vote: true,
            ..Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raft = RawNode::new(&config, storage, &logger)
            .map_err(|error| GroupError::Raft(error.to_string()))?;
        Ok(Group {
            id,
            peer: state.peer,
            generation: state.generation,
            answers_at: state.answers_at,
            base: (state.base_index, state.base_term),
            voters: state.voters.clone(),
            raft,
            pending: VecDeque::new(),
            last_end: LogPosition::default(),
            ballot,
        })
    }

    pub fn id(&self) -> GroupId {
        self.id
    }

    pub fn peer(&self) -> PeerId {
        self.peer
    }

    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The boundary that counts as Raft's "persisted".
    pub fn answers_at(&self) -> Boundary {
        self.answers_at
    }

    /// From now on the group answers at written. Called when the weakening
    /// entry is applied, which in a group that answers at durable is when it
    /// is durable.
    pub fn weaken(&mut self) {
        self.answers_at = Boundary::Written;
    }

    pub fn is_leader(&self) -> bool {
        self.raft.raft.state == StateRole::Leader
    }

    /// Stands for election; a group of one leads at once. The election timeout
    /// is set from `random`, so that Raft's own draw decides nothing.
    ///
    /// # Errors
    /// Raft refused.
    pub fn campaign(&mut self, random: u64) -> Result<(), GroupError> {
        self.raft
            .campaign()
            .map_err(|error| GroupError::Raft(error.to_string()))?;
        let timeout = ELECTION_TICKS + (random % ELECTION_TICKS as u64) as usize;
        self.raft.raft.set_randomized_election_timeout(timeout);
        Ok(())
    }

    /// Appends a command whose payload is `parts` back to back, and proposes
    /// it. Returns the entry's index. `demand` is the boundary somebody waits for.
    ///
    /// # Errors
    /// Not the leader, or the log refused; nothing happened then.
    pub fn propose<B: BatchBuffer>(
        &mut self,
        log: &mut LogWriter<B>,
        parts: &[&[u8]],
        demand: Boundary,
    ) -> Result<u64, GroupError> {
        if !self.is_leader() {
            return Err(GroupError::NotLeader(self.id));
        }
        let index = self.raft.raft.raft_log.last_index() + 1;
        if index > self.raft.store().last() + 1 {
            // Raft's own empty entry of this term is not in the log yet: `pump` first.
            return Err(GroupError::NotLeader(self.id));
        }
        let handle = self.append_entry(log, index, parts, demand)?;
        self.raft
            .propose(Vec::new(), Vec::new())
            .map_err(|error| GroupError::Raft(error.to_string()))?;
        debug_assert_eq!(self.raft.raft.raft_log.last_index(), index);
        self.raft.mut_store().push(index, handle);
        Ok(index)
    }

    fn append_entry<B: BatchBuffer>(
        &self,
        log: &mut LogWriter<B>,
        index: u64,
        parts: &[&[u8]],
        demand: Boundary,
    ) -> Result<Handle, GroupError> {
        let term = self.raft.raft.term;
        // What Raft counts as persisted is demanded at least.
        let demand = demand.max(self.answers_at);
        let item = ItemHeader {
            kind: ItemKind::Entry,
            group: self.id.0,
            term,
            index,
            sync: demand == Boundary::Durable,
        };
        let appended = log.append(item, parts, demand)?;
        let len = parts.iter().map(|part| part.len()).sum::<usize>() as u32;
        Ok(Handle {
            term,
            payload: appended.payload,
            len,
            end: appended.end,
        })
    }

    /// Takes what Raft has ready: appends what is not in the log yet, and
    /// pushes what may be applied. True when something was done.
    ///
    /// # Errors
    /// The log refused; it is latched or out of room, and the group stands still.
    pub fn pump<B: BatchBuffer>(
        &mut self,
        log: &mut LogWriter<B>,
        committed: &mut Vec<Committed>,
    ) -> Result<bool, GroupError> {
        if !self.raft.has_ready() {
            return Ok(false);
        }
        let mut ready = self.raft.ready();
        let mut end = self.last_end;
        for entry in ready.entries() {
            let known = self.raft.store().get(entry.get_index());
            let handle = match known {
                Some(handle) if handle.term == entry.get_term() => *handle,
                // Raft's own empty entry of a new term: durable, see "barrier of a new leader".
                _ => {
                    let index = entry.get_index();
                    let handle = self.append_entry(log, index, &[], Boundary::Durable)?;
                    self.raft.mut_store().push(index, handle);
                    handle
                }
            };
            end = end.max(handle.end);
        }
        // `must_sync` is also set for entries: only the hard state itself tells.
        let ballot = ready.hs().map(|state| (state.get_term(), state.get_vote()));
        let hard = ballot.is_some_and(|ballot| ballot != self.ballot);
        if let Some(ballot) = ballot.filter(|_| hard) {
            end = end.max(self.append_state(log, ballot)?);
            self.ballot = ballot;
        }
        self.last_end = end;
        self.push_committed(&ready.take_committed_entries(), committed);
        self.pending.push_back(PendingReady {
            number: ready.number(),
            end,
            hard,
        });
        self.raft.advance_append_async(ready);
        Ok(true)
    }

    fn append_state<B: BatchBuffer>(
        &self,
        log: &mut LogWriter<B>,
        (term, vote): (u64, u64),
    ) -> Result<LogPosition, GroupError> {
        let state = self.state_with((term, vote));
        let item = ItemHeader {
            kind: ItemKind::GroupState,
            group: self.id.0,
            term,
            index: 0,
            sync: true,
        };
        Ok(log.append(item, &[&state.encode()], Boundary::Durable)?.end)
    }

    /// What the group keeps durable beside its entries, as last appended.
    pub fn state(&self) -> GroupState {
        self.state_with(self.ballot)
    }

    fn state_with(&self, (term, vote): (u64, u64)) -> GroupState {
        GroupState {
            answers_at: self.answers_at,
            generation: self.generation,
            peer: self.peer,
            term,
            vote,
            commit: self.raft.raft.raft_log.committed,
            base_index: self.base.0,
            base_term: self.base.1,
            voters: self.voters.clone(),
        }
    }

    fn push_committed(&self, entries: &[raft::eraftpb::Entry], committed: &mut Vec<Committed>) {
        for entry in entries {
            let index = entry.get_index();
            let Some(handle) = self.raft.store().get(index) else {
                continue;
            };
            committed.push(Committed {
                index,
                payload: handle.payload,
                len: handle.len,
                end: handle.end,
            });
        }
    }

    /// Tells Raft what has reached the boundary this group answers at. True
    /// when that may have made something ready.
    pub fn persisted(&mut self, frontiers: &LogFrontiers) -> bool {
        let mut last = None;
        while let Some(ready) = self.pending.front() {
            let boundary = if ready.hard {
                Boundary::Durable
            } else {
                self.answers_at
            };
            let frontier = match boundary {
                Boundary::Written => frontiers.written_next,
                Boundary::Durable => frontiers.durable_next,
            };
            if ready.end > frontier {
                break;
            }
            last = Some(ready.number);
            self.pending.pop_front();
        }
        if let Some(number) = last {
            self.raft.on_persist_ready(number);
        }
        last.is_some()
    }

    /// Everything up to `index` was applied; its handles are forgotten.
    pub fn applied(&mut self, index: u64) {
        self.raft.advance_apply_to(index);
        self.raft.mut_store().release(index);
    }

    /// Place of the oldest payload that is still to be applied.
    pub fn first_unapplied(&self) -> Option<LogPosition> {
        self.raft.store().first_payload()
    }

    /// Where the oldest entry that is still to be applied begins, payload or not.
    pub fn first_unapplied_place(&self) -> Option<LogPosition> {
        self.raft.store().first_place()
    }

    /// Index and term of the last applied entry.
    pub fn last_applied(&self) -> (u64, u64) {
        self.raft.store().base()
    }

    /// True when every entry appended here was committed and handed out.
    pub fn is_settled(&self) -> bool {
        let log = &self.raft.raft.raft_log;
        self.pending.is_empty() && log.applied == log.last_index()
    }
}
