//! What publishers and consumers were told, kept outside the system under
//! test, and the oracle over it.
//!
//! 1. A confirmed record is delivered until it is settled.
//! 2. A record whose settle was confirmed does not come back.
//! 3. A record delivered before is flagged when it comes again.
//! 4. No offset of a generation stands for two payloads.
//! 5. What failed, or was never sent, is not delivered.

use std::collections::HashMap;

use client::{Boundary, Confirmed, Delivery, Error, SettleError};

/// (partition, generation, offset).
pub type Place = (u16, u32, u64);

#[derive(Debug, Default, Clone)]
struct Life {
    confirmed: Option<(Place, Boundary)>,
    failed: bool,
    unknown: bool,
    /// Place and attempt of every delivery.
    deliveries: Vec<(Place, u32)>,
    /// Acknowledges and rejects sent.
    settles_sent: u32,
    /// The last delivery was given up without a settle that ends the record.
    held: bool,
    settle_confirmed: bool,
}

/// The journal of one queue.
#[derive(Debug, Default)]
pub struct Journal {
    lives: HashMap<String, Life>,
    places: HashMap<Place, String>,
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
    pub delivered: usize,
    pub settle_confirmed: usize,
}

impl Journal {
    pub fn sent(&mut self, id: &str) {
        let before = self.lives.insert(id.to_owned(), Life::default());
        assert!(before.is_none(), "the test used id {id} twice");
    }

    pub fn answered(&mut self, id: &str, answer: &Result<Confirmed, Error>) {
        let life = self.lives.get_mut(id).expect("sent before");
        match answer {
            Ok(confirmed) => {
                let place = (confirmed.partition, confirmed.generation, confirmed.offset);
                life.confirmed = Some((place, confirmed.boundary));
                self.note_place(place, id);
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
        let known = self.places.entry(place).or_insert_with(|| id.to_owned());
        assert_eq!(known, id, "{place:?} stands for two payloads");
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
        self.note_place(place, id);
        let Some(life) = self.lives.get_mut(id) else {
            panic!("a phantom was delivered: {id} at {place:?}");
        };
        assert!(!life.failed, "{id} was delivered though its publish failed");
        assert!(
            !life.settle_confirmed,
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

    pub fn settle_answered<T>(&mut self, id: &str, answer: &Result<T, SettleError>) {
        let life = self.lives.get_mut(id).expect("delivered before");
        match answer {
            Ok(_) => life.settle_confirmed = true,
            // It had no effect, so the record is somebody else's to settle.
            Err(SettleError::Stale { .. }) => {}
            Err(SettleError::Request(_)) => {}
        }
    }

    /// After the last drain nothing may be missing.
    pub fn check_drained(&self) -> Summary {
        let mut summary = Summary {
            sent: self.lives.len(),
            ..Summary::default()
        };
        for (id, life) in &self.lives {
            if let Some((place, boundary)) = life.confirmed {
                summary.confirmed += 1;
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
            summary.failed += usize::from(life.failed);
            summary.unknown += usize::from(life.unknown);
            summary.delivered += usize::from(!life.deliveries.is_empty());
            summary.settle_confirmed += usize::from(life.settle_confirmed);
        }
        summary
    }

    /// Distinct records that were seen or confirmed.
    pub fn places(&self) -> usize {
        self.places.len()
    }
}
