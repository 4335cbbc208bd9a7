//! Commands of a data group's log, as bytes of an entry.
//!
//! Owns: the byte layout. Plain little-endian; the first byte is the kind, the
//! second the format version; then fixed fields in the order of the variant;
//! then, for the kinds that have one, a variable tail up to the payload's end.
//!
//! ```text
//! 1 Create        queue_id u64, partition u16, mode u8, copies u8, lease_ms u64
//! 2 Drop          queue_id u64, partition u16
//! 3 Append        queue_id u64, partition u16, stamp_ms u64, count u32, records…
//! 4 Settle        queue_id u64, partition u16, stamp_ms u64, kind u8, due_ms u64, ids…
//! 5 LeaseEnded    queue_id u64, partition u16, cause u8, ids…
//! 6 DispatchMark  queue_id u64, partition u16, mark u64
//! 7 Purge         queue_id u64, partition u16, below u64, ids…
//! 8 Weaken
//! 9 NewGeneration queue_id u64, partition u16, generation u32, first_lost u64
//! 10 AppendOnce   queue_id u64, partition u16, stamp_ms u64, count u32,
//!                 producer u64, epoch u32, sequence u64, records…
//! 19 Change       queue_id u64, partition u16, mode u8, copies u8, revision u32
//! ids: (offset u64, attempt u32) back to back
//! ```
//!
//! Invariants:
//! 1. No bytes make [`Command::decode`] panic or allocate.
//! 2. What decodes encodes back to the same bytes.
//! 3. Numbers of kinds never change meaning.
//!
//! Never does: look into the records of an `Append`; whoever applies it walks
//! them with [`wire::record::Records`].

use wire::vocabulary::{Mode, SettleKind};

use super::{producer::ProducerStamp, reader::Reader};

/// What a partition is, as its group's log knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionSpec {
    pub queue_id: u64,
    pub partition: u16,
    pub mode: Mode,
    /// W: 0 = majority, 255 = all.
    pub copies: u8,
    pub lease_ms: u64,
}

/// Why a lease ended without a settle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum LeaseEndCause {
    Expired = 1,
    Disconnected = 2,
    Unsubscribed = 3,
}

impl LeaseEndCause {
    /// The cause for `raw`, or `None`.
    pub fn from_raw(raw: u8) -> Option<Self> {
        match raw {
            1 => Some(LeaseEndCause::Expired),
            2 => Some(LeaseEndCause::Disconnected),
            3 => Some(LeaseEndCause::Unsubscribed),
            _ => None,
        }
    }
}

/// One command, read in place from an entry's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command<'a> {
    Create(PartitionSpec),
    Drop {
        queue_id: u64,
        partition: u16,
    },
    /// `records`: the client's batch, byte for byte. With a `producer` it is kind 10,
    /// and stores nothing if the same is stored already.
    Append {
        queue_id: u64,
        partition: u16,
        stamp_ms: u64,
        count: u32,
        producer: Option<ProducerStamp>,
        records: &'a [u8],
    },
    Settle {
        queue_id: u64,
        partition: u16,
        stamp_ms: u64,
        kind: SettleKind,
        /// Release: server time before which the record stays delayed; 0 = at once.
        due_ms: u64,
        items: DeliveryIds<'a>,
    },
    /// Leases that ended without a settle; attempts are counted here.
    LeaseEnded {
        queue_id: u64,
        partition: u16,
        cause: LeaseEndCause,
        items: DeliveryIds<'a>,
    },
    /// Deliveries below `mark` may have been handed out.
    DispatchMark {
        queue_id: u64,
        partition: u16,
        mark: u64,
    },
    /// Drops every record below `below` but those in `keep`: what the leader
    /// had leased when it proposed this. A kept id whose attempt has ended
    /// meanwhile keeps nothing.
    Purge {
        queue_id: u64,
        partition: u16,
        below: u64,
        keep: DeliveryIds<'a>,
    },
    /// From here on the group answers at written, for good.
    Weaken,
    /// The partition goes on as `generation`; of the one before, every offset
    /// at or above `first_lost` is gone.
    NewGeneration {
        queue_id: u64,
        partition: u16,
        generation: u32,
        first_lost: u64,
    },
    /// From here on the partition confirms and delivers by this mode and W, unless a
    /// change of this revision or a later one came before.
    Change {
        queue_id: u64,
        partition: u16,
        mode: Mode,
        /// W: 0 = majority, 255 = all.
        copies: u8,
        revision: u32,
    },
}

impl Command<'_> {
    /// The partition that it changes, by queue id and number; `None` for what
    /// concerns the group.
    pub fn target(&self) -> Option<(u64, u16)> {
        match *self {
            Command::Create(spec) => Some((spec.queue_id, spec.partition)),
            Command::Drop {
                queue_id,
                partition,
            }
            | Command::Append {
                queue_id,
                partition,
                ..
            }
            | Command::Settle {
                queue_id,
                partition,
                ..
            }
            | Command::LeaseEnded {
                queue_id,
                partition,
                ..
            }
            | Command::DispatchMark {
                queue_id,
                partition,
                ..
            }
            | Command::Purge {
                queue_id,
                partition,
                ..
            }
            | Command::NewGeneration {
                queue_id,
                partition,
                ..
            }
            | Command::Change {
                queue_id,
                partition,
                ..
            } => Some((queue_id, partition)),
            Command::Weaken => None,
        }
    }
}

/// Bytes of one encoded delivery id.
pub const DELIVERY_ID_BYTES: usize = 12;

/// (offset u64 LE, attempt u32 LE) back to back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveryIds<'a>(pub &'a [u8]);

impl DeliveryIds<'_> {
    /// The ids in order; a partial one at the end (a decoded list has none) is left out.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.0.chunks_exact(DELIVERY_ID_BYTES).filter_map(|id| {
            let (offset, attempt) = id.split_first_chunk::<8>()?;
            let attempt = attempt.first_chunk::<4>()?;
            Some((u64::from_le_bytes(*offset), u32::from_le_bytes(*attempt)))
        })
    }

    /// Number of ids.
    pub fn len(&self) -> usize {
        self.0.len() / DELIVERY_ID_BYTES
    }

    /// True without any id.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends one id to an encoded list.
    pub fn push(out: &mut Vec<u8>, offset: u64, attempt: u32) {
        out.extend_from_slice(&offset.to_le_bytes());
        out.extend_from_slice(&attempt.to_le_bytes());
    }
}

/// Bytes that are not a command.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    #[error("the command does not decode: {0}")]
    Malformed(&'static str),
}

/// Longest command head in bytes.
pub const MAX_HEAD_BYTES: usize = 64;

/// Format version that this code writes and reads.
pub const COMMAND_VERSION: u8 = 1;

mod kind {
    pub const CREATE: u8 = 1;
    pub const DROP: u8 = 2;
    pub const APPEND: u8 = 3;
    pub const SETTLE: u8 = 4;
    pub const LEASE_ENDED: u8 = 5;
    pub const DISPATCH_MARK: u8 = 6;
    pub const PURGE: u8 = 7;
    pub const WEAKEN: u8 = 8;
    pub const NEW_GENERATION: u8 = 9;
    pub const APPEND_ONCE: u8 = 10;
    pub const CHANGE: u8 = 19;
}

/// A command head encoded on the stack, without its variable part.
pub struct CommandHead {
    bytes: [u8; MAX_HEAD_BYTES],
    len: usize,
}

impl CommandHead {
    /// The encoded head.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn new(kind: u8) -> Self {
        let mut head = CommandHead {
            bytes: [0; MAX_HEAD_BYTES],
            len: 0,
        };
        head.put(&[kind, COMMAND_VERSION]);
        head
    }

    /// The longest head is an append's with a producer, 44 bytes, so this stays within bounds.
    fn put(&mut self, field: &[u8]) {
        self.bytes[self.len..self.len + field.len()].copy_from_slice(field);
        self.len += field.len();
    }

    fn place(kind: u8, queue_id: u64, partition: u16) -> Self {
        let mut head = CommandHead::new(kind);
        head.put(&queue_id.to_le_bytes());
        head.put(&partition.to_le_bytes());
        head
    }
}

impl<'a> Command<'a> {
    /// The fixed head; the entry payload is head followed by [`Command::tail`].
    pub fn head(&self) -> CommandHead {
        match *self {
            Command::Create(spec) => {
                let mut head = CommandHead::place(kind::CREATE, spec.queue_id, spec.partition);
                head.put(&[spec.mode as u8, spec.copies]);
                head.put(&spec.lease_ms.to_le_bytes());
                head
            }
            Command::Drop {
                queue_id,
                partition,
            } => CommandHead::place(kind::DROP, queue_id, partition),
            Command::Append {
                queue_id,
                partition,
                stamp_ms,
                count,
                producer,
                ..
            } => {
                let kind = match producer {
                    Some(_) => kind::APPEND_ONCE,
                    None => kind::APPEND,
                };
                let mut head = CommandHead::place(kind, queue_id, partition);
                head.put(&stamp_ms.to_le_bytes());
                head.put(&count.to_le_bytes());
                if let Some(producer) = producer {
                    head.put(&producer.id.to_le_bytes());
                    head.put(&producer.epoch.to_le_bytes());
                    head.put(&producer.sequence.to_le_bytes());
                }
                head
            }
            Command::Settle {
                queue_id,
                partition,
                stamp_ms,
                kind,
                due_ms,
                ..
            } => {
                let mut head = CommandHead::place(kind::SETTLE, queue_id, partition);
                head.put(&stamp_ms.to_le_bytes());
                head.put(&[kind as u8]);
                head.put(&due_ms.to_le_bytes());
                head
            }
            Command::LeaseEnded {
                queue_id,
                partition,
                cause,
                ..
            } => {
                let mut head = CommandHead::place(kind::LEASE_ENDED, queue_id, partition);
                head.put(&[cause as u8]);
                head
            }
            Command::DispatchMark {
                queue_id,
                partition,
                mark,
            } => {
                let mut head = CommandHead::place(kind::DISPATCH_MARK, queue_id, partition);
                head.put(&mark.to_le_bytes());
                head
            }
            Command::Purge {
                queue_id,
                partition,
                below,
                ..
            } => {
                let mut head = CommandHead::place(kind::PURGE, queue_id, partition);
                head.put(&below.to_le_bytes());
                head
            }
            Command::Weaken => CommandHead::new(kind::WEAKEN),
            Command::NewGeneration {
                queue_id,
                partition,
                generation,
                first_lost,
            } => {
                let mut head = CommandHead::place(kind::NEW_GENERATION, queue_id, partition);
                head.put(&generation.to_le_bytes());
                head.put(&first_lost.to_le_bytes());
                head
            }
            Command::Change {
                queue_id,
                partition,
                mode,
                copies,
                revision,
            } => {
                let mut head = CommandHead::place(kind::CHANGE, queue_id, partition);
                head.put(&[mode as u8, copies]);
                head.put(&revision.to_le_bytes());
                head
            }
        }
    }

    /// The variable part (records or ids), empty for the other commands.
    pub fn tail(&self) -> &'a [u8] {
        match *self {
            Command::Append { records, .. } => records,
            Command::Settle { items, .. } | Command::LeaseEnded { items, .. } => items.0,
            Command::Purge { keep, .. } => keep.0,
            Command::Create(_)
            | Command::Drop { .. }
            | Command::DispatchMark { .. }
            | Command::NewGeneration { .. }
            | Command::Change { .. }
            | Command::Weaken => &[],
        }
    }

    /// Reads an entry's payload.
    ///
    /// # Errors
    /// [`CommandError::Malformed`]: truncated, unknown kind, version or value,
    /// ids of a broken length, or bytes left over.
    pub fn decode(payload: &'a [u8]) -> Result<Self, CommandError> {
        let mut reader = Reader::new(payload);
        let kind = reader.u8()?;
        if reader.u8()? != COMMAND_VERSION {
            return Err(CommandError::Malformed("unknown format version"));
        }
        if kind == kind::WEAKEN {
            reader.end()?;
            return Ok(Command::Weaken);
        }
        let queue_id = reader.u64()?;
        let partition = reader.u16()?;
        Command::decode_placed(kind, queue_id, partition, reader)
    }

    /// Reads the rest of a command that names a partition.
    fn decode_placed(
        kind: u8,
        queue_id: u64,
        partition: u16,
        mut reader: Reader<'a>,
    ) -> Result<Self, CommandError> {
        let command = match kind {
            kind::CREATE => Command::Create(PartitionSpec {
                queue_id,
                partition,
                mode: Mode::from_raw(reader.u8()?)
                    .ok_or(CommandError::Malformed("unknown mode"))?,
                copies: reader.u8()?,
                lease_ms: reader.u64()?,
            }),
            kind::DROP => Command::Drop {
                queue_id,
                partition,
            },
            kind::APPEND | kind::APPEND_ONCE => Command::Append {
                queue_id,
                partition,
                stamp_ms: reader.u64()?,
                count: reader.u32()?,
                producer: match kind {
                    kind::APPEND => None,
                    _ => Some(ProducerStamp {
                        id: reader.u64()?,
                        epoch: reader.u32()?,
                        sequence: reader.u64()?,
                    }),
                },
                records: reader.rest(),
            },
            kind::SETTLE => Command::Settle {
                queue_id,
                partition,
                stamp_ms: reader.u64()?,
                kind: SettleKind::from_raw(reader.u8()?)
                    .ok_or(CommandError::Malformed("unknown settle kind"))?,
                due_ms: reader.u64()?,
                items: reader.ids()?,
            },
            kind::LEASE_ENDED => Command::LeaseEnded {
                queue_id,
                partition,
                cause: LeaseEndCause::from_raw(reader.u8()?)
                    .ok_or(CommandError::Malformed("unknown cause of a lease's end"))?,
                items: reader.ids()?,
            },
            kind::DISPATCH_MARK => Command::DispatchMark {
                queue_id,
                partition,
                mark: reader.u64()?,
            },
            kind::PURGE => Command::Purge {
                queue_id,
                partition,
                below: reader.u64()?,
                keep: reader.ids()?,
            },
            kind::NEW_GENERATION => Command::NewGeneration {
                queue_id,
                partition,
                generation: reader.u32()?,
                first_lost: reader.u64()?,
            },
            kind::CHANGE => Command::Change {
                queue_id,
                partition,
                mode: Mode::from_raw(reader.u8()?)
                    .ok_or(CommandError::Malformed("unknown mode"))?,
                copies: reader.u8()?,
                revision: reader.u32()?,
            },
            _ => return Err(CommandError::Malformed("unknown kind")),
        };
        reader.end()?;
        Ok(command)
    }
}

#[cfg(test)]
mod tests;
