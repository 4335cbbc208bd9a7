//! A shard's way up: open the log on a thread of its own, replay it here,
//! start the loops; and again after a latch.

use std::{
    cell::Cell,
    net::SocketAddr,
    path::{Path, PathBuf},
    rc::Rc,
    sync::{atomic::AtomicBool, Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use glommio::{
    io::{DmaBuffer, DmaFile},
    timer::sleep,
    Latency, Shares,
};

use super::{
    boot_directory::boot_directory,
    clock, disk_space,
    fs_disk::{FsDisk, ZeroPace},
    helper::Helper,
    links::{Cluster, Links},
    machine,
    mailbox::{Outbox, Receiver, Sender},
    peer_watch::PeerLimits,
    pulse::Heart,
    segments::Segments,
    shard::{Crowd, Report, Shard, ShardParts},
};
use crate::{
    engine::{Boot, Engine, EngineConfig, HelloFacts, Notice},
    log::{
        self, BootId, CleanMarker, Geometry, IoFailure, ItemHeader, LatchRecord, LogBase, LogId,
        LogOptions, LogPosition, LogStart, LogWriter, OpenError, OpenFacts, RecoveryReport,
        SUPERBLOCK_FILES,
    },
    store::{self, Checkpoint},
};

/// How long an open waits for a killed process's last writes.
const LOCK_WAIT: Duration = Duration::from_secs(20);
/// Recovered bytes that travel to the shard at once.
const REPLAY_CHUNK_BYTES: usize = 1 << 20;
/// Chunks on the way.
const REPLAY_CHUNKS: usize = 4;
/// Between two words about how far an open has come.
const PROGRESS_PAUSE: Duration = Duration::from_millis(250);
/// How often a shard looks for what the opening thread sent.
const LOOK_PAUSE: Duration = Duration::from_millis(1);
/// First and longest pause between tries to reopen a latched log.
const REOPEN_PAUSE: Duration = Duration::from_millis(200);
const REOPEN_PAUSE_MOST: Duration = Duration::from_secs(10);

/// The clean markers of a data directory: those found, and those to leave.
pub(super) struct CleanMarkers {
    found: Vec<CleanMarker>,
    left: Mutex<Vec<CleanMarker>>,
}

impl CleanMarkers {
    fn found(&self, log_id: LogId) -> Option<CleanMarker> {
        self.found
            .iter()
            .find(|marker| marker.log_id == log_id)
            .copied()
    }

    /// A drained log's marker.
    pub(super) fn add(&self, marker: CleanMarker) {
        self.left
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(marker);
    }

    /// Writes what was added into the data directory, durably.
    ///
    /// # Errors
    /// The directory cannot be written; the next start recovers.
    pub(super) fn leave(&self, data: &Path) -> std::io::Result<()> {
        let markers = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let disk = FsDisk::open(data).map_err(std::io::Error::other)?;
        log::put_clean_markers(&disk, &markers).map_err(std::io::Error::other)
    }
}

/// Takes the clean markers away, before any log is opened.
pub(super) fn take_clean_markers(data: &Path) -> Result<CleanMarkers, String> {
    let disk = FsDisk::open(data).map_err(|error| error.to_string())?;
    let found = log::take_clean_markers(&disk).map_err(|error| error.to_string())?;
    Ok(CleanMarkers {
        found,
        left: Mutex::default(),
    })
}

/// An item on its way from the opening thread to the shard.
struct Replayed {
    header: ItemHeader,
    payload: Vec<u8>,
    position: LogPosition,
    links: Vec<(LogPosition, LogPosition)>,
}

/// What the opening thread sends, in this order.
enum Chunk {
    Checkpoint(Checkpoint),
    Items(Vec<Replayed>),
}

type OpenResult = Result<(LogStart, RecoveryReport), OpenFailure>;

/// Why a log did not open.
struct OpenFailure {
    reason: String,
    /// The log latched while it was opened: this process must reopen it.
    latch: Option<LatchRecord>,
}

impl From<String> for OpenFailure {
    fn from(reason: String) -> Self {
        OpenFailure {
            reason,
            latch: None,
        }
    }
}

impl From<OpenError> for OpenFailure {
    fn from(error: OpenError) -> Self {
        let latch = match &error {
            OpenError::TailSync { latch, .. } => Some(*latch),
            _ => None,
        };
        OpenFailure {
            reason: error.to_string(),
            latch,
        }
    }
}

/// Everything a shard is started from.
pub(super) struct Bringup {
    pub config: EngineConfig,
    pub hello: HelloFacts,
    pub directory: PathBuf,
    /// The data directory is new: a missing log is made rather than missed.
    pub may_create: bool,
    pub cookie: u64,
    pub log: LogOptions,
    pub clean: Arc<CleanMarkers>,
    pub listen: SocketAddr,
    pub peers: PeerLimits,
    pub senders: Vec<Sender>,
    pub mail: Receiver,
    pub helper: Helper,
    pub store_helper: Helper,
    pub disk_low_water: Option<u64>,
    pub reports: flume::Sender<Report>,
    pub crowd: Crowd,
    pub heart: Arc<Heart>,
    /// `None`: this node is alone.
    pub cluster: Option<Arc<Cluster>>,
}

impl Bringup {
    /// Brings the shard up and keeps it up until the process ends.
    pub(super) async fn run(self) {
        let shard = self.config.shard;
        let turns = Rc::new(Cell::new(0));
        glommio::spawn_local(self.heart.clone().pulse(turns.clone())).detach();
        if let Err(reason) = self.serve(turns).await {
            // The receiver is gone only when the process ends.
            let _ = self.reports.send(Report::Failed { shard, reason });
        }
    }

    async fn serve(&self, turns: Rc<Cell<u64>>) -> Result<(), String> {
        let (mut engine, mut report) = self.first_boot().await?;
        let _first = self.first_file().await?;
        let queue = glommio::executor().create_task_queue(
            Shares::default(),
            Latency::Matters(Duration::from_millis(1)),
            "shard",
        );
        let geometry = engine.log().geometry();
        let mut parts = self.parts(queue, geometry, turns);
        parts.links = self.links(report.open_counter);
        let shard = Shard::new(parts, engine);
        shard.start(self.mail.clone());
        loop {
            self.tell(&report);
            self.settle_amnesia(&shard, &report);
            shard.latched.wait().await;
            (engine, report) = self.reopen(&shard).await;
            shard.replace_engine(engine, report.open_counter);
        }
    }

    /// A log that latches while it is opened is reopened here, with back-off:
    /// the fact may be known to nobody else.
    async fn first_boot(&self) -> Result<(Engine<DmaBuffer>, RecoveryReport), String> {
        let (mut latch, mut pause) = (None, REOPEN_PAUSE);
        loop {
            match self.boot(latch).await {
                Ok(booted) => return Ok(booted),
                Err(failure) => match failure.latch.or(latch) {
                    None => return Err(failure.reason),
                    again => {
                        latch = again;
                        let notice = Notice::Problem(format!("{}; trying again", failure.reason));
                        let shard = self.config.shard;
                        // The receiver is gone only when the process ends.
                        let _ = self.reports.send(Report::Notice { shard, notice });
                        sleep(pause).await;
                        pause = (pause * 2).min(REOPEN_PAUSE_MOST);
                    }
                },
            }
        }
    }

    fn parts(
        &self,
        queue: glommio::TaskQueueHandle,
        geometry: Geometry,
        turns: Rc<Cell<u64>>,
    ) -> ShardParts {
        let number = self.config.shard;
        let directory = self.directory.clone();
        let hurry = Arc::new(AtomicBool::new(false));
        ShardParts {
            hurry: hurry.clone(),
            turns,
            number,
            hello: self.hello.clone(),
            segments: Segments::new(self.directory.clone()),
            outboxes: self.senders.iter().cloned().map(Outbox::new).collect(),
            own_mail: self.senders[usize::from(number)].clone(),
            helper: self.helper.clone(),
            store_helper: self.store_helper.clone(),
            disk_low_water: self.disk_low_water,
            directory: self.directory.clone(),
            queue,
            reports: self.reports.clone(),
            crowd: self.crowd.clone(),
            listen: self.listen,
            peers: self.peers,
            clean: self.clean.clone(),
            links: None,
            prepare: {
                let pace = Pace {
                    last: Mutex::default(),
                    hurry: hurry.clone(),
                };
                Arc::new(move |sequence, recycle| {
                    prepare(&directory, geometry, sequence, recycle, pace.next())
                })
            },
        }
    }

    fn links(&self, open_counter: u64) -> Option<Links> {
        let cluster = self.cluster.clone()?;
        // Not the engine's own numbers, which start at the same one.
        let random = self.config.random.rotate_left(32);
        Some(Links::new(cluster, self.config.shard, open_counter, random))
    }

    /// glommio decides by the first file of an executor whether later ones
    /// busy-poll; this one has written, synced content on the data device.
    async fn first_file(&self) -> Result<DmaFile, String> {
        let path = self.directory.join(SUPERBLOCK_FILES[0]);
        DmaFile::open(&path)
            .await
            .map_err(|error| format!("opening {}: {error}", path.display()))
    }

    /// Opens the log and builds an engine from it. The opening blocks, on a
    /// thread of its own; items come over in chunks and are replayed here.
    async fn boot(
        &self,
        latch: Option<LatchRecord>,
    ) -> Result<(Engine<DmaBuffer>, RecoveryReport), OpenFailure> {
        let (chunks_in, chunks) = flume::bounded::<Chunk>(REPLAY_CHUNKS);
        let (result_in, result) = flume::bounded::<OpenResult>(1);
        let opening = Opening {
            directory: self.directory.clone(),
            may_create: self.may_create,
            log_id: LogId(u128::from(self.cookie) << 64 | u128::from(self.config.shard)),
            options: self.log.clone(),
            clean: self.clean.clone(),
            latch,
            progress: Progress {
                shard: self.config.shard,
                reports: self.reports.clone(),
                last: Instant::now(),
                first_position: None,
                end: LogPosition(0),
            },
        };
        std::thread::Builder::new()
            .name(format!("open-{}", self.config.shard))
            .spawn(move || {
                let outcome = opening.run(chunks_in);
                // The shard is gone only when the process ends.
                let _ = result_in.send(outcome);
            })
            .map_err(|error| format!("the opening thread could not be started: {error}"))?;
        let mut config = self.config.clone();
        config.start_mono_ms = clock::mono_ms();
        config.start_wall_ms = clock::wall_ms();
        let mut boot = Boot::new(config);
        while let Some(chunk) = receive(&chunks).await {
            let items = match chunk {
                Chunk::Items(items) => items,
                Chunk::Checkpoint(checkpoint) => {
                    boot.restore(&checkpoint)
                        .map_err(|error| error.to_string())?;
                    continue;
                }
            };
            for item in &items {
                boot.replay(&item.header, &item.payload, &|at| {
                    log::place_in(item.position, &item.links, at)
                })
                .map_err(|error| error.to_string())?;
            }
        }
        let (start, report) = receive(&result)
            .await
            .ok_or_else(|| "the opening thread ended without a word".to_owned())??;
        let writer = LogWriter::new(start, self.log.clone());
        let memory = crate::engine::Memory {
            amnesiac: report.amnesiac,
            durable_memory_lost: report.durable_memory_lost,
        };
        let engine = boot
            .finish(writer, memory)
            .map_err(|error| error.to_string())?;
        Ok((engine, report))
    }

    fn tell(&self, report: &RecoveryReport) {
        if report.open_counter <= 1 && report.items == 0 {
            return;
        }
        let notice = Notice::Recovered {
            text: report.to_string(),
            at_rest: report.at_rest,
        };
        // The receiver is gone only when the process ends.
        let _ = self.reports.send(Report::Notice {
            shard: self.config.shard,
            notice,
        });
    }

    /// Once the new generations are durable the log need not report the same
    /// loss of memory again.
    fn settle_amnesia(&self, shard: &Rc<Shard>, report: &RecoveryReport) {
        if !report.amnesiac && !report.durable_memory_lost {
            return;
        }
        let (directory, incarnation) = (self.directory.clone(), report.incarnation);
        let helper = self.helper.clone();
        let waiting = shard.clone();
        shard.spawn(async move {
            while !waiting.with_engine(|engine| engine.memory_is_settled()) {
                sleep(Duration::from_millis(20)).await;
            }
            let task = waiting.clone();
            let reports = task.reports();
            let number = task.number;
            helper.run(move || {
                let settled = FsDisk::open(&directory)
                    .map_err(|error| error.to_string())
                    .and_then(|disk| {
                        log::amnesia_settled(&disk, incarnation).map_err(|error| error.to_string())
                    });
                if let Err(reason) = settled {
                    let text = format!("the log's recovery could not be noted as settled: {reason}; the next start begins another generation");
                    let notice = Notice::Problem(text);
                    let _ = reports.send(Report::Notice { shard: number, notice });
                }
            });
        });
    }

    /// Reopens the latched log, with back-off, until it works.
    async fn reopen(&self, shard: &Rc<Shard>) -> (Engine<DmaBuffer>, RecoveryReport) {
        let record = shard.with_engine(|engine| engine.log().latch_record());
        if let Some(record) = record {
            self.record_latch(shard, record).await;
        }
        let mut pause = REOPEN_PAUSE;
        loop {
            sleep(pause).await;
            while !shard.with_engine(|engine| engine.files_are_idle()) {
                sleep(Duration::from_millis(5)).await;
            }
            shard.close_segments();
            match self.boot(record).await {
                Ok(opened) => return opened,
                Err(failure) => shard.problem(&format!(
                    "reopening the latched log: {}; trying again",
                    failure.reason
                )),
            }
            pause = (pause * 2).min(REOPEN_PAUSE_MOST);
        }
    }

    /// Until the latch is recorded somewhere the next process would see, this
    /// one stays up and keeps trying.
    async fn record_latch(&self, shard: &Rc<Shard>, record: LatchRecord) {
        loop {
            let (done_in, done) = flume::bounded(1);
            let directory = self.directory.clone();
            let handed = self.helper.run(move || {
                let recorded = FsDisk::open(&directory).is_ok_and(|disk| {
                    let boot = boot_directory();
                    let boot = boot.as_ref().map(|disk| disk as &dyn crate::io::Disk);
                    log::record_latch(&disk, boot, &record).is_recorded()
                });
                // The shard is gone only when the process ends.
                let _ = done_in.send(recorded);
            });
            if handed && receive(&done).await == Some(true) {
                return;
            }
            shard.problem("the latch could not be recorded anywhere; trying again");
            sleep(REOPEN_PAUSE_MOST).await;
        }
    }
}

/// The next message of another thread; `None` when there will be none. Looked
/// for by timer, because a wake can be missed; see [`super::pulse`].
async fn receive<T>(from: &flume::Receiver<T>) -> Option<T> {
    loop {
        match from.try_recv() {
            Ok(message) => return Some(message),
            Err(flume::TryRecvError::Disconnected) => return None,
            Err(flume::TryRecvError::Empty) => sleep(LOOK_PAUSE).await,
        }
    }
}

/// The blocking half of bringing a log up.
struct Opening {
    directory: PathBuf,
    may_create: bool,
    log_id: LogId,
    options: LogOptions,
    clean: Arc<CleanMarkers>,
    latch: Option<LatchRecord>,
    progress: Progress,
}

/// Says how far the reading of a log has come.
struct Progress {
    shard: u16,
    reports: flume::Sender<Report>,
    last: Instant,
    first_position: Option<LogPosition>,
    /// Of the segments, spares included.
    end: LogPosition,
}

impl Progress {
    fn note(&mut self, position: LogPosition) {
        let first = *self.first_position.get_or_insert(position);
        if self.last.elapsed() < PROGRESS_PAUSE {
            return;
        }
        self.last = Instant::now();
        let notice = Notice::Replaying {
            done_bytes: position.0.saturating_sub(first.0),
            most_bytes: self.end.0.saturating_sub(first.0),
        };
        let shard = self.shard;
        // The receiver is gone only when the process ends.
        let _ = self.reports.send(Report::Notice { shard, notice });
    }
}

impl Opening {
    fn run(self, chunks: flume::Sender<Chunk>) -> OpenResult {
        let disk = FsDisk::create(&self.directory).map_err(|error| error.to_string())?;
        if !log::exists(&disk).map_err(|error| error.to_string())? {
            if !self.may_create {
                return Err(format!(
                    "{} holds no log any more (both superblocks are missing); nothing was changed: restore the directory's files, or start on a new one with --data",
                    self.directory.display()
                )
                .into());
            }
            log::create(&disk, self.log_id, &self.options).map_err(|error| error.to_string())?;
        }
        let boot_id =
            machine::boot_id().map_err(|error| format!("reading the boot id: {error}"))?;
        let boot = boot_directory();
        let base = self.load_checkpoint(&disk, &chunks)?;
        let facts = OpenFacts {
            base: base.as_ref(),
            boot_id: BootId(boot_id),
            clean_marker: self
                .latch
                .is_none()
                .then(|| self.clean.found(self.log_id))
                .flatten(),
            boot_directory: boot.as_ref().map(|disk| disk as &dyn crate::io::Disk),
            lock_wait: LOCK_WAIT,
        };
        let mut chunk = Vec::new();
        let mut bytes = 0;
        let mut progress = self.progress;
        // Without it the lines say less; the open itself will say what is wrong.
        progress.end = log::segments_end(&disk).unwrap_or(LogPosition(0));
        let mut on_item = |item: log::RecoveredItem<'_>| {
            progress.note(item.position);
            bytes += item.payload.len() + 128;
            chunk.push(Replayed {
                header: item.header,
                payload: item.payload.to_vec(),
                position: item.position,
                links: item.links.to_vec(),
            });
            if bytes >= REPLAY_CHUNK_BYTES {
                bytes = 0;
                // A shard that gave up reading says why itself.
                let _ = chunks.send(Chunk::Items(std::mem::take(&mut chunk)));
            }
        };
        let opened = match self.latch {
            None => log::open(&disk, &self.options, &facts, &mut on_item),
            Some(latch) => log::reopen(&disk, &self.options, &facts, &latch, &mut on_item),
        }?;
        let _ = chunks.send(Chunk::Items(chunk));
        Ok((opened.start, opened.report))
    }
}

impl Opening {
    /// Sends the published checkpoint ahead of the items behind it.
    fn load_checkpoint(
        &self,
        disk: &FsDisk,
        chunks: &flume::Sender<Chunk>,
    ) -> Result<Option<LogBase>, OpenFailure> {
        let log_id = log::id_of(disk).map_err(|error| error.to_string())?;
        let loaded = store::take_over(disk, log_id).map_err(|error| error.to_string())?;
        let Some(checkpoint) = loaded else {
            return Ok(None);
        };
        let base = checkpoint.base().map_err(|error| error.to_string())?;
        // A shard that gave up reading says why itself.
        let _ = chunks.send(Chunk::Checkpoint(checkpoint));
        Ok(Some(base))
    }
}

/// How long a segment may take to prepare: part of the time that the last one
/// lasted, so that a busy log gets it in time and a calm one is not disturbed.
struct Pace {
    last: Mutex<Option<Instant>>,
    hurry: Arc<AtomicBool>,
}

/// Part of a segment's life that preparing its successor is spread over.
const PACE_PART: f64 = 0.4;
/// Longest preparation.
const PACE_MOST: Duration = Duration::from_secs(4);

impl Pace {
    /// The pace of the segment asked for now; the first ones go at full speed.
    fn next(&self) -> ZeroPace {
        let now = Instant::now();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let lasted = last.replace(now).map(|then| now.duration_since(then));
        let over = lasted.map_or(Duration::ZERO, |lasted| {
            lasted.mul_f64(PACE_PART).min(PACE_MOST)
        });
        ZeroPace {
            over,
            hurry: self.hurry.clone(),
        }
    }
}

fn prepare(
    directory: &Path,
    geometry: Geometry,
    sequence: u64,
    recycle: Option<u64>,
    pace: ZeroPace,
) -> Result<(), IoFailure> {
    let bytes = geometry.segment_bytes();
    let too_few = disk_space::too_few(directory, bytes).filter(|_| recycle.is_none());
    if let Some(free) = too_few {
        return Err(IoFailure {
            message: format!("a segment takes {bytes} bytes, and {free} are free"),
            out_of_space: true,
        });
    }
    FsDisk::open(directory)
        .and_then(|disk| log::prepare_segment(&disk.paced(pace), geometry, sequence, recycle))
        .map_err(IoFailure::from)
}
