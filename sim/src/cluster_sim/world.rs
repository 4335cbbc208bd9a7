//! The world: nodes, the connections between them, clients, and what happens
//! when.
//!
//! Everything that happens is in one queue, ordered by time and then by when
//! it was planned. All chance comes from one generator: a seed is a run.

use std::{collections::BTreeMap, sync::Arc};

use shards::engine::{ConnKey, ReadFile};
use shards::log::{IoFailure, LatchRecord};
use shards::store::{StoreDone, StoreJob};
use wire::node::Roster;

use super::{
    client::Client, faults::Fault, journal::Journal, leaders::Leaders, net::Net, node::Node,
    replacing::Lost, settings::Settings, Checked,
};
use crate::{
    trace::{Trace, TAIL_LINES},
    Random, SimSync, SimWrite,
};

/// Something planned.
pub(super) enum Happening {
    /// To a node's process; not if it is another one by then.
    Node {
        node: usize,
        life: u64,
        what: OnNode,
    },
    /// A client does something.
    Act { client: usize },
    /// The end of a connection that a client left.
    HungUp { node: usize, conn: ConnKey },
    /// A node's process starts.
    Start { node: usize },
    /// A link's dialer tries.
    Dial { node: usize, peer: usize },
    /// A body may have come through.
    Arrive { from: usize, to: usize },
    /// A connection between nodes has been silent for too long.
    Silent { a: usize, b: usize, epoch: u64 },
    /// The next fault strikes.
    Strike,
    /// A fault ends.
    End(Fault),
    /// An operator gives the lost directory of a node up, or asks again.
    GiveUp,
    /// An operator changes who belongs to the cluster, or holds what.
    Reshape,
}

/// What happens to a process.
pub(super) enum OnNode {
    Turn,
    Timer {
        at_us: u64,
    },
    /// Its log is opened for the first time in this life.
    Boot,
    Written {
        id: u64,
        write: SimWrite,
        dsync: bool,
    },
    Synced {
        id: u64,
        sync: SimSync,
    },
    /// A helper thread makes a segment.
    Prepare {
        sequence: u64,
        recycle: Option<u64>,
    },
    Prepared {
        sequence: u64,
        result: Result<(), IoFailure>,
    },
    Read(PendingRead),
    Store(StoreJob),
    Stored(StoreDone),
    /// A client's socket is free: it takes output.
    TakeOutput {
        conn: ConnKey,
    },
    /// A frame of a client arrives.
    Frame {
        conn: ConnKey,
    },
    /// The socket of a link is free.
    TakeNode {
        peer: usize,
    },
    LinkUp {
        peer: usize,
        epoch: u64,
    },
    LinkDown {
        peer: usize,
        epoch: u64,
    },
    RecordLatch,
    Reopen {
        latch: Option<LatchRecord>,
        pause_us: u64,
    },
    Replace,
    /// It was removed from the cluster.
    Removed,
    /// Once the engine serves, the log's amnesia is noted as settled.
    Amnesia {
        incarnation: u64,
        ready: bool,
    },
}

/// A read that was issued.
pub(super) struct PendingRead {
    pub id: u64,
    pub file: ReadFile,
    /// The file that had the name then.
    pub open: Option<u64>,
    pub offset: u64,
    pub len: u32,
}

/// See the module head.
pub(super) struct World {
    pub now_us: u64,
    pub random: Random,
    pub settings: Settings,
    pub queue: BTreeMap<(u64, u64), Happening>,
    planned: u64,
    pub nodes: Vec<Node>,
    pub net: Net,
    pub clients: Vec<Client>,
    pub journal: Journal,
    pub trace: Trace,
    /// Clients act by themselves, faults strike.
    pub busy: bool,
    pub counts: Counts,
    pub leaders: Leaders,
    /// The newest that any node knew.
    pub roster: Option<Arc<Roster>>,
    /// The highest feature level that any node knew the cluster to be at.
    pub level: u16,
    /// A node whose directory is lost and not given up yet.
    pub lost: Option<Lost>,
    /// For how long processes stood still, in all.
    pub paused_us: u64,
    /// When the request that is being answered was sent.
    pub asked_us: u64,
}

/// What a run did, for runs that must not be empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Happenings.
    pub events: u64,
    pub opens: u64,
    pub crashes: u64,
    pub power_cuts: u64,
    pub latches: u64,
    pub link_losses: u64,
    pub replacements: u64,
    pub removals: u64,
    /// Replicas that went to another node, each as often as its last node dropped it.
    pub moves: u64,
    /// Bodies between nodes that arrived.
    pub bodies: u64,
}

/// Steps after which a wait is called stuck.
const MOST_STEPS: u64 = 20_000_000;

impl World {
    pub fn new(mut random: Random, settings: Settings) -> Self {
        let node = |number: usize| {
            let mut node = Node::new(&mut random, settings.log.block_bytes);
            if number >= settings.nodes {
                (node.joins, node.seeded, node.belongs) = (true, true, false);
            }
            node
        };
        let nodes = (0..settings.nodes + settings.more).map(node).collect();
        let clients = (0..=settings.clients).map(|_| Client::new()).collect();
        World {
            now_us: 1_000_000,
            random,
            queue: BTreeMap::new(),
            planned: 0,
            nodes,
            net: Net::default(),
            clients,
            journal: Journal::new(settings.nodes),
            trace: Trace::new(TAIL_LINES),
            busy: false,
            counts: Counts::default(),
            settings,
            leaders: Leaders::default(),
            roster: None,
            level: 0,
            lost: None,
            paused_us: 0,
            asked_us: 0,
        }
    }

    /// Plans something for `after_us` from now.
    pub fn plan(&mut self, after_us: u64, what: Happening) {
        self.planned += 1;
        let due = self.now_us.saturating_add(after_us);
        self.queue.insert((due, self.planned), what);
    }

    /// Plans something for a node's present process.
    pub fn plan_on(&mut self, node: usize, after_us: u64, what: OnNode) {
        let life = self.nodes[node].life;
        self.plan(after_us, Happening::Node { node, life, what });
    }

    /// A delay of up to `most_us`; now and then much shorter.
    pub fn delay(&mut self, most_us: u64) -> u64 {
        if self.random.chance(1, 3) {
            return 1 + self.random.below(20);
        }
        1 + self.random.below(most_us)
    }

    pub fn note(&mut self, line: std::fmt::Arguments<'_>) {
        let line = format!("{:>10} {line}", self.now_us);
        self.trace.note(line);
    }

    /// Lets things happen until `done` says so; an error if it does not within
    /// `limit_ms`.
    pub fn await_that(
        &mut self,
        what: &str,
        limit_ms: u64,
        mut done: impl FnMut(&World) -> bool,
    ) -> Checked<()> {
        let limit = self.now_us + limit_ms * 1000;
        let mut steps = 0u64;
        while !done(self) {
            let Some((&(due, _), _)) = self.queue.first_key_value() else {
                return Err(format!("nothing happens any more, waiting for {what}"));
            };
            if due > limit || steps > MOST_STEPS {
                return Err(format!(
                    "{limit_ms} ms and {steps} steps passed, waiting for {what}"
                ));
            }
            steps += 1;
            self.step()?;
        }
        Ok(())
    }

    /// Lets `ms` pass.
    pub fn pass(&mut self, ms: u64) -> Checked<()> {
        let until = self.now_us + ms * 1000;
        let mut steps = 0u64;
        let due = |world: &World| world.queue.first_key_value().map(|((due, _), _)| *due);
        while due(self).is_some_and(|due| due <= until) {
            steps += 1;
            if steps > MOST_STEPS {
                return Err(format!("{ms} ms took {steps} steps: something spins"));
            }
            self.step()?;
        }
        self.now_us = until;
        Ok(())
    }

    fn step(&mut self) -> Checked<()> {
        let Some(((due, _), what)) = self.queue.pop_first() else {
            return Ok(());
        };
        self.now_us = self.now_us.max(due);
        self.journal.now_us = self.now_us;
        self.counts.events += 1;
        match what {
            Happening::Node { node, life, what } => {
                let sim = &self.nodes[node];
                if !sim.up || sim.life != life {
                    return Ok(());
                }
                let after = sim.pause_us(self.now_us);
                if after > 0 {
                    self.plan(after, Happening::Node { node, life, what });
                    return Ok(());
                }
                self.on_node(node, what)
            }
            Happening::Act { client } => self.act(client),
            Happening::HungUp { node, conn } => {
                self.hung_up(node, conn);
                Ok(())
            }
            Happening::Start { node } => self.start(node),
            Happening::Dial { node, peer } => {
                self.dial(node, peer);
                Ok(())
            }
            Happening::Arrive { from, to } => {
                self.arrive_body(from, to);
                Ok(())
            }
            Happening::Silent { a, b, epoch } => {
                if !self.net.can_connect(a, b) {
                    self.break_link(a, b, epoch, 1_000_000);
                }
                Ok(())
            }
            Happening::Strike => self.strike(),
            Happening::End(fault) => self.end_fault(fault),
            Happening::GiveUp => {
                self.give_up();
                Ok(())
            }
            Happening::Reshape => {
                self.reshape();
                Ok(())
            }
        }
    }

    fn on_node(&mut self, node: usize, what: OnNode) -> Checked<()> {
        match what {
            OnNode::Turn => self.end_turn(node),
            OnNode::Timer { at_us } => {
                self.timer(node, at_us);
                Ok(())
            }
            OnNode::Boot => self.boot(node),
            OnNode::Written { id, write, dsync } => {
                self.written(node, id, write, dsync);
                Ok(())
            }
            OnNode::Synced { id, sync } => {
                self.synced(node, id, sync);
                Ok(())
            }
            OnNode::Prepare { sequence, recycle } => {
                self.prepare(node, sequence, recycle);
                Ok(())
            }
            OnNode::Prepared { sequence, result } => {
                self.prepared(node, sequence, result);
                Ok(())
            }
            OnNode::Read(read) => {
                self.read(node, read);
                Ok(())
            }
            OnNode::Store(job) => {
                self.store(node, job);
                Ok(())
            }
            OnNode::Stored(done) => {
                self.event(node, shards::engine::Event::Stored(done));
                Ok(())
            }
            OnNode::TakeOutput { conn } => self.take_output(node, conn),
            OnNode::Frame { conn } => self.arrive_frame(node, conn),
            OnNode::TakeNode { peer } => {
                self.take_node(node, peer);
                Ok(())
            }
            OnNode::LinkUp { peer, epoch } => {
                self.link_up(node, peer, epoch);
                Ok(())
            }
            OnNode::LinkDown { peer, epoch } => {
                self.link_down(node, peer, epoch);
                Ok(())
            }
            OnNode::RecordLatch => self.record_latch(node),
            OnNode::Reopen { latch, pause_us } => self.reopen(node, latch, pause_us),
            OnNode::Replace => {
                self.replace(node);
                Ok(())
            }
            OnNode::Removed => {
                self.removed(node);
                Ok(())
            }
            OnNode::Amnesia { incarnation, ready } => {
                self.settle_amnesia(node, incarnation, ready);
                Ok(())
            }
        }
    }
}
