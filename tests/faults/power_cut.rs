//! Another boot id after a kill stands for a power cut: what answered at
//! written is in doubt, and the report about it is exact.

use std::collections::BTreeSet;

use client::{Client, DeclareOptions, Mode, Record};

use crate::support::{
    assert_conserved,
    log_bytes::{batches, lose_half_behind},
    server::{Home, Server},
};

const BOOT_A: &str = "0000000000000000000000000000000a";
const BOOT_B: &str = "0000000000000000000000000000000b";

async fn declare(client: &Client, mode: Mode) {
    let options = DeclareOptions::new(mode.name()).mode(mode);
    client.declare(options).await.unwrap();
}

/// Confirmed records `from..to`, one frame each.
async fn publish(client: &Client, queue: &str, from: u64, to: u64) {
    let publisher = client.publisher(queue).await.unwrap();
    for number in from..to {
        let payload = number.to_string();
        let confirmed = publisher.publish(Record::new(&payload)).await.unwrap();
        assert_eq!(confirmed.offset, number);
    }
}

/// Takes everything out; payloads must be their offsets. What an older
/// generation wrote must be `flagged`, the rest may be (below the mark).
async fn take_all(client: &Client, queue: &str, flagged: bool) -> BTreeSet<u64> {
    let ready = client.info(queue).await.unwrap().totals().ready;
    let mut subscription = client.subscribe(queue).await.unwrap();
    let mut seen = BTreeSet::new();
    for _ in 0..ready {
        let delivery = crate::support::soon("a delivery", subscription.next())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(delivery.payload(), delivery.offset().to_string().as_bytes());
        assert!(delivery.redelivered() || !flagged, "of an older generation");
        assert!(seen.insert(delivery.offset()));
        delivery.ack_confirmed().await.unwrap();
    }
    seen
}

/// (generation, losses) as `queue info --json` has them.
fn history(server: &Server, queue: &str) -> (u64, Vec<(u64, u64)>) {
    let info = server.json(&["queue", "info", queue]);
    let partition = &info["each"][0];
    let losses = partition["losses"].as_array().unwrap().iter();
    (
        partition["generation"].as_u64().unwrap(),
        losses
            .map(|loss| {
                let of = |name: &str| loss[name].as_u64().unwrap();
                (of("generation"), of("first_lost"))
            })
            .collect(),
    )
}

#[tokio::test]
async fn power_cut_report_says_exactly_which_buffered_records_are_gone() {
    let mut home = Home::new(1).with("background_sync_interval = \"0\"");
    home.boot(BOOT_A);
    let server = home.start();
    let client = server.client().await;
    for mode in Mode::ALL {
        declare(&client, mode).await;
        publish(&client, mode.name(), 0, 30).await;
    }
    client
        .barrier("buffered", std::time::Duration::from_secs(30))
        .await
        .unwrap();
    let synced = batches(&home.data(), 0).len();
    publish(&client, "buffered", 30, 60).await;
    server.kill();

    // What was not synced and what the device had not kept.
    lose_half_behind(&home.data(), 0, synced);

    home.boot(BOOT_B);
    let server = home.start();
    let client = server.client().await;
    for queue in ["durable", "speculative"] {
        // A speculative queue answers at written, too: its deliveries did.
        let (generation, losses) = history(&server, queue);
        match queue {
            "durable" => assert_eq!((generation, losses.len()), (1, 0)),
            _ => assert_eq!((generation, losses), (2, vec![(1, 30)])),
        }
        let flagged = queue != "durable";
        let seen = take_all(&client, queue, flagged).await;
        assert_eq!(seen, (0..30).collect(), "confirmed at durable");
    }
    let (generation, losses) = history(&server, "buffered");
    assert_eq!(generation, 2);
    let [(1, first_lost)] = losses[..] else {
        panic!("one loss of generation 1, not {losses:?}");
    };
    assert!((30..60).contains(&first_lost), "{first_lost}");
    let line = format!("offset of generation 1 at or above {first_lost} is gone");
    let said = server.errors();
    assert!(said.iter().any(|said| said.contains(&line)), "{said:?}");
    assert_eq!(
        take_all(&client, "buffered", true).await,
        (0..first_lost).collect()
    );
    assert_conserved(&client.info("buffered").await.unwrap());

    // The new generation goes on where the old one was cut, and lasts.
    publish(&client, "buffered", first_lost, first_lost + 5).await;
    drop(client);
    server.kill();
    let server = home.start();
    let client = server.client().await;
    assert_eq!(history(&server, "buffered"), (2, vec![(1, first_lost)]));
    let seen = take_all(&client, "buffered", false).await;
    assert_eq!(seen, (first_lost..first_lost + 5).collect());
}

#[tokio::test]
async fn power_cut_report_with_nothing_lost_still_begins_a_generation() {
    let mut home = Home::new(2);
    home.boot(BOOT_A);
    let server = home.start();
    let client = server.client().await;
    for mode in [Mode::Durable, Mode::Buffered] {
        declare(&client, mode).await;
        publish(&client, mode.name(), 0, 20).await;
    }
    server.kill();
    home.boot(BOOT_B);
    let server = home.start();
    let client = server.client().await;
    assert_eq!(history(&server, "durable"), (1, vec![]));
    assert_eq!(history(&server, "buffered"), (2, vec![(1, 20)]));
    assert_eq!(take_all(&client, "durable", false).await, (0..20).collect());
    assert_eq!(take_all(&client, "buffered", true).await, (0..20).collect());
}

/// Batches of each shard's log, the last of which says that it came to rest.
fn came_to_rest(home: &Home, shards: u16) -> bool {
    (0..shards).all(|shard| {
        let batches = batches(&home.data(), shard);
        batches.last().is_some_and(|last| last.fragments == 0)
    })
}

/// Lines about queues or losses.
fn loss_lines(server: &Server) -> Vec<String> {
    let mut said = server.errors();
    said.retain(|line| line.contains("queue"));
    said
}

async fn await_lines(server: &Server, count: usize) -> Vec<String> {
    crate::support::soon("the lines about losses", async {
        while loss_lines(server).len() < count {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
    loss_lines(server)
}

#[tokio::test]
async fn a_power_cut_at_rest_is_one_calm_line_and_one_under_load_a_line_per_queue_up_to_twenty() {
    let mut home = Home::new(2);
    home.boot(BOOT_A);
    let server = home.start();
    let client = server.client().await;
    for number in 0..25 {
        let options = DeclareOptions::new(format!("q{number}")).mode(Mode::Buffered);
        client.declare(options).await.unwrap();
        publish(&client, &format!("q{number}"), 0, 1).await;
    }
    crate::support::soon("the logs to come to rest", async {
        while !came_to_rest(&home, 2) {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
    server.kill();

    let mut home = home.with("background_sync_interval = \"0\"");
    home.boot(BOOT_B);
    let server = home.start();
    let said = await_lines(&server, 1).await;
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("no loss was found"), "{said:?}");
    assert!(said[0].contains("25 partitions of 25 queues"), "{said:?}");
    assert_eq!(history(&server, "q7"), (2, vec![(1, 1)]));

    let client = server.client().await;
    for number in 0..25 {
        publish(&client, &format!("q{number}"), 1, 2).await;
    }
    server.kill();
    home.boot(BOOT_A);
    let server = home.start();
    let said = await_lines(&server, 21).await;
    assert_eq!(said.len(), 21, "{said:#?}");
    assert!(said[0].contains("begins generation 3"), "{said:#?}");
    assert!(said[20].contains("and 5 more queues"), "{said:#?}");
}

#[tokio::test]
async fn a_clean_stop_and_another_boot_changes_nothing() {
    let mut home = Home::new(2);
    home.boot(BOOT_A);
    let server = home.start();
    let client = server.client().await;
    for mode in Mode::ALL {
        declare(&client, mode).await;
        publish(&client, mode.name(), 0, 20).await;
    }
    server.stop();
    assert!(home.data().join("clean").exists());
    home.boot(BOOT_B);
    let server = home.start();
    let client = server.client().await;
    for mode in Mode::ALL {
        assert_eq!(history(&server, mode.name()), (1, vec![]));
        let seen = take_all(&client, mode.name(), false).await;
        assert_eq!(seen, (0..20).collect());
    }
    assert!(
        !home.data().join("clean").exists(),
        "taken away at the start"
    );
}
