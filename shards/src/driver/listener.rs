//! Accepts connections on the port that all shards share.

use std::{net::SocketAddr, rc::Rc, time::Duration};

use futures_lite::AsyncWriteExt;
use glommio::{
    net::{TcpListener, TcpStream},
    timer::sleep,
};
use wire::error::ErrorCode;

use super::{connection, fd, shard::Shard};
use crate::engine::error_frame;

/// Pause after a failed accept (no descriptor left, say): no spinning.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Binds one of the listeners of the shared port.
///
/// # Errors
/// The address is taken or not ours.
pub(super) fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(address).map_err(std::io::Error::from)
}

/// Accepts until the shard drains.
pub(super) async fn run(shard: Rc<Shard>, listener: TcpListener) {
    let mut complained = false;
    loop {
        match listener.accept().await {
            Ok(stream) if shard.is_draining() => drop(stream),
            Ok(stream) if shard.is_crowded() => {
                shard.spawn(turn_away(stream));
            }
            Ok(stream) => {
                complained = false;
                // Connections that outlive a killed server in the kernel must
                // not keep its successor from the port. Without it, it waits.
                let _ = socket2::SockRef::from(&fd::borrow(&stream)).set_reuse_address(true);
                let shard_too = shard.clone();
                shard.spawn(async move {
                    shard_too.count_connection(1);
                    connection::accept(shard_too.clone(), stream).await;
                    shard_too.count_connection(-1);
                });
            }
            Err(error) => {
                if !std::mem::replace(&mut complained, true) {
                    shard.problem(&format!("accepting connections fails: {error}; retrying"));
                }
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn turn_away(mut stream: TcpStream) {
    let message =
        "the server has as many connections as it may; close some or raise max_connections";
    let bytes = error_frame(0, ErrorCode::LimitReached, message);
    // The peer may be gone already: nothing to tell then.
    let _ = stream.write_all(&bytes).await;
    let _ = stream.shutdown(std::net::Shutdown::Both).await;
}
