//! Producers and consumers, and everything they saw.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        atomic::{AtomicBool, Ordering},
        Arc, Mutex, MutexGuard,
    },
    time::{Duration, Instant},
};

use client::{
    Boundary, Client, Confirm, Confirmed, Delivery, Error, Mode, ProducerId, Publisher, Settled,
};
use linear::{History, Key, Outcome, Seen};
use tokio::task::JoinSet;

use crate::support::{
    load::{batch_of, payload},
    soon, Random,
};

/// Publishes of one producer that wait for their confirms.
const UNANSWERED: usize = 16;
/// Most records of one publish.
const BATCH: u64 = 4;

/// A queue of the run.
#[derive(Debug, Clone)]
pub struct Queue {
    pub name: &'static str,
    pub mode: Mode,
    pub partitions: u16,
    /// Its producers number what they publish, and send it again by themselves.
    pub idempotent: bool,
    /// Once it was declared.
    pub id: u64,
}

/// The queues of a run, not declared yet.
pub fn queues() -> Vec<Queue> {
    let queue = |name, mode, partitions, idempotent| Queue {
        name,
        mode,
        partitions,
        idempotent,
        id: 0,
    };
    vec![
        queue("durable", Mode::Durable, 2, false),
        queue("durable-once", Mode::Durable, 1, true),
        queue("buffered", Mode::Buffered, 2, false),
        queue("buffered-once", Mode::Buffered, 1, true),
        queue("speculative", Mode::Speculative, 1, false),
    ]
}

/// What the clients of a run saw.
pub struct Told {
    pub history: History,
    next_id: u64,
    /// Of each record: when it was last delivered, in which round.
    delivered: BTreeMap<u64, u64>,
    /// Of each partition and generation: the end of what was confirmed in it.
    pub confirmed: BTreeMap<(Key, u32), u64>,
    pub counts: Counts,
    /// Promises that were broken.
    pub wrong: Vec<String>,
}

#[derive(Debug, Default, Clone)]
pub struct Counts {
    pub published: u64,
    pub confirmed: u64,
    pub failed: u64,
    pub unknown: u64,
    pub delivered: u64,
    pub redelivered: u64,
    pub settled: u64,
}

/// Shared by all clients.
#[derive(Clone)]
pub struct Journal {
    told: Arc<Mutex<Told>>,
    began: Instant,
}

impl Journal {
    pub fn new() -> Self {
        let told = Told {
            history: History::new(),
            next_id: 0,
            delivered: BTreeMap::new(),
            confirmed: BTreeMap::new(),
            counts: Counts::default(),
            wrong: Vec::new(),
        };
        Journal {
            told: Arc::new(Mutex::new(told)),
            began: Instant::now(),
        }
    }

    pub fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().expect("no other task failed")
    }

    /// Microseconds since the run began, from 1.
    pub fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64 + 1
    }

    fn publish(&self, key: Key, count: u64) -> u64 {
        let mut told = self.told();
        let first = told.next_id;
        told.next_id += count;
        told.counts.published += count;
        // The clock is read behind the lock: not before what was told by then.
        let now_us = self.now_us();
        told.history.publish(key, first, count, now_us);
        first
    }

    fn answered(&self, key: Key, first: u64, count: u64, answer: &Result<Confirmed, Error>) {
        let at_us = self.now_us();
        let mut told = self.told();
        let outcome = match answer {
            Ok(confirmed) => {
                told.counts.confirmed += count;
                let end = told
                    .confirmed
                    .entry((key, confirmed.generation))
                    .or_default();
                *end = (*end).max(confirmed.offset + count);
                if u64::from(confirmed.count) != count || confirmed.copies < 2 {
                    told.wrong.push(format!("{count} records: {confirmed:?}"));
                }
                Outcome::Confirmed {
                    generation: confirmed.generation,
                    first_offset: confirmed.offset,
                    durable: confirmed.boundary == Boundary::Durable,
                    at_us,
                }
            }
            Err(Error::Failed { .. }) => {
                told.counts.failed += count;
                Outcome::Failed
            }
            Err(Error::Unknown { .. }) => {
                told.counts.unknown += count;
                Outcome::Unknown
            }
        };
        told.history.answered(key, first, outcome);
    }

    /// `since_us`: when the subscription was asked for, in round `round`.
    fn delivered(&self, delivery: &Delivery, since_us: u64, round: u64) {
        let at_us = self.now_us();
        let id = id_of(delivery.payload());
        let key = (delivery.queue_id(), delivery.partition());
        let mut told = self.told();
        told.counts.delivered += 1;
        told.counts.redelivered += u64::from(delivery.redelivered());
        let before = told.delivered.insert(id, round);
        // Within a round a leader may be deposed and not know it yet.
        if !delivery.redelivered() && before.is_some_and(|before| before < round) {
            told.wrong.push(format!(
                "record {id} of {key:?} came again without the flag: {delivery:?}"
            ));
        }
        told.history.seen(
            key,
            Seen {
                id,
                generation: delivery.generation(),
                offset: delivery.offset(),
                durable: delivery.durable(),
                not_before_us: since_us,
                at_us,
            },
        );
    }

    fn settled(&self, of: Settling, settled: Settled) {
        let at_us = self.now_us();
        let mut told = self.told();
        told.counts.settled += 1;
        if settled.copies < 2 {
            told.wrong.push(format!("{of:?}: {settled:?}"));
        }
        told.history.settled(
            of.key,
            linear::Settled {
                generation: of.generation,
                offset: of.offset,
                durable: settled.boundary == Boundary::Durable,
                sent_us: of.sent_us,
                at_us,
            },
        );
    }
}

/// A settle under way.
#[derive(Debug, Clone, Copy)]
struct Settling {
    key: Key,
    generation: u32,
    offset: u64,
    sent_us: u64,
}

/// The id of a payload; its other bytes must be what was published.
fn id_of(bytes: &[u8]) -> u64 {
    let id = crate::support::load::id_of(bytes);
    id.parse().expect("an id of this run")
}

/// What the clients of a round share.
#[derive(Clone)]
pub struct Round {
    pub number: u64,
    pub journal: Journal,
    pub stop_publishing: Arc<AtomicBool>,
    pub stop_consuming: Arc<AtomicBool>,
}

/// Publishes to a partition until told to stop, then waits for every answer.
pub async fn produce(
    client: Client,
    queue: Queue,
    partition: u16,
    round: Round,
    mut random: Random,
) {
    let Some(mut publisher) = publisher_of(&client, &queue, &round).await else {
        return;
    };
    if queue.idempotent {
        publisher = publisher.idempotent(ProducerId::random());
    }
    let key = (queue.id, partition);
    let journal = &round.journal;
    let mut waiting: VecDeque<(u64, u64, Confirm)> = VecDeque::new();
    while !round.stop_publishing.load(Ordering::Relaxed) {
        let count = match random.between(0, 3) {
            0 => random.between(2, BATCH),
            _ => 1,
        };
        let first = journal.publish(key, count);
        let payloads: Vec<Vec<u8>> = (first..first + count)
            .map(|id| payload(&id.to_string(), random.between(20, 1_200) as usize))
            .collect();
        let batch = batch_of(payloads.iter().map(Vec::as_slice));
        match soon("room to send", publisher.send_batch_to(partition, &batch)).await {
            Ok(confirm) => waiting.push_back((first, count, confirm)),
            Err(error) => journal.answered(key, first, count, &Err(error)),
        }
        if waiting.len() >= UNANSWERED || random.between(0, 9) == 0 {
            await_one(&mut waiting, journal, key).await;
        }
        tokio::time::sleep(Duration::from_millis(random.between(5, 40))).await;
    }
    while !waiting.is_empty() {
        await_one(&mut waiting, journal, key).await;
    }
}

async fn await_one(waiting: &mut VecDeque<(u64, u64, Confirm)>, journal: &Journal, key: Key) {
    if let Some((first, count, confirm)) = waiting.pop_front() {
        let answer = soon("an outcome", confirm).await;
        journal.answered(key, first, count, &answer);
    }
}

/// A group that has no leader puts it off.
async fn publisher_of(client: &Client, queue: &Queue, round: &Round) -> Option<Publisher> {
    while !round.stop_publishing.load(Ordering::Relaxed) {
        if let Ok(publisher) = client.publisher(queue.name).await {
            return Some(publisher);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    None
}

/// Consumes until told to stop, settling now this way, now that; `all`: acknowledging
/// everything.
pub async fn consume(client: Client, queue: Queue, round: Round, all: bool, mut random: Random) {
    let journal = &round.journal;
    let stopped = || round.stop_consuming.load(Ordering::Relaxed);
    let since_us = journal.now_us();
    let mut subscription = loop {
        match client.subscribe(queue.name).await {
            Ok(subscription) => break subscription,
            Err(_) if stopped() => return,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    let mut settles = JoinSet::new();
    while !stopped() {
        let wait = Duration::from_millis(50);
        match tokio::time::timeout(wait, subscription.next()).await {
            Err(_) => continue,
            Ok(None) => break,
            Ok(Some(Err(error))) => {
                let line = format!("a subscription of {}: {error}", queue.name);
                journal.told().wrong.push(line);
                break;
            }
            Ok(Some(Ok(delivery))) => {
                journal.delivered(&delivery, since_us, round.number);
                settle(&mut settles, journal, delivery, all, &mut random);
            }
        }
        while settles.try_join_next().is_some() {}
    }
    while let Some(done) = settles.join_next().await {
        done.expect("a settle task failed");
    }
    client.close(Duration::from_secs(1)).await;
}

fn settle(
    settles: &mut JoinSet<()>,
    journal: &Journal,
    delivery: Delivery,
    all: bool,
    random: &mut Random,
) {
    let of = Settling {
        key: (delivery.queue_id(), delivery.partition()),
        generation: delivery.generation(),
        offset: delivery.offset(),
        sent_us: journal.now_us(),
    };
    let confirm = match random.between(0, 99) {
        _ if all => delivery.ack_confirmed(),
        0..=4 => return delivery.release(Duration::from_millis(random.between(0, 300))),
        5..=6 => return drop(delivery), // its lease runs out
        7..=11 => return delivery.ack(),
        12..=16 => delivery.reject_confirmed(),
        _ => delivery.ack_confirmed(),
    };
    let journal = journal.clone();
    settles.spawn(async move {
        // Refused: somebody else's by then. Unknown: it may come again.
        if let Ok(settled) = confirm.await {
            journal.settled(of, settled);
        }
    });
}
