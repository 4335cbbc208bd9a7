//! The log's faults of the fault list, each in a directed scenario.

use std::time::Duration;

use shards::io::Disk;
use shards::log::{
    self, BootId, Cut, CutKind, ItemHeader, ItemKind, LogId, LogOptions, LogPosition, OpenFacts,
    Opened, RecoveryReport, SyncMethod, BATCH_HEADER_BYTES,
};
use tidegate_sim::{LogDriver, Random, SimDisk};
use wire::vocabulary::Boundary;

const BLOCK: u64 = 4096;
const SEGMENT: u64 = 16 * BLOCK;
const FIRST: LogPosition = LogPosition(SEGMENT);

fn options() -> LogOptions {
    LogOptions {
        segment_bytes: SEGMENT,
        block_bytes: BLOCK as u32,
        background_sync_interval_ms: 0,
        sync_method: SyncMethod::Dsync,
        cache_bytes: 1 << 20,
        backlog_bytes: 1 << 20,
        spare_segments: 1,
    }
}

struct Rig {
    disk: SimDisk,
    random: Random,
    boot: u128,
    appended: u64,
}

type Survivors = Vec<u64>;

impl Rig {
    fn new() -> Self {
        let disk = SimDisk::new(Random::new(1));
        log::create(&disk, LogId(77), &options()).unwrap();
        Rig {
            disk,
            random: Random::new(2),
            boot: 1,
            appended: 0,
        }
    }

    fn try_open(&self) -> Result<(Opened, Survivors), String> {
        let markers = log::take_clean_markers(&self.disk).map_err(|error| error.to_string())?;
        let facts = OpenFacts {
            boot_id: BootId(self.boot),
            clean_marker: markers.first().copied(),
            boot_directory: None,
            lock_wait: Duration::ZERO,
        };
        let mut seen = Vec::new();
        let opened = log::open(&self.disk, &options(), &facts, &mut |item| {
            assert_eq!(item.payload, payload(item.header.index));
            seen.push(item.header.index);
        });
        Ok((opened.map_err(|error| error.to_string())?, seen))
    }

    fn open(&self) -> (LogDriver, Survivors, RecoveryReport) {
        let (opened, seen) = self.try_open().unwrap();
        let driver = LogDriver::new(self.disk.clone(), opened.start, options());
        (driver, seen, opened.report)
    }

    /// Appends one item, alone in its batch, and waits until it is durable.
    fn put(&mut self, driver: &mut LogDriver) -> LogPosition {
        let appended = self.append(driver, Boundary::Durable);
        driver.submit();
        while driver.log.frontiers().durable_next < appended.end {
            driver.submit();
            assert!(driver.complete_one(&mut self.random));
        }
        appended.payload
    }

    fn append(&mut self, driver: &mut LogDriver, demand: Boundary) -> log::Appended {
        let index = self.appended;
        self.appended += 1;
        let item = ItemHeader {
            kind: ItemKind::Entry,
            group: 1,
            term: 1,
            index,
            sync: true,
        };
        driver.log.append(item, &[&payload(index)], demand).unwrap()
    }

    fn power_cut(&mut self) {
        self.disk.power_cut();
        self.boot += 1;
    }

    fn write_raw(&self, position: LogPosition, bytes: &[u8]) {
        let file = self
            .disk
            .open(&log::segment_name(position.0 / SEGMENT))
            .unwrap();
        file.write_at(position.0 % SEGMENT, bytes).unwrap();
        file.sync().unwrap();
    }

    fn flip(&self, position: LogPosition) {
        let name = log::segment_name(position.0 / SEGMENT);
        self.disk.flip(&name, position.0 % SEGMENT, 0x20).unwrap();
    }
}

fn payload(index: u64) -> Vec<u8> {
    vec![index as u8 + 1; 100 + index as usize]
}

fn indexes(range: std::ops::Range<u64>) -> Survivors {
    range.collect()
}

/// The batch that holds a payload which is alone in it.
fn batch_of(payload: LogPosition) -> LogPosition {
    LogPosition(payload.0 - payload.0 % BLOCK)
}

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

/// One sync fails, the next would "succeed": nothing is confirmed by it, and
/// what the process copies is safe.
#[test]
fn f24_a_sync_that_fails_once_latches_and_the_copied_tail_is_safe() {
    let mut rig = Rig::new();
    let (mut driver, ..) = rig.open();
    rig.put(&mut driver);
    let written = rig.append(&mut driver, Boundary::Written);
    driver.submit();
    while driver.complete_one(&mut rig.random) {}
    assert!(driver.log.frontiers().written_next >= written.end);
    rig.disk.fail_syncs(1);
    driver.log.demand_durable(written.end);
    driver.settle(&mut rig.random);
    assert!(driver.log.is_latched() && driver.log.is_quiet());
    assert!(driver.log.frontiers().durable_next < written.end);
    let latch = driver.log.latch_record().unwrap();
    assert!(log::record_latch(&rig.disk, None, &latch).is_recorded());

    let facts = OpenFacts {
        boot_id: BootId(rig.boot),
        clean_marker: None,
        boot_directory: None,
        lock_wait: Duration::ZERO,
    };
    let mut seen = Vec::new();
    let opened = log::reopen(&rig.disk, &options(), &facts, &latch, &mut |item| {
        seen.push(item.header.index);
    })
    .unwrap();
    assert_eq!(seen, [0, 1], "{}", opened.report);
    assert!(opened.report.amnesiac && opened.report.recopied.is_some());
    let mut driver = LogDriver::new(rig.disk.clone(), opened.start, options());
    rig.put(&mut driver);
    for _ in 0..2 {
        rig.power_cut();
        let (_, seen, report) = rig.open();
        assert_eq!(seen, [0, 1, 2], "{report}");
        assert!(report.recopied.is_none(), "{report}");
    }
}

/// The process that latched died; the next one finds the record.
#[test]
fn a_recorded_latch_is_honoured_by_the_next_process() {
    for in_boot_directory in [false, true] {
        let mut rig = Rig::new();
        let boot = SimDisk::new(Random::new(9));
        let open = |rig: &Rig| {
            let facts = OpenFacts {
                boot_id: BootId(rig.boot),
                clean_marker: None,
                boot_directory: Some(&boot),
                lock_wait: Duration::ZERO,
            };
            log::open(&rig.disk, &options(), &facts, &mut |_| {}).unwrap()
        };
        let opened = open(&rig);
        let mut driver = LogDriver::new(rig.disk.clone(), opened.start, options());
        rig.put(&mut driver);
        rig.append(&mut driver, Boundary::Written);
        rig.disk.fail_writes(1);
        driver.settle(&mut rig.random);
        let latch = driver.log.latch_record().unwrap();
        rig.disk.set_free_bytes(in_boot_directory.then_some(0));
        let recorded = log::record_latch(&rig.disk, Some(&boot), &latch);
        assert_eq!(recorded.in_log_directory.is_err(), in_boot_directory);
        assert!(recorded.is_recorded());
        rig.disk.set_free_bytes(None);
        rig.disk.process_crash();
        let opened = open(&rig);
        assert!(opened.report.recopied.is_some(), "{}", opened.report);
        let opened = open(&rig);
        assert!(
            opened.report.recopied.is_none(),
            "dealt with once: {}",
            opened.report
        );
    }
}

#[test]
fn a_same_boot_start_without_its_token_counts_as_latched() {
    let rig = Rig::new();
    let open = |boot: &SimDisk, boot_id| {
        let facts = OpenFacts {
            boot_id: BootId(boot_id),
            clean_marker: None,
            boot_directory: Some(boot),
            lock_wait: Duration::ZERO,
        };
        log::open(&rig.disk, &options(), &facts, &mut |_| {})
            .unwrap()
            .report
    };
    let boot = SimDisk::new(Random::new(9));
    assert!(open(&boot, 1).recopied.is_none());
    assert!(open(&boot, 1).recopied.is_none());
    let emptied = SimDisk::new(Random::new(9));
    let report = open(&emptied, 1);
    assert!(report.recopied.is_some() && report.amnesiac, "{report}");
    let rebooted = SimDisk::new(Random::new(9));
    assert!(
        open(&rebooted, 2).recopied.is_none(),
        "a reboot empties it rightly"
    );
}

/// F25: no space for segments refuses appends; space comes back, work goes on.
#[test]
fn f25_a_full_disk_refuses_and_recovers_without_a_latch() {
    let mut rig = Rig::new();
    let (mut driver, ..) = rig.open();
    rig.disk.set_free_bytes(Some(0));
    let mut refused = false;
    for _ in 0..200 {
        let index = rig.appended;
        let item = ItemHeader {
            kind: ItemKind::Entry,
            group: 1,
            term: 1,
            index,
            sync: false,
        };
        match driver
            .log
            .append(item, &[&vec![7; 20_000]], Boundary::Durable)
        {
            Ok(_) => driver.submit(),
            Err(log::AppendError::Backlog { .. }) => refused = true,
            Err(error) => panic!("{error}"),
        }
        driver.complete_one(&mut rig.random);
    }
    assert!(refused && !driver.log.is_latched());
    assert!(driver
        .log
        .segment_failure()
        .is_some_and(|failure| failure.out_of_space));
    // A start on the full disk works too.
    rig.power_cut();
    let opened = {
        let facts = OpenFacts {
            boot_id: BootId(rig.boot),
            clean_marker: None,
            boot_directory: None,
            lock_wait: Duration::ZERO,
        };
        log::open(&rig.disk, &options(), &facts, &mut |_| {}).unwrap()
    };
    let mut driver = LogDriver::new(rig.disk.clone(), opened.start, options());
    let item = ItemHeader {
        kind: ItemKind::Entry,
        group: 1,
        term: 1,
        index: 0,
        sync: false,
    };
    let end = driver
        .log
        .append(item, &[&vec![7; 50_000]], Boundary::Durable)
        .unwrap()
        .end;
    driver.submit();
    while driver.complete_one(&mut rig.random) {
        driver.submit();
    }
    rig.disk.set_free_bytes(None);
    driver.settle(&mut rig.random);
    assert!(driver.log.frontiers().durable_next >= end);
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
    let inspection = log::inspect(&rig.disk, boot_id, &[], None, &mut |seen| {
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
    };
    let error = log::open(&empty, &options(), &facts, &mut |_| {}).unwrap_err();
    assert_eq!(error.to_string(), "there is no log here: no superblock");
}
