//! Accepts connections on the port that all shards share, on a thread per
//! shard, and on the port for nodes, on one more: glommio's listener cannot set `SO_REUSEADDR`, without which a restart
//! after a crash waits for the old connections' time to pass.

use std::{
    net::SocketAddr,
    os::fd::OwnedFd,
    rc::Rc,
    sync::{
        atomic::{AtomicBool, Ordering},
        Arc,
    },
    thread,
    time::Duration,
};

use futures_lite::AsyncWriteExt;
use socket2::{Domain, Socket, Type};
use wire::error::ErrorCode;

use super::{
    connection, fd,
    mailbox::{Letter, Sender},
    shard::{Report, Shard},
};
use crate::engine::{error_frame, Notice};

/// Pause after a failed accept (no descriptor left, say): no spinning.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections the kernel completes ahead of us.
const BACKLOG: i32 = 1024;

/// A shard's own listener.
pub(super) struct Listener {
    pub shard: u16,
    pub mail: Sender,
    pub reports: flume::Sender<Report>,
    /// Set once the shard drains: what still comes is closed at once.
    pub closed: Arc<AtomicBool>,
    /// What is done with a connection.
    pub letter: fn(OwnedFd) -> Letter,
    pub name: &'static str,
}

/// Binds one of the listeners of the shared port.
fn bind(address: SocketAddr) -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

impl Listener {
    /// Listens and accepts until the process ends.
    ///
    /// # Errors
    /// The address is taken or not ours, or no thread is left.
    pub(super) fn start(self, address: SocketAddr) -> std::io::Result<()> {
        let socket = bind(address)?;
        thread::Builder::new()
            .name(format!("{}-{}", self.name, self.shard))
            .spawn(move || self.run(&socket))?;
        Ok(())
    }

    fn run(&self, socket: &Socket) {
        let mut complained = false;
        loop {
            match socket.accept() {
                Ok((stream, _)) => {
                    complained = false;
                    if self.closed.load(Ordering::Relaxed) {
                        continue;
                    }
                    let letter = (self.letter)(OwnedFd::from(stream));
                    if self.mail.send(letter).is_err() {
                        return;
                    }
                }
                Err(error) => {
                    if !std::mem::replace(&mut complained, true) {
                        let text = format!("accepting connections fails: {error}; retrying");
                        let notice = Notice::Problem(text);
                        // The receiver is gone only when the process ends.
                        let _ = self.reports.send(Report::Notice {
                            shard: self.shard,
                            notice,
                        });
                    }
                    thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }
}

/// Serves an accepted connection, or turns it away when there are too many.
pub(super) async fn receive(shard: Rc<Shard>, socket: OwnedFd) {
    if shard.is_crowded() {
        return turn_away(socket).await;
    }
    shard.count_connection(1);
    connection::accept(shard.clone(), fd::adopt(socket)).await;
    shard.count_connection(-1);
}

async fn turn_away(socket: OwnedFd) {
    let mut stream = fd::adopt(socket);
    let message =
        "the server has as many connections as it may; close some or raise max_connections";
    let bytes = error_frame(0, ErrorCode::LimitReached, message);
    // The peer may be gone already: nothing to tell then.
    let _ = stream.write_all(&bytes).await;
    let _ = stream.shutdown(std::net::Shutdown::Both).await;
}
