//! What publishers and consumers were told, kept outside the system under
//! test, and the oracle over it.
//!
//! 1. A confirmed record is delivered until it is settled.
//! 2. A record whose settle was confirmed does not come back.
//! 3. A record delivered before is flagged when it comes again.
//! 4. No offset of a generation stands for two payloads.
//! 5. What failed, or was never sent, is not delivered.
//! 6. After a loss, what is gone is exactly what the report names, and nothing
//!    of it was known to be durable.

use std::collections::HashMap;

use client::{Boundary, Confirmed, Delivery, Error, Loss, SettleError, Settled};

/// (partition, generation, offset).
pub type Place = (u16, u32, u64);

#[derive(Debug, Default, Clone)]
struct Life {
    confirmed: Option<(Place, Boundary)>,
    /// When the confirm came.
    confirmed_at: u64,
    /// Where it was seen first: a survivor is delivered in later generations.
    place: Option<Place>,
    /// Somebody was told so, or a start after a loss kept it.
    durable: bool,
    /// The loss report that names it.
    gone: Option<Loss>,
    failed: bool,
    unknown: bool,
    /// Place and attempt of every delivery.
    deliveries: Vec<(Place, u32)>,
    /// Acknowledges and rejects sent.
    settles_sent: u32,
    /// The last delivery was given up without a settle that ends the record.
    held: bool,
    /// What the confirm of its settle met, and when it came.
    settle_confirmed: Option<(Boundary, u64)>,
}

/// The journal of one queue.
#[derive(Debug, Default)]
pub struct Journal {
    lives: HashMap<String, Life>,
    /// Who stands at a partition's offset, settled or not, since which
    /// generation.
    places: HashMap<(u16, u64), (u32, String)>,
    /// Those whose place another one took: a loss report must name them.
    replaced: Vec<String>,
    /// Counts what was told.
    now: u64,
    /// What was told before then is durable.
    synced: u64,
    /// Highest offset confirmed per partition in earlier rounds.
    floors: HashMap<u16, u64>,
    /// The floors of the next round.
    reached: HashMap<u16, u64>,
}

/// Numbers for people, shown by `Debug`.
#[derive(Debug, Default)]
#[allow(dead_code)]
pub struct Summary {
    pub sent: usize,
    pub confirmed: usize,
    pub failed: usize,
    pub unknown: usize,
    /// Confirmed at written, and named by a loss report.
    pub reported_lost: usize,
    pub delivered: usize,
    pub settle_confirmed: usize,
}

impl Journal {
    pub fn sent(&mut self, id: &str) {
        let before = self.lives.insert(id.to_owned(), Life::default());
        assert!(before.is_none(), "the test used id {id} twice");
    }

    pub fn answered(&mut self, id: &str, answer: &Result<Confirmed, Error>) {
        self.now += 1;
        if let Ok(confirmed) = answer {
            let place = (confirmed.partition, confirmed.generation, confirmed.offset);
            self.note_place(place, id);
        }
        let life = self.lives.get_mut(id).expect("sent before");
        match answer {
            Ok(confirmed) => {
                let place = (confirmed.partition, confirmed.generation, confirmed.offset);
                life.confirmed = Some((place, confirmed.boundary));
                life.confirmed_at = self.now;
                life.durable |= confirmed.boundary == Boundary::Durable;
                let floor = self.floors.get(&confirmed.partition);
                assert!(
                    floor.is_none_or(|floor| confirmed.offset > *floor),
                    "{id} was confirmed at {place:?}, not above what an earlier round confirmed ({floor:?})"
                );
                let reached = self.reached.entry(confirmed.partition).or_default();
                *reached = (*reached).max(confirmed.offset);
            }
            Err(Error::Failed { .. }) => life.failed = true,
            Err(Error::Unknown { .. }) => life.unknown = true,
        }
    }

    fn note_place(&mut self, place: Place, id: &str) {
        let (partition, generation, offset) = place;
        let at = (partition, offset);
        let here = (generation, id.to_owned());
        let known = self.places.entry(at).or_insert_with(|| here.clone());
        if known.1 != id {
            assert_ne!(known.0, generation, "{place:?} stands for two payloads");
            let old = match known.0 < generation {
                true => std::mem::replace(known, here).1,
                false => id.to_owned(),
            };
            self.replaced.push(old);
        }
        let life = self.lives.get_mut(id).expect("sent before");
        let first = life.place.get_or_insert(place);
        assert_eq!((first.0, first.2), at, "{id} stands at two places");
        first.1 = first.1.min(generation);
    }

    /// Whatever was told until now: a barrier that begins now covers it.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// A barrier that began at `then` was confirmed.
    pub fn barrier(&mut self, then: u64) {
        self.synced = self.synced.max(then);
    }

    /// The server came back from a power cut or a storage error with these new
    /// losses, each of a partition. Every publish was answered before.
    pub fn lost(&mut self, losses: &[(u16, Loss)]) {
        let synced = self.synced;
        for (id, life) in &mut self.lives {
            if life.gone.is_some() {
                continue;
            }
            life.durable |= life.confirmed.is_some() && life.confirmed_at <= synced;
            let named = life.place.and_then(|(partition, generation, offset)| {
                losses.iter().find(|(of, loss)| {
                    *of == partition && generation <= loss.generation && loss.first_lost <= offset
                })
            });
            let safe =
                |(boundary, at): &(Boundary, u64)| *boundary == Boundary::Durable || *at <= synced;
            let settle_is_safe = life.settle_confirmed.as_ref().is_some_and(safe);
            if let Some((_, loss)) = named {
                assert!(
                    !life.durable && !settle_is_safe,
                    "{loss:?} names {id}, which was durable ({life:?})"
                );
                life.gone = Some(*loss);
            }
            // What an opening keeps of an older generation it makes durable.
            life.durable |= life.place.is_some_and(|(partition, generation, _)| {
                let older = |loss: &Loss| generation <= loss.generation;
                losses
                    .iter()
                    .any(|(of, loss)| *of == partition && older(loss))
            });
            life.settle_confirmed = life.settle_confirmed.filter(safe);
        }
        let lives = &self.lives;
        for id in self.replaced.drain(..) {
            let life = &lives[&id];
            assert!(
                life.gone.is_some(),
                "another record took the place of {id} ({life:?})"
            );
        }
        self.places.retain(|_, (_, id)| lives[id].gone.is_none());
        self.reached.clear();
        for life in self.lives.values().filter(|life| life.gone.is_none()) {
            if let Some(((partition, _, offset), _)) = life.confirmed {
                let reached = self.reached.entry(partition).or_default();
                *reached = (*reached).max(offset);
            }
        }
        self.floors = self.reached.clone();
    }

    /// Every publish of the round was answered: later ones come behind.
    pub fn round_ended(&mut self) {
        for (id, life) in &self.lives {
            let answered = life.confirmed.is_some() || life.failed || life.unknown;
            assert!(answered, "the publish of {id} was never answered");
        }
        self.floors = self.reached.clone();
    }

    pub fn delivered(&mut self, id: &str, delivery: &Delivery) {
        let place = (
            delivery.partition(),
            delivery.generation(),
            delivery.offset(),
        );
        assert!(
            self.lives.contains_key(id),
            "a phantom was delivered: {id} at {place:?}"
        );
        self.note_place(place, id);
        let life = self.lives.get_mut(id).expect("just found");
        assert!(!life.failed, "{id} was delivered though its publish failed");
        assert!(
            life.gone.is_none(),
            "{id} was reported lost and is there at {place:?} ({life:?})"
        );
        life.durable |= delivery.durable();
        if let Some((Boundary::Written, at)) = life.settle_confirmed {
            let last = life.deliveries.last().map_or(0, |((_, of, _), _)| *of);
            if at > self.synced && delivery.generation() > last {
                // The settle may have gone with the older generation's end.
                life.settle_confirmed = None;
            }
        }
        assert!(
            life.settle_confirmed.is_none(),
            "{id} at {place:?} came back (attempt {}) after its settle was confirmed",
            delivery.attempt()
        );
        if let Some((last, attempt)) = life.deliveries.last() {
            assert!(
                delivery.redelivered(),
                "{id} at {place:?} was delivered before ({last:?}, attempt {attempt}) and is not flagged"
            );
        }
        life.deliveries.push((place, delivery.attempt()));
        life.held = true;
    }

    /// An acknowledge or reject goes out.
    pub fn settle_sent(&mut self, id: &str) {
        let life = self.lives.get_mut(id).expect("delivered before");
        life.settles_sent += 1;
        life.held = false;
    }

    pub fn settle_answered(&mut self, id: &str, answer: &Result<Settled, SettleError>) {
        self.now += 1;
        let life = self.lives.get_mut(id).expect("delivered before");
        match answer {
            Ok(settled) => life.settle_confirmed = Some((settled.boundary, self.now)),
            // It had no effect, so the record is somebody else's to settle.
            Err(SettleError::Stale { .. }) => {}
            Err(SettleError::Request(_)) => {}
        }
    }

    /// After the last drain nothing may be missing.
    pub fn check_drained(&self) -> Summary {
        assert!(
            self.replaced.is_empty(),
            "not reported lost: {:?}",
            self.replaced
        );
        let mut summary = Summary {
            sent: self.lives.len(),
            ..Summary::default()
        };
        for (id, life) in &self.lives {
            summary.failed += usize::from(life.failed);
            summary.unknown += usize::from(life.unknown);
            summary.delivered += usize::from(!life.deliveries.is_empty());
            summary.settle_confirmed += usize::from(life.settle_confirmed.is_some());
            summary.confirmed += usize::from(life.confirmed.is_some());
            if life.gone.is_some() {
                summary.reported_lost += usize::from(life.confirmed.is_some());
                continue;
            }
            if let Some((place, boundary)) = life.confirmed {
                let found = life.deliveries.iter().any(|(at, _)| at.2 == place.2);
                assert!(
                    found,
                    "lost: {id}, confirmed {} at {place:?}, was never delivered there ({life:?})",
                    boundary.name()
                );
                assert!(
                    life.settles_sent > 0 && !life.held,
                    "lost: {id} at {place:?} was given back and did not come again ({life:?})"
                );
            }
        }
        summary
    }

    /// Distinct records that were seen or confirmed and are not lost.
    pub fn places(&self) -> usize {
        self.places.len()
    }
}
