//! The data group of each partition of a queue.

use std::ops::Deref;

/// Index = partition. Of very many queues nearly all have one: that takes no
/// memory of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Groups {
    One([u32; 1]),
    More(Box<[u32]>),
}

const _: () = assert!(size_of::<Groups>() == 16);

impl From<Vec<u32>> for Groups {
    fn from(groups: Vec<u32>) -> Self {
        match groups[..] {
            [group] => Groups::One([group]),
            _ => Groups::More(groups.into()),
        }
    }
}

impl Deref for Groups {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        match self {
            Groups::One(group) => group,
            Groups::More(groups) => groups,
        }
    }
}
