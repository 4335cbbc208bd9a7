//! What queue info says.

use wire::message::QueueInfoReply;

use super::{core::Engine, meta::says_of, partition::PartitionKey};
use crate::io::BatchBuffer;

impl<B: BatchBuffer> Engine<B> {
    /// One partition's state at this moment.
    pub(super) fn info(&self, key: PartitionKey) -> Option<QueueInfoReply> {
        let slot = self.partitions.get(&key)?;
        let queue = self.directory.by_id(key.queue_id)?;
        let counts = slot.machine.counts(self.time_in(slot.group));
        let written_next = slot.machine.next_offset();
        let mut extensions = says_of(queue);
        extensions.extend(self.says_in_force(key));
        let group = self.groups.get(&slot.group.0);
        let present = group.map_or(0, |group| self.voters_present(group));
        let byte = |count: usize| u8::try_from(count).unwrap_or(u8::MAX);
        Some(QueueInfoReply {
            queue: self.describe(queue),
            partition: key.partition,
            generation: slot.generation,
            written_next,
            durable_next: slot.durable_next,
            gated: counts.gated,
            ready: counts.ready,
            delayed: counts.delayed,
            leased: counts.leased,
            published: counts.published,
            acknowledged: counts.acknowledged,
            dropped: counts.dropped,
            expired: 0,
            dead_lettered: 0,
            purged: counts.purged,
            redelivered: counts.redelivered,
            unsynced_records: written_next.saturating_sub(slot.durable_next),
            unsynced_bytes: slot.unsynced_bytes,
            oldest_ready_age_ms: counts.oldest_ready_age_ms,
            consumers: counts.consumers,
            latched: u8::from(self.latched),
            copies_present: byte(present),
            copies_needed: byte(self.copies_of(key, slot.mode().confirm_gate())),
            losses: slot.losses.clone(),
            extensions,
        })
    }
}
