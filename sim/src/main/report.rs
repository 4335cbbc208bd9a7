//! What many runs did, in numbers.

use std::{collections::BTreeMap, fmt, fs};

use tidegate_sim::engine_sim::Summary;

/// Sums over runs.
#[derive(Debug, Default)]
pub struct Totals {
    seeds: u64,
    pub violations: u64,
    simulated_ms: u64,
    power_cuts: u64,
    process_crashes: u64,
    faults: BTreeMap<&'static str, u64>,
    opens: u64,
    latches: u64,
    checkpoints: u64,
    packed: u64,
    confirmed: u64,
    delivered: u64,
    settled: u64,
    lost: u64,
}

impl Totals {
    pub fn add(&mut self, done: &Summary) {
        self.seeds += 1;
        for (sum, count) in [
            (&mut self.simulated_ms, done.simulated_ms),
            (&mut self.power_cuts, done.power_cuts),
            (&mut self.process_crashes, done.process_crashes),
            (&mut self.opens, done.opens),
            (&mut self.latches, done.latches),
            (&mut self.checkpoints, done.checkpoints),
            (&mut self.packed, done.packed),
            (&mut self.confirmed, done.confirmed),
            (&mut self.delivered, done.delivered),
            (&mut self.settled, done.settled),
            (&mut self.lost, done.lost),
        ] {
            *sum += count;
        }
        for (kind, count) in &done.faults {
            *self.faults.entry(kind).or_default() += count;
        }
    }

    /// For a line that is written over.
    pub fn progress(&self) -> String {
        let (cuts, confirmed) = (self.power_cuts, self.confirmed);
        format!(
            "{cuts} power cuts, {confirmed} confirmed, {} violations",
            self.violations
        )
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hours = self.simulated_ms as f64 / 3_600_000.0;
        let mut line = |what: &str, value: &dyn fmt::Display| writeln!(f, "{what:<36} {value:>10}");
        line("seeds", &self.seeds)?;
        line("simulated hours", &format_args!("{hours:.2}"))?;
        line("power cuts", &self.power_cuts)?;
        line("process crashes", &self.process_crashes)?;
        for (kind, count) in &self.faults {
            line(&format!("injected: {kind}"), count)?;
        }
        line("logs opened", &self.opens)?;
        line("logs latched", &self.latches)?;
        line("checkpoints published", &self.checkpoints)?;
        line("records packed", &self.packed)?;
        line("records confirmed", &self.confirmed)?;
        line("deliveries", &self.delivered)?;
        line("records settled", &self.settled)?;
        line("records reported lost", &self.lost)?;
        line("violations", &self.violations)?;
        self.last_line(f, hours)
    }
}

impl Totals {
    fn last_line(&self, f: &mut fmt::Formatter<'_>, hours: f64) -> fmt::Result {
        let (seeds, cuts, violations) = (self.seeds, self.power_cuts, self.violations);
        let faults: u64 = self.faults.values().sum();
        write!(
            f,
            "{seeds} seeds, {hours:.2} simulated hours, {cuts} power cuts, \
             {faults} faults injected, {violations} violations"
        )?;
        let Some(minutes) = cpu_minutes() else {
            return Ok(());
        };
        let (hours, cuts) = (hours / minutes, cuts as f64 / minutes);
        write!(
            f,
            "; {minutes:.2} CPU minutes, each {hours:.2} simulated hours and {cuts:.0} power cuts"
        )
    }
}

/// Of this process so far; `None` where the kernel does not say.
fn cpu_minutes() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // Behind the name, which may hold anything, the state is field 3; utime and
    // stime are 14 and 15.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<f64>().ok();
    let ticks = next()? + next()?;
    // USER_HZ is 100 on every x86-64 kernel.
    Some((ticks / 100.0 / 60.0).max(1e-6))
}
