//! A run in words: the JSON document for machines. The table for people is in
//! [`crate::table`].

use std::{collections::BTreeMap, path::Path};

use serde::Serialize;
use wire::vocabulary::Mode;

use crate::{
    environment::Environment,
    error::LoadError,
    latency::{Latency, Summary},
    limits::Limits,
    plan::{Drive, Settings},
    process::Usage,
    run::Findings,
    series::{self, Recorder, Second},
    table::Floor,
    track::{Arrivals, Verdict},
};

/// The whole result file.
#[derive(Debug, Serialize)]
pub struct Document {
    /// Version of this layout.
    pub format: u32,
    /// As typed, without the program's path.
    pub command: String,
    pub environment: Environment,
    pub limits_before: Option<Limits>,
    pub limits_after: Option<Limits>,
    /// S + R and D + R, the mean of the probes: what latencies are divided by.
    pub floors: Option<(Floor, Floor)>,
    pub runs: Vec<RunReport>,
    /// Of `abba`: for each figure the ranges of A and B, and B / A.
    pub comparison: Vec<crate::abba::Comparison>,
    /// Of `saturate`: the index of the best run.
    pub best_run: Option<usize>,
}

/// One run.
#[derive(Debug, Serialize)]
pub struct RunReport {
    pub label: String,
    pub server: String,
    pub shards: u16,
    pub settings: Shown,
    pub rates: Rates,
    pub counts: Counts,
    pub verdict: Verdict,
    /// Why the run failed; empty when it did not.
    pub failures: Vec<String>,
    /// Per mode.
    pub latencies: Vec<Latencies>,
    /// Intended to handed to the socket: the generator's own lateness.
    pub lateness: Summary,
    pub server_usage: Option<Usage>,
    pub generator_usage: Option<Usage>,
    /// With `--series`: each second of the measured window.
    pub series: Vec<Second>,
}

/// What was asked for.
#[derive(Debug, Serialize)]
pub struct Shown {
    pub modes: Vec<&'static str>,
    /// Records per second; 0 for a closed window.
    pub rate: f64,
    pub bursts: Vec<u64>,
    pub every_s: f64,
    pub closed_window: bool,
    pub payload_min_bytes: usize,
    pub payload_max_bytes: usize,
    pub batch: u32,
    pub producers: u32,
    pub consumers: u32,
    pub queues: u32,
    pub partitions: u16,
    pub warmup_s: f64,
    pub duration_s: f64,
    pub spin_us: u64,
    pub settle_sample: u64,
    pub pin_core: Option<usize>,
}

/// Records per second over the measured window.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Rates {
    pub sent: f64,
    pub confirmed: f64,
    pub received: f64,
    pub settled: f64,
    /// The lowest of confirmed, received and settled (confirmed alone without
    /// consumers): what the server sustained end to end.
    pub sustained: f64,
}

/// Records over the whole run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Counts {
    pub sent: u64,
    pub confirmed: u64,
    /// Answered with outcome *failed*.
    pub failed: u64,
    /// Answered with outcome *unknown*, or not answered by the end of the drain.
    pub unknown: u64,
    /// Due and never sent: the window stayed full.
    pub unsent: u64,
    /// Confirmed at a boundary below what the mode promises.
    pub weak_confirms: u64,
    /// Deliveries of other runs.
    pub foreign: u64,
    pub settled: u64,
    pub settles_refused: u64,
    /// Connections that were lost and made again.
    pub reconnects: u64,
    /// Records among the unknown that were unanswered on a lost connection.
    pub lost_answers: u64,
    /// Left in the queues after the run.
    pub left_in_queues: Option<u64>,
    /// Error code to records.
    pub errors: BTreeMap<u16, u64>,
}

/// Latencies of the queues of one mode.
#[derive(Debug, Serialize)]
pub struct Latencies {
    pub mode: &'static str,
    /// Intended send to confirm.
    pub confirm: Summary,
    /// Intended send to receive.
    pub receive: Summary,
    /// Receive to settle confirm, sampled.
    pub settle: Summary,
    /// Records confirmed later than 50 ms.
    pub confirms_above_50_ms: u64,
}

impl RunReport {
    /// Puts findings together and judges them.
    pub fn new(label: &str, settings: &Settings, findings: &Findings) -> RunReport {
        let verdict = judge(findings);
        let counts = count(findings);
        let failures = failures(settings, findings, &verdict, &counts);
        let latencies = settings
            .modes
            .iter()
            .enumerate()
            .map(|(row, mode)| latencies(*mode, row, findings))
            .collect();
        let mut lateness = Latency::default();
        for producer in &findings.producers {
            lateness.merge(&producer.lateness);
        }
        RunReport {
            label: label.to_owned(),
            server: findings.peer.clone(),
            shards: findings.shards,
            settings: shown(settings),
            rates: rates(settings, findings),
            counts,
            verdict,
            failures,
            latencies,
            lateness: lateness.summary(),
            server_usage: findings.server.clone(),
            generator_usage: findings.generator.clone(),
            series: series(findings),
        }
    }

    pub fn passed(&self) -> bool {
        self.failures.is_empty()
    }
}

impl Document {
    pub fn new(environment: Environment, runs: Vec<RunReport>) -> Document {
        Document {
            format: 1,
            command: command(),
            environment,
            limits_before: None,
            limits_after: None,
            floors: None,
            runs,
            comparison: vec![],
            best_run: None,
        }
    }

    /// Writes the document to `path`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), LoadError> {
        let mut text = serde_json::to_string_pretty(self)
            .map_err(|error| LoadError::Impossible(error.to_string()))?;
        text.push('\n');
        std::fs::write(path, text).map_err(LoadError::io("cannot write the result file"))
    }
}

/// The command line as typed, without the program's path.
pub fn command() -> String {
    let words = std::env::args().skip(1);
    let words: Vec<String> = std::iter::once("loadgen".to_owned()).chain(words).collect();
    words.join(" ")
}

fn series(findings: &Findings) -> Vec<Second> {
    let (mut confirm, mut receive) = (Recorder::default(), Recorder::default());
    for producer in &findings.producers {
        confirm.merge(&producer.series);
    }
    for consumer in &findings.consumers {
        receive.merge(&consumer.series);
    }
    series::seconds(&confirm, &receive, &findings.moments)
}

fn judge(findings: &Findings) -> Verdict {
    let mut verdict = Verdict::default();
    let consumed = !findings.consumers.is_empty();
    for producer in findings.producers.iter().filter(|_| consumed) {
        let mut seen = Arrivals::default();
        for consumer in &findings.consumers {
            if let Some(arrivals) = consumer.arrivals.get(producer.number as usize) {
                seen.merge(arrivals);
            }
        }
        verdict.add(
            producer.number,
            &producer.confirmed,
            &producer.failed,
            &seen,
        );
    }
    for consumer in &findings.consumers {
        verdict.order_breaks += consumer.order_breaks;
        verdict.corrupt += consumer.corrupt;
    }
    verdict
}

fn count(findings: &Findings) -> Counts {
    let mut counts = Counts {
        sent: findings.total.sent,
        confirmed: findings.total.confirmed,
        settled: findings.total.settled,
        failed: findings
            .producers
            .iter()
            .map(|report| report.failed.len())
            .sum(),
        left_in_queues: findings.left,
        ..Default::default()
    };
    for producer in &findings.producers {
        counts.unsent += producer.unsent;
        counts.weak_confirms += producer.weak_confirms;
        counts.reconnects += producer.reconnects;
        counts.lost_answers += producer.lost_answers;
        for (code, records) in &producer.errors {
            *counts.errors.entry(*code).or_default() += records;
        }
    }
    counts.unknown = counts.sent.saturating_sub(counts.confirmed + counts.failed);
    for consumer in &findings.consumers {
        counts.foreign += consumer.foreign;
        counts.reconnects += consumer.reconnects;
        counts.settles_refused += consumer.settles_refused;
    }
    counts
}

fn failures(
    settings: &Settings,
    findings: &Findings,
    verdict: &Verdict,
    counts: &Counts,
) -> Vec<String> {
    let broken = findings.producers.iter().filter_map(|report| {
        Some(format!(
            "producer {}: {}",
            report.number,
            report.failure.as_ref()?
        ))
    });
    let broken_consumers = findings
        .consumers
        .iter()
        .filter_map(|report| Some(format!("consumer: {}", report.failure.as_ref()?)));
    let mut failures: Vec<String> = broken.chain(broken_consumers).collect();
    let mut check = |amount: u64, what: &str| {
        if amount > 0 {
            failures.push(format!("{amount} {what}"));
        }
    };
    check(verdict.lost, "confirmed records never arrived");
    check(
        verdict.phantoms,
        "records arrived though their publish failed",
    );
    check(
        verdict.duplicates_unflagged,
        "duplicates without the redelivered flag",
    );
    check(verdict.order_breaks, "records out of order");
    check(verdict.corrupt, "records with a wrong checksum");
    check(counts.weak_confirms, "confirms below the mode's boundary");
    if counts.confirmed == 0 && !(settings.duration.is_zero()) {
        failures.push("nothing was confirmed".into());
    }
    failures
}

fn latencies(mode: Mode, row: usize, findings: &Findings) -> Latencies {
    let merged = |parts: &mut dyn Iterator<Item = &Vec<Latency>>| {
        let mut sum = Latency::default();
        for rows in parts {
            if let Some(part) = rows.get(row) {
                sum.merge(part);
            }
        }
        sum
    };
    let confirm = merged(&mut findings.producers.iter().map(|report| &report.confirm));
    let receive = merged(&mut findings.consumers.iter().map(|report| &report.receive));
    let settle = merged(&mut findings.consumers.iter().map(|report| &report.settle));
    Latencies {
        mode: mode.name(),
        confirm: confirm.summary(),
        receive: receive.summary(),
        settle: settle.summary(),
        confirms_above_50_ms: confirm.count_above(50_000_000),
    }
}

fn rates(settings: &Settings, findings: &Findings) -> Rates {
    let (first, last) = &findings.window;
    let rate = |first: u64, last: u64| (last - first) as f64 / findings.window_s.max(1e-9);
    let mut rates = Rates {
        sent: rate(first.sent, last.sent),
        confirmed: rate(first.confirmed, last.confirmed),
        received: rate(first.received, last.received),
        settled: rate(first.settled, last.settled),
        sustained: 0.0,
    };
    rates.sustained = rates.confirmed;
    if settings.consumers > 0 {
        rates.sustained = rates.confirmed.min(rates.received).min(rates.settled);
    }
    rates
}

fn shown(settings: &Settings) -> Shown {
    let (rate, bursts, every_s, closed_window) = match &settings.drive {
        Drive::Open {
            rate,
            bursts,
            every,
        } => (*rate, bursts.clone(), every.as_secs_f64(), false),
        Drive::Closed { .. } => (0.0, vec![], 0.0, true),
    };
    Shown {
        modes: settings.modes.iter().map(|mode| mode.name()).collect(),
        rate,
        bursts,
        every_s,
        closed_window,
        payload_min_bytes: settings.size.min,
        payload_max_bytes: settings.size.max,
        batch: settings.batch,
        producers: settings.producers,
        consumers: settings.consumers,
        queues: settings.queues,
        partitions: settings.partitions,
        warmup_s: settings.warmup.as_secs_f64(),
        duration_s: settings.duration.as_secs_f64(),
        spin_us: settings.spin.as_micros() as u64,
        settle_sample: settings.settle_sample,
        pin_core: settings.pin_core,
    }
}
