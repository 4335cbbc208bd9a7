//! Reading the fields of a command. Never panics, never allocates.

use super::command::{CommandError, DeliveryIds, DELIVERY_ID_BYTES};

/// Takes little-endian fields from the front of bytes.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    pub(super) fn take<const N: usize>(&mut self) -> Result<[u8; N], CommandError> {
        let (field, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(CommandError::Malformed("truncated"))?;
        self.rest = rest;
        Ok(*field)
    }

    pub(super) fn slice(&mut self, len: usize) -> Result<&'a [u8], CommandError> {
        let (field, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(CommandError::Malformed("truncated"))?;
        self.rest = rest;
        Ok(field)
    }

    pub(super) fn u8(&mut self) -> Result<u8, CommandError> {
        self.take::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, CommandError> {
        self.take().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, CommandError> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, CommandError> {
        self.take().map(u64::from_le_bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Everything that is left.
    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Everything that is left, as whole ids.
    pub(super) fn ids(&mut self) -> Result<DeliveryIds<'a>, CommandError> {
        let rest = self.rest();
        if !rest.len().is_multiple_of(DELIVERY_ID_BYTES) {
            return Err(CommandError::Malformed("a partial delivery id"));
        }
        Ok(DeliveryIds(rest))
    }

    /// Nothing may be left.
    pub(super) fn end(&self) -> Result<(), CommandError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(CommandError::Malformed("bytes left over"))
        }
    }
}
