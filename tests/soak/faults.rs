//! What happens to a cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    cluster::{Cluster, Machine},
    support::Random,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// `SIGKILL`, and a start soon after.
    Kill,
    /// `SIGTERM`, and a start.
    Restart,
    /// `SIGSTOP`, later `SIGCONT`.
    Freeze,
    /// The power of one machine goes.
    PowerCut,
    /// The power of all machines goes at once.
    PowerCutOfAll,
    /// The next sync of a log fails, and forgets what it should have made durable; later
    /// ones succeed.
    FailedSync,
    /// One node is cut off from everybody, clients too.
    Isolate,
    /// Two nodes cannot reach each other.
    Partition,
    /// One cannot reach the other, which can reach it.
    OneWay,
    /// What a node sends comes slowly, and part of it is lost.
    SlowLink,
}

/// Kinds and their weights.
const KINDS: [(Fault, u64); 10] = [
    (Fault::Kill, 5),
    (Fault::Restart, 2),
    (Fault::Freeze, 4),
    (Fault::PowerCut, 4),
    (Fault::PowerCutOfAll, 1),
    (Fault::FailedSync, 2),
    (Fault::Isolate, 3),
    (Fault::Partition, 3),
    (Fault::OneWay, 4),
    (Fault::SlowLink, 2),
];

fn some_fault(random: &mut Random) -> Fault {
    let all = KINDS.iter().map(|(_, weight)| weight).sum::<u64>();
    let mut at = random.between(1, all);
    for (fault, weight) in KINDS {
        if at <= weight {
            return fault;
        }
        at -= weight;
    }
    Fault::Kill
}

/// What happened so far.
#[derive(Debug, Default)]
pub struct Faults {
    pub counts: BTreeMap<Fault, u64>,
    /// Machines that lost power since the cluster was whole.
    pub hurt: BTreeSet<u32>,
    cut: BTreeSet<(u32, u32)>,
    isolated: BTreeSet<u32>,
    frozen: BTreeSet<u32>,
    slow: BTreeSet<u32>,
}

impl Faults {
    /// Lets one thing happen; it may not be over yet when this returns.
    pub fn strike(&mut self, cluster: &mut Cluster, random: &mut Random) -> String {
        let fault = some_fault(random);
        self.strike_as(fault, cluster, random)
    }

    /// The same, of this kind.
    pub fn strike_as(
        &mut self,
        fault: Fault,
        cluster: &mut Cluster,
        random: &mut Random,
    ) -> String {
        let nodes = u64::from(cluster.nodes());
        let node = random.between(1, nodes) as u32;
        let other = (u64::from(node) + random.between(0, nodes - 2)) % nodes + 1;
        let other = other as u32;
        *self.counts.entry(fault).or_default() += 1;
        let machine = &mut cluster.machines[node as usize - 1];
        // A process that stands still neither stops nor is it killed twice.
        if self.frozen.remove(&node) {
            machine.thaw();
        }
        match fault {
            Fault::Kill => machine.kill(),
            Fault::Restart => machine.stop(),
            Fault::Freeze => {
                machine.freeze();
                self.frozen.insert(node);
            }
            Fault::PowerCut => {
                machine.cut_power();
                self.hurt.insert(node);
            }
            Fault::PowerCutOfAll => {
                // All disks stand still before the first process dies.
                cluster.machines.iter().for_each(Machine::lose_power);
                for machine in &mut cluster.machines {
                    self.frozen.remove(&machine.node);
                    machine.fall();
                    self.hurt.insert(machine.node);
                }
            }
            Fault::FailedSync => {
                machine.fail_next_sync();
                self.hurt.insert(node);
            }
            Fault::Isolate => {
                cluster.network.isolate(node);
                self.isolated.insert(node);
            }
            Fault::Partition => {
                self.cut_way(cluster, node, other);
                self.cut_way(cluster, other, node);
            }
            Fault::OneWay => self.cut_way(cluster, node, other),
            Fault::SlowLink => {
                cluster.network.slow_down(node, "1mbit");
                self.slow.insert(node);
            }
        }
        let others = matches!(fault, Fault::Partition | Fault::OneWay);
        let to = if others {
            format!(" and {other}")
        } else {
            String::new()
        };
        format!("{fault:?} of {node}{to}")
    }

    fn cut_way(&mut self, cluster: &Cluster, from: u32, to: u32) {
        cluster.network.cut_way(from, to);
        self.cut.insert((from, to));
    }

    /// Ends some of what goes on: what has a process down or still, or a way cut.
    pub fn ease(&mut self, cluster: &mut Cluster, random: &mut Random) {
        for machine in &mut cluster.machines {
            if !machine.is_up() && random.between(0, 2) > 0 {
                machine.start();
            }
        }
        if random.between(0, 1) > 0 {
            self.open(cluster);
        }
    }

    fn open(&mut self, cluster: &mut Cluster) {
        for (from, to) in std::mem::take(&mut self.cut) {
            cluster.network.mend_way(from, to);
        }
        for node in std::mem::take(&mut self.isolated) {
            cluster.network.reconnect(node);
        }
        for node in std::mem::take(&mut self.frozen) {
            cluster.machines[node as usize - 1].thaw();
        }
        for node in std::mem::take(&mut self.slow) {
            cluster.network.full_speed(node);
        }
    }

    /// Ends all that goes on.
    pub fn heal(&mut self, cluster: &mut Cluster) {
        self.open(cluster);
        for machine in &mut cluster.machines {
            machine.mend_disk();
            if !machine.is_up() {
                machine.start();
            }
        }
    }

    /// A pause between two of them.
    pub async fn pause(random: &mut Random) {
        let ms = match random.between(0, 3) {
            0 => random.between(10, 200),
            _ => random.between(200, 2_500),
        };
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}
