//! Where a queue's partitions live.

use std::sync::Arc;

use crate::{places::Lane, queue::Queue};

/// A queue's id and the shard of each partition, as located once.
#[derive(Debug)]
pub(crate) struct Route {
    queue_id: u64,
    /// Index = partition; never empty.
    shards: Vec<u16>,
    /// What is under way; index = partition.
    lanes: Vec<Arc<Lane>>,
}

impl Route {
    /// `None` for a description without partitions.
    pub fn new(queue: &Queue) -> Option<Self> {
        (!queue.shards.is_empty()).then(|| Route {
            queue_id: queue.queue_id,
            shards: queue.shards.clone(),
            lanes: queue.shards.iter().map(|_| Arc::default()).collect(),
        })
    }

    pub fn queue_id(&self) -> u64 {
        self.queue_id
    }

    /// At least 1.
    pub fn partitions(&self) -> u16 {
        u16::try_from(self.shards.len()).unwrap_or(u16::MAX)
    }

    pub fn shard(&self, partition: u16) -> Option<u16> {
        self.shards.get(usize::from(partition)).copied()
    }

    pub fn lane(&self, partition: u16) -> Option<&Arc<Lane>> {
        self.lanes.get(usize::from(partition))
    }

    /// Partition of a key: CRC-32C of the key, modulo the number of partitions.
    pub fn partition_of(&self, key: &[u8]) -> u16 {
        let partition = crc32c::crc32c(key) % u32::from(self.partitions());
        // Below a u16.
        partition as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_keeps_its_partition_and_keys_spread() {
        let route = Route {
            queue_id: 1,
            shards: vec![0; 8],
            lanes: Vec::new(),
        };
        // The published test vector of CRC-32C.
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(route.partition_of(b"123456789"), 3);
        let mut seen = [false; 8];
        for number in 0..200 {
            seen[usize::from(route.partition_of(format!("key {number}").as_bytes()))] = true;
        }
        assert_eq!(seen, [true; 8]);
    }
}
