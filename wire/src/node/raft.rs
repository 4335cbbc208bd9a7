//! Raft messages and durable reports. The fields are those of Raft as the `raft`
//! crate (0.7) has them; they travel in this format, never as protobuf.

use super::reader::{NodeMessageError, Reader};

/// Raft messages that nodes exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RaftKind {
    Append = 1,
    AppendResponse = 2,
    Vote = 3,
    VoteResponse = 4,
    PreVote = 5,
    PreVoteResponse = 6,
    Heartbeat = 7,
    HeartbeatResponse = 8,
    TransferLeader = 9,
    TimeoutNow = 10,
    ReadIndex = 11,
    ReadIndexResponse = 12,
}

impl RaftKind {
    fn from_raw(raw: u8) -> Option<Self> {
        Some(match raw {
            1 => RaftKind::Append,
            2 => RaftKind::AppendResponse,
            3 => RaftKind::Vote,
            4 => RaftKind::VoteResponse,
            5 => RaftKind::PreVote,
            6 => RaftKind::PreVoteResponse,
            7 => RaftKind::Heartbeat,
            8 => RaftKind::HeartbeatResponse,
            9 => RaftKind::TransferLeader,
            10 => RaftKind::TimeoutNow,
            11 => RaftKind::ReadIndex,
            12 => RaftKind::ReadIndexResponse,
            _ => return None,
        })
    }
}

/// Longest context, in bytes.
pub const MAX_CONTEXT_BYTES: usize = u16::MAX as usize;

/// The fields of a Raft message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RaftHead {
    pub group: u32,
    /// Of the group's history; older ones are refused.
    pub generation: u32,
    pub kind: RaftKind,
    pub reject: bool,
    /// Peer ids.
    pub from: u64,
    pub to: u64,
    pub term: u64,
    pub log_term: u64,
    pub index: u64,
    pub commit: u64,
    pub commit_term: u64,
    pub reject_hint: u64,
    pub request_snapshot: u64,
    /// How many entries follow.
    pub entries: u32,
}

impl RaftHead {
    pub(super) fn encode(&self, context: &[u8], out: &mut Vec<u8>) {
        let context = context.get(..MAX_CONTEXT_BYTES).unwrap_or(context);
        out.extend_from_slice(&self.group.to_le_bytes());
        out.extend_from_slice(&self.generation.to_le_bytes());
        out.extend_from_slice(&[self.kind as u8, u8::from(self.reject)]);
        out.extend_from_slice(&(context.len() as u16).to_le_bytes());
        for word in [
            self.from,
            self.to,
            self.term,
            self.log_term,
            self.index,
            self.commit,
            self.commit_term,
            self.reject_hint,
            self.request_snapshot,
        ] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.entries.to_le_bytes());
        out.extend_from_slice(context);
    }
}

/// A Raft message, its entries in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaftMessage<'a> {
    pub head: RaftHead,
    pub context: &'a [u8],
    pub entries: Entries<'a>,
}

impl<'a> RaftMessage<'a> {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        self.head.encode(self.context, out);
        out.extend_from_slice(self.entries.bytes);
    }

    pub(super) fn decode(reader: &mut Reader<'a>) -> Result<Self, NodeMessageError> {
        let (group, generation) = (reader.u32()?, reader.u32()?);
        let kind = RaftKind::from_raw(reader.u8()?).ok_or(NodeMessageError::Field("kind"))?;
        let reject = match reader.u8()? {
            0 => false,
            1 => true,
            _ => return Err(NodeMessageError::Field("reject")),
        };
        let context_bytes = usize::from(reader.u16()?);
        let head = RaftHead {
            group,
            generation,
            kind,
            reject,
            from: reader.u64()?,
            to: reader.u64()?,
            term: reader.u64()?,
            log_term: reader.u64()?,
            index: reader.u64()?,
            commit: reader.u64()?,
            commit_term: reader.u64()?,
            reject_hint: reader.u64()?,
            request_snapshot: reader.u64()?,
            entries: reader.u32()?,
        };
        let context = reader.bytes(context_bytes)?;
        let entries = Entries::check(head.entries, reader)?;
        Ok(RaftMessage {
            head,
            context,
            entries,
        })
    }
}

const SYNC: u8 = 1;
const MEMBERSHIP: u8 = 2;

/// One entry of a group's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    pub term: u64,
    pub index: u64,
    /// Somebody waits for it at durable.
    pub sync: bool,
    /// It changes the group's membership.
    pub membership: bool,
    pub payload: &'a [u8],
}

impl Entry<'_> {
    /// Bytes in front of an entry's payload.
    pub const HEAD_BYTES: usize = 21;

    /// Appends what stands in front of the payload.
    pub fn encode_head(&self, out: &mut Vec<u8>) {
        Self::encode_fields(
            self.term,
            self.index,
            self.sync,
            self.membership,
            self.payload.len() as u32,
            out,
        );
    }

    /// As [`Entry::encode_head`], for a payload of `len` bytes that the caller appends.
    pub fn encode_fields(
        term: u64,
        index: u64,
        sync: bool,
        membership: bool,
        len: u32,
        out: &mut Vec<u8>,
    ) {
        out.extend_from_slice(&term.to_le_bytes());
        out.extend_from_slice(&index.to_le_bytes());
        out.extend_from_slice(&len.to_le_bytes());
        let sync = if sync { SYNC } else { 0 };
        out.push(sync | if membership { MEMBERSHIP } else { 0 });
    }
}

/// Entries of a message, checked and in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entries<'a> {
    bytes: &'a [u8],
}

impl<'a> Entries<'a> {
    fn check(count: u32, reader: &mut Reader<'a>) -> Result<Self, NodeMessageError> {
        let bytes = reader.rest();
        for _ in 0..count {
            read_entry(reader)?;
        }
        Ok(Entries { bytes })
    }

    /// In index order, as they were sent.
    pub fn iter(&self) -> impl Iterator<Item = Entry<'a>> {
        let mut reader = Reader::new(self.bytes);
        std::iter::from_fn(move || read_entry(&mut reader).ok())
    }
}

fn read_entry<'a>(reader: &mut Reader<'a>) -> Result<Entry<'a>, NodeMessageError> {
    let (term, index) = (reader.u64()?, reader.u64()?);
    let len = reader.u32()? as usize;
    let flags = reader.u8()?;
    if flags & !(SYNC | MEMBERSHIP) != 0 {
        return Err(NodeMessageError::Field("entry flags"));
    }
    Ok(Entry {
        term,
        index,
        sync: flags & SYNC != 0,
        membership: flags & MEMBERSHIP != 0,
        payload: reader.bytes(len)?,
    })
}

/// A follower of a group that answers at written tells how far it is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DurableReport {
    pub group: u32,
    pub generation: u32,
    /// Peer ids.
    pub from: u64,
    pub to: u64,
    /// The leader's term under which the entries were acknowledged.
    pub term: u64,
    /// Entries up to this one are durable, and were acknowledged to this leader.
    pub index: u64,
}

impl DurableReport {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.group.to_le_bytes());
        out.extend_from_slice(&self.generation.to_le_bytes());
        for word in [self.from, self.to, self.term, self.index] {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, NodeMessageError> {
        Ok(DurableReport {
            group: reader.u32()?,
            generation: reader.u32()?,
            from: reader.u64()?,
            to: reader.u64()?,
            term: reader.u64()?,
            index: reader.u64()?,
        })
    }
}
