//! The node as the machine sees it: disks, shards, sockets, clocks.

use std::collections::{BTreeMap, VecDeque};

use shards::engine::{ConnKey, Engine, ShardMessage, ShardPlace};
use shards::log::{segment_name, CleanMarker, LogPosition, RecoveryReport};
use shards::store::StoreDone;

use super::{journal::Moment, record};
use crate::{SimDisk, VecBuffer};

/// The server's end of a connection.
pub(super) struct Socket {
    pub shard: u16,
    /// The client that still listens.
    pub client: Option<usize>,
    /// Frames on their way to the server.
    pub up: VecDeque<Vec<u8>>,
    pub arriving: bool,
    pub taking: bool,
    pub closing: bool,
    /// Each shard's life and hazards, as what it says on this connection counts.
    pub moments: Vec<Moment>,
}

/// A rebuilt engine that waits to take its place.
pub(super) struct Rebuilt {
    pub engine: Engine<VecBuffer>,
    pub report: RecoveryReport,
}

/// One shard.
pub(super) struct ShardSim {
    pub disk: SimDisk,
    pub engine: Option<Engine<VecBuffer>>,
    pub rebuilt: Option<Rebuilt>,
    /// What arrived before the shard was up.
    pub waiting: VecDeque<ShardMessage>,
    pub turn_planned: bool,
    pub timer_us: Option<u64>,
    pub serving: bool,
    pub latched: bool,
    /// Raised at every open.
    pub life: u64,
    /// Raised when something written but not durable may be lost.
    pub hazard: u64,
    /// Something happened since the log last knew that it forgot nothing.
    pub may_forget: bool,
    /// Of `hazard`, when this life began.
    pub hazard_at_open: u64,
    /// Everything below was checked to be safe on the disk.
    pub checked_durable: LogPosition,
    pub next_conn: u64,
    /// Turns in this life, to notice a shard that spins.
    pub turns: u64,
    /// Where bytes of records went in this life: segment, offset.
    pub places: BTreeMap<u64, Vec<(u64, u64)>>,
    pub marker: Option<CleanMarker>,
    pub drained: bool,
}

/// See the module head.
pub(super) struct Node {
    pub data: SimDisk,
    pub boot_disk: Option<SimDisk>,
    pub boot_id: u128,
    pub cookie: u64,
    pub shards: Vec<ShardSim>,
    pub sockets: BTreeMap<ConnKey, Socket>,
    /// Clean markers found by this life.
    pub markers: Vec<CleanMarker>,
    pub life: u64,
    pub life_start_us: u64,
    /// Every shard served once in this life: connections are accepted.
    pub accepting: bool,
    pub draining: bool,
    /// The process ended by itself and is not up.
    pub down: bool,
    /// When the last message of a pair arrives.
    pub mail_due: BTreeMap<(u16, u16), u64>,
    pub wall_offset_ms: i64,
    /// Highest wall offset a shard was opened with: server time is not above
    /// simulated time plus this.
    pub server_offset_ms: i64,
    pub opens: u64,
    pub power_cuts: u64,
    pub latches: u64,
    /// Checkpoints published, records packed.
    pub checkpoints: u64,
    pub packed: u64,
}

impl Node {
    pub fn count_stored(&mut self, done: &StoreDone) {
        match done {
            StoreDone::Published { result: Ok(_), .. } => self.checkpoints += 1,
            StoreDone::Packed {
                result: Ok(packed), ..
            } => self.packed += packed.places.len() as u64,
            _ => {}
        }
    }

    pub fn new(cookie: u64, data: SimDisk, boot: Option<SimDisk>, disks: Vec<SimDisk>) -> Self {
        let shard = |disk| ShardSim {
            disk,
            engine: None,
            rebuilt: None,
            waiting: VecDeque::new(),
            turn_planned: false,
            timer_us: None,
            serving: false,
            latched: false,
            life: 0,
            hazard: 1,
            may_forget: false,
            hazard_at_open: 1,
            checked_durable: LogPosition(0),
            next_conn: 1,
            turns: 0,
            places: BTreeMap::new(),
            marker: None,
            drained: false,
        };
        Node {
            data,
            boot_disk: boot,
            boot_id: 1,
            cookie,
            shards: disks.into_iter().map(shard).collect(),
            sockets: BTreeMap::new(),
            markers: Vec::new(),
            life: 0,
            life_start_us: 0,
            accepting: false,
            draining: false,
            down: true,
            mail_due: BTreeMap::new(),
            wall_offset_ms: 1_700_000_000_000,
            server_offset_ms: 0,
            opens: 0,
            power_cuts: 0,
            latches: 0,
            checkpoints: 0,
            packed: 0,
        }
    }

    pub fn shard(&mut self, shard: u16) -> &mut ShardSim {
        &mut self.shards[usize::from(shard)]
    }

    pub fn place(&self, data_groups: u32) -> ShardPlace {
        ShardPlace::spread(data_groups, self.shards.len() as u16)
    }

    /// What each shard's words on a new connection count as.
    pub fn moments(&self) -> Vec<Moment> {
        self.shards.iter().map(ShardSim::moment).collect()
    }
}

impl ShardSim {
    pub fn moment(&self) -> Moment {
        Moment {
            life: self.life,
            hazard: self.hazard_at_open,
        }
    }

    /// Remembers where the bytes of records go.
    pub fn note_places(&mut self, segment: u64, offset: u64, bytes: &[u8]) {
        for (at, id) in record::marks(bytes) {
            let place = (segment, offset + at as u64);
            self.places.entry(id).or_default().push(place);
        }
    }

    /// Where bytes of the record went that the ring still keeps.
    fn places_of(&self, id: u64) -> impl Iterator<Item = &(u64, u64)> {
        let kept = self
            .engine
            .as_ref()
            .map_or(0, |engine| engine.log().kept_from());
        let places = self.places.get(&id).map(Vec::as_slice).unwrap_or_default();
        places.iter().filter(move |(segment, _)| *segment >= kept)
    }

    /// False if bytes of the record that were written in this life would not
    /// outlive a power cut.
    pub fn is_safe(&self, id: u64) -> bool {
        self.places_of(id).all(|(segment, offset)| {
            let end = offset + record::MARK_BYTES as u64;
            self.disk.is_safe(&segment_name(*segment), *offset, end)
        })
    }

    /// False if bytes of the record that were issued in this life are not on
    /// the disk at all.
    pub fn is_written(&self, id: u64) -> bool {
        self.places_of(id).all(|(segment, offset)| {
            let bytes = self
                .disk
                .read(&segment_name(*segment), *offset, record::MARK_BYTES as u64);
            bytes.is_some_and(|bytes| record::marks(&bytes) == [(0, id)])
        })
    }
}
