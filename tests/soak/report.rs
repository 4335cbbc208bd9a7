//! What a run did and found, for people.

use std::{collections::BTreeMap, fmt::Write, fs, path::PathBuf, time::Duration};

use linear::{Checked, Violation};

use crate::{faults::Fault, load::Counts};

pub struct Report<'a> {
    pub test: &'a str,
    pub nodes: u32,
    pub took: Duration,
    pub rounds: u64,
    pub ruined: u64,
    pub slowest_repair: Duration,
    pub faults: &'a BTreeMap<Fault, u64>,
    /// Operations of disks that failed.
    pub failures: u64,
    pub counts: &'a Counts,
    /// Loss reports of all partitions.
    pub losses: usize,
    /// Those of rounds in which no majority lost power: nothing confirmed is in them.
    pub without_ruin: usize,
    pub wrong: &'a [String],
    pub checked: &'a Result<Checked, Violation>,
}

impl Report<'_> {
    pub fn text(&self) -> String {
        let counts = self.counts;
        let mut text = format!(
            "{}: {} nodes, {:.0} s, {} rounds; {} of them took the power of a majority\n",
            self.test,
            self.nodes,
            self.took.as_secs_f64(),
            self.rounds,
            self.ruined
        );
        let faults = self.faults.iter();
        let faults: Vec<String> = faults
            .map(|(fault, times)| format!("{fault:?} {times}"))
            .collect();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "injected: {}; {} operations of disks failed",
            faults.join(", "),
            self.failures
        );
        let _ = writeln!(
            text,
            "records: {} published, {} confirmed, {} failed, {} unknown; {} deliveries, {} of them \
             redeliveries; {} confirmed settles; {} loss reports, {} of them in rounds in which no \
             majority lost power (nothing confirmed was in those)",
            counts.published,
            counts.confirmed,
            counts.failed,
            counts.unknown,
            counts.delivered,
            counts.redelivered,
            counts.settled,
            self.losses,
            self.without_ruin
        );
        let _ = writeln!(
            text,
            "slowest repair of a round: {:.1} s",
            self.slowest_repair.as_secs_f64()
        );
        let _ = match self.checked {
            Ok(checked) => writeln!(text, "linearizable: {checked:?}"),
            Err(violation) => writeln!(text, "NOT LINEARIZABLE: {violation}"),
        };
        for wrong in self.wrong {
            let _ = writeln!(text, "WRONG: {wrong}");
        }
        text
    }

    /// Into the directory that the environment names, if it names one.
    pub fn write(&self) {
        if let Some(directory) = std::env::var_os("TIDEGATE_SOAK_REPORT") {
            let file = PathBuf::from(directory).join(format!("{}.txt", self.test));
            fs::write(&file, self.text()).unwrap();
        }
    }
}
