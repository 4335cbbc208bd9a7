//! How long writes stand still when a leader dies.
//!
//! A cluster of its own, a steady open-loop load through all of its nodes, and in
//! a fixed rhythm `SIGKILL` for the node that leads one of the queues, which is
//! started again and awaited.
//!
//! 1. The time runs from the signal to the first confirm of a record that was
//!    *sent* when the process was gone: a confirm that was on its way, or of a
//!    record that had reached another node before, proves nothing.
//! 2. Only queues that the killed node led count for a kill.
//! 3. The next kill waits until every group has all of its replicas again: a
//!    record in each is confirmed by all.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde::Serialize;
use wire::{
    codec,
    frame::Kind,
    message::{Declare, Declared, Publish, QueueInfo, QueueInfoReply, ANY_SHARD},
    record::RecordParts,
    vocabulary::Mode,
};

use crate::{
    args::FailoverArguments,
    cluster::Cluster,
    conn::Connection,
    door::Door,
    environment::Environment,
    error::LoadError,
    plan::{Drive, Settings},
    producer::Target,
    report::RunReport,
    resumed::Resumed,
    run,
    session::Session,
    sys, table,
};

/// How long a killed node stays away.
const DOWN_NS: u64 = 1_500_000_000;
/// How long the cluster may take to be whole again.
const WHOLE_NS: u64 = 60_000_000_000;
/// Between two questions that were not answered well.
const PAUSE_NS: u64 = 50_000_000;
/// Partitions of each of the two queues that show that all replicas are there:
/// as many as there are groups for the mode.
const PROBE_PARTITIONS: u16 = 16;
const PROBE_DEADLINE_MS: u32 = 2_000;
const ALL_COPIES: u8 = 255;

/// One kill.
#[derive(Debug, Clone, Serialize)]
pub struct Kill {
    pub number: u64,
    pub node: u32,
    /// Rows (modes) whose queue it led.
    rows: Vec<usize>,
    #[serde(skip)]
    at_ns: u64,
    /// From the signal until the process was gone.
    pub gone_ms: f64,
    /// From its start until every group had all its replicas again.
    pub whole_again_ms: f64,
}

/// How long one mode stood still, over all kills that concern it.
#[derive(Debug, Clone, Serialize)]
pub struct Standstill {
    pub mode: &'static str,
    /// From the kill to the first confirm of a record sent after it, sorted.
    pub writes_ms: Vec<f64>,
    /// The same to the first delivery of a record due after it, sorted.
    pub deliveries_ms: Vec<f64>,
}

/// The result file.
#[derive(Debug, Serialize)]
pub struct Document {
    pub format: u32,
    pub command: String,
    pub environment: Environment,
    /// What each node was started with.
    pub configuration: String,
    pub kills: Vec<Kill>,
    pub standstill: Vec<Standstill>,
    /// Kills after which nothing was confirmed any more.
    pub not_resumed: u64,
    pub run: RunReport,
}

/// Runs it; true when nothing was lost and writes went on after each kill.
///
/// # Errors
/// The cluster does not start, or a node does not come back.
pub fn run(arguments: &FailoverArguments) -> Result<bool, LoadError> {
    let cluster = Cluster::start(&arguments.server_bin, &arguments.dir, arguments.base_port)?;
    let settings = settings(arguments, cluster.servers());
    let configuration = cluster.configuration();
    let environment = Environment::capture(Some(cluster.dir()));
    print!("{}", table::environment(&environment));
    let probes = Probes::declare(&cluster.servers())?;
    probes.await_whole()?;

    let killer = Killer {
        cluster,
        probes,
        every_ns: arguments.every.as_nanos() as u64,
        wanted: u64::from(arguments.kills),
    };
    let found = Arc::new(Mutex::new(Outcome::default()));
    let told = found.clone();
    let findings = run::beside(&settings, move |session, targets| {
        let outcome = killer.drive(&session, &targets);
        *told.lock().unwrap_or_else(PoisonError::into_inner) = outcome;
    })?;
    let outcome = std::mem::take(&mut *found.lock().unwrap_or_else(PoisonError::into_inner));

    let writes = findings.producers.iter().flat_map(|one| &one.resumed);
    let deliveries = findings.consumers.iter().flat_map(|one| &one.resumed);
    let writes: Vec<Resumed> = writes.copied().collect();
    let deliveries: Vec<Resumed> = deliveries.copied().collect();
    let standstill: Vec<Standstill> = (0..settings.modes.len())
        .map(|row| Standstill {
            mode: settings.modes.get(row).map_or("", |mode| mode.name()),
            writes_ms: gaps(&outcome.kills, &writes, row),
            deliveries_ms: gaps(&outcome.kills, &deliveries, row),
        })
        .collect();
    let expected: usize = outcome.kills.iter().map(|kill| kill.rows.len()).sum();
    let resumed: usize = standstill.iter().map(|mode| mode.writes_ms.len()).sum();
    let report = RunReport::new("failover", &settings, &findings);
    let document = Document {
        format: 1,
        command: crate::report::command(),
        environment,
        configuration,
        kills: outcome.kills,
        standstill,
        not_resumed: (expected - resumed.min(expected)) as u64,
        run: report,
    };
    show(&document);
    if let Some(path) = &arguments.json {
        save(&document, path)?;
    }
    if let Some(error) = outcome.failure {
        return Err(error);
    }
    Ok(document.run.passed() && document.not_resumed == 0)
}

fn settings(arguments: &FailoverArguments, servers: String) -> Settings {
    let modes = vec![Mode::Durable, Mode::Buffered];
    let queues = modes.len() as u32;
    Settings {
        server: servers,
        queue: "failover".into(),
        modes,
        queues,
        partitions: 0,
        producers: queues,
        consumers: queues,
        size: arguments.size,
        batch: 1,
        drive: Drive::Open {
            rate: arguments.rate,
            bursts: vec![],
            every: Duration::ZERO,
        },
        warmup: Duration::from_secs(2),
        // Room for one late return at the end.
        duration: arguments.every * arguments.kills + Duration::from_secs(5),
        drain: Duration::from_secs(10),
        deadline_ms: 0,
        credit_records: 0,
        credit_bytes: 0,
        settle_sample: 16,
        spin: Duration::ZERO,
        series: false,
        pin_core: None,
        server_pid: None,
    }
}

/// Milliseconds from each kill that concerns the row to where it went on, sorted.
fn gaps(kills: &[Kill], resumed: &[Resumed], row: usize) -> Vec<f64> {
    let of_row = kills.iter().filter(|kill| kill.rows.contains(&row));
    let mut gaps: Vec<f64> = of_row
        .filter_map(|kill| {
            let found = resumed
                .iter()
                .filter(|one| one.row == row && one.fault == kill.number);
            let first = found.map(|one| one.at_ns).min()?;
            Some(first.saturating_sub(kill.at_ns) as f64 / 1e6)
        })
        .collect();
    gaps.sort_by(f64::total_cmp);
    gaps
}

/// The value that `part` of all are not above; `sorted` is not empty.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let rank = (sorted.len() as f64 * part).ceil() as usize;
    let at = rank.clamp(1, sorted.len().max(1)) - 1;
    sorted.get(at).copied().unwrap_or_default()
}

fn show(document: &Document) {
    print!("{}", table::run(&document.run, None));
    println!(
        "failover: {} leaders killed, ms from the signal",
        document.kills.len()
    );
    println!("                                  n      p50      p90      p99      max");
    let row = |mode: &str, what: &str, sorted: &[f64]| {
        let at = |part| quantile(sorted, part);
        println!(
            "  {:<28} {:>5} {:>8.0} {:>8.0} {:>8.0} {:>8.0}",
            format!("{mode} {what}"),
            sorted.len(),
            at(0.5),
            at(0.9),
            at(0.99),
            at(1.0)
        );
    };
    for mode in &document.standstill {
        row(mode.mode, "until a confirm", &mode.writes_ms);
        row(mode.mode, "until a delivery", &mode.deliveries_ms);
    }
    let both = |of: &dyn Fn(&Standstill) -> Vec<f64>| {
        let mut all: Vec<f64> = document.standstill.iter().flat_map(of).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    row(
        "all",
        "until a confirm",
        &both(&|one| one.writes_ms.clone()),
    );
    row(
        "all",
        "until a delivery",
        &both(&|one| one.deliveries_ms.clone()),
    );
    if document.not_resumed > 0 {
        println!("  NOT RESUMED {} times", document.not_resumed);
    }
}

fn save(document: &Document, path: &Path) -> Result<(), LoadError> {
    let text = serde_json::to_string_pretty(document)
        .map_err(|error| LoadError::Impossible(error.to_string()))?;
    std::fs::write(path, text + "\n").map_err(LoadError::io("cannot write the result file"))
}

/// What the killer did.
#[derive(Default)]
struct Outcome {
    kills: Vec<Kill>,
    failure: Option<LoadError>,
    cluster: Option<Cluster>,
}

struct Killer {
    cluster: Cluster,
    probes: Probes,
    every_ns: u64,
    wanted: u64,
}

impl Killer {
    fn drive(mut self, session: &Session, targets: &[Target]) -> Outcome {
        let mut outcome = Outcome::default();
        for number in 0..self.wanted {
            sys::sleep_until(session.measure_from_ns() + number * self.every_ns);
            if session.aborted() {
                break;
            }
            match self.kill_one(number, session, targets) {
                Ok(kill) => outcome.kills.push(kill),
                Err(error) => {
                    outcome.failure = Some(error);
                    session.abort();
                    break;
                }
            }
        }
        // It lives until the last record was drained.
        outcome.cluster = Some(self.cluster);
        outcome
    }

    fn kill_one(
        &mut self,
        number: u64,
        session: &Session,
        targets: &[Target],
    ) -> Result<Kill, LoadError> {
        if sys::now_ns() + DOWN_NS > session.end_ns() {
            return Err(LoadError::Impossible(format!(
                "only {number} of {} kills fitted into the run: a longer --every is needed",
                self.wanted
            )));
        }
        let mut leaders = vec![];
        for target in targets {
            leaders.push(self.probes.leader_of(target)?);
        }
        let turn = number as usize % leaders.len().max(1);
        let node = leaders.get(turn).copied().unwrap_or_default();
        let led = targets
            .iter()
            .zip(&leaders)
            .filter(|(_, led)| **led == node);
        let rows = led.map(|(target, _)| target.row).collect();
        let (at_ns, gone_ns) = self.cluster.kill(node)?;
        let number = session.tell_fault(gone_ns);
        sys::sleep_until(gone_ns + DOWN_NS);
        let started = sys::now_ns();
        self.cluster.restart(node)?;
        self.probes.await_whole()?;
        Ok(Kill {
            number,
            node,
            rows,
            at_ns,
            gone_ms: (gone_ns - at_ns) as f64 / 1e6,
            whole_again_ms: (sys::now_ns() - started) as f64 / 1e6,
        })
    }
}

/// Questions to the cluster, asked of whichever node answers.
struct Probes {
    servers: String,
    /// Queue ids.
    queues: Vec<u64>,
}

impl Probes {
    fn declare(servers: &str) -> Result<Probes, LoadError> {
        let mut probes = Probes {
            servers: servers.to_owned(),
            queues: vec![],
        };
        for mode in [Mode::Durable, Mode::Buffered] {
            let body = Declare {
                name: format!("failover-probe-{}", mode.name()),
                mode: mode as u8,
                copies: ALL_COPIES,
                partitions: PROBE_PARTITIONS,
                ..Default::default()
            };
            let queue = probes.patiently(&|control| {
                let reply = control.request("declare", Kind::Declared, |out| {
                    codec::encode(out, 1, &body)
                })?;
                Ok(codec::decode::<Declared>(&reply)?
                    .queue
                    .queue_id
                    .to_native())
            })?;
            probes.queues.push(queue);
        }
        Ok(probes)
    }

    /// Asks until it is answered.
    fn patiently<T>(
        &self,
        ask: &dyn Fn(&mut Connection) -> Result<T, LoadError>,
    ) -> Result<T, LoadError> {
        let give_up = sys::now_ns() + WHOLE_NS;
        let mut door = Door::new(&self.servers, ANY_SHARD, 0);
        loop {
            let answer = door.open().and_then(|mut control| ask(&mut control));
            match answer {
                Err(LoadError::Wire(error)) => return Err(error.into()),
                Err(error) if sys::now_ns() >= give_up => return Err(error),
                Err(_) => sys::sleep_until(sys::now_ns() + PAUSE_NS),
                answer => return answer,
            }
        }
    }

    /// Waits until a record in every group is confirmed by all replicas.
    fn await_whole(&self) -> Result<(), LoadError> {
        let mut records = Vec::new();
        RecordParts::default().encode(&mut records)?;
        for queue_id in &self.queues {
            for partition in 0..PROBE_PARTITIONS {
                let body = Publish {
                    queue_id: *queue_id,
                    partition,
                    deadline_ms: PROBE_DEADLINE_MS,
                    count: 1,
                    ..Default::default()
                };
                self.patiently(&|control| {
                    control.request("probe", Kind::Confirm, |out| {
                        codec::encode_publish(out, 1, &body, &records)
                    })
                })?;
            }
        }
        Ok(())
    }

    /// The node that leads the partition: it is the one that answers.
    fn leader_of(&self, target: &Target) -> Result<u32, LoadError> {
        let body = QueueInfo {
            queue_id: target.queue_id,
            partition: target.partition,
            ..Default::default()
        };
        self.patiently(&|control| {
            let reply = control.request("queue info", Kind::QueueInfoReply, |out| {
                codec::encode(out, 1, &body)
            })?;
            let info = codec::decode::<QueueInfoReply>(&reply)?;
            let place = info.queue.partitions.get(usize::from(target.partition));
            let place = place.ok_or_else(|| LoadError::Protocol("no place".into()))?;
            Ok(place.node.to_native())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kill(number: u64, rows: &[usize], at_ns: u64) -> Kill {
        Kill {
            number,
            node: 1,
            rows: rows.to_vec(),
            at_ns,
            gone_ms: 0.0,
            whole_again_ms: 0.0,
        }
    }

    #[test]
    fn a_gap_ends_at_the_first_record_of_a_row_that_the_kill_concerns() {
        let kills = [kill(1, &[0], 1_000_000), kill(2, &[0, 1], 50_000_000)];
        let resumed = |row, fault, at_ms: u64| Resumed {
            row,
            fault,
            at_ns: at_ms * 1_000_000,
        };
        let found = [
            resumed(0, 1, 31),
            resumed(0, 1, 11),
            resumed(1, 1, 2),
            resumed(1, 2, 90),
        ];
        assert_eq!(gaps(&kills, &found, 0), [10.0]);
        assert_eq!(gaps(&kills, &found, 1), [40.0]);
    }

    #[test]
    fn quantiles_are_values_that_occurred() {
        let values: Vec<f64> = (1..=20).map(f64::from).collect();
        assert_eq!(quantile(&values, 0.5), 10.0);
        assert_eq!(quantile(&values, 0.99), 20.0);
        assert_eq!(quantile(&values, 1.0), 20.0);
        assert_eq!(quantile(&[], 0.5), 0.0);
    }
}
