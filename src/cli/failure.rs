//! Why a command failed, in one sentence: what happened, why, what to do.

use std::{io, path::PathBuf};

use client::{ConnectError, ErrorCode};
use thiserror::Error;

use super::describe::plural;

#[derive(Debug, Error)]
pub enum Failure {
    #[error("cannot connect to {server}: {cause}; start a server with `tidegate serve`, or name another with --server")]
    Connect { server: String, cause: String },
    #[error("no queue is called {name:?}; create it with `tidegate queue declare`, or see `tidegate queue list`")]
    UnknownQueue { name: String },
    #[error("{what}: {error}")]
    Request { what: String, error: client::Error },
    #[error("the async runtime did not start: {0}")]
    Runtime(io::Error),
    #[error("cannot read {}: {source}", path.display())]
    ReadFile { path: PathBuf, source: io::Error },
    #[error("cannot read standard input: {0}")]
    ReadInput(io::Error),
    #[error("{} is larger than a record may be (8 MiB); split it", path.display())]
    FileTooLarge { path: PathBuf },
    #[error("line {line} of standard input is larger than a record may be (8 MiB); nothing from it on was published")]
    LineTooLarge { line: u64 },
    #[error("standard output was closed or cannot be written ({0}), so the command stopped")]
    Output(io::Error),
    #[error("forgetting node {node} is for good: no recovery waits for what it holds any more, what only it held is lost, and it cannot come back; if it is gone for good, say --yes")]
    ForgetNotConfirmed { node: u32 },
    #[error("replacing node {node} gives its data directory up for good: what only it held is lost, it can never come back, and a new one takes its place; if that directory is lost, say --confirm")]
    ReplaceNotConfirmed { node: u32 },
    #[error("recovering group {group} by order may lose records that were confirmed: it goes on from the longest history that answers; if that is to be, say --accept-loss")]
    LossNotAccepted { group: u32 },
    #[error("node {node} still leads {} ({}): no other replica of them is linked and close behind; it hands over as soon as one is", plural(groups.len() as u64, "group"), listed(groups))]
    StillLeads { node: u32, groups: Vec<u32> },
    #[error("group {group} has not gone on yet, and will by itself once it can; {waits}")]
    StillWaits { group: u32, waits: String },
    #[error("the change of queue {name:?} to revision {revision} stands, and is not applied everywhere yet; it goes on by itself: {waits}")]
    NotApplied {
        name: String,
        revision: u32,
        waits: String,
    },
    #[error("{} did not answer, and what they know is not in this status: {}", plural(servers.len() as u64, "server"), reasons(servers))]
    Unanswered {
        /// An address or a node, and why there is no answer.
        servers: Vec<(String, String)>,
    },
    #[error("{0}")]
    Other(String),
}

fn listed(numbers: &[u32]) -> String {
    let each: Vec<String> = numbers.iter().map(u32::to_string).collect();
    each.join(", ")
}

fn reasons(servers: &[(String, String)]) -> String {
    let each = servers.iter().map(|(who, why)| format!("{who}: {why}"));
    each.collect::<Vec<_>>().join("; ")
}

impl Failure {
    /// A request about the queue `name` failed; `what` says which.
    pub fn request(what: &str, name: &str, error: client::Error) -> Self {
        if error.code() == Some(ErrorCode::UnknownQueue) {
            return Failure::UnknownQueue {
                name: name.to_owned(),
            };
        }
        Failure::Request {
            what: format!("cannot {what} {name:?}"),
            error,
        }
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Unreachable { server, cause } => Failure::Connect { server, cause },
            other => Failure::Other(other.to_string()),
        }
    }
}
