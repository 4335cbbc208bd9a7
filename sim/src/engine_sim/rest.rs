//! At rest: nobody asks any more, and everything that was asked is answered.

use super::{
    audit::AUDITOR,
    journal::Key,
    requests::{Answer, Info, Request},
    world::World,
    Checked,
};

/// Longer than any deadline, any stall and any way back from a latch.
const ANSWER_MS: u64 = 90_000;
/// Within this, what a gone connection held is given back (the end of a lease
/// has to be written, or synced); a log
/// that had no room looks for it every 5 s.
const GIVE_BACK_MS: u64 = 6_000;

impl World {
    /// Clients stop asking: every request gets its answer; consumers and
    /// leases are those there are, and none once their connections are gone.
    pub(super) fn come_to_rest(&mut self) -> Checked<()> {
        self.note(format_args!("rest"));
        let stall = std::mem::take(&mut self.settings.rates.stall);
        let rested = self.rest();
        self.settings.rates.stall = stall;
        rested
    }

    fn rest(&mut self) -> Checked<()> {
        for sim in &self.node.shards {
            sim.disk.set_free_bytes(None);
        }
        self.await_that("every answer", ANSWER_MS, |world| {
            world.node.down || world.clients.iter().all(|client| !is_waiting(client))
        })?;
        self.calm_down()?;
        self.check_consumers()?;
        for client in 1..self.clients.len() {
            self.disconnect(client);
        }
        self.calm_down()?;
        self.await_that("every checkpoint", GIVE_BACK_MS, |world| {
            let engines = world.node.shards.iter().flat_map(|sim| &sim.engine);
            world.node.down || engines.clone().all(|engine| engine.upkeep_is_at_rest())
        })?;
        self.check_nothing_held()
    }

    /// Lets what is under way end, with every shard up.
    fn calm_down(&mut self) -> Checked<()> {
        let up = |world: &World| {
            let shards = world.node.shards.iter();
            world.node.down || shards.clone().all(|sim| sim.serving && !sim.latched)
        };
        for _ in 0..10 {
            self.await_that("every shard", ANSWER_MS, up)?;
            self.pass(GIVE_BACK_MS)?;
            if up(self) {
                return Ok(());
            }
        }
        Err("the shards do not come to rest".to_owned())
    }

    fn declared(&self) -> Vec<Key> {
        let keys = self.journal.parts.keys().copied();
        keys.filter(|key| self.journal.is_declared(key.0)).collect()
    }

    fn check_consumers(&mut self) -> Checked<()> {
        for key in self.declared() {
            let links = self
                .clients
                .iter()
                .filter_map(|client| client.link.as_ref());
            let there = links
                .flat_map(|link| link.subscriptions.values())
                .filter(|subscribed| **subscribed == key)
                .count();
            let Some(info) = self.look(key)? else {
                return Ok(());
            };
            if info.consumers as usize != there {
                return Err(format!("{key:?} has {there} consumers: {info:?}"));
            }
        }
        Ok(())
    }

    fn check_nothing_held(&mut self) -> Checked<()> {
        for key in self.declared() {
            let Some(info) = self.look(key)? else {
                return Ok(());
            };
            if info.consumers > 0 || info.leased > 0 || info.gated > 0 {
                return Err(format!("nobody is there, and {key:?} is {info:?}"));
            }
        }
        Ok(())
    }

    /// A partition's info, on a connection of its own; none if the process is down.
    fn look(&mut self, key: Key) -> Checked<Option<Info>> {
        if self.node.down {
            return Ok(None);
        }
        let shard = self.journal.shard_of(key).unwrap_or(0);
        self.bring(AUDITOR, shard);
        let correlation = self.info(AUDITOR, key);
        let answer = self.await_answer(AUDITOR, correlation)?;
        self.disconnect(AUDITOR);
        match answer {
            Answer::Info(info) => Ok(Some(info)),
            Answer::Gone => Ok(None),
            answer => Err(format!("{key:?} is declared: {answer:?}")),
        }
    }
}

/// Waits for an answer that must come. A settle that asks for none is answered
/// only when something was refused.
fn is_waiting(client: &super::client::Client) -> bool {
    let pending = client.link.iter().flat_map(|link| link.pending.values());
    pending
        .filter(|(request, _)| !matches!(request, Request::Settle { confirm: false, .. }))
        .count()
        > 0
}
