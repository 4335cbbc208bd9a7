//! The walk from the start of a log to its end.

use super::scan::{Scanner, Tail};
use super::table::{
    decide, Action, Body, Boot, Chain, Finding, Frontier, Header, Marker, Place, Verdict,
};
use crate::io::DiskError;
use crate::log::base::{Anchor, LogBase};
use crate::log::batch::{body_checksum, BatchHeader, BATCH_HEADER_BYTES};
use crate::log::bytes::all_zero;
use crate::log::clean::CleanMarker;
use crate::log::format::OtherFormat;
use crate::log::position::{LogPosition, MAX_BATCH_BYTES};
use crate::log::segment_files::SegmentFiles;
use crate::log::superblock::Superblock;
use crate::mutation::{removed, Rule};

/// What is done with what the walk finds.
pub(crate) trait BatchVisitor {
    /// A verified batch, padding included.
    fn batch(&mut self, header: &BatchHeader, bytes: &[u8]) -> Result<(), DiskError>;
    /// Damage was skipped here.
    fn gap(&mut self, damage: DamagedRange);
}

/// Durable bytes that do not verify.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DamagedRange {
    pub from: LogPosition,
    /// Exclusive.
    pub to: LogPosition,
}

/// What is known before the log is read.
pub(crate) struct WalkFacts<'a> {
    pub superblock: &'a Superblock,
    /// Of the last open; others are not to be passed.
    pub marker: Option<CleanMarker>,
    pub boot: Boot,
    /// A successful sync reached at least this.
    pub durable_next: LogPosition,
    /// Where to begin, if not at the log's start.
    pub base: Option<&'a LogBase>,
}

impl WalkFacts<'_> {
    /// Where the walk begins.
    pub(crate) fn anchor(&self) -> Anchor {
        match self.base {
            Some(base) => base.anchor,
            None => Anchor {
                position: self.superblock.start,
                ..Anchor::default()
            },
        }
    }
}

/// Where the log ends, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WalkEnd {
    pub position: LogPosition,
    pub last_sequence: u64,
    pub last_checksum: u64,
    pub last_epoch: u64,
    pub verdict: Verdict,
    /// Every verdict on the way kept the log's memory.
    pub remembers: bool,
    /// The last known durable frontier, at or below `position`.
    pub durable_next: LogPosition,
    pub batches: u64,
    pub damaged_ranges: u64,
    pub tail: Tail,
}

/// Why a walk did not come to an end of the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WalkError {
    /// Not damage, and not the end.
    #[error(transparent)]
    Format(#[from] OtherFormat),
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Reads the log from its start and shows each batch to `visitor`.
pub(crate) fn walk(
    files: &mut SegmentFiles<'_>,
    facts: &WalkFacts<'_>,
    visitor: &mut dyn BatchVisitor,
) -> Result<WalkEnd, WalkError> {
    let marker_end = facts.marker.map_or(LogPosition(0), |marker| marker.end);
    let anchor = facts.anchor();
    let checkpointed = facts.base.map_or(anchor.position, |base| base.durable_next);
    let known = facts
        .superblock
        .resume_at
        .max(facts.durable_next)
        .max(checkpointed)
        .max(marker_end);
    let mut walk = Walk {
        chain: Chained {
            resume_at: facts.superblock.resume_at,
            resume_epoch: facts.superblock.resume_epoch,
            last_epoch: facts.superblock.epoch,
            sequence: anchor.sequence,
            checksum: anchor.checksum,
            epoch: anchor.epoch,
            unbroken: true,
        },
        position: anchor.position,
        known,
        remembers: true,
        batches: 0,
        damaged_ranges: 0,
        buffer: vec![0; MAX_BATCH_BYTES as usize],
        files,
        facts,
    };
    walk.run(visitor)
}

/// The chain as far as it was followed.
pub(super) struct Chained {
    resume_at: LogPosition,
    resume_epoch: u64,
    /// No batch has a higher epoch.
    last_epoch: u64,
    sequence: u64,
    checksum: u64,
    epoch: u64,
    /// Whether `checksum` is the predecessor's: not so behind a lost header.
    unbroken: bool,
}

impl Chained {
    /// Whether this intact header, at its place, can belong to the chain
    /// somewhere behind what was followed: stale ones of an earlier life cannot.
    pub(super) fn can_be_later(&self, header: &BatchHeader) -> bool {
        header.sequence > self.sequence
            && (self.is_of_this_life(header) || removed(Rule::EpochCheck))
    }

    fn is_of_this_life(&self, header: &BatchHeader) -> bool {
        header.epoch >= self.epoch
            && header.epoch <= self.last_epoch
            && (header.position < self.resume_at || header.epoch >= self.resume_epoch)
    }

    pub(super) fn is_next_but_one(&self, header: &BatchHeader) -> bool {
        self.unbroken && header.sequence == self.sequence + 2
    }

    fn is_next(&self, header: &BatchHeader) -> bool {
        let behind = header.predecessor == self.checksum || removed(Rule::PredecessorCheck);
        let linked = !self.unbroken || (behind && header.sequence == self.sequence + 1);
        linked && self.can_be_later(header)
    }

    fn follow(&mut self, header: &BatchHeader, checksum: u64) {
        self.sequence = header.sequence;
        self.epoch = header.epoch;
        self.checksum = checksum;
        self.unbroken = true;
    }
}

struct Walk<'w, 'd> {
    files: &'w mut SegmentFiles<'d>,
    facts: &'w WalkFacts<'w>,
    chain: Chained,
    position: LogPosition,
    /// Last known durable frontier.
    known: LogPosition,
    remembers: bool,
    batches: u64,
    damaged_ranges: u64,
    buffer: Vec<u8>,
}

/// What stands at a place; the batch, if any, is in the walk's buffer.
struct Seen {
    header: Header,
    body: Body,
    place: Place,
    chain: Chain,
    batch: Option<(BatchHeader, u64)>,
}

impl Walk<'_, '_> {
    // Ends: each turn moves on, and behind the last segment all is zero.
    fn run(&mut self, visitor: &mut dyn BatchVisitor) -> Result<WalkEnd, WalkError> {
        loop {
            self.position = self.facts.superblock.follow(self.position);
            let seen = self.look()?;
            let mut finding = self.finding(&seen);
            let mut tail = Tail::default();
            if !finding.is_sound() && finding.frontier == Frontier::Beyond {
                tail = self.look_behind()?;
                self.known = self.known.max(tail.stamped);
                finding.frontier = self.frontier();
                finding.after = tail.after();
            }
            let verdict = decide(&finding);
            self.remembers &= verdict.remembers;
            match (verdict.action, seen.batch) {
                (Action::Accept, Some((header, checksum))) => {
                    self.accept(&header, checksum, visitor)?;
                }
                (Action::Accept | Action::Damage, batch) => {
                    let follows = seen.place == Place::Here && seen.chain == Chain::Follows;
                    self.skip(batch.filter(|_| follows), visitor)?;
                }
                _ => return Ok(self.end(verdict, tail)),
            }
        }
    }

    fn accept(
        &mut self,
        header: &BatchHeader,
        checksum: u64,
        visitor: &mut dyn BatchVisitor,
    ) -> Result<(), DiskError> {
        let end = header.end(self.facts.superblock.geometry);
        let len = (end.0 - self.position.0) as usize;
        visitor.batch(header, self.buffer.get(..len).unwrap_or_default())?;
        self.chain.follow(header, checksum);
        self.known = self.known.max(header.durable_next);
        self.position = end;
        self.batches += 1;
        Ok(())
    }

    /// Goes on behind damage: behind a batch whose intact header says where it
    /// ends, else at the next header that can belong to the chain, else at the
    /// durable frontier (where a batch starts).
    fn skip(
        &mut self,
        batch: Option<(BatchHeader, u64)>,
        visitor: &mut dyn BatchVisitor,
    ) -> Result<(), OtherFormat> {
        let from = self.position;
        match batch {
            Some((header, checksum)) => {
                self.chain.follow(&header, checksum);
                self.known = self.known.max(header.durable_next);
                self.position = header.end(self.facts.superblock.geometry);
            }
            None => {
                self.position = self.next_header()?;
                self.chain.unbroken = false;
            }
        }
        self.damaged_ranges += 1;
        let to = self.position;
        visitor.gap(DamagedRange { from, to });
        Ok(())
    }

    fn next_header(&mut self) -> Result<LogPosition, OtherFormat> {
        let superblock = self.facts.superblock;
        let geometry = superblock.geometry;
        let block = u64::from(geometry.block_bytes());
        let behind_last = match self.files.last() {
            Some(last) => geometry.start_of(last + 1),
            None => LogPosition(0),
        };
        let mut scanner = Scanner {
            files: self.files,
            geometry,
            log_id: superblock.log_id,
        };
        let mut position = superblock.follow(LogPosition(self.position.0 + block));
        while position < self.known && position < behind_last {
            let header = scanner.header_at(position)?;
            if header.is_some_and(|header| self.chain.can_be_later(&header)) {
                return Ok(position);
            }
            position = superblock.follow(LogPosition(position.0 + block));
        }
        // A damaged frontier would not be: it is always a batch's end.
        Ok(self.known.max(LogPosition(self.position.0 + block)))
    }

    fn look(&mut self) -> Result<Seen, OtherFormat> {
        let geometry = self.facts.superblock.geometry;
        let mut seen = Seen {
            header: Header::Bad,
            body: Body::Bad,
            place: Place::Elsewhere,
            chain: Chain::Breaks,
            batch: None,
        };
        let block = geometry.block_bytes() as usize;
        let Some(first) = self.buffer.get_mut(..block) else {
            return Ok(seen);
        };
        self.files.read(self.position, first);
        if all_zero(first) {
            seen.header = Header::Zero;
            return Ok(seen);
        }
        let Some((header, checksum)) = BatchHeader::decode(first) else {
            let log_id = self.facts.superblock.log_id;
            let other = BatchHeader::other_format(first, log_id, self.position);
            return other.map_or(Ok(seen), Err);
        };
        seen.header = Header::Intact;
        seen.batch = Some((header, checksum));
        let here = header.log_id == self.facts.superblock.log_id
            && (header.position == self.position || removed(Rule::PositionCheck));
        let padded = geometry.padded(header.used_bytes()) as usize;
        if !here || padded > geometry.batch_capacity(self.position) {
            seen.body = Body::Intact;
            return Ok(seen);
        }
        seen.place = Place::Here;
        if self.chain.is_next(&header) {
            seen.chain = Chain::Follows;
        }
        if let Some(batch) = self.buffer.get_mut(..padded) {
            self.files.read(self.position, batch);
        }
        let used = header.used_bytes() as usize;
        let body = self.buffer.get(BATCH_HEADER_BYTES..used);
        if body.map(body_checksum) == Some(header.body_checksum) {
            seen.body = Body::Intact;
        }
        Ok(seen)
    }

    fn finding(&self, seen: &Seen) -> Finding {
        Finding {
            header: seen.header,
            body: seen.body,
            place: seen.place,
            chain: seen.chain,
            frontier: self.frontier(),
            marker: self.marker(),
            boot: self.facts.boot,
            after: super::table::After::Nothing,
        }
    }

    fn frontier(&self) -> Frontier {
        if self.position < self.known && !removed(Rule::NoCutBelowSync) {
            Frontier::Below
        } else {
            Frontier::Beyond
        }
    }

    fn marker(&self) -> Marker {
        match self.facts.marker {
            None => Marker::Absent,
            Some(marker) if self.position < marker.end => Marker::GoesOn,
            Some(marker) if self.position > marker.end => Marker::Contradicts,
            // Behind a lost header the checksum is not known here.
            Some(marker) if !self.chain.unbroken || marker.checksum == self.chain.checksum => {
                Marker::EndsHere
            }
            Some(_) => Marker::Contradicts,
        }
    }

    fn look_behind(&mut self) -> Result<Tail, OtherFormat> {
        let superblock = self.facts.superblock;
        Scanner {
            files: self.files,
            geometry: superblock.geometry,
            log_id: superblock.log_id,
        }
        .tail(self.position, &self.chain, self.facts.marker.is_none())
    }

    fn end(&self, verdict: Verdict, tail: Tail) -> WalkEnd {
        let checksum = match self.facts.marker {
            Some(marker) if !self.chain.unbroken && marker.end == self.position => marker.checksum,
            _ => self.chain.checksum,
        };
        WalkEnd {
            position: self.position,
            last_sequence: self.chain.sequence,
            last_checksum: checksum,
            last_epoch: self.chain.epoch,
            verdict,
            remembers: self.remembers,
            durable_next: self.known.min(self.position),
            batches: self.batches,
            damaged_ranges: self.damaged_ranges,
            tail,
        }
    }
}
