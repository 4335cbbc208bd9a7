//! The keys of a cluster: who its nodes are, and what they share.

use std::{
    fs, io,
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use shards::driver::{ClusterOptions, Secret};
use thiserror::Error;
use wire::node::{is_cluster_name, MAX_MEMBERS};

use super::{address, ConfigError};

/// Shortest secret, in bytes.
const MIN_SECRET_BYTES: usize = 16;
/// Longest file that is read for one.
const MAX_SECRET_BYTES: u64 = 4096;
/// Longest address that clients are told.
const MAX_ADVERTISE_BYTES: usize = 255;
/// Largest node number.
const MAX_NODE: u32 = (1 << 24) - 1;

/// Why the keys of a cluster were not accepted. Each is one sentence for the user.
#[derive(Debug, Error)]
pub enum ClusterError {
    #[error("{key} is given without {missing}: a cluster needs both cluster = \"NAME\" and nodes = [\"1=ADDRESS:PORT\", ...]; leave all of its keys away for a node that is alone")]
    Alone {
        key: &'static str,
        missing: &'static str,
    },
    #[error("--join makes a directory that joins a cluster, and this node is configured for none: name the configuration file of its cluster with --config, or leave --join away")]
    JoinsNothing,
    #[error("--force-group-0 is for a cluster whose group 0 lost its majority, and this node is configured for none: name the configuration file of its cluster with --config, or leave it away")]
    ForcesNothing,
    #[error("{name:?} is not a cluster's name; choose 1 to 64 letters, digits, '-', '_' and '.'")]
    Name { name: String },
    #[error("{text:?} in nodes is not a node; write NUMBER=ADDRESS:PORT like \"1=127.0.0.1:7501\", numbers from 1 to {MAX_NODE}")]
    Node { text: String },
    #[error("nodes has {count} nodes; a cluster has 2 to {MAX_MEMBERS}, best 3 or 5")]
    Count { count: usize },
    #[error("nodes has node {node} twice; give each node its own number")]
    SameNumber { node: u32 },
    #[error("nodes {one} and {other} have the same address {address}; give each its own")]
    SameAddress {
        one: u32,
        other: u32,
        address: SocketAddr,
    },
    #[error("node {node} has the address {address}, which the others cannot call; name an address and a port (node_listen can be a wider address)")]
    Uncallable { node: u32, address: SocketAddr },
    #[error("this is node {own} and nodes has only {listed:?}; add it, or set node_id (or --node) to one of them")]
    OwnMissing { own: u32, listed: Vec<u32> },
    #[error("advertise = {text:?} is not where clients could reach this node; write HOST:PORT like \"10.0.0.1:7420\"")]
    Advertise { text: String },
    #[error("listen and the address for nodes are both {address}; clients and nodes need ports of their own")]
    SamePort { address: SocketAddr },
    #[error("the cluster's addresses are not all loopback, so its nodes need a shared secret: write 32 random bytes or more to a file of every node (head -c 32 /dev/urandom | base64 > FILE; chmod 600 FILE) and set cluster_secret = \"FILE\"")]
    SecretMissing,
    #[error("cannot read the file of cluster_secret {}: {source}", path.display())]
    SecretRead { path: PathBuf, source: io::Error },
    #[error("the file of cluster_secret {} has {bytes} bytes; a secret has {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES}, the same on every node (head -c 32 /dev/urandom | base64)", path.display())]
    SecretSize { path: PathBuf, bytes: u64 },
}

/// As the file has them.
pub(super) struct ClusterKeys {
    pub cluster: Option<String>,
    pub nodes: Option<Vec<String>>,
    pub node_listen: Option<String>,
    pub cluster_secret: Option<PathBuf>,
    /// The node joins: who is listed is where it asks, not what the cluster has.
    pub join: bool,
}

impl ClusterKeys {
    /// The cluster they describe for this node, if they do.
    pub(super) fn check(
        self,
        own: u32,
        clients: SocketAddr,
        remarks: &mut Vec<String>,
    ) -> Result<Option<ClusterOptions>, ConfigError> {
        let (name, nodes) = match (self.cluster, self.nodes) {
            (Some(name), Some(nodes)) => (name, nodes),
            (Some(_), None) => return Err(alone("cluster", "nodes")),
            (None, Some(_)) => return Err(alone("nodes", "cluster")),
            (None, None) if self.node_listen.is_some() => {
                return Err(alone("node_listen", "cluster"));
            }
            (None, None) if self.cluster_secret.is_some() => {
                return Err(alone("cluster_secret", "cluster"));
            }
            (None, None) => return Ok(None),
        };
        if !is_cluster_name(&name) {
            return Err(ClusterError::Name { name }.into());
        }
        let nodes = members(&nodes)?;
        let Some((_, named)) = nodes.iter().find(|(node, _)| *node == own) else {
            let listed = nodes.iter().map(|(node, _)| *node).collect();
            return Err(ClusterError::OwnMissing { own, listed }.into());
        };
        let listen = match &self.node_listen {
            Some(text) => address(text)?,
            None => *named,
        };
        for address in [listen, *named] {
            if address == clients {
                return Err(ClusterError::SamePort { address }.into());
            }
        }
        if nodes.len().is_multiple_of(2) && !self.join {
            remarks.push(format!(
                "a cluster of {} nodes goes on after the loss of {}, no more than one of {} would: an odd number is better",
                nodes.len(),
                tolerated(nodes.len()),
                nodes.len() - 1
            ));
        }
        let mut addresses = nodes.iter().map(|(_, address)| address);
        let is_local = listen.ip().is_loopback() && addresses.all(|at| at.ip().is_loopback());
        let secret = match &self.cluster_secret {
            Some(path) => Some(secret(path, remarks)?),
            None if is_local => None,
            None => return Err(ClusterError::SecretMissing.into()),
        };
        Ok(Some(ClusterOptions {
            name,
            nodes,
            listen,
            secret,
        }))
    }
}

/// Where clients are told to reach a node: a host of any kind and a port.
pub(super) fn reachable(text: String) -> Result<String, ConfigError> {
    let is_good = |host: &str, port: &str| {
        let odd = |c: char| c.is_whitespace() || c.is_control() || c == ',';
        let wild = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        !host.is_empty()
            && !host.contains(odd)
            && !wild.is_ok_and(|ip| ip.is_unspecified())
            && port.parse::<u16>().is_ok_and(|port| port > 0)
    };
    match text.rsplit_once(':') {
        Some((host, port)) if text.len() <= MAX_ADVERTISE_BYTES && is_good(host, port) => Ok(text),
        _ => Err(ClusterError::Advertise { text }.into()),
    }
}

fn alone(key: &'static str, missing: &'static str) -> ConfigError {
    ClusterError::Alone { key, missing }.into()
}

/// How many nodes may be down while a majority is there.
fn tolerated(nodes: usize) -> String {
    match (nodes - 1) / 2 {
        0 => "none".to_owned(),
        few => few.to_string(),
    }
}

/// The members, ascending.
fn members(texts: &[String]) -> Result<Vec<(u32, SocketAddr)>, ConfigError> {
    let mut nodes = Vec::new();
    for text in texts {
        nodes.push(member(text)?);
    }
    if !(2..=MAX_MEMBERS).contains(&nodes.len()) {
        let count = nodes.len();
        return Err(ClusterError::Count { count }.into());
    }
    nodes.sort_unstable();
    for (at, (node, address)) in nodes.iter().enumerate() {
        for (other, same) in nodes.iter().skip(at + 1) {
            if other == node {
                return Err(ClusterError::SameNumber { node: *node }.into());
            }
            if same == address {
                return Err(ClusterError::SameAddress {
                    one: *node,
                    other: *other,
                    address: *address,
                }
                .into());
            }
        }
    }
    Ok(nodes)
}

fn member(text: &str) -> Result<(u32, SocketAddr), ConfigError> {
    let wrong = || ClusterError::Node {
        text: text.to_owned(),
    };
    let (number, at) = text.split_once('=').ok_or_else(wrong)?;
    let node = number.trim().parse().map_err(|_| wrong())?;
    if !(1..=MAX_NODE).contains(&node) {
        return Err(wrong().into());
    }
    let address = address(at.trim())?;
    if address.port() == 0 || address.ip().is_unspecified() {
        return Err(ClusterError::Uncallable { node, address }.into());
    }
    Ok((node, address))
}

/// The file's bytes without white space around them.
fn secret(path: &Path, remarks: &mut Vec<String>) -> Result<Secret, ConfigError> {
    let at = || path.to_owned();
    let read = |source| ClusterError::SecretRead { path: at(), source };
    let facts = fs::metadata(path).map_err(read)?;
    let size = |bytes| ClusterError::SecretSize { path: at(), bytes };
    // Not of a device, which may have no end.
    if facts.len() > MAX_SECRET_BYTES || !facts.is_file() {
        return Err(size(facts.len()).into());
    }
    let bytes = fs::read(path).map_err(read)?;
    let bytes = bytes.trim_ascii();
    if bytes.len() < MIN_SECRET_BYTES {
        return Err(size(bytes.len() as u64).into());
    }
    if facts.permissions().mode() & 0o077 != 0 {
        remarks.push(format!(
            "the file of cluster_secret {} can be read by others on this machine: chmod 600 it",
            path.display()
        ));
    }
    Ok(Secret::new(bytes.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(
        nodes: &[&str],
        own: u32,
        change: impl FnOnce(&mut ClusterKeys),
    ) -> Result<(Option<ClusterOptions>, Vec<String>), String> {
        let mut keys = ClusterKeys {
            cluster: Some("test".to_owned()),
            nodes: Some(nodes.iter().map(|node| (*node).to_owned()).collect()),
            node_listen: None,
            cluster_secret: None,
            join: false,
        };
        change(&mut keys);
        let mut remarks = Vec::new();
        let clients = SocketAddr::from(([127, 0, 0, 1], 7420));
        let checked = keys.check(own, clients, &mut remarks);
        let checked = checked.map_err(|error| error.to_string())?;
        Ok((checked, remarks))
    }

    const THREE: [&str; 3] = ["1=127.0.0.1:7501", "2=127.0.0.1:7502", "3=127.0.0.1:7503"];

    #[test]
    fn each_mistake_has_its_own_sentence() {
        let none = |_: &mut ClusterKeys| {};
        let cases: [(&[&str], &str); 10] = [
            (&["1=127.0.0.1:7501"], "1 nodes; a cluster has 2 to 5"),
            (&[], "0 nodes"),
            (
                &[
                    "1=[::1]:1",
                    "2=[::1]:2",
                    "3=[::1]:3",
                    "4=[::1]:4",
                    "5=[::1]:5",
                    "6=[::1]:6",
                ],
                "6 nodes; a cluster has 2 to 5",
            ),
            (&["1=127.0.0.1:7501", "1=127.0.0.1:7502"], "node 1 twice"),
            (
                &["1=127.0.0.1:7501", "2=127.0.0.1:7501"],
                "nodes 1 and 2 have the same address 127.0.0.1:7501",
            ),
            (
                &["2=127.0.0.1:7502", "3=127.0.0.1:7503"],
                "this is node 1 and nodes has only [2, 3]",
            ),
            (
                &["127.0.0.1:7501"],
                "\"127.0.0.1:7501\" in nodes is not a node",
            ),
            (&["0=127.0.0.1:7501"], "numbers from 1 to 16777215"),
            (
                &["1=0.0.0.0:7501", "2=127.0.0.1:7502"],
                "which the others cannot call",
            ),
            (
                &["1=127.0.0.1:7420", "2=127.0.0.1:7502"],
                "are both 127.0.0.1:7420",
            ),
        ];
        for (nodes, expected) in cases {
            let error = check(nodes, 1, none).unwrap_err();
            assert!(error.contains(expected), "{nodes:?}: {error}");
            assert!(!error.contains('\n'), "one sentence: {error}");
        }
        let error = check(&["1=nowhere", "2=127.0.0.1:7502"], 1, none).unwrap_err();
        assert!(error.contains("nowhere"), "{error}");
    }

    #[test]
    fn keys_of_a_cluster_that_is_not_there_are_refused() {
        let error = check(&[], 1, |keys| keys.nodes = None).unwrap_err();
        assert!(error.contains("cluster is given without nodes"), "{error}");
        let error = check(&THREE, 1, |keys| keys.cluster = None).unwrap_err();
        assert!(error.contains("nodes is given without cluster"), "{error}");
        let error = check(&THREE, 1, |keys| keys.cluster = Some("a b".to_owned()));
        assert!(error
            .unwrap_err()
            .contains("\"a b\" is not a cluster's name"));
        let lone = |change: fn(&mut ClusterKeys)| {
            let checked = check(&[], 1, |keys| {
                keys.nodes = None;
                keys.cluster = None;
                change(keys);
            });
            checked.unwrap_err()
        };
        assert!(lone(|keys| keys.node_listen = Some("x".into())).contains("node_listen is given"));
        let error = lone(|keys| keys.cluster_secret = Some("x".into()));
        assert!(error.contains("cluster_secret is given"), "{error}");
    }

    #[test]
    fn an_even_number_of_nodes_is_said_and_an_odd_one_is_not() {
        let (options, remarks) = check(&THREE, 2, |_| {}).unwrap();
        let listen = SocketAddr::from(([127, 0, 0, 1], 7502));
        assert_eq!(options.unwrap().listen, listen);
        assert_eq!(remarks, Vec::<String>::new());
        let (_, remarks) = check(&THREE[..2], 2, |_| {}).unwrap();
        assert!(remarks[0].contains("a cluster of 2 nodes goes on after the loss of none"));
    }

    #[test]
    fn beyond_loopback_there_is_a_secret_of_some_length() {
        let far = ["1=127.0.0.1:7501", "2=192.0.2.1:7502", "3=127.0.0.1:7503"];
        let error = check(&far, 1, |_| {}).unwrap_err();
        assert!(error.contains("cluster_secret = \"FILE\""), "{error}");
        let wide = |keys: &mut ClusterKeys| keys.node_listen = Some("0.0.0.0:7501".to_owned());
        assert!(check(&THREE, 1, wide).is_err());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        let with = |keys: &mut ClusterKeys| keys.cluster_secret = Some(path.clone());
        let error = check(&far, 1, with).unwrap_err();
        assert!(
            error.contains("cannot read the file of cluster_secret"),
            "{error}"
        );
        fs::write(&path, "  fifteen letters\n").unwrap();
        assert!(check(&far, 1, with).unwrap_err().contains("has 15 bytes"));
        fs::write(&path, [b'x'; 4097]).unwrap();
        assert!(check(&far, 1, with).unwrap_err().contains("has 4097 bytes"));
        fs::write(&path, "sixteen letters!\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let (options, remarks) = check(&far, 1, with).unwrap();
        let secret = Some(Secret::new(b"sixteen letters!".to_vec()));
        assert_eq!(options.unwrap().secret, secret);
        assert!(remarks[0].contains("chmod 600"), "{remarks:?}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(check(&far, 1, with).unwrap().1.is_empty());
    }
}
