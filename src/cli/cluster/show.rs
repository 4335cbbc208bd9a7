//! `tidegate cluster status`, as text and as JSON.

use client::{NodeStatus, Recovery, Replica};
use serde::Serialize;

use super::{
    gather::{self, Gathered},
    summary::{on_nodes, Group, Summary},
};
use crate::cli::{describe::plural, failure::Failure, output::Output};

/// Asks and shows.
pub async fn status(servers: Vec<String>, groups: bool, mut out: Output) -> Result<(), Failure> {
    let gathered = gather::each(&servers).await;
    let summary = Summary::of(&gathered);
    if out.json {
        out.object(&StatusJson::new(&gathered, &summary)).await?;
    } else {
        for line in lines(&gathered, &summary, groups) {
            out.line(line).await?;
        }
    }
    out.flush().await?;
    match gathered.unanswered.is_empty() {
        true => Ok(()),
        false => Err(Failure::Unanswered {
            servers: gathered.unanswered,
        }),
    }
}

fn lines(gathered: &Gathered, summary: &Summary, all: bool) -> Vec<String> {
    let mut lines: Vec<String> = summary
        .nodes
        .iter()
        .map(|node| node_line(*node, gathered, summary))
        .collect();
    for group in &summary.groups {
        if all || !group.wrong.is_empty() {
            lines.push(group_line(group));
            if all {
                lines.extend(group.replicas.iter().map(|of| replica_line(of.0, of.1)));
            }
        }
    }
    lines.extend(summary.recoveries.iter().map(|it| recovery_line(it)));
    if !gathered.nodes.is_empty() {
        lines.push(last_line(summary));
    }
    lines
}

fn node_line(node: u32, gathered: &Gathered, summary: &Summary) -> String {
    let mut said = match gathered.nodes.get(&node) {
        Some(status) => {
            let led = plural(summary.led_by(node) as u64, "group");
            let mut said = vec![format!("leads {led}")];
            said.extend(links(status));
            if status.draining {
                said.push("hands over what it leads".to_owned());
            }
            if !status.latched_shards.is_empty() {
                said.push(format!(
                    "LATCHED: {}",
                    on_shards("the log of", &status.latched_shards)
                ));
            }
            said
        }
        None => vec![missing(node, gathered)],
    };
    if summary.forgotten.contains(&node) {
        said.push("forgotten".to_owned());
    }
    if summary.vacant.contains(&node) {
        let next = match summary.is_new(node) {
            true => "it has no directory yet: start it on an empty one with --join",
            false => "its directory was given up: start it on an empty one with --join",
        };
        said.push(next.to_owned());
    }
    said.extend(membership(node, summary));
    said.extend(summary.behind(node));
    format!("node {node}: {}", said.join(", "))
}

/// What the roster says of the node.
fn membership(node: u32, summary: &Summary) -> Vec<String> {
    let mut said = Vec::new();
    let Some((roster, member)) = summary
        .roster
        .and_then(|roster| Some((roster, roster.members.get(&node)?)))
    else {
        return said;
    };
    let groups = summary.groups.iter().map(|it| it.group);
    let held = groups.filter(|group| *group != 0 && roster.is_holder(*group, node));
    said.push(format!("holds {}", plural(held.count() as u64, "group")));
    if !member.zone.is_empty() {
        said.push(format!("zone {}", member.zone));
    }
    if member.leaves {
        said.push("is being removed".to_owned());
    }
    said
}

/// Of a node that did not answer.
fn missing(node: u32, gathered: &Gathered) -> String {
    let is_linked = |status: &&NodeStatus| {
        let mut seen = status.nodes.iter().filter(|seen| seen.node == node);
        seen.any(|seen| seen.unlinked_shards.len() < usize::from(status.shards))
    };
    let numbers = |those: &mut dyn Iterator<Item = &NodeStatus>| -> Vec<String> {
        those.map(|status| status.node.to_string()).collect()
    };
    let all = gathered.nodes.values();
    let linked = numbers(&mut all.clone().filter(is_linked));
    if linked.is_empty() {
        return format!("NOT LINKED to {}", on_nodes(&numbers(&mut all.clone())));
    }
    let who = format!("node {node}");
    let asked = gathered.unanswered.iter().any(|(asked, _)| *asked == who);
    let what = if asked { "did NOT ANSWER" } else { "not asked" };
    format!("linked to {}, {what}", on_nodes(&linked))
}

fn on_shards(what: &str, shards: &[u16]) -> String {
    let numbers: Vec<String> = shards.iter().map(u16::to_string).collect();
    let word = if shards.len() == 1 { "shard" } else { "shards" };
    format!("{what} {word} {}", numbers.join(", "))
}

fn links(status: &NodeStatus) -> Vec<String> {
    let others = || status.nodes.iter().filter(|seen| seen.node != status.node);
    let (mut said, mut linked, mut unlinked) = (Vec::new(), Vec::new(), Vec::new());
    for seen in others() {
        match seen.unlinked_shards.len() {
            0 => linked.push(seen.node.to_string()),
            some if some == usize::from(status.shards) => unlinked.push(seen.node.to_string()),
            _ => said.push(format!(
                "NOT LINKED to node {} by {}",
                seen.node,
                on_shards("its", &seen.unlinked_shards)
            )),
        }
    }
    if !unlinked.is_empty() {
        said.insert(0, format!("NOT LINKED to {}", on_nodes(&unlinked)));
    }
    if !linked.is_empty() {
        said.insert(0, format!("linked to {}", on_nodes(&linked)));
    }
    said
}

fn group_line(group: &Group) -> String {
    let leader = match group.leader {
        Some(node) => format!("led by node {node}"),
        None => "no leader".to_owned(),
    };
    let boundary = group.replicas.first();
    let boundary = boundary.map_or("?", |(_, replica)| replica.answers_at.name());
    let wrong = match group.wrong.is_empty() {
        true => String::new(),
        false => format!("; {}", group.wrong.join("; ")),
    };
    format!(
        "group {}: {leader}, term {}, generation {}, answers at {boundary}, {}{wrong}",
        group.group,
        group.term,
        group.generation,
        tolerated(group.tolerates)
    )
}

fn tolerated(tolerates: u8) -> String {
    match tolerates {
        0 => "tolerates no further failure".to_owned(),
        some => format!("tolerates {}", plural(some.into(), "more failure")),
    }
}

fn replica_line(node: u32, replica: &Replica) -> String {
    let others: Vec<String> = replica
        .others
        .iter()
        .map(|other| {
            let behind = |at: u64| replica.last.saturating_sub(at);
            format!(
                "; {} is {} behind, {} at durable",
                other.peer,
                behind(other.written),
                behind(other.durable)
            )
        })
        .collect();
    let learners = match &peers(&replica.learners)[..] {
        "" => String::new(),
        some => format!(" learners {some}"),
    };
    format!(
        "  on node {node}: {} as {}, last {} committed {} applied {} durable {}, voters {}{learners}{}",
        replica.role.name(),
        replica.peer,
        replica.last,
        replica.committed,
        replica.applied,
        replica.durable,
        peers(&replica.voters),
        others.concat()
    )
}

fn peers(peers: &[client::Peer]) -> String {
    let each: Vec<String> = peers.iter().map(ToString::to_string).collect();
    each.join(" ")
}

/// `recovery of group 17: generation 1 ends; node 1 answered; waits for node 3 (as 3.1)`
pub fn recovery_line(recovery: &Recovery) -> String {
    let answered: Vec<String> = recovery.answered.iter().map(u32::to_string).collect();
    let answered = match answered.is_empty() {
        true => "nobody answered yet".to_owned(),
        false => format!("{} answered", on_nodes(&answered)),
    };
    let mut waits: Vec<String> = recovery
        .waits_for
        .iter()
        .map(|peer| format!("node {} (as {peer})", peer.node))
        .collect();
    if recovery.missing > 0 {
        let missing = plural(recovery.missing.into(), "more answer");
        waits.push(format!("{missing} of a replica that kept what it reported"));
    }
    if recovery.halted {
        waits.push(format!(
            "an operator, as a queue of it asks (on_total_loss = halt): `cluster recover {} --accept-loss`",
            recovery.group
        ));
    }
    let waits = match waits.is_empty() {
        true => "that is enough, stragglers have recovery_grace".to_owned(),
        false => format!("waits for {}", waits.join(", ")),
    };
    let loss = match recovery.accepts_loss {
        true => ", loss accepted",
        false => "",
    };
    format!(
        "recovery of group {}: generation {} ends{loss}; {answered}; {waits}",
        recovery.group, recovery.generation
    )
}

fn last_line(summary: &Summary) -> String {
    let groups = plural(summary.groups.len() as u64, "group");
    let leaderless = summary
        .groups
        .iter()
        .filter(|it| it.leader.is_none())
        .count();
    let led = match leaderless {
        0 => "all led".to_owned(),
        some => format!("{some} WITHOUT A LEADER"),
    };
    let level = summary.levels.map_or_else(String::new, |levels| {
        format!("; feature level {}", levels.cluster)
    });
    if summary.nodes.len() == 1 {
        return format!("{groups}, {led}; one copy of everything: this node is alone{level}");
    }
    let tolerated = match summary.tolerates {
        0 => "NO further failure of a node or of its power is tolerated".to_owned(),
        some => format!(
            "{} of a node or of its power tolerated",
            plural(some.into(), "more failure")
        ),
    };
    format!("{groups}, {led}; {tolerated}{level}")
}

#[derive(Serialize)]
struct StatusJson {
    nodes: Vec<NodeJson>,
    groups: Vec<GroupJson>,
    recoveries: Vec<RecoveryJson>,
    forgotten: Vec<u32>,
    /// Nodes whose directory was given up and that have no new one yet.
    vacant: Vec<u32>,
    /// As far as members or holders ever changed.
    members: Vec<MemberJson>,
    moves: Vec<MoveJson>,
    tolerates: u8,
    /// The cluster's feature level; none of a version that tells none.
    level: Option<u16>,
    unanswered: Vec<UnansweredJson>,
}

#[derive(Serialize)]
struct MemberJson {
    node: u32,
    address: String,
    zone: String,
    /// Being removed.
    leaves: bool,
    /// Groups that it is to hold, group 0 left out.
    holds: Vec<u32>,
}

#[derive(Serialize)]
struct MoveJson {
    group: u32,
    from: u32,
    to: u32,
}

#[derive(Serialize)]
struct UnansweredJson {
    who: String,
    why: String,
}

#[derive(Serialize)]
struct NodeJson {
    node: u32,
    answered: bool,
    leads: usize,
    shards: u16,
    latched_shards: Vec<u16>,
    draining: bool,
    forgotten: bool,
    /// The feature level that its version is recorded to know.
    level: Option<u16>,
    links: Vec<LinkJson>,
}

#[derive(Serialize)]
struct LinkJson {
    node: u32,
    unlinked_shards: Vec<u16>,
}

#[derive(Serialize)]
struct GroupJson {
    group: u32,
    generation: u32,
    term: u64,
    leader: Option<u32>,
    serving: Option<bool>,
    tolerates: u8,
    wrong: Vec<String>,
    replicas: Vec<ReplicaJson>,
}

#[derive(Serialize)]
struct ReplicaJson {
    node: u32,
    peer: String,
    role: &'static str,
    generation: u32,
    term: u64,
    leader: Option<u32>,
    answers_at: &'static str,
    last: u64,
    committed: u64,
    applied: u64,
    durable: u64,
    voters: Vec<String>,
    learners: Vec<String>,
    others: Vec<ProgressJson>,
}

#[derive(Serialize)]
struct ProgressJson {
    peer: String,
    written: u64,
    durable: u64,
}

#[derive(Serialize)]
struct RecoveryJson {
    group: u32,
    generation: u32,
    accepts_loss: bool,
    missing: u8,
    answered: Vec<u32>,
    waits_for: Vec<String>,
    halted: bool,
}

fn names(peers: &[client::Peer]) -> Vec<String> {
    peers.iter().map(ToString::to_string).collect()
}

impl StatusJson {
    fn new(gathered: &Gathered, summary: &Summary) -> Self {
        let nodes = summary.nodes.iter();
        let unanswered = gathered.unanswered.iter().map(|(who, why)| UnansweredJson {
            who: who.clone(),
            why: why.clone(),
        });
        let recoveries = summary.recoveries.iter().map(|it| RecoveryJson {
            group: it.group,
            generation: it.generation,
            accepts_loss: it.accepts_loss,
            missing: it.missing,
            answered: it.answered.clone(),
            waits_for: names(&it.waits_for),
            halted: it.halted,
        });
        StatusJson {
            nodes: nodes
                .map(|node| NodeJson::new(*node, gathered, summary))
                .collect(),
            groups: summary.groups.iter().map(GroupJson::new).collect(),
            recoveries: recoveries.collect(),
            forgotten: summary.forgotten.iter().copied().collect(),
            vacant: summary.vacant.iter().copied().collect(),
            members: members(summary),
            moves: moves(summary),
            tolerates: summary.tolerates,
            level: summary.levels.map(|levels| levels.cluster),
            unanswered: unanswered.collect(),
        }
    }
}

fn members(summary: &Summary) -> Vec<MemberJson> {
    let Some(roster) = summary.roster else {
        return Vec::new();
    };
    let member = |(node, member): (&u32, &client::Member)| {
        let groups = summary.groups.iter().map(|it| it.group);
        let holds = groups.filter(|group| *group != 0 && roster.is_holder(*group, *node));
        MemberJson {
            node: *node,
            address: member.address.clone(),
            zone: member.zone.clone(),
            leaves: member.leaves,
            holds: holds.collect(),
        }
    };
    roster.members.iter().map(member).collect()
}

fn moves(summary: &Summary) -> Vec<MoveJson> {
    let shifts = summary.roster.into_iter().flat_map(|it| &it.shifts);
    let shifts = shifts.map(|(group, it)| MoveJson {
        group: *group,
        from: it.from,
        to: it.to,
    });
    shifts.collect()
}

impl NodeJson {
    fn new(node: u32, gathered: &Gathered, summary: &Summary) -> Self {
        let status = gathered.nodes.get(&node);
        let links = status.into_iter().flat_map(|status| &status.nodes);
        let links = links.filter(|seen| seen.node != node).map(|seen| LinkJson {
            node: seen.node,
            unlinked_shards: seen.unlinked_shards.clone(),
        });
        NodeJson {
            node,
            answered: status.is_some(),
            leads: summary.led_by(node),
            shards: status.map_or(0, |status| status.shards),
            latched_shards: status.map_or_else(Vec::new, |status| status.latched_shards.clone()),
            draining: status.is_some_and(|status| status.draining),
            forgotten: summary.forgotten.contains(&node),
            level: summary
                .levels
                .and_then(|levels| levels.members.get(&node).copied().flatten()),
            links: links.collect(),
        }
    }
}

impl GroupJson {
    fn new(group: &Group) -> Self {
        let replicas = group.replicas.iter();
        GroupJson {
            group: group.group,
            generation: group.generation,
            term: group.term,
            leader: group.leader,
            serving: group.leads.map(|leads| leads.serving),
            tolerates: group.tolerates,
            wrong: group.wrong.clone(),
            replicas: replicas
                .map(|(node, it)| ReplicaJson::new(*node, it))
                .collect(),
        }
    }
}

impl ReplicaJson {
    fn new(node: u32, replica: &Replica) -> Self {
        let others = replica.others.iter().map(|other| ProgressJson {
            peer: other.peer.to_string(),
            written: other.written,
            durable: other.durable,
        });
        ReplicaJson {
            node,
            peer: replica.peer.to_string(),
            role: replica.role.name(),
            generation: replica.generation,
            term: replica.term,
            leader: replica.leader,
            answers_at: replica.answers_at.name(),
            last: replica.last,
            committed: replica.committed,
            applied: replica.applied,
            durable: replica.durable,
            voters: names(&replica.voters),
            learners: names(&replica.learners),
            others: others.collect(),
        }
    }
}
