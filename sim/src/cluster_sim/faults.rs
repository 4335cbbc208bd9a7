//! What goes wrong, and how it ends.

use shards::engine::Engine;

use super::{
    node::Node,
    world::{Happening, World},
    Checked,
};

/// Something that lasts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// Ways between nodes that are cut.
    Partition(Vec<(usize, usize)>),
    SlowLink(usize, usize),
}

/// How long a partition, a slow link, a slow disk or a pause lasts, in ms.
const LASTS_MS: [u64; 5] = [50, 400, 1_500, 4_000, 9_000];
/// A machine is back after this at the latest; mostly much earlier.
const DOWN_MS: [u64; 3] = [50, 500, 4_000];

impl World {
    pub(super) fn plan_strike(&mut self) {
        if self.settings.kinds.total() > 0 {
            let after = 1 + self.random.below(self.settings.fault_every_ms * 2 * 1000);
            self.plan(after, Happening::Strike);
        }
    }

    pub(super) fn strike(&mut self) -> Checked<()> {
        if !self.busy {
            return Ok(());
        }
        self.plan_strike();
        let weights = self.settings.kinds.weights();
        let mut at = self.random.below(self.settings.kinds.total());
        let kind = weights
            .iter()
            .position(|weight| match at.checked_sub(*weight) {
                Some(rest) => {
                    at = rest;
                    false
                }
                None => true,
            });
        match kind {
            Some(0) => self.strike_crash(),
            Some(1) => self.strike_power_cut(),
            Some(2) => self.strike_partition(),
            Some(3) => self.strike_link_loss(),
            Some(4) => self.strike_slow_link(),
            Some(5) => self.strike_slow_disk(),
            Some(6) => self.strike_io_error(),
            Some(7) => self.strike_pause(),
            Some(9) => self.strike_loss_of_a_disk(),
            _ => self.strike_clock_step(),
        }
        Ok(())
    }

    pub(super) fn some_node(&mut self) -> usize {
        self.random.below(self.nodes.len() as u64) as usize
    }

    /// Two different nodes, if there are two.
    fn some_pair(&mut self) -> Option<(usize, usize)> {
        let count = self.nodes.len() as u64;
        if count < 2 {
            return None;
        }
        let a = self.random.below(count);
        let b = (a + 1 + self.random.below(count - 1)) % count;
        Some((a as usize, b as usize))
    }

    fn strike_crash(&mut self) {
        let node = self.some_node();
        if self.nodes[node].up {
            self.crash(node);
            let down_ms = self.random.pick(&DOWN_MS);
            self.start_later(node, down_ms);
        }
    }

    fn strike_power_cut(&mut self) {
        let mut nodes = vec![self.some_node()];
        if self.settings.overlapping_cuts {
            let all = self.random.chance(1, 4);
            for node in 0..self.nodes.len() {
                if !nodes.contains(&node) && (all || self.random.chance(1, 3)) {
                    nodes.push(node);
                }
            }
        } else if !self.is_repaired() {
            return;
        }
        for node in nodes {
            if self.nodes[node].up {
                self.power_cut(node);
                let down_ms = self.random.pick(&DOWN_MS);
                self.start_later(node, down_ms);
            }
        }
    }

    /// Nobody lacks anything: every log knows what it answered, and every group
    /// has all its voters.
    pub(super) fn is_repaired(&self) -> bool {
        let sound = |node: &Node| {
            let engine = node.engine.as_ref().filter(|_| !node.latched);
            engine.is_some_and(Engine::memory_is_settled) && !node.disk.is_failing()
        };
        let groups = 0..=self.settings.data_groups;
        let mut nodes = self.nodes.iter().filter(|node| node.belongs);
        let sound = nodes.all(sound) && self.is_settled();
        sound && groups.into_iter().all(|group| self.is_whole(group))
    }

    fn strike_partition(&mut self) {
        let count = self.nodes.len() as u64;
        if count < 2 {
            return;
        }
        // A side of 1 to count - 1 nodes.
        let first = self.random.below(count) as usize;
        let size = 1 + self.random.below(count - 1) as usize;
        let side: Vec<usize> = (0..size).map(|n| (first + n) % count as usize).collect();
        let (out, back) =
            self.random
                .pick(&[(true, true), (true, true), (true, false), (false, true)]);
        let mut ways = Vec::new();
        for a in 0..count as usize {
            for b in 0..count as usize {
                if side.contains(&a) && !side.contains(&b) {
                    ways.extend(out.then_some((a, b)));
                    ways.extend(back.then_some((b, a)));
                }
            }
        }
        self.note(format_args!("fault: cut {ways:?}"));
        for (from, to) in &ways {
            self.cut_way(*from, *to);
            if self.random.chance(1, 4) {
                // A router that answers: both ends learn of it at once.
                self.break_standing(*from, *to, 5_000);
            }
        }
        self.end_later(Fault::Partition(ways));
    }

    fn end_later(&mut self, fault: Fault) {
        let ms = self.random.pick(&LASTS_MS);
        let after = 1 + self.random.below(ms * 1000);
        self.plan(after, Happening::End(fault));
    }

    fn strike_link_loss(&mut self) {
        if let Some((a, b)) = self.some_pair() {
            let learn_us = self.random.pick(&[500, 20_000, 1_000_000]);
            self.break_standing(a, b, learn_us);
        }
    }

    fn strike_slow_link(&mut self) {
        if let Some((a, b)) = self.some_pair() {
            let us = self.random.pick(&[5_000, 50_000, 400_000]);
            self.note(format_args!("fault: {a} to {b} slow by {us} us"));
            self.net.set_slow((a, b), us);
            self.end_later(Fault::SlowLink(a, b));
        }
    }

    fn strike_slow_disk(&mut self) {
        let node = self.some_node();
        let lag_us = self.random.pick(&[5_000, 50_000, 500_000]);
        let ms = self.random.pick(&LASTS_MS);
        let until_us = self.now_us + self.random.below(ms * 1000);
        self.note(format_args!("fault: disk of {node} slow by {lag_us} us"));
        self.nodes[node].slow_disk = (lag_us, until_us);
    }

    fn strike_io_error(&mut self) {
        if !self.settings.overlapping_cuts && !self.is_repaired() {
            return;
        }
        let node = self.some_node();
        let write = self.random.chance(1, 2);
        self.note(format_args!("fault: disk of {node} fails, write {write}"));
        match write {
            true => self.nodes[node].disk.fail_writes(1),
            false => self.nodes[node].disk.fail_syncs(1),
        }
    }

    fn strike_pause(&mut self) {
        let node = self.some_node();
        let ms = self.random.pick(&LASTS_MS);
        let us = 1 + self.random.below(ms * 1000);
        self.note(format_args!("fault: {node} stands still for {us} us"));
        self.paused_us += us;
        self.nodes[node].paused_until_us = self.now_us + us;
    }

    fn strike_clock_step(&mut self) {
        let node = self.some_node();
        let ms = self.random.pick(&[-3_600_000, -1_000, 1_000, 3_600_000]);
        self.note(format_args!("fault: clock of {node} steps {ms} ms"));
        self.nodes[node].wall_offset_ms += ms;
    }

    pub(super) fn end_fault(&mut self, fault: Fault) -> Checked<()> {
        self.note(format_args!("over: {fault:?}"));
        match fault {
            Fault::Partition(ways) => {
                for (from, to) in ways {
                    self.open_way(from, to);
                }
            }
            Fault::SlowLink(a, b) => self.net.set_slow((a, b), 0),
        }
        Ok(())
    }

    /// Everything that goes wrong is over; what is down starts.
    pub(super) fn heal(&mut self) {
        self.busy = false;
        self.note(format_args!("heal"));
        for (from, to) in self.net.blocked() {
            self.open_way(from, to);
        }
        self.net.all_fast();
        for node in 0..self.nodes.len() {
            let sim = &mut self.nodes[node];
            sim.slow_disk = (0, 0);
            sim.disk.fail_writes(0);
            sim.disk.fail_syncs(0);
            sim.paused_until_us = self.now_us;
            sim.halted_us = None;
            sim.sync_lag_us = 0;
            if !sim.up {
                self.start_later(node, 10);
            }
        }
    }
}
