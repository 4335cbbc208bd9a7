//! Store jobs on a real directory, at a pace that leaves the device to commits.

use std::{
    path::Path,
    sync::{
        atomic::{AtomicBool, Ordering},
        Arc,
    },
    time::{Duration, Instant},
};

use super::fs_disk::{FsDisk, ZeroPace};
use crate::store::{StoreDone, StoreJob};

/// Bytes a second that a job writes while nobody is in a hurry.
const BYTES_PER_S: f64 = 96e6;

/// Does the job, on a helper thread. `hurry`: batches wait for a segment, so
/// that it goes at full speed.
pub(super) fn run(directory: &Path, job: StoreJob, hurry: Arc<AtomicBool>) -> StoreDone {
    let disk = match FsDisk::open(directory) {
        Ok(disk) => disk,
        Err(error) => return job.refused(&error.to_string()),
    };
    let over = match &job {
        StoreJob::Pack(job) => {
            time_for(job.records.iter().map(|record| u64::from(record.len)).sum())
        }
        // A scrub writes nothing, and its jobs are small.
        StoreJob::Publish { .. } | StoreJob::RemovePacks(_) | StoreJob::Scrub(_) => Duration::ZERO,
    };
    let disk = disk.paced(ZeroPace {
        over,
        hurry: hurry.clone(),
    });
    let start = Instant::now();
    job.run(&disk, &mut |done, _| {
        if !hurry.load(Ordering::Relaxed) {
            std::thread::sleep(time_for(done).saturating_sub(start.elapsed()));
        }
    })
}

fn time_for(bytes: u64) -> Duration {
    Duration::from_secs_f64(bytes as f64 / BYTES_PER_S)
}
