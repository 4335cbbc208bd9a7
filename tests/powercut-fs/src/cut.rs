//! What a power cut leaves of the unsynced: a style per cut, seeded.

use std::collections::BTreeMap;

use crate::{
    file::{File, Survivor, Tick},
    random::Random,
};

/// How the survivors of one cut are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Only what was synced.
    DropAll,
    /// Everything, as if the cache had been written in time.
    KeepAll,
    /// Whole writes survive, each with this chance in percent.
    Writes(u64),
    /// Each sector survives in one of its versions: a new one with this
    /// chance in percent. Writes are torn.
    Sectors(u64),
    /// Only the oldest unsynced write of each file is lost: a hole.
    Hole,
    /// All but the newest unsynced write of each file survive; that is torn.
    TornEnd,
}

impl Style {
    pub fn any(random: &mut Random) -> Self {
        let percent = [10, 50, 90][random.below(3)];
        match random.below(8) {
            0 => Style::DropAll,
            1 => Style::KeepAll,
            2 | 3 => Style::Writes(percent),
            4 | 5 => Style::Sectors(percent),
            6 => Style::Hole,
            _ => Style::TornEnd,
        }
    }

    fn kept_share(self) -> u64 {
        match self {
            Style::DropAll => 0,
            Style::KeepAll => 100,
            Style::Writes(percent) | Style::Sectors(percent) => percent,
            Style::Hole | Style::TornEnd => 90,
        }
    }

    /// Which of `count` changes of a directory survive: as a journal keeps
    /// them, up to a point, or any of them.
    pub(crate) fn kept_changes(self, count: usize, random: &mut Random) -> Vec<bool> {
        let share = self.kept_share();
        if [0, 100].contains(&share) || random.percent(50) {
            (0..count).map(|_| random.percent(share)).collect()
        } else {
            let upto = random.below(count + 1);
            (0..count).map(|at| at < upto).collect()
        }
    }

    pub(crate) fn cut_file(self, file: &mut File, random: &mut Random, report: &mut CutReport) {
        let writes = file.unsynced_writes();
        let (oldest, newest) = (writes.first().copied(), writes.last().copied());
        let share = self.kept_share();
        let kept: BTreeMap<Tick, bool> = writes
            .iter()
            .map(|tick| (*tick, random.percent(share)))
            .collect();
        let lengths = if random.percent(share) { usize::MAX } else { 0 };
        let mut sector = random.clone();
        let fate = file.cut(lengths, |ticks| {
            let last = |keep: &dyn Fn(Tick) -> bool| {
                let found = ticks.iter().rposition(|tick| keep(*tick));
                found.map_or(Survivor::Durable, Survivor::Version)
            };
            match self {
                Style::DropAll => Survivor::Durable,
                Style::KeepAll => last(&|_| true),
                Style::Writes(_) => last(&|tick| kept[&tick]),
                Style::Sectors(_) if sector.percent(share) => {
                    Survivor::Version(sector.below(ticks.len()))
                }
                Style::Sectors(_) => Survivor::Durable,
                Style::Hole => last(&|tick| Some(tick) != oldest),
                Style::TornEnd => {
                    let torn = sector.percent(50);
                    last(&|tick| Some(tick) != newest || !torn)
                }
            }
        });
        *random = sector;
        report.sectors_kept += fate.kept;
        report.sectors_dropped += fate.dropped;
    }
}

/// What a cut did.
#[derive(Debug, Clone, Copy)]
pub struct CutReport {
    pub style: Style,
    /// Unsynced sectors that survived in their newest version.
    pub sectors_kept: u64,
    /// Unsynced sectors that did not.
    pub sectors_dropped: u64,
    /// Unsynced creations, renames and removals that survived.
    pub names_kept: u64,
    /// Those that were undone.
    pub names_undone: u64,
    /// Writes that were on their way.
    pub in_flight: u64,
}

impl CutReport {
    pub(crate) fn new(style: Style) -> Self {
        CutReport {
            style,
            sectors_kept: 0,
            sectors_dropped: 0,
            names_kept: 0,
            names_undone: 0,
            in_flight: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::SECTOR_BYTES;

    /// Four unsynced writes of eight sectors each; which sectors of each
    /// survive, as a bit mask per write.
    fn cut(style: Style, seed: u64) -> [u8; 4] {
        let mut file = File::default();
        let block = 8 * SECTOR_BYTES;
        file.write(1, 0, &vec![0; 4 * block]);
        file.sync(1);
        for write in 0..4 {
            file.write(2 + write as u64, write * block, &vec![1; block]);
        }
        let mut report = CutReport::new(style);
        style.cut_file(&mut file, &mut Random::new(seed), &mut report);
        assert_eq!(report.sectors_kept + report.sectors_dropped, 32);
        let mut masks = [0; 4];
        for (write, mask) in masks.iter_mut().enumerate() {
            for sector in 0..8 {
                let byte = file.read(write * block + sector * SECTOR_BYTES, 1)[0];
                *mask |= byte << sector;
            }
        }
        masks
    }

    #[test]
    fn each_style_leaves_what_its_name_says() {
        let mut torn = 0;
        for seed in 0..50 {
            assert_eq!(cut(Style::DropAll, seed), [0; 4]);
            assert_eq!(cut(Style::KeepAll, seed), [255; 4]);
            assert_eq!(cut(Style::Hole, seed), [0, 255, 255, 255]);
            assert_eq!(cut(Style::TornEnd, seed)[..3], [255; 3]);
            let whole = cut(Style::Writes(50), seed);
            assert!(whole.iter().all(|mask| [0, 255].contains(mask)));
            let sectors = cut(Style::Sectors(50), seed);
            torn += usize::from(sectors.iter().any(|mask| ![0, 255].contains(mask)));
            assert_eq!(sectors, cut(Style::Sectors(50), seed), "a seed repeats");
        }
        assert!(torn > 45, "{torn}");
    }
}
