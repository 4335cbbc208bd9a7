//! Publishes that wait to be written, batched by waiting.
//!
//! Owns: the queued publishes of one connection, in frames-to-be. A single
//! record joins the last frame-to-be of its partition when that one is still
//! waiting and has room, so what arrives while the socket is busy leaves in
//! one frame. Nothing ever waits for company.
//!
//! Invariants:
//! 1. Records of one partition leave in the order they were given. A frame that
//!    the server put off is *held* for a pause, and behind it whatever of its
//!    partition has not left yet; only what had left with it may overtake it.
//! 2. A frame-to-be holds at most the batch limit of records and, unless it is
//!    a single record or an explicit batch, at most [`BATCH_BYTES`].
//! 3. A frame of an idempotent producer that has left has a number, and from then on
//!    the same records for good: nothing joins it and nothing leaves it. Who waits
//!    for it and is past its deadline is told that the outcome is unknown.
//! 4. Every waiter is resolved exactly once, by an answer, a loss or its deadline.
//!
//! Its memory is bounded by the client's publish window, which each waiter's
//! permit belongs to.

use std::{
    collections::{hash_map::Entry, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{oneshot, OwnedSemaphorePermit},
    time::Instant,
};
use wire::limits::MAX_BATCH_RECORDS;

use crate::{
    config::{ANSWER_GRACE, BATCH_BYTES, LONGEST_RETRY_PAUSE, RETRY_PAUSE},
    error::{Error, Reason},
    places::UnderWay,
    producer::{Number, Numbers},
    publish::Confirmed,
};

/// More than a publish body needs beside its records.
pub(crate) const BODY_OVERHEAD_BYTES: usize = 128;

/// What must be equal for two publishes to share a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PublishKey {
    pub queue_id: u64,
    pub partition: u16,
    pub durable: bool,
    /// The deadline as asked for; what is left of it travels in the frame.
    pub deadline: Duration,
    /// Of an idempotent producer.
    pub numbers: Option<Arc<Numbers>>,
}

/// Who waits for the confirm of `count` records.
#[derive(Debug)]
pub(crate) struct PublishWaiter {
    /// `None`: told already that the outcome is unknown.
    pub answer: Option<oneshot::Sender<Result<Confirmed, Error>>>,
    pub count: u32,
    /// Encoded bytes of its records.
    pub len: usize,
    pub deadline: Instant,
    /// Its share of the publish window and its place in its partition's lane; given
    /// back when it is resolved.
    pub held: Option<(OwnedSemaphorePermit, UnderWay)>,
}

impl PublishWaiter {
    pub fn resolve(self, result: Result<Confirmed, Error>) {
        if let Some(answer) = self.answer {
            // The asking side may have dropped its future: then nobody cares.
            let _ = answer.send(result);
        }
    }

    /// Who waits, without its records, which stay.
    fn part(&mut self) -> PublishWaiter {
        PublishWaiter {
            answer: self.answer.take(),
            count: self.count,
            len: self.len,
            deadline: self.deadline,
            held: self.held.take(),
        }
    }
}

/// A publish frame that is not written yet, or not answered yet.
#[derive(Debug)]
pub(crate) struct QueuedPublish {
    pub key: PublishKey,
    pub records: Vec<u8>,
    pub count: u32,
    pub waiters: VecDeque<PublishWaiter>,
    /// Of an idempotent producer, once it has left.
    pub number: Option<Number>,
    /// What the server said when it put it off, if it did.
    refused: Option<Refused>,
}

/// A frame that was answered "nothing was done: retry".
#[derive(Debug, Clone)]
struct Refused {
    error: Error,
    times: u32,
    /// Correlation under which it first left: its place among others.
    order: u64,
}

/// Frames of a partition that wait for a pause to end.
#[derive(Debug)]
struct Held {
    until: Instant,
    /// Those that left before, by their order; then those that never did.
    frames: VecDeque<QueuedPublish>,
    /// The last one may be joined.
    open: bool,
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
    /// By partition; none of a partition in here has frames with records in `queue`.
    held: HashMap<(u64, u16), Held>,
}

impl Outbox {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.held.is_empty()
    }

    /// Queues `waiter.count` encoded records. `alone`: an explicit batch,
    /// which shares its frame with nothing.
    pub fn push(&mut self, key: PublishKey, bytes: &[u8], waiter: PublishWaiter, alone: bool) {
        let place = key.place();
        if let Some(held) = self.held.get_mut(&place) {
            let last = held.frames.back_mut().filter(|_| held.open && !alone);
            if let Some(frame) = last.filter(|frame| frame.has_room(&key, bytes, &waiter)) {
                return frame.join(bytes, waiter);
            }
            held.open = !alone;
            return held
                .frames
                .push_back(QueuedPublish::new(key, bytes, waiter));
        }
        let next = self.front + self.queue.len() as u64;
        if alone {
            self.open.remove(&place);
        } else if let Some(batch) = self.open_batch(place) {
            if batch.has_room(&key, bytes, &waiter) {
                return batch.join(bytes, waiter);
            }
        }
        if !alone {
            self.open.insert(place, next);
        }
        self.queue.push_back(QueuedPublish::new(key, bytes, waiter));
    }

    /// Queues a frame that another connection did not get rid of.
    pub fn adopt(&mut self, frame: QueuedPublish) {
        match self.held.get_mut(&frame.key.place()) {
            Some(held) => {
                held.open = false;
                held.frames.push_back(frame);
            }
            None => {
                // Nothing queued here may be joined across it.
                self.open.remove(&frame.key.place());
                self.queue.push_back(frame);
            }
        }
    }

    /// Takes out every frame, in order.
    pub fn take_all(&mut self) -> Vec<QueuedPublish> {
        self.open.clear();
        self.front += self.queue.len() as u64;
        let held = self.held.drain().flat_map(|(_, held)| held.frames);
        let frames = self.queue.drain(..).chain(held);
        frames.filter(|frame| !frame.waiters.is_empty()).collect()
    }

    /// The server put the frame off that left as `correlation`: it and what of
    /// its partition is still here wait for a pause.
    pub fn put_back(
        &mut self,
        correlation: u64,
        mut frame: QueuedPublish,
        error: Error,
        now: Instant,
    ) {
        if frame.waiters.is_empty() {
            return;
        }
        let (times, order) = match &frame.refused {
            Some(before) => (before.times.saturating_add(1), before.order),
            None => (1, correlation),
        };
        frame.refused = Some(Refused {
            error,
            times,
            order,
        });
        let place = frame.key.place();
        let held = match self.held.entry(place) {
            Entry::Occupied(held) => held.into_mut(),
            Entry::Vacant(vacant) => {
                self.open.remove(&place);
                let of_place = |frame: &&mut QueuedPublish| frame.key.place() == place;
                let waiting = self.queue.iter_mut().filter(of_place);
                vacant.insert(Held {
                    until: now + retry_pause(times),
                    // An empty one keeps the others' numbers.
                    frames: waiting.map(QueuedPublish::take).collect(),
                    open: false,
                })
            }
        };
        let later = |other: &QueuedPublish| {
            let refused = other.refused.as_ref();
            refused.is_none_or(|refused| refused.order > order)
        };
        let at = held.frames.iter().position(later);
        held.frames.insert(at.unwrap_or(held.frames.len()), frame);
    }

    /// Frames whose pause is over may leave; true when there are any.
    pub fn release(&mut self, now: Instant) -> bool {
        let before = self.queue.len();
        let queue = &mut self.queue;
        self.held.retain(|_, held| {
            let waits = held.until > now;
            if !waits {
                queue.extend(held.frames.drain(..).filter(|f| !f.waiters.is_empty()));
            }
            waits
        });
        self.queue.len() > before
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
        if body + unanswered > window && unanswered > 0 {
            return NextPublish::Nothing;
        }
        if body + unanswered > window && first.number.is_some() {
            // It cannot be cut any more.
            return self
                .pop()
                .map_or(NextPublish::Nothing, NextPublish::NeverFits);
        }
        // Given to the part that leaves.
        let number = match (&first.key.numbers, first.number.take()) {
            (Some(numbers), None) => match numbers.give(first.key.partition) {
                Some(number) => Some(number),
                // An answer comes first.
                None => return NextPublish::Nothing,
            },
            (_, number) => number,
        };
        if body + unanswered <= window {
            first.number = number;
            return self.pop().map_or(NextPublish::Nothing, NextPublish::Frame);
        }
        match first.split_front(window.saturating_sub(BODY_OVERHEAD_BYTES)) {
            Some(part) => NextPublish::Frame(QueuedPublish { number, ..part }),
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
        let place = batch.key.place();
        if self.open.get(&place) == Some(&self.front) {
            self.open.remove(&place);
        }
        self.front += 1;
        Some(batch)
    }

    /// Takes out every waiter whose deadline has passed, with what the server last
    /// said of it; none of its records is stored.
    pub fn expire(&mut self, now: Instant, expired: &mut Vec<(PublishWaiter, Option<Error>)>) {
        let held = self.held.values_mut().flat_map(|held| &mut held.frames);
        for batch in self.queue.iter_mut().chain(held) {
            if batch.number.is_some() {
                batch.expire_numbered(now, expired);
                continue;
            }
            // Within one frame-to-be the deadlines asked for are equal, so they end in order.
            let gone = batch
                .waiters
                .iter()
                .take_while(|waiter| waiter.deadline <= now)
                .count();
            if gone == 0 {
                continue;
            }
            let error = batch.refused.as_ref().map(|refused| refused.error.clone());
            let late = batch.take_front(gone).waiters;
            expired.extend(late.into_iter().map(|waiter| (waiter, error.clone())));
        }
        self.held
            .retain(|_, held| held.frames.iter().any(|frame| !frame.waiters.is_empty()));
    }
}

/// Doubled with each time, up to the longest.
fn retry_pause(times: u32) -> Duration {
    RETRY_PAUSE
        .saturating_mul(1 << times.saturating_sub(1).min(10))
        .min(LONGEST_RETRY_PAUSE)
}

impl PublishKey {
    fn place(&self) -> (u64, u16) {
        (self.queue_id, self.partition)
    }
}

impl QueuedPublish {
    fn new(key: PublishKey, bytes: &[u8], waiter: PublishWaiter) -> Self {
        QueuedPublish {
            key,
            records: bytes.to_vec(),
            count: waiter.count,
            waiters: VecDeque::from([waiter]),
            number: None,
            refused: None,
        }
    }

    /// Tells those who are late that the outcome is unknown. The records stay, until
    /// nobody waits for any of them.
    fn expire_numbered(&mut self, now: Instant, expired: &mut Vec<(PublishWaiter, Option<Error>)>) {
        let cause = match &self.refused {
            Some(refused) => refused.error.reason().clone(),
            None => Reason::NotSentAgain,
        };
        let late = |waiter: &&mut PublishWaiter| waiter.deadline <= now && waiter.answer.is_some();
        for waiter in self.waiters.iter_mut().filter(late) {
            expired.push((waiter.part(), Some(Error::unknown(cause.clone()))));
        }
        if self.waiters.iter().all(|waiter| waiter.answer.is_none()) {
            self.waiters.clear();
            self.number = None;
        }
    }

    fn has_room(&self, key: &PublishKey, bytes: &[u8], waiter: &PublishWaiter) -> bool {
        self.key == *key
            && self.number.is_none()
            && self.records.len() + bytes.len() <= BATCH_BYTES
            && self.count + waiter.count <= MAX_BATCH_RECORDS
    }

    fn join(&mut self, bytes: &[u8], waiter: PublishWaiter) {
        self.records.extend_from_slice(bytes);
        self.count += waiter.count;
        self.waiters.push_back(waiter);
    }

    /// The client is closed. One that has left before may be stored.
    pub fn closed(self) {
        let error = match self.number {
            Some(_) => Error::unknown(Reason::Closed),
            None => Error::failed(Reason::Closed),
        };
        self.fail(&error);
    }

    /// Answers everybody in it.
    pub fn fail(self, error: &Error) {
        for waiter in self.waiters {
            waiter.resolve(Err(error.clone()));
        }
    }

    /// All of it; an empty frame stays.
    fn take(&mut self) -> QueuedPublish {
        let number = self.number.take();
        QueuedPublish {
            number,
            ..self.take_front(self.waiters.len())
        }
    }

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
            key: self.key.clone(),
            records: std::mem::replace(&mut self.records, rest),
            count,
            waiters,
            number: None,
            refused: self.refused.clone(),
        }
    }
}

/// A publish frame that was written and is not answered.
#[derive(Debug)]
pub(crate) struct SentPublish {
    /// With its records, to send again what the server puts off.
    pub batch: QueuedPublish,
    /// What it takes of the server's window.
    pub body_bytes: usize,
}

impl SentPublish {
    /// Hands the frame's confirm to each waiter, with its own offsets.
    pub fn confirm(self, confirmed: &Confirmed) {
        let mut offset = confirmed.offset;
        for waiter in self.batch.waiters {
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
        let waiters = self.batch.waiters.iter();
        waiters.map(|waiter| waiter.count).sum()
    }

    pub fn fail(self, error: &Error) {
        self.batch.fail(error);
    }

    /// True when the server is past the deadline and its grace.
    pub fn is_overdue(&self, now: Instant) -> bool {
        let first = self.batch.waiters.front();
        first.is_some_and(|waiter| waiter.deadline + ANSWER_GRACE <= now)
    }
}

#[cfg(test)]
mod tests;
