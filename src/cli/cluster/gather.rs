//! Asking nodes for their view of the cluster, directly and through each other.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use client::{Client, NodeStatus, Servers};
use tokio::{task::JoinSet, time::timeout};

use crate::cli::session;

/// A node that is there answers within this time.
const ANSWER: Duration = Duration::from_secs(5);

/// What was answered, and by whom it was not.
#[derive(Debug, Default)]
pub struct Gathered {
    /// By node.
    pub nodes: BTreeMap<u32, NodeStatus>,
    /// An address or a linked node, and why there is no answer.
    pub unanswered: Vec<(String, String)>,
    /// Linked nodes that did not answer: they stand still.
    pub silent: BTreeSet<u32>,
}

impl Gathered {
    fn knows_unasked(&self) -> Vec<u32> {
        let seen = self.nodes.values().flat_map(|status| &status.nodes);
        let linked = seen.filter(|seen| seen.unlinked_shards.is_empty());
        let mut unasked: Vec<u32> = linked
            .map(|seen| seen.node)
            .filter(|node| !self.nodes.contains_key(node))
            .collect();
        unasked.sort_unstable();
        unasked.dedup();
        unasked
    }

    /// Asks the nodes that are linked to one that was asked.
    async fn ask_through(&mut self, client: &Client) {
        let mut asked = JoinSet::new();
        for node in self.knows_unasked() {
            let client = client.clone();
            asked.spawn(async move {
                // One that stands still costs no more than its own answer.
                let status = timeout(ANSWER, client.node_status(Some(node))).await;
                (node, status)
            });
        }
        for (node, status) in asked.join_all().await {
            let reason = match status {
                Ok(Ok(status)) => {
                    self.nodes.insert(node, status);
                    continue;
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no answer within {} s", ANSWER.as_secs()),
            };
            self.silent.insert(node);
            self.unanswered.push((format!("node {node}"), reason));
        }
        self.unanswered.sort();
    }
}

/// Asks every address, then whoever is linked to those.
pub async fn each(servers: &[String]) -> Gathered {
    let mut gathered = Gathered::default();
    let mut clients = Vec::new();
    for address in session::servers(servers).addresses() {
        let connected = Client::builder()
            .name(session::NAME)
            .request_timeout(ANSWER)
            .connect(Servers::from(address))
            .await;
        let client = match connected {
            Ok(client) => client,
            Err(error) => {
                gathered
                    .unanswered
                    .push((address.clone(), error.to_string()));
                continue;
            }
        };
        match client.node_status(None).await {
            Ok(status) => {
                gathered.nodes.insert(status.node, status);
            }
            Err(error) => gathered
                .unanswered
                .push((address.clone(), error.to_string())),
        }
        clients.push(client);
    }
    for client in &clients {
        gathered.ask_through(client).await;
    }
    gathered.settle();
    for client in clients {
        client.close(Duration::ZERO).await;
    }
    gathered
}

/// What the node that this client is connected to, and those linked to it, say.
///
/// # Errors
/// It did not answer.
pub async fn through(client: &Client) -> Result<Gathered, client::Error> {
    let mut gathered = Gathered::default();
    let status = client.node_status(None).await?;
    gathered.nodes.insert(status.node, status);
    gathered.ask_through(client).await;
    Ok(gathered)
}

impl Gathered {
    /// Whoever was asked in vain one way and answered another did answer.
    fn settle(&mut self) {
        let nodes = &self.nodes;
        self.silent.retain(|node| !nodes.contains_key(node));
        let answered = |who: &str| nodes.keys().any(|node| who == format!("node {node}"));
        self.unanswered.retain(|(who, _)| !answered(who));
        self.unanswered.dedup_by(|a, b| a.0 == b.0);
    }
}
