//! A queue's mode and copies change on three nodes, under load, while leaders die.

use std::{
    collections::BTreeMap,
    sync::{
        atomic::{AtomicBool, AtomicUsize, Ordering},
        Arc,
    },
    time::{Duration, Instant},
};

use client::{
    Boundary, ChangeOptions, Client, Confirmed, Copies, DeclareOptions, Error, ErrorCode, Mode,
    Setting, Settings, Standing,
};

use crate::{
    net::{await_said, Net, Node},
    support::{served, server::quick, size, soon, PATIENCE},
};

const QUEUE: &str = "changing";

fn start(net: &Net) -> Vec<Option<Node>> {
    let nodes: Vec<Option<Node>> = (1..=3)
        .map(|node| net.home(node, 1).listening_on(&net.for_clients(node)))
        .map(|home| Some(Node::start(home)))
        .collect();
    for node in nodes.iter().flatten() {
        await_said(node, "is linked", 2);
    }
    nodes
}

async fn connect(net: &Net) -> Client {
    let servers: Vec<String> = (1..=3).map(|node| net.for_clients(node)).collect();
    quick().connect(servers).await.unwrap()
}

/// Changes from that revision on, again and again until it is answered: once it was done,
/// the same change from the same revision is done.
async fn change(client: &Client, options: ChangeOptions, revision: u32) -> Setting {
    let options = options.revision(revision);
    let begun = Instant::now();
    loop {
        let answer = soon("an answer", client.change(options.clone())).await;
        match answer {
            Ok(changed) => return changed.setting,
            Err(error) => {
                let stale = error.code() == Some(ErrorCode::StaleRevision);
                assert!(!stale && begun.elapsed() < PATIENCE, "{error}");
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until the settings are as `condition` wants them.
async fn await_settings(
    client: &Client,
    what: &str,
    condition: impl Fn(&Settings) -> bool,
) -> Settings {
    let begun = Instant::now();
    loop {
        let settings = client.settings(QUEUE).await;
        match settings {
            Ok(settings) if condition(&settings) => return settings,
            other => assert!(begun.elapsed() < PATIENCE, "{what}: {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// What a load has done, and whether it is to stop.
#[derive(Default)]
struct Load {
    confirmed: AtomicUsize,
    stop: AtomicBool,
}

impl Load {
    /// Waits until so many more were confirmed.
    async fn await_more(&self, count: usize) {
        let (before, begun) = (self.confirmed.load(Ordering::Relaxed), Instant::now());
        while self.confirmed.load(Ordering::Relaxed) < before + count {
            assert!(begun.elapsed() < PATIENCE, "nothing is confirmed");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Publishes one record after the other until it is told to stop; what was confirmed.
async fn publish_until(client: Client, load: Arc<Load>) -> Vec<Confirmed> {
    let publisher = served(|| client.publisher(QUEUE)).await;
    let mut confirmed = Vec::new();
    while !load.stop.load(Ordering::Relaxed) {
        match soon("an outcome", publisher.publish("a record")).await {
            Ok(met) => {
                confirmed.push(met);
                load.confirmed.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                assert!(may_be(&error), "{error}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
    confirmed
}

/// Nobody leads at this moment, or whoever did died with it.
fn may_be(error: &Error) -> bool {
    error.is_unknown() || error.code() == Some(ErrorCode::Unavailable)
}

fn copies(setting: &Setting) -> u8 {
    match setting.copies {
        Copies::Majority => 2,
        Copies::All => 3,
        Copies::Exactly(number) => number,
    }
}

/// From which offset on each setting was in force, by partition.
#[derive(Default)]
struct Since(BTreeMap<(u16, u64), Setting>);

impl Since {
    fn note(&mut self, settings: &Settings) {
        for (partition, in_force) in settings.partitions.iter().enumerate() {
            let in_force = in_force.as_ref().unwrap();
            let place = (partition as u16, in_force.since);
            self.0.insert(place, in_force.setting);
        }
    }

    fn at(&self, confirmed: &Confirmed) -> Setting {
        let partition = confirmed.partition;
        let mut until = self.0.range((partition, 0)..=(partition, confirmed.offset));
        *until.next_back().unwrap().1
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_confirm_is_what_the_setting_at_its_offset_promises_while_leaders_die() {
    let net = Net::new(3);
    let mut nodes = start(&net);
    let client = connect(&net).await;
    let options = || DeclareOptions::new(QUEUE).partitions(2);
    let declared = served(|| client.declare(options())).await;
    let mut since = Since::default();
    let mut now = Setting {
        mode: declared.queue.mode,
        copies: declared.queue.copies,
        revision: 0,
    };
    for partition in 0..2 {
        since.0.insert((partition, 0), now);
    }
    let load = Arc::new(Load::default());
    let loaded = publish_until(connect(&net).await, load.clone());
    let loaded = tokio::spawn(loaded);
    let wanted = [
        (Mode::Buffered, Copies::Majority),
        (Mode::Durable, Copies::All),
        (Mode::Buffered, Copies::Exactly(1)),
        (Mode::Speculative, Copies::Exactly(2)),
        (Mode::Durable, Copies::Majority),
    ];
    for round in 0..size(5, 50) {
        let (mode, copies) = wanted[round % wanted.len()];
        let options = ChangeOptions::new(QUEUE).mode(mode).copies(copies);
        let asked = tokio::spawn({
            let (client, revision) = (client.clone(), now.revision);
            async move { change(&client, options, revision).await }
        });
        // Somewhere between the order and its last entry.
        tokio::time::sleep(Duration::from_millis(7 * (round as u64 % 5))).await;
        let dies = match client.locate(QUEUE).await {
            Ok(queue) if queue.leaders[0] > 0 => queue.leaders[0] as usize - 1,
            _ => round % 3,
        };
        let home = nodes[dies].take().unwrap().kill();
        let setting = soon("the change", asked).await.unwrap();
        assert_eq!(setting.revision, now.revision + 1);
        assert_eq!((setting.mode, setting.copies), (mode, copies));
        nodes[dies] = Some(Node::start(home));
        await_said(nodes[dies].as_ref().unwrap(), "is linked", 2);
        let applied = |settings: &Settings| settings.are_applied(setting.revision);
        let settings = await_settings(&client, "it is applied", applied).await;
        assert_eq!(settings.desired, setting);
        since.note(&settings);
        now = setting;
        load.await_more(20).await;
    }
    load.stop.store(true, Ordering::Relaxed);
    let confirmed = soon("the load", loaded).await.unwrap();
    for one in &confirmed {
        let setting = since.at(one);
        let kept = one.boundary >= setting.mode.confirm_gate() && one.copies >= copies(&setting);
        assert!(kept, "{setting:?}: {one:?}");
    }
    let info = served(|| client.info(QUEUE)).await;
    for one in &confirmed {
        let partition = &info.partitions[usize::from(one.partition)];
        assert_eq!(one.generation, partition.generation);
        assert!(one.offset < partition.written_next, "{one:?}");
    }
}

#[tokio::test]
async fn a_change_needs_the_copies_of_both_settings_and_says_which_node_lacks_it() {
    let net = Net::new(3);
    let mut nodes = start(&net);
    let client = connect(&net).await;
    let options = || DeclareOptions::new(QUEUE).copies(Copies::All);
    served(|| client.declare(options())).await;
    let all = served(|| client.publish(QUEUE, "on three")).await;
    assert_eq!(all.copies, 3);
    let leader = client.locate(QUEUE).await.unwrap().leaders[0] as usize;
    let away = leader % 3 + 1;
    let home = nodes[away - 1].take().unwrap().kill();

    let options = ChangeOptions::new(QUEUE).copies(Copies::Majority);
    let setting = change(&client, options, 0).await;
    // Without the third: what is logged in front of the entry would still wait for it.
    let in_force = |settings: &Settings| {
        let partition = settings.partitions[0].as_ref().ok();
        partition.is_some_and(|it| it.standing == Standing::InForce)
    };
    let settings = await_settings(&client, "it is in force", in_force).await;
    let two = served(|| client.publish(QUEUE, "on two")).await;
    assert_eq!((two.copies, two.boundary), (2, Boundary::Durable));
    let partition = settings.partitions[0].as_ref().unwrap();
    assert_eq!((partition.setting, partition.since), (setting, 1));
    let missing = format!("missing: node {away}");
    assert!(partition.reason.contains(&missing), "{}", partition.reason);
    let reached = partition.replicas.iter();
    let reached: BTreeMap<u32, Option<Boundary>> = reached.copied().collect();
    assert_eq!(reached[&(away as u32)], None);
    assert_eq!(reached[&(leader as u32)], Some(Boundary::Durable));
    let node = nodes.iter().flatten().next().unwrap();
    let words = [
        "queue", "change", QUEUE, "--copies", "majority", "--wait", "1",
    ];
    let output = node.cli(&words);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("goes on by itself") && said.contains(&missing),
        "{said}"
    );

    nodes[away - 1] = Some(Node::start(home));
    let applied = |settings: &Settings| settings.are_applied(setting.revision);
    let settings = await_settings(&client, "it is applied", applied).await;
    let partition = settings.partitions[0].as_ref().unwrap();
    assert!(partition.reason.is_empty(), "{}", partition.reason);

    for (options, code) in [
        (
            ChangeOptions::new(QUEUE).copies(Copies::Exactly(4)),
            ErrorCode::MissingCopies,
        ),
        (
            ChangeOptions::new(QUEUE).copies(Copies::Exactly(1)),
            ErrorCode::Invalid,
        ),
        (
            ChangeOptions::new(QUEUE).mode(Mode::Buffered).revision(0),
            ErrorCode::StaleRevision,
        ),
    ] {
        let error = client.change(options).await.unwrap_err();
        assert_eq!(error.code(), Some(code), "{error}");
    }
    // Not alone what is named counts, but what comes of it.
    let one = ChangeOptions::new(QUEUE)
        .mode(Mode::Buffered)
        .copies(Copies::Exactly(1));
    let setting = change(&client, one, 1).await;
    let durable = ChangeOptions::new(QUEUE).mode(Mode::Durable);
    let error = client.change(durable).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::Invalid), "{error}");
    assert_eq!(setting.revision, 2);
}
