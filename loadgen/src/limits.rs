//! What this disk and this loopback can do at best, by plain system calls and
//! threads, so that every result can be shown as a ratio.
//!
//! S = 4 KiB overwrite made durable; D = the same, only written; R = 1 KiB
//! there and back. Beside them, what the machine takes away while all its cores
//! are busy, as a hypervisor does: no tail can be shorter. Leaves nothing behind:
//! the probe file is removed.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
};

use serde::Serialize;

use crate::{
    error::LoadError,
    latency::{Latency, Summary},
    sys,
};

/// Block written by S and D, in bytes.
pub const BLOCK_BYTES: usize = 4096;
/// Payload of R, in bytes.
pub const ROUND_TRIP_BYTES: usize = 1024;
/// Size of the zero-filled probe file.
const FILE_BYTES: u64 = 16 * 1024 * 1024;
/// How long each core spins for the stalls.
const SPIN_NS: u64 = 2_000_000_000;
/// Moments that are looked at are so far apart.
const STEP_NS: u64 = 10_000;
/// Rounds that are not counted.
const WARMUP_ROUNDS: u32 = 100;

/// One measurement of the machine's limits.
#[derive(Debug, Clone, Serialize)]
pub struct Limits {
    pub rounds: u32,
    /// S by a write through an `O_DSYNC` descriptor.
    pub dsync: Summary,
    /// S by a write and `fdatasync`.
    pub fdatasync: Summary,
    /// Which of the two has the lower median.
    pub sync_method: &'static str,
    /// D.
    pub direct: Summary,
    /// R.
    pub round_trip: Summary,
    /// How long a thread that never sleeps, one on each core, is kept from
    /// running, seen from a random moment: above 0 while it is.
    pub stall: Summary,
}

impl Limits {
    /// S: the faster of the two ways to make a block durable.
    pub fn durable(&self) -> &Summary {
        if self.sync_method == "O_DSYNC" {
            &self.dsync
        } else {
            &self.fdatasync
        }
    }

    /// Measures in `dir`. With `core`, the near end of R runs on it and the far
    /// end on the others, as load generator and server do.
    ///
    /// # Errors
    /// The directory cannot be written, or its file system has no `O_DIRECT`.
    pub fn measure(dir: &Path, rounds: u32, core: Option<usize>) -> Result<Limits, LoadError> {
        let file = ProbeFile::create(dir)?;
        let plain = file.open(0)?;
        let direct = blocks(rounds, |block, at| plain.write_all_at(block, at))?;
        let fdatasync = blocks(rounds, |block, at| {
            plain.write_all_at(block, at)?;
            plain.sync_data()
        })?;
        let through = file.open(libc::O_DSYNC)?;
        let dsync = blocks(rounds, |block, at| through.write_all_at(block, at))?;
        Ok(Limits {
            rounds,
            sync_method: if dsync.p50_ns <= fdatasync.p50_ns {
                "O_DSYNC"
            } else {
                "write + fdatasync"
            },
            dsync,
            fdatasync,
            direct,
            round_trip: round_trips(rounds, core)?,
            stall: stalls()?,
        })
    }
}

/// The probe file, removed when dropped.
struct ProbeFile(PathBuf);

impl ProbeFile {
    /// Zero-filled and synced, so that the measured writes overwrite only.
    fn create(dir: &Path) -> Result<ProbeFile, LoadError> {
        let name = format!(".loadgen-limits-{}-{}", std::process::id(), sys::now_ns());
        let file = ProbeFile(dir.join(name));
        let what = LoadError::io("cannot prepare the probe file in the limits directory");
        let fill = || {
            let mut handle = File::create_new(&file.0)?;
            let zeros = vec![0; 1 << 20];
            for _ in 0..FILE_BYTES >> 20 {
                handle.write_all(&zeros)?;
            }
            handle.sync_all()
        };
        fill().map_err(what)?;
        Ok(file)
    }

    fn open(&self, flags: i32) -> Result<File, LoadError> {
        OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_DIRECT | flags)
            .open(&self.0)
            .map_err(LoadError::io("cannot open the probe file with O_DIRECT"))
    }
}

impl Drop for ProbeFile {
    fn drop(&mut self) {
        // Nothing to do about a failure: the file is small and hidden.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Times `write` over consecutive blocks of the file.
fn blocks(
    rounds: u32,
    mut write: impl FnMut(&[u8], u64) -> std::io::Result<()>,
) -> Result<Summary, LoadError> {
    let mut memory = vec![0xa5_u8; BLOCK_BYTES * 2];
    let skip = memory.as_ptr().align_offset(BLOCK_BYTES);
    let mut latency = Latency::default();
    for round in 0..rounds + WARMUP_ROUNDS {
        let Some(block) = memory.get_mut(skip..skip + BLOCK_BYTES) else {
            return Err(LoadError::Impossible("no aligned block".into()));
        };
        for (at, byte) in round.to_le_bytes().into_iter().enumerate() {
            if let Some(place) = block.get_mut(at) {
                *place = byte;
            }
        }
        let at = u64::from(round) * BLOCK_BYTES as u64 % FILE_BYTES;
        let begin = sys::now_ns();
        write(block, at).map_err(LoadError::io("limits: direct write"))?;
        if round >= WARMUP_ROUNDS {
            latency.record(sys::now_ns() - begin, 1);
        }
    }
    Ok(latency.summary())
}

/// Spins on each core and looks at the gaps between two looks at the clock.
fn stalls() -> Result<Summary, LoadError> {
    let cores = sys::affinity().map_err(LoadError::io("limits: affinity"))?;
    let spin = |core: usize| {
        thread::spawn(move || {
            // Spun on whatever core, should this be refused.
            let _ = sys::set_affinity(&[core]);
            spin()
        })
    };
    let threads: Vec<_> = cores.into_iter().map(spin).collect();
    let mut all = Latency::default();
    for thread in threads {
        let Ok(seen) = thread.join() else {
            return Err(LoadError::Impossible("a probe thread panicked".into()));
        };
        all.merge(&seen);
    }
    Ok(all.summary())
}

/// For each [`STEP_NS`] of [`SPIN_NS`]: how long from there to the next look.
fn spin() -> Latency {
    let mut latency = Latency::default();
    let begin = sys::now_ns();
    let (mut last, mut step) = (begin, begin);
    while last < begin + SPIN_NS {
        let now = sys::now_ns();
        while step <= now {
            // Between two looks that follow each other nothing was taken away.
            let wait = now - step;
            latency.record(if now - last < STEP_NS { 0 } else { wait }, 1);
            step += STEP_NS;
        }
        last = now;
    }
    latency
}

/// Times blocking round trips between two threads over loopback TCP.
fn round_trips(rounds: u32, core: Option<usize>) -> Result<Summary, LoadError> {
    let io = || LoadError::io("limits: loopback");
    let listener = TcpListener::bind("127.0.0.1:0").map_err(io())?;
    let mut near = TcpStream::connect(listener.local_addr().map_err(io())?).map_err(io())?;
    let (mut far, _) = listener.accept().map_err(io())?;
    near.set_nodelay(true).map_err(io())?;
    far.set_nodelay(true).map_err(io())?;
    let all = sys::affinity().map_err(io())?;
    let echo = thread::spawn({
        let others: Vec<_> = all.iter().copied().filter(|at| Some(*at) != core).collect();
        move || {
            if core.is_some() && !others.is_empty() {
                // Measured on whatever core, should this be refused.
                let _ = sys::set_affinity(&others);
            }
            let mut bytes = [0; ROUND_TRIP_BYTES];
            while far.read_exact(&mut bytes).is_ok() && far.write_all(&bytes).is_ok() {}
        }
    });
    if let Some(core) = core {
        sys::set_affinity(&[core]).map_err(io())?;
    }
    let mut latency = Latency::default();
    let mut bytes = [0x5a; ROUND_TRIP_BYTES];
    let mut measure = || {
        for round in 0..rounds + WARMUP_ROUNDS {
            let begin = sys::now_ns();
            near.write_all(&bytes)?;
            near.read_exact(&mut bytes)?;
            if round >= WARMUP_ROUNDS {
                latency.record(sys::now_ns() - begin, 1);
            }
        }
        Ok(())
    };
    let measured = measure();
    drop(near);
    let _ = echo.join();
    sys::set_affinity(&all).map_err(io())?;
    measured.map_err(io())?;
    Ok(latency.summary())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_measured_and_nothing_is_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let core = sys::affinity().unwrap().first().copied();
        let limits = Limits::measure(dir.path(), 20, core).unwrap();
        for summary in [
            &limits.dsync,
            &limits.fdatasync,
            &limits.direct,
            &limits.round_trip,
        ] {
            assert_eq!(summary.count, 20);
            assert!(summary.p50_ns > 0 && summary.p99_ns >= summary.p50_ns);
        }
        assert!(limits.durable().p50_ns <= limits.dsync.p50_ns.min(limits.fdatasync.p50_ns));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_a_clear_error() {
        let error = Limits::measure(Path::new("/proc/none"), 1, None).unwrap_err();
        assert!(error.to_string().contains("limits directory"), "{error}");
    }
}
