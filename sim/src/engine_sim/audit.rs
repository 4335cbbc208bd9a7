//! The audit: with nobody else there, everything is looked at and held
//! against what was promised.

use std::collections::BTreeMap;

use super::{
    journal::{Fate, Key, QueueState},
    requests::{Answer, Info, Seen},
    world::World,
    Checked,
};

/// The client that audits.
pub(super) const AUDITOR: usize = 0;
/// How long an answer may take, in simulated ms: longer than any deadline.
const PATIENCE_MS: u64 = 60_000;

impl World {
    /// Waits for a kept answer.
    pub(super) fn await_answer(&mut self, client: usize, correlation: u64) -> Checked<Answer> {
        let what = format!("the answer {correlation} to client {client}");
        self.await_that(&what, PATIENCE_MS, |world| {
            world.clients[client].answers.contains_key(&correlation)
        })?;
        let answer = self.clients[client].answers.remove(&correlation);
        answer.ok_or_else(|| "an answer got lost".to_owned())
    }

    /// Connects a client and keeps what it is told.
    pub(super) fn bring(&mut self, client: usize, shard: u16) {
        self.clients[client].keep_answers = true;
        self.clients[client].answers.clear();
        self.connect(client, shard);
    }

    /// Looks at everything. No other client may be connected, and nothing leased.
    /// `opened`: the logs were opened and nothing was sent since.
    pub(super) fn audit(&mut self, opened: bool) -> Checked<()> {
        self.note(format_args!("audit"));
        let shard = self.random.below(u64::from(self.settings.shards)) as u16;
        self.bring(AUDITOR, shard);
        let queues: Vec<(u64, String, QueueState, u16)> = self
            .journal
            .queues
            .iter()
            .map(|(id, queue)| {
                (
                    *id,
                    queue.name.clone(),
                    queue.state,
                    queue.shards.len() as u16,
                )
            })
            .collect();
        for (queue_id, name, state, partitions) in queues {
            self.audit_name(queue_id, &name, state)?;
            for partition in 0..partitions {
                self.audit_partition((queue_id, partition), state, opened)?;
            }
        }
        self.disconnect(AUDITOR);
        self.journal.promises.judge_all()
    }

    fn audit_name(&mut self, queue_id: u64, name: &str, state: QueueState) -> Checked<()> {
        let correlation = self.locate(AUDITOR, name);
        match (self.await_answer(AUDITOR, correlation)?, state) {
            (
                Answer::Queue {
                    queue_id: found, ..
                },
                QueueState::Declared,
            ) if found == queue_id => Ok(()),
            // Another queue may have the name; `located` has judged that.
            (_, QueueState::DeleteSent | QueueState::Deleted) => Ok(()),
            (answer, state) => Err(format!(
                "queue {queue_id} {name:?} is {state:?}: {answer:?}"
            )),
        }
    }

    fn audit_partition(&mut self, key: Key, state: QueueState, opened: bool) -> Checked<()> {
        let now_us = self.now_us;
        let info = match (self.look_applied(key, state)?, state) {
            (Answer::Info(_), QueueState::Deleted) => {
                return Err(format!("{key:?} was deleted, and is there"));
            }
            (Answer::Info(info), _) => info,
            (Answer::Error { .. }, QueueState::Deleted) => return Ok(()),
            (Answer::Error { .. }, QueueState::DeleteSent) => {
                if let Some(queue) = self.journal.queues.get_mut(&key.0) {
                    queue.state = QueueState::Deleted;
                    queue.learned_us = now_us;
                }
                return Ok(());
            }
            (answer, state) => return Err(format!("{key:?} is {state:?}: {answer:?}")),
        };
        let said = info.in_force.as_ref();
        let next = (info.generation, info.written_next);
        self.journal.promises.check_applied(key, next, said)?;
        self.audit_losses(key, &info)?;
        let present = self.peek_all(key, &info)?;
        self.audit_present(key, &present)?;
        self.audit_missing(key, &present, &info)?;
        if opened {
            self.all_kept_is_durable(key, &present);
        }
        Ok(())
    }

    /// Asks for a partition's info until what is desired is applied.
    fn look_applied(&mut self, key: Key, state: QueueState) -> Checked<Answer> {
        let until = self.now_us + PATIENCE_MS * 1000;
        loop {
            let correlation = self.info(AUDITOR, key);
            let answer = self.await_answer(AUDITOR, correlation)?;
            let newest = self.journal.promises.newest(key.0);
            match &answer {
                Answer::Info(info) if state == QueueState::Declared => {
                    if info.is_applied() && info.revision >= newest {
                        return Ok(answer);
                    }
                }
                _ => return Ok(answer),
            }
            if self.now_us > until {
                return Err(format!(
                    "revision {newest} of {key:?} is not applied: {answer:?}"
                ));
            }
            self.pass(10)?;
        }
    }

    /// An opening makes durable whatever it kept.
    fn all_kept_is_durable(&mut self, key: Key, present: &BTreeMap<u64, Seen>) {
        for (id, rec) in self.journal.records.iter_mut().enumerate() {
            if rec.key != key {
                continue;
            }
            let seen = rec.known.and_then(|known| present.get(&known.offset));
            let there = seen.is_some_and(|seen| seen.id == id as u64);
            match (rec.known.as_mut(), rec.settled.as_mut()) {
                (Some(known), _) if there => known.durable = true,
                (_, Some(settled)) => settled.durable = true,
                _ => {}
            }
        }
    }

    /// Losses are told for ever, and generations only grow.
    fn audit_losses(&mut self, key: Key, info: &Info) -> Checked<()> {
        let part = self.journal.parts.entry(key).or_default();
        if !info.losses.starts_with(&part.losses) {
            return Err(format!(
                "losses of {key:?} were {:?} and are {:?}",
                part.losses, info.losses
            ));
        }
        if info.generation < part.generation.1 {
            return Err(format!(
                "{key:?} was in generation {} and is in {}",
                part.generation.1, info.generation
            ));
        }
        let below = info.losses.iter().all(|(generation, first)| {
            *generation < info.generation && *first <= info.written_next
        });
        if !below {
            return Err(format!("{key:?} reports a loss of what is there: {info:?}"));
        }
        part.losses.clone_from(&info.losses);
        for (old, new) in std::mem::take(&mut part.replaced) {
            let rec = self.journal.record(old)?.clone();
            if self.journal.reported_lost(&rec).is_none() {
                return Err(format!("record {old} gave its offset to {new} and is not reported lost: {rec:?}, {info:?}"));
            }
        }
        Ok(())
    }

    fn peek_all(&mut self, key: Key, info: &Info) -> Checked<BTreeMap<u64, Seen>> {
        let mut all = BTreeMap::new();
        let mut from = 0;
        loop {
            let correlation = self.peek(AUDITOR, key, from, 1024);
            let Answer::Peeked(seen) = self.await_answer(AUDITOR, correlation)? else {
                return Err(format!("{key:?} cannot be peeked at"));
            };
            let Some(last) = seen.last() else { break };
            from = last.offset + 1;
            all.extend(seen.into_iter().map(|seen| (seen.offset, seen)));
        }
        if all.len() as u64 != info.unsettled() {
            return Err(format!("{key:?} shows {} records: {info:?}", all.len()));
        }
        Ok(all)
    }

    /// Nothing is there that was settled, lost or never published.
    fn audit_present(&mut self, key: Key, present: &BTreeMap<u64, Seen>) -> Checked<()> {
        let shard = self.journal.shard_of(key).unwrap_or(0);
        let hazard = self.node.shards[usize::from(shard)].hazard;
        for seen in present.values() {
            let rec = self.journal.record(seen.id)?.clone();
            if let Some(settled) = rec.settled {
                if settled.durable || settled.hazard == hazard {
                    return Err(format!(
                        "record {} is back after its settle was confirmed: {rec:?}",
                        seen.id
                    ));
                }
            }
            // What has been seen here again, in the new generation, was kept.
            if self.journal.batches[rec.batch].fate == Fate::Failed {
                return Err(format!(
                    "record {} was reported as failed and is there",
                    seen.id
                ));
            }
        }
        Ok(())
    }

    /// What is not there was settled, purged, never confirmed, or reported lost.
    fn audit_missing(
        &mut self,
        key: Key,
        present: &BTreeMap<u64, Seen>,
        info: &Info,
    ) -> Checked<()> {
        let shard = self.journal.shard_of(key).unwrap_or(0);
        let hazard = self.node.shards[usize::from(shard)].hazard;
        let mut lost = 0;
        for (id, rec) in self.journal.records.iter().enumerate() {
            let Some(known) = rec.known.filter(|_| rec.key == key) else {
                continue;
            };
            let there = present
                .get(&known.offset)
                .is_some_and(|seen| seen.id == id as u64);
            let reported = self.journal.reported_lost(rec);
            let must_stay = known.durable || known.written_at == hazard;
            if reported.is_some() && must_stay {
                return Err(format!("record {id} of {key:?} was promised and is reported lost by {reported:?}: {rec:?}, hazard {hazard}"));
            }
            if reported.is_some() && there {
                return Err(format!(
                    "record {id} of {key:?} is reported lost by {reported:?} and is there: {rec:?}"
                ));
            }
            lost += u64::from(reported.is_some());
            let may_be_gone = rec.open_settles > 0 || rec.maybe_purged || reported.is_some();
            let may_be_gone = may_be_gone || rec.settled.is_some();
            if !there && !may_be_gone {
                return Err(format!(
                    "record {id} of {key:?} is gone: {rec:?}, hazard {hazard}, {info:?}"
                ));
            }
        }
        self.journal.lost += lost;
        Ok(())
    }

    /// Consumes all there is, until every partition is empty.
    pub(super) fn drain_queues(&mut self) -> Checked<()> {
        self.note(format_args!("drain"));
        let shard = self.random.below(u64::from(self.settings.shards)) as u16;
        self.bring(AUDITOR, shard);
        self.clients[AUDITOR].drains = true;
        let keys: Vec<Key> = self
            .journal
            .parts
            .keys()
            .copied()
            .filter(|key| self.journal.is_declared(key.0))
            .collect();
        for key in &keys {
            let correlation = self.subscribe(AUDITOR, *key, 64, 1 << 20);
            let answer = self.await_answer(AUDITOR, correlation)?;
            if answer != Answer::Done {
                return Err(format!("{key:?} cannot be consumed: {answer:?}"));
            }
        }
        for key in keys {
            self.await_empty(key)?;
        }
        let settling = |world: &World| {
            let link = world.clients[AUDITOR].link.as_ref();
            link.is_none_or(|link| link.pending.is_empty())
        };
        self.await_that("the last settles", PATIENCE_MS, settling)?;
        self.clients[AUDITOR].drains = false;
        self.disconnect(AUDITOR);
        Ok(())
    }

    fn await_empty(&mut self, key: Key) -> Checked<()> {
        // A publisher whose clock was ahead asked for a time that is far off by now.
        let ahead_ms = self.journal.last_due_ms(key).saturating_sub(self.wall_ms());
        let until = self.now_us + (ahead_ms + PATIENCE_MS) * 1000;
        loop {
            let correlation = self.info(AUDITOR, key);
            let Answer::Info(info) = self.await_answer(AUDITOR, correlation)? else {
                return Err(format!("{key:?} cannot be asked about"));
            };
            if info.unsettled() == 0 {
                return Ok(());
            }
            if self.now_us > until {
                return Err(format!("{key:?} does not empty: {info:?}"));
            }
            self.pass(10)?;
        }
    }
}
