//! What two nodes say before they are linked.
//!
//! ```text
//! caller                         called
//! Hello (plain)          ->
//!                        <-      Hello (plain), Proof
//! Proof                  ->
//!                        <-      Welcome
//! ```
//!
//! Either side says `Refuse` instead of its next frame: plain, or with the link's key where
//! both have proved themselves, so that the other can rely on it. A link is up
//! for the caller with the welcome, for the called one when it was sent.

use std::{net::Shutdown, sync::Arc, time::Duration};

use futures_lite::{future, AsyncWriteExt};
use glommio::{net::TcpStream, timer::Timer};
use wire::{
    error::ErrorCode,
    frame::MAGIC,
    node::{
        NodeFrameError, NodeFrameHeader, NodeFrameKind, NodeHello, Refusal, RefusalCode,
        MAX_NODE_HELLO_BYTES,
    },
};

use super::{
    cluster::{Claim, Cluster},
    receive::Receive,
    refusals::Who,
    session::{is_plain_whole, plain_frame, Opener, Sealer, Side, Untrue},
};
use crate::engine::error_frame;

/// A refused peer gets so long to read why, and so much of what it still sends
/// is passed over: closing at once would take the reason back.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 1 << 20;

/// Why a handshake came to nothing.
pub(super) enum Stop {
    /// This side refuses.
    Refused(Refusal),
    /// The other side does; `proven`: it has proved to be of the cluster, and knows more
    /// of who belongs to it than this node.
    Told { refusal: Refusal, proven: bool },
    /// The connection broke.
    Gone(String),
}

/// A handshake that came to nothing, and with whom.
pub(super) struct Failure {
    pub who: Who,
    pub stop: Stop,
}

/// A connection and what was received on it.
pub(super) struct Wire {
    pub stream: TcpStream,
    pub receive: Receive,
    /// The peer was told why with the link's key.
    told: bool,
}

/// What a handshake ends with: all that a link needs.
pub(super) struct Session {
    pub node: u32,
    pub sealer: Sealer,
    pub opener: Opener,
    pub claim: Claim,
}

impl Wire {
    pub(super) fn new(stream: TcpStream) -> Self {
        // Best effort: an odd socket is still spoken to.
        let _ = stream.set_nodelay(true);
        Wire {
            stream,
            receive: Receive::new(),
            told: false,
        }
    }

    pub(super) fn address(&self) -> String {
        let address = self.stream.peer_addr();
        address.map_or_else(|_| "an unknown address".to_owned(), |at| at.to_string())
    }

    async fn next(&mut self, side: Side) -> Result<NodeFrameHeader, Stop> {
        loop {
            let held = self.receive.frame(MAX_NODE_HELLO_BYTES);
            match held.map_err(|error| Stop::Refused(refusal_of(&error, side)))? {
                Some(header) => return Ok(header),
                None => match self.receive.fill(&mut self.stream).await {
                    Ok(0) => return Err(Stop::Gone("the connection was closed".to_owned())),
                    Ok(_) => {}
                    Err(error) => return Err(Stop::Gone(error.to_string())),
                },
            }
        }
    }

    /// The next frame, which must be plain and of this kind; its body.
    async fn plain(&mut self, kind: NodeFrameKind, side: Side) -> Result<Vec<u8>, Stop> {
        let header = self.next(side).await?;
        let body = self.receive.body(&header).to_vec();
        self.receive.consume(&header);
        if !is_plain_whole(&header, &body) {
            return Err(refused(RefusalCode::Garbage, "its first frame is damaged"));
        }
        if header.kind == NodeFrameKind::Refuse {
            return Err(told(&body, false));
        }
        if header.kind != kind {
            return Err(refused(
                RefusalCode::Protocol,
                "its first frame is not hello",
            ));
        }
        Ok(body)
    }

    /// The next frame, which must be empty, keyed, and of this kind.
    async fn keyed(
        &mut self,
        kind: NodeFrameKind,
        opener: &mut Opener,
        side: Side,
    ) -> Result<(), Stop> {
        let header = self.next(side).await?;
        let body = self.receive.body(&header).to_vec();
        self.receive.consume(&header);
        if header.kind == NodeFrameKind::Refuse && is_plain_whole(&header, &body) {
            return Err(told(&body, false));
        }
        match opener.open(&header, &body).await {
            Ok(()) if header.kind == kind && body.is_empty() => Ok(()),
            Ok(()) if header.kind == NodeFrameKind::Refuse => Err(told(&body, true)),
            Ok(()) => Err(refused(
                RefusalCode::Protocol,
                "a frame of the handshake is out of place",
            )),
            Err(Untrue::Checksum) => Err(refused(
                RefusalCode::Secret,
                "it does not have this cluster's secret: compare the files of cluster_secret",
            )),
            Err(Untrue::Sequence { expected, found }) => Err(Stop::Refused(Refusal::new(
                RefusalCode::Replayed,
                format!("its frame {found} came in place of frame {expected}"),
            ))),
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        let sent = self.stream.write_all(bytes).await;
        sent.map_err(|error| Stop::Gone(error.to_string()))
    }

    /// Says why in the peer's own protocol, and lets it read that.
    pub(super) async fn refuse(&mut self, refusal: &Refusal) {
        self.say(refusal).await;
        let _ = self.stream.shutdown(Shutdown::Write).await;
        let gone = self.receive.discard(&mut self.stream, LINGER_BYTES);
        let late = async {
            Timer::new(LINGER).await;
        };
        future::or(gone, late).await;
    }

    /// Says why with the link's key, once both sides have proved themselves.
    async fn refuse_keyed(&mut self, sealer: &mut Sealer, refusal: &Refusal) {
        let body = refusal.encode();
        let mut bytes = sealer.seal(NodeFrameKind::Refuse, &body).await.to_vec();
        bytes.extend_from_slice(&body);
        // The peer may be gone already: nothing to tell then.
        let _ = self.stream.write_all(&bytes).await;
        self.told = true;
    }

    /// The same without waiting.
    pub(super) async fn say(&mut self, refusal: &Refusal) {
        if self.told {
            return;
        }
        let bytes = if refusal.code == RefusalCode::ClientFrame {
            error_frame(0, ErrorCode::Protocol, &refusal.reason)
        } else {
            plain_frame(NodeFrameKind::Refuse, &refusal.encode())
        };
        // The peer may be gone already: nothing to tell then.
        let _ = self.stream.write_all(&bytes).await;
    }
}

fn told(body: &[u8], proven: bool) -> Stop {
    let refusal = Refusal::decode(body);
    Stop::Told { refusal, proven }
}

fn refused(code: RefusalCode, reason: &str) -> Stop {
    Stop::Refused(Refusal::new(code, reason))
}

/// What a header that was not accepted is called, in words.
pub(super) fn refusal_of(error: &NodeFrameError, side: Side) -> Refusal {
    let is_client = matches!(error, NodeFrameError::Magic { found } if *found == MAGIC);
    let (code, reason) = match (error, side) {
        (_, Side::Called) if is_client => (
            RefusalCode::ClientFrame,
            "this port is for the cluster's nodes; clients connect to the address of listen"
                .to_owned(),
        ),
        (_, Side::Caller) if is_client => (
            RefusalCode::ClientPort,
            "its port is for clients: check the addresses in nodes".to_owned(),
        ),
        (NodeFrameError::Version { .. }, _) => (RefusalCode::Version, error.to_string()),
        (NodeFrameError::TooLong { .. }, _) => (RefusalCode::TooLong, error.to_string()),
        _ => (RefusalCode::Garbage, error.to_string()),
    };
    Refusal::new(code, reason)
}

/// Of somebody who did not say who it is.
pub(super) fn of_stranger(stop: Stop) -> Failure {
    let who = Who::Stranger;
    Failure { who, stop }
}

/// The called side's first step: a caller's hello, judged; its body.
///
/// # Errors
/// There can be no link.
pub(super) async fn hear(cluster: &Cluster, wire: &mut Wire) -> Result<Vec<u8>, Failure> {
    let heard = wire.plain(NodeFrameKind::Hello, Side::Called).await;
    let body = heard.map_err(of_stranger)?;
    let decoded = NodeHello::decode(&body);
    let hello =
        decoded.map_err(|error| of_stranger(refused(RefusalCode::Garbage, &error.to_string())))?;
    let who = cluster.who(&hello);
    let failed = |refusal| Failure {
        who,
        stop: Stop::Refused(refusal),
    };
    cluster.judge(&hello).map_err(failed)?;
    // One that was removed may ask why nobody calls it any more.
    if hello.from < cluster.node && !cluster.is_former(hello.from) {
        let (from, own) = (hello.from, cluster.node);
        let reason = format!("node {from} called node {own}: the higher number calls");
        return Err(failed(Refusal::new(RefusalCode::Direction, reason)));
    }
    if !wire.receive.is_empty() {
        let reason = "bytes followed hello before its answer";
        return Err(failed(Refusal::new(RefusalCode::Protocol, reason)));
    }
    Ok(body)
}

/// The called side's other steps, on the shard that the caller's hello names.
///
/// # Errors
/// There can be no link.
pub(super) async fn answer(
    cluster: &Arc<Cluster>,
    wire: &mut Wire,
    caller: &[u8],
    open_counter: u64,
) -> Result<Session, Failure> {
    let failed = |who, stop| Failure { who, stop };
    let hello = NodeHello::decode(caller)
        .map_err(|error| of_stranger(refused(RefusalCode::Garbage, &error.to_string())))?;
    let node = hello.from;
    let who = Who::Node(node);
    let called = cluster.hello(node, hello.shard, open_counter).encode();
    let (mut sealer, mut opener) = cluster.root.session(caller, &called, Side::Called);
    let mut bytes = plain_frame(NodeFrameKind::Hello, &called);
    bytes.extend_from_slice(&sealer.seal(NodeFrameKind::Proof, &[]).await);
    let steps = async {
        wire.send(&bytes).await?;
        let proof = NodeFrameKind::Proof;
        wire.keyed(proof, &mut opener, Side::Called).await?;
        let claim = match cluster.claim(&hello) {
            Ok(claim) => claim,
            Err(refusal) => {
                wire.refuse_keyed(&mut sealer, &refusal).await;
                return Err(Stop::Refused(refusal));
            }
        };
        let welcome = sealer.seal(NodeFrameKind::Welcome, &[]).await;
        wire.send(&welcome).await?;
        Ok(claim)
    };
    let claim = steps.await.map_err(|stop| failed(who, stop))?;
    Ok(Session {
        node,
        sealer,
        opener,
        claim,
    })
}

/// The caller's steps.
///
/// # Errors
/// There can be no link.
pub(super) async fn call(
    cluster: &Arc<Cluster>,
    wire: &mut Wire,
    node: u32,
    shard: u16,
    open_counter: u64,
) -> Result<Session, Stop> {
    let caller = cluster.hello(node, shard, open_counter).encode();
    let bytes = plain_frame(NodeFrameKind::Hello, &caller);
    wire.send(&bytes).await?;
    let called = wire.plain(NodeFrameKind::Hello, Side::Caller).await?;
    let hello = NodeHello::decode(&called)
        .map_err(|error| refused(RefusalCode::Garbage, &error.to_string()))?;
    cluster.judge(&hello).map_err(Stop::Refused)?;
    if hello.from != node {
        let reason = format!(
            "node {} answers at the address of node {node}: check the addresses in nodes",
            hello.from
        );
        return Err(refused(RefusalCode::WrongNode, &reason));
    }
    if hello.shard != shard {
        return Err(refused(RefusalCode::Protocol, "another shard answers"));
    }
    let (mut sealer, mut opener) = cluster.root.session(&caller, &called, Side::Caller);
    wire.keyed(NodeFrameKind::Proof, &mut opener, Side::Caller)
        .await?;
    let claim = cluster.claim(&hello).map_err(Stop::Refused)?;
    let proof = sealer.seal(NodeFrameKind::Proof, &[]).await;
    wire.send(&proof).await?;
    let welcomed = wire.keyed(NodeFrameKind::Welcome, &mut opener, Side::Caller);
    welcomed.await.map_err(|stop| match stop {
        Stop::Told { refusal, proven } => Stop::Told {
            refusal,
            proven: proven && cluster.is_behind(hello.roster),
        },
        other => other,
    })?;
    Ok(Session {
        node,
        sealer,
        opener,
        claim,
    })
}
