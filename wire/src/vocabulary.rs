//! The words of the protocol that travel as one byte.
//!
//! Owns: their numbers, their names in text, and which boundary each mode waits
//! for. A number never changes meaning; an unknown one is `None`, never a
//! default.

/// How far a record has come on a replica. Never called by the other's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Boundary {
    /// The log write completed: survives a process crash, not a power cut.
    Written = 1,
    /// A sync that covers it completed: survives a power cut.
    Durable = 2,
}

impl Boundary {
    /// The boundary for `raw`, or `None`.
    pub fn from_raw(raw: u8) -> Option<Self> {
        match raw {
            1 => Some(Boundary::Written),
            2 => Some(Boundary::Durable),
            _ => None,
        }
    }

    /// `written` or `durable`.
    pub fn name(self) -> &'static str {
        match self {
            Boundary::Written => "written",
            Boundary::Durable => "durable",
        }
    }
}

/// Durability mode of a queue: which boundary its two gates wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Mode {
    /// Confirm and delivery wait for durable.
    Durable = 1,
    /// Confirm and delivery wait for written.
    Buffered = 2,
    /// Confirm waits for durable, delivery for written.
    Speculative = 3,
}

impl Mode {
    /// Every mode, in numeric order.
    pub const ALL: [Mode; 3] = [Mode::Durable, Mode::Buffered, Mode::Speculative];

    /// The mode for `raw`, or `None`.
    pub fn from_raw(raw: u8) -> Option<Self> {
        Mode::ALL.into_iter().find(|mode| *mode as u8 == raw)
    }

    /// `durable`, `buffered` or `speculative`.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Durable => "durable",
            Mode::Buffered => "buffered",
            Mode::Speculative => "speculative",
        }
    }

    /// The mode called `name`, or `None`.
    pub fn from_name(name: &str) -> Option<Self> {
        Mode::ALL.into_iter().find(|mode| mode.name() == name)
    }

    /// The boundary a confirm waits for.
    pub fn confirm_gate(self) -> Boundary {
        match self {
            Mode::Durable | Mode::Speculative => Boundary::Durable,
            Mode::Buffered => Boundary::Written,
        }
    }

    /// The boundary a delivery waits for.
    pub fn delivery_gate(self) -> Boundary {
        match self {
            Mode::Durable => Boundary::Durable,
            Mode::Buffered | Mode::Speculative => Boundary::Written,
        }
    }
}

/// What a settle does with a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SettleKind {
    /// Done: the record leaves the queue.
    Acknowledge = 1,
    /// Give back: ready again, at once or after the delay.
    Release = 2,
    /// Refuse for good: dropped and counted (dead-letter targets come later).
    Reject = 3,
}

impl SettleKind {
    /// The kind for `raw`, or `None`.
    pub fn from_raw(raw: u8) -> Option<Self> {
        match raw {
            1 => Some(SettleKind::Acknowledge),
            2 => Some(SettleKind::Release),
            3 => Some(SettleKind::Reject),
            _ => None,
        }
    }
}

/// State of a record as peek shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RecordState {
    /// Waits for the delivery gate.
    Gated = 1,
    /// Waits for its due time.
    Delayed = 2,
    /// May be delivered to the next consumer with credit.
    Ready = 3,
    /// Delivered, not yet settled, lease not yet over.
    Leased = 4,
}

impl RecordState {
    /// The state for `raw`, or `None`.
    pub fn from_raw(raw: u8) -> Option<Self> {
        match raw {
            1 => Some(RecordState::Gated),
            2 => Some(RecordState::Delayed),
            3 => Some(RecordState::Ready),
            4 => Some(RecordState::Leased),
            _ => None,
        }
    }

    /// `gated`, `delayed`, `ready` or `leased`.
    pub fn name(self) -> &'static str {
        match self {
            RecordState::Gated => "gated",
            RecordState::Delayed => "delayed",
            RecordState::Ready => "ready",
            RecordState::Leased => "leased",
        }
    }
}

/// What a replica is in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReplicaRole {
    /// Decides what is committed.
    Leader = 1,
    /// Votes.
    Follower = 2,
    /// Is brought up, and does not count yet.
    Learner = 3,
    /// Stopped its generation for a recovery.
    Stopped = 4,
    /// Lost its memory, and waits for a new name.
    Nameless = 5,
}

impl ReplicaRole {
    /// Every role, in numeric order.
    pub const ALL: [ReplicaRole; 5] = [
        ReplicaRole::Leader,
        ReplicaRole::Follower,
        ReplicaRole::Learner,
        ReplicaRole::Stopped,
        ReplicaRole::Nameless,
    ];

    /// The role for `raw`, or `None`.
    pub fn from_raw(raw: u8) -> Option<Self> {
        ReplicaRole::ALL.into_iter().find(|role| *role as u8 == raw)
    }

    /// `leader`, `follower`, `learner`, `stopped` or `nameless`.
    pub fn name(self) -> &'static str {
        match self {
            ReplicaRole::Leader => "leader",
            ReplicaRole::Follower => "follower",
            ReplicaRole::Learner => "learner",
            ReplicaRole::Stopped => "stopped",
            ReplicaRole::Nameless => "nameless",
        }
    }
}

/// What an operator orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ClusterAction {
    /// A node is gone for good: nobody waits for its answers any more.
    Forget = 1,
    /// A group without a leader goes on as a new generation.
    Recover = 2,
    /// A node hands over what it leads, and leads nothing until it may again.
    Drain = 3,
    /// It may lead again.
    Undrain = 4,
    /// A node's directory is lost: a new one takes its place.
    Replace = 5,
    /// A node belongs to the cluster from now on.
    Add = 6,
    /// A group's replica goes from one node to another.
    Move = 7,
    /// A node's replicas go to others, and then it belongs to the cluster no more.
    Remove = 8,
}

impl ClusterAction {
    /// Every action, in numeric order.
    pub const ALL: [ClusterAction; 8] = [
        ClusterAction::Forget,
        ClusterAction::Recover,
        ClusterAction::Drain,
        ClusterAction::Undrain,
        ClusterAction::Replace,
        ClusterAction::Add,
        ClusterAction::Move,
        ClusterAction::Remove,
    ];

    /// The action for `raw`, or `None`.
    pub fn from_raw(raw: u8) -> Option<Self> {
        let mut all = ClusterAction::ALL.into_iter();
        all.find(|action| *action as u8 == raw)
    }

    /// `forget`, `recover`, `drain`, `undrain`, `replace`, `add`, `move` or `remove`.
    pub fn name(self) -> &'static str {
        match self {
            ClusterAction::Forget => "forget",
            ClusterAction::Recover => "recover",
            ClusterAction::Drain => "drain",
            ClusterAction::Undrain => "undrain",
            ClusterAction::Replace => "replace",
            ClusterAction::Add => "add",
            ClusterAction::Move => "move",
            ClusterAction::Remove => "remove",
        }
    }
}
