//! From a recovered log to a serving engine.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use thiserror::Error;
use wire::vocabulary::Boundary;

use super::{
    applier::{Applied, Applier},
    core::{map, Engine, Map},
    directory::Directory,
    elsewhere::Hints,
    gates::{GroupSlot, Origin},
    level::Level,
    links::Links,
    meta::MetaSlot,
    orders::Orders,
    pace::Pace,
    partition::{PartitionKey, PartitionSlot},
    reads::ReadCache,
    room::Room,
    roster::Known,
    snapshot::{drop_partitions, Piece, Staged},
    turn::Timers,
    types::{EngineConfig, Memory, Notice, ShardMessage},
    upkeep::{PackFile, RestoreFailure, Restored, Scrub, Upkeep},
};
use crate::{
    group::{
        Group, GroupError, GroupId, GroupState, GroupStateError, Members, MembershipChange, PeerId,
        Recovered, Tail,
    },
    io::BatchBuffer,
    log::{ItemHeader, ItemKind, LogFrontiers, LogPosition, LogWriter, FIRST_SEGMENT},
    mutation::{removed, Rule},
    state::{
        command::Command,
        level,
        meta::{is_nameless, nameless_peer, MetaCommand, MetaState, Open, FOUNDING_JOIN},
        queue::AppendedRecord,
    },
    store::{Checkpoint, CheckpointHead},
};

/// Why a recovered log does not make an engine.
#[derive(Debug, Error)]
pub enum BootError {
    #[error("group {group}: {source}")]
    GroupState { group: u32, source: GroupStateError },
    #[error("group {group}, entry {index}: {reason}")]
    Entry {
        group: u32,
        index: u64,
        reason: String,
    },
    #[error("the log holds group {0}, which the directory's table does not place here")]
    ForeignGroup(u32),
    #[error("{0}")]
    Outdated(String),
    #[error(transparent)]
    Group(#[from] GroupError),
}

/// Gathers what the log holds.
pub struct Boot {
    config: EngineConfig,
    groups: BTreeMap<u32, Recovered>,
    partitions: Map<PartitionKey, Box<PartitionSlot>>,
    appended: Vec<AppendedRecord>,
    meta: MetaState,
    stamp_ms: u64,
    /// Entries up to these indexes are in what the checkpoint restored, at
    /// least: replay begins somewhere below.
    covered: BTreeMap<u32, u64>,
    /// Snapshots that are not in force yet, by group.
    staged: BTreeMap<u32, Staged>,
    upkeep: Option<(CheckpointHead, u64, BTreeMap<u32, PackFile>)>,
    /// Memory that the partitions take, see [`PartitionSlot::account`].
    index_bytes: u64,
}

impl Boot {
    pub fn new(config: EngineConfig) -> Self {
        let data_groups = config.place.data_groups();
        Boot {
            meta: MetaState::new(data_groups),
            config,
            groups: BTreeMap::new(),
            partitions: map(),
            appended: Vec::new(),
            stamp_ms: 0,
            covered: BTreeMap::new(),
            staged: BTreeMap::new(),
            upkeep: None,
            index_bytes: 0,
        }
    }

    /// Begins with the state of a checkpoint; before any item is replayed.
    ///
    /// # Errors
    /// It is not one that this build reads.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), RestoreFailure> {
        let data_groups = self.config.place.data_groups();
        let restored = Restored::read(&checkpoint.body, data_groups)?;
        self.partitions = restored.partitions;
        for slot in self.partitions.values_mut() {
            slot.account(&mut self.index_bytes);
        }
        self.covered = restored
            .groups
            .iter()
            .map(|(group, recovered)| (*group, recovered.last_index))
            .collect();
        self.groups = restored.groups;
        if let Some(meta) = restored.meta {
            self.meta = meta;
        }
        self.stamp_ms = restored.stamp_ms;
        let body_bytes = checkpoint.body.len() as u64;
        self.upkeep = Some((checkpoint.head, body_bytes, restored.packs));
        Ok(())
    }

    /// Takes one recovered item in log order; payload byte `i` stands at `place(i)`.
    ///
    /// A log of a group of one holds no entry that was not its leader's: what
    /// survived is committed, and applied as it comes.
    ///
    /// # Errors
    /// An item that does not decode: nothing was published or started then.
    pub fn replay(
        &mut self,
        item: &ItemHeader,
        payload: &[u8],
        place: &dyn Fn(u32) -> LogPosition,
    ) -> Result<(), BootError> {
        let group = item.group;
        let solo = self.is_solo();
        if self.config.place.shard_of(GroupId(group)) != Some(self.config.shard) {
            return Err(BootError::ForeignGroup(group));
        }
        let fresh = self.fresh();
        let recovered = self.groups.entry(group).or_insert(fresh);
        match item.kind {
            ItemKind::GroupState => {
                let state = GroupState::decode(payload)
                    .map_err(|source| BootError::GroupState { group, source })?;
                let (commit, before) = (state.commit, &recovered.state);
                let emptied = !state.keeps_reported && state.peer != before.peer;
                let anew = state.generation > before.generation || emptied;
                if !solo && (anew || state.is_dropped()) {
                    return self.go_on_as(group, state);
                }
                set_state(recovered, state);
                self.commit_held(group, commit)
            }
            ItemKind::Commit => self.commit_held(group, item.index),
            ItemKind::Snapshot => {
                self.stage(group, payload, place);
                Ok(())
            }
            ItemKind::Membership => {
                self.hold_entry(item, payload, place);
                Ok(())
            }
            ItemKind::Entry if !solo => {
                self.hold_entry(item, payload, place);
                Ok(())
            }
            ItemKind::Entry => {
                let covered = self.covered.get(&group).copied().unwrap_or(0);
                let applied = item.index <= covered && group == GroupId::META.0;
                if applied && !removed(Rule::MetaCoveredOnce) {
                    return Ok(());
                }
                // Entries that the checkpoint covers are shown again in part.
                let gap = item.index > covered && item.index != recovered.last_index + 1;
                if item.index >= recovered.last_index {
                    recovered.last_index = item.index;
                    recovered.last_term = item.term;
                }
                let generation = recovered.state.generation;
                if gap {
                    self.note_gap(GroupId(group));
                }
                if payload.is_empty() || self.is_covered(item.index, payload) {
                    return Ok(());
                }
                self.replay_entry(group, payload, place, generation)
                    .map_err(|reason| BootError::Entry {
                        group,
                        index: item.index,
                        reason,
                    })
            }
        }
    }

    fn is_solo(&self) -> bool {
        self.config.nodes.len() <= 1
    }

    /// The replica goes on in another generation of its group (R6), with its own
    /// history, all of it; or with nothing, there or in the same one.
    fn go_on_as(&mut self, group: u32, state: GroupState) -> Result<(), BootError> {
        let begins = state.keeps_reported;
        if begins {
            self.commit_held(group, state.commit)?;
        } else {
            drop_partitions(GroupId(group), &mut self.partitions, &mut self.index_bytes);
            self.covered.insert(group, 0);
            if group == GroupId::META.0 {
                self.meta = MetaState::new(self.config.place.data_groups());
            }
        }
        if let Some(recovered) = self.groups.get_mut(&group) {
            let (index, term) = (state.base_index, state.base_term);
            recovered.tail = Tail::new(index, term);
            recovered.tail.commit(state.commit);
            (recovered.last_index, recovered.last_term) = (index, term);
            set_state(recovered, state);
        }
        Ok(())
    }

    /// An entry of a group of several: applied once it is known to be committed.
    fn hold_entry(
        &mut self,
        item: &ItemHeader,
        payload: &[u8],
        place: &dyn Fn(u32) -> LogPosition,
    ) {
        let group = item.group;
        let Some(recovered) = self.groups.get_mut(&group) else {
            return;
        };
        // Taken for weakened if the entry is in the log at all: what was answered
        // behind it may have been answered at written.
        let weakens = matches!(Command::decode(payload), Ok(Command::Weaken));
        if group != GroupId::META.0 && weakens && !removed(Rule::WeakenBoot) {
            recovered.state.answers_at = Boundary::Written;
        }
        let tail = &mut recovered.tail;
        if !tail.push(item, payload, place) {
            self.note_gap(GroupId(group));
        }
    }

    /// Applies what the log says is committed by now.
    fn commit_held(&mut self, group: u32, commit: u64) -> Result<(), BootError> {
        let solo = self.is_solo();
        let Some(recovered) = self.groups.get_mut(&group).filter(|_| !solo) else {
            return Ok(());
        };
        let generation = recovered.state.generation;
        let committed = recovered.tail.commit(commit);
        let covered = self.covered.get(&group).copied().unwrap_or(0);
        for (index, held) in committed {
            if held.membership {
                let recovered = self.groups.get_mut(&group);
                let change = MembershipChange::decode(&held.payload);
                if let Some((recovered, change)) = recovered.zip(change) {
                    change.apply(&mut recovered.state.members);
                    recovered.state.keeps_reported |= change.promotes(recovered.state.peer.0);
                }
                continue;
            }
            if index <= covered && group == GroupId::META.0 && !removed(Rule::MetaCoveredOnce) {
                continue;
            }
            if held.payload.is_empty() || self.is_covered(index, &held.payload) {
                continue;
            }
            let place = |at| held.place(at);
            self.replay_entry(group, &held.payload, &place, generation)
                .map_err(|reason| BootError::Entry {
                    group,
                    index,
                    reason,
                })?;
        }
        Ok(())
    }

    /// A piece of a snapshot, or the item that puts it in force.
    fn stage(&mut self, group: u32, payload: &[u8], place: &dyn Fn(u32) -> LogPosition) {
        let Some(piece) = Piece::decode(payload) else {
            return;
        };
        let data_groups = self.config.place.data_groups();
        match piece {
            Piece::Installed {
                index,
                index_term,
                members,
            } => self.install(group, (index, index_term), members),
            Piece::Begin { .. } => {
                let mut staged = Staged::new(GroupId(group), data_groups, place(0));
                staged.take(&piece, place);
                self.staged.insert(group, staged);
            }
            _ => {
                if let Some(staged) = self.staged.get_mut(&group) {
                    if !staged.take(&piece, place) {
                        self.staged.remove(&group);
                    }
                }
            }
        }
    }

    /// What was staged is the group's state from here on.
    fn install(&mut self, group: u32, (index, term): (u64, u64), members: Members) {
        let Some(mut staged) = self.staged.remove(&group).filter(|it| it.complete) else {
            // A checkpoint holds it already.
            return;
        };
        if let Some(state) = staged.meta.take() {
            self.meta = state;
        }
        if let Some(recovered) = self.groups.get_mut(&group) {
            if staged.answers_at == Boundary::Written {
                recovered.state.answers_at = Boundary::Written;
            }
            recovered.state.members = members;
            recovered.tail = Tail::new(index, term);
            recovered.tail.commit(index);
            (recovered.last_index, recovered.last_term) = (index, term);
        }
        self.covered.insert(group, index);
        staged.replace(&mut self.partitions, &mut self.index_bytes);
    }

    /// Everything was read: what a checkpoint covers is committed, too.
    fn commit_covered(&mut self) -> Result<(), BootError> {
        let groups: Vec<u32> = self.groups.keys().copied().collect();
        for group in groups {
            let covered = self.covered.get(&group).copied().unwrap_or(0);
            self.commit_held(group, covered)?;
            if let Some(recovered) = self.groups.get_mut(&group) {
                let (index, term) = (recovered.last_index, recovered.last_term);
                recovered.tail.cover(index, term);
            }
        }
        Ok(())
    }

    /// The partition that the entry changes was captured with it, or was dropped
    /// before it was captured.
    fn is_covered(&self, index: u64, payload: &[u8]) -> bool {
        let target = Command::decode(payload)
            .ok()
            .and_then(|command| command.target());
        let slot = target.and_then(|(queue_id, partition)| {
            self.partitions.get(&PartitionKey {
                queue_id,
                partition,
            })
        });
        slot.is_some_and(|slot| index <= slot.covered && !removed(Rule::CoveredOnce))
    }

    /// Entries of the group are missing: offsets from here on are not those
    /// that were given out.
    fn note_gap(&mut self, group: GroupId) {
        for slot in self
            .partitions
            .values_mut()
            .filter(|slot| slot.group == group)
        {
            slot.gap_at.get_or_insert(slot.machine.next_offset());
        }
    }

    /// What is behind a higher level may mean what this version does not know.
    fn check_level(&self) -> Result<(), String> {
        let why = level::why_outdated(self.meta.level(), self.config.level);
        why.map_or(Ok(()), Err)
    }

    fn replay_entry(
        &mut self,
        group: u32,
        payload: &[u8],
        place: &dyn Fn(u32) -> LogPosition,
        generation: u32,
    ) -> Result<(), String> {
        if group == GroupId::META.0 {
            self.check_level()?;
            let command = MetaCommand::decode(payload).map_err(|error| error.to_string())?;
            self.meta.apply(&command);
            return self.check_level();
        }
        let mut applier = Applier {
            partitions: &mut self.partitions,
            appended: &mut self.appended,
            group: GroupId(group),
            generation,
            index: 0,
            stamp_ms: &mut self.stamp_ms,
            index_bytes: &mut self.index_bytes,
        };
        if applier.apply(payload, place)? == Applied::Weakened {
            if let Some(recovered) = self.groups.get_mut(&group) {
                recovered.state.answers_at = Boundary::Written;
            }
        }
        Ok(())
    }

    /// A group that the log does not know yet.
    fn fresh(&self) -> Recovered {
        let founder = |node: &u32| PeerId::new(*node, FOUNDING_JOIN).0;
        let voters = self.config.nodes.iter().map(founder).collect();
        let joins = self.config.joins;
        let peer = match joins {
            true => PeerId(nameless_peer(self.config.node, self.config.cookie)),
            false => PeerId::new(self.config.node, FOUNDING_JOIN),
        };
        Recovered {
            state: GroupState {
                answers_at: Boundary::Durable,
                generation: 1,
                peer,
                term: 0,
                vote: 0,
                commit: 0,
                base_index: 0,
                base_term: 0,
                members: Members::of_voters(voters),
                stopped: false,
                keeps_reported: !joins,
            },
            last_index: 0,
            last_term: 0,
            tail: Tail::default(),
        }
    }

    /// Group 0 of a lone node whose own memory is in doubt: nobody else can
    /// order its new generation.
    fn own_order(&self, mut recovered: Recovered) -> Recovered {
        let (last_index, last_term) = recovered.last();
        let state = &mut recovered.state;
        state.generation += 1;
        state.peer = PeerId::new(self.config.node, self.meta.next_join_number());
        state.members = Members::of_voters(vec![state.peer.0]);
        state.vote = 0;
        (state.base_index, state.base_term) = (last_index, last_term);
        recovered
    }

    /// Group 0 of a cluster whose other replicas are lost, as an operator says: it goes on
    /// from all that this one holds, committed or not, with nobody else.
    fn forced_order(&self, recovered: &Recovered) -> Recovered {
        let mut forced = self.own_order(recovered.clone());
        let (last_index, last_term) = recovered.last();
        forced.state.commit = last_index;
        (forced.last_index, forced.last_term) = (last_index, last_term);
        forced.tail = Tail::new(last_index, last_term);
        forced.tail.commit(last_index);
        forced
    }

    /// An operator forces group 0, it is in the generation that was named, and this
    /// replica of it remembers everything.
    fn forces_group_0(&self, memory: Memory) -> bool {
        let meta = self.groups.get(&GroupId::META.0).map(|it| &it.state);
        let named = meta.filter(|state| Some(state.generation) == self.config.force_group_0);
        let whole = |state: &GroupState| !state.stopped && !is_nameless(state.peer.0);
        named.is_some_and(whole) && !self.is_solo() && !memory.durable_memory_lost
    }

    /// Builds the engine over the log's writer.
    /// Groups whose memory is in doubt go on only as a new generation, by order
    /// of group 0.
    ///
    /// # Errors
    /// Raft refused what was recovered.
    pub fn finish<B: BatchBuffer>(
        mut self,
        mut log: LogWriter<B>,
        memory: Memory,
    ) -> Result<Engine<B>, BootError> {
        let shard = self.config.shard;
        self.commit_covered()?;
        self.check_level().map_err(BootError::Outdated)?;
        let forces = self.forces_group_0(memory);
        if forces {
            self.commit_held(GroupId::META.0, u64::MAX)?;
        }
        for slot in self.partitions.values_mut() {
            slot.machine.finish_replay();
            // The surviving tail was synced when the log was opened.
            slot.durable_next = slot.machine.next_offset();
            slot.unsynced_bytes = 0;
        }
        let mut groups = BTreeMap::new();
        let (mut awaiting, mut absent) = (BTreeMap::new(), BTreeMap::new());
        let mut outbound = Vec::new();
        let mut reorder = None;
        let mut announced = LogPosition(0);
        for group in 0..self.config.place.shard_of_group.len() as u32 {
            let id = GroupId(group);
            if self.config.place.shard_of(id) != Some(shard) {
                continue;
            }
            let mut recovered = self.groups.remove(&group).unwrap_or_else(|| self.fresh());
            let alone = self.is_solo();
            let weak = recovered.state.answers_at == Boundary::Written;
            let harm = memory.durable_memory_lost && !removed(Rule::Quarantine);
            let forgot = harm || memory.amnesiac && weak && !removed(Rule::Retire);
            if !alone && harm {
                recovered.state.keeps_reported = false;
            }
            if forces && id == GroupId::META {
                recovered = self.forced_order(&recovered);
                reorder = Some(recovered.state.clone());
            }
            if recovered.state.is_dropped() {
                absent.insert(group, recovered);
                continue;
            }
            if is_nameless(recovered.state.peer.0) {
                // Nothing of it was ever answered: it begins when it has a name.
                if id != GroupId::META {
                    outbound.push((0, ask_for_name(group, recovered.state.peer, true)));
                }
                awaiting.insert(group, recovered);
                continue;
            }
            if !alone && recovered.state.stopped {
                // It keeps its name: under it nothing is voted, acknowledged or led.
                let mut node = Group::open(id, &recovered, true, self.config.random)?;
                if memory.durable_memory_lost {
                    node.stop(&mut log)?;
                }
                groups.insert(group, GroupSlot::new(node));
                continue;
            }
            if forgot && alone && id == GroupId::META {
                recovered = self.own_order(recovered);
                reorder = Some(recovered.state.clone());
            }
            let (generation, peer) = (recovered.state.generation, recovered.state.peer);
            if forgot && !alone {
                // Group 0's own replica is given its name by group 0's leader.
                if id != GroupId::META {
                    let harmed = !recovered.state.keeps_reported;
                    outbound.push((0, ask_for_name(group, peer, harmed)));
                }
                awaiting.insert(group, recovered);
            } else if forgot && id != GroupId::META {
                let ask = ShardMessage::RecoverGroup {
                    shard,
                    group: id,
                    generation,
                    peer,
                };
                outbound.push((0, ask));
                awaiting.insert(group, recovered);
            } else {
                let mut group_node = Group::open(id, &recovered, !alone, self.config.random)?;
                if alone {
                    group_node.campaign()?;
                }
                if forces && id == GroupId::META {
                    // In the log before any entry of the new generation.
                    announced = group_node.announce(&mut log)?;
                }
                groups.insert(group, GroupSlot::new(group_node));
            }
        }
        if shard != 0 {
            outbound.push((0, ShardMessage::WantDirectory { shard }));
        }
        if !self.is_solo() {
            let open = Open {
                cookie: self.config.cookie,
                counter: log.open_counter(),
                nonce: self.config.nonce,
                lineage: self.config.lineage,
                level: self.config.level,
            };
            let opened = MetaCommand::Opened {
                node: self.config.node,
                log: shard,
                open,
            };
            outbound.push((0, ShardMessage::AskMeta(Box::new(opened))));
        }
        let start_wall = self.config.start_wall_ms.max(self.stamp_ms);
        let scrub = Scrub::new(self.config.scrub_interval_ms, start_wall);
        let upkeep = match self.upkeep {
            Some((head, body_bytes, packs)) => {
                Upkeep::new(Some(&head), body_bytes, packs, head.anchor.position, scrub)
            }
            None => {
                let start = log.geometry().start_of(FIRST_SEGMENT);
                Upkeep::new(None, 0, BTreeMap::new(), start, scrub)
            }
        };
        let own = self.config.node;
        let nodes = self.config.nodes.iter().copied();
        let others = nodes.filter(|node| *node != own);
        let mut engine = Engine {
            frontiers: LogFrontiers::default(),
            groups,
            partitions: self.partitions,
            directory: Directory::new(self.config.place.clone()),
            meta: (shard == 0).then(|| MetaSlot {
                state: self.meta,
                waits: BTreeMap::new(),
                promised_join: 0,
            }),
            connections: map(),
            links: Links::new(others),
            refused_nodes: Vec::new(),
            known: Known::default(),
            level: Level::new(),
            hints: Hints::new(),
            remote_conns: BTreeMap::new(),
            orders: Orders::default(),
            histories: BTreeMap::new(),
            leaderless: BTreeMap::new(),
            deposed: Vec::new(),
            sending: None,
            pace: Pace::new(self.config.catch_up_bytes_per_s),
            receiving: BTreeMap::new(),
            next_remote: 1,
            reads: ReadCache::new(self.config.read_cache_bytes, log.open_counter()),
            upkeep,
            bad_records: BTreeSet::new(),
            barriers: VecDeque::new(),
            peeks: Vec::new(),
            deferred: VecDeque::new(),
            timers: Timers::new(),
            dirty_partitions: Vec::new(),
            listed_connections: Vec::new(),
            settled_partitions: Vec::new(),
            outbound,
            notices: Vec::new(),
            closing: Vec::new(),
            resumed: Vec::new(),
            scratch: Vec::new(),
            appended: self.appended,
            picks: Vec::new(),
            started: Vec::new(),
            server_ms: start_wall,
            // Both clocks are rounded down: one more, or server time could
            // run a fraction of a millisecond ahead of the wall clock.
            clock_offset_ms: start_wall.saturating_sub(self.config.start_mono_ms + 1),
            draining: false,
            drained_ms: 0,
            leads_nothing: false,
            spread_from_ms: start_wall + self.config.spread_after_ms,
            balance_from_ms: start_wall + self.config.spread_after_ms,
            forgotten: BTreeSet::new(),
            sealed: false,
            room: Room::new(self.index_bytes),
            serving: false,
            serving_in_doubt: true,
            latched: false,
            awaiting_recovery: awaiting,
            absent,
            announced,
            own_order: reorder,
            directory_known: false,
            directory_told: false,
            opens_told: false,
            opens_seen: 0,
            known_logs: Vec::new(),
            known_seats: Vec::new(),
            config: self.config,
            log,
        };
        engine.timers.tick_ms = engine.server_ms;
        if let Some(named) = engine
            .config
            .force_group_0
            .filter(|_| !forces && shard == 0)
        {
            let meta = engine.groups.get(&GroupId::META.0);
            let now = meta.map_or(0, |slot| slot.group.generation());
            engine.notices.push(Notice::Problem(format!(
                "--force-group-0 {named} was not followed: group 0 is in generation {now} here, or its memory is in doubt; leave it away"
            )));
        }
        engine.finish_generations();
        engine.watch_index();
        Ok(engine)
    }
}

/// A replica asks for another name.
pub(super) fn ask_for_name(group: u32, retired: PeerId, harmed: bool) -> ShardMessage {
    ShardMessage::AskMeta(Box::new(MetaCommand::Rejoin {
        group,
        retired_peer: retired.0,
        harmed,
    }))
}

/// What was weakened once stays so, whatever an earlier item says.
fn set_state(recovered: &mut Recovered, state: GroupState) {
    let weak = recovered.state.answers_at == Boundary::Written;
    recovered.state = state;
    if weak {
        recovered.state.answers_at = Boundary::Written;
    }
}

impl<B: BatchBuffer> Engine<B> {
    /// Partitions whose group went on as a newer generation, before a crash
    /// kept them from logging it.
    pub(super) fn finish_generations(&mut self) {
        let mut behind: Vec<(GroupId, PartitionKey, u32, u64)> = self
            .partitions
            .values()
            .filter_map(|slot| {
                let generation = self.groups.get(&slot.group.0)?.group.generation();
                let next = slot.gap_at.unwrap_or(slot.machine.next_offset());
                (slot.generation < generation).then_some((slot.group, slot.key, generation, next))
            })
            .collect();
        // The map's order must not show.
        behind.sort_unstable_by_key(|(_, key, _, _)| *key);
        for (group, key, generation, first_lost) in behind {
            let (queue_id, partition) = (key.queue_id, key.partition);
            let command = Command::NewGeneration {
                queue_id,
                partition,
                generation,
                first_lost,
            };
            self.propose_to_group(group, &command);
        }
    }

    /// Group 0 ordered a group of ours to go on under a new identity.
    pub(super) fn on_group_recovered(&mut self, group: GroupId, generation: u32, peer: PeerId) {
        let Some(mut recovered) = self.awaiting_recovery.remove(&group.0) else {
            return;
        };
        let state = &mut recovered.state;
        state.generation = generation;
        state.peer = peer;
        state.members = Members::of_voters(vec![peer.0]);
        state.vote = 0;
        state.base_index = recovered.last_index;
        state.base_term = recovered.last_term;
        let opened =
            Group::open(group, &recovered, false, self.config.random).and_then(|mut node| {
                node.campaign()?;
                Ok(node)
            });
        match opened {
            Ok(node) => {
                self.groups.insert(group.0, GroupSlot::new(node));
                self.finish_generations();
                self.check_serving();
            }
            Err(error) => {
                let message = format!("{group} could not begin its new generation: {error}");
                self.notices.push(Notice::Problem(message));
            }
        }
    }

    /// The empty entry of this leadership is durable.
    pub(super) fn began_serving(&mut self, group: u32) {
        if let Some(slot) = self.groups.get_mut(&group) {
            slot.serving = true;
        }
        self.tell_leads(group);
        if self.is_cluster() {
            self.lead_partitions(group);
        }
        for key in self.keys_of_group(group) {
            self.open_recovered(key);
        }
        if group == GroupId::META.0 {
            for shard in 0..self.config.place.shards {
                self.send_directory(shard);
            }
            self.note_own_order();
        }
        self.check_serving();
    }

    /// The barrier is passed: what recovery found may be delivered.
    pub(super) fn open_recovered(&mut self, key: PartitionKey) {
        if let Some(slot) = self.partitions.get_mut(&key) {
            slot.open_all();
            self.mark_dirty(key);
        }
    }

    /// Group 0 writes down its own new identity, so that the number is never
    /// given out again.
    fn note_own_order(&mut self) {
        let Some(state) = self.own_order.take().or_else(|| self.unnoted_order()) else {
            return;
        };
        let command = MetaCommand::Recovered {
            group: GroupId::META.0,
            generation: state.generation,
            retired_peer: 0,
            new_peer: state.peer.0,
        };
        if let Err((_, reason)) = self.try_propose_meta(&command, Origin::Nobody) {
            self.notices.push(Notice::Problem(format!(
                "group 0's new identity was not noted: {reason}"
            )));
        }
        self.give_up_others(state.generation);
    }

    /// Group 0 was forced in an earlier life, which ended before it wrote that down.
    fn unnoted_order(&self) -> Option<GroupState> {
        let known = self.meta.as_ref()?.state.generation(GroupId::META.0);
        let group = &self.groups.get(&GroupId::META.0)?.group;
        (self.is_cluster() && group.generation() > known).then(|| group.state())
    }

    /// Group 0 was forced to go on alone: no directory of another node may take part with
    /// what it knew.
    fn give_up_others(&mut self, generation: u32) {
        let own = self.config.node;
        let others = self.members().into_iter();
        let others: Vec<u32> = others.filter(|node| *node != own).collect();
        if others.is_empty() {
            return;
        }
        for node in &others {
            // No order of a client has this number.
            let order = u32::MAX - generation;
            let _ =
                self.try_propose_meta(&MetaCommand::Replace { node: *node, order }, Origin::Nobody);
        }
        self.notices.push(Notice::Problem(format!(
            "group 0 goes on as generation {generation} from what this node holds, alone, as --force-group-0 says; the directories of nodes {} are given up: start each on an empty one with --join, then recover the groups that wait with `tidegate cluster recover N --accept-loss`",
            others.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
        )));
    }

    /// Sends all declarations to a shard; nothing while group 0 does not serve
    /// (they are sent when it does). A follower of group 0 sends what it has applied
    /// once it knows a leader.
    pub(super) fn send_directory(&mut self, shard: u16) {
        let serves = self.groups.get(&GroupId::META.0).is_some_and(|slot| {
            slot.serving || slot.group.is_replicated() && slot.group.is_current()
        });
        let Some(meta) = self.meta.as_ref().filter(|_| serves) else {
            return;
        };
        let queues = meta.state.iter_from("").cloned().collect();
        let forgotten = meta.state.forgotten().iter();
        let forgotten = forgotten.map(|node| (shard, ShardMessage::Forgotten { node: *node }));
        self.outbound.extend(forgotten);
        let next_id = meta.state.next_queue_id();
        let message = ShardMessage::Directory { queues, next_id };
        let histories: Vec<u32> = meta.state.histories().map(|(group, _)| group).collect();
        self.outbound.push((shard, message));
        for group in histories {
            if self.config.place.shard_of(GroupId(group)) == Some(shard) {
                self.tell_history(group);
            }
        }
    }

    /// Tells the shards of the queues, as soon as this replica of group 0 may.
    pub(super) fn tell_directory(&mut self) {
        let knows = |slot: &GroupSlot| slot.group.is_current();
        let known = self.groups.get(&GroupId::META.0).is_some_and(knows);
        if !self.is_cluster() || self.directory_told || !known || self.meta.is_none() {
            return;
        }
        self.directory_told = true;
        for shard in 0..self.config.place.shards {
            self.send_directory(shard);
        }
    }

    /// Something changed that may make this shard serve.
    pub(super) fn check_serving(&mut self) {
        self.serving_in_doubt = !self.serving;
    }

    /// Says once that this shard serves: every group leads, every declared
    /// partition is there in its current generation.
    pub(super) fn say_serving(&mut self) {
        if self.is_cluster() {
            // Requests are answered from the first moment on, if only by saying why not.
            if !std::mem::replace(&mut self.serving, true) {
                self.notices.push(Notice::Serving);
            }
            return;
        }
        if !std::mem::take(&mut self.serving_in_doubt)
            || !self.directory_known
            || !self.awaiting_recovery.is_empty()
        {
            return;
        }
        let lead = self.groups.values().all(|slot| slot.serving);
        let begun = self.partitions.values().all(|slot| self.has_begun(slot));
        let all = self
            .directory
            .keys_of(self.config.shard)
            .all(|key| self.partitions.contains_key(&key));
        if lead && begun && all {
            self.serving = true;
            self.notices.push(Notice::Serving);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::ShardPlace;

    fn boot(level: u16) -> Boot {
        Boot::new(EngineConfig {
            shard: 0,
            node: 1,
            cookie: 1,
            nonce: 1,
            lineage: crate::state::meta::Lineage::default(),
            level,
            joins: false,
            nodes: vec![1],
            addresses: Vec::new(),
            place: ShardPlace::spread(2, 1),
            force_group_0: None,
            start_wall_ms: 1,
            start_mono_ms: 0,
            random: 1,
            window_bytes: 1 << 20,
            read_cache_bytes: 1 << 20,
            index_memory_bytes: 1 << 20,
            scrub_interval_ms: 0,
            recovery_grace_ms: 1_000,
            catch_up_bytes_per_s: 32 << 20,
            spread_after_ms: 0,
            server: String::new(),
            advertise: String::new(),
        })
    }

    #[test]
    fn a_directory_of_a_higher_level_is_not_opened_by_a_version_that_does_not_know_it() {
        let place = |at: u32| LogPosition(at.into());
        let raised = MetaCommand::Level { level: 3 }.encode();
        assert_eq!(boot(3).replay_entry(0, &raised, &place, 1), Ok(()));
        let mut older = boot(2);
        let why = older.replay_entry(0, &raised, &place, 1).unwrap_err();
        assert!(why.contains("is at feature level 3"), "{why}");
        // Nor is what comes behind called damaged.
        let unknown = older.replay_entry(0, &[99, 1], &place, 1);
        assert_eq!(unknown, Err(why));
    }
}
