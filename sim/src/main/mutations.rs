//! The mutation check on the command line.

use std::io::Write;
use std::time::{Duration, Instant};

use tidegate_sim::mutation::{
    cluster_hunts, everything, hunt, with_removed, Check, Expected, Hunt, Outcome, Rule, CHECKS,
};

use crate::{shrunk, Options};

/// Longest piece of a violation that the table shows.
const WHAT_CHARS: usize = 110;

/// Runs the table, or those checks of it that remove one of `only`; true if
/// every one came out as it must.
pub fn run_table(only: &[String]) -> bool {
    quiet_panics();
    let start = Instant::now();
    let mut wrong = Vec::new();
    println!("| removed | found after | of at most | by | what broke |");
    println!("|---|---|---|---|---|");
    for check in CHECKS {
        let wanted = |rule: &Rule| only.iter().any(|name| name == rule.name());
        if !only.is_empty() && !check.removed.iter().any(wanted) {
            continue;
        }
        let outcome = hunt(check.removed, check.hunts);
        println!("{}", line(check, &outcome));
        // Progress only: nothing is lost if it does not show.
        let _ = std::io::stdout().flush();
        if !outcome.is(check.expected) {
            wrong.push(names(check.removed));
        }
    }
    eprintln!("{} s", start.elapsed().as_secs());
    if !wrong.is_empty() {
        println!("NOT AS EXPECTED: {}", wrong.join("; "));
    }
    wrong.is_empty()
}

/// Looks everywhere for a violation with these rules removed, or repeats a run
/// with few of its events.
pub fn run_one(options: &Options) -> bool {
    quiet_panics();
    let rules: Option<Vec<Rule>> = options
        .remove
        .iter()
        .map(|name| Rule::named(name))
        .collect();
    let Some(rules) = rules else {
        eprintln!("the rules are:");
        for rule in Rule::ALL {
            eprintln!("  {:<26} {}", rule.name(), rule.text());
        }
        return false;
    };
    let words = options
        .remove
        .iter()
        .map(|name| format!("--remove {name} "));
    let words: String = words.collect();
    if let Some(kept) = &options.only {
        let (seed, scenario) = (options.from, options.scenario_of(options.from));
        return with_removed(&rules, || {
            shrunk::repeat(seed, scenario, kept, options.tail, &words)
        });
    }
    let hunts = match &options.scenario {
        _ if options.cluster => {
            let nodes = options.nodes.unwrap_or(3);
            cluster_hunts(options.scenario.as_deref(), nodes, options.seeds())
        }
        Some(scenario) => vec![Hunt::engine(scenario, options.seeds())],
        None => everything(options.seeds()),
    };
    let outcome = hunt(&rules, &hunts);
    let Some(found) = &outcome.found else {
        let (runs, hits) = (outcome.runs, outcome.hits);
        println!("not found in {runs} runs; the rule was asked for {hits} times");
        return false;
    };
    let (runs, place, what) = (found.runs, &found.place, &found.what);
    println!("found after {runs} runs, {place}: {what}");
    if let Some((scenario, seed)) = found.engine.filter(|_| options.shrink > 0) {
        let patience = Duration::from_secs(options.shrink);
        with_removed(&rules, || {
            shrunk::shrink(seed, scenario, patience, options.tail, &words)
        });
    }
    true
}

fn line(check: &Check, outcome: &Outcome) -> String {
    let (names, bound) = (names(check.removed), check.bound());
    let hits = outcome.hits;
    match (&outcome.found, check.expected) {
        (Some(found), _) => {
            let what: String = found.what.chars().take(WHAT_CHARS).collect();
            let what = what.replace(['|', '\n'], " ");
            let (runs, place) = (found.runs, &found.place);
            format!("| {names} | {runs} | {bound} | {place} | {what} |")
        }
        (None, Expected::Covered(by)) => {
            format!("| {names} | never | {bound} | | kept by {by}; asked for {hits} times |")
        }
        (None, Expected::Violation) => {
            format!("| {names} | NOT FOUND | {bound} | | asked for {hits} times |")
        }
    }
}

fn names(rules: &[Rule]) -> String {
    if rules.is_empty() {
        return "(nothing)".to_owned();
    }
    let names: Vec<&str> = rules.iter().map(|rule| rule.name()).collect();
    names.join(" + ")
}

/// A panic is a violation like any other, and told as one.
fn quiet_panics() {
    std::panic::set_hook(Box::new(|_| {}));
}
