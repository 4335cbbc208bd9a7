//! Helper threads: whatever may block runs here, never on a shard.

use std::{io, thread};

/// Jobs that may wait for a helper.
const WAITING_JOBS: usize = 1024;

type Job = Box<dyn FnOnce() + Send>;

/// A handle to the helper threads of the process.
#[derive(Clone)]
pub(super) struct Helper {
    jobs: flume::Sender<Job>,
}

impl Helper {
    /// Starts `threads` helper threads; they end when every handle is gone.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(super) fn start(threads: usize) -> io::Result<Self> {
        let (jobs, work) = flume::bounded::<Job>(WAITING_JOBS);
        for number in 0..threads {
            let work = work.clone();
            thread::Builder::new()
                .name(format!("helper-{number}"))
                .spawn(move || {
                    while let Ok(job) = work.recv() {
                        job();
                    }
                })?;
        }
        Ok(Helper { jobs })
    }

    /// Hands a job over. False when the queue is full: try again later.
    pub(super) fn run(&self, job: impl FnOnce() + Send + 'static) -> bool {
        self.jobs.try_send(Box::new(job)).is_ok()
    }
}
