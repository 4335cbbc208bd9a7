//! A [`Disk`] on a real directory: blocking calls, for bring-up only.
//!
//! Segments are read and written with `O_DIRECT` (a log never mixes direct and
//! cached I/O on one file); small files go through the page cache. Creating is
//! atomic: under a temporary name, synced, renamed, directory synced.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{flock, FlockOperation};

use crate::io::{Disk, DiskError, DiskErrorKind, DiskFile};

/// What memory, offsets and lengths of direct I/O are multiples of, in bytes.
pub const DIRECT_IO_ALIGN: usize = 4096;

/// Bytes written at once, and between two syncs, when a file is made.
const ZERO_CHUNK_BYTES: usize = 256 << 10;
const ZERO_SYNC_BYTES: u64 = 2 << 20;

/// Bytes one direct read or write moves at most.
const MAX_TRANSFER_BYTES: usize = 1 << 20;

const LOCK_POLL: Duration = Duration::from_millis(5);

/// One directory.
#[derive(Debug, Clone)]
pub struct FsDisk {
    directory: PathBuf,
    zero_pace: ZeroPace,
}

/// How fast a file is zero-filled.
#[derive(Debug, Clone, Default)]
pub struct ZeroPace {
    /// Time it is spread over; zero = at full speed.
    pub over: Duration,
    /// While set, somebody waits for the file: full speed.
    pub hurry: Arc<AtomicBool>,
}

impl ZeroPace {
    /// How long to rest at this part (0 to 1) of the work.
    fn rest(&self, part: f64, since: Instant) -> Duration {
        if self.hurry.load(Ordering::Relaxed) {
            return Duration::ZERO;
        }
        self.over.mul_f64(part).saturating_sub(since.elapsed())
    }
}

impl FsDisk {
    /// The existing directory `directory`.
    pub fn open(directory: impl Into<PathBuf>) -> Result<Self, DiskError> {
        let disk = FsDisk {
            directory: directory.into(),
            zero_pace: ZeroPace::default(),
        };
        let name = disk.directory.display().to_string();
        let metadata =
            std::fs::metadata(&disk.directory).map_err(failed("open directory", &name))?;
        if !metadata.is_dir() {
            let error = io::Error::from(io::ErrorKind::NotADirectory);
            return Err(failed("open directory", &name)(error));
        }
        Ok(disk)
    }

    /// The directory, made durably if it is missing (its parent must exist).
    pub fn create(directory: impl Into<PathBuf>) -> Result<Self, DiskError> {
        let directory = directory.into();
        let name = directory.display().to_string();
        match std::fs::create_dir(&directory) {
            Ok(()) => {
                if let Some(parent) = directory.parent() {
                    let parent = if parent.as_os_str().is_empty() {
                        Path::new(".")
                    } else {
                        parent
                    };
                    sync_directory(parent)?;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed("create directory", &name)(error)),
        }
        FsDisk::open(directory)
    }

    /// Paces zero-filling, so that it does not take the device from whoever
    /// waits for a commit.
    pub fn paced(mut self, pace: ZeroPace) -> Self {
        self.zero_pace = pace;
        self
    }

    /// Where a file of this directory is.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Fails with [`DiskErrorKind::NoDirectIo`] and a clear message if the
    /// file system refuses direct I/O.
    pub fn require_direct_io(&self) -> Result<(), DiskError> {
        const PROBE: &str = "direct-io.tmp";
        let path = self.path(PROBE);
        let _ = std::fs::remove_file(&path);
        let result = write_whole(&path, &[0; DIRECT_IO_ALIGN])
            .map_err(failed("create", PROBE))
            .and_then(|()| {
                let file = open_direct(&path, 0).map_err(refused("open", PROBE))?;
                let mut buffer = AlignedBuffer::new(DIRECT_IO_ALIGN);
                file.read_at(buffer.bytes_mut(), 0)
                    .map_err(refused("read", PROBE))?;
                file.write_all_at(buffer.bytes(), 0)
                    .map_err(refused("write", PROBE))
            });
        let _ = std::fs::remove_file(&path);
        result
    }

    fn temporary(&self, name: &str) -> PathBuf {
        let mut file = OsString::from(name);
        file.push(".tmp");
        self.directory.join(file)
    }

    fn refuse_existing(&self, name: &str) -> Result<(), DiskError> {
        let exists = std::fs::exists(self.path(name)).map_err(failed("look up", name))?;
        if !exists {
            return Ok(());
        }
        Err(DiskError {
            operation: "create",
            name: name.to_owned(),
            kind: DiskErrorKind::Exists,
            message: "it exists already".to_owned(),
        })
    }

    fn publish(&self, name: &str) -> Result<(), DiskError> {
        std::fs::rename(self.temporary(name), self.path(name)).map_err(failed("rename", name))?;
        self.sync_dir()
    }
}

impl Disk for FsDisk {
    fn list(&self) -> Result<Vec<String>, DiskError> {
        let name = self.directory.display().to_string();
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.directory).map_err(failed("list", &name))? {
            let entry = entry.map_err(failed("list", &name))?;
            // Names of ours are ASCII; others are nobody's business.
            if let Ok(name) = entry.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn create_zeroed(&self, name: &str, bytes: u64) -> Result<(), DiskError> {
        self.refuse_existing(name)?;
        let temporary = self.temporary(name);
        let zeroed = zero_fill(&temporary, bytes, &self.zero_pace);
        if zeroed.is_err() {
            // Gives the space back; the error is what counts.
            let _ = std::fs::remove_file(&temporary);
        }
        zeroed.map_err(refused("create", name))?;
        self.publish(name)
    }

    fn create_whole(&self, name: &str, bytes: &[u8]) -> Result<(), DiskError> {
        self.refuse_existing(name)?;
        let temporary = self.temporary(name);
        let written = write_direct(&temporary, bytes, &self.zero_pace);
        if written.is_err() {
            // Gives the space back; the error is what counts.
            let _ = std::fs::remove_file(&temporary);
        }
        written.map_err(refused("create", name))?;
        self.publish(name)
    }

    fn recycle_zeroed(&self, old: &str, new: &str, bytes: u64) -> Result<(), DiskError> {
        self.refuse_existing(new)?;
        let temporary = self.temporary(new);
        std::fs::rename(self.path(old), &temporary).map_err(failed("rename", old))?;
        zero_fill(&temporary, bytes, &self.zero_pace).map_err(refused("zero", new))?;
        self.publish(new)
    }

    fn open(&self, name: &str) -> Result<Box<dyn DiskFile>, DiskError> {
        let file = open_direct(&self.path(name), 0).map_err(refused("open", name))?;
        Ok(Box::new(FsFile {
            file,
            name: name.to_owned(),
        }))
    }

    fn read_small(&self, name: &str, limit: usize) -> Result<Option<Vec<u8>>, DiskError> {
        let file = match File::open(self.path(name)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("open", name)(error)),
        };
        let mut bytes = Vec::new();
        let bound = (limit as u64).saturating_add(1);
        io::Read::read_to_end(&mut io::Read::take(file, bound), &mut bytes)
            .map_err(failed("read", name))?;
        if bytes.len() > limit {
            return Err(DiskError {
                operation: "read",
                name: name.to_owned(),
                kind: DiskErrorKind::TooLong,
                message: format!("it is longer than {limit} bytes"),
            });
        }
        Ok(Some(bytes))
    }

    fn replace_small(&self, name: &str, bytes: &[u8]) -> Result<(), DiskError> {
        write_whole(&self.temporary(name), bytes).map_err(failed("write", name))?;
        self.publish(name)
    }

    fn rename(&self, old: &str, new: &str) -> Result<(), DiskError> {
        std::fs::rename(self.path(old), self.path(new)).map_err(failed("rename", old))
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        match std::fs::remove_file(self.path(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("remove", name)(error))
            }
            _ => Ok(()),
        }
    }

    fn sync_dir(&self) -> Result<(), DiskError> {
        sync_directory(&self.directory)
    }
}

struct FsFile {
    file: File,
    name: String,
}

impl DiskFile for FsFile {
    fn len(&self) -> Result<u64, DiskError> {
        let metadata = self.file.metadata();
        Ok(metadata.map_err(failed("inspect", &self.name))?.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        let mut done = 0;
        while done < buffer.len() {
            let (window, skip) = window(offset + done as u64, buffer.len() - done);
            let mut aligned = AlignedBuffer::new(window.len);
            let got = self
                .file
                .read_at(aligned.bytes_mut(), window.offset)
                .map_err(failed("read", &self.name))?;
            let there = aligned.bytes().get(skip..got).unwrap_or_default();
            let wanted = buffer.get_mut(done..).unwrap_or_default();
            let count = there.len().min(wanted.len());
            if count == 0 {
                break;
            }
            if let (Some(to), Some(from)) = (wanted.get_mut(..count), there.get(..count)) {
                to.copy_from_slice(from);
            }
            done += count;
        }
        Ok(done)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        let mut done = 0;
        while done < bytes.len() {
            let left = bytes.get(done..).unwrap_or_default();
            let (window, skip) = window(offset + done as u64, left.len());
            let count = left.len().min(window.len - skip);
            let mut aligned = AlignedBuffer::new(window.len);
            if skip > 0 || count < window.len {
                self.read_at(window.offset, aligned.bytes_mut())?;
            }
            let place = aligned.bytes_mut().get_mut(skip..skip + count);
            if let (Some(place), Some(part)) = (place, left.get(..count)) {
                place.copy_from_slice(part);
            }
            self.file
                .write_all_at(aligned.bytes(), window.offset)
                .map_err(failed("write", &self.name))?;
            done += count;
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), DiskError> {
        self.file.sync_data().map_err(failed("sync", &self.name))
    }

    fn lock_exclusive(&self, wait: Duration) -> Result<(), DiskError> {
        let start = Instant::now();
        loop {
            match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(()),
                Err(rustix::io::Errno::WOULDBLOCK) if start.elapsed() >= wait => {
                    return Err(DiskError {
                        operation: "lock",
                        name: self.name.clone(),
                        kind: DiskErrorKind::Locked,
                        message: format!("another process held it for {} ms", wait.as_millis()),
                    });
                }
                Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(LOCK_POLL),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(failed("lock", &self.name)(errno.into())),
            }
        }
    }
}

/// Marks a writing descriptor as alive: recovery in another process waits for
/// it, and for its last writes. Call it on each segment descriptor the driver
/// opens, before the first write.
pub fn lock_shared(file: impl std::os::fd::AsFd) -> io::Result<()> {
    Ok(flock(file, FlockOperation::NonBlockingLockShared)?)
}

/// An aligned piece of a file.
struct Window {
    offset: u64,
    len: usize,
}

/// The first aligned piece that holds bytes of `[offset, offset + len)`, and
/// where they start in it.
fn window(offset: u64, len: usize) -> (Window, usize) {
    let align = DIRECT_IO_ALIGN as u64;
    let start = offset - offset % align;
    let skip = (offset - start) as usize;
    let whole = (skip + len).next_multiple_of(DIRECT_IO_ALIGN);
    let window = Window {
        offset: start,
        len: whole.min(MAX_TRANSFER_BYTES),
    };
    (window, skip)
}

/// Zeroed memory that direct I/O accepts: an aligned slice of a longer vector.
pub(super) struct AlignedBuffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    pub(super) fn new(len: usize) -> Self {
        let memory = vec![0u8; len + DIRECT_IO_ALIGN];
        let start = memory
            .as_ptr()
            .align_offset(DIRECT_IO_ALIGN)
            .min(DIRECT_IO_ALIGN);
        AlignedBuffer { memory, start, len }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.memory
            .get(self.start..self.start + self.len)
            .unwrap_or_default()
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory
            .get_mut(self.start..self.start + self.len)
            .unwrap_or_default()
    }
}

pub(super) fn open_direct(path: &Path, flags: i32) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT | flags)
        .open(path)
}

/// Over what is there, if anything: a recycled file keeps its written extents.
fn zero_fill(path: &Path, bytes: u64, pace: &ZeroPace) -> io::Result<()> {
    let mut file = create_direct(path, bytes)?;
    if file.metadata()?.len() > bytes {
        file.set_len(bytes)?;
    }
    // The buffer is zeros as it comes.
    write_through(&mut file, bytes, pace, |_| {})
}

/// Writes `bytes` bytes from the file's start on, each piece as `fill` leaves
/// it, and syncs. Little by little: one large flush at the end would hold up
/// the log's.
fn write_through(
    file: &mut File,
    bytes: u64,
    pace: &ZeroPace,
    mut fill: impl FnMut(&mut [u8]),
) -> io::Result<()> {
    let mut buffer = AlignedBuffer::new(ZERO_CHUNK_BYTES);
    let start = Instant::now();
    let mut done = 0;
    while done < bytes {
        let count = (bytes - done).min(ZERO_CHUNK_BYTES as u64);
        let piece = buffer.bytes_mut().get_mut(..count as usize);
        let piece = piece.unwrap_or_default();
        fill(piece);
        file.write_all(piece)?;
        done += count;
        if done.is_multiple_of(ZERO_SYNC_BYTES) {
            file.sync_data()?;
        }
        std::thread::sleep(pace.rest(done as f64 / bytes as f64, start));
    }
    file.sync_all()
}

/// Direct where the length allows it, so that a segment never has pages in the
/// cache; the file system then also refuses direct I/O here and not later.
fn create_direct(path: &Path, bytes: u64) -> io::Result<File> {
    let direct = bytes.is_multiple_of(DIRECT_IO_ALIGN as u64);
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(if direct { libc::O_DIRECT } else { 0 })
        .open(path)
}

fn write_direct(path: &Path, bytes: &[u8], pace: &ZeroPace) -> io::Result<()> {
    let mut file = create_direct(path, bytes.len() as u64)?;
    file.set_len(0)?;
    let mut pieces = bytes.chunks(ZERO_CHUNK_BYTES);
    write_through(&mut file, bytes.len() as u64, pace, |room| {
        // Pieces are cut alike, so each is as long as its room.
        if let Some(piece) = pieces.next() {
            room.copy_from_slice(piece);
        }
    })
}

fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn sync_directory(path: &Path) -> Result<(), DiskError> {
    File::open(path)
        .and_then(|directory| directory.sync_all())
        .map_err(failed("sync directory", &path.display().to_string()))
}

fn failed<'a>(operation: &'static str, name: &'a str) -> impl FnOnce(io::Error) -> DiskError + 'a {
    move |error| DiskError {
        operation,
        name: name.to_owned(),
        kind: match error.kind() {
            io::ErrorKind::NotFound => DiskErrorKind::NotFound,
            io::ErrorKind::AlreadyExists => DiskErrorKind::Exists,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => DiskErrorKind::OutOfSpace,
            _ => DiskErrorKind::Other,
        },
        message: error.to_string(),
    }
}

/// Like [`failed`], where `EINVAL` means that direct I/O is refused.
fn refused<'a>(operation: &'static str, name: &'a str) -> impl FnOnce(io::Error) -> DiskError + 'a {
    move |error| {
        if error.raw_os_error() != Some(libc::EINVAL) {
            return failed(operation, name)(error);
        }
        DiskError {
            operation,
            name: name.to_owned(),
            kind: DiskErrorKind::NoDirectIo,
            message: "this file system refuses direct I/O (O_DIRECT); use ext4 or XFS".to_owned(),
        }
    }
}
