//! The numbers of a run, by what drew them: so that the run can be repeated
//! with something left out, and the rest of it draws what it drew.
//!
//! A draw is known by its scene (what happens, to whom, for which time in this
//! life: the caller names it), by the generator, and by its place among those
//! that this generator drew in this scene.
//!
//! 1. Recording changes no number.
//! 2. Replaying repeats what is known. What is not comes from the seed and the
//!    draw's name alone, not from what was drawn before: leaving out something
//!    without effect changes nothing.
//! 3. So a replay is a run too, bit for bit repeatable.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

/// What draws: life, what happens, to whom, for which time in this life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scene {
    pub life: u64,
    pub what: &'static str,
    pub whose: u64,
    pub nth: u64,
}

const BEFORE: Scene = Scene {
    life: 0,
    what: "before",
    whose: 0,
    nth: 0,
};

/// See the module head. Clones are one tape.
#[derive(Debug, Clone)]
pub struct Tape(Rc<RefCell<Numbers>>);

#[derive(Debug)]
struct Numbers {
    seed: u64,
    replays: bool,
    scene: Scene,
    sources: u32,
    /// By scene and generator.
    known: HashMap<(Scene, u32), Vec<u64>>,
    /// How many each generator has drawn in this scene.
    drawn: HashMap<u32, usize>,
}

impl Tape {
    /// An empty one, to record the run of `seed` on.
    pub fn blank(seed: u64) -> Self {
        Tape(Rc::new(RefCell::new(Numbers {
            seed,
            replays: false,
            scene: BEFORE,
            sources: 0,
            known: HashMap::new(),
            drawn: HashMap::new(),
        })))
    }

    /// To the start, to replay what was recorded.
    pub fn rewind(&self) {
        let mut numbers = self.0.borrow_mut();
        numbers.replays = true;
        numbers.scene = BEFORE;
        numbers.sources = 0;
        numbers.drawn.clear();
    }

    /// What is drawn from here on belongs to this scene.
    pub fn enter(&self, scene: Scene) {
        let mut numbers = self.0.borrow_mut();
        numbers.scene = scene;
        numbers.drawn.clear();
    }

    pub(crate) fn source(&self) -> Source {
        let mut numbers = self.0.borrow_mut();
        numbers.sources += 1;
        Source {
            tape: self.clone(),
            number: numbers.sources,
        }
    }
}

/// One generator's part of a tape.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    tape: Tape,
    number: u32,
}

impl Source {
    pub(crate) fn fork(&self) -> Source {
        self.tape.source()
    }

    /// The number that counts, where the generator itself says `own`.
    pub(crate) fn number(&self, own: u64) -> u64 {
        let numbers = &mut *self.tape.0.borrow_mut();
        let drawn = numbers.drawn.entry(self.number).or_default();
        let at = *drawn;
        *drawn += 1;
        let key = (numbers.scene, self.number);
        if numbers.replays {
            let known = numbers.known.get(&key).and_then(|known| known.get(at));
            return known.copied().unwrap_or_else(|| {
                let mut hasher = DefaultHasher::new();
                (numbers.seed, key, at).hash(&mut hasher);
                hasher.finish()
            });
        }
        numbers.known.entry(key).or_default().push(own);
        own
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    fn scene(nth: u64) -> Scene {
        Scene { nth, ..BEFORE }
    }

    fn draw(random: &mut Random, count: usize) -> Vec<u64> {
        (0..count).map(|_| random.number()).collect()
    }

    #[test]
    fn a_scene_draws_again_what_it_drew_whatever_else_is_left_out() {
        let tape = Tape::blank(5);
        let mut random = Random::on_tape(5, &tape);
        let mut fork = random.fork();
        let mut plain = Random::new(5);
        let mut plain_fork = plain.fork();
        tape.enter(scene(1));
        let first = draw(&mut random, 3);
        assert_eq!(first, draw(&mut plain, 3), "recording changes nothing");
        tape.enter(scene(2));
        let second = draw(&mut random, 3);
        let of_fork = draw(&mut fork, 2);
        assert_eq!(of_fork, draw(&mut plain_fork, 2));

        tape.rewind();
        let mut random = Random::on_tape(5, &tape);
        let mut fork = random.fork();
        tape.enter(scene(2));
        assert_eq!(draw(&mut fork, 2), of_fork);
        assert_eq!(draw(&mut random, 3), second);
    }

    #[test]
    fn what_was_never_drawn_depends_on_nothing_that_was_drawn_before() {
        let tape = Tape::blank(5);
        draw(&mut Random::on_tape(5, &tape), 1);
        let replayed = |before: usize| {
            tape.rewind();
            let mut random = Random::on_tape(5, &tape);
            tape.enter(scene(1));
            draw(&mut random, before);
            tape.enter(scene(2));
            draw(&mut random, 2)
        };
        let numbers = replayed(0);
        assert_ne!(numbers[0], numbers[1]);
        assert_eq!(replayed(7), numbers);
    }
}
