//! Random damage to a log's files: what survives is what was appended, in
//! order and unchanged; below the durable frontier only what was hit is gone.

use std::time::Duration;

use shards::io::Disk;
use shards::log::{self, BootId, DamagedRange, ItemHeader, ItemKind, OpenFacts};
use tidegate_sim::rot_run::{self, build};
use tidegate_sim::{LogDriver, Random};
use wire::vocabulary::Boundary;

const SEEDS: u64 = 300;

#[test]
fn only_what_lies_in_reported_damage_is_missing() {
    let mut damaged = 0;
    for seed in 0..SEEDS {
        let summary = rot_run::run(seed).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        damaged += summary.damaged;
    }
    assert!(damaged > 100, "nothing was hit ({damaged})");
}

/// Each byte of each batch in turn: what is inside is damage, what pads it is
/// seen and harms nothing. (Without a clean marker the last batch is not known
/// to be durable: then it is cut.)
#[test]
fn no_changed_byte_of_a_batch_goes_unseen() {
    let (mut inside, mut padding) = (0, 0);
    for seed in 0..3 {
        let random = &mut Random::new(2_000_000 + seed);
        let log = build(random).unwrap();
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
        let log = build(random).unwrap();
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
                let (_, seen) = log.open(3).unwrap();
                let last = seen.last().map(|seen| (seen.index, &seen.payload[..]));
                assert_eq!(last, Some((1 << 40, &b"after"[..])), "seed {seed}");
            }
            Err(_) => refused += 1,
        }
    }
    assert!(
        refused > 0 && opened > refused,
        "{opened} opened, {refused} refused"
    );
}
