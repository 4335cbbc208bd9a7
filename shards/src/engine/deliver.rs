//! Dispatch: ready records to consumers with credit, one frame per consumer
//! and turn.

use wire::{
    codec,
    message::{Deliver, Delivery, DELIVERY_DURABLE, DELIVERY_REDELIVERED},
    record::Record,
};

use super::{
    core::{Engine, KEPT_ENTRIES},
    gates::Origin,
    partition::PartitionKey,
    reads,
    types::{ConnKey, Notice},
};
use crate::{
    io::BatchBuffer,
    state::{
        command::Command,
        queue::{ConsumerId, Dispatch},
    },
};

/// Bounds of one dispatch run of a partition; the rest follows next turn.
const RUN_RECORDS: usize = 2048;
const RUN_BYTES: usize = 1 << 20;
/// How long a partition rests after a failed read.
const READ_PAUSE_MS: u64 = 1000;
/// When a record that was damaged is looked at again.
const BAD_RECORD_PAUSE_MS: u64 = 60_000;
/// Damaged records that are told of one by one.
const MAX_BAD_RECORDS: usize = 10_000;

impl<B: BatchBuffer> Engine<B> {
    /// Dispatches every partition on the turn's list.
    pub(super) fn dispatch_dirty(&mut self) {
        let keys = std::mem::take(&mut self.dirty_partitions);
        for key in &keys {
            if let Some(slot) = self.partitions.get_mut(key) {
                slot.dirty = false;
            }
            self.dispatch(*key);
            self.propose_mark(*key);
            self.arm_timer(*key);
        }
        // Keep the list's memory; what was marked meanwhile waits for the next turn.
        let mut keys = keys;
        keys.clear();
        keys.shrink_to(KEPT_ENTRIES);
        keys.append(&mut self.dirty_partitions);
        self.dirty_partitions = keys;
    }

    fn dispatch(&mut self, key: PartitionKey) {
        let mut picks = std::mem::take(&mut self.picks);
        picks.clear();
        let more = self.pick(key, &mut picks);
        // Stable: each consumer keeps its order.
        picks.sort_by_key(|pick| pick.consumer);
        for run in picks.chunk_by(|a, b| a.consumer == b.consumer) {
            self.send_run(key, run);
        }
        self.picks = picks;
        if more {
            self.mark_dirty(key);
        }
    }

    /// Leases what may go out now. True when the run's bound ended it.
    fn pick(&mut self, key: PartitionKey, picks: &mut Vec<Dispatch>) -> bool {
        let (now, time) = (self.server_ms, self.time_at(key));
        let mut bytes = 0;
        loop {
            if picks.len() >= RUN_RECORDS || bytes >= RUN_BYTES {
                return true;
            }
            let Some(slot) = self.partitions.get(&key) else {
                return false;
            };
            // A server that goes down hands nothing out: it would never come to rest.
            if self.draining || slot.dropping || slot.read_pause_until_ms > now {
                return false;
            }
            if !self.has_begun(slot) {
                return false;
            }
            if !self.next_is_at_hand(key, time) {
                self.reads_wanted_by(key);
                return false;
            }
            let connections = &self.connections;
            let mut blocked = |consumer: ConsumerId| {
                connections
                    .get(&ConnKey(consumer.connection))
                    .is_none_or(|c| c.closing || c.output.len() + c.planned > c.output_high)
            };
            let Some(slot) = self.partitions.get_mut(&key) else {
                return false;
            };
            let Some(pick) = slot.machine.next_delivery(time, &mut blocked) else {
                return false;
            };
            if self.is_unreadable(pick.location, pick.len) {
                self.set_aside(key, &pick);
                continue;
            }
            if !self.at_hand(pick.location, pick.len) {
                if let Some(slot) = self.partitions.get_mut(&key) {
                    slot.machine.undo_dispatch(pick.offset, pick.attempt);
                }
                self.reads_wanted_by(key);
                return false;
            }
            if !self.is_sound(pick.location, pick.len) {
                self.set_aside(key, &pick);
                continue;
            }
            bytes += pick.len as usize;
            if let Some(slot) = self.partitions.get_mut(&key) {
                slot.read_pause_until_ms = 0;
            }
            let conn = ConnKey(pick.consumer.connection);
            if let Some(connection) = self.connections.get_mut(&conn) {
                connection.planned += pick.len as usize;
            }
            picks.push(pick);
        }
    }

    /// A record whose bytes are damaged is told of and held back; those around
    /// it go on. It is looked at again later, in case the read was at fault.
    fn set_aside(&mut self, key: PartitionKey, pick: &Dispatch) {
        let until_ms = self.time_at(key) + BAD_RECORD_PAUSE_MS;
        if let Some(slot) = self.partitions.get_mut(&key) {
            slot.machine.set_aside(pick.offset, pick.attempt, until_ms);
        }
        self.tell_bad_record(key, pick.offset);
    }

    /// Says once that a record is damaged.
    pub(super) fn tell_bad_record(&mut self, key: PartitionKey, offset: u64) {
        if self.bad_records.len() < MAX_BAD_RECORDS && self.bad_records.insert((key, offset)) {
            self.notices.push(Notice::BadRecord {
                queue_id: key.queue_id,
                partition: key.partition,
                offset,
            });
        }
    }

    /// A record that must be read back first keeps its turn; only after a read
    /// failed may others overtake it, so that it holds up none for long.
    fn next_is_at_hand(&mut self, key: PartitionKey, time: u64) -> bool {
        let Some(slot) = self.partitions.get_mut(&key) else {
            return true;
        };
        if slot.read_pause_until_ms > 0 {
            return true;
        }
        match slot.machine.next_ready(time) {
            Some((location, len)) => self.at_hand(location, len),
            None => true,
        }
    }

    /// Sends one consumer's records as one frame.
    fn send_run(&mut self, key: PartitionKey, run: &[Dispatch]) {
        let Some(first) = run.first() else { return };
        let conn = ConnKey(first.consumer.connection);
        let Some(slot) = self.partitions.get(&key) else {
            return;
        };
        let Some(connection) = self.connections.get_mut(&conn) else {
            return;
        };
        connection.planned = 0;
        let durable_next = slot.durable_next;
        let deliveries = run
            .iter()
            .map(|pick| delivery(pick, durable_next))
            .collect();
        let body = Deliver {
            subscription: first.consumer.subscription,
            queue_id: key.queue_id,
            partition: key.partition,
            generation: slot.generation,
            deliveries,
            records: Vec::new(),
            extensions: Vec::new(),
        };
        let (log, reads) = (&self.log, &self.reads);
        let mut complete = true;
        let sent = codec::encode_deliver(&mut connection.output, &body, |out| {
            for pick in run {
                complete &= append_record(log, reads, pick, out);
            }
        });
        if sent.is_err() || !complete {
            // Cannot happen: runs are bounded and at hand. Close rather than mislead.
            self.notices.push(Notice::Problem(format!(
                "a delivery of queue {} could not be encoded; the connection is closed",
                key.queue_id
            )));
            self.close(conn);
        }
        self.list_connection(conn);
    }

    /// Keeps the dispatch mark ahead of deliveries.
    fn propose_mark(&mut self, key: PartitionKey) {
        let Some(slot) = self.partitions.get_mut(&key) else {
            return;
        };
        if slot.dropping {
            return;
        }
        if let Some(mark) = slot.machine.wants_mark() {
            let (queue_id, partition) = (key.queue_id, key.partition);
            let command = Command::DispatchMark {
                queue_id,
                partition,
                mark,
            };
            self.propose_or_defer(key, &command, Origin::Nobody);
        }
    }

    /// Remembers to dispatch again when a read arrives.
    fn reads_wanted_by(&mut self, key: PartitionKey) {
        if !self.timers.reading.contains(&key) {
            self.timers.reading.push(key);
        }
    }

    pub(super) fn after_read(&mut self) {
        for key in std::mem::take(&mut self.timers.reading) {
            self.mark_dirty(key);
        }
    }

    /// A read failed: those who waited for one rest a while.
    pub(super) fn pause_reads(&mut self) {
        let until = self.server_ms + READ_PAUSE_MS;
        for key in std::mem::take(&mut self.timers.reading) {
            if let Some(slot) = self.partitions.get_mut(&key) {
                slot.read_pause_until_ms = until;
                self.timers.arm(until, key);
            }
        }
    }
}

/// `durable_next`: of the partition. Not judged by the record's place: its
/// last bytes may lie in another batch.
fn delivery(pick: &Dispatch, durable_next: u64) -> Delivery {
    let mut flags = 0;
    if pick.redelivered {
        flags |= DELIVERY_REDELIVERED;
    }
    if pick.offset < durable_next {
        flags |= DELIVERY_DURABLE;
    }
    Delivery {
        offset: pick.offset,
        attempt: pick.attempt,
        flags,
        len: pick.len,
    }
}

fn append_record<B: BatchBuffer>(
    log: &crate::log::LogWriter<B>,
    reads: &reads::ReadCache,
    pick: &Dispatch,
    out: &mut Vec<u8>,
) -> bool {
    let start = out.len();
    let found = reads::visit(log, reads, pick.location, pick.len, &mut |piece| {
        out.extend_from_slice(piece);
    });
    debug_assert!(!found || Record::parse(&out[start..], 0).is_ok());
    found && out.len() - start == pick.len as usize
}
