//! What comes from the log: settles, purge, replay.

use super::*;

#[test]
fn settles_count_by_kind_and_stale_ones_have_no_effect() {
    let mut partition = filled(5);
    partition.subscribe(consumer(1, 1), 10, 10_000);
    drain(&mut partition, NOW);
    settle(&mut partition, 1, SettleKind::Acknowledge, 0, &[(0, 1)]);
    settle(&mut partition, 1, SettleKind::Reject, 0, &[(1, 1)]);
    settle(&mut partition, 1, SettleKind::Release, 0, &[(2, 1)]);
    let ids = [
        (0, 1),
        (1, 1),
        (2, 1),
        (3, 2),
        (4, 0),
        (99, 1),
        (u64::MAX, 1),
    ];
    for kind in [
        SettleKind::Acknowledge,
        SettleKind::Release,
        SettleKind::Reject,
    ] {
        assert_eq!(partition.apply_settle(kind, 0, &ids), 0);
    }
    partition.apply_lease_ended(EXPIRED, &ids);
    let counts = partition.counts(NOW);
    assert_eq!((counts.acknowledged, counts.dropped), (1, 1));
    assert_eq!((counts.ready, counts.leased), (1, 2));
    assert_conserved(&partition);
}

#[test]
fn a_settle_applied_to_a_ready_delayed_or_gated_record_takes_it_out() {
    let mut partition = filled(2);
    partition.apply_append(NOW, &[record(1, NOW + 5), record(1, 0), record(1, NOW + 5)]);
    partition.open_delivery(3);
    let ids = [(0, 1), (2, 1), (3, 1), (4, 1)];
    assert_eq!(partition.apply_settle(SettleKind::Acknowledge, 0, &ids), 4);
    partition.subscribe(consumer(1, 1), 10, 10_000);
    partition.open_delivery(5);
    assert_eq!(offsets(&drain(&mut partition, NOW + 99)), [1]);
    assert_conserved(&partition);
}

#[test]
fn purge_keeps_what_was_leased_and_under_settle() {
    let mut partition = filled(6);
    partition.apply_append(NOW, &[record(1, NOW + 5), record(1, 0), record(1, NOW + 5)]);
    partition.open_delivery(7);
    partition.subscribe(consumer(1, 1), 4, 10_000);
    drain(&mut partition, NOW);
    settle(&mut partition, 1, SettleKind::Release, 0, &[(0, 1)]);
    partition.begin_settle(1, 1, 1).unwrap();
    let mut keep = Vec::new();
    partition.leased_below(8, &mut keep);
    assert_eq!(keep, [(1, 1), (2, 1), (3, 1)]);
    assert_eq!(partition.apply_purge(8, &keep), 5);
    assert_conserved(&partition);
    let counts = partition.counts(NOW);
    assert_eq!((counts.leased, counts.gated, counts.purged), (3, 1, 5));
    assert_eq!((counts.ready, counts.delayed), (0, 0));
    partition.add_credit(consumer(1, 1), 10, 10_000);
    assert_eq!(deliver(&mut partition, NOW + 99), None);
    assert_eq!(
        partition.apply_settle(SettleKind::Acknowledge, 0, &[(1, 1)]),
        1
    );
    partition.open_delivery(9);
    assert_eq!(offsets(&drain(&mut partition, NOW + 99)), [8]);
}

#[test]
fn a_record_leased_after_the_purge_was_proposed_is_purged_and_its_settle_stale() {
    let mut partition = filled(3);
    partition.subscribe(consumer(1, 1), 1, 10_000);
    drain(&mut partition, NOW);
    let mut keep = Vec::new();
    partition.leased_below(3, &mut keep);
    partition.add_credit(consumer(1, 1), 1, 0);
    drain(&mut partition, NOW);
    assert_eq!(partition.apply_purge(3, &keep), 2);
    assert_eq!(partition.begin_settle(1, 1, 1), Err(SettleRefusal::Stale));
    assert_eq!(
        partition.apply_settle(SettleKind::Acknowledge, 0, &[(1, 1)]),
        0
    );
    partition.begin_settle(1, 0, 1).unwrap();
    // Its lease is over as well: nothing is given back twice.
    let mut ended = Vec::new();
    partition.disconnect(1, &mut ended);
    assert!(ended.is_empty());
    assert_conserved(&partition);
}

#[test]
fn a_kept_id_whose_attempt_has_ended_keeps_nothing() {
    let mut partition = filled(2);
    partition.subscribe(consumer(1, 1), 2, 10_000);
    drain(&mut partition, NOW);
    let mut keep = Vec::new();
    partition.leased_below(2, &mut keep);
    keep.reverse();
    settle(&mut partition, 1, SettleKind::Release, 0, &[(0, 1)]);
    assert_eq!(partition.apply_purge(u64::MAX, &keep), 1);
    assert_eq!(persistent(&partition).len(), 1);
    assert_eq!(partition.first_unsettled(), Some(1));
}

#[test]
fn after_replay_what_lies_below_the_mark_is_flagged() {
    let mut partition = Partition::new(spec());
    partition.apply_append(NOW, &vec![record(1, 0); 1500]);
    partition.apply_settle(SettleKind::Release, 0, &[(3, 1)]);
    partition.apply_lease_ended(EXPIRED, &[(3, 2), (1400, 1)]);
    partition.finish_replay();
    partition.open_delivery(1500);
    partition.apply_append(NOW, &[record(1, 0)]);
    partition.open_delivery(1501);
    partition.subscribe(consumer(1, 1), u32::MAX, u64::MAX);
    let mut all = drain(&mut partition, NOW);
    assert_eq!(all.len(), 1024);
    let mark = partition.wants_mark().unwrap();
    partition.apply_mark(mark);
    partition.open_mark(mark);
    all.extend(drain(&mut partition, NOW));
    assert_eq!(offsets(&all), (0..1501).collect::<Vec<_>>());
    for dispatch in &all {
        let attempt = match dispatch.offset {
            3 => 3,
            1400 => 2,
            _ => 1,
        };
        assert_eq!(dispatch.attempt, attempt);
        let flagged = dispatch.offset < 1024 || attempt > 1;
        assert_eq!(dispatch.redelivered, flagged, "{dispatch:?}");
    }
}

#[test]
fn a_record_published_after_the_takeover_is_not_flagged_though_below_the_mark() {
    let mut partition = Partition::new(spec());
    partition.apply_append(NOW, &[record(1, 0)]);
    partition.apply_mark(4096);
    partition.finish_replay();
    publish(&mut partition, 1);
    partition.subscribe(consumer(1, 1), 10, 1000);
    let flags: Vec<bool> = drain(&mut partition, NOW)
        .iter()
        .map(|dispatch| dispatch.redelivered)
        .collect();
    assert_eq!(flags, [true, false]);
}

#[test]
fn in_a_new_generation_everything_older_is_flagged() {
    let mut partition = Partition::new(spec());
    partition.apply_append(NOW, &vec![record(1, 0); 2000]);
    partition.finish_replay();
    partition.flag_redelivered_below(partition.next_offset());
    publish(&mut partition, 1);
    partition.apply_mark(4096);
    partition.open_mark(4096);
    partition.subscribe(consumer(1, 1), u32::MAX, u64::MAX);
    let all = drain(&mut partition, NOW);
    assert_eq!(all.len(), 2001);
    for dispatch in all {
        assert_eq!(dispatch.redelivered, dispatch.offset < 2000);
    }
}

#[test]
fn a_replayed_mark_is_open_and_not_proposed_again() {
    let mut partition = Partition::new(spec());
    partition.apply_append(NOW, &vec![record(1, 0); 4000]);
    partition.apply_mark(4096);
    partition.finish_replay();
    assert_eq!(partition.mark(), 4096);
    partition.open_delivery(4000);
    partition.subscribe(consumer(1, 1), u32::MAX, u64::MAX);
    assert_eq!(partition.wants_mark(), None);
    assert_eq!(drain(&mut partition, NOW).len(), 4000);
}

#[test]
fn a_second_leadership_starts_with_nothing_leased() {
    let mut partition = filled(5);
    partition.subscribe(consumer(1, 1), 4, 10_000);
    drain(&mut partition, NOW);
    settle(&mut partition, 1, SettleKind::Release, NOW + 9, &[(0, 1)]);
    settle(&mut partition, 1, SettleKind::Release, 0, &[(1, 1)]);
    partition.begin_settle(1, 2, 1).unwrap();
    partition.finish_replay();
    let counts = partition.counts(NOW);
    assert_eq!((counts.ready, counts.delayed, counts.leased), (4, 1, 0));
    assert_eq!(partition.begin_settle(1, 3, 1), Err(SettleRefusal::Stale));
    assert_eq!(partition.next_deadline_ms(), Some(NOW + 9));
    partition.add_credit(consumer(1, 1), 10, 10_000);
    let all = drain(&mut partition, NOW + 9);
    assert_eq!(offsets(&all), [0, 1, 2, 3, 4]);
    assert_eq!(all[0].attempt, 2);
    assert_eq!(all[2].attempt, 1);
    assert!(all.iter().all(|dispatch| dispatch.redelivered));
    assert_conserved(&partition);
}

#[test]
fn a_due_time_survives_replay_before_the_gate() {
    let mut partition = Partition::new(spec());
    partition.apply_append(NOW, &[record(1, NOW + 60_000), record(1, 0), record(1, 0)]);
    partition.apply_settle(SettleKind::Release, NOW + 30_000, &[(1, 1)]);
    partition.apply_settle(SettleKind::Release, NOW + 10_000, &[(2, 1)]);
    partition.apply_settle(SettleKind::Release, 0, &[(2, 2)]);
    partition.finish_replay();
    partition.open_delivery(3);
    partition.subscribe(consumer(1, 1), 10, 10_000);
    assert_eq!(offsets(&drain(&mut partition, NOW)), [2]);
    assert_eq!(offsets(&drain(&mut partition, NOW + 30_000)), [1]);
    assert_eq!(offsets(&drain(&mut partition, NOW + 60_000)), [0]);
}

#[test]
fn a_later_due_time_replaces_an_earlier_one() {
    let mut partition = filled(1);
    partition.subscribe(consumer(1, 1), 10, 10_000);
    partition.apply_settle(SettleKind::Release, NOW + 10, &[(0, 1)]);
    partition.apply_settle(SettleKind::Release, NOW + 90, &[(0, 2)]);
    assert_eq!(deliver(&mut partition, NOW + 89), None);
    assert_eq!(partition.counts(NOW).delayed, 1);
    assert_eq!(deliver(&mut partition, NOW + 90).unwrap().attempt, 3);
}
