//! A group's state, streamed to a replica that cannot be brought up from the log.

use super::reader::{NodeMessageError, Reader};

/// Which snapshot, between whom. Another leader's or another index's is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotId {
    pub group: u32,
    /// Of the group's history.
    pub generation: u32,
    /// Peer ids.
    pub from: u64,
    pub to: u64,
    /// The leader's term.
    pub term: u64,
    /// Everything up to this entry is in it, and its term.
    pub index: u64,
    pub index_term: u64,
}

impl SnapshotId {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.group.to_le_bytes());
        out.extend_from_slice(&self.generation.to_le_bytes());
        for word in [self.from, self.to, self.term, self.index, self.index_term] {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, NodeMessageError> {
        Ok(SnapshotId {
            group: reader.u32()?,
            generation: reader.u32()?,
            from: reader.u64()?,
            to: reader.u64()?,
            term: reader.u64()?,
            index: reader.u64()?,
            index_term: reader.u64()?,
        })
    }
}

/// One piece; the next follows when it was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotPiece<'a> {
    pub id: SnapshotId,
    /// Counts from 0.
    pub number: u32,
    /// The engine's, see its module on snapshots.
    pub bytes: &'a [u8],
}

impl<'a> SnapshotPiece<'a> {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        self.id.encode(out);
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(self.bytes);
    }

    pub(super) fn decode(reader: &mut Reader<'a>) -> Result<Self, NodeMessageError> {
        Ok(SnapshotPiece {
            id: SnapshotId::decode(reader)?,
            number: reader.u32()?,
            bytes: reader.take_rest(),
        })
    }
}

/// What became of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SnapshotAnswer {
    /// The next one, please.
    Taken = 1,
    /// It was the last, and the state is in place.
    Installed = 2,
    /// It is not wanted, or does not fit what came before: begin anew if needed.
    Refused = 3,
}

/// The receiver's answer to a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotTaken {
    pub id: SnapshotId,
    pub number: u32,
    pub answer: SnapshotAnswer,
}

impl SnapshotTaken {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        self.id.encode(out);
        out.extend_from_slice(&self.number.to_le_bytes());
        out.push(self.answer as u8);
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, NodeMessageError> {
        Ok(SnapshotTaken {
            id: SnapshotId::decode(reader)?,
            number: reader.u32()?,
            answer: match reader.u8()? {
                1 => SnapshotAnswer::Taken,
                2 => SnapshotAnswer::Installed,
                3 => SnapshotAnswer::Refused,
                _ => return Err(NodeMessageError::Field("snapshot answer")),
            },
        })
    }
}
