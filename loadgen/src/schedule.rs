//! When records are due. Pure: time is handed in.
//!
//! Invariants:
//! 1. A due time is a function of the record's number alone. A late wake-up, a
//!    full window or a frozen server never moves one (no coordinated omission).
//! 2. Every due time before the end is handed out once, in order.

/// What one producer of several sends. Times are nanoseconds from the start.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Records per second over all producers; 0 = none.
    pub rate: f64,
    /// Records that are due together, as one publish.
    pub batch: u32,
    /// Records per burst over all producers, in turn; empty = none.
    pub bursts: Vec<u64>,
    /// Time between bursts.
    pub burst_every_ns: u64,
    /// No due time at or after this.
    pub end_ns: u64,
}

/// Records that are due at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// From the start.
    pub due_ns: u64,
    pub records: u64,
}

/// The due times of one producer.
#[derive(Debug, Clone)]
pub struct Schedule {
    plan: Plan,
    producer: u64,
    producers: u64,
    steady_index: u64,
    burst_index: u64,
    /// Records of the earliest moment that were already taken.
    taken: u64,
}

impl Schedule {
    /// The share of producer `producer` of `producers`. Steady batches are dealt
    /// in turn, so producers are out of phase; bursts are split evenly.
    pub fn new(plan: Plan, producer: u32, producers: u32) -> Self {
        let mut schedule = Schedule {
            plan,
            producer: producer.into(),
            producers: producers.max(1).into(),
            steady_index: 0,
            burst_index: 0,
            taken: 0,
        };
        schedule.skip_empty_bursts();
        schedule
    }

    /// The earliest moment with records not yet taken; `None` at the end.
    pub fn next(&self) -> Option<Due> {
        self.head().map(|(due, _)| Due {
            records: due.records - self.taken,
            ..due
        })
    }

    /// Takes `records` of the earliest moment, at most what it holds.
    pub fn take(&mut self, records: u64) {
        let Some((due, is_burst)) = self.head() else {
            return;
        };
        self.taken += records;
        if self.taken < due.records {
            return;
        }
        self.taken = 0;
        if is_burst {
            self.burst_index += 1;
            self.skip_empty_bursts();
        } else {
            self.steady_index += 1;
        }
    }

    /// Records due before `until_ns` and not yet taken. Walks them, for the end
    /// of a run only.
    pub fn outstanding(&self, until_ns: u64) -> u64 {
        let mut rest = self.clone();
        let mut records = 0;
        while let Some(due) = rest.next().filter(|due| due.due_ns < until_ns) {
            records += due.records;
            rest.take(due.records);
        }
        records
    }

    fn head(&self) -> Option<(Due, bool)> {
        let steady = self.steady();
        let burst = self.burst();
        let (due, is_burst) = match (steady, burst) {
            // A burst that is half taken stays the head.
            (Some(steady), Some(burst)) if steady.due_ns < burst.due_ns => (steady, false),
            (_, Some(burst)) => (burst, true),
            (Some(steady), None) => (steady, false),
            (None, None) => return None,
        };
        (due.due_ns < self.plan.end_ns).then_some((due, is_burst))
    }

    fn steady(&self) -> Option<Due> {
        if self.plan.rate <= 0.0 {
            return None;
        }
        let batch = u64::from(self.plan.batch.max(1));
        let number = (self.steady_index * self.producers + self.producer) * batch;
        Some(Due {
            // From the record's number, never by adding up: no drift.
            due_ns: (number as f64 * 1e9 / self.plan.rate) as u64,
            records: batch,
        })
    }

    fn burst(&self) -> Option<Due> {
        Some(Due {
            due_ns: self.burst_index.checked_mul(self.plan.burst_every_ns)?,
            records: self.burst_share()?,
        })
    }

    /// This producer's part of the current burst; `None` without bursts.
    fn burst_share(&self) -> Option<u64> {
        let sizes = &self.plan.bursts;
        let turn = usize::try_from(self.burst_index)
            .ok()?
            .checked_rem(sizes.len())?;
        let size = *sizes.get(turn)?;
        Some(size / self.producers + u64::from(self.producer < size % self.producers))
    }

    fn skip_empty_bursts(&mut self) {
        // At most one round: if every size leaves this producer nothing, it
        // takes no part in bursts.
        for _ in 0..self.plan.bursts.len() {
            if self.burst_share() != Some(0) {
                return;
            }
            self.burst_index += 1;
        }
        if self.burst_share() == Some(0) {
            self.plan.bursts.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            rate: 0.0,
            batch: 1,
            bursts: vec![],
            burst_every_ns: 0,
            end_ns: 1_000_000_000,
        }
    }

    fn all(mut schedule: Schedule) -> Vec<(u64, u64)> {
        let mut out = vec![];
        while let Some(due) = schedule.next() {
            out.push((due.due_ns, due.records));
            schedule.take(due.records);
        }
        out
    }

    #[test]
    fn a_steady_rate_is_spaced_evenly_without_drift() {
        let plan = Plan {
            rate: 3.0,
            end_ns: 100_000_000_000,
            ..plan()
        };
        let times = all(Schedule::new(plan, 0, 1));
        assert_eq!(times.len(), 300);
        assert_eq!(times[299].0, (299.0 * 1e9 / 3.0) as u64);
    }

    #[test]
    fn producers_share_a_rate_out_of_phase_and_lose_nothing() {
        let plan = Plan {
            rate: 1000.0,
            batch: 10,
            ..plan()
        };
        let mut times: Vec<_> = (0..3)
            .flat_map(|producer| all(Schedule::new(plan.clone(), producer, 3)))
            .collect();
        times.sort();
        let expected: Vec<_> = (0..100).map(|batch| (batch * 10_000_000, 10)).collect();
        assert_eq!(times, expected);
    }

    #[test]
    fn bursts_alternate_and_are_split_without_remainder() {
        let plan = Plan {
            bursts: vec![200, 100],
            burst_every_ns: 300_000_000,
            ..plan()
        };
        assert_eq!(
            all(Schedule::new(plan.clone(), 0, 1)),
            [
                (0, 200),
                (300_000_000, 100),
                (600_000_000, 200),
                (900_000_000, 100)
            ]
        );
        let total: u64 = (0..3)
            .flat_map(|producer| all(Schedule::new(plan.clone(), producer, 3)))
            .map(|(_, records)| records)
            .sum();
        assert_eq!(total, 600);
    }

    #[test]
    fn a_producer_without_a_share_of_a_burst_skips_it_and_ends() {
        let plan = Plan {
            bursts: vec![1, 2],
            burst_every_ns: 400_000_000,
            ..plan()
        };
        assert_eq!(all(Schedule::new(plan.clone(), 1, 2)), [(400_000_000, 1)]);
        assert_eq!(all(Schedule::new(plan, 5, 9)), []);
    }

    #[test]
    fn steady_rate_and_bursts_interleave_in_order() {
        let plan = Plan {
            rate: 10.0,
            bursts: vec![5],
            burst_every_ns: 250_000_000,
            ..plan()
        };
        let times = all(Schedule::new(plan, 0, 1));
        assert!(times.is_sorted_by_key(|(due, _)| *due));
        assert_eq!(times.iter().map(|(_, records)| records).sum::<u64>(), 30);
    }

    #[test]
    fn a_half_taken_moment_keeps_its_due_time() {
        let plan = Plan {
            rate: 1.0,
            bursts: vec![8],
            burst_every_ns: 500_000_000,
            ..plan()
        };
        let mut schedule = Schedule::new(plan, 0, 1);
        schedule.take(3);
        assert_eq!(
            schedule.next(),
            Some(Due {
                due_ns: 0,
                records: 5
            })
        );
        assert_eq!(schedule.outstanding(400_000_000), 6);
    }
}
