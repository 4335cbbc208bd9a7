//! Three server processes of its own, on loopback, that die and come back.
//!
//! What a crash of this program leaves behind: the processes and their directory.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use crate::{error::LoadError, sys};

/// Nodes of the cluster.
pub const NODES: u32 = 3;
/// Added to a node's port for clients to get its port for nodes.
const NODE_PORTS: u16 = 100;

/// A running cluster; killed, and its directory removed, when dropped.
pub struct Cluster {
    program: PathBuf,
    dir: PathBuf,
    base_port: u16,
    children: Vec<Option<Child>>,
}

impl Cluster {
    /// Starts `program serve` three times, with data in a new directory in `parent`.
    /// Node N listens for clients on port `base_port` + N.
    ///
    /// # Errors
    /// The directory cannot be made, or a process not be started.
    pub fn start(program: &Path, parent: &Path, base_port: u16) -> Result<Cluster, LoadError> {
        let name = format!("tidegate-failover-{}-{}", std::process::id(), sys::now_ns());
        let cluster = Cluster {
            program: program.to_owned(),
            dir: parent.join(name),
            base_port,
            children: (0..NODES).map(|_| None).collect(),
        };
        fs::create_dir_all(&cluster.dir).map_err(LoadError::io("cannot make a directory"))?;
        fs::write(cluster.dir.join("cluster.toml"), cluster.configuration())
            .map_err(LoadError::io("cannot write the configuration"))?;
        let mut cluster = cluster;
        for node in 1..=NODES {
            cluster.restart(node)?;
        }
        Ok(cluster)
    }

    /// The configuration that all nodes share.
    pub fn configuration(&self) -> String {
        let node = |node: u32| format!("\"{node}={}\"", self.address(node, NODE_PORTS));
        let nodes: Vec<String> = (1..=NODES).map(node).collect();
        format!(
            "cluster = \"failover\"\nnodes = [{}]\nshards = 1\nsegment_size = \"16MiB\"\npin_cores = false\nallow_any_file_system = true\n",
            nodes.join(", ")
        )
    }

    fn address(&self, node: u32, more: u16) -> String {
        format!("127.0.0.1:{}", self.base_port + more + node as u16)
    }

    /// Where clients find the nodes, separated by commas.
    pub fn servers(&self) -> String {
        let addresses: Vec<String> = (1..=NODES).map(|node| self.address(node, 0)).collect();
        addresses.join(",")
    }

    /// Where the nodes' data is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn slot(&mut self, node: u32) -> Result<&mut Option<Child>, LoadError> {
        let at = (node as usize).checked_sub(1);
        at.and_then(|at| self.children.get_mut(at))
            .ok_or_else(|| LoadError::Protocol(format!("there is no node {node}")))
    }

    /// Starts the node on its data.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn restart(&mut self, node: u32) -> Result<(), LoadError> {
        let io = LoadError::io("cannot start a node");
        let said = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.dir.join(format!("node-{node}.log")));
        let said = said.map_err(LoadError::io("cannot write a node's log"))?;
        let child = Command::new(&self.program)
            .arg("serve")
            .arg("--config")
            .arg(self.dir.join("cluster.toml"))
            .args(["--node", &node.to_string()])
            .args(["--listen", &self.address(node, 0)])
            .arg("--data")
            .arg(self.dir.join(format!("node-{node}")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(said)
            .spawn()
            .map_err(io)?;
        *self.slot(node)? = Some(child);
        Ok(())
    }

    /// `SIGKILL`. Gives when it was sent and when the process was gone, in ns.
    ///
    /// # Errors
    /// It was not running.
    pub fn kill(&mut self, node: u32) -> Result<(u64, u64), LoadError> {
        let Some(mut child) = self.slot(node)?.take() else {
            return Err(LoadError::Impossible(format!("node {node} does not run")));
        };
        let sent = sys::now_ns();
        child.kill().map_err(LoadError::io("cannot kill a node"))?;
        child.wait().map_err(LoadError::io("cannot await a node"))?;
        Ok((sent, sys::now_ns()))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            // It may have ended by itself; then there is nothing to stop.
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}
