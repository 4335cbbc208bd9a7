//! The model as the checker sees it.

use crate::heal::{heal, Healed};
use crate::promises::{self, Promise, PROMISES};
use crate::scope::Scope;
use crate::state::{Entry, Kind, Role, Standing, State};
use crate::step::{Action, World};
use stateright::{Model, Property};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Mutex;

/// A world, and which state first met each property: the checker would go on
/// replacing the shortest trace by later ones.
pub struct Spec {
    pub world: World,
    /// The only promise to look at, or all.
    pub only: Option<Promise>,
    /// One state in so many is healed; 0 for none.
    pub heal_every: u64,
    healed: AtomicU64,
    first: Mutex<Vec<(&'static str, State)>>,
}

impl Spec {
    pub fn new(world: World, only: Option<Promise>, heal_every: u64) -> Spec {
        Spec {
            world,
            only,
            heal_every,
            healed: AtomicU64::new(0),
            first: Mutex::new(Vec::new()),
        }
    }

    /// Whether this state is the first one to meet a property that it meets.
    fn first(&self, name: &'static str, state: &State) -> bool {
        let mut first = self.first.lock().unwrap_or_else(|e| e.into_inner());
        match first.iter().find(|(known, _)| *known == name) {
            Some((_, found)) => found == state,
            None => {
                first.push((name, *state));
                true
            }
        }
    }
}

/// The start: node 0 leads term 1, nothing is logged.
pub fn start(scope: &Scope) -> State {
    let mut node = crate::state::Node::new();
    node.weak = scope.weak;
    node.vote = 0;
    node.durable_vote = 0;
    let mut state = State {
        count: scope.replicas,
        nodes: [node; crate::state::NODES],
        group0: Default::default(),
        observer: Default::default(),
        left: scope.budget,
    };
    state.nodes[0].role = Role::Leader;
    state.nodes[0].released = true;
    if scope.one_removed {
        remove_last(&mut state);
    }
    state
}

/// The last node's first peer id was retired and removed; all the others know.
fn remove_last(state: &mut State) {
    let last = state.count - 1;
    let remove = Entry::new(Kind::Remove, 1, 0, last, 0);
    for node in &mut state.nodes[..usize::from(last)] {
        node.log.push(remove);
        node.written_next = 1;
        node.sync();
        (node.commit_next, node.conf_next) = (1, 1);
    }
    let node = &mut state.nodes[usize::from(last)];
    node.join = 1;
    node.standing = Standing::Learner;
}

impl Model for Spec {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![start(&self.world.scope)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // Nothing more is learned after a broken promise.
        if state.observer.broken == 0 && !promises::lost_is_back(state) {
            self.world.actions(state, actions);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        Some(self.world.after(state, action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = vec![
            kept::<0>(),
            kept::<1>(),
            kept::<2>(),
            kept::<3>(),
            kept::<4>(),
            kept::<5>(),
        ];
        if self.heal_every > 0 {
            all.push(Property::always(HEALS, heals));
        }
        all.extend(milestones(&self.world.scope));
        all
    }
}

/// The promise of that number is kept.
fn kept<const N: usize>() -> Property<Spec> {
    let (_, name) = PROMISES[N];
    Property::always(name, |spec: &Spec, state: &State| {
        let (promise, name) = PROMISES[N];
        let lie = promise == Promise::ReportExact && promises::lost_is_back(state);
        let broken = lie || promises::is_broken(state, promise);
        let wanted = spec.only.is_none_or(|only| only == promise);
        !(broken && wanted && spec.first(name, state))
    })
}

const HEALS: &str = "P5 with everybody back there is a way to a durable confirm";

fn heals(spec: &Spec, state: &State) -> bool {
    let due = spec
        .healed
        .fetch_add(1, Relaxed)
        .is_multiple_of(spec.heal_every);
    if !due || state.observer.broken != 0 {
        return true;
    }
    let stuck = matches!(heal(&spec.world, state), Healed::Stuck(_));
    !(stuck && spec.first(HEALS, state))
}

const WRITTEN: &str = "P5 a record is confirmed at written";
const DURABLE: &str = "P5 a record is confirmed at durable";
const POWER: &str = "P5 after all power cuts a later leader confirms at durable";
const LOSS: &str = "P5 a loss is reported";
const GENERATION: &str = "P5 a new generation confirms";
const REPLACED: &str = "P5 a promoted replacement leads and confirms";

/// P5: what must stay possible within the bounds.
fn milestones(scope: &Scope) -> Vec<Property<Spec>> {
    let mut all = vec![Property::sometimes(
        DURABLE,
        |spec: &Spec, state: &State| {
            state.observer.confirmed.iter().any(|c| c.durable) && spec.first(DURABLE, state)
        },
    )];
    if scope.weak || scope.budget.weakens > 0 {
        all.push(Property::sometimes(
            WRITTEN,
            |spec: &Spec, state: &State| {
                state.observer.confirmed.iter().any(|c| c.written) && spec.first(WRITTEN, state)
            },
        ));
    }
    if scope.budget.power_cuts > 0 && scope.terms > 1 {
        all.push(Property::sometimes(POWER, |spec: &Spec, state: &State| {
            let later = state
                .observer
                .confirmed
                .iter()
                .any(|c| c.durable && c.term > 1);
            later && state.left.power_cuts == 0 && spec.first(POWER, state)
        }));
    }
    if scope.recovery && scope.weak {
        all.push(Property::sometimes(LOSS, |spec: &Spec, state: &State| {
            state.observer.lost.iter().any(|e| e.0 != 0) && spec.first(LOSS, state)
        }));
    }
    if scope.recovery && scope.weak && scope.terms > 1 {
        all.push(Property::sometimes(
            GENERATION,
            |spec: &Spec, state: &State| {
                let base = usize::from(state.group0.base.len());
                let later = state
                    .observer
                    .confirmed
                    .iter()
                    .skip(base)
                    .any(|c| c.durable);
                state.group0.generation > 0 && later && spec.first(GENERATION, state)
            },
        ));
    }
    if scope.membership {
        all.push(Property::sometimes(
            REPLACED,
            |spec: &Spec, state: &State| {
                let mut leaders = state.observer.confirmer.iter().filter(|by| **by != 0);
                let replaced = leaders.any(|by| state.nodes[usize::from(*by - 1)].join > 0);
                replaced && spec.first(REPLACED, state)
            },
        ));
    }
    all
}
