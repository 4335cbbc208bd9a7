//! Where a log goes on after its end was found.
//!
//! In place if every byte behind the end is zero; else in a fresh segment, with
//! a jump in the superblock. So, in every live range of a log:
//!
//! 1. A byte that was durable is never rewritten: in place means over zeros
//!    that no batch ever reached, or at least none that survived.
//! 2. No stale bytes lie where the log will be written. What a torn tail left
//!    behind is jumped over, kept, and never read again. Should a batch of an
//!    earlier life still come to light (an unsynced write that lay beyond what
//!    was looked at), its predecessor checksum, its sequence and its epoch, all
//!    three, keep it out: the superblock says from which place on no batch has
//!    a lower epoch than the open that resumed there.
//! 3. A segment shorter than its size is never written. One that holds nothing
//!    is removed, as if it had never been begun.

use super::position::{Geometry, LogPosition};
use super::segment_files::{segment_name, SegmentFiles};
use crate::io::DiskError;
use crate::mutation::{self, Rule};

/// Where to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resume {
    InPlace,
    /// At the start of this segment, whose successors are fit too.
    Fresh(u64),
}

/// Decides where a log that ends at `end` goes on. Removes half-created
/// segments that hold nothing; their names go to `removed`.
pub(super) fn choose(
    files: &mut SegmentFiles<'_>,
    geometry: Geometry,
    end: LogPosition,
    rest_is_zero: bool,
    removed: &mut Vec<String>,
) -> Result<Resume, DiskError> {
    let current = geometry.segment_of(end);
    let in_use = geometry.offset_of(end) > 0;
    let first_unused = if in_use { current + 1 } else { current };
    remove_half_created(files, first_unused, removed)?;
    let current_fit = if in_use {
        files.is_whole(current)
    } else {
        true
    };
    let undisturbed = rest_is_zero || mutation::removed(Rule::FreshSegment);
    if undisturbed && current_fit && is_contiguous(files, current) {
        return Ok(Resume::InPlace);
    }
    Ok(Resume::Fresh(fresh_segment(files, current)))
}

/// The first segment behind `current` that is fit for writing with all that
/// follow it; perhaps one that does not exist yet.
pub(super) fn fresh_segment(files: &mut SegmentFiles<'_>, current: u64) -> u64 {
    let later: Vec<u64> = files.from(current + 1).collect();
    let mut fresh = later.last().map_or(current + 1, |last| last + 1);
    for sequence in later.into_iter().rev() {
        let fit = sequence + 1 == fresh && files.is_whole(sequence) && files.is_zero(sequence);
        if !fit {
            break;
        }
        fresh = sequence;
    }
    fresh
}

/// Makes every segment from `first` to `last` exist, out of those below
/// `keep_from`, which nobody needs, if there are any; returns those made.
pub(super) fn ensure(
    files: &mut SegmentFiles<'_>,
    first: u64,
    last: u64,
    keep_from: u64,
) -> Result<Vec<u64>, DiskError> {
    let mut made = Vec::new();
    for sequence in first..=last {
        if !files.exists(sequence) {
            let free = files.below(keep_from).next();
            match free {
                Some(free) => files.recycle(free, sequence)?,
                None => files.create(sequence)?,
            }
            made.push(sequence);
        }
    }
    Ok(made)
}

/// The last segment of the unbroken row that starts with `first`.
pub(super) fn ready_through(files: &SegmentFiles<'_>, first: u64) -> u64 {
    let row = (first..).zip(files.from(first));
    row.take_while(|(expected, there)| expected == there)
        .last()
        .map_or(first.saturating_sub(1), |(last, _)| last)
}

fn remove_half_created(
    files: &mut SegmentFiles<'_>,
    first: u64,
    removed: &mut Vec<String>,
) -> Result<(), DiskError> {
    let candidates: Vec<u64> = files.from(first).collect();
    for sequence in candidates {
        if !files.is_whole(sequence) && files.is_zero(sequence) {
            files.remove(sequence)?;
            removed.push(segment_name(sequence));
        }
    }
    Ok(())
}

fn is_contiguous(files: &SegmentFiles<'_>, current: u64) -> bool {
    files
        .from(current)
        .last()
        .is_none_or(|last| ready_through(files, current) == last)
}
