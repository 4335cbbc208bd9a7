//! Why a run could not be made or was broken off.

use std::io;

use thiserror::Error;

/// Failure of one operation of the generator.
#[derive(Debug, Error)]
pub enum LoadError {
    #[error("cannot connect to {server}: {source}; is the server running?")]
    Connect { server: String, source: io::Error },
    #[error("{what}: {source}")]
    Io {
        what: &'static str,
        source: io::Error,
    },
    #[error("{0}")]
    Wire(#[from] wire::error::WireError),
    #[error("the server refused {what}: error {code}: {message}")]
    Refused {
        what: &'static str,
        code: u16,
        message: String,
    },
    #[error("the server broke the protocol: {0}")]
    Protocol(String),
    #[error("the server closed the connection ({0})")]
    Closed(&'static str),
    #[error("no answer to {0} within {1} s")]
    Timeout(&'static str, u64),
    #[error("{0}")]
    Impossible(String),
    #[error("cannot read {path}: {source}")]
    Procfs { path: String, source: io::Error },
}

impl LoadError {
    /// The connection is gone, or was never there: another one may do.
    pub fn is_loss(&self) -> bool {
        match self {
            LoadError::Connect { .. } | LoadError::Io { .. } | LoadError::Closed(_) => true,
            LoadError::Timeout(what, _) | LoadError::Refused { what, .. } => {
                matches!(*what, "hello" | "the connection")
            }
            _ => false,
        }
    }

    /// Maps an I/O error with what was being done.
    pub fn io(what: &'static str) -> impl FnOnce(io::Error) -> LoadError {
        move |source| LoadError::Io { what, source }
    }
}
