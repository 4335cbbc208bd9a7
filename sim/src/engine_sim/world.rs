//! The world: one node on simulated disks, its clients, and what happens when.
//!
//! Everything that happens is in one queue, ordered by time and then by when
//! it was planned. All chance comes from one generator: a seed is a run.

use std::collections::BTreeMap;

use shards::engine::{ConnKey, Event, ReadFile, ShardMessage};
use shards::log::{IoFailure, LatchRecord};
use shards::store::{StoreDone, StoreJob};

use super::{
    client::Client,
    journal::Journal,
    node::Node,
    schedule::Schedule,
    settings::Settings,
    trace::{Trace, TAIL_LINES},
    Checked,
};
use crate::{Random, SimDisk, SimSync, SimWrite};

/// Something planned.
pub(super) enum Happening {
    /// A shard ends its turn.
    Turn {
        shard: u16,
    },
    /// A shard's timer.
    Timer {
        shard: u16,
        at_us: u64,
    },
    /// A shard's log is opened for the first time in this life.
    Boot {
        shard: u16,
    },
    Written {
        shard: u16,
        id: u64,
        write: SimWrite,
        dsync: bool,
    },
    Synced {
        shard: u16,
        id: u64,
        sync: SimSync,
    },
    /// A helper thread makes a segment.
    Prepare {
        shard: u16,
        sequence: u64,
        recycle: Option<u64>,
    },
    Prepared {
        shard: u16,
        sequence: u64,
        result: Result<(), IoFailure>,
    },
    Read {
        shard: u16,
        read: PendingRead,
    },
    Store {
        shard: u16,
        job: StoreJob,
    },
    Stored {
        shard: u16,
        done: StoreDone,
    },
    Mail {
        from: u16,
        to: u16,
        message: ShardMessage,
    },
    /// A connection's socket is free: it takes output.
    TakeOutput {
        conn: ConnKey,
    },
    /// A frame of a client arrives.
    Arrive {
        conn: ConnKey,
    },
    /// The client's end of a connection is gone.
    HungUp {
        conn: ConnKey,
    },
    /// A client does something.
    Act {
        client: usize,
    },
    /// The latch of a shard's log is recorded.
    RecordLatch {
        shard: u16,
    },
    /// A latched log is opened again.
    Reopen {
        shard: u16,
        latch: Option<LatchRecord>,
        pause_us: u64,
    },
    /// A rebuilt engine takes its place.
    Replace {
        shard: u16,
    },
    /// Once the shard serves, its amnesia is noted as settled.
    Amnesia {
        shard: u16,
        incarnation: u64,
        ready: bool,
    },
    /// A drain is under way.
    Drain {
        shard: u16,
        rounds: u32,
    },
    /// A fault begins.
    Fault(Fault),
}

/// A read that was issued.
pub(super) struct PendingRead {
    pub id: u64,
    pub file: ReadFile,
    /// The file that had the name then.
    pub open: Option<u64>,
    pub offset: u64,
    pub len: u32,
    /// What stood there then.
    pub before: Option<Vec<u8>>,
}

/// What goes wrong while a life lasts.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fault {
    Write { shard: u16 },
    Sync { shard: u16 },
    DiskFull { shard: u16, for_us: u64 },
    DiskFree { shard: u16 },
    ClockStep { ms: i64 },
}

/// See the module head.
pub(super) struct World {
    pub now_us: u64,
    /// No write ends before this; what a directed scenario sets.
    pub still_until_us: u64,
    pub random: Random,
    pub settings: Settings,
    pub queue: BTreeMap<(u64, u64), Happening>,
    planned: u64,
    pub node: Node,
    pub clients: Vec<Client>,
    pub journal: Journal,
    pub trace: Trace,
    /// The life under way, from 1; those that a start did not survive do not count.
    pub lived: u64,
    pub schedule: Schedule,
    /// Faults injected so far, by kind.
    pub faults: BTreeMap<&'static str, u64>,
    pub process_crashes: u64,
    /// Clients act by themselves.
    pub busy: bool,
    /// When the request that is being answered was sent.
    pub asked_at_us: u64,
}

/// Steps after which a run that does not end is called stuck.
const MOST_STEPS: u64 = 3_000_000;

impl World {
    pub fn new(mut random: Random, settings: Settings) -> Self {
        let disks: Vec<SimDisk> = (0..settings.shards)
            .map(|_| SimDisk::new(random.fork()))
            .collect();
        for disk in &disks {
            disk.set_physical_bytes(settings.log.block_bytes as usize);
        }
        let data = SimDisk::new(random.fork());
        let boot = settings.boot_directory.then(|| SimDisk::new(random.fork()));
        let clients = (0..=settings.clients).map(|_| Client::new()).collect();
        World {
            now_us: 1_000_000,
            still_until_us: 0,
            node: Node::new(random.number(), data, boot, disks),
            random,
            settings,
            queue: BTreeMap::new(),
            planned: 0,
            clients,
            journal: Journal::new(),
            trace: Trace::new(TAIL_LINES),
            lived: 0,
            schedule: Schedule::default(),
            faults: BTreeMap::new(),
            process_crashes: 0,
            busy: false,
            asked_at_us: 0,
        }
    }

    /// Plans something for `after_us` from now.
    pub fn plan(&mut self, after_us: u64, what: Happening) {
        self.planned += 1;
        self.queue
            .insert((self.now_us + after_us, self.planned), what);
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
        self.pass_us(ms * 1000)
    }

    /// Lets `us` pass.
    pub fn pass_us(&mut self, us: u64) -> Checked<()> {
        let until = self.now_us + us;
        let mut steps = 0u64;
        while self
            .queue
            .first_key_value()
            .is_some_and(|((due, _), _)| *due <= until)
        {
            steps += 1;
            if steps > MOST_STEPS {
                return Err(format!("{us} us took {steps} steps: something spins"));
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
        self.enter_happening(&what);
        match what {
            Happening::Turn { shard } => self.turn(shard),
            Happening::Timer { shard, at_us } => {
                self.timer(shard, at_us);
                Ok(())
            }
            Happening::Boot { shard } => self.boot(shard),
            Happening::Written {
                shard,
                id,
                write,
                dsync,
            } => {
                self.written(shard, id, write, dsync);
                Ok(())
            }
            Happening::Synced { shard, id, sync } => {
                self.synced(shard, id, sync);
                Ok(())
            }
            Happening::Prepare {
                shard,
                sequence,
                recycle,
            } => self.prepare(shard, sequence, recycle),
            Happening::Prepared {
                shard,
                sequence,
                result,
            } => {
                self.prepared(shard, sequence, result);
                Ok(())
            }
            Happening::Read { shard, read } => self.read(shard, read),
            Happening::Store { shard, job } => self.store(shard, job),
            Happening::Stored { shard, done } => {
                self.event(shard, Event::Stored(done));
                Ok(())
            }
            Happening::Mail { from, to, message } => self.mail(from, to, message),
            Happening::TakeOutput { conn } => self.take_output(conn),
            Happening::Arrive { conn } => self.arrive(conn),
            Happening::HungUp { conn } => {
                self.hung_up(conn);
                Ok(())
            }
            Happening::Act { client } => self.act(client),
            Happening::RecordLatch { shard } => self.record_latch(shard),
            Happening::Reopen {
                shard,
                latch,
                pause_us,
            } => self.reopen(shard, latch, pause_us),
            Happening::Replace { shard } => self.replace(shard),
            Happening::Amnesia {
                shard,
                incarnation,
                ready,
            } => self.settle_amnesia(shard, incarnation, ready),
            Happening::Drain { shard, rounds } => self.drain_round(shard, rounds),
            Happening::Fault(fault) => {
                self.begin_fault(fault);
                Ok(())
            }
        }
    }

    fn begin_fault(&mut self, fault: Fault) {
        self.note(format_args!("fault {fault:?}"));
        match fault {
            Fault::Write { shard } => {
                self.count("write error");
                self.node.shards[usize::from(shard)].disk.fail_writes(1);
            }
            Fault::Sync { shard } => {
                self.count("sync error");
                self.node.shards[usize::from(shard)].disk.fail_syncs(1);
            }
            Fault::DiskFull { shard, for_us } => {
                self.count("full disk");
                let free = self.random.below(3) * 100;
                self.node.shards[usize::from(shard)]
                    .disk
                    .set_free_bytes(Some(free));
                self.plan(for_us, Happening::Fault(Fault::DiskFree { shard }));
            }
            Fault::DiskFree { shard } => {
                self.node.shards[usize::from(shard)]
                    .disk
                    .set_free_bytes(None);
            }
            Fault::ClockStep { ms } => {
                self.count("clock step");
                self.node.wall_offset_ms += ms;
            }
        }
    }
}
