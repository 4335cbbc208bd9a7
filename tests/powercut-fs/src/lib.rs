//! A file system in memory for tests. It holds every change in a volatile
//! layer until a sync, a directory sync or an `O_DSYNC` write covers it, and
//! when its power is cut it loses what a seed chooses of the rest: any
//! 512-byte sectors, in any of their versions, and names. It can also fail
//! syncs and writes, and be full.
//!
//! The file system is served by threads of the process that mounts it; the
//! program under test is another process. Mounting needs `/dev/fuse` and
//! root.
//!
//! A power cut takes three steps, so that the program never learns of it:
//!
//! 1. [`PowercutFs::cut`]: nothing is answered from now on.
//! 2. The caller sends the program `SIGKILL`, and lets its calls end with
//!    [`PowercutFs::refuse`], without which it could not die.
//! 3. [`PowercutFs::power_on`]: what survived is mounted anew.
//!
//! Stricter than a real disk: a sync of a file does not make its name durable.
//! Kinder: what is durable never rots, and the length of a file is all of its
//! metadata.

mod cut;
mod disk;
mod file;
mod fuse;
mod mount;
mod random;
mod state;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

pub use cut::{CutReport, Style};
pub use file::SECTOR_BYTES;
pub use mount::{available, private_mounts};

use disk::Disk;
use mount::Mount;
use state::Shared;

/// Room on the disk if nothing else is said.
const CAPACITY_BYTES: usize = 8 << 30;

/// What a fault hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Write,
    /// `fsync` and `fdatasync`.
    Sync,
}

/// Operations that end in an error.
#[derive(Debug, Clone)]
pub struct Fault {
    pub operation: Operation,
    /// Which files, by name.
    pub of: fn(&str) -> bool,
    /// A sync forgets what it should have made durable. A write that ends in
    /// `EIO` leaves some of its sectors, any other nothing.
    pub errno: i32,
    /// Operations that go well before.
    pub after: u64,
    /// How many then fail; at least 1.
    pub times: u64,
}

/// What happened since the first mount.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Requests that change the disk.
    pub changes: u64,
    pub writes: u64,
    /// Writes with `O_DSYNC`.
    pub writes_through: u64,
    /// Of files and directories.
    pub syncs: u64,
    /// Operations that were made to fail.
    pub faults: u64,
    /// Sectors that a failed sync dropped.
    pub sectors_forgotten: u64,
}

/// A mounted disk; dropping it unmounts.
pub struct PowercutFs {
    shared: Arc<Shared>,
    path: PathBuf,
    mount: Option<Mount>,
}

impl PowercutFs {
    /// An empty disk, mounted on the existing directory `path`.
    ///
    /// # Errors
    /// What [`available`] says, or the mount is refused.
    pub fn mount(path: &Path, seed: u64) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(Disk::new(CAPACITY_BYTES), seed));
        let slow = shared.clone();
        std::thread::Builder::new()
            .name("slow-disk".to_owned())
            .spawn(move || slow.perform_pending())?;
        let mut fs = PowercutFs {
            shared,
            path: path.to_owned(),
            mount: None,
        };
        fs.power_on()?;
        Ok(fs)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Cuts the power, in a style of its own choice. Requests wait from now on.
    pub fn cut(&self) -> CutReport {
        self.shared.cut(None)
    }

    /// The same in this style.
    pub fn cut_in(&self, style: Style) -> CutReport {
        self.shared.cut(Some(style))
    }

    /// The power goes by itself, before the `changes`th request from now that
    /// changes the disk.
    pub fn cut_after(&self, changes: u64) {
        self.shared.cut_after(changes);
    }

    /// Waits for the cut that was asked for; `None` if it did not come.
    pub fn await_cut(&self, patience: Duration) -> Option<CutReport> {
        self.shared.await_cut(patience)
    }

    /// Every request that waits fails, and so do later ones.
    pub fn refuse(&self) {
        self.shared.refuse();
    }

    /// Mounts what survived. Descriptors of before are dead.
    ///
    /// # Errors
    /// The mount is refused.
    pub fn power_on(&mut self) -> io::Result<()> {
        self.mount = None;
        let life = self.shared.new_life();
        self.mount = Some(Mount::new(&self.path, self.shared.clone(), life)?);
        Ok(())
    }

    pub fn fail(&self, fault: Fault) {
        self.shared.fail(fault);
    }

    /// Faults that have not come do not come.
    pub fn clear_faults(&self) {
        self.shared.clear_faults();
    }

    /// Bytes that all files may hold together; overwriting needs none.
    pub fn set_capacity(&self, bytes: usize) {
        self.shared.lock().disk.set_capacity(bytes);
    }

    /// Bytes that all files hold.
    pub fn used(&self) -> usize {
        self.shared.lock().disk.used()
    }

    pub fn counts(&self) -> Counts {
        self.shared.lock().counts
    }
}

impl Drop for PowercutFs {
    fn drop(&mut self) {
        self.shared.refuse();
        self.mount = None;
        self.shared.end();
    }
}
