//! What happened second by second: latencies by the second a record was due in,
//! the backlog and the server's process as the second ended.

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::process::Sample;

/// Longest latency told apart, in nanoseconds (10 minutes); longer ones count as this.
const HIGHEST_NS: u64 = 600_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// Latencies of one thread, per second of the measured window. Two significant
/// digits, or a long run would take a gigabyte.
#[derive(Default)]
pub struct Recorder {
    seconds: Vec<Histogram<u32>>,
}

impl Recorder {
    /// Counts `count` records that were due so long after the window began.
    pub fn record(&mut self, due_ns: u64, latency_ns: u64, count: u32) {
        let second = (due_ns / SECOND_NS) as usize;
        while self.seconds.len() <= second {
            let Ok(histogram) = Histogram::new_with_bounds(1, HIGHEST_NS, 2) else {
                return;
            };
            self.seconds.push(histogram);
        }
        if let Some(histogram) = self.seconds.get_mut(second) {
            histogram.saturating_record_n(latency_ns, count);
        }
    }

    /// Adds what another thread measured.
    pub fn merge(&mut self, other: &Recorder) {
        for (second, histogram) in other.seconds.iter().enumerate() {
            match self.seconds.get_mut(second) {
                // Same bounds on both sides: adding cannot fail.
                Some(own) => drop(own.add(histogram)),
                None => self.seconds.push(histogram.clone()),
            }
        }
    }

    fn of(&self, second: usize) -> Quantiles {
        let Some(histogram) = self.seconds.get(second) else {
            return Quantiles::default();
        };
        Quantiles {
            count: histogram.len(),
            p50_ns: histogram.value_at_quantile(0.5),
            p99_ns: histogram.value_at_quantile(0.99),
            max_ns: histogram.max(),
        }
    }
}

/// Latencies of one second in nanoseconds, all zero when `count` is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Quantiles {
    pub count: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
}

/// What queues and server were like at one moment.
#[derive(Debug, Clone, Default)]
pub struct Moment {
    /// Records that are not settled.
    pub unsettled: u64,
    /// Of them, written and not yet durable.
    pub unsynced: u64,
    pub server: Option<Sample>,
}

/// One second of the measured window.
#[derive(Debug, Clone, Serialize)]
pub struct Second {
    /// From the window's begin.
    pub second: usize,
    /// Intended send to confirm, of the records due in it.
    pub confirm: Quantiles,
    /// Intended send to receive, likewise.
    pub receive: Quantiles,
    /// As the second ended.
    pub unsettled_records: u64,
    pub unsynced_records: u64,
    /// Of the server's process: memory as the second ended, and what it used
    /// within it.
    pub rss_bytes: Option<u64>,
    pub cpu_s: Option<f64>,
    pub disk_write_bytes: Option<u64>,
}

/// Puts the seconds together. `moments`: at the begin of the window and at the
/// end of each second.
pub fn seconds(confirm: &Recorder, receive: &Recorder, moments: &[Moment]) -> Vec<Second> {
    let pairs = moments.iter().zip(moments.iter().skip(1)).enumerate();
    let second = |(second, (before, now)): (usize, (&Moment, &Moment))| {
        let used = before.server.as_ref().zip(now.server.as_ref());
        Second {
            second,
            confirm: confirm.of(second),
            receive: receive.of(second),
            unsettled_records: now.unsettled,
            unsynced_records: now.unsynced,
            rss_bytes: now.server.as_ref().map(|sample| sample.rss_bytes),
            cpu_s: used.map(|(before, now)| now.cpu_s() - before.cpu_s()),
            disk_write_bytes: used
                .map(|(before, now)| now.disk_write_bytes.saturating_sub(before.disk_write_bytes)),
        }
    };
    pairs.map(second).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_count_for_the_second_they_were_due_in() {
        let (mut one, mut other) = (Recorder::default(), Recorder::default());
        one.record(10, 1_000, 5);
        other.record(2 * SECOND_NS, 9_000_000, 1);
        one.merge(&other);
        let moment = |unsettled| Moment {
            unsettled,
            ..Moment::default()
        };
        let moments = [moment(0), moment(1), moment(2), moment(3)];
        let seconds = seconds(&one, &Recorder::default(), &moments);
        let counts: Vec<u64> = seconds.iter().map(|second| second.confirm.count).collect();
        assert_eq!(counts, [5, 0, 1]);
        assert!(seconds[2].confirm.p99_ns.abs_diff(9_000_000) < 90_000);
        assert_eq!((seconds[2].second, seconds[2].unsettled_records), (2, 3));
    }
}
