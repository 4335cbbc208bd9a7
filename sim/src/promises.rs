//! What clients of a run know of their queues' settings, and with it what a confirm, a
//! delivery or a settle must have met at least.
//!
//! 1. In one generation of a partition a setting is in force from one offset on, and a later
//!    revision from a later one, or the same.
//! 2. What nobody was told yet may be any setting that somebody asked for.
//!
//! Owns nothing of the system under test: it is told what the clients are.

use std::collections::BTreeMap;

use wire::{
    message::{
        ArchivedExtension, ArchivedQueueChanged, ChangeQueue, Extension, ANY_REVISION,
        CHANGE_COPIES,
    },
    setting::{InForce, Standing},
    vocabulary::{Boundary, Mode},
};

use crate::Random;

/// Queue id and partition.
type Key = (u64, u16);

/// The revision and what is in force, as a reply's extensions say.
///
/// # Errors
/// They do not decode.
pub fn said_in(extensions: &[ArchivedExtension]) -> Result<(u32, Option<InForce>), String> {
    let bytes = |kind: u16| {
        let one = extensions.iter().find(|one| one.kind == kind);
        one.map(|one| one.bytes.as_slice())
    };
    let revision = match bytes(Extension::REVISION) {
        None => 0,
        Some(bytes) => u32::from_le_bytes(bytes.try_into().map_err(|_| "no revision")?),
    };
    let in_force = match bytes(Extension::IN_FORCE) {
        None => None,
        Some(bytes) => Some(InForce::decode(bytes).ok_or("what is in force does not decode")?),
    };
    Ok((revision, in_force))
}

/// A mode, and W as it travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Setting {
    mode: u8,
    copies: u8,
}

impl Setting {
    pub fn new(mode: Mode, copies: u8) -> Self {
        let mode = mode as u8;
        Setting { mode, copies }
    }

    /// As a reply says; a mode that is not known counts as durable.
    pub fn raw(mode: u8, copies: u8) -> Self {
        Setting { mode, copies }
    }

    pub fn mode(self) -> Mode {
        Mode::from_raw(self.mode).unwrap_or(Mode::Durable)
    }

    /// On how many of so many replicas; at durable never on fewer than a majority.
    pub fn copies(self, replicas: usize, boundary: Boundary) -> usize {
        let majority = replicas / 2 + 1;
        let asked = match self.copies {
            0 => majority,
            255 => replicas,
            number => usize::from(number),
        };
        match boundary {
            Boundary::Written => asked,
            Boundary::Durable => asked.max(majority),
        }
    }

    /// A confirm that met the boundary on so many copies keeps what it promises.
    fn is_met(self, boundary: Boundary, copies: usize, replicas: usize) -> bool {
        boundary >= self.mode().confirm_gate() && copies >= self.copies(replicas, boundary)
    }
}

/// A confirm, as it was told.
#[derive(Debug, Clone, Copy)]
struct Told {
    key: Key,
    generation: u32,
    offset: u64,
    /// It asked for durable itself.
    durable: bool,
    boundary: Boundary,
    copies: usize,
}

#[derive(Debug, Default)]
struct OfQueue {
    /// By revision.
    told: BTreeMap<u32, Setting>,
    /// Asked for, and not known to be refused or to have a revision.
    asked: Vec<Setting>,
}

#[derive(Debug, Default)]
struct OfPartition {
    /// Generation and revision: offsets from there on.
    since: BTreeMap<(u32, u32), u64>,
    /// The highest revision that was said to be applied, and since when it is in force.
    applied: u32,
    applied_since: u64,
    /// Generation: offsets below that one were published under no later revision.
    looked: BTreeMap<u32, (u64, u32)>,
}

/// See the module head.
#[derive(Debug, Default)]
pub struct Promises {
    replicas: usize,
    queues: BTreeMap<u64, OfQueue>,
    parts: BTreeMap<Key, OfPartition>,
    confirms: Vec<Told>,
    /// Deliveries of what was not durable on enough copies: key, generation, offset.
    deliveries: Vec<(Key, u32, u64)>,
    /// Changes that a client was told of.
    pub changes: u64,
}

impl Promises {
    pub fn new(replicas: usize) -> Self {
        Promises {
            replicas,
            ..Promises::default()
        }
    }

    /// The queue was said to have the setting under that revision.
    ///
    /// # Errors
    /// It was said to have another one under it.
    pub fn told(&mut self, queue_id: u64, revision: u32, setting: Setting) -> Result<(), String> {
        let of = self.queues.entry(queue_id).or_default();
        match of.told.insert(revision, setting) {
            Some(before) if before != setting => Err(format!(
                "revision {revision} of queue {queue_id} is {before:?} and {setting:?}"
            )),
            _ => Ok(()),
        }
    }

    /// A change is on its way from that revision on: how it is asked for.
    pub fn ask(&mut self, queue_id: u64, setting: Setting, revision: u32) -> ChangeQueue {
        self.queues.entry(queue_id).or_default().asked.push(setting);
        ChangeQueue {
            queue_id,
            mode: setting.mode,
            copies: setting.copies,
            flags: CHANGE_COPIES,
            revision,
            ..Default::default()
        }
    }

    /// What a client that wants this setting asks for, and from which revision on: also
    /// from any, from one that is over, and again what was done.
    pub fn choose(&self, random: &mut Random, queue_id: u64, setting: Setting) -> (Setting, u32) {
        let newest = self.newest(queue_id);
        let revision = match random.below(4) {
            0 => ANY_REVISION,
            1 => newest.saturating_sub(1),
            _ => newest,
        };
        if revision < newest && random.chance(1, 2) {
            // As one whose answer was lost.
            let stands = self.setting(queue_id, newest);
            return (stands.unwrap_or(setting), revision);
        }
        (setting, revision)
    }

    /// A change was answered as done.
    ///
    /// # Errors
    /// Another one is.
    pub fn changed(
        &mut self,
        queue_id: u64,
        asked: Setting,
        answer: &ArchivedQueueChanged,
    ) -> Result<(), String> {
        let stands = Setting::raw(answer.mode, answer.copies);
        if stands != asked {
            return Err(format!("{asked:?} was asked for, and is {stands:?}"));
        }
        self.told(queue_id, answer.revision.to_native(), stands)?;
        self.asked_no_more(queue_id, asked);
        Ok(())
    }

    /// It was refused, or has a revision by now.
    pub fn asked_no_more(&mut self, queue_id: u64, setting: Setting) {
        let asked = self.queues.get_mut(&queue_id).map(|of| &mut of.asked);
        if let Some(asked) = asked {
            if let Some(at) = asked.iter().position(|it| *it == setting) {
                asked.swap_remove(at);
            }
        }
    }

    /// The newest revision that clients know of.
    pub fn newest(&self, queue_id: u64) -> u32 {
        let last = self.queues.get(&queue_id).map(|of| of.told.keys().last());
        last.flatten().copied().unwrap_or(0)
    }

    /// Some setting that a client knows of.
    pub fn setting(&self, queue_id: u64, revision: u32) -> Option<Setting> {
        self.queues.get(&queue_id)?.told.get(&revision).copied()
    }

    /// A partition's leader said what is in force.
    ///
    /// # Errors
    /// It contradicts what was said before.
    pub fn in_force(&mut self, key: Key, generation: u32, said: &InForce) -> Result<(), String> {
        self.told(key.0, said.revision, Setting::new(said.mode, said.copies))?;
        let part = self.parts.entry(key).or_default();
        let at = (generation, said.revision);
        let before = part.since.insert(at, said.since);
        if before.is_some_and(|before| before != said.since) {
            return Err(format!(
                "{key:?}: {at:?} is in force since {before:?} and {}",
                said.since
            ));
        }
        let earlier = part.since.range(..at).next_back();
        if earlier.is_some_and(|((of, _), since)| *of == generation && *since > said.since) {
            return Err(format!("{key:?}: {at:?} came before {earlier:?}: {said:?}"));
        }
        let moved = said.revision == part.applied && said.since != part.applied_since;
        if moved && part.applied > 0 {
            return Err(format!(
                "{key:?}: revision {} was applied since {}, and now {said:?}",
                part.applied, part.applied_since
            ));
        }
        if said.standing == Standing::Applied && said.revision > part.applied {
            (part.applied, part.applied_since) = (said.revision, said.since);
            self.changes += 1;
        }
        Ok(())
    }

    /// Nothing may be behind what was said to be applied: asked when nobody who was
    /// deposed can answer, and nobody publishes. `next`: generation, and the end of what is
    /// published in it.
    ///
    /// # Errors
    /// It is.
    pub fn check_applied(
        &mut self,
        key: Key,
        next: (u32, u64),
        said: Option<&InForce>,
    ) -> Result<(), String> {
        let part = self.parts.entry(key).or_default();
        let (applied, now) = (part.applied, said.map_or(0, |said| said.revision));
        if now < applied {
            return Err(format!(
                "revision {applied} of {key:?} was said to be applied, and {now} is in force"
            ));
        }
        part.looked.insert(next.0, (next.1, now));
        Ok(())
    }

    /// Settings that a record at that place may have been published under.
    fn possible(&self, key: Key, generation: u32, offset: u64) -> Vec<Setting> {
        let Some(of) = self.queues.get(&key.0) else {
            return Vec::new();
        };
        let (mut from, mut until) = (0, None);
        let since = self.parts.get(&key).map(|part| &part.since);
        let here = (generation, 0)..=(generation, u32::MAX);
        for ((_, revision), since) in since.into_iter().flat_map(|all| all.range(here.clone())) {
            match *since <= offset {
                true => from = *revision,
                false => {
                    until.get_or_insert(*revision);
                }
            }
        }
        let looked = self.parts.get(&key);
        let looked = looked.and_then(|part| part.looked.get(&generation));
        if let Some((_, revision)) = looked.filter(|(end, _)| offset < *end) {
            until = Some(until.unwrap_or(u32::MAX).min(revision + 1));
        }
        let told = match until {
            Some(until) => of.told.range(from..until),
            None => of.told.range(from..),
        };
        let mut all: Vec<Setting> = told.map(|(_, setting)| *setting).collect();
        if until.is_none_or(|until| until > from + 1) {
            all.extend(&of.asked);
        }
        all
    }

    /// The highest revision that was said to be applied in a partition.
    pub fn applied(&self, key: Key) -> u32 {
        self.parts.get(&key).map_or(0, |part| part.applied)
    }

    /// Settings that may have been in force since that revision was applied.
    fn possible_since(&self, key: Key, applied: u32) -> Vec<Setting> {
        let Some(of) = self.queues.get(&key.0) else {
            return Vec::new();
        };
        let told = of.told.range(applied..).map(|(_, setting)| *setting);
        told.chain(of.asked.iter().copied()).collect()
    }

    /// A publish was confirmed.
    ///
    /// # Errors
    /// No setting that may have been in force there promises so little.
    pub fn confirmed(
        &mut self,
        key: Key,
        (generation, offset): (u32, u64),
        durable: bool,
        (boundary, copies): (Boundary, usize),
    ) -> Result<(), String> {
        let told = Told {
            key,
            generation,
            offset,
            durable,
            boundary,
            copies,
        };
        self.judge(&told)?;
        self.confirms.push(told);
        Ok(())
    }

    fn judge(&self, told: &Told) -> Result<(), String> {
        let all = self.possible(told.key, told.generation, told.offset);
        let replicas = self.replicas;
        let met = |setting: &Setting| {
            let durable = !told.durable || told.boundary == Boundary::Durable;
            durable && setting.is_met(told.boundary, told.copies, replicas)
        };
        // Of a queue that nobody heard of yet anything is taken.
        match all.is_empty() || all.iter().any(met) {
            true => Ok(()),
            false => Err(format!("{told:?} was published under one of {all:?}")),
        }
    }

    /// Every confirm and delivery again, by all that became known since.
    ///
    /// # Errors
    /// The first that came too early.
    pub fn judge_all(&self) -> Result<(), String> {
        for (key, generation, offset) in &self.deliveries {
            let gate = self.delivery_gate(*key, *generation, *offset);
            if gate == Boundary::Durable {
                return Err(format!(
                    "offset {offset} of {key:?} was delivered in generation {generation} before it was durable"
                ));
            }
        }
        self.confirms.iter().try_for_each(|told| self.judge(told))
    }

    /// Something was delivered that is not durable on enough copies.
    pub fn delivered_early(&mut self, key: Key, generation: u32, offset: u64) {
        self.deliveries.push((key, generation, offset));
    }

    /// Confirms whose setting is known exactly.
    pub fn exact(&self) -> usize {
        let exact = |told: &&Told| self.possible(told.key, told.generation, told.offset).len() == 1;
        self.confirms.iter().filter(exact).count()
    }

    /// What a delivery of that place has met at least.
    pub fn delivery_gate(&self, key: Key, generation: u32, offset: u64) -> Boundary {
        let all = self.possible(key, generation, offset);
        let gates = all.iter().map(|setting| setting.mode().delivery_gate());
        gates.min().unwrap_or(Boundary::Written)
    }

    /// A delivery that met the boundary says as much as a confirm.
    pub fn delivery_promises(&self, key: Key, generation: u32, offset: u64, met: Boundary) -> bool {
        let all = self.possible(key, generation, offset);
        let mut gates = all.iter().map(|setting| setting.mode().confirm_gate());
        gates.all(|gate| met >= gate)
    }

    /// A settle was confirmed that was sent when `applied` was.
    ///
    /// # Errors
    /// No setting that may be in force promises so little.
    pub fn settled(
        &self,
        key: Key,
        applied: u32,
        (boundary, copies): (Boundary, usize),
    ) -> Result<(), String> {
        let all = self.possible_since(key, applied);
        let met = |setting: &Setting| setting.is_met(boundary, copies, self.replicas);
        match all.is_empty() || all.iter().any(met) {
            true => Ok(()),
            false => Err(format!(
                "a settle in {key:?} is confirmed at {boundary:?} on {copies} copies under one of {all:?}"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = (1, 0);

    fn in_force(mode: Mode, revision: u32, since: u64) -> InForce {
        InForce {
            mode,
            copies: 0,
            revision,
            since,
            standing: Standing::Applied,
            replicas: Vec::new(),
            reason: String::new(),
        }
    }

    fn promises() -> Promises {
        let mut promises = Promises::new(3);
        promises.told(1, 0, Setting::new(Mode::Durable, 0)).unwrap();
        promises
    }

    #[test]
    fn a_confirm_is_judged_by_the_setting_at_its_offset() {
        let mut promises = promises();
        let written = (Boundary::Written, 2);
        assert!(promises.confirmed(KEY, (1, 4), false, written).is_err());
        promises.ask(1, Setting::new(Mode::Buffered, 0), 0);
        for offset in [4, 9] {
            promises
                .confirmed(KEY, (1, offset), false, written)
                .unwrap();
        }
        assert!(promises.confirmed(KEY, (1, 9), true, written).is_err());
        assert!(promises
            .confirmed(KEY, (1, 9), false, (Boundary::Written, 1))
            .is_err());
        promises
            .in_force(KEY, 1, &in_force(Mode::Buffered, 1, 5))
            .unwrap();
        promises.asked_no_more(1, Setting::new(Mode::Buffered, 0));
        // The one in front of the change was not to be confirmed at written.
        assert!(promises.judge_all().is_err());
        assert_eq!(promises.exact(), 2);
        assert!(promises.confirmed(KEY, (1, 9), false, written).is_ok());
    }

    #[test]
    fn what_is_applied_stays_and_a_revision_is_one_setting_from_one_offset_on() {
        let mut promises = promises();
        promises
            .in_force(KEY, 1, &in_force(Mode::Buffered, 2, 5))
            .unwrap();
        assert!(promises.settled(KEY, 2, (Boundary::Written, 2)).is_ok());
        assert!(promises.settled(KEY, 2, (Boundary::Written, 1)).is_err());
        assert!(promises
            .in_force(KEY, 1, &in_force(Mode::Buffered, 2, 6))
            .is_err());
        assert!(promises
            .in_force(KEY, 1, &in_force(Mode::Speculative, 2, 5))
            .is_err());
        assert!(promises
            .in_force(KEY, 1, &in_force(Mode::Durable, 3, 4))
            .is_err());
        let now = in_force(Mode::Buffered, 2, 5);
        assert!(promises.check_applied(KEY, (1, 9), Some(&now)).is_ok());
        assert!(promises.check_applied(KEY, (1, 9), None).is_err());
    }
}
