//! The file system through the kernel.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::mpsc,
    time::Duration,
};

use tidegate_powercut_fs::{available, private_mounts, Fault, Operation, PowercutFs, Style};

const PATIENCE: Duration = Duration::from_secs(60);

struct Disk {
    fs: PowercutFs,
    // Behind it: unmounted first.
    _directory: tempfile::TempDir,
}

/// `None`, said loudly, where nothing can be mounted.
fn disk() -> Option<Disk> {
    if let Err(error) = available().and_then(|()| private_mounts()) {
        // Past the test harness, which hides what a test that passes prints.
        let line = "\nNOT TESTED: FUSE file systems cannot be mounted here";
        let _ = writeln!(io::stderr(), "{line}: {error}");
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let fs = PowercutFs::mount(directory.path(), 7).unwrap();
    Some(Disk {
        fs,
        _directory: directory,
    })
}

impl Disk {
    fn path(&self, name: &str) -> PathBuf {
        self.fs.path().join(name)
    }

    fn restart(&mut self, style: Style) {
        self.fs.cut_in(style);
        self.fs.refuse();
        self.fs.power_on().unwrap();
    }
}

/// Memory that direct I/O takes.
struct Block(Vec<u8>);

impl Block {
    fn of(byte: u8) -> Self {
        Block(vec![byte; 8192])
    }

    fn bytes(&self) -> &[u8] {
        let start = self.0.as_ptr().align_offset(4096);
        &self.0[start..start + 4096]
    }
}

fn direct(path: &Path, flags: i32) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(libc::O_DIRECT | flags)
        .open(path)
        .unwrap()
}

/// A synced file of three blocks of ones, with a synced name.
fn three_blocks(disk: &Disk, name: &str) -> PathBuf {
    let path = disk.path(name);
    fs::write(&path, [1; 3 * 4096]).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    File::open(disk.fs.path()).unwrap().sync_all().unwrap();
    path
}

fn blocks(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).unwrap();
    for block in bytes.chunks(4096) {
        assert!(block.iter().all(|byte| *byte == block[0]));
    }
    bytes.chunks(4096).map(|block| block[0]).collect()
}

#[test]
fn only_what_was_synced_is_there_after_a_cut() {
    let Some(mut disk) = disk() else { return };
    let path = three_blocks(&disk, "a");
    let file = direct(&path, 0);
    file.write_all_at(Block::of(2).bytes(), 0).unwrap();
    file.sync_data().unwrap();
    file.write_all_at(Block::of(3).bytes(), 4096).unwrap();
    fs::rename(&path, disk.path("b")).unwrap();
    assert_eq!(blocks(&disk.path("b")), [2, 3, 1]);
    disk.restart(Style::DropAll);
    assert_eq!(blocks(&path), [2, 1, 1]);
    assert!(!disk.path("b").exists());
    let dead = file.write_all_at(Block::of(4).bytes(), 0);
    assert!(dead.is_err(), "a descriptor of before");
    assert_eq!(blocks(&path), [2, 1, 1]);
}

/// The kernel hands `O_DSYNC` on with the write and sends no sync behind it.
#[test]
fn a_synchronous_write_is_durable_by_itself_and_makes_nothing_else_so() {
    let Some(mut disk) = disk() else { return };
    let path = three_blocks(&disk, "a");
    for (flag, from) in [(libc::O_DSYNC, 0), (libc::O_SYNC, 4096)] {
        let plain = direct(&path, 0);
        plain.write_all_at(Block::of(9).bytes(), 8192).unwrap();
        let before = disk.fs.counts();
        direct(&path, flag)
            .write_all_at(Block::of(5).bytes(), from)
            .unwrap();
        let after = disk.fs.counts();
        assert_eq!(after.writes_through - before.writes_through, 1);
        assert_eq!(after.syncs, before.syncs);
        disk.restart(Style::DropAll);
    }
    assert_eq!(blocks(&path), [5, 5, 1]);
}

#[test]
fn nothing_is_answered_without_power() {
    let Some(mut disk) = disk() else { return };
    let path = three_blocks(&disk, "a");
    let file = direct(&path, libc::O_DSYNC);
    disk.fs.cut_after(2);
    file.write_all_at(Block::of(2).bytes(), 0).unwrap();
    let (sender, answer) = mpsc::channel();
    std::thread::spawn(move || {
        let written = file.write_all_at(Block::of(3).bytes(), 0);
        sender.send(written).unwrap();
    });
    let report = disk.fs.await_cut(PATIENCE).expect("the second write");
    assert_eq!(report.sectors_dropped + report.sectors_kept, 0);
    assert!(answer.recv_timeout(Duration::from_millis(50)).is_err());
    disk.fs.refuse();
    assert!(answer.recv_timeout(PATIENCE).unwrap().is_err());
    disk.fs.power_on().unwrap();
    assert_eq!(blocks(&path), [2, 1, 1]);
}

#[test]
fn a_sync_that_fails_forgets_and_the_next_succeeds() {
    let Some(mut disk) = disk() else { return };
    let path = three_blocks(&disk, "a");
    let file = direct(&path, 0);
    file.write_all_at(Block::of(2).bytes(), 0).unwrap();
    disk.fs.fail(Fault {
        operation: Operation::Sync,
        of: |name| name == "a",
        errno: libc::EIO,
        after: 0,
        times: 1,
    });
    let failed = file.sync_data().unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(libc::EIO));
    file.sync_data().unwrap();
    assert_eq!(blocks(&path), [2, 1, 1]);
    disk.restart(Style::KeepAll);
    assert_eq!(blocks(&path), [1, 1, 1]);
    let counts = disk.fs.counts();
    assert_eq!((counts.faults, counts.sectors_forgotten), (1, 8));
}

#[test]
fn writes_fail_as_told_and_a_full_disk_says_so() {
    let Some(disk) = disk() else { return };
    let path = three_blocks(&disk, "a");
    disk.fs.fail(Fault {
        operation: Operation::Write,
        of: |name| name.starts_with('a'),
        errno: libc::ENOSPC,
        after: 0,
        times: 1,
    });
    let file = direct(&path, 0);
    let failed = file.write_at(Block::of(2).bytes(), 0).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(libc::ENOSPC));
    file.write_all_at(Block::of(2).bytes(), 0).unwrap();
    disk.fs.set_capacity(disk.fs.used() + 100);
    let full = fs::write(disk.path("b"), [0; 101]).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
    fs::write(disk.path("b"), [0; 100]).unwrap();
    assert_eq!(blocks(&path), [2, 1, 1]);
}

#[test]
fn directories_are_made_listed_and_removed() {
    let Some(disk) = disk() else { return };
    let directory = disk.path("d");
    fs::create_dir(&directory).unwrap();
    for number in 0..300 {
        fs::write(directory.join(format!("file-{number:03}")), b"x").unwrap();
    }
    let listed = fs::read_dir(&directory).unwrap();
    let mut names: Vec<_> = listed.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names.len(), 300);
    assert_eq!(names[299], "file-299");
    assert!(fs::remove_dir(&directory).is_err(), "it is not empty");
    fs::remove_dir_all(&directory).unwrap();
    assert!(!directory.exists());
}
