//! Clean stops: what a node says when it ends, and what is there afterwards.

use std::{collections::BTreeSet, thread};

use client::DeclareOptions;

use crate::{
    net::{await_said, Net, Node},
    replication::{client_of, drain, publish, QUEUES},
    support::size,
};

/// Every node hands over what it leads to nodes that stop, too: that must end, and each
/// leaves a clean marker.
#[tokio::test]
async fn all_nodes_stop_cleanly_at_the_same_time() {
    let net = Net::new(3);
    let mut nodes: Vec<Node> = (1..=3).map(|node| Node::start(net.home(node, 1))).collect();
    let mut number = 0;
    let mut confirmed = [BTreeSet::new(), BTreeSet::new()];
    for round in 0..size(4, 25) {
        for node in &nodes {
            await_said(node, "is linked", 2);
        }
        let client = client_of(&nodes[round % 3]).await;
        for ((name, mode), confirmed) in QUEUES.iter().zip(&mut confirmed) {
            while client
                .declare(DeclareOptions::new(*name).mode(*mode))
                .await
                .is_err()
            {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            confirmed.insert(publish(&client, name, &mut number).await);
        }
        let stopping = nodes.drain(..).map(|node| thread::spawn(|| node.stop()));
        let stopping: Vec<_> = stopping.collect();
        let homes = stopping.into_iter().map(|node| node.join().unwrap());
        let homes: Vec<_> = homes.collect();
        nodes.extend(homes.into_iter().map(Node::start));
    }
    let client = client_of(&nodes[0]).await;
    for ((name, _), confirmed) in QUEUES.iter().zip(&confirmed) {
        drain(&client, name, confirmed).await;
    }
}
