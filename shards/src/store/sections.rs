//! The body of a checkpoint: sections back to back.
//!
//! ```text
//! 0  kind     u8   a SectionKind
//! 1  version  u8   1; of group 0 and of a partition 2 where a queue's setting was changed
//! 2  reserved u16  zero
//! 4  len      u32 LE  bytes of payload that follow
//! ```

use thiserror::Error;

use crate::log::bytes::{get_u16, get_u32};

const HEAD_BYTES: usize = 8;
const VERSION: u8 = 1;
/// A queue's mode or copies were changed.
const WITH_CHANGES: u8 = 2;

/// What a section holds; its payload is the engine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SectionKind {
    /// The shard: largest time stamp.
    Shard = 1,
    /// Group 0's state machine.
    Meta = 2,
    /// A group: its state item and what was applied.
    Group = 3,
    /// A partition but for its records.
    Partition = 4,
    /// Records of the partition before.
    Records = 5,
    /// Fragment links of the log.
    Links = 6,
    /// The packed files there are.
    Packs = 7,
}

impl SectionKind {
    /// The newest version of the kind that this program reads.
    fn newest(self) -> u8 {
        match self {
            SectionKind::Meta | SectionKind::Partition => WITH_CHANGES,
            _ => VERSION,
        }
    }

    fn from_raw(raw: u8) -> Option<Self> {
        Some(match raw {
            1 => SectionKind::Shard,
            2 => SectionKind::Meta,
            3 => SectionKind::Group,
            4 => SectionKind::Partition,
            5 => SectionKind::Records,
            6 => SectionKind::Links,
            7 => SectionKind::Packs,
            _ => return None,
        })
    }
}

/// A checkpoint body that verifies but is not one this build reads.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SectionsError {
    #[error("the checkpoint's section at byte {at} is truncated")]
    Truncated { at: usize },
    #[error("the checkpoint has a section of kind {kind}, version {version}, which this build does not read")]
    Unknown { kind: u8, version: u8 },
    #[error("the checkpoint's links between fragments are not in order")]
    Links,
}

/// One section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section<'a> {
    pub kind: SectionKind,
    pub payload: &'a [u8],
}

impl Section<'_> {
    /// Appends a section whose payload `fill` writes.
    pub fn put(out: &mut Vec<u8>, kind: SectionKind, fill: impl FnOnce(&mut Vec<u8>)) {
        Section::put_as(out, kind, |out| {
            fill(out);
            false
        });
    }

    /// Likewise; `fill` says whether a queue's setting was changed, and the payload so has it.
    pub fn put_as(out: &mut Vec<u8>, kind: SectionKind, fill: impl FnOnce(&mut Vec<u8>) -> bool) {
        let start = out.len();
        out.extend_from_slice(&[kind as u8, VERSION, 0, 0, 0, 0, 0, 0]);
        if fill(out) {
            if let Some(version) = out.get_mut(start + 1) {
                *version = WITH_CHANGES;
            }
        }
        // Sections are cut far below 4 GiB by whoever fills them.
        let len = (out.len() - start - HEAD_BYTES) as u32;
        if let Some(field) = out.get_mut(start + 4..start + HEAD_BYTES) {
            field.copy_from_slice(&len.to_le_bytes());
        }
    }
}

/// Reads a body.
pub struct Sections<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Sections<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Sections { bytes, at: 0 }
    }

    fn read(&mut self) -> Result<Section<'a>, SectionsError> {
        let at = self.at;
        let truncated = || SectionsError::Truncated { at };
        let rest = self.bytes.get(at..).unwrap_or_default();
        let (kind, version) = match rest {
            [kind, version, ..] => (*kind, *version),
            _ => return Err(truncated()),
        };
        let reserved = get_u16(rest, 2).ok_or_else(truncated)?;
        let len = get_u32(rest, 4).ok_or_else(truncated)? as usize;
        let known = SectionKind::from_raw(kind)
            .filter(|kind| (VERSION..=kind.newest()).contains(&version) && reserved == 0);
        let kind = known.ok_or(SectionsError::Unknown { kind, version })?;
        let end = HEAD_BYTES.checked_add(len).ok_or_else(truncated)?;
        let payload = rest.get(HEAD_BYTES..end).ok_or_else(truncated)?;
        self.at += end;
        Ok(Section { kind, payload })
    }
}

impl<'a> Iterator for Sections<'a> {
    type Item = Result<Section<'a>, SectionsError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let section = self.read();
        if section.is_err() {
            self.at = self.bytes.len();
        }
        Some(section)
    }
}

/// For the page of the format.
#[cfg(test)]
pub(crate) fn golden() -> crate::format_page::Golden {
    let mut bytes = Vec::new();
    Section::put(&mut bytes, SectionKind::Partition, |out| out.extend([0; 9]));
    let fields = vec![("kind", 4), ("version", 1), ("payload bytes", 9)];
    crate::format_page::Golden { bytes, fields }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_read_back_and_cuts_are_refused() {
        let mut body = Vec::new();
        Section::put(&mut body, SectionKind::Meta, |out| out.extend([1, 2, 3]));
        Section::put(&mut body, SectionKind::Packs, |_| {});
        let read: Vec<_> = Sections::new(&body).map(Result::unwrap).collect();
        assert_eq!(read[0].payload, [1, 2, 3]);
        assert_eq!(read[1].kind, SectionKind::Packs);
        for cut in (1..body.len()).filter(|cut| *cut != 11) {
            assert!(
                Sections::new(&body[..cut]).any(|section| section.is_err()),
                "{cut}"
            );
        }
    }

    #[test]
    fn a_section_of_a_later_format_is_named() {
        for (kind, version) in [(SectionKind::Meta, 3), (SectionKind::Group, 2)] {
            let mut body = Vec::new();
            Section::put(&mut body, kind, |_| {});
            body[1] = version;
            let error = Sections::new(&body).next().unwrap().unwrap_err();
            let kind = kind as u8;
            assert_eq!(error, SectionsError::Unknown { kind, version });
        }
    }

    #[test]
    fn changed_settings_have_a_version_of_their_own() {
        let mut body = Vec::new();
        for kind in [SectionKind::Meta, SectionKind::Partition] {
            Section::put_as(&mut body, kind, |out| {
                out.push(9);
                true
            });
        }
        assert_eq!((body[1], body[10]), (2, 2));
        let read: Vec<_> = Sections::new(&body).map(Result::unwrap).collect();
        assert_eq!(read.len(), 2);
        assert_eq!(read[1].payload, [9]);
    }
}
