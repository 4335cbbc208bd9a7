//! What an operator orders: what it means is said before it is done, and what came of
//! it is waited for and shown.

use std::time::Duration;

use client::{Client, NodeStatus, ReplicaRole};
use serde::Serialize;
use tokio::time::{sleep, Instant};

use super::{
    gather::{self, Gathered},
    show::recovery_line,
    summary::Summary,
    Drain, Forget, Recover, Replace,
};
use crate::cli::{failure::Failure, output::Output, patience::Patience};

/// Between two looks at how far a recovery has come.
const LOOK: Duration = Duration::from_millis(200);
/// Between two looks at a node that hands over: it takes milliseconds.
const DRAIN_LOOK: Duration = Duration::from_millis(20);

#[derive(Serialize)]
pub(super) struct ResultJson<'a> {
    pub order: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// False: it was in force before.
    pub changed: bool,
    pub message: &'a str,
}

impl<'a> ResultJson<'a> {
    pub fn of_node(order: &'static str, node: u32, changed: bool, message: &'a str) -> Self {
        ResultJson {
            order,
            node: Some(node),
            group: None,
            changed,
            message,
        }
    }

    pub async fn show(&self, out: &mut Output) -> Result<(), Failure> {
        if out.json {
            out.object(self).await?;
        } else {
            out.line(self.message).await?;
        }
        out.flush().await
    }
}

pub(super) fn failed(what: String) -> impl FnOnce(client::Error) -> Failure {
    move |error| Failure::Request { what, error }
}

pub async fn forget(client: Client, mut out: Output, args: Forget) -> Result<(), Failure> {
    let node = args.node;
    if !args.yes {
        return Err(Failure::ForgetNotConfirmed { node });
    }
    let ordered = Patience::new()
        .ask(|| client.forget(node, args.force))
        .await
        .map_err(failed(format!("cannot forget node {node}")))?;
    let result = ResultJson::of_node("forget", node, ordered.changed, &ordered.message);
    result.show(&mut out).await
}

pub async fn replace(client: Client, mut out: Output, args: Replace) -> Result<(), Failure> {
    let node = args.node;
    if !args.confirm {
        return Err(Failure::ReplaceNotConfirmed { node });
    }
    let ordered = Patience::new()
        .ask(|| client.replace(node))
        .await
        .map_err(failed(format!("cannot replace node {node}")))?;
    let result = ResultJson::of_node("replace", node, ordered.changed, &ordered.message);
    result.show(&mut out).await
}

pub async fn undrain(client: Client, mut out: Output, node: u32) -> Result<(), Failure> {
    let ordered = Patience::new()
        .ask(|| client.undrain(node))
        .await
        .map_err(failed(format!("cannot undrain node {node}")))?;
    let result = ResultJson::of_node("undrain", node, ordered.changed, &ordered.message);
    result.show(&mut out).await
}

fn led(status: &NodeStatus) -> Vec<u32> {
    let replicas = status.replicas.iter();
    let led = replicas.filter(|replica| replica.role == ReplicaRole::Leader);
    led.map(|replica| replica.group).collect()
}

pub async fn drain(client: Client, mut out: Output, args: Drain) -> Result<(), Failure> {
    let node = args.node;
    let what = || failed(format!("cannot drain node {node}"));
    let patience = Patience::new();
    let ordered = patience.ask(|| client.drain(node)).await.map_err(what())?;
    let start = Instant::now();
    loop {
        let status = client.node_status(Some(node)).await.map_err(what())?;
        let left = led(&status);
        if left.is_empty() {
            let message = format!(
                "node {node} leads nothing any more, and nothing until it is undrained or started again"
            );
            let result = ResultJson::of_node("drain", node, ordered.changed, &message);
            return result.show(&mut out).await;
        }
        if start.elapsed() >= args.wait {
            return Err(Failure::StillLeads { node, groups: left });
        }
        sleep(DRAIN_LOOK).await;
    }
}

pub async fn recover(client: Client, mut out: Output, args: Recover) -> Result<(), Failure> {
    let group = args.group;
    if !args.accept_loss {
        return Err(Failure::LossNotAccepted { group });
    }
    let what = || failed(format!("cannot recover group {group}"));
    let before = look(&client).await.map_err(what())?;
    let generation = Summary::of(&before).group(group).map(|it| it.generation);
    // A group that nobody has is refused by the server.
    let generation = generation.unwrap_or(1);
    let ordered = Patience::new()
        .ask(|| client.recover(group, generation))
        .await
        .map_err(what())?;
    let start = Instant::now();
    loop {
        let now = look(&client).await.map_err(what())?;
        let summary = Summary::of(&now);
        if let Some(message) = went_on(&summary, group, generation) {
            let result = ResultJson {
                order: "recover",
                node: None,
                group: Some(group),
                changed: ordered.changed,
                message: &message,
            };
            return result.show(&mut out).await;
        }
        if start.elapsed() >= args.wait {
            let waits = summary.recoveries.iter().find(|it| it.group == group);
            let waits = waits.map_or_else(|| ordered.message.clone(), |it| recovery_line(it));
            return Err(Failure::StillWaits { group, waits });
        }
        sleep(LOOK).await;
    }
}

pub(super) async fn look(client: &Client) -> Result<Gathered, client::Error> {
    let patience = Patience::new();
    patience.ask(|| gather::through(client)).await
}

/// The group serves in a newer generation.
fn went_on(summary: &Summary, group: u32, before: u32) -> Option<String> {
    let group = summary.group(group)?;
    let leads = group.leads.filter(|leads| leads.serving)?;
    (leads.generation > before).then(|| {
        format!(
            "group {} goes on as generation {}, led by node {}; `tidegate cluster losses` says what is gone",
            group.group, leads.generation, leads.peer.node
        )
    })
}
