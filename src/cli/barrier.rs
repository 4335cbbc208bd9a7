//! `tidegate barrier`.

use std::{process::ExitCode, time::Duration};

use argh::FromArgs;
use client::Client;

use super::{
    describe::FrontiersJson, failure::Failure, output::Output, patience::Patience,
    queue::parse_positive, session,
};

/// Wait until everything that a queue has taken so far is durable on its
/// copies, whatever its mode; then print each partition's durable frontier.
#[derive(Debug, FromArgs)]
#[argh(subcommand, name = "barrier", help_triggers("-h", "--help"))]
pub struct Barrier {
    /// name of the queue
    #[argh(positional)]
    pub name: String,

    /// give up after this long, like 30s (default: 30s)
    #[argh(
        option,
        arg_name = "dur",
        default = "Duration::from_secs(30)",
        from_str_fn(parse_positive)
    )]
    deadline: Duration,

    /// server to ask (default: 127.0.0.1:7420); several, as A,B,C or one after
    /// the other, are nodes of one cluster: any that answers
    #[argh(option, arg_name = "addr")]
    server: Vec<String>,

    /// print one JSON object per partition
    #[argh(switch)]
    json: bool,
}

impl Barrier {
    pub fn run(self) -> ExitCode {
        session::run(&self.server, self.json, |client, out| {
            barrier(client, out, self.name, self.deadline)
        })
    }
}

async fn barrier(
    client: Client,
    mut out: Output,
    name: String,
    deadline: Duration,
) -> Result<(), Failure> {
    let patience = Patience::within(deadline);
    let reached = patience
        .ask(|| client.barrier(&name, patience.left().unwrap_or(deadline)))
        .await
        .map_err(|error| Failure::request("wait for a barrier in queue", &name, error))?;
    for frontiers in &reached {
        if out.json {
            out.object(&FrontiersJson::new(frontiers)).await?;
        } else {
            out.line(format!(
                "partition={} generation={} durable_next={} copies={}",
                frontiers.partition, frontiers.generation, frontiers.durable_next, frontiers.copies
            ))
            .await?;
        }
    }
    out.flush().await
}
