//! A data directory belongs to its cluster, its node number and its members.

use std::{collections::BTreeMap, fs, path::Path};

use crate::{net::Net, support::server::Home};

/// Every file and its bytes, but for the lock, whose text is a process's id.
fn files(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut directories = vec![path.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                directories.push(entry.path());
            } else if entry.file_name() != "lock" {
                let bytes = fs::read(entry.path()).unwrap();
                found.insert(entry.path().display().to_string(), bytes);
            }
        }
    }
    found
}

fn refused(home: &Home, words: &str) {
    let before = files(&home.data());
    let said = home.spawn().await_listening().unwrap_err().join("\n");
    assert!(said.contains(words), "{words:?}: {said}");
    assert!(
        files(&home.data()) == before,
        "{words:?}: something was changed"
    );
}

#[test]
fn a_directory_of_a_cluster_is_refused_by_another_one_untouched() {
    let net = Net::new(3);
    let home = net.home(2, 1);
    home.start().terminate();
    let identity = fs::read_to_string(home.data().join("identity")).unwrap();
    assert!(identity.starts_with("tidegate 2\nnode 2\n"), "{identity}");
    assert!(
        identity.ends_with("cluster test\nnodes 1 2 3\n"),
        "{identity}"
    );
    let data = home.data();
    let other = net
        .bare(2, 1)
        .with("cluster = \"other\"")
        .with(&net.nodes());
    refused(
        &other.data_at(&data),
        "belongs to cluster \"test\" and this server is configured for cluster \"other\"",
    );
    let alone = net.bare(2, 1).data_at(&data);
    refused(&alone, "configured for no cluster");
    let node = net.home(3, 1).data_at(&data);
    refused(
        &node,
        "belongs to node 2 and this server is configured as node 3",
    );
    let five = Net::new(5).home(2, 1).data_at(&data);
    refused(&five, "nodes [1, 2, 3] and nodes has [1, 2, 3, 4, 5]");
    // Addresses may change; and it is as it was.
    Net::new(3).home(2, 1).data_at(&data).start().terminate();
    home.start().terminate();
}

#[test]
fn a_directory_of_a_node_alone_stays_alone_and_keeps_its_format() {
    let net = Net::new(3);
    let home = net.bare(2, 1);
    home.start().terminate();
    let identity = fs::read_to_string(home.data().join("identity")).unwrap();
    assert!(identity.starts_with("tidegate 1\nnode 2\n"), "{identity}");
    let joined = net.home(2, 1).data_at(&home.data());
    refused(
        &joined,
        "belongs to no cluster and this server is configured for cluster \"test\"",
    );
    home.start().terminate();
}

#[test]
fn a_port_for_nodes_that_is_taken_is_said() {
    let net = Net::new(3);
    let _taken = std::net::TcpListener::bind(net.address(1)).unwrap();
    let said = net
        .home(1, 1)
        .spawn()
        .await_listening()
        .unwrap_err()
        .join("\n");
    assert!(said.contains("cannot listen for other nodes on"), "{said}");
    assert!(said.contains("node_listen"), "{said}");
}
