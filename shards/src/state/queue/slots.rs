//! What is known of each unsettled record, by offset.
//!
//! Owns: the slots, 20 bytes each, in chunks of 256 offsets, and how many are
//! in each state. A chunk whose records are all settled is freed, so one
//! unsettled record pins the memory of its own chunk only.
//!
//! Invariants:
//! 1. Offsets are given out contiguously from 0 and never again.
//! 2. A chunk in the map has at least one unsettled slot.
//! 3. `counts[s]` is the number of slots in state `s`.
//!
//! Never does: decide; callers say what state a slot takes.

use std::collections::{btree_map::Entry, BTreeMap};

use super::RecordLocation;

/// Offsets per chunk.
const CHUNK: u64 = 256;
/// Memory that a chunk takes beside its slots, about.
const CHUNK_BYTES: u64 = 64;

/// Where an unsettled record stands. Which states are the log's and which the
/// leader's memory is said in the module head of `queue`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum SlotState {
    /// Gone; only inside a chunk that others keep.
    Settled,
    /// At or above the delivery frontier.
    Gated,
    /// Waits in the heap for its due time.
    Delayed,
    /// Ready, found by the cursor.
    Fresh,
    /// Ready, found in the ordered set.
    Returned,
    /// Handed out.
    Leased,
    /// Handed out, and a settle of it is under way.
    Settling,
    /// The lease ended; ready once that is applied.
    Ended,
}

const STATES: usize = 8;

/// One record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    /// Where it stands, low half first, without the highest bit: of a position
    /// that is never set. In two halves, or the slot would be aligned to 8.
    place: [u32; 2],
    /// Deliveries that have ended.
    pub(super) attempts: u32,
    /// Slab key of the consumer, while leased.
    pub(super) holder: u32,
    /// Encoded bytes, little-endian.
    len: [u8; 3],
    pub(super) state: SlotState,
}

const _: () = assert!(size_of::<Slot>() == 20);

/// Set in the high half of the place of a packed record.
const PACKED: u32 = 1 << 31;

/// Most encoded bytes of a record.
const MAX_LEN: u32 = (1 << 24) - 1;
const _: () = assert!(wire::limits::MAX_FRAME_BYTES as u64 <= MAX_LEN as u64 + 1);

impl Slot {
    /// A record that fits into no frame, or stands where nothing can, is none:
    /// `is_possible` said so.
    fn new(location: RecordLocation, len: u32) -> Self {
        let [a, b, c, _] = len.to_le_bytes();
        Slot {
            place: place_of(location),
            len: [a, b, c],
            attempts: 0,
            holder: 0,
            state: SlotState::Gated,
        }
    }

    /// Whether a slot can hold that. All that came in by a frame can be held.
    fn is_possible(location: RecordLocation, len: u32) -> bool {
        let fits = match location {
            RecordLocation::Ring(position) => position >> 63 == 0,
            RecordLocation::Packed { file, .. } => file & PACKED == 0,
        };
        fits && len <= MAX_LEN
    }

    pub(super) fn location(&self) -> RecordLocation {
        let [low, high] = self.place;
        if high & PACKED != 0 {
            RecordLocation::Packed {
                file: high & !PACKED,
                at: low,
            }
        } else {
            RecordLocation::Ring(u64::from(high) << 32 | u64::from(low))
        }
    }

    /// Encoded bytes.
    pub(super) fn len(&self) -> u32 {
        let [a, b, c] = self.len;
        u32::from_le_bytes([a, b, c, 0])
    }

    /// Number of the delivery that is under way or comes next.
    pub(super) fn attempt(&self) -> u32 {
        self.attempts.saturating_add(1)
    }

    /// Counts a delivery as ended. Sticks below the end of the type, so that
    /// `attempt` is always one more.
    pub(super) fn end_attempt(&mut self) {
        self.attempts = self.attempts.saturating_add(1).min(u32::MAX - 1);
    }

    /// The record is elsewhere now.
    pub(super) fn relocate(&mut self, location: RecordLocation) {
        self.place = place_of(location);
    }

    fn is_live(&self) -> bool {
        self.state != SlotState::Settled
    }

    /// Whether a snapshot shows the two alike: the leader's memory is not in it.
    fn is_captured_like(&self, other: &Slot) -> bool {
        self.is_live() == other.is_live()
            && (self.place, self.len, self.attempts) == (other.place, other.len, other.attempts)
    }
}

fn place_of(location: RecordLocation) -> [u32; 2] {
    match location {
        RecordLocation::Ring(position) => [position as u32, (position >> 32) as u32 & !PACKED],
        RecordLocation::Packed { file, at } => [at, file | PACKED],
    }
}

#[derive(Clone)]
struct Chunk {
    /// Index in the chunk of `slots[0]`: what lies before it is settled.
    first: u16,
    live: u16,
    slots: Vec<Slot>,
}

impl Chunk {
    /// Memory it takes, in bytes.
    fn held_bytes(&self) -> u64 {
        CHUNK_BYTES + (self.slots.capacity() * size_of::<Slot>()) as u64
    }

    fn slot(&self, offset: u64) -> Option<&Slot> {
        let index = ((offset % CHUNK) as usize).checked_sub(usize::from(self.first))?;
        self.slots.get(index).filter(|slot| slot.is_live())
    }

    fn slot_mut(&mut self, offset: u64) -> Option<&mut Slot> {
        let index = ((offset % CHUNK) as usize).checked_sub(usize::from(self.first))?;
        self.slots.get_mut(index).filter(|slot| slot.is_live())
    }
}

/// All slots of a partition.
#[derive(Default)]
pub(super) struct Slots {
    chunks: BTreeMap<u64, Chunk>,
    next: u64,
    counts: [u64; STATES],
    held_bytes: u64,
    snapshot: Option<Box<Snapshot>>,
}

/// A walk over the slots as they stood when it began, a chunk at a time:
/// chunks that change before their turn are kept as they were.
struct Snapshot {
    /// Chunks below were shown.
    at: u64,
    /// Exclusive end of the offsets there were.
    end: u64,
    kept: BTreeMap<u64, Chunk>,
}

impl Snapshot {
    /// The slot at `index` of the chunk was `before` and has changed.
    fn keep(&mut self, number: u64, chunk: &Chunk, index: usize, before: Slot) {
        let wanted = number >= self.at && number * CHUNK < self.end;
        if let Entry::Vacant(entry) = self.kept.entry(number) {
            if wanted {
                let mut chunk = chunk.clone();
                if let Some(slot) = chunk.slots.get_mut(index) {
                    *slot = before;
                }
                entry.insert(chunk);
            }
        }
    }
}

impl Slots {
    /// Begins a walk over the slots as they are now; ends one under way.
    pub(super) fn begin_snapshot(&mut self) {
        self.snapshot = Some(Box::new(Snapshot {
            at: 0,
            end: self.next,
            kept: BTreeMap::new(),
        }));
    }

    pub(super) fn end_snapshot(&mut self) {
        self.snapshot = None;
    }

    /// Shows the next chunk's unsettled slots as they were; false, and the
    /// walk is over, when there is none.
    pub(super) fn snapshot_chunk(&mut self, mut show: impl FnMut(u64, &Slot)) -> bool {
        let Some(snapshot) = &mut self.snapshot else {
            return false;
        };
        let kept = snapshot.kept.first_key_value().map(|(number, _)| *number);
        let present = self.chunks.range(snapshot.at..).next();
        let present = present.map(|(number, _)| *number);
        let next = [kept, present].into_iter().flatten().min();
        let Some(number) = next.filter(|number| number * CHUNK < snapshot.end) else {
            self.snapshot = None;
            return false;
        };
        let was = snapshot.kept.remove(&number);
        if let Some(chunk) = was.as_ref().or_else(|| self.chunks.get(&number)) {
            let base = number * CHUNK + u64::from(chunk.first);
            for (offset, slot) in (base..).zip(&chunk.slots) {
                if slot.is_live() && offset < snapshot.end {
                    show(offset, slot);
                }
            }
        }
        snapshot.at = number + 1;
        true
    }

    /// Puts an unsettled record back, gated. False, and nothing happens, where
    /// offsets do not ascend, or the record is none that there can be.
    pub(super) fn restore(
        &mut self,
        offset: u64,
        location: RecordLocation,
        len: u32,
        attempts: u32,
    ) -> bool {
        let number = offset / CHUNK;
        let last = self.chunks.last_key_value().map(|(number, _)| *number);
        if last.is_some_and(|last| last > number) || !Slot::is_possible(location, len) {
            return false;
        }
        let chunk = match self.chunks.entry(number) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                self.held_bytes += CHUNK_BYTES;
                entry.insert(Chunk {
                    first: (offset % CHUNK) as u16,
                    live: 0,
                    slots: Vec::new(),
                })
            }
        };
        let before = chunk.held_bytes();
        let index = ((offset % CHUNK) as usize).checked_sub(usize::from(chunk.first));
        let Some(index) = index.filter(|index| *index >= chunk.slots.len()) else {
            return false;
        };
        let mut slot = Slot::new(location, len);
        slot.attempts = attempts;
        let gone = Slot {
            state: SlotState::Settled,
            ..slot
        };
        chunk.slots.resize(index, gone);
        chunk.slots.push(slot);
        chunk.live += 1;
        self.held_bytes += chunk.held_bytes() - before;
        self.counts[SlotState::Gated as usize] += 1;
        self.next = self.next.max(offset + 1);
        true
    }

    /// The next record that is appended gets at least this offset.
    pub(super) fn restore_next(&mut self, next: u64) {
        self.next = self.next.max(next);
    }
}

impl Slots {
    /// Exclusive end of the offsets given out.
    pub(super) fn next_offset(&self) -> u64 {
        self.next
    }

    pub(super) fn count(&self, state: SlotState) -> u64 {
        self.counts[state as usize]
    }

    /// Memory that the slots take, in bytes.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Start of the lowest chunk with an unsettled record; the end of the
    /// offsets when there is none.
    pub(super) fn low_bound(&self) -> u64 {
        let first = self.chunks.first_key_value();
        first.map_or(self.next, |(number, _)| number * CHUNK)
    }

    /// Gives each (location, length) the next offset, gated.
    pub(super) fn append(&mut self, records: impl ExactSizeIterator<Item = (RecordLocation, u32)>) {
        let mut records = records.peekable();
        while records.peek().is_some() {
            let room = CHUNK - self.next % CHUNK;
            let take = room.min(records.len() as u64);
            let chunk = match self.chunks.entry(self.next / CHUNK) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => {
                    self.held_bytes += CHUNK_BYTES;
                    entry.insert(Chunk {
                        first: (self.next % CHUNK) as u16,
                        live: 0,
                        slots: Vec::new(),
                    })
                }
            };
            let before = chunk.held_bytes();
            chunk.slots.reserve(take as usize);
            // Behind the last one restored all is settled.
            let index = (self.next % CHUNK) as usize - usize::from(chunk.first);
            if let Some(last) = chunk.slots.last().filter(|_| chunk.slots.len() < index) {
                let gone = Slot {
                    state: SlotState::Settled,
                    ..*last
                };
                chunk.slots.resize(index, gone);
            }
            let batch = records.by_ref().take(take as usize);
            chunk
                .slots
                .extend(batch.map(|(location, len)| Slot::new(location, len)));
            chunk.live += take as u16;
            self.held_bytes += chunk.held_bytes() - before;
            self.next += take;
            self.counts[SlotState::Gated as usize] += take;
        }
    }

    /// The slot at `offset`, if unsettled.
    pub(super) fn get(&self, offset: u64) -> Option<&Slot> {
        self.chunks.get(&(offset / CHUNK))?.slot(offset)
    }

    /// Lets `change` look at and change the slot at `offset`, if unsettled;
    /// to settle it, `change` sets the state.
    pub(super) fn modify<R>(
        &mut self,
        offset: u64,
        change: impl FnOnce(&mut Slot) -> R,
    ) -> Option<R> {
        let number = offset / CHUNK;
        let chunk = self.chunks.get_mut(&number)?;
        let slot = chunk.slot_mut(offset)?;
        let was = *slot;
        let result = change(slot);
        let now = *slot;
        if let Some(snapshot) = &mut self.snapshot {
            if !now.is_captured_like(&was) {
                let index = (offset % CHUNK) as usize - usize::from(chunk.first);
                snapshot.keep(number, chunk, index, was);
            }
        }
        let (before, after) = (was.state, now.state);
        if before != after {
            self.counts[before as usize] -= 1;
            if after != SlotState::Settled {
                self.counts[after as usize] += 1;
            } else {
                chunk.live -= 1;
                if chunk.live == 0 {
                    self.free(number);
                }
            }
        }
        Some(result)
    }

    /// Lets `change` see every unsettled slot of `from..below` in order.
    pub(super) fn walk_mut(
        &mut self,
        from: u64,
        below: u64,
        mut change: impl FnMut(u64, &mut Slot),
    ) {
        if from >= below {
            return;
        }
        let mut emptied = Vec::new();
        let counts = &mut self.counts;
        for (number, chunk) in self.chunks.range_mut(from / CHUNK..=(below - 1) / CHUNK) {
            let base = number * CHUNK + u64::from(chunk.first);
            for index in 0..chunk.slots.len() {
                let offset = base + index as u64;
                let Some(slot) = chunk.slots.get_mut(index) else {
                    break;
                };
                if offset < from || offset >= below || !slot.is_live() {
                    continue;
                }
                let was = *slot;
                change(offset, slot);
                let now = *slot;
                if let Some(snapshot) = &mut self.snapshot {
                    if !now.is_captured_like(&was) {
                        snapshot.keep(*number, chunk, index, was);
                    }
                }
                counts[was.state as usize] -= 1;
                if now.is_live() {
                    counts[now.state as usize] += 1;
                } else {
                    chunk.live -= 1;
                }
            }
            if chunk.live == 0 {
                emptied.push(*number);
            }
        }
        for number in emptied {
            self.free(number);
        }
    }

    fn free(&mut self, number: u64) {
        if let Some(chunk) = self.chunks.remove(&number) {
            self.held_bytes -= chunk.held_bytes();
        }
    }

    /// Unsettled slots of `from..below` in order.
    pub(super) fn walk(&self, from: u64, below: u64) -> impl Iterator<Item = (u64, &Slot)> {
        let below = below.max(from);
        self.chunks
            .range(from / CHUNK..=below / CHUNK)
            .flat_map(move |(number, chunk)| {
                let base = number * CHUNK + u64::from(chunk.first);
                let skip = from.saturating_sub(base).min(chunk.slots.len() as u64);
                (base + skip..).zip(chunk.slots.iter().skip(skip as usize))
            })
            .take_while(move |(offset, _)| *offset < below)
            .filter(|(_, slot)| slot.is_live())
    }

    /// The first slot in state `Fresh` at or above `from`.
    pub(super) fn first_fresh(&self, from: u64) -> Option<(u64, &Slot)> {
        if self.count(SlotState::Fresh) == 0 {
            return None;
        }
        self.walk(from, self.next)
            .find(|(_, slot)| slot.state == SlotState::Fresh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(count: u64) -> impl ExactSizeIterator<Item = (RecordLocation, u32)> {
        (0..count as usize).map(|at| (RecordLocation::Ring(at as u64), 7))
    }

    fn settle(slots: &mut Slots, offset: u64) {
        slots.modify(offset, |slot| slot.state = SlotState::Settled);
    }

    #[test]
    fn one_unsettled_record_pins_one_chunk_only() {
        let mut slots = Slots::default();
        for _ in 0..10 {
            slots.append(some(10_000));
        }
        assert_eq!(slots.next_offset(), 100_000);
        for offset in (0..100_000).filter(|offset| *offset != 70_000) {
            settle(&mut slots, offset);
        }
        assert_eq!(slots.chunks.len(), 1);
        assert_eq!(slots.count(SlotState::Gated), 1);
        assert_eq!(slots.low_bound(), 70_000 / CHUNK * CHUNK);
        settle(&mut slots, 70_000);
        assert!(slots.chunks.is_empty());
        assert_eq!(slots.low_bound(), 100_000);
    }

    #[test]
    fn a_freed_part_of_a_chunk_never_comes_back() {
        let mut slots = Slots::default();
        slots.append(some(3));
        for offset in 0..3 {
            settle(&mut slots, offset);
        }
        slots.append(some(2));
        assert!(slots.get(2).is_none());
        assert!(slots.get(3).is_some() && slots.get(4).is_some());
        assert!(slots.get(5).is_none());
        assert_eq!(slots.walk(0, u64::MAX).count(), 2);
        assert_eq!(slots.walk(4, 5).map(|(at, _)| at).collect::<Vec<_>>(), [4]);
    }

    #[test]
    fn a_walk_that_settles_frees_chunks_and_counts() {
        let mut slots = Slots::default();
        slots.append(some(1000));
        slots.walk_mut(10, 990, |_, slot| slot.state = SlotState::Settled);
        assert_eq!(slots.count(SlotState::Gated), 20);
        assert_eq!(slots.chunks.len(), 2);
        assert_eq!(slots.walk(0, 1000).count(), 20);
        slots.walk_mut(5, 5, |_, slot| slot.state = SlotState::Settled);
        assert_eq!(slots.count(SlotState::Gated), 20);
    }

    #[test]
    fn locations_read_back() {
        for location in [
            RecordLocation::Ring(0),
            RecordLocation::Ring((1 << 63) - 1),
            RecordLocation::Packed { file: 0, at: 0 },
            RecordLocation::Packed {
                file: PACKED - 1,
                at: u32::MAX,
            },
        ] {
            assert!(Slot::is_possible(location, MAX_LEN));
            let slot = Slot::new(location, MAX_LEN);
            assert_eq!((slot.location(), slot.len()), (location, MAX_LEN));
        }
    }

    #[test]
    fn what_no_slot_can_hold_is_not_restored() {
        let mut slots = Slots::default();
        let ring = RecordLocation::Ring;
        assert!(!slots.restore(0, ring(1 << 63), 1, 0));
        assert!(!slots.restore(0, ring(1), MAX_LEN + 1, 0));
        let packed = RecordLocation::Packed {
            file: PACKED,
            at: 0,
        };
        assert!(!slots.restore(0, packed, 1, 0));
        assert_eq!(slots.held_bytes(), 0);
        assert!(slots.restore(0, ring(1), MAX_LEN, 0));
    }

    #[test]
    fn memory_is_held_for_chunks_and_given_back() {
        let mut slots = Slots::default();
        slots.append(some(10_000));
        let full = slots.held_bytes();
        assert!((200_000..240_000).contains(&full), "{full}");
        slots.walk_mut(0, 9_000, |_, slot| slot.state = SlotState::Settled);
        let rest = slots.held_bytes();
        assert!(rest < full / 8, "{rest}");
        for offset in 9_000..10_000 {
            settle(&mut slots, offset);
        }
        assert_eq!(slots.held_bytes(), 0);
        assert!(slots.restore(20_000, RecordLocation::Ring(1), 1, 0));
        assert!(slots.held_bytes() > 0);
        settle(&mut slots, 20_000);
        assert_eq!(slots.held_bytes(), 0);
    }
}
