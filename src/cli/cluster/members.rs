//! Who belongs to the cluster, and which nodes hold what: orders that take their time.
//! What was ordered is done whether or not the command waits for it.

use std::time::Duration;

use client::{Client, ErrorCode};
use tokio::time::{sleep, Instant};

use super::{
    orders::{failed, look, ResultJson},
    summary::Summary,
    Add, Move, Remove,
};
use crate::cli::{describe::plural, failure::Failure, output::Output, patience::Patience};

/// Between two looks at how far it has come.
const LOOK: Duration = Duration::from_millis(200);

pub async fn add(client: Client, mut out: Output, args: Add) -> Result<(), Failure> {
    let (node, address) = (args.node.number, args.node.address.as_str());
    let zone = args.zone.unwrap_or_default();
    let ordered = Patience::new()
        .ask(|| client.add_node(node, address, &zone))
        .await
        .map_err(failed(format!("cannot add node {node}")))?;
    let result = ResultJson::of_node("add", node, ordered.changed, &ordered.message);
    result.show(&mut out).await
}

/// Groups that the node is to hold, and those on their way from it.
struct Held {
    held: Vec<u32>,
    leaving: usize,
    is_member: bool,
}

async fn held(client: &Client, node: u32) -> Result<Held, client::Error> {
    let gathered = look(client).await?;
    let summary = Summary::of(&gathered);
    let groups = summary.groups.iter().map(|it| it.group);
    let groups: Vec<u32> = groups.filter(|group| *group != 0).collect();
    let Some(roster) = summary.roster else {
        return Ok(Held {
            held: groups,
            leaving: 0,
            is_member: true,
        });
    };
    let leaving = roster.shifts.values().filter(|it| it.from == node).count();
    let holds = |group: &u32| roster.is_holder(*group, node);
    Ok(Held {
        held: groups.into_iter().filter(holds).collect(),
        leaving,
        is_member: roster.members.contains_key(&node),
    })
}

pub async fn move_groups(client: Client, mut out: Output, args: Move) -> Result<(), Failure> {
    let (from, to) = (args.from, args.to);
    let named = args.group.0;
    let what = || match named {
        Some(group) => format!("cannot move group {group}"),
        None => format!("cannot move the groups of node {from}"),
    };
    let start = Instant::now();
    let mut ordered = Vec::new();
    let mut stay = 0;
    loop {
        let now = held(&client, from).await.map_err(failed(what()))?;
        if !now.is_member && ordered.is_empty() {
            return Err(Failure::Other(format!(
                "{}: node {from} is not one of the cluster; `tidegate cluster status` shows which are",
                what()
            )));
        }
        let wanted = now.held.iter().copied();
        let mut wanted: Vec<u32> = wanted
            .filter(|group| named.is_none_or(|it| it == *group))
            .collect();
        if ordered.is_empty() && wanted.is_empty() {
            // The server says why, if it is not there already.
            wanted.extend(named);
        }
        wanted.retain(|group| !ordered.contains(group));
        for group in wanted {
            match client.move_group(group, from, to, args.force).await {
                Ok(_) => ordered.push(group),
                // Too many are on their way, or nobody leads group 0 just now.
                Err(error) if error.code() == Some(ErrorCode::Unavailable) => break,
                // A group that the other node holds already stays where it is.
                Err(error) if named.is_none() && error.code() == Some(ErrorCode::Conflict) => {
                    ordered.push(group);
                    stay += 1;
                    out.line(format!("group {group} stays: {error}")).await?;
                }
                Err(error) => return Err(failed(what())(error)),
            }
        }
        let now = held(&client, from).await.map_err(failed(what()))?;
        let left = now.held.iter().filter(|group| match named {
            Some(named) => **group == named,
            None => !ordered.contains(*group),
        });
        if left.count() == 0 && now.leaving == 0 {
            break;
        }
        if start.elapsed() >= args.wait {
            return Err(Failure::Other(format!(
                "{} still on the way from node {from}, which goes on by itself; `tidegate cluster status` shows how far it is",
                plural(now.leaving as u64, "group")
            )));
        }
        sleep(LOOK).await;
    }
    let moved = ordered.len() - stay;
    let message = match named {
        Some(group) => {
            format!("group {group} is on node {to}, and node {from} keeps nothing of it")
        }
        None => format!(
            "{} went from node {from} to node {to}",
            plural(moved as u64, "group")
        ),
    };
    let result = ResultJson {
        order: "move",
        node: None,
        group: named,
        changed: moved > 0,
        message: &message,
    };
    result.show(&mut out).await
}

pub async fn remove(client: Client, mut out: Output, args: Remove) -> Result<(), Failure> {
    let node = args.node;
    let what = || format!("cannot remove node {node}");
    if !args.yes {
        return Err(Failure::Other(format!(
            "removing node {node} moves its replicas to the other nodes and ends it for good: its data directory can never come back; if that is to be, say --yes"
        )));
    }
    let ordered = Patience::new()
        .ask(|| client.remove_node(node))
        .await
        .map_err(failed(what()))?;
    let start = Instant::now();
    loop {
        let now = held(&client, node).await.map_err(|error| {
            Failure::Other(format!(
                "node {node} is being removed, and how far that is could not be asked ({error}); if it was the node asked, it has gone: ask another one with `tidegate cluster status`"
            ))
        })?;
        if !now.is_member {
            break;
        }
        if start.elapsed() >= args.wait {
            return Err(Failure::Other(format!(
                "node {node} still holds {}, and goes by itself once the others have them; `tidegate cluster status` shows how far it is",
                plural((now.held.len() + now.leaving) as u64, "group")
            )));
        }
        sleep(LOOK).await;
    }
    let message = format!(
        "node {node} was removed: no other node links to it, and its directory can be deleted"
    );
    let result = ResultJson::of_node("remove", node, ordered.changed, &message);
    result.show(&mut out).await
}
