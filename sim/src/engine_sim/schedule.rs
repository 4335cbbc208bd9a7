//! What clients do and what goes wrong in a run, as a list of events that can be
//! left out one by one.
//!
//! A run that is only made asks nothing of this. One that is recorded numbers
//! its events; one that is repeated has only those that it is to keep. In both
//! every draw is on a [`Tape`], so that the events that stay are what they were.
//!
//! 1. A recorded run is the run of that seed, bit for bit.
//! 2. An event is known by its scene and its place among those of the scene.

use std::collections::{BTreeMap, BTreeSet};

use super::world::{Happening, World};
use crate::tape::{Scene, Tape};

/// Something that can be left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// In the order of the recorded run, from 0.
    pub number: usize,
    /// Simulated time.
    pub at_us: u64,
    pub text: String,
    /// A client came to act, and the trace has nothing of it.
    pub quiet: bool,
}

type Id = (Scene, u32);

#[derive(Default)]
pub(super) enum Schedule {
    /// Every event happens, and none is noted.
    #[default]
    Plain,
    Listed(Listed),
}

/// A run whose events are noted.
pub(super) struct Listed {
    tape: Tape,
    scene: Scene,
    /// Events of this scene so far.
    events: u32,
    /// Scenes of this life so far, by what happened to whom.
    seen: BTreeMap<(&'static str, u64), u64>,
    /// Numbers of the recorded run's events; grows while it is recorded.
    numbers: BTreeMap<Id, usize>,
    /// What happens, by number; `None`: everything.
    kept: Option<BTreeSet<usize>>,
    happened: Vec<Event>,
}

impl Schedule {
    /// The events of the recorded run, once it is over.
    pub fn into_listed(self) -> Option<Listed> {
        match self {
            Schedule::Plain => None,
            Schedule::Listed(listed) => Some(listed),
        }
    }
}

impl Listed {
    pub fn record(tape: &Tape) -> Self {
        Listed {
            tape: tape.clone(),
            scene: Scene {
                life: 0,
                what: "before",
                whose: 0,
                nth: 0,
            },
            events: 0,
            seen: BTreeMap::new(),
            numbers: BTreeMap::new(),
            kept: None,
            happened: Vec::new(),
        }
    }

    /// The same run with nothing but these of its events.
    pub fn repeat(&self, kept: &BTreeSet<usize>) -> Self {
        Listed {
            numbers: self.numbers.clone(),
            kept: Some(kept.clone()),
            ..Listed::record(&self.tape)
        }
    }

    /// What happened, in order.
    pub fn happened(&self) -> &[Event] {
        &self.happened
    }

    fn enter(&mut self, life: u64, what: &'static str, whose: u64) {
        if self.scene.life != life {
            self.seen.clear();
        }
        let seen = self.seen.entry((what, whose)).or_default();
        let nth = *seen;
        *seen += 1;
        self.scene = Scene {
            life,
            what,
            whose,
            nth,
        };
        self.events = 0;
        self.tape.enter(self.scene);
    }

    fn asks(&mut self, at_us: u64, text: String) -> bool {
        let id = (self.scene, self.events);
        self.events += 1;
        let number = match &self.kept {
            None => {
                let number = self.numbers.len();
                self.numbers.insert(id, number);
                number
            }
            Some(kept) => match self.numbers.get(&id) {
                Some(number) if kept.contains(number) => *number,
                // Left out, or none of the recorded run's.
                _ => return false,
            },
        };
        self.happened.push(Event {
            number,
            at_us,
            text,
            quiet: false,
        });
        true
    }
}

impl World {
    /// From here on this happens, to a shard or a client.
    pub(super) fn enter(&mut self, what: &'static str, whose: u64) {
        if let Schedule::Listed(listed) = &mut self.schedule {
            listed.enter(self.lived, what, whose);
        }
    }

    pub(super) fn enter_happening(&mut self, what: &Happening) {
        if let Schedule::Listed(listed) = &mut self.schedule {
            let (what, whose) = what.scene();
            listed.enter(self.lived, what, whose);
        }
    }

    /// Whether an event that the run has come to is to happen.
    pub(super) fn happens(&mut self, text: impl FnOnce() -> String) -> bool {
        match &mut self.schedule {
            Schedule::Plain => true,
            Schedule::Listed(listed) => listed.asks(self.now_us, text()),
        }
    }

    /// Adds to the last event what the trace tells of it since it had `lines` lines.
    pub(super) fn describe_event(&mut self, lines: u64) {
        let Schedule::Listed(listed) = &mut self.schedule else {
            return;
        };
        let Some(event) = listed.happened.last_mut() else {
            return;
        };
        event.quiet = self.trace.lines == lines;
        for line in self.trace.since(lines) {
            // Without the time, which the event has.
            let line = line.trim_start().split_once(' ').map_or("", |line| line.1);
            event.text = format!("{}; {line}", event.text);
        }
    }

    /// Counts a fault that was injected.
    pub(super) fn count(&mut self, fault: &'static str) {
        *self.faults.entry(fault).or_default() += 1;
    }
}

impl Happening {
    /// What it is, and whose.
    fn scene(&self) -> (&'static str, u64) {
        match self {
            Happening::Turn { shard } => ("turn", u64::from(*shard)),
            Happening::Timer { shard, .. } => ("timer", u64::from(*shard)),
            Happening::Boot { shard } => ("boot", u64::from(*shard)),
            Happening::Written { shard, .. } => ("written", u64::from(*shard)),
            Happening::Synced { shard, .. } => ("synced", u64::from(*shard)),
            Happening::Prepare { shard, .. } => ("prepare", u64::from(*shard)),
            Happening::Prepared { shard, .. } => ("prepared", u64::from(*shard)),
            Happening::Read { shard, .. } => ("read", u64::from(*shard)),
            Happening::Store { shard, .. } => ("store", u64::from(*shard)),
            Happening::Stored { shard, .. } => ("stored", u64::from(*shard)),
            Happening::Mail { from, to, .. } => ("mail", u64::from(*from) << 16 | u64::from(*to)),
            Happening::TakeOutput { conn } => ("output", u64::from(conn.shard())),
            Happening::Arrive { conn } => ("arrive", u64::from(conn.shard())),
            Happening::HungUp { conn } => ("hung up", u64::from(conn.shard())),
            Happening::Act { client } => ("act", *client as u64),
            Happening::RecordLatch { shard } => ("record latch", u64::from(*shard)),
            Happening::Reopen { shard, .. } => ("reopen", u64::from(*shard)),
            Happening::Replace { shard } => ("replace", u64::from(*shard)),
            Happening::Amnesia { shard, .. } => ("amnesia", u64::from(*shard)),
            Happening::Drain { shard, .. } => ("drain", u64::from(*shard)),
            Happening::Fault(_) => ("fault", 0),
        }
    }
}
