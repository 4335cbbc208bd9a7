//! `tidegate queue`: declare, change, list, info, peek, purge, delete.

use std::{process::ExitCode, time::Duration};

use argh::FromArgs;
use client::{Client, Copies, DeclareOptions, Mode, OnTotalLoss, PeekOptions, PeekedRecord};
use serde::Serialize;

use super::{
    change::{self, Change},
    check_name,
    describe::{
        headers_json, info_lines, one_line, plural, queue_line, Bytes, HeaderJson, InfoJson,
        QueueJson,
    },
    failure::Failure,
    output::Output,
    patience::Patience,
    session,
};
use crate::config::parse_duration;

/// Declare, change, describe, empty and delete queues.
#[derive(Debug, FromArgs)]
#[argh(subcommand, name = "queue", help_triggers("-h", "--help"))]
pub struct Queue {
    #[argh(subcommand)]
    action: Action,
}

#[derive(Debug, FromArgs)]
#[argh(subcommand)]
enum Action {
    Declare(Declare),
    Change(Change),
    List(List),
    Info(Info),
    Peek(Peek),
    Purge(Purge),
    Delete(Delete),
}

/// Create a queue, or check that it exists as described. What is left out
/// keeps its value. A value that differs from the queue's is refused.
#[derive(Debug, FromArgs)]
#[argh(subcommand, name = "declare", help_triggers("-h", "--help"))]
struct Declare {
    /// name of the queue: 1 to 255 bytes, no control characters
    #[argh(positional)]
    name: String,

    /// durable (confirms survive a power cut), buffered (confirms survive a
    /// process crash, faster) or speculative (confirms as durable, delivers
    /// as buffered); default for a new queue: durable
    #[argh(option, from_str_fn(parse_mode))]
    mode: Option<Mode>,

    /// number of partitions, 1 to 1024; default for a new queue: 1
    #[argh(option, arg_name = "n", from_str_fn(parse_partitions))]
    partitions: Option<u16>,

    /// how long a consumer may hold a record unsettled, like 30s; default for
    /// a new queue: 30s
    #[argh(option, arg_name = "dur", from_str_fn(parse_positive))]
    lease: Option<Duration>,

    /// on how many nodes a record has to be before it is confirmed: majority,
    /// all, or a number; default for a new queue: majority
    #[argh(option, arg_name = "w", from_str_fn(parse_copies))]
    copies: Option<Copies>,

    /// what a buffered or speculative queue of a cluster does where so many
    /// copies lost their memory that confirmed records may be gone: recover (go
    /// on, and report exactly what is gone) or halt (its groups, and with them
    /// every queue in them, wait for an operator's `cluster recover`); default for a new queue: recover
    #[argh(option, arg_name = "what", from_str_fn(parse_on_total_loss))]
    on_total_loss: Option<OnTotalLoss>,

    /// server to ask (default: 127.0.0.1:7420); several, as A,B,C or one after
    /// the other, are nodes of one cluster: any that answers
    #[argh(option, arg_name = "addr")]
    server: Vec<String>,

    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// List all queues, one per line, in byte order of their names.
#[derive(Debug, FromArgs)]
#[argh(subcommand, name = "list", help_triggers("-h", "--help"))]
struct List {
    /// server to ask (default: 127.0.0.1:7420); several, as A,B,C or one after
    /// the other, are nodes of one cluster: any that answers
    #[argh(option, arg_name = "addr")]
    server: Vec<String>,

    /// print one JSON object per queue
    #[argh(switch)]
    json: bool,
}

/// Show a queue's counters, and each partition's frontiers and losses.
#[derive(Debug, FromArgs)]
#[argh(subcommand, name = "info", help_triggers("-h", "--help"))]
struct Info {
    /// name of the queue
    #[argh(positional)]
    name: String,

    /// server to ask (default: 127.0.0.1:7420); several, as A,B,C or one after
    /// the other, are nodes of one cluster: any that answers
    #[argh(option, arg_name = "addr")]
    server: Vec<String>,

    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// Show records without disturbing order, leases or counters, one per line.
#[derive(Debug, FromArgs)]
#[argh(subcommand, name = "peek", help_triggers("-h", "--help"))]
struct Peek {
    /// name of the queue
    #[argh(positional)]
    name: String,

    /// at most this many records (default: 10)
    #[argh(option, arg_name = "n", default = "10")]
    max: u32,

    /// only records of this partition (default: all, one after the other)
    #[argh(option, arg_name = "n")]
    partition: Option<u16>,

    /// only records from this offset on (default: 0)
    #[argh(option, arg_name = "offset", default = "0")]
    from: u64,

    /// server to ask (default: 127.0.0.1:7420); several, as A,B,C or one after
    /// the other, are nodes of one cluster: any that answers
    #[argh(option, arg_name = "addr")]
    server: Vec<String>,

    /// print one JSON object per record
    #[argh(switch)]
    json: bool,
}

/// Drop every record of a queue that no consumer holds.
#[derive(Debug, FromArgs)]
#[argh(subcommand, name = "purge", help_triggers("-h", "--help"))]
struct Purge {
    /// name of the queue
    #[argh(positional)]
    name: String,

    /// server to ask (default: 127.0.0.1:7420); several, as A,B,C or one after
    /// the other, are nodes of one cluster: any that answers
    #[argh(option, arg_name = "addr")]
    server: Vec<String>,

    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// Delete a queue with all its records.
#[derive(Debug, FromArgs)]
#[argh(subcommand, name = "delete", help_triggers("-h", "--help"))]
struct Delete {
    /// name of the queue
    #[argh(positional)]
    name: String,

    /// server to ask (default: 127.0.0.1:7420); several, as A,B,C or one after
    /// the other, are nodes of one cluster: any that answers
    #[argh(option, arg_name = "addr")]
    server: Vec<String>,

    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

pub fn parse_mode(text: &str) -> Result<Mode, String> {
    Mode::from_name(text)
        .ok_or_else(|| format!("{text:?} is no mode; choose durable, buffered or speculative"))
}

fn parse_partitions(text: &str) -> Result<u16, String> {
    let most = wire::limits::MAX_PARTITIONS;
    text.parse()
        .ok()
        .filter(|count| (1..=most).contains(count))
        .ok_or_else(|| format!("{text:?} is no number from 1 to {most}"))
}

pub fn parse_copies(text: &str) -> Result<Copies, String> {
    match text {
        "majority" => Ok(Copies::Majority),
        "all" => Ok(Copies::All),
        number => number
            .parse()
            .ok()
            .filter(|count| (1..=254).contains(count))
            .map(Copies::Exactly)
            .ok_or_else(|| format!("{text:?} is neither majority, all nor a number from 1 to 254")),
    }
}

fn parse_on_total_loss(text: &str) -> Result<OnTotalLoss, String> {
    match text {
        "recover" => Ok(OnTotalLoss::Recover),
        "halt" => Ok(OnTotalLoss::Halt),
        other => Err(format!("{other:?} is neither recover nor halt")),
    }
}

/// A duration above zero.
pub fn parse_positive(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text)?;
    if duration.is_zero() {
        return Err("it has to be above zero, like 30s".to_owned());
    }
    Ok(duration)
}

impl Queue {
    pub fn check(&self) -> Result<(), String> {
        match &self.action {
            Action::List(_) => Ok(()),
            Action::Change(args) => check_name(&args.name).and_then(|()| change::check(args)),
            Action::Declare(Declare { name, .. })
            | Action::Info(Info { name, .. })
            | Action::Peek(Peek { name, .. })
            | Action::Purge(Purge { name, .. })
            | Action::Delete(Delete { name, .. }) => check_name(name),
        }
    }

    pub fn run(self) -> ExitCode {
        match self.action {
            Action::Declare(args) => {
                let server = args.server.clone();
                session::run(&server, args.json, |client, out| declare(client, out, args))
            }
            Action::Change(args) => {
                let server = args.server.clone();
                session::run(&server, args.json, |client, out| {
                    change::change(client, out, args)
                })
            }
            Action::List(args) => session::run(&args.server, args.json, list),
            Action::Info(args) => session::run(&args.server, args.json, |client, out| {
                info(client, out, args.name)
            }),
            Action::Peek(args) => {
                let server = args.server.clone();
                session::run(&server, args.json, |client, out| peek(client, out, args))
            }
            Action::Purge(args) => session::run(&args.server, args.json, |client, out| {
                purge(client, out, args.name)
            }),
            Action::Delete(args) => session::run(&args.server, args.json, |client, out| {
                delete(client, out, args.name)
            }),
        }
    }
}

async fn declare(client: Client, mut out: Output, args: Declare) -> Result<(), Failure> {
    let mut options = DeclareOptions::new(&args.name);
    if let Some(mode) = args.mode {
        options = options.mode(mode);
    }
    if let Some(partitions) = args.partitions {
        options = options.partitions(partitions);
    }
    if let Some(lease) = args.lease {
        options = options.lease(lease);
    }
    if let Some(copies) = args.copies {
        options = options.copies(copies);
    }
    if let Some(then) = args.on_total_loss {
        options = options.on_total_loss(then);
    }
    let declared = Patience::new()
        .ask(|| client.declare(options.clone()))
        .await
        .map_err(|error| Failure::request("declare queue", &args.name, error))?;
    if out.json {
        out.object(&QueueJson::new(&declared.queue, Some(declared.created)))
            .await?;
    } else {
        let how = if declared.created {
            "created"
        } else {
            "exists"
        };
        out.line(format!("{}, {how}", queue_line(&declared.queue)))
            .await?;
    }
    out.flush().await
}

async fn list(client: Client, mut out: Output) -> Result<(), Failure> {
    let listed = Patience::new().ask(|| client.list()).await;
    let queues = listed.map_err(|error| Failure::Request {
        what: "cannot list the queues".to_owned(),
        error,
    })?;
    for queue in &queues {
        if out.json {
            out.object(&QueueJson::new(queue, None)).await?;
        } else {
            out.line(queue_line(queue)).await?;
        }
    }
    out.flush().await
}

async fn info(client: Client, mut out: Output, name: String) -> Result<(), Failure> {
    let info = Patience::new()
        .ask(|| client.info(&name))
        .await
        .map_err(|error| Failure::request("describe queue", &name, error))?;
    if out.json {
        out.object(&InfoJson::new(&info)).await?;
    } else {
        for line in info_lines(&info) {
            out.line(line).await?;
        }
    }
    out.flush().await
}

#[derive(Serialize)]
struct PeekedJson<'a> {
    offset: u64,
    partition: u16,
    generation: u32,
    state: &'static str,
    attempts: u32,
    key: Bytes<'a>,
    headers: Vec<HeaderJson<'a>>,
    payload: Bytes<'a>,
}

async fn peek(client: Client, mut out: Output, args: Peek) -> Result<(), Failure> {
    let options = PeekOptions {
        partition: args.partition,
        from_offset: args.from,
        max_records: args.max,
    };
    let records = Patience::new()
        .ask(|| client.peek(&args.name, options))
        .await
        .map_err(|error| Failure::request("peek at queue", &args.name, error))?;
    for record in &records {
        if out.json {
            let object = PeekedJson {
                offset: record.offset,
                partition: record.partition,
                generation: record.generation,
                state: record.state.name(),
                attempts: record.attempts,
                key: Bytes(&record.key),
                headers: headers_json(record.headers()),
                payload: Bytes(&record.payload),
            };
            out.object(&object).await?;
        } else {
            out.line(peeked_line(record)).await?;
        }
    }
    out.flush().await
}

fn peeked_line(record: &PeekedRecord) -> String {
    format!(
        "offset={} partition={} state={} attempts={} {}",
        record.offset,
        record.partition,
        record.state.name(),
        record.attempts,
        one_line(&record.payload)
    )
}

#[derive(Serialize)]
struct PurgedJson<'a> {
    name: &'a str,
    purged: u64,
}

async fn purge(client: Client, mut out: Output, name: String) -> Result<(), Failure> {
    let failed = |error| Failure::request("purge queue", &name, error);
    let patience = Patience::new();
    let queue = patience
        .ask(|| client.locate(&name))
        .await
        .map_err(failed)?;
    // What one try purged the next would not count: several partitions are
    // asked once.
    let purged = match queue.shards.len() {
        1 => patience.ask(|| client.purge(&name)).await,
        _ => client.purge(&name).await,
    };
    let records = purged.map_err(failed)?;
    if out.json {
        let object = PurgedJson {
            name: &name,
            purged: records,
        };
        out.object(&object).await?;
    } else {
        out.line(format!(
            "queue {name}: purged {}",
            plural(records, "record")
        ))
        .await?;
    }
    out.flush().await
}

#[derive(Serialize)]
struct DeletedJson<'a> {
    name: &'a str,
    queue_id: u64,
    deleted: bool,
}

async fn delete(client: Client, mut out: Output, name: String) -> Result<(), Failure> {
    let queue_id = Patience::new()
        .ask(|| client.delete(&name))
        .await
        .map_err(|error| Failure::request("delete queue", &name, error))?;
    if out.json {
        let object = DeletedJson {
            name: &name,
            queue_id,
            deleted: true,
        };
        out.object(&object).await?;
    } else {
        out.line(format!("queue {name}: deleted")).await?;
    }
    out.flush().await
}
