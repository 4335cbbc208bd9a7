//! Histories that are in order, and ones that were bent so that they are not.

use crate::{Ended, History, Key, Outcome, Seen, Settled};

const KEY: Key = (7, 0);

/// Record `id` at `offset`, confirmed in generation 1 between `sent_us` and `at_us`.
fn published(history: &mut History, id: u64, offset: u64, sent_us: u64, at_us: u64) {
    history.publish(KEY, id, 1, sent_us);
    history.answered(KEY, id, confirmed(1, offset, false, at_us));
}

fn confirmed(generation: u32, first_offset: u64, durable: bool, at_us: u64) -> Outcome {
    Outcome::Confirmed {
        generation,
        first_offset,
        durable,
        at_us,
    }
}

fn seen(id: u64, generation: u32, offset: u64, not_before_us: u64, at_us: u64) -> Seen {
    Seen {
        id,
        generation,
        offset,
        durable: false,
        not_before_us,
        at_us,
    }
}

fn settled(generation: u32, offset: u64, durable: bool, sent_us: u64, at_us: u64) -> Settled {
    Settled {
        generation,
        offset,
        durable,
        sent_us,
        at_us,
    }
}

fn refused(history: &History, words: &str) {
    let violation = history.check().expect_err(words);
    assert!(violation.what.contains(words), "{violation}");
}

const NO_ORDER: &str = "no order explains";

#[test]
fn publishes_that_overlap_take_offsets_in_any_order() {
    let mut history = History::new();
    published(&mut history, 1, 1, 0, 100);
    published(&mut history, 2, 0, 10, 90);
    history.check().unwrap();
}

#[test]
fn a_publish_behind_an_answered_one_takes_no_offset_in_front_of_it() {
    let mut history = History::new();
    published(&mut history, 1, 1, 0, 10);
    published(&mut history, 2, 0, 20, 30);
    refused(&history, NO_ORDER);
}

#[test]
fn two_records_have_two_offsets_and_none_is_left_out() {
    let mut twice = History::new();
    published(&mut twice, 1, 0, 0, 10);
    published(&mut twice, 2, 0, 5, 15);
    refused(&twice, NO_ORDER);
    let mut hole = History::new();
    published(&mut hole, 1, 0, 0, 10);
    published(&mut hole, 2, 2, 5, 15);
    refused(&hole, NO_ORDER);
}

#[test]
fn an_unknown_publish_may_have_happened_or_happen_late_and_once() {
    let mut history = History::new();
    history.publish(KEY, 1, 1, 0);
    published(&mut history, 2, 0, 10, 20);
    history.check().unwrap();
    // Seen: it took effect after record 2 although it was sent before.
    history.seen(KEY, seen(1, 1, 1, 500, 510));
    published(&mut history, 3, 2, 600, 610);
    let checked = history.check().unwrap();
    assert_eq!((checked.unknown, checked.unknown_seen), (1, 1));
    // It cannot take a place that another record has, nor one behind what was confirmed
    // after it was seen.
    let mut other = history.clone();
    other.seen(KEY, seen(1, 1, 3, 700, 710));
    refused(&other, "begins at");
}

#[test]
fn a_publish_that_failed_never_happens() {
    let mut history = History::new();
    history.publish(KEY, 1, 1, 0);
    history.answered(KEY, 1, Outcome::Failed);
    history.check().unwrap();
    history.seen(KEY, seen(1, 1, 0, 10, 20));
    refused(&history, "failed");
    let mut phantom = History::new();
    phantom.seen(KEY, seen(4, 1, 0, 10, 20));
    refused(&phantom, "never published");
}

#[test]
fn a_record_is_not_delivered_before_it_can_have_been_published() {
    let mut history = History::new();
    history.publish(KEY, 1, 1, 100);
    history.seen(KEY, seen(1, 1, 0, 0, 50));
    refused(&history, NO_ORDER);
}

#[test]
fn a_record_does_not_come_back_once_its_settle_was_confirmed() {
    let mut history = History::new();
    published(&mut history, 1, 0, 0, 10);
    history.seen(KEY, seen(1, 1, 0, 20, 30));
    history.settled(KEY, settled(1, 0, false, 40, 60));
    // On its way while the settle was.
    history.seen(KEY, seen(1, 1, 0, 50, 200));
    history.check().unwrap();
    let mut back = history.clone();
    back.seen(KEY, seen(1, 1, 0, 61, 200));
    refused(&back, NO_ORDER);
    let mut twice = history;
    twice.settled(KEY, settled(1, 0, false, 300, 310));
    refused(&twice, NO_ORDER);
}

#[test]
fn only_a_reported_loss_takes_what_was_confirmed() {
    let ended = Ended {
        generation: 1,
        written_next: 2,
    };
    let mut history = History::new();
    published(&mut history, 1, 0, 0, 10);
    published(&mut history, 2, 1, 20, 30);
    history.seen(KEY, seen(1, 1, 0, 40, 50));
    history.ended(KEY, ended);
    refused(&history, "is lost");
    // Reported: but then generation 2 begins there.
    history.losses(KEY, &[(1, 1)]);
    refused(&history, "the server says");
    history.ended(
        KEY,
        Ended {
            generation: 2,
            written_next: 1,
        },
    );
    assert_eq!(history.check().unwrap().cuts, 1);
    // Its offset is free again.
    history.publish(KEY, 3, 1, 100);
    history.answered(KEY, 3, confirmed(2, 1, false, 110));
    history.seen(KEY, seen(3, 2, 1, 110, 120));
    let again = Ended {
        generation: 2,
        written_next: 2,
    };
    history.ended(KEY, again);
    history.check().unwrap();
    // What is there is not reported lost, and what is reported lost is not there.
    let mut there = history.clone();
    there.seen(KEY, seen(2, 2, 1, 130, 140));
    refused(&there, NO_ORDER);
    // A generation that ended confirms nothing once the next one did.
    let mut late = history;
    late.publish(KEY, 4, 1, 200);
    late.answered(KEY, 4, confirmed(1, 1, false, 210));
    refused(&late, NO_ORDER);
}

#[test]
fn what_was_promised_at_durable_is_in_no_loss_report() {
    let mut history = History::new();
    history.publish(KEY, 1, 2, 0);
    history.answered(KEY, 1, confirmed(1, 0, true, 10));
    history.losses(KEY, &[(1, 1)]);
    refused(&history, NO_ORDER);
    let mut barrier = History::new();
    published(&mut barrier, 1, 0, 0, 10);
    barrier.barrier(KEY, 1, 1, 20, 30);
    barrier.check().unwrap();
    barrier.losses(KEY, &[(1, 0)]);
    refused(&barrier, NO_ORDER);
}

#[test]
fn a_barrier_covers_what_was_confirmed_before_it() {
    let mut history = History::new();
    published(&mut history, 1, 0, 0, 10);
    published(&mut history, 2, 1, 5, 25);
    history.barrier(KEY, 1, 1, 20, 30);
    // Record 2 may have come behind it.
    history.check().unwrap();
    history.barrier(KEY, 1, 1, 40, 50);
    refused(&history, NO_ORDER);
}

#[test]
fn settles_at_written_may_go_with_a_generation_and_those_at_durable_stay() {
    let history = |durable| {
        let mut history = History::new();
        published(&mut history, 1, 0, 0, 10);
        history.seen(KEY, seen(1, 1, 0, 20, 30));
        history.settled(KEY, settled(1, 0, durable, 40, 50));
        history.losses(KEY, &[(1, 1)]);
        history.seen(KEY, seen(1, 2, 0, 60, 70));
        history
    };
    history(false).check().unwrap();
    refused(&history(true), NO_ORDER);
}

#[test]
fn a_publish_that_is_sent_again_after_a_recovery_is_where_it_was() {
    let mut history = History::new();
    published(&mut history, 1, 0, 0, 10);
    // Published in generation 1, which ended before it was confirmed.
    history.publish(KEY, 2, 1, 20);
    history.answered(KEY, 2, confirmed(2, 1, false, 300));
    history.losses(KEY, &[(1, 2)]);
    history.publish(KEY, 3, 1, 310);
    history.answered(KEY, 3, confirmed(2, 2, false, 320));
    history.check().unwrap();
    // It is not where another one is.
    history.answered(KEY, 2, confirmed(2, 0, false, 300));
    refused(&history, NO_ORDER);
}

#[test]
fn offsets_that_nobody_saw_are_missing_only_where_a_report_says_so() {
    let mut history = History::new();
    published(&mut history, 1, 0, 0, 10);
    // Record 2 took offset 1, and nobody ever saw it.
    history.publish(KEY, 2, 1, 5);
    published(&mut history, 3, 2, 20, 30);
    refused(&history, NO_ORDER);
    // Not so while somebody may see it yet; but an offset is never given twice.
    history.check_so_far().unwrap();
    let mut twice = history.clone();
    published(&mut twice, 4, 0, 40, 50);
    twice.check_so_far().unwrap_err();
    history.losses(KEY, &[(1, 1)]);
    history.check().unwrap();
}

/// splitmix64.
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *seed;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Thousands of operations of a queue that is one, with overlaps and unknown outcomes.
fn long(seed: u64, records: u64) -> History {
    let mut seed = seed;
    let mut history = History::new();
    for offset in 0..records {
        // Took effect at `at`; what is told begins before and ends behind.
        let at = 1_000 + 100 * offset;
        let (before, behind) = (next(&mut seed) % 900, next(&mut seed) % 2_000);
        history.publish(KEY, offset, 1, at - before);
        if !next(&mut seed).is_multiple_of(8) {
            let answer = confirmed(1, offset, !next(&mut seed).is_multiple_of(2), at + behind);
            history.answered(KEY, offset, answer);
        }
        let delivered = at + 50 + next(&mut seed) % 3_000;
        history.seen(KEY, seen(offset, 1, offset, at, delivered));
        let settle = delivered + next(&mut seed) % 3_000;
        let told = settle + 1 + next(&mut seed) % 2_000;
        history.settled(KEY, settled(1, offset, true, settle, told));
    }
    let ended = Ended {
        generation: 1,
        written_next: records,
    };
    history.ended(KEY, ended);
    history
}

#[test]
fn thousands_of_operations_are_checked_and_one_that_is_wrong_is_found() {
    let records = 3_000;
    let checked = long(1, records).check().unwrap();
    assert_eq!(checked.operations, 3 * records);
    assert!(checked.unknown_seen > 100, "{checked:?}");
    for seed in 0..3 {
        let mut seed = seed;
        let record = 100 + next(&mut seed) % (records - 200);
        let mut back = long(seed, records);
        // Long after its settle was told, from somebody who should have known.
        let at = 1_000 + 100 * record + 20_000;
        back.seen(KEY, seen(record, 1, record, at, at + 10));
        refused(&back, NO_ORDER);
        let mut swapped = long(seed, records);
        let part = swapped.parts.get_mut(&KEY).unwrap();
        let of = [record, record + 40];
        part.seen.retain(|seen| !of.contains(&seen.id));
        part.settled.retain(|settled| !of.contains(&settled.offset));
        swapped.answered(
            KEY,
            record,
            confirmed(1, record + 40, false, 100 * record + 3_000),
        );
        let late = 100 * (record + 40) + 3_000;
        swapped.answered(KEY, record + 40, confirmed(1, record, false, late));
        swapped.parts.get_mut(&KEY).unwrap().ended = None;
        refused(&swapped, NO_ORDER);
    }
}
