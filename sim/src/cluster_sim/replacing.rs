//! A disk that is lost: an operator gives the directory up, and the node comes back on
//! an empty one that was made to join.
//!
//! The order is asked of any node, again and again, until it is answered; only then does
//! the node start. The next disk is lost when all is repaired.

use super::{
    node::Places,
    world::{Happening, World},
    Checked,
};
use crate::SimDisk;

/// A node whose directory is gone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lost {
    node: usize,
    /// The order's own number.
    order: u32,
}

/// Who orders.
const OPERATOR: usize = 1;
/// Between two times that it asks.
const ASK_US: u64 = 300_000;
/// How long the order may take in a cluster that was healed, in simulated ms.
const PATIENCE_MS: u64 = 90_000;

impl World {
    pub(super) fn is_lost(&self, node: usize) -> bool {
        self.lost.is_some_and(|lost| lost.node == node)
    }

    pub(super) fn strike_loss_of_a_disk(&mut self) {
        let few = self.nodes.len() < 3 || self.lost.is_some();
        if few || !self.is_repaired() {
            return;
        }
        let node = self.some_node();
        if self.nodes[node].up {
            self.lose_disk(node);
            let after = self.delay(2_000_000);
            self.plan(after, Happening::GiveUp);
        }
    }

    /// The directory is gone, and the node makes another one, to join with, once it
    /// starts.
    pub(super) fn lose_disk(&mut self, node: usize) {
        self.note(format_args!("fault: the disk of {node} is lost"));
        self.crash(node);
        self.counts.replacements += 1;
        let [disk, data, boot_disk] = [(); 3].map(|()| SimDisk::new(self.random.fork()));
        disk.set_physical_bytes(self.settings.log.block_bytes as usize);
        let cookie = self.random.number();
        let sim = &mut self.nodes[node];
        (sim.disk, sim.data, sim.boot_disk) = (disk, data, boot_disk);
        (sim.cookie, sim.joins) = (cookie, true);
        sim.markers.clear();
        sim.places = Places::default();
        self.journal.lost_disk(node);
        let order = self.counts.replacements as u32;
        self.lost = Some(Lost { node, order });
    }

    /// The order for what was lost.
    pub(super) fn give_up_now(&mut self, client: usize) -> u64 {
        let (node, order) = self.lost.map_or((0, 0), |lost| (lost.node, lost.order));
        self.order_replace(client, node, order)
    }

    /// The operator asks, unless the order was answered meanwhile.
    pub(super) fn give_up(&mut self) {
        let Some(lost) = self.lost else {
            return;
        };
        if self.clients[OPERATOR].link.is_none() {
            self.connect_somewhere(OPERATOR);
        }
        if self.clients[OPERATOR].link.is_some() {
            self.order_replace(OPERATOR, lost.node, lost.order);
            if self.random.chance(1, 4) {
                self.disconnect(OPERATOR);
            }
        }
        let after = self.delay(ASK_US);
        self.plan(after, Happening::GiveUp);
    }

    /// Group 0 has the order.
    pub(super) fn given_up(&mut self, node: usize) {
        if self.is_lost(node) {
            self.lost = None;
            self.note(format_args!("{node} is given up"));
            self.start_later(node, 2_000);
        }
    }

    /// Waits until what was lost is given up.
    pub(super) fn await_replacement(&mut self) -> Checked<()> {
        self.await_that("the order to replace a node", PATIENCE_MS, |world| {
            world.lost.is_none()
        })
    }
}
