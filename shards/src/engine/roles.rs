//! What this shard is in each of its groups, for whoever watches from outside.

use super::core::Engine;
use crate::{
    group::{GroupId, PeerId},
    io::BatchBuffer,
};

/// A replica of this shard.
#[derive(Debug, Clone, Copy)]
pub struct Role<'a> {
    pub group: GroupId,
    pub generation: u32,
    pub term: u64,
    pub peer: PeerId,
    pub leads: bool,
    /// The last entry that was applied.
    pub applied: u64,
    /// Voting replicas, as far as this one knows; ascending.
    pub voters: &'a [u64],
}

impl<B: BatchBuffer> Engine<B> {
    /// Of each group that has a replica here under a name that counts, ascending.
    pub fn roles(&self) -> impl Iterator<Item = Role<'_>> {
        let groups = self.groups.values().map(|slot| &slot.group);
        groups.map(|group| Role {
            group: group.id(),
            generation: group.generation(),
            term: group.term(),
            peer: group.peer(),
            leads: group.is_leader(),
            applied: group.last_applied().0,
            voters: &group.members().voters,
        })
    }
}
