//! A log that a later version has written in, with other batches.

use shards::io::Disk;
use shards::log::{
    self, segment_name, BootId, Inspected, LogPosition, OpenError, SuperblockError,
    BATCH_HEADER_BYTES, SUPERBLOCK_FILES,
};
use tidegate_sim::rot_run::{self, RotLog};
use tidegate_sim::Random;
use xxhash_rust::xxh3::xxh3_64;

/// Places of the log's batches, and its segment size.
fn batches(log: &RotLog) -> (Vec<LogPosition>, u64) {
    let mut places = Vec::new();
    let mut visit = |found: Inspected<'_>| match found {
        Inspected::Batch { header, .. } => places.push(header.position),
        Inspected::Damaged(range) => panic!("damaged: {range:?}"),
    };
    let inspection = log::inspect(&log.disk, BootId(1), &[], None, None, &mut visit).unwrap();
    (places, inspection.geometry.segment_bytes())
}

/// Makes the batch there one of format 2, as a later version would write it.
fn make_later(log: &RotLog, place: LogPosition, segment_bytes: u64) {
    let file = log.disk.open(&segment_name(place.0 / segment_bytes));
    let file = file.unwrap();
    let mut header = [0; BATCH_HEADER_BYTES];
    let offset = place.0 % segment_bytes;
    file.read_at(offset, &mut header).unwrap();
    header[8] = 2;
    let checksum = xxh3_64(&header[..88]);
    header[88..].copy_from_slice(&checksum.to_le_bytes());
    file.write_at(offset, &header).unwrap();
    file.sync().unwrap();
}

fn superblocks(log: &RotLog) -> [Option<Vec<u8>>; 2] {
    SUPERBLOCK_FILES.map(|name| log.disk.read_small(name, 1 << 16).unwrap())
}

/// Wherever it stands, it is neither cut nor skipped as damage; and wherever a
/// later version begins to write it is found before anything is changed.
#[test]
fn a_batch_of_a_later_format_is_never_taken_for_damage() {
    let (mut early, mut late) = (0, 0);
    for seed in 0..60 {
        let count = batches(&rot_run::build(&mut Random::new(seed)).unwrap())
            .0
            .len();
        for from in 0..count {
            let log = rot_run::build(&mut Random::new(seed)).unwrap();
            let (places, segment_bytes) = batches(&log);
            make_later(&log, places[from], segment_bytes);
            let before = superblocks(&log);
            let what = format!("the batch at {}", places[from]);
            match log::check_formats(&log.disk) {
                Err(SuperblockError::Format(other)) => {
                    assert_eq!((other.what, other.format), (what.clone(), 2));
                    early += 1;
                }
                Ok(()) => late += 1,
                Err(error) => panic!("{error}"),
            }
            assert_eq!(superblocks(&log), before);
            let mut ignore = |_: Inspected<'_>| {};
            let looked = log::inspect(&log.disk, BootId(1), &[], None, None, &mut ignore);
            assert!(matches!(looked, Err(SuperblockError::Format(_))), "{what}");
            let facts = log::OpenFacts {
                boot_id: BootId(1),
                clean_marker: None,
                boot_directory: None,
                lock_wait: std::time::Duration::ZERO,
                base: None,
            };
            let opened = log::open(&log.disk, &log.options, &facts, &mut |_| {});
            let refused = opened.unwrap_err();
            let is_other = matches!(refused, OpenError::Superblock(SuperblockError::Format(_)));
            assert!(is_other, "{what}: {refused}");
        }
        // From some batch on: what a later version leaves behind.
        for from in 0..count {
            let log = rot_run::build(&mut Random::new(seed)).unwrap();
            let (places, segment_bytes) = batches(&log);
            for place in &places[from..] {
                make_later(&log, *place, segment_bytes);
            }
            let found = log::check_formats(&log.disk);
            assert!(matches!(found, Err(SuperblockError::Format(_))), "{from}");
        }
    }
    assert!(early > 100 && late > 10, "{early} {late}");
}

/// Beyond the last known durable frontier, behind a torn batch.
#[test]
fn a_later_batch_behind_a_damaged_one_is_found_too() {
    for seed in 0..60 {
        let log = rot_run::build(&mut Random::new(seed)).unwrap();
        let (places, segment_bytes) = batches(&log);
        let [.., bad, later] = places[..] else {
            continue;
        };
        let file = log.disk.open(&segment_name(bad.0 / segment_bytes)).unwrap();
        file.write_at(bad.0 % segment_bytes, &[0xff; 512]).unwrap();
        file.sync().unwrap();
        make_later(&log, later, segment_bytes);
        let mut ignore = |_: Inspected<'_>| {};
        let looked = log::inspect(&log.disk, BootId(1), &[], None, None, &mut ignore);
        assert!(matches!(looked, Err(SuperblockError::Format(_))), "{seed}");
    }
}
