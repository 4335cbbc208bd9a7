//! Which sequences were confirmed and which arrived, and what that means.
//!
//! Invariants:
//! 1. *Lost* = confirmed and never received. Nothing else is called lost.
//! 2. A second arrival is an unflagged duplicate only if both came without the
//!    redelivered flag; a flagged one is what the flag is for.

use serde::Serialize;

/// A growing set of sequence numbers, one bit each.
#[derive(Debug, Clone, Default)]
pub struct Bitmap {
    words: Vec<u64>,
}

/// Highest sequence a bitmap takes (256 MiB of bits): a payload that claims
/// more is damaged, and must not make us allocate.
pub const MAX_SEQUENCE: u64 = 1 << 31;

impl Bitmap {
    /// Adds `sequence`; true when it was there already. Ignores (and answers
    /// true for) one at or above [`MAX_SEQUENCE`].
    pub fn set(&mut self, sequence: u64) -> bool {
        if sequence >= MAX_SEQUENCE {
            return true;
        }
        let at = (sequence / 64) as usize;
        if at >= self.words.len() {
            // Far enough ahead that the hot path rarely grows it.
            self.words.resize((at + 1).next_power_of_two().max(1024), 0);
        }
        let bit = 1 << (sequence % 64);
        match self.words.get_mut(at) {
            Some(word) => {
                let was = *word & bit != 0;
                *word |= bit;
                was
            }
            None => true,
        }
    }

    pub fn contains(&self, sequence: u64) -> bool {
        self.words
            .get((sequence / 64) as usize)
            .is_some_and(|word| word >> (sequence % 64) & 1 == 1)
    }

    pub fn len(&self) -> u64 {
        self.words
            .iter()
            .map(|word| u64::from(word.count_ones()))
            .sum()
    }

    /// Adds all of `other`; returns how many were in both.
    pub fn merge(&mut self, other: &Bitmap) -> u64 {
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        let mut both = 0;
        for (mine, theirs) in self.words.iter_mut().zip(&other.words) {
            both += u64::from((*mine & theirs).count_ones());
            *mine |= theirs;
        }
        both
    }

    /// What is in `self` and in neither of `a` and `b`, in order.
    pub fn missing_from<'a>(
        &'a self,
        a: &'a Bitmap,
        b: &'a Bitmap,
    ) -> impl Iterator<Item = u64> + 'a {
        let word_of = |map: &Bitmap, at: usize| map.words.get(at).copied().unwrap_or(0);
        self.words.iter().enumerate().flat_map(move |(at, word)| {
            let missing = word & !word_of(a, at) & !word_of(b, at);
            (0..64)
                .filter(move |bit| missing >> bit & 1 == 1)
                .map(move |bit| at as u64 * 64 + bit)
        })
    }
}

/// What one consumer, or all of them together, saw of one producer.
#[derive(Debug, Clone, Default)]
pub struct Arrivals {
    unflagged: Bitmap,
    flagged: Bitmap,
    pub duplicates_unflagged: u64,
    /// Arrivals that carried the redelivered flag.
    pub redelivered: u64,
}

impl Arrivals {
    /// Notes one arrival; true when the sequence was not seen before.
    pub fn note(&mut self, sequence: u64, redelivered: bool) -> bool {
        if redelivered {
            self.redelivered += 1;
            return !self.flagged.set(sequence) && !self.unflagged.contains(sequence);
        }
        let again = self.unflagged.set(sequence);
        self.duplicates_unflagged += u64::from(again);
        !again && !self.flagged.contains(sequence)
    }

    /// Adds what another consumer saw of the same producer.
    pub fn merge(&mut self, other: &Arrivals) {
        self.duplicates_unflagged += other.duplicates_unflagged;
        self.duplicates_unflagged += self.unflagged.merge(&other.unflagged);
        self.flagged.merge(&other.flagged);
        self.redelivered += other.redelivered;
    }
}

/// The verdict over all producers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Confirmed and never received.
    pub lost: u64,
    /// The first few lost ones, as producer:sequence.
    pub lost_examples: Vec<String>,
    pub duplicates_unflagged: u64,
    pub redelivered_flagged: u64,
    /// Distinct records received.
    pub received_distinct: u64,
    /// Received though the publish was answered with outcome *failed*.
    pub phantoms: u64,
    pub order_breaks: u64,
    pub corrupt: u64,
}

impl Verdict {
    /// Judges one producer: what it was told against what arrived.
    pub fn add(&mut self, producer: u32, confirmed: &Bitmap, failed: &Bitmap, seen: &Arrivals) {
        for sequence in confirmed.missing_from(&seen.unflagged, &seen.flagged) {
            self.lost += 1;
            if self.lost_examples.len() < 5 {
                self.lost_examples.push(format!("{producer}:{sequence}"));
            }
        }
        let mut received = seen.unflagged.clone();
        received.merge(&seen.flagged);
        self.received_distinct += received.len();
        self.phantoms += received.clone().merge(failed);
        self.duplicates_unflagged += seen.duplicates_unflagged;
        self.redelivered_flagged += seen.redelivered;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set_of(sequences: impl IntoIterator<Item = u64>) -> Bitmap {
        let mut map = Bitmap::default();
        for sequence in sequences {
            map.set(sequence);
        }
        map
    }

    #[test]
    fn a_bitmap_remembers_and_bounds_itself() {
        let mut map = Bitmap::default();
        assert!(!map.set(100_000));
        assert!(map.set(100_000));
        assert!(!map.contains(99_999) && !map.contains(u64::MAX));
        assert!(map.set(u64::MAX), "refused, not allocated");
        assert_eq!(map.len(), 1);
    }

    #[test]
    fn lost_is_confirmed_and_never_received() {
        let mut seen = Arrivals::default();
        for sequence in (0..1000).filter(|sequence| *sequence != 77) {
            seen.note(sequence, sequence == 5);
        }
        let mut verdict = Verdict::default();
        verdict.add(2, &set_of((0..500).chain([2000])), &set_of([]), &seen);
        assert_eq!(verdict.lost_examples, ["2:77", "2:2000"]);
        assert_eq!((verdict.lost, verdict.received_distinct), (2, 999));
    }

    #[test]
    fn duplicates_are_told_apart_by_their_flag_also_across_consumers() {
        let (mut one, mut two) = (Arrivals::default(), Arrivals::default());
        assert!(one.note(1, false));
        assert!(!one.note(1, true), "flagged: allowed");
        assert!(!one.note(1, false), "unflagged twice");
        assert!(two.note(1, false), "unflagged again elsewhere");
        assert!(two.note(2, true));
        one.merge(&two);
        assert_eq!((one.duplicates_unflagged, one.redelivered), (2, 2));
        let mut verdict = Verdict::default();
        verdict.add(0, &set_of([1, 2]), &set_of([]), &one);
        assert_eq!((verdict.lost, verdict.received_distinct), (0, 2));
    }

    #[test]
    fn a_record_that_arrives_though_its_publish_failed_is_a_phantom() {
        let mut seen = Arrivals::default();
        seen.note(3, false);
        let mut verdict = Verdict::default();
        verdict.add(0, &set_of([]), &set_of([3, 4]), &seen);
        assert_eq!(verdict.phantoms, 1);
    }
}
