//! Whole runs against the peer and its mistakes.

use super::*;
use crate::{
    plan::{tests::settings, Drive, Settings},
    report::RunReport,
    run::run,
    selftest,
    units::SizeRange,
};

fn against(fault: Fault, change: impl FnOnce(Settings) -> Settings) -> RunReport {
    let settings = change(settings(&start(fault)));
    let findings = run(&settings).unwrap();
    RunReport::new("test", &settings, &findings)
}

fn judged(fault: Fault) -> RunReport {
    against(fault, |settings| Settings {
        drain: Duration::from_secs(1),
        ..settings
    })
}

#[test]
fn a_run_without_faults_passes_and_counts_every_record_once() {
    let report = judged(Fault::None);
    assert_eq!(report.failures, [""; 0]);
    // 300 ms at 1000/s.
    let counts = &report.counts;
    assert_eq!(
        (counts.sent, counts.confirmed, counts.settled),
        (300, 300, 300)
    );
    assert_eq!(report.verdict.received_distinct, 300);
    assert_eq!(
        (counts.unknown, counts.unsent, counts.left_in_queues),
        (0, 0, Some(0))
    );
    let row = &report.latencies[0];
    assert_eq!((row.confirm.count, row.receive.count), (300, 300));
    assert!(row.settle.count > 0, "settle confirms are sampled");
    assert_eq!(
        report.server_usage.as_ref().unwrap().pid,
        std::process::id()
    );
}

#[test]
fn producers_consumers_queues_batches_and_sizes_combine() {
    let report = against(Fault::None, |settings| Settings {
        producers: 3,
        consumers: 2,
        queues: 2,
        batch: 10,
        size: SizeRange { min: 40, max: 3000 },
        modes: vec![
            wire::vocabulary::Mode::Durable,
            wire::vocabulary::Mode::Speculative,
        ],
        drive: Drive::Open {
            rate: 2000.0,
            bursts: vec![90, 30],
            every: Duration::from_millis(100),
        },
        ..settings
    });
    assert_eq!(report.failures, [""; 0]);
    assert_eq!(report.verdict.received_distinct, 600 + 90 + 30 + 90);
    assert_eq!(report.latencies.len(), 2);
    assert!(report.latencies.iter().all(|row| row.receive.count > 0));
}

#[test]
fn a_closed_window_never_exceeds_what_the_server_grants() {
    let report = against(Fault::None, |settings| Settings {
        batch: 64,
        size: SizeRange {
            min: 1024,
            max: 1024,
        },
        drive: Drive::Closed {
            batches: 0,
            max_lag: 4096,
        },
        ..settings
    });
    assert_eq!(report.failures, [""; 0]);
    assert!(report.rates.sustained > 0.0);
}

#[test]
fn a_batch_that_cannot_fit_the_window_is_said_so() {
    let report = against(Fault::None, |settings| Settings {
        batch: 4096,
        size: SizeRange {
            min: 1024,
            max: 1024,
        },
        ..settings
    });
    assert!(
        report.failures[0].contains("smaller --batch"),
        "{:?}",
        report.failures
    );
}

#[test]
fn a_lost_record_is_found_and_named() {
    let report = judged(Fault::Lose(77));
    assert_eq!(
        (report.verdict.lost, report.verdict.lost_examples.clone()),
        (1, vec!["0:77".into()])
    );
    assert!(!report.passed());
}

#[test]
fn duplicates_are_judged_by_their_flag() {
    let report = judged(Fault::Double(50));
    assert_eq!(report.verdict.duplicates_unflagged, 1);
    assert!(!report.passed());
    let report = judged(Fault::Redeliver(50));
    assert_eq!(
        (
            report.verdict.duplicates_unflagged,
            report.verdict.redelivered_flagged
        ),
        (0, 1)
    );
    assert!(report.passed(), "{:?}", report.failures);
}

#[test]
fn a_swap_breaks_the_order() {
    let report = judged(Fault::Swap(50));
    assert_eq!((report.verdict.order_breaks, report.verdict.lost), (1, 0));
    assert!(!report.passed());
}

#[test]
fn a_failed_publish_is_counted_and_its_arrival_is_a_phantom() {
    let report = judged(Fault::Fail(50));
    assert_eq!((report.counts.failed, report.counts.confirmed), (1, 299));
    assert!(report.passed(), "{:?}", report.failures);
    let report = judged(Fault::Invent(50));
    assert_eq!(report.verdict.phantoms, 1);
    assert!(!report.passed());
}

#[test]
fn damage_and_weak_confirms_fail_the_run() {
    assert_eq!(judged(Fault::Damage(50)).verdict.corrupt, 1);
    let report = judged(Fault::Weak(50));
    assert_eq!(report.counts.weak_confirms, 1);
    assert!(!report.passed());
}

#[test]
fn an_unanswered_publish_is_unknown_and_the_run_still_ends() {
    let report = judged(Fault::Ignore(50));
    assert_eq!((report.counts.unknown, report.counts.confirmed), (1, 299));
    assert!(report.passed(), "{:?}", report.failures);
}

#[test]
fn a_lost_connection_ends_the_run_and_fails_it() {
    let report = judged(Fault::Hang(50));
    assert!(report.failures[0].contains("connection") || report.failures[0].contains("server"));
    assert!(report.counts.unknown > 0);
}

#[test]
fn with_several_servers_a_lost_connection_is_made_again_and_its_answers_are_unknown() {
    let report = against(Fault::Hang(50), |settings| Settings {
        server: format!("{0},{0}", settings.server),
        drain: Duration::from_secs(1),
        ..settings
    });
    assert!(report.passed(), "{:?}", report.failures);
    let counts = &report.counts;
    assert_eq!((counts.sent, counts.reconnects), (300, 1));
    assert!(counts.unknown > 0 && counts.lost_answers > 0);
    assert_eq!(counts.confirmed + counts.unknown, 300);
}

#[test]
fn a_server_that_is_not_there_is_passed_over() {
    let report = against(Fault::None, |settings| {
        let gone = TcpListener::bind("127.0.0.1:0").unwrap();
        let gone = gone.local_addr().unwrap();
        Settings {
            server: format!("{gone}, {}", settings.server),
            ..settings
        }
    });
    assert!(report.passed(), "{:?}", report.failures);
    assert_eq!(report.counts.confirmed, 300);
}

#[test]
fn a_freeze_shows_in_the_percentiles_of_open_loop() {
    let report = against(Fault::Freeze(500, 100), |settings| Settings {
        duration: Duration::from_secs(1),
        ..settings
    });
    let confirm = &report.latencies[0].confirm;
    // Lower bounds only: 100 records were due in the freeze.
    assert!(confirm.max_ns >= 90_000_000, "{confirm:?}");
    assert!(confirm.p99_ns >= 80_000_000, "{confirm:?}");
    assert!(report.latencies[0].confirms_above_50_ms >= 45);
    assert_eq!(report.failures, [""; 0]);
}

#[test]
fn the_self_test_is_not_satisfied_without_a_freeze() {
    // A crowded machine may freeze it by itself, but not each time.
    let quiet = |_| !selftest::missing_evidence(&judged(Fault::None)).is_empty();
    assert!((0..20).any(quiet));
}
