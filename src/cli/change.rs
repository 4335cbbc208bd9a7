//! `tidegate queue change`: a queue's mode and copies change while it runs.

use std::time::Duration;

use argh::FromArgs;
use client::{ChangeOptions, Changed, Client, Copies, ErrorCode, Mode, Settings, Standing};
use serde::Serialize;
use tokio::time::{sleep, Instant};

use super::{
    describe::{copies, setting_line, SettingJson},
    failure::Failure,
    output::Output,
    patience::Patience,
    queue::{parse_copies, parse_mode},
};
use crate::config::parse_duration;

/// Between two looks at how far a change is.
const LOOK: Duration = Duration::from_millis(100);

/// Change a queue's mode, its copies, or both, while it runs. What was published before
/// keeps its promise; what comes behind has the new one.
#[derive(Debug, FromArgs)]
#[argh(subcommand, name = "change", help_triggers("-h", "--help"))]
pub struct Change {
    /// name of the queue
    #[argh(positional)]
    pub name: String,

    /// durable, buffered or speculative (default: as it is). A queue that becomes buffered
    /// or speculative stays in its group; where that held durable queues only, all of them
    /// come through a power cut of all nodes by a recovery from then on
    #[argh(option, from_str_fn(parse_mode))]
    mode: Option<Mode>,

    /// on how many nodes a record has to be before it is confirmed: majority, all, or a
    /// number (default: as it is)
    #[argh(option, arg_name = "w", from_str_fn(parse_copies))]
    copies: Option<Copies>,

    /// only if the queue's setting is at this revision (see `queue info`; 0: as declared).
    /// Given again with the same revision, the same change is answered as done
    #[argh(option, arg_name = "n")]
    revision: Option<u32>,

    /// wait until the change is applied in every partition, at most so long: seconds, or a
    /// duration like 2m
    #[argh(option, arg_name = "seconds", from_str_fn(parse_wait))]
    wait: Option<Duration>,

    /// server to ask (default: 127.0.0.1:7420); several, as A,B,C or one after
    /// the other, are nodes of one cluster: any that answers
    #[argh(option, arg_name = "addr")]
    pub server: Vec<String>,

    /// print one JSON object
    #[argh(switch)]
    pub json: bool,
}

fn parse_wait(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) => Ok(Duration::from_secs(seconds)),
        Err(_) => parse_duration(text),
    }
}

#[derive(Serialize)]
struct ChangedJson<'a> {
    name: &'a str,
    changed: bool,
    mode: &'static str,
    copies: String,
    revision: u32,
    /// Left out where nobody waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    applied: Option<bool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    each: Vec<SettingJson>,
}

/// What there is to change was named.
pub fn check(args: &Change) -> Result<(), String> {
    if args.mode.is_none() && args.copies.is_none() {
        return Err("nothing is to change: name --mode, --copies or both".to_owned());
    }
    Ok(())
}

pub async fn change(client: Client, mut out: Output, args: Change) -> Result<(), Failure> {
    let mut options = ChangeOptions::new(&args.name);
    if let Some(mode) = args.mode {
        options = options.mode(mode);
    }
    if let Some(copies) = args.copies {
        options = options.copies(copies);
    }
    if let Some(revision) = args.revision {
        options = options.revision(revision);
    }
    let changed = Patience::new()
        .ask(|| client.change(options.clone()))
        .await
        .map_err(|error| Failure::request("change queue", &args.name, error))?;
    let settings = match args.wait {
        Some(wait) => Some(wait_for(&client, &args.name, changed.setting.revision, wait).await?),
        None => None,
    };
    let applied = settings
        .as_ref()
        .map(|settings| settings.are_applied(changed.setting.revision));
    if out.json {
        let each = settings.iter().flat_map(SettingJson::each);
        let object = ChangedJson {
            name: &args.name,
            changed: changed.changed,
            mode: changed.setting.mode.name(),
            copies: copies(changed.setting.copies),
            revision: changed.setting.revision,
            applied,
            each: each.collect(),
        };
        out.object(&object).await?;
    } else {
        out.line(changed_line(&args.name, &changed, applied))
            .await?;
    }
    out.flush().await?;
    match (applied, settings) {
        (Some(false), Some(settings)) => Err(Failure::NotApplied {
            name: args.name,
            revision: changed.setting.revision,
            waits: waits(&settings, changed.setting.revision),
        }),
        _ => Ok(()),
    }
}

/// Looks until the revision is applied everywhere, or the time is up.
async fn wait_for(
    client: &Client,
    name: &str,
    revision: u32,
    wait: Duration,
) -> Result<Settings, Failure> {
    let until = Instant::now() + wait;
    loop {
        let settings = client.settings(name).await;
        match settings {
            Ok(settings) if settings.are_applied(revision) || Instant::now() >= until => {
                return Ok(settings);
            }
            Err(error)
                if error.code() == Some(ErrorCode::UnknownQueue) || Instant::now() >= until =>
            {
                return Err(Failure::request("look at queue", name, error));
            }
            _ => sleep(LOOK.min(until - Instant::now())).await,
        }
    }
}

fn changed_line(name: &str, changed: &Changed, applied: Option<bool>) -> String {
    let how = match (changed.changed, applied) {
        (_, Some(true)) => "applied in every partition",
        (true, _) => "changed; `tidegate queue info` says how far each partition is",
        (false, _) => "as it was",
    };
    format!(
        "queue {name}: mode {}, copies {}, revision {}, {how}",
        changed.setting.mode.name(),
        copies(changed.setting.copies),
        changed.setting.revision,
    )
}

/// The partitions that are not there yet, and why.
fn waits(settings: &Settings, revision: u32) -> String {
    let each = settings.partitions.iter().enumerate();
    let behind = each.filter_map(|(partition, said)| match said {
        Ok(it) if it.standing == Standing::Applied && it.setting.revision >= revision => None,
        Ok(it) => Some(setting_line(partition as u16, it)),
        Err(error) => Some(format!("partition={partition} nobody can say: {error}")),
    });
    behind.collect::<Vec<_>>().join("; ")
}
