//! Which data group a new partition goes to.
//!
//! Durable queues go to the lower half of the groups, buffered and speculative
//! ones to the upper half, so that durable queues stay in groups that answer
//! at durable. Each half is dealt out in turn, one group per partition:
//! partitions of one queue land on different groups as far as there are any.

use wire::vocabulary::Mode;

struct Half {
    first: u32,
    count: u32,
    /// Partitions dealt out so far, over all queues ever declared.
    dealt: u64,
}

impl Half {
    fn deal(&mut self) -> u32 {
        let at = self.dealt % u64::from(self.count);
        self.dealt += 1;
        self.first + at as u32
    }
}

pub(super) struct Placement {
    lower: Half,
    upper: Half,
}

impl Placement {
    /// Groups are numbered from 1; one group alone serves both kinds.
    pub(super) fn new(data_groups: u32) -> Self {
        let groups = data_groups.max(1);
        let lower = (groups / 2).max(1);
        let upper = (groups - lower).max(1);
        Placement {
            lower: Half {
                first: 1,
                count: lower,
                dealt: 0,
            },
            upper: Half {
                first: groups - upper + 1,
                count: upper,
                dealt: 0,
            },
        }
    }

    /// Number of the last group.
    pub(super) fn groups(&self) -> u32 {
        self.upper.first + self.upper.count - 1
    }

    /// Partitions dealt out so far, lower and upper half.
    pub(super) fn dealt(&self) -> [u64; 2] {
        [self.lower.dealt, self.upper.dealt]
    }

    pub(super) fn restore(&mut self, [lower, upper]: [u64; 2]) {
        (self.lower.dealt, self.upper.dealt) = (lower, upper);
    }

    /// The group of each partition of a new queue.
    pub(super) fn place(&mut self, mode: Mode, partitions: u16) -> Vec<u32> {
        let half = match mode {
            Mode::Durable => &mut self.lower,
            Mode::Buffered | Mode::Speculative => &mut self.upper,
        };
        (0..partitions).map(|_| half.deal()).collect()
    }
}
