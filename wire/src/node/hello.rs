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
//! 98  members        u8       then so many u32 LE, ascending
//!     cluster name   the rest, 1 to 64 bytes
//! ```

use super::reader::{NodeMessageError, Reader};

/// Bytes of a challenge.
pub const CHALLENGE_BYTES: usize = 32;
/// Most members of a cluster.
pub const MAX_MEMBERS: usize = 5;
/// Longest name of a cluster, in bytes.
pub const MAX_CLUSTER_NAME_BYTES: usize = 64;

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
        let members = self.members.iter().take(MAX_MEMBERS);
        out.push(members.len() as u8);
        for member in members {
            out.extend_from_slice(&member.to_le_bytes());
        }
        out.extend_from_slice(self.cluster.as_bytes());
        out
    }

    /// Reads a body.
    ///
    /// # Errors
    /// It is cut, or a field has a value that none may have.
    pub fn decode(body: &[u8]) -> Result<Self, NodeMessageError> {
        let mut reader = Reader::new(body);
        Ok(NodeHello {
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
            members: members(&mut reader)?,
            cluster: cluster(reader.take_rest())?,
        })
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

fn cluster(bytes: &[u8]) -> Result<String, NodeMessageError> {
    let name = std::str::from_utf8(bytes).ok();
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
            members: vec![1, 2, 3],
            cluster: "orders-1".to_owned(),
        }
    }

    #[test]
    fn a_hello_reads_back_and_cut_anywhere_in_its_fields_does_not() {
        let bytes = hello().encode();
        assert_eq!(NodeHello::decode(&bytes), Ok(hello()));
        let fields = bytes.len() - "orders-1".len();
        for cut in 0..=fields {
            assert!(NodeHello::decode(&bytes[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn values_that_none_may_have_are_refused() {
        for (at, value) in [(96, 2), (97, 2), (98, 6)] {
            let mut bytes = hello().encode();
            bytes[at] = value;
            assert!(NodeHello::decode(&bytes).is_err(), "{at}");
        }
        for name in ["", "a b", "ä", "\u{1b}[2J", &"n".repeat(65)] {
            let cluster = name.to_owned();
            let bytes = NodeHello { cluster, ..hello() }.encode();
            assert!(NodeHello::decode(&bytes).is_err(), "{name:?}");
        }
    }
}
