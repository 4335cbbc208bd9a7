//! F66: what an idle queue costs in memory, counted allocation by allocation.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicU64, Ordering},
};

use tidegate_sim::engine_sim::directed::bytes_of_idle_queues;

/// Memory of a queue with one partition that nobody uses.
const BYTES_PER_QUEUE: u64 = 1024;
/// Enough to tell what one more costs; hash tables are half empty at both.
const FEW: usize = 500;
const MANY: usize = 2_000;

static HELD: AtomicU64 = AtomicU64::new(0);

struct Counting;

/// What an allocator takes for it: a word beside it, in units of 16 bytes, two
/// at least.
fn taken(bytes: usize) -> u64 {
    ((bytes + 8).next_multiple_of(16) as u64).max(32)
}

// SAFETY: every call is handed to the system's allocator as it came, and what
// that answers is answered; the counter beside it does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(taken(layout.size()), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(taken(layout.size()), Ordering::Relaxed);
        // SAFETY: as above; `at` came from `System`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn held() -> u64 {
    HELD.load(Ordering::Relaxed)
}

#[test]
fn f66_an_idle_queue_costs_what_is_stated() {
    for restarted in [false, true] {
        let [few, many] =
            [FEW, MANY].map(|count| bytes_of_idle_queues(count, restarted, &held).expect("queues"));
        let each = (many - few) / (MANY - FEW) as u64;
        println!("{each} bytes a queue, restarted: {restarted}");
        assert!(each <= BYTES_PER_QUEUE, "{each}, restarted: {restarted}");
    }
}
