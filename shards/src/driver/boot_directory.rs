//! Where tokens and latch records go that a reboot must empty.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::fs_disk::FsDisk;

/// A directory of this user's that a reboot empties, made if it is missing:
/// `/run/tidegate`, else `/dev/shm/tidegate-UID`. `None` if there is neither.
pub fn boot_directory() -> Option<FsDisk> {
    if let Some(directory) = of_a_test() {
        return FsDisk::create(directory).ok();
    }
    let uid = own_uid()?;
    candidates(uid).iter().find_map(|path| {
        // Fails if it exists; what counts is what is there then.
        let _ = DirBuilder::new().mode(0o700).create(path);
        private_directory(path, uid)
    })
}

/// The same if it is there; makes nothing.
pub(super) fn existing_boot_directory() -> Option<FsDisk> {
    if let Some(directory) = of_a_test() {
        return FsDisk::open(directory).ok();
    }
    let uid = own_uid()?;
    let candidates = candidates(uid);
    candidates
        .iter()
        .find_map(|path| private_directory(path, uid))
}

/// Tests keep their tokens to themselves.
fn of_a_test() -> Option<String> {
    std::env::var("TIDEGATE_TEST_BOOT_DIRECTORY").ok()
}

fn own_uid() -> Option<u32> {
    Some(std::fs::metadata("/proc/self").ok()?.uid())
}

fn candidates(uid: u32) -> [PathBuf; 2] {
    [
        PathBuf::from("/run/tidegate"),
        PathBuf::from(format!("/dev/shm/tidegate-{uid}")),
    ]
}

/// Whoever else could write there could hide a latch, or make one up.
fn private_directory(path: &Path, uid: u32) -> Option<FsDisk> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    let private = metadata.is_dir() && metadata.uid() == uid && metadata.mode() & 0o022 == 0;
    if !private {
        return None;
    }
    FsDisk::open(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_others_may_write_is_not_trusted() {
        let parent = tempfile::tempdir().unwrap();
        let uid = std::fs::metadata("/proc/self").unwrap().uid();
        let path = parent.path().join("mine");
        assert!(private_directory(&path, uid).is_none(), "it is not there");
        DirBuilder::new().mode(0o700).create(&path).unwrap();
        assert!(private_directory(&path, uid).is_some());
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&path, open).unwrap();
        assert!(private_directory(&path, uid).is_none());
        let link = parent.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(private_directory(&link, uid).is_none());
    }
}
