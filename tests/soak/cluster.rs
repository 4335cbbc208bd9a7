//! The machines: a disk that can lose its power, a place in the network, a server that
//! runs or does not.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt,
    time::{Duration, Instant},
};

use client::{Client, NodeStatus};
use powercut_fs::{Fault, Operation, PowercutFs};
use rustix::process::{kill_process, Pid, Signal};
use tempfile::TempDir;

use crate::{
    net::{for_clients, for_nodes, Network},
    support::{
        server::{quick, Home, Server},
        Random,
    },
};

/// A healed cluster is whole again within this.
const WHOLE: Duration = Duration::from_secs(180);

/// For so long it has to stay so.
const STAYS_WHOLE: Duration = Duration::from_secs(2);

pub struct Machine {
    pub node: u32,
    home: Home,
    disk: PowercutFs,
    server: Option<Server>,
    boots: u64,
    /// What servers said that are no more.
    said: Vec<String>,
    // Last: the disk is mounted in it.
    _directory: TempDir,
}

impl Machine {
    fn new(node: u32, nodes: u32, network: &Network, random: &mut Random) -> Self {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mount = directory.path().join("disk");
        fs::create_dir(&mount).unwrap();
        let secret = directory.path().join("secret");
        fs::write(&secret, "a secret of this test and no other").unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        let disk = PowercutFs::mount(&mount, random.next()).unwrap();
        let members: Vec<String> = (1..=nodes)
            .map(|node| format!("\"{node}={}\"", for_nodes(node)))
            .collect();
        let home = Home::new(1)
            .short_segments()
            .data_at(&mount.join("data"))
            .listening_on(&for_clients(node))
            .through(network.prefix(node))
            .with(&format!("node_id = {node}"))
            .with("cluster = \"soak\"")
            .with("recovery_grace = \"3s\"")
            .with(&format!("cluster_secret = {secret:?}"))
            .with(&format!("nodes = [{}]", members.join(", ")));
        let mut machine = Machine {
            node,
            home,
            disk,
            server: None,
            boots: 0,
            said: Vec::new(),
            _directory: directory,
        };
        machine.boot();
        machine
    }

    /// As after a reboot: another boot id, and nothing in `/run`.
    fn boot(&mut self) {
        self.boots += 1;
        let id = format!("{:030x}{:02x}", self.boots, self.node);
        self.home.reboot(&id);
    }

    pub fn is_up(&self) -> bool {
        self.server.is_some()
    }

    pub fn start(&mut self) {
        assert!(self.server.is_none());
        self.server = Some(self.home.start());
    }

    fn take(&mut self) -> Option<Server> {
        let server = self.server.take()?;
        self.said.extend(server.errors());
        Some(server)
    }

    /// `SIGKILL`.
    pub fn kill(&mut self) {
        if let Some(server) = self.take() {
            server.kill();
        }
    }

    /// `SIGTERM`; it may take its time.
    pub fn stop(&mut self) {
        if let Some(server) = self.take() {
            let (status, said) = server.terminate();
            assert!(status.success(), "{status}: {said:?}");
        }
    }

    /// Its power goes: unsynced sectors and names are lost as chance has it.
    pub fn cut_power(&mut self) {
        self.lose_power();
        self.fall();
    }

    /// The power goes: nothing that touches the disk comes back from now on.
    pub fn lose_power(&self) {
        let _ = self.disk.cut();
    }

    /// The process of a machine without power ends, and the disk is there again.
    pub fn fall(&mut self) {
        if let Some(server) = self.take() {
            server.kill_and(|| self.disk.refuse());
        }
        self.disk.power_on().unwrap();
        self.boot();
    }

    /// The next sync of a log's segment fails.
    pub fn fail_next_sync(&self) {
        self.disk.fail(Fault {
            operation: Operation::Sync,
            of: |name| name.starts_with("seg-") && !name.ends_with(".tmp"),
            errno: libc::EIO,
            after: 0,
            times: 1,
        });
    }

    /// Faults that did not come do not come.
    pub fn mend_disk(&self) {
        self.disk.clear_faults();
    }

    /// Operations of its disk that failed.
    pub fn failures(&self) -> u64 {
        self.disk.counts().faults
    }

    fn signal(&self, signal: Signal) {
        if let Some(server) = &self.server {
            let pid = Pid::from_raw(server.pid() as i32).unwrap();
            kill_process(pid, signal).unwrap();
        }
    }

    /// Its process stands still.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Everything its servers said.
    pub fn said(&self) -> Vec<String> {
        let mut said = self.said.clone();
        said.extend(self.server.iter().flat_map(Server::errors));
        said
    }

    async fn status(&self) -> Option<NodeStatus> {
        let client = quick()
            .patience(Duration::from_secs(1))
            .request_timeout(Duration::from_secs(2))
            .connect(for_clients(self.node));
        let client = client.await.ok()?;
        client.node_status(None).await.ok()
    }
}

pub struct Cluster {
    pub machines: Vec<Machine>,
    pub network: Network,
}

impl Cluster {
    pub fn start(nodes: u32, random: &mut Random) -> Self {
        let network = Network::new(nodes).unwrap();
        let mut machines: Vec<Machine> = (1..=nodes)
            .map(|node| Machine::new(node, nodes, &network, random))
            .collect();
        machines.iter_mut().for_each(Machine::start);
        Cluster { machines, network }
    }

    pub fn machine(&self, node: u32) -> &Machine {
        &self.machines[node as usize - 1]
    }

    pub fn machine_mut(&mut self, node: u32) -> &mut Machine {
        &mut self.machines[node as usize - 1]
    }

    pub fn nodes(&self) -> u32 {
        self.machines.len() as u32
    }

    /// Addresses for clients, some node first.
    pub fn servers(&self, random: &mut Random) -> Vec<String> {
        let nodes = u64::from(self.nodes());
        let first = random.between(0, nodes - 1);
        let node = |step| (first + step) % nodes + 1;
        (0..nodes)
            .map(|step| for_clients(node(step) as u32))
            .collect()
    }

    pub async fn client(&self, random: &mut Random) -> Client {
        let builder = quick()
            .patience(Duration::from_secs(60))
            .publish_deadline(Duration::from_secs(5));
        builder.connect(self.servers(random)).await.unwrap()
    }

    /// Waits until every node is linked to every other, every group has a leader that
    /// serves, and every replica votes; and for a while longer: a replica that may have
    /// forgotten something is not retired at once.
    pub async fn await_whole(&self) -> Duration {
        let start = Instant::now();
        let mut since = None;
        loop {
            let Some(missing) = self.missing().await else {
                let since: Instant = *since.get_or_insert_with(Instant::now);
                if since.elapsed() > STAYS_WHOLE {
                    return since - start;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            since = None;
            if start.elapsed() > WHOLE {
                for machine in &self.machines {
                    let said = machine.said();
                    let tail = said.len().saturating_sub(30);
                    eprintln!("node {} said: {:#?}", machine.node, &said[tail..]);
                }
                panic!("the healed cluster is not whole after {WHOLE:?}: {missing}");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn missing(&self) -> Option<String> {
        let nodes = self.machines.len();
        let mut groups = BTreeSet::new();
        let mut led = BTreeSet::new();
        for machine in &self.machines {
            let node = machine.node;
            let Some(status) = machine.status().await else {
                return Some(format!("node {node} does not say"));
            };
            let linked = status
                .nodes
                .iter()
                .all(|seen| seen.unlinked_shards.is_empty());
            if !linked || !status.latched_shards.is_empty() || !status.recoveries.is_empty() {
                return Some(format!("{status:?}"));
            }
            for replica in &status.replicas {
                groups.insert(replica.group);
                if replica.serving {
                    led.insert(replica.group);
                }
                let votes = replica.voters.contains(&replica.peer);
                if replica.voters.len() != nodes || !replica.learners.is_empty() || !votes {
                    return Some(format!("node {node}: {replica:?}"));
                }
            }
        }
        let without = groups.difference(&led).next();
        without.map(|group| format!("nobody leads group {group}"))
    }
}
