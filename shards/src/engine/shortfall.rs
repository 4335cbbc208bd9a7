//! Which copies a confirm still waits for, in words: an answer that came to nothing
//! for want of them names the nodes.
//!
//! Never: lowers what a confirm waits for.

use std::fmt;

use wire::vocabulary::Boundary;

use crate::group::{Group, PeerId};

/// What an entry waits for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Awaited {
    pub index: u64,
    pub boundary: Boundary,
    /// The owner's is one of them.
    pub copies: usize,
}

/// Copies of other nodes that are missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shortfall {
    boundary: Boundary,
    /// Other nodes' copies that are needed, and how many there are.
    needed: usize,
    met: usize,
    /// Nodes whose copy is missing.
    missing: Vec<u32>,
}

impl Shortfall {
    /// `None` where the other nodes' copies are enough: then it is this node's that is
    /// missing.
    pub(super) fn of(group: &Group, awaited: &Awaited) -> Option<Self> {
        let Awaited {
            index, boundary, ..
        } = *awaited;
        let needed = awaited.copies.saturating_sub(1);
        let has = |(peer, written, durable): (u64, u64, u64)| {
            let reached = match boundary {
                Boundary::Written => written,
                Boundary::Durable => durable,
            };
            (reached >= index).then_some(peer)
        };
        let have: Vec<u64> = group.progress().filter_map(has).collect();
        let (own, members) = (group.peer().0, group.members());
        let others = members.voters.iter().filter(|voter| **voter != own);
        let (there, missing): (Vec<u64>, Vec<u64>) = others.partition(|peer| have.contains(peer));
        (there.len() < needed).then(|| Shortfall {
            boundary,
            needed,
            met: there.len(),
            missing: missing
                .into_iter()
                .map(|peer| PeerId(peer).node())
                .collect(),
        })
    }
}

impl Shortfall {
    /// How many copies are there, of how many, and which nodes lack one.
    pub(super) fn copies(&self) -> String {
        let (met, needed, boundary) = (self.met, self.needed, self.boundary.name());
        let missing = self.missing();
        format!("{met} of {needed} copies on other nodes are {boundary}; missing: {missing}")
    }

    fn missing(&self) -> String {
        match self.missing.as_slice() {
            [] => "a replica that is being brought up again".to_owned(),
            [node] => format!("node {node}"),
            nodes => {
                let nodes: Vec<String> = nodes.iter().map(u32::to_string).collect();
                format!("nodes {}", nodes.join(", "))
            }
        }
    }
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (met, needed, boundary) = (self.met, self.needed, self.boundary.name());
        let missing = self.missing();
        write!(
            f,
            "the deadline passed with {met} of the {needed} copies on other nodes {boundary} that the confirm needs; missing: {missing}"
        )?;
        f.write_str("; the publish may still become visible: see \"tidegate cluster status\" for what keeps it, look at the frontiers, or publish again and accept a duplicate")
    }
}
