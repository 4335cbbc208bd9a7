//! Command line of the model.

use argh::FromArgs;
use std::process::ExitCode;
use tidegate_spec::rules::{Dropped, Rule, RULES};
use tidegate_spec::run::{explore, Outcome};
use tidegate_spec::scope::{Scope, SMALL};

/// Checks the small-scope model of replication rules R1 to R7.
#[derive(FromArgs)]
struct Arguments {
    /// a rule to drop; may be repeated; `?` lists them
    #[argh(option)]
    drop: Vec<String>,
    /// only the scope of this name
    #[argh(option)]
    scope: Option<String>,
}

fn main() -> ExitCode {
    let arguments: Arguments = argh::from_env();
    let mut rules = Vec::new();
    for name in &arguments.drop {
        let Some(rule) = Rule::named(name) else {
            for (_, name, text) in RULES {
                println!("{name:18} {text}");
            }
            return ExitCode::FAILURE;
        };
        rules.push(rule);
    }
    let dropped = Dropped::of(&rules);
    let mut good = true;
    for scope in SMALL {
        if arguments
            .scope
            .as_ref()
            .is_some_and(|name| name != scope.name)
        {
            continue;
        }
        let began = std::time::Instant::now();
        let outcome = explore(*scope, dropped);
        print(scope, &outcome, began.elapsed());
        good &= outcome.counterexample.is_none() && outcome.unreached.is_empty();
    }
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn print(scope: &Scope, outcome: &Outcome, took: std::time::Duration) {
    println!(
        "{}: {} states, {} generated, depth {}, {:.1} s",
        scope.name,
        outcome.states,
        outcome.generated,
        outcome.depth,
        took.as_secs_f64()
    );
    for name in &outcome.unreached {
        println!("  never reached: {name}");
    }
    if let Some(found) = &outcome.counterexample {
        println!(
            "  BROKEN: {} after {} steps",
            found.promise,
            found.steps.len()
        );
        for (number, step) in found.steps.iter().enumerate() {
            println!("  {:3}. {step:?}", number + 1);
        }
    }
}
