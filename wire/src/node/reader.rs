//! Fields from bytes that another node sent.

use thiserror::Error;

/// Why a message of another node was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NodeMessageError {
    #[error("a message between nodes is shorter than it says")]
    Truncated,
    #[error("a message between nodes is longer than its fields")]
    Trailing,
    #[error("message kind {0} between nodes is not known to this version")]
    Kind(u8),
    #[error("field {0} of a message between nodes has a value that is not known")]
    Field(&'static str),
}

pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    pub(super) fn bytes(&mut self, len: usize) -> Result<&'a [u8], NodeMessageError> {
        let split = self.rest.split_at_checked(len);
        let (taken, rest) = split.ok_or(NodeMessageError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], NodeMessageError> {
        let split = self.rest.split_first_chunk::<N>();
        let (taken, rest) = split.ok_or(NodeMessageError::Truncated)?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(super) fn u8(&mut self) -> Result<u8, NodeMessageError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, NodeMessageError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, NodeMessageError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, NodeMessageError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Everything left.
    pub(super) fn take_rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    pub(super) fn end(&self) -> Result<(), NodeMessageError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(NodeMessageError::Trailing)
        }
    }
}
