//! Why a command failed, in one sentence: what happened, why, what to do.

use std::{io, path::PathBuf};

use client::{ConnectError, ErrorCode};
use thiserror::Error;

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
    #[error("{0}")]
    Other(String),
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
