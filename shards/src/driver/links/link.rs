//! A link that is up: one task reads, one writes.

use std::{
    cell::{Cell, RefCell},
    net::Shutdown,
    os::fd::OwnedFd,
    rc::Rc,
    time::Duration,
};

use futures_lite::{future, AsyncWriteExt};
use glommio::{net::TcpStream, timer::Timer};
use wire::node::{
    messages_within, NodeFrameKind, Refusal, RefusalCode, MAX_NODE_BODY_BYTES, NODE_HEADER_BYTES,
};

use super::{
    handshake::{refusal_of, Session, Wire},
    refusals::{By, Who},
    session::{Opener, Sealer, Side, Untrue},
    Links,
};
use crate::driver::{fd, local_event::LocalEvent, shard::Shard};

/// Bytes handled before other tasks get their turn.
const READ_BUDGET_BYTES: usize = 512 << 10;
/// Bodies up to this go behind their header in one send, at the price of a copy.
const ONE_SEND_BYTES: usize = 256 << 10;
/// Output buffers above this are not kept.
const KEPT_BYTES: usize = 4 << 20;
/// A peer that takes nothing, or is silent, for so long is gone.
const GONE_AFTER: Duration = Duration::from_secs(2);
/// It is asked this often when nothing else is said.
const ASK_AFTER: Duration = Duration::from_secs(1);
/// Behind the last word the peer gets so long to close.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 64 << 20;

/// What reader, writer and shard share of a link.
pub(super) struct Link {
    pub node: u32,
    /// The engine has output, or the link's end is due.
    pub output: LocalEvent,
    /// To be said last.
    last_word: RefCell<Option<Refusal>>,
    /// Not the engine's any more: nothing goes to it or comes from it.
    cut: Cell<bool>,
    /// The reader has ended.
    gone: Cell<bool>,
}

impl Link {
    /// Ends once the engine's output is sent.
    pub(super) fn close(&self, last_word: Refusal) {
        self.last_word.replace(Some(last_word));
        self.output.set();
    }

    /// Ends at once.
    pub(super) fn end(&self, last_word: Refusal) {
        self.cut.set(true);
        self.close(last_word);
    }
}

/// Why the reader ended.
enum End {
    Closed(String),
    Told(Refusal),
    Refused(Refusal),
    /// Somebody else knows.
    Cut,
}

/// Serves a link from its handshake to its end.
pub(super) async fn serve(shard: &Rc<Shard>, links: &Links, mut wire: Wire, session: Session) {
    let Session {
        node,
        sealer,
        mut opener,
        claim,
    } = session;
    let Ok(writing) = fd::duplicate(&wire.stream) else {
        return;
    };
    watch(&writing);
    let at = wire.address();
    let link = Rc::new(Link {
        node,
        output: LocalEvent::default(),
        last_word: RefCell::default(),
        cut: Cell::new(false),
        gone: Cell::new(false),
    });
    if links.peer(node).is_none() {
        // Another shard knows that it is a member, and this one not yet.
        return;
    }
    if links.put(&link) {
        shard.node_down(node);
    }
    shard.node_up(node);
    let writer = fd::adopt(writing);
    shard.spawn(write(shard.clone(), writer, link.clone(), sealer));
    let end = read(shard, &mut wire, &link, &mut opener).await;
    let reason = match &end {
        End::Closed(reason) => reason.clone(),
        End::Told(refusal) | End::Refused(refusal) => refusal.reason.clone(),
        End::Cut => String::new(),
    };
    if links.gone(&link, &reason) {
        shard.node_down(node);
    }
    // Another link of this log may come now; this one only says goodbye.
    drop(claim);
    let note = |by, refusal| {
        links
            .cluster
            .note(links.shard, Who::Node(node), by, &at, refusal)
    };
    match &end {
        End::Told(refusal) if refusal.code == RefusalCode::Removed => links.told_removed(),
        End::Told(refusal) if !is_farewell(refusal.code) => note(By::Them, refusal),
        End::Refused(refusal) => {
            note(By::Us, refusal);
            link.end(refusal.clone());
            wire.receive.discard(&mut wire.stream, LINGER_BYTES).await;
        }
        End::Cut => wire.receive.discard(&mut wire.stream, LINGER_BYTES).await,
        End::Told(_) | End::Closed(_) => {}
    }
    link.gone.set(true);
    link.output.set();
}

/// No trouble: the link will be back.
pub(super) fn is_farewell(code: RefusalCode) -> bool {
    matches!(code, RefusalCode::Leaving | RefusalCode::Reopened)
}

/// A peer that is gone without a word is noticed.
fn watch(socket: &OwnedFd) {
    let socket = socket2::SockRef::from(socket);
    let probes = socket2::TcpKeepalive::new()
        .with_time(ASK_AFTER)
        .with_interval(ASK_AFTER)
        .with_retries(2);
    // Best effort: an odd socket is still used.
    let _ = socket.set_tcp_keepalive(&probes);
    let _ = socket.set_tcp_user_timeout(Some(GONE_AFTER));
}

async fn read(shard: &Rc<Shard>, wire: &mut Wire, link: &Link, opener: &mut Opener) -> End {
    let mut budget = READ_BUDGET_BYTES;
    loop {
        loop {
            let header = match wire.receive.frame(MAX_NODE_BODY_BYTES) {
                Ok(Some(header)) => header,
                Ok(None) => break,
                Err(error) => return End::Refused(refusal_of(&error, Side::Called)),
            };
            let body = wire.receive.body(&header);
            let opened = opener.open(&header, body).await;
            if link.cut.get() {
                return End::Cut;
            }
            match (opened, header.kind) {
                (Ok(()), NodeFrameKind::Body) => shard.node_body(link.node, body),
                (Ok(()), NodeFrameKind::Refuse) => return End::Told(Refusal::decode(body)),
                (Ok(()), kind) => {
                    let reason = format!("a {kind:?} frame came on a link that is up");
                    return End::Refused(Refusal::new(RefusalCode::Protocol, reason));
                }
                (Err(untrue), _) => return End::Refused(untrue_refusal(untrue)),
            }
            wire.receive.consume(&header);
            budget = budget.saturating_sub(header.length as usize + NODE_HEADER_BYTES);
            if budget == 0 {
                budget = READ_BUDGET_BYTES;
                glommio::executor().yield_task_queue_now().await;
            }
            if link.cut.get() {
                return End::Cut;
            }
        }
        match wire.receive.fill(&mut wire.stream).await {
            _ if link.cut.get() => return End::Cut,
            Ok(0) => return End::Closed("the connection was closed".to_owned()),
            Ok(_) => {}
            Err(error) => return End::Closed(error.to_string()),
        }
    }
}

fn untrue_refusal(untrue: Untrue) -> Refusal {
    match untrue {
        Untrue::Checksum => Refusal::new(
            RefusalCode::Forged,
            "a frame's checksum is wrong: it was changed or made by somebody else",
        ),
        Untrue::Sequence { expected, found } => Refusal::new(
            RefusalCode::Replayed,
            format!("frame {found} came in place of frame {expected}: it was repeated or left out"),
        ),
    }
}

/// Sends what the engine gathered, until the link ends.
async fn write(shard: Rc<Shard>, stream: TcpStream, link: Rc<Link>, sealer: Sealer) {
    let mut writer = Writer {
        stream,
        sealer,
        frame: Vec::new(),
    };
    let told = writer.run(&shard, &link).await;
    if told {
        let _ = writer.stream.shutdown(Shutdown::Write).await;
        let closed = async {
            while !link.gone.get() {
                link.output.wait().await;
            }
        };
        let late = async {
            Timer::new(LINGER).await;
        };
        future::or(closed, late).await;
    }
    // Wakes the reader, which may wait for bytes.
    let _ = writer.stream.shutdown(Shutdown::Both).await;
}

struct Writer {
    stream: TcpStream,
    sealer: Sealer,
    /// Header and body of one frame, reused.
    frame: Vec<u8>,
}

impl Writer {
    /// True when the peer was told of the end.
    async fn run(&mut self, shard: &Rc<Shard>, link: &Link) -> bool {
        let mut body = Vec::new();
        loop {
            link.output.wait().await;
            while !link.cut.get() && shard.take_node_output(link.node, &mut body) {
                let sent = self.send_all(&body).await;
                body.clear();
                if body.capacity() > KEPT_BYTES {
                    body = Vec::new();
                }
                match sent {
                    Ok(true) => {}
                    Ok(false) => {
                        let reason = "a message to it is longer than a frame may be";
                        shard.refuse_node(link.node, reason.to_owned());
                    }
                    Err(_) => return false,
                }
            }
            if link.gone.get() {
                return false;
            }
            let last_word = link.last_word.take();
            if let Some(last_word) = last_word {
                let refuse = NodeFrameKind::Refuse;
                return self.send(refuse, &last_word.encode()).await.is_ok();
            }
        }
    }

    /// One frame, or several where the body is longer than one may be. False
    /// when one of its messages alone is.
    async fn send_all(&mut self, mut body: &[u8]) -> std::io::Result<bool> {
        let limit = MAX_NODE_BODY_BYTES as usize;
        while body.len() > limit {
            let Some(whole) = messages_within(body, limit) else {
                return Ok(false);
            };
            let (now, later) = body.split_at(whole);
            self.send(NodeFrameKind::Body, now).await?;
            body = later;
        }
        self.send(NodeFrameKind::Body, body).await?;
        Ok(true)
    }

    async fn send(&mut self, kind: NodeFrameKind, body: &[u8]) -> std::io::Result<()> {
        let header = self.sealer.seal(kind, body).await;
        if body.len() > ONE_SEND_BYTES {
            self.stream.write_all(&header).await?;
            return self.stream.write_all(body).await;
        }
        self.frame.clear();
        self.frame.extend_from_slice(&header);
        self.frame.extend_from_slice(body);
        self.stream.write_all(&self.frame).await
    }
}
