use std::{
    cmp::Reverse,
    collections::{BTreeSet, VecDeque},
};

use raft::{
    eraftpb::{Entry as RaftEntry, EntryType, HardState, Message, MessageType, Snapshot},
    Config, Progress, RawNode, SnapshotStatus, StateRole, INVALID_ID,
};
use thiserror::Error;
use wire::{
    node::{DurableReport, Entry, RaftKind, RaftMessage, SnapshotId},
    vocabulary::Boundary,
};

use super::{
    copies::Copies,
    laggards::Laggards,
    membership::{Members, MembershipChange},
    messages,
    recovered::Recovered,
    storage::{snapshot_of, GroupStorage, Handle, MESSAGE_BYTES},
    GroupId, GroupState, PeerId,
};
use crate::{
    io::BatchBuffer,
    log::{AppendError, Appended, ItemHeader, ItemKind, LogFrontiers, LogPosition, LogWriter},
    mutation::{removed, Rule},
};

/// Ticks of [`TICK_MS`]: an election after 300 to 600 ms.
const ELECTION_TICKS: usize = 10;
const HEARTBEAT_TICKS: usize = 2;
/// So much longer a replica waits that is not to lead: the others stand first.
const RELUCTANT_TICKS: usize = 2 * ELECTION_TICKS;
/// A voter so close behind takes leadership without delay.
const CLOSE_ENTRIES: u64 = 4096;
/// Between two ticks of a group of several; a group of one does not tick.
pub const TICK_MS: u64 = 30;

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

/// A committed entry, ready to be applied. An empty payload is Raft's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    pub index: u64,
    pub term: u64,
    pub payload: LogPosition,
    pub len: u32,
    /// It changes the membership, see [`Group::change_membership`].
    pub membership: bool,
    /// The entry is durable here once the log's durable frontier is at or above this.
    pub end: LogPosition,
}

/// An entry that a follower needs and that is to be read back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WantedEntry {
    pub index: u64,
    pub place: LogPosition,
    pub len: u32,
    /// It changes the membership.
    pub membership: bool,
}

/// What a group has ready for its engine.
#[derive(Debug, Default)]
pub struct Outcome {
    pub committed: Vec<Committed>,
    /// To other nodes; see [`Group::encode`].
    pub messages: Vec<Message>,
}

struct PendingReady {
    number: u64,
    end: LogPosition,
    /// A term or vote changed: durable, whatever the group answers at.
    hard: bool,
    /// Leave once everything up to here is persisted.
    messages: Vec<Message>,
    /// A snapshot up to this entry was put in place.
    snapshot: Option<u64>,
}

/// What a follower told its leader.
#[derive(Debug, Clone, Copy, Default)]
struct Told {
    /// The leader's term.
    term: u64,
    /// Last index acknowledged in that term.
    acknowledged: u64,
    /// Last index reported durable in that term.
    durable: u64,
}

/// The boundary that somebody waits for at whom `sync` is set.
fn demand_of(sync: bool) -> Boundary {
    match sync {
        true => Boundary::Durable,
        false => Boundary::Written,
    }
}

fn handle_of(item: &ItemHeader, appended: Appended, parts: &[&[u8]]) -> Handle {
    Handle {
        term: item.term,
        payload: appended.payload,
        len: parts.iter().map(|part| part.len()).sum::<usize>() as u32,
        sync: item.sync,
        membership: item.kind == ItemKind::Membership,
        end: appended.end,
    }
}

/// One replica of a group.
pub struct Group {
    id: GroupId,
    peer: PeerId,
    generation: u32,
    answers_at: Boundary,
    base: (u64, u64),
    members: Members,
    /// Replicas on other nodes belong to it.
    several: bool,
    /// Peer ids that never count again (R2).
    retired: BTreeSet<u64>,
    pub(super) raft: RawNode<GroupStorage>,
    pending: VecDeque<PendingReady>,
    last_end: LogPosition,
    /// Term and vote as last appended.
    ballot: (u64, u64),
    /// The commit that the log says.
    stamped_commit: u64,
    copies: Copies,
    /// A weakening entry was proposed and is not applied yet.
    weakening: bool,
    told: Told,
    /// Entries up to this one are durable here.
    durable_index: u64,
    /// Handed in, for election timeouts.
    random: u64,
    /// Term and role when the timeout was drawn.
    drawn_for: (u64, StateRole),
    /// As drawn, in ticks.
    timeout: usize,
    /// See `set_reluctant`.
    reluctant: bool,
    /// The peer that leadership was last handed to; 0 = nobody.
    handed_to: u64,
    pub(super) laggards: Laggards,
    /// The item that puts a snapshot in force, while it is put in place.
    installing: Option<(Vec<u8>, Members)>,
    /// See `stop`.
    pub(super) stopped: bool,
    /// See `keeps_reported`.
    pub(super) keeps_reported: bool,
}

impl Group {
    /// A replica on what recovery found, everything known as committed applied.
    /// The term never falls below the last entry's. `several`: the cluster has other
    /// nodes, whoever belongs to the group now.
    ///
    /// # Errors
    /// Raft refused the configuration.
    pub fn open(
        id: GroupId,
        recovered: &Recovered,
        several: bool,
        random: u64,
    ) -> Result<Self, GroupError> {
        let state = &recovered.state;
        let (base, last) = (
            (recovered.last_index, recovered.last_term),
            recovered.last(),
        );
        // Raft must not be told of less than what its log begins behind: where entries
        // are missing (damage), what stands in front of the gap is all there is.
        let begins_behind = recovered.tail.begins_behind();
        let commit = match several {
            true => recovered.tail.known_commit().max(begins_behind).min(last.0),
            false => base.0,
        };
        let mut hard = HardState::default();
        hard.set_term(state.term.max(last.1));
        let vote_stands = state.term >= last.1;
        hard.set_vote(if vote_stands { state.vote } else { 0 });
        hard.set_commit(commit);
        let ballot = (hard.get_term(), hard.get_vote());
        let storage = if several {
            let parts = recovered.tail.clone().into_parts();
            let mut storage = GroupStorage::new(parts.base, hard, &state.members, true);
            storage.fill(parts.handles, commit, parts.payloads);
            storage
        } else {
            GroupStorage::new(base, hard, &state.members, false)
        };
        let config = Config {
            id: state.peer.0,
            election_tick: ELECTION_TICKS,
            heartbeat_tick: HEARTBEAT_TICKS,
            max_election_tick: 2 * ELECTION_TICKS + RELUCTANT_TICKS,
            applied: commit,
            max_size_per_msg: MESSAGE_BYTES,
            max_inflight_msgs: 256,
            check_quorum: true,
            pre_vote: true,
            batch_append: true,
            // Followers learn what is committed by the next entries or the next heartbeat: a
            // message of its own for each commit, and its answer, doubled what a link carries.
            // Nobody waits for a follower to apply, except for group 0's copies.
            skip_bcast_commit: id != GroupId::META,
            ..Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raft = RawNode::new(&config, storage, &logger)
            .map_err(|error| GroupError::Raft(error.to_string()))?;
        let mut group = Group {
            id,
            peer: state.peer,
            generation: state.generation,
            answers_at: state.answers_at,
            base: (state.base_index, state.base_term),
            members: state.members.clone(),
            several,
            retired: BTreeSet::new(),
            raft,
            pending: VecDeque::new(),
            last_end: LogPosition::default(),
            ballot,
            stamped_commit: commit,
            copies: Copies::default(),
            weakening: false,
            told: Told::default(),
            durable_index: last.0,
            random: random ^ u64::from(id.0).wrapping_mul(0x9E37_79B9_7F4A_7C15),
            drawn_for: (u64::MAX, StateRole::Follower),
            timeout: ELECTION_TICKS,
            reluctant: false,
            handed_to: 0,
            laggards: Laggards::default(),
            installing: None,
            stopped: state.stopped,
            keeps_reported: state.keeps_reported,
        };
        group.draw_timeout();
        Ok(group)
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
    /// entry is applied and durable here.
    pub fn weaken(&mut self) {
        self.answers_at = Boundary::Written;
        self.weakening = false;
    }

    /// A weakening entry is about to be proposed: once a follower applied it, what
    /// it acknowledges may be no more than written, whatever this replica applied.
    pub fn will_weaken(&mut self) {
        self.weakening = true;
    }

    /// More than one replica: it ticks, and talks to other nodes.
    pub fn is_replicated(&self) -> bool {
        self.several
    }

    /// Who belongs to the group, as applied here.
    pub fn members(&self) -> &Members {
        &self.members
    }

    pub fn is_leader(&self) -> bool {
        self.raft.raft.state == StateRole::Leader && !self.is_fenced()
    }

    pub fn term(&self) -> u64 {
        self.raft.raft.term
    }

    /// It stopped its generation, which keeps it from everything.
    fn is_fenced(&self) -> bool {
        self.stopped && !removed(Rule::R6Fence)
    }

    /// The replica that leads, as far as this one knows.
    pub fn leader(&self) -> Option<PeerId> {
        let leader = self.raft.raft.leader_id;
        // A learner never stands for election, and so never forgets a leader that is gone.
        let silent = !self.is_leader() && self.raft.raft.election_elapsed >= 2 * ELECTION_TICKS;
        (leader != 0 && !silent && !self.is_fenced()).then_some(PeerId(leader))
    }

    pub(super) fn store(&self) -> &GroupStorage {
        self.raft.store()
    }

    /// Stands for election; a group of one leads at once.
    ///
    /// # Errors
    /// Raft refused.
    pub fn campaign(&mut self) -> Result<(), GroupError> {
        let stood = self.raft.campaign();
        self.draw_timeout();
        stood.map_err(|error| GroupError::Raft(error.to_string()))
    }

    /// [`TICK_MS`] passed.
    pub fn tick(&mut self) {
        if self.installs() || self.is_fenced() {
            return;
        }
        self.raft.tick();
        self.draw_timeout();
    }

    /// A snapshot was put in place and is not persisted: Raft must not stand for
    /// election now, for it would look for entries that are gone (it panics).
    fn installs(&self) -> bool {
        self.pending.iter().any(|ready| ready.snapshot.is_some())
    }

    /// Raft draws its own timeout in every reset; ours decides, so that a run is
    /// the same again.
    fn draw_timeout(&mut self) {
        let now = (self.raft.raft.term, self.raft.raft.state);
        if now != self.drawn_for {
            if now.1 == StateRole::Leader {
                self.copies.begin();
                self.weakening = false;
            }
            self.drawn_for = now;
            // splitmix64
            self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut drawn = self.random;
            drawn = (drawn ^ (drawn >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            drawn = (drawn ^ (drawn >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            drawn ^= drawn >> 31;
            self.timeout = ELECTION_TICKS + (drawn % ELECTION_TICKS as u64) as usize;
        }
        let timeout = match self.reluctant {
            true => self.timeout + RELUCTANT_TICKS,
            false => self.timeout,
        };
        self.raft.raft.set_randomized_election_timeout(timeout);
    }

    /// The link to that node is gone.
    pub fn unreachable_node(&mut self, node: u32) {
        let Members { voters, learners } = &self.members;
        let peers = voters.iter().chain(learners);
        for peer in peers.filter(|peer| PeerId(**peer).node() == node) {
            self.raft.report_unreachable(*peer);
        }
    }

    /// The voter that is furthest, if it is close behind; not the one that was last
    /// handed to, where there is another: it may not want to lead either. `leads` tells
    /// which nodes are willing.
    pub fn successor(&self, leads: &dyn Fn(u32) -> bool) -> Option<u64> {
        let others = self.raft.raft.prs().iter();
        let others = others.filter(|(peer, progress)| {
            leads(PeerId(**peer).node()) && self.may_take_over(**peer, progress)
        });
        let best = others.max_by_key(|(peer, progress)| {
            let other = self.handed_to != **peer;
            // Where several are as far, groups go to different ones.
            let spread = (**peer ^ u64::from(self.id.0)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            (other, progress.matched, spread >> 32, Reverse(**peer))
        });
        best.map(|(peer, _)| *peer)
    }

    /// What that voter lacks of what this leader has is not much; of others a follower
    /// knows nothing.
    pub fn is_close(&self, peer: u64) -> bool {
        let progress = self.raft.raft.prs().get(peer);
        let close = |progress: &Progress| progress.matched + CLOSE_ENTRIES >= self.last_index();
        peer == self.peer.0 || !self.is_leader() || progress.is_some_and(close)
    }

    fn may_take_over(&self, peer: u64, progress: &Progress) -> bool {
        let close = self.is_close(peer);
        let votes = self.members.voters.contains(&peer) && !self.retired.contains(&peer);
        peer != self.peer.0 && votes && progress.recent_active && close
    }

    /// The voter on that node, if it could take over.
    pub fn heir_on(&self, node: u32) -> Option<u64> {
        let others = self.raft.raft.prs().iter();
        let mut of_node = others.filter(|(peer, _)| PeerId(**peer).node() == node);
        let found = of_node.find(|(peer, progress)| self.may_take_over(**peer, progress));
        found.map(|(peer, _)| *peer)
    }

    /// The voter is close behind and heard of lately.
    pub fn can_take_over(&self, peer: u64) -> bool {
        let progress = self.raft.raft.prs().get(peer);
        progress.is_some_and(|progress| self.may_take_over(peer, progress))
    }

    /// Hands leadership to that voter, if it can take over and nobody is about to.
    pub fn hand_over_to(&mut self, peer: u64) {
        let free = self.is_leader() && self.raft.raft.lead_transferee.is_none();
        if free && self.can_take_over(peer) {
            self.raft.transfer_leader(peer);
        }
    }

    /// Hands leadership to [`Group::successor`], if nobody is about to take it.
    pub fn hand_over(&mut self, leads: &dyn Fn(u32) -> bool) {
        if !self.is_leader() || self.raft.raft.lead_transferee.is_some() {
            return;
        }
        if let Some(best) = self.successor(leads) {
            self.handed_to = best;
            self.raft.transfer_leader(best);
        }
    }

    /// Whether it lets others stand for election first.
    pub fn set_reluctant(&mut self, on: bool) {
        if std::mem::replace(&mut self.reluctant, on) != on {
            self.draw_timeout();
        }
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
        if !self.is_leader() || self.raft.raft.lead_transferee.is_some() {
            return Err(GroupError::NotLeader(self.id));
        }
        let index = self.next_index()?;
        let item = self.entry_item(ItemKind::Entry, (index, self.term()), demand);
        let appended = log.append(item, parts, demand_of(item.sync))?;
        let handle = handle_of(&item, appended, parts);
        self.raft
            .propose(Vec::new(), Vec::new())
            .map_err(|error| GroupError::Raft(error.to_string()))?;
        debug_assert_eq!(self.raft.raft.raft_log.last_index(), index);
        self.raft.mut_store().push(index, handle);
        Ok(index)
    }

    /// The index that a proposal gets.
    fn next_index(&self) -> Result<u64, GroupError> {
        let index = self.last_index() + 1;
        // Raft's own empty entry of this term is not in the log yet: `pump` first.
        match index > self.store().last() + 1 {
            true => Err(GroupError::NotLeader(self.id)),
            false => Ok(index),
        }
    }

    fn entry_item(
        &self,
        kind: ItemKind,
        (index, term): (u64, u64),
        demand: Boundary,
    ) -> ItemHeader {
        ItemHeader {
            kind,
            group: self.id.0,
            term,
            index,
            // What Raft counts as persisted is demanded at least.
            sync: demand.max(self.answers_at) == Boundary::Durable,
        }
    }

    /// Proposes one step of membership; it is applied as any entry is.
    ///
    /// # Errors
    /// Not the leader, nothing of this term applied yet, or the last change is not:
    /// one at a time (R3). Nothing happened then.
    pub fn propose_membership<B: BatchBuffer>(
        &mut self,
        log: &mut LogWriter<B>,
        change: MembershipChange,
    ) -> Result<u64, GroupError> {
        let own_term = self.last_applied().1 == self.term();
        if !self.is_leader() || !own_term || self.raft.raft.has_pending_conf() {
            return Err(GroupError::NotLeader(self.id));
        }
        let index = self.next_index()?;
        let at = (index, self.term());
        let item = self.entry_item(ItemKind::Membership, at, Boundary::Durable);
        let payload = change.encode();
        let appended = log.append(item, &[&payload], Boundary::Durable)?;
        self.raft
            .propose_conf_change(Vec::new(), change.to_raft())
            .map_err(|error| GroupError::Raft(error.to_string()))?;
        debug_assert_eq!(self.last_index(), index);
        let handle = handle_of(&item, appended, &[&payload]);
        self.raft.mut_store().push(index, handle);
        Ok(index)
    }

    /// Applies a committed change, and keeps what came of it.
    ///
    /// # Errors
    /// Raft or the log refused.
    pub fn change_membership<B: BatchBuffer>(
        &mut self,
        log: &mut LogWriter<B>,
        change: MembershipChange,
    ) -> Result<(), GroupError> {
        let changed = self.raft.apply_conf_change(&change.to_raft());
        let changed = changed.map_err(|error| GroupError::Raft(error.to_string()))?;
        self.members = Members::of_raft(&changed);
        self.raft.mut_store().set_membership(changed);
        self.keeps_reported |= change.promotes(self.peer.0);
        if self.is_leader() && !self.members.voters.contains(&self.peer.0) {
            // Raft would let it lead on: it drops what is proposed, when that is in the log
            // already, and panics when the next entry is committed.
            let term = self.term();
            self.raft.raft.become_follower(term, INVALID_ID);
        }
        self.count_copies();
        self.append_own_state(log)?;
        Ok(())
    }

    /// Who this replica is and what it promised, once more.
    pub(super) fn append_own_state<B: BatchBuffer>(
        &mut self,
        log: &mut LogWriter<B>,
    ) -> Result<LogPosition, GroupError> {
        let end = self.append_state(log, self.ballot)?;
        self.last_end = self.last_end.max(end);
        Ok(self.last_end)
    }

    fn append_kept_state<B: BatchBuffer>(
        &mut self,
        log: &mut LogWriter<B>,
    ) -> Result<LogPosition, GroupError> {
        self.keeps_reported = true;
        self.append_own_state(log)
    }

    pub(super) fn forget_pending(&mut self) {
        self.pending.clear();
    }

    /// That peer id never counts again (R2): what it acknowledged beyond what it
    /// reported durable is not there any more (R4), and if it was `harmed`, nothing is
    /// (found by the model, `R4-harmed`).
    pub fn retire(&mut self, peer: u64, harmed: bool) {
        if !self.retired.insert(peer) || !self.is_leader() || removed(Rule::RetiredCopies) {
            return;
        }
        let durable = match harmed {
            true => {
                self.copies.forget(peer);
                0
            }
            false => self.copies.forget_written(peer),
        };
        if let Some(progress) = self.raft.raft.mut_prs().get_mut(peer) {
            progress.matched = progress.matched.min(durable);
        }
    }

    /// How far a replica is durable, as this leader knows.
    pub fn durable_of(&self, peer: u64) -> u64 {
        self.copies.durable_of(peer)
    }

    /// Of each other replica, as this leader knows: its peer id, and the last index it
    /// has written and durable.
    pub fn progress(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        self.copies.each()
    }

    /// Last entry that is durable here; of a group of one that is being written, 0: it
    /// does not keep count.
    pub fn durable_index(&self, frontiers: &LogFrontiers) -> u64 {
        if self.several {
            return self.durable_index;
        }
        match self.last_end <= frontiers.durable_next {
            true => self.last_index(),
            false => 0,
        }
    }

    /// The log is told who this replica is before anything of it leaves.
    ///
    /// # Errors
    /// The log refused.
    pub fn announce<B: BatchBuffer>(
        &mut self,
        log: &mut LogWriter<B>,
    ) -> Result<LogPosition, GroupError> {
        let end = self.append_own_state(log)?;
        self.pending.push_back(PendingReady {
            number: 0,
            end,
            hard: true,
            messages: Vec::new(),
            snapshot: None,
        });
        Ok(end)
    }

    /// Takes a message of another replica of the group. Its entries are appended
    /// in the same call, out of the frame.
    ///
    /// # Errors
    /// Why it was not taken: as if it had been lost.
    pub fn step<B: BatchBuffer>(
        &mut self,
        log: &mut LogWriter<B>,
        message: &RaftMessage<'_>,
        outcome: &mut Outcome,
    ) -> Result<(), GroupError> {
        if self.is_fenced() {
            return Ok(());
        }
        let mut bytes = 0;
        for entry in message.entries.iter() {
            bytes += entry.payload.len() as u64;
        }
        if bytes > 0 {
            log.admits(bytes)?;
        }
        let refused = |reason: &str| Err(GroupError::Raft(reason.to_owned()));
        let Some(mut raft) = self.checked(message) else {
            return refused("the message contradicts this replica's log");
        };
        if raft.get_msg_type() == MessageType::MsgHeartbeat {
            // A log that went backwards must not be told of a commit behind its end.
            raft.commit = raft.commit.min(self.raft.raft.raft_log.last_index());
        }
        self.raft
            .step(raft)
            .map_err(|error| GroupError::Raft(error.to_string()))?;
        self.draw_timeout();
        self.count_copies();
        let mut entries = message.entries.iter();
        while self.pump_with(log, &mut entries, outcome)? {}
        Ok(())
    }

    /// What Raft would panic at is not handed to it.
    fn checked(&self, message: &RaftMessage<'_>) -> Option<Message> {
        let head = &message.head;
        let log = &self.raft.raft.raft_log;
        if head.kind == RaftKind::TimeoutNow && self.installs() {
            return None;
        }
        let known = !self.retired.contains(&head.from) && head.to == self.peer.0;
        let current = head.generation == self.generation || removed(Rule::R6Generation);
        if !known || !current {
            return None;
        }
        if head.kind == RaftKind::AppendResponse && !head.reject && head.index > log.last_index() {
            return None;
        }
        let (mut index, mut term) = (head.index, head.log_term);
        for entry in message.entries.iter() {
            if entry.index != index + 1 || entry.term < term || entry.term > head.term {
                return None;
            }
            (index, term) = (entry.index, entry.term);
            let replaces = index <= log.committed && log.term(index).is_ok_and(|it| it != term);
            if replaces {
                return None;
            }
        }
        messages::to_raft(message)
    }

    /// Counts what Raft knows of the other voters. What they acknowledged is
    /// durable only where the group is known to answer at durable: an earlier
    /// leader's weakening may still be on its way to being applied.
    fn count_copies(&mut self) {
        if !self.is_leader() {
            return;
        }
        let own_term = self.last_applied().1 == self.term();
        let both = self.answers_at == Boundary::Durable && own_term && !self.weakening;
        let (own, progress) = (self.peer.0, self.raft.raft.prs());
        let Members { voters, learners } = &self.members;
        for peer in voters.iter().chain(learners).filter(|peer| **peer != own) {
            let matched = progress.get(*peer).map_or(0, |progress| progress.matched);
            let votes = voters.contains(peer);
            self.copies.matched(*peer, votes, matched, both);
        }
        self.copies.keep(|peer| self.members.contains(peer));
    }

    /// A follower's report of how far it is durable. Of another term than this
    /// leadership's it means nothing.
    pub fn durable_report(&mut self, report: &DurableReport) {
        let of_term = report.term == self.term() || removed(Rule::ReportTerm);
        let current = of_term && report.generation == self.generation;
        if self.is_leader() && current && report.to == self.peer.0 {
            self.copies.durable(report.from, report.index);
        }
    }

    /// The link to the leader is a new one: what was reported may have been lost.
    pub fn report_again(&mut self) {
        self.told.durable = 0;
    }

    /// The report that this follower owes its leader, if there is something new.
    pub fn take_report(&mut self) -> Option<DurableReport> {
        let leader = self.leader()?;
        if self.is_leader() || self.answers_at == Boundary::Durable || self.told.term != self.term()
        {
            return None;
        }
        let mut index = self.durable_index.min(self.told.acknowledged);
        if removed(Rule::ReportAcknowledged) {
            index = self.durable_index;
        }
        if index <= self.told.durable {
            return None;
        }
        self.told.durable = index;
        Some(DurableReport {
            group: self.id.0,
            generation: self.generation,
            from: self.peer.0,
            to: leader.0,
            term: self.term(),
            index,
        })
    }

    /// The index that this many other voters have reached.
    pub fn others_reached(&self, boundary: Boundary, others: usize) -> u64 {
        self.copies.reached(boundary, others)
    }

    /// How many voters have reached `index`, this one counted as one of them.
    pub fn copies_of(&self, boundary: Boundary, index: u64) -> usize {
        1 + self.copies.count(boundary, index)
    }

    /// Takes what Raft has ready: appends what is not in the log yet, and
    /// pushes what may be applied. True when something was done.
    ///
    /// # Errors
    /// The log refused; it is latched or out of room, and the group stands still.
    pub fn pump<B: BatchBuffer>(
        &mut self,
        log: &mut LogWriter<B>,
        outcome: &mut Outcome,
    ) -> Result<bool, GroupError> {
        self.pump_with(log, &mut std::iter::empty(), outcome)
    }

    fn pump_with<'e, B: BatchBuffer>(
        &mut self,
        log: &mut LogWriter<B>,
        incoming: &mut impl Iterator<Item = Entry<'e>>,
        outcome: &mut Outcome,
    ) -> Result<bool, GroupError> {
        if self.is_fenced() || !self.raft.has_ready() {
            return Ok(false);
        }
        let mut ready = self.raft.ready();
        let mut end = self.last_end;
        let snapshot = self.restore(log, ready.snapshot(), &mut end)?;
        for entry in ready.entries() {
            let of = (entry.get_index(), entry.get_term());
            let handle = match self.handle(of.0, of.1) {
                Some(handle) => *handle,
                None => self.append_new(log, of, incoming)?,
            };
            end = end.max(handle.end);
        }
        // `must_sync` is also set for entries: only the hard state itself tells.
        let ballot = ready.hs().map(|state| (state.get_term(), state.get_vote()));
        let ballot = ballot.filter(|ballot| *ballot != self.ballot);
        // R5: a change of membership takes effect once it is durable here, and Raft
        // hands out nothing that it was not told is persisted.
        let is_change = |entry: &RaftEntry| entry.get_entry_type() == EntryType::EntryConfChange;
        // R10: nor is a snapshot acknowledged, and reported durable, before it is.
        let changes = ready.entries().iter().any(is_change) && !removed(Rule::ConfDurable)
            || snapshot.is_some() && !removed(Rule::SnapshotDurable);
        let hard = ballot.is_some() && !removed(Rule::VoteDurable) || changes;
        if let Some(ballot) = ballot {
            let stated = self.append_state(log, ballot)?;
            if hard {
                end = end.max(stated);
            }
            self.ballot = ballot;
        }
        if !ready.entries().is_empty() {
            self.stamp_commit(log)?;
        }
        self.last_end = end;
        self.push_committed(&ready.take_committed_entries(), &mut outcome.committed);
        let mut messages = ready.take_persisted_messages();
        let at_once = ready.take_messages();
        // R7: no message leaves before the term and vote it was made under are durable.
        let ballot_pending = hard || self.pending.iter().any(|ready| ready.hard);
        if ballot_pending && !removed(Rule::HeldMessages) {
            messages.extend(at_once);
        } else {
            outcome.messages.extend(at_once);
            // That a follower hears its leader says nothing of what it has written: it does
            // not wait for a disk that stands still, or the leader would take it for gone.
            let hears =
                |message: &mut Message| message.get_msg_type() == MessageType::MsgHeartbeatResponse;
            outcome.messages.extend(messages.extract_if(.., hears));
        }
        self.pending.push_back(PendingReady {
            number: ready.number(),
            end,
            hard,
            messages,
            snapshot,
        });
        self.raft.advance_append_async(ready);
        Ok(true)
    }

    /// Appends an entry that came in, or Raft's own empty entry of a new term.
    fn append_new<'e, B: BatchBuffer>(
        &mut self,
        log: &mut LogWriter<B>,
        (index, term): (u64, u64),
        incoming: &mut impl Iterator<Item = Entry<'e>>,
    ) -> Result<Handle, GroupError> {
        let came = incoming.find(|entry| entry.index == index);
        let (payload, sync, kind) = match &came {
            Some(entry) if entry.membership => (entry.payload, true, ItemKind::Membership),
            Some(entry) => {
                let sync = entry.sync && !removed(Rule::SyncBit);
                (entry.payload, sync, ItemKind::Entry)
            }
            // Durable, see "barrier of a new leader".
            None => (&[][..], true, ItemKind::Entry),
        };
        let item = self.entry_item(kind, (index, term), demand_of(sync));
        // Raft has it already: it was admitted with its message.
        let appended = log.append_admitted(item, &[payload], demand_of(item.sync))?;
        let handle = handle_of(&item, appended, &[payload]);
        if index <= self.store().last() {
            // A tail is replaced: nothing of it counts any more.
            self.durable_index = self.durable_index.min(index - 1);
            self.told.acknowledged = self.told.acknowledged.min(index - 1);
            self.told.durable = self.told.durable.min(index - 1);
        }
        self.raft.mut_store().push(index, handle);
        Ok(handle)
    }

    /// The snapshot's sender is right to send it.
    pub fn wants_snapshot(&self, id: &SnapshotId) -> bool {
        let log = &self.raft.raft.raft_log;
        id.generation == self.generation
            && !self.is_fenced()
            && id.to == self.peer.0
            && !self.retired.contains(&id.from)
            && id.term >= self.term()
            && id.index > log.committed
    }

    /// A snapshot of what is committed here anyway: its sender is told how far this
    /// replica is, or it would send it again and again.
    pub fn decline_snapshot<B: BatchBuffer>(
        &mut self,
        log: &mut LogWriter<B>,
        id: &SnapshotId,
        outcome: &mut Outcome,
    ) {
        let current = id.generation == self.generation && id.term >= self.term();
        let ours = id.to == self.peer.0 && !self.retired.contains(&id.from);
        if self.is_fenced() || !current || !ours || id.index > self.committed() {
            return;
        }
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgSnapshot);
        (message.from, message.to, message.term) = (id.from, id.to, id.term);
        let membership = self.members.to_raft();
        message.set_snapshot(snapshot_of((id.index, id.index_term), membership));
        // Raft answers with what is committed.
        let stepped = self.raft.step(message);
        self.draw_timeout();
        while stepped.is_ok() && self.pump(log, outcome) == Ok(true) {}
    }

    /// The state as of `id.index` is in the log; `item` says there that it is in
    /// force. False when Raft does not want it, and nothing happened.
    pub fn install<B: BatchBuffer>(
        &mut self,
        log: &mut LogWriter<B>,
        id: &SnapshotId,
        members: Members,
        item: &[u8],
        outcome: &mut Outcome,
    ) -> bool {
        if !self.wants_snapshot(id) {
            return false;
        }
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgSnapshot);
        (message.from, message.to, message.term) = (id.from, id.to, id.term);
        let membership = members.to_raft();
        message.set_snapshot(snapshot_of((id.index, id.index_term), membership));
        self.installing = Some((item.to_vec(), members));
        let stepped = self.raft.step(message);
        self.draw_timeout();
        while stepped.is_ok() && self.pump(log, outcome) == Ok(true) {}
        self.installing = None;
        let installed = self.last_applied() == (id.index, id.index_term);
        if installed && !self.keeps_reported {
            // Everything that was confirmed by then is here: its answer counts again.
            self.keeps_reported = self.append_kept_state(log).is_ok();
        }
        installed
    }

    fn restore<B: BatchBuffer>(
        &mut self,
        log: &mut LogWriter<B>,
        snapshot: &Snapshot,
        end: &mut LogPosition,
    ) -> Result<Option<u64>, GroupError> {
        let (index, term) = (snapshot.get_metadata().index, snapshot.get_metadata().term);
        if index == 0 {
            return Ok(None);
        }
        let item = ItemHeader {
            kind: ItemKind::Snapshot,
            group: self.id.0,
            term: self.term(),
            index,
            sync: true,
        };
        let Some((payload, members)) = self.installing.take() else {
            return Err(GroupError::Raft("a snapshot came from nowhere".to_owned()));
        };
        let appended = log.append_admitted(item, &[&payload], Boundary::Durable)?;
        self.raft.mut_store().set_membership(members.to_raft());
        self.members = members;
        *end = (*end).max(appended.end);
        self.raft.mut_store().restore(index, term);
        self.durable_index = index;
        self.stamped_commit = index;
        Ok(Some(index))
    }

    /// A snapshot to that replica is through, or given up.
    pub fn snapshot_done(&mut self, to: u64, done: bool) {
        let status = match done {
            true => SnapshotStatus::Finish,
            false => SnapshotStatus::Failure,
        };
        self.raft.report_snapshot(to, status);
    }

    /// Says in the log how far the group is committed, so that recovery need not
    /// hold everything back.
    fn stamp_commit<B: BatchBuffer>(&mut self, log: &mut LogWriter<B>) -> Result<(), GroupError> {
        let commit = self.raft.raft.raft_log.committed;
        if !self.is_replicated() || commit <= self.stamped_commit {
            return Ok(());
        }
        let item = ItemHeader {
            kind: ItemKind::Commit,
            group: self.id.0,
            term: self.term(),
            index: commit,
            sync: false,
        };
        log.append(item, &[], Boundary::Written)?;
        self.stamped_commit = commit;
        Ok(())
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
            members: self.members.clone(),
            stopped: self.stopped,
            keeps_reported: self.keeps_reported,
        }
    }

    fn push_committed(&self, entries: &[raft::eraftpb::Entry], committed: &mut Vec<Committed>) {
        for entry in entries {
            self.push_entry(entry.get_index(), committed);
        }
    }

    pub(super) fn push_entry(&self, index: u64, committed: &mut Vec<Committed>) {
        if let Some(handle) = self.store().get(index) {
            committed.push(Committed {
                index,
                term: handle.term,
                payload: handle.payload,
                len: handle.len,
                membership: handle.membership,
                end: handle.end,
            });
        }
    }

    /// Last entry of which Raft was told that it is persisted here.
    pub fn persisted_index(&self) -> u64 {
        self.raft.raft.raft_log.persisted
    }

    /// Tells Raft what has reached the boundary this group answers at. True
    /// when that may have made something ready.
    pub fn persisted(&mut self, frontiers: &LogFrontiers, outcome: &mut Outcome) -> bool {
        let (mut last, mut snapshot) = (None, None);
        while let Some(ready) = self.pending.front() {
            let boundary = match ready.hard {
                true => Boundary::Durable,
                false => self.answers_at,
            };
            if ready.end > frontiers.at(boundary) {
                break;
            }
            last = Some(ready.number);
            if let Some(ready) = self.pending.pop_front() {
                snapshot = ready.snapshot.or(snapshot);
                for message in ready.messages {
                    self.note_told(&message);
                    outcome.messages.push(message);
                }
            }
        }
        if self.is_replicated() {
            self.advance_durable(frontiers.durable_next);
        }
        if let Some(number) = last {
            self.raft.on_persist_ready(number);
        }
        if let Some(index) = snapshot {
            self.raft.advance_apply_to(index);
        }
        last.is_some()
    }

    fn advance_durable(&mut self, durable_next: LogPosition) {
        // Of what is forgotten by now, all at once: syncs may be that far behind.
        let (base, end) = self.store().base();
        if self.durable_index < base && end <= durable_next {
            self.durable_index = base;
        }
        let is_durable = |handle: &Handle| handle.end <= durable_next;
        while self
            .store()
            .get(self.durable_index + 1)
            .is_some_and(is_durable)
        {
            self.durable_index += 1;
        }
    }

    /// Durable reports go no further than what was acknowledged to this leader in
    /// this term.
    fn note_told(&mut self, message: &Message) {
        if message.get_msg_type() != MessageType::MsgAppendResponse || message.reject {
            return;
        }
        if message.term < self.told.term {
            return;
        }
        if self.told.term != message.term {
            self.told = Told {
                term: message.term,
                ..Told::default()
            };
        }
        self.told.acknowledged = self.told.acknowledged.max(message.index);
    }

    /// Appends one of [`Outcome::messages`] to a link's output.
    pub fn encode<B: BatchBuffer>(&self, log: &LogWriter<B>, message: &Message, out: &mut Vec<u8>) {
        messages::encode(self, log, message, out);
    }

    /// Calls `visit` with an entry's payload, piece by piece, if it is in memory.
    pub fn visit_entry<B: BatchBuffer>(
        &self,
        log: &LogWriter<B>,
        index: u64,
        visit: &mut dyn FnMut(&[u8]),
    ) -> bool {
        let handle = self.store().get(index);
        handle.is_some_and(|handle| self.visit_payload(log, index, handle, visit))
    }

    /// Everything up to `index` was applied.
    pub fn applied(&mut self, index: u64) {
        self.raft.advance_apply_to(index);
        self.raft.mut_store().apply(index);
        if self.is_replicated() {
            self.count_copies();
        }
    }

    /// Payloads at or above are in the log's buffers.
    pub fn set_cached_from(&mut self, position: LogPosition) {
        self.raft.mut_store().set_cached_from(position);
    }

    /// The ring below `position` is let go: what stood there cannot be sent.
    pub fn trim_below(&mut self, position: LogPosition) {
        self.raft.mut_store().trim_below(position);
    }

    /// Index of the last entry, committed or not.
    pub fn last_index(&self) -> u64 {
        self.raft.raft.raft_log.last_index()
    }

    /// Index of the last entry known as committed.
    pub fn committed(&self) -> u64 {
        self.raft.raft.raft_log.committed
    }

    /// Entries that are not applied yet.
    pub fn unapplied(&self) -> u64 {
        self.last_index().saturating_sub(self.last_applied().0)
    }

    /// Place of the oldest payload that is still to be applied.
    pub fn first_unapplied(&self) -> Option<LogPosition> {
        self.store().first_payload()
    }

    /// Where the oldest entry that is still to be applied begins, payload or not.
    pub fn first_unapplied_place(&self) -> Option<LogPosition> {
        self.store().first_place()
    }

    /// Index and term of the last applied entry.
    pub fn last_applied(&self) -> (u64, u64) {
        self.store().applied()
    }

    /// Everything this replica knows as committed is applied, and a leader is known.
    pub fn is_current(&self) -> bool {
        let log = &self.raft.raft.raft_log;
        self.raft.raft.leader_id != 0 && log.applied >= log.committed
    }

    /// Alone: every entry appended here was committed and handed out. One of
    /// several: what it answered is persisted; the others may have the rest.
    pub fn is_settled(&self) -> bool {
        let log = &self.raft.raft.raft_log;
        self.pending.is_empty() && (self.is_replicated() || log.applied == log.last_index())
    }
}
