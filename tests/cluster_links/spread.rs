//! Who leads what, with nothing going wrong.

use std::{
    sync::{
        atomic::{AtomicBool, Ordering},
        Arc,
    },
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    admin::{assert_done, await_status, declare, is_whole, list},
    net::{Net, Node},
    replication::{client_of, QUEUES},
    support::PATIENCE,
};

/// How many groups each node leads.
fn led(status: &Value) -> Vec<u64> {
    let nodes = list(&status["nodes"]).iter();
    nodes
        .map(|node| node["leads"].as_u64().unwrap_or(0))
        .collect()
}

pub fn is_spread(status: &Value) -> bool {
    is_whole(status) && led(status) == [11, 11, 11]
}

fn started(net: &Net, spread: &str) -> [Node; 3] {
    [1, 2, 3].map(|node| {
        let home = net.home(node, 1);
        Node::start(home.with(&format!("spread_leaders = \"{spread}\"")))
    })
}

/// Leaders come back to a node that was away, one after the other, and no publish fails
/// for it; a node that is drained gets none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_come_back_to_a_node_that_was_away_and_none_to_one_that_is_drained() {
    let net = Net::new(3);
    let [one, two, three] = started(&net, "300ms");
    await_status(&one, "leaders are spread", is_spread);
    let home = three.kill();
    await_status(&one, "the others lead all", |now| {
        let led = led(now);
        led[2] == 0 && led.iter().sum::<u64>() == 33
    });
    let client = client_of(&one).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut loads = Vec::new();
    for (name, mode) in QUEUES {
        declare(&client, name, mode).await;
        let start = Instant::now();
        while client.publish(name, "record").await.is_err() {
            assert!(start.elapsed() < PATIENCE);
        }
        let publisher = client.publisher(name).await.unwrap();
        let stop = stop.clone();
        loads.push(tokio::spawn(async move {
            let mut confirmed = 0;
            while !stop.load(Ordering::Relaxed) {
                let met = publisher.publish("record").await;
                met.unwrap_or_else(|error| panic!("after {confirmed} confirmed ones: {error}"));
                confirmed += 1;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            confirmed
        }));
    }
    let three = Node::start(home);
    await_status(&one, "leaders are spread", is_spread);
    assert_done(
        &one.cli(&["cluster", "drain", "3"]),
        "leads nothing any more",
    );
    // Time enough for several groups, were it not for the drain.
    let drained = Instant::now();
    while drained.elapsed() < Duration::from_secs(2) {
        await_status(&one, "node 3 leads nothing", |now| led(now)[2] == 0);
    }
    stop.store(true, Ordering::Relaxed);
    for load in loads {
        assert!(load.await.unwrap() > 0);
    }
    drop((two, three));
}

#[tokio::test]
async fn leaders_stay_where_they_are_when_told_to() {
    let net = Net::new(3);
    let [one, two, three] = started(&net, "0s");
    await_status(&one, "all is well", is_whole);
    let home = three.kill();
    await_status(&one, "the others lead all", |now| {
        let led = led(now);
        led[2] == 0 && led.iter().sum::<u64>() == 33
    });
    let three = Node::start(home);
    let whole = await_status(&one, "all is well", is_whole);
    let back = Instant::now();
    while back.elapsed() < Duration::from_secs(1) {
        await_status(&one, "nothing moves", |now| led(now) == led(&whole));
    }
    drop((two, three));
}
