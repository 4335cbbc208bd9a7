//! Declared queues, found by id and by name.
//!
//! There can be very many: a declaration is kept once, by whoever shares it, and
//! an order of names is one of pointers.
//!
//! Invariants:
//! 1. Every name leads to a queue that is found by its id.
//! 2. A name leads to the queue that was put in under it last.

use std::{
    borrow::Borrow,
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

use super::QueueDeclaration;

/// Declarations in byte order of their names.
struct ByName(Arc<QueueDeclaration>);

impl Borrow<str> for ByName {
    fn borrow(&self) -> &str {
        &self.0.name
    }
}

impl Ord for ByName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.name.cmp(&other.0.name)
    }
}

impl PartialOrd for ByName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ByName {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for ByName {}

/// See the module head.
#[derive(Default)]
pub struct QueueTable {
    by_id: BTreeMap<u64, Arc<QueueDeclaration>>,
    by_name: BTreeSet<ByName>,
}

impl QueueTable {
    /// Puts a queue in, in the place of the one that has its id or name.
    pub fn insert(&mut self, queue: Arc<QueueDeclaration>) {
        self.by_name.replace(ByName(queue.clone()));
        self.by_id.insert(queue.queue_id, queue);
    }

    /// Takes a queue out. Its name may be another one's by now.
    pub fn remove(&mut self, queue_id: u64) -> Option<Arc<QueueDeclaration>> {
        let queue = self.by_id.remove(&queue_id)?;
        let named = self.by_name(&queue.name);
        if named.is_some_and(|named| named.queue_id == queue_id) {
            self.by_name.remove::<str>(&queue.name);
        }
        Some(queue)
    }

    /// The queue with this id.
    pub fn by_id(&self, queue_id: u64) -> Option<&Arc<QueueDeclaration>> {
        self.by_id.get(&queue_id)
    }

    /// The queue called `name`.
    pub fn by_name(&self, name: &str) -> Option<&Arc<QueueDeclaration>> {
        self.by_name.get(name).map(|queue| &queue.0)
    }

    /// Every queue, by id.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<QueueDeclaration>> {
        self.by_id.values()
    }

    /// Queues whose name is above `after`, in byte order.
    pub fn after(&self, after: &str) -> impl Iterator<Item = &Arc<QueueDeclaration>> {
        let range = (Bound::Excluded(after), Bound::Unbounded);
        self.by_name.range::<str, _>(range).map(|queue| &queue.0)
    }

    /// Number of queues.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// True without any queue.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use wire::vocabulary::Mode;

    use super::*;

    fn queue(queue_id: u64, name: &str) -> Arc<QueueDeclaration> {
        Arc::new(QueueDeclaration {
            queue_id,
            name: name.into(),
            mode: Mode::Durable,
            copies: 0,
            lease_ms: 1,
            halts: false,
            revision: 0,
            groups: vec![1].into(),
        })
    }

    fn id_of(table: &QueueTable, name: &str) -> Option<u64> {
        table.by_name(name).map(|queue| queue.queue_id)
    }

    #[test]
    fn a_name_leads_to_the_last_queue_under_it() {
        let mut table = QueueTable::default();
        for (queue_id, name) in [(1, "b"), (2, "a"), (3, "b")] {
            table.insert(queue(queue_id, name));
        }
        assert_eq!(id_of(&table, "b"), Some(3));
        assert_eq!(table.remove(1).map(|queue| queue.queue_id), Some(1));
        assert_eq!((id_of(&table, "b"), table.len()), (Some(3), 2));
        let after = |name| -> Vec<u64> { table.after(name).map(|queue| queue.queue_id).collect() };
        assert_eq!(after(""), [2, 3]);
        assert_eq!(after("a"), [3]);
        table.remove(3);
        assert_eq!(id_of(&table, "b"), None);
        assert!(table.remove(3).is_none());
    }
}
