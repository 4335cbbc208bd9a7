//! Group 0: what the cluster knows of itself.
//!
//! Owns: queue declarations and where their partitions live, the opens of
//! every node's logs, who belongs to the cluster, and each data group's holders,
//! generation, retired peer ids and the join numbers they come from.
//!
//! Invariants:
//! 1. The state depends on the commands applied alone.
//! 2. Queue ids count from 1 and are never given twice, whatever was deleted;
//!    join numbers likewise.
//! 3. A name stands for at most one queue.
//! 4. An open counter never goes down, and one counter has one nonce.
//! 5. A retired peer id stays retired; a generation never goes down.
//! 6. Each change of a queue's setting raises its revision (see [`setting`]).
//! 7. The feature level never goes down, nor above what a log's last open knows ([`level`]).
//!
//! Never does: validate what only the caller can know (how many copies exist,
//! who may declare). A crash leaves nothing behind but group 0's log.

mod capture;
mod codec;
mod groups;
mod history;
mod level;
mod members;
mod opens;
mod placement;
mod seats;
mod setting;
mod table;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use wire::{limits::MAX_PARTITIONS, name::check_name, node::Roster, vocabulary::Mode};

use self::placement::Placement;
pub use self::{
    groups::Groups,
    history::{Answer, Collected, Collecting, GroupHistory},
    members::{numbers, too_few, MemberCommand},
    opens::{Contradiction, Lineage, Open},
    seats::{is_nameless, is_vacant, nameless_peer, vacant_peer, Seat, Unseated},
    table::QueueTable,
};
use super::level::FIRST_LEVEL;

/// Lease of a queue that names none.
pub const DEFAULT_LEASE_MS: u64 = 30_000;
/// Generation of a group that never recovered.
pub const FIRST_GENERATION: u32 = 1;
/// Join number of the replicas a data directory is created with.
pub const FOUNDING_JOIN: u64 = 1;

const JOIN_BITS: u32 = 40;

/// The Raft peer id of a replica: `node` (below 2^24) in the high 24 bits, the
/// join number (1 to 2^40 - 1) in the low 40.
pub fn peer_id(node: u32, join: u64) -> u64 {
    u64::from(node) << JOIN_BITS | join & ((1 << JOIN_BITS) - 1)
}

/// The node of a peer id.
pub fn peer_node(peer: u64) -> u32 {
    (peer >> JOIN_BITS) as u32
}

/// The join number of a peer id.
pub fn peer_join(peer: u64) -> u64 {
    peer & ((1 << JOIN_BITS) - 1)
}

/// A queue as declared. The id is never reused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueDeclaration {
    pub queue_id: u64,
    pub name: Box<str>,
    pub mode: Mode,
    /// 0 = majority, 255 = all.
    pub copies: u8,
    pub lease_ms: u64,
    /// Its group waits for an operator where a recovery may lose confirmed records.
    pub halts: bool,
    /// Of mode and copies: 0 = as declared, raised by each change.
    pub revision: u32,
    /// Data group of each partition.
    pub groups: Groups,
}

/// What a declare asks for; `None` = keep, or the default for a new queue.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeclareRequest {
    pub name: String,
    pub mode: Option<Mode>,
    pub copies: Option<u8>,
    pub partitions: Option<u16>,
    pub lease_ms: Option<u64>,
    /// See [`QueueDeclaration::halts`].
    pub halts: Option<bool>,
}

/// A command of group 0, owned (declares are rare).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetaCommand {
    Declare(DeclareRequest),
    Delete {
        queue_id: u64,
    },
    /// A node opened a log of its directory (R1).
    Opened {
        node: u32,
        log: u16,
        open: Open,
    },
    /// A group recovered into a new generation under a new peer id.
    Recovered {
        group: u32,
        generation: u32,
        retired_peer: u64,
        new_peer: u64,
    },
    /// A replica of a group of several may have forgotten what it answered: its peer
    /// id is retired, and its node joins anew (R2, R3).
    Rejoin {
        group: u32,
        retired_peer: u64,
        /// What it reported durable may be gone, too.
        harmed: bool,
    },
    /// A replica may be promoted to a voter of the generation from now on.
    Promoting {
        group: u32,
        generation: u32,
        peer: u64,
    },
    /// The generation is to stop, and every replica to answer (R6).
    Collect {
        group: u32,
        generation: u32,
        /// An operator takes fewer answers than nothing lost would need.
        accepts_loss: bool,
    },
    /// A replica stopped the generation and answers.
    Answered {
        group: u32,
        generation: u32,
        answer: Answer,
    },
    /// An operator gives a node up: nobody waits for its answers any more.
    Forget {
        node: u32,
    },
    /// An operator says that a node's directory is lost: a new one may take its place.
    Replace {
        node: u32,
        /// The order's own number: one that comes twice does nothing the second time.
        order: u32,
    },
    /// About who belongs to the cluster, and which nodes hold which groups.
    Members(MemberCommand),
    /// A queue is to have this setting from now on, if it is at revision `base`.
    Change {
        queue_id: u64,
        mode: Mode,
        /// 0 = majority, 255 = all.
        copies: u8,
        base: u32,
    },
    /// Every member's version knows this feature level.
    Level {
        level: u16,
    },
}

/// What applying a command answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetaOutcome {
    Declared {
        created: bool,
        queue_id: u64,
    },
    /// The redeclare differs: the field, what stands, what was asked.
    Conflict {
        field: &'static str,
        stands: String,
        asked: String,
    },
    Deleted {
        existed: bool,
    },
    /// The peer id is retired, and this one is in its place.
    Replaced {
        new_peer: u64,
    },
    Noted,
    /// A log was opened.
    Opened {
        node: u32,
        log: u16,
    },
    /// The group's history changed.
    History {
        group: u32,
    },
    /// A node's directory was given up, and with it its replicas of every group.
    Vacated {
        node: u32,
    },
    /// The roster changed.
    Members,
    /// The queue has the setting that was asked for; `changed`: since this command.
    Changed {
        queue_id: u64,
        changed: bool,
    },
    /// The queue's setting is at another revision than the change began from.
    Stale {
        queue_id: u64,
    },
    /// There is no such queue.
    NoQueue,
    /// Not applied: the command contradicts what is known, or is not valid.
    Refused {
        reason: String,
    },
}

/// The state of group 0; see the module head.
pub struct MetaState {
    placement: Placement,
    next_queue_id: u64,
    /// Shared with the directories of the shards.
    queues: QueueTable,
    /// By node and log.
    opens: BTreeMap<(u32, u16), Open>,
    groups: BTreeMap<u32, GroupHistory>,
    next_join: u64,
    /// Nodes that an operator gave up.
    forgotten: BTreeSet<u32>,
    /// Nodes whose directory was given up, or whose first one is to be made to join.
    seats: BTreeMap<u32, Seat>,
    /// `None`: as the cluster was founded.
    roster: Option<Roster>,
    /// The cluster's feature level.
    level: u16,
}

impl MetaState {
    /// `data_groups` data groups exist, numbered from 1; the lower half keeps
    /// durable queues, the upper half buffered and speculative ones.
    pub fn new(data_groups: u32) -> Self {
        MetaState {
            placement: Placement::new(data_groups),
            next_queue_id: 1,
            queues: QueueTable::default(),
            opens: BTreeMap::new(),
            groups: BTreeMap::new(),
            next_join: FOUNDING_JOIN + 1,
            forgotten: BTreeSet::new(),
            seats: BTreeMap::new(),
            roster: None,
            level: FIRST_LEVEL,
        }
    }

    /// Applies one command of group 0's log.
    pub fn apply(&mut self, command: &MetaCommand) -> MetaOutcome {
        match command {
            MetaCommand::Declare(request) => self.declare(request),
            MetaCommand::Delete { queue_id } => self.delete(*queue_id),
            MetaCommand::Opened { node, log, open } => self.opened(*node, *log, *open),
            MetaCommand::Recovered {
                group,
                generation,
                retired_peer,
                new_peer,
            } => self.recovered(*group, *generation, *retired_peer, *new_peer),
            MetaCommand::Rejoin {
                group,
                retired_peer,
                harmed,
            } => self.rejoin(*group, *retired_peer, *harmed),
            MetaCommand::Promoting {
                group,
                generation,
                peer,
            } => self.promoting(*group, *generation, *peer),
            MetaCommand::Collect {
                group,
                generation,
                accepts_loss,
            } => self.collect(*group, *generation, *accepts_loss),
            MetaCommand::Answered {
                group,
                generation,
                answer,
            } => self.answered(*group, *generation, *answer),
            MetaCommand::Forget { node } => self.forget(*node),
            MetaCommand::Replace { node, order } => self.replace(*node, *order),
            MetaCommand::Members(command) => self.on_members(command),
            MetaCommand::Change {
                queue_id,
                mode,
                copies,
                base,
            } => self.change(*queue_id, *mode, *copies, *base),
            MetaCommand::Level { level } => self.raise_level(*level),
        }
    }

    /// The queue called `name`.
    pub fn by_name(&self, name: &str) -> Option<&Arc<QueueDeclaration>> {
        self.queues.by_name(name)
    }

    /// The queue with this id.
    pub fn by_id(&self, queue_id: u64) -> Option<&Arc<QueueDeclaration>> {
        self.queues.by_id(queue_id)
    }

    /// Declarations in byte order of their names, those after `after`.
    pub fn iter_from<'a>(
        &'a self,
        after: &str,
    ) -> Box<dyn Iterator<Item = &'a Arc<QueueDeclaration>> + 'a> {
        Box::new(self.queues.after(after))
    }

    /// The id that the next queue gets: every one below was given out.
    pub fn next_queue_id(&self) -> u64 {
        self.next_queue_id
    }

    /// Number of queues.
    pub fn len(&self) -> usize {
        self.queues.len()
    }

    /// True without any queue.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// The join number that the next replica to join any group gets.
    pub fn next_join_number(&self) -> u64 {
        self.next_join
    }

    /// The peer id that `node` gets when it joins a group next.
    pub fn next_peer_id(&self, node: u32) -> u64 {
        peer_id(node, self.next_join)
    }

    /// History of a group, `None` if it never recovered.
    pub fn group(&self, group: u32) -> Option<&GroupHistory> {
        self.groups.get(&group)
    }

    /// The group's generation.
    pub fn generation(&self, group: u32) -> u32 {
        self.group(group)
            .map_or(FIRST_GENERATION, |history| history.generation)
    }

    /// True when the peer id never answers for the group again.
    pub fn is_retired(&self, group: u32, peer: u64) -> bool {
        self.group(group)
            .is_some_and(|history| history.retired.contains(&peer))
    }

    /// The last open of a log, as noted.
    pub fn last_open(&self, node: u32, log: u16) -> Option<Open> {
        self.opens.get(&(node, log)).copied()
    }

    /// Every log that was opened, by node and number.
    pub fn opens(&self) -> impl Iterator<Item = ((u32, u16), Open)> + '_ {
        self.opens.iter().map(|(log, open)| (*log, *open))
    }

    fn declare(&mut self, request: &DeclareRequest) -> MetaOutcome {
        if let Some(reason) = why_invalid(request) {
            return MetaOutcome::Refused { reason };
        }
        if let Some(stands) = self.by_name(&request.name) {
            return conflict(stands, request).unwrap_or(MetaOutcome::Declared {
                created: false,
                queue_id: stands.queue_id,
            });
        }
        let mode = request.mode.unwrap_or(Mode::Durable);
        let queue_id = self.next_queue_id;
        self.next_queue_id += 1;
        let queue = QueueDeclaration {
            queue_id,
            name: request.name.as_str().into(),
            mode,
            copies: request.copies.unwrap_or(0),
            lease_ms: request.lease_ms.unwrap_or(DEFAULT_LEASE_MS),
            halts: request.halts.unwrap_or(false),
            revision: 0,
            groups: self
                .placement
                .place(mode, request.partitions.unwrap_or(1))
                .into(),
        };
        self.queues.insert(Arc::new(queue));
        MetaOutcome::Declared {
            created: true,
            queue_id,
        }
    }

    fn delete(&mut self, queue_id: u64) -> MetaOutcome {
        let deleted = self.queues.remove(queue_id);
        MetaOutcome::Deleted {
            existed: deleted.is_some(),
        }
    }

    fn opened(&mut self, node: u32, log: u16, open: Open) -> MetaOutcome {
        let holder = self.seats.get(&node).map(|seat| seat.holder);
        if holder.is_some_and(|holder| holder != Some(nameless_peer(node, open.cookie))) {
            let reason = format!("log {log} of node {node}: its directory is not the node's");
            return MetaOutcome::Refused { reason };
        }
        if let Some(reason) = self
            .last_open(node, log)
            .and_then(|known| known.contradicts(open))
        {
            let reason = format!("log {log} of node {node}: {reason}");
            return MetaOutcome::Refused { reason };
        }
        self.opens.insert((node, log), open);
        MetaOutcome::Opened { node, log }
    }
}

fn why_invalid(request: &DeclareRequest) -> Option<String> {
    if let Err(error) = check_name(&request.name) {
        return Some(error.to_string());
    }
    if let Some(partitions) = request.partitions {
        if !(1..=MAX_PARTITIONS).contains(&partitions) {
            return Some(format!(
                "a queue has 1 to {MAX_PARTITIONS} partitions, not {partitions}"
            ));
        }
    }
    if request.lease_ms == Some(0) {
        return Some("a lease has at least 1 ms".to_owned());
    }
    None
}

/// What a queue's group does on total loss, in the words of a declare.
fn on_total_loss(halts: &bool) -> String {
    if *halts { "halt" } else { "recover" }.to_owned()
}

/// The first field in which the request differs from what stands.
fn conflict(stands: &QueueDeclaration, asked: &DeclareRequest) -> Option<MetaOutcome> {
    fn differ<T: PartialEq>(
        field: &'static str,
        stands: T,
        asked: Option<T>,
        show: impl Fn(&T) -> String,
    ) -> Option<MetaOutcome> {
        let asked = asked.filter(|asked| *asked != stands)?;
        Some(MetaOutcome::Conflict {
            field,
            stands: show(&stands),
            asked: show(&asked),
        })
    }
    differ("mode", stands.mode, asked.mode, |mode| {
        mode.name().to_owned()
    })
    .or_else(|| {
        differ(
            "copies",
            stands.copies,
            asked.copies,
            |copies| match copies {
                0 => "majority".to_owned(),
                255 => "all".to_owned(),
                copies => copies.to_string(),
            },
        )
    })
    .or_else(|| {
        let partitions = asked.partitions.map(usize::from);
        differ("partitions", stands.groups.len(), partitions, |count| {
            count.to_string()
        })
    })
    .or_else(|| {
        differ("lease", stands.lease_ms, asked.lease_ms, |lease_ms| {
            format!("{lease_ms} ms")
        })
    })
    .or_else(|| differ("on_total_loss", stands.halts, asked.halts, on_total_loss))
}
