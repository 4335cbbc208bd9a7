//! Seeds of the cluster simulator.

use std::io::Write;
use std::time::Instant;

use tidegate_sim::cluster_sim::{run, SCENARIOS};

use crate::Options;

/// Runs them all; false if one failed.
pub fn run_all(options: &Options) -> bool {
    let (mut confirmed, mut lost, mut events, mut failures) = (0, 0, 0, 0u64);
    let begun = Instant::now();
    let seeds = options.seeds.unwrap_or(1000);
    for seed in options.from..options.from.saturating_add(seeds) {
        let turn = SCENARIOS[(seed % SCENARIOS.len() as u64) as usize];
        let scenario = options.scenario.as_deref().unwrap_or(turn);
        let usual = if seed % 4 == 3 { 5 } else { 3 };
        let nodes = options.nodes.unwrap_or(usual);
        match run(seed, scenario, nodes, options.tail) {
            Ok(summary) => {
                confirmed += summary.confirmed;
                lost += summary.lost;
                events += summary.counts.events;
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
                    println!(
                        "again: --cluster --nodes {nodes} --seeds 1 --from {seed} --scenario {scenario}"
                    );
                    return false;
                }
            }
        }
        if seed % 10 == 9 {
            eprint!("\rseed {seed}: {confirmed} confirmed, {lost} lost, {failures} failed ");
            // Progress only: nothing is lost if it does not show.
            let _ = std::io::stderr().flush();
        }
    }
    let per_minute = events as f64 / begun.elapsed().as_secs_f64().max(0.001) * 60.0;
    eprintln!();
    println!(
        "{} seeds, {events} events ({per_minute:.0} per minute), {confirmed} records confirmed, {lost} reported lost, {failures} failed",
        seeds
    );
    failures == 0
}
