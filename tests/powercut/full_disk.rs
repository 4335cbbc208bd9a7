//! The real server on a disk without room: what is refused, what goes on, what
//! is said when nothing can, and how it ends.

use std::time::Instant;

use client::{Client, DeclareOptions, Error, ErrorCode, Mode, Subscription};

use crate::{
    failures::await_said,
    machine::Machine,
    support::{server::Server, Random, PATIENCE},
};

const PAYLOAD: &[u8] = &[7; 16 << 10];

/// A machine whose disk refuses only when it is full, and a server on it.
fn cramped(test: &str) -> Option<(Machine, Server)> {
    let mut random = Random::new(test);
    let machine = Machine::new(1, &mut random, |home| home.low_water("0"))?;
    let server = machine.home.start();
    Some((machine, server))
}

fn is_full(error: &Error) -> bool {
    error.code() == Some(ErrorCode::DiskFull)
}

async fn declare(client: &Client, name: &str) {
    let options = DeclareOptions::new(name).mode(Mode::Durable);
    client.declare(options).await.unwrap();
}

/// Takes the disk's room and publishes until that is refused, for sure.
async fn fill(machine: &Machine, client: &Client, queue: &str) -> u64 {
    machine.disk.set_capacity(machine.disk.used());
    let mut taken = 0;
    let error = loop {
        match client.publish(queue, PAYLOAD).await {
            Ok(_) => taken += 1,
            Err(error) => break error,
        }
    };
    assert!(is_full(&error) && !error.is_unknown(), "{error}");
    taken
}

/// Acknowledges `count` records, each with a confirm.
async fn acknowledge(deliveries: &mut Subscription, count: u64) {
    for _ in 0..count {
        let delivery = deliveries.next().await.unwrap().unwrap();
        delivery.ack_confirmed().await.unwrap();
    }
}

/// F27, F25: consumers are served and settle, purge, delete succeed; a stop is
/// clean and a start serves; room is taken up by itself.
#[tokio::test]
async fn f27_f25_on_a_full_disk_all_but_publishing_goes_on_and_so_do_stop_and_start() {
    let Some((mut machine, mut server)) = cramped("F27") else {
        return;
    };
    let client = server.client().await;
    for queue in ["work", "other", "third"] {
        declare(&client, queue).await;
        for _ in 0..20 {
            client.publish(queue, PAYLOAD).await.unwrap();
        }
    }
    let taken = fill(&machine, &client, "work").await;
    await_said(&mut server, "the disk has no room", 1).await;
    let error = client.declare("new").await.unwrap_err();
    assert!(is_full(&error) && !error.is_unknown(), "{error}");
    declare(&client, "work").await;
    let mut deliveries = client.subscribe("work").await.unwrap();
    acknowledge(&mut deliveries, 10).await;
    drop(deliveries);
    assert_eq!(client.purge("other").await.unwrap(), 20);
    client.delete("third").await.unwrap();

    machine.disk.set_capacity(machine.disk.used());
    server.stop();
    server = machine.home.start();
    let client = server.client().await;
    let mut deliveries = client.subscribe("work").await.unwrap();
    acknowledge(&mut deliveries, 10 + taken).await;
    drop(deliveries);

    machine.kill(server);
    machine.disk.set_capacity(machine.disk.used());
    server = machine.home.start();
    await_said(&mut server, "the disk has no room", 1).await;
    machine.disk.set_capacity(machine.disk.used() + (100 << 20));
    await_said(&mut server, "the disk has room again", 1).await;
    let client = server.client().await;
    client.publish("work", PAYLOAD).await.unwrap();
    declare(&client, "new").await;
    machine.cut(server);
    server = machine.home.start();
    let client = server.client().await;
    assert_eq!(client.info("work").await.unwrap().totals().ready, 1);
    server.stop();
}

/// The reserve is used up: whoever asks is told, a stop says why it is not
/// clean, a start ends with a sentence, and room cures it all.
#[tokio::test]
async fn without_a_reserve_everyone_is_told_and_stop_and_start_end() {
    let Some((machine, mut server)) = cramped("no reserve") else {
        return;
    };
    let client = server.client().await;
    // Stays, and so does its segment: packing it needs room.
    declare(&client, "held").await;
    client.publish("held", PAYLOAD).await.unwrap();
    declare(&client, "work").await;
    let publisher = client.publisher("work").await.unwrap();
    let mut confirms = Vec::new();
    for _ in 0..4_000 {
        confirms.push(publisher.send(&b"x"[..]).await.unwrap());
    }
    for confirm in confirms {
        confirm.await.unwrap();
    }
    fill(&machine, &client, "held").await;
    let mut deliveries = client.subscribe("work").await.unwrap();
    let mut settled = 0u64;
    let (error, waited) = loop {
        let delivery = deliveries.next().await.unwrap().unwrap();
        let asked = Instant::now();
        match delivery.ack_confirmed().await {
            Ok(_) => settled += 1,
            Err(error) => break (error.to_string(), asked.elapsed()),
        }
    };
    assert!(error.contains("reserve is used up"), "{error}");
    assert!(waited < PATIENCE / 2, "told after {waited:?}");
    let error = client.purge("held").await.unwrap_err();
    assert!(is_full(&error) && error.is_unknown(), "{error}");
    await_said(&mut server, "the log's reserve is used up", 1).await;
    let (status, said) = server.terminate();
    assert_eq!(status.code(), Some(1), "{said:?}");
    assert!(
        said.iter().any(|line| line.contains("waits for room")),
        "{said:?}"
    );

    machine.disk.set_capacity(machine.disk.used());
    let said = match machine.home.spawn().await_listening() {
        Ok(()) => panic!("it started, with nowhere to write to"),
        Err(said) => said.join("\n"),
    };
    assert!(
        said.contains("cannot start") && said.contains("free at least"),
        "{said}"
    );

    machine.disk.set_capacity(machine.disk.used() + (100 << 20));
    server = machine.home.start();
    let client = server.client().await;
    let counts = client.info("work").await.unwrap().totals();
    assert_eq!(counts.published, 4_000);
    // Whoever was told "unknown" may have been served or not.
    let possible = settled..=settled + 1;
    assert!(
        possible.contains(&counts.acknowledged),
        "{settled}: {counts:?}"
    );
    client.publish("work", PAYLOAD).await.unwrap();
    server.stop();
}

/// Publishes are refused before the disk is full, and taken again above the mark.
#[tokio::test]
async fn below_the_low_water_mark_publishes_are_refused_before_the_disk_is_full() {
    let mut random = Random::new("low water");
    let configure = |home: crate::support::server::Home| home.low_water("64MiB");
    let Some(machine) = Machine::new(1, &mut random, configure) else {
        return;
    };
    let mut server = machine.home.start();
    let client = server.client().await;
    declare(&client, "work").await;
    client.publish("work", PAYLOAD).await.unwrap();
    machine.disk.set_capacity(machine.disk.used() + (32 << 20));
    await_said(&mut server, "below its low-water mark", 1).await;
    let error = client.publish("work", PAYLOAD).await.unwrap_err();
    assert!(is_full(&error) && !error.is_unknown(), "{error}");
    let mut deliveries = client.subscribe("work").await.unwrap();
    acknowledge(&mut deliveries, 1).await;
    machine.disk.set_capacity(machine.disk.used() + (200 << 20));
    await_said(&mut server, "above its low-water mark again", 1).await;
    client.publish("work", PAYLOAD).await.unwrap();
    let said = server.errors();
    assert_eq!(
        said.iter()
            .filter(|line| line.contains("low-water"))
            .count(),
        2,
        "{said:?}"
    );
    server.stop();
}
