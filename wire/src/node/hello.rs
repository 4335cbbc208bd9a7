//! What a node says of itself before anything else on a link.
//!
//! ```text
//! 0   from           u32 LE
//! 4   to             u32 LE
//! 8   shard          u16 LE   the link is between this shard of both
//! 10  shards         u16 LE
//! 12  data groups    u32 LE
//! 16  cookie         u64 LE   of the data directory
//! 24  open counter   u64 LE   of the shard's log
//! 32  nonce          u64 LE   of this start of the process
//! 40  challenge      32 bytes of this connection
//! 72  token          u64 LE   of the directory, until it is known to be recorded
//! 80  last token     u64 LE   the one before, which was recorded
//! 88  recorded       u64 LE   open counter of the last open known to be recorded
//! 96  has a secret   u8       0 or 1
//! 97  joins          u8       1: the directory was made to join
//! 98  feature level  u16 LE   what the sender's version knows, from 1
//! 100 roster         u64 LE   revision of the roster that it knows; 0 = none
//! 108 members        u8       then so many u32 LE, ascending
//!     cluster name   u8       then so many bytes, 1 to 64
//!     extensions     u8       then so many: kind u16 LE, length u16 LE, bytes
//! ```
//!
//! None of the extensions has a meaning yet. One whose kind is not known is passed over;
//! from [`CRITICAL_EXTENSION`] on it is refused.

use super::{
    reader::{NodeMessageError, Reader},
    roster::put_text,
};

/// Bytes of a challenge.
pub const CHALLENGE_BYTES: usize = 32;
/// Most members of a cluster.
pub const MAX_MEMBERS: usize = 5;
/// Longest name of a cluster, in bytes.
pub const MAX_CLUSTER_NAME_BYTES: usize = 64;

/// From this kind on an extension must be understood or refused.
const CRITICAL_EXTENSION: u16 = 0x8000;

/// A node's hello.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeHello {
    pub from: u32,
    pub to: u32,
    pub shard: u16,
    pub shards: u16,
    pub data_groups: u32,
    pub cookie: u64,
    pub open_counter: u64,
    pub nonce: u64,
    pub challenge: [u8; CHALLENGE_BYTES],
    /// What the directory has heard of its earlier opens: see the module head.
    pub token: u64,
    pub last_token: u64,
    pub recorded: u64,
    pub has_secret: bool,
    /// The directory was made to join.
    pub joins: bool,
    /// Feature level of the sender's version; never 0.
    pub level: u16,
    /// Revision of the roster that the sender knows; 0 = none.
    pub roster: u64,
    /// Ascending.
    pub members: Vec<u32>,
    pub cluster: String,
}

/// True for what can be a cluster's name: 1 to [`MAX_CLUSTER_NAME_BYTES`] of
/// ASCII letters, digits, `-`, `_` and `.`.
pub fn is_cluster_name(name: &str) -> bool {
    let good = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    (1..=MAX_CLUSTER_NAME_BYTES).contains(&name.len()) && name.bytes().all(good)
}

impl NodeHello {
    /// The frame's body.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        out.extend_from_slice(&self.from.to_le_bytes());
        out.extend_from_slice(&self.to.to_le_bytes());
        out.extend_from_slice(&self.shard.to_le_bytes());
        out.extend_from_slice(&self.shards.to_le_bytes());
        out.extend_from_slice(&self.data_groups.to_le_bytes());
        for word in [self.cookie, self.open_counter, self.nonce] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.challenge);
        for word in [self.token, self.last_token, self.recorded] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.push(u8::from(self.has_secret));
        out.push(u8::from(self.joins));
        out.extend_from_slice(&self.level.to_le_bytes());
        out.extend_from_slice(&self.roster.to_le_bytes());
        let members = self.members.iter().take(MAX_MEMBERS);
        out.push(members.len() as u8);
        for member in members {
            out.extend_from_slice(&member.to_le_bytes());
        }
        put_text(&mut out, &self.cluster);
        out.push(0);
        out
    }

    /// Reads a body.
    ///
    /// # Errors
    /// It is cut, or a field has a value that none may have.
    pub fn decode(body: &[u8]) -> Result<Self, NodeMessageError> {
        let mut reader = Reader::new(body);
        let hello = NodeHello {
            from: reader.u32()?,
            to: reader.u32()?,
            shard: reader.u16()?,
            shards: reader.u16()?,
            data_groups: reader.u32()?,
            cookie: reader.u64()?,
            open_counter: reader.u64()?,
            nonce: reader.u64()?,
            challenge: reader.array()?,
            token: reader.u64()?,
            last_token: reader.u64()?,
            recorded: reader.u64()?,
            has_secret: truth(&mut reader, "has a secret")?,
            joins: truth(&mut reader, "joins")?,
            level: level(&mut reader)?,
            roster: reader.u64()?,
            members: members(&mut reader)?,
            cluster: cluster(&mut reader)?,
        };
        pass_over_extensions(&mut reader)?;
        reader.end()?;
        Ok(hello)
    }
}

fn truth(reader: &mut Reader<'_>, field: &'static str) -> Result<bool, NodeMessageError> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(NodeMessageError::Field(field)),
    }
}

fn members(reader: &mut Reader<'_>) -> Result<Vec<u32>, NodeMessageError> {
    let count = usize::from(reader.u8()?);
    if count > MAX_MEMBERS {
        return Err(NodeMessageError::Field("members"));
    }
    (0..count).map(|_| reader.u32()).collect()
}

fn level(reader: &mut Reader<'_>) -> Result<u16, NodeMessageError> {
    match reader.u16()? {
        0 => Err(NodeMessageError::Field("feature level")),
        level => Ok(level),
    }
}

fn pass_over_extensions(reader: &mut Reader<'_>) -> Result<(), NodeMessageError> {
    for _ in 0..reader.u8()? {
        let (kind, len) = (reader.u16()?, reader.u16()?);
        reader.bytes(len.into())?;
        if kind >= CRITICAL_EXTENSION {
            return Err(NodeMessageError::Field("extension"));
        }
    }
    Ok(())
}

fn cluster(reader: &mut Reader<'_>) -> Result<String, NodeMessageError> {
    let len = usize::from(reader.u8()?);
    let name = std::str::from_utf8(reader.bytes(len)?).ok();
    let name = name.filter(|name| is_cluster_name(name));
    name.map(str::to_owned)
        .ok_or(NodeMessageError::Field("cluster name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> NodeHello {
        NodeHello {
            from: 2,
            to: 1,
            shard: 3,
            shards: 4,
            data_groups: 32,
            cookie: 5,
            open_counter: 6,
            nonce: 7,
            challenge: [8; CHALLENGE_BYTES],
            token: 9,
            last_token: 10,
            recorded: 4,
            has_secret: true,
            joins: true,
            level: 258,
            roster: 11,
            members: vec![1, 2, 3],
            cluster: "orders-1".to_owned(),
        }
    }

    #[test]
    fn a_hello_is_these_bytes_and_cut_anywhere_it_is_none() {
        let mut expected = vec![2, 0, 0, 0, 1, 0, 0, 0, 3, 0, 4, 0, 32, 0, 0, 0];
        for word in [5, 6, 7u64] {
            expected.extend_from_slice(&word.to_le_bytes());
        }
        expected.extend_from_slice(&[8; CHALLENGE_BYTES]);
        for word in [9, 10, 4u64] {
            expected.extend_from_slice(&word.to_le_bytes());
        }
        expected.extend_from_slice(&[1, 1, 2, 1, 11, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend_from_slice(&[3, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
        expected.extend_from_slice(b"\x08orders-1\x00");
        let bytes = hello().encode();
        assert_eq!(bytes, expected);
        assert_eq!(NodeHello::decode(&bytes), Ok(hello()));
        for cut in 0..bytes.len() {
            assert!(NodeHello::decode(&bytes[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn an_unknown_extension_is_passed_over_and_a_critical_one_is_refused() {
        let mut bytes = hello().encode();
        *bytes.last_mut().unwrap() = 2;
        bytes.extend_from_slice(b"\x07\x00\x03\x00abc\xff\x7f\x00\x00");
        assert_eq!(NodeHello::decode(&bytes), Ok(hello()));
        let whole = bytes.len();
        bytes.push(0);
        assert!(NodeHello::decode(&bytes).is_err(), "bytes behind it");
        bytes[whole - 3] = 0x80;
        assert!(NodeHello::decode(&bytes[..whole]).is_err(), "critical");
    }

    #[test]
    fn values_that_none_may_have_are_refused() {
        for (at, value) in [(96, 2), (97, 2), (108, 6)] {
            let mut bytes = hello().encode();
            bytes[at] = value;
            assert!(NodeHello::decode(&bytes).is_err(), "{at}");
        }
        let level = 0;
        let bytes = NodeHello { level, ..hello() }.encode();
        assert!(NodeHello::decode(&bytes).is_err(), "level 0");
        for name in ["", "a b", "ä", "\u{1b}[2J", &"n".repeat(65)] {
            let cluster = name.to_owned();
            let bytes = NodeHello { cluster, ..hello() }.encode();
            assert!(NodeHello::decode(&bytes).is_err(), "{name:?}");
        }
    }
}
