//! What went wrong, and above all whether it may have happened all the same.

use std::time::Duration;

use thiserror::Error;
use wire::error::{ErrorCode, WireError};

/// Why the first connection could not be made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConnectError {
    /// No TCP connection.
    #[error("cannot connect to {server}: {cause}; is a Tidegate server listening there?")]
    Unreachable { server: String, cause: String },
    /// Connected, but the peer did not answer hello as a Tidegate server does.
    #[error("{server} did not complete the hello: {cause}")]
    Hello { server: String, cause: String },
    /// The server answered hello with an error.
    #[error("{server} refused the connection: {message}")]
    Refused {
        server: String,
        /// The code as sent.
        code: u16,
        message: String,
    },
    /// Neither within the connect timeout.
    #[error(
        "{server} did not answer within {} ms; is it overloaded, or another kind of server?",
        timeout.as_millis()
    )]
    Timeout { server: String, timeout: Duration },
    /// None of several servers, for the reason given for each.
    #[error("none of the servers can be used: {}", each(failures))]
    NoServer { failures: Vec<ConnectError> },
}

impl ConnectError {
    /// What one round of attempts came to.
    pub(crate) fn of_round(failures: &[ConnectError]) -> Option<Self> {
        match failures {
            [] => None,
            [one] => Some(one.clone()),
            several => Some(ConnectError::NoServer {
                failures: several.to_vec(),
            }),
        }
    }
}

fn each(failures: &[ConnectError]) -> String {
    let brief = |error: &ConnectError| match error {
        ConnectError::Unreachable { server, cause } => format!("{server}: {cause}"),
        other => other.to_string(),
    };
    let texts: Vec<String> = failures.iter().map(brief).collect();
    texts.join("; ")
}

/// Why a request has no good answer. The variant says what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// Nothing of it happened, nor will.
    #[error("{reason}")]
    Failed { reason: Reason },
    /// It may have happened, or may yet happen: the connection was lost after
    /// the bytes left, or the server itself cannot tell.
    #[error("outcome unknown: {reason}")]
    Unknown { reason: Reason },
}

impl Error {
    pub(crate) fn failed(reason: Reason) -> Self {
        Error::Failed { reason }
    }

    pub(crate) fn unknown(reason: Reason) -> Self {
        Error::Unknown { reason }
    }

    /// Why.
    pub fn reason(&self) -> &Reason {
        match self {
            Error::Failed { reason } | Error::Unknown { reason } => reason,
        }
    }

    /// True when it may have happened all the same.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Error::Unknown { .. })
    }

    /// The server's code, when the server answered with one that this version knows.
    pub fn code(&self) -> Option<ErrorCode> {
        match self.reason() {
            Reason::Server { code, .. } => ErrorCode::from_raw(*code),
            _ => None,
        }
    }
}

/// The reason inside an [`Error`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Reason {
    /// The server said so; the message says what to do about it.
    #[error("{message}")]
    Server {
        /// The code as sent; [`Error::code`] reads it.
        code: u16,
        message: String,
    },
    /// The connection went away.
    #[error("the connection to {server} was lost: {cause}")]
    ConnectionLost { server: String, cause: String },
    /// It waited for a connection, or for the server's window, until its deadline.
    #[error("it could not be sent to {server} before its deadline: {cause}")]
    NotSent { server: String, cause: String },
    /// Of an idempotent publisher: it was sent, the connection was lost, and it could
    /// not be sent again before its deadline.
    #[error(
        "it was sent, its connection was lost, and it could not be sent again before its deadline"
    )]
    NotSentAgain,
    /// It was sent and not answered in time.
    #[error("{server} did not answer in time")]
    Timeout { server: String },
    /// The client refused it before sending.
    #[error("{0}")]
    Invalid(#[from] WireError),
    /// A bound of this client is reached.
    #[error("{0}")]
    Limit(&'static str),
    /// The server's answer cannot be understood.
    #[error("the answer of {server} cannot be understood: {cause}")]
    BadAnswer { server: String, cause: String },
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
}

/// Why a settle was not confirmed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SettleError {
    /// The delivery is no longer this consumer's: its lease ran out, its
    /// connection was lost, or it was settled before. It has no effect.
    #[error("the delivery is no longer yours to settle: {cause}")]
    Stale { cause: &'static str },
    /// The settle failed or its outcome is unknown.
    #[error("{0}")]
    Request(#[from] Error),
}

/// An item of a subscription's stream that is not a delivery.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SubscribeError {
    /// The server ended or refused the subscription of this partition; the
    /// stream goes on with the others.
    #[error("partition {partition} is no longer delivered: {error}")]
    PartitionEnded { partition: u16, error: Error },
    /// A record arrived damaged. It is not settled, so it comes again.
    #[error("the record at offset {offset} of partition {partition} arrived damaged: {cause}")]
    Damaged {
        partition: u16,
        offset: u64,
        cause: WireError,
    },
}
