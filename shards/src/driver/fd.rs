//! Descriptors between executors: the one place with `unsafe` for them.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
};

use glommio::net::TcpStream;

/// Another descriptor of the same socket, free of any executor.
///
/// # Errors
/// No descriptor is left.
pub(super) fn duplicate(stream: &TcpStream) -> io::Result<OwnedFd> {
    // SAFETY: the stream owns its descriptor and outlives this borrow, which
    // ends with the call.
    let borrowed = unsafe { BorrowedFd::borrow_raw(stream.as_raw_fd()) };
    borrowed.try_clone_to_owned()
}

/// A stream of this executor from a free descriptor.
pub(super) fn adopt(fd: OwnedFd) -> TcpStream {
    TcpStream::from(socket2::Socket::from(fd))
}

/// Takes a shared lock on an open file's description, without waiting. The
/// lock lives as long as the description, so it also outlives a killed process
/// until its last write has landed.
///
/// # Errors
/// Somebody holds an exclusive lock.
pub(super) fn lock_shared(file: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: `flock` takes a descriptor and touches no memory of ours.
    let result = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_SH | libc::LOCK_NB) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
