//! After a latch: the tail past the last successful sync is neither trusted
//! nor thrown away, but copied.
//!
//! After a failed sync the device may hold less than a read shows. So every
//! batch past the last successful sync that verifies is written anew, into
//! segments nothing was written to, and synced there; then the superblock's
//! jump is written and synced. The copy keeps each batch's offset in its
//! segment: all places move by the same distance, and batches that fitted their
//! segment still do.
//!
//! A crash before the jump leaves segments that nothing refers to; the latch is
//! still recorded, and the next open copies again, behind them.

use super::base::LogBase;
use super::batch::{checksum_of, BatchHeader};
use super::open::cut_of;
use super::position::{Geometry, LogPosition};
use super::recovery::{walk, BatchVisitor, Boot, DamagedRange, WalkError, WalkFacts};
use super::report::{Cut, Recopied};
use super::resume::{ensure, fresh_segment};
use super::segment_files::SegmentFiles;
use super::superblock::{Jump, SuperblockStore};
use crate::io::DiskError;
use crate::mutation::{removed, Rule};

/// Copies what lies past the last successful sync and enters the jump into
/// `store`, which the caller then makes durable. `recorded` is the frontier the
/// latch recorded, 0 if unknown. Also tells what did not verify and was cut.
pub(super) fn recopy(
    files: &mut SegmentFiles<'_>,
    store: &mut SuperblockStore,
    base: Option<&LogBase>,
    recorded: LogPosition,
    boot: Boot,
) -> Result<(Recopied, Option<Cut>), WalkError> {
    let geometry = store.current.geometry;
    let facts = WalkFacts {
        superblock: &store.current,
        marker: None,
        boot,
        durable_next: recorded,
        base,
    };
    let anchor = facts.anchor();
    // The frontier is known only after the whole log has been read once.
    let end = walk(files, &facts, &mut Collector::from(LogPosition(u64::MAX)))?;
    let from = end.durable_next;
    let mut tail = Collector::from(from);
    tail.predecessor = anchor.checksum;
    walk(files, &facts, &mut tail)?;

    let first = geometry.segment_of(from);
    let fresh = fresh_segment(files, geometry.segment_of(end.position));
    let shift = geometry.start_of(fresh).0 - geometry.start_of(first).0;
    let to = LogPosition(from.0 + shift);
    let copied_end = LogPosition(end.position.0 + shift);
    let last = geometry.segment_of(copied_end);
    let keep_from = LogBase::first_needed(base, geometry);
    let made = ensure(files, fresh, last, keep_from)?;
    let epoch = store.current.epoch;
    let copied = copy(files, geometry, &tail, epoch, shift).and_then(|()| {
        match removed(Rule::CopySyncedBeforeJump) {
            true => Ok(()),
            false => files.sync(fresh..=last),
        }
    });
    if let Err(error) = copied {
        // Best effort: a try that failed should not eat the disk.
        for sequence in made {
            let _ = files.remove(sequence);
        }
        return Err(error.into());
    }
    let anchor = base.map(|base| base.anchor.position);
    if !removed(Rule::ReopenJump) {
        store.current.add_jump(Jump { from, to, epoch }, anchor);
    }
    store.current.resume_at = copied_end;
    store.current.resume_epoch = epoch;
    let recopied = Recopied {
        from,
        to,
        bytes: end.position.0 - from.0,
    };
    Ok((recopied, cut_of(&end)))
}

/// Writes the batches of `tail` anew, `shift` bytes further on.
fn copy(
    files: &mut SegmentFiles<'_>,
    geometry: Geometry,
    tail: &Collector,
    epoch: u64,
    shift: u64,
) -> Result<(), DiskError> {
    let mut predecessor = tail.predecessor;
    let mut buffer = Vec::new();
    for header in &tail.batches {
        buffer.resize(geometry.padded(header.used_bytes()) as usize, 0);
        files.read(header.position, &mut buffer);
        let moved = BatchHeader {
            position: LogPosition(header.position.0 + shift),
            epoch,
            predecessor,
            durable_next: tail.from,
            ..*header
        };
        predecessor = moved.encode(&mut buffer);
        files.write(moved.position, &buffer)?;
    }
    Ok(())
}

/// The batches at and above a place, and the checksum of the one before.
struct Collector {
    from: LogPosition,
    batches: Vec<BatchHeader>,
    predecessor: u64,
}

impl Collector {
    fn from(from: LogPosition) -> Self {
        Collector {
            from,
            batches: Vec::new(),
            predecessor: 0,
        }
    }
}

impl BatchVisitor for Collector {
    fn batch(&mut self, header: &BatchHeader, bytes: &[u8]) -> Result<(), DiskError> {
        if header.position < self.from {
            self.predecessor = checksum_of(bytes);
        } else {
            self.batches.push(*header);
        }
        Ok(())
    }

    fn gap(&mut self, _damage: DamagedRange) {}
}
