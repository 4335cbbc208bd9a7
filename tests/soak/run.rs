//! A run: rounds of load and faults, each ended by a cluster that is whole again; then
//! everything is consumed, checked, started anew and checked again.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use client::{Client, DeclareOptions, QueueInfo};
use linear::Ended;
use tokio::task::JoinSet;

use crate::{
    cluster::{Cluster, Machine},
    faults::{Fault, Faults},
    load::{consume, produce, queues, Journal, Queue, Round},
    report::Report,
    say,
    support::{assert_conserved, served, Random},
};

/// Consumers of each queue.
const CONSUMERS: usize = 2;
/// Most faults of a round.
const FAULTS: u64 = 5;
/// Bound on the last drain.
const DRAIN: Duration = Duration::from_secs(300);

struct Run {
    cluster: Cluster,
    queues: Vec<Queue>,
    journal: Journal,
    faults: Faults,
    random: Random,
    /// Losses of each partition as last reported.
    losses: BTreeMap<(u64, u16), Vec<(u32, u64)>>,
    rounds: u64,
    /// Rounds in which a majority lost its power.
    ruined: u64,
    /// Loss reports of other rounds.
    without_ruin: usize,
    slowest_repair: Duration,
}

/// What happens in a run.
pub enum Plan {
    /// Anything, for about so long.
    Anything(Duration),
    /// This in each of so many rounds.
    Only(Fault, u64),
}

/// Runs a cluster of so many nodes.
pub async fn run(test: &str, nodes: u32, mut random: Random, plan: Plan) {
    let began = Instant::now();
    let cluster = Cluster::start(nodes, &mut random);
    cluster.await_whole().await;
    let mut run = Run {
        cluster,
        queues: queues(),
        journal: Journal::new(),
        faults: Faults::default(),
        random,
        losses: BTreeMap::new(),
        rounds: 0,
        ruined: 0,
        without_ruin: 0,
        slowest_repair: Duration::ZERO,
    };
    run.declare().await;
    match plan {
        Plan::Anything(length) => {
            while began.elapsed() < length {
                run.round(None).await;
            }
        }
        Plan::Only(fault, rounds) => {
            for _ in 0..rounds {
                run.round(Some(fault)).await;
            }
        }
    }
    run.drain().await;
    run.look(true).await;
    // Once more, from what is on the disks.
    for machine in &mut run.cluster.machines {
        machine.kill();
    }
    run.faults.heal(&mut run.cluster);
    run.cluster.await_whole().await;
    run.look(true).await;
    let failures = run.cluster.machines.iter().map(Machine::failures).sum();
    let told = run.journal.told();
    let checked = told.history.check();
    let report = Report {
        test,
        nodes,
        took: began.elapsed(),
        rounds: run.rounds,
        ruined: run.ruined,
        slowest_repair: run.slowest_repair,
        faults: &run.faults.counts,
        failures,
        counts: &told.counts,
        losses: run.losses.values().map(Vec::len).sum(),
        without_ruin: run.without_ruin,
        wrong: &told.wrong,
        checked: &checked,
    };
    say(&report.text());
    report.write();
    let failing = run.faults.counts.contains_key(&Fault::FailedSync);
    assert!(!failing || failures > 0 || run.faults.counts.len() > 1);
    assert!(told.counts.confirmed > 100, "{:?}", told.counts);
    assert!(told.wrong.is_empty(), "{:#?}", told.wrong);
    if let Err(violation) = checked {
        panic!("not linearizable: {violation}");
    }
}

impl Run {
    async fn client(&mut self) -> Client {
        self.cluster.client(&mut self.random).await
    }

    async fn declare(&mut self) {
        let client = self.client().await;
        for queue in &mut self.queues {
            let options = || {
                DeclareOptions::new(queue.name)
                    .mode(queue.mode)
                    .partitions(queue.partitions)
                    .lease(Duration::from_secs(3))
            };
            let declared = served(|| client.declare(options())).await;
            queue.id = declared.queue.queue_id;
        }
    }

    /// `only`: this is all that happens.
    async fn round(&mut self, only: Option<Fault>) {
        self.rounds += 1;
        let round = Round {
            number: self.rounds,
            journal: self.journal.clone(),
            stop_publishing: Arc::default(),
            stop_consuming: Arc::default(),
        };
        let (mut producers, mut consumers) = (JoinSet::new(), JoinSet::new());
        for queue in self.queues.clone() {
            for partition in 0..queue.partitions {
                let (client, random) = (self.client().await, self.random.fork());
                let (queue, round) = (queue.clone(), round.clone());
                producers.spawn(produce(client, queue, partition, round, random));
            }
            for _ in 0..CONSUMERS {
                let (client, random) = (self.client().await, self.random.fork());
                let (queue, round) = (queue.clone(), round.clone());
                consumers.spawn(consume(client, queue, round, false, random));
            }
        }
        let mut line = Vec::new();
        let times = only.map_or_else(|| self.random.between(1, FAULTS), |_| 1);
        for _ in 0..times {
            Faults::pause(&mut self.random).await;
            let (cluster, random) = (&mut self.cluster, &mut self.random);
            line.push(match only {
                Some(fault) => self.faults.strike_as(fault, cluster, random),
                None => self.faults.strike(cluster, random),
            });
            Faults::pause(random).await;
            if only.is_none() {
                self.faults.ease(cluster, random);
            }
        }
        println!("round {}: {}", self.rounds, line.join(", "));
        self.faults.heal(&mut self.cluster);
        let took = self.cluster.await_whole().await;
        self.slowest_repair = self.slowest_repair.max(took);
        // A while of nothing but load.
        tokio::time::sleep(Duration::from_millis(500)).await;
        use std::sync::atomic::Ordering::Relaxed;
        round.stop_publishing.store(true, Relaxed);
        while let Some(done) = producers.join_next().await {
            done.expect("a producer failed");
        }
        round.stop_consuming.store(true, Relaxed);
        while let Some(done) = consumers.join_next().await {
            done.expect("a consumer failed");
        }
        self.look(false).await;
    }

    /// What the server says of every queue; `drained`: everything was settled.
    async fn look(&mut self, drained: bool) {
        let client = self.client().await;
        let majority = self.cluster.machines.len() / 2 + 1;
        let ruined = self.faults.hurt.len() >= majority;
        self.ruined += u64::from(ruined);
        self.faults.hurt.clear();
        for queue in self.queues.clone() {
            let info = served(|| client.info(queue.name)).await;
            assert_conserved(&info);
            self.take_losses(&queue, &info, ruined);
            if drained {
                let left = unsettled(&info);
                assert_eq!(left, 0, "{} of {} are back: {info:?}", left, queue.name);
            }
        }
        client.close(Duration::from_secs(1)).await;
    }

    /// Losses are told for ever. What was confirmed is among them only where a majority
    /// lost its power: a generation may end without that, when one replica may have
    /// forgotten something while another one is away for long.
    fn take_losses(&mut self, queue: &Queue, info: &QueueInfo, ruined: bool) {
        for partition in &info.partitions {
            let key = (queue.id, partition.partition);
            let losses = partition.losses.iter();
            let losses: Vec<(u32, u64)> = losses
                .map(|loss| (loss.generation, loss.first_lost))
                .collect();
            let known = self.losses.entry(key).or_default();
            let mut told = self.journal.told();
            let new = losses.get(known.len()..).unwrap_or_default();
            let names = |(generation, first): &(u32, u64)| {
                let end = told.confirmed.get(&(key, *generation));
                end.is_some_and(|end| end > first)
            };
            let wrong = !losses.starts_with(known) || (!ruined && new.iter().any(names));
            if wrong {
                let round = self.rounds;
                let line =
                    format!("round {round}: losses of {key:?} were {known:?} and are {losses:?}");
                told.wrong.push(line);
            }
            if !ruined {
                self.without_ruin += new.len();
            }
            told.history.losses(key, &losses);
            let ended = Ended {
                generation: partition.generation,
                written_next: partition.written_next,
            };
            told.history.ended(key, ended);
            *known = losses;
        }
    }

    /// Consumes all there is.
    async fn drain(&mut self) {
        let round = Round {
            number: self.rounds + 1,
            journal: self.journal.clone(),
            stop_publishing: Arc::default(),
            stop_consuming: Arc::default(),
        };
        let mut consumers = JoinSet::new();
        for queue in self.queues.clone() {
            let (client, random) = (self.client().await, self.random.fork());
            consumers.spawn(consume(client, queue, round.clone(), true, random));
        }
        let client = self.client().await;
        let start = Instant::now();
        for queue in self.queues.clone() {
            loop {
                let info = served(|| client.info(queue.name)).await;
                if unsettled(&info) == 0 {
                    break;
                }
                assert!(start.elapsed() < DRAIN, "it does not drain: {info:?}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        round
            .stop_consuming
            .store(true, std::sync::atomic::Ordering::Relaxed);
        while let Some(done) = consumers.join_next().await {
            done.expect("a consumer failed");
        }
    }
}

fn unsettled(info: &QueueInfo) -> u64 {
    let counts = info.totals();
    counts.gated + counts.ready + counts.delayed + counts.leased
}
