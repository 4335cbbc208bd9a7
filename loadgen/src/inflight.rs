//! Publishes that were sent and not yet answered.
//!
//! Invariant: the sums always equal what the unanswered entries add up to.

use std::collections::VecDeque;

use crate::error::LoadError;

/// One unanswered publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    pub first_sequence: u64,
    pub count: u32,
    pub intended_ns: u64,
    /// When it was put into the socket's buffer.
    pub sent_ns: u64,
    /// Length of the publish body, as the window counts it.
    pub body_bytes: u64,
    /// Latency row.
    pub row: usize,
    /// The boundary that the queue's mode promises.
    pub gate: u8,
}

/// Unanswered publishes by correlation id, which counts up from 1. Answers may
/// come in any order; entries before the oldest unanswered one are forgotten.
#[derive(Debug)]
pub struct InFlight {
    entries: VecDeque<Option<Pending>>,
    first: u64,
    batches: usize,
    bytes: u64,
}

impl Default for InFlight {
    fn default() -> Self {
        InFlight {
            entries: VecDeque::new(),
            first: 1,
            batches: 0,
            bytes: 0,
        }
    }
}

impl InFlight {
    /// The correlation id that the next [`InFlight::push`] stands for.
    pub fn next_correlation(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    pub fn push(&mut self, pending: Pending) {
        self.batches += 1;
        self.bytes += pending.body_bytes;
        self.entries.push_back(Some(pending));
    }

    /// Takes out what was just answered.
    ///
    /// # Errors
    /// An id that is not outstanding: never sent, or answered before.
    pub fn answered(&mut self, correlation: u64) -> Result<Pending, LoadError> {
        let found = correlation
            .checked_sub(self.first)
            .and_then(|at| self.entries.get_mut(usize::try_from(at).ok()?))
            .and_then(Option::take);
        while self.entries.front().is_some_and(Option::is_none) {
            self.entries.pop_front();
            self.first += 1;
        }
        let pending = found.ok_or_else(|| {
            LoadError::Protocol(format!(
                "an answer to publish {correlation}, which is not outstanding"
            ))
        })?;
        self.batches -= 1;
        self.bytes -= pending.body_bytes;
        Ok(pending)
    }

    /// The connection is gone: nothing unanswered will be. Gives how many records
    /// that were.
    pub fn lose(&mut self) -> u64 {
        let records = self.records();
        self.first = self.next_correlation();
        self.entries.clear();
        self.batches = 0;
        self.bytes = 0;
        records
    }

    /// Unanswered publishes.
    pub fn batches(&self) -> usize {
        self.batches
    }

    /// Unanswered body bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Unanswered records.
    pub fn records(&self) -> u64 {
        let counts = self.entries.iter().flatten();
        counts.map(|pending| u64::from(pending.count)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(first_sequence: u64) -> Pending {
        Pending {
            first_sequence,
            count: 2,
            intended_ns: 0,
            sent_ns: 0,
            body_bytes: 10,
            row: 0,
            gate: 1,
        }
    }

    #[test]
    fn answers_are_taken_in_any_order_and_only_once() {
        let mut inflight = InFlight::default();
        for sequence in [0, 2, 4] {
            inflight.push(pending(sequence));
        }
        assert_eq!(inflight.answered(2).unwrap().first_sequence, 2);
        assert!(inflight.answered(2).is_err(), "answered twice");
        assert!(inflight.answered(4).is_err(), "never sent");
        assert!(inflight.answered(0).is_err());
        assert_eq!(
            (inflight.batches(), inflight.bytes(), inflight.records()),
            (2, 20, 4)
        );
        assert_eq!(inflight.answered(1).unwrap().first_sequence, 0);
        assert_eq!(inflight.answered(3).unwrap().first_sequence, 4);
        assert_eq!((inflight.batches(), inflight.next_correlation()), (0, 4));
        assert!(inflight.answered(1).is_err(), "forgotten");
        inflight.push(pending(6));
        inflight.push(pending(8));
        assert_eq!(inflight.lose(), 4);
        assert_eq!((inflight.batches(), inflight.bytes()), (0, 0));
        assert!(inflight.answered(4).is_err(), "lost");
        assert_eq!(inflight.next_correlation(), 6);
    }
}
