//! Bytes of group 0's commands. Plain little-endian; first byte kind, second
//! format version.
//!
//! ```text
//! 1 Declare    name_len u16, name, present u8 (bit 0 mode, 1 copies, 2 partitions, 3 lease,
//!              4 on_total_loss, 5 with 4: halt),
//!              mode u8, copies u8, partitions u16, lease_ms u64; absent ones are zero
//! 2 Delete     queue_id u64
//! 3 Opened     node u32, log u16, cookie u64, open_counter u64, nonce u64; from version 2 on:
//!              token u64, last_token u64, recorded u64; from version 3 on: level u16
//! 4 Recovered  group u32, generation u32, retired_peer u64, new_peer u64
//! 5 Rejoin     group u32, retired_peer u64, harmed u8
//! 6 Promoting  group u32, generation u32, peer u64
//! 7 Collect    group u32, generation u32, accepts_loss u8
//! 8 Answered   group u32, generation u32, peer u64, last_term u64, last_index u64, counts u8
//! 9 Forget     node u32
//! 10 Replace   node u32, order u32
//! 11 Found     members u8 × (node u32, address u8 text)
//! 12 Add       node u32, address u8 text, zone u8 text
//! 13 Move      group u32, from u32, to u32
//! 14 Moved     group u32, generation u32, from u32, to u32
//! 15 Leave     node u32
//! 16 Remove    node u32
//! 19 Change    queue_id u64, mode u8, copies u8, base u32
//! 20 Level     level u16
//! 21 Readmit   node u32, address u8 text, zone u8 text
//! ```
//!
//! A text is a length and then so many bytes of UTF-8.

use wire::{node::put_text, vocabulary::Mode};

use super::{Answer, DeclareRequest, Lineage, MemberCommand, MetaCommand, Open};
use crate::state::{command::CommandError, level::FIRST_LEVEL, reader::Reader};

const VERSION: u8 = 1;
/// Of opens: with what the directory has heard.
const WITH_LINEAGE: u8 = 2;
/// Of opens: with the feature level, too.
const WITH_LEVEL: u8 = 3;
const DECLARE: u8 = 1;
const DELETE: u8 = 2;
const OPENED: u8 = 3;
const RECOVERED: u8 = 4;
const REJOIN: u8 = 5;
const PROMOTING: u8 = 6;
const COLLECT: u8 = 7;
const ANSWERED: u8 = 8;
const FORGET: u8 = 9;
const REPLACE: u8 = 10;
const FOUND: u8 = 11;
const ADD: u8 = 12;
const MOVE: u8 = 13;
const MOVED: u8 = 14;
const LEAVE: u8 = 15;
const REMOVE: u8 = 16;
const CHANGE: u8 = 19;
const LEVEL: u8 = 20;
const READMIT: u8 = 21;

impl MetaCommand {
    /// The command as bytes. A name longer than its 16-bit length (which
    /// applying would refuse) is cut at a character.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        match self {
            MetaCommand::Declare(request) => {
                out.extend_from_slice(&[DECLARE, VERSION]);
                encode_declare(request, &mut out);
            }
            MetaCommand::Delete { queue_id } => {
                out.extend_from_slice(&[DELETE, VERSION]);
                out.extend_from_slice(&queue_id.to_le_bytes());
            }
            MetaCommand::Opened { node, log, open } => {
                out.extend_from_slice(&[OPENED, WITH_LEVEL]);
                out.extend_from_slice(&node.to_le_bytes());
                out.extend_from_slice(&log.to_le_bytes());
                open.encode(&mut out);
                open.lineage.encode(&mut out);
                out.extend_from_slice(&open.level.to_le_bytes());
            }
            MetaCommand::Recovered {
                group,
                generation,
                retired_peer,
                new_peer,
            } => {
                out.extend_from_slice(&[RECOVERED, VERSION]);
                out.extend_from_slice(&group.to_le_bytes());
                out.extend_from_slice(&generation.to_le_bytes());
                out.extend_from_slice(&retired_peer.to_le_bytes());
                out.extend_from_slice(&new_peer.to_le_bytes());
            }
            MetaCommand::Rejoin {
                group,
                retired_peer,
                harmed,
            } => {
                out.extend_from_slice(&[REJOIN, VERSION]);
                out.extend_from_slice(&group.to_le_bytes());
                out.extend_from_slice(&retired_peer.to_le_bytes());
                out.push(u8::from(*harmed));
            }
            MetaCommand::Promoting {
                group,
                generation,
                peer,
            } => {
                out.extend_from_slice(&[PROMOTING, VERSION]);
                out.extend_from_slice(&group.to_le_bytes());
                out.extend_from_slice(&generation.to_le_bytes());
                out.extend_from_slice(&peer.to_le_bytes());
            }
            MetaCommand::Collect {
                group,
                generation,
                accepts_loss,
            } => {
                out.extend_from_slice(&[COLLECT, VERSION]);
                out.extend_from_slice(&group.to_le_bytes());
                out.extend_from_slice(&generation.to_le_bytes());
                out.push(u8::from(*accepts_loss));
            }
            MetaCommand::Answered {
                group,
                generation,
                answer,
            } => {
                out.extend_from_slice(&[ANSWERED, VERSION]);
                out.extend_from_slice(&group.to_le_bytes());
                out.extend_from_slice(&generation.to_le_bytes());
                answer.encode(&mut out);
            }
            MetaCommand::Forget { node } => {
                out.extend_from_slice(&[FORGET, VERSION]);
                out.extend_from_slice(&node.to_le_bytes());
            }
            MetaCommand::Replace { node, order } => {
                out.extend_from_slice(&[REPLACE, VERSION]);
                out.extend_from_slice(&node.to_le_bytes());
                out.extend_from_slice(&order.to_le_bytes());
            }
            MetaCommand::Members(command) => command.encode(&mut out),
            MetaCommand::Change {
                queue_id,
                mode,
                copies,
                base,
            } => {
                out.extend_from_slice(&[CHANGE, VERSION]);
                out.extend_from_slice(&queue_id.to_le_bytes());
                out.extend_from_slice(&[*mode as u8, *copies]);
                out.extend_from_slice(&base.to_le_bytes());
            }
            MetaCommand::Level { level } => {
                out.extend_from_slice(&[LEVEL, VERSION]);
                out.extend_from_slice(&level.to_le_bytes());
            }
        }
        out
    }

    /// Reads a command.
    ///
    /// # Errors
    /// [`CommandError::Malformed`]: truncated, unknown kind, version or value,
    /// or bytes left over.
    pub fn decode(payload: &[u8]) -> Result<Self, CommandError> {
        let mut reader = Reader::new(payload);
        let kind = reader.u8()?;
        let version = reader.u8()?;
        let newest = if kind == OPENED { WITH_LEVEL } else { VERSION };
        if !(VERSION..=newest).contains(&version) {
            return Err(CommandError::Malformed("unknown format version"));
        }
        let command = match kind {
            DECLARE => MetaCommand::Declare(decode_declare(&mut reader)?),
            DELETE => MetaCommand::Delete {
                queue_id: reader.u64()?,
            },
            OPENED => MetaCommand::Opened {
                node: reader.u32()?,
                log: reader.u16()?,
                open: {
                    let mut open = Open::decode(&mut reader)?;
                    if version >= WITH_LINEAGE {
                        open.lineage = Lineage::decode(&mut reader)?;
                    }
                    if version >= WITH_LEVEL {
                        open.level = reader.u16()?;
                    }
                    open
                },
            },
            RECOVERED => MetaCommand::Recovered {
                group: reader.u32()?,
                generation: reader.u32()?,
                retired_peer: reader.u64()?,
                new_peer: reader.u64()?,
            },
            REJOIN => MetaCommand::Rejoin {
                group: reader.u32()?,
                retired_peer: reader.u64()?,
                harmed: truth(reader.u8()?)?,
            },
            PROMOTING => MetaCommand::Promoting {
                group: reader.u32()?,
                generation: reader.u32()?,
                peer: reader.u64()?,
            },
            COLLECT => MetaCommand::Collect {
                group: reader.u32()?,
                generation: reader.u32()?,
                accepts_loss: truth(reader.u8()?)?,
            },
            ANSWERED => MetaCommand::Answered {
                group: reader.u32()?,
                generation: reader.u32()?,
                answer: Answer::decode(&mut reader)?,
            },
            FORGET => MetaCommand::Forget {
                node: reader.u32()?,
            },
            REPLACE => MetaCommand::Replace {
                node: reader.u32()?,
                order: reader.u32()?,
            },
            FOUND..=REMOVE | READMIT => {
                MetaCommand::Members(MemberCommand::decode(kind, &mut reader)?)
            }
            CHANGE => MetaCommand::Change {
                queue_id: reader.u64()?,
                mode: Mode::from_raw(reader.u8()?)
                    .ok_or(CommandError::Malformed("unknown mode"))?,
                copies: reader.u8()?,
                base: reader.u32()?,
            },
            LEVEL => MetaCommand::Level {
                level: reader.u16()?,
            },
            _ => return Err(CommandError::Malformed("unknown kind")),
        };
        reader.end()?;
        Ok(command)
    }
}

impl MemberCommand {
    fn encode(&self, out: &mut Vec<u8>) {
        let (kind, words) = match self {
            MemberCommand::Found { members } => {
                out.extend_from_slice(&[FOUND, VERSION, members.len().min(255) as u8]);
                for (node, address) in members.iter().take(255) {
                    out.extend_from_slice(&node.to_le_bytes());
                    put_text(out, address);
                }
                return;
            }
            MemberCommand::Add { node, .. } => (ADD, vec![*node]),
            MemberCommand::Readmit { node, .. } => (READMIT, vec![*node]),
            MemberCommand::Move { group, from, to } => (MOVE, vec![*group, *from, *to]),
            MemberCommand::Moved {
                group,
                generation,
                from,
                to,
            } => (MOVED, vec![*group, *generation, *from, *to]),
            MemberCommand::Leave { node } => (LEAVE, vec![*node]),
            MemberCommand::Remove { node } => (REMOVE, vec![*node]),
        };
        out.extend_from_slice(&[kind, VERSION]);
        for word in words {
            out.extend_from_slice(&word.to_le_bytes());
        }
        if let MemberCommand::Add { address, zone, .. }
        | MemberCommand::Readmit { address, zone, .. } = self
        {
            put_text(out, address);
            put_text(out, zone);
        }
    }

    fn decode(kind: u8, reader: &mut Reader<'_>) -> Result<Self, CommandError> {
        Ok(match kind {
            FOUND => {
                let members = (0..reader.u8()?).map(|_| Ok((reader.u32()?, text(reader)?)));
                let members: Result<_, CommandError> = members.collect();
                MemberCommand::Found { members: members? }
            }
            ADD => MemberCommand::Add {
                node: reader.u32()?,
                address: text(reader)?,
                zone: text(reader)?,
            },
            READMIT => MemberCommand::Readmit {
                node: reader.u32()?,
                address: text(reader)?,
                zone: text(reader)?,
            },
            MOVE => MemberCommand::Move {
                group: reader.u32()?,
                from: reader.u32()?,
                to: reader.u32()?,
            },
            MOVED => MemberCommand::Moved {
                group: reader.u32()?,
                generation: reader.u32()?,
                from: reader.u32()?,
                to: reader.u32()?,
            },
            LEAVE => MemberCommand::Leave {
                node: reader.u32()?,
            },
            _ => MemberCommand::Remove {
                node: reader.u32()?,
            },
        })
    }
}

fn text(reader: &mut Reader<'_>) -> Result<String, CommandError> {
    let len = usize::from(reader.u8()?);
    let text = std::str::from_utf8(reader.slice(len)?);
    text.map(str::to_owned)
        .map_err(|_| CommandError::Malformed("a text is not UTF-8"))
}

fn truth(byte: u8) -> Result<bool, CommandError> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(CommandError::Malformed("a truth is 0 or 1")),
    }
}

impl Open {
    /// Without its lineage and level.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        for word in [self.cookie, self.counter, self.nonce] {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, CommandError> {
        Ok(Open {
            cookie: reader.u64()?,
            counter: reader.u64()?,
            nonce: reader.u64()?,
            lineage: Lineage::default(),
            level: FIRST_LEVEL,
        })
    }
}

impl Lineage {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        for word in [self.token, self.last_token, self.recorded] {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, CommandError> {
        Ok(Lineage {
            token: reader.u64()?,
            last_token: reader.u64()?,
            recorded: reader.u64()?,
        })
    }
}

impl Answer {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        for word in [self.peer, self.last_term, self.last_index] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.push(u8::from(self.counts));
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, CommandError> {
        Ok(Answer {
            peer: reader.u64()?,
            last_term: reader.u64()?,
            last_index: reader.u64()?,
            counts: truth(reader.u8()?)?,
        })
    }
}

fn encode_declare(request: &DeclareRequest, out: &mut Vec<u8>) {
    let mut len = request.name.len().min(usize::from(u16::MAX));
    while !request.name.is_char_boundary(len) {
        len -= 1;
    }
    out.extend_from_slice(&(len as u16).to_le_bytes());
    out.extend_from_slice(&request.name.as_bytes()[..len]);
    let present = u8::from(request.mode.is_some())
        | u8::from(request.copies.is_some()) << 1
        | u8::from(request.partitions.is_some()) << 2
        | u8::from(request.lease_ms.is_some()) << 3
        | u8::from(request.halts.is_some()) << 4
        | u8::from(request.halts == Some(true)) << 5;
    let mode = request.mode.map_or(0, |mode| mode as u8);
    out.extend_from_slice(&[present, mode, request.copies.unwrap_or(0)]);
    out.extend_from_slice(&request.partitions.unwrap_or(0).to_le_bytes());
    out.extend_from_slice(&request.lease_ms.unwrap_or(0).to_le_bytes());
}

fn decode_declare(reader: &mut Reader<'_>) -> Result<DeclareRequest, CommandError> {
    let len = reader.u16()?;
    let name = std::str::from_utf8(reader.slice(usize::from(len))?)
        .map_err(|_| CommandError::Malformed("the name is not UTF-8"))?;
    let present = reader.u8()?;
    let halts = match present >> 4 {
        0 => None,
        1 => Some(false),
        3 => Some(true),
        _ => return Err(CommandError::Malformed("unknown declare field")),
    };
    let mode = reader.u8()?;
    let (copies, partitions, lease_ms) = (reader.u8()?, reader.u16()?, reader.u64()?);
    let field = |bit: u8, zero: bool| {
        let present = present >> bit & 1 == 1;
        if present || zero {
            Ok(present)
        } else {
            Err(CommandError::Malformed("an absent declare field is set"))
        }
    };
    Ok(DeclareRequest {
        name: name.to_owned(),
        mode: match field(0, mode == 0)? {
            true => Some(Mode::from_raw(mode).ok_or(CommandError::Malformed("unknown mode"))?),
            false => None,
        },
        copies: field(1, copies == 0)?.then_some(copies),
        partitions: field(2, partitions == 0)?.then_some(partitions),
        lease_ms: field(3, lease_ms == 0)?.then_some(lease_ms),
        halts,
    })
}
