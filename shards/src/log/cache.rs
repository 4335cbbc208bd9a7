//! The tail cache: buffers that were just written, for delivery and replication.

use std::collections::VecDeque;
use std::rc::Rc;

use super::position::LogPosition;
use crate::io::BatchBuffer;

/// Submitted batches in log order, oldest dropped first.
///
/// 1. A batch with bytes of an item that is not wholly written, or at or above
///    the owner's floor, is never dropped: what is not here is on disk.
/// 2. A batch that is not durable is dropped only above twice the bound (a log
///    that is never synced must not grow without bound).
/// 3. Without either the bound holds after each [`TailCache::evict`].
pub(super) struct TailCache<B> {
    batches: VecDeque<CachedBatch<B>>,
    bytes: u64,
    bound_bytes: u64,
    floor: LogPosition,
}

struct CachedBatch<B> {
    start: LogPosition,
    end: LogPosition,
    /// Memory held, also what trimming gave up.
    allocated: u64,
    buffer: Rc<B>,
}

impl<B: BatchBuffer> TailCache<B> {
    pub(super) fn new(bound_bytes: u64) -> Self {
        TailCache {
            batches: VecDeque::new(),
            bytes: 0,
            bound_bytes,
            floor: LogPosition(u64::MAX),
        }
    }

    pub(super) fn set_floor(&mut self, floor: LogPosition) {
        self.floor = floor;
    }

    /// Memory held, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where the oldest batch begins.
    pub(super) fn start(&self) -> Option<LogPosition> {
        self.batches.front().map(|batch| batch.start)
    }

    /// Adds the batch that follows the newest one.
    pub(super) fn push(&mut self, start: LogPosition, allocated: u64, buffer: Rc<B>) {
        let end = LogPosition(start.0 + buffer.bytes().len() as u64);
        self.bytes += allocated;
        self.batches.push_back(CachedBatch {
            start,
            end,
            allocated,
            buffer,
        });
    }

    /// Drops what may go. Items below `on_disk_below` are wholly written.
    pub(super) fn evict(&mut self, on_disk_below: LogPosition, durable_next: LogPosition) {
        while self.bytes > self.bound_bytes {
            let Some(oldest) = self.batches.front() else {
                return;
            };
            let durable = oldest.end <= durable_next;
            let far_over = self.bytes > self.bound_bytes.saturating_mul(2);
            let free = oldest.end <= on_disk_below && oldest.end <= self.floor;
            if !free || !(durable || far_over) {
                return;
            }
            self.bytes -= oldest.allocated;
            self.batches.pop_front();
        }
    }

    /// The `len` bytes at `position`, if one cached batch holds them all.
    pub(super) fn find(&self, position: LogPosition, len: usize) -> Option<&[u8]> {
        let after = self
            .batches
            .partition_point(|batch| batch.start <= position);
        let batch = self.batches.get(after.checked_sub(1)?)?;
        let from = usize::try_from(position.0 - batch.start.0).ok()?;
        batch.buffer.bytes().get(from..from.checked_add(len)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::testing::VecBuffer;

    fn cache_of(batches: u64) -> TailCache<VecBuffer> {
        let mut cache = TailCache::new(200);
        for n in 0..batches {
            let mut buffer = VecBuffer::allocate(100);
            buffer.bytes_mut().fill(n as u8);
            cache.push(LogPosition(1000 + n * 100), 100, Rc::new(buffer));
        }
        cache
    }

    #[test]
    fn finds_ranges_inside_one_batch_only() {
        let cache = cache_of(3);
        assert_eq!(cache.find(LogPosition(1150), 3), Some(&[1u8, 1, 1][..]));
        assert_eq!(cache.find(LogPosition(1199), 2), None);
        assert_eq!(cache.find(LogPosition(999), 1), None);
        assert_eq!(cache.find(LogPosition(1300), 1), None);
    }

    #[test]
    fn drops_oldest_durable_ones_down_to_the_bound() {
        let mut cache = cache_of(4);
        cache.evict(LogPosition(1400), LogPosition(1400));
        assert_eq!(cache.bytes(), 200);
        assert_eq!(cache.find(LogPosition(1100), 1), None);
        assert!(cache.find(LogPosition(1200), 1).is_some());
    }

    #[test]
    fn keeps_what_is_not_durable_up_to_twice_the_bound() {
        let mut cache = cache_of(6);
        cache.evict(LogPosition(1600), LogPosition(1000));
        assert_eq!(cache.bytes(), 400);
        cache.evict(LogPosition(1600), LogPosition(1300));
        assert_eq!(cache.bytes(), 300);
    }

    #[test]
    fn keeps_what_is_not_written_or_above_the_floor() {
        let mut cache = cache_of(6);
        cache.evict(LogPosition(1100), LogPosition(1000));
        assert_eq!(cache.bytes(), 500);
        cache.set_floor(LogPosition(1150));
        cache.evict(LogPosition(1600), LogPosition(1600));
        assert_eq!(cache.bytes(), 500);
        cache.set_floor(LogPosition(1600));
        cache.evict(LogPosition(1600), LogPosition(1600));
        assert_eq!(cache.bytes(), 200);
    }
}
