//! Links to the same shard of other nodes: who is linked, and what waits to be
//! sent to it.
//!
//! 1. Nothing waits for a node that is not linked: what cannot be sent at once
//!    is lost, and those who rely on it are told when the link goes down.
//! 2. What waits for one node is bounded by what its sender bounds: Raft sends
//!    no more than a window per group, clients no more than theirs.

use std::collections::BTreeMap;

use super::{core::Engine, types::Effect};
use crate::io::BatchBuffer;

/// One link.
#[derive(Default)]
pub(super) struct Link {
    pub up: bool,
    /// Messages of `wire::node`, back to back.
    pub output: Vec<u8>,
    /// The driver was told that there is output.
    told: bool,
    /// The node is to lead nothing, as it said.
    leads_nothing: bool,
    /// What it was told of this node.
    told_nothing: bool,
}

/// The links of this shard, by node.
pub(super) struct Links {
    links: BTreeMap<u32, Link>,
}

impl Links {
    /// Nobody is linked yet; `nodes` without this one.
    pub(super) fn new(nodes: impl Iterator<Item = u32>) -> Self {
        Links {
            links: nodes.map(|node| (node, Link::default())).collect(),
        }
    }

    /// A node that there may be a link to.
    pub(super) fn ensure(&mut self, node: u32) {
        self.links.entry(node).or_default();
    }

    /// There is none to it any more.
    pub(super) fn remove(&mut self, node: u32) {
        self.links.remove(&node);
    }

    pub(super) fn nodes(&self) -> Vec<u32> {
        self.links.keys().copied().collect()
    }

    /// Of every node that is linked.
    pub(super) fn outputs(&mut self) -> impl Iterator<Item = &mut Vec<u8>> {
        let links = self.links.values_mut().filter(|link| link.up);
        links.map(|link| &mut link.output)
    }

    pub(super) fn is_up(&self, node: u32) -> bool {
        self.links.get(&node).is_some_and(|link| link.up)
    }

    /// Some node is linked.
    pub(super) fn any_up(&self) -> bool {
        self.links.values().any(|link| link.up)
    }

    /// How many nodes are linked.
    pub(super) fn up(&self) -> usize {
        self.links.values().filter(|link| link.up).count()
    }

    /// Output waits that the driver was not told of.
    pub(super) fn has_news(&self) -> bool {
        let news = |link: &Link| !link.output.is_empty() && !link.told;
        self.links.values().any(news)
    }

    /// Where messages for the node are appended, if it is linked.
    pub(super) fn output(&mut self, node: u32) -> Option<&mut Vec<u8>> {
        let link = self.links.get_mut(&node).filter(|link| link.up)?;
        Some(&mut link.output)
    }

    /// It is linked, and nobody told it to lead nothing.
    pub(super) fn may_lead(&self, node: u32) -> bool {
        let link = self.links.get(&node);
        link.is_some_and(|link| link.up && !link.leads_nothing)
    }

    pub(super) fn set_leads_nothing(&mut self, node: u32, on: bool) {
        if let Some(link) = self.links.get_mut(&node) {
            link.leads_nothing = on;
        }
    }

    /// Outputs to linked nodes that were not told so of this one; now they are.
    pub(super) fn not_told(&mut self, nothing: bool) -> impl Iterator<Item = &mut Vec<u8>> {
        let links = self.links.values_mut().filter(|link| link.up);
        links.filter_map(move |link| {
            let told = std::mem::replace(&mut link.told_nothing, nothing);
            (told != nothing).then_some(&mut link.output)
        })
    }

    /// True when the node is one of the cluster and its state changed.
    pub(super) fn set_up(&mut self, node: u32, up: bool) -> bool {
        let Some(link) = self.links.get_mut(&node) else {
            return false;
        };
        link.output.clear();
        link.told = false;
        (link.leads_nothing, link.told_nothing) = (false, false);
        std::mem::replace(&mut link.up, up) != up
    }

    fn take(&mut self, node: u32, into: &mut Vec<u8>) -> bool {
        let Some(link) = self.links.get_mut(&node) else {
            return false;
        };
        link.told = false;
        if link.output.is_empty() {
            return false;
        }
        std::mem::swap(&mut link.output, into);
        link.output.clear();
        true
    }

    pub(super) fn tell<B>(&mut self, effects: &mut Vec<Effect<B>>) {
        for (node, link) in &mut self.links {
            if !link.output.is_empty() && !std::mem::replace(&mut link.told, true) {
                effects.push(Effect::NodeOutput { node: *node });
            }
        }
    }
}

impl<B: BatchBuffer> Engine<B> {
    /// Moves what waits for a node into `into` (which should be empty): the body
    /// of one frame. False when there is nothing. The driver calls it when the
    /// link's socket is free.
    pub fn take_node_output(&mut self, node: u32, into: &mut Vec<u8>) -> bool {
        self.links.take(node, into)
    }
}
