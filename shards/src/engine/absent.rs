//! Groups that this node has no part in: their replicas are dropped here, and begin anew
//! under another name when the node gets a part again.
//!
//! 1. A replica is dropped only once group 0 says that its node has no part in the group, or
//!    that its name left it: the one that took its place votes by then, durable on a majority.
//! 2. A replica that was dropped keeps its old name in the log, and takes part in nothing
//!    under it, whatever starts come between.
//!
//! A crash leaves behind a replica that is dropped in the log, or one that is not yet and
//! is dropped at the next start.

use super::{boot::ask_for_name, core::Engine, snapshot::drop_partitions, types::Notice};
use crate::{
    group::{GroupId, Recovered},
    io::BatchBuffer,
    log::{ItemHeader, ItemKind},
};
use wire::vocabulary::Boundary;

impl<B: BatchBuffer> Engine<B> {
    /// Compares what is here with what should be.
    pub(super) fn sort_out_replicas(&mut self) {
        if self.roster().is_none() {
            return;
        }
        let here: Vec<u32> = self.groups.keys().copied().collect();
        for id in here {
            if id != GroupId::META.0 && (!self.has_part(id) || self.has_left(id)) {
                self.drop_replica(id);
            }
        }
        let waiting: Vec<u32> = self.awaiting_recovery.keys().copied().collect();
        for id in waiting {
            if id != GroupId::META.0 && !self.has_part(id) {
                if let Some(recovered) = self.awaiting_recovery.remove(&id) {
                    self.absent.insert(id, recovered);
                }
            }
        }
        let absent: Vec<u32> = self.absent.keys().copied().collect();
        for id in absent {
            if self.has_part(id) {
                if let Some(recovered) = self.absent.remove(&id) {
                    self.awaiting_recovery.insert(id, recovered);
                }
            }
        }
        self.ask_for_names();
    }

    /// The group took this replica out, and came back to the node before it heard of that:
    /// its name never counts again, so it asks for another.
    fn has_left(&self, id: u32) -> bool {
        let slot = self.groups.get(&id);
        slot.is_some_and(|slot| slot.left.contains(&slot.group.peer().0))
    }

    /// Replicas without a name ask for one, again and again: shard 0 may have heard later
    /// than this shard that the node is to hold the group.
    fn ask_for_names(&mut self) {
        let waiting = self.awaiting_recovery.iter();
        let waiting = waiting.filter(|(id, _)| **id != GroupId::META.0);
        let asks = waiting.map(|(id, recovered)| {
            let state = &recovered.state;
            (0, ask_for_name(*id, state.peer, !state.keeps_reported))
        });
        self.outbound.extend(asks);
    }

    /// Nothing of the group is kept here any more.
    fn drop_replica(&mut self, id: u32) {
        let Some(slot) = self.groups.get(&id) else {
            return;
        };
        let recovered = Recovered::dropped(slot.group.state());
        let item = ItemHeader {
            kind: ItemKind::GroupState,
            group: id,
            term: recovered.state.term,
            index: 0,
            sync: true,
        };
        let state = recovered.state.encode();
        if self.log.append(item, &[&state], Boundary::Durable).is_err() {
            // The log has no room, or is latched: tried again.
            return;
        }
        self.lose_leadership(id);
        self.groups.remove(&id);
        let group = GroupId(id);
        drop_partitions(group, &mut self.partitions, &mut self.room.index_bytes);
        self.deferred.retain(|deferred| !deferred.is_of_group(id));
        self.receiving.remove(&id);
        self.leaderless.remove(&id);
        self.absent.insert(id, recovered);
        self.check_serving();
        self.notices.push(Notice::MovedAway { group: id });
    }
}
