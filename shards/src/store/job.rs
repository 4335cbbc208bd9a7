//! What the engine has done by helper threads.

use std::sync::Arc;

use super::{
    pack_name, publish, scrub, write_pack, CheckpointHead, PackJob, Packed, ScrubJob, Scrubbed,
};
use crate::{io::Disk, log::IoFailure};

/// Blocking work on the store's files.
#[derive(Debug)]
pub enum StoreJob {
    /// Publish a checkpoint; the log is durable up to its `durable_next`.
    Publish {
        head: CheckpointHead,
        body: Vec<Vec<u8>>,
    },
    /// Shared with the engine, which relocates by it afterwards.
    Pack(Arc<PackJob>),
    /// No published checkpoint names these any more.
    RemovePacks(Vec<u32>),
    /// Look whether records are still what was written.
    Scrub(Arc<ScrubJob>),
}

/// How a job went. Each job has exactly one answer.
#[derive(Debug)]
pub enum StoreDone {
    Published {
        serial: u64,
        /// See [`publish`].
        result: Result<bool, IoFailure>,
    },
    Packed {
        file: u32,
        result: Result<Packed, IoFailure>,
    },
    /// The packed files that are still there, if it failed.
    Removed(Result<(), (Vec<u32>, IoFailure)>),
    Scrubbed(Result<Scrubbed, IoFailure>),
}

impl StoreJob {
    /// Does it. Blocking. `rest` is called now and then with bytes done and to
    /// do, and may sleep.
    pub fn run(self, disk: &dyn Disk, rest: &mut dyn FnMut(u64, u64)) -> StoreDone {
        match self {
            StoreJob::Publish { head, body } => StoreDone::Published {
                serial: head.serial,
                result: publish(disk, &head, &body, rest).map_err(IoFailure::from),
            },
            StoreJob::Pack(job) => StoreDone::Packed {
                file: job.file,
                result: write_pack(disk, &job).map_err(IoFailure::from),
            },
            StoreJob::RemovePacks(files) => {
                StoreDone::Removed(remove(disk, &files).map_err(|failure| (files, failure)))
            }
            StoreJob::Scrub(job) => StoreDone::Scrubbed(scrub(disk, &job).map_err(IoFailure::from)),
        }
    }

    /// The answer to a job that could not even be begun.
    pub fn refused(&self, message: &str) -> StoreDone {
        let failure = IoFailure {
            message: message.to_owned(),
            out_of_space: false,
        };
        match self {
            StoreJob::Publish { head, .. } => StoreDone::Published {
                serial: head.serial,
                result: Err(failure),
            },
            StoreJob::Pack(job) => StoreDone::Packed {
                file: job.file,
                result: Err(failure),
            },
            StoreJob::RemovePacks(files) => StoreDone::Removed(Err((files.clone(), failure))),
            StoreJob::Scrub(_) => StoreDone::Scrubbed(Err(failure)),
        }
    }
}

fn remove(disk: &dyn Disk, files: &[u32]) -> Result<(), IoFailure> {
    let removed = files
        .iter()
        .try_for_each(|file| disk.remove(&pack_name(*file)));
    removed
        .and_then(|()| disk.sync_dir())
        .map_err(IoFailure::from)
}
