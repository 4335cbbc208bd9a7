//! Captures of a partition while it goes on, for the random test: what is
//! restored from one and replays the commands since is the partition that
//! replayed them all.

use super::{
    model::Model,
    random::{apply, replay, Logged},
    *,
};

/// A capture, under way or complete.
pub(super) struct Captured {
    head: Vec<u8>,
    records: Vec<Vec<u8>>,
    /// Commands applied when it began.
    applied: usize,
    began_ms: u64,
    /// The model as it was, as a restart from the capture sees it.
    model: Model,
    /// Where the records were then.
    places: Vec<(u64, RecordLocation)>,
}

fn places(partition: &Partition) -> Vec<(u64, RecordLocation)> {
    let all = persistent(partition).into_iter();
    all.map(|(offset, _, location, _)| (offset, location))
        .collect()
}

impl Captured {
    pub(super) fn begin(
        partition: &mut Partition,
        model: &Model,
        applied: usize,
        now_ms: u64,
    ) -> Self {
        let mut head = Vec::new();
        partition.begin_capture(&mut head);
        Captured {
            head,
            records: Vec::new(),
            applied,
            began_ms: now_ms,
            model: model.as_captured(),
            places: places(partition),
        }
    }

    /// Captures about `budget` records more; false when all are.
    pub(super) fn step(&mut self, partition: &mut Partition, budget: usize) -> bool {
        let mut section = Vec::new();
        let mut seen = Vec::new();
        let more = partition.capture_records(budget, &mut section, &mut |location, len| {
            seen.push((location, len));
        });
        // What the caller is shown is what it will get back.
        assert!(seen.len() < budget + 256, "{} of {budget}", seen.len());
        assert_eq!(section.is_empty(), seen.is_empty());
        self.records.push(section);
        if !more {
            partition.end_capture();
            assert_eq!(self.restored().slots.count(SlotState::Gated), self.live());
        }
        more
    }

    fn live(&self) -> u64 {
        self.places.len() as u64
    }

    fn restored(&self) -> Partition {
        let mut restored = Partition::restore(&self.head).unwrap();
        for section in &self.records {
            restored.restore_records(section).unwrap();
        }
        assert_eq!(places(&restored), self.places, "as when the capture began");
        restored
    }

    /// Restarts from the capture and from nothing, compares the two, and gives
    /// the first, with the model that it must follow.
    pub(super) fn restart(&self, applied: &[Logged], now_ms: u64) -> (Partition, Model) {
        let since = &applied[self.applied..];
        let fresh = || started(Partition::new(spec()), applied);
        let restored = || started(self.restored(), since);
        let past = self.assert_alike(&fresh(), &restored());
        assert_delivered_alike(fresh(), restored(), past, now_ms);
        replay(self.restored(), self.model.clone(), since)
    }

    /// True if they differ in nothing that delivery shows. A due time that had
    /// passed, and was acted upon, when the capture began is not in it.
    fn assert_alike(&self, fresh: &Partition, restored: &Partition) -> bool {
        assert_eq!(fresh.counts(0), restored.counts(0));
        assert_eq!(fresh.spec(), restored.spec());
        assert_eq!(fresh.mark.applied(), restored.mark.applied());
        assert_eq!(fresh.mark.opened(), restored.mark.opened());
        assert_eq!(fresh.mark.flagged_below(), restored.mark.flagged_below());
        let stamps = |partition: &Partition| partition.stamps.entries().collect::<Vec<_>>();
        assert_eq!(stamps(fresh), stamps(restored));
        let all = |partition: &Partition| -> Vec<(u64, u32, u32)> {
            let all = persistent(partition).into_iter();
            all.map(|(offset, attempts, _, len)| (offset, attempts, len))
                .collect()
        };
        assert_eq!(all(fresh), all(restored));
        for ((offset, place), (_, in_log)) in places(restored).into_iter().zip(places(fresh)) {
            let known = self.places.binary_search_by_key(&offset, |(at, _)| *at);
            let expected = known.map_or(in_log, |at| self.places[at].1);
            assert_eq!(place, expected, "of {offset}");
        }
        let dues = |partition: &Partition| partition.delayed.dues(|_| true);
        let (fresh, restored) = (dues(fresh), dues(restored));
        let mut missing = fresh.iter().filter(|due| !restored.contains(due));
        assert!(
            missing.all(|(_, due_ms)| *due_ms <= self.began_ms),
            "{fresh:?} {restored:?}"
        );
        assert!(restored.iter().all(|due| fresh.contains(due)));
        fresh.len() != restored.len()
    }
}

fn started(mut partition: Partition, entries: &[Logged]) -> Partition {
    for entry in entries {
        apply(&mut partition, entry);
    }
    partition.finish_replay();
    partition
}

/// Both hand out the same, in the same order; with `past` due times only the
/// same.
fn assert_delivered_alike(fresh: Partition, restored: Partition, past: bool, now_ms: u64) {
    let shown = |mut partition: Partition| {
        partition.open_delivery(u64::MAX);
        partition.subscribe(consumer(1, 1), u32::MAX, 1 << 60);
        let mut shown = Vec::new();
        for now_ms in [now_ms, now_ms + LEASE_MS - 1] {
            let all = drain(&mut partition, now_ms).into_iter();
            let mut all: Vec<_> = all
                .map(|got| (got.offset, got.attempt, got.redelivered, got.len))
                .collect();
            if past {
                all.sort_unstable();
            }
            shown.push((all, partition.counts(now_ms)));
        }
        shown
    };
    assert_eq!(shown(fresh), shown(restored));
}
