//! The link task: connect, hello, serve, and again.

use std::{sync::Arc, time::Duration};

use tokio::{
    io::{AsyncWriteExt, BufReader},
    net::TcpStream,
    sync::watch,
    time::{sleep, timeout, Instant},
};
use wire::{
    codec,
    frame::{Kind, VERSION},
    limits::MAX_HELLO_BYTES,
    message::{Error as ErrorBody, Hello, HelloReply, ANY_SHARD},
};

use super::{
    backoff::Backoff,
    reader::{read_frame, read_loop},
    state::{Granted, Shared},
    writer::{write_loop, CLOSED},
};
use crate::error::ConnectError;

/// Bytes read from the socket at once, at most; longer bodies go straight to
/// their own buffer.
const READ_BYTES: usize = 128 * 1024;
/// How long a link that ends may take to write what is still queued.
const LAST_WRITE: Duration = Duration::from_secs(1);
/// How long after a failed write the server's reason is waited for.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Keeps the link up until it is closed.
pub(super) async fn run(shared: Arc<Shared>, mut wished_shard: u16) {
    let config = shared.config.clone();
    let servers = shared.servers.clone();
    let mut backoff = Backoff::new(config.backoff_min, config.backoff_max);
    let mut closing = shared.closing.subscribe();
    // Attempts since the last pause; and what the last one at each server came to.
    let mut tried = 0;
    let mut failures = Vec::new();
    loop {
        let (at, address) = servers.now();
        shared.trying(address.clone());
        let attempt = tokio::select! {
            attempt = connect(&shared, &address, wished_shard) => attempt,
            _ = shared.sweep_loop() => continue,
            () = closed(&mut closing) => break,
        };
        tried += 1;
        match attempt {
            Ok((socket, granted)) => {
                failures.clear();
                if config.shard_aware && wished_shard == ANY_SHARD {
                    // The same one again after a reconnect.
                    wished_shard = granted.shard;
                }
                let since = Instant::now();
                let cause = serve(&shared, socket, granted).await;
                shared.went_down(cause);
                if since.elapsed() >= config.backoff_max {
                    backoff.reset();
                    tried = 1;
                }
            }
            Err(error) => {
                failures.push(error);
                let known = failures.len().saturating_sub(servers.len());
                failures.drain(..known);
                shared.attempts_failed(&failures, failures.len() == servers.len());
            }
        }
        servers.leave(at);
        if *closing.borrow() {
            break;
        }
        if tried < servers.len() {
            continue;
        }
        tried = 0;
        tokio::select! {
            () = pause(&shared, backoff.next_pause()) => {}
            () = shared.hurry.notified() => {}
            () = closed(&mut closing) => break,
        }
    }
    shared.ended();
}

async fn closed(closing: &mut watch::Receiver<bool>) {
    // The sender is part of the link's shared part, so it cannot be gone.
    let _ = closing.wait_for(|closing| *closing).await.map(drop);
}

/// Waits, watching deadlines meanwhile.
async fn pause(shared: &Shared, time: Duration) {
    tokio::select! {
        () = sleep(time) => {}
        // Without a connection the sweeper has nothing to give up and goes on.
        _ = shared.sweep_loop() => {}
    }
}

/// Runs one connection until it ends; returns why.
async fn serve(shared: &Arc<Shared>, socket: TcpStream, granted: Granted) -> String {
    let (read, mut write) = socket.into_split();
    let connection = shared.came_up(granted);
    let mut closing = shared.closing.subscribe();
    let reader = BufReader::with_capacity(READ_BYTES, read);
    let mut reader = tokio::spawn(read_loop(shared.clone(), connection, reader));
    let closed_late = async {
        closed(&mut closing).await;
        sleep(LAST_WRITE).await;
    };
    let cause = tokio::select! {
        cause = write_loop(shared, &mut write) => {
            // What the server said last explains a failed write better.
            match timeout(LAST_WORDS, &mut reader).await {
                Ok(Ok(said)) => said,
                Ok(Err(_)) | Err(_) => cause,
            }
        }
        cause = shared.sweep_loop() => cause,
        ended = &mut reader => ended.unwrap_or_else(|_| "the reader stopped".to_owned()),
        () = closed_late => CLOSED.to_owned(),
    };
    reader.abort();
    cause
}

async fn connect(
    shared: &Shared,
    address: &str,
    wished_shard: u16,
) -> Result<(TcpStream, Granted), ConnectError> {
    let limit = shared.config.connect_timeout;
    timeout(limit, connect_unbounded(shared, address, wished_shard))
        .await
        .unwrap_or_else(|_| {
            Err(ConnectError::Timeout {
                server: address.to_owned(),
                timeout: limit,
            })
        })
}

async fn connect_unbounded(
    shared: &Shared,
    address: &str,
    wished_shard: u16,
) -> Result<(TcpStream, Granted), ConnectError> {
    let server = || address.to_owned();
    let unreachable = |error: std::io::Error| ConnectError::Unreachable {
        server: server(),
        cause: error.to_string(),
    };
    let hello_failed = |cause: String| ConnectError::Hello {
        server: server(),
        cause,
    };
    let mut socket = TcpStream::connect(address).await.map_err(unreachable)?;
    socket.set_nodelay(true).map_err(unreachable)?;
    let hello = Hello {
        version_min: VERSION,
        version_max: VERSION,
        wished_shard,
        window_bytes: shared.config.receive_window_bytes,
        client: shared.config.name.clone(),
        authentication: Vec::new(),
        extensions: Vec::new(),
    };
    let mut out = Vec::new();
    codec::encode(&mut out, shared.next_correlation(), &hello)
        .map_err(|error| hello_failed(error.to_string()))?;
    socket
        .write_all(&out)
        .await
        .map_err(|error| hello_failed(error.to_string()))?;
    // Unbuffered, so that nothing is taken from the reader to come.
    let (header, body) = read_frame(&mut socket, 4 * MAX_HELLO_BYTES)
        .await
        .map_err(hello_failed)?;
    match Kind::from_raw(header.kind) {
        Some(Kind::HelloReply) => read_hello_reply(&body).map_err(hello_failed),
        Some(Kind::Error) => Err(read_refusal(server(), &body)),
        _ => Err(hello_failed(format!(
            "it answered with frame kind {}",
            header.kind
        ))),
    }
    .map(|granted| (socket, granted))
}

fn read_hello_reply(body: &[u8]) -> Result<Granted, String> {
    let reply = codec::decode::<HelloReply>(body).map_err(|error| error.to_string())?;
    if reply.version != VERSION {
        return Err(format!(
            "it speaks protocol version {}, this client version {VERSION}",
            reply.version
        ));
    }
    Ok(Granted {
        node: reply.node.to_native(),
        shard: reply.shard.to_native(),
        shards: reply.shards.to_native(),
        window_bytes: reply.window_bytes.to_native(),
        server: reply.server.to_string(),
    })
}

fn read_refusal(server: String, body: &[u8]) -> ConnectError {
    match codec::decode::<ErrorBody>(body) {
        Ok(error) => ConnectError::Refused {
            server,
            code: error.code.to_native(),
            message: error.message.to_string(),
        },
        Err(error) => ConnectError::Hello {
            server,
            cause: error.to_string(),
        },
    }
}
