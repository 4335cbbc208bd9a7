//! A node written by hand from the page of the protocol, so that it can do what
//! a node never does.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use wire::node::{
    NodeFrameHeader, NodeFrameKind, NodeHello, Refusal, RefusalCode, CHALLENGE_BYTES,
    MAX_NODE_BODY_BYTES, NODE_CHECKED_BYTES, NODE_CHECKSUM_BYTES, NODE_HEADER_BYTES,
};

use crate::support::PATIENCE;

pub type Key = [u8; 32];
const PLAIN: Key = [0; 32];

/// A hello of node 2 of 3 to node 1, as the tests' clusters have them: one
/// shard, 32 data groups, no secret.
pub fn hello() -> NodeHello {
    NodeHello {
        from: 2,
        to: 1,
        shard: 0,
        shards: 1,
        data_groups: 32,
        cookie: 77,
        open_counter: 1,
        nonce: 5,
        challenge: [9; CHALLENGE_BYTES],
        token: 0,
        last_token: 0,
        recorded: 0,
        has_secret: false,
        joins: false,
        level: 2,
        roster: 0,
        members: vec![1, 2, 3],
        cluster: "test".to_owned(),
    }
}

fn checksum(key: &Key, header: &[u8], body: &[u8]) -> [u8; NODE_CHECKSUM_BYTES] {
    let bytes = [&header[..NODE_CHECKED_BYTES], body].concat();
    let hash = blake3::keyed_hash(key, &bytes);
    *hash.as_bytes().first_chunk().unwrap()
}

/// A whole frame under this key.
pub fn frame(key: &Key, kind: NodeFrameKind, sequence: u64, body: &[u8]) -> Vec<u8> {
    let mut header = NodeFrameHeader {
        kind,
        length: body.len() as u32,
        sequence,
        checksum: [0; NODE_CHECKSUM_BYTES],
    };
    header.checksum = checksum(key, &header.encode(), body);
    [&header.encode(), body].concat()
}

pub fn plain(kind: NodeFrameKind, body: &[u8]) -> Vec<u8> {
    frame(&PLAIN, kind, 0, body)
}

/// The caller's and the called one's key.
fn keys(secret: &[u8], caller: &[u8], called: &[u8]) -> (Key, Key) {
    let root = blake3::derive_key("tidegate node link 1", secret);
    let length = (caller.len() as u32).to_le_bytes();
    let session = blake3::keyed_hash(&root, &[&length, caller, called].concat());
    let of = |side: &[u8]| *blake3::keyed_hash(session.as_bytes(), side).as_bytes();
    (of(b"caller"), of(b"called"))
}

/// What came, or that nothing will.
#[derive(Debug)]
pub enum Heard {
    Frame(NodeFrameKind, u64, Vec<u8>),
    Refused(RefusalCode, String),
    Closed,
}

/// A connection.
pub struct RawNode {
    pub stream: TcpStream,
}

impl RawNode {
    pub fn connect(address: SocketAddr) -> Self {
        Self::new(TcpStream::connect(address).unwrap())
    }

    pub fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        RawNode { stream }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next frame, its checksum verified under `key` (of a refusal also as
    /// a plain one).
    pub fn hear(&mut self, key: &Key) -> Heard {
        let mut head = [0; NODE_HEADER_BYTES];
        if let Err(error) = self.stream.read_exact(&mut head) {
            let ended = error.kind() != std::io::ErrorKind::WouldBlock;
            assert!(ended, "the server neither spoke nor closed");
            return Heard::Closed;
        }
        let header = NodeFrameHeader::decode(&head, MAX_NODE_BODY_BYTES).unwrap();
        let mut body = vec![0; header.length as usize];
        self.stream.read_exact(&mut body).unwrap();
        let of = |key| checksum(key, &head, &body) == header.checksum;
        let is_refusal = header.kind == NodeFrameKind::Refuse;
        assert!(of(key) || is_refusal && of(&PLAIN), "{header:?}");
        if is_refusal {
            let refusal = Refusal::decode(&body);
            return Heard::Refused(refusal.code, refusal.reason);
        }
        Heard::Frame(header.kind, header.sequence, body)
    }

    pub fn hear_plain(&mut self) -> Heard {
        self.hear(&PLAIN)
    }

    /// The kind of the next frame, which is plain.
    pub fn hear_plain_frame(&mut self) -> NodeFrameKind {
        match self.hear_plain() {
            Heard::Frame(kind, _, _) => kind,
            other => panic!("{other:?}"),
        }
    }

    /// Passes over a frame whose key is not known.
    pub fn skip_frame(&mut self) {
        let mut head = [0; NODE_HEADER_BYTES];
        self.stream.read_exact(&mut head).unwrap();
        let header = NodeFrameHeader::decode(&head, MAX_NODE_BODY_BYTES).unwrap();
        let mut body = vec![0; header.length as usize];
        self.stream.read_exact(&mut body).unwrap();
    }

    /// The code it is refused with; bodies before it are passed over.
    pub fn refusal(&mut self, key: &Key) -> (RefusalCode, String) {
        loop {
            match self.hear(key) {
                Heard::Refused(code, reason) => return (code, reason),
                Heard::Frame(..) => {}
                Heard::Closed => panic!("closed without a word"),
            }
        }
    }

    /// Says hello and is refused.
    pub fn refused_as(address: SocketAddr, hello: &NodeHello) -> RefusalCode {
        let mut node = Self::connect(address);
        node.send(&plain(NodeFrameKind::Hello, &hello.encode()));
        node.refusal(&PLAIN).0
    }

    /// Says hello, hears the answer and its proof: both keys, its own first.
    pub fn half_way(&mut self, hello: &NodeHello, secret: &[u8]) -> (Key, Key) {
        let caller = hello.encode();
        self.send(&plain(NodeFrameKind::Hello, &caller));
        let called = match self.hear_plain() {
            Heard::Frame(NodeFrameKind::Hello, 0, body) => body,
            other => panic!("{other:?}"),
        };
        let (own, other) = keys(secret, &caller, &called);
        match self.hear(&other) {
            Heard::Frame(NodeFrameKind::Proof, 1, body) => assert!(body.is_empty()),
            other => panic!("{other:?}"),
        }
        (own, other)
    }
}

/// A link of a node made by hand.
pub struct RawLink {
    pub node: RawNode,
    pub own: Key,
    pub other: Key,
    /// Of the next frame.
    pub sequence: u64,
}

impl RawLink {
    /// # Errors
    /// It is refused.
    pub fn make(
        address: SocketAddr,
        hello: &NodeHello,
        secret: &[u8],
    ) -> Result<Self, (RefusalCode, String)> {
        let mut node = RawNode::connect(address);
        let (own, other) = node.half_way(hello, secret);
        node.send(&frame(&own, NodeFrameKind::Proof, 1, &[]));
        match node.hear(&other) {
            Heard::Frame(NodeFrameKind::Welcome, 2, _) => {}
            Heard::Refused(code, reason) => return Err((code, reason)),
            other => panic!("{other:?}"),
        }
        let sequence = 2;
        Ok(RawLink {
            node,
            own,
            other,
            sequence,
        })
    }

    /// A body that says nothing, under the next number.
    pub fn empty_body(&mut self) -> Vec<u8> {
        self.sequence += 1;
        frame(&self.own, NodeFrameKind::Body, self.sequence - 1, &[])
    }

    pub fn refusal(&mut self) -> (RefusalCode, String) {
        self.node.refusal(&self.other)
    }

    /// The server still takes it for linked: it reads, and does not close.
    pub fn assert_up(&mut self) {
        let bytes = self.empty_body();
        self.node.send(&bytes);
        let quiet = std::time::Duration::from_millis(50);
        self.node.stream.set_read_timeout(Some(quiet)).unwrap();
        let mut buffer = [0; 1 << 16];
        match self.node.stream.peek(&mut buffer) {
            Ok(0) => panic!("the server closed"),
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
        self.node.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
}
