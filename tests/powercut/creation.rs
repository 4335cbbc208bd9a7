//! Power cuts before a server has served for the first time, and just after a
//! start.

use std::time::Duration;

use client::{Client, DeclareOptions, Mode, PeekOptions, Record};
use powercut_fs::Style;

use crate::{
    machine::Machine,
    support::{server::Home, size, Random},
};

const QUEUE: &str = "first";

async fn publish(client: &Client, payload: &str) {
    let publisher = client.publisher(QUEUE).await.unwrap();
    publisher.publish(Record::new(payload)).await.unwrap();
}

async fn payloads(client: &Client) -> Vec<String> {
    let options = PeekOptions {
        max_records: 100,
        ..PeekOptions::default()
    };
    let peeked = client.peek(QUEUE, options).await.unwrap();
    let texts = peeked.iter().map(|record| record.payload.clone());
    texts
        .map(|bytes| String::from_utf8(bytes).unwrap())
        .collect()
}

/// The first confirm ever stands: the directory's own name is durable, too.
#[tokio::test]
async fn the_first_confirmed_record_survives_a_cut_that_drops_everything_unsynced() {
    let mut random = Random::new("first record");
    let Some(mut machine) = Machine::new(2, &mut random, |home| home) else {
        return;
    };
    let nested = machine.disk.path().join("deep/er/data");
    machine.home = machine.home.data_at(&nested);
    let server = machine.home.start();
    let client = server.client().await;
    for mode in Mode::ALL {
        let options = DeclareOptions::new(mode.name()).mode(mode);
        client.declare(options).await.unwrap();
    }
    client.declare(QUEUE).await.unwrap();
    publish(&client, "one").await;
    let report = machine.disk.cut_in(Style::DropAll);
    machine.fall(server, report);
    let server = machine.home.start();
    let client = server.client().await;
    assert_eq!(payloads(&client).await, ["one"]);
    for mode in Mode::ALL {
        client.info(mode.name()).await.expect("declared");
    }
    machine.kill(server);
}

/// What a process left unsynced the next one syncs before it says anything.
#[tokio::test]
async fn what_a_restart_kept_is_durable_at_once() {
    let mut random = Random::new("restart");
    let unsynced = |home: Home| home.with("background_sync_interval = \"0\"");
    let Some(mut machine) = Machine::new(1, &mut random, unsynced) else {
        return;
    };
    let server = machine.home.start();
    let client = server.client().await;
    let options = DeclareOptions::new(QUEUE).mode(Mode::Buffered);
    client.declare(options).await.unwrap();
    let mut expected = Vec::new();
    for number in 0..20 {
        expected.push(number.to_string());
        publish(&client, &expected[number]).await;
    }
    let before = client.frontiers(QUEUE).await.unwrap()[0];
    assert!(before.durable_next < 20, "nothing asked for a sync");
    machine.kill(server);
    let server = machine.home.start();
    let client = server.client().await;
    let after = client.frontiers(QUEUE).await.unwrap()[0];
    assert_eq!((after.written_next, after.durable_next), (20, 20));
    let report = machine.disk.cut_in(Style::DropAll);
    machine.fall(server, report);
    let server = machine.home.start();
    let client = server.client().await;
    assert_eq!(payloads(&client).await, expected);
    machine.kill(server);
}

/// Whatever a cut leaves of a first start, the next one makes a server of it.
#[tokio::test]
async fn a_first_start_that_loses_its_power_is_begun_again() {
    let mut random = Random::new("first start");
    for round in 0..size(6, 150) {
        let Some(mut machine) = Machine::new(1, &mut random, |home| home) else {
            return;
        };
        // In the full form every one of the first hundred changes.
        let changes = size(random.between(1, 100), 1 + round % 100);
        let server = machine.home.spawn();
        let report = machine.cut_after(server, changes, Duration::from_secs(2));
        println!("  {changes} changes: {report:?}");
        let server = machine.home.start();
        let client = server.client().await;
        client.declare(QUEUE).await.unwrap();
        publish(&client, "one").await;
        machine.cut(server);
        let server = machine.home.start();
        let client = server.client().await;
        assert_eq!(payloads(&client).await, ["one"]);
        publish(&client, "two").await;
        machine.cut(server);
        let server = machine.home.start();
        let client = server.client().await;
        assert_eq!(payloads(&client).await, ["one", "two"]);
        machine.kill(server);
    }
}
