//! Which groups this shard leads, for whoever watches from outside.

use super::core::Engine;
use crate::{group::GroupId, io::BatchBuffer};

/// A group that is led here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reign {
    pub group: GroupId,
    pub generation: u32,
    pub term: u64,
    /// Voting replicas, this one included.
    pub voters: usize,
}

impl<B: BatchBuffer> Engine<B> {
    /// The groups that this shard leads, ascending.
    pub fn reigns(&self) -> impl Iterator<Item = Reign> + '_ {
        let groups = self.groups.values().map(|slot| &slot.group);
        groups.filter(|group| group.is_leader()).map(|group| Reign {
            group: group.id(),
            generation: group.generation(),
            term: group.term(),
            voters: group.members().voters.len(),
        })
    }
}
