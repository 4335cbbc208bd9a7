//! Gate, order, credit, fairness, leases.

use super::*;

#[test]
fn nothing_is_delivered_before_the_gate_opens() {
    let mut partition = Partition::new(spec());
    assert_eq!(partition.apply_append(NOW, &[record(1, 0); 3]), 0);
    assert_eq!(partition.apply_append(NOW, &[]), 3);
    partition.subscribe(consumer(1, 1), 10, 1000);
    assert_eq!(deliver(&mut partition, NOW), None);
    assert_eq!(partition.counts(NOW).gated, 3);
    partition.open_delivery(2);
    assert_eq!(offsets(&drain(&mut partition, NOW)), [0, 1]);
    partition.open_delivery(99);
    assert_eq!(offsets(&drain(&mut partition, NOW)), [2]);
    assert_eq!(partition.apply_append(NOW, &[record(1, 0)]), 3);
    assert_eq!(deliver(&mut partition, NOW), None);
    assert_conserved(&partition);
}

#[test]
fn a_dispatch_tells_where_the_record_is() {
    let mut partition = filled(1);
    partition.subscribe(consumer(7, 3), 1, 1);
    let expected = Dispatch {
        consumer: consumer(7, 3),
        offset: 0,
        attempt: 1,
        redelivered: false,
        location: RecordLocation::Ring(4196),
        len: 100,
    };
    assert_eq!(deliver(&mut partition, NOW), Some(expected));
}

#[test]
fn given_back_records_alternate_with_fresh_ones_lowest_first() {
    let mut partition = filled(10);
    partition.subscribe(consumer(1, 1), 3, 1000);
    drain(&mut partition, NOW);
    settle(
        &mut partition,
        1,
        SettleKind::Release,
        0,
        &[(2, 1), (0, 1), (1, 1)],
    );
    partition.add_credit(consumer(1, 1), 6, 1000);
    let again = drain(&mut partition, NOW);
    assert_eq!(offsets(&again), [0, 3, 1, 4, 2, 5]);
    assert_eq!(again[0].attempt, 2);
    assert!(again[0].redelivered && !again[1].redelivered);
    assert_eq!(partition.counts(NOW).redelivered, 3);
}

#[test]
fn credit_counts_records_and_bytes_and_one_record_may_overdraw() {
    let mut partition = filled(20);
    let id = consumer(1, 1);
    assert!(partition.subscribe(id, 3, 10_000));
    assert!(!partition.subscribe(id, 3, 10_000));
    assert_eq!(drain(&mut partition, NOW).len(), 3);
    partition.add_credit(id, 100, 0);
    assert_eq!(drain(&mut partition, NOW).len(), 97 - 80);
    let mut partition = filled(20);
    partition.subscribe(id, 100, 101);
    assert_eq!(drain(&mut partition, NOW).len(), 2);
    // 99 bytes overdrawn: as much must come before the next.
    assert!(partition.add_credit(id, 0, 99));
    assert_eq!(drain(&mut partition, NOW).len(), 0);
    partition.add_credit(id, 0, 1);
    assert_eq!(drain(&mut partition, NOW).len(), 1);
    assert!(!partition.add_credit(consumer(1, 2), 1, 1));
    assert!(partition.subscribe(consumer(1, 2), 0, 0));
    assert_eq!(drain(&mut partition, NOW).len(), 0);
    partition.add_credit(consumer(1, 2), u32::MAX, u64::MAX);
    partition.add_credit(consumer(1, 2), u32::MAX, u64::MAX);
    assert_eq!(drain(&mut partition, NOW).len(), 17);
}

#[test]
fn consumers_with_credit_take_turns() {
    let mut partition = filled(300);
    for subscription in 0..3 {
        partition.subscribe(consumer(1, subscription), 1000, 1 << 30);
    }
    let order: Vec<u32> = drain(&mut partition, NOW)
        .iter()
        .map(|dispatch| dispatch.consumer.subscription)
        .collect();
    assert_eq!(order.len(), 300);
    for turn in order.chunks(3) {
        assert_eq!(turn, [0, 1, 2]);
    }
}

#[test]
fn a_blocked_consumer_is_asked_once_and_blocks_nobody() {
    let mut partition = filled(10);
    for subscription in 0..100 {
        partition.subscribe(consumer(1, subscription), 1000, 1 << 30);
    }
    let mut asked = 0;
    for _ in 0..5 {
        let dispatch = partition
            .next_delivery(NOW, &mut |id| {
                asked += 1;
                id.subscription != 60
            })
            .unwrap();
        assert_eq!(dispatch.consumer.subscription, 60);
    }
    // All once, then the free one again and again within the same millisecond.
    assert_eq!(asked, 60 + 1 + 39 + 1 + 3);
    let mut asked = Vec::new();
    let none = partition.next_delivery(NOW, &mut |id| {
        asked.push(id);
        true
    });
    assert_eq!(none, None);
    asked.sort();
    asked.dedup();
    assert_eq!(asked.len(), 100);
    // Free again within the same millisecond: found.
    assert!(deliver(&mut partition, NOW).is_some());
}

#[test]
fn a_lease_ends_on_time_and_counts_an_attempt_when_applied() {
    let mut partition = filled(2);
    partition.subscribe(consumer(1, 1), 10, 10_000);
    drain(&mut partition, NOW);
    assert_eq!(partition.next_deadline_ms(), Some(NOW + LEASE_MS));
    let mut ended = Vec::new();
    partition.expire(NOW + LEASE_MS - 1, &mut ended);
    assert!(ended.is_empty());
    partition.expire(NOW + LEASE_MS, &mut ended);
    assert_eq!(ended, [(0, 1), (1, 1)]);
    // Nobody's until the end is applied.
    assert_eq!(deliver(&mut partition, NOW + LEASE_MS), None);
    assert_eq!(partition.begin_settle(1, 0, 1), Err(SettleRefusal::Stale));
    // And yet held by nobody.
    let counts = partition.counts(NOW);
    assert_eq!((counts.ready, counts.leased), (2, 0));
    assert_eq!(partition.next_deadline_ms(), None);
    partition.apply_lease_ended(EXPIRED, &ended);
    let again = drain(&mut partition, NOW + LEASE_MS);
    assert_eq!(offsets(&again), [0, 1]);
    assert!(again.iter().all(|d| d.attempt == 2 && d.redelivered));
    assert_conserved(&partition);
}

#[test]
fn ending_many_leases_is_split_and_the_deadline_stays_due() {
    let mut partition = filled(20_000);
    partition.apply_mark(1 << 20);
    partition.open_mark(1 << 20);
    partition.subscribe(consumer(1, 1), u32::MAX, u64::MAX);
    assert_eq!(drain(&mut partition, NOW).len(), 20_000);
    let end = NOW + LEASE_MS;
    let mut all = 0;
    let mut calls = 0;
    while partition.next_deadline_ms().is_some_and(|due| due <= end) {
        let mut ended = Vec::new();
        partition.expire(end, &mut ended);
        all += ended.len();
        calls += 1;
    }
    assert_eq!((all, calls), (20_000, 3));
}

#[test]
fn a_delayed_record_waits_for_its_time_behind_the_gate() {
    let mut partition = Partition::new(spec());
    partition.apply_append(
        NOW,
        &[record(1, NOW + 500), record(1, 0), record(1, NOW + 10)],
    );
    partition.subscribe(consumer(1, 1), 10, 10_000);
    assert_eq!(partition.next_deadline_ms(), None);
    partition.open_delivery(3);
    assert_eq!(partition.next_deadline_ms(), Some(NOW + 10));
    assert_eq!(partition.counts(NOW).delayed, 2);
    assert_eq!(offsets(&drain(&mut partition, NOW + 9)), [1]);
    assert_eq!(offsets(&drain(&mut partition, NOW + 10)), [2]);
    assert_eq!(offsets(&drain(&mut partition, NOW + 499)), [0u64; 0]);
    let first = deliver(&mut partition, NOW + 500).unwrap();
    assert_eq!((first.offset, first.redelivered), (0, false));
    assert_conserved(&partition);
}

#[test]
fn a_delayed_release_waits_and_due_records_come_ready_without_consumers() {
    let mut partition = filled(1);
    partition.subscribe(consumer(1, 1), 10, 10_000);
    drain(&mut partition, NOW);
    settle(&mut partition, 1, SettleKind::Release, NOW + 50, &[(0, 1)]);
    assert_eq!(partition.counts(NOW).delayed, 1);
    assert_eq!(deliver(&mut partition, NOW + 49), None);
    partition.unsubscribe(consumer(1, 1), &mut Vec::new());
    partition.expire(NOW + 50, &mut Vec::new());
    assert_eq!(partition.counts(NOW).ready, 1);
    assert_eq!(partition.next_deadline_ms(), None);
}

#[test]
fn an_undone_dispatch_leaves_no_trace() {
    let mut partition = filled(2);
    let id = consumer(1, 1);
    partition.subscribe(id, 2, 150);
    let first = deliver(&mut partition, NOW).unwrap();
    let second = deliver(&mut partition, NOW).unwrap();
    partition.undo_dispatch(first.offset, first.attempt);
    partition.undo_dispatch(second.offset, second.attempt);
    partition.undo_dispatch(second.offset, second.attempt);
    let later = NOW + 1000;
    assert_eq!(deliver(&mut partition, later), Some(first));
    assert_eq!(deliver(&mut partition, later), Some(second));
    assert_eq!(deliver(&mut partition, later), None);
    let mut ended = Vec::new();
    partition.expire(later + LEASE_MS - 1, &mut ended);
    assert!(ended.is_empty());
    partition.expire(later + LEASE_MS, &mut ended);
    partition.apply_lease_ended(EXPIRED, &ended);
    // The same for a second attempt.
    let again = deliver(&mut partition, later + LEASE_MS).unwrap();
    assert_eq!((again.offset, again.attempt), (0, 2));
    partition.undo_dispatch(0, 2);
    assert_eq!(partition.counts(NOW).redelivered, 0);
    let rest = drain(&mut partition, later + LEASE_MS);
    assert_eq!(offsets(&rest), [1, 0]);
    assert_eq!(rest[1].attempt, 2);
    assert_conserved(&partition);
}

#[test]
fn a_record_that_is_undone_again_and_again_holds_up_no_other() {
    let mut partition = filled(10);
    partition.subscribe(consumer(1, 1), 100, 10_000);
    let mut delivered = Vec::new();
    while delivered.len() < 9 {
        let dispatch = deliver(&mut partition, NOW).unwrap();
        match dispatch.offset {
            0 => partition.undo_dispatch(0, dispatch.attempt),
            offset => delivered.push(offset),
        }
    }
    assert_eq!(delivered, (1..10).collect::<Vec<_>>());
}

#[test]
fn unsubscribe_and_disconnect_give_back_what_is_not_under_settle() {
    let mut partition = filled(9);
    for (connection, subscription) in [(1, 1), (1, 2), (2, 1)] {
        partition.subscribe(consumer(connection, subscription), 3, 10_000);
    }
    let dispatches = drain(&mut partition, NOW);
    assert_eq!(dispatches.len(), 9);
    partition.begin_settle(1, 0, 1).unwrap();
    let mut ended = Vec::new();
    assert!(partition.unsubscribe(consumer(1, 1), &mut ended));
    assert_eq!(ended, [(3, 1), (6, 1)]);
    assert!(!partition.unsubscribe(consumer(1, 1), &mut ended));
    assert_eq!(ended.len(), 2);
    partition.apply_lease_ended(LeaseEndCause::Unsubscribed, &ended);
    ended.clear();
    partition.disconnect(1, &mut ended);
    assert_eq!(ended, [(1, 1), (4, 1), (7, 1)]);
    partition.disconnect(9, &mut ended);
    partition.apply_lease_ended(LeaseEndCause::Disconnected, &ended);
    assert_eq!(
        partition.apply_settle(SettleKind::Acknowledge, 0, &[(0, 1)]),
        1
    );
    let counts = partition.counts(NOW);
    assert_eq!(
        (counts.ready, counts.leased, counts.acknowledged),
        (5, 3, 1)
    );
    assert_eq!(counts.consumers, 1);
    assert_conserved(&partition);
}

#[test]
fn a_delivery_above_the_opened_mark_waits_for_it() {
    let mut partition = filled(3000);
    partition.subscribe(consumer(1, 1), u32::MAX, u64::MAX);
    assert_eq!(partition.wants_mark(), None);
    let first = drain(&mut partition, NOW);
    assert_eq!(first.len(), 1024);
    let mark = partition.wants_mark().unwrap();
    assert!(mark > 1024);
    assert_eq!(partition.wants_mark(), None);
    partition.apply_mark(mark);
    assert_eq!(deliver(&mut partition, NOW), None);
    partition.open_mark(mark);
    let second = drain(&mut partition, NOW);
    assert_eq!(second.len() as u64, mark.min(3000) - 1024);
    assert!(second.iter().all(|dispatch| !dispatch.redelivered));
}

#[test]
fn a_due_record_far_above_the_mark_gets_one() {
    let mut partition = Partition::new(spec());
    partition.apply_append(NOW, &vec![record(1, NOW + 9999); 5000]);
    partition.apply_append(NOW, &[record(1, NOW + 1)]);
    partition.open_delivery(5001);
    partition.subscribe(consumer(1, 1), 10, 10_000);
    assert_eq!(deliver(&mut partition, NOW + 1), None);
    let mark = partition.wants_mark().unwrap();
    assert!(mark > 5000);
    partition.apply_mark(mark);
    partition.open_mark(mark);
    assert_eq!(deliver(&mut partition, NOW + 1).unwrap().offset, 5000);
}

#[test]
fn the_age_of_the_oldest_ready_record_is_known() {
    let mut partition = Partition::new(spec());
    partition.apply_append(NOW, &[record(1, 0)]);
    partition.apply_append(NOW + 1000, &[record(1, 0)]);
    assert_eq!(partition.counts(NOW + 5000).oldest_ready_age_ms, 0);
    partition.open_delivery(2);
    assert_eq!(partition.counts(NOW + 5000).oldest_ready_age_ms, 5000);
    partition.subscribe(consumer(1, 1), 1, 10_000);
    drain(&mut partition, NOW + 5000);
    assert_eq!(partition.counts(NOW + 5000).oldest_ready_age_ms, 4000);
    settle(&mut partition, 1, SettleKind::Release, 0, &[(0, 1)]);
    assert_eq!(partition.counts(NOW + 5000).oldest_ready_age_ms, 5000);
}

#[test]
fn peek_shows_unsettled_records_and_disturbs_nothing() {
    let mut partition = filled(4);
    partition.apply_append(NOW, &[record(5, 0), record(5, NOW + 99)]);
    partition.open_delivery(4);
    partition.subscribe(consumer(1, 1), 2, 10_000);
    drain(&mut partition, NOW);
    settle(&mut partition, 1, SettleKind::Acknowledge, 0, &[(0, 1)]);
    let mut seen = Vec::new();
    partition.peek(0, 100, &mut |offset, state, _, _, _| {
        seen.push((offset, state))
    });
    use RecordState::{Gated, Leased, Ready};
    assert_eq!(
        seen,
        [(1, Leased), (2, Ready), (3, Ready), (4, Gated), (5, Gated)]
    );
    seen.clear();
    partition.peek(2, 2, &mut |offset, state, _, _, _| {
        seen.push((offset, state))
    });
    assert_eq!(seen, [(2, Ready), (3, Ready)]);
    partition.add_credit(consumer(1, 1), 1, 1);
    assert_eq!(deliver(&mut partition, NOW).unwrap().offset, 2);
}

#[test]
fn leftovers_of_leases_and_due_times_stay_bounded() {
    let mut partition = Partition::new(spec());
    partition.apply_mark(1 << 30);
    partition.open_mark(1 << 30);
    let id = consumer(1, 1);
    partition.subscribe(id, 2, u64::MAX);
    // One record is held while 100 000 others pass.
    publish(&mut partition, 1);
    deliver(&mut partition, NOW);
    for _ in 0..100_000u32 {
        publish(&mut partition, 1);
        let dispatch = deliver(&mut partition, NOW).unwrap();
        settle(
            &mut partition,
            1,
            SettleKind::Acknowledge,
            0,
            &[(dispatch.offset, 1)],
        );
        partition.add_credit(id, 1, 0);
    }
    assert!(partition.leases.len() < 3000);
    // Replay settles delayed records that never came due there.
    for at in 0..10_000u64 {
        let first = partition.apply_append(NOW, &[record(1, NOW + 1 + at)]);
        partition.open_delivery(first + 1);
        partition.apply_settle(SettleKind::Acknowledge, 0, &[(first, 1)]);
    }
    assert!(partition.delayed.len() < 300);
    let before = partition.delayed.len();
    for at in 0..100u64 {
        let first = partition.apply_append(NOW, &[record(1, NOW + 1 + at)]);
        partition.apply_settle(SettleKind::Acknowledge, 0, &[(first, 1)]);
    }
    assert_eq!(partition.delayed.len(), before);
    assert_conserved(&partition);
}
