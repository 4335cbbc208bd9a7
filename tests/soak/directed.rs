//! Faults of which each step is arranged.

use std::{
    collections::BTreeSet,
    sync::{
        atomic::{AtomicBool, Ordering},
        Arc,
    },
    time::{Duration, Instant},
};

use client::{Client, Copies, DeclareOptions, Mode, Publisher};

use crate::{
    apart,
    cluster::Cluster,
    net::for_clients,
    say,
    support::{served, server::quick, size, soon, Random, PATIENCE},
};

/// A client of this node and no other.
async fn pinned(node: u32) -> Client {
    let builder = quick()
        .leader_aware(false)
        .publish_deadline(Duration::from_secs(3))
        .request_timeout(Duration::from_secs(3));
    builder.connect(for_clients(node)).await.unwrap()
}

async fn declare(cluster: &Cluster, random: &mut Random, name: &str, mode: Mode) -> u32 {
    let client = cluster.client(random).await;
    let options = || {
        let options = DeclareOptions::new(name).mode(mode);
        options.copies(Copies::Exactly(2))
    };
    served(|| client.declare(options())).await;
    leader(&client, name).await
}

/// The node that leads the queue's group.
async fn leader(client: &Client, name: &str) -> u32 {
    let start = Instant::now();
    loop {
        let leader = served(|| client.info(name)).await.queue.leaders[0];
        if leader > 0 {
            return leader;
        }
        assert!(start.elapsed() < PATIENCE, "nobody leads {name}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Everything in the queue: exactly these records, each at the offset of its confirm.
async fn readable(client: &Client, name: &str, confirmed: &BTreeSet<(u64, String)>) {
    let mut missing = confirmed.clone();
    let mut subscription = served(|| client.subscribe(name)).await;
    while !missing.is_empty() {
        let next = soon("a delivery", subscription.next()).await;
        let delivery = next.expect("it goes on").expect("a whole record");
        let payload = String::from_utf8(delivery.payload().to_vec()).unwrap();
        let other = confirmed
            .iter()
            .find(|(offset, of)| *offset == delivery.offset() && *of != payload);
        assert!(other.is_none(), "{payload} stands where {other:?} did");
        missing.remove(&(delivery.offset(), payload));
        delivery.ack();
    }
}

/// F04: of three, one is cut off; a second loses its power after it had confirmed with
/// the third, which stands still when the first comes back. The two that are there must
/// neither take anything nor say how far the queue goes: one does not know, the other
/// may have forgotten. When the third goes on, every confirm is readable.
#[test]
fn f04_one_power_cut_and_one_partition_split_no_brain() {
    apart("f04", |mut random| async move {
        let mut cluster = Cluster::start(3, &mut random);
        cluster.await_whole().await;
        let a = declare(&cluster, &mut random, "clicks", Mode::Buffered).await;
        cluster.await_whole().await;
        let (b, c) = (a % 3 + 1, (a + 1) % 3 + 1);
        cluster.network.isolate(c);
        let client = pinned(a).await;
        let publisher = served(|| client.publisher("clicks")).await;
        let mut confirmed = BTreeSet::new();
        while confirmed.len() < size(200, 1_000) {
            let payload = format!("record {}", confirmed.len());
            let met = soon("an outcome", publisher.publish(payload.as_str())).await;
            let met = met.unwrap();
            assert!(met.copies >= 2);
            confirmed.insert((met.offset, payload));
        }
        cluster.machine(b).lose_power();
        cluster.machine(a).freeze();
        cluster.machine_mut(b).fall();
        cluster.machine_mut(b).start();
        cluster.network.reconnect(c);
        let until = Instant::now() + Duration::from_secs(size(8, 60));
        while Instant::now() < until {
            for node in [b, c] {
                let client = pinned(node).await;
                let taken = client.publish("clicks", "a second brain").await;
                assert!(taken.is_err(), "node {node} took it: {taken:?}");
                let tail = client.info("clicks").await;
                assert!(tail.is_err(), "node {node} names a tail: {tail:?}");
            }
        }
        cluster.machine(a).thaw();
        cluster.await_whole().await;
        let last = cluster.client(&mut random).await;
        let info = served(|| last.info("clicks")).await;
        assert_eq!(info.partitions[0].generation, 1, "{info:?}");
        readable(&last, "clicks", &confirmed).await;
    });
}

/// Publishes one record after the other until told to stop; those confirmed, with when
/// each was sent and confirmed.
async fn publish_on(
    publisher: Publisher,
    name: String,
    stop: Arc<AtomicBool>,
) -> Vec<(Instant, Instant, u64, String)> {
    let mut confirmed = Vec::new();
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let payload = format!("{name} {number}");
        let sent = Instant::now();
        if let Ok(met) = soon("an outcome", publisher.publish(payload.as_str())).await {
            confirmed.push((sent, Instant::now(), met.offset, payload));
        }
    }
    confirmed
}

/// F10: what fences the old leader does not reach it, for it is cut off from both others
/// (in one direction or both), while its clients are not. Nothing that is sent to it
/// after the new leader's first confirm is confirmed before it is back.
#[test]
fn f10_an_old_leader_that_no_fence_reaches_confirms_nothing_more() {
    apart("f10", |mut random| async move {
        let cluster = Cluster::start(3, &mut random);
        cluster.await_whole().await;
        for (name, mode) in [("orders", Mode::Durable), ("clicks", Mode::Buffered)] {
            declare(&cluster, &mut random, name, mode).await;
            cluster.await_whole().await;
            for round in 0..size(3, 30) {
                fenced(&cluster, &mut random, name, round).await;
            }
        }
    });
}

async fn fenced(cluster: &Cluster, random: &mut Random, name: &str, round: u32) {
    let client = cluster.client(random).await;
    let old = leader(&client, name).await;
    let others = [old % 3 + 1, (old + 1) % 3 + 1];
    let stop = Arc::new(AtomicBool::new(false));
    let publisher = served(|| async { pinned(old).await.publisher(name).await }).await;
    let to_old = format!("{name} {round} old");
    let to_old = tokio::spawn(publish_on(publisher, to_old, stop.clone()));
    tokio::time::sleep(Duration::from_millis(200)).await;
    // From it, to it, or both.
    for other in others {
        if round % 3 != 1 {
            cluster.network.cut_way(old, other);
        }
        if !round.is_multiple_of(3) {
            cluster.network.cut_way(other, old);
        }
    }
    let through = pinned(others[0]).await;
    let start = Instant::now();
    let first = loop {
        let payload = format!("{name} {round} new {:?}", start.elapsed());
        match through.publish(name, payload.as_str()).await {
            Ok(met) => break (Instant::now(), met.offset, payload),
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
    };
    // It keeps publishing, to somebody who is nobody's leader.
    tokio::time::sleep(Duration::from_secs(size(1, 3))).await;
    let mended = Instant::now();
    for other in others {
        cluster.network.mend_way(old, other);
        cluster.network.mend_way(other, old);
    }
    cluster.await_whole().await;
    stop.store(true, Ordering::Relaxed);
    let by_old = to_old.await.unwrap();
    assert!(!by_old.is_empty(), "nothing was confirmed before");
    let late = by_old
        .iter()
        .find(|(sent, met, ..)| *sent > first.0 && *met < mended);
    assert!(
        late.is_none(),
        "confirmed though fenced: {late:?}, {first:?}"
    );
    let mut confirmed: BTreeSet<(u64, String)> = by_old
        .into_iter()
        .map(|(_, _, offset, payload)| (offset, payload))
        .collect();
    confirmed.insert((first.1, first.2));
    readable(&client, name, &confirmed).await;
}

/// F76: one of three stands still under load. The others go on confirming, and when it
/// goes on, it catches up while the load does.
#[test]
fn f76_one_that_stands_still_holds_nobody_up_and_catches_up_under_load() {
    apart("f76", |mut random| async move {
        let cluster = Cluster::start(3, &mut random);
        cluster.await_whole().await;
        for (name, mode) in [("orders", Mode::Durable), ("clicks", Mode::Buffered)] {
            let leads = declare(&cluster, &mut random, name, mode).await;
            cluster.await_whole().await;
            let client = cluster.client(&mut random).await;
            let stop = Arc::new(AtomicBool::new(false));
            let mut load = Vec::new();
            for at in 0..4 {
                let publisher = served(|| client.publisher(name)).await;
                let payloads = format!("{name} {at}");
                load.push(tokio::spawn(publish_on(publisher, payloads, stop.clone())));
            }
            let length = Duration::from_secs(size(3, 60));
            let began = Instant::now();
            tokio::time::sleep(length).await;
            let stands = cluster.machine(leads % 3 + 1);
            stands.freeze();
            let froze = Instant::now();
            tokio::time::sleep(length).await;
            let thawed = Instant::now();
            stands.thaw();
            // The load goes on.
            cluster.await_whole().await;
            let caught_up = Instant::now();
            stop.store(true, Ordering::Relaxed);
            let mut confirmed = Vec::new();
            for task in load {
                confirmed.extend(task.await.unwrap());
            }
            // After a grace, in each quarter of the time.
            let grace = length / 4;
            for quarter in 1..4 {
                let from = froze + grace * quarter;
                let within = |met: &Instant| *met >= from && *met < from + grace;
                let count = confirmed.iter().filter(|(_, met, ..)| within(met)).count();
                assert!(count > 10, "{count} confirms in quarter {quarter}");
            }
            say(&format!(
                "f76 {name}: p99 before {:?}, while one stands still {:?}; whole after {:?}",
                p99(&confirmed, began, froze),
                p99(&confirmed, froze + grace, thawed),
                caught_up - thawed
            ));
            let confirmed = confirmed
                .into_iter()
                .map(|(_, _, offset, payload)| (offset, payload))
                .collect();
            readable(&client, name, &confirmed).await;
        }
    });
}

/// For people: how long confirms took that came between.
fn p99(confirmed: &[(Instant, Instant, u64, String)], from: Instant, to: Instant) -> Duration {
    let within = confirmed
        .iter()
        .filter(|(_, met, ..)| *met >= from && *met < to);
    let mut took: Vec<Duration> = within.map(|(sent, met, ..)| *met - *sent).collect();
    took.sort_unstable();
    took.get(took.len() * 99 / 100).copied().unwrap_or_default()
}
