//! What clones of a simulated directory share.

use std::collections::BTreeMap;

use shards::io::{DiskError, DiskErrorKind};

use super::file::{SimFile, SyncScope};
use super::Event;
use crate::Random;

pub(super) struct State {
    pub random: Random,
    pub files: BTreeMap<u64, SimFile>,
    pub next_file: u64,
    pub names: BTreeMap<String, u64>,
    pub safe_names: BTreeMap<String, u64>,
    pub name_changes: Vec<NameChange>,
    pub in_flight: Vec<InFlight>,
    /// Writes of a dead process that may still land.
    pub orphans: Vec<InFlight>,
    pub physical_bytes: usize,
    pub next_write: u64,
    pub faults: Faults,
    pub trace: Vec<Event>,
}

#[derive(Clone)]
pub(super) struct NameChange {
    pub name: String,
    pub file: Option<u64>,
}

pub(super) struct InFlight {
    pub id: u64,
    pub file: u64,
    pub offset: usize,
    pub bytes: Vec<u8>,
    /// Outlives its process until somebody gets the file's lock.
    pub late: bool,
}

#[derive(Default)]
pub(super) struct Faults {
    pub failing_writes: u64,
    pub failing_syncs: u64,
    /// Blocking calls until everything stops.
    pub crash_after: Option<u64>,
    pub stopped: bool,
    pub free_bytes: Option<u64>,
}

impl State {
    pub(super) fn lookup(&mut self, operation: &'static str, name: &str) -> Result<u64, DiskError> {
        if self.faults.stopped {
            return Err(stopped(operation, name));
        }
        let file = self.names.get(name).copied();
        file.ok_or_else(|| error(operation, name, DiskErrorKind::NotFound, "no such file"))
    }

    /// One changing call; fails once the crash has come.
    pub(super) fn step(&mut self, operation: &'static str, name: &str) -> Result<(), DiskError> {
        if let Some(left) = &mut self.faults.crash_after {
            match left.checked_sub(1) {
                Some(less) => *left = less,
                None => {
                    self.faults.crash_after = None;
                    self.faults.stopped = true;
                }
            }
        }
        if self.faults.stopped {
            return Err(stopped(operation, name));
        }
        Ok(())
    }

    pub(super) fn take_space(
        &mut self,
        operation: &'static str,
        name: &str,
        bytes: u64,
    ) -> Result<(), DiskError> {
        let Some(free) = &mut self.faults.free_bytes else {
            return Ok(());
        };
        match free.checked_sub(bytes) {
            Some(left) => {
                *free = left;
                Ok(())
            }
            None => Err(error(
                operation,
                name,
                DiskErrorKind::OutOfSpace,
                "no space left",
            )),
        }
    }

    /// A name goes, and with it the space of its file.
    pub(super) fn give_space_of(&mut self, name: &str) {
        let file = self.names.get(name).and_then(|file| self.files.get(file));
        let bytes = file.map_or(0, |file| file.current.len() as u64);
        if let Some(free) = &mut self.faults.free_bytes {
            *free += bytes;
        }
    }

    pub(super) fn sync(&mut self, scopes: &[(u64, SyncScope)]) -> Result<(), DiskError> {
        for (id, scope) in scopes {
            self.note("end sync", *id, scope.len() as u64);
            let fails = self.faults.take_sync_failure();
            let Some(file) = self.files.get_mut(id) else {
                continue;
            };
            if fails {
                file.fail_sync(scope);
                return Err(error(
                    "sync",
                    "",
                    DiskErrorKind::Other,
                    "injected sync error",
                ));
            }
            file.sync(scope);
        }
        Ok(())
    }

    /// A dead process's write lands, or does not.
    pub(super) fn land(&mut self, write: InFlight) {
        if self.random.chance(1, 2) {
            if let Some(file) = self.files.get_mut(&write.file) {
                file.write(write.offset, &write.bytes, false);
            }
        }
    }

    /// Those into this file.
    pub(super) fn land_orphans_of(&mut self, file: u64) {
        let orphans = std::mem::take(&mut self.orphans);
        let (landing, rest): (Vec<_>, Vec<_>) =
            orphans.into_iter().partition(|write| write.file == file);
        self.orphans = rest;
        for write in landing {
            self.land(write);
        }
    }

    /// Nobody waited for them: any time.
    pub(super) fn land_a_late_orphan(&mut self) {
        if !self.orphans.is_empty() && self.random.chance(1, 2) {
            let write = self.orphans.swap_remove(0);
            self.land(write);
        }
    }

    pub(super) fn add_file(&mut self, file: SimFile) -> u64 {
        let id = self.next_file;
        self.next_file += 1;
        self.files.insert(id, file);
        id
    }

    pub(super) fn change_name(&mut self, name: &str, file: Option<u64>) {
        let change = NameChange {
            name: name.to_owned(),
            file,
        };
        change.apply(&mut self.names);
        self.name_changes.push(change);
    }

    pub(super) fn sync_names(&mut self) {
        self.name_changes.clear();
        self.safe_names.clone_from(&self.names);
    }

    pub(super) fn note(&mut self, what: &'static str, a: u64, b: u64) {
        self.trace.push(Event { what, a, b });
    }
}

impl NameChange {
    pub(super) fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self.file {
            Some(file) => names.insert(self.name.clone(), file),
            None => names.remove(&self.name),
        };
    }
}

impl Faults {
    pub(super) fn take_write_failure(&mut self) -> bool {
        let fails = self.failing_writes > 0;
        self.failing_writes = self.failing_writes.saturating_sub(1);
        fails
    }

    pub(super) fn take_sync_failure(&mut self) -> bool {
        let fails = self.failing_syncs > 0;
        self.failing_syncs = self.failing_syncs.saturating_sub(1);
        fails
    }

    pub(super) fn restart(&mut self) {
        self.crash_after = None;
        self.stopped = false;
    }
}

fn stopped(operation: &'static str, name: &str) -> DiskError {
    error(
        operation,
        name,
        DiskErrorKind::Other,
        "the machine has stopped",
    )
}

pub(super) fn error(
    operation: &'static str,
    name: &str,
    kind: DiskErrorKind,
    message: &str,
) -> DiskError {
    DiskError {
        operation,
        name: name.to_owned(),
        kind,
        message: message.to_owned(),
    }
}
