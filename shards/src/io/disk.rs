//! One directory of a file system, as blocking bring-up code needs it.

use std::time::Duration;

/// A flat directory. Every call blocks; none may be made on a shard thread.
///
/// Names are plain file names, without a separator. Unless a method says so,
/// nothing is durable before the matching sync.
pub trait Disk {
    /// Names of all files, in no given order.
    fn list(&self) -> Result<Vec<String>, DiskError>;

    /// Makes `name` a file of `bytes` zero bytes, written out and synced, and
    /// syncs the directory. Atomic: after a crash the file is absent or whole
    /// (a leftover `name.tmp` may stay). Fails with
    /// [`DiskErrorKind::Exists`] if it is there.
    fn create_zeroed(&self, name: &str, bytes: u64) -> Result<(), DiskError>;

    /// Makes `name` a file that holds `bytes`, written out and synced, and
    /// syncs the directory. Atomic, as [`Disk::create_zeroed`].
    fn create_whole(&self, name: &str, bytes: &[u8]) -> Result<(), DiskError>;

    /// Makes the file `old`, which nobody needs, the file `new`: `bytes` zero
    /// bytes, written over in place and synced, and syncs the directory. Takes
    /// no new space if `old` has that length. After a crash `old`, `new.tmp` or
    /// `new` is there, `new` only whole.
    fn recycle_zeroed(&self, old: &str, new: &str, bytes: u64) -> Result<(), DiskError>;

    /// Opens an existing file for reading and writing.
    fn open(&self, name: &str) -> Result<Box<dyn DiskFile>, DiskError>;

    /// The whole of a small file, or `None` if there is none. Fails if it is
    /// longer than `limit` bytes: a length on disk never decides an allocation.
    fn read_small(&self, name: &str, limit: usize) -> Result<Option<Vec<u8>>, DiskError>;

    /// Replaces a small file atomically and durably (the directory included).
    fn replace_small(&self, name: &str, bytes: &[u8]) -> Result<(), DiskError>;

    /// Gives the file `old` the name `new`, in place of a file that has it.
    /// Durable after [`Disk::sync_dir`].
    fn rename(&self, old: &str, new: &str) -> Result<(), DiskError>;

    /// Removes a file; absent is fine. Durable after [`Disk::sync_dir`].
    fn remove(&self, name: &str) -> Result<(), DiskError>;

    /// Makes created, renamed and removed names durable.
    fn sync_dir(&self) -> Result<(), DiskError>;
}

/// An open file of a [`Disk`]. Any offset and length is accepted.
pub trait DiskFile {
    /// Length in bytes.
    fn len(&self) -> Result<u64, DiskError>;

    /// Whether the file has no bytes.
    fn is_empty(&self) -> Result<bool, DiskError> {
        Ok(self.len()? == 0)
    }

    /// Fills `buffer` from `offset`; returns how many bytes there were, fewer
    /// only at the end of the file.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError>;

    /// Writes all of `bytes` at `offset`, which together end inside the file.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError>;

    /// Makes everything written to this file before durable.
    fn sync(&self) -> Result<(), DiskError>;

    /// Takes the file's exclusive advisory lock until this value is dropped;
    /// fails with [`DiskErrorKind::Locked`] once `wait` has passed.
    fn lock_exclusive(&self, wait: Duration) -> Result<(), DiskError>;
}

/// A blocking call on a [`Disk`] that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot {operation} {name}: {message}")]
pub struct DiskError {
    /// What was tried, as a verb.
    pub operation: &'static str,
    /// The file, or the directory.
    pub name: String,
    pub kind: DiskErrorKind,
    pub message: String,
}

/// What a caller may act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskErrorKind {
    NotFound,
    Exists,
    /// Another descriptor holds the lock.
    Locked,
    OutOfSpace,
    /// The file system refuses direct I/O.
    NoDirectIo,
    /// Longer than the caller's limit.
    TooLong,
    Other,
}
