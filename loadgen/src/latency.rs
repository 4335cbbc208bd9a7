//! Latency histograms and what is shown of them.

use hdrhistogram::Histogram;
use serde::Serialize;

/// Longest latency told apart, in nanoseconds (10 minutes); longer ones count as this.
const HIGHEST_NS: u64 = 600_000_000_000;

/// Latencies in nanoseconds with three significant digits.
pub struct Latency(Histogram<u64>);

impl Default for Latency {
    fn default() -> Self {
        // 1, 600e9 and 3 lie inside what the constructor accepts; were they
        // not, a histogram that grows by itself serves as well.
        let histogram = Histogram::new_with_bounds(1, HIGHEST_NS, 3).or_else(|_| Histogram::new(3));
        Latency(histogram.unwrap_or_else(|_| unreachable!("3 digits are in range")))
    }
}

impl Latency {
    /// Counts `count` records at `ns`.
    pub fn record(&mut self, ns: u64, count: u64) {
        self.0.saturating_record_n(ns, count);
    }

    /// Adds what another thread measured.
    pub fn merge(&mut self, other: &Latency) {
        // Same bounds on both sides: adding cannot fail, and a difference
        // would show in the count.
        let _ = self.0.add(&other.0);
    }

    /// Records above `ns`.
    pub fn count_above(&self, ns: u64) -> u64 {
        self.0.len() - self.0.count_between(0, ns)
    }

    pub fn summary(&self) -> Summary {
        let at = |quantile| self.0.value_at_quantile(quantile);
        Summary {
            count: self.0.len(),
            mean_ns: self.0.mean() as u64,
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            p9999_ns: at(0.9999),
            max_ns: self.0.max(),
        }
    }
}

/// Percentiles in nanoseconds, all zero when `count` is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    pub count: u64,
    pub mean_ns: u64,
    pub p50_ns: u64,
    pub p90_ns: u64,
    pub p99_ns: u64,
    pub p999_ns: u64,
    pub p9999_ns: u64,
    pub max_ns: u64,
}

impl Summary {
    /// The percentiles in the order of [`Summary::COLUMNS`].
    pub fn values(&self) -> [u64; 6] {
        [
            self.p50_ns,
            self.p90_ns,
            self.p99_ns,
            self.p999_ns,
            self.p9999_ns,
            self.max_ns,
        ]
    }

    pub const COLUMNS: [&'static str; 6] = ["p50", "p90", "p99", "p99.9", "p99.99", "max"];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_come_from_the_counts() {
        let mut latency = Latency::default();
        latency.record(1_000, 990);
        let mut late = Latency::default();
        late.record(100_000_000, 10);
        latency.merge(&late);
        let summary = latency.summary();
        let near = |got: u64, expected: u64| got.abs_diff(expected) <= expected / 500;
        assert_eq!(summary.count, 1_000);
        assert!(near(summary.p50_ns, 1_000) && near(summary.p99_ns, 1_000));
        assert!(near(summary.p999_ns, 100_000_000) && near(summary.max_ns, 100_000_000));
        assert_eq!(latency.count_above(50_000_000), 10);
    }

    #[test]
    fn an_endless_latency_counts_as_the_longest() {
        let mut latency = Latency::default();
        latency.record(u64::MAX, 1);
        assert!(latency.summary().max_ns >= HIGHEST_NS);
        assert_eq!(Latency::default().summary(), Summary::default());
    }
}
