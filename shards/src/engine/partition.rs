//! A partition as the engine holds it: the state machine and its frontiers.

use wire::{
    message::{LossReport, RefusedSettle},
    vocabulary::{Boundary, Mode},
};

use super::{
    changing::{Changing, Stretches},
    deadlines::Asked,
};
use crate::{
    group::GroupId,
    state::{command::PartitionSpec, queue::Partition},
    store::{PackRecord, RecordSource},
};

/// What a partition without records takes in memory, about, as measured with
/// 100 000 of them: in its shard, in the directory and in group 0's state.
const PARTITION_BYTES: u64 = 1_000;

/// Queue id and partition number: unique for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct PartitionKey {
    pub queue_id: u64,
    pub partition: u16,
}

impl PartitionKey {
    /// Whose the record is.
    pub(super) fn of(record: &PackRecord) -> Self {
        PartitionKey {
            queue_id: record.queue_id,
            partition: record.partition,
        }
    }
}

/// A settle frame whose items were gathered into the turn's command.
#[derive(Debug, Clone)]
pub(super) struct SettleReply {
    pub asked: Asked,
    pub accepted: u32,
    /// Answered in the same frame, when the gate of the accepted ones opens.
    pub refused: Vec<RefusedSettle>,
}

pub(super) struct PartitionSlot {
    pub key: PartitionKey,
    pub group: GroupId,
    pub machine: Partition,
    /// Generation of the history the offsets belong to.
    pub generation: u32,
    pub losses: Vec<LossReport>,
    /// The entry that began the partition, or its generation, is durable on a
    /// majority. Before that nothing of the generation may leave: a power cut would
    /// take it back, and what was confirmed in it would be lost unreported.
    pub begun: bool,
    /// Replay only: entries are missing, and offsets from here on differ from
    /// those that settles of this generation name.
    pub gap_at: Option<u64>,
    /// Boot only: entries of the group up to this index are in the state that
    /// the checkpoint restored.
    pub covered: u64,
    /// No record below stands in the log's ring, unless packing it failed.
    pub packed_below: u64,
    /// Exclusive end of what is durable; `machine.next_offset()` is the
    /// written end, since nothing is applied before it is written.
    pub durable_next: u64,
    pub unsynced_bytes: u64,
    /// What the partition takes in memory, as last accounted.
    pub accounted_bytes: u64,
    /// Acknowledges gathered for one command, encoded, and who asked for a confirm.
    pub acknowledges: Vec<u8>,
    pub settle_replies: Vec<SettleReply>,
    /// On the list of partitions with gathered acknowledges.
    pub gathered: bool,
    /// On the turn's dispatch list.
    pub dirty: bool,
    /// A deletion was proposed: nothing new is admitted.
    pub dropping: bool,
    /// The timer that is armed for it; `u64::MAX` = none.
    pub armed_ms: u64,
    /// After a read error: no dispatch before this time. 0 once a delivery
    /// went out again.
    pub read_pause_until_ms: u64,
    /// `None`: no change of its setting was under way in this leadership.
    pub changing: Option<Box<Changing>>,
}

impl PartitionSlot {
    pub(super) fn new(spec: PartitionSpec, group: GroupId, generation: u32) -> Self {
        PartitionSlot {
            key: PartitionKey {
                queue_id: spec.queue_id,
                partition: spec.partition,
            },
            group,
            machine: Partition::new(spec),
            generation,
            losses: Vec::new(),
            begun: true,
            gap_at: None,
            covered: 0,
            packed_below: 0,
            durable_next: 0,
            unsynced_bytes: 0,
            accounted_bytes: 0,
            acknowledges: Vec::new(),
            settle_replies: Vec::new(),
            gathered: false,
            dirty: false,
            dropping: false,
            armed_ms: u64::MAX,
            read_pause_until_ms: 0,
            changing: None,
        }
    }

    /// Of the setting in force.
    pub(super) fn mode(&self) -> Mode {
        self.machine.spec().mode
    }

    /// The revision of the setting in force; 0 = as declared.
    pub(super) fn revision(&self) -> u32 {
        self.machine.change().map_or(0, |change| change.revision)
    }

    /// What a command that is proposed now may have to reach: by the setting in force, or
    /// by one that is on its way into the log.
    pub(super) fn demand(&self) -> Boundary {
        let coming = self.changing.as_ref().and_then(|it| it.proposed);
        let coming = coming.map(|(_, mode)| mode.confirm_gate());
        let now = self.mode().confirm_gate();
        coming.map_or(now, |coming| coming.max(now))
    }

    /// Everything below `next` passed its delivery gate, but for what waits under an
    /// earlier setting.
    pub(super) fn open_delivery(&mut self, next: u64) {
        let next = match &mut self.changing {
            Some(changing) => changing.stretches.pass(next),
            None => next,
        };
        self.machine.open_delivery(next);
    }

    /// Everything there is may be delivered, whatever gates still wait.
    pub(super) fn open_all(&mut self) {
        if let Some(changing) = &mut self.changing {
            changing.stretches = Stretches::default();
        }
        self.machine.open_delivery(self.machine.next_offset());
    }

    /// Brings the shard's sum up to date with what the partition takes now.
    pub(super) fn account(&mut self, sum: &mut u64) {
        let now = PARTITION_BYTES + self.machine.index_bytes();
        *sum = (*sum + now).saturating_sub(self.accounted_bytes);
        self.accounted_bytes = now;
    }

    /// One of its records, as jobs of the store name it.
    pub(super) fn pack_record(&self, offset: u64, len: u32, source: RecordSource) -> PackRecord {
        PackRecord {
            queue_id: self.key.queue_id,
            offset,
            group: self.group.0,
            generation: self.generation,
            partition: self.key.partition,
            len,
            source,
        }
    }

    /// False for an offset behind a gap: it may be another record's now, and a
    /// record is rather delivered again than lost.
    pub(super) fn is_named(&self, offset: u64) -> bool {
        self.gap_at.is_none_or(|gap| offset < gap)
    }
}
