//! Packed files: records read back wherever they stood, whose they are is
//! known, and damage is named.

use shards::io::{Disk, DiskErrorKind};
use shards::log::{segment_name, Extent, LogId};
use shards::store::{
    check_packs, pack_id, pack_name, read_index, verify_pack, write_pack, IndexEntry, PackError,
    PackJob, PackRecord, Packed, RecordSource,
};
use tidegate_sim::{Random, SimDisk};
use wire::record::RecordParts;
use xxhash_rust::xxh3::xxh3_64;

const LOG: LogId = LogId(7);
const BLOCK: u64 = 4096;
const HEAD_BYTES: u64 = 56;
const ENTRY_BYTES: u64 = 40;

fn encoded(payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let parts = RecordParts {
        key: b"key",
        payload,
        ..RecordParts::default()
    };
    parts.encode(&mut out).unwrap();
    out
}

/// What is packed, and the bytes that must come out.
struct Work {
    disk: SimDisk,
    job: PackJob,
    records: Vec<Vec<u8>>,
}

impl Work {
    fn new() -> Self {
        Work {
            disk: SimDisk::new(Random::new(1)),
            job: PackJob {
                file: 9,
                log_id: LOG,
                records: Vec::new(),
                extents: Vec::new(),
            },
            records: Vec::new(),
        }
    }

    fn add(&mut self, bytes: Vec<u8>, offset: u64, source: RecordSource) {
        let n = self.records.len() as u64;
        self.job.records.push(PackRecord {
            queue_id: 100 + n,
            offset,
            group: 3,
            generation: 1 + n as u32,
            partition: 5,
            len: bytes.len() as u32,
            source,
        });
        self.records.push(bytes);
    }

    /// A record at these extents; the caller puts the bytes there.
    fn add_ring(&mut self, bytes: Vec<u8>, offset: u64, extents: &[Extent]) {
        let first = self.job.extents.len() as u32;
        self.job.extents.extend_from_slice(extents);
        let extents = extents.len() as u32;
        self.add(bytes, offset, RecordSource::Ring { first, extents });
    }

    /// Some records of all sizes in one segment, with other bytes between.
    fn filled() -> Self {
        let mut work = Work::new();
        let mut random = Random::new(3);
        let mut segment = vec![0xee; 20];
        for (n, len) in [0, 1, 100, 5_000, 70_000, 3].into_iter().enumerate() {
            let bytes = encoded(&vec![n as u8; len]);
            let at = Extent {
                segment: 4,
                offset: segment.len() as u64,
                len: bytes.len() as u32,
            };
            segment.extend_from_slice(&bytes);
            segment.resize(segment.len() + random.below(50) as usize, 0xee);
            // Settled ones leave gaps in the offsets.
            work.add_ring(bytes, 10 * n as u64, &[at]);
        }
        work.disk.create_whole(&segment_name(4), &segment).unwrap();
        work
    }

    fn pack(&self) -> Packed {
        write_pack(&self.disk, &self.job).unwrap()
    }

    fn check(&self, packed: &Packed) {
        let name = pack_name(self.job.file);
        let contents = self.disk.contents(&name).unwrap();
        assert_eq!(packed.file, self.job.file);
        assert_eq!(packed.bytes, contents.len() as u64);
        assert!(packed.bytes.is_multiple_of(BLOCK));
        assert!(self.disk.is_safe(&name, 0, packed.bytes), "it is durable");
        assert_eq!(packed.places.len(), self.records.len());
        let mut next = BLOCK as usize;
        for (bytes, place) in self.records.iter().zip(&packed.places) {
            let at = *place as usize;
            assert_eq!(&contents[at..at + bytes.len()], bytes);
            assert_eq!(at, next, "back to back");
            next += bytes.len();
        }
        let index = read_index(&self.disk, LOG, self.job.file).unwrap();
        let expected: Vec<IndexEntry> = self
            .job
            .records
            .iter()
            .zip(&packed.places)
            .map(|(record, place)| IndexEntry {
                queue_id: record.queue_id,
                offset: record.offset,
                group: record.group,
                generation: record.generation,
                partition: record.partition,
                at: *place,
                len: record.len,
            })
            .collect();
        assert_eq!(index, expected);
    }

    fn verify(&self) -> Result<Vec<u64>, PackError> {
        let mut bytes = 0;
        let bad = verify_pack(&self.disk, LOG, self.job.file, &mut |read| bytes += read)?;
        let all: usize = self.records.iter().map(Vec::len).sum();
        assert_eq!(bytes, all as u64);
        Ok(bad.iter().map(|entry| entry.queue_id - 100).collect())
    }
}

#[test]
fn records_of_a_segment_read_back_with_their_index() {
    let work = Work::filled();
    let packed = work.pack();
    assert!(packed.bad.is_empty());
    work.check(&packed);
    assert!(work.verify().unwrap().is_empty());
}

/// A record whose item was split stands in several places, also in several
/// segments, with other bytes between.
#[test]
fn records_in_pieces_over_several_segments_are_put_together() {
    let mut random = Random::new(5);
    for _ in 0..40 {
        let mut work = Work::new();
        let mut segments = vec![Vec::new(); 3];
        for n in 0..1 + random.below(20) {
            let len = random.pick(&[0, 30, 5_000, 40_000]);
            let bytes = encoded(&vec![n as u8; len]);
            let mut extents = Vec::new();
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let take = 1 + random.below(rest.len() as u64) as usize;
                let number = random.below(3) as usize;
                let segment: &mut Vec<u8> = &mut segments[number];
                extents.push(Extent {
                    segment: 2 + number as u64,
                    offset: segment.len() as u64,
                    len: take as u32,
                });
                segment.extend_from_slice(&rest[..take]);
                segment.resize(segment.len() + random.below(200) as usize, 0xee);
                rest = &rest[take..];
            }
            work.add_ring(bytes, n, &extents);
        }
        for (number, bytes) in (2..).zip(&segments) {
            work.disk
                .create_whole(&segment_name(number), bytes)
                .unwrap();
        }
        let packed = work.pack();
        assert!(packed.bad.is_empty());
        work.check(&packed);
    }
}

#[test]
fn a_file_that_is_mostly_dead_is_packed_anew_with_others() {
    let old = Work::filled();
    let first = old.pack();
    let mut work = Work::new();
    work.disk = old.disk.clone();
    work.job.file = 10;
    for n in [4usize, 1, 2] {
        let at = first.places[n];
        let source = RecordSource::Packed { file: 9, at };
        work.add(old.records[n].clone(), n as u64, source);
    }
    let extents = old.job.extents.clone();
    work.add_ring(old.records[3].clone(), 3, &extents[3..4]);
    let packed = work.pack();
    assert!(packed.bad.is_empty());
    work.check(&packed);
}

#[test]
fn the_same_record_twice_and_no_record_at_all_are_packed_as_told() {
    let mut work = Work::filled();
    let record = work.job.records[2];
    work.job.records.push(record);
    work.records.push(work.records[2].clone());
    work.check(&work.pack());
    let mut nothing = Work::new();
    nothing.disk = work.disk.clone();
    nothing.job.file = 11;
    nothing.check(&nothing.pack());
}

#[test]
fn a_bad_record_is_named_and_its_neighbours_stay() {
    let mut work = Work::filled();
    for (n, at) in [(0usize, 0u64), (3, 4_000), (5, 34)] {
        let extent = work.job.extents[n];
        let place = extent.offset + at;
        work.disk.flip(&segment_name(4), place, 1).unwrap();
        work.records[n][at as usize] ^= 1;
    }
    let packed = work.pack();
    assert_eq!(packed.bad, [0, 3, 5]);
    work.check(&packed);
    assert_eq!(work.verify().unwrap(), [0, 3, 5]);
    // And what is hit later.
    let at = u64::from(packed.places[4]);
    work.disk.flip(&pack_name(9), at + 60_000, 8).unwrap();
    assert_eq!(work.verify().unwrap(), [0, 3, 4, 5]);
}

/// A segment that ends too early: what is missing is bad, the rest is kept.
#[test]
fn what_a_source_does_not_have_is_bad() {
    let mut work = Work::filled();
    let last = work.job.extents[4];
    let cut = last.offset + 100;
    work.disk.set_len(&segment_name(4), cut).unwrap();
    let packed = work.pack();
    assert_eq!(packed.bad, [4, 5]);
    for n in [4, 5] {
        work.records[n].fill(0);
    }
    let contents = work.disk.contents(&pack_name(9)).unwrap();
    let at = packed.places[4] as usize;
    assert!(contents[at..][..work.records[4].len()]
        .iter()
        .all(|byte| *byte == 0));
    work.check(&packed);
}

#[test]
fn a_source_that_is_gone_fails_the_job_and_leaves_no_file() {
    let work = Work::filled();
    work.disk.remove(&segment_name(4)).unwrap();
    let error = write_pack(&work.disk, &work.job).unwrap_err();
    assert_eq!(error.kind, DiskErrorKind::NotFound);
    assert!(work.disk.contents(&pack_name(9)).is_none());
}

/// A try that was not heard of may have left the file.
#[test]
fn a_file_of_an_earlier_try_is_replaced() {
    let work = Work::filled();
    work.disk.create_whole(&pack_name(9), b"other").unwrap();
    work.check(&work.pack());
    work.check(&work.pack());
}

#[test]
fn packing_that_is_cut_short_anywhere_leaves_no_file_or_a_whole_one() {
    for calls in 0..6 {
        for seed in 0..8 {
            let mut work = Work::filled();
            let disk = SimDisk::new(Random::new(seed));
            let segment = work.disk.contents(&segment_name(4)).unwrap();
            disk.create_whole(&segment_name(4), &segment).unwrap();
            work.disk = disk;
            work.disk.crash_after(Some(calls));
            let result = write_pack(&work.disk, &work.job);
            work.disk.power_cut();
            let is_there = work.disk.contents(&pack_name(9)).is_some();
            assert!(result.is_err() || is_there, "{calls} {seed}");
            if is_there {
                assert!(work.verify().unwrap().is_empty(), "{calls} {seed}");
            }
        }
    }
}

#[test]
fn every_flipped_bit_of_head_and_index_is_noticed() {
    let work = Work::filled();
    let packed = work.pack();
    let name = pack_name(9);
    let data: usize = work.records.iter().map(Vec::len).sum();
    let index_at = BLOCK + data as u64;
    let index_end = index_at + ENTRY_BYTES * work.records.len() as u64;
    for at in (0..HEAD_BYTES).chain(index_at..index_end) {
        for bit in 0..8 {
            work.disk.flip(&name, at, 1 << bit).unwrap();
            let error = read_index(&work.disk, LOG, 9).unwrap_err();
            let named = error.to_string();
            assert!(named.contains(&name), "byte {at}, bit {bit}: {named}");
            work.disk.flip(&name, at, 1 << bit).unwrap();
        }
    }
    work.check(&packed);
}

/// Writes head and index checksums anew.
fn seal(disk: &SimDisk, name: &str) {
    let contents = disk.contents(name).unwrap();
    let word = |at: usize| u32::from_le_bytes(contents[at..at + 4].try_into().unwrap()) as usize;
    let index_at = BLOCK as usize + word(36);
    let index_end = index_at + word(32) * ENTRY_BYTES as usize;
    let mut head = contents[..HEAD_BYTES as usize].to_vec();
    if let Some(index) = contents.get(index_at..index_end) {
        head[40..48].copy_from_slice(&xxh3_64(index).to_le_bytes());
    }
    let checksum = xxh3_64(&head[..48]);
    head[48..].copy_from_slice(&checksum.to_le_bytes());
    disk.open(name).unwrap().write_at(0, &head).unwrap();
}

fn put(work: &Work, at: u64, bytes: &[u8]) {
    let open = work.disk.open(&pack_name(9)).unwrap();
    open.write_at(at, bytes).unwrap();
    seal(&work.disk, &pack_name(9));
}

/// A length on disk never decides an allocation.
#[test]
fn truncated_files_and_wild_lengths_are_refused() {
    let data = |work: &Work| work.records.iter().map(Vec::len).sum::<usize>() as u64;
    for field in [32, 36] {
        let work = Work::filled();
        work.pack();
        put(&work, field, &u32::MAX.to_le_bytes());
        let error = read_index(&work.disk, LOG, 9).unwrap_err();
        assert!(matches!(error, PackError::Index(_)), "{error}");
    }
    // Entries that name places outside the records.
    for (at, value) in [(24, 0), (24, u32::MAX), (28, u32::MAX), (24, 90_000)] {
        let work = Work::filled();
        work.pack();
        put(&work, BLOCK + data(&work) + at, &u32::to_le_bytes(value));
        let error = read_index(&work.disk, LOG, 9).unwrap_err();
        assert!(matches!(error, PackError::Index(_)), "{error}");
    }
    let whole = Work::filled();
    let packed = whole.pack();
    for len in [0, 1, 55, 56, BLOCK - 1, BLOCK, BLOCK + 5_000, 75_000] {
        assert!(len < packed.bytes);
        let work = Work::filled();
        work.pack();
        work.disk.set_len(&pack_name(9), len).unwrap();
        assert!(verify_pack(&work.disk, LOG, 9, &mut |_| {}).is_err());
    }
}

#[test]
fn files_of_another_log_number_or_format_are_refused_by_name() {
    let work = Work::filled();
    work.pack();
    let error = read_index(&work.disk, LogId(8), 9).unwrap_err();
    assert!(matches!(error, PackError::Head(_)), "{error}");
    let bytes = work.disk.contents(&pack_name(9)).unwrap();
    work.disk.create_whole(&pack_name(12), &bytes).unwrap();
    let error = read_index(&work.disk, LOG, 12).unwrap_err();
    assert!(matches!(error, PackError::Head(_)), "{error}");
    let named = |log, files: &[u32]| {
        let files = files.iter().copied().collect();
        check_packs(&work.disk, log, &files)
    };
    named(LOG, &[9]).unwrap();
    for (log, files) in [(LOG, [9, 12]), (LogId(8), [9, 9])] {
        let error = named(log, &files).unwrap_err();
        assert!(matches!(error, PackError::Foreign(_)), "{error}");
    }
    put(&work, 8, &2u32.to_le_bytes());
    let refusals = [
        read_index(&work.disk, LOG, 9).unwrap_err(),
        named(LOG, &[9]).unwrap_err(),
    ];
    for error in refusals {
        assert_eq!(
            error.to_string(),
            "pack-0000000009 has format 2, this program reads format 1"
        );
    }
}

/// Damage is told when a record is read; it does not keep a server from starting.
#[test]
fn a_start_passes_over_packed_files_that_are_damaged_or_missing() {
    for at in 0..HEAD_BYTES {
        let work = Work::filled();
        work.pack();
        work.disk.flip(&pack_name(9), at, 3).unwrap();
        check_packs(&work.disk, LOG, &[9, 77].into()).unwrap();
    }
}

#[test]
fn names_and_numbers_are_one_to_one() {
    for file in [0, 1, 1_234_567_890, u32::MAX] {
        assert_eq!(pack_id(&pack_name(file)), Some(file));
    }
    let others = [
        "pack-",
        "pack-1",
        "pack-4294967296",
        "pack-00000000001",
        "pack-0000000001.tmp",
        "pack-+000000001",
        "seg-0000000001",
    ];
    for name in others {
        assert_eq!(pack_id(name), None, "{name}");
    }
}
