//! Room on the disk and in memory: what is refused when there is little, and what
//! is said to those who wait when there is none.
//!
//! 1. Once the index of the shard's partitions, the one thing in its memory that
//!    grows with what is unsettled, has reached its mark, publishes and
//!    declarations are refused as overloaded, until an eighth of it is free again.
//!    All else goes on. So it is too when a start brings back more than the mark.
//! 2. Once no further segment can be made for want of space, or the disk is
//!    below its low-water mark, publishes and declarations of new queues are
//!    refused. The segments that are ready then, and the one that the log holds
//!    back for this, are the reserve: deliveries, settles, lease ends, purges and
//!    deletes go on in them, and what they free is recycled.
//! 3. When the log stands still because no further segment can be made, for
//!    whatever reason, nothing waits in silence: after [`STALL_MS`] whoever asked
//!    is told. What was asked stays in line and takes effect once there is room,
//!    so the outcome is "unknown". Lease ends and settles that nobody waits for
//!    stay in line too; each record has at most one of them there.
//! 4. Each change is said once.

use wire::error::ErrorCode;

use super::{core::Engine, publish::Refusal, types::Notice};
use crate::{
    io::BatchBuffer,
    log::{IoFailure, LogPosition},
};

/// How long a log stands still before whoever waits for it is told so, in ms.
const STALL_MS: u64 = 10_000;

/// See the module head.
#[derive(Default)]
pub(super) struct Room {
    /// The next segment cannot be made for want of space.
    pub full: bool,
    /// The disk is below its low-water mark.
    low: bool,
    /// Memory that the partitions take, see `PartitionSlot::account`.
    pub index_bytes: u64,
    /// The index reached its mark.
    index_full: bool,
    /// Segments cannot be made for another reason, and that was said.
    failing: bool,
    /// The log has not got beyond this place since then.
    stalled: Option<(LogPosition, u64)>,
    /// That it stands still was said.
    told: bool,
}

impl Room {
    /// For partitions that take so much memory.
    pub(super) fn new(index_bytes: u64) -> Self {
        Room {
            index_bytes,
            ..Room::default()
        }
    }
}

impl<B: BatchBuffer> Engine<B> {
    pub(super) fn on_segment(&mut self, sequence: u64, result: Result<(), IoFailure>) {
        let failure = result.as_ref().err();
        let full = failure.is_some_and(|failure| failure.out_of_space);
        if full != self.room.full {
            self.room.full = full;
            self.notices.push(Notice::DiskFull(full));
        }
        let failing = failure.filter(|failure| !failure.out_of_space);
        if let Some(failure) = failing.filter(|_| !self.room.failing) {
            self.notices.push(Notice::Problem(format!(
                "segment {sequence} could not be prepared: {}; it is tried again, and publishes wait meanwhile",
                failure.message
            )));
        }
        self.room.failing = failing.is_some();
        self.log.segment_ready(sequence, result);
    }

    /// The disk is full, or below its low-water mark.
    pub(super) fn is_short(&self) -> bool {
        self.room.full || self.room.low
    }

    /// The disk went below its low-water mark, or above it again.
    pub(super) fn on_disk_low(&mut self, low: bool) {
        if low != self.room.low {
            self.room.low = low;
            self.notices.push(Notice::DiskLow(low));
        }
    }

    /// Looks whether the index reached its mark, or is well below again.
    pub(super) fn watch_index(&mut self) {
        let (bytes, mark) = (self.room.index_bytes, self.config.index_memory_bytes);
        let full = match self.room.index_full {
            true => bytes > mark - mark / 8,
            false => bytes >= mark,
        };
        if full != self.room.index_full {
            self.room.index_full = full;
            self.notices.push(Notice::IndexFull { full, mark });
        }
    }

    /// Why there is no room for a publish.
    pub(super) fn refuses_for_room(&self) -> Result<(), Refusal> {
        if self.room.index_full {
            let mark = self.config.index_memory_bytes >> 20;
            let message = format!("knowing what is unsettled takes all of this shard's index_memory ({mark} MiB); consume, purge or delete, or raise it, then retry");
            return Err((ErrorCode::Overloaded, message));
        }
        let message = if self.room.full {
            "the disk has no room for a new log segment; free space on its file system, or consume, purge or delete, then retry"
        } else if self.room.low {
            "the disk is below its low-water mark (disk_low_water); free space on its file system, or consume, purge or delete, then retry"
        } else {
            return Ok(());
        };
        Err((ErrorCode::DiskFull, message.to_owned()))
    }

    /// Tells those who wait for room that they do.
    pub(super) fn tell_stalled(&mut self) {
        let waits = self.log.backlog_bytes() > 0 || !self.deferred.is_empty();
        let Some(failure) = self.log.segment_failure().filter(|_| waits) else {
            self.room.stalled = None;
            self.room.told = false;
            return;
        };
        let written = self.frontiers.written_next;
        let since = match self.room.stalled {
            Some((place, since_ms)) if place == written => since_ms,
            _ => self.server_ms,
        };
        self.room.stalled = Some((written, since));
        if self.server_ms < since + STALL_MS {
            return;
        }
        let cause = failure.message.clone();
        let message = match failure.out_of_space {
            true => "the disk is full and the log's reserve is used up; it takes effect once there is room: free space on its file system".to_owned(),
            false => format!("the log has no room and no segment can be made for it ({cause}); it takes effect once one can"),
        };
        self.tell_waiting_for_room(&message);
        if !std::mem::replace(&mut self.room.told, true) {
            let segment_bytes = self.log.geometry().segment_bytes();
            self.notices.push(Notice::NoRoom {
                cause,
                segment_bytes,
            });
        }
    }

    /// When that is due, in server time.
    pub(super) fn stall_due_ms(&self) -> Option<u64> {
        let (_, since_ms) = self.room.stalled?;
        let due_ms = since_ms + STALL_MS;
        (due_ms > self.server_ms).then_some(due_ms)
    }
}
