use crate::tape::{Source, Tape};

/// A small seeded generator (splitmix64).
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
    tape: Option<Source>,
}

impl Random {
    /// The same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Random {
            state: seed,
            tape: None,
        }
    }

    /// One whose numbers, and those of its forks, are written down on the tape,
    /// or taken from it where it knows them.
    pub fn on_tape(seed: u64, tape: &Tape) -> Self {
        Random {
            state: seed,
            tape: Some(tape.source()),
        }
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        match &self.tape {
            None => mixed,
            Some(tape) => tape.number(mixed),
        }
    }

    /// A number below `bound`, which is at least 1.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound.max(1)
    }

    /// True `times` out of `of`.
    pub fn chance(&mut self, times: u64, of: u64) -> bool {
        self.below(of) < times
    }

    /// One of `choices`, which is not empty.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// A generator of its own, for a part that must not disturb the rest.
    pub fn fork(&mut self) -> Random {
        Random {
            state: self.number(),
            tape: self.tape.as_ref().map(Source::fork),
        }
    }
}
