//! Looking at a log from outside, without changing anything: for
//! `tidegate log inspect` and `tidegate log verify`.
//!
//! Takes no lock: of a log that is being written it shows some recent moment.

use std::fmt;

use super::base::LogBase;
use super::batch::BatchHeader;
use super::bytes::all_zero;
use super::clean::CleanMarker;
use super::latch::{self, Latch};
use super::open::cut_of;
use super::position::{Geometry, LogId, LogPosition};
use super::recovery::{
    walk, BatchVisitor, Boot, DamagedRange, ItemAssembler, RecoveredItem, WalkFacts,
};
use super::report::{Cut, MAX_LISTED_DAMAGES};
use super::segment_files::SegmentFiles;
use super::superblock::{BootId, Jump, SuperblockError, SuperblockStore};
use crate::io::{Disk, DiskError};

/// One verified batch, or a range that is damaged, in log order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inspected<'a> {
    Batch {
        header: &'a BatchHeader,
        /// Padding included.
        bytes: u64,
    },
    Damaged(DamagedRange),
}

/// What a log is, and what opening it would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    pub log_id: LogId,
    pub geometry: Geometry,
    pub epoch: u64,
    pub open_counter: u64,
    pub incarnation: u64,
    pub jumps: Vec<Jump>,
    pub batches: u64,
    pub items: u64,
    pub dropped_fragments: u64,
    /// Batches whose padding is not the zeros that were written: harmless,
    /// since nothing reads it, but something changed bytes on the disk.
    pub odd_paddings: u64,
    /// The clean marker that would be honoured.
    pub clean_marker: Option<CleanMarker>,
    pub same_boot: bool,
    /// How far the log is known to be durable.
    pub known_durable_next: LogPosition,
    pub end: LogPosition,
    pub cut: Option<Cut>,
    pub damaged: Vec<DamagedRange>,
    pub damaged_ranges: u64,
    /// The next open would report it.
    pub amnesiac: bool,
    /// The next open would copy the tail.
    pub latched: bool,
    pub superblock_damaged: Option<&'static str>,
    pub unreadable: Option<DiskError>,
}

impl Inspection {
    /// Whether every byte that should verify does.
    pub fn is_sound(&self) -> bool {
        self.damaged_ranges == 0 && self.unreadable.is_none() && self.superblock_damaged.is_none()
    }
}

/// Walks the log in `disk` and shows each batch to `visit`. `markers` are the
/// data directory's clean markers, read but not removed
/// ([`CleanMarker::decode_all`]); `base` is the published checkpoint's.
pub fn inspect(
    disk: &dyn Disk,
    boot_id: BootId,
    markers: &[CleanMarker],
    boot_directory: Option<&dyn Disk>,
    base: Option<&LogBase>,
    visit: &mut dyn FnMut(Inspected<'_>),
) -> Result<Inspection, SuperblockError> {
    let store = SuperblockStore::load(disk)?;
    let superblock = &store.current;
    let same_boot = superblock.resume_epoch == 0 || superblock.boot_id == boot_id;
    let latch = latch::find_latch(disk, boot_directory, superblock, same_boot)?;
    let marker = markers.iter().copied().find(|marker| {
        marker.log_id == superblock.log_id && marker.open_counter == superblock.open_counter
    });
    let mut files = SegmentFiles::list(disk, superblock.geometry)?;
    let facts = WalkFacts {
        superblock,
        marker: marker.filter(|_| latch.is_none()),
        boot: if same_boot { Boot::Same } else { Boot::Other },
        durable_next: match latch {
            Some(Latch::At(record)) => record.durable_next,
            _ => LogPosition(0),
        },
        base,
    };
    let mut viewer = Viewer {
        assembler: ItemAssembler::behind(base),
        damaged: Vec::new(),
        geometry: superblock.geometry,
        odd_paddings: 0,
        visit,
    };
    let end = walk(&mut files, &facts, &mut viewer)?;
    Ok(Inspection {
        log_id: superblock.log_id,
        geometry: superblock.geometry,
        epoch: superblock.epoch,
        open_counter: superblock.open_counter,
        incarnation: superblock.incarnation,
        jumps: superblock.jumps.clone(),
        batches: end.batches,
        items: viewer.assembler.items,
        dropped_fragments: viewer.assembler.dropped_fragments,
        odd_paddings: viewer.odd_paddings,
        clean_marker: facts.marker,
        same_boot,
        known_durable_next: end.durable_next,
        end: end.position,
        cut: cut_of(&end),
        damaged: viewer.damaged,
        damaged_ranges: end.damaged_ranges,
        amnesiac: superblock.amnesiac || latch.is_some() || !end.remembers,
        latched: latch.is_some(),
        superblock_damaged: store.damaged,
        unreadable: files.unreadable,
    })
}

struct Viewer<'a> {
    assembler: ItemAssembler,
    damaged: Vec<DamagedRange>,
    geometry: Geometry,
    odd_paddings: u64,
    visit: &'a mut dyn FnMut(Inspected<'_>),
}

impl BatchVisitor for Viewer<'_> {
    fn batch(&mut self, header: &BatchHeader, bytes: &[u8]) -> Result<(), DiskError> {
        let mut ignore = |_: RecoveredItem<'_>| {};
        self.assembler.batch(header, bytes, &mut ignore);
        let padding = bytes.get(header.used_bytes() as usize..);
        self.odd_paddings += u64::from(!padding.is_some_and(all_zero));
        (self.visit)(Inspected::Batch {
            header,
            bytes: self.geometry.padded(header.used_bytes()),
        });
        Ok(())
    }

    fn gap(&mut self, damage: DamagedRange) {
        self.assembler.gap();
        if self.damaged.len() < MAX_LISTED_DAMAGES {
            self.damaged.push(damage);
        }
        (self.visit)(Inspected::Damaged(damage));
    }
}

impl fmt::Display for Inspected<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Inspected::Batch { header, bytes } => write!(
                f,
                "batch {} at {}: {bytes} bytes, {} fragments, epoch {}, durable_next {}, verifies",
                header.sequence,
                header.position,
                header.fragments,
                header.epoch,
                header.durable_next
            ),
            Inspected::Damaged(range) => {
                write!(f, "damaged from {} to {}", range.from, range.to)
            }
        }
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Log {}: opened {} times, epoch {}, {} items in {} batches, known to be durable up to {}, ends at {}.",
            self.log_id,
            self.open_counter,
            self.epoch,
            self.items,
            self.batches,
            self.known_durable_next,
            self.end
        )?;
        if let Some(name) = self.superblock_damaged {
            write!(
                f,
                " The superblock copy {name} is damaged; opening rewrites it."
            )?;
        }
        if let Some(error) = &self.unreadable {
            write!(f, " Some bytes cannot be read ({error}).")?;
        }
        if self.damaged_ranges > 0 {
            write!(
                f,
                " {} durable ranges are damaged; opening reports and skips them.",
                self.damaged_ranges
            )?;
        }
        if self.odd_paddings > 0 {
            write!(
                f,
                " {} batches verify, but the padding behind them is no longer zeros: no record is hurt, yet something changed bytes on the disk.",
                self.odd_paddings
            )?;
        }
        if let Some(cut) = &self.cut {
            write!(
                f,
                " Opening would cut the bytes from {} to {}.",
                cut.from, cut.to
            )?;
        }
        if self.latched {
            f.write_str(" It latched after an I/O error; opening copies the tail past the last successful sync.")?;
        }
        match (self.clean_marker.is_some(), self.amnesiac) {
            (true, _) => f.write_str(" It was stopped cleanly."),
            (false, true) => f.write_str(" It may have forgotten what was confirmed as written."),
            (false, false) => {
                f.write_str(" It was not stopped cleanly, and has forgotten nothing.")
            }
        }
    }
}
