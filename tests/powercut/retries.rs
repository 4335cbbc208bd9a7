//! A publish whose write failed, and the same publish again.

use std::{collections::HashMap, time::Duration};

use client::{Client, Confirmed, DeclareOptions, Mode, PeekOptions};
use powercut_fs::{Fault, Operation};

use crate::{
    failures::segment,
    machine::Machine,
    support::{size, Random, PATIENCE},
};

/// What became of the tries of one record.
#[derive(Debug, Default)]
struct Tries {
    confirmed: Option<Confirmed>,
    unknown: usize,
}

/// Publishes the record until it is confirmed.
async fn publish(client: &Client, queue: &str, id: &str) -> Tries {
    let mut tries = Tries::default();
    let until = tokio::time::Instant::now() + PATIENCE;
    while tries.confirmed.is_none() {
        assert!(tokio::time::Instant::now() < until, "{id}: {tries:?}");
        match client.publish(queue, id.as_bytes()).await {
            Ok(confirmed) => tries.confirmed = Some(confirmed),
            Err(error) => {
                tries.unknown += usize::from(error.is_unknown());
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
    tries
}

/// F54: what failed is nowhere, what is unknown is there at most once, and what
/// was confirmed is there, at its place, whatever happens next.
#[tokio::test]
async fn f54_the_retry_of_a_write_that_failed_is_stored_once_and_confirmed() {
    let mut random = Random::new("F54");
    let Some(mut machine) = Machine::new(1, &mut random, |home| home) else {
        return;
    };
    let modes = [Mode::Durable, Mode::Buffered];
    let mut tried: [HashMap<String, Tries>; 2] = Default::default();
    let mut server = machine.home.start();
    let mut struck = 0;
    for round in 0..size(6, 60) {
        let client = server.client().await;
        for mode in modes {
            let options = DeclareOptions::new(mode.name()).mode(mode);
            client.declare(options).await.unwrap();
        }
        for (mode, tried) in modes.iter().zip(&mut tried) {
            machine.disk.fail(Fault {
                operation: Operation::Write,
                of: segment,
                errno: [libc::EIO, libc::ENOSPC][round % 2],
                after: 0,
                times: 1,
            });
            let id = format!("round {round}");
            let tries = publish(&client, mode.name(), &id).await;
            struck += usize::from(tries.unknown > 0);
            tried.insert(id, tries);
            machine.disk.clear_faults();
        }
        // A buffered record may be lost with the power.
        client
            .barrier(Mode::Buffered.name(), PATIENCE)
            .await
            .unwrap();
        check(&client, &modes, &tried).await;
        match random.between(0, 2) {
            0 => drop(machine.cut(server)),
            1 => machine.kill(server),
            _ => server.stop(),
        }
        server = machine.home.start();
        check(&server.client().await, &modes, &tried).await;
    }
    println!("F54: {struck} failed writes were met by a publish");
    assert!(struck > 0, "no publish met a failed write");
    server.stop();
}

async fn check(client: &Client, modes: &[Mode], tried: &[HashMap<String, Tries>]) {
    for (mode, tried) in modes.iter().zip(tried) {
        let options = PeekOptions {
            max_records: u32::MAX,
            ..PeekOptions::default()
        };
        let mut copies: HashMap<String, Vec<u64>> = HashMap::new();
        for record in client.peek(mode.name(), options).await.unwrap() {
            let id = String::from_utf8(record.payload).unwrap();
            copies.entry(id).or_default().push(record.offset);
        }
        for (id, tries) in tried {
            let there = copies.remove(id).unwrap_or_default();
            let context = format!("{id} of {}: {tries:?}, at {there:?}", mode.name());
            let confirmed = tries.confirmed.as_ref().unwrap().offset;
            assert!(there.contains(&confirmed), "{context}");
            assert!(there.len() <= 1 + tries.unknown, "{context}");
        }
        assert!(copies.is_empty(), "never published: {copies:?}");
    }
}
