//! One node as the machine sees it: disk, clock, sockets, process.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use shards::engine::{ConnKey, Engine};
use shards::log::{segment_name, CleanMarker, LogPosition, RecoveryReport};

use shards::state::meta::Seat;
use wire::node::Roster;

use super::issues::{Issues, Pieces};
use crate::{record, Random, SimDisk, VecBuffer};

/// The server's end of a client's connection.
pub(super) struct Socket {
    /// The client that still listens.
    pub client: Option<usize>,
    /// Frames on their way to the server.
    pub up: VecDeque<Vec<u8>>,
    pub arriving: bool,
    pub taking: bool,
    pub closing: bool,
    /// When the engine first said that there is output, since it was last taken.
    pub told_us: u64,
    /// Who said what is about to come out of it.
    pub issues: Issues,
}

/// A rebuilt engine that waits to take its place.
pub(super) struct Rebuilt {
    pub engine: Engine<VecBuffer>,
    pub report: RecoveryReport,
}

/// Between two looks whether a halted process goes on.
const HALT_LOOK_US: u64 = 500;
const MARK_BYTES: u64 = record::MARK_BYTES as u64;

/// Where a mark of a record went.
struct Place {
    segment: u64,
    offset: u64,
    written: bool,
    /// Of the record's key; otherwise of its payload's end.
    head: bool,
}

/// Whether of each kind of mark one is so. A copy may stand where it never gets safe:
/// in front of a sync that failed.
fn each_kind(places: &[Place], is_so: impl Fn(&Place) -> bool) -> bool {
    [true, false].into_iter().all(|head| {
        let mut of_kind = places.iter().filter(|place| place.head == head).peekable();
        of_kind.peek().is_none() || of_kind.any(&is_so)
    })
}

/// Records with bytes on this node's disk that are not known to be safe.
#[derive(Default)]
pub(super) struct Places {
    of: BTreeMap<u64, Vec<Place>>,
    /// Of each write in flight, its records.
    in_flight: BTreeMap<u64, Vec<(u64, u64, u64)>>,
}

/// See the module head.
pub(super) struct Node {
    pub disk: SimDisk,
    /// Of the data directory itself: the clean markers.
    pub data: SimDisk,
    pub boot_disk: SimDisk,
    pub boot_id: u128,
    pub cookie: u64,
    /// The directory was made to join.
    pub joins: bool,
    /// Its configuration lists itself and `seed` only.
    pub seeded: bool,
    pub seed: usize,
    /// It is a member, and runs or should.
    pub belongs: bool,
    /// Who belongs to the cluster, as its driver was told last in this life.
    pub roster: Option<Arc<Roster>>,
    /// Whose directory may be a node's, as it was told last.
    pub seats: BTreeMap<u32, Seat>,
    pub engine: Option<Engine<VecBuffer>>,
    pub rebuilt: Option<Rebuilt>,
    pub sockets: BTreeMap<ConnKey, Socket>,
    pub next_conn: u64,
    pub turn_planned: bool,
    pub timer_us: Option<u64>,
    /// The process runs.
    pub up: bool,
    pub serving: bool,
    pub latched: bool,
    /// Raised at every start of the process, and whenever an engine takes its place.
    pub life: u64,
    pub engine_life: u64,
    pub life_start_us: u64,
    /// What the monotonic clock runs off by, in millionths.
    pub drift_ppm: i64,
    pub wall_offset_ms: i64,
    /// The process stands still until then.
    pub paused_until_us: u64,
    /// The process stands still since then, until it is told to go on.
    pub halted_us: Option<u64>,
    /// Its disk takes so much longer until then.
    pub slow_disk: (u64, u64),
    /// Its syncs take so much longer.
    pub sync_lag_us: u64,
    pub markers: Vec<CleanMarker>,
    pub checked_durable: LogPosition,
    pub turns: u64,
    pub places: Places,
    /// When it last lost what it had not synced.
    pub hurt_us: Option<u64>,
    /// Of each peer for which there is output.
    pub to_peers: BTreeMap<usize, Told>,
    /// Of connections of other nodes' clients that this engine answers: node,
    /// connection.
    pub pieces: BTreeMap<(usize, u64), Pieces>,
}

/// The engine said that there is output for a peer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Told {
    pub at_us: u64,
    /// The engine's turns by then.
    pub turns: u64,
    /// A take is planned.
    pub planned: bool,
}

impl Node {
    pub fn new(random: &mut Random, block_bytes: u32) -> Self {
        let disk = SimDisk::new(random.fork());
        disk.set_physical_bytes(block_bytes as usize);
        Node {
            disk,
            data: SimDisk::new(random.fork()),
            boot_disk: SimDisk::new(random.fork()),
            boot_id: u128::from(random.number()) << 64 | 1,
            cookie: random.number(),
            joins: false,
            seeded: false,
            seed: 0,
            belongs: true,
            roster: None,
            seats: BTreeMap::new(),
            engine: None,
            rebuilt: None,
            sockets: BTreeMap::new(),
            next_conn: 1,
            turn_planned: false,
            timer_us: None,
            up: false,
            serving: false,
            latched: false,
            life: 0,
            engine_life: 0,
            life_start_us: 0,
            drift_ppm: 0,
            wall_offset_ms: 1_700_000_000_000,
            paused_until_us: 0,
            halted_us: None,
            sync_lag_us: 0,
            slow_disk: (0, 0),
            markers: Vec::new(),
            checked_durable: LogPosition(0),
            turns: 0,
            places: Places::default(),
            hurt_us: None,
            to_peers: BTreeMap::new(),
            pieces: BTreeMap::new(),
        }
    }

    /// Milliseconds of this process's monotonic clock.
    pub fn mono_ms(&self, now_us: u64) -> u64 {
        let elapsed = (now_us - self.life_start_us) as i128;
        let run = elapsed + elapsed * i128::from(self.drift_ppm) / 1_000_000;
        (run / 1000) as u64
    }

    /// When its monotonic clock reads `mono_ms`, or a little later.
    pub fn when(&self, mono_ms: u64) -> u64 {
        let run = i128::from(mono_ms) * 1000;
        let elapsed = run * 1_000_000 / (1_000_000 + i128::from(self.drift_ppm)) + 1;
        self.life_start_us.saturating_add(elapsed as u64)
    }

    pub fn wall_ms(&self, now_us: u64) -> u64 {
        ((now_us / 1000) as i64 + self.wall_offset_ms).max(0) as u64
    }

    /// How long the process stands still from now on, or until it is asked again.
    pub fn pause_us(&self, now_us: u64) -> u64 {
        match self.halted_us {
            Some(_) => HALT_LOOK_US,
            None => self.paused_until_us.saturating_sub(now_us),
        }
    }

    /// Clients can connect.
    pub fn accepts(&self) -> bool {
        self.up && self.serving && self.engine.is_some()
    }
}

impl Places {
    /// A write was issued.
    pub fn issued(&mut self, write: u64, segment: u64, offset: u64, bytes: &[u8]) {
        for (at, id) in record::marks(bytes) {
            let head = bytes.get(at..).is_some_and(record::is_head);
            let offset = offset + at as u64;
            self.of.entry(id).or_default().push(Place {
                segment,
                offset,
                written: false,
                head,
            });
            let records = self.in_flight.entry(write).or_default();
            records.push((id, segment, offset));
        }
    }

    /// It completed: tells the records that are now written as a whole, as far
    /// as they were issued.
    pub fn written(&mut self, write: u64) -> Vec<u64> {
        let mut whole = Vec::new();
        for (id, segment, offset) in self.in_flight.remove(&write).unwrap_or_default() {
            let places = self.of.entry(id).or_default();
            for place in places.iter_mut() {
                place.written |= (place.segment, place.offset) == (segment, offset);
            }
            if each_kind(places, |place| place.written) && whole.last() != Some(&id) {
                whole.push(id);
            }
        }
        whole
    }

    /// Looks which records are safe by now; those are followed no further.
    pub fn take_safe(&mut self, disk: &SimDisk) -> Vec<u64> {
        let mut safe = Vec::new();
        self.of.retain(|id, places| {
            let is_safe = each_kind(places, |place| {
                let name = segment_name(place.segment);
                let end = place.offset + MARK_BYTES;
                // A segment that is gone was packed, or held nothing any more.
                disk.id_of(&name).is_none()
                    || (place.written && disk.is_safe(&name, place.offset, end))
            });
            if is_safe {
                safe.push(*id);
            }
            !is_safe
        });
        safe
    }

    /// Starts anew with what stands in the segments; tells the records.
    pub fn scan(&mut self, disk: &SimDisk, names: &[String]) -> Vec<u64> {
        self.of.clear();
        self.in_flight.clear();
        for name in names {
            let digits = name.strip_prefix("seg-");
            let Some(segment) = digits.and_then(|digits| digits.parse().ok()) else {
                continue;
            };
            let bytes = disk.contents(name).unwrap_or_default();
            for (at, id) in record::marks(&bytes) {
                self.of.entry(id).or_default().push(Place {
                    segment,
                    offset: at as u64,
                    written: true,
                    head: bytes.get(at..).is_some_and(record::is_head),
                });
            }
        }
        self.of.keys().copied().collect()
    }
}
