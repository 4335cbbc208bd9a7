//! The search for the highest rate that a server keeps up with.

use crate::{
    error::LoadError,
    plan::{Drive, Settings},
    report::RunReport,
    run,
};

/// Part of an offered rate that must get through to count as kept up with.
const KEPT_UP: f64 = 0.97;
/// Halvings between the last rate that held and the first that did not.
const REFINEMENTS: u32 = 3;
/// Highest rate tried, records per second.
const HIGHEST_RATE: f64 = 1e8;

/// Doubles the rate until the server falls behind, then closes in. Calls
/// `each` after every run.
///
/// # Errors
/// A run could not start.
pub fn search(
    settings: &Settings,
    first_rate: f64,
    mut each: impl FnMut(&RunReport),
) -> Result<Vec<RunReport>, LoadError> {
    let mut runs = vec![];
    let mut search = Search::new(first_rate);
    while let Some(rate) = search.next_rate() {
        let settings = Settings {
            drive: Drive::Open {
                rate,
                bursts: vec![],
                every: std::time::Duration::ZERO,
            },
            ..settings.clone()
        };
        let findings = run::run(&settings)?;
        let report = RunReport::new(&format!("{rate:.0}/s"), &settings, &findings);
        each(&report);
        let broken = findings
            .producers
            .iter()
            .any(|report| report.failure.is_some())
            || findings
                .consumers
                .iter()
                .any(|report| report.failure.is_some());
        search.tried(rate, report.rates.sustained, report.counts.unsent == 0);
        runs.push(report);
        if broken {
            break;
        }
    }
    Ok(runs)
}

/// The index of the run with the highest sustained rate.
pub fn best(runs: &[RunReport]) -> Option<usize> {
    let rate = |index: &usize| runs.get(*index).map_or(0.0, |run| run.rates.sustained);
    (0..runs.len()).max_by(|a, b| rate(a).total_cmp(&rate(b)))
}

/// Which rate to try next.
struct Search {
    next: f64,
    /// Highest rate that held.
    held: f64,
    /// Lowest rate that did not.
    failed: Option<f64>,
    refinements: u32,
}

impl Search {
    fn new(first: f64) -> Self {
        Search {
            next: first,
            held: 0.0,
            failed: None,
            refinements: 0,
        }
    }

    fn next_rate(&self) -> Option<f64> {
        (self.refinements <= REFINEMENTS && self.next <= HIGHEST_RATE).then_some(self.next)
    }

    fn tried(&mut self, rate: f64, sustained: f64, all_sent: bool) {
        if all_sent && sustained >= rate * KEPT_UP {
            self.held = self.held.max(rate);
        } else {
            self.failed = Some(self.failed.map_or(rate, |failed| failed.min(rate)));
        }
        self.next = match self.failed {
            None => rate * 2.0,
            Some(failed) => {
                self.refinements += 1;
                (self.held + failed) / 2.0
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_closes_in_on_a_server_s_limit_and_ends() {
        for limit in [700.0, 25_000.0, 300_000.0] {
            let mut search = Search::new(10_000.0);
            let mut tries = 0;
            while let Some(rate) = search.next_rate() {
                search.tried(rate, rate.min(limit), rate <= limit);
                tries += 1;
                assert!(tries < 20);
            }
            let failed = search.failed.unwrap();
            assert!(search.held <= limit && limit <= failed);
            assert!(failed - search.held <= f64::max(failed / 8.0, 10_000.0 / 8.0));
        }
    }
}
