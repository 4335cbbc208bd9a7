//! Who belongs to a cluster, and which nodes hold a replica of each group: as group 0
//! has it, and as nodes tell it to each other and to operators.
//!
//! ```text
//! revision u64
//! founders u8 × node u32
//! members  u32 × (node u32, address u8 text, zone u8 text, leaves u8)
//! former   u32 × node u32
//! sets     u32 × (group u32, holders u8 × node u32)
//! shifts   u32 × (group u32, from u32, to u32)
//! ```
//!
//! `name u8 × …` is a count and then so many; a text is a length and then so many bytes
//! of UTF-8. Little-endian; all lists ascend.
//!
//! 1. A group has as many holders as the cluster has founders.
//! 2. While a group is shifted its holders name the node that it goes to, no more the
//!    one that it comes from.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    hello::MAX_MEMBERS,
    reader::{NodeMessageError, Reader},
};

/// Longest address or zone, in bytes.
pub const MAX_ROSTER_TEXT_BYTES: usize = 255;
/// Group 0, which every member holds.
const META: u32 = 0;

/// A node of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Where the others call it, `IP:PORT`.
    pub address: String,
    /// Where it stands, in an operator's word; empty: nobody said.
    pub zone: String,
    /// An operator wants it gone: its replicas go to others.
    pub leaves: bool,
}

/// A replica of a group goes from one node to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shift {
    pub from: u32,
    pub to: u32,
}

/// See the module head.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Roster {
    /// Raised by every change: the higher one counts.
    pub revision: u64,
    /// Nodes that the cluster began with, ascending.
    pub founders: Vec<u32>,
    pub members: BTreeMap<u32, Member>,
    /// Numbers that were removed and not added again.
    pub former: BTreeSet<u32>,
    /// Holders of groups whose holders are not the founders.
    pub sets: BTreeMap<u32, Vec<u32>>,
    /// Groups that are on their way.
    pub shifts: BTreeMap<u32, Shift>,
}

impl Roster {
    /// Nodes that are to hold a replica of the group, ascending.
    pub fn holders(&self, group: u32) -> Vec<u32> {
        if group == META {
            return self.members.keys().copied().collect();
        }
        self.sets.get(&group).unwrap_or(&self.founders).clone()
    }

    /// The node is to hold a replica of the group.
    pub fn is_holder(&self, group: u32, node: u32) -> bool {
        match group {
            META => self.members.contains_key(&node),
            _ => self
                .sets
                .get(&group)
                .unwrap_or(&self.founders)
                .contains(&node),
        }
    }

    /// It is, or its replica is on its way to another node.
    pub fn has_part(&self, group: u32, node: u32) -> bool {
        let leaves = self.shifts.get(&group);
        self.is_holder(group, node) || leaves.is_some_and(|shift| shift.from == node)
    }

    /// Replicas that each data group has.
    pub fn copies(&self) -> usize {
        self.founders.len()
    }

    /// Appends the bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.revision.to_le_bytes());
        put_nodes(out, &self.founders);
        put_count(out, self.members.len());
        for (node, member) in &self.members {
            put_u32(out, *node);
            put_text(out, &member.address);
            put_text(out, &member.zone);
            out.push(u8::from(member.leaves));
        }
        put_count(out, self.former.len());
        for node in &self.former {
            put_u32(out, *node);
        }
        put_count(out, self.sets.len());
        for (group, holders) in &self.sets {
            put_u32(out, *group);
            put_nodes(out, holders);
        }
        put_count(out, self.shifts.len());
        for (group, shift) in &self.shifts {
            for word in [*group, shift.from, shift.to] {
                put_u32(out, word);
            }
        }
    }

    /// Reads what [`Roster::encode`] wrote, and nothing behind it.
    ///
    /// # Errors
    /// It is cut, too long, or a field has a value that none may have.
    pub fn decode(bytes: &[u8]) -> Result<Self, NodeMessageError> {
        let mut reader = Reader::new(bytes);
        let reader = &mut reader;
        let mut roster = Roster {
            revision: reader.u64()?,
            founders: nodes(reader)?,
            ..Roster::default()
        };
        for _ in 0..reader.u32()? {
            let node = reader.u32()?;
            let member = Member {
                address: text(reader)?,
                zone: text(reader)?,
                leaves: match reader.u8()? {
                    0 => false,
                    1 => true,
                    _ => return Err(NodeMessageError::Field("leaves")),
                },
            };
            roster.members.insert(node, member);
        }
        for _ in 0..reader.u32()? {
            roster.former.insert(reader.u32()?);
        }
        for _ in 0..reader.u32()? {
            let group = reader.u32()?;
            roster.sets.insert(group, nodes(reader)?);
        }
        for _ in 0..reader.u32()? {
            let group = reader.u32()?;
            let (from, to) = (reader.u32()?, reader.u32()?);
            roster.shifts.insert(group, Shift { from, to });
        }
        reader.end()?;
        Ok(roster)
    }
}

fn put_u32(out: &mut Vec<u8>, word: u32) {
    out.extend_from_slice(&word.to_le_bytes());
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    put_u32(out, count as u32);
}

fn put_nodes(out: &mut Vec<u8>, nodes: &[u32]) {
    let nodes = nodes.iter().take(MAX_MEMBERS);
    out.push(nodes.len() as u8);
    for node in nodes {
        put_u32(out, *node);
    }
}

/// Appends a text behind its length in a byte. One of more than
/// [`MAX_ROSTER_TEXT_BYTES`] is cut at a character.
pub fn put_text(out: &mut Vec<u8>, text: &str) {
    let mut len = text.len().min(MAX_ROSTER_TEXT_BYTES);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    out.push(len as u8);
    out.extend_from_slice(&text.as_bytes()[..len]);
}

fn nodes(reader: &mut Reader<'_>) -> Result<Vec<u32>, NodeMessageError> {
    let count = usize::from(reader.u8()?);
    if count > MAX_MEMBERS {
        return Err(NodeMessageError::Field("nodes"));
    }
    (0..count).map(|_| reader.u32()).collect()
}

fn text(reader: &mut Reader<'_>) -> Result<String, NodeMessageError> {
    let len = usize::from(reader.u8()?);
    let text = std::str::from_utf8(reader.bytes(len)?);
    text.map(str::to_owned)
        .map_err(|_| NodeMessageError::Field("text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roster() -> Roster {
        let member = |node: u32, zone: &str, leaves| {
            let address = format!("127.0.0.1:750{node}");
            let zone = zone.to_owned();
            let member = Member {
                address,
                zone,
                leaves,
            };
            (node, member)
        };
        Roster {
            revision: 9,
            founders: vec![1, 2, 3],
            members: BTreeMap::from([
                member(1, "", false),
                member(2, "east", true),
                member(4, "west", false),
            ]),
            former: BTreeSet::from([3]),
            sets: BTreeMap::from([(5, vec![1, 2, 4])]),
            shifts: BTreeMap::from([(5, Shift { from: 3, to: 4 })]),
        }
    }

    #[test]
    fn a_roster_reads_back_and_cut_anywhere_it_does_not() {
        let mut bytes = Vec::new();
        roster().encode(&mut bytes);
        assert_eq!(Roster::decode(&bytes), Ok(roster()));
        for cut in 0..bytes.len() {
            assert!(Roster::decode(&bytes[..cut]).is_err(), "{cut}");
        }
        bytes.push(0);
        assert!(Roster::decode(&bytes).is_err());
        bytes[8] = 6;
        assert!(Roster::decode(&bytes).is_err(), "six founders");
    }

    #[test]
    fn holders_are_the_founders_unless_it_says_otherwise_and_of_group_0_all_members() {
        let roster = roster();
        assert_eq!(roster.holders(1), [1, 2, 3]);
        assert_eq!(roster.holders(5), [1, 2, 4]);
        assert_eq!(roster.holders(0), [1, 2, 4]);
        assert!(roster.has_part(5, 3) && !roster.is_holder(5, 3));
        assert!(!roster.has_part(0, 3) && roster.has_part(1, 3));
        assert_eq!(roster.copies(), 3);
    }
}
