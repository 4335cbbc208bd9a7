//! The running server: checks the machine, locks the data directory, starts a
//! shard per log, and stops them.

use std::{
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{atomic::AtomicI64, Arc},
    time::{Duration, Instant},
};

use glommio::{LocalExecutorBuilder, Placement};
use thiserror::Error;

use super::{
    bringup::{self, Bringup},
    data_directory::{random_u64, DataDirectory, DirectoryError, NewDirectory},
    device_probe::{self, DeviceProbe},
    formats::{self, Unfit},
    fs_disk::FsDisk,
    helper::Helper,
    identity::{self, Identity, Membership},
    lineage::Heard,
    links::{Cluster, ClusterOptions, MOST_STRANGERS},
    machine::{self, MachineError},
    mailbox::{mailboxes, Letter, Sender},
    peer_watch::PeerLimits,
    pulse::{self, Heart},
    shard::{Crowd, Report},
};
use crate::{
    engine::{EngineConfig, HelloFacts, Notice},
    io::DiskErrorKind,
    log::{LogOptions, SyncMethod},
    state::{level::OWN_LEVEL, meta::Lineage},
};

/// A start that neither serves nor reads a log for so long has hung: say so.
const START_PATIENCE: Duration = Duration::from_secs(600);
/// A drain gives up after this.
const DRAIN_PATIENCE: Duration = Duration::from_secs(15);
/// Descriptors kept for log files and the rest when connections are counted;
/// half of them where there are few.
const RESERVED_DESCRIPTORS: u64 = 256;
/// glommio's preemption timer where no queue asks for a shorter one. So long
/// because nothing could wake an executor that parked with its first task
/// ready, before its pulse; see `pulse`.
const PREEMPT: Duration = Duration::from_secs(3600);
/// Threads for what may block.
const HELPER_THREADS: usize = 2;
/// Threads for packing and checkpoints, at most.
const MOST_STORE_THREADS: usize = 4;

/// How a server runs.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    pub data: PathBuf,
    pub listen: SocketAddr,
    /// Where clients reach this node, `HOST:PORT`; `None`: where it listens.
    pub advertise: Option<String>,
    /// `None`: as the directory says; one per core for a new one.
    pub shards: Option<u16>,
    /// Below 2^24.
    pub node: u32,
    /// For a new directory.
    pub data_groups: u32,
    pub log: LogOptions,
    /// `None`: the device probe chooses.
    pub sync_method: Option<SyncMethod>,
    /// Free bytes of the file system below which publishes are refused; `None`:
    /// a twentieth of it, at most 1 GiB.
    pub disk_low_water: Option<u64>,
    /// Memory that a shard's index of unsettled records may take before publishes
    /// are refused, bytes; `None`: half of the machine's over all shards.
    pub index_memory: Option<u64>,
    /// From the start of one scrub of what is stored to the next; zero = none.
    pub scrub_interval: Duration,
    /// How long a replica waits for a leader before its group may begin a new
    /// generation, and such a recovery for stragglers.
    pub recovery_grace: Duration,
    /// Bytes a second and shard that followers behind are brought up with.
    pub catch_up_rate: u64,
    /// How long a node leads a group, all well, before it hands it to the node whose turn
    /// it is; zero = never.
    pub spread_leaders: Duration,
    /// Publish bytes a connection may have unanswered.
    pub window_bytes: u32,
    /// `None`: as many as descriptors allow.
    pub max_connections: Option<u64>,
    pub peers: PeerLimits,
    /// glommio's registered memory per shard, in bytes.
    pub io_memory: usize,
    /// Bytes read back from disk that a shard keeps.
    pub read_cache_bytes: u64,
    /// Pin shard N to core N.
    pub pin_cores: bool,
    /// Run on file systems that do not write in place. For tests.
    pub allow_any_file_system: bool,
    /// Name and version for hello.
    pub version: String,
    /// `None`: this node is alone.
    pub cluster: Option<ClusterOptions>,
    /// A new directory is made to join the cluster, in the place of one that was given up.
    pub join: bool,
    /// Group 0 ends this generation, and goes on from what this node holds, alone.
    pub force_group_0: Option<u32>,
}

/// Why a server did not start. Each is one sentence for the user.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("cannot listen for other nodes on {address}: {source}; another program may use the port: choose one with node_listen")]
    NodeListen {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("--force-group-0 lets group 0 go on from what a node's data directory holds, and {data} holds none; name the directory of the node that is left with --data")]
    ForceNothing { data: PathBuf },
    #[error(transparent)]
    Machine(#[from] MachineError),
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error("cannot listen on {address}: {source}; another program may use the port: choose one with --listen")]
    Listen {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("the data directory {} was written by another version of Tidegate ({found}), and nothing in it was changed; start that version, or choose another directory with --data", data.display())]
    Format { data: PathBuf, found: String },
    #[error("the server cannot start from the data directory {}, and nothing in it was changed: {found}", data.display())]
    Damaged { data: PathBuf, found: String },
    #[error("{0}")]
    Log(String),
    #[error("shard {shard} did not start: {reason}")]
    Shard { shard: u16, reason: String },
    #[error("the shards did not serve within {} s; look at the lines above", START_PATIENCE.as_secs())]
    Slow,
    #[error("shard {shard} cannot start: its log has no room for what a start writes, and no segment can be made ({cause}); free at least {segment_bytes} bytes on the file system of {}, then start again", data.display())]
    NoRoom {
        shard: u16,
        cause: String,
        segment_bytes: u64,
        data: PathBuf,
    },
    #[error("a thread could not be started: {0}")]
    Thread(io::Error),
    #[error("{reason}")]
    Removed { reason: String },
}

/// A started server. Dropping it does not stop the shards; the process ends them.
pub struct Server {
    /// Where it listens, the port filled in.
    pub address: SocketAddr,
    pub identity: Identity,
    /// The data directory was created by this start.
    pub created: bool,
    /// What the device probe found in the data directory; `None` when the disk
    /// has no room for it.
    pub probe: Option<DeviceProbe>,
    pub sync_method: SyncMethod,
    /// Something about the machine that the user should know.
    pub warning: Option<String>,
    mail: Vec<Sender>,
    reports: flume::Receiver<Report>,
    directory: DataDirectory,
    clean: Arc<bringup::CleanMarkers>,
}

impl Server {
    /// Starts everything and returns once every shard serves and listens.
    /// `tell` gets what an operator should see meanwhile.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(
        options: ServerOptions,
        tell: &mut dyn FnMut(u16, &Notice),
    ) -> Result<Self, StartError> {
        machine::check()?;
        let address = reserve(options.listen).map_err(|source| StartError::Listen {
            address: options.listen,
            source,
        })?;
        if let Some(cluster) = &options.cluster {
            let address = cluster.listen;
            let reserved = reserve(address);
            reserved.map_err(|source| StartError::NodeListen { address, source })?;
        }
        let cores = machine::cores();
        let new = NewDirectory {
            node: options.node,
            shards: options.shards.unwrap_or(cores),
            data_groups: options.data_groups,
            cluster: options.cluster.as_ref().map(|cluster| Membership {
                joins: options.join,
                ..cluster.membership()
            }),
        };
        // Before a new directory fixes the number of shards.
        let shards = identity::stored_shards(&options.data).unwrap_or(new.shards);
        let warning = machine::check_memory(options.io_memory as u64, shards)?;
        let any = options.allow_any_file_system;
        if options.force_group_0.is_some() && identity::stored_shards(&options.data).is_none() {
            let data = options.data.clone();
            return Err(StartError::ForceNothing { data });
        }
        let directory = DataDirectory::open(&options.data, new, options.shards, any)?;
        let identity = &directory.identity;
        let is_new = directory.may_create_logs();
        let fit = formats::check(directory.path(), identity.place.shards, is_new);
        fit.map_err(|unfit| {
            let data = directory.path().to_owned();
            match unfit {
                Unfit::Format(found) => StartError::Format { data, found },
                Unfit::Damaged(found) => StartError::Damaged { data, found },
            }
        })?;
        let probe = probe_device(&directory)?;
        let found = probe.as_ref().map(|probe| probe.method);
        let sync_method = options
            .sync_method
            .or(found)
            .unwrap_or(device_probe::UNPROBED);
        let clean = bringup::take_clean_markers(directory.path()).map_err(StartError::Log)?;
        let clean = Arc::new(clean);
        let (reports_in, reports) = flume::unbounded();
        let mail = Launch {
            options: &options,
            directory: &directory,
            address,
            sync_method,
            clean: clean.clone(),
            reports: reports_in,
        }
        .launch()?;
        let server = Server {
            address,
            identity: directory.identity.clone(),
            created: directory.created,
            probe,
            sync_method,
            warning,
            mail,
            reports,
            directory,
            clean,
        };
        server.await_serving(tell)?;
        let finished = server.directory.finish_creation();
        finished.map_err(|source| DirectoryError::Write {
            path: server.directory.path().to_owned(),
            source,
        })?;
        Ok(server)
    }

    /// How durable batches reach the device, for the first lines.
    pub fn sync_line(&self) -> String {
        let way = match self.sync_method {
            SyncMethod::Dsync => "O_DSYNC",
            SyncMethod::Fdatasync => "write and fdatasync",
        };
        let Some(probe) = &self.probe else {
            return format!("durable batches by {way} (the disk has no room for the device probe)");
        };
        let cache = probe.write_cache.as_deref().unwrap_or("unknown");
        format!(
            "durable batches by {way} (probe: O_DSYNC {} us, write + fdatasync {} us; device write cache: {cache})",
            probe.dsync_p50_us, probe.fdatasync_p50_us
        )
    }

    fn await_serving(&self, tell: &mut dyn FnMut(u16, &Notice)) -> Result<(), StartError> {
        self.await_each(tell, |report| {
            let notice = match report {
                Report::Notice { notice, .. } => Some(notice),
                _ => None,
            };
            notice == Some(&Notice::Serving)
        })?;
        for sender in &self.mail {
            // The shard is alive: it just reported.
            let _ = sender.send(Letter::Accept);
        }
        self.await_each(tell, |report| matches!(report, Report::Listening { .. }))
    }

    /// Waits until each shard has reported what `is_it` knows. As long as logs
    /// are read back, however large, the start has not hung.
    fn await_each(
        &self,
        tell: &mut dyn FnMut(u16, &Notice),
        is_it: impl Fn(&Report) -> bool,
    ) -> Result<(), StartError> {
        let mut deadline = Instant::now() + START_PATIENCE;
        let mut reported = 0;
        while reported < self.mail.len() {
            let report = self.reports.recv_deadline(deadline);
            let report = report.map_err(|_| StartError::Slow)?;
            reported += usize::from(is_it(&report));
            match report {
                Report::Notice { shard, notice } => {
                    if matches!(notice, Notice::Replaying { .. }) {
                        deadline = Instant::now() + START_PATIENCE;
                    }
                    if let Notice::NoRoom {
                        cause,
                        segment_bytes,
                    } = notice
                    {
                        let data = self.directory.path().to_owned();
                        return Err(StartError::NoRoom {
                            shard,
                            cause,
                            segment_bytes,
                            data,
                        });
                    }
                    tell(shard, &notice);
                }
                Report::Failed { shard, reason } => {
                    return Err(StartError::Shard { shard, reason });
                }
                Report::Removed { reason } => return Err(StartError::Removed { reason }),
                Report::Drained { .. } | Report::Listening { .. } => {}
            }
        }
        Ok(())
    }

    /// What the shards report while the server runs.
    pub fn reports(&self) -> &flume::Receiver<Report> {
        &self.reports
    }

    /// Stops admitting, finishes what is in flight, makes everything durable
    /// and leaves the clean marker. False when a shard did not come to rest in
    /// time or a log is latched: then there is no marker, and the next start
    /// recovers.
    pub fn drain(&self, tell: &mut dyn FnMut(u16, &Notice)) -> Result<bool, io::Error> {
        for sender in &self.mail {
            // A full mailbox of a stuck shard: the deadline below ends it.
            let _ = sender.send_timeout(Letter::Drain, Duration::from_secs(2));
        }
        let deadline = Instant::now() + DRAIN_PATIENCE;
        let (mut done, mut clean) = (0, true);
        while done < self.mail.len() {
            match self.reports.recv_deadline(deadline) {
                Ok(Report::Drained { quiet, .. }) => {
                    done += 1;
                    clean &= quiet;
                }
                Ok(Report::Notice { shard, notice }) => tell(shard, &notice),
                Ok(Report::Failed { .. } | Report::Removed { .. } | Report::Listening { .. }) => {}
                Err(_) => return Ok(false),
            }
        }
        if clean {
            self.clean.leave(self.directory.path())?;
        }
        Ok(clean)
    }
}

/// A full disk is no reason not to start.
fn probe_device(directory: &DataDirectory) -> Result<Option<DeviceProbe>, StartError> {
    let probed =
        FsDisk::open(directory.path()).and_then(|disk| device_probe::probe(&disk).map(Some));
    probed.or_else(|error| match error.kind {
        DiskErrorKind::OutOfSpace => Ok(None),
        _ => Err(StartError::Log(error.to_string())),
    })
}

/// What the shards are started from.
struct Launch<'a> {
    options: &'a ServerOptions,
    directory: &'a DataDirectory,
    address: SocketAddr,
    sync_method: SyncMethod,
    clean: Arc<bringup::CleanMarkers>,
    reports: flume::Sender<Report>,
}

impl Launch<'_> {
    fn launch(&self) -> Result<Vec<Sender>, StartError> {
        let shards = self.directory.identity.place.shards;
        let (senders, receivers) = mailboxes(shards);
        let helper = Helper::start(HELPER_THREADS).map_err(StartError::Thread)?;
        let threads = usize::from(shards).min(MOST_STORE_THREADS);
        let store_helper = Helper::start(threads).map_err(StartError::Thread)?;
        let crowd = Crowd {
            now: Arc::new(AtomicI64::new(0)),
            most: self.most_connections(),
        };
        let hearts: Vec<Arc<Heart>> = receivers.iter().map(|_| Arc::default()).collect();
        pulse::watch(hearts.clone()).map_err(StartError::Thread)?;
        let cluster = self.cluster()?;
        for (shard, (mail, heart)) in receivers.into_iter().zip(hearts).enumerate() {
            let shard = shard as u16;
            let bringup = Bringup {
                config: self.engine_config(shard, cluster.as_deref())?,
                hello: HelloFacts {
                    node: self.options.node,
                    shards,
                    window_bytes: self.options.window_bytes,
                    server: self.options.version.clone(),
                },
                directory: self.directory.shard(shard),
                may_create: self.directory.may_create_logs(),
                cookie: self.directory.identity.cookie,
                log: LogOptions {
                    sync_method: self.sync_method,
                    ..self.options.log.clone()
                },
                clean: self.clean.clone(),
                listen: self.address,
                peers: self.options.peers,
                senders: senders.clone(),
                mail,
                helper: helper.clone(),
                store_helper: store_helper.clone(),
                disk_low_water: self.options.disk_low_water,
                reports: self.reports.clone(),
                crowd: crowd.clone(),
                heart,
                cluster: cluster.clone(),
            };
            let placement = self.placement(shard);
            LocalExecutorBuilder::new(placement)
                .name(&format!("shard-{shard}"))
                .io_memory(self.options.io_memory)
                .preempt_timer(PREEMPT)
                .spawn(move || bringup.run())
                .map_err(|error| StartError::Shard {
                    shard,
                    reason: error.to_string(),
                })?;
        }
        Ok(senders)
    }

    fn cluster(&self) -> Result<Option<Arc<Cluster>>, StartError> {
        let Some(options) = self.options.cluster.clone() else {
            return Ok(None);
        };
        let reports = self.reports.clone();
        let identity = &self.directory.identity;
        let heard = Heard::begin(self.directory.path(), identity.place.shards)?;
        let made = Cluster::new(options, identity, heard, reports);
        made.map(|cluster| Some(Arc::new(cluster)))
            .map_err(StartError::Thread)
    }

    fn placement(&self, shard: u16) -> Placement {
        let fits = self.directory.identity.place.shards <= machine::cores();
        if self.options.pin_cores && fits {
            machine::allowed_core(shard).map_or(Placement::Unbound, Placement::Fixed)
        } else {
            Placement::Unbound
        }
    }

    fn engine_config(
        &self,
        shard: u16,
        cluster: Option<&Cluster>,
    ) -> Result<EngineConfig, StartError> {
        Ok(EngineConfig {
            shard,
            node: self.options.node,
            cookie: self.directory.identity.cookie,
            nonce: cluster.map_or(0, Cluster::nonce),
            lineage: cluster.map_or_else(Lineage::default, |cluster| cluster.lineage(shard)),
            joins: self.directory.identity.joins(),
            level: OWN_LEVEL,
            force_group_0: self.options.force_group_0,
            nodes: match &self.options.cluster {
                Some(cluster) => cluster.members(),
                None => vec![self.options.node],
            },
            addresses: match &self.options.cluster {
                Some(cluster) => cluster.addresses(),
                None => Vec::new(),
            },
            place: self.directory.identity.place.clone(),
            start_wall_ms: super::clock::wall_ms(),
            start_mono_ms: super::clock::mono_ms(),
            random: random_u64().map_err(StartError::Thread)?,
            window_bytes: self.options.window_bytes,
            read_cache_bytes: self.options.read_cache_bytes,
            scrub_interval_ms: self.options.scrub_interval.as_millis() as u64,
            recovery_grace_ms: self.options.recovery_grace.as_millis() as u64,
            catch_up_bytes_per_s: self.options.catch_up_rate,
            spread_after_ms: self.options.spread_leaders.as_millis() as u64,
            index_memory_bytes: self.options.index_memory.unwrap_or_else(|| {
                let shards = self.directory.identity.place.shards;
                super::machine::index_memory(shards)
            }),
            server: self.options.version.clone(),
            advertise: self.advertise(),
        })
    }

    /// Where clients reach this node: as configured, or where it listens, unless that
    /// is every address it has.
    fn advertise(&self) -> String {
        match &self.options.advertise {
            Some(address) => address.clone(),
            None if self.address.ip().is_unspecified() => String::new(),
            None => self.address.to_string(),
        }
    }

    /// Links and strangers on the port for nodes hold two descriptors each.
    fn node_descriptors(&self) -> u64 {
        let Some(cluster) = &self.options.cluster else {
            return 0;
        };
        let shards = u64::from(self.directory.identity.place.shards);
        2 * (shards * cluster.nodes.len() as u64 + 2 * MOST_STRANGERS as u64)
    }

    /// Each connection holds two descriptors.
    fn most_connections(&self) -> i64 {
        let descriptors = machine::descriptors();
        let reserved = (RESERVED_DESCRIPTORS + self.node_descriptors()).min(descriptors / 2);
        let by_descriptors = descriptors.saturating_sub(reserved) / 2;
        let most = self
            .options
            .max_connections
            .unwrap_or(u64::MAX)
            .min(by_descriptors)
            .max(1);
        i64::try_from(most).unwrap_or(i64::MAX)
    }
}

/// Finds the port to listen on. The shards share it by `SO_REUSEPORT`, which
/// would also let a second server in: so it is first bound without.
fn reserve(address: SocketAddr) -> io::Result<SocketAddr> {
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
    // Not against connections of an earlier life that wait out their time.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(1)?;
    let bound = socket.local_addr()?;
    bound
        .as_socket()
        .ok_or_else(|| io::Error::other("not an IP address"))
}
