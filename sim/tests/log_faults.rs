//! The log's faults of the fault list, each in a directed scenario.

mod log_rig;

use std::time::Duration;

use log_rig::{batch_of, indexes, options, Rig, Survivors, BLOCK, FIRST, SEGMENT};
use shards::io::Disk;
use shards::log::{
    self, BootId, Cut, CutKind, LogId, LogPosition, OpenFacts, BATCH_HEADER_BYTES, SUPERBLOCK_FILES,
};
use tidegate_sim::{Random, SimDisk};
use wire::vocabulary::Boundary;

#[test]
fn f15_a_half_created_newest_segment_does_not_block_the_start() {
    for case in ["empty", "short", "zeros", "header only", "leftover"] {
        let mut rig = Rig::new();
        let (mut driver, ..) = rig.open();
        for _ in 0..3 {
            rig.put(&mut driver);
        }
        let second = log::segment_name(2);
        match case {
            "empty" => rig.disk.set_len(&second, 0).unwrap(),
            "short" => rig
                .disk
                .set_len(&second, BATCH_HEADER_BYTES as u64 - 1)
                .unwrap(),
            "zeros" => {}
            "header only" => {
                let first = rig.disk.contents(&log::segment_name(1)).unwrap();
                rig.write_raw(LogPosition(2 * SEGMENT), &first[..BATCH_HEADER_BYTES]);
            }
            _ => {
                rig.disk.remove(&second).unwrap();
                rig.disk
                    .replace_small(&format!("{second}.tmp"), &[0; 100])
                    .unwrap();
            }
        }
        rig.power_cut();
        for round in 0..2 {
            let (mut driver, seen, report) = rig.open();
            let expected = if round == 0 { 3 } else { 23 };
            assert_eq!(seen, indexes(0..expected), "{case}: {report}");
            let trimmed = matches!(case, "empty" | "short" | "leftover");
            assert_eq!(
                !report.removed_files.is_empty(),
                trimmed && round == 0,
                "{case}: {report}"
            );
            // Far enough to need the second segment.
            for _ in 0..20 {
                rig.put(&mut driver);
            }
            rig.power_cut();
        }
    }
}

/// Two writes in flight, the first lost, the second landed: a hole.
#[test]
fn f16_what_is_written_after_a_hole_is_there_at_the_second_restart() {
    for power_cut in [false, true] {
        let mut rig = Rig::new();
        let (mut driver, ..) = rig.open();
        rig.put(&mut driver);
        let lost = rig.append(&mut driver, Boundary::Durable);
        driver.submit();
        rig.append(&mut driver, Boundary::Durable);
        driver.submit();
        // Both land; then the first one is undone.
        while driver.complete_one(&mut rig.random) {}
        rig.write_raw(batch_of(lost.payload), &vec![0; BLOCK as usize]);
        if power_cut {
            rig.power_cut();
        } else {
            rig.disk.process_crash();
        }

        let (mut driver, seen, report) = rig.open();
        assert_eq!(seen, [0], "{report}");
        let kind = report.cut.map(|cut| cut.kind);
        let expected = if power_cut {
            CutKind::Torn
        } else {
            CutKind::Unanswered
        };
        assert_eq!(kind, Some(expected), "{report}");
        assert_eq!(report.amnesiac, power_cut, "{report}");
        rig.put(&mut driver);
        rig.put(&mut driver);
        for _ in 0..2 {
            rig.power_cut();
            let (_, seen, report) = rig.open();
            assert_eq!(seen, [0, 3, 4], "{report}");
            assert!(
                report.damaged.is_empty() && report.cut.is_none(),
                "{report}"
            );
        }
    }
}

/// A crash at each step of opening after a clean stop, by process and by power.
#[test]
fn f17_a_crash_while_opening_is_not_a_clean_stop() {
    for power_cut in [false, true] {
        let mut steps = 0;
        loop {
            let mut rig = Rig::new();
            let (mut driver, ..) = rig.open();
            for _ in 0..3 {
                rig.put(&mut driver);
            }
            driver.settle(&mut rig.random);
            log::put_clean_markers(&rig.disk, &[driver.log.clean_marker().unwrap()]).unwrap();
            rig.power_cut();
            rig.disk.crash_after(Some(steps));
            let result = rig.try_open();
            let finished = result.is_ok();
            rig.disk.crash_after(None);
            if power_cut {
                rig.power_cut();
            } else {
                rig.disk.process_crash();
            }
            let (_, seen, report) = rig.open();
            assert_eq!(seen, indexes(0..3), "step {steps}: {report}");
            if finished {
                assert!(steps > 5, "the crash never came");
                break;
            }
            // The marker may go unused in the first step, never count later.
            assert!(steps < 3 || !report.clean, "step {steps}: {report}");
            assert!(
                report.clean || report.amnesiac || !power_cut,
                "step {steps}: {report}"
            );
            steps += 1;
        }
    }
}

/// The process dies in one open and the power goes in the next, at each step
/// of both: one superblock may be unsynced, the other torn.
#[test]
fn f17_no_two_crashes_while_opening_cost_the_superblocks() {
    for (first, second) in (0..12).flat_map(|first| (0..12).map(move |second| (first, second))) {
        for seed in 0..20 {
            let mut rig = Rig::seeded(seed);
            let (mut driver, ..) = rig.open();
            rig.put(&mut driver);
            rig.power_cut();
            for (steps, power_cut) in [(first, false), (second, true)] {
                rig.disk.crash_after(Some(steps));
                let _ = rig.try_open();
                if power_cut {
                    rig.power_cut();
                } else {
                    rig.disk.process_crash();
                }
            }
            let (_, seen, report) = rig.open();
            assert_eq!(seen, [0], "steps {first}, {second}, seed {seed}: {report}");
        }
    }
}

/// A power cut tore a copy, and a write that failed half-way made it look whole
/// again, in the page cache only: the other copy must outlive the next cut.
#[test]
fn f17_a_superblock_that_only_looks_whole_is_not_relied_on() {
    for torn in SUPERBLOCK_FILES {
        for (steps, seed) in (0..12).flat_map(|steps| (0..20).map(move |seed| (steps, seed))) {
            let mut rig = Rig::seeded(seed);
            let (mut driver, ..) = rig.open();
            rig.put(&mut driver);
            rig.power_cut();
            let file = rig.disk.open(torn).unwrap();
            let sector = rig.disk.read(torn, 512, 512).unwrap();
            file.write_at(512, &[0xa5; 512]).unwrap();
            file.sync().unwrap();
            file.write_at(512, &sector).unwrap();

            rig.disk.crash_after(Some(steps));
            let _ = rig.try_open();
            rig.power_cut();
            let (_, seen, report) = rig.open();
            assert_eq!(seen, [0], "{torn}, step {steps}, seed {seed}: {report}");
        }
    }
}

#[test]
fn f18_a_bad_length_in_the_last_batch_is_trimmed() {
    for length in [u32::MAX, 0, 1, i32::MIN as u32, 512 * 1024, 9 * 1024 * 1024] {
        let mut rig = Rig::new();
        let (mut driver, ..) = rig.open();
        rig.put(&mut driver);
        let last = batch_of(rig.put(&mut driver));
        rig.write_raw(LogPosition(last.0 + 12), &length.to_le_bytes());
        rig.power_cut();
        let (mut driver, seen, report) = rig.open();
        assert_eq!(seen, [0], "{report}");
        assert!(
            matches!(report.cut, Some(Cut { from, .. }) if from == last),
            "{report}"
        );
        rig.put(&mut driver);
        rig.power_cut();
        let (_, seen, report) = rig.open();
        assert_eq!(seen, [0, 2], "{report}");
    }
}

/// F06, solo: that record is gone and said so, its neighbours are kept.
#[test]
fn f06_a_flipped_bit_below_the_durable_frontier_is_reported_and_skipped() {
    for in_header in [false, true] {
        let mut rig = Rig::new();
        let (mut driver, ..) = rig.open();
        let places: Vec<_> = (0..30).map(|_| rig.put(&mut driver)).collect();
        let bad = batch_of(places[7]);
        let at = if in_header {
            bad.0 + 40
        } else {
            places[7].0 + 3
        };
        rig.flip(LogPosition(at));
        for _ in 0..2 {
            rig.power_cut();
            let (_, seen, report) = rig.open();
            let kept: Survivors = (0..30).filter(|index| *index != 7).collect();
            assert_eq!(seen, kept, "{report}");
            let range = report.damaged[0];
            assert_eq!((range.from, range.to.0), (bad, bad.0 + BLOCK), "{report}");
            assert_eq!(report.damaged_ranges, 1);
            assert!(
                report.durable_memory_lost && report.cut.is_none(),
                "{report}"
            );
        }
        let (mut driver, ..) = rig.open();
        rig.put(&mut driver);
        rig.power_cut();
        let (_, seen, _) = rig.open();
        assert_eq!(seen.last(), Some(&30));
    }
}

/// Neighbouring batches lost, header and all, up to the durable frontier.
#[test]
fn damage_that_reaches_the_end_of_what_was_durable_hides_nothing_behind_it() {
    let mut rig = Rig::new();
    let (mut driver, ..) = rig.open();
    let places: Vec<_> = (0..6).map(|_| rig.put(&mut driver)).collect();
    rig.power_cut();
    // This open records that all six are durable.
    let (mut driver, ..) = rig.open();
    rig.put(&mut driver);
    rig.put(&mut driver);
    for place in &places[4..6] {
        rig.write_raw(batch_of(*place), &vec![0xab; BLOCK as usize]);
    }
    rig.power_cut();
    let (mut driver, seen, report) = rig.open();
    assert_eq!(seen, [0, 1, 2, 3, 6, 7], "{report}");
    assert!(report.durable_memory_lost);
    rig.put(&mut driver);
    rig.power_cut();
    let (_, seen, _) = rig.open();
    assert_eq!(seen, [0, 1, 2, 3, 6, 7, 8]);
}

#[test]
fn an_idle_log_knows_its_last_batch_was_durable() {
    for idle in [false, true] {
        let mut rig = Rig::new();
        let (mut driver, ..) = rig.open();
        rig.put(&mut driver);
        let last = rig.put(&mut driver);
        if idle {
            driver.settle(&mut rig.random);
        }
        rig.flip(last);
        rig.power_cut();
        let (_, seen, report) = rig.open();
        assert_eq!(seen, [0], "{report}");
        assert_eq!(report.damaged_ranges > 0, idle, "{report}");
        assert_eq!(report.cut.is_some(), !idle, "{report}");
    }
}

/// What proves that a bad batch was durable may itself have lost its body.
#[test]
fn the_header_of_a_torn_batch_still_tells_what_was_durable() {
    let mut rig = Rig::new();
    let (mut driver, ..) = rig.open();
    rig.put(&mut driver);
    let bad = rig.put(&mut driver);
    let last = rig.put(&mut driver);
    rig.flip(bad);
    rig.flip(last);
    rig.power_cut();
    let (_, seen, report) = rig.open();
    assert_eq!(seen, [0], "{report}");
    assert_eq!(report.damaged_ranges, 1, "{report}");
    assert_eq!(report.damaged[0].from, batch_of(bad), "{report}");
    assert_eq!(
        report.cut.map(|cut| cut.from),
        Some(batch_of(last)),
        "{report}"
    );
}

#[test]
fn damage_in_the_same_boot_is_not_taken_for_a_torn_tail() {
    let mut rig = Rig::new();
    let (mut driver, ..) = rig.open();
    rig.put(&mut driver);
    let last = rig.put(&mut driver);
    rig.flip(last);
    rig.disk.process_crash();
    let (_, seen, report) = rig.open();
    assert_eq!(seen, [0], "{report}");
    assert!(report.amnesiac && report.durable_memory_lost, "{report}");
    assert_eq!(report.cut.map(|cut| cut.kind), Some(CutKind::Damaged));
}

#[test]
fn inspecting_shows_every_batch_and_changes_nothing() {
    let mut rig = Rig::new();
    let (mut driver, ..) = rig.open();
    let places: Vec<_> = (0..5).map(|_| rig.put(&mut driver)).collect();
    rig.flip(places[2]);
    rig.flip(places[4]);
    rig.power_cut();
    let image = |rig: &Rig| {
        let mut names = rig.disk.list().unwrap();
        names.sort();
        names
            .into_iter()
            .map(|name| (rig.disk.contents(&name), name))
            .collect::<Vec<_>>()
    };
    let before = image(&rig);
    let mut lines = Vec::new();
    let boot_id = BootId(rig.boot);
    let inspection = log::inspect(&rig.disk, boot_id, &[], None, None, &mut |seen| {
        lines.push(seen.to_string());
    })
    .unwrap();
    assert!(image(&rig) == before);
    assert_eq!(inspection.batches, 3, "{inspection}");
    assert_eq!(lines.len(), 4, "{lines:#?}");
    assert!(
        lines[0].contains(&format!("batch 1 at {FIRST}")),
        "{}",
        lines[0]
    );
    assert!(lines[2].starts_with("damaged from"), "{}", lines[2]);
    assert!(!inspection.is_sound() && inspection.cut.is_some());
    let (_, _, report) = rig.open();
    assert_eq!(report.cut, inspection.cut);
    assert_eq!(report.damaged, inspection.damaged);
    assert_eq!(report.end, inspection.end);
    assert_eq!(report.amnesiac, inspection.amnesiac);
}

#[test]
fn a_log_is_not_created_over_another_and_not_opened_where_there_is_none() {
    let rig = Rig::new();
    let error = log::create(&rig.disk, LogId(1), &options()).unwrap_err();
    assert_eq!(error, log::CreateError::Exists);
    let empty = SimDisk::new(Random::new(1));
    let facts = OpenFacts {
        boot_id: BootId(1),
        clean_marker: None,
        boot_directory: None,
        lock_wait: Duration::ZERO,
        base: None,
    };
    let error = log::open(&empty, &options(), &facts, &mut |_| {}).unwrap_err();
    assert_eq!(error.to_string(), "there is no log here: no superblock");
}
