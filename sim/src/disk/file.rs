//! Bytes of one simulated file: what a read shows, and what a power cut leaves.

use std::collections::BTreeMap;

use crate::Random;

/// Unit in which unsynced bytes are kept or lost.
pub const SECTOR_BYTES: usize = 512;

/// What a sector holds that the power left half-written.
const RUINED: u8 = 0xa5;

/// A file of fixed length. A sector is dirty while versions of it are unsynced.
#[derive(Debug, Clone, Default)]
pub(super) struct SimFile {
    /// What a read shows.
    pub current: Vec<u8>,
    /// What is safe.
    durable: Vec<u8>,
    /// Unsynced versions of a sector, oldest first.
    dirty: BTreeMap<usize, Vec<Vec<u8>>>,
}

/// Which versions a sync covers: those that were there when it was issued.
pub(super) type SyncScope = BTreeMap<usize, usize>;

impl SimFile {
    pub(super) fn synced(bytes: Vec<u8>) -> Self {
        SimFile {
            durable: bytes.clone(),
            current: bytes,
            dirty: BTreeMap::new(),
        }
    }

    /// A completed write; with `through` also safe.
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8], through: bool) {
        self.write_where(offset, bytes, through, |_| true);
    }

    /// The sectors of a write for which `lands` says so.
    pub(super) fn write_where(
        &mut self,
        offset: usize,
        bytes: &[u8],
        through: bool,
        mut lands: impl FnMut(usize) -> bool,
    ) {
        if bytes.is_empty() {
            return;
        }
        let first = offset / SECTOR_BYTES;
        let last = (offset + bytes.len() - 1) / SECTOR_BYTES;
        for sector in first..=last {
            if !lands(sector) {
                continue;
            }
            let start = (sector * SECTOR_BYTES).max(offset);
            let end = ((sector + 1) * SECTOR_BYTES).min(offset + bytes.len());
            self.current[start..end].copy_from_slice(&bytes[start - offset..end - offset]);
            let version = self.sector(sector).to_vec();
            if through {
                self.dirty.remove(&sector);
                self.store(sector, &version);
            } else {
                self.dirty.entry(sector).or_default().push(version);
            }
        }
    }

    pub(super) fn scope(&self) -> SyncScope {
        self.dirty
            .iter()
            .map(|(sector, versions)| (*sector, versions.len()))
            .collect()
    }

    /// A sync that was issued when `scope` was dirty succeeds.
    pub(super) fn sync(&mut self, scope: &SyncScope) {
        for (sector, count) in scope {
            let Some(versions) = self.dirty.get_mut(sector) else {
                continue;
            };
            let count = (*count).min(versions.len());
            let mut covered: Vec<_> = versions.drain(..count).collect();
            if versions.is_empty() {
                self.dirty.remove(sector);
            }
            if let Some(version) = covered.pop() {
                self.store(*sector, &version);
            }
        }
    }

    /// A sync fails: what was dirty is shown by reads and counts as clean, yet
    /// no later sync makes it safe.
    pub(super) fn fail_sync(&mut self, scope: &SyncScope) {
        for sector in scope.keys() {
            self.dirty.remove(sector);
        }
    }

    /// Whether a power cut would leave these bytes as a read shows them.
    pub(super) fn is_safe(&self, from: usize, to: usize) -> bool {
        let clean = || {
            self.dirty
                .range(from / SECTOR_BYTES..to.div_ceil(SECTOR_BYTES))
        };
        self.durable.get(from..to) == self.current.get(from..to)
            && self.current.len() >= to
            && clean().all(|(sector, versions)| self.are_alike(*sector, versions, from, to))
    }

    /// Whether every unsynced version agrees with what is safe, between `from` and `to`.
    fn are_alike(&self, sector: usize, versions: &[Vec<u8>], from: usize, to: usize) -> bool {
        let start = sector * SECTOR_BYTES;
        versions.iter().all(|version| {
            let (low, high) = (from.max(start), to.min(start + version.len()));
            low >= high || version.get(low - start..high - start) == self.durable.get(low..high)
        })
    }

    pub(super) fn flip(&mut self, offset: usize, mask: u8) {
        self.current[offset] ^= mask;
        self.durable[offset] ^= mask;
        self.dirty.remove(&(offset / SECTOR_BYTES));
        let sector = offset / SECTOR_BYTES;
        let bytes = self.sector(sector).to_vec();
        self.store(sector, &bytes);
    }

    pub(super) fn set_len(&mut self, len: usize) {
        self.current.resize(len, 0);
        self.durable.resize(len, 0);
        self.dirty
            .retain(|sector, _| (sector + 1) * SECTOR_BYTES <= len);
    }

    /// The power goes: of each dirty sector one version stays, or what was safe;
    /// or the device was just writing there, and it is ruined.
    /// Only what is durable is left.
    pub(super) fn drop_unsynced(&mut self) {
        self.dirty.clear();
        self.current.clone_from(&self.durable);
    }

    pub(super) fn power_cut(&mut self, fate: Fate, physical_bytes: usize, random: &mut Random) {
        let dirty = std::mem::take(&mut self.dirty);
        let ruined = dirty.keys().copied().find(|_| random.chance(1, 16));
        for (sector, versions) in dirty {
            let kept = match fate {
                Fate::KeepAll => versions.len(),
                Fate::DropAll => 0,
                Fate::Mixed { keep, of } if random.chance(keep, of) => {
                    1 + random.below(versions.len() as u64) as usize
                }
                Fate::Mixed { .. } => 0,
            };
            if let Some(version) = kept.checked_sub(1).and_then(|kept| versions.get(kept)) {
                self.store(sector, version);
            }
        }
        if let Some(sector) = ruined {
            let from = sector * SECTOR_BYTES / physical_bytes * physical_bytes;
            self.ruin(from, physical_bytes);
        }
        self.current.clone_from(&self.durable);
    }

    fn ruin(&mut self, from: usize, bytes: usize) {
        let to = (from + bytes).min(self.durable.len());
        if let Some(unit) = self.durable.get_mut(from..to) {
            unit.fill(RUINED);
        }
    }

    fn sector(&self, sector: usize) -> &[u8] {
        let start = sector * SECTOR_BYTES;
        let end = (start + SECTOR_BYTES).min(self.current.len());
        &self.current[start..end]
    }

    fn store(&mut self, sector: usize, bytes: &[u8]) {
        let start = sector * SECTOR_BYTES;
        self.durable[start..start + bytes.len()].copy_from_slice(bytes);
    }
}

/// What a power cut does with unsynced sectors.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fate {
    KeepAll,
    DropAll,
    /// Each one stays `keep` times out of `of`.
    Mixed {
        keep: u64,
        of: u64,
    },
}
