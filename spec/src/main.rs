//! Command line of the model.

use argh::FromArgs;
use std::process::ExitCode;
use std::time::Instant;
use tidegate_spec::drops::{Drop, Expect, DROPS};
use tidegate_spec::promises::Promise;
use tidegate_spec::rules::{Dropped, Rule, RULES};
use tidegate_spec::run::{explore, Counterexample, Options, Outcome};
use tidegate_spec::scope::{Scope, FULL, HUGE, SMALL};

/// Checks the small-scope model of replication rules R1 to R7. Without options: the
/// small bound, all rules in force.
#[derive(FromArgs)]
struct Arguments {
    /// small (the default) or full
    #[argh(option, default = "String::from(\"small\")")]
    bound: String,
    /// a rule to drop, in the scope that the table has for it; may be repeated; `?`
    /// lists them
    #[argh(option)]
    drop: Vec<String>,
    /// only the scope of this name; `?` lists them
    #[argh(option)]
    scope: Option<String>,
    /// the whole table of dropped rules, as lines for the page
    #[argh(switch)]
    drops: bool,
    /// look only for this promise: P1, P2, report, P3, P4, copies
    #[argh(option)]
    promise: Option<String>,
    /// heal one state in so many; 97 unless a rule is dropped, then none
    #[argh(option)]
    heal_every: Option<u64>,
}

fn main() -> ExitCode {
    let arguments: Arguments = argh::from_env();
    let good = if arguments.drops {
        table()
    } else {
        run(&arguments)
    };
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Explores the chosen scopes; false if something was broken or not reached.
fn run(arguments: &Arguments) -> bool {
    let mut rules = Vec::new();
    for name in &arguments.drop {
        let Some(rule) = Rule::named(name) else {
            RULES
                .iter()
                .for_each(|(_, name, text)| println!("{name:18} {text}"));
            return false;
        };
        rules.push(rule);
    }
    let only = match arguments.promise.as_deref() {
        None => None,
        Some(name) => match promise(name) {
            None => {
                println!("no promise {name}");
                return false;
            }
            some => some,
        },
    };
    let scopes = scopes(arguments, &rules);
    if scopes.is_empty() {
        FULL.iter()
            .chain(HUGE)
            .for_each(|s| println!("{:18} {:?}", s.name, s));
        return false;
    }
    let usual = if rules.is_empty() { 97 } else { 0 };
    let heal_every = arguments.heal_every.unwrap_or(usual);
    let options = Options {
        dropped: Dropped::of(&rules),
        only,
        heal_every,
    };
    let mut good = true;
    for scope in &scopes {
        let began = Instant::now();
        let outcome = explore(*scope, options);
        print(scope, &outcome, began);
        good &=
            outcome.counterexample.is_none() && (outcome.unreached.is_empty() || !rules.is_empty());
    }
    good
}

fn scopes(arguments: &Arguments, rules: &[Rule]) -> Vec<Scope> {
    if let Some(name) = &arguments.scope {
        let all = FULL.iter().chain(HUGE);
        return all.filter(|s| s.name == name).copied().collect();
    }
    let lines = DROPS
        .iter()
        .filter(|d| !rules.is_empty() && d.rules == rules);
    let directed: Vec<Scope> = lines.map(|d| d.scope).collect();
    if !directed.is_empty() {
        return directed;
    }
    if arguments.bound == "full" {
        FULL
    } else {
        SMALL
    }
    .to_vec()
}

fn promise(name: &str) -> Option<Promise> {
    Some(match name {
        "P1" => Promise::DurableNeverLost,
        "P2" => Promise::WrittenLostOnlyWithItsCopies,
        "report" => Promise::ReportExact,
        "P3" => Promise::OneLeaderConfirms,
        "P4" => Promise::RetiredNeverCounts,
        "copies" => Promise::CopiesHonest,
        _ => return None,
    })
}

fn print(scope: &Scope, outcome: &Outcome, began: Instant) {
    println!(
        "{}: {} states, {} generated, depth {}, {:.1} s",
        scope.name,
        outcome.states,
        outcome.generated,
        outcome.depth,
        began.elapsed().as_secs_f64()
    );
    for name in &outcome.unreached {
        println!("  never reached: {name}");
    }
    if let Some(found) = &outcome.counterexample {
        trace(found);
    }
}

fn trace(found: &Counterexample) {
    println!(
        "  BROKEN: {}, after {} steps",
        found.promise,
        found.steps.len()
    );
    for (number, step) in found.steps.iter().enumerate() {
        println!("  {:3}. {step}", number + 1);
    }
}

/// Runs the table of dropped rules; false if a line came out otherwise.
fn table() -> bool {
    println!("| dropped | scope | broken | steps | states |");
    println!("|---|---|---|---|---|");
    // All of them, also after one that did not come out as expected.
    let unexpected = DROPS.iter().filter(|line| !row(line)).count();
    unexpected == 0
}

fn row(line: &Drop) -> bool {
    let (outcome, good) = line.run();
    let names: Vec<_> = line
        .rules
        .iter()
        .map(|r| format!("`{}`", r.name()))
        .collect();
    let broken = outcome.counterexample.as_ref();
    let what = match (broken, line.expect) {
        (Some(found), _) => found.promise.to_string(),
        (None, Expect::Nothing(why)) => format!("nothing: {why}"),
        (None, _) => "NOTHING".to_string(),
    };
    let steps = broken.map_or("".to_string(), |found| found.steps.len().to_string());
    println!(
        "| {} | {} | {what} | {steps} | {} |",
        names.join(", "),
        line.scope.name,
        outcome.states
    );
    good
}
