//! Descriptors between executors: the one place with `unsafe` for them.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd},
    time::Duration,
};

use glommio::net::TcpStream;

/// Another descriptor of the same socket, free of any executor.
///
/// # Errors
/// No descriptor is left.
pub(super) fn duplicate(stream: &TcpStream) -> io::Result<OwnedFd> {
    borrow(stream).try_clone_to_owned()
}

/// A stream of this executor from a free descriptor.
pub(super) fn adopt(fd: OwnedFd) -> TcpStream {
    // SAFETY: the descriptor is owned here and given up to the stream, which
    // closes it; it is a connected TCP socket, as `duplicate` made it from one.
    unsafe { TcpStream::from_raw_fd(fd.into_raw_fd()) }
}

/// Borrows the descriptor of something that owns one.
pub(super) fn borrow(owner: &impl AsRawFd) -> BorrowedFd<'_> {
    // SAFETY: the borrow cannot outlive the owner, which keeps it open.
    unsafe { BorrowedFd::borrow_raw(owner.as_raw_fd()) }
}

/// The descriptor of a socket that somebody else owns, for socket options
/// only. Who lends it takes it back before it is closed; were it not so, the
/// options of another descriptor would be touched, and no memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lent(RawFd);

impl Lent {
    pub(super) fn of(owner: &impl AsRawFd) -> Self {
        Lent(owner.as_raw_fd())
    }

    fn with<T>(self, look: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        // SAFETY: whoever lends the descriptor keeps it open until it takes it
        // back (see `connection::write`), and nothing is awaited in between.
        look(unsafe { BorrowedFd::borrow_raw(self.0) })
    }
}

/// What of a TCP connection's output its peer has not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outstanding {
    pub unsent_bytes: u32,
    pub unacknowledged_segments: u32,
    /// Since the last acknowledgement of the peer, of bytes or of a probe.
    pub last_answer_ms: u32,
    pub acknowledged_bytes: u64,
}

/// Asks the kernel (`TCP_INFO`).
///
/// # Errors
/// Not a TCP socket, or a kernel that knows less than Linux 4.6.
pub(super) fn outstanding(socket: Lent) -> io::Result<Outstanding> {
    // `struct tcp_info` of <linux/tcp.h>, whose fields never move.
    let mut info = [0_u8; 148];
    let mut len = info.len() as libc::socklen_t;
    let result = socket.with(|socket| {
        // SAFETY: the kernel writes at most `len` bytes to `info`, which has
        // that many, and the length it wrote to `len`; both live past the call.
        unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                info.as_mut_ptr().cast(),
                &mut len,
            )
        }
    });
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if (len as usize) < info.len() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let four = |at: usize| {
        let bytes = info.get(at..).and_then(|rest| rest.first_chunk());
        u32::from_ne_bytes(bytes.copied().unwrap_or_default())
    };
    let eight = |at: usize| {
        let bytes = info.get(at..).and_then(|rest| rest.first_chunk());
        u64::from_ne_bytes(bytes.copied().unwrap_or_default())
    };
    Ok(Outstanding {
        unsent_bytes: four(144),
        unacknowledged_segments: four(24),
        last_answer_ms: four(56),
        acknowledged_bytes: eight(120),
    })
}

/// How long bytes may stay unacknowledged before the kernel ends the connection.
///
/// # Errors
/// Not a TCP socket.
pub(super) fn bound_unanswered(socket: Lent, bound: Duration) -> io::Result<()> {
    socket.with(|socket| socket2::SockRef::from(&socket).set_tcp_user_timeout(Some(bound)))
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
        time::Instant,
    };

    use super::*;

    fn await_that(what: &str, mut condition: impl FnMut() -> bool) {
        let start = Instant::now();
        while !condition() {
            assert!(start.elapsed() < Duration::from_secs(20), "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Pins the places of the fields: each is moved alone.
    #[test]
    fn what_the_kernel_says_of_a_connection_is_read_from_the_right_places() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let seen = || outstanding(Lent::of(&near)).unwrap();
        let fresh = seen();
        assert_eq!(fresh.unsent_bytes, 0);
        near.write_all(&[1; 100]).unwrap();
        let seen = || outstanding(Lent::of(&near)).unwrap();
        await_that("100 bytes to be acknowledged", || {
            seen().acknowledged_bytes == fresh.acknowledged_bytes + 100
                && seen().unacknowledged_segments == 0
        });
        near.set_nonblocking(true).unwrap();
        while near.write(&[1; 4096]).is_ok() {}
        let seen = || outstanding(Lent::of(&near)).unwrap();
        await_that("the window to be full", || {
            seen().unsent_bytes > 0 && seen().unacknowledged_segments == 0
        });
        // The window is probed, and each probe is answered.
        let mut longest = 0;
        await_that("an answer to a probe", || {
            let since = seen().last_answer_ms;
            longest = longest.max(since);
            since < longest
        });
        std::thread::spawn(move || while far.read(&mut [0; 65536]).is_ok_and(|n| n > 0) {});
        await_that("all to be taken", || {
            let seen = seen();
            seen.unsent_bytes == 0 && seen.unacknowledged_segments == 0
        });
    }
}
