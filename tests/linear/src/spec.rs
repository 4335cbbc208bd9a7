//! What a partition of a queue is, one operation after the other.
//!
//! 1. Records stand at offsets in a row; each publish takes the next ones.
//! 2. A record can be seen while it is there and not settled.
//! 3. A settle that was confirmed is final, within its generation for one at written,
//!    for good for one at durable.
//! 4. A generation ends with a loss report: from `first_lost` on everything is gone, and
//!    nothing below. What was promised at durable is never among it.

use std::{cell::Cell, collections::BTreeMap, rc::Rc};

use todc_utils::specifications::Specification;

/// An operation, with what its client was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// The state where a stretch of a history begins.
    Begin(State),
    /// A publish took these offsets.
    Append {
        first: u64,
        count: u64,
        generation: u32,
        /// It was confirmed at durable.
        durable: bool,
        /// From here on offsets may be missing that nobody saw: the generation's loss
        /// report names them.
        lost_from: Option<u64>,
    },
    /// A record was delivered or peeked at. `durable`: the server said that it was.
    See {
        generation: u32,
        offset: u64,
        durable: bool,
    },
    /// An acknowledge or reject was confirmed.
    Settle {
        generation: u32,
        offset: u64,
        durable: bool,
    },
    /// Everything before it is durable, and below this offset.
    Barrier { generation: u32, durable_next: u64 },
    /// The generation ended, and another began.
    Cut {
        generation: u32,
        next_generation: u32,
        first_lost: u64,
    },
}

/// A partition.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub generation: u32,
    /// Exclusive end of its offsets.
    pub next: u64,
    /// Exclusive end of what was promised at durable.
    pub durable_next: u64,
    /// Settled offsets, and whether at durable.
    pub settled: Rc<BTreeMap<u64, bool>>,
}

impl Default for State {
    fn default() -> Self {
        State {
            generation: 1,
            next: 0,
            durable_next: 0,
            settled: Rc::default(),
        }
    }
}

impl State {
    /// The state behind an operation; `None` where it cannot happen.
    pub fn after(&self, op: &Op) -> Option<State> {
        let mut state = self.clone();
        let is_now = |generation: u32| generation == self.generation;
        match op {
            Op::Begin(begin) => state = begin.clone(),
            Op::Append {
                first,
                count,
                generation,
                durable,
                lost_from,
            } => {
                let lost = |from: u64| self.next >= from && *first > self.next;
                let fits = *first == self.next || lost_from.is_some_and(lost);
                if !fits || !is_now(*generation) {
                    return None;
                }
                state.next = first + count;
                if *durable {
                    state.durable_next = state.next;
                }
            }
            Op::See {
                generation,
                offset,
                durable,
            } => {
                let is_there = *offset < self.next && !self.settled.contains_key(offset);
                if !is_there || !is_now(*generation) {
                    return None;
                }
                if *durable {
                    state.durable_next = self.durable_next.max(offset + 1);
                }
            }
            Op::Settle {
                generation,
                offset,
                durable,
            } => {
                if *offset >= self.next || !is_now(*generation) {
                    return None;
                }
                let settled = Rc::make_mut(&mut state.settled);
                if settled.insert(*offset, *durable).is_some() {
                    return None;
                }
            }
            Op::Barrier {
                generation,
                durable_next,
            } => {
                if *durable_next < self.next || !is_now(*generation) {
                    return None;
                }
                state.durable_next = self.durable_next.max(*durable_next);
            }
            Op::Cut {
                generation,
                next_generation,
                first_lost,
            } => {
                let keeps = self.durable_next <= *first_lost && *first_lost <= self.next;
                if !keeps || !is_now(*generation) {
                    return None;
                }
                state.cut(*next_generation, *first_lost);
            }
        }
        Some(state)
    }

    /// A generation begins at `first_lost`; settles at written may have gone with the
    /// end of the one before.
    pub(crate) fn cut(&mut self, generation: u32, first_lost: u64) {
        self.generation = generation;
        self.next = first_lost;
        let settled = Rc::make_mut(&mut self.settled);
        settled.retain(|offset, durable| *durable && *offset < first_lost);
    }
}

thread_local! {
    static STEPS_LEFT: Cell<u64> = const { Cell::new(0) };
}

/// What the search panics with when it took too many steps: its caller catches it.
pub(crate) struct TooLong;

/// Lets the next search of this thread take so many steps.
pub(crate) fn allow_steps(steps: u64) {
    STEPS_LEFT.set(steps);
}

/// The specification, as the search takes it.
pub struct Queue;

impl Specification for Queue {
    type State = State;
    type Operation = Op;

    fn init() -> State {
        State::default()
    }

    fn apply(op: &Op, state: &State) -> (bool, State) {
        let left = STEPS_LEFT.get();
        if left == 0 {
            std::panic::resume_unwind(Box::new(TooLong));
        }
        STEPS_LEFT.set(left - 1);
        match state.after(op) {
            Some(after) => (true, after),
            None => (false, state.clone()),
        }
    }
}
