//! What other nodes send, to whom it belongs.

use wire::node::{NodeMessage, NodeMessages};

use super::{core::Engine, types::Effect};
use crate::io::BatchBuffer;

impl<B: BatchBuffer> Engine<B> {
    pub(super) fn on_node_up(&mut self, node: u32) {
        self.links.set_up(node, true);
    }

    pub(super) fn on_node_down(&mut self, node: u32) {
        self.links.set_up(node, false);
    }

    /// One frame of a link.
    pub(super) fn on_node_body(&mut self, node: u32, body: &[u8]) {
        if !self.links.is_up(node) {
            return;
        }
        for message in NodeMessages::new(body) {
            match message {
                Ok(message) => self.on_node_message(node, message),
                Err(error) => {
                    let reason = error.to_string();
                    self.refused_nodes.push((node, reason));
                    return;
                }
            }
        }
    }

    fn on_node_message(&mut self, _node: u32, _message: NodeMessage<'_>) {}

    pub(super) fn push_node_effects(&mut self, effects: &mut Vec<Effect<B>>) {
        let refused = self.refused_nodes.drain(..);
        effects.extend(refused.map(|(node, reason)| Effect::NodeRefused { node, reason }));
        self.links.tell(effects);
    }
}
