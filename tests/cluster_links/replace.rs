//! A node whose data directory is lost, and that is brought back on a new one.

use std::{collections::BTreeSet, time::Duration};

use serde_json::Value;

use crate::{
    admin::{assert_done, assert_refused, await_status, declare, is_whole, list},
    members::{add, joining, takes_part, voters},
    net::{await_said, Net, Node},
    replication::{client_of, drain, publish, QUEUES},
    support::{server::Home, PATIENCE},
};

const REPLACE: [&str; 4] = ["cluster", "replace", "3", "--confirm"];

/// Records that were confirmed, by queue.
struct Load {
    number: u64,
    confirmed: [BTreeSet<String>; 2],
}

impl Load {
    async fn begin(node: &Node) -> Self {
        let client = client_of(node).await;
        for (name, mode) in QUEUES {
            declare(&client, name, mode).await;
        }
        let mut load = Load {
            number: 0,
            confirmed: [BTreeSet::new(), BTreeSet::new()],
        };
        load.add(node, 20).await;
        load
    }

    async fn add(&mut self, node: &Node, records: usize) {
        let client = client_of(node).await;
        for _ in 0..records {
            for ((name, _), confirmed) in QUEUES.iter().zip(&mut self.confirmed) {
                confirmed.insert(publish(&client, name, &mut self.number).await);
            }
        }
    }

    async fn is_all_there(&self, node: &Node) {
        let client = client_of(node).await;
        for ((name, _), confirmed) in QUEUES.iter().zip(&self.confirmed) {
            drain(&client, name, confirmed).await;
        }
    }
}

fn started(net: &Net, shards: u16) -> [Node; 3] {
    [1, 2, 3].map(|node| {
        let home = net.home(node, shards);
        Node::start(home.listening_on(&net.for_clients(node)))
    })
}

/// Waits until the leader of group 0 noticed that node 3 is gone, and gives it up.
fn give_up(node: &Node) -> std::process::Output {
    let start = std::time::Instant::now();
    loop {
        let output = node.cli(&REPLACE);
        if output.status.success() {
            return output;
        }
        assert!(start.elapsed() < PATIENCE, "{output:?}");
    }
}

fn new_home(net: &Net, shards: u16) -> Home {
    let home = net.home(3, shards).listening_on(&net.for_clients(3));
    home.joining()
}

/// Node 3 votes in every group again.
fn counts_again(now: &Value) -> bool {
    is_whole(now)
        && list(&now["groups"]).iter().all(|group| {
            let replicas = list(&group["replicas"]);
            let leads = |it: &&Value| it["role"] == "leader";
            replicas.iter().find(leads).is_some_and(|leader| {
                let voters = list(&leader["voters"]);
                voters.len() == 3
                    && voters
                        .iter()
                        .any(|it| it.as_str().unwrap().starts_with("3."))
            })
        })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_directory_is_lost_counts_again_on_a_new_one() {
    let net = Net::new(3);
    let [one, _two, three] = started(&net, 2);
    let mut load = Load::begin(&one).await;
    await_status(&one, "all is well", is_whole);
    three.await_heard();
    let lost = three.kill();
    load.add(&one, 5).await;

    // Nobody gave the old one up: what is to be run is said.
    let early = Node::start(new_home(&net, 2));
    let told = await_said(&early, "refuses this node", 1);
    assert!(
        told.contains("tidegate cluster replace 3 --confirm"),
        "{told}"
    );
    let new = early.kill();

    assert_done(&give_up(&one), "node 3's directory is given up");
    assert_done(&one.cli(&REPLACE), "was given up before");
    let now = await_status(&one, "it has no directory", |now| {
        now["vacant"] == serde_json::json!([3])
    });
    assert_eq!(now["tolerates"], 0);
    let text = String::from_utf8(one.cli(&["cluster", "status"]).stdout).unwrap();
    assert!(
        text.contains("start it on an empty one with --join"),
        "{text}"
    );
    let identity = std::fs::read_to_string(new.data().join("identity")).unwrap();
    assert!(identity.starts_with("tidegate 3\n"), "{identity}");

    // Neither the old directory nor one that founds itself takes the place.
    let old = Node::start(lost);
    let words = "was given up by an operator (cluster replace or remove) and cannot come back";
    await_said(&old, words, 1);
    let lost = old.kill();
    let founds = Node::start(net.home(3, 2).listening_on(&net.for_clients(3)));
    await_said(&founds, "was not made to take its place", 1);
    founds.kill();
    // Nor is an old one told to join.
    let told = lost.joining().spawn().await_listening().unwrap_err();
    let told = told.join("\n");
    assert!(told.contains("--join is for a new one"), "{told}");

    let three = Node::start(new);
    load.add(&one, 5).await;
    let now = await_status(&one, "node 3 counts again", counts_again);
    assert_eq!(now["vacant"], serde_json::json!([]));
    // A second new directory has come too late.
    let home = three.kill();
    let second = Node::start(new_home(&net, 2));
    await_said(&second, "another data directory has taken the place", 1);
    second.kill();
    let three = Node::start(home);
    await_status(&one, "node 3 counts again", counts_again);

    // Everything is on it: another node goes.
    one.kill();
    load.add(&three, 5).await;
    load.is_all_there(&three).await;
}

/// Killed at any moment of it, all of them or the new one, the nodes go on with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replacement_goes_on_after_crashes_between_its_steps() {
    let net = Net::new(3);
    let [mut one, mut two, three] = started(&net, 1);
    let mut load = Load::begin(&one).await;
    await_status(&one, "all is well", is_whole);
    three.kill();
    give_up(&one);
    // Forgotten meanwhile: the next order lets it come back all the same.
    assert_done(
        &one.cli(&["cluster", "forget", "3", "--yes"]),
        "is forgotten",
    );
    assert_done(&give_up(&one), "is given up");
    (one, two) = (Node::start(one.kill()), Node::start(two.kill()));
    let new = new_home(&net, 1);
    for after_ms in [30, 150, 300, 600, 1_200] {
        new.start_and_kill(Duration::from_millis(after_ms));
    }
    let three = Node::start(new);
    load.add(&two, 3).await;
    // Whoever leads is killed while node 3 is brought up.
    one = Node::start(one.kill());
    load.add(&one, 3).await;
    two = Node::start(two.kill());
    load.add(&two, 3).await;
    await_status(&one, "node 3 counts again", counts_again);
    // Its directory is lost again, as soon as it counts.
    three.kill();
    give_up(&one);
    let three = Node::start(new_home(&net, 1));
    await_status(&one, "node 3 counts again", counts_again);
    two.kill();
    load.add(&three, 3).await;
    load.is_all_there(&three).await;
}

/// Group 0 has more members than the other groups have copies: it would go on, and they
/// could not.
#[test]
fn a_node_is_not_replaced_where_a_group_would_lose_its_majority() {
    let net = Net::new(3);
    let [one, two, three] = started(&net, 1);
    await_status(&one, "all is well", is_whole);
    add(&net, &one, 4);
    let four = Node::start(joining(&net, 4, 1, "0s"));
    await_status(&one, "node 4 takes part", |now| takes_part(now, 4));
    three.kill();
    give_up(&one);
    await_status(&one, "group 0 is without node 3", |now| {
        voters(now, 0) == [1, 2, 4]
    });
    let home = two.kill();
    let again = ["cluster", "replace", "2", "--confirm"];
    let start = std::time::Instant::now();
    let refused = loop {
        let refused = four.cli(&again);
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        if text.contains("would vote and remember") {
            break refused;
        }
        assert!(!refused.status.success(), "{text}");
        assert!(start.elapsed() < PATIENCE, "{text}");
    };
    assert_refused(&refused, "without node 2 only 1 replica of group 1 ");
    assert_refused(&refused, "it needs 2 of 3");
    // Nothing was given up: with node 2 every group is led.
    let two = Node::start(home);
    await_status(&one, "every group is led", |now| {
        let groups = list(&now["groups"]);
        groups.len() == 33 && groups.iter().all(|group| group["serving"] == true)
    });
    drop((two, four));
}
