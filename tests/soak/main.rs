//! Clusters of real processes, each node in a network namespace and on a disk of its
//! own that can lose its power, under load, while all kinds of things happen to them.
//! What the clients saw is put into one order at the end (`tests/linear`).
//!
//! In its small form a minute; `scripts/soak-cluster MINUTES DIRECTORY` runs it for
//! longer and writes a report. `TIDEGATE_TEST_SEED` fixes what happens, not when the
//! processes do what.
//!
//! Everything made here is of this process: its namespaces, links and mounts go with
//! it, however it ends, and so do the servers.
//!
//! Where namespaces or FUSE file systems cannot be made (root is needed) nothing of
//! this is tested; the test says so, loudly, and passes.

#[path = "../support/mod.rs"]
mod support;

mod cluster;
mod directed;
mod faults;
mod load;
mod net;
mod report;
mod run;

use std::{
    future::Future,
    io::{self, Write},
    time::Duration,
};

use faults::Fault;
use run::{run, Plan};
use support::{size, Random};

/// A line for people, past the test harness, which hides what a test that passes
/// prints.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// How long each run takes: of the environment, or short.
fn length() -> Duration {
    let minutes = std::env::var("TIDEGATE_SOAK_MINUTES").ok();
    let minutes: Option<f64> = minutes.and_then(|text| text.parse().ok());
    match minutes {
        Some(minutes) => Duration::from_secs_f64(minutes * 60.0),
        None => Duration::from_secs(size(15, 600)),
    }
}

/// Runs `what` in namespaces of its own, on a runtime whose other threads share them;
/// says so and passes where there are none.
fn apart<F: Future<Output = ()>>(test: &str, what: impl FnOnce(Random) -> F) {
    if let Err(error) = net::private().and_then(|()| powercut_fs::available()) {
        say(&format!(
            "\nNOT TESTED: {test}, because network namespaces and FUSE file systems cannot be \
             made here (root and /dev/fuse are needed): {error}"
        ));
        return;
    }
    let random = Random::new(test);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    // Here, not on a worker: servers die with the thread that started them.
    runtime.block_on(what(random));
}

fn soak(test: &str, nodes: u32) {
    apart(test, |random| {
        run(test, nodes, random, Plan::Anything(length()))
    });
}

#[test]
fn three_nodes_keep_their_promises_whatever_happens() {
    soak("soak-3", 3);
}

#[test]
fn five_nodes_keep_their_promises_whatever_happens() {
    soak("soak-5", 5);
}

/// F03: the power of all machines goes at once, and their disks lose what was not synced.
/// Durable queues lose nothing; buffered ones exactly what the loss report names.
#[test]
fn f03_a_power_cut_of_all_machines_loses_what_is_reported_and_nothing_else() {
    apart("f03", |random| {
        run(
            "f03",
            3,
            random,
            Plan::Only(Fault::PowerCutOfAll, size(2, 40)),
        )
    });
}

/// F53: nodes are killed, the leaders of some partitions with each, under idempotent
/// producers that send again by themselves what they do not know: it is stored once, and
/// what the retry was told is where it stands.
#[test]
fn f53_what_is_sent_again_after_kills_is_stored_once() {
    apart("f53", |random| {
        run("f53", 3, random, Plan::Only(Fault::Kill, size(3, 60)))
    });
}

/// F24: a sync fails once under one of three, and later ones succeed. Its log latches and
/// comes back by itself, and nothing is lost.
#[test]
fn f24_a_sync_that_fails_once_under_one_of_three_loses_nothing() {
    apart("f24", |random| {
        run("f24", 3, random, Plan::Only(Fault::FailedSync, size(3, 60)))
    });
}
