//! A partition as bytes, for a checkpoint, and back.
//!
//! What the log made is captured, the leader's memory is not: a restored
//! partition is one that replayed the same commands and handed nothing out.
//! The records follow a chunk at a time while the partition goes on; they are
//! shown as they stood when the capture began.
//!
//! ```text
//! head     queue_id u64, partition u16, mode u8 (+ 64: it was changed), copies u8,
//!          lease_ms u64, where it was changed: revision u32, since u64, copies before u8;
//!          next offset u64, acknowledged u64, dropped u64, purged u64,
//!          mark u64, flagged below u64,
//!          dues u32, then (offset u64, due_ms u64) each,
//!          stamps u32, then (first offset u64, stamp_ms u64) each,
//!          producers, left out where there are none
//! records  runs: records with consecutive offsets and places, and equal attempts
//! run      kind u8 (1 ring, 2 packed; + 4 if all lengths are equal),
//!          first offset u64, place u64 (position, or file << 32 | byte),
//!          attempts u32, count u16, then one length u32, or one for each
//! ```
//!
//! Plain little-endian.

use wire::vocabulary::Mode;

use super::{apply::is_delayed, slots::Slot, Change, Partition, RecordLocation};
use crate::mutation::{removed, Rule};
use crate::state::{
    command::{CommandError, PartitionSpec},
    producer::{Producers, ProducersError},
    reader::Reader,
};

const RING: u8 = 1;
const PACKED: u8 = 2;
const EQUAL_LENGTHS: u8 = 4;
/// With the mode: the setting was changed, and how follows.
const CHANGED: u8 = 64;

/// Captured bytes that do not make a partition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    #[error("a captured partition is truncated")]
    Truncated,
    #[error("a captured partition has unknown {0}")]
    Unknown(&'static str),
    #[error("a captured partition is not in order")]
    Disorder,
}

impl From<ProducersError> for RestoreError {
    fn from(error: ProducersError) -> Self {
        match error {
            ProducersError::Truncated => RestoreError::Truncated,
            ProducersError::Disorder => RestoreError::Disorder,
        }
    }
}

impl From<CommandError> for RestoreError {
    fn from(_: CommandError) -> Self {
        RestoreError::Truncated
    }
}

impl Partition {
    /// Begins a capture: writes the head. Until [`Partition::end_capture`],
    /// changes cost a little more.
    pub fn begin_capture(&mut self, out: &mut Vec<u8>) {
        let spec = &self.spec;
        out.extend_from_slice(&spec.queue_id.to_le_bytes());
        out.extend_from_slice(&spec.partition.to_le_bytes());
        let changed = if self.change.is_some() { CHANGED } else { 0 };
        out.extend_from_slice(&[spec.mode as u8 | changed, spec.copies]);
        out.extend_from_slice(&spec.lease_ms.to_le_bytes());
        if let Some(change) = &self.change {
            out.extend_from_slice(&change.revision.to_le_bytes());
            out.extend_from_slice(&change.since.to_le_bytes());
            out.push(change.copies_before);
        }
        for word in [
            self.slots.next_offset(),
            self.acknowledged,
            self.dropped,
            self.purged,
            self.mark.applied(),
            self.mark.flagged_below(),
        ] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        let slots = &self.slots;
        let dues = self.delayed.dues(|due| is_delayed(slots, due));
        put_pairs(out, dues.into_iter());
        put_pairs(out, self.stamps.entries());
        if let Some(producers) = self.producers.as_ref().filter(|all| !all.is_empty()) {
            producers.capture(out);
        }
        self.slots.begin_snapshot();
    }

    /// Captures the next records, about `budget` of them, and shows each
    /// one's place and length to `seen`. False when all are captured.
    pub fn capture_records(
        &mut self,
        budget: usize,
        out: &mut Vec<u8>,
        seen: &mut dyn FnMut(RecordLocation, u32),
    ) -> bool {
        let mut run = Run::default();
        let mut shown = 0;
        let mut more = true;
        while more && shown < budget {
            more = self.slots.snapshot_chunk(|offset, slot| {
                shown += 1;
                seen(slot.location(), slot.len());
                run.add(offset, slot, out);
            });
        }
        run.flush(out);
        more
    }

    /// As [`Partition::capture_records`], each record shown by offset, ended
    /// deliveries, place and length.
    pub fn show_captured(
        &mut self,
        budget: usize,
        show: &mut dyn FnMut(u64, u32, RecordLocation, u32),
    ) -> bool {
        let mut shown = 0;
        let mut more = true;
        while more && shown < budget {
            more = self.slots.snapshot_chunk(|offset, slot| {
                shown += 1;
                show(offset, slot.attempts, slot.location(), slot.len());
            });
        }
        more
    }

    /// Puts one captured record back, at a place in the log; ascending. False if
    /// it is none of this partition.
    pub fn restore_record(&mut self, offset: u64, position: u64, len: u32, attempts: u32) -> bool {
        let location = RecordLocation::Ring(position);
        offset < self.slots.next_offset() && self.slots.restore(offset, location, len, attempts)
    }

    /// Ends a capture, also one that is given up.
    pub fn end_capture(&mut self) {
        self.slots.end_snapshot();
    }

    /// A partition from a captured head; its records follow by
    /// [`Partition::restore_records`].
    ///
    /// # Errors
    /// The bytes are no head.
    pub fn restore(head: &[u8]) -> Result<Self, RestoreError> {
        let mut reader = Reader::new(head);
        let queue_id = reader.u64()?;
        let partition = reader.u16()?;
        let mode = reader.u8()?;
        let changed = mode & CHANGED != 0;
        let mode = Mode::from_raw(mode & !CHANGED).ok_or(RestoreError::Unknown("mode"))?;
        let copies = reader.u8()?;
        let mut restored = Partition::new(PartitionSpec {
            queue_id,
            partition,
            mode,
            copies,
            lease_ms: reader.u64()?,
        });
        if changed {
            let change = Change {
                revision: reader.u32()?,
                since: reader.u64()?,
                copies_before: reader.u8()?,
            };
            if change.revision == 0 {
                return Err(RestoreError::Unknown("change"));
            }
            restored.change = Some(Box::new(change));
        }
        restored.slots.restore_next(reader.u64()?);
        restored.acknowledged = reader.u64()?;
        restored.dropped = reader.u64()?;
        restored.purged = reader.u64()?;
        restored.mark.apply(reader.u64()?);
        restored.mark.flag_below(reader.u64()?);
        for _ in 0..reader.u32()? {
            let (offset, due_ms) = (reader.u64()?, reader.u64()?);
            restored.delayed.set_gated(offset, due_ms);
        }
        for _ in 0..reader.u32()? {
            let (first, stamp_ms) = (reader.u64()?, reader.u64()?);
            restored.stamps.restore(first, stamp_ms);
        }
        if !reader.is_empty() {
            let producers = Producers::restore(&mut reader)?;
            if producers.is_empty() {
                // They are left out then.
                return Err(RestoreError::Unknown("producers"));
            }
            restored.producers = Some(Box::new(producers));
        }
        reader.end()?;
        Ok(restored)
    }

    /// Puts captured records back, in the order they were captured.
    ///
    /// # Errors
    /// The bytes are no records of this partition.
    pub fn restore_records(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        let mut reader = Reader::new(bytes);
        while !reader.is_empty() {
            self.restore_run(&mut reader)?;
        }
        Ok(())
    }

    fn restore_run(&mut self, reader: &mut Reader<'_>) -> Result<(), RestoreError> {
        let kind = reader.u8()?;
        let packed = match kind & !EQUAL_LENGTHS {
            RING => false,
            PACKED => true,
            _ => return Err(RestoreError::Unknown("kind of place")),
        };
        let (first, mut place) = (reader.u64()?, reader.u64()?);
        let (attempts, count) = (reader.u32()?, reader.u16()?);
        let next = self.slots.next_offset();
        let end = first.checked_add(u64::from(count));
        if end.is_none_or(|end| end > next) {
            return Err(RestoreError::Disorder);
        }
        let mut len = 0;
        for n in 0..u64::from(count) {
            if n == 0 || kind & EQUAL_LENGTHS == 0 {
                len = reader.u32()?;
            }
            let location = if packed {
                RecordLocation::Packed {
                    file: (place >> 32) as u32,
                    at: place as u32,
                }
            } else {
                RecordLocation::Ring(place)
            };
            if !self.slots.restore(first + n, location, len, attempts) {
                return Err(RestoreError::Disorder);
            }
            place = place.saturating_add(u64::from(len));
        }
        Ok(())
    }

    /// Visits unsettled records from `from` on in offset order: offset, place,
    /// encoded bytes. Stops after `most`, or when `visit` says no; returns the
    /// offset to go on at, `None` at the end.
    pub fn visit_places(
        &self,
        from: u64,
        most: usize,
        visit: &mut dyn FnMut(u64, RecordLocation, u32) -> bool,
    ) -> Option<u64> {
        let slots = self.slots.walk(from, self.slots.next_offset());
        for (seen, (offset, slot)) in slots.enumerate() {
            if seen >= most || !visit(offset, slot.location(), slot.len()) {
                return Some(offset);
            }
        }
        None
    }

    /// The record, if it is unsettled and still at `from`, is at `to` now.
    pub fn relocate(&mut self, offset: u64, from: RecordLocation, to: RecordLocation) -> bool {
        let moved = self.slots.modify(offset, |slot| {
            let is_there = slot.location() == from || removed(Rule::RelocateChecked);
            if is_there {
                slot.relocate(to);
            }
            is_there
        });
        moved == Some(true)
    }
}

fn put_pairs(out: &mut Vec<u8>, pairs: impl ExactSizeIterator<Item = (u64, u64)>) {
    out.extend_from_slice(&(pairs.len() as u32).to_le_bytes());
    for (a, b) in pairs {
        out.extend_from_slice(&a.to_le_bytes());
        out.extend_from_slice(&b.to_le_bytes());
    }
}

/// Records that follow each other in every respect.
#[derive(Default)]
struct Run {
    packed: bool,
    first: u64,
    place: u64,
    /// Behind the last record.
    next_place: u64,
    attempts: u32,
    lengths: Vec<u32>,
}

impl Run {
    fn add(&mut self, offset: u64, slot: &Slot, out: &mut Vec<u8>) {
        let (packed, place) = match slot.location() {
            RecordLocation::Ring(position) => (false, position),
            RecordLocation::Packed { file, at } => (true, u64::from(file) << 32 | u64::from(at)),
        };
        let goes_on = !self.lengths.is_empty()
            && self.lengths.len() < usize::from(u16::MAX)
            && (packed, place, slot.attempts) == (self.packed, self.next_place, self.attempts)
            && offset == self.first + self.lengths.len() as u64;
        if !goes_on {
            self.flush(out);
            (self.packed, self.first, self.place) = (packed, offset, place);
            self.attempts = slot.attempts;
        }
        self.lengths.push(slot.len());
        self.next_place = place.saturating_add(u64::from(slot.len()));
    }

    fn flush(&mut self, out: &mut Vec<u8>) {
        let Some(first) = self.lengths.first() else {
            return;
        };
        let equal = self.lengths.iter().all(|len| len == first);
        let kind = if self.packed { PACKED } else { RING };
        out.push(kind | if equal { EQUAL_LENGTHS } else { 0 });
        out.extend_from_slice(&self.first.to_le_bytes());
        out.extend_from_slice(&self.place.to_le_bytes());
        out.extend_from_slice(&self.attempts.to_le_bytes());
        // At most u16::MAX, see `add`.
        out.extend_from_slice(&(self.lengths.len() as u16).to_le_bytes());
        let shown = if equal { 1 } else { self.lengths.len() };
        for len in self.lengths.iter().take(shown) {
            out.extend_from_slice(&len.to_le_bytes());
        }
        self.lengths.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::{super::AppendedRecord, *};
    use crate::state::producer::{ProducerStamp, Verdict};
    use wire::vocabulary::SettleKind;

    fn record(place: u64, len: u32, not_before_ms: u64) -> AppendedRecord {
        AppendedRecord {
            location: RecordLocation::Ring(place),
            len,
            not_before_ms,
        }
    }

    /// A partition that has some of everything, captured.
    fn captured() -> (Vec<u8>, Vec<u8>) {
        let mut partition = Partition::new(PartitionSpec {
            queue_id: 9,
            partition: 3,
            mode: Mode::Buffered,
            copies: 2,
            lease_ms: 5_000,
        });
        let records: Vec<_> = (0..400)
            .map(|n| record(4096 + 100 * n, 100, u64::from(n % 50 == 49) * 7_000))
            .collect();
        partition.apply_append(1_000, &records);
        partition.apply_append(2_000, &[record(90_000, 10, 0), record(90_010, 20, 0)]);
        partition.apply_settle(SettleKind::Acknowledge, 0, &[(3, 1), (300, 1)]);
        partition.apply_settle(SettleKind::Release, 9_000, &[(7, 1)]);
        let to = RecordLocation::Packed { file: 1, at: 4096 };
        assert!(partition.relocate(0, RecordLocation::Ring(4096), to));
        let (mut head, mut body) = (Vec::new(), Vec::new());
        partition.begin_capture(&mut head);
        while partition.capture_records(1, &mut body, &mut |_, _| {}) {}
        (head, body)
    }

    fn restored(head: &[u8], body: &[u8]) -> Result<Partition, RestoreError> {
        let mut partition = Partition::restore(head)?;
        partition.restore_records(body)?;
        Ok(partition)
    }

    #[test]
    fn what_was_captured_is_captured_again_byte_by_byte() {
        let (head, body) = captured();
        let mut partition = restored(&head, &body).unwrap();
        let (mut again, mut records) = (Vec::new(), Vec::new());
        partition.begin_capture(&mut again);
        while partition.capture_records(1, &mut records, &mut |_, _| {}) {}
        assert_eq!((again, records), (head, body));
    }

    #[test]
    fn producers_are_captured_with_the_partition_and_left_out_where_there_are_none() {
        let (head, body) = captured();
        let mut partition = restored(&head, &body).unwrap();
        let producer = ProducerStamp {
            id: 7,
            epoch: 1,
            sequence: 3,
        };
        partition.apply_stored(&producer, 5_000, 400, 2);
        partition.end_capture();
        let mut with = Vec::new();
        partition.begin_capture(&mut with);
        assert!(with.starts_with(&head) && with.len() > head.len());
        let again = Partition::restore(&with).unwrap();
        let stored = Verdict::Stored {
            first: 400,
            count: 2,
        };
        assert_eq!(again.judge(&producer, 5_000), stored);
        for cut in head.len() + 1..with.len() {
            let error = Partition::restore(&with[..cut]).err();
            assert_eq!(error, Some(RestoreError::Truncated), "{cut}");
        }
        let none = [&head[..], &[0; 4]].concat();
        let error = Partition::restore(&none).err();
        assert_eq!(error, Some(RestoreError::Unknown("producers")));
    }

    #[test]
    fn a_change_of_the_setting_is_captured_and_only_a_newer_one_is_taken() {
        let (head, body) = captured();
        let mut partition = restored(&head, &body).unwrap();
        assert!(partition.apply_change(Mode::Durable, 255, 4));
        for late in [3, 4] {
            assert!(!partition.apply_change(Mode::Speculative, 1, late));
        }
        partition.end_capture();
        let mut changed = Vec::new();
        partition.begin_capture(&mut changed);
        assert_eq!(changed.len(), head.len() + 13);
        let again = Partition::restore(&changed).unwrap();
        let change = Change {
            revision: 4,
            since: 402,
            copies_before: 2,
        };
        assert_eq!(again.change(), Some(&change));
        assert_eq!(
            (again.spec().mode, again.spec().copies),
            (Mode::Durable, 255)
        );
        assert_eq!(again.spec(), partition.spec());
        for cut in 0..changed.len() {
            let error = Partition::restore(&changed[..cut]).err();
            assert_eq!(error, Some(RestoreError::Truncated), "{cut}");
        }
        let at = 8 + 2 + 2 + 8;
        changed[at..at + 4].fill(0);
        let error = Partition::restore(&changed).err();
        assert_eq!(error, Some(RestoreError::Unknown("change")));
    }

    #[test]
    fn heads_and_records_that_are_cut_are_refused() {
        let (head, body) = captured();
        for cut in 0..head.len() {
            let error = restored(&head[..cut], &[]).err();
            assert_eq!(error, Some(RestoreError::Truncated), "{cut}");
        }
        assert!(restored(&[&head[..], &[0]].concat(), &[]).is_err());
        let whole = |body: &[u8]| restored(&head, body).ok();
        let count = whole(&body).unwrap().counts(0).gated;
        for cut in 1..body.len() {
            // Between two runs a cut is not seen; the section's length is checked.
            let fewer = whole(&body[..cut]).map(|partition| partition.counts(0).gated);
            assert!(fewer.is_none_or(|fewer| fewer < count), "{cut}");
        }
    }

    #[test]
    fn unknown_kinds_and_records_out_of_order_are_refused() {
        let (mut head, body) = captured();
        for kind in [0, 3, 4, 7, 8, 255] {
            let mut body = body.clone();
            body[0] = kind;
            let error = restored(&head, &body).err();
            assert_eq!(error, Some(RestoreError::Unknown("kind of place")));
        }
        let twice = [&body[..], &body[..]].concat();
        let error = restored(&head, &twice).err();
        assert_eq!(error, Some(RestoreError::Disorder));
        for offset in [403, u64::MAX] {
            let mut body = body.clone();
            body[1..9].copy_from_slice(&u64::to_le_bytes(offset));
            let error = restored(&head, &body).err();
            assert_eq!(error, Some(RestoreError::Disorder));
        }
        head[10] = 77;
        let error = restored(&head, &body).err();
        assert_eq!(error, Some(RestoreError::Unknown("mode")));
    }
}
