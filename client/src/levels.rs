//! Feature levels of a cluster, as a node tells them.

use std::collections::BTreeMap;

/// What versions know, as a node has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Levels {
    /// The cluster's: what every member's version was known to know. It never goes down.
    pub cluster: u16,
    /// What the version of the node that answered knows.
    pub version: u16,
    /// Of each member, what its version was recorded to know; `None`: nothing was.
    pub members: BTreeMap<u32, Option<u16>>,
}

impl Levels {
    /// Reads the bytes of [`wire::message::Extension::LEVEL`]; `None` where they are none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (cluster, bytes) = bytes.split_first_chunk()?;
        let (version, bytes) = bytes.split_first_chunk()?;
        let (members, rest) = bytes.as_chunks::<6>();
        let member = |[a, b, c, d, level @ ..]: &[u8; 6]| {
            let level = Some(u16::from_le_bytes(*level)).filter(|level| *level > 0);
            (u32::from_le_bytes([*a, *b, *c, *d]), level)
        };
        rest.is_empty().then(|| Levels {
            cluster: u16::from_le_bytes(*cluster),
            version: u16::from_le_bytes(*version),
            members: members.iter().map(member).collect(),
        })
    }

    /// The highest that any of them knows.
    pub fn newest(&self) -> u16 {
        let members = self.members.values().flatten().copied();
        members.max().unwrap_or(0).max(self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_these_bytes_and_nothing_cut_short() {
        let bytes = [2, 0, 3, 0, 1, 0, 0, 0, 4, 1, 7, 1, 0, 0, 0, 0];
        let levels = Levels {
            cluster: 2,
            version: 3,
            members: BTreeMap::from([(1, Some(260)), (263, None)]),
        };
        assert_eq!(levels.newest(), 260);
        assert_eq!(Levels::decode(&bytes), Some(levels));
        let whole = (0..bytes.len()).filter(|cut| Levels::decode(&bytes[..*cut]).is_some());
        assert_eq!(whole.collect::<Vec<_>>(), [4, 10]);
    }
}
