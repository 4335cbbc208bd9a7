//! Clusters of server processes on loopback addresses that nobody else uses.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU8, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    server::{Home, Server},
    PATIENCE,
};

static NEXT: AtomicU8 = AtomicU8::new(0);
const PORT: u16 = 7501;
const CLIENT_PORT: u16 = 7420;

/// Loopback addresses of one cluster's nodes.
pub struct Net {
    nodes: u32,
    first: [u8; 4],
    /// Added to the ports: there are more clusters than addresses.
    round: u16,
}

impl Net {
    /// All of 127/8 is this machine: no port has to be found free and kept.
    pub fn new(nodes: u32) -> Self {
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Net {
            nodes,
            first: [127, high.max(1), low, number % 31 * 8],
            round: u16::from(number / 31),
        }
    }

    /// Where the node listens for others.
    pub fn address(&self, node: u32) -> SocketAddr {
        let [a, b, c, d] = self.first;
        SocketAddr::from(([a, b, c, d + node as u8], PORT + self.round))
    }

    /// Where the node listens for clients, if it is told to: the same after a restart.
    pub fn for_clients(&self, node: u32) -> String {
        SocketAddr::new(self.address(node).ip(), CLIENT_PORT + self.round).to_string()
    }

    /// The line of a configuration file.
    pub fn nodes(&self) -> String {
        self.nodes_at(&[])
    }

    /// The same with some of the nodes elsewhere.
    pub fn nodes_at(&self, elsewhere: &[(u32, SocketAddr)]) -> String {
        let entry = |node| {
            let moved = elsewhere.iter().find(|(moved, _)| *moved == node);
            let address = moved.map_or(self.address(node), |(_, address)| *address);
            format!("\"{node}={address}\"")
        };
        let entries: Vec<String> = (1..=self.nodes).map(entry).collect();
        format!("nodes = [{}]", entries.join(", "))
    }

    /// A node's home without its `nodes` and `cluster`.
    pub fn bare(&self, node: u32, shards: u16) -> Home {
        Home::new(shards)
            .short_segments()
            .with(&format!("node_id = {node}"))
            .with("recovery_grace = \"1s\"")
    }

    /// A node's home.
    pub fn home(&self, node: u32, shards: u16) -> Home {
        self.bare(node, shards)
            .with("cluster = \"test\"")
            .with(&self.nodes())
    }
}

/// A running node and its home, which goes with it.
pub struct Node {
    server: Server,
    home: Home,
}

impl Node {
    pub fn start(home: Home) -> Self {
        let server = home.start();
        Node { server, home }
    }

    /// Waits until it has heard that group 0 knows whose directory it is.
    pub fn await_heard(&self) {
        let heard = self.home.data().join("heard");
        let start = Instant::now();
        while !std::fs::read_to_string(&heard).is_ok_and(|text| text.contains("whole 1")) {
            assert!(start.elapsed() < PATIENCE, "group 0 did not note the start");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Its home, of one that ended by itself.
    pub fn into_home(self) -> Home {
        self.home
    }

    /// `SIGTERM`; its home stays.
    pub fn terminate(self) -> (Home, Vec<String>) {
        let (_, said) = self.server.terminate();
        (self.home, said)
    }

    /// Stops it cleanly; its home stays.
    pub fn stop(self) -> Home {
        self.server.stop();
        self.home
    }

    /// `SIGKILL`; its home stays.
    pub fn kill(self) -> Home {
        self.server.kill();
        self.home
    }
}

impl std::ops::Deref for Node {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl std::ops::DerefMut for Node {
    fn deref_mut(&mut self) -> &mut Server {
        &mut self.server
    }
}

/// Waits until the server said a line with these words `times` times.
pub fn await_said(server: &Server, words: &str, times: usize) -> String {
    let start = Instant::now();
    loop {
        let lines = server.errors();
        let mut found = lines.iter().filter(|line| line.contains(words));
        if let Some(line) = found.nth(times - 1) {
            return line.clone();
        }
        assert!(
            start.elapsed() < PATIENCE,
            "{words:?} was not said {times} times: {lines:#?}"
        );
        thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until it was said; by now it was said once.
pub fn assert_said_once(server: &Server, words: &str) {
    await_said(server, words, 1);
    assert_eq!(said(server, words), 1, "{words}: {:?}", server.errors());
}

/// How often the server said these words so far.
pub fn said(server: &Server, words: &str) -> usize {
    let lines = server.errors();
    lines.iter().filter(|line| line.contains(words)).count()
}
