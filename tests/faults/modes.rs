//! A queue's mode and copies change while it runs, on a lone node: what each confirm says is
//! what the setting at its offset promises, over crashes and a power cut.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        atomic::{AtomicBool, Ordering},
        Arc,
    },
    time::Duration,
};

use client::{
    Boundary, ChangeOptions, Client, Confirmed, Copies, DeclareOptions, ErrorCode, Mode, Record,
    Settings, Standing,
};

use crate::support::{
    assert_conserved,
    log_bytes::{batches, lose_half_behind},
    server::{Home, Server},
    size, soon, PATIENCE,
};

const QUEUE: &str = "changing";
const BOOT_A: &str = "0000000000000000000000000000000a";
const BOOT_B: &str = "0000000000000000000000000000000b";

/// Changes the mode, and waits until that is applied.
async fn change(client: &Client, mode: Mode) -> Settings {
    let changed = client.change(ChangeOptions::new(QUEUE).mode(mode));
    let changed = soon("a change", changed).await.unwrap();
    assert_eq!(changed.setting.mode, mode);
    applied(client, changed.setting.revision).await
}

async fn applied(client: &Client, revision: u32) -> Settings {
    let until = tokio::time::Instant::now() + PATIENCE;
    loop {
        let settings = client.settings(QUEUE).await.unwrap();
        if settings.are_applied(revision) {
            return settings;
        }
        let late = tokio::time::Instant::now() > until;
        assert!(!late, "revision {revision} is not applied: {settings:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Publishes one record after the other until it is told to stop; what was confirmed.
async fn publish_until(client: Client, stop: Arc<AtomicBool>) -> Vec<Confirmed> {
    let publisher = client.publisher(QUEUE).await.unwrap();
    let mut confirmed = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let key = confirmed.len().to_string();
        let record = Record::new(&key).key(&key);
        confirmed.push(publisher.publish(record).await.unwrap());
    }
    confirmed
}

/// From which offset on each mode was in force, by partition.
type Since = BTreeMap<(u16, u64), Mode>;

fn note(since: &mut Since, settings: &Settings) {
    for (partition, in_force) in settings.partitions.iter().enumerate() {
        let in_force = in_force.as_ref().unwrap();
        since.insert((partition as u16, in_force.since), in_force.setting.mode);
    }
}

fn mode_at(since: &Since, partition: u16, offset: u64) -> Mode {
    let mut until = since.range((partition, 0)..=(partition, offset));
    until.next_back().map_or(Mode::Durable, |(_, mode)| *mode)
}

#[tokio::test]
async fn each_confirm_under_load_is_what_the_setting_at_its_offset_promises() {
    let home = Home::new(2).with("background_sync_interval = \"0\"");
    let server = home.start();
    let client = server.client().await;
    let options = DeclareOptions::new(QUEUE).partitions(3);
    client.declare(options).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let load = publish_until(server.client().await, stop.clone());
    let load = tokio::spawn(load);
    let mut since = Since::new();
    let rounds = size(3, 40);
    for _ in 0..rounds {
        for mode in [Mode::Buffered, Mode::Speculative, Mode::Durable] {
            let settings = change(&client, mode).await;
            note(&mut since, &settings);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    change(&client, Mode::Buffered).await;
    note(&mut since, &client.settings(QUEUE).await.unwrap());
    tokio::time::sleep(Duration::from_millis(50)).await;
    stop.store(true, Ordering::Relaxed);
    let confirmed = soon("the load", load).await.unwrap();
    let mut written = 0;
    for one in &confirmed {
        let mode = mode_at(&since, one.partition, one.offset);
        assert!(one.boundary >= mode.confirm_gate(), "{mode:?}: {one:?}");
        written += u64::from(one.boundary == Boundary::Written);
    }
    assert!(written > 0, "no buffered queue waits for a sync here");
    let before = client.settings(QUEUE).await.unwrap();
    assert_eq!(u64::from(before.desired.revision), 3 * rounds + 1);
    server.kill();

    let server = home.start();
    let client = server.client().await;
    let after = applied(&client, before.desired.revision).await;
    assert_eq!(after.desired, before.desired);
    for (before, after) in before.partitions.iter().zip(&after.partitions) {
        let (before, after) = (before.as_ref().unwrap(), after.as_ref().unwrap());
        assert_eq!((before.setting, before.since), (after.setting, after.since));
    }
    let info = client.info(QUEUE).await.unwrap();
    assert_eq!(info.totals().published, confirmed.len() as u64);
    assert_eq!(info.queue.mode, Mode::Buffered);
    assert_conserved(&info);
}

async fn publish(client: &Client, from: u64, to: u64, boundary: Boundary) {
    let publisher = client.publisher(QUEUE).await.unwrap();
    for number in from..to {
        let payload = number.to_string();
        let confirmed = publisher.publish(Record::new(&payload)).await.unwrap();
        assert_eq!((confirmed.offset, confirmed.boundary), (number, boundary));
    }
}

async fn take_all(client: &Client) -> BTreeSet<u64> {
    let ready = client.info(QUEUE).await.unwrap().totals().ready;
    let mut subscription = client.subscribe(QUEUE).await.unwrap();
    let mut seen = BTreeSet::new();
    for _ in 0..ready {
        let delivery = soon("a delivery", subscription.next()).await;
        let delivery = delivery.unwrap().unwrap();
        assert_eq!(delivery.payload(), delivery.offset().to_string().as_bytes());
        seen.insert(delivery.offset());
        delivery.ack_confirmed().await.unwrap();
    }
    seen
}

#[tokio::test]
async fn a_power_cut_takes_only_what_was_published_under_the_weaker_setting() {
    let mut home = Home::new(1).with("background_sync_interval = \"0\"");
    home.boot(BOOT_A);
    let server = home.start();
    let client = server.client().await;
    client.declare(QUEUE).await.unwrap();
    publish(&client, 0, 20, Boundary::Durable).await;
    change(&client, Mode::Buffered).await;
    publish(&client, 20, 40, Boundary::Written).await;
    change(&client, Mode::Durable).await;
    publish(&client, 40, 60, Boundary::Durable).await;
    let last = change(&client, Mode::Buffered).await.desired;
    let synced = batches(&home.data(), 0).len();
    publish(&client, 60, 90, Boundary::Written).await;
    server.kill();
    lose_half_behind(&home.data(), 0, synced);

    home.boot(BOOT_B);
    let server = home.start();
    let client = server.client().await;
    let settings = applied(&client, last.revision).await;
    assert_eq!(settings.desired, last);
    let info = client.info(QUEUE).await.unwrap();
    let partition = &info.partitions[0];
    assert_eq!((partition.generation, partition.losses.len()), (2, 1));
    let first_lost = partition.losses[0].first_lost;
    assert!((60..90).contains(&first_lost), "{first_lost}");
    assert_eq!(take_all(&client).await, (0..first_lost).collect());
}

#[tokio::test]
async fn a_change_survives_a_crash_at_once() {
    let home = Home::new(2);
    for round in 0..size(6, 60) {
        let server = home.start();
        let client = server.client().await;
        if round == 0 {
            let options = DeclareOptions::new(QUEUE).partitions(4);
            client.declare(options).await.unwrap();
        }
        let stands = client.settings(QUEUE).await.unwrap();
        assert_eq!(u64::from(stands.desired.revision), round);
        let mode = [Mode::Buffered, Mode::Durable, Mode::Speculative][round as usize % 3];
        let options = ChangeOptions::new(QUEUE).mode(mode);
        client.change(options).await.unwrap();
        // Perhaps before it is in the log of any partition.
        server.kill();
    }
    let server = home.start();
    let client = server.client().await;
    let revision = client.settings(QUEUE).await.unwrap().desired.revision;
    let settings = applied(&client, revision).await;
    for partition in settings.partitions {
        let partition = partition.unwrap();
        assert_eq!(partition.standing, Standing::Applied);
        assert_eq!(partition.setting, settings.desired);
    }
}

fn code(server: &Server, words: &[&str]) -> (Option<i32>, String) {
    let output = server.cli(words);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

#[tokio::test]
async fn changes_that_cannot_be_are_refused_in_a_sentence() {
    let home = Home::new(1);
    let server = home.start();
    let client = server.client().await;
    let none = client.change(ChangeOptions::new(QUEUE).mode(Mode::Buffered));
    assert_eq!(
        none.await.unwrap_err().code(),
        Some(ErrorCode::UnknownQueue)
    );
    client.declare(QUEUE).await.unwrap();
    let buffered = || ChangeOptions::new(QUEUE).mode(Mode::Buffered).revision(0);
    let first = client.change(buffered()).await.unwrap();
    assert!(first.changed);
    assert_eq!(first.setting.revision, 1);
    // Its answer may have been lost.
    let again = client.change(buffered()).await.unwrap();
    assert!(!again.changed);
    assert_eq!(again.setting, first.setting);
    let stale = ChangeOptions::new(QUEUE)
        .mode(Mode::Speculative)
        .revision(0);
    let error = client.change(stale).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::StaleRevision));
    let said = error.to_string();
    assert!(said.contains("at revision 1 (mode buffered"), "{said}");
    let copies = ChangeOptions::new(QUEUE).copies(Copies::Exactly(2));
    let error = client.change(copies).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::MissingCopies));
    assert!(error.to_string().contains("has 1 replica"), "{error}");
    let same = ChangeOptions::new(QUEUE).mode(Mode::Buffered);
    assert!(!client.change(same).await.unwrap().changed);
    let declared = DeclareOptions::new(QUEUE).mode(Mode::Durable);
    let error = client.declare(declared).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::Conflict));
    let said = error.to_string();
    assert!(
        said.contains("mode buffered") && said.contains("queue change"),
        "{said}"
    );
    let declared = DeclareOptions::new(QUEUE).mode(Mode::Buffered);
    assert!(!client.declare(declared).await.unwrap().created);
}

#[tokio::test]
async fn the_command_changes_waits_and_says_what_is_in_force() {
    let home = Home::new(1);
    let server = home.start();
    let run = |words: &[&str]| {
        let output = server.cli(words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    };
    run(&["queue", "declare", "q", "--partitions", "2"]);
    run(&["publish", "q", "one"]);
    assert!(!run(&["queue", "info", "q"]).contains("setting"));
    let said = run(&["queue", "change", "q", "--mode", "buffered", "--wait", "60"]);
    let expected =
        "queue q: mode buffered, copies majority, revision 1, applied in every partition\n";
    assert_eq!(said, expected);
    let info = run(&["queue", "info", "q"]);
    assert!(
        info.contains("mode buffered") && info.contains("revision 1"),
        "{info}"
    );
    let setting = "setting partition=1 mode=buffered copies=majority revision=1 since=0 applied";
    assert!(info.contains(setting), "{info}");
    let json = server.json(&["queue", "change", "q", "--copies", "all", "--wait", "1m"]);
    assert_eq!(json["revision"], 2);
    assert_eq!(json["applied"], true);
    assert_eq!(json["each"][0]["standing"], "applied");
    assert_eq!(json["each"][0]["replicas"][0]["reached"], "durable");
    let stale = [
        "queue",
        "change",
        "q",
        "--mode",
        "durable",
        "--revision",
        "1",
    ];
    let (exit, said) = code(&server, &stale);
    assert_eq!(exit, Some(1));
    assert!(
        said.contains("at revision 2") && said.lines().count() == 1,
        "{said}"
    );
    let (exit, said) = code(&server, &["queue", "change", "q"]);
    assert_eq!(exit, Some(2));
    assert!(said.contains("--mode"), "{said}");
    let (exit, said) = code(&server, &["queue", "change", "nope", "--mode", "durable"]);
    assert_eq!(exit, Some(1));
    assert!(said.contains("no queue is called \"nope\""), "{said}");
    let help = run_help(&server);
    assert!(help.contains("keeps its promise"), "{help}");
}

fn run_help(server: &Server) -> String {
    let output = server.command(&["queue", "change", "--help"]);
    String::from_utf8(output.stdout).unwrap()
}
