//! What the threads of one run share: when it starts and ends, and counters.
//!
//! Never holds anything that a hot path must lock.

use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

/// Counters that only grow. Each thread adds once per turn.
#[derive(Debug, Default)]
pub struct Counters {
    pub sent: AtomicU64,
    pub confirmed: AtomicU64,
    /// Answered by an error with outcome *failed*.
    pub failed: AtomicU64,
    /// Answered by an error with outcome *unknown*.
    pub unknown: AtomicU64,
    /// Records of this run that arrived, distinct per consumer.
    pub received: AtomicU64,
    /// Deliveries named in a settle frame.
    pub settled: AtomicU64,
}

/// One moment of the counters.
#[derive(Debug, Clone, Copy, Default)]
pub struct Snapshot {
    pub sent: u64,
    pub confirmed: u64,
    pub received: u64,
    pub settled: u64,
}

impl Counters {
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            sent: self.sent.load(Relaxed),
            confirmed: self.confirmed.load(Relaxed),
            received: self.received.load(Relaxed),
            settled: self.settled.load(Relaxed),
        }
    }
}

/// One run. Times are `CLOCK_MONOTONIC` nanoseconds.
#[derive(Debug)]
pub struct Session {
    /// Drawn per run: told apart from records that lay in the queue before.
    pub run: u64,
    pub counters: Counters,
    start_ns: AtomicU64,
    measure_from_ns: AtomicU64,
    end_ns: AtomicU64,
    give_up_ns: AtomicU64,
    stop_consumers: AtomicBool,
    abort: AtomicBool,
    /// Faults told so far, and the time from which records count as sent after
    /// the last one.
    faults: AtomicU64,
    after_fault_ns: AtomicU64,
}

impl Session {
    pub fn new(run: u64) -> Self {
        Session {
            run,
            counters: Counters::default(),
            start_ns: AtomicU64::new(u64::MAX),
            measure_from_ns: AtomicU64::new(u64::MAX),
            end_ns: AtomicU64::new(u64::MAX),
            give_up_ns: AtomicU64::new(u64::MAX),
            stop_consumers: AtomicBool::new(false),
            abort: AtomicBool::new(false),
            faults: AtomicU64::new(0),
            after_fault_ns: AtomicU64::new(u64::MAX),
        }
    }

    /// A fault is over that the run is to recover from: records sent from
    /// `after_ns` on are its proof. Gives its number, from 1.
    pub fn tell_fault(&self, after_ns: u64) -> u64 {
        // In this order a reader between the two finds nothing.
        self.after_fault_ns.store(u64::MAX, SeqCst);
        let number = self.faults.fetch_add(1, SeqCst) + 1;
        self.after_fault_ns.store(after_ns, SeqCst);
        number
    }

    /// The fault that a record sent at `sent_ns` comes after, if it is the last one.
    pub fn fault_before(&self, sent_ns: u64) -> Option<u64> {
        if sent_ns < self.after_fault_ns.load(SeqCst) {
            return None;
        }
        Some(self.faults.load(SeqCst)).filter(|fault| *fault > 0)
    }

    /// Sets the times, before producers start.
    pub fn schedule(&self, start_ns: u64, warmup_ns: u64, duration_ns: u64, drain_ns: u64) {
        let end = start_ns + warmup_ns + duration_ns;
        self.give_up_ns.store(end + drain_ns, Relaxed);
        self.end_ns.store(end, Relaxed);
        self.measure_from_ns.store(start_ns + warmup_ns, Relaxed);
        self.start_ns.store(start_ns, Relaxed);
    }

    pub fn start_ns(&self) -> u64 {
        self.start_ns.load(Relaxed)
    }

    /// Records due before this are warm-up: checked, not measured.
    pub fn measure_from_ns(&self) -> u64 {
        self.measure_from_ns.load(Relaxed)
    }

    /// Nothing is due at or after this.
    pub fn end_ns(&self) -> u64 {
        self.end_ns.load(Relaxed)
    }

    /// What is unanswered by now is reported as missing.
    pub fn give_up_ns(&self) -> u64 {
        self.give_up_ns.load(Relaxed)
    }

    /// Tells the consumers that nothing more is expected.
    pub fn stop_consumers(&self) {
        self.stop_consumers.store(true, Relaxed);
    }

    pub fn consumers_stopped(&self) -> bool {
        self.stop_consumers.load(Relaxed)
    }

    /// A thread failed: the run ends early.
    pub fn abort(&self) {
        self.abort.store(true, Relaxed);
    }

    pub fn aborted(&self) -> bool {
        self.abort.load(Relaxed)
    }
}
