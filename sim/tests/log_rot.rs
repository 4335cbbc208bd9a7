//! Random damage to a log's files: what survives is what was appended, in
//! order and unchanged; below the durable frontier only what was hit is gone.

use std::time::Duration;

use shards::io::Disk;
use shards::log::{
    self, BootId, DamagedRange, ItemHeader, ItemKind, LogId, LogOptions, OpenFacts, Opened,
    SyncMethod,
};
use tidegate_sim::{LogDriver, Random, SimDisk};
use wire::vocabulary::Boundary;

const SEEDS: u64 = 300;

struct Log {
    disk: SimDisk,
    options: LogOptions,
    items: Vec<Item>,
}

struct Item {
    payload: Vec<u8>,
    /// (segment, offset, length) of its pieces, headers in front included.
    pieces: Vec<(u64, u64, u64)>,
}

fn build(random: &mut Random) -> Log {
    let block_bytes = random.pick(&[512u32, 4096]);
    let options = LogOptions {
        segment_bytes: u64::from(block_bytes) * 8,
        block_bytes,
        background_sync_interval_ms: 0,
        sync_method: random.pick(&[SyncMethod::Dsync, SyncMethod::Fdatasync]),
        cache_bytes: 0,
        backlog_bytes: 1 << 20,
        spare_segments: 1,
        reserve_segments: 0,
    };
    let disk = SimDisk::new(random.fork());
    log::create(&disk, LogId(u128::from(random.number())), &options).unwrap();
    let mut items: Vec<Item> = Vec::new();
    for life in 1..4 {
        let (opened, seen) = open(&disk, &options, 1);
        assert_eq!(seen.len(), items.len());
        let mut driver = LogDriver::new(disk.clone(), opened.start, options.clone());
        for _ in 0..random.below(12) {
            let len = random.pick(&[0, 10, 300, 3_000, 9_000]);
            let payload: Vec<u8> = (0..len).map(|_| random.number() as u8).collect();
            let item = ItemHeader {
                kind: ItemKind::Entry,
                group: 1,
                term: life,
                index: items.len() as u64,
                sync: true,
            };
            let place = driver
                .log
                .append(item, &[&payload], Boundary::Durable)
                .unwrap();
            let extents = driver.log.extents(place.payload, len as u32);
            let pieces = if extents.is_empty() {
                let geometry = driver.log.geometry();
                let offset = geometry.offset_of(place.payload);
                vec![(geometry.segment_of(place.payload), offset, 0)]
            } else {
                let piece =
                    |extent: log::Extent| (extent.segment, extent.offset, u64::from(extent.len));
                extents.into_iter().map(piece).collect()
            };
            items.push(Item { payload, pieces });
            if random.chance(1, 2) {
                driver.submit();
                driver.complete_one(random);
            }
        }
        driver.settle(random);
        if random.chance(1, 2) {
            disk.process_crash();
        }
    }
    Log {
        disk,
        options,
        items,
    }
}

fn open(disk: &SimDisk, options: &LogOptions, boot: u128) -> (Opened, Vec<(u64, Vec<u8>)>) {
    let facts = OpenFacts {
        boot_id: BootId(boot),
        clean_marker: None,
        boot_directory: None,
        lock_wait: Duration::ZERO,
        base: None,
    };
    let mut seen = Vec::new();
    let opened = log::open(disk, options, &facts, &mut |item| {
        seen.push((item.header.index, item.payload.to_vec()));
    });
    (opened.unwrap(), seen)
}

/// Whether the item's own bytes, or a header in front of them, lie in a range.
fn is_hit(item: &Item, segment_bytes: u64, ranges: &[DamagedRange]) -> bool {
    item.pieces.iter().any(|(segment, offset, len)| {
        let from = segment * segment_bytes + offset;
        let to = from + len;
        ranges
            .iter()
            .any(|range| from < range.to.0 && range.from.0 < to.max(from + 1))
            || ranges
                .iter()
                .any(|range| range.from.0 < from && from <= range.to.0)
    })
}

#[test]
fn only_what_lies_in_reported_damage_is_missing() {
    let mut damaged_runs = 0;
    for seed in 0..SEEDS {
        let random = &mut Random::new(seed);
        let log = build(random);
        // The next open records that all of this is durable.
        open(&log.disk, &log.options, 1);
        for _ in 0..1 + random.below(3) {
            if let Some(item) = log
                .items
                .get(random.below(log.items.len() as u64 + 1) as usize)
            {
                let (segment, offset, len) = random.pick(&item.pieces);
                let near = (offset + random.below(len + 1)).saturating_sub(random.below(200));
                let name = log::segment_name(segment);
                log.disk.flip(&name, near, 1 << random.below(8)).unwrap();
            }
        }
        for boot in [1, 2, 3] {
            let (opened, seen) = open(&log.disk, &log.options, boot);
            let report = opened.report;
            let mut left = seen.iter().peekable();
            for (index, item) in log.items.iter().enumerate() {
                if let Some((_, payload)) = left.next_if(|seen| seen.0 == index as u64) {
                    assert_eq!(payload, &item.payload, "seed {seed}: item {index} changed");
                } else {
                    let hit = is_hit(item, log.options.segment_bytes, &report.damaged);
                    assert!(hit, "seed {seed}: item {index} is missing; {report}");
                }
            }
            assert!(
                left.next().is_none(),
                "seed {seed}: items from nowhere or out of order"
            );
            assert_eq!(report.durable_memory_lost, !report.damaged.is_empty());
            damaged_runs += usize::from(report.durable_memory_lost);
        }
    }
    assert!(damaged_runs > 100, "the flips hit nothing ({damaged_runs})");
}

/// Each byte of each batch in turn: what is inside is damage, what pads it is
/// seen and harms nothing. (Without a clean marker the last batch is not known
/// to be durable: then it is cut.)
#[test]
fn no_changed_byte_of_a_batch_goes_unseen() {
    let (mut inside, mut padding) = (0, 0);
    for seed in 0..3 {
        let random = &mut Random::new(2_000_000 + seed);
        let log = build(random);
        let inspect = |visit: &mut dyn FnMut(log::Inspected<'_>)| {
            log::inspect(&log.disk, BootId(1), &[], None, None, visit).unwrap()
        };
        let mut batches = Vec::new();
        let sound = inspect(&mut |seen| {
            if let log::Inspected::Batch { header, bytes } = seen {
                batches.push((header.position.0, header.used_bytes(), bytes));
            }
        });
        assert!(sound.is_sound() && sound.odd_paddings == 0, "{sound}");
        let segment_bytes = log.options.segment_bytes;
        for (position, used, bytes) in batches {
            let name = log::segment_name(position / segment_bytes);
            for at in (0..96).chain((96..bytes).step_by(61)) {
                let offset = position % segment_bytes + at;
                let bit = 1 << random.below(8);
                log.disk.flip(&name, offset, bit).unwrap();
                let found = inspect(&mut |_| {});
                let what = format!("seed {seed}, batch at {position}, byte {at}: {found}");
                let damaged =
                    |range: &DamagedRange| (range.from.0..range.to.0).contains(&(position + at));
                if at >= used {
                    assert!(found.is_sound() && found.odd_paddings == 1, "{what}");
                    padding += 1;
                } else {
                    let cut = found
                        .cut
                        .is_some_and(|cut| (cut.from.0..cut.to.0).contains(&(position + at)));
                    assert!(cut || found.damaged.iter().any(damaged), "{what}");
                    inside += 1;
                }
                log.disk.flip(&name, offset, bit).unwrap();
            }
        }
    }
    assert!(inside > 1000 && padding > 100, "{inside} {padding}");
}

/// Anything at all in the files: opening says no or opens, and invents nothing.
#[test]
fn no_damage_makes_opening_panic_or_invent() {
    let (mut refused, mut opened) = (0, 0);
    for seed in 0..SEEDS {
        let random = &mut Random::new(1_000_000 + seed);
        let log = build(random);
        for _ in 0..1 + random.below(6) {
            let names = log.disk.list().unwrap();
            let name = &names[random.below(names.len() as u64) as usize];
            let len = log.disk.contents(name).unwrap().len() as u64;
            match random.below(5) {
                0 => log.disk.set_len(name, random.below(2 * len + 1)).unwrap(),
                1 => log.disk.remove(name).unwrap(),
                2 if len > 0 => {
                    let from = random.below(len);
                    for at in from..len.min(from + 1 + random.below(3_000)) {
                        log.disk.flip(name, at, random.number() as u8).unwrap();
                    }
                }
                _ if len > 0 => log
                    .disk
                    .flip(name, random.below(len), 1 << random.below(8))
                    .unwrap(),
                _ => {}
            }
        }
        let facts = OpenFacts {
            boot_id: BootId(u128::from(random.below(2)) + 1),
            clean_marker: None,
            boot_directory: None,
            lock_wait: Duration::ZERO,
            base: None,
        };
        let mut last = None;
        let result = log::open(&log.disk, &log.options, &facts, &mut |item| {
            let index = item.header.index;
            assert_eq!(
                item.payload, log.items[index as usize].payload,
                "seed {seed}"
            );
            assert!(last < Some(index), "seed {seed}: out of order");
            last = Some(index);
        });
        match result {
            Ok(result) => {
                opened += 1;
                let mut driver =
                    LogDriver::new(log.disk.clone(), result.start, log.options.clone());
                let item = ItemHeader {
                    kind: ItemKind::Entry,
                    group: 1,
                    term: 9,
                    index: 1 << 40,
                    sync: true,
                };
                driver
                    .log
                    .append(item, &[b"after"], Boundary::Durable)
                    .unwrap();
                driver.settle(random);
                log.disk.power_cut();
                let (_, seen) = open(&log.disk, &log.options, 3);
                assert_eq!(
                    seen.last(),
                    Some(&(1 << 40, b"after".to_vec())),
                    "seed {seed}"
                );
            }
            Err(_) => refused += 1,
        }
    }
    assert!(
        refused > 0 && opened > refused,
        "{opened} opened, {refused} refused"
    );
}
