//! Runs many seeds of the engine or the cluster simulator, or the mutation check.
//!
//! `cargo run --release -p tidegate-sim -- --seeds 10000`
//! `cargo run --release -p tidegate-sim -- --cluster --nodes 3 --seeds 1000`
//! `cargo run --release -p tidegate-sim --features mutations -- --mutations`

use std::io::Write;

use argh::FromArgs;
use tidegate_sim::{
    cluster_sim,
    engine_sim::{self, SCENARIOS},
};

#[path = "main/cluster.rs"]
mod cluster;
#[cfg(feature = "mutations")]
#[path = "main/mutations.rs"]
mod mutations;

/// Run seeds of the engine simulator, or of the cluster simulator; stops at the first that breaks a promise.
#[derive(FromArgs)]
struct Options {
    /// how many seeds (default 1000)
    #[argh(option, default = "1000")]
    seeds: u64,
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
    /// remove this rule and look for a violation in every kind of run, up to
    /// --seeds of each; may be given more than once (feature `mutations`)
    #[argh(option)]
    remove: Vec<String>,
    /// the mutation check: remove each rule in turn (or those of --remove) and
    /// print what broke (feature `mutations`)
    #[argh(switch)]
    mutations: bool,
}

fn main() {
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
            std::process::exit(2);
        }
    }
    if options.nodes.is_some_and(|nodes| !(1..=9).contains(&nodes)) {
        eprintln!("a simulated cluster has 1 to 9 nodes");
        std::process::exit(2);
    }
    let passed = if options.cluster {
        cluster::run_all(&options)
    } else if options.mutations || !options.remove.is_empty() {
        remove_rules(&options)
    } else {
        run_all(&options)
    };
    if !passed {
        std::process::exit(1);
    }
}

#[cfg(feature = "mutations")]
fn remove_rules(options: &Options) -> bool {
    match options.mutations {
        true => mutations::run_table(&options.remove),
        false => mutations::run_one(&options.remove, options.seeds),
    }
}

#[cfg(not(feature = "mutations"))]
fn remove_rules(_options: &Options) -> bool {
    eprintln!("rules can only be removed in a build with --features mutations");
    false
}

fn run_all(options: &Options) -> bool {
    let (mut confirmed, mut lost, mut opens, mut failures) = (0, 0, 0, 0u64);
    for seed in options.from..options.from.saturating_add(options.seeds) {
        let turn = SCENARIOS[(seed % SCENARIOS.len() as u64) as usize];
        let scenario = options.scenario.as_deref().unwrap_or(turn);
        match engine_sim::run(seed, scenario, options.tail) {
            Ok(summary) => {
                confirmed += summary.confirmed;
                lost += summary.lost;
                opens += summary.opens;
            }
            Err(failure) => {
                failures += 1;
                if !options.go_on {
                    for line in &failure.trace.tail {
                        println!("{line}");
                    }
                }
                println!("FAILED: {failure}");
                if !options.go_on {
                    println!("again: --seeds 1 --from {seed} --scenario {scenario}");
                    return false;
                }
            }
        }
        if seed % 50 == 49 {
            eprint!("\rseed {seed}: {opens} opens, {confirmed} confirmed, {lost} lost, {failures} failed ");
            // Progress only: nothing is lost if it does not show.
            let _ = std::io::stderr().flush();
        }
    }
    eprintln!();
    println!("{} seeds, {opens} opens, {confirmed} records confirmed, {lost} reported lost, {failures} failed", options.seeds);
    failures == 0
}
