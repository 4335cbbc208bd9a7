//! How fast followers that are behind are brought up: at a steady rate, so that what is
//! published meanwhile does not wait behind it, but faster than what comes in, so that it
//! ends.
//!
//! 1. What was read back or captured for followers stays, on average, below the configured
//!    rate and twice what this shard's log takes in, together.
//! 2. Nothing that is still in memory is held up by it.

/// Bytes that may go at once after a rest: one message.
const BURST_BYTES: i64 = 1 << 20;

/// See the module head. In server time.
#[derive(Debug)]
pub(super) struct Pace {
    /// Bytes a second.
    rate: u64,
    /// Bytes that may go now; below 0: went too early.
    tokens: i64,
    at_ms: u64,
    /// Payload bytes appended when it was filled up last.
    taken_in: u64,
}

impl Pace {
    pub(super) fn new(rate: u64) -> Self {
        Pace {
            rate: rate.max(1),
            tokens: BURST_BYTES,
            at_ms: 0,
            taken_in: 0,
        }
    }

    /// Time has passed, and the shard has taken in so many payload bytes in all.
    pub(super) fn fill(&mut self, now_ms: u64, taken_in: u64) {
        let passed = now_ms.saturating_sub(self.at_ms);
        let grown = taken_in.saturating_sub(self.taken_in);
        (self.at_ms, self.taken_in) = (now_ms, taken_in);
        let more = u128::from(self.rate) * u128::from(passed) / 1000 + 2 * u128::from(grown);
        let more = i64::try_from(more).unwrap_or(i64::MAX);
        self.tokens = self.tokens.saturating_add(more).min(BURST_BYTES);
    }

    pub(super) fn is_free(&self) -> bool {
        self.tokens > 0
    }

    /// So many bytes went.
    pub(super) fn spend(&mut self, bytes: u64) {
        self.tokens = self.tokens.saturating_sub_unsigned(bytes);
    }

    /// When more may go, if nothing comes in meanwhile; 0 if at once.
    pub(super) fn free_ms(&self) -> u64 {
        let owed = u64::try_from(1 - self.tokens).unwrap_or(0);
        match owed {
            0 => 0,
            owed => self.at_ms + (u128::from(owed) * 1000).div_ceil(self.rate.into()) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_at_its_rate_after_a_burst() {
        let mut pace = Pace::new(1 << 20);
        pace.fill(1_000, 0);
        assert!(pace.is_free());
        pace.spend(2 << 20);
        assert!(!pace.is_free());
        assert_eq!(pace.free_ms(), 2_001, "a second's worth is owed");
        pace.fill(pace.free_ms(), 0);
        assert!(pace.is_free());
    }

    #[test]
    fn it_is_faster_than_what_comes_in() {
        let mut pace = Pace::new(1);
        pace.fill(1, 0);
        let (mut came, mut went) = (0, 0);
        for ms in 2..10_000 {
            came += 100_000;
            pace.fill(ms, came);
            while pace.is_free() {
                pace.spend(50_000);
                went += 50_000;
            }
        }
        assert!(went > came * 19 / 10, "{went} of {came}");
    }
}
