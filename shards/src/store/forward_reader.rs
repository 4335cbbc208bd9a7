//! Reading a segment or packed file from front to back.

use crate::io::{DiskError, DiskFile};

/// Bytes read at once: neighbours are wanted next.
const READ_BYTES: usize = 1 << 20;
/// Reads start and end on this.
const BLOCK: usize = 4096;

/// Reads forward through a file, much at once.
pub(crate) struct ForwardReader {
    file: Box<dyn DiskFile>,
    /// Bytes read at once, or more for a longer piece.
    ahead: usize,
    start: u64,
    bytes: Vec<u8>,
    /// Bytes read from the disk so far.
    read_bytes: u64,
}

impl ForwardReader {
    pub(crate) fn new(file: Box<dyn DiskFile>) -> Self {
        ForwardReader::reading(file, READ_BYTES)
    }

    /// Reads so many bytes at once.
    pub(crate) fn reading(file: Box<dyn DiskFile>, ahead: usize) -> Self {
        ForwardReader {
            file,
            ahead,
            start: 0,
            bytes: Vec::new(),
            read_bytes: 0,
        }
    }

    /// Bytes read from the disk so far: more than were asked for where what is
    /// wanted lies far apart.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// Fills `to` from `offset` on; what the file does not have is left as zeros, which no
    /// record verifies as.
    pub(crate) fn read(&mut self, offset: u64, to: &mut [u8]) -> Result<(), DiskError> {
        if self.copy(offset, to) {
            return Ok(());
        }
        let start = offset - offset % BLOCK as u64;
        let want = (offset - start) as usize + to.len();
        let mut bytes = vec![0; want.max(self.ahead).next_multiple_of(BLOCK)];
        let there = self.file.read_at(start, &mut bytes)?;
        self.read_bytes += there as u64;
        bytes.truncate(there);
        (self.start, self.bytes) = (start, bytes);
        self.copy(offset, to);
        Ok(())
    }

    fn copy(&self, offset: u64, to: &mut [u8]) -> bool {
        let from = offset.checked_sub(self.start).map(|from| from as usize);
        let there = from.and_then(|from| self.bytes.get(from..from.checked_add(to.len())?));
        if let Some(there) = there {
            to.copy_from_slice(there);
        }
        there.is_some()
    }
}
