//! Clients' frames on their way through a node that does not lead what they name.

use super::reader::{NodeMessageError, Reader};

/// A client's frame. The connection is named as the node with its socket names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forward<'a> {
    pub conn: u64,
    /// Frame kind.
    pub kind: u8,
    pub correlation: u64,
    /// What the client granted for deliveries, in bytes.
    pub window_bytes: u32,
    pub body: &'a [u8],
}

impl<'a> Forward<'a> {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.conn.to_le_bytes());
        out.extend_from_slice(&self.correlation.to_le_bytes());
        out.extend_from_slice(&self.window_bytes.to_le_bytes());
        out.push(self.kind);
        out.extend_from_slice(self.body);
    }

    pub(super) fn decode(reader: &mut Reader<'a>) -> Result<Self, NodeMessageError> {
        Ok(Forward {
            conn: reader.u64()?,
            correlation: reader.u64()?,
            window_bytes: reader.u32()?,
            kind: reader.u8()?,
            body: reader.take_rest(),
        })
    }
}

/// Whole frames for a client, as they go to its socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Output<'a> {
    pub conn: u64,
    /// Publish bytes that were answered, for the window.
    pub released: u64,
    /// Close the connection behind these.
    pub close: bool,
    pub bytes: &'a [u8],
}

impl<'a> Output<'a> {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.conn.to_le_bytes());
        out.extend_from_slice(&self.released.to_le_bytes());
        out.push(u8::from(self.close));
        out.extend_from_slice(self.bytes);
    }

    pub(super) fn decode(reader: &mut Reader<'a>) -> Result<Self, NodeMessageError> {
        Ok(Output {
            conn: reader.u64()?,
            released: reader.u64()?,
            close: match reader.u8()? {
                0 => false,
                1 => true,
                _ => return Err(NodeMessageError::Field("close")),
            },
            bytes: reader.take_rest(),
        })
    }
}
