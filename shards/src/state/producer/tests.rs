//! Producers against a model that forgets nothing.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::state::reader::Reader;

fn stamp(id: u64, epoch: u32, sequence: u64) -> ProducerStamp {
    ProducerStamp {
        id,
        epoch,
        sequence,
    }
}

fn reopened(producers: &Producers) -> Producers {
    let mut bytes = Vec::new();
    producers.capture(&mut bytes);
    let mut reader = Reader::new(&bytes);
    let restored = Producers::restore(&mut reader).unwrap();
    reader.end().unwrap();
    restored
}

#[test]
fn a_publish_sent_again_is_answered_with_the_place_of_the_first() {
    let mut producers = Producers::default();
    assert_eq!(producers.judge(&stamp(7, 1, 0), 5), Verdict::New);
    producers.store(&stamp(7, 1, 0), 5, 100, 3);
    let stored = Verdict::Stored {
        first: 100,
        count: 3,
    };
    assert_eq!(producers.judge(&stamp(7, 1, 0), 5), stored);
    assert_eq!(
        producers.judge(&stamp(8, 1, 0), 5),
        Verdict::New,
        "another producer"
    );
    // A gap, and what comes into it late.
    producers.store(&stamp(7, 1, 4), 5, 103, 1);
    assert_eq!(producers.judge(&stamp(7, 1, 2), 5), Verdict::New);
    producers.store(&stamp(7, 1, 2), 5, 104, 1);
    assert_eq!(producers.judge(&stamp(7, 1, 0), 5), stored);
}

#[test]
fn an_older_epoch_is_fenced_and_a_newer_one_begins_anew() {
    let mut producers = Producers::default();
    producers.store(&stamp(7, 2, 9), 5, 1, 1);
    assert_eq!(
        producers.judge(&stamp(7, 1, 9), 5),
        Verdict::Fenced { epoch: 2 }
    );
    assert_eq!(producers.judge(&stamp(7, 3, 9), 5), Verdict::New);
    producers.store(&stamp(7, 3, 9), 5, 2, 1);
    assert_eq!(
        producers.judge(&stamp(7, 2, 9), 5),
        Verdict::Fenced { epoch: 3 }
    );
}

#[test]
fn what_is_older_than_the_window_is_not_known() {
    let mut producers = Producers::default();
    for sequence in 0..=WINDOW as u64 {
        producers.store(&stamp(7, 1, sequence), 5, sequence, 1);
    }
    assert_eq!(producers.judge(&stamp(7, 1, 0), 5), Verdict::Forgotten);
    let stored = Verdict::Stored { first: 1, count: 1 };
    assert_eq!(producers.judge(&stamp(7, 1, 1), 5), stored);
}

#[test]
fn silence_ends_a_producer_and_a_new_one_takes_the_place_of_the_oldest() {
    let mut producers = Producers::default();
    producers.store(&stamp(7, 4, 1), 5, 1, 1);
    let late = 5 + EXPIRES_MS;
    assert!(matches!(
        producers.judge(&stamp(7, 4, 1), late),
        Verdict::Stored { .. }
    ));
    assert_eq!(producers.judge(&stamp(7, 1, 1), late + 1), Verdict::New);
    producers.touch(7, 6);
    assert!(matches!(
        producers.judge(&stamp(7, 4, 1), late + 1),
        Verdict::Stored { .. }
    ));
    for id in 0..MOST as u64 {
        producers.store(&stamp(1_000 + id, 1, 0), 10 + id, id, 1);
    }
    assert_eq!(
        producers.judge(&stamp(7, 4, 1), 5),
        Verdict::New,
        "it was the oldest"
    );
    assert!(matches!(
        producers.judge(&stamp(1_000, 1, 0), 11),
        Verdict::Stored { .. }
    ));
    assert_eq!(producers.producers.len(), MOST);
}

#[test]
fn captured_ones_that_are_cut_out_of_order_or_too_many_are_refused() {
    let mut producers = Producers::default();
    producers.store(&stamp(7, 2, 9), 5, 1, 1);
    producers.store(&stamp(7, 2, 11), 5, 2, 1);
    producers.store(&stamp(9, 1, 0), 6, 3, 2);
    let mut bytes = Vec::new();
    producers.capture(&mut bytes);
    for cut in 0..bytes.len() {
        let error = Producers::restore(&mut Reader::new(&bytes[..cut])).unwrap_err();
        assert_eq!(error, ProducersError::Truncated, "{cut}");
    }
    let refused = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        Producers::restore(&mut Reader::new(&bytes)).err()
    };
    // The first id, the first sequence, the number of producers, of numbers.
    for (at, value) in [(4, 9), (33, 12), (1, 2), (32, 33)] {
        assert!(refused(at, value).is_some(), "{at}");
    }
}

/// Epoch, last stamp, and all its numbers with their places.
type Known = (u32, u64, BTreeMap<u64, (u64, u32)>);

#[derive(Debug, Clone)]
enum Op {
    /// Producer, epoch, how far below its highest number (0: the next one), records.
    Publish(u64, u32, u64, u32),
    Wait(u64),
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (1..5_u64, 0..3_u32, 0..40_u64, 1..4_u32)
            .prop_map(|(id, epoch, back, count)| Op::Publish(id, epoch, back, count)),
        1 => (0..EXPIRES_MS).prop_map(Op::Wait),
        1 => Just(Op::Reopen),
    ]
}

proptest! {
    /// Against everything that was ever stored: nothing is stored twice within an
    /// epoch of a producer that did not expire, what is said of a stored one is
    /// true, and older epochs store nothing.
    #[test]
    fn nothing_is_stored_twice(ops in proptest::collection::vec(op(), 1..400)) {
        let mut producers = Producers::default();
        // By producer.
        let mut model: BTreeMap<u64, Known> = BTreeMap::new();
        let (mut now, mut next) = (1_000, 0);
        for op in ops {
            match op {
                Op::Wait(ms) => now += ms,
                Op::Reopen => {
                    let again = reopened(&producers);
                    prop_assert_eq!(&again, &producers);
                    producers = again;
                }
                Op::Publish(id, epoch, back, count) => {
                    let known = model
                        .get(&id)
                        .filter(|(_, last, _)| last + EXPIRES_MS >= now)
                        .cloned();
                    let highest = known
                        .as_ref()
                        .and_then(|(_, _, all)| all.last_key_value())
                        .map_or(0, |(number, _)| *number);
                    let sequence = match back {
                        0 => highest + 1,
                        back => highest.saturating_sub(back),
                    };
                    let stamp = stamp(id, epoch, sequence);
                    let verdict = producers.judge(&stamp, now);
                    let (newest, _, all) = known.unwrap_or((epoch, now, BTreeMap::new()));
                    match verdict {
                        Verdict::New => {
                            prop_assert!(epoch >= newest);
                            prop_assert!(epoch > newest || !all.contains_key(&sequence));
                            producers.store(&stamp, now, next, count);
                            let mut all = if epoch == newest { all } else { BTreeMap::new() };
                            all.insert(sequence, (next, count));
                            model.insert(id, (epoch, now, all));
                            next += u64::from(count);
                        }
                        Verdict::Stored { first, count } => {
                            prop_assert_eq!(epoch, newest);
                            prop_assert_eq!(all.get(&sequence), Some(&(first, count)));
                            producers.touch(id, now);
                            model.insert(id, (epoch, now, all));
                        }
                        Verdict::Fenced { epoch: by } => {
                            prop_assert!(epoch < newest);
                            prop_assert_eq!(by, newest);
                        }
                        Verdict::Forgotten => {
                            prop_assert_eq!(epoch, newest);
                            let above = all.keys().filter(|number| **number > sequence).count();
                            prop_assert!(above >= WINDOW);
                        }
                    }
                }
            }
            let numbers: usize = producers.producers.values().map(|one| one.stored.len()).sum();
            prop_assert_eq!(numbers, producers.numbers);
        }
    }
}
