//! One connection: handshake, a reader that parses in place, a writer that
//! sends what the engine gathered.

use std::{cell::Cell, io, os::fd::OwnedFd, rc::Rc, time::Duration};

use futures_lite::{future, AsyncReadExt, AsyncWriteExt};
use glommio::{net::TcpStream, timer::Timer};
use wire::{
    error::{ErrorCode, WireError},
    frame::{check_start, FrameHeader, HEADER_BYTES},
    limits::{MAX_FRAME_BYTES, MAX_HELLO_BYTES},
    node::NODE_MAGIC,
};

use super::{
    fd,
    local_event::LocalEvent,
    peer_watch::{PeerLimits, Watched},
    shard::Shard,
};
use crate::engine::{error_frame, ConnKey, HelloAnswer};

/// A peer that says nothing or dribbles is cut after this.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(5);
/// A receive buffer starts here, grows as bytes come, and shrinks again.
const RECEIVE_START_BYTES: usize = 16 << 10;
const RECEIVE_STEADY_BYTES: usize = 256 << 10;
/// Bytes handled before other tasks get their turn.
const READ_BUDGET_BYTES: usize = 512 << 10;

/// What reader, writer and shard share of a connection.
pub(super) struct Socket {
    /// The engine has output, or wants the connection closed.
    pub output: LocalEvent,
    /// The socket took output: a reader that waited may go on.
    drained: LocalEvent,
    closing: Cell<bool>,
    /// Reader or writer has ended, so the other one does.
    gone: Cell<bool>,
    /// Of the writer's stream, for as long as it has one.
    pub descriptor: Cell<Option<fd::Lent>>,
    pub watched: Watched,
}

impl Socket {
    fn new() -> Rc<Self> {
        Rc::new(Socket {
            output: LocalEvent::default(),
            drained: LocalEvent::default(),
            closing: Cell::new(false),
            gone: Cell::new(false),
            descriptor: Cell::new(None),
            watched: Watched::default(),
        })
    }

    /// Nothing more is expected of the peer.
    pub(super) fn is_closing(&self) -> bool {
        self.closing.get() || self.gone.get()
    }

    /// Close once the output is flushed.
    pub(super) fn close(&self) {
        self.closing.set(true);
        self.output.set();
        self.drained.set();
    }
}

/// Bytes received and not handled yet.
struct Receive {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Receive {
    fn new() -> Self {
        Receive {
            bytes: vec![0; RECEIVE_START_BYTES],
            start: 0,
            end: 0,
        }
    }

    /// The next whole frame, if it is here.
    fn frame(&self, limit: u32) -> Result<Option<FrameHeader>, WireError> {
        let held = &self.bytes[self.start..self.end];
        let Some((header, rest)) = held.split_first_chunk::<HEADER_BYTES>() else {
            return check_start(held).map(|()| None);
        };
        let header = FrameHeader::decode(header, limit)?;
        Ok((rest.len() >= header.length as usize).then_some(header))
    }

    /// A frame has begun and is not whole.
    fn is_mid_frame(&self) -> bool {
        self.end > self.start
    }

    /// Something can be handled without reading more.
    fn holds_frame(&self) -> bool {
        !matches!(self.frame(MAX_FRAME_BYTES), Ok(None))
    }

    fn body(&self, header: &FrameHeader) -> &[u8] {
        let at = self.start + HEADER_BYTES;
        &self.bytes[at..at + header.length as usize]
    }

    fn consume(&mut self, header: &FrameHeader) {
        self.start += HEADER_BYTES + header.length as usize;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Room to read into. Memory follows the bytes that really came, never a
    /// length somebody claims.
    fn room(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.bytes.len() {
            let doubled = (self.bytes.len() * 2).min(MAX_FRAME_BYTES as usize + HEADER_BYTES);
            self.bytes.resize(doubled.max(self.end + 1), 0);
        } else if self.end == 0 && self.bytes.len() > RECEIVE_STEADY_BYTES {
            self.bytes = vec![0; RECEIVE_STEADY_BYTES];
        }
        &mut self.bytes[self.end..]
    }

    async fn fill(&mut self, stream: &mut TcpStream) -> io::Result<usize> {
        let read = stream.read(self.room()).await?;
        self.end += read;
        Ok(read)
    }
}

/// Serves a freshly accepted connection: hello first, then here or elsewhere.
pub(super) async fn accept(shard: Rc<Shard>, mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut receive = Receive::new();
    let hello = async { Some(first_frame(&mut receive, &mut stream).await) };
    let late = async {
        Timer::new(HANDSHAKE_DEADLINE).await;
        None
    };
    let header = match future::or(hello, late).await {
        Some(Ok(Some(header))) => header,
        Some(Ok(None)) => return,
        Some(Err(WireError::BadMagic { found })) if found == NODE_MAGIC => {
            let at = stream.peer_addr().map(|at| at.to_string());
            let bytes = shard.refuse_node_here(&at.unwrap_or_default());
            return refuse(&mut stream, &bytes).await;
        }
        Some(Err(error)) => {
            let code = code_of(&error);
            return refuse(&mut stream, &error_frame(0, code, &error.to_string())).await;
        }
        None => {
            let message = "no hello came within 5 s; the connection is closed";
            return refuse(&mut stream, &error_frame(0, ErrorCode::Protocol, message)).await;
        }
    };
    let answer = shard.hello.judge(&header, receive.body(&header));
    receive.consume(&header);
    let (wished, window_bytes, correlation) = match answer {
        HelloAnswer::Accept {
            shard,
            window_bytes,
            correlation,
        } => (shard, window_bytes, correlation),
        HelloAnswer::Refuse(bytes) => return refuse(&mut stream, &bytes).await,
    };
    if receive.end > receive.start {
        let message = "bytes followed hello before its reply; wait for the reply";
        return refuse(&mut stream, &error_frame(0, ErrorCode::Protocol, message)).await;
    }
    match wished.filter(|wished| *wished != shard.number) {
        Some(wished) => {
            if let Ok(socket) = fd::duplicate(&stream) {
                shard.hand_over(wished, socket, window_bytes, correlation);
            }
        }
        None => serve(shard, stream, window_bytes, correlation).await,
    }
}

/// A connection that another shard accepted for this one.
pub(super) async fn adopt(shard: Rc<Shard>, socket: OwnedFd, window_bytes: u32, correlation: u64) {
    serve(shard, fd::adopt(socket), window_bytes, correlation).await;
}

async fn first_frame(
    receive: &mut Receive,
    stream: &mut TcpStream,
) -> Result<Option<FrameHeader>, WireError> {
    loop {
        if let Some(header) = receive.frame(MAX_HELLO_BYTES)? {
            return Ok(Some(header));
        }
        match receive.fill(stream).await {
            Ok(0) | Err(_) => return Ok(None),
            Ok(_) => {}
        }
    }
}

async fn refuse(stream: &mut TcpStream, bytes: &[u8]) {
    // The peer may be gone already: nothing to tell then.
    let _ = stream.write_all(bytes).await;
    let _ = stream.shutdown(std::net::Shutdown::Both).await;
}

fn code_of(error: &WireError) -> ErrorCode {
    match error {
        WireError::Version { .. } => ErrorCode::Version,
        WireError::FrameTooLong { .. } => ErrorCode::TooLarge,
        _ => ErrorCode::Protocol,
    }
}

async fn serve(shard: Rc<Shard>, stream: TcpStream, window_bytes: u32, correlation: u64) {
    let Ok(writing) = fd::duplicate(&stream) else {
        return;
    };
    keep_alive(&writing, &shard.peers());
    let mut writer = fd::adopt(writing);
    let reply = shard.hello.reply(shard.number, correlation);
    if writer.write_all(&reply).await.is_err() {
        return;
    }
    let socket = Socket::new();
    let conn = shard.opened(socket.clone(), window_bytes);
    shard.spawn(write(shard.clone(), conn, writer, socket.clone()));
    read(&shard, conn, stream, &socket).await;
    shard.closed(conn);
    socket.gone.set(true);
    socket.output.set();
}

/// A peer that is gone without a word (F51) is noticed within two heartbeats,
/// and what it held goes back. See [`super::peer_watch`].
fn keep_alive(socket: &OwnedFd, limits: &PeerLimits) {
    let socket = socket2::SockRef::from(socket);
    let probes = socket2::TcpKeepalive::new()
        .with_time(limits.heartbeat)
        .with_interval(limits.heartbeat / 4)
        .with_retries(3);
    // Best effort: an odd socket is still served.
    let _ = socket.set_tcp_keepalive(&probes);
    let _ = socket.set_tcp_user_timeout(Some(limits.gone_after()));
}

/// Reads until the peer closes, breaks the protocol, or is closed.
async fn read(shard: &Rc<Shard>, conn: ConnKey, mut stream: TcpStream, socket: &Socket) {
    let mut receive = Receive::new();
    let frame_deadline = shard.peers().frame_deadline;
    let mut budget = READ_BUDGET_BYTES;
    loop {
        loop {
            match receive.frame(MAX_FRAME_BYTES) {
                Ok(Some(header)) => {
                    shard.frame(conn, header, receive.body(&header));
                    receive.consume(&header);
                    budget = budget.saturating_sub(header.length as usize + HEADER_BYTES);
                }
                Ok(None) => break,
                Err(error) => {
                    shard.protocol_error(conn, code_of(&error), &error);
                    return wait_for_close(socket).await;
                }
            }
            if budget == 0 {
                budget = READ_BUDGET_BYTES;
                glommio::executor().yield_task_queue_now().await;
            }
            if socket.closing.get() {
                return wait_for_close(socket).await;
            }
            // A small request can ask for a large answer: what was received
            // waits, too, while the peer does not read.
            if shard.output_is_full(conn) {
                break;
            }
        }
        while shard.output_is_full(conn) && !socket.closing.get() && !socket.gone.get() {
            socket.drained.wait().await;
        }
        if socket.gone.get() || socket.closing.get() {
            return wait_for_close(socket).await;
        }
        if receive.holds_frame() {
            continue;
        }
        let filled = if receive.is_mid_frame() {
            fill_within(frame_deadline, &mut receive, &mut stream).await
        } else {
            Some(receive.fill(&mut stream).await)
        };
        match filled {
            Some(Ok(0) | Err(_)) => return,
            Some(Ok(_)) => {}
            None => {
                let message = format!(
                    "a frame was begun and no byte of it came for {} s; the connection is closed",
                    frame_deadline.as_secs_f32()
                );
                shard.protocol_error(conn, ErrorCode::Protocol, &message);
                return wait_for_close(socket).await;
            }
        }
    }
}

/// The same as [`Receive::fill`]; `None` if nothing came in time. The stream
/// is not to be read any more then.
async fn fill_within(
    deadline: Duration,
    receive: &mut Receive,
    stream: &mut TcpStream,
) -> Option<io::Result<usize>> {
    let filled = async { Some(receive.fill(stream).await) };
    let late = async {
        Timer::new(deadline).await;
        None
    };
    future::or(filled, late).await
}

/// The writer still flushes; it says when it is done.
async fn wait_for_close(socket: &Socket) {
    while !socket.gone.get() {
        socket.drained.wait().await;
    }
}

/// Sends what the engine gathered, until closed or the peer is gone.
async fn write(shard: Rc<Shard>, conn: ConnKey, mut stream: TcpStream, socket: Rc<Socket>) {
    let mut bytes = Vec::new();
    socket.descriptor.set(Some(fd::Lent::of(&stream)));
    'serve: loop {
        socket.output.wait().await;
        while shard.take_output(conn, &mut bytes) {
            socket.watched.wrote.set(true);
            let sent = stream.write_all(&bytes).await;
            bytes.clear();
            if bytes.capacity() > 4 << 20 {
                bytes = Vec::new();
            }
            socket.drained.set();
            if sent.is_err() || socket.gone.get() {
                break 'serve;
            }
        }
        // The reader may wait for more than the output.
        socket.drained.set();
        if socket.closing.get() || socket.gone.get() {
            break;
        }
    }
    socket.gone.set(true);
    socket.drained.set();
    // Wakes the reader, which may wait for bytes.
    let _ = stream.shutdown(std::net::Shutdown::Both).await;
    // Taken back before the stream closes it.
    socket.descriptor.set(None);
}
