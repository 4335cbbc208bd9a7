//! Publishes that wait to be written, batched by waiting.
//!
//! Owns: the queued publishes of one connection, in frames-to-be. A single
//! record joins the last frame-to-be of its partition when that one is still
//! waiting and has room, so what arrives while the socket is busy leaves in
//! one frame. Nothing ever waits for company.
//!
//! Invariants:
//! 1. Records of one partition leave in the order they were given.
//! 2. A frame-to-be holds at most the batch limit of records and, unless it is
//!    a single record or an explicit batch, at most [`BATCH_BYTES`].
//! 3. Every waiter is resolved exactly once, by an answer, a loss or its deadline.
//!
//! Its memory is bounded by the client's publish window, which each waiter's
//! permit belongs to.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use tokio::{
    sync::{oneshot, OwnedSemaphorePermit},
    time::Instant,
};
use wire::limits::MAX_BATCH_RECORDS;

use crate::{
    config::{ANSWER_GRACE, BATCH_BYTES},
    error::Error,
    publish::Confirmed,
};

/// More than a publish body needs beside its records.
pub(crate) const BODY_OVERHEAD_BYTES: usize = 128;

/// What must be equal for two publishes to share a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PublishKey {
    pub queue_id: u64,
    pub partition: u16,
    pub durable: bool,
    /// The deadline as asked for; what is left of it travels in the frame.
    pub deadline: Duration,
}

/// Who waits for the confirm of `count` records.
#[derive(Debug)]
pub(crate) struct PublishWaiter {
    pub answer: oneshot::Sender<Result<Confirmed, Error>>,
    pub count: u32,
    /// Encoded bytes of its records.
    pub len: usize,
    pub deadline: Instant,
    /// Its share of the publish window; given back when it is resolved.
    pub _permit: OwnedSemaphorePermit,
}

impl PublishWaiter {
    pub fn resolve(self, result: Result<Confirmed, Error>) {
        // The asking side may have dropped its future: then nobody cares.
        let _ = self.answer.send(result);
    }
}

/// A publish frame that is not written yet.
#[derive(Debug)]
pub(crate) struct QueuedPublish {
    pub key: PublishKey,
    pub records: Vec<u8>,
    pub count: u32,
    pub waiters: VecDeque<PublishWaiter>,
}

/// What can be written now.
#[derive(Debug)]
pub(crate) enum NextPublish {
    Frame(QueuedPublish),
    /// A single publish that exceeds the server's window by itself.
    NeverFits(QueuedPublish),
    /// The window has to open first, or there is nothing.
    Nothing,
}

#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: VecDeque<QueuedPublish>,
    /// Number of the frame-to-be at the front of `queue`.
    front: u64,
    /// Number of the frame-to-be that a partition's next record may join.
    open: HashMap<(u64, u16), u64>,
}

impl Outbox {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Queues `waiter.count` encoded records. `alone`: an explicit batch,
    /// which shares its frame with nothing.
    pub fn push(&mut self, key: PublishKey, bytes: &[u8], waiter: PublishWaiter, alone: bool) {
        let place = (key.queue_id, key.partition);
        let next = self.front + self.queue.len() as u64;
        if alone {
            self.open.remove(&place);
        } else if let Some(batch) = self.open_batch(place) {
            let fits = batch.records.len() + bytes.len() <= BATCH_BYTES
                && batch.count + waiter.count <= MAX_BATCH_RECORDS;
            if batch.key == key && fits {
                batch.records.extend_from_slice(bytes);
                batch.count += waiter.count;
                batch.waiters.push_back(waiter);
                return;
            }
        }
        if !alone {
            self.open.insert(place, next);
        }
        self.queue.push_back(QueuedPublish {
            key,
            records: bytes.to_vec(),
            count: waiter.count,
            waiters: VecDeque::from([waiter]),
        });
    }

    fn open_batch(&mut self, place: (u64, u16)) -> Option<&mut QueuedPublish> {
        let number = self.open.get(&place)?.checked_sub(self.front)?;
        self.queue.get_mut(usize::try_from(number).ok()?)
    }

    /// Takes what fits into `window` bytes of which `unanswered` are in use.
    pub fn next(&mut self, window: usize, unanswered: usize) -> NextPublish {
        while self.queue.front().is_some_and(|b| b.waiters.is_empty()) {
            self.pop();
        }
        let Some(first) = self.queue.front_mut() else {
            return NextPublish::Nothing;
        };
        let body = first.records.len() + BODY_OVERHEAD_BYTES;
        if body + unanswered <= window {
            return self.pop().map_or(NextPublish::Nothing, NextPublish::Frame);
        }
        if unanswered > 0 {
            return NextPublish::Nothing;
        }
        match first.split_front(window.saturating_sub(BODY_OVERHEAD_BYTES)) {
            Some(part) => NextPublish::Frame(part),
            // Only the first publish of the frame is known not to fit.
            None => {
                let first_alone = first.waiters.front().map_or(0, |waiter| waiter.len);
                first
                    .split_front(first_alone)
                    .map_or(NextPublish::Nothing, NextPublish::NeverFits)
            }
        }
    }

    fn pop(&mut self) -> Option<QueuedPublish> {
        let batch = self.queue.pop_front()?;
        let place = (batch.key.queue_id, batch.key.partition);
        if self.open.get(&place) == Some(&self.front) {
            self.open.remove(&place);
        }
        self.front += 1;
        Some(batch)
    }

    /// Takes out every waiter whose deadline has passed; none of its records was sent.
    pub fn expire(&mut self, now: Instant, expired: &mut Vec<PublishWaiter>) {
        for batch in &mut self.queue {
            // Within one frame-to-be the deadlines asked for are equal, so they end in order.
            let gone = batch
                .waiters
                .iter()
                .take_while(|waiter| waiter.deadline <= now)
                .count();
            expired.extend(batch.take_front(gone).waiters);
        }
    }

    /// Empties the outbox.
    pub fn drain(&mut self) -> impl Iterator<Item = PublishWaiter> + '_ {
        self.open.clear();
        self.front += self.queue.len() as u64;
        self.queue.drain(..).flat_map(|batch| batch.waiters)
    }
}

impl QueuedPublish {
    /// The leading publishes that have at most `room` bytes together.
    fn split_front(&mut self, room: usize) -> Option<QueuedPublish> {
        let (mut len, mut taken) = (0, 0);
        for waiter in &self.waiters {
            if len + waiter.len > room {
                break;
            }
            len += waiter.len;
            taken += 1;
        }
        (taken > 0).then(|| self.take_front(taken))
    }

    /// Splits off the first `waiters` publishes with their bytes.
    fn take_front(&mut self, waiters: usize) -> QueuedPublish {
        let waiters: VecDeque<_> = self.waiters.drain(..waiters).collect();
        let len = waiters.iter().map(|waiter| waiter.len).sum();
        let count = waiters.iter().map(|waiter| waiter.count).sum();
        let rest = self.records.split_off(len);
        self.count -= count;
        QueuedPublish {
            key: self.key,
            records: std::mem::replace(&mut self.records, rest),
            count,
            waiters,
        }
    }
}

/// A publish frame that was written and is not answered.
#[derive(Debug)]
pub(crate) struct SentPublish {
    pub waiters: VecDeque<PublishWaiter>,
    /// What it takes of the server's window.
    pub body_bytes: usize,
}

impl SentPublish {
    /// Hands the frame's confirm to each waiter, with its own offsets.
    pub fn confirm(self, confirmed: &Confirmed) {
        let mut offset = confirmed.offset;
        for waiter in self.waiters {
            let count = waiter.count;
            waiter.resolve(Ok(Confirmed {
                offset,
                count,
                ..confirmed.clone()
            }));
            offset += u64::from(count);
        }
    }

    pub fn records(&self) -> u32 {
        self.waiters.iter().map(|waiter| waiter.count).sum()
    }

    pub fn fail(self, error: &Error) {
        for waiter in self.waiters {
            waiter.resolve(Err(error.clone()));
        }
    }

    /// True when the server is past the deadline and its grace.
    pub fn is_overdue(&self, now: Instant) -> bool {
        self.waiters
            .front()
            .is_some_and(|waiter| waiter.deadline + ANSWER_GRACE <= now)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Semaphore;

    use super::*;

    const KEY: PublishKey = PublishKey {
        queue_id: 1,
        partition: 0,
        durable: false,
        deadline: Duration::from_secs(1),
    };

    fn waiter(bytes: &[u8], deadline: Instant) -> PublishWaiter {
        let (answer, _) = oneshot::channel();
        PublishWaiter {
            answer,
            count: 1,
            len: bytes.len(),
            deadline,
            _permit: Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap(),
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
        assert_eq!(frames(&mut outbox, 1000), [(true, b"new".to_vec(), 1)]);
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
}
