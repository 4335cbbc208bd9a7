//! Descriptors between executors: the one place with `unsafe` for them.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd},
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
