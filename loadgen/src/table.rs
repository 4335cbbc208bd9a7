//! Results as tables for people. Times in microseconds.

use std::fmt::Write;

use serde::Serialize;

use crate::{
    environment::Environment,
    latency::Summary,
    limits::Limits,
    report::{RunReport, Shown},
    series::Second,
    units::{group_thousands, show_us},
};

/// Median and p99 of the floor a latency is compared with, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Floor {
    pub name: &'static str,
    pub p50_ns: f64,
    pub p99_ns: f64,
}

/// The floors S + R and D + R: the mean of the probes before and after.
pub fn floors(probes: &[&Limits]) -> Option<(Floor, Floor)> {
    let count = probes.len() as f64;
    let mean = |of: &dyn Fn(&Limits) -> u64| {
        probes.iter().map(|limits| of(limits) as f64).sum::<f64>() / count
    };
    (!probes.is_empty()).then(|| {
        let durable = Floor {
            name: "S+R",
            p50_ns: mean(&|limits| limits.durable().p50_ns + limits.round_trip.p50_ns),
            p99_ns: mean(&|limits| limits.durable().p99_ns + limits.round_trip.p99_ns),
        };
        let written = Floor {
            name: "D+R",
            p50_ns: mean(&|limits| limits.direct.p50_ns + limits.round_trip.p50_ns),
            p99_ns: mean(&|limits| limits.direct.p99_ns + limits.round_trip.p99_ns),
        };
        (durable, written)
    })
}

/// One run.
pub fn run(report: &RunReport, floors: Option<(Floor, Floor)>) -> String {
    let mut out = String::new();
    let settings = &report.settings;
    let _ = writeln!(
        out,
        "{}: {} | {} B payload, batch {}, {} producers, {} consumers, {} queues | {} s after {} s warm-up",
        report.label,
        settings.modes.join(","),
        if settings.payload_min_bytes == settings.payload_max_bytes {
            settings.payload_max_bytes.to_string()
        } else {
            format!("{}-{}", settings.payload_min_bytes, settings.payload_max_bytes)
        },
        settings.batch,
        settings.producers,
        settings.consumers,
        settings.queues,
        settings.duration_s,
        settings.warmup_s,
    );
    header(&mut out, "latency, us");
    for latencies in &report.latencies {
        let durable_confirm = latencies.mode != "buffered";
        let durable_receive = latencies.mode == "durable";
        let floor = |durable: bool| floors.map(|(s, d)| if durable { s } else { d });
        let rows = [
            (
                "intended->confirm",
                &latencies.confirm,
                floor(durable_confirm),
            ),
            (
                "intended->receive",
                &latencies.receive,
                floor(durable_receive),
            ),
            (
                "receive->settled",
                &latencies.settle,
                floor(durable_confirm),
            ),
        ];
        for (name, summary, floor) in rows {
            row(&mut out, &format!("{} {name}", latencies.mode), summary);
            if let Some(floor) = floor.filter(|_| summary.count > 0) {
                ratio(&mut out, &floor, summary);
            }
        }
    }
    row(&mut out, "generator lateness", &report.lateness);
    rates(&mut out, report);
    seconds(&mut out, &report.series);
    usage(&mut out, report);
    checks(&mut out, report);
    out
}

/// What the seconds of a run were like; each of them is in the result file.
fn seconds(out: &mut String, seconds: &[Second]) {
    let spread = |of: &dyn Fn(&Second) -> u64| {
        let mut values: Vec<u64> = seconds.iter().map(of).collect();
        values.sort_unstable();
        let at = |part: usize| values.get(values.len() * part / 10).copied();
        Some((at(0)?, at(5)?, at(9)?, values.last().copied()?))
    };
    let p99s = [
        (
            "confirm",
            spread(&|second: &Second| second.confirm.p99_ns / 1000),
        ),
        (
            "receive",
            spread(&|second: &Second| second.receive.p99_ns / 1000),
        ),
    ];
    for (name, spread) in p99s {
        if let Some((least, median, most_of_them, worst)) = spread {
            let _ = writeln!(
                out,
                "  each second  p99 of {name}, us: least {least}, median {median}, 9 of 10 below {most_of_them}, worst {worst}"
            );
        }
    }
    let unsynced = seconds.iter().map(|second| second.unsynced_records).max();
    let unsettled = seconds.iter().map(|second| second.unsettled_records).max();
    let memory = seconds.first().zip(seconds.last());
    if let (Some(unsynced), Some(unsettled), Some((first, last))) = (unsynced, unsettled, memory) {
        let mebibytes = |second: &Second| second.rss_bytes.unwrap_or_default() >> 20;
        let _ = writeln!(
            out,
            "  at its end   at most {} records unsynced, {} unsettled; server RSS {} MiB after the first, {} MiB after the last",
            group_thousands(unsynced),
            group_thousands(unsettled),
            mebibytes(first),
            mebibytes(last)
        );
    }
}

/// The limits probe.
pub fn limits(title: &str, limits: &Limits) -> String {
    let mut out = String::new();
    header(&mut out, &format!("{title}, us"));
    let mark = |method: &str| {
        if limits.sync_method == method {
            "S "
        } else {
            "  "
        }
    };
    let dsync = format!("{}4 KiB O_DSYNC write", mark("O_DSYNC"));
    row(&mut out, &dsync, &limits.dsync);
    let fdatasync = format!("{}4 KiB write + fdatasync", mark("write + fdatasync"));
    row(&mut out, &fdatasync, &limits.fdatasync);
    row(&mut out, "D 4 KiB O_DIRECT write", &limits.direct);
    row(&mut out, "R 1 KiB loopback round trip", &limits.round_trip);
    row(&mut out, "  stalls, all cores busy", &limits.stall);
    out
}

/// A warning when the machine itself changed between the probes: ratios then
/// say little. Names what moved.
pub fn moved(before: &Limits, after: &Limits) -> Option<String> {
    const STEADY: f64 = 1.5;
    let pairs = [
        ("S", before.durable(), after.durable()),
        ("D", &before.direct, &after.direct),
        ("R", &before.round_trip, &after.round_trip),
    ];
    let moved: Vec<_> = pairs
        .iter()
        .filter(|(_, before, after)| {
            let (one, other) = (before.p50_ns.max(1) as f64, after.p50_ns.max(1) as f64);
            (one / other).max(other / one) > STEADY
        })
        .map(|(name, ..)| *name)
        .collect();
    (!moved.is_empty()).then(|| {
        format!(
            "  WARNING     the median of {} moved more than {STEADY}-fold between the probes: the machine was not quiet, ratios say little\n",
            moved.join(" and ")
        )
    })
}

/// Where it was measured.
pub fn environment(environment: &Environment) -> String {
    let disk = match &environment.disk {
        Some(disk) => format!(
            "{} ({}, scheduler {}), {} {}",
            disk.device, disk.write_cache, disk.scheduler, disk.file_system, disk.mount_options
        ),
        None => "not known (name it with --limits-dir)".to_owned(),
    };
    format!(
        "kernel {} | {} x {} | disk {disk} | commit {}\n",
        environment.kernel, environment.cores, environment.cpu_model, environment.commit
    )
}

fn header(out: &mut String, title: &str) {
    let _ = write!(out, "  {title:<32}{:>12}", "count");
    for column in Summary::COLUMNS {
        let _ = write!(out, "{column:>10}");
    }
    out.push('\n');
}

fn row(out: &mut String, name: &str, summary: &Summary) {
    let _ = write!(out, "  {name:<32}{:>12}", group_thousands(summary.count));
    for ns in summary.values() {
        let shown = if summary.count == 0 {
            "-".to_owned()
        } else {
            show_us(ns)
        };
        let _ = write!(out, "{shown:>10}");
    }
    out.push('\n');
}

fn ratio(out: &mut String, floor: &Floor, summary: &Summary) {
    let p50 = summary.p50_ns as f64 / floor.p50_ns.max(1.0);
    let p99 = summary.p99_ns as f64 / floor.p99_ns.max(1.0);
    let name = format!("    = times {}", floor.name);
    let _ = writeln!(
        out,
        "  {name:<32}{:>12}{p50:>9.2}x{:>10}{p99:>9.2}x",
        "", ""
    );
}

fn rates(out: &mut String, report: &RunReport) {
    let per_second = |rate: f64| group_thousands(rate.round() as u64);
    let rates = &report.rates;
    let _ = writeln!(
        out,
        "  records/s   offered {} sent {} confirmed {} received {} settled {} -> sustained {}",
        offered(&report.settings),
        per_second(rates.sent),
        per_second(rates.confirmed),
        per_second(rates.received),
        per_second(rates.settled),
        per_second(rates.sustained),
    );
}

fn offered(settings: &Shown) -> String {
    if settings.closed_window {
        return "(closed window)".to_owned();
    }
    let mut parts = vec![];
    if settings.rate > 0.0 {
        parts.push(group_thousands(settings.rate.round() as u64));
    }
    if !settings.bursts.is_empty() {
        let sizes: Vec<_> = settings.bursts.iter().map(u64::to_string).collect();
        parts.push(format!(
            "bursts of {} every {} s",
            sizes.join(","),
            settings.every_s
        ));
    }
    parts.join(" and ")
}

fn usage(out: &mut String, report: &RunReport) {
    let per_million =
        |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    match &report.server_usage {
        None => out.push_str(
            "  server      process not found: no CPU and memory figures (--server-pid)\n",
        ),
        Some(usage) => {
            let _ = writeln!(
                out,
                "  server      {} CPU s per million, {:.3} cores ({:.2} s user, {:.2} s system) | RSS {} MiB, peak {} MiB",
                per_million(usage.cpu_s_per_million),
                usage.cores,
                usage.cpu_user_s,
                usage.cpu_system_s,
                usage.rss_bytes >> 20,
                usage.rss_peak_bytes >> 20,
            );
            let _ = writeln!(
                out,
                "              {} write syscalls, {} MiB to disk, context switches {} voluntary {} forced",
                group_thousands(usage.write_syscalls),
                usage.disk_write_bytes >> 20,
                group_thousands(usage.voluntary_switches),
                group_thousands(usage.involuntary_switches),
            );
            let threads: Vec<String> = usage
                .threads
                .iter()
                .take(6)
                .map(|thread| format!("{} {:.2} s", thread.name, thread.cpu_s))
                .collect();
            let _ = writeln!(out, "              threads: {}", threads.join(", "));
        }
    }
    if let Some(usage) = &report.generator_usage {
        let _ = writeln!(
            out,
            "  generator   {} CPU s per million, {:.3} cores",
            per_million(usage.cpu_s_per_million),
            usage.cores
        );
    }
}

fn checks(out: &mut String, report: &RunReport) {
    let (counts, verdict) = (&report.counts, &report.verdict);
    let left = counts
        .left_in_queues
        .map_or("?".to_owned(), group_thousands);
    let _ = writeln!(
        out,
        "  counts      sent {} confirmed {} failed {} unknown {} unsent {} | received {} settled {} refused {} foreign {} left {left}{}",
        group_thousands(counts.sent),
        group_thousands(counts.confirmed),
        group_thousands(counts.failed),
        group_thousands(counts.unknown),
        group_thousands(counts.unsent),
        group_thousands(verdict.received_distinct),
        group_thousands(counts.settled),
        counts.settles_refused,
        group_thousands(counts.foreign),
        match counts.reconnects {
            0 => String::new(),
            times => format!(
                " | connected again {times} times, {} records unanswered then",
                group_thousands(counts.lost_answers)
            ),
        },
    );
    let _ = writeln!(
        out,
        "  check       lost {} duplicates {} (flagged {}) out of order {} phantoms {} corrupt {}",
        verdict.lost,
        verdict.duplicates_unflagged,
        verdict.redelivered_flagged,
        verdict.order_breaks,
        verdict.phantoms,
        verdict.corrupt,
    );
    for (code, records) in &counts.errors {
        let name = wire::error::ErrorCode::from_raw(*code)
            .map_or("unknown code".to_owned(), |code| format!("{code:?}"));
        let _ = writeln!(out, "  error       {code} {name}: {records} records");
    }
    if !verdict.lost_examples.is_empty() {
        let _ = writeln!(
            out,
            "  lost        producer:sequence {}",
            verdict.lost_examples.join(" ")
        );
    }
    let left_out = counts.unknown + counts.unsent;
    if left_out > 0 {
        let _ = writeln!(
            out,
            "  NOTE        {} records were not confirmed or not sent in time: the percentiles above leave them out",
            group_thousands(left_out)
        );
    }
    if report.passed() {
        out.push_str("  verdict     ok\n");
    }
    for failure in &report.failures {
        let _ = writeln!(out, "  FAILED      {failure}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floors_are_the_mean_of_the_probes_and_use_the_faster_sync() {
        let summary = |p50_ns, p99_ns| Summary {
            count: 1,
            p50_ns,
            p99_ns,
            ..Default::default()
        };
        let probe = |scale: u64| Limits {
            rounds: 1,
            dsync: summary(80 * scale, 150 * scale),
            fdatasync: summary(90 * scale, 140 * scale),
            sync_method: "O_DSYNC",
            direct: summary(40 * scale, 60 * scale),
            round_trip: summary(50 * scale, 70 * scale),
            stall: Summary::default(),
        };
        let (durable, written) = floors(&[&probe(1), &probe(3)]).unwrap();
        assert_eq!((durable.p50_ns, durable.p99_ns), (260.0, 440.0));
        assert_eq!((written.p50_ns, written.p99_ns), (180.0, 260.0));
        assert_eq!(floors(&[]), None);
        assert_eq!(moved(&probe(2), &probe(3)), None);
        assert!(moved(&probe(1), &probe(3))
            .unwrap()
            .contains("S and D and R"));
    }
}
