//! What opening a log found and did, for operators and for the layers above.

use std::fmt;

use super::position::{LogId, LogPosition};
use super::recovery::DamagedRange;

/// Most damaged ranges a report lists; it counts the rest.
pub const MAX_LISTED_DAMAGES: usize = 64;

/// What opening a log found and did. `Display` is one clear sentence each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryReport {
    pub log_id: LogId,
    pub epoch: u64,
    pub open_counter: u64,
    /// One life of the log's memory; raised when it may have forgotten.
    pub incarnation: u64,
    /// The log may have forgotten something it answered at written, in this
    /// open or in an earlier one that was not settled
    /// ([`super::amnesia_settled`]).
    pub amnesiac: bool,
    /// It may have forgotten something it answered at *durable*: a bad byte
    /// below the durable frontier, damage cut in the same boot, or a latch
    /// that lost something below its recorded frontier.
    pub durable_memory_lost: bool,
    /// The log had come to rest: every surviving item was known to be durable
    /// before this open, and nothing was cut, damaged or copied.
    pub at_rest: bool,
    /// The clean marker matched.
    pub clean: bool,
    pub same_boot: bool,
    pub batches: u64,
    pub items: u64,
    /// Fragments of items that are not whole; none of them was answered unless
    /// it lies in or beside damage.
    pub dropped_fragments: u64,
    /// How far the log was known to be durable before this open.
    pub known_durable_next: LogPosition,
    /// Where the surviving log ends. Everything below is durable now.
    pub end: LogPosition,
    /// Where it goes on; other than `end` if bytes behind `end` are kept.
    pub resumed_at: LogPosition,
    pub cut: Option<Cut>,
    pub damaged: Vec<DamagedRange>,
    /// Damaged ranges in all, listed or not.
    pub damaged_ranges: u64,
    pub recopied: Option<Recopied>,
    /// Half-created files that were removed.
    pub removed_files: Vec<String>,
    /// A superblock copy that had to be rewritten.
    pub superblock_repaired: Option<&'static str>,
    /// The first read error; its bytes count as damaged.
    pub unreadable: Option<String>,
    /// Why the boot-scoped token could not be left.
    pub token_failure: Option<String>,
}

/// Bytes behind the end that are not part of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    pub kind: CutKind,
    pub from: LogPosition,
    /// End of the last bytes there, exclusive.
    pub to: LogPosition,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutKind {
    /// In flight when the process died; nothing was answered from it.
    Unanswered,
    /// Not durable when the power went.
    Torn,
    /// Damaged, and perhaps answered.
    Damaged,
}

/// After a latch: the tail past the last successful sync was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recopied {
    pub from: LogPosition,
    pub to: LogPosition,
    pub bytes: u64,
}

impl fmt::Display for RecoveryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Log {} opened (open {}, epoch {}): {} items in {} batches, durable up to {}.",
            self.log_id, self.open_counter, self.epoch, self.items, self.batches, self.end
        )?;
        let stop = match (self.clean, self.same_boot) {
            (true, _) => " It had been stopped cleanly.",
            (false, true) => " It had not been stopped cleanly.",
            (false, false) => " It had not been stopped cleanly before a reboot.",
        };
        f.write_str(stop)?;
        if let Some(cut) = &self.cut {
            write!(f, " {cut}")?;
        }
        for damage in &self.damaged {
            let DamagedRange { from, to } = damage;
            write!(
                f,
                " Durable bytes from {from} to {to} are damaged; what surrounds them is kept."
            )?;
        }
        let more = self
            .damaged_ranges
            .saturating_sub(self.damaged.len() as u64);
        if more > 0 {
            write!(f, " {more} further ranges are damaged.")?;
        }
        if let Some(copy) = &self.recopied {
            write!(
                f,
                " The log had latched after an I/O error: {} bytes from {} on were verified and copied to {}.",
                copy.bytes, copy.from, copy.to
            )?;
        }
        for name in &self.removed_files {
            write!(f, " The half-created file {name} was removed.")?;
        }
        if let Some(name) = self.superblock_repaired {
            write!(f, " The damaged superblock copy {name} was rewritten.")?;
        }
        if let Some(error) = &self.unreadable {
            write!(f, " Some bytes could not be read ({error}).")?;
        }
        if let Some(error) = &self.token_failure {
            write!(f, " No boot-scoped token could be left ({error}).")?;
        }
        if self.amnesiac && self.at_rest {
            write!(
                f,
                " It had come to rest with everything in it durable (incarnation {}).",
                self.incarnation
            )?;
        } else if self.amnesiac {
            write!(
                f,
                " It may have forgotten what was confirmed as written (incarnation {}).",
                self.incarnation
            )?;
        }
        if self.durable_memory_lost {
            f.write_str(" It may have lost something that was durable.")?;
        }
        Ok(())
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cut { from, to, .. } = self;
        match self.kind {
            CutKind::Unanswered => write!(f, "Unanswered bytes from {from} to {to} were cut."),
            CutKind::Torn => write!(f, "A torn tail from {from} to {to} was cut."),
            CutKind::Damaged => write!(
                f,
                "Damaged bytes from {from} to {to} were cut; they may have been confirmed as written."
            ),
        }
    }
}
