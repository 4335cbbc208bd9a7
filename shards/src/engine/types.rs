//! What crosses the engine's border.

use std::sync::Arc;

use wire::{frame::FrameHeader, node::Roster};

use crate::{
    group::{GroupId, PeerId},
    log::{segment_name, IoFailure, LogEffect},
    state::meta::{GroupHistory, Lineage, MetaCommand, Open, QueueDeclaration, Seat},
    store::{pack_name, StoreDone, StoreJob},
};

/// A connection: the shard whose socket it is in the high 16 bits, a number
/// that the shard gives out once in the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnKey(pub u64);

impl ConnKey {
    /// The `number`th connection of `shard`.
    pub fn new(shard: u16, number: u64) -> Self {
        ConnKey(u64::from(shard) << 48 | (number & ((1 << 48) - 1)))
    }

    /// The shard that owns the socket.
    pub fn shard(self) -> u16 {
        (self.0 >> 48) as u16
    }
}

/// Which log each data group lives in, stored when the directory was created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardPlace {
    /// Index = group number; entry 0 is group 0's, always shard 0.
    pub shard_of_group: Vec<u16>,
    pub shards: u16,
}

impl ShardPlace {
    /// Spreads `data_groups` groups over `shards` logs, each half of the
    /// groups (durable, weakened) evenly.
    pub fn spread(data_groups: u32, shards: u16) -> Self {
        let half = data_groups.div_ceil(2);
        let place = |group: u32| {
            let in_half = if group > half {
                group - half - 1
            } else {
                group - 1
            };
            (in_half % u32::from(shards.max(1))) as u16
        };
        let shard_of_group = std::iter::once(0)
            .chain((1..=data_groups).map(place))
            .collect();
        ShardPlace {
            shard_of_group,
            shards,
        }
    }

    /// Groups beside group 0.
    pub fn data_groups(&self) -> u32 {
        self.shard_of_group.len().saturating_sub(1) as u32
    }

    /// The shard of a group; groups out of range have none.
    pub fn shard_of(&self, group: GroupId) -> Option<u16> {
        self.shard_of_group.get(group.0 as usize).copied()
    }
}

/// What the engine is told once.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    pub shard: u16,
    pub node: u32,
    /// Of the data directory, and of this start of the process; both random.
    pub cookie: u64,
    pub nonce: u64,
    /// What the directory has heard of its log's opens.
    pub lineage: Lineage,
    /// The directory was made to join: group 0 has to name its replicas first.
    pub joins: bool,
    /// The feature level that this version knows ([`crate::state::level`]).
    pub level: u16,
    /// An operator says that the other replicas of group 0 are lost for good: where it is
    /// in this generation it goes on as the next one from what this node holds, alone.
    pub force_group_0: Option<u32>,
    /// Every node of the cluster, this one included, ascending; this one alone: solo.
    pub nodes: Vec<u32>,
    /// Where each of them is called, as far as the configuration says.
    pub addresses: Vec<(u32, String)>,
    pub place: ShardPlace,
    /// Unix time in ms when the monotonic clock read `start_mono_ms`.
    pub start_wall_ms: u64,
    pub start_mono_ms: u64,
    /// Handed-in randomness for election timeouts.
    pub random: u64,
    /// Publish bytes a connection may have unanswered.
    pub window_bytes: u32,
    /// Bytes of chunks read back from disk that are kept.
    pub read_cache_bytes: u64,
    /// Memory that the index of unsettled records may take before publishes are
    /// refused.
    pub index_memory_bytes: u64,
    /// From the start of one scrub of what is stored to the next, in ms; 0 = none.
    pub scrub_interval_ms: u64,
    /// How long a replica waits for a leader, and a recovery for stragglers, in ms.
    pub recovery_grace_ms: u64,
    /// How fast followers that are behind are brought up, in bytes a second.
    pub catch_up_bytes_per_s: u64,
    /// How long a node leads a group, all well, before it hands it to the node whose turn
    /// it is, in ms; 0 = never.
    pub spread_after_ms: u64,
    /// Server name and version for hello.
    pub server: String,
    /// Where clients reach this node (`HOST:PORT`), for those that come through
    /// another one; empty: they are not told.
    pub advertise: String,
}

/// What the log remembers of its promises, as opening it found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Memory {
    /// It may have forgotten something it answered at written: groups that
    /// answer at written go on only as a new generation.
    pub amnesiac: bool,
    /// It may have forgotten something it answered at durable: every group
    /// goes on only as a new generation.
    pub durable_memory_lost: bool,
}

/// What happened.
pub enum Event<'a> {
    /// A connection of this shard finished its hello.
    Opened {
        conn: ConnKey,
        window_bytes: u32,
    },
    /// A whole frame of a connection of this shard.
    Frame {
        conn: ConnKey,
        header: FrameHeader,
        body: &'a [u8],
    },
    /// A connection of this shard is gone.
    Closed {
        conn: ConnKey,
    },
    Written {
        id: u64,
        result: Result<(), IoFailure>,
    },
    Synced {
        id: u64,
        result: Result<(), IoFailure>,
    },
    SegmentReady {
        sequence: u64,
        result: Result<(), IoFailure>,
    },
    ReadDone {
        id: u64,
        result: Result<ReadResult, IoFailure>,
    },
    /// A store job was done.
    Stored(StoreDone),
    Message(ShardMessage),
    /// The same shard of another node is linked: what either sends from now on
    /// arrives whole and in order, until the link is down.
    NodeUp {
        node: u32,
    },
    /// The link is gone; what was sent and did not arrive never will.
    NodeDown {
        node: u32,
    },
    /// The body of one frame of the link.
    NodeBody {
        node: u32,
        body: &'a [u8],
    },
    /// The disk is below its low-water mark, or above it again.
    DiskLow(bool),
    /// Nothing but time.
    Tick,
    /// Stop admitting publishes; finish what is in flight.
    Drain,
}

/// Bytes of one read.
pub struct ReadResult {
    pub bytes: Vec<u8>,
}

/// A file that records are read back from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReadFile {
    Segment(u64),
    Pack(u32),
}

impl ReadFile {
    /// The file's name in the shard's directory.
    pub fn name(self) -> String {
        match self {
            ReadFile::Segment(sequence) => segment_name(sequence),
            ReadFile::Pack(file) => pack_name(file),
        }
    }
}

/// What the driver is asked to do.
pub enum Effect<B> {
    Log(LogEffect<B>),
    /// The connection has output: call `Engine::take_output` when its socket is
    /// free; and ask `Engine::output_is_full` again.
    Output {
        conn: ConnKey,
    },
    /// Close the connection once its output is flushed.
    Close {
        conn: ConnKey,
    },
    /// The link to that node has output: call `Engine::take_node_output` when
    /// its socket is free.
    NodeOutput {
        node: u32,
    },
    /// Group 0 knows of that open of the node's log that this shard links to: no link of
    /// another directory, of an older copy or of a second one is to be taken for it.
    LogKnown {
        node: u32,
        open: Open,
    },
    /// Group 0 knows that the node's directory was given up, and which one took its place:
    /// no link of any other is to be taken for the node's.
    SeatKnown {
        node: u32,
        seat: Box<Seat>,
    },
    /// Who belongs to the cluster and where they are called: others are not linked.
    RosterKnown(Arc<Roster>),
    /// The cluster is at this feature level: no link of a node that knows less is to be
    /// taken, and where this version does the process ends.
    LevelKnown(u16),
    /// The node broke the protocol between nodes: end the link, and say why once.
    NodeRefused {
        node: u32,
        reason: String,
    },
    /// Deliver to that shard's engine (possibly this one), in order.
    ToShard {
        shard: u16,
        message: ShardMessage,
    },
    /// Read from a file; offset and length are block-aligned.
    Read {
        id: u64,
        file: ReadFile,
        offset: u64,
        len: u32,
    },
    /// Do this off the shard thread and answer with `Event::Stored`.
    Store(StoreJob),
    /// Tell the operator.
    Notice(Notice),
}

/// Of one partition's generation, every offset at or above `first_lost` is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    pub queue: String,
    pub queue_id: u64,
    pub partition: u16,
    pub generation: u32,
    pub first_lost: u64,
    /// The generation that begins; a start that died may have left a gap.
    pub begins: u32,
}

/// What an operator should see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Every group leads and serves.
    Serving,
    /// What opening the log found and did; `at_rest` as
    /// [`crate::log::RecoveryReport::at_rest`] has it.
    Recovered { text: String, at_rest: bool },
    /// So much of the log was read back so far, and how much there may be, in
    /// bytes. Comes a few times a second while a log is opened.
    Replaying { done_bytes: u64, most_bytes: u64 },
    /// The log is latched.
    Latched { cause: String },
    /// A new generation began; what was at or above `first_lost` is gone.
    Loss(Loss),
    /// A record on disk does not verify.
    BadRecord {
        queue_id: u64,
        partition: u16,
        offset: u64,
    },
    /// No room for a new segment, or room again.
    DiskFull(bool),
    /// The disk is below its low-water mark, or above it again.
    DiskLow(bool),
    /// A scrub looked at every unsettled record that stands in cold segments and
    /// packed files.
    Scrubbed {
        records: u64,
        bytes: u64,
        damaged: u64,
    },
    /// A group's state came from another node, up to that entry.
    Installed { group: u32, index: u64 },
    /// This node led these groups and does not any more: another node was elected, or
    /// no majority answered.
    Deposed { groups: Vec<u32> },
    /// This node's replica of the group lost its memory, and joins anew.
    Rejoined { group: u32 },
    /// This node has no part in the group any more: its replica went to another one.
    MovedAway { group: u32 },
    /// The index of unsettled records reached its mark, or is well below again.
    IndexFull { full: bool, mark: u64 },
    /// The log stands still: what it waits for has no room, and no segment,
    /// which has so many bytes, can be made.
    NoRoom { cause: String, segment_bytes: u64 },
    /// The same shard of that node is linked; so many tries were refused before.
    Linked { node: u32, refused: u64 },
    /// That node is not linked, or not any more.
    Unlinked { node: u32, reason: String },
    /// Something that needs an operator's eye.
    Problem(String),
}

/// What shards tell each other.
#[derive(Debug)]
pub enum ShardMessage {
    /// A client's frame, to the owner of what it names.
    Forward {
        conn: ConnKey,
        kind: u8,
        correlation: u64,
        body: Vec<u8>,
    },
    /// Frames for a connection, to the shard that has its socket.
    Output {
        from: u16,
        conn: ConnKey,
        bytes: Vec<u8>,
        released: u64,
        close: bool,
    },
    /// So many bytes of forwarded frames were handled.
    Handled { conn: ConnKey, bytes: u64 },
    /// Output for the connection piles up behind the last: read no more of it.
    /// The next output ends this.
    Stalled { from: u16, conn: ConnKey },
    /// The socket took the last output: the next may come.
    OutputTaken { conn: ConnKey },
    /// A connection that this shard answered is gone.
    ConnClosed { conn: ConnKey },
    /// A queue was declared, from shard 0.
    Declared(Arc<QueueDeclaration>),
    /// All queues there are, from shard 0.
    Directory {
        queues: Vec<Arc<QueueDeclaration>>,
        /// Every id below was given out: one that is not named was deleted.
        next_id: u64,
    },
    /// A shard knows every queue up to this id, to shard 0.
    Known { shard: u16, queue_id: u64 },
    /// A queue deleted, from shard 0.
    Deleted { queue_id: u64 },
    /// A partition exists in its group's log, to shard 0.
    PartitionReady { queue_id: u64, partition: u16 },
    /// A weakened group on an amnesiac log needs a new generation, to shard 0.
    RecoverGroup {
        shard: u16,
        group: GroupId,
        generation: u32,
        peer: PeerId,
    },
    /// What group 0 knows of a group, to the shard that has a replica of it.
    History {
        group: GroupId,
        history: Box<GroupHistory>,
    },
    /// A shard wants that in group 0, to shard 0.
    AskMeta(Box<MetaCommand>),
    /// Group 0 knows of that open of a node's log, to the shard that links to it.
    LogKnown { node: u32, open: Open },
    /// A node's directory was given up, and who has its place, from shard 0.
    Seat {
        node: u32,
        seat: Box<Seat>,
        /// An operator gave the node up since.
        forgotten: bool,
    },
    /// Who belongs to the cluster, from shard 0; `None`: nothing ever changed.
    Roster(Option<Arc<Roster>>),
    /// The cluster's feature level, from shard 0.
    Level(u16),
    /// A replica knows no leader of its group, to shard 0.
    Leaderless { group: u32, generation: u32 },
    /// An operator's word: hand over what you lead, and lead nothing; or lead again.
    LeadNothing(bool),
    /// An operator gave that node up, from shard 0.
    Forgotten { node: u32 },
    /// A shard rebuilt its engine: what it knew of others' connections is gone.
    Reopened { shard: u16 },
    /// A shard that starts asks shard 0 for the queue directory.
    WantDirectory { shard: u16 },
    /// The order of group 0 to go on under a new identity.
    GroupRecovered {
        group: GroupId,
        generation: u32,
        peer: PeerId,
    },
}
