//! The subcommands: runs between two looks at the machine's limits, then the
//! tables and the result file.

use crate::{
    abba,
    args::{self, Command, Output},
    environment::Environment,
    error::LoadError,
    failover,
    limits::Limits,
    plan::{Drive, Settings},
    process,
    report::{Document, RunReport},
    run, saturate, selftest, table, units,
};

const LIMITS_ROUNDS: u32 = 2000;

/// Why a subcommand did not come to a verdict.
#[derive(Debug)]
pub enum Failure {
    Usage(String),
    Load(LoadError),
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Self {
        Failure::Load(error)
    }
}

/// Executes a subcommand; true when it passed.
///
/// # Errors
/// Wrong usage, or it could not be carried out.
pub fn execute(command: Command) -> Result<bool, Failure> {
    match command {
        Command::Run(arguments) => {
            let settings = arguments.settings(arguments.drive());
            bracketed(&settings, &arguments.output(), |_| {
                let report = one_run("run", &settings)?;
                Ok(Results {
                    runs: vec![report],
                    ..Default::default()
                })
            })
        }
        Command::Saturate(arguments) => saturate(&arguments),
        Command::Abba(arguments) => abba(&arguments),
        Command::Limits(arguments) => limits(&arguments),
        Command::Failover(arguments) => failover(&arguments),
        Command::Selftest(arguments) => selftest(&arguments),
    }
}

/// What the runs of a subcommand came to.
#[derive(Default)]
struct Results {
    runs: Vec<RunReport>,
    comparison: Vec<abba::Comparison>,
    comparison_table: String,
    best_run: Option<usize>,
}

/// Checks the settings, measures the limits around `runs` and reports it all.
fn bracketed(
    settings: &Settings,
    output: &Output,
    runs: impl FnOnce(&Settings) -> Result<Results, LoadError>,
) -> Result<bool, Failure> {
    settings.check().map_err(Failure::Usage)?;
    if let Some(path) = &output.json {
        // Found out before the run and not after it; an older result stays.
        std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .map_err(LoadError::io("cannot write the result file"))?;
    }
    let probe = || {
        let dir = output.limits_dir.as_deref();
        dir.map(|dir| Limits::measure(dir, LIMITS_ROUNDS, output.pin_core))
            .transpose()
    };
    let dir = output
        .limits_dir
        .clone()
        .or_else(|| process::data_dir(run::server_pid(settings)?));
    let environment = Environment::capture(dir.as_deref());
    print!("{}", table::environment(&environment));
    let before = probe()?;
    let results = runs(settings)?;
    let after = probe()?;

    let probes: Vec<&Limits> = before.iter().chain(&after).collect();
    let floors = table::floors(&probes);
    for (title, limits) in [("limits before", &before), ("limits after", &after)] {
        if let Some(limits) = limits {
            print!("{}", table::limits(title, limits));
        }
    }
    if let Some(warning) = before.as_ref().zip(after.as_ref()) {
        print!("{}", table::moved(warning.0, warning.1).unwrap_or_default());
    }
    for report in &results.runs {
        print!("{}", table::run(report, floors));
    }
    print!("{}", results.comparison_table);
    if let Some(best) = results.best_run.and_then(|best| results.runs.get(best)) {
        println!(
            "  highest sustained: {:.0} records/s ({})",
            best.rates.sustained, best.label
        );
    }
    let judged = results.best_run.map_or_else(
        || results.runs.iter().all(RunReport::passed),
        // Steps beyond the limit may leave records behind; the best may not.
        |best| results.runs.get(best).is_some_and(RunReport::passed),
    );
    let mut document = Document::new(environment, results.runs);
    document.limits_before = before;
    document.limits_after = after;
    document.floors = floors;
    document.comparison = results.comparison;
    document.best_run = results.best_run;
    if let Some(path) = &output.json {
        document.save(path)?;
    }
    Ok(judged)
}

fn one_run(label: &str, settings: &Settings) -> Result<RunReport, LoadError> {
    let findings = run::run(settings)?;
    Ok(RunReport::new(label, settings, &findings))
}

fn saturate(arguments: &args::SaturateArguments) -> Result<bool, Failure> {
    let drive = args::drive(arguments.rate, arguments.inflight, arguments.max_lag);
    let settings = arguments.settings(drive);
    bracketed(&settings, &arguments.output(), |settings| {
        let runs = match settings.drive {
            Drive::Closed { .. } => vec![one_run("closed window", settings)?],
            Drive::Open { rate, .. } => saturate::search(settings, rate, |report| {
                eprintln!(
                    "{}: sustained {:.0}/s, confirm p99 {} us",
                    report.label,
                    report.rates.sustained,
                    report
                        .latencies
                        .first()
                        .map_or(0, |row| row.confirm.p99_ns / 1000),
                );
            })?,
        };
        Ok(Results {
            best_run: saturate::best(&runs),
            runs,
            ..Default::default()
        })
    })
}

fn abba(arguments: &args::AbbaArguments) -> Result<bool, Failure> {
    let drive = args::drive(arguments.rate, arguments.inflight, arguments.max_lag);
    let settings = arguments.settings(drive);
    let base = arguments
        .queue
        .clone()
        .unwrap_or_else(|| "loadgen-abba".into());
    let side = |modes: &units::Modes| {
        let names: Vec<_> = modes.0.iter().map(|mode| mode.name()).collect();
        let name = names.join("-");
        let settings = Settings {
            queue: format!("{base}-{name}"),
            modes: modes.0.clone(),
            ..settings.clone()
        };
        (name, settings)
    };
    let (name_a, a) = side(&arguments.mode);
    let (name_b, b) = side(&arguments.mode_b);
    if a.modes == b.modes {
        return Err(Failure::Usage("--mode and --mode-b are the same".into()));
    }
    bracketed(&settings, &arguments.output(), |_| {
        let mut runs = vec![];
        for (label, settings) in [("A1", &a), ("B1", &b), ("B2", &b), ("A2", &a)] {
            runs.push(one_run(label, settings)?);
        }
        let comparison = abba::compare(&runs);
        Ok(Results {
            comparison_table: abba::table(&name_a, &name_b, &comparison),
            comparison,
            runs,
            best_run: None,
        })
    })
}

fn limits(arguments: &args::LimitsArguments) -> Result<bool, Failure> {
    if !(1..=1_000_000).contains(&arguments.rounds) {
        return Err(Failure::Usage("--rounds is 1 to 1000000".into()));
    }
    let environment = Environment::capture(Some(&arguments.dir));
    print!("{}", table::environment(&environment));
    let limits = Limits::measure(&arguments.dir, arguments.rounds, arguments.pin_core)?;
    print!("{}", table::limits("limits", &limits));
    if let Some(path) = &arguments.json {
        let mut document = Document::new(environment, vec![]);
        document.limits_before = Some(limits);
        document.save(path)?;
    }
    Ok(true)
}

fn failover(arguments: &args::FailoverArguments) -> Result<bool, Failure> {
    if !(1..=1000).contains(&arguments.kills) || arguments.every.as_secs() < 3 {
        let text = "--kills is 1 to 1000, and --every at least 3s";
        return Err(Failure::Usage(text.into()));
    }
    if arguments.rate <= 0.0 {
        return Err(Failure::Usage("--rate is above 0".into()));
    }
    Ok(failover::run(arguments)?)
}

fn selftest(arguments: &args::SelftestArguments) -> Result<bool, Failure> {
    let own = arguments
        .server_bin
        .as_deref()
        .map(selftest::OwnServer::start)
        .transpose()?;
    let (server, pid) = match &own {
        Some(own) => (own.address.as_str(), Some(own.pid())),
        None => (arguments.server.as_str(), arguments.server_pid),
    };
    let report = selftest::frozen_run(server, pid)?;
    print!("{}", table::run(&report, None));
    let missing = selftest::missing_evidence(&report);
    for what in &missing {
        println!("  NOT SHOWN   {what}");
    }
    if missing.is_empty() {
        println!("  selftest    ok: a freeze of 100 ms shows in p99 and max");
    }
    Ok(missing.is_empty())
}
