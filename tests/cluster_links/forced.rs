//! A majority of the nodes is lost for good: the way out from what one holds.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    admin::{await_status, declare, list},
    net::{await_said, Net, Node},
    replication::{client_of, drain, publish, QUEUES},
    support::PATIENCE,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_goes_on_from_the_one_node_that_is_left() {
    let net = Net::new(3);
    let home = |node| {
        let home = net.home(node, 2).listening_on(&net.for_clients(node));
        home.with("data_groups = 6")
    };
    let [one, two, three] = [1, 2, 3].map(|node| Node::start(home(node)));
    let client = client_of(&one).await;
    let mut number = 0;
    let mut confirmed = [BTreeSet::new(), BTreeSet::new()];
    for (name, mode) in QUEUES {
        declare(&client, name, mode).await;
    }
    for _ in 0..10 {
        for ((name, _), confirmed) in QUEUES.iter().zip(&mut confirmed) {
            confirmed.insert(publish(&client, name, &mut number).await);
        }
    }
    // So that node 1 has all of it: confirmed with node 3 off is confirmed on 1 and 2.
    let lost = three.kill();
    for ((name, _), confirmed) in QUEUES.iter().zip(&mut confirmed) {
        confirmed.insert(publish(&client, name, &mut number).await);
    }
    drop((two.kill(), lost));
    let alone = one.kill();

    // Of a generation that is not: nothing happens, and that is said.
    let wrong = Node::start(alone.forcing_group_0(7));
    await_said(
        &wrong,
        "--force-group-0 7 was not followed: group 0 is in generation 1",
        1,
    );
    let one = Node::start(wrong.kill().forcing_group_0(1));
    await_said(&one, "group 0 goes on as generation 2", 1);
    // Started so again it goes on.
    let one = Node::start(one.kill());
    await_said(&one, "group 0 is in generation 2", 1);

    let two = Node::start(home(2).joining());
    let three = Node::start(home(3).joining());
    // Its groups have one replica that remembers: an operator says that they go on.
    let begun = std::time::Instant::now();
    loop {
        let now = await_status(&one, "its status", |_| true);
        let groups = list(&now["groups"]);
        let serving = groups.iter().filter(|group| group["serving"] == true);
        if groups.len() == 7 && serving.count() == 7 && now["tolerates"] == 1 {
            break;
        }
        if begun.elapsed() >= PATIENCE {
            for node in [&one, &two, &three] {
                println!("{:#?}", node.errors());
            }
            println!(
                "{}",
                String::from_utf8_lossy(&one.cli(&["cluster", "status", "--groups"]).stdout)
            );
            panic!("not whole");
        }
        for recovery in list(&now["recoveries"]) {
            if recovery["accepts_loss"] == false {
                let group = recovery["group"].to_string();
                one.cli(&["cluster", "recover", &group, "--accept-loss"]);
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // And everybody has it: the node it came from goes.
    one.kill();
    let last = client_of(&two).await;
    for ((name, _), confirmed) in QUEUES.iter().zip(&mut confirmed) {
        confirmed.insert(publish(&last, name, &mut number).await);
        drain(&last, name, confirmed).await;
    }
    drop(three);
}

#[test]
fn what_cannot_be_forced_is_refused() {
    let net = Net::new(3);
    let fresh = net.home(1, 1).forcing_group_0(1);
    let told = fresh.spawn().await_listening().unwrap_err().join("\n");
    assert!(told.contains("holds none"), "{told}");
    let alone = crate::support::server::Home::new(1).forcing_group_0(1);
    let told = alone.spawn().await_listening().unwrap_err().join("\n");
    assert!(told.contains("is for a cluster"), "{told}");
}
