//! A simulated directory.
//!
//! 1. A read shows every completed write; a power cut leaves what was synced
//!    and, of the rest, any mixture of sectors.
//! 2. A write in flight has landed wholly, partly or not at all when the power
//!    goes. When only the process dies, one into a segment lands later, wholly
//!    or not at all: at the latest when somebody gets that file's lock.
//! 3. A sync that fails makes its sectors look clean: a later one "succeeds"
//!    and they are still not safe.
//! 4. New, renamed and removed names are safe after a directory sync; a power
//!    cut keeps a prefix of the others.
//! 5. A device writes whole physical sectors ([`SimDisk::set_physical_bytes`]):
//!    a power cut may ruin one that was being written, with whatever was durable
//!    in it before.

mod file;
mod state;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use file::{Fate, SimFile, SyncScope};
use shards::io::{Disk, DiskError, DiskErrorKind, DiskFile};
use state::{error, Faults, InFlight, State};

use crate::Random;
pub use file::SECTOR_BYTES;

/// A directory; clones share it.
#[derive(Clone)]
pub struct SimDisk {
    state: Rc<RefCell<State>>,
}

/// Something that happened, for comparing two runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    pub what: &'static str,
    pub a: u64,
    pub b: u64,
}

/// A write that was issued and not answered.
#[derive(Debug, PartialEq, Eq)]
pub struct SimWrite(u64);

/// A sync that was issued and not answered.
#[derive(Debug)]
pub struct SimSync(Vec<(u64, SyncScope)>);

impl SimDisk {
    /// An empty directory; `random` decides what power cuts leave.
    pub fn new(random: Random) -> Self {
        SimDisk {
            state: Rc::new(RefCell::new(State {
                random,
                files: BTreeMap::new(),
                next_file: 1,
                names: BTreeMap::new(),
                safe_names: BTreeMap::new(),
                name_changes: Vec::new(),
                in_flight: Vec::new(),
                orphans: Vec::new(),
                physical_bytes: SECTOR_BYTES,
                next_write: 1,
                faults: Faults::default(),
                trace: Vec::new(),
            })),
        }
    }

    /// The device's unit of writing, a multiple of [`SECTOR_BYTES`].
    pub fn set_physical_bytes(&self, bytes: usize) {
        self.state.borrow_mut().physical_bytes = bytes;
    }

    /// Issues a write. The file must exist and the write end inside it.
    pub fn begin_write(
        &self,
        name: &str,
        offset: u64,
        bytes: &[u8],
    ) -> Result<SimWrite, DiskError> {
        let state = &mut *self.state.borrow_mut();
        let file = state.lookup("write", name)?;
        let len = state.files[&file].current.len();
        let offset = offset as usize;
        if offset + bytes.len() > len {
            return Err(error(
                "write",
                name,
                DiskErrorKind::Other,
                "beyond the end of the file",
            ));
        }
        state.land_a_late_orphan();
        let id = state.next_write;
        state.next_write += 1;
        state.note("begin write", file, offset as u64);
        state.in_flight.push(InFlight {
            id,
            file,
            offset,
            bytes: bytes.to_vec(),
            late: name.starts_with("seg-"),
        });
        Ok(SimWrite(id))
    }

    /// Completes a write; `through` as with `O_DSYNC`. A write that fails may
    /// have landed in part.
    pub fn end_write(&self, write: SimWrite, through: bool) -> Result<(), DiskError> {
        let state = &mut *self.state.borrow_mut();
        let Some(at) = state.in_flight.iter().position(|known| known.id == write.0) else {
            return Err(error("write", "", DiskErrorKind::Other, "not in flight"));
        };
        let write = state.in_flight.remove(at);
        state.note("end write", write.id, u64::from(through));
        let fails = state.faults.take_write_failure();
        let mut random = state.random.fork();
        let Some(file) = state.files.get_mut(&write.file) else {
            return Ok(());
        };
        if fails {
            file.write_where(write.offset, &write.bytes, false, |_| random.chance(1, 2));
            return Err(error(
                "write",
                "",
                DiskErrorKind::Other,
                "injected write error",
            ));
        }
        file.write(write.offset, &write.bytes, through);
        Ok(())
    }

    /// Issues a sync of these files: it covers what is complete now.
    pub fn begin_sync(&self, names: &[String]) -> Result<SimSync, DiskError> {
        let state = &mut *self.state.borrow_mut();
        let mut scopes = Vec::new();
        for name in names {
            let file = state.lookup("sync", name)?;
            state.note("begin sync", file, 0);
            scopes.push((file, state.files[&file].scope()));
        }
        Ok(SimSync(scopes))
    }

    /// Completes a sync.
    pub fn end_sync(&self, sync: SimSync) -> Result<(), DiskError> {
        self.state.borrow_mut().sync(&sync.0)
    }

    /// The next `count` writes fail.
    pub fn fail_writes(&self, count: u64) {
        self.state.borrow_mut().faults.failing_writes = count;
    }

    /// The next `count` syncs fail.
    pub fn fail_syncs(&self, count: u64) {
        self.state.borrow_mut().faults.failing_syncs = count;
    }

    /// A write or a sync is still to fail.
    pub fn is_failing(&self) -> bool {
        let faults = &self.state.borrow().faults;
        faults.failing_writes > 0 || faults.failing_syncs > 0
    }

    /// New files may take at most this many bytes more.
    pub fn set_free_bytes(&self, bytes: Option<u64>) {
        self.state.borrow_mut().faults.free_bytes = bytes;
    }

    /// After `calls` more changing calls everything fails, until the next
    /// [`SimDisk::power_cut`] or [`SimDisk::process_crash`]. `None` takes it back.
    pub fn crash_after(&self, calls: Option<u64>) {
        self.state.borrow_mut().faults.crash_after = calls;
    }

    /// Whether the crash of [`SimDisk::crash_after`] has come.
    pub fn is_stopped(&self) -> bool {
        self.state.borrow().faults.stopped
    }

    /// Flips bits of one byte, for good.
    pub fn flip(&self, name: &str, offset: u64, mask: u8) -> Result<(), DiskError> {
        let state = &mut *self.state.borrow_mut();
        let file = state.lookup("flip", name)?;
        if let Some(file) = state.files.get_mut(&file) {
            file.flip(offset as usize, mask);
        }
        Ok(())
    }

    /// Changes a file's length, for good.
    pub fn set_len(&self, name: &str, len: u64) -> Result<(), DiskError> {
        let state = &mut *self.state.borrow_mut();
        let file = state.lookup("truncate", name)?;
        if let Some(file) = state.files.get_mut(&file) {
            file.set_len(len as usize);
        }
        Ok(())
    }

    /// The power goes and comes back.
    pub fn power_cut(&self) {
        let state = &mut *self.state.borrow_mut();
        state.note("power cut", 0, 0);
        let mut random = state.random.fork();
        let orphans = std::mem::take(&mut state.orphans);
        let in_flight = std::mem::take(&mut state.in_flight);
        for write in in_flight.into_iter().chain(orphans) {
            let whole = random.chance(1, 4);
            let none = !whole && random.chance(1, 3);
            if let Some(file) = state.files.get_mut(&write.file) {
                file.write_where(write.offset, &write.bytes, false, |_| {
                    whole || (!none && random.chance(1, 2))
                });
            }
        }
        let fate = match random.below(4) {
            0 => Fate::KeepAll,
            1 => Fate::DropAll,
            2 => Fate::Mixed { keep: 15, of: 16 },
            _ => Fate::Mixed { keep: 1, of: 2 },
        };
        for file in state.files.values_mut() {
            file.power_cut(fate, state.physical_bytes, &mut random);
        }
        let changes = std::mem::take(&mut state.name_changes);
        let kept = random.below(changes.len() as u64 + 1) as usize;
        for change in changes.into_iter().take(kept) {
            change.apply(&mut state.safe_names);
        }
        state.names.clone_from(&state.safe_names);
        let names: Vec<u64> = state.names.values().copied().collect();
        state.files.retain(|file, _| names.contains(file));
        state.faults.restart();
    }

    /// Everything that is not durable is gone, to the last byte: a power cut now
    /// leaves what a sync covered, and nothing else.
    pub fn lose_all_unsynced(&self) {
        let state = &mut *self.state.borrow_mut();
        state.note("lose all", 0, 0);
        state.in_flight.clear();
        state.orphans.clear();
        state.name_changes.clear();
        state.names.clone_from(&state.safe_names);
        for file in state.files.values_mut() {
            file.drop_unsynced();
        }
    }

    /// The process dies; the kernel goes on.
    pub fn process_crash(&self) {
        let state = &mut *self.state.borrow_mut();
        state.note("process crash", 0, 0);
        for write in std::mem::take(&mut state.in_flight) {
            match write.late {
                true => state.orphans.push(write),
                false => state.land(write),
            }
        }
        state.faults.restart();
    }

    /// What happened so far.
    pub fn trace(&self) -> Vec<Event> {
        self.state.borrow().trace.clone()
    }

    /// Adds an event of the caller's to the trace.
    pub fn note(&self, what: &'static str, a: u64, b: u64) {
        self.state.borrow_mut().note(what, a, b);
    }

    /// Whether bytes `from..to` of the file would outlive a power cut now.
    pub fn is_safe(&self, name: &str, from: u64, to: u64) -> bool {
        let state = self.state.borrow();
        let named = state.names.get(name) == state.safe_names.get(name);
        let file = state.names.get(name).and_then(|file| state.files.get(file));
        named && file.is_some_and(|file| file.is_safe(from as usize, to as usize))
    }

    /// What a read of `len` bytes at `offset` shows, if the file has them.
    pub fn read(&self, name: &str, offset: u64, len: u64) -> Option<Vec<u8>> {
        let state = self.state.borrow();
        let file = state.files.get(state.names.get(name)?)?;
        let bytes = file.current.get(offset as usize..(offset + len) as usize)?;
        Some(bytes.to_vec())
    }

    /// The file that has this name now, as a descriptor would keep it.
    pub fn id_of(&self, name: &str) -> Option<u64> {
        self.state.borrow().names.get(name).copied()
    }

    /// As [`SimDisk::read`], whatever became of the file's name.
    pub fn read_open(&self, file: u64, offset: u64, len: u64) -> Option<Vec<u8>> {
        let state = self.state.borrow();
        let file = state.files.get(&file)?;
        let bytes = file.current.get(offset as usize..(offset + len) as usize)?;
        Some(bytes.to_vec())
    }

    /// What a read of the whole file shows.
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state.borrow();
        let file = state.names.get(name)?;
        Some(state.files.get(file)?.current.clone())
    }
}

impl Disk for SimDisk {
    fn list(&self) -> Result<Vec<String>, DiskError> {
        Ok(self.state.borrow().names.keys().cloned().collect())
    }

    fn create_zeroed(&self, name: &str, bytes: u64) -> Result<(), DiskError> {
        let state = &mut *self.state.borrow_mut();
        if state.names.contains_key(name) {
            return Err(error(
                "create",
                name,
                DiskErrorKind::Exists,
                "it exists already",
            ));
        }
        state.take_space("create", name, bytes)?;
        let temporary = format!("{name}.tmp");
        let file = state.add_file(SimFile::synced(vec![0; bytes as usize]));
        state.change_name(&temporary, Some(file));
        state.step("create", name)?;
        state.change_name(&temporary, None);
        state.change_name(name, Some(file));
        state.step("create", name)?;
        state.sync_names();
        state.note("create", file, bytes);
        Ok(())
    }

    fn create_whole(&self, name: &str, bytes: &[u8]) -> Result<(), DiskError> {
        if self.state.borrow().names.contains_key(name) {
            return Err(error(
                "create",
                name,
                DiskErrorKind::Exists,
                "it exists already",
            ));
        }
        self.replace_small(name, bytes)
    }

    fn recycle_zeroed(&self, old: &str, new: &str, bytes: u64) -> Result<(), DiskError> {
        let state = &mut *self.state.borrow_mut();
        if state.names.contains_key(new) {
            return Err(error(
                "create",
                new,
                DiskErrorKind::Exists,
                "it exists already",
            ));
        }
        let file = state.lookup("rename", old)?;
        let temporary = format!("{new}.tmp");
        state.change_name(old, None);
        state.change_name(&temporary, Some(file));
        state.step("zero", new)?;
        let len = state.files.get(&file).map_or(0, |file| file.current.len());
        if (len as u64) < bytes {
            state.take_space("zero", new, bytes - len as u64)?;
        }
        if !keeps_old_bytes() {
            let zeros = SimFile::synced(vec![0; bytes as usize]);
            state.files.insert(file, zeros);
        }
        state.change_name(&temporary, None);
        state.change_name(new, Some(file));
        state.step("zero", new)?;
        state.sync_names();
        state.note("recycle", file, bytes);
        Ok(())
    }

    fn open(&self, name: &str) -> Result<Box<dyn DiskFile>, DiskError> {
        let file = self.state.borrow_mut().lookup("open", name)?;
        Ok(Box::new(OpenFile {
            disk: self.clone(),
            file,
            name: name.to_owned(),
        }))
    }

    fn read_small(&self, name: &str, limit: usize) -> Result<Option<Vec<u8>>, DiskError> {
        let bytes = self.contents(name);
        if bytes.as_ref().is_some_and(|bytes| bytes.len() > limit) {
            return Err(error(
                "read",
                name,
                DiskErrorKind::TooLong,
                "it is too long",
            ));
        }
        Ok(bytes)
    }

    fn replace_small(&self, name: &str, bytes: &[u8]) -> Result<(), DiskError> {
        let state = &mut *self.state.borrow_mut();
        state.take_space("write", name, bytes.len() as u64)?;
        let file = state.add_file(SimFile::synced(bytes.to_vec()));
        let temporary = format!("{name}.tmp");
        state.change_name(&temporary, Some(file));
        state.step("write", name)?;
        state.give_space_of(name);
        state.change_name(&temporary, None);
        state.change_name(name, Some(file));
        state.step("write", name)?;
        state.sync_names();
        state.note("replace", file, bytes.len() as u64);
        Ok(())
    }

    fn rename(&self, old: &str, new: &str) -> Result<(), DiskError> {
        let state = &mut *self.state.borrow_mut();
        state.step("rename", old)?;
        let file = state.lookup("rename", old)?;
        state.give_space_of(new);
        state.change_name(old, None);
        state.change_name(new, Some(file));
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        let state = &mut *self.state.borrow_mut();
        state.step("remove", name)?;
        if state.names.contains_key(name) {
            state.give_space_of(name);
            state.change_name(name, None);
        }
        Ok(())
    }

    fn sync_dir(&self) -> Result<(), DiskError> {
        let state = &mut *self.state.borrow_mut();
        state.step("sync directory", "")?;
        state.sync_names();
        Ok(())
    }
}

/// The mutation check: segments are used again as they are.
fn keeps_old_bytes() -> bool {
    #[cfg(feature = "mutations")]
    return shards::mutation::removed(shards::mutation::Rule::ZeroedSegments);
    #[cfg(not(feature = "mutations"))]
    false
}

struct OpenFile {
    disk: SimDisk,
    file: u64,
    name: String,
}

impl DiskFile for OpenFile {
    fn len(&self) -> Result<u64, DiskError> {
        let state = self.disk.state.borrow();
        let file = state.files.get(&self.file);
        Ok(file.map_or(0, |file| file.current.len() as u64))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        let state = self.disk.state.borrow();
        let Some(file) = state.files.get(&self.file) else {
            return Ok(0);
        };
        let there = file.current.get(offset as usize..).unwrap_or_default();
        let count = there.len().min(buffer.len());
        buffer[..count].copy_from_slice(&there[..count]);
        Ok(count)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        let write = self.disk.begin_write(&self.name, offset, bytes)?;
        // A stop here leaves the write in flight.
        self.disk.state.borrow_mut().step("write", &self.name)?;
        self.disk.end_write(write, false)
    }

    fn sync(&self) -> Result<(), DiskError> {
        let state = &mut *self.disk.state.borrow_mut();
        state.step("sync", &self.name)?;
        let Some(file) = state.files.get(&self.file) else {
            return Ok(());
        };
        let scope = file.scope();
        state.sync(&[(self.file, scope)])
    }

    fn lock_exclusive(&self, _wait: Duration) -> Result<(), DiskError> {
        self.disk.state.borrow_mut().land_orphans_of(self.file);
        Ok(())
    }
}
