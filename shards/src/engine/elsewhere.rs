//! Groups that have no replica on this node, or one of an ended generation: who leads them,
//! and what is ready in them, as their leaders say.
//!
//! 1. A leader says so when it begins to serve, and to every node that is linked later.
//! 2. What is known here is a hint: who is asked in vain answers that it does not lead.

use std::collections::BTreeMap;

use wire::node::NodeMessage;

use super::{core::Engine, partition::PartitionKey, types::ShardMessage};
use crate::io::BatchBuffer;

/// A node that said to lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Hint {
    generation: u32,
    term: u64,
    node: u32,
}

/// By group.
pub(super) type Hints = BTreeMap<u32, Hint>;

impl<B: BatchBuffer> Engine<B> {
    /// The node that leads a group, as far as it is known here.
    pub(super) fn leading_node(&self, group: u32) -> Option<u32> {
        match self.groups.get(&group) {
            Some(slot) if slot.group.is_leader() => Some(self.config.node),
            Some(slot) if slot.group.is_stopped() => {
                let hint = self.hints.get(&group);
                let goes_on = |hint: &&Hint| hint.generation > slot.group.generation();
                hint.filter(goes_on).map(|hint| hint.node)
            }
            Some(slot) => slot.group.leader().map(|peer| peer.node()),
            None => self.hints.get(&group).map(|hint| hint.node),
        }
    }

    /// A node is linked that may have no replica of what is led here.
    pub(super) fn tell_led(&mut self, node: u32) {
        let Some(out) = self.links.output(node) else {
            return;
        };
        let led = self.groups.values().filter(|slot| slot.serving);
        for slot in led.filter(|slot| slot.group.is_leader()) {
            leads(&slot.group).encode(out);
        }
    }

    /// This replica begins to serve.
    pub(super) fn tell_leads(&mut self, group: u32) {
        let Some(slot) = self.groups.get(&group) else {
            return;
        };
        for out in self.links.outputs() {
            leads(&slot.group).encode(out);
        }
    }

    pub(super) fn on_leads(&mut self, node: u32, group: u32, (generation, term): (u32, u64)) {
        let hint = Hint {
            generation,
            term,
            node,
        };
        let known = self.config.place.shard_of(crate::group::GroupId(group));
        if known != Some(self.config.shard) {
            return;
        }
        let hints = self.hints.entry(group).or_insert(hint);
        *hints = (*hints).max(hint);
    }

    /// The partition exists: nodes without a replica of its group are told.
    pub(super) fn tell_ready_elsewhere(&mut self, key: PartitionKey) {
        let group = self.partitions.get(&key).map(|slot| slot.group);
        let Some(group) = group.filter(|group| self.leads(*group)) else {
            return;
        };
        let Some(roster) = self.roster().cloned() else {
            return;
        };
        let (queue_id, partition) = (key.queue_id, key.partition);
        for node in roster.members.keys() {
            if roster.is_holder(group.0, *node) {
                continue;
            }
            if let Some(out) = self.links.output(*node) {
                NodeMessage::Ready {
                    queue_id,
                    partition,
                }
                .encode(out);
            }
        }
    }

    pub(super) fn on_ready_elsewhere(&mut self, queue_id: u64, partition: u16) {
        let message = ShardMessage::PartitionReady {
            queue_id,
            partition,
        };
        self.outbound.push((0, message));
    }
}

fn leads(group: &crate::group::Group) -> NodeMessage<'static> {
    NodeMessage::Leads {
        group: group.id().0,
        generation: group.generation(),
        term: group.term(),
    }
}
