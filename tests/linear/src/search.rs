//! One search: whether operations can be put in order, from a state.

use std::panic::{catch_unwind, AssertUnwindSafe};

use todc_utils::linearizability::{
    history::{Action, History as Actions},
    WGLChecker,
};

use crate::{
    spans::Span,
    spec::{allow_steps, Op, Queue, State},
};

/// Steps that a search may take for each of its operations: one whose history is in
/// order takes a few.
const STEPS: u64 = 200;
/// Steps that any search may take.
const LEAST_STEPS: u64 = 20_000;
/// Operations that a violation shows.
const SHOWN: usize = 12;

/// # Errors
/// There is no order, and around what.
pub(crate) fn search(state: &State, stretch: &[&Span]) -> Result<(), String> {
    if is_linearizable(state, stretch, u64::MAX) {
        return Ok(());
    }
    // The earliest answer up to which there is no order either.
    let mut ends: Vec<u64> = stretch.iter().map(|span| span.to_us).collect();
    ends.sort_unstable();
    ends.dedup();
    let first = ends.partition_point(|end| is_linearizable(state, stretch, *end));
    let end = ends.get(first).copied().unwrap_or(u64::MAX);
    let open = |span: &&&Span| span.from_us <= end && span.to_us >= end;
    let around: Vec<&&Span> = stretch.iter().filter(open).take(SHOWN).collect();
    Err(format!(
        "no order explains what clients were told up to {end}, from {state:?}: {around:#?}"
    ))
}

/// Whether what was answered by `until_us` can be put in order. What was published
/// and not answered by then may have happened.
fn is_linearizable(state: &State, stretch: &[&Span], until_us: u64) -> bool {
    let mut actions = Vec::with_capacity(2 * stretch.len());
    for (at, span) in stretch.iter().enumerate() {
        let is_append = matches!(span.op, Op::Append { .. } | Op::Cut { .. });
        let answered = span.to_us <= until_us;
        if span.from_us <= until_us && (answered || is_append) {
            let to_us = if answered { span.to_us } else { u64::MAX };
            actions.push((span.from_us, false, at + 1, span.op.clone()));
            actions.push((to_us, true, at + 1, span.op.clone()));
        }
    }
    let steps = LEAST_STEPS + STEPS * actions.len() as u64;
    // Calls first where times are equal: those overlap.
    actions.sort_by_key(|(at_us, answer, ..)| (*at_us, *answer));
    let begin = Op::Begin(state.clone());
    let begin = [
        (0, Action::Call(begin.clone())),
        (0, Action::Response(begin)),
    ];
    let rest = actions.into_iter().map(|(_, answer, process, op)| {
        let action = match answer {
            true => Action::Response(op),
            false => Action::Call(op),
        };
        (process, action)
    });
    let actions = Actions::from_actions(begin.into_iter().chain(rest).collect());
    allow_steps(steps);
    // Nothing of the search is used after a panic: it says that it took too long.
    catch_unwind(AssertUnwindSafe(|| {
        WGLChecker::<Queue>::is_linearizable(actions)
    }))
    .unwrap_or(false)
}
