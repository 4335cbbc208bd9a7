//! Mounting and unmounting. `fuser` serves the descriptor; the mount is made
//! here, because it must come off while descriptors of a dying process are
//! still open.

use std::{
    collections::HashMap,
    ffi::CString,
    fs::{File, OpenOptions},
    io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use fuser::{Config, Session, SessionACL};
use rustix::{
    mount::{mount, mount_change, unmount, MountFlags, MountPropagationFlags, UnmountFlags},
    thread::{unshare_unsafe, UnshareFlags},
};

use crate::{fuse::Mounted, state::Shared};

const DEVICE: &str = "/dev/fuse";

fn open_device() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(DEVICE)
}

/// Whether file systems can be mounted here.
///
/// # Errors
/// Why not.
pub fn available() -> io::Result<()> {
    open_device().map(drop)
}

/// Mounts that this thread, its threads and its child processes make from now
/// on are theirs: they vanish with the last of them, however that ends.
///
/// # Errors
/// The process is not root.
pub fn private_mounts() -> io::Result<()> {
    // SAFETY: a mount namespace of its own changes which paths lead where. It
    // leaves the table of file descriptors alone, which is what the function
    // asks its callers to prove.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    Ok(mount_change("/", flags)?)
}

/// One mount; dropping it takes the mount off. Its thread ends when the last
/// descriptor on it is closed.
pub struct Mount {
    path: PathBuf,
}

impl Mount {
    pub fn new(path: &Path, shared: Arc<Shared>, life: u64) -> io::Result<Self> {
        let device = open_device()?;
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions",
            device.as_raw_fd()
        );
        let options = CString::new(options)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("powercut", path, "fuse", flags, options.as_c_str())?;
        let mounted = Mount {
            path: path.to_owned(),
        };
        let file_system = Mounted {
            shared,
            life,
            listings: Mutex::new(HashMap::new()),
        };
        let owner = SessionACL::Owner;
        Session::from_fd(file_system, device.into(), owner, Config::default())?.spawn()?;
        Ok(mounted)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = unmount(&self.path, UnmountFlags::DETACH) {
            eprintln!("cannot unmount {}: {error}", self.path.display());
        }
    }
}
