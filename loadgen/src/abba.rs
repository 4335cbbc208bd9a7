//! A, B, B, A on one server: what differs by mode shows against what drifts.

use serde::Serialize;

use crate::{report::RunReport, units};

/// One figure of the four runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    pub figure: &'static str,
    /// Lowest and highest of the two A runs.
    pub a: (f64, f64),
    pub b: (f64, f64),
    /// Mean of B over mean of A; absent when A is zero.
    pub b_over_a: Option<f64>,
    /// The ranges do not touch: the difference is larger than the drift.
    pub separated: bool,
}

/// Compares four runs in the order A, B, B, A.
pub fn compare(runs: &[RunReport]) -> Vec<Comparison> {
    let [a1, b1, b2, a2] = runs else {
        return vec![];
    };
    let latency = |pick: fn(&crate::report::Latencies) -> u64| {
        move |run: &RunReport| run.latencies.first().map_or(0.0, |row| pick(row) as f64)
    };
    let cpu = |run: &RunReport| {
        let usage = run.server_usage.as_ref();
        usage
            .and_then(|usage| usage.cpu_s_per_million)
            .unwrap_or(0.0)
    };
    type Figure = (&'static str, Box<dyn Fn(&RunReport) -> f64>);
    let figures: [Figure; 8] = [
        (
            "confirm p50, ns",
            Box::new(latency(|row| row.confirm.p50_ns)),
        ),
        (
            "confirm p99, ns",
            Box::new(latency(|row| row.confirm.p99_ns)),
        ),
        (
            "confirm p99.9, ns",
            Box::new(latency(|row| row.confirm.p999_ns)),
        ),
        (
            "receive p50, ns",
            Box::new(latency(|row| row.receive.p50_ns)),
        ),
        (
            "receive p99, ns",
            Box::new(latency(|row| row.receive.p99_ns)),
        ),
        ("settle p50, ns", Box::new(latency(|row| row.settle.p50_ns))),
        ("sustained records/s", Box::new(|run| run.rates.sustained)),
        ("server CPU s per million", Box::new(cpu)),
    ];
    figures
        .iter()
        .map(|(figure, of)| comparison(figure, (of(a1), of(a2)), (of(b1), of(b2))))
        .collect()
}

fn comparison(figure: &'static str, a: (f64, f64), b: (f64, f64)) -> Comparison {
    let sorted = |(one, other): (f64, f64)| (one.min(other), one.max(other));
    let (mean_a, mean_b) = ((a.0 + a.1) / 2.0, (b.0 + b.1) / 2.0);
    let (a, b) = (sorted(a), sorted(b));
    Comparison {
        figure,
        a,
        b,
        b_over_a: (mean_a > 0.0).then(|| mean_b / mean_a),
        separated: a.1 < b.0 || b.1 < a.0,
    }
}

/// The comparison for people.
pub fn table(mode_a: &str, mode_b: &str, comparisons: &[Comparison]) -> String {
    let mut out = format!(
        "  {:<28}{:>26}{:>26}{:>10}\n",
        "A, B, B, A",
        format!("A {mode_a}"),
        format!("B {mode_b}"),
        "B / A"
    );
    for comparison in comparisons {
        let in_ns = comparison.figure.ends_with("ns");
        let show = |value: f64| match in_ns {
            true => units::show_us(value as u64),
            false if value >= 1000.0 => units::group_thousands(value as u64),
            false => format!("{value:.2}"),
        };
        let range = |(low, high): (f64, f64)| format!("{} - {}", show(low), show(high));
        out.push_str(&format!(
            "  {:<28}{:>26}{:>26}{:>10}{}\n",
            comparison.figure.replace(", ns", ", us"),
            range(comparison.a),
            range(comparison.b),
            comparison
                .b_over_a
                .map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
            if comparison.separated {
                ""
            } else {
                "  (ranges overlap)"
            },
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_ratio_say_whether_drift_hides_the_difference() {
        let apart = comparison("x", (12.0, 10.0), (5.0, 6.0));
        assert_eq!(
            (apart.a, apart.b, apart.b_over_a),
            ((10.0, 12.0), (5.0, 6.0), Some(0.5))
        );
        assert!(apart.separated);
        assert!(!comparison("x", (10.0, 20.0), (15.0, 30.0)).separated);
        assert_eq!(comparison("x", (0.0, 0.0), (1.0, 1.0)).b_over_a, None);
    }
}
