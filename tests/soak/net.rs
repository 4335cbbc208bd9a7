//! A network of this process alone: a bridge, and a namespace for each node, joined to
//! it by a pair of virtual links.
//!
//! 1. The test's thread is in a network and a mount namespace of its own, so that all of
//!    it vanishes with the process.
//! 2. What is cut is cut without a word: packets of a link that is down, or to a
//!    hardware address that nobody has, go nowhere, and no side is told.

use std::{
    io,
    process::{Child, Command, Stdio},
};

use rustix::thread::{unshare_unsafe, UnshareFlags};

/// Where clients are.
const OUTSIDE: &str = "10.77.0.254/24";
/// An address of no device.
const NOBODY: &str = "02:00:00:00:00:fe";

/// Moves this thread, and what it starts, into namespaces of its own.
///
/// # Errors
/// The process is not root, or the kernel has none.
pub fn private() -> io::Result<()> {
    powercut_fs::private_mounts()?;
    // SAFETY: another network namespace changes which sockets and links can be made. It
    // leaves the table of file descriptors alone, which is what the function asks its
    // callers to prove.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
    Ok(())
}

/// Runs a program; what it says is the error.
fn run(words: &[&str]) -> io::Result<()> {
    let (program, arguments) = words.split_first().expect("a program");
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{words:?}: {}", said.trim())))
}

/// A node's namespace.
struct Place {
    /// A process that does nothing but be in it.
    holder: Child,
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// See the module head.
pub struct Network {
    places: Vec<Place>,
}

impl Network {
    /// # Errors
    /// A namespace or a link cannot be made.
    pub fn new(nodes: u32) -> io::Result<Self> {
        run(&["ip", "link", "set", "lo", "up"])?;
        run(&["ip", "link", "add", "br0", "type", "bridge"])?;
        run(&["ip", "addr", "add", OUTSIDE, "dev", "br0"])?;
        run(&["ip", "link", "set", "br0", "up"])?;
        let mut network = Network { places: Vec::new() };
        for node in 1..=nodes {
            network.add(node)?;
        }
        Ok(network)
    }

    fn add(&mut self, node: u32) -> io::Result<()> {
        let holder = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "-n", "sh", "-c"])
            .args(["echo there; exec sleep 1000000"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        self.places.push(Place { holder });
        let place = self.places.last_mut().expect("just pushed");
        let mut said = io::BufReader::new(place.holder.stdout.take().expect("piped"));
        io::BufRead::read_line(&mut said, &mut String::new())?;
        let (link, pid) = (link_of(node), place.holder.id().to_string());
        let hardware = hardware_of(node);
        run(&[
            "ip", "link", "add", &link, "type", "veth", "peer", "name", "eth0", "address",
            &hardware, "netns", &pid,
        ])?;
        run(&["ip", "link", "set", &link, "master", "br0", "up"])?;
        let address = format!("{}/24", address_of(node));
        self.within(node, &["ip", "addr", "add", &address, "dev", "eth0"])?;
        self.within(node, &["ip", "link", "set", "eth0", "up"])?;
        self.within(node, &["ip", "link", "set", "lo", "up"])
    }

    fn within(&self, node: u32, words: &[&str]) -> io::Result<()> {
        let prefix = self.prefix(node);
        let prefix: Vec<&str> = prefix.iter().map(String::as_str).collect();
        run(&[prefix.as_slice(), words].concat())
    }

    /// What to put in front of a command so that it runs in the node's namespace, and
    /// ends with the thread that started it.
    pub fn prefix(&self, node: u32) -> Vec<String> {
        let pid = self.places[node as usize - 1].holder.id();
        let words = ["nsenter", "-n", "-t", &pid.to_string(), "setpriv"];
        let words = words.into_iter().chain(["--pdeathsig", "KILL"]);
        words.map(str::to_owned).collect()
    }

    /// Nothing comes to the node or from it, be it a node or a client.
    pub fn isolate(&self, node: u32) {
        run(&["ip", "link", "set", &link_of(node), "down"]).unwrap();
    }

    pub fn reconnect(&self, node: u32) {
        run(&["ip", "link", "set", &link_of(node), "up"]).unwrap();
    }

    /// What `from` sends to `to` goes nowhere; the other way is open.
    pub fn cut_way(&self, from: u32, to: u32) {
        self.neighbour(from, to, NOBODY);
    }

    pub fn mend_way(&self, from: u32, to: u32) {
        self.neighbour(from, to, &hardware_of(to));
    }

    fn neighbour(&self, from: u32, to: u32, hardware: &str) {
        let to = address_of(to);
        let words = ["ip", "neigh", "replace", &to, "lladdr", hardware];
        let words = [&words[..], &["nud", "permanent", "dev", "eth0"]].concat();
        self.within(from, &words).unwrap();
    }

    /// What the node sends comes at this rate, and what does not fit is lost.
    pub fn slow_down(&self, node: u32, rate: &str) {
        let words = ["tc", "qdisc", "replace", "dev", "eth0", "root", "tbf"];
        let words = [
            &words[..],
            &["rate", rate, "burst", "16kb", "limit", "64kb"],
        ]
        .concat();
        self.within(node, &words).unwrap();
    }

    pub fn full_speed(&self, node: u32) {
        let words = ["tc", "qdisc", "del", "dev", "eth0", "root"];
        self.within(node, &words).unwrap();
    }
}

fn link_of(node: u32) -> String {
    format!("node{node}")
}

fn hardware_of(node: u32) -> String {
    format!("02:00:00:00:00:{node:02x}")
}

fn address_of(node: u32) -> String {
    format!("10.77.0.{node}")
}

/// Where the node listens for the others.
pub fn for_nodes(node: u32) -> String {
    format!("{}:7501", address_of(node))
}

/// Where it listens for clients.
pub fn for_clients(node: u32) -> String {
    format!("{}:7420", address_of(node))
}
