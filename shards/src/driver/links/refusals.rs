//! What was refused on links, by us or to us: each kind said once per peer, every
//! one counted.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use wire::node::RefusalCode;

/// Whom a refusal is about. Strangers are one peer: there is no end of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Who {
    Node(u32),
    Stranger,
}

/// Who refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum By {
    Us,
    Them,
}

/// Of the whole process: bounded by members and kinds.
#[derive(Default)]
pub(super) struct Refusals {
    counts: Mutex<BTreeMap<(Who, By, RefusalCode), u64>>,
}

impl Refusals {
    /// Counts one; true when it is the first of its kind and to be said.
    pub(super) fn note(&self, who: Who, by: By, code: RefusalCode) -> bool {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry((who, by, code)).or_default();
        *count += 1;
        *count == 1
    }

    /// All of them, if any came again after it was said.
    pub(super) fn summary(&self) -> Option<String> {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.values().all(|count| *count < 2) {
            return None;
        }
        let each = counts.iter().map(|((who, by, code), count)| {
            let whom = match (who, by) {
                (Who::Node(node), By::Us) => format!("node {node}"),
                (Who::Node(node), By::Them) => format!("this node by node {node}"),
                (Who::Stranger, By::Us) => "strangers".to_owned(),
                (Who::Stranger, By::Them) => "this node by strangers".to_owned(),
            };
            let times = if *count == 1 {
                "once".to_owned()
            } else {
                format!("{count} times")
            };
            format!("{whom} {times} ({})", code.words())
        });
        Some(each.collect::<Vec<_>>().join(", "))
    }

    /// The node is linked: how many there were of it; later ones are said anew.
    pub(super) fn settle(&self, node: u32) -> u64 {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut refused = 0;
        counts.retain(|(who, _, _), count| {
            let is_its = *who == Who::Node(node);
            refused += if is_its { *count } else { 0 };
            !is_its
        });
        refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_said_once_per_peer_and_again_after_the_node_was_linked() {
        let refusals = Refusals::default();
        let (node, code) = (Who::Node(2), RefusalCode::Cluster);
        assert!(refusals.note(node, By::Us, code));
        assert!(!refusals.note(node, By::Us, code));
        assert!(refusals.note(node, By::Them, code));
        assert!(refusals.note(node, By::Us, RefusalCode::Secret));
        assert!(refusals.note(Who::Node(3), By::Us, code));
        assert!(refusals.note(Who::Stranger, By::Us, code));
        let summary = refusals.summary().unwrap();
        assert!(
            summary.starts_with("node 2 2 times (another cluster), "),
            "{summary}"
        );
        assert!(
            summary.ends_with("strangers once (another cluster)"),
            "{summary}"
        );
        assert_eq!(refusals.settle(2), 4);
        assert_eq!(refusals.summary(), None);
        assert_eq!(refusals.settle(2), 0);
        assert!(refusals.note(node, By::Us, code));
        assert!(!refusals.note(Who::Node(3), By::Us, code));
        assert!(!refusals.note(Who::Stranger, By::Us, code));
    }
}
