//! The audit: with nobody else there and nothing going wrong, everything is
//! looked at and held against what was promised.

use std::collections::BTreeMap;

use wire::error::ErrorCode;

use super::{
    journal::{Fate, Key},
    requests::{Answer, Info, Request, Seen},
    world::World,
    Checked,
};

/// The client that audits.
pub(super) const AUDITOR: usize = 0;
/// How long one answer may take, in simulated ms: longer than any deadline.
const PATIENCE_MS: u64 = 60_000;
/// How long a cluster that was healed may take to answer at all.
const RECOVERY_US: u64 = 90_000_000;

impl World {
    /// Waits until every node takes connections.
    pub(super) fn await_nodes(&mut self) -> Checked<()> {
        self.await_that("every node to serve", PATIENCE_MS, |world| {
            let mut nodes = world.nodes.iter().filter(|node| node.belongs);
            nodes.all(|node| node.accepts() && !node.latched)
        })
    }

    /// Waits until what power cuts and errors took is made up for.
    pub(super) fn await_repair(&mut self) -> Checked<()> {
        self.await_that("the repair", PATIENCE_MS, World::is_repaired)
    }

    /// Waits until no client waits any more.
    pub(super) fn await_answers(&mut self) -> Checked<()> {
        let waits = |world: &World| {
            let links = world.clients.iter().filter_map(|c| c.link.as_ref());
            links
                .flat_map(|link| link.pending.values())
                .any(|(request, _)| {
                    // One that asks for no answer gets one only when refused.
                    !matches!(request, Request::Settle { confirm: false, .. })
                })
        };
        let done = self.await_that("every answer", PATIENCE_MS, |world| !waits(world));
        done.map_err(|error| {
            let links = self.clients.iter().filter_map(|c| c.link.as_ref());
            let pending: Vec<_> = links
                .flat_map(|link| link.pending.values())
                .filter(|(request, _)| !matches!(request, Request::Settle { confirm: false, .. }))
                .take(3)
                .collect();
            format!("{error}; {pending:?}")
        })
    }

    fn await_answer(&mut self, correlation: u64) -> Checked<Answer> {
        let what = format!("the auditor's answer {correlation}");
        self.await_that(&what, PATIENCE_MS, |world| {
            world.clients[AUDITOR].answers.contains_key(&correlation)
        })?;
        let answer = self.clients[AUDITOR].answers.remove(&correlation);
        answer.ok_or_else(|| "an answer got lost".to_owned())
    }

    /// Asks until there is an answer that is not "not now".
    fn ask_until(&mut self, node: usize, ask: impl Fn(&mut World) -> u64) -> Checked<Answer> {
        let until_us = self.now_us + RECOVERY_US;
        loop {
            if self.clients[AUDITOR].link.is_none() {
                self.await_nodes()?;
                self.clients[AUDITOR].keep_answers = true;
                self.clients[AUDITOR].answers.clear();
                self.connect(AUDITOR, node);
            }
            let correlation = ask(self);
            let answer = self.await_answer(correlation)?;
            let again = match &answer {
                Answer::Gone => true,
                Answer::Error { code, .. } => passes(*code),
                _ => false,
            };
            if !again {
                return Ok(answer);
            }
            if self.now_us > until_us {
                return Err(format!("the healed cluster still answers {answer:?}"));
            }
            self.pass(50)?;
        }
    }

    /// Looks at everything from every node. No other client may be connected.
    pub(super) fn audit(&mut self) -> Checked<()> {
        self.note(format_args!("audit"));
        self.await_nodes()?;
        let members: Vec<usize> = (0..self.nodes.len())
            .filter(|node| self.nodes[*node].belongs)
            .collect();
        let through = self.random.pick(&members);
        for node in members {
            self.disconnect(AUDITOR);
            self.audit_queues(node)?;
            if node == through {
                self.audit_partitions(node)?;
            }
        }
        self.disconnect(AUDITOR);
        self.journal.promises.judge_all()
    }

    /// Every queue is known by its name, on every node.
    fn audit_queues(&mut self, node: usize) -> Checked<()> {
        let queues: Vec<(u64, String)> = self
            .journal
            .queues
            .iter()
            .map(|(id, queue)| (*id, queue.name.clone()))
            .collect();
        for (queue_id, name) in queues {
            let until_us = self.now_us + RECOVERY_US;
            loop {
                let answer = self.ask_until(node, |world| world.locate(AUDITOR, &name))?;
                let Answer::Queue { queue_id: found } = answer else {
                    // A node that was away may not have heard yet.
                    if self.now_us > until_us {
                        return Err(format!("queue {name:?} on node {node}: {answer:?}"));
                    }
                    self.pass(50)?;
                    continue;
                };
                if found != queue_id {
                    return Err(format!("queue {name:?} is {queue_id} and {found}"));
                }
                break;
            }
        }
        self.audit_list(node)
    }

    /// A node lists what it has heard of: all of it, after a while.
    fn audit_list(&mut self, node: usize) -> Checked<()> {
        let until_us = self.now_us + RECOVERY_US;
        loop {
            let listed = self.ask_until(node, |world| world.list(AUDITOR))?;
            let Answer::Queues(ids) = listed else {
                return Err(format!("queues cannot be listed: {listed:?}"));
            };
            let missing = self.journal.queues.keys().find(|id| !ids.contains(id));
            match missing {
                None => return Ok(()),
                Some(id) if self.now_us > until_us => {
                    return Err(format!("node {node} does not list queue {id}: {ids:?}"));
                }
                Some(_) => self.pass(50)?,
            }
        }
    }

    fn audit_partitions(&mut self, node: usize) -> Checked<()> {
        let keys: Vec<Key> = self.journal.parts.keys().copied().collect();
        for key in keys {
            let info = self.look_applied(node, key)?;
            let said = info.in_force.as_ref();
            let next = (info.generation, info.written_next);
            self.journal.promises.check_applied(key, next, said)?;
            self.audit_losses(key, &info)?;
            let ended = linear::Ended {
                generation: info.generation,
                written_next: info.written_next,
            };
            self.journal.history.ended(key, ended);
            let present = self.peek_all(node, key, &info)?;
            self.audit_present(key, &present)?;
            self.audit_missing(key, &present, &info)?;
        }
        Ok(())
    }

    /// A partition's info; a barrier goes before, so that it is no older than what
    /// was confirmed before.
    fn look(&mut self, node: usize, key: Key) -> Checked<Info> {
        let answer = self.ask_until(node, |world| world.barrier(AUDITOR, key, 0))?;
        if answer != Answer::Done {
            return Err(format!("a barrier of {key:?}: {answer:?}"));
        }
        match self.ask_until(node, |world| world.info(AUDITOR, key))? {
            Answer::Info(info) => Ok(info),
            answer => Err(format!("{key:?} cannot be asked about: {answer:?}")),
        }
    }

    /// The same, once what is desired is applied.
    fn look_applied(&mut self, node: usize, key: Key) -> Checked<Info> {
        let until_us = self.now_us + RECOVERY_US;
        loop {
            let info = self.look(node, key)?;
            let newest = self.journal.promises.newest(key.0);
            if info.is_applied() && info.revision >= newest {
                return Ok(info);
            }
            if self.now_us > until_us {
                return Err(format!(
                    "revision {newest} of {key:?} is not applied in a healed cluster: {info:?}"
                ));
            }
            self.pass(50)?;
        }
    }

    /// Losses are told for ever.
    fn audit_losses(&mut self, key: Key, info: &Info) -> Checked<()> {
        let part = self.journal.parts.entry(key).or_default();
        if !info.losses.starts_with(&part.losses) {
            return Err(format!(
                "losses of {key:?} were {:?} and are {:?}",
                part.losses, info.losses
            ));
        }
        let below = info.losses.iter().all(|(generation, first)| {
            *generation < info.generation && *first <= info.written_next
        });
        if !below {
            return Err(format!("{key:?} reports a loss of what is there: {info:?}"));
        }
        part.losses.clone_from(&info.losses);
        self.journal.history.losses(key, &info.losses);
        for (old, new) in std::mem::take(&mut part.replaced) {
            let rec = self.journal.record(old)?.clone();
            if self.journal.reported_lost(&rec).is_none() {
                return Err(format!("record {old} gave its offset to {new} and is not reported lost: {rec:?}, {info:?}"));
            }
        }
        Ok(())
    }

    fn peek_all(&mut self, node: usize, key: Key, info: &Info) -> Checked<BTreeMap<u64, Seen>> {
        let mut all = BTreeMap::new();
        let mut from = 0;
        loop {
            let answer = self.ask_until(node, |world| world.peek(AUDITOR, key, from, 1024))?;
            let Answer::Peeked(seen) = answer else {
                return Err(format!("{key:?} cannot be peeked at: {answer:?}"));
            };
            let Some(last) = seen.last() else { break };
            from = last.offset + 1;
            all.extend(seen.into_iter().map(|seen| (seen.offset, seen)));
        }
        // Leases that end meanwhile change nothing.
        if all.len() as u64 != info.unsettled() {
            return Err(format!("{key:?} shows {} records: {info:?}", all.len()));
        }
        Ok(all)
    }

    /// Nothing is there that was settled, lost or never published.
    fn audit_present(&mut self, key: Key, present: &BTreeMap<u64, Seen>) -> Checked<()> {
        for seen in present.values() {
            let rec = self.journal.record(seen.id)?.clone();
            if let Some(settled) = rec.settled {
                if !self.journal.may_be_undone(&settled) {
                    return Err(format!(
                        "record {} of {key:?} is back after its settle was confirmed: {rec:?}",
                        seen.id
                    ));
                }
            }
            if self.journal.batches[rec.batch].fate == Fate::Failed {
                return Err(format!(
                    "record {} was reported as failed and is there",
                    seen.id
                ));
            }
        }
        Ok(())
    }

    /// What is not there was settled, never confirmed, or reported lost.
    fn audit_missing(
        &mut self,
        key: Key,
        present: &BTreeMap<u64, Seen>,
        info: &Info,
    ) -> Checked<()> {
        let mut lost = 0;
        for (id, rec) in self.journal.records.iter().enumerate() {
            let Some(known) = rec.known.filter(|_| rec.key == key) else {
                continue;
            };
            let seen = present.get(&known.offset);
            let there = seen.is_some_and(|seen| seen.id == id as u64);
            let reported = self.journal.reported_lost(rec);
            if reported.is_some() && !self.journal.may_be_lost(rec) {
                return Err(format!("record {id} of {key:?} was promised and is reported lost by {reported:?}: {rec:?}"));
            }
            if reported.is_some() && there {
                return Err(format!(
                    "record {id} of {key:?} is reported lost by {reported:?} and is there: {rec:?}"
                ));
            }
            lost += u64::from(reported.is_some());
            let may_be_gone = rec.open_settles > 0 || reported.is_some() || rec.settled.is_some();
            if !there && !may_be_gone && rec.promised.is_some() {
                return Err(format!("record {id} of {key:?} is gone: {rec:?}, {info:?}"));
            }
        }
        self.journal.lost += lost;
        Ok(())
    }

    /// Consumes all there is, until every partition is empty.
    pub(super) fn drain_queues(&mut self) -> Checked<()> {
        self.note(format_args!("drain"));
        let members = (0..self.nodes.len()).filter(|node| self.nodes[*node].belongs);
        let members: Vec<usize> = members.collect();
        let node = self.random.pick(&members);
        let keys: Vec<Key> = self.journal.parts.keys().copied().collect();
        self.clients[AUDITOR].drains = true;
        let until_us = self.now_us + RECOVERY_US;
        loop {
            let mut left = 0;
            for key in &keys {
                let key = *key;
                let info = self.look(node, key)?;
                left += info.unsettled();
                let link = self.clients[AUDITOR].link.as_ref();
                let consumes =
                    link.is_some_and(|link| link.subscriptions.values().any(|of| *of == key));
                if info.unsettled() > 0 && !consumes {
                    let subscribe = |world: &mut World| world.subscribe(AUDITOR, key, 64, 1 << 20);
                    self.ask_until(node, subscribe)?;
                }
            }
            if left == 0 {
                break;
            }
            if self.now_us > until_us {
                return Err(format!("{left} records do not come out"));
            }
            self.pass(20)?;
        }
        self.await_answers()?;
        self.clients[AUDITOR].drains = false;
        self.disconnect(AUDITOR);
        Ok(())
    }
}

/// Whether an error means "not now".
fn passes(code: u16) -> bool {
    matches!(
        ErrorCode::from_raw(code),
        Some(
            ErrorCode::Unavailable
                | ErrorCode::NotOwner
                | ErrorCode::Deadline
                | ErrorCode::Latched
                | ErrorCode::MissingCopies
                | ErrorCode::Overloaded
        )
    )
}
