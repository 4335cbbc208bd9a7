//! What queue info says of a change of a queue's mode and copies: which setting is in force
//! in a partition, and how far it is applied.
//!
//! ```text
//! 0   mode      u8
//! 1   copies    u8      W: 0 = majority, 255 = all
//! 2   revision  u32 LE  of the setting in force; 0 = as declared
//! 6   since     u64 LE  offsets from here on were published under it
//! 14  standing  u8      a Standing
//! 15  replicas  u8      so many follow: node u32 LE, reached u8 (0, or a Boundary)
//! ..  reason    UTF-8, to the end: why it is not applied yet
//! ```
//!
//! Owns: these bytes. Bodies do not evolve, so they travel as an extension.

use crate::vocabulary::{Boundary, Mode};

/// Longest reason in bytes; what is longer is cut at a character.
const MAX_REASON_BYTES: usize = 1024;
const HEAD_BYTES: usize = 16;
const REPLICA_BYTES: usize = 5;

/// How far the latest change has come in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Standing {
    /// Its entry is not in the partition's log yet: an earlier setting is in force.
    Pending = 1,
    /// What is published from now on has it. Its entry is not durable yet on as many
    /// copies as the stronger of the two settings asks for.
    InForce = 2,
    /// It is.
    Applied = 3,
}

impl Standing {
    /// Every standing, in numeric order.
    pub const ALL: [Standing; 3] = [Standing::Pending, Standing::InForce, Standing::Applied];

    /// The standing for `raw`, or `None`.
    pub fn from_raw(raw: u8) -> Option<Self> {
        let mut all = Standing::ALL.into_iter();
        all.find(|standing| *standing as u8 == raw)
    }

    /// `pending`, `in force` or `applied`.
    pub fn name(self) -> &'static str {
        match self {
            Standing::Pending => "pending",
            Standing::InForce => "in force",
            Standing::Applied => "applied",
        }
    }
}

/// The setting in force in a partition, as its leader knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InForce {
    pub mode: Mode,
    /// W: 0 = majority, 255 = all.
    pub copies: u8,
    /// 0 = as declared.
    pub revision: u32,
    /// Offsets from here on were published under it.
    pub since: u64,
    /// How far the change that is desired has come.
    pub standing: Standing,
    /// Nodes that vote, and the boundary that the change's entry has reached on each.
    pub replicas: Vec<(u32, Option<Boundary>)>,
    /// For people: why it is not applied yet. Empty where it is.
    pub reason: String,
}

impl InForce {
    /// As it travels; more than 255 replicas do not.
    pub fn encode(&self) -> Vec<u8> {
        let replicas = self.replicas.iter().take(usize::from(u8::MAX));
        let mut out = vec![self.mode as u8, self.copies];
        out.extend_from_slice(&self.revision.to_le_bytes());
        out.extend_from_slice(&self.since.to_le_bytes());
        out.extend_from_slice(&[self.standing as u8, replicas.len() as u8]);
        for (node, reached) in replicas {
            out.extend_from_slice(&node.to_le_bytes());
            out.push(reached.map_or(0, |boundary| boundary as u8));
        }
        let mut len = self.reason.len().min(MAX_REASON_BYTES);
        while !self.reason.is_char_boundary(len) {
            len -= 1;
        }
        out.extend_from_slice(self.reason.get(..len).unwrap_or_default().as_bytes());
        out
    }

    /// Reads what [`InForce::encode`] wrote; `None` for anything else.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
        let [mode, copies, r0, r1, r2, r3, since @ .., standing, count] = *head;
        let (replicas, reason) =
            rest.split_at_checked(usize::from(count).checked_mul(REPLICA_BYTES)?)?;
        let replicas = replicas.chunks_exact(REPLICA_BYTES).map(|replica| {
            let (node, reached) = replica.split_first_chunk::<4>()?;
            let reached = match reached {
                [0] => None,
                [raw] => Some(Boundary::from_raw(*raw)?),
                _ => return None,
            };
            Some((u32::from_le_bytes(*node), reached))
        });
        Some(InForce {
            mode: Mode::from_raw(mode)?,
            copies,
            revision: u32::from_le_bytes([r0, r1, r2, r3]),
            since: u64::from_le_bytes(since),
            standing: Standing::from_raw(standing)?,
            replicas: replicas.collect::<Option<Vec<_>>>()?,
            reason: std::str::from_utf8(reason).ok()?.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> InForce {
        InForce {
            mode: Mode::Speculative,
            copies: 255,
            revision: 0x0102_0304,
            since: 0x1112_1314_1516_1718,
            standing: Standing::InForce,
            replicas: vec![
                (1, Some(Boundary::Durable)),
                (2, Some(Boundary::Written)),
                (300, None),
            ],
            reason: "node 300 lacks it".to_owned(),
        }
    }

    #[test]
    fn it_stands_as_the_head_of_this_module_says() {
        let bytes = sample().encode();
        let head = [
            3, 255, 4, 3, 2, 1, 0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, 2, 3,
        ];
        assert_eq!(bytes[..16], head);
        assert_eq!(
            bytes[16..31],
            [1, 0, 0, 0, 2, 2, 0, 0, 0, 1, 44, 1, 0, 0, 0]
        );
        assert_eq!(&bytes[31..], b"node 300 lacks it");
        assert_eq!(InForce::decode(&bytes), Some(sample()));
    }

    #[test]
    fn what_is_cut_or_has_unknown_words_is_refused() {
        let bytes = sample().encode();
        for end in 0..31 {
            assert_eq!(InForce::decode(&bytes[..end]), None, "{end}");
        }
        for (at, word) in [(0, 0), (0, 4), (14, 0), (14, 4), (20, 3), (31, 0xff)] {
            let mut bent = bytes.clone();
            bent[at] = word;
            assert_eq!(InForce::decode(&bent), None, "{at}");
        }
    }

    #[test]
    fn a_long_reason_is_cut_at_a_character() {
        let long = InForce {
            reason: "ü".repeat(1_000),
            ..sample()
        };
        let read = InForce::decode(&long.encode()).map(|it| it.reason);
        assert_eq!(read, Some("ü".repeat(512)));
    }
}
