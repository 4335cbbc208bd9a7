//! From a history to searches, and what they say.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::{
    history::{History, Key, Outcome, Part},
    search::search,
    spans::{Batch, Span, Spans},
    spec::{Op, State},
};

/// What was checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Checked {
    pub partitions: u64,
    pub operations: u64,
    /// Searches.
    pub searches: u64,
    /// Operations of the longest one.
    pub longest: u64,
    /// Publishes whose outcome was unknown, and those of them whose records were seen.
    pub unknown: u64,
    pub unknown_seen: u64,
    /// Generations that ended with a loss report.
    pub cuts: u64,
}

impl Checked {
    /// Adds what another history had.
    pub fn add(&mut self, other: &Checked) {
        self.partitions += other.partitions;
        self.operations += other.operations;
        self.searches += other.searches;
        self.longest = self.longest.max(other.longest);
        self.unknown += other.unknown;
        self.unknown_seen += other.unknown_seen;
        self.cuts += other.cuts;
    }

    fn search(&mut self, state: &State, stretch: &[&Span]) -> Result<(), String> {
        self.searches += 1;
        self.longest = self.longest.max(stretch.len() as u64);
        search(state, stretch)
    }
}

/// A history that is no history of a queue.
#[derive(Debug, Clone)]
pub struct Violation {
    pub key: Key,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "partition {:?}: {}", self.key, self.what)
    }
}

impl History {
    /// Checks every partition.
    ///
    /// # Errors
    /// The first one whose operations cannot be put in order.
    pub fn check(&self) -> Result<Checked, Violation> {
        self.check_parts(false)
    }

    /// The same for a run that is not over: what nobody saw yet may have taken offsets, and
    /// nothing is missing yet. A partition of which a generation ended without a report
    /// so far is left out.
    ///
    /// # Errors
    /// As [`History::check`].
    pub fn check_so_far(&self) -> Result<Checked, Violation> {
        self.check_parts(true)
    }

    fn check_parts(&self, goes_on: bool) -> Result<Checked, Violation> {
        let mut sum = Checked::default();
        for (key, part) in &self.parts {
            let checked = check_part(part, goes_on);
            let checked = checked.map_err(|what| Violation { key: *key, what })?;
            sum.add(&checked);
        }
        Ok(sum)
    }
}

fn check_part(part: &Part, goes_on: bool) -> Result<Checked, String> {
    let mut spans = Spans::of(part)?;
    if goes_on {
        let known: BTreeSet<u32> = spans.all().map(|span| span.generation).collect();
        if known.len() > spans.cuts.len() + 1 {
            return Ok(Checked::default());
        }
        spans.allow_holes();
    }
    let mut checked = Checked {
        partitions: 1,
        operations: spans.all().count() as u64,
        cuts: part.losses.len() as u64,
        ..Checked::default()
    };
    let seen: BTreeSet<u64> = part.seen.iter().map(|seen| seen.id).collect();
    for publish in part.publishes.values() {
        if publish.outcome == Outcome::Unknown {
            let mut ids = publish.first_id..publish.first_id + publish.count;
            checked.unknown += 1;
            checked.unknown_seen += u64::from(ids.any(|id| seen.contains(&id)));
        }
    }
    let first = spans.all().map(|span| span.generation).min();
    let first = first.or(part.ended.map(|ended| ended.generation));
    let mut state = State {
        generation: first.unwrap_or(1),
        ..State::default()
    };
    for stretch in stretches(&spans) {
        checked.search(&state, &stretch)?;
        carry(&mut state, &stretch);
    }
    for batch in spans.batches.iter().filter(|batch| !batch.rest.is_empty()) {
        check_batch(batch, &spans.cuts, &mut checked)?;
    }
    if !goes_on {
        end(part, &state, &seen)?;
    }
    Ok(checked)
}

/// A publish and what became of its records.
fn check_batch(batch: &Batch, cuts: &[Span], checked: &mut Checked) -> Result<(), String> {
    let state = State {
        generation: batch.append.generation,
        next: batch.first,
        ..State::default()
    };
    let mut next = batch.end;
    let mut clipped = Vec::new();
    for cut in cuts {
        let Op::Cut {
            generation,
            next_generation,
            first_lost,
        } = cut.op
        else {
            continue;
        };
        if generation < batch.append.generation {
            continue;
        }
        // Nothing else is in this history.
        next = first_lost.clamp(batch.first, next);
        clipped.push(Span {
            op: Op::Cut {
                generation,
                next_generation,
                first_lost: next,
            },
            ..cut.clone()
        });
    }
    let all = [&batch.append].into_iter().chain(&batch.rest);
    let all: Vec<&Span> = all.chain(&clipped).collect();
    checked.search(&state, &all)
}

/// The log's operations, cut where everything before was over, whatever the order.
fn stretches(spans: &Spans) -> Vec<Vec<&Span>> {
    let appends = spans.batches.iter().map(|batch| &batch.append);
    let mut ordered: Vec<&Span> = appends.chain(&spans.cuts).collect();
    let place = |span: &&Span| match span.op {
        Op::Append { first, .. } => (span.generation, first),
        _ => (span.generation, u64::MAX),
    };
    ordered.sort_by_key(place);
    let gaps = gaps_of(&ordered, &spans.barriers);
    let mut found: Vec<Vec<&Span>> = Vec::new();
    let mut begin = 0;
    for end in gaps.values().copied().chain([ordered.len()]) {
        found.extend(ordered.get(begin..end).map(<[&Span]>::to_vec));
        begin = end;
    }
    for barrier in &spans.barriers {
        // The last stretch that begins before it is over.
        let at = gaps.range(..=barrier.to_us).count();
        if let Some(stretch) = found.get_mut(at) {
            stretch.push(barrier);
        }
    }
    found.retain(|stretch| !stretch.is_empty());
    found
}

/// Where the ordered log can be cut: when what is behind begins, and from where on.
fn gaps_of(ordered: &[&Span], barriers: &[Span]) -> BTreeMap<u64, usize> {
    // Each begins no earlier than what stands in front, and is over no later than what
    // stands behind it.
    let mut begun: Vec<u64> = ordered.iter().map(|span| span.from_us).collect();
    let mut over: Vec<u64> = ordered.iter().map(|span| span.to_us).collect();
    let mut most = 0;
    for from_us in &mut begun {
        most = most.max(*from_us);
        *from_us = most;
    }
    let mut least = u64::MAX;
    for to_us in over.iter_mut().rev() {
        least = least.min(*to_us);
        *to_us = least;
    }
    if begun.iter().zip(&over).any(|(begun, over)| begun > over) {
        // There is no such order; the search is to say so, in one piece.
        return BTreeMap::new();
    }
    let mut gaps = BTreeMap::new();
    for ((at, begun), before) in begun.iter().enumerate().skip(1).zip(&over) {
        // A barrier across the gap belongs to neither side.
        let across = |barrier: &Span| barrier.from_us <= *before && barrier.to_us >= *begun;
        if before < begun && !barriers.iter().any(across) {
            gaps.insert(*begun, at);
        }
    }
    gaps
}

/// The log behind a stretch that can be put in order: whatever the order, it is this.
fn carry(state: &mut State, stretch: &[&Span]) {
    let mut ordered = stretch.to_vec();
    let is_cut = |span: &Span| matches!(span.op, Op::Cut { .. });
    ordered.sort_by_key(|span| (span.generation, is_cut(span)));
    for span in ordered {
        match &span.op {
            Op::Append {
                first,
                count,
                durable,
                ..
            } => {
                state.next = state.next.max(first + count);
                if *durable {
                    state.durable_next = state.durable_next.max(first + count);
                }
            }
            Op::Barrier { durable_next, .. } => {
                state.durable_next = state.durable_next.max(*durable_next);
            }
            Op::Cut {
                next_generation,
                first_lost,
                ..
            } => state.cut(*next_generation, *first_lost),
            Op::Begin(_) | Op::See { .. } | Op::Settle { .. } => {}
        }
    }
}

/// What must hold when everything was consumed.
fn end(part: &Part, state: &State, seen: &BTreeSet<u64>) -> Result<(), String> {
    let Some(ended) = part.ended else {
        return Ok(());
    };
    if (ended.generation, ended.written_next) != (state.generation, state.next) {
        return Err(format!("the server says {ended:?}, clients saw {state:?}"));
    }
    for publish in part.publishes.values() {
        let Outcome::Confirmed {
            generation,
            first_offset,
            ..
        } = publish.outcome
        else {
            continue;
        };
        for number in 0..publish.count {
            let offset = first_offset + number;
            let mut losses = part.losses.iter();
            let lost = losses.any(|(of, first)| *of >= generation && *first <= offset);
            if !lost && !seen.contains(&(publish.first_id + number)) {
                return Err(format!(
                    "record {} at {offset} is lost: {publish:?}",
                    publish.first_id + number
                ));
            }
        }
    }
    Ok(())
}
