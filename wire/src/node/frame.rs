//! The frame between nodes: a plain fixed header in front of every body.
//!
//! ```text
//! 0  magic     4 bytes  "TDGN"
//! 4  version   u16 LE   [`NODE_PROTOCOL_VERSION`]
//! 6  kind      u8       see [`NodeFrameKind`]
//! 7  zero      u8
//! 8  length    u32 LE   body bytes that follow
//! 12 zero      u32
//! 16 sequence  u64 LE   0 in plain frames; keyed ones count 1, 2, 3 … in each
//!                       direction
//! 24 checksum  16 bytes over bytes 0 to 23 and the body
//! ```
//!
//! Plain frames are each side's hello and what is refused before both have proved
//! themselves; their checksum has a key that everybody knows. The others have the
//! key of this connection and direction.
//!
//! Owns: these 40 bytes and the numbers of kinds and refusals. It holds no key:
//! whoever has one computes and compares the checksum.
//!
//! Invariants:
//! 1. What [`NodeFrameHeader::decode`] accepts, `encode` writes back byte for byte.
//! 2. A length is compared with its limit before anyone sees it.
//! 3. Magic, version, kind, length and the body of a refusal stay where they are
//!    in every version, so that versions can refuse each other in words.

use thiserror::Error;

use super::{HEAD_BYTES, NODE_PROTOCOL_VERSION};

/// Header length in bytes.
pub const NODE_HEADER_BYTES: usize = 40;
/// Bytes of the header that the checksum covers, in front of it.
pub const NODE_CHECKED_BYTES: usize = 24;
/// Bytes of a checksum.
pub const NODE_CHECKSUM_BYTES: usize = 16;
/// First four bytes of every frame.
pub const NODE_MAGIC: [u8; 4] = *b"TDGN";
/// Longest body on a link that is up, in bytes (32 MiB).
pub const MAX_NODE_BODY_BYTES: u32 = 32 << 20;
/// Longest body before that: what a stranger may make us hold.
pub const MAX_NODE_HELLO_BYTES: u32 = 1024;
/// Longest reason of a refusal in bytes of UTF-8.
pub const MAX_REFUSAL_BYTES: usize = 512;

/// What a frame's body is. Numbers never change meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum NodeFrameKind {
    /// A [`super::NodeHello`]; the first frame of each side.
    Hello = 1,
    /// Empty; that its checksum is right proves that its sender has the secret.
    Proof = 2,
    /// Empty; the node that was called takes the link as up.
    Welcome = 3,
    /// Messages of [`super::NodeMessages`].
    Body = 4,
    /// A [`Refusal`]; the link ends behind it.
    Refuse = 5,
}

impl NodeFrameKind {
    fn from_raw(raw: u8) -> Option<Self> {
        Some(match raw {
            1 => NodeFrameKind::Hello,
            2 => NodeFrameKind::Proof,
            3 => NodeFrameKind::Welcome,
            4 => NodeFrameKind::Body,
            5 => NodeFrameKind::Refuse,
            _ => return None,
        })
    }
}

/// Why a header was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NodeFrameError {
    #[error("not a frame between nodes: the first four bytes are {found:02x?}, expected \"TDGN\"")]
    Magic { found: [u8; 4] },
    #[error("version {found} of the protocol between nodes is not supported; this side speaks version {NODE_PROTOCOL_VERSION}")]
    Version { found: u16 },
    #[error("frame kind {0} between nodes is not known")]
    Kind(u8),
    #[error("reserved bytes of a header between nodes are not zero")]
    Reserved,
    #[error("a body of {length} bytes between nodes is above the limit of {limit}")]
    TooLong { length: u32, limit: u32 },
}

/// A decoded header; its checksum is not checked yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeFrameHeader {
    pub kind: NodeFrameKind,
    /// Body length in bytes, at most the limit it was decoded with.
    pub length: u32,
    pub sequence: u64,
    pub checksum: [u8; NODE_CHECKSUM_BYTES],
}

impl NodeFrameHeader {
    /// Reads a header. `limit` is the longest body accepted here.
    ///
    /// # Errors
    /// See [`NodeFrameError`].
    pub fn decode(bytes: &[u8; NODE_HEADER_BYTES], limit: u32) -> Result<Self, NodeFrameError> {
        let magic = chunk(bytes, 0);
        if magic != NODE_MAGIC {
            return Err(NodeFrameError::Magic { found: magic });
        }
        let version = u16::from_le_bytes(chunk(bytes, 4));
        if version != NODE_PROTOCOL_VERSION {
            return Err(NodeFrameError::Version { found: version });
        }
        let kind = NodeFrameKind::from_raw(bytes[6]).ok_or(NodeFrameError::Kind(bytes[6]))?;
        if bytes[7] != 0 || chunk::<4>(bytes, 12) != [0; 4] {
            return Err(NodeFrameError::Reserved);
        }
        let length = u32::from_le_bytes(chunk(bytes, 8));
        if length > limit {
            return Err(NodeFrameError::TooLong { length, limit });
        }
        Ok(NodeFrameHeader {
            kind,
            length,
            sequence: u64::from_le_bytes(chunk(bytes, 16)),
            checksum: chunk(bytes, NODE_CHECKED_BYTES),
        })
    }

    /// The header's bytes.
    pub fn encode(&self) -> [u8; NODE_HEADER_BYTES] {
        let mut out = [0; NODE_HEADER_BYTES];
        out[..4].copy_from_slice(&NODE_MAGIC);
        out[4..6].copy_from_slice(&NODE_PROTOCOL_VERSION.to_le_bytes());
        out[6] = self.kind as u8;
        out[8..12].copy_from_slice(&self.length.to_le_bytes());
        out[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        out[NODE_CHECKED_BYTES..].copy_from_slice(&self.checksum);
        out
    }
}

fn chunk<const N: usize>(bytes: &[u8; NODE_HEADER_BYTES], at: usize) -> [u8; N] {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().unwrap_or([0; N])
}

/// How many bytes of whole messages at the beginning of a body fit `limit`;
/// `None` when its first message alone does not.
pub fn messages_within(body: &[u8], limit: usize) -> Option<usize> {
    let mut end = 0;
    while let Some(head) = body.get(end..).and_then(<[u8]>::first_chunk::<HEAD_BYTES>) {
        let [_, _, _, _, length @ ..] = *head;
        let next = end + HEAD_BYTES + u32::from_le_bytes(length) as usize;
        if next > limit || next > body.len() {
            break;
        }
        end = next;
    }
    (end > 0).then_some(end)
}

macro_rules! refusals {
    ($($(#[$doc:meta])* $name:ident = $number:literal $words:literal,)*) => {
        /// Why a node ends or refuses a link. Numbers never change meaning.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        pub enum RefusalCode { $($(#[$doc])* $name = $number,)* }

        impl RefusalCode {
            /// Every code this version knows, in numeric order.
            pub const ALL: &'static [RefusalCode] = &[$(RefusalCode::$name,)*];

            fn from_raw(raw: u16) -> Option<Self> {
                match raw { $($number => Some(RefusalCode::$name),)* _ => None }
            }

            /// In a few words, for an operator.
            pub fn words(self) -> &'static str {
                match self { $(RefusalCode::$name => $words,)* }
            }
        }
    };
}

refusals! {
    /// Another version of this protocol.
    Version = 1 "another version",
    /// Another cluster's name.
    Cluster = 2 "another cluster",
    /// The hello is for another node than the one that got it.
    WrongNode = 3 "meant for another node",
    /// The caller says to be the node that it calls.
    SameNode = 4 "the same number",
    /// The caller is no member.
    Stranger = 5 "no member",
    /// Other members.
    Members = 6 "other members",
    /// The node with the lower number called.
    Direction = 7 "called by the lower number",
    /// Another number of shards.
    Shards = 8 "another number of shards",
    /// Another number of data groups.
    Groups = 9 "another number of groups",
    /// No secret, or another one.
    Secret = 10 "the secret",
    /// Another data directory is linked as this node.
    Duplicate = 11 "another data directory",
    /// The same opening of a log was announced by another process: a copy.
    Clone = 12 "a copy of the directory",
    /// The log was opened more often than it says: an old copy.
    RolledBack = 13 "an old copy of the directory",
    /// A frame's checksum is wrong.
    Forged = 14 "a forged frame",
    /// A frame's number is not the next one.
    Replayed = 15 "a repeated or missing frame",
    /// A length above the limit.
    TooLong = 16 "too long",
    /// Bytes that are no frame between nodes.
    Garbage = 17 "garbage",
    /// A client's frame on the port for nodes.
    ClientFrame = 18 "a client",
    /// A node's frame on the port for clients.
    ClientPort = 19 "a port for clients",
    /// A hello that did not come in time.
    Late = 20 "late",
    /// Too many connections that have not said who they are.
    Crowded = 21 "crowded out",
    /// A frame or message that does not belong there.
    Protocol = 22 "out of place",
    /// The node stops.
    Leaving = 23 "going away",
    /// The log was opened anew: so is the link.
    Reopened = 24 "its log was opened anew",
    /// The node's directory was given up, and this one has not taken its place.
    Unseated = 25 "not the node's directory",
    /// The node was removed from the cluster.
    Removed = 26 "removed from the cluster",
    /// Its version does not know what the cluster uses.
    Outdated = 27 "an older version than the cluster's",
}

/// Why a link is refused, as it travels: the code (u16 LE), then text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub code: RefusalCode,
    /// One sentence for an operator; at most [`MAX_REFUSAL_BYTES`].
    pub reason: String,
}

impl Refusal {
    pub fn new(code: RefusalCode, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Refusal { code, reason }
    }

    /// The frame's body.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = (self.code as u16).to_le_bytes().to_vec();
        let mut end = self.reason.len().min(MAX_REFUSAL_BYTES);
        while !self.reason.is_char_boundary(end) {
            end -= 1;
        }
        out.extend_from_slice(self.reason.get(..end).unwrap_or_default().as_bytes());
        out
    }

    /// Reads a body. Never fails: what is not understood is said to be so, and
    /// the text of a stranger has no control characters and a bound.
    pub fn decode(body: &[u8]) -> Self {
        let Some((code, text)) = body.split_first_chunk::<2>() else {
            return Refusal::new(RefusalCode::Protocol, "refused without a reason");
        };
        let raw = u16::from_le_bytes(*code);
        let text = text.get(..MAX_REFUSAL_BYTES).unwrap_or(text);
        let text = String::from_utf8_lossy(text).replace(char::is_control, "?");
        match RefusalCode::from_raw(raw) {
            Some(code) => Refusal::new(code, text),
            None => Refusal::new(RefusalCode::Protocol, format!("{text} (refusal {raw})")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::NodeMessage, *};

    const HEADER: NodeFrameHeader = NodeFrameHeader {
        kind: NodeFrameKind::Body,
        length: 70_000,
        sequence: 1 << 33 | 5,
        checksum: [7; NODE_CHECKSUM_BYTES],
    };

    #[test]
    fn a_header_is_these_bytes() {
        let mut expected = b"TDGN\x06\x00\x04\x00\x70\x11\x01\x00\0\0\0\0".to_vec();
        expected.extend_from_slice(&[5, 0, 0, 0, 2, 0, 0, 0]);
        expected.extend_from_slice(&[7; 16]);
        assert_eq!(HEADER.encode().as_slice(), expected);
        let back = NodeFrameHeader::decode(&HEADER.encode(), 70_000);
        assert_eq!(back, Ok(HEADER));
    }

    #[test]
    fn what_is_not_a_header_is_refused_by_kind() {
        let changed = |at: usize, byte| {
            let mut bytes = HEADER.encode();
            bytes[at] = byte;
            NodeFrameHeader::decode(&bytes, MAX_NODE_BODY_BYTES)
        };
        assert!(matches!(
            changed(3, b'T'),
            Err(NodeFrameError::Magic { .. })
        ));
        assert_eq!(changed(4, 1), Err(NodeFrameError::Version { found: 1 }));
        assert_eq!(changed(6, 99), Err(NodeFrameError::Kind(99)));
        assert_eq!(changed(7, 1), Err(NodeFrameError::Reserved));
        assert_eq!(changed(13, 1), Err(NodeFrameError::Reserved));
        assert!(matches!(
            changed(11, 9),
            Err(NodeFrameError::TooLong { .. })
        ));
        let limit = 69_999;
        let error = NodeFrameHeader::decode(&HEADER.encode(), limit).unwrap_err();
        assert_eq!(
            error,
            NodeFrameError::TooLong {
                length: 70_000,
                limit
            }
        );
    }

    #[test]
    fn a_body_is_split_between_messages_only() {
        let mut body = Vec::new();
        for conn in 0..5 {
            NodeMessage::OutputTaken { conn }.encode(&mut body);
        }
        assert_eq!(body.len(), 80);
        assert_eq!(messages_within(&body, 80), Some(80));
        assert_eq!(messages_within(&body, 79), Some(64));
        assert_eq!(messages_within(&body, 16), Some(16));
        assert_eq!(messages_within(&body, 15), None);
        assert_eq!(messages_within(&[], 15), None);
    }

    #[test]
    fn a_refusal_reads_back_and_a_stranger_s_text_is_tamed() {
        for code in RefusalCode::ALL {
            let refusal = Refusal::new(*code, "another cluster");
            assert_eq!(Refusal::decode(&refusal.encode()), refusal);
        }
        let long = Refusal::new(RefusalCode::Late, "ü".repeat(400)).encode();
        assert_eq!(long.len(), 2 + MAX_REFUSAL_BYTES);
        assert_eq!(Refusal::decode(&long).reason, "ü".repeat(256));
        assert_eq!(
            Refusal::decode(b"\x02\x00a\x1b[2J\n\xff").reason,
            "a?[2J?\u{fffd}"
        );
        assert_eq!(Refusal::decode(&[]).code, RefusalCode::Protocol);
        assert_eq!(
            Refusal::decode(&[0xff, 0xff, b'x']).reason,
            "x (refusal 65535)"
        );
    }
}
