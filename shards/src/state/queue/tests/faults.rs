//! Faults seen in the field, by number.

use super::*;

#[test]
fn f35_a_dead_client_leaves_exact_counters() {
    let mut partition = filled(5);
    partition.subscribe(consumer(1, 1), 10, 10_000);
    drain(&mut partition, NOW);
    let mut ended = Vec::new();
    partition.disconnect(1, &mut ended);
    partition.apply_lease_ended(LeaseEndCause::Disconnected, &ended);
    let counts = partition.counts(NOW);
    assert_eq!((counts.ready, counts.leased, counts.consumers), (5, 0, 0));
    // The lease times that were left behind end nothing a second time.
    ended.clear();
    partition.expire(NOW + LEASE_MS, &mut ended);
    assert!(ended.is_empty());
    assert_eq!(partition.next_deadline_ms(), None);
}

#[test]
fn f36_credit_does_not_leak_on_redelivery() {
    let mut partition = filled(20);
    partition.subscribe(consumer(1, 1), 10, 1000);
    let mut now = NOW;
    for round in 0..5 {
        let got = drain(&mut partition, now);
        assert_eq!(got.len(), 10, "round {round}");
        now += LEASE_MS;
        let mut ended = Vec::new();
        partition.expire(now, &mut ended);
        partition.apply_lease_ended(EXPIRED, &ended);
    }
    // Nor does it grow when the client grants for lapsed deliveries as well.
    for _ in 0..5 {
        let got = drain(&mut partition, now);
        assert_eq!(got.len(), 10);
        partition.add_credit(consumer(1, 1), 10, 1000);
        let more = drain(&mut partition, now);
        assert_eq!(more.len(), 10);
        now += LEASE_MS;
        let mut ended = Vec::new();
        partition.expire(now, &mut ended);
        assert_eq!(ended.len(), 20);
        partition.apply_lease_ended(EXPIRED, &ended);
    }
}

#[test]
fn f39_a_release_followed_by_a_cancel_gives_the_record_back() {
    let mut partition = filled(1);
    for round in 1..=1000 {
        let id = consumer(1, 1);
        partition.subscribe(id, 1, 1);
        let dispatch = deliver(&mut partition, NOW).unwrap();
        assert_eq!(dispatch.attempt, round);
        partition.begin_settle(1, 0, round).unwrap();
        let mut ended = Vec::new();
        partition.unsubscribe(id, &mut ended);
        assert!(ended.is_empty());
        partition.apply_settle(SettleKind::Release, 0, &[(0, round)]);
        assert_eq!(partition.counts(NOW).ready, 1);
    }
}

#[test]
fn f40_stale_and_foreign_ids_settle_nothing() {
    let mut partition = filled(3);
    partition.subscribe(consumer(1, 1), 2, 10_000);
    partition.subscribe(consumer(2, 1), 1, 10_000);
    let old = drain(&mut partition, NOW);
    let foreign = |dispatch: &Dispatch| 3 - dispatch.consumer.connection;
    for dispatch in &old {
        assert_eq!(
            partition.begin_settle(foreign(dispatch), dispatch.offset, dispatch.attempt),
            Err(SettleRefusal::Stale)
        );
    }
    // The leader restarts; one record's attempt had ended before.
    let mut restarted = Partition::new(spec());
    restarted.apply_append(NOW, &[record(100, 0); 3]);
    restarted.apply_lease_ended(EXPIRED, &[(0, 1)]);
    restarted.finish_replay();
    restarted.open_delivery(3);
    for dispatch in &old {
        for connection in [1, 2] {
            let settle = restarted.begin_settle(connection, dispatch.offset, dispatch.attempt);
            assert_eq!(settle, Err(SettleRefusal::Stale));
        }
    }
    assert_eq!(
        restarted.apply_settle(SettleKind::Acknowledge, 0, &[(0, 1)]),
        0
    );
    // Leased anew to another connection: the old one's id is foreign.
    restarted.subscribe(consumer(9, 1), 10, 10_000);
    assert_eq!(drain(&mut restarted, NOW).len(), 3);
    for dispatch in &old {
        let connection = dispatch.consumer.connection;
        let settle = restarted.begin_settle(connection, dispatch.offset, dispatch.attempt);
        assert_eq!(settle, Err(SettleRefusal::Stale));
    }
    assert_eq!(restarted.counts(NOW).leased, 3);
    // A place in the table taken over by a new consumer is not the old one.
    let mut partition = filled(1);
    partition.subscribe(consumer(1, 1), 1, 10_000);
    drain(&mut partition, NOW);
    partition.unsubscribe(consumer(1, 1), &mut Vec::new());
    partition.subscribe(consumer(1, 1), 1, 10_000);
    assert_eq!(partition.begin_settle(1, 0, 1), Err(SettleRefusal::Stale));
}

#[test]
fn f47_a_settle_that_races_expiry_stands_or_is_refused() {
    for settle_first in [true, false] {
        let mut partition = filled(1);
        partition.subscribe(consumer(1, 1), 1, 10_000);
        drain(&mut partition, NOW);
        let end = NOW + LEASE_MS;
        let mut ended = Vec::new();
        if settle_first {
            partition.begin_settle(1, 0, 1).unwrap();
            assert_eq!(
                partition.begin_settle(1, 0, 1),
                Err(SettleRefusal::InProgress)
            );
            partition.expire(end + 1000, &mut ended);
            assert!(ended.is_empty());
            assert_eq!(deliver(&mut partition, end + 1000), None);
            assert_eq!(
                partition.apply_settle(SettleKind::Acknowledge, 0, &[(0, 1)]),
                1
            );
            assert_eq!(deliver(&mut partition, end + 9999), None);
        } else {
            partition.expire(end, &mut ended);
            assert_eq!(ended, [(0, 1)]);
            assert_eq!(partition.begin_settle(1, 0, 1), Err(SettleRefusal::Stale));
            partition.apply_lease_ended(EXPIRED, &ended);
            let again = deliver(&mut partition, end).unwrap();
            assert_eq!((again.attempt, again.redelivered), (2, true));
            // The first attempt's settle is stale, the second's stands.
            assert_eq!(partition.begin_settle(1, 0, 1), Err(SettleRefusal::Stale));
            partition.begin_settle(1, 0, 2).unwrap();
        }
        assert_conserved(&partition);
    }
}

#[test]
fn f49_records_released_at_once_do_not_hold_up_healthy_ones() {
    let mut partition = filled(1000);
    let id = consumer(1, 1);
    partition.subscribe(id, 10, u64::MAX);
    let mut healthy = 0;
    let mut poisoned = [0u32; 5];
    for _ in 0..2000 {
        let Some(dispatch) = deliver(&mut partition, NOW) else {
            break;
        };
        let ids = [(dispatch.offset, dispatch.attempt)];
        if let Some(count) = poisoned.get_mut(dispatch.offset as usize) {
            *count += 1;
            settle(&mut partition, 1, SettleKind::Release, 0, &ids);
        } else {
            healthy += 1;
            settle(&mut partition, 1, SettleKind::Acknowledge, 0, &ids);
        }
        partition.add_credit(id, 1, 0);
    }
    assert_eq!(healthy, 995);
    // They come in turn among themselves.
    assert!(poisoned.iter().all(|count| (200..=202).contains(count)));
    assert_eq!(release_backoff_ms(1), 0);
    assert_eq!(release_backoff_ms(5), 10);
    assert_eq!(release_backoff_ms(u32::MAX), 5120);
}

#[test]
fn f60_f61_delayed_records_come_once_due_and_all_of_them() {
    let mut partition = Partition::new(spec());
    partition.apply_mark(1 << 20);
    let records: Vec<_> = (0..10_000u64)
        .map(|at| record(1, NOW + 60_000 + at % 7))
        .collect();
    partition.apply_append(NOW, &records);
    partition.finish_replay();
    partition.open_delivery(10_000);
    partition.subscribe(consumer(1, 1), u32::MAX, u64::MAX);
    assert!(drain(&mut partition, NOW + 59_999).is_empty());
    let mut got = offsets(&drain(&mut partition, NOW + 90_000));
    got.sort_unstable();
    assert_eq!(got, (0..10_000).collect::<Vec<_>>());
}
