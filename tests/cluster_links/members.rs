//! Nodes that are added to a cluster, get what others had, and are removed, under load.

use std::{
    collections::BTreeSet,
    sync::{
        atomic::{AtomicBool, Ordering},
        Arc,
    },
    time::{Duration, Instant},
};

use serde_json::{json, Value};
use tokio::task::JoinHandle;

use crate::{
    admin::{assert_done, assert_refused, await_status, declare, is_whole, list},
    net::{await_said, Net, Node},
    replication::{client_of, drain, publish, QUEUES},
    support::{
        server::{Home, Server},
        PATIENCE,
    },
};

/// Publishes to both queues through a node until it is told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<BTreeSet<String>>>,
}

impl Load {
    async fn begin(node: &Node) -> Self {
        let client = client_of(node).await;
        for (name, mode) in QUEUES {
            declare(&client, name, mode).await;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = Vec::new();
        for (name, _) in QUEUES {
            let (stop, client) = (stop.clone(), client_of(node).await);
            tasks.push(tokio::spawn(async move {
                let (mut number, mut confirmed) = (0, BTreeSet::new());
                while !stop.load(Ordering::Relaxed) {
                    confirmed.insert(publish(&client, name, &mut number).await);
                }
                confirmed
            }));
        }
        Load { stop, tasks }
    }

    /// Everything that was confirmed is there, as that node serves it.
    async fn expect_all(self, node: &Node) {
        self.stop.store(true, Ordering::Relaxed);
        let client = client_of(node).await;
        for (task, (name, _)) in self.tasks.into_iter().zip(QUEUES) {
            let confirmed = task.await.unwrap();
            assert!(confirmed.len() > 10, "{}", confirmed.len());
            drain(&client, name, &confirmed).await;
        }
    }
}

/// Three nodes; nothing goes anywhere by itself.
fn started(net: &Net, shards: u16) -> Vec<Node> {
    let homes = (1..=3).map(|node| {
        let home = net.home(node, shards).with("spread_leaders = \"0s\"");
        home.listening_on(&net.for_clients(node))
    });
    homes.map(Node::start).collect()
}

/// The home of a node that joins; it asks node 1 first.
pub fn joining(net: &Net, node: u32, shards: u16, spread: &str) -> Home {
    let nodes = format!(
        "nodes = [\"1={}\", \"{node}={}\"]",
        net.address(1),
        net.address(node)
    );
    net.bare(node, shards)
        .with("cluster = \"test\"")
        .with(&nodes)
        .with(&format!("spread_leaders = \"{spread}\""))
        .listening_on(&net.for_clients(node))
        .joining()
}

pub fn add(net: &Net, asked: &Node, node: u32) {
    let at = format!("{node}={}", net.address(node));
    assert_done(&asked.cli(&["cluster", "add", &at]), "is a member at");
    assert_done(&asked.cli(&["cluster", "add", &at]), "is a member at");
}

/// Groups that a node is to hold.
fn holds(status: &Value, node: u32) -> usize {
    let mut members = list(&status["members"]).iter();
    let member = members.find(|it| it["node"] == node);
    member.map_or(0, |it| list(&it["holds"]).len())
}

/// Nodes that vote in a group, as its leader says.
pub fn voters(status: &Value, group: u64) -> Vec<u32> {
    let mut groups = list(&status["groups"]).iter();
    let group = groups.find(|it| it["group"] == group).unwrap();
    let mut replicas = list(&group["replicas"]).iter();
    let Some(leader) = replicas.find(|it| it["role"] == "leader") else {
        return Vec::new();
    };
    let voters = list(&leader["voters"]).iter();
    let node = |it: &Value| it.as_str().unwrap().split('.').next().unwrap().parse();
    let mut voters: Vec<u32> = voters.map(|it| node(it).unwrap()).collect();
    voters.sort_unstable();
    voters
}

/// It has a vote in group 0.
pub fn takes_part(status: &Value, node: u32) -> bool {
    is_whole(status) && voters(status, 0).contains(&node)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fourth_node_takes_over_from_a_founder_that_is_removed_and_nothing_is_lost() {
    let net = Net::new(3);
    let mut nodes = started(&net, 2);
    let (mut three, two) = (nodes.pop().unwrap(), nodes.pop().unwrap());
    let one = &nodes[0];
    let load = Load::begin(one).await;
    await_status(one, "all is well", is_whole);

    // Nobody added it: what is to be run is said.
    let early = Node::start(joining(&net, 4, 2, "0s"));
    let told = await_said(&early, "refuses this node", 1);
    assert!(
        told.contains("tidegate cluster add 4=ADDRESS:PORT"),
        "{told}"
    );
    let home = early.kill();
    // Nor can anybody go while there are as many nodes as copies.
    let remove = ["cluster", "remove", "3", "--yes"];
    assert_refused(&one.cli(&remove), "3 members stay");
    let away = ["cluster", "move", "5", "--from", "3", "--to", "2"];
    assert_refused(&one.cli(&away), "has its replicas on nodes 1, 2, 3");

    add(&net, one, 4);
    let told = one.cli(&["cluster", "move", "5", "--from", "3", "--to", "4"]);
    assert_refused(&told, "node 4 is not linked");
    let four = Node::start(home);
    let now = await_status(one, "node 4 takes part", |now| takes_part(now, 4));
    assert_eq!(voters(&now, 5), [1, 2, 3]);
    assert_eq!(holds(&now, 4), 0);

    // Without any group of its own it serves any client.
    let mut number = 1_000_000;
    let through = client_of(&four).await;
    let mut extra = BTreeSet::new();
    for (name, _) in QUEUES {
        extra.insert(publish(&through, name, &mut number).await);
    }
    declare(&through, "later", QUEUES[0].1).await;
    let later = publish(&through, "later", &mut number).await;
    drain(&through, "later", &BTreeSet::from([later])).await;

    let step = ["cluster", "move", "5", "--from", "3", "--to", "4"];
    assert_done(&one.cli(&step), "group 5 is on node 4");
    assert_done(&one.cli(&step), "group 5 is on node 4");
    let now = await_status(one, "all is well", is_whole);
    assert_eq!(voters(&now, 5), [1, 2, 4]);
    let all = ["cluster", "move", "all", "--from", "3", "--to", "4"];
    assert_done(&one.cli(&all), "31 groups went from node 3 to node 4");
    let now = await_status(one, "all is well", is_whole);
    assert_eq!((holds(&now, 3), holds(&now, 4)), (0, 32));
    assert_eq!(now["moves"], json!([]));

    assert_done(&one.cli(&remove), "node 3 was removed");
    await_end(&mut three, "was removed from the cluster");
    await_status(one, "group 0 is without it", |now| {
        is_whole(now) && voters(now, 0) == [1, 2, 4]
    });
    // It does not come back by itself, and its number is free for a new directory only.
    let home = three.into_home();
    let mut back = home.spawn();
    await_end(&mut back, "was removed from the cluster");

    // Another founder goes: the rest has everything.
    two.kill();
    load.expect_all(&four).await;
}

/// Who was away hears of it when it is back, also where its number is the lowest, so that
/// it is for the others to call; and only a process that is told so ends.
#[test]
fn a_node_that_was_away_when_it_was_removed_ends_when_it_is_started_again() {
    for away in [3, 1] {
        let net = Net::new(3);
        let mut nodes = started(&net, 1);
        await_status(&nodes[1], "all is well", is_whole);
        add(&net, &nodes[1], 4);
        let four = Node::start(joining(&net, 4, 1, "0s"));
        await_status(&nodes[1], "node 4 takes part", |now| takes_part(now, 4));
        let home = nodes.remove(away as usize - 1).kill();
        let remove = ["cluster", "remove", &away.to_string(), "--yes"];
        let asked = &nodes[0];
        let start = Instant::now();
        loop {
            let removed = asked.cli(&remove);
            if removed.status.success() {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "{removed:?}");
        }
        let mut back = home.spawn();
        await_end(&mut back, "was removed from the cluster");
        drop(four);
    }
}

/// Killed at any moment of it, whoever it is, it goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moves_go_on_after_crashes_of_those_who_give_take_and_lead() {
    let net = Net::new(3);
    let mut nodes = started(&net, 1);
    let load = Load::begin(&nodes[0]).await;
    await_status(&nodes[0], "all is well", is_whole);
    add(&net, &nodes[0], 4);
    nodes.push(Node::start(joining(&net, 4, 1, "0s")));
    await_status(&nodes[0], "node 4 takes part", |now| takes_part(now, 4));
    let servers: Vec<String> = (1..=4).map(|node| net.for_clients(node)).collect();
    let words = ["cluster", "move", "all", "--from", "2", "--to", "4"];
    let servers = servers.join(",");
    let words = [&words[..], &["--server", &servers]].concat();
    // The node that gives, the one that takes, and another.
    for victim in [1, 3, 2, 1, 3] {
        let words: Vec<&str> = [&words[..], &["--wait", "1s"]].concat();
        let _ = nodes[0].command(&words);
        let node = nodes.remove(victim);
        nodes.insert(victim, Node::start(node.kill()));
    }
    let start = Instant::now();
    loop {
        let moved = nodes[0].command(&words);
        if moved.status.success() {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "{moved:?}");
    }
    let now = await_status(&nodes[0], "all is well", is_whole);
    assert_eq!((holds(&now, 2), holds(&now, 4)), (0, 32));
    for group in 1..=32 {
        assert_eq!(voters(&now, group), [1, 3, 4]);
    }
    nodes.remove(2).kill();
    load.expect_all(&nodes[2]).await;
}

/// With nobody ordering it, a new node gets its share, and one that is removed gives all
/// it has; replicas are kept in different zones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_are_evened_out_by_themselves_and_zones_are_kept() {
    let net = Net::new(3);
    let nodes: Vec<Node> = (1..=3)
        .map(|node| {
            let home = net.home(node, 1).listening_on(&net.for_clients(node));
            Node::start(home.with("spread_leaders = \"300ms\""))
        })
        .collect();
    let one = &nodes[0];
    let load = Load::begin(one).await;
    await_status(one, "all is well", is_whole);
    let zones = ["a", "b", "c", "a"];
    for (node, zone) in (1..=4).zip(zones) {
        let at = format!("{node}={}", net.address(node));
        let output = one.cli(&["cluster", "add", &at, "--zone", zone]);
        assert_done(&output, "is a member at");
    }
    let four = Node::start(joining(&net, 4, 1, "300ms"));
    // Only from node 1, which is in its zone.
    let now = await_status(one, "node 4 has its share", |now| {
        is_whole(now) && now["moves"] == json!([]) && holds(now, 4) == 16
    });
    assert_eq!([1, 2, 3].map(|node| holds(&now, node)), [16, 32, 32]);
    // A group of node 1 may not come to be on two nodes of its zone.
    let held = |group: &u64| voters(&now, *group) == [1, 2, 3];
    let group = (1..=32).find(held).unwrap().to_string();
    let into = ["cluster", "move", &group, "--from", "2", "--to", "4"];
    assert_done(
        &one.cli(&[&into[..], &["--force", "--wait", "60s"]].concat()),
        "is on node 4",
    );
    let back = ["cluster", "move", &group, "--from", "4", "--to", "2"];
    assert_done(&one.cli(&back), "is on node 2");
    let two = &nodes[1];
    assert_done(
        &two.cli(&["cluster", "remove", "1", "--yes"]),
        "was removed",
    );
    let now = await_status(two, "node 4 has all", |now| {
        is_whole(now) && holds(now, 4) == 32
    });
    assert_eq!(voters(&now, 0), [2, 3, 4]);
    load.expect_all(&four).await;
}

/// The process ends by itself, with these words and the exit code that says so.
fn await_end(node: &mut Server, words: &str) {
    await_said(node, words, 1);
    let start = Instant::now();
    let ended = loop {
        if let Some(ended) = node.ended() {
            break ended;
        }
        assert!(start.elapsed() < PATIENCE, "{:?}", node.errors());
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(ended.code(), Some(3), "{:?}", node.errors());
}
