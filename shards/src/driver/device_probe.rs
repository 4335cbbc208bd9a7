//! Which way durable writes go fastest on a device: a short race on a real file.
//!
//! Measures, on zero-filled and synced space as segments are: 4 KiB overwrites
//! with `O_DSYNC`, and plain ones each followed by `fdatasync`, in turns.
//! Blocking; not on a shard thread. Its file is removed again; a crash leaves
//! `probe.tmp`, which the next probe overwrites.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Instant;

use super::fs_disk::{open_direct, AlignedBuffer, FsDisk, DIRECT_IO_ALIGN};
use crate::io::{Disk, DiskError};
use crate::log::SyncMethod;

/// Writes each contestant makes.
const ROUNDS: usize = 32;
/// Writes before that, not counted.
const WARM_UP: usize = 4;
const PROBE_FILE: &str = "probe.tmp";

/// The way to take when nothing could be measured.
pub const UNPROBED: SyncMethod = SyncMethod::Dsync;

/// What the probe found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceProbe {
    /// The way to take: `O_DSYNC` unless the sync is faster by a fifth.
    pub method: SyncMethod,
    pub dsync_p50_us: u64,
    pub fdatasync_p50_us: u64,
    /// The backing device's `write_cache` mode (`write back`, `write through`),
    /// if it has one device and the kernel tells. With `write through` written
    /// is as good as durable.
    pub write_cache: Option<String>,
}

impl fmt::Display for DeviceProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let method = match self.method {
            SyncMethod::Dsync => "O_DSYNC",
            SyncMethod::Fdatasync => "write + fdatasync",
        };
        let cache = self.write_cache.as_deref().unwrap_or("unknown");
        write!(
            f,
            "durable writes go by {method} (O_DSYNC {} us, write + fdatasync {} us, median of {ROUNDS}; write cache: {cache})",
            self.dsync_p50_us, self.fdatasync_p50_us
        )
    }
}

/// Runs the race in the directory of `disk`. Fails with
/// [`NoDirectIo`](crate::io::DiskErrorKind::NoDirectIo) if the file system
/// refuses direct I/O.
pub fn probe(disk: &FsDisk) -> Result<DeviceProbe, DiskError> {
    disk.require_direct_io()?;
    disk.remove(PROBE_FILE)?;
    disk.create_zeroed(PROBE_FILE, (2 * DIRECT_IO_ALIGN) as u64)?;
    let path = disk.path(PROBE_FILE);
    let raced = race(&path);
    let write_cache = File::open(&path)
        .ok()
        .and_then(|file| write_cache_of(&file));
    disk.remove(PROBE_FILE)?;
    let (dsync_p50_us, fdatasync_p50_us) = raced.map_err(|error| DiskError {
        operation: "probe",
        name: path.display().to_string(),
        kind: crate::io::DiskErrorKind::Other,
        message: error.to_string(),
    })?;
    let method = faster(dsync_p50_us, fdatasync_p50_us);
    Ok(DeviceProbe {
        method,
        dsync_p50_us,
        fdatasync_p50_us,
        write_cache,
    })
}

/// Two `O_DSYNC` batches may be in flight, only one sync: with equal medians
/// O_DSYNC confirms sooner (bench-results), so the sync has to win clearly.
fn faster(dsync_p50_us: u64, fdatasync_p50_us: u64) -> SyncMethod {
    if dsync_p50_us.saturating_mul(4) <= fdatasync_p50_us.saturating_mul(5) {
        SyncMethod::Dsync
    } else {
        SyncMethod::Fdatasync
    }
}

/// Medians in microseconds: `O_DSYNC`, write + `fdatasync`. In turns, so that
/// a disturbance meets both.
fn race(path: &Path) -> io::Result<(u64, u64)> {
    let plain = open_direct(path, 0)?;
    let through = open_direct(path, libc::O_DSYNC)?;
    let mut buffer = AlignedBuffer::new(DIRECT_IO_ALIGN);
    let mut dsync = Vec::with_capacity(ROUNDS);
    let mut fdatasync = Vec::with_capacity(ROUNDS);
    for round in 0..WARM_UP + ROUNDS {
        buffer.bytes_mut().fill(round as u8);
        let start = Instant::now();
        through.write_all_at(buffer.bytes(), 0)?;
        let took_dsync = start.elapsed().as_micros();
        let start = Instant::now();
        plain.write_all_at(buffer.bytes(), DIRECT_IO_ALIGN as u64)?;
        plain.sync_data()?;
        let took_fdatasync = start.elapsed().as_micros();
        if round >= WARM_UP {
            dsync.push(took_dsync);
            fdatasync.push(took_fdatasync);
        }
    }
    Ok((median(&mut dsync), median(&mut fdatasync)))
}

fn median(samples: &mut [u128]) -> u64 {
    samples.sort_unstable();
    let middle = samples.get(samples.len() / 2).copied().unwrap_or_default();
    u64::try_from(middle).unwrap_or(u64::MAX)
}

/// The mode that the kernel states for the file's device, or for the disk a
/// partition is on.
fn write_cache_of(file: &File) -> Option<String> {
    let device = file.metadata().ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let base = format!("/sys/dev/block/{major}:{minor}");
    let paths = [
        format!("{base}/queue/write_cache"),
        format!("{base}/../queue/write_cache"),
    ];
    let mode = paths
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok())?;
    Some(mode.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sync_has_to_win_by_a_fifth() {
        assert_eq!(faster(400, 500), SyncMethod::Dsync);
        assert_eq!(faster(500, 500), SyncMethod::Dsync);
        assert_eq!(faster(532, 510), SyncMethod::Dsync);
        assert_eq!(faster(625, 500), SyncMethod::Dsync);
        assert_eq!(faster(626, 500), SyncMethod::Fdatasync);
        assert_eq!(faster(0, 0), SyncMethod::Dsync);
        assert_eq!(faster(u64::MAX, 1), SyncMethod::Fdatasync);
    }
}
