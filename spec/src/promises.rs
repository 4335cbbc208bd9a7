//! What must never happen, as seen by an observer who knows everything.

use crate::gates;
use crate::state::{Confirmed, Entry, State};
use crate::step::World;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boundary {
    Written,
    Durable,
}

/// A promise; its number is its bit in `Observer::broken`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Promise {
    /// P1: what was confirmed at durable on W copies is never lost.
    DurableNeverLost,
    /// P2: what was confirmed at written is lost only with a new generation, and if
    /// every node of its written set lost power or was declared gone.
    WrittenLostOnlyWithItsCopies,
    /// P2: below `first_lost` all is present, from there on all is gone; no offset of
    /// a generation maps to two entries.
    ReportExact,
    /// P3: one node confirms in a term, and none in a generation that has ended.
    OneLeaderConfirms,
    /// P4: no vote and no acknowledgement counts under a retired peer id.
    RetiredNeverCounts,
    /// A confirm's copies are there, but for those whose loss nobody told the leader.
    CopiesHonest,
}

/// Every promise, with the name that reports use.
pub const PROMISES: &[(Promise, &str)] = &[
    (
        Promise::DurableNeverLost,
        "P1 nothing confirmed at durable is lost",
    ),
    (
        Promise::WrittenLostOnlyWithItsCopies,
        "P2 written: lost only with all its copies, and never silently",
    ),
    (Promise::ReportExact, "P2 the loss report is exact"),
    (
        Promise::OneLeaderConfirms,
        "P3 one leader confirms per term, none in an ended generation",
    ),
    (
        Promise::RetiredNeverCounts,
        "P4 a retired peer id never counts",
    ),
    (Promise::CopiesHonest, "copies of a confirm are there"),
];

pub fn break_promise(state: &mut State, promise: Promise) {
    state.observer.broken |= 1 << promise as u8;
}

pub fn is_broken(state: &State, promise: Promise) -> bool {
    state.observer.broken & 1 << promise as u8 != 0
}

fn lose(state: &mut State, seen: Confirmed) {
    let promise = if seen.durable {
        Promise::DurableNeverLost
    } else {
        Promise::WrittenLostOnlyWithItsCopies
    };
    break_promise(state, promise);
}

/// Leader completeness: whoever is elected holds what was confirmed in earlier terms.
pub fn check_leader(state: &mut State, id: usize) {
    let node = state.nodes[id];
    if node.generation < state.group0.generation {
        return;
    }
    let seen = state.observer.confirmed;
    for (index, seen) in seen.iter().enumerate() {
        let confirmed = (seen.written || seen.durable) && seen.term < node.term;
        if confirmed && node.log.get(index as u8) != Some(seen.entry) {
            lose(state, *seen);
        }
    }
}

/// The report of a new generation, `first_lost`, against what was confirmed and what
/// the winner holds. What is reported as gone is forgotten as confirmed.
pub fn check_recovery(state: &mut State, winner: usize, first_lost: u8) {
    let log = state.nodes[winner].log;
    for index in 0..state.observer.confirmed.len() {
        let seen = state.observer.confirmed[index];
        if !seen.written && !seen.durable {
            continue;
        }
        let present = log.get(index as u8) == Some(seen.entry);
        if (index as u8) < first_lost {
            if !present {
                break_promise(state, Promise::ReportExact);
                lose_unless_all_cut(state, seen);
            }
            continue;
        }
        lose_unless_all_cut(state, seen);
        state.observer.lost[index] = seen.entry;
        state.observer.confirmed[index] = Confirmed::default();
    }
}

fn lose_unless_all_cut(state: &mut State, seen: Confirmed) {
    if seen.durable || seen.holders != 0 {
        lose(state, seen);
    }
}

/// A leader confirms the entry at an index, counting these nodes' copies.
pub fn confirmed(
    world: &World,
    state: &mut State,
    leader: usize,
    index: u8,
    boundary: Boundary,
    copies: u8,
) {
    let node = state.nodes[leader];
    let Some(entry) = node.log.get(index) else {
        return;
    };
    let seen = state.observer.confirmed[usize::from(index)];
    let written = boundary == Boundary::Written;
    let before = if written { seen.written } else { seen.durable };
    if !before && told_of_fewer(world, state, leader, index, boundary, copies) {
        break_promise(state, Promise::CopiesHonest);
    }
    let by = leader as u8 + 1;
    let confirmer = &mut state.observer.confirmer[usize::from(node.term)];
    if *confirmer != 0 && *confirmer != by {
        break_promise(state, Promise::OneLeaderConfirms);
    } else {
        *confirmer = by;
    }
    let holders = if written {
        holders(state, leader, index, copies)
    } else {
        0
    };
    if node.generation < state.group0.generation {
        let seen = Confirmed {
            entry,
            written,
            durable: !written,
            term: node.term,
            holders,
        };
        return confirmed_late(state, leader, index, seen);
    }
    let known = seen.written || seen.durable;
    if known && seen.entry != entry {
        break_promise(state, Promise::ReportExact);
        return lose(state, seen);
    }
    let seen = &mut state.observer.confirmed[usize::from(index)];
    if !known {
        (seen.entry, seen.term) = (entry, node.term);
    }
    if written && !seen.written {
        seen.holders = holders;
    }
    seen.written |= written;
    seen.durable |= !written;
}

/// A confirm in a generation that has ended. Only a node that was declared gone can
/// still be there; what it confirms must be kept, or covered by the report.
fn confirmed_late(state: &mut State, leader: usize, index: u8, seen: Confirmed) {
    if state.group0.forgotten & 1 << leader == 0 {
        break_promise(state, Promise::OneLeaderConfirms);
    }
    let base = &state.group0.base;
    if base.get(index) == Some(seen.entry) {
        return;
    }
    if index < base.len() {
        break_promise(state, Promise::ReportExact);
    }
    lose_unless_all_cut(state, seen);
}

/// Which of the counted copies are there now, under the peer id they were counted for.
fn holders(state: &State, leader: usize, index: u8, copies: u8) -> u8 {
    let (entry, conf) = (state.nodes[leader].log.get(index), state.conf(leader));
    let holds = |n: &usize| {
        let node = &state.nodes[*n];
        let counted = copies & 1 << n != 0 && conf[*n] == Some(node.join);
        counted && node.on && node.log.get(index) == entry && state.group0.forgotten & 1 << n == 0
    };
    state.ids().filter(holds).fold(0, |set, n| set | 1 << n)
}

/// Whether the leader has been told that fewer copies than W exist.
fn told_of_fewer(
    world: &World,
    state: &State,
    leader: usize,
    index: u8,
    boundary: Boundary,
    copies: u8,
) -> bool {
    let node = &state.nodes[leader];
    let entry = node.log.get(index);
    let real = state.ids().filter(|n| {
        let copy = &state.nodes[*n];
        let frontier = if boundary == Boundary::Written {
            copy.written_next
        } else {
            copy.durable_next
        };
        let there = copy.log.get(index) == entry && frontier > index;
        copies & 1 << n != 0 && (there || node.known_retired & 1 << n == 0 && *n != leader)
    });
    real.count() < gates::copies_needed(world, state, leader, boundary)
}

/// Whether the entry at an index is confirmed at durable.
pub fn is_confirmed_durable(state: &State, index: u8) -> bool {
    let seen = state.observer.confirmed.get(usize::from(index));
    seen.is_some_and(|seen| seen.durable)
}

/// Whether something that was reported as gone is there in the new generation.
pub fn lost_is_back(state: &State) -> bool {
    let present = |index: usize, entry: Entry| {
        state.ids().any(|n| {
            let node = &state.nodes[n];
            node.generation == state.group0.generation && node.log.get(index as u8) == Some(entry)
        })
    };
    let mut lost = state
        .observer
        .lost
        .iter()
        .enumerate()
        .filter(|(_, e)| e.0 != 0);
    state.group0.generation > 0 && lost.any(|(index, entry)| present(index, *entry))
}
