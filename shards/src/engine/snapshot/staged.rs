//! A snapshot on its way in: the state that it will be, and where its records stand.

use crate::{
    engine::{
        core::Map,
        partition::{PartitionKey, PartitionSlot},
        upkeep::read_partition,
    },
    group::{GroupId, Members},
    log::LogPosition,
    state::meta::MetaState,
};

use super::piece::Piece;
use wire::vocabulary::Boundary;

/// What came so far. Nothing of it counts before it is installed.
pub(in crate::engine) struct Staged {
    group: GroupId,
    data_groups: u32,
    /// Where its first piece stands in the log.
    pub from: LogPosition,
    pub answers_at: Boundary,
    /// The group's members as of the snapshot's entry.
    pub members: Members,
    pub partitions: Vec<PartitionSlot>,
    pub meta: Option<MetaState>,
    /// The end piece came.
    pub complete: bool,
}

impl Staged {
    pub(in crate::engine) fn new(group: GroupId, data_groups: u32, from: LogPosition) -> Self {
        Staged {
            group,
            data_groups,
            from,
            answers_at: Boundary::Durable,
            members: Members::default(),
            partitions: Vec::new(),
            meta: None,
            complete: false,
        }
    }

    /// Takes the next piece, whose byte `i` stands at `place(i)`. False when it
    /// does not make a state with what came before.
    pub(in crate::engine) fn take(
        &mut self,
        piece: &Piece<'_>,
        place: &dyn Fn(u32) -> LogPosition,
    ) -> bool {
        if self.complete {
            return false;
        }
        match piece {
            Piece::Begin {
                answers_at,
                members,
            } => {
                self.answers_at = *answers_at;
                self.members = members.clone();
                true
            }
            Piece::Partition(head) => self.take_partition(head),
            Piece::Records(records) => {
                let Some(slot) = self.partitions.last_mut() else {
                    return false;
                };
                records.iter().all(|(entry, at)| {
                    let position = place(at).0;
                    slot.machine
                        .restore_record(entry.offset, position, entry.len, entry.attempts)
                })
            }
            Piece::Meta(state) => {
                self.meta = MetaState::restore(self.data_groups, state).ok();
                self.meta.is_some()
            }
            Piece::End => {
                self.complete = true;
                true
            }
            Piece::Installed { .. } => false,
        }
    }

    fn take_partition(&mut self, head: &[u8]) -> bool {
        let Some(Ok(slot)) = read_partition(head) else {
            return false;
        };
        let known = |other: &PartitionSlot| other.key == slot.key;
        if slot.group != self.group || self.partitions.iter().any(known) {
            return false;
        }
        self.partitions.push(slot);
        true
    }

    /// The group's partitions are those that came, from now on.
    pub(in crate::engine) fn replace(
        self,
        partitions: &mut Map<PartitionKey, Box<PartitionSlot>>,
        index_bytes: &mut u64,
    ) {
        drop_partitions(self.group, partitions, index_bytes);
        for mut slot in self.partitions {
            slot.machine.finish_replay();
            slot.account(index_bytes);
            partitions.insert(slot.key, Box::new(slot));
        }
    }
}

/// The group has no partitions here any more.
pub(in crate::engine) fn drop_partitions(
    group: GroupId,
    partitions: &mut Map<PartitionKey, Box<PartitionSlot>>,
    index_bytes: &mut u64,
) {
    partitions.retain(|_, slot| {
        let stays = slot.group != group;
        if !stays {
            *index_bytes = index_bytes.saturating_sub(slot.accounted_bytes);
        }
        stays
    });
}
