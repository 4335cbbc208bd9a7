//! Runs many seeds of the engine or the cluster simulator, or the mutation check.
//!
//! `cargo run --release -p tidegate-sim -- --seeds 10000`
//! `cargo run --release -p tidegate-sim -- --cluster --nodes 3 --seeds 1000`
//! `cargo run --release -p tidegate-sim --features mutations -- --mutations`

use std::{
    collections::BTreeSet,
    io::Write,
    process::ExitCode,
    time::{Duration, Instant},
};

use argh::FromArgs;
use tidegate_sim::{
    cluster_sim,
    engine_sim::{self, Failure, SCENARIOS},
};

#[path = "main/report.rs"]
mod report;
#[path = "main/shrunk.rs"]
mod shrunk;

use report::Totals;

#[path = "main/cluster.rs"]
mod cluster;
#[cfg(feature = "mutations")]
#[path = "main/mutations.rs"]
mod mutations;

/// Run seeds of the engine simulator, or of the cluster simulator; stops at the first that breaks a promise.
#[derive(FromArgs)]
struct Options {
    /// how many seeds (default 1000, or as many as --seconds allow)
    #[argh(option)]
    seeds: Option<u64>,
    /// begin no further seed after so many seconds
    #[argh(option)]
    seconds: Option<u64>,
    /// the first seed (default 0)
    #[argh(option, default = "0")]
    from: u64,
    /// one scenario only; all of them in turn if absent
    #[argh(option)]
    scenario: Option<String>,
    /// several nodes and the links between them
    #[argh(switch)]
    cluster: bool,
    /// how many nodes (default: 3 and 5 in turn); with --cluster
    #[argh(option)]
    nodes: Option<usize>,
    /// lines of the failing run to show (default 60)
    #[argh(option, default = "60")]
    tail: usize,
    /// go on after a failure and show only its first line
    #[argh(switch)]
    go_on: bool,
    /// seconds to spend on leaving events out of a failing run (default 60; 0:
    /// it is shown as it is)
    #[argh(option, default = "60")]
    shrink: u64,
    /// repeat the failing run of --from with nothing but these of its events,
    /// as the shrinking printed them: 3,17,40-44
    #[argh(option, from_str_fn(shrunk::numbers))]
    only: Option<BTreeSet<usize>>,
    /// remove this rule and look for a violation in every kind of run, up to
    /// --seeds of each; may be given more than once (feature `mutations`)
    #[argh(option)]
    remove: Vec<String>,
    /// the mutation check: remove each rule in turn (or those of --remove) and
    /// print what broke (feature `mutations`)
    #[argh(switch)]
    mutations: bool,
}

fn main() -> ExitCode {
    let options: Options = argh::from_env();
    let scenarios: &[&str] = match options.cluster {
        true => &cluster_sim::SCENARIOS,
        false => &SCENARIOS,
    };
    if let Some(name) = &options.scenario {
        if !scenarios.contains(&name.as_str()) {
            eprintln!(
                "no scenario is called {name:?}; there are {}",
                scenarios.join(", ")
            );
            return ExitCode::from(2);
        }
    }
    if options.nodes.is_some_and(|nodes| !(1..=9).contains(&nodes)) {
        eprintln!("a simulated cluster has 1 to 9 nodes");
        return ExitCode::from(2);
    }
    let passed = if options.mutations || !options.remove.is_empty() {
        remove_rules(&options)
    } else if options.cluster {
        cluster::run_all(&options)
    } else if let Some(kept) = &options.only {
        let seed = options.from;
        shrunk::repeat(seed, options.scenario_of(seed), kept, options.tail, "")
    } else {
        run_all(&options)
    };
    match passed {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

impl Options {
    fn seeds(&self) -> u64 {
        let without = match self.seconds {
            Some(_) => u64::MAX,
            None => 1000,
        };
        self.seeds.unwrap_or(without)
    }

    fn scenario_of(&self, seed: u64) -> &str {
        let turn = SCENARIOS[(seed % SCENARIOS.len() as u64) as usize];
        self.scenario.as_deref().unwrap_or(turn)
    }
}

#[cfg(feature = "mutations")]
fn remove_rules(options: &Options) -> bool {
    match options.mutations {
        true => mutations::run_table(&options.remove),
        false => mutations::run_one(options),
    }
}

#[cfg(not(feature = "mutations"))]
fn remove_rules(_options: &Options) -> bool {
    eprintln!("rules can only be removed in a build with --features mutations");
    false
}

fn run_all(options: &Options) -> bool {
    let mut totals = Totals::default();
    let start = Instant::now();
    let enough = options.seconds.map(Duration::from_secs);
    for seed in options.from..options.from.saturating_add(options.seeds()) {
        if enough.is_some_and(|enough| start.elapsed() >= enough) {
            break;
        }
        match engine_sim::run(seed, options.scenario_of(seed), options.tail) {
            Ok(summary) => totals.add(&summary),
            Err(failure) => {
                totals.add(&failure.done);
                totals.violations += 1;
                println!("FAILED: {failure}");
                if !options.go_on {
                    tell(options, &failure);
                    break;
                }
            }
        }
        if seed % 50 == 49 {
            eprint!("\rseed {seed}: {} ", totals.progress());
            // Progress only: nothing is lost if it does not show.
            let _ = std::io::stderr().flush();
        }
    }
    eprintln!();
    println!("{totals}");
    totals.violations == 0
}

/// What happened, with as few events as it takes.
fn tell(options: &Options, failure: &Failure) {
    let (seed, scenario) = (failure.seed, failure.scenario.as_str());
    let patience = Duration::from_secs(options.shrink);
    // A panic was told once; repeating it is no news.
    std::panic::set_hook(Box::new(|_| {}));
    if options.shrink > 0 && shrunk::shrink(seed, scenario, patience, options.tail, "") {
        return;
    }
    for line in &failure.done.trace.tail {
        println!("{line}");
    }
    println!("again: --seeds 1 --from {seed} --scenario {scenario} --shrink 0");
}
