//! Bytes of a link that were received and not handled yet.

use std::io;

use futures_lite::AsyncReadExt;
use glommio::net::TcpStream;
use wire::node::{
    NodeFrameError, NodeFrameHeader, MAX_NODE_BODY_BYTES, MAX_NODE_HELLO_BYTES, NODE_HEADER_BYTES,
    NODE_MAGIC,
};

/// Enough for a hello: what a stranger makes us hold.
const START_BYTES: usize = NODE_HEADER_BYTES + MAX_NODE_HELLO_BYTES as usize;
/// A buffer shrinks to this once it is empty.
const STEADY_BYTES: usize = 256 << 10;
const MOST_BYTES: usize = NODE_HEADER_BYTES + MAX_NODE_BODY_BYTES as usize;

pub(super) struct Receive {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Receive {
    pub(super) fn new() -> Self {
        Receive {
            bytes: vec![0; START_BYTES],
            start: 0,
            end: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The next whole frame, if it is here. A peer that speaks something else
    /// is known by its first four bytes.
    pub(super) fn frame(&self, limit: u32) -> Result<Option<NodeFrameHeader>, NodeFrameError> {
        let held = &self.bytes[self.start..self.end];
        let Some((header, rest)) = held.split_first_chunk::<NODE_HEADER_BYTES>() else {
            return match held.first_chunk::<4>() {
                Some(found) if *found != NODE_MAGIC => Err(NodeFrameError::Magic { found: *found }),
                _ => Ok(None),
            };
        };
        let header = NodeFrameHeader::decode(header, limit)?;
        Ok((rest.len() >= header.length as usize).then_some(header))
    }

    pub(super) fn body(&self, header: &NodeFrameHeader) -> &[u8] {
        let at = self.start + NODE_HEADER_BYTES;
        &self.bytes[at..at + header.length as usize]
    }

    pub(super) fn consume(&mut self, header: &NodeFrameHeader) {
        self.start += NODE_HEADER_BYTES + header.length as usize;
        if self.start == self.end {
            self.clear();
        }
    }

    fn clear(&mut self) {
        self.start = 0;
        self.end = 0;
    }

    /// Room to read into. Memory follows the bytes that really came, never a
    /// length somebody claims.
    fn room(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.bytes.len() {
            let doubled = (self.bytes.len() * 2).min(MOST_BYTES);
            self.bytes.resize(doubled.max(self.end + 1), 0);
        } else if self.end == 0 && self.bytes.len() > STEADY_BYTES {
            self.bytes = vec![0; STEADY_BYTES];
        }
        &mut self.bytes[self.end..]
    }

    pub(super) async fn fill(&mut self, stream: &mut TcpStream) -> io::Result<usize> {
        let read = stream.read(self.room()).await?;
        self.end += read;
        Ok(read)
    }

    /// Reads without keeping, until the peer closes or `most` bytes came.
    pub(super) async fn discard(&mut self, stream: &mut TcpStream, most: usize) {
        let mut left = most;
        while left > 0 {
            self.clear();
            match self.fill(stream).await {
                Ok(0) | Err(_) => return,
                Ok(read) => left = left.saturating_sub(read),
            }
        }
    }

    #[cfg(test)]
    fn put(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.room()[0] = *byte;
            self.end += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use wire::node::NodeFrameKind;

    use super::{super::session::plain_frame, *};

    #[test]
    fn frames_come_out_whole_however_they_came_in_and_the_buffer_shrinks_again() {
        let mut receive = Receive::new();
        let large = vec![7; 3 << 20];
        for body in [&b""[..], b"one", &large, b"two"] {
            let frame = plain_frame(NodeFrameKind::Body, body);
            let (last, most) = frame.split_last().unwrap();
            receive.put(most);
            if most.len() >= 4 {
                assert_eq!(receive.frame(MAX_NODE_BODY_BYTES), Ok(None));
            }
            receive.put(&[*last]);
            let header = receive.frame(MAX_NODE_BODY_BYTES).unwrap().unwrap();
            assert_eq!(receive.body(&header), body);
            receive.consume(&header);
            assert!(receive.is_empty());
        }
        receive.put(b"T");
        assert!(receive.bytes.len() <= STEADY_BYTES);
        receive.put(b"DGT");
        let found = *b"TDGT";
        let error = receive.frame(MAX_NODE_BODY_BYTES);
        assert_eq!(error, Err(NodeFrameError::Magic { found }));
    }
}
