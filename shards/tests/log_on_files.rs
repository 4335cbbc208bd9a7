//! The log on a real file system: direct I/O, locks, reopening.

use std::time::Duration;

use tidegate_shards::driver::fs_disk::FsDisk;
use tidegate_shards::io::{BatchBuffer, Disk, DiskErrorKind};
use tidegate_shards::log::{
    self, BootId, ItemHeader, ItemKind, LogEffect, LogId, LogOptions, LogWriter, OpenFacts,
    SyncMethod,
};
use wire::vocabulary::Boundary;

struct VecBuffer(Vec<u8>);

impl BatchBuffer for VecBuffer {
    fn allocate(len: usize) -> Self {
        VecBuffer(vec![0; len])
    }
    fn bytes(&self) -> &[u8] {
        &self.0
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
    fn trim(&mut self, len: usize) {
        self.0.truncate(len);
    }
}

fn options() -> LogOptions {
    LogOptions {
        segment_bytes: 256 * 1024,
        block_bytes: 4096,
        background_sync_interval_ms: 0,
        sync_method: SyncMethod::Fdatasync,
        cache_bytes: 1 << 20,
        backlog_bytes: 64 << 20,
        spare_segments: 1,
        reserve_segments: 0,
    }
}

fn facts(boot: u128) -> OpenFacts<'static> {
    OpenFacts {
        boot_id: BootId(boot),
        clean_marker: None,
        boot_directory: None,
        lock_wait: Duration::from_millis(50),
        base: None,
    }
}

fn payload(index: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (n * 31 + index) as u8).collect()
}

/// Runs effects, in order, until there are none.
fn settle(disk: &FsDisk, log: &mut LogWriter<VecBuffer>) {
    let mut effects = Vec::new();
    loop {
        log.submit(0, &mut effects);
        if effects.is_empty() {
            return;
        }
        for effect in effects.drain(..) {
            match effect {
                LogEffect::Write {
                    id,
                    segment,
                    offset,
                    buffer,
                    ..
                } => {
                    let file = disk.open(&log::segment_name(segment)).unwrap();
                    file.write_at(offset, buffer.bytes()).unwrap();
                    log.write_done(id, Ok(()));
                }
                LogEffect::Sync { id, segments } => {
                    for segment in segments {
                        disk.open(&log::segment_name(segment))
                            .unwrap()
                            .sync()
                            .unwrap();
                    }
                    log.sync_done(id, Ok(()));
                }
                LogEffect::RemoveSegments { .. } => unreachable!("nothing is released here"),
                LogEffect::PrepareSegment { sequence, recycle } => {
                    log::prepare_segment(disk, log.geometry(), sequence, recycle).unwrap();
                    log.segment_ready(sequence, Ok(()));
                }
            }
        }
    }
}

#[test]
fn items_survive_reopening_on_a_real_file_system() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let disk = FsDisk::open(directory.path()).unwrap();
    disk.require_direct_io().unwrap();
    assert!(!log::exists(&disk).unwrap());
    log::create(&disk, LogId(5), &options()).unwrap();
    assert!(log::exists(&disk).unwrap());
    let sizes = [0, 1, 100, 5_000, 700_000, 3, 300_000];
    let mut count = 0u64;
    for round in 1..4 {
        let mut seen = Vec::new();
        let opened = log::open(&disk, &options(), &facts(1), &mut |item| {
            seen.push((item.header.index, item.payload.to_vec()));
        })
        .unwrap();
        assert_eq!(seen.len() as u64, count, "round {round}");
        for (at, (index, bytes)) in seen.into_iter().enumerate() {
            assert_eq!(index, at as u64);
            assert_eq!(bytes, payload(index, sizes[at % sizes.len()]));
        }
        assert!(!opened.report.amnesiac, "{}", opened.report);
        assert!(opened.report.cut.is_none(), "{}", opened.report);
        assert_eq!(opened.report.end, opened.report.resumed_at);
        let mut writer = LogWriter::<VecBuffer>::new(opened.start, options());
        for len in sizes {
            let item = ItemHeader {
                kind: ItemKind::Entry,
                group: 1,
                term: 2,
                index: count,
                sync: true,
            };
            let bytes = payload(count, len);
            writer.append(item, &[&bytes], Boundary::Durable).unwrap();
            count += 1;
        }
        settle(&disk, &mut writer);
        let frontiers = writer.frontiers();
        assert_eq!(frontiers.durable_next, frontiers.submitted);
    }
}

#[test]
fn a_clean_marker_carries_memory_over_a_reboot_once() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let disk = FsDisk::open(directory.path()).unwrap();
    log::create(&disk, LogId(6), &options()).unwrap();
    let opened = log::open(&disk, &options(), &facts(1), &mut |_| {}).unwrap();
    let writer = LogWriter::<VecBuffer>::new(opened.start, options());
    log::put_clean_markers(&disk, &[writer.clean_marker().unwrap()]).unwrap();

    let marker = log::take_clean_markers(&disk).unwrap().first().copied();
    assert!(marker.is_some());
    let with_marker = OpenFacts {
        clean_marker: marker,
        ..facts(2)
    };
    let opened = log::open(&disk, &options(), &with_marker, &mut |_| {}).unwrap();
    assert!(
        opened.report.clean && !opened.report.amnesiac,
        "{}",
        opened.report
    );

    assert_eq!(log::take_clean_markers(&disk).unwrap(), []);
    let stale = OpenFacts {
        clean_marker: marker,
        ..facts(3)
    };
    let opened = log::open(&disk, &options(), &stale, &mut |_| {}).unwrap();
    assert!(
        !opened.report.clean && opened.report.amnesiac,
        "an old marker proves nothing"
    );
    let incarnation = opened.report.incarnation;
    let opened = log::open(&disk, &options(), &facts(3), &mut |_| {}).unwrap();
    assert!(opened.report.amnesiac, "until it is settled");
    assert_eq!(opened.report.incarnation, incarnation);
    log::amnesia_settled(&disk, incarnation).unwrap();
    let opened = log::open(&disk, &options(), &facts(3), &mut |_| {}).unwrap();
    assert!(!opened.report.amnesiac);
}

#[test]
fn opening_waits_for_a_writing_descriptor_and_gives_up_in_time() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let disk = FsDisk::open(directory.path()).unwrap();
    log::create(&disk, LogId(7), &options()).unwrap();
    let writing = std::fs::File::open(disk.path(&log::segment_name(1))).unwrap();
    tidegate_shards::driver::fs_disk::lock_shared(&writing).unwrap();
    let error = log::open(&disk, &options(), &facts(1), &mut |_| {}).unwrap_err();
    assert!(matches!(error, log::OpenError::InUse(_)), "{error}");
    drop(writing);
    log::open(&disk, &options(), &facts(1), &mut |_| {}).unwrap();
}

#[test]
fn any_offset_and_length_reads_and_writes() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let disk = FsDisk::open(directory.path()).unwrap();
    let len = 3 << 20;
    disk.create_zeroed("file", len as u64).unwrap();
    let exists = disk.create_zeroed("file", 1).unwrap_err();
    assert_eq!(exists.kind, DiskErrorKind::Exists);
    let file = disk.open("file").unwrap();
    let mut model = vec![0u8; len];
    for (offset, count) in [(0, 1), (4095, 2), (5_000, 2_000_000), (len - 3, 3)] {
        let bytes = payload(offset as u64, count);
        file.write_at(offset as u64, &bytes).unwrap();
        model[offset..offset + count].copy_from_slice(&bytes);
    }
    let mut all = vec![0u8; len];
    assert_eq!(file.read_at(0, &mut all).unwrap(), len);
    assert!(all == model);
    let mut part = [9u8; 100];
    assert_eq!(file.read_at(len as u64 - 10, &mut part).unwrap(), 10);
    assert_eq!(part[..10], model[len - 10..]);
    assert_eq!(file.read_at(len as u64, &mut part).unwrap(), 0);
    let missing = disk.open("missing").err().map(|error| error.kind);
    assert_eq!(missing, Some(DiskErrorKind::NotFound));
}

#[test]
fn the_device_probe_measures_both_ways_and_leaves_nothing() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let disk = FsDisk::open(directory.path()).unwrap();
    let probe = tidegate_shards::driver::device_probe::probe(&disk).unwrap();
    // Which one wins is the device's affair; that each was really timed is ours.
    assert!(
        probe.dsync_p50_us > 0 && probe.fdatasync_p50_us > 0,
        "{probe}"
    );
    assert_eq!(disk.list().unwrap(), Vec::<String>::new());
    println!("{probe}");
}
