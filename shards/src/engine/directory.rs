//! This shard's copy of the queue directory, told by shard 0.

use std::{collections::BTreeSet, sync::Arc};

use wire::message::{PartitionPlace, QueueDescription};

use super::{core::Engine, partition::PartitionKey, types::ShardPlace};
use crate::{
    group::GroupId,
    io::BatchBuffer,
    state::meta::{QueueDeclaration, QueueTable},
};

/// The declared queues, and where their partitions live.
pub(super) struct Directory {
    place: ShardPlace,
    queues: QueueTable,
    /// Ids below were given out as far as this shard was told.
    next_id: u64,
}

impl Directory {
    pub(super) fn new(place: ShardPlace) -> Self {
        Directory {
            place,
            queues: QueueTable::default(),
            next_id: 0,
        }
    }

    /// Takes a queue in, unless what is told of it is behind what is known.
    pub(super) fn insert(&mut self, queue: Arc<QueueDeclaration>) {
        self.knows_below(queue.queue_id + 1);
        let known = self.queues.by_id(queue.queue_id);
        if known.is_some_and(|known| known.revision > queue.revision) {
            return;
        }
        self.queues.insert(queue);
    }

    pub(super) fn remove(&mut self, queue_id: u64) -> Option<Arc<QueueDeclaration>> {
        self.queues.remove(queue_id)
    }

    /// Every id below was given out before what this directory says now.
    pub(super) fn knows_below(&mut self, next_id: u64) {
        self.next_id = self.next_id.max(next_id);
    }

    /// Whoever knows ids below `next_id` only is behind this directory.
    pub(super) fn outruns(&self, next_id: u64) -> bool {
        next_id < self.next_id
    }

    /// The queue was deleted: its id was given out, and it is not here. False where
    /// this directory may only be behind.
    pub(super) fn is_deleted(&self, queue_id: u64) -> bool {
        queue_id < self.next_id && self.by_id(queue_id).is_none()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<QueueDeclaration>> {
        self.queues.iter()
    }

    /// Ids of queues that are not in `named`.
    pub(super) fn ids_beside(&self, named: &BTreeSet<u64>) -> Vec<u64> {
        let ids = self.queues.iter().map(|queue| queue.queue_id);
        ids.filter(|id| !named.contains(id)).collect()
    }

    pub(super) fn by_id(&self, queue_id: u64) -> Option<&Arc<QueueDeclaration>> {
        self.queues.by_id(queue_id)
    }

    pub(super) fn by_name(&self, name: &str) -> Option<&Arc<QueueDeclaration>> {
        self.queues.by_name(name)
    }

    /// Queues whose name is above `after`, in byte order.
    pub(super) fn after(&self, after: &str) -> impl Iterator<Item = &Arc<QueueDeclaration>> {
        self.queues.after(after)
    }

    /// Group and shard of a partition, if the queue has it.
    pub(super) fn locate(&self, queue_id: u64, partition: u16) -> Option<(GroupId, u16)> {
        let queue = self.by_id(queue_id)?;
        let group = GroupId(*queue.groups.get(usize::from(partition))?);
        Some((group, self.place.shard_of(group)?))
    }

    /// Every declared partition that a shard owns.
    pub(super) fn keys_of(&self, shard: u16) -> impl Iterator<Item = PartitionKey> + '_ {
        self.queues.iter().flat_map(move |queue| {
            let here = move |group: &u32| self.place.shard_of(GroupId(*group)) == Some(shard);
            let groups = queue.groups.iter().enumerate();
            groups
                .filter(move |(_, group)| here(group))
                .map(|(index, _)| PartitionKey {
                    queue_id: queue.queue_id,
                    partition: index as u16,
                })
        })
    }

    /// `leader`: the node that leads a group, as far as it is known.
    fn describe(
        &self,
        queue: &QueueDeclaration,
        leader: &dyn Fn(u32) -> Option<u32>,
    ) -> QueueDescription {
        let place = |group: &u32| PartitionPlace {
            group: *group,
            node: leader(*group).unwrap_or_default(),
            shard: self.place.shard_of(GroupId(*group)).unwrap_or_default(),
        };
        QueueDescription {
            queue_id: queue.queue_id,
            name: queue.name.to_string(),
            mode: queue.mode as u8,
            copies: queue.copies,
            lease_ms: queue.lease_ms,
            partitions: queue.groups.iter().map(place).collect(),
        }
    }
}

impl<B: BatchBuffer> Engine<B> {
    /// A queue with its places. Of groups of other shards this one does not know the
    /// leader, unless the node is alone.
    pub(super) fn describe(&self, queue: &QueueDeclaration) -> QueueDescription {
        let own = self.config.node;
        self.directory.describe(queue, &|group| {
            if !self.is_cluster() {
                return Some(own);
            }
            self.leading_node(group)
        })
    }
}
