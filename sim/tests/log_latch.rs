//! Errors of the disk under a log: latch, reopen, full disk.

mod log_rig;

use std::time::Duration;

use log_rig::{options, Rig};
use shards::log::{self, BootId, ItemHeader, ItemKind, OpenFacts};
use tidegate_sim::{LogDriver, Random, SimDisk};
use wire::vocabulary::Boundary;

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
        base: None,
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
                base: None,
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
            base: None,
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
            base: None,
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

/// The process dies at each step of reopening, then the power goes at each step
/// of the next try: a name that the first one left unsynced is not relied on.
#[test]
fn no_two_crashes_while_reopening_cost_the_copied_tail() {
    let kept = 2;
    for (first, second) in (0..24).flat_map(|first| (0..28).map(move |second| (first, second))) {
        let mut rig = Rig::seeded(first * 31 + second);
        // Then the copy needs a segment that is not there yet.
        rig.options.spare_segments = 0;
        let (mut driver, ..) = rig.open();
        for _ in 0..kept {
            rig.put(&mut driver);
        }
        rig.append(&mut driver, Boundary::Written);
        rig.disk.fail_syncs(1);
        driver.log.demand_durable(log::LogPosition(u64::MAX));
        driver.settle(&mut rig.random);
        let latch = driver.log.latch_record().unwrap();
        assert!(log::record_latch(&rig.disk, None, &latch).is_recorded());
        rig.disk.crash_after(Some(first));
        let _ = rig.try_open();
        rig.disk.process_crash();
        rig.disk.crash_after(Some(second));
        let _ = rig.try_open();
        rig.power_cut();
        for _ in 0..2 {
            let (_, seen, report) = rig.open();
            assert!(seen.len() >= kept, "steps {first}, {second}: {report}");
            assert!(
                report.damaged.is_empty(),
                "steps {first}, {second}: {report}"
            );
        }
    }
}
