//! Checkpoint files on a disk that stops, tears and forgets: whatever happens,
//! a start finds a whole checkpoint, the one that was published last or a newer.

use std::{cell::Cell, rc::Rc, time::Duration};

use shards::io::{Disk, DiskError, DiskErrorKind, DiskFile};
use shards::log::{Anchor, LogId, LogPosition, OtherFormat};
use shards::store::{
    load, look, publish, remove_orphans, Checkpoint, CheckpointError, CheckpointHead, Section,
    SectionKind, SectionsError, CHECKPOINT_FILES,
};
use tidegate_sim::{Random, SimDisk};
use xxhash_rust::xxh3::xxh3_64;

const LOG: LogId = LogId(7);
const HEAD_BYTES: u64 = 112;
const HEAD_BLOCK: u64 = 4096;

fn head(serial: u64) -> CheckpointHead {
    CheckpointHead {
        log_id: LOG,
        serial,
        anchor: Anchor {
            position: LogPosition(serial * 1000 + 1),
            sequence: serial * 1000 + 2,
            checksum: serial * 1000 + 3,
            epoch: serial * 1000 + 4,
        },
        durable_next: LogPosition(serial * 1000 + 5),
        keep_from: LogPosition(serial * 1000 + 6),
        next_pack: serial as u32 + 7,
    }
}

/// Bytes that no other serial has, of about `len`, in pieces of any length.
fn body(serial: u64, len: usize) -> Vec<Vec<u8>> {
    let mut random = Random::new(serial);
    let mut pieces = Vec::new();
    let mut left = len;
    while left > 0 {
        let take = 1 + random.below(left as u64) as usize;
        pieces.push((0..take).map(|_| random.number() as u8).collect());
        left -= take;
    }
    pieces
}

fn expected(serial: u64, len: usize) -> Checkpoint {
    Checkpoint {
        head: head(serial),
        body: body(serial, len).concat(),
    }
}

fn put(disk: &SimDisk, serial: u64, len: usize) -> bool {
    publish(disk, &head(serial), &body(serial, len), &mut |_, _| {}).unwrap()
}

fn loaded(disk: &SimDisk) -> Option<Checkpoint> {
    load(disk, LOG).unwrap()
}

/// Neither file holds a whole checkpoint, and one did: nothing may begin without.
fn is_refused(disk: &SimDisk) -> bool {
    let looked = matches!(look(disk, LOG), Err(CheckpointError::Damaged));
    looked && matches!(load(disk, LOG), Err(CheckpointError::Damaged))
}

/// Writes the head's checksum anew.
fn seal(disk: &SimDisk, file: &str) {
    let mut block = disk.contents(file).unwrap();
    block.truncate(HEAD_BYTES as usize);
    let checksum = xxh3_64(&block[..HEAD_BYTES as usize - 8]);
    block[HEAD_BYTES as usize - 8..].copy_from_slice(&checksum.to_le_bytes());
    disk.open(file).unwrap().write_at(0, &block).unwrap();
}

#[test]
fn the_two_files_take_turns_and_only_the_published_one_is_usable() {
    let disk = SimDisk::new(Random::new(1));
    assert_eq!(loaded(&disk), None);
    // Longer than what is written at once, and empty.
    for (serial, len) in (1..).zip([10, 700_000, 0, 300_001, 262_144]) {
        assert!(put(&disk, serial, len));
        let whole = expected(serial, len);
        assert_eq!(look(&disk, LOG).unwrap(), Some(whole.clone()));
        assert_eq!(loaded(&disk), Some(whole));
        let turn = CHECKPOINT_FILES[serial as usize % 2];
        for file in CHECKPOINT_FILES {
            let is_blank = disk
                .contents(file)
                .is_none_or(|bytes| bytes[..HEAD_BLOCK as usize].iter().all(|byte| *byte == 0));
            assert_eq!(is_blank, file != turn, "{file} after {serial}");
        }
        disk.power_cut();
        assert_eq!(loaded(&disk), Some(expected(serial, len)));
    }
}

#[test]
fn progress_is_told_in_bytes_of_the_body() {
    let disk = SimDisk::new(Random::new(1));
    let len = 1_000_000;
    let mut told = Vec::new();
    publish(&disk, &head(1), &body(1, len), &mut |done, of| {
        assert_eq!(of, len as u64);
        told.push(done);
    })
    .unwrap();
    assert!(told.is_sorted() && told.len() >= 4, "{told:?}");
    assert_eq!(told.last(), Some(&(len as u64)));
}

/// Every place at which publishing can be cut short, by power or by the death
/// of the process, with several outcomes for what was not synced.
#[test]
fn publishing_that_is_cut_short_anywhere_leaves_a_whole_checkpoint() {
    const BEFORE: usize = 5_000;
    // One that fits the file there is, and one that needs a longer one.
    for len in [9_000, 90_000] {
        let mut calls = 0;
        loop {
            let mut came_through = false;
            for seed in 0..24 {
                let power = seed % 3 != 0;
                let disk = SimDisk::new(Random::new(seed));
                put(&disk, 1, BEFORE);
                put(&disk, 2, BEFORE);
                disk.crash_after(Some(calls));
                let result = publish(&disk, &head(3), &body(3, len), &mut |_, _| {});
                came_through = !disk.is_stopped();
                let cut = || {
                    if power {
                        disk.power_cut()
                    } else {
                        disk.process_crash()
                    }
                };
                cut();
                let found = loaded(&disk).expect("a whole checkpoint");
                let serial = found.head.serial;
                let whole = match serial {
                    2 => expected(2, BEFORE),
                    _ => expected(3, len),
                };
                assert_eq!(found, whole, "{calls} calls, seed {seed}");
                if result.is_ok() {
                    assert_eq!(serial, 3, "{calls} calls, seed {seed}: it was published");
                }
                // What a start went on from stays, whatever happens then.
                disk.power_cut();
                assert_eq!(loaded(&disk), Some(whole));
                assert!(put(&disk, serial + 1, len));
                disk.power_cut();
                assert_eq!(loaded(&disk), Some(expected(serial + 1, len)));
            }
            if came_through {
                break;
            }
            calls += 1;
        }
        assert!(calls >= 6, "only {calls} places to be cut short at");
    }
}

#[test]
fn the_first_one_cut_short_is_none_or_whole() {
    for calls in 0..20 {
        for seed in 0..12 {
            let disk = SimDisk::new(Random::new(seed));
            disk.crash_after(Some(calls));
            let result = publish(&disk, &head(1), &body(1, 5_000), &mut |_, _| {});
            disk.power_cut();
            let found = loaded(&disk);
            let whole = Some(expected(1, 5_000));
            assert!(found.is_none() || found == whole, "{calls} {seed}");
            assert!(result.is_err() || found.is_some(), "{calls} {seed}");
        }
    }
}

/// A start that is cut short makes nothing worse.
#[test]
fn loading_that_is_cut_short_anywhere_loses_nothing() {
    for calls in 0..12 {
        for seed in 0..24 {
            let disk = SimDisk::new(Random::new(seed));
            put(&disk, 1, 5_000);
            put(&disk, 2, 5_000);
            // The process dies before the new head is synced.
            let head_synced_at = 4;
            disk.crash_after(Some(head_synced_at));
            publish(&disk, &head(3), &body(3, 5_000), &mut |_, _| {}).unwrap_err();
            disk.process_crash();
            disk.crash_after(Some(calls));
            let first = load(&disk, LOG);
            disk.power_cut();
            let found = loaded(&disk).expect("a whole checkpoint");
            if let Ok(first) = first {
                assert_eq!(
                    Some(found),
                    first,
                    "{calls} {seed}: a start went on from it"
                );
            }
        }
    }
}

/// A directory of which one sync of a file fails.
struct FailingSync<'a> {
    disk: &'a SimDisk,
    /// Syncs until then.
    left: Rc<Cell<u32>>,
}

struct FailingFile {
    file: Box<dyn DiskFile>,
    disk: SimDisk,
    left: Rc<Cell<u32>>,
}

impl DiskFile for FailingFile {
    fn len(&self) -> Result<u64, DiskError> {
        self.file.len()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        self.file.read_at(offset, buffer)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.file.write_at(offset, bytes)
    }
    fn sync(&self) -> Result<(), DiskError> {
        self.left.set(self.left.get().wrapping_sub(1));
        if self.left.get() == 0 {
            self.disk.fail_syncs(1);
        }
        self.file.sync()
    }
    fn lock_exclusive(&self, wait: Duration) -> Result<(), DiskError> {
        self.file.lock_exclusive(wait)
    }
}

impl Disk for FailingSync<'_> {
    fn list(&self) -> Result<Vec<String>, DiskError> {
        self.disk.list()
    }
    fn create_zeroed(&self, name: &str, bytes: u64) -> Result<(), DiskError> {
        self.disk.create_zeroed(name, bytes)
    }
    fn create_whole(&self, name: &str, bytes: &[u8]) -> Result<(), DiskError> {
        self.disk.create_whole(name, bytes)
    }
    fn recycle_zeroed(&self, old: &str, new: &str, bytes: u64) -> Result<(), DiskError> {
        self.disk.recycle_zeroed(old, new, bytes)
    }
    fn open(&self, name: &str) -> Result<Box<dyn DiskFile>, DiskError> {
        Ok(Box::new(FailingFile {
            file: self.disk.open(name)?,
            disk: self.disk.clone(),
            left: self.left.clone(),
        }))
    }
    fn read_small(&self, name: &str, limit: usize) -> Result<Option<Vec<u8>>, DiskError> {
        self.disk.read_small(name, limit)
    }
    fn replace_small(&self, name: &str, bytes: &[u8]) -> Result<(), DiskError> {
        self.disk.replace_small(name, bytes)
    }
    fn rename(&self, old: &str, new: &str) -> Result<(), DiskError> {
        self.disk.rename(old, new)
    }
    fn remove(&self, name: &str) -> Result<(), DiskError> {
        self.disk.remove(name)
    }
    fn sync_dir(&self) -> Result<(), DiskError> {
        self.disk.sync_dir()
    }
}

/// A failed sync forgets what it was to make safe, and a later one "succeeds",
/// in this process or the next.
#[test]
fn a_sync_that_fails_is_never_trusted_later() {
    // Of the body, of the head, of the other file's head.
    for failing in 1..=3 {
        for seed in 0..24 {
            let disk = SimDisk::new(Random::new(seed));
            put(&disk, 1, 5_000);
            put(&disk, 2, 5_000);
            let fails = FailingSync {
                disk: &disk,
                left: Rc::new(Cell::new(failing)),
            };
            let result = publish(&fails, &head(3), &body(3, 5_000), &mut |_, _| {});
            match failing {
                3 => assert_eq!(result, Ok(false), "the other one is not surely unusable"),
                _ => assert!(result.is_err()),
            }
            disk.process_crash();
            let first = loaded(&disk).expect("a whole checkpoint");
            let whole = match first.head.serial {
                2 if failing < 3 => expected(2, 5_000),
                _ => expected(3, 5_000),
            };
            assert_eq!(first, whole);
            disk.power_cut();
            let then = loaded(&disk);
            assert_eq!(then, Some(first), "sync {failing}, seed {seed}");
        }
    }
}

/// After a failure the same serial is written again, over the same file.
#[test]
fn a_failed_publishing_is_made_up_for() {
    for failing in 1..=2 {
        let disk = SimDisk::new(Random::new(1));
        put(&disk, 1, 5_000);
        put(&disk, 2, 5_000);
        let fails = FailingSync {
            disk: &disk,
            left: Rc::new(Cell::new(failing)),
        };
        publish(&fails, &head(3), &body(3, 5_000), &mut |_, _| {}).unwrap_err();
        assert!(put(&disk, 3, 6_000));
        disk.power_cut();
        assert_eq!(loaded(&disk), Some(expected(3, 6_000)));
    }
}

#[test]
fn a_start_that_cannot_sync_the_newest_takes_the_one_before() {
    for seed in 0..24 {
        let disk = SimDisk::new(Random::new(seed));
        put(&disk, 1, 5_000);
        put(&disk, 2, 5_000);
        // Only the process dies: the head of serial 3 is there, unsynced.
        let head_synced_at = 4;
        disk.crash_after(Some(head_synced_at));
        publish(&disk, &head(3), &body(3, 5_000), &mut |_, _| {}).unwrap_err();
        disk.process_crash();
        assert_eq!(look(&disk, LOG).unwrap(), Some(expected(3, 5_000)));
        disk.fail_syncs(1);
        assert_eq!(loaded(&disk), Some(expected(2, 5_000)));
        disk.power_cut();
        assert_eq!(loaded(&disk), Some(expected(2, 5_000)));
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    let len = 300;
    let disk = SimDisk::new(Random::new(1));
    put(&disk, 1, len);
    let file = CHECKPOINT_FILES[1];
    let whole = Some(expected(1, len));
    for at in (0..HEAD_BYTES).chain(HEAD_BLOCK..HEAD_BLOCK + len as u64) {
        for bit in 0..8 {
            disk.flip(file, at, 1 << bit).unwrap();
            assert!(is_refused(&disk), "byte {at}, bit {bit}");
            disk.flip(file, at, 1 << bit).unwrap();
        }
    }
    // Padding is not read.
    disk.flip(file, HEAD_BYTES, 1).unwrap();
    disk.flip(file, HEAD_BLOCK + len as u64, 1).unwrap();
    assert_eq!(loaded(&disk), whole);
}

#[test]
fn a_damaged_newest_leaves_the_one_before_if_that_is_usable() {
    let disk = SimDisk::new(Random::new(1));
    put(&disk, 1, 100);
    let before = disk.contents(CHECKPOINT_FILES[1]).unwrap();
    put(&disk, 2, 100);
    disk.open(CHECKPOINT_FILES[1])
        .unwrap()
        .write_at(0, &before)
        .unwrap();
    assert_eq!(look(&disk, LOG).unwrap(), Some(expected(2, 100)));
    disk.flip(CHECKPOINT_FILES[0], HEAD_BLOCK + 50, 4).unwrap();
    assert_eq!(loaded(&disk), Some(expected(1, 100)));
}

/// A length on disk never decides an allocation.
#[test]
fn truncated_files_and_wild_lengths_are_no_checkpoint() {
    let file = CHECKPOINT_FILES[1];
    for len in [
        0,
        1,
        HEAD_BYTES - 1,
        HEAD_BYTES,
        HEAD_BLOCK,
        HEAD_BLOCK + 99,
    ] {
        let disk = SimDisk::new(Random::new(1));
        put(&disk, 1, 100);
        disk.set_len(file, len).unwrap();
        assert!(is_refused(&disk), "{len}");
        // And it does not keep the next one from being written.
        assert!(put(&disk, 2, 100) && put(&disk, 3, 100));
        assert_eq!(loaded(&disk), Some(expected(3, 100)));
    }
    for body_bytes in [101, 1 << 20, 1 << 33, 1 << 40, u64::MAX] {
        let disk = SimDisk::new(Random::new(1));
        put(&disk, 1, 100);
        let open = disk.open(file).unwrap();
        open.write_at(88, &body_bytes.to_le_bytes()).unwrap();
        seal(&disk, file);
        assert!(is_refused(&disk), "{body_bytes}");
    }
}

#[test]
fn another_format_and_another_log_are_refused_by_name() {
    let disk = SimDisk::new(Random::new(1));
    put(&disk, 1, 100);
    let error = load(&disk, LogId(8)).unwrap_err();
    assert_eq!(error.to_string(), "ckpt-b is the checkpoint of another log");
    let file = CHECKPOINT_FILES[1];
    disk.open(file).unwrap().write_at(8, &[2, 0, 0, 0]).unwrap();
    seal(&disk, file);
    let error = load(&disk, LOG).unwrap_err();
    assert_eq!(
        error.to_string(),
        "ckpt-b has format 2, this program reads format 1"
    );
    assert!(matches!(
        error,
        CheckpointError::Format(OtherFormat { format: 2, .. })
    ));
}

/// So that a full disk can be emptied.
#[test]
fn publishing_in_place_takes_no_new_space() {
    let disk = SimDisk::new(Random::new(1));
    put(&disk, 1, 100_000);
    put(&disk, 2, 100_000);
    disk.set_free_bytes(Some(0));
    for serial in 3..9 {
        assert!(put(&disk, serial, 100_000 + 1000 * serial as usize));
        assert_eq!(loaded(&disk).map(|found| found.head.serial), Some(serial));
    }
    let longer = publish(&disk, &head(9), &body(9, 400_000), &mut |_, _| {});
    assert_eq!(longer.unwrap_err().kind, DiskErrorKind::OutOfSpace);
    assert_eq!(loaded(&disk).map(|found| found.head.serial), Some(8));
    disk.set_free_bytes(Some(1 << 20));
    assert!(put(&disk, 9, 400_000));
    assert_eq!(loaded(&disk), Some(expected(9, 400_000)));
}

/// A body that names these packed files.
fn naming(packs: &[u32]) -> Vec<Vec<u8>> {
    let mut body = Vec::new();
    Section::put(&mut body, SectionKind::Packs, |out| {
        for file in packs {
            out.extend_from_slice(&file.to_le_bytes());
            out.extend_from_slice(&[1; 24]);
        }
    });
    vec![body]
}

#[test]
fn packed_files_that_are_not_named_are_removed_and_nothing_else_is() {
    let disk = SimDisk::new(Random::new(1));
    let others = ["pack-1", "pack-00000000002", "pack-000000000x", "seg-1"];
    for name in others {
        disk.replace_small(name, b"x").unwrap();
    }
    let fill = || {
        for file in 1..=5 {
            disk.replace_small(&shards::store::pack_name(file), b"x")
                .unwrap();
        }
    };
    let left = || -> Vec<String> {
        let mut names = disk.list().unwrap();
        names.retain(|name| shards::store::pack_id(name).is_some());
        names
    };
    fill();
    publish(&disk, &head(1), &naming(&[2, 4]), &mut |_, _| {}).unwrap();
    let checkpoint = loaded(&disk).unwrap();
    remove_orphans(&disk, Some(&checkpoint)).unwrap();
    disk.power_cut();
    assert_eq!(left(), ["pack-0000000002", "pack-0000000004"]);
    fill();
    remove_orphans(&disk, None).unwrap();
    assert!(left().is_empty());
    let names = disk.list().unwrap();
    assert!(others.iter().all(|name| names.contains(&name.to_string())));
}

#[test]
fn what_a_later_build_wrote_is_not_guessed_at() {
    let disk = SimDisk::new(Random::new(1));
    let mut body = naming(&[2]);
    body[0][1] = 2;
    publish(&disk, &head(1), &body, &mut |_, _| {}).unwrap();
    disk.replace_small("pack-0000000001", b"x").unwrap();
    let checkpoint = loaded(&disk).unwrap();
    let error = remove_orphans(&disk, Some(&checkpoint)).unwrap_err();
    assert!(error.to_string().contains("kind 7, version 2"), "{error}");
    assert!(disk.contents("pack-0000000001").is_some());
    assert!(checkpoint.base().is_err());
}

fn linking(words: [u64; 4]) -> Checkpoint {
    let mut out = Vec::new();
    Section::put(&mut out, SectionKind::Links, |out| {
        for word in words {
            out.extend_from_slice(&word.to_le_bytes());
        }
    });
    Checkpoint {
        head: head(1),
        body: out,
    }
}

#[test]
fn the_log_is_told_its_anchor_and_its_links() {
    let base = linking([10, 20, 30, 40]).base().unwrap();
    assert_eq!(base.anchor, head(1).anchor);
    assert_eq!(base.durable_next, head(1).durable_next);
    assert_eq!(base.keep_from, head(1).keep_from);
    let links = [(10, 20), (30, 40)].map(|(end, next)| (LogPosition(end), LogPosition(next)));
    assert_eq!(base.links, links);
}

#[test]
fn links_that_do_not_go_forward_are_refused() {
    for words in [
        [30, 40, 10, 20],
        [10, 20, 10, 20],
        [10, 20, 40, 30],
        [10, 10, 30, 40],
    ] {
        assert_eq!(
            linking(words).base().err(),
            Some(SectionsError::Links),
            "{words:?}"
        );
    }
}
