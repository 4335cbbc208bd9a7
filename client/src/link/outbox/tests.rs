//! What waits, in which order it leaves, and what is held back.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::*;

const KEY: PublishKey = PublishKey {
    queue_id: 1,
    partition: 0,
    durable: false,
    deadline: Duration::from_secs(1),
    numbers: None,
};

fn waiter(bytes: &[u8], deadline: Instant) -> PublishWaiter {
    let (answer, _) = oneshot::channel();
    PublishWaiter {
        answer: Some(answer),
        count: 1,
        len: bytes.len(),
        deadline,
        held: Some((
            Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap(),
            Arc::new(crate::places::Lane::default()).enter(1).unwrap(),
        )),
    }
}

fn push(outbox: &mut Outbox, key: PublishKey, bytes: &[u8]) {
    outbox.push(key, bytes, waiter(bytes, Instant::now()), false);
}

fn frames(outbox: &mut Outbox, window: usize) -> Vec<(bool, Vec<u8>, u32)> {
    std::iter::from_fn(|| match outbox.next(window, 0) {
        NextPublish::Frame(f) => {
            assert_eq!(f.waiters.len() as u32, f.count);
            Some((true, f.records, f.count))
        }
        NextPublish::NeverFits(f) => Some((false, f.records, f.count)),
        NextPublish::Nothing => None,
    })
    .collect()
}

#[test]
fn waiting_records_of_a_partition_leave_in_one_frame() {
    let mut outbox = Outbox::default();
    let other = PublishKey {
        partition: 1,
        ..KEY
    };
    push(&mut outbox, KEY, b"a");
    push(&mut outbox, other, b"x");
    push(&mut outbox, KEY, b"b");
    assert_eq!(
        frames(&mut outbox, 1 << 20),
        [(true, b"ab".to_vec(), 2), (true, b"x".to_vec(), 1)]
    );
    push(&mut outbox, KEY, b"c");
    assert_eq!(frames(&mut outbox, 1 << 20), [(true, b"c".to_vec(), 1)]);
}

#[test]
fn a_record_with_other_terms_never_overtakes() {
    let mut outbox = Outbox::default();
    let durable = PublishKey {
        durable: true,
        ..KEY
    };
    push(&mut outbox, KEY, b"a");
    push(&mut outbox, durable, b"b");
    push(&mut outbox, KEY, b"c");
    let order: Vec<_> = frames(&mut outbox, 1 << 20)
        .into_iter()
        .map(|f| f.1)
        .collect();
    assert_eq!(order, [b"a".to_vec(), b"b".to_vec(), b"c".to_vec()]);
}

#[test]
fn an_explicit_batch_keeps_its_place_and_its_own_frame() {
    let mut outbox = Outbox::default();
    push(&mut outbox, KEY, b"a");
    outbox.push(KEY, b"BB", waiter(b"BB", Instant::now()), true);
    push(&mut outbox, KEY, b"c");
    let order: Vec<_> = frames(&mut outbox, 1 << 20)
        .into_iter()
        .map(|f| f.1)
        .collect();
    assert_eq!(order, [b"a".to_vec(), b"BB".to_vec(), b"c".to_vec()]);
}

#[test]
fn a_frame_larger_than_the_window_is_split_and_a_record_larger_than_it_is_handed_back() {
    let mut outbox = Outbox::default();
    let window = BODY_OVERHEAD_BYTES + 3;
    for bytes in [&b"aa"[..], b"b", b"cc", b"dddd", b"e"] {
        push(&mut outbox, KEY, bytes);
    }
    assert_eq!(
        frames(&mut outbox, window),
        [
            (true, b"aab".to_vec(), 2),
            (true, b"cc".to_vec(), 1),
            (false, b"dddd".to_vec(), 1),
            (true, b"e".to_vec(), 1)
        ]
    );
}

#[test]
fn nothing_leaves_while_the_window_is_in_use() {
    let mut outbox = Outbox::default();
    push(&mut outbox, KEY, b"a");
    assert!(matches!(outbox.next(1000, 990), NextPublish::Nothing));
    assert!(matches!(outbox.next(1000, 0), NextPublish::Frame(_)));
    assert!(outbox.is_empty());
}

#[test]
fn expired_records_leave_the_frame_and_the_rest_keeps_its_bytes() {
    let mut outbox = Outbox::default();
    let now = Instant::now();
    let later = now + Duration::from_secs(5);
    outbox.push(KEY, b"old", waiter(b"old", now), false);
    outbox.push(KEY, b"new", waiter(b"new", later), false);
    let mut expired = Vec::new();
    outbox.expire(now, &mut expired);
    assert_eq!(expired.len(), 1);
    assert!(expired[0].1.is_none(), "it never left");
    assert_eq!(frames(&mut outbox, 1000), [(true, b"new".to_vec(), 1)]);
}

fn leave(outbox: &mut Outbox) -> QueuedPublish {
    match outbox.next(1 << 20, 0) {
        NextPublish::Frame(frame) => frame,
        other => panic!("{other:?}"),
    }
}

fn put_off() -> Error {
    Error::failed(crate::error::Reason::Closed)
}

#[test]
fn what_was_put_off_holds_its_partition_back_and_leaves_in_order() {
    let mut outbox = Outbox::default();
    let other = PublishKey {
        partition: 1,
        ..KEY
    };
    push(&mut outbox, KEY, b"a");
    let first = leave(&mut outbox);
    push(&mut outbox, KEY, b"b");
    let second = leave(&mut outbox);
    push(&mut outbox, KEY, b"c");
    push(&mut outbox, other, b"x");
    let now = Instant::now();
    outbox.put_back(8, second, put_off(), now);
    outbox.put_back(7, first, put_off(), now);
    push(&mut outbox, KEY, b"d");
    push(&mut outbox, KEY, b"e");
    assert_eq!(
        frames(&mut outbox, 1 << 20),
        [(true, b"x".to_vec(), 1)],
        "another partition goes on"
    );
    assert!(!outbox.is_empty());
    assert!(!outbox.release(now));
    assert!(outbox.release(now + RETRY_PAUSE));
    let order: Vec<_> = frames(&mut outbox, 1 << 20)
        .into_iter()
        .map(|f| f.1)
        .collect();
    assert_eq!(order, [&b"a"[..], b"b", b"c", b"de"]);
    assert!(outbox.is_empty());
}

#[test]
fn what_was_put_off_ends_by_its_deadline_with_the_servers_word() {
    let mut outbox = Outbox::default();
    let now = Instant::now();
    push(&mut outbox, KEY, b"a");
    let frame = leave(&mut outbox);
    outbox.put_back(1, frame, put_off(), now);
    let mut expired = Vec::new();
    outbox.expire(now + Duration::from_secs(1), &mut expired);
    assert_eq!(expired.len(), 1);
    assert_eq!(expired[0].1, Some(put_off()));
    assert!(outbox.is_empty());
}

#[test]
fn pauses_grow_up_to_their_bound() {
    assert_eq!(retry_pause(1), RETRY_PAUSE);
    assert_eq!(retry_pause(2), RETRY_PAUSE * 2);
    assert_eq!(retry_pause(u32::MAX), LONGEST_RETRY_PAUSE);
}

#[test]
fn frames_hold_at_most_the_batch_limits() {
    let mut outbox = Outbox::default();
    for _ in 0..MAX_BATCH_RECORDS + 1 {
        push(&mut outbox, KEY, b"x");
    }
    let counts: Vec<_> = frames(&mut outbox, 1 << 24)
        .into_iter()
        .map(|f| f.2)
        .collect();
    assert_eq!(counts, [MAX_BATCH_RECORDS, 1]);
    let big = vec![0; BATCH_BYTES / 2 + 1];
    push(&mut outbox, KEY, &big);
    push(&mut outbox, KEY, &big);
    assert_eq!(frames(&mut outbox, 1 << 24).len(), 2);
}
