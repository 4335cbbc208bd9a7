use std::fmt;

/// A group's number. 0 is the metadata group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

impl GroupId {
    /// The cluster's metadata.
    pub const META: GroupId = GroupId(0);
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {}", self.0)
    }
}

/// Identity of one replica of one group: its node in the high 24 bits, the
/// join number that group 0 handed out in the low 40. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u64);

const JOIN_BITS: u32 = 40;

impl PeerId {
    /// `node` uses its low 24 bits, `join` its low 40.
    pub fn new(node: u32, join: u64) -> Self {
        PeerId(u64::from(node) << JOIN_BITS | (join & ((1 << JOIN_BITS) - 1)))
    }

    /// The node's number.
    pub fn node(self) -> u32 {
        (self.0 >> JOIN_BITS) as u32
    }

    /// The join number.
    pub fn join(self) -> u64 {
        self.0 & ((1 << JOIN_BITS) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_id_keeps_node_and_join_number_apart() {
        let peer = PeerId::new(0xAB_CDEF, 0xFF_FFFF_FFFF);
        assert_eq!((peer.node(), peer.join()), (0xAB_CDEF, 0xFF_FFFF_FFFF));
    }
}
