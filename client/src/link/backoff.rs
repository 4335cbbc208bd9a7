//! Pauses between attempts to connect: exponential, bounded, with jitter.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

/// Gives each next pause: `min`, then twice as long each time up to `max`, and
/// of that a random share between one half and all, so that the clients of a
/// restarted server do not come back in step.
#[derive(Debug)]
pub(crate) struct Backoff {
    min: Duration,
    max: Duration,
    failures: u32,
}

impl Backoff {
    pub fn new(min: Duration, max: Duration) -> Self {
        Backoff {
            min,
            max,
            failures: 0,
        }
    }

    /// After a connection that held.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    pub fn next_pause(&mut self) -> Duration {
        let full = self
            .min
            .saturating_mul(1 << self.failures.min(20))
            .min(self.max);
        self.failures = self.failures.saturating_add(1);
        full.mul_f64(0.5 + random_share() / 2.0)
    }
}

/// Uniform in 0..1. Each `RandomState` has keys of its own, and jitter needs
/// no better randomness than that.
fn random_share() -> f64 {
    let bits = RandomState::new().hash_one(0_u8) >> 11;
    bits as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_bound_and_keep_within_their_half() {
        let (min, max) = (Duration::from_millis(50), Duration::from_millis(300));
        let mut backoff = Backoff::new(min, max);
        for full_ms in [50, 100, 200, 300, 300] {
            let full = Duration::from_millis(full_ms);
            let pause = backoff.next_pause();
            assert!(pause >= full / 2 && pause <= full, "{pause:?} of {full:?}");
        }
        backoff.reset();
        assert!(backoff.next_pause() <= min);
        for _ in 0..100 {
            assert!(backoff.next_pause() <= max);
        }
    }

    #[test]
    fn jitter_differs_from_one_pause_to_the_next() {
        let shares: Vec<f64> = (0..50).map(|_| random_share()).collect();
        assert!(shares.iter().all(|share| (0.0..1.0).contains(share)));
        assert!(shares.iter().any(|share| *share != shares[0]));
    }
}
