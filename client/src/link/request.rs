//! Requests with one answer each: everything but publishes, settles and credit.

use rkyv::{
    api::high::{HighSerializer, HighValidator},
    bytecheck::CheckBytes,
    rancor::Error as RkyvError,
    ser::allocator::ArenaHandle,
    Portable, Serialize,
};
use tokio::{sync::oneshot, time::Instant};
use wire::codec::{self, Body};

use super::state::Shared;
use crate::{
    config::MAX_REQUESTS,
    error::{Error, Reason},
};

/// What asking twice, or not knowing, would mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Changes nothing: asked again after a reconnect; no answer is a failure.
    Read,
    /// Asking twice is asking once: asked again; no answer is unknown.
    Idempotent,
    /// Asked at most once: a loss after sending is unknown.
    Once,
}

/// A request that is not written yet.
#[derive(Debug)]
pub(super) struct QueuedRequest {
    pub correlation: u64,
    pub frame: Vec<u8>,
    pub effect: Effect,
    pub deadline: Instant,
    pub answer: oneshot::Sender<Result<Reply, Error>>,
    /// Written once before, over a connection that was lost.
    pub was_sent: bool,
}

impl QueuedRequest {
    pub fn resolve(self, result: Result<Reply, Error>) {
        // The asking side may have dropped its future: then nobody cares.
        let _ = self.answer.send(result);
    }

    /// It could not be sent, at least not on a connection that still stands.
    pub fn give_up(self, reason: Reason) {
        let error = if self.was_sent && self.effect != Effect::Read {
            Error::unknown(reason)
        } else {
            Error::failed(reason)
        };
        self.resolve(Err(error));
    }
}

/// A request that was written.
#[derive(Debug)]
pub(super) struct SentRequest {
    /// To write again after a reconnect; empty when that is not allowed.
    pub frame: Vec<u8>,
    pub effect: Effect,
    pub deadline: Instant,
    pub answer: oneshot::Sender<Result<Reply, Error>>,
}

impl SentRequest {
    pub fn resolve(self, result: Result<Reply, Error>) {
        let _ = self.answer.send(result);
    }

    /// Its connection is gone: the request to queue again, if it may be.
    pub fn lost(self, correlation: u64, unknown: &Error) -> Option<QueuedRequest> {
        if self.effect == Effect::Once {
            self.resolve(Err(unknown.clone()));
            return None;
        }
        Some(QueuedRequest {
            correlation,
            frame: self.frame,
            effect: self.effect,
            deadline: self.deadline,
            answer: self.answer,
            was_sent: true,
        })
    }

    /// It was not answered in time.
    pub fn overdue(self, server: &str) {
        let reason = Reason::Timeout {
            server: server.to_owned(),
        };
        let error = match self.effect {
            Effect::Read => Error::failed(reason),
            Effect::Idempotent | Effect::Once => Error::unknown(reason),
        };
        self.resolve(Err(error));
    }
}

/// The answer's frame, not read yet.
#[derive(Debug)]
pub(crate) struct Reply {
    pub kind: u8,
    pub body: Vec<u8>,
}

/// An answer under way. The request is queued already: several may be asked
/// first and awaited afterwards.
#[derive(Debug)]
pub(crate) struct PendingReply {
    server: String,
    receiver: oneshot::Receiver<Result<Reply, Error>>,
}

impl PendingReply {
    /// Waits for the answer, which must be a `T`, and reads it with `read`.
    pub async fn read<T, R>(self, read: impl FnOnce(&T::Archived) -> R) -> Result<R, Error>
    where
        T: Body,
        T::Archived: Portable + for<'a> CheckBytes<HighValidator<'a, RkyvError>>,
    {
        let closed = || Err(Error::failed(Reason::Closed));
        let reply = self.receiver.await.unwrap_or_else(|_| closed())?;
        let bad = |cause| {
            Error::unknown(Reason::BadAnswer {
                server: self.server.clone(),
                cause,
            })
        };
        if reply.kind != T::KIND as u8 {
            return Err(bad(format!(
                "expected {}, found frame kind {}",
                T::KIND.name(),
                reply.kind
            )));
        }
        match codec::decode::<T>(&reply.body) {
            Ok(archived) => Ok(read(archived)),
            Err(error) => Err(bad(error.to_string())),
        }
    }
}

impl Shared {
    /// Queues a request; it is answered, refused or given up by the request timeout.
    pub fn request<T>(&self, body: &T, effect: Effect) -> PendingReply
    where
        T: Body + Encode,
    {
        self.request_by(body, effect, Instant::now() + self.config.request_timeout)
    }

    /// The same with a deadline of its own.
    pub fn request_by<T>(&self, body: &T, effect: Effect, deadline: Instant) -> PendingReply
    where
        T: Body + Encode,
    {
        let (answer, receiver) = oneshot::channel();
        let correlation = self.next_correlation();
        let mut request = QueuedRequest {
            correlation,
            frame: Vec::new(),
            effect,
            deadline,
            answer,
            was_sent: false,
        };
        let encoded = codec::encode(&mut request.frame, correlation, body);
        let mut state = self.lock();
        let refusal = match encoded {
            Err(error) => Some(Reason::Invalid(error)),
            Ok(()) if state.closed => Some(Reason::Closed),
            Ok(()) if state.requests.len() >= MAX_REQUESTS => Some(Reason::Limit(
                "4096 requests wait to be sent already; await some of them first",
            )),
            Ok(()) => None,
        };
        match refusal {
            Some(reason) => request.resolve(Err(Error::failed(reason))),
            None => state.requests.push_back(request),
        }
        drop(state);
        self.work();
        PendingReply {
            server: self.servers.text().to_owned(),
            receiver,
        }
    }
}

/// A body that can be encoded; short for rkyv's bound.
pub(crate) trait Encode:
    for<'a> Serialize<HighSerializer<Vec<u8>, ArenaHandle<'a>, RkyvError>>
{
}

impl<T> Encode for T where T: for<'a> Serialize<HighSerializer<Vec<u8>, ArenaHandle<'a>, RkyvError>> {}
