//! A failing run with as few events as it takes.
//!
//! The run is recorded, then repeated again and again with some of its events
//! left out, fewer at a time; what still breaks a promise is kept. Any broken
//! promise counts, not only the same one.
//!
//! 1. What is returned failed when it was last repeated, and does so again.
//! 2. Time is bounded: the best that was found by then is returned.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use super::{
    schedule::{Event, Listed, Schedule},
    settings::Settings,
    trace::Trace,
    world::World,
    Checked,
};
use crate::{tape::Tape, Random};

/// What is left of a failing run.
#[derive(Debug, Clone)]
pub struct Shrunk {
    /// The promise that it breaks.
    pub message: String,
    pub kept: Vec<Event>,
    /// Events of the whole run.
    pub of: usize,
    /// Runs that it took.
    pub runs: u64,
    /// False if time was over before no single event could go.
    pub least: bool,
    pub trace: Trace,
}

/// Takes events out of a failing run until no single one can go, or `patience`
/// is over. `None` if it does not fail.
pub fn shrink(seed: u64, scenario: &str, patience: Duration, tail: usize) -> Option<Shrunk> {
    let shrinking = Shrinking::record(seed, scenario, tail, |_| Ok(()))?;
    Some(shrinking.shrink(Instant::now() + patience))
}

/// Repeats a failing run with nothing but these events, by their numbers in the
/// whole run. `None` if nothing fails, in one of the two.
pub fn repeat(seed: u64, scenario: &str, kept: &BTreeSet<usize>, tail: usize) -> Option<Shrunk> {
    let mut shrinking = Shrinking::record(seed, scenario, tail, |_| Ok(()))?;
    let of = shrinking.best.events.len();
    shrinking.best = shrinking.attempt(kept)?;
    Some(shrinking.done(of, false))
}
/// A run that failed.
struct Failed {
    message: String,
    events: Vec<Event>,
    trace: Trace,
}

struct Shrinking {
    seed: u64,
    scenario: String,
    tail: usize,
    tape: Tape,
    recorded: Listed,
    best: Failed,
    runs: u64,
    /// One more promise, of the run's end.
    last: fn(&World) -> Checked<()>,
}

impl Shrinking {
    fn record(
        seed: u64,
        scenario: &str,
        tail: usize,
        last: fn(&World) -> Checked<()>,
    ) -> Option<Self> {
        let tape = Tape::blank(seed);
        let listed = Listed::record(&tape);
        let world = world_of(seed, scenario, &tape, listed, tail);
        let (failed, recorded) = run(world, last);
        Some(Shrinking {
            seed,
            scenario: scenario.to_owned(),
            tail,
            tape,
            best: failed?,
            recorded: recorded?,
            runs: 1,
            last,
        })
    }

    fn shrink(mut self, until: Instant) -> Shrunk {
        let of = self.best.events.len();
        self.without_quiet();
        let mut size = of.div_ceil(2);
        while size > 0 && Instant::now() < until {
            let less = self.pass(size, until);
            size = match size {
                1 if less => 1,
                size => size / 2,
            };
        }
        self.done(of, size == 0)
    }

    fn attempt(&mut self, kept: &BTreeSet<usize>) -> Option<Failed> {
        self.runs += 1;
        self.tape.rewind();
        let listed = self.recorded.repeat(kept);
        let world = world_of(self.seed, &self.scenario, &self.tape, listed, self.tail);
        run(world, self.last).0
    }

    /// Leaves out what had no effect.
    fn without_quiet(&mut self) {
        let told = self.best.events.iter().filter(|event| !event.quiet);
        let kept = told.map(|event| event.number).collect();
        if let Some(failed) = self.attempt(&kept) {
            self.best = failed;
        }
    }

    /// Tries to leave out each piece of `size` events; true if one could go.
    fn pass(&mut self, size: usize, until: Instant) -> bool {
        let mut less = false;
        // From the end: what comes after the fault matters least.
        let mut end = self.best.events.len();
        while end > 0 && Instant::now() < until {
            let start = end.saturating_sub(size);
            let numbers = self.best.events.iter().map(|event| event.number);
            let kept: BTreeSet<usize> = numbers
                .enumerate()
                .filter(|(at, _)| !(start..end).contains(at))
                .map(|(_, number)| number)
                .collect();
            end = start;
            if let Some(failed) = self.attempt(&kept) {
                // It may have failed earlier, too, with fewer events.
                self.best = failed;
                end = end.min(self.best.events.len());
                less = true;
            }
        }
        less
    }

    fn done(self, of: usize, least: bool) -> Shrunk {
        Shrunk {
            message: self.best.message,
            kept: self.best.events,
            of,
            runs: self.runs,
            least,
            trace: self.best.trace,
        }
    }
}

/// Before the run.
fn world_of(seed: u64, scenario: &str, tape: &Tape, listed: Listed, tail: usize) -> World {
    let mut random = Random::on_tape(seed, tape);
    let settings = Settings::draw(&mut random, scenario);
    let mut world = World::new(random, settings);
    world.trace = Trace::new(tail.max(LEAST_TAIL));
    world.schedule = Schedule::Listed(listed);
    world
}

/// How it failed, if it did, and its events.
fn run(mut world: World, last: fn(&World) -> Checked<()>) -> (Option<Failed>, Option<Listed>) {
    let lived = world.live_through().and_then(|()| last(&world));
    let message = lived.err();
    let World {
        schedule, trace, ..
    } = world;
    let listed = schedule.into_listed();
    let failed = message.map(|message| Failed {
        message,
        events: listed
            .as_ref()
            .map(|listed| listed.happened().to_vec())
            .unwrap_or_default(),
        trace,
    });
    (failed, listed)
}

/// An event is described by the lines of its step.
const LEAST_TAIL: usize = 64;

#[cfg(test)]
mod tests {
    use super::{super::run as run_plainly, *};

    const SEED: u64 = 19;
    const SCENARIO: &str = "power";

    fn shrunk(last: fn(&World) -> Checked<()>) -> Shrunk {
        let shrinking = Shrinking::record(SEED, SCENARIO, 0, last).expect("it fails");
        shrinking.shrink(Instant::now() + Duration::from_secs(600))
    }

    fn never(what: bool) -> Checked<()> {
        what.then_some(()).ok_or_else(|| "it happened".to_owned())
    }

    fn no_power_cut(world: &World) -> Checked<()> {
        never(world.node.power_cuts == 0)
    }

    fn no_confirm(world: &World) -> Checked<()> {
        never(world.summary().confirmed == 0)
    }

    #[test]
    fn a_recorded_run_is_the_run_of_its_seed() {
        let recorded = Shrinking::record(SEED, SCENARIO, 0, |_| never(false));
        let recorded = recorded.expect("it fails").best.trace;
        let plain = run_plainly(SEED, SCENARIO, 0).expect("no promise is broken");
        assert_eq!(
            (recorded.hash, recorded.lines),
            (plain.trace.hash, plain.trace.lines)
        );
    }

    #[test]
    fn what_clients_did_is_left_out_where_no_client_is_needed() {
        let shrunk = shrunk(no_power_cut);
        assert!(shrunk.least && shrunk.of > 50, "of {}", shrunk.of);
        let texts: Vec<_> = shrunk.kept.iter().map(|event| &event.text[..]).collect();
        assert_eq!(texts.last(), Some(&"a power cut"));
        // A death in an opening can be what the cut comes of.
        assert!(texts.len() <= 3, "{texts:?}");
    }

    #[test]
    fn what_is_left_fails_again_and_without_any_of_it_no_more() {
        let shrunk = shrunk(no_confirm);
        assert!(
            shrunk.least && shrunk.kept.len() * 10 < shrunk.of,
            "{:#?}",
            shrunk.kept
        );
        let told = |what| shrunk.kept.iter().any(|event| event.text.contains(what));
        assert!(told("Declare") && told("Publish"), "{:#?}", shrunk.kept);
        let numbers = shrunk.kept.iter().map(|event| event.number).collect();
        let mut again = Shrinking::record(SEED, SCENARIO, 0, no_confirm).expect("it fails");
        let repeated = again.attempt(&numbers).expect("it fails again");
        assert_eq!(repeated.trace.hash, shrunk.trace.hash);
        for number in &numbers {
            let mut less = numbers.clone();
            less.remove(number);
            assert!(again.attempt(&less).is_none(), "without {number}");
        }
    }
}
