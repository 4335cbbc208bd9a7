//! The operations of a partition, each with when it was under way.

use std::collections::BTreeMap;

use crate::{
    history::{Outcome, Part, Publish},
    spec::Op,
};

/// An operation and when it was under way.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    pub from_us: u64,
    pub to_us: u64,
    pub op: Op,
    pub generation: u32,
}

/// A publish that happened, and what became of its records.
#[derive(Debug)]
pub(crate) struct Batch {
    pub append: Span,
    pub first: u64,
    pub end: u64,
    /// Sights and settles.
    pub rest: Vec<Span>,
}

/// A partition's operations, sorted out.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    /// By generation and offset.
    pub batches: Vec<Batch>,
    pub barriers: Vec<Span>,
    /// In order.
    pub cuts: Vec<Span>,
}

/// Where the records of a publish were first seen.
#[derive(Clone, Copy)]
struct Place {
    first: u64,
    generation: u32,
    at_us: u64,
}

impl Spans {
    /// # Errors
    /// What no order could mend: a record at two offsets, one that was never published,
    /// one that failed, a settle of nothing.
    pub fn of(part: &Part) -> Result<Self, String> {
        let mut spans = Spans::default();
        let places = places_of(part)?;
        let mut batches: BTreeMap<u64, Batch> = BTreeMap::new();
        for publish in part.publishes.values() {
            let place = places.get(&publish.first_id).copied();
            if let Some(batch) = batch_of(part, publish, place)? {
                batches.insert(publish.first_id, batch);
            }
        }
        for seen in &part.seen {
            let publish = publish_of(part, seen.id)?;
            let Some(batch) = batches.get_mut(&publish.first_id) else {
                return Err(format!("{seen:?} of a publish that failed"));
            };
            batch.rest.push(Span {
                // Not before the publish was sent: it has to come behind that.
                from_us: seen.not_before_us.max(publish.sent_us),
                to_us: seen.at_us,
                op: Op::See {
                    generation: seen.generation,
                    offset: seen.offset,
                    durable: seen.durable,
                },
                generation: seen.generation,
            });
        }
        spans.batches = batches.into_values().collect();
        spans.settles(part)?;
        spans.barriers = part
            .barriers
            .iter()
            .map(|barrier| Span {
                from_us: barrier.sent_us,
                to_us: barrier.at_us,
                op: Op::Barrier {
                    generation: barrier.generation,
                    durable_next: barrier.durable_next,
                },
                generation: barrier.generation,
            })
            .collect();
        spans.cuts(part);
        let place = |batch: &Batch| (batch.append.generation, batch.first);
        spans.batches.sort_by_key(place);
        Ok(spans)
    }

    /// All operations.
    pub fn all(&self) -> impl Iterator<Item = &Span> {
        let batches = self.batches.iter();
        let batches = batches.flat_map(|batch| [&batch.append].into_iter().chain(&batch.rest));
        batches.chain(&self.barriers).chain(&self.cuts)
    }

    /// Offsets may be missing anywhere.
    pub fn allow_holes(&mut self) {
        for batch in &mut self.batches {
            if let Op::Append { lost_from, .. } = &mut batch.append.op {
                *lost_from = Some(0);
            }
        }
    }

    /// Puts settles to their records: a delivery says which record it is of, and nobody
    /// settles without one.
    fn settles(&mut self, part: &Part) -> Result<(), String> {
        let seen = part.seen.iter();
        let seen: BTreeMap<(u32, u64), u64> = seen
            .map(|seen| ((seen.generation, seen.offset), seen.id))
            .collect();
        let mut of_publish = BTreeMap::new();
        for (at, batch) in self.batches.iter().enumerate() {
            of_publish.insert((batch.append.from_us, batch.first), at);
        }
        for settled in &part.settled {
            let id = seen.get(&(settled.generation, settled.offset));
            let id = id.ok_or_else(|| format!("{settled:?} of what nobody got"))?;
            let publish = publish_of(part, *id)?;
            let first = settled.offset - (id - publish.first_id);
            let batch = of_publish.get(&(publish.sent_us, first));
            let batch = batch.and_then(|at| self.batches.get_mut(*at));
            let batch = batch.ok_or_else(|| format!("{settled:?} of {publish:?}"))?;
            batch.rest.push(Span {
                from_us: settled.sent_us,
                to_us: settled.at_us,
                op: Op::Settle {
                    generation: settled.generation,
                    offset: settled.offset,
                    durable: settled.durable,
                },
                generation: settled.generation,
            });
        }
        Ok(())
    }

    /// The ends of generations: behind what was done in them, before what was done later.
    fn cuts(&mut self, part: &Part) {
        let mut cuts = Vec::new();
        for (at, (generation, first_lost)) in part.losses.iter().enumerate() {
            let (mut from_us, mut to_us, mut later) = (0, u64::MAX, u32::MAX);
            for span in self.all() {
                if span.generation <= *generation {
                    from_us = from_us.max(span.from_us);
                } else {
                    to_us = to_us.min(span.to_us);
                    later = later.min(span.generation);
                }
            }
            let next = part.losses.get(at + 1).map(|(next, _)| *next);
            let next = next.or(part.ended.map(|ended| ended.generation));
            let next = next.unwrap_or(if later < u32::MAX {
                later
            } else {
                generation + 1
            });
            cuts.push(Span {
                from_us: from_us.min(to_us),
                to_us,
                op: Op::Cut {
                    generation: *generation,
                    next_generation: next,
                    first_lost: *first_lost,
                },
                generation: *generation,
            });
        }
        self.cuts = cuts;
    }
}

fn places_of(part: &Part) -> Result<BTreeMap<u64, Place>, String> {
    let mut places: BTreeMap<u64, Place> = BTreeMap::new();
    for seen in &part.seen {
        let publish = publish_of(part, seen.id)?;
        let first = seen.offset.checked_sub(seen.id - publish.first_id);
        let first = first.ok_or_else(|| format!("{seen:?} cannot stand there: {publish:?}"))?;
        let place = Place {
            first,
            generation: seen.generation,
            at_us: seen.at_us,
        };
        let known = places.entry(publish.first_id).or_insert(place);
        if known.first != first {
            let known = known.first;
            return Err(format!("{publish:?} begins at {known} and at {first}"));
        }
        known.generation = known.generation.min(seen.generation);
        known.at_us = known.at_us.min(seen.at_us);
    }
    Ok(places)
}

fn publish_of(part: &Part, id: u64) -> Result<&Publish, String> {
    let before = part.publishes.range(..=id).next_back();
    let publish = before.map(|(_, publish)| publish);
    let publish = publish.filter(|publish| id < publish.first_id + publish.count);
    publish.ok_or_else(|| format!("record {id} was never published here"))
}

/// What a publish did, if it is known to have happened.
fn batch_of(part: &Part, publish: &Publish, place: Option<Place>) -> Result<Option<Batch>, String> {
    let (first, generation, durable, to_us) = match (publish.outcome, place) {
        (Outcome::Failed, _) | (Outcome::Unknown, None) => return Ok(None),
        (Outcome::Unknown, Some(place)) => {
            let generation = published_in(part, place);
            (place.first, generation, false, place.at_us)
        }
        (
            Outcome::Confirmed {
                generation,
                first_offset,
                durable,
                at_us,
            },
            place,
        ) => {
            let seen_us = place.map_or(at_us, |place| place.at_us);
            let stands = place.map_or(first_offset, |place| place.first);
            if stands != first_offset {
                return Err(format!("{publish:?} stands at {stands}"));
            }
            // One that is sent again is told where it stands now, which may be from before.
            let told = Place {
                first: first_offset,
                generation,
                at_us,
            };
            let generation = published_in(part, told);
            (first_offset, generation, durable, at_us.min(seen_us))
        }
    };
    let mut losses = part.losses.iter();
    let lost_from = losses.find_map(|(of, first)| (*of == generation).then_some(*first));
    Ok(Some(Batch {
        first,
        end: first + publish.count,
        rest: Vec::new(),
        append: Span {
            from_us: publish.sent_us,
            to_us,
            op: Op::Append {
                first,
                count: publish.count,
                generation,
                durable,
                lost_from,
            },
            generation,
        },
    }))
}

/// The generation in which a record was published that is there in a later one: each
/// begins where the one before was cut.
fn published_in(part: &Part, place: Place) -> u32 {
    let earlier = part.losses.iter().rev();
    let earlier = earlier.filter(|(generation, _)| *generation < place.generation);
    let mut generation = place.generation;
    for (before, begins) in earlier {
        if place.first >= *begins {
            break;
        }
        generation = *before;
    }
    generation
}
