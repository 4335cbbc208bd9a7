//! Links to other nodes, as lines about nodes: each shard has its own link, and
//! an operator asks for the node.

use std::collections::{BTreeMap, BTreeSet};

/// What was said of the nodes, and what is known of their links.
#[derive(Default)]
pub struct LinkLines {
    /// Once the start is done.
    shards: Option<usize>,
    nodes: BTreeMap<u32, Node>,
}

#[derive(Default)]
struct Node {
    /// Shards that are linked to it.
    linked: BTreeSet<u16>,
    refused: u64,
    said: Option<Said>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Said {
    Linked,
    Unlinked,
}

impl LinkLines {
    /// This process has so many shards; lines of what was linked meanwhile.
    pub fn started(&mut self, shards: u16) -> Vec<String> {
        let shards = usize::from(shards);
        self.shards = Some(shards);
        let nodes = self.nodes.iter_mut();
        nodes
            .filter_map(|(number, node)| node.tell(*number, shards))
            .collect()
    }

    /// A shard is linked to the node: a line, if now every one is.
    pub fn linked(&mut self, shard: u16, number: u32, refused: u64) -> Option<String> {
        let node = self.nodes.entry(number).or_default();
        node.linked.insert(shard);
        node.refused += refused;
        node.tell(number, self.shards?)
    }

    /// A shard is not: a line, if it is the first.
    pub fn unlinked(&mut self, shard: u16, number: u32, reason: &str) -> Option<String> {
        let node = self.nodes.entry(number).or_default();
        node.linked.remove(&shard);
        (node.said.replace(Said::Unlinked) != Some(Said::Unlinked))
            .then(|| format!("node {number} is not linked: {reason}"))
    }
}

impl Node {
    fn tell(&mut self, number: u32, shards: usize) -> Option<String> {
        if self.linked.len() < shards || self.said == Some(Said::Linked) {
            return None;
        }
        let again = match self.said.replace(Said::Linked) {
            Some(_) => " again",
            None => "",
        };
        Some(match std::mem::take(&mut self.refused) {
            0 => format!("node {number} is linked{again}"),
            refused => format!("node {number} is linked{again}, after {refused} refused tries"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_linked_when_every_shard_is_and_not_when_one_is_not() {
        let mut lines = LinkLines::default();
        assert_eq!(lines.linked(0, 2, 0), None);
        assert_eq!(lines.started(2), Vec::<String>::new());
        assert_eq!(
            lines.linked(1, 2, 3).unwrap(),
            "node 2 is linked, after 3 refused tries"
        );
        assert_eq!(lines.linked(1, 2, 0), None);
        assert_eq!(
            lines.unlinked(0, 2, "gone").unwrap(),
            "node 2 is not linked: gone"
        );
        assert_eq!(lines.unlinked(1, 2, "gone"), None);
        assert_eq!(lines.linked(0, 2, 0), None);
        assert_eq!(lines.linked(1, 2, 0).unwrap(), "node 2 is linked again");
    }

    #[test]
    fn what_was_linked_during_the_start_is_said_after_it() {
        let mut lines = LinkLines::default();
        assert_eq!(lines.linked(0, 2, 0), None);
        assert!(lines.unlinked(0, 3, "gone").is_some());
        assert_eq!(lines.started(1), ["node 2 is linked"]);
    }
}
