//! Publishers and consumers that write a journal and outlive the server.

use std::{
    collections::VecDeque,
    sync::{
        atomic::{AtomicBool, Ordering},
        Arc, Mutex, MutexGuard,
    },
    time::Duration,
};

use client::{Batch, Client, Delivery, ErrorCode, Publisher, Record, SettleConfirm};
use tokio::task::JoinSet;

use super::{journal::Journal, Random};

/// Publishes of one publisher that wait for their confirms.
const UNANSWERED: usize = 64;

pub type Shared = Arc<Mutex<Journal>>;

fn journal(shared: &Shared) -> MutexGuard<'_, Journal> {
    shared.lock().expect("no other task failed")
}

/// A payload whose bytes follow from its id.
pub fn payload(id: &str, bytes: usize) -> Vec<u8> {
    let mut payload = format!("{id}|").into_bytes();
    let seed = id
        .bytes()
        .fold(7_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
    while payload.len() < bytes {
        payload.push(seed.wrapping_add(payload.len() as u8));
    }
    payload
}

/// The id of a payload; its other bytes must be what was published.
pub fn id_of(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == b'|').expect("an id");
    let id = String::from_utf8(bytes[..end].to_vec()).expect("an id");
    assert_eq!(payload(&id, bytes.len()), bytes, "{id} has other bytes");
    id
}

/// Publishes a batch, again and again while the log is behind.
pub async fn put(publisher: &Publisher, batch: &Batch) {
    loop {
        match publisher.send_batch(batch).await.unwrap().await {
            Err(error) if error.code() == Some(ErrorCode::Overloaded) => {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            taken => {
                taken.unwrap();
                return;
            }
        }
    }
}

/// Records that belong together.
pub fn batch_of<'a>(payloads: impl IntoIterator<Item = &'a [u8]>) -> Batch {
    let mut batch = Batch::new();
    for payload in payloads {
        batch.push(payload).unwrap();
    }
    batch
}

/// Publishes until told to stop, then waits for every answer.
pub async fn publish(
    client: Client,
    queue: String,
    name: String,
    shared: Shared,
    stop: Arc<AtomicBool>,
    mut random: Random,
) {
    let Ok(publisher) = client.publisher(&queue).await else {
        return; // killed that early
    };
    let mut waiting = VecDeque::new();
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        let id = format!("{name}-{number}");
        number += 1;
        let bytes = match random.between(0, 50) {
            0 => random.between(40_000, 300_000),
            _ => random.between(10, 2_000),
        };
        let payload = payload(&id, bytes as usize);
        journal(&shared).sent(&id);
        match publisher.send(Record::new(&payload)).await {
            Ok(confirm) => waiting.push_back((id, confirm)),
            Err(error) => journal(&shared).answered(&id, &Err(error)),
        }
        if waiting.len() >= UNANSWERED {
            let (id, confirm) = waiting.pop_front().expect("just pushed");
            let answer = confirm.await;
            journal(&shared).answered(&id, &answer);
        }
        // Not every batch is full.
        if random.between(0, 3) == 0 {
            tokio::time::sleep(Duration::from_millis(random.between(0, 2))).await;
        }
    }
    for (id, confirm) in waiting {
        let answer = confirm.await;
        journal(&shared).answered(&id, &answer);
    }
}

/// Consumes until told to stop, settling now this way, now that.
pub async fn consume(
    client: Client,
    queue: String,
    shared: Shared,
    stop: Arc<AtomicBool>,
    mut random: Random,
) {
    let Ok(mut subscription) = client.subscribe(&queue).await else {
        return; // killed that early
    };
    let mut settles = JoinSet::new();
    while !stop.load(Ordering::Relaxed) {
        let wait = Duration::from_millis(20);
        match tokio::time::timeout(wait, subscription.next()).await {
            Err(_) => continue,
            Ok(None) => break,
            Ok(Some(Err(error))) => panic!("{error}"),
            Ok(Some(Ok(delivery))) => {
                settle_somehow(&mut settles, &shared, delivery, &mut random);
            }
        }
        while settles.try_join_next().is_some() {}
    }
    while let Some(done) = settles.join_next().await {
        done.expect("a settle task failed");
    }
}

fn settle_somehow(
    settles: &mut JoinSet<()>,
    shared: &Shared,
    delivery: Delivery,
    random: &mut Random,
) {
    let id = id_of(delivery.payload());
    let mut told = journal(shared);
    told.delivered(&id, &delivery);
    match random.between(0, 99) {
        0..=4 => delivery.release(Duration::from_millis(random.between(0, 300))),
        5..=7 => drop(delivery), // its lease runs out
        8..=17 => {
            told.settle_sent(&id);
            delivery.ack();
        }
        18..=22 => {
            told.settle_sent(&id);
            let confirm = delivery.reject_confirmed();
            let shared = shared.clone();
            settles.spawn(async move {
                let answer = confirm.await;
                journal(&shared).settle_answered(&id, &answer);
            });
        }
        _ => {
            told.settle_sent(&id);
            let confirm = delivery.ack_confirmed();
            let shared = shared.clone();
            settles.spawn(async move {
                let answer = confirm.await;
                journal(&shared).settle_answered(&id, &answer);
            });
        }
    }
}

/// Acknowledges everything until the queue is empty.
pub async fn drain(client: &Client, queue: &str, shared: &Shared) {
    let mut subscription = client.subscribe(queue).await.expect("subscribed");
    let mut settles = VecDeque::new();
    let until = tokio::time::Instant::now() + super::PATIENCE;
    loop {
        let wait = Duration::from_millis(100);
        match tokio::time::timeout(wait, subscription.next()).await {
            Ok(Some(delivery)) => {
                let delivery = delivery.expect("a whole record");
                let id = id_of(delivery.payload());
                journal(shared).delivered(&id, &delivery);
                journal(shared).settle_sent(&id);
                settles.push_back((id, delivery.ack_confirmed()));
                if settles.len() >= UNANSWERED {
                    await_settles(&mut settles, shared).await;
                }
            }
            Ok(None) => panic!("the subscription ended"),
            Err(_) => {
                await_settles(&mut settles, shared).await;
                let c = client.info(queue).await.expect("info").totals();
                if c.gated + c.ready + c.delayed + c.leased == 0 {
                    return;
                }
                assert!(
                    tokio::time::Instant::now() < until,
                    "the queue does not drain: {c:?}"
                );
            }
        }
    }
}

async fn await_settles(settles: &mut VecDeque<(String, SettleConfirm)>, shared: &Shared) {
    for (id, confirm) in settles.drain(..) {
        let answer = confirm.await;
        journal(shared).settle_answered(&id, &answer);
    }
}
