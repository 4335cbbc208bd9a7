//! Random histories of one log (`SEEDS=from..to` chooses others).

use tidegate_sim::log_run::run;

fn seeds() -> std::ops::Range<u64> {
    let chosen = std::env::var("SEEDS").ok();
    let range = chosen.as_deref().and_then(|range| {
        let (from, to) = range.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    range.unwrap_or(0..400)
}

#[test]
fn nothing_promised_is_lost_over_crashes_and_power_cuts() {
    let (mut opens, mut cuts, mut latches, mut survivors) = (0, 0, 0, 0);
    for seed in seeds() {
        let summary = run(seed).unwrap_or_else(|failure| panic!("{failure}"));
        opens += summary.opens;
        cuts += summary.power_cuts;
        latches += summary.latches;
        survivors += summary.survivors;
    }
    // The histories must be ones in which something can go wrong.
    assert!(opens > 0 && cuts > 0 && latches > 0 && survivors > 0);
    println!("{opens} opens, {cuts} power cuts, {latches} latches, {survivors} survivors");
}

#[test]
fn a_seed_repeats_bit_for_bit() {
    for seed in [1, 7, 99, 12_345] {
        let (first, second) = (run(seed).unwrap(), run(seed).unwrap());
        assert!(first.trace.len() > 10);
        assert_eq!(first, second);
    }
    assert_ne!(run(1).unwrap().trace, run(2).unwrap().trace);
}
