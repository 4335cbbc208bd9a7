//! Queues under load with their journals, and what each start must say of
//! them.

use std::{
    sync::{
        atomic::{AtomicBool, Ordering},
        Arc,
    },
    time::Duration,
};

use client::{Client, Counts, DeclareOptions, Loss, Mode};
use tokio::task::JoinSet;

use crate::{
    machine::Machine,
    support::{
        assert_conserved,
        journal::Summary,
        load::{consume, drain, publish, Shared},
        server::{quick, Server},
        soon, Random, PATIENCE,
    },
};

pub const PARTITIONS: u16 = 2;

/// A queue and what is known of it.
pub struct Queue {
    pub name: String,
    pub mode: Mode,
    pub journal: Shared,
    declared: bool,
    /// Generation and losses of each partition as last reported.
    history: Vec<(u32, Vec<Loss>)>,
}

/// What happened between two starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Between {
    /// The power may have been cut more than once.
    PowerCut,
    ProcessKill,
    /// The server was stopped cleanly; then the power was cut.
    CleanStop,
    /// Likewise, and the next start lost its power, with the marker or before
    /// it had taken it.
    CleanStopThenCutStart,
    /// A storage error in a process that went on.
    StorageError,
}

impl Queue {
    pub fn new(mode: Mode, number: usize) -> Self {
        Queue {
            name: format!("{}-{number}", mode.name()),
            mode,
            journal: Shared::default(),
            declared: false,
            history: vec![(1, Vec::new()); usize::from(PARTITIONS)],
        }
    }

    pub async fn declare(&mut self, client: &Client) {
        let options = DeclareOptions::new(self.name.clone())
            .mode(self.mode)
            .partitions(PARTITIONS)
            .lease(Duration::from_secs(10));
        let declared = client.declare(options).await.unwrap();
        assert!(
            declared.created || self.declared,
            "{} was there before it was declared",
            self.name
        );
        assert!(
            declared.created != self.declared,
            "{} was forgotten",
            self.name
        );
        self.declared = true;
    }

    /// Compares what the server reports with what happened, and tells the
    /// journal. Nothing may be published before.
    pub async fn check(&mut self, client: &Client, what: Between) {
        if !self.declared {
            return;
        }
        let info = client.info(&self.name).await.unwrap();
        assert_conserved(&info);
        let mut lost = Vec::new();
        for (partition, known) in info.partitions.iter().zip(&mut self.history) {
            let (generation, losses) = (partition.generation, &partition.losses);
            let context = format!("{} after {what:?}: {partition:?}, was {known:?}", self.name);
            assert!(losses.starts_with(&known.1), "{context}");
            let new = &losses[known.1.len()..];
            match (what, self.mode) {
                (_, Mode::Durable) | (Between::ProcessKill | Between::CleanStop, _) => {
                    assert!(new.is_empty(), "{context}");
                    assert_eq!(generation, known.0, "{context}");
                }
                (Between::PowerCut, _) => assert!(!new.is_empty(), "{context}"),
                (Between::StorageError | Between::CleanStopThenCutStart, _) => {}
            }
            // Each generation that began reports the loss of the one before. A
            // start that dies can leave a number that never began.
            let mut ended = known.0;
            for loss in new {
                assert!(loss.generation >= ended, "{context}");
                assert!(loss.first_lost <= partition.written_next, "{context}");
                ended = loss.generation + 1;
            }
            assert!(generation >= ended, "{context}");
            let first = new.first().map_or(generation, |loss| loss.generation);
            assert_eq!(first, known.0, "the generation that was served: {context}");
            assert_eq!(
                partition.written_next, partition.counts.published,
                "{context}"
            );
            lost.extend(new.iter().map(|loss| (partition.partition, *loss)));
            *known = (generation, losses.clone());
        }
        let mut journal = self.journal.lock().unwrap();
        if !matches!(what, Between::PowerCut | Between::StorageError) {
            // A clean stop makes everything durable, and so does a start in the
            // same boot with what it finds.
            let now = journal.now();
            journal.barrier(now);
        }
        if !matches!(what, Between::ProcessKill | Between::CleanStop) {
            journal.lost(&lost);
        }
    }

    /// Everything that the queue took is durable when this returns.
    pub async fn barrier(&self, client: &Client) {
        let then = self.journal.lock().unwrap().now();
        client.barrier(&self.name, PATIENCE).await.unwrap();
        self.journal.lock().unwrap().barrier(then);
    }

    /// Takes everything out; nothing may be missing.
    pub async fn drain(&self, client: &Client) -> (Summary, Counts) {
        drain(client, &self.name, &self.journal).await;
        let (summary, places) = {
            let journal = self.journal.lock().unwrap();
            (journal.check_drained(), journal.places() as u64)
        };
        let info = client.info(&self.name).await.unwrap();
        assert_conserved(&info);
        let counts = info.totals();
        assert_eq!(counts.published, places, "{}: {info:?}", self.name);
        (summary, counts)
    }
}

/// The end of a run: everything is taken out and nothing may be missing; then
/// the power is cut once more, and nothing may have changed.
pub async fn finish(
    machine: &mut Machine,
    server: Server,
    queues: &mut [Queue],
    what: Between,
    name: &str,
) {
    let client = server.client().await;
    let (mut left, mut summaries) = (Vec::new(), Vec::new());
    for queue in queues.iter_mut() {
        queue.check(&client, what).await;
        let (summary, counts) = queue.drain(&client).await;
        println!("{name}: {}: {summary:?}", queue.name);
        assert!(summary.confirmed > 0 && summary.settle_confirmed > 0);
        assert!(summary.reported_lost == 0 || queue.mode == Mode::Buffered);
        queue.barrier(&client).await;
        left.push(counts);
        summaries.push(summary);
    }
    machine.cut(server);
    let server = machine.home.start();
    let client = server.client().await;
    for (queue, before) in queues.iter_mut().zip(left) {
        queue.check(&client, Between::PowerCut).await;
        let mut after = client.info(&queue.name).await.unwrap().totals();
        // Counted since the start.
        after.redelivered = before.redelivered;
        assert_eq!(after, before, "{}", queue.name);
    }
    machine.kill(server);
    machine.report(name, &summaries);
}

/// Publishers and consumers on some queues.
pub struct Load {
    tasks: JoinSet<()>,
    stop: Arc<AtomicBool>,
}

impl Load {
    /// `round` tells the ids of this load from those of others.
    pub async fn start(
        server: &Server,
        queues: &[Queue],
        round: usize,
        consumers: bool,
        random: &mut Random,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for queue in queues {
            // What was not answered when the power went ends soon.
            let soon = Duration::from_secs(1);
            let builder = || quick().publish_deadline(soon).request_timeout(soon);
            tasks.spawn(publish(
                server.client_with(builder()).await,
                queue.name.clone(),
                format!("r{round}"),
                queue.journal.clone(),
                stop.clone(),
                random.fork(),
            ));
            if consumers {
                tasks.spawn(consume(
                    server.client_with(builder()).await,
                    queue.name.clone(),
                    queue.journal.clone(),
                    stop.clone(),
                    random.fork(),
                ));
            }
            if random.between(0, 1) == 0 {
                let wait = Duration::from_millis(random.between(0, 500));
                let client = server.client_with(builder()).await;
                let (name, journal) = (queue.name.clone(), queue.journal.clone());
                tasks.spawn(async move {
                    tokio::time::sleep(wait).await;
                    let then = journal.lock().unwrap().now();
                    // The server may be gone before it answers.
                    if client.barrier(&name, soon).await.is_ok() {
                        journal.lock().unwrap().barrier(then);
                    }
                });
            }
        }
        Load { tasks, stop }
    }

    /// Ends it; every publish is answered then.
    pub async fn stop(mut self, queues: &[Queue]) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(done) = soon("the load to end", self.tasks.join_next()).await {
            done.expect("a publisher or consumer failed");
        }
        for queue in queues {
            queue.journal.lock().unwrap().round_ended();
        }
    }
}
