//! Numbers of an idempotent producer's publishes.
//!
//! Owns: the next number of each partition, and which are without a good answer.
//!
//! Invariants:
//! 1. A number is given once, to one frame, which keeps it and its records for good.
//! 2. The numbers from the oldest without an answer to the newest fit into what a
//!    server remembers: none can be forgotten there while it may be sent again.

use std::{
    collections::BTreeSet,
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Numbers that may be between the oldest without an answer and the newest; a
/// server remembers twice as many.
const SPAN: u64 = 16;

/// Who a publisher is for the server: an id, and which life of it.
///
/// The id of [`ProducerId::random`] is for one life. A program that has an id of its
/// own (not 0) takes a higher epoch each time it starts: what an earlier life of it
/// still has on its way is refused from then on ([`Fenced`](crate::ErrorCode::Fenced)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProducerId {
    /// Not 0; 0 counts as 1.
    pub id: u64,
    pub epoch: u32,
}

impl ProducerId {
    /// An id that nobody else has, as good as certainly.
    pub fn random() -> Self {
        // Each has keys of its own, from the system.
        let id = RandomState::new().hash_one(std::process::id());
        ProducerId {
            id: id.max(1),
            epoch: 0,
        }
    }
}

/// A producer's numbers, by partition.
#[derive(Debug)]
pub(crate) struct Numbers {
    pub producer: ProducerId,
    partitions: Vec<Mutex<Given>>,
}

impl PartialEq for Numbers {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Numbers {}

#[derive(Debug, Default)]
struct Given {
    next: u64,
    /// Without a good answer.
    open: BTreeSet<u64>,
}

/// One number; its publish is over when it is dropped.
#[derive(Debug)]
pub(crate) struct Number {
    numbers: Arc<Numbers>,
    partition: u16,
    value: u64,
}

impl Numbers {
    pub fn new(producer: ProducerId, partitions: u16) -> Self {
        let producer = ProducerId {
            id: producer.id.max(1),
            ..producer
        };
        Numbers {
            producer,
            partitions: (0..partitions).map(|_| Mutex::default()).collect(),
        }
    }

    /// The next number of a partition; `None` while too old a one is without answer.
    pub fn give(self: &Arc<Self>, partition: u16) -> Option<Number> {
        let mut given = lock(self.partitions.get(usize::from(partition))?);
        let oldest = given.open.first().copied().unwrap_or(given.next);
        if given.next - oldest >= SPAN {
            return None;
        }
        let value = given.next;
        given.next += 1;
        given.open.insert(value);
        Some(Number {
            numbers: self.clone(),
            partition,
            value,
        })
    }
}

impl Number {
    pub fn value(&self) -> u64 {
        self.value
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        let partition = self.numbers.partitions.get(usize::from(self.partition));
        if let Some(given) = partition {
            lock(given).open.remove(&self.value);
        }
    }
}

/// A panic elsewhere cannot have left it half changed.
fn lock(given: &Mutex<Given>) -> MutexGuard<'_, Given> {
    given.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_ascend_and_stay_within_reach_of_the_oldest_without_an_answer() {
        let numbers = Arc::new(Numbers::new(ProducerId { id: 0, epoch: 3 }, 2));
        assert_eq!(numbers.producer, ProducerId { id: 1, epoch: 3 });
        let first = numbers.give(0).unwrap();
        for value in 1..SPAN {
            assert_eq!(numbers.give(0).unwrap().value(), value);
        }
        assert!(numbers.give(0).is_none(), "the first has no answer yet");
        assert_eq!(numbers.give(1).unwrap().value(), 0);
        drop(first);
        assert_eq!(numbers.give(0).unwrap().value(), SPAN);
        assert!(numbers.give(2).is_none());
    }

    #[test]
    fn random_ids_differ() {
        let ids: BTreeSet<u64> = (0..100).map(|_| ProducerId::random().id).collect();
        assert_eq!(ids.len(), 100);
        assert!(!ids.contains(&0));
    }
}
