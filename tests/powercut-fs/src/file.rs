//! The bytes of one file: as a reader sees them, as the platter holds them,
//! and every version of a sector in between.
//!
//! 1. A reader sees `current`, always.
//! 2. `durable` changes by a sync that succeeds, an `O_DSYNC` write, or a cut.
//! 3. Between two syncs each version of each 512-byte sector may be the one
//!    that survives, independently of every other sector.

use std::collections::BTreeMap;

/// What a device writes as one, in bytes.
pub const SECTOR_BYTES: usize = 512;

type Sector = Box<[u8; SECTOR_BYTES]>;

/// Order of everything that happened on the disk.
pub type Tick = u64;

#[derive(Debug, Default)]
pub struct File {
    current: Vec<u8>,
    durable: Vec<u8>,
    /// Versions since the sector was last durable, oldest first.
    unsynced: BTreeMap<u64, Vec<(Tick, Sector)>>,
    /// Lengths since the length was last durable, oldest first.
    lengths: Vec<(Tick, usize)>,
}

/// What a cut chose for one sector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survivor {
    /// What the last sync covered.
    Durable,
    /// The version with this index, oldest first.
    Version(usize),
}

/// What became of unsynced sectors.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fate {
    /// The newest version survived.
    pub kept: u64,
    /// An older version, or what was durable.
    pub dropped: u64,
}

impl File {
    pub fn len(&self) -> usize {
        self.current.len()
    }

    /// The bytes at `offset`, at most `count`.
    pub fn read(&self, offset: usize, count: usize) -> &[u8] {
        let start = offset.min(self.current.len());
        let end = offset.saturating_add(count).min(self.current.len());
        &self.current[start..end]
    }

    /// Written, not durable.
    pub fn write(&mut self, tick: Tick, offset: usize, data: &[u8]) {
        let end = offset + data.len();
        if end > self.current.len() {
            self.current.resize(end, 0);
            self.lengths.push((tick, end));
        }
        self.current[offset..end].copy_from_slice(data);
        self.note_versions(tick, offset, end);
    }

    /// These bytes and the file's length are durable; nothing else is.
    pub fn make_durable(&mut self, offset: usize, count: usize) {
        let end = offset + count;
        for (_, length) in self.lengths.drain(..) {
            self.durable.resize(length, 0);
        }
        for sector in sectors(offset, end) {
            if let Some((_, newest)) = self.unsynced.remove(&sector).and_then(|mut v| v.pop()) {
                put(&mut self.durable, sector, &newest);
            }
        }
    }

    pub fn set_len(&mut self, tick: Tick, len: usize) {
        if len == self.current.len() {
            return;
        }
        let old = self.current.len();
        self.current.resize(len, 0);
        self.lengths.push((tick, len));
        if len < old {
            // What lay behind the end reads as zeros if the file grows again.
            self.note_versions(tick, len, old.min(len.next_multiple_of(SECTOR_BYTES)));
            let behind = len.div_ceil(SECTOR_BYTES) as u64;
            drop(self.unsynced.split_off(&behind));
        }
    }

    /// What happened up to `upto` becomes durable.
    pub fn sync(&mut self, upto: Tick) {
        let done = self.lengths.partition_point(|(tick, _)| *tick <= upto);
        for (_, length) in self.lengths.drain(..done) {
            self.durable.resize(length, 0);
        }
        let durable = &mut self.durable;
        self.unsynced.retain(|sector, versions| {
            let covered = versions.partition_point(|(tick, _)| *tick <= upto);
            if let Some((_, newest)) = versions.drain(..covered).next_back() {
                put(durable, *sector, &newest);
            }
            !versions.is_empty()
        });
    }

    /// A sync up to `upto` failed: what it should have written is forgotten,
    /// though readers still see it. A later sync succeeds without it.
    pub fn forget(&mut self, upto: Tick) -> u64 {
        let mut forgotten = 0;
        self.unsynced.retain(|_, versions| {
            let covered = versions.partition_point(|(tick, _)| *tick <= upto);
            versions.drain(..covered);
            forgotten += u64::from(covered > 0);
            !versions.is_empty()
        });
        forgotten
    }

    /// Ticks of unsynced writes, each once, oldest first.
    pub fn unsynced_writes(&self) -> Vec<Tick> {
        let versions = self.unsynced.values().flatten();
        let mut ticks: Vec<Tick> = versions.map(|(tick, _)| *tick).collect();
        ticks.sort_unstable();
        ticks.dedup();
        ticks
    }

    /// The power is gone: of each unsynced sector `choose` names what stays,
    /// given the ticks of its versions; of the lengths, the first `lengths`
    /// (all of them with `usize::MAX`).
    pub fn cut(&mut self, lengths: usize, mut choose: impl FnMut(&[Tick]) -> Survivor) -> Fate {
        let mut fate = Fate::default();
        for (_, length) in self.lengths.drain(..).take(lengths) {
            self.durable.resize(length, 0);
        }
        for (sector, versions) in std::mem::take(&mut self.unsynced) {
            let ticks: Vec<Tick> = versions.iter().map(|(tick, _)| *tick).collect();
            let newest = versions.len() - 1;
            match choose(&ticks) {
                Survivor::Version(index) => {
                    put(&mut self.durable, sector, &versions[index].1);
                    fate.kept += u64::from(index == newest);
                    fate.dropped += u64::from(index != newest);
                }
                Survivor::Durable => fate.dropped += 1,
            }
        }
        self.current.clone_from(&self.durable);
        fate
    }

    fn note_versions(&mut self, tick: Tick, start: usize, end: usize) {
        for sector in sectors(start, end) {
            let mut bytes = Box::new([0; SECTOR_BYTES]);
            let at = sector as usize * SECTOR_BYTES;
            let there = &self.current[at..self.current.len().min(at + SECTOR_BYTES)];
            bytes[..there.len()].copy_from_slice(there);
            self.unsynced.entry(sector).or_default().push((tick, bytes));
        }
    }
}

/// The sectors that hold bytes of `start..end`.
fn sectors(start: usize, end: usize) -> std::ops::Range<u64> {
    let first = start / SECTOR_BYTES;
    let behind = end.div_ceil(SECTOR_BYTES).max(first);
    first as u64..behind as u64
}

/// The part of the sector that lies within the file's length.
fn put(durable: &mut [u8], sector: u64, bytes: &[u8; SECTOR_BYTES]) {
    let at = sector as usize * SECTOR_BYTES;
    if at < durable.len() {
        let end = durable.len().min(at + SECTOR_BYTES);
        durable[at..end].copy_from_slice(&bytes[..end - at]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: &[u8]) -> File {
        let mut file = File::default();
        file.write(1, 0, bytes);
        file.sync(1);
        file
    }

    #[test]
    fn what_was_synced_survives_and_nothing_else_need() {
        let mut file = file(&[1; 2048]);
        file.write(2, 512, &[2; 1024]);
        file.sync(2);
        file.write(3, 0, &[3; 2048]);
        let fate = file.cut(usize::MAX, |_| Survivor::Durable);
        assert_eq!(fate.dropped, 4);
        assert_eq!(file.read(0, 512), [1; 512]);
        assert_eq!(file.read(512, 1024), [2; 1024]);
        assert_eq!(file.read(1536, 999), [1; 512]);
    }

    #[test]
    fn each_sector_keeps_any_of_its_versions() {
        let mut file = file(&[1; 1536]);
        file.write(2, 0, &[2; 1536]);
        file.write(3, 0, &[3; 1024]);
        let mut wanted = [
            Survivor::Version(0),
            Survivor::Version(1),
            Survivor::Durable,
        ]
        .iter();
        file.cut(0, |_| *wanted.next().unwrap());
        assert_eq!(file.read(0, 512), [2; 512]);
        assert_eq!(file.read(512, 512), [3; 512]);
        assert_eq!(file.read(1024, 512), [1; 512]);
    }

    #[test]
    fn a_sync_covers_what_was_there_when_it_was_issued() {
        let mut file = file(&[1; 512]);
        file.write(2, 0, &[2; 512]);
        file.write(3, 0, &[3; 512]);
        file.sync(2);
        assert_eq!(file.unsynced_writes(), [3]);
        file.cut(0, |_| Survivor::Durable);
        assert_eq!(file.read(0, 512), [2; 512]);
    }

    #[test]
    fn a_synchronous_write_covers_its_own_bytes_only() {
        let mut file = file(&[1; 1024]);
        file.write(2, 0, &[2; 512]);
        file.write(3, 512, &[3; 512]);
        file.make_durable(512, 512);
        file.cut(0, |_| Survivor::Durable);
        assert_eq!(file.read(0, 512), [1; 512]);
        assert_eq!(file.read(512, 512), [3; 512]);
    }

    #[test]
    fn a_failed_sync_is_not_made_good_by_the_next() {
        let mut file = file(&[1; 512]);
        file.write(2, 0, &[2; 512]);
        assert_eq!(file.forget(2), 1);
        file.sync(3);
        assert_eq!(file.read(0, 512), [2; 512], "still to be read");
        file.cut(usize::MAX, |_| panic!("nothing is unsynced"));
        assert_eq!(file.read(0, 512), [1; 512]);
    }

    #[test]
    fn a_length_survives_a_sync_and_may_be_lost_without() {
        let mut file = file(&[1; 1000]);
        file.set_len(2, 10);
        file.set_len(3, 600);
        assert_eq!(file.read(0, 1000), [vec![1; 10], vec![0; 590]].concat());
        file.cut(1, |_| Survivor::Durable);
        assert_eq!(file.len(), 10);
        file.write(4, 0, &[4; 700]);
        file.cut(0, |ticks| Survivor::Version(ticks.len() - 1));
        assert_eq!(file.read(0, 1000), [4; 10], "no longer than it was");
        file.write(5, 600, &[5; 100]);
        file.make_durable(600, 100);
        file.cut(0, |_| Survivor::Durable);
        assert_eq!(file.len(), 700);
        assert_eq!(file.read(600, 100), [5; 100]);
    }
}
