//! Syncs and writes that fail under the real server, and a disk that is full.

use std::time::Duration;

use client::{Client, Mode};
use powercut_fs::{Fault, Operation};

use crate::{
    machine::Machine,
    support::{server::Server, size, Random, PATIENCE},
    traffic::{finish, Between, Load, Queue},
};

/// Of a segment that batches go to. A spare in the making latches nothing.
pub fn segment(name: &str) -> bool {
    name.starts_with("seg-") && !name.ends_with(".tmp")
}

fn queues() -> Vec<Queue> {
    Mode::ALL.iter().map(|mode| Queue::new(*mode, 0)).collect()
}

async fn check(client: &Client, queues: &mut [Queue], what: Between) {
    for queue in queues {
        queue.check(client, what).await;
        queue.declare(client).await;
    }
}

async fn await_that(what: &str, condition: impl Fn() -> bool) {
    let until = tokio::time::Instant::now() + PATIENCE;
    while !condition() {
        assert!(tokio::time::Instant::now() < until, "waited for {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until the server has said this so many times.
pub async fn await_said(server: &mut Server, text: &str, times: usize) {
    let until = tokio::time::Instant::now() + PATIENCE;
    loop {
        let said = server.errors();
        let count = said.iter().filter(|line| line.contains(text)).count();
        if count >= times {
            return;
        }
        assert!(
            tokio::time::Instant::now() < until,
            "the server did not say {text:?}: {said:?}"
        );
        server.assert_alive();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The device forgets what the failed sync should have written, and every later
/// sync succeeds. Nothing confirmed rests on that.
#[tokio::test]
async fn f24_a_sync_that_fails_once_confirms_nothing_and_loses_nothing() {
    fail_loop("F24", "fdatasync", Operation::Sync, libc::EIO).await;
}

#[tokio::test]
async fn a_write_that_fails_halfway_loses_nothing() {
    fail_loop("EIO on write", "dsync", Operation::Write, libc::EIO).await;
}

#[tokio::test]
async fn f25_a_write_without_space_latches_and_recovers_in_the_process() {
    fail_loop("ENOSPC on write", "auto", Operation::Write, libc::ENOSPC).await;
}

async fn fail_loop(name: &str, sync_method: &str, operation: Operation, errno: i32) {
    let mut random = Random::new(name);
    let method = format!("sync_method = \"{sync_method}\"");
    let Some(mut machine) = Machine::new(1, &mut random, |home| home.with(&method)) else {
        return;
    };
    let mut queues = queues();
    let mut server = machine.home.start();
    let (mut what, mut latches) = (Between::PowerCut, 0);
    let rounds = size(3, 40);
    for round in 0..rounds {
        let client = server.client().await;
        check(&client, &mut queues, what).await;
        let load = Load::start(&server, &queues, round, true, &mut random).await;
        pause(&mut random, 200).await;
        machine.disk.fail(Fault {
            operation,
            of: segment,
            errno,
            after: random.between(0, 20),
            times: 1,
        });
        latches += 1;
        await_said(&mut server, "nothing is confirmed until", latches).await;
        match random.between(0, 3) {
            0 => {
                // While it is latched, or just serves again.
                pause(&mut random, 400).await;
                machine.cut(server);
                load.stop(&queues).await;
                (server, what, latches) = (machine.home.start(), Between::PowerCut, 0);
                continue;
            }
            1 => {
                // The next process of this boot must know of it.
                let recorded = machine.home.data().join("shard-00/latched");
                await_that("the latch to be recorded", || recorded.exists()).await;
                machine.kill(server);
                load.stop(&queues).await;
                (server, what, latches) = (machine.home.start(), Between::StorageError, 0);
                if random.between(0, 1) == 0 {
                    let client = server.client().await;
                    check(&client, &mut queues, what).await;
                    machine.cut(server);
                    (server, what) = (machine.home.start(), Between::PowerCut);
                }
                continue;
            }
            _ => {}
        }
        await_said(&mut server, "serves again", latches).await;
        pause(&mut random, 200).await;
        load.stop(&queues).await;
        what = Between::StorageError;
        let client = server.client().await;
        check(&client, &mut queues, what).await;
        if random.between(0, 1) == 0 {
            machine.cut(server);
            (server, what, latches) = (machine.home.start(), Between::PowerCut, 0);
        }
    }
    finish(&mut machine, server, &mut queues, what, name).await;
}

async fn pause(random: &mut Random, most_ms: u64) {
    tokio::time::sleep(Duration::from_millis(random.between(1, most_ms))).await;
}

/// Each sync and each write of a start fails once: it begins anew by itself,
/// or ends with a sentence, and the next start has everything.
#[tokio::test]
async fn a_failure_while_starting_loses_nothing() {
    let mut random = Random::new("failing starts");
    let Some(mut machine) = Machine::new(1, &mut random, |home| home) else {
        return;
    };
    let mut queues = queues();
    let (mut came_up, mut ended) = (0, 0);
    for round in 0..size(4, 80) {
        let mut server = machine.home.start();
        let client = server.client().await;
        check(&client, &mut queues, Between::PowerCut).await;
        let load = Load::start(&server, &queues, round as usize, true, &mut random).await;
        pause(&mut random, 200).await;
        machine.cut(server);
        load.stop(&queues).await;

        let operation = [Operation::Sync, Operation::Write][round as usize % 2];
        machine.disk.fail(Fault {
            operation,
            of: |name| !name.starts_with("probe"),
            errno: libc::EIO,
            after: size(random.between(0, 8), round / 4),
            times: 1,
        });
        server = machine.home.spawn();
        match server.await_listening() {
            Ok(()) => came_up += 1,
            Err(said) => {
                ended += 1;
                assert!(said.len() > 1, "it ended without a word: {said:?}");
                println!("  {operation:?}: {said:?}");
            }
        }
        machine.disk.clear_faults();
        match random.between(0, 1) {
            0 => drop(machine.cut(server)),
            // What it left unsynced is still to be seen by the next process.
            _ => server.kill_and(|| {}),
        }
    }
    println!("failing starts: {came_up} came up, {ended} ended");
    let server = machine.home.start();
    let what = Between::PowerCut;
    finish(&mut machine, server, &mut queues, what, "failing starts").await;
}

#[tokio::test]
async fn a_full_disk_refuses_publishes_and_takes_them_again_when_there_is_room() {
    let mut random = Random::new("full disk");
    // Only a full disk refuses here: below the mark nothing more would be written.
    let configure =
        |home: crate::support::server::Home| home.with("spare_segments = 1").low_water("0");
    let Some(mut machine) = Machine::new(1, &mut random, configure) else {
        return;
    };
    let mut queues = queues();
    let mut server = machine.home.start();
    for round in 0..size(2, 10) {
        let client = server.client().await;
        check(&client, &mut queues, Between::PowerCut).await;
        machine.disk.set_capacity(machine.disk.used() + (5 << 20));
        let load = Load::start(&server, &queues, round, false, &mut random).await;
        await_said(&mut server, "the disk has no room", 1).await;
        pause(&mut random, 300).await;
        load.stop(&queues).await;
        machine.disk.set_capacity(machine.disk.used() + (100 << 20));
        await_said(&mut server, "the disk has room again", 1).await;
        let load = Load::start(&server, &queues, 1000 + round, true, &mut random).await;
        pause(&mut random, 500).await;
        machine.cut(server);
        load.stop(&queues).await;
        server = machine.home.start();
    }
    let what = Between::PowerCut;
    finish(&mut machine, server, &mut queues, what, "full disk").await;
}
