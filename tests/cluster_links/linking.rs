//! Nodes that agree are linked, and again after whatever ended it.

use std::fs;

use crate::{
    net::{await_said, said, Net, Node},
    support::server::{Home, Server},
};

#[test]
fn two_nodes_are_linked_on_every_shard_and_again_after_each_was_killed() {
    let net = Net::new(2);
    let homes = [net.home(1, 2), net.home(2, 2)];
    let mut one = homes[0].start();
    let mut two = homes[1].start();
    await_said(
        &one,
        "a cluster of 2 nodes goes on after the loss of none",
        1,
    );
    await_said(&one, "node 2 is linked", 1);
    await_said(&two, "node 1 is linked", 1);
    for round in 1..=2 {
        two.kill();
        await_said(&one, "node 2 is not linked: ", round);
        two = homes[1].start();
        await_said(&two, "node 1 is linked", 1);
        await_said(&one, "node 2 is linked again", round);
    }
    one.kill();
    await_said(&two, "node 1 is not linked: ", 1);
    one = homes[0].start();
    await_said(&one, "node 2 is linked", 1);
    await_said(&two, "node 1 is linked again", 1);
    assert_eq!(said(&one, "refuse"), 0);
    assert_eq!(said(&two, "refuse"), 0);
}

fn await_all(servers: &[Server]) {
    for (at, server) in servers.iter().enumerate() {
        for other in (1..=servers.len()).filter(|other| *other != at + 1) {
            await_said(server, &format!("node {other} is linked"), 1);
        }
    }
}

#[test]
fn three_nodes_with_a_secret_are_linked_and_a_stop_is_told() {
    let net = Net::new(3);
    let dir = tempfile::tempdir().unwrap();
    let homes: Vec<Home> = (1..=3)
        .map(|node| {
            // Each has its own copy, one with white space around it.
            let path = dir.path().join(node.to_string());
            let end = if node == 2 { " \n\n" } else { "" };
            fs::write(&path, format!("a secret of sixteen or more{end}")).unwrap();
            let line = format!("cluster_secret = {path:?}");
            net.home(node, 1).with(&line)
        })
        .collect();
    let mut servers: Vec<Server> = homes.iter().map(Home::start).collect();
    await_all(&servers);
    servers.remove(1).kill();
    await_said(&servers[0], "node 2 is not linked", 1);
    await_said(&servers[1], "node 2 is not linked", 1);
    servers.insert(1, homes[1].start());
    await_all(&servers);
    await_said(&servers[0], "node 2 is linked again", 1);
    await_said(&servers[2], "node 2 is linked again", 1);
    servers.remove(0).terminate();
    await_said(&servers[0], "node 1 is not linked: node 1 stops", 1);
    await_said(&servers[1], "node 1 is not linked: node 1 stops", 1);
}

#[test]
fn a_node_that_finds_nobody_says_so_and_serves() {
    let net = Net::new(3);
    let server = Node::start(net.home(2, 1));
    await_said(
        &server,
        "node 1 is not linked: nobody listens at its address",
        1,
    );
    await_said(&server, "node 3 is not linked: it has not called yet", 1);
}
