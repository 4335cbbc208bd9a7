//! Copies that a confirm asks for and that are not there.

use std::time::Duration;

use client::{Client, Copies, DeclareOptions, ErrorCode, Mode};

use crate::{
    net::{await_said, Net, Node},
    support::{server::quick, PATIENCE},
};

/// W = all with a node down: no publish is confirmed on fewer copies, and the error names
/// the node; the record is confirmed by its barrier once the node is back.
#[tokio::test]
async fn a_publish_that_lacks_copies_at_its_deadline_is_told_whose() {
    let net = Net::new(3);
    let start = |node| Node::start(net.home(node, 1));
    let nodes = [start(1), start(2)];
    let third = start(3);
    await_said(&third, "is linked", 2);
    let client: Client = nodes[0]
        .client_with(quick().publish_deadline(Duration::from_secs(2)))
        .await;
    for (name, mode) in [("safe", Mode::Durable), ("quick", Mode::Buffered)] {
        let since = std::time::Instant::now();
        let options = || DeclareOptions::new(name).mode(mode).copies(Copies::All);
        while let Err(error) = client.declare(options()).await {
            assert!(since.elapsed() < PATIENCE, "{error}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        confirmed(&client, name).await;
    }
    let home = third.kill();
    await_said(&nodes[0], "node 3 is not linked", 1);
    for (name, boundary) in [("safe", "durable"), ("quick", "written")] {
        // Another error only while node 3 led the group.
        let since = std::time::Instant::now();
        let error = loop {
            let refused = client.publish(name, "one").await.unwrap_err();
            if refused.code() == Some(ErrorCode::MissingCopies) {
                break refused;
            }
            assert!(since.elapsed() < PATIENCE, "{refused}");
        };
        assert!(error.is_unknown());
        let said = error.to_string();
        let copies = format!("with 1 of the 2 copies on other nodes {boundary} ");
        assert!(said.contains(&copies), "{said}");
        assert!(said.contains("missing: node 3;"), "{said}");
    }
    let _third = Node::start(home);
    for name in ["safe", "quick"] {
        confirmed(&client, name).await;
    }
}

async fn confirmed(client: &Client, queue: &str) {
    let since = std::time::Instant::now();
    loop {
        match client.publish(queue, "whole").await {
            Ok(confirmed) => return assert_eq!(confirmed.copies, 3),
            Err(error) => assert!(since.elapsed() < PATIENCE, "{error}"),
        }
    }
}
