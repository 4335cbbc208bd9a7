//! What clients do by themselves.

use wire::vocabulary::{Mode, SettleKind};

use super::{
    client::Link,
    journal::{Key, QueueState},
    requests::Held,
    sending::Publishing,
    world::{Happening, World},
    Checked,
};
use crate::promises::Setting;

/// Requests a client leaves unanswered before it waits.
const MOST_PENDING: usize = 40;
/// Names queues are declared under: few, so that they are declared again.
const NAMES: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];

impl World {
    /// Clients begin to act by themselves.
    pub(super) fn set_busy(&mut self) {
        self.enter("busy", 0);
        self.busy = true;
        for client in 1..self.clients.len() {
            let after = self.delay(2_000);
            self.plan(after, Happening::Act { client });
        }
    }

    pub(super) fn act(&mut self, client: usize) -> Checked<()> {
        if !self.busy {
            return Ok(());
        }
        let pause = self.random.pick(&[50, 300, 2_000, 10_000]);
        let after = self.delay(pause);
        self.plan(after, Happening::Act { client });
        if !self.happens(|| format!("client {client}")) {
            return Ok(());
        }
        let lines = self.trace.lines;
        self.act_now(client);
        self.describe_event(lines);
        Ok(())
    }

    fn act_now(&mut self, client: usize) {
        match &self.clients[client].link {
            None if self.node.accepting => {
                let shard = self.random.below(u64::from(self.settings.shards)) as u16;
                self.connect(client, shard);
            }
            None => {}
            Some(link) if link.pending.len() >= MOST_PENDING => {}
            Some(_) => self.act_connected(client),
        }
    }

    fn act_connected(&mut self, client: usize) {
        let changes = self.settings.changes;
        if changes > 0 && self.random.chance(changes, 1000) {
            return self.act_change(client);
        }
        match self.random.below(1000) {
            0..=19 => self.act_declare(client),
            20..=22 => self.act_delete(client),
            23..=429 => self.act_publish(client),
            430..=679 => self.act_settle(client),
            680..=719 => self.act_wrong_settle(client),
            720..=799 => self.act_subscribe(client),
            800..=859 => self.act_credit(client),
            860..=869 => self.act_unsubscribe(client),
            870..=874 => self.disconnect(client),
            _ => self.act_look(client),
        }
    }

    /// A partition that may exist.
    fn some_key(&mut self) -> Option<Key> {
        let keys: Vec<Key> = self
            .journal
            .parts
            .keys()
            .copied()
            .filter(|key| {
                let state = self.journal.queues.get(&key.0).map(|queue| queue.state);
                state.is_some_and(|state| state != QueueState::Deleted)
            })
            .collect();
        (!keys.is_empty()).then(|| self.random.pick(&keys))
    }

    fn act_declare(&mut self, client: usize) {
        let name = self.random.pick(&NAMES);
        let known = self
            .journal
            .queues
            .values()
            .find(|queue| queue.name == name && queue.state == QueueState::Declared);
        // Mostly as it stands; a declare that differs is refused.
        let (mode, lease_ms) = match known {
            Some(queue) => (queue.mode, queue.lease_ms),
            None => {
                let (low, high) = self.settings.lease_ms;
                let lease_ms = low + self.random.below(high - low + 1);
                (self.random.pick(&Mode::ALL), lease_ms)
            }
        };
        let partitions = match known.map(|queue| queue.shards.len() as u16) {
            Some(partitions) => partitions,
            None => 1 + self.random.below(3) as u16,
        };
        self.declare(client, name, mode, partitions, lease_ms);
    }

    /// From the newest revision known, an older one, or whatever it is.
    fn act_change(&mut self, client: usize) {
        let Some((queue_id, partition)) = self.some_key() else {
            return self.act_declare(client);
        };
        let mode = self.random.pick(&Mode::ALL);
        let setting = Setting::new(mode, self.random.pick(&[0, 1, 255]));
        let promises = &self.journal.promises;
        let (setting, revision) = promises.choose(&mut self.random, queue_id, setting);
        self.change(client, queue_id, setting, revision);
        if self.random.chance(1, 2) {
            self.info(client, (queue_id, partition));
        }
    }

    fn act_delete(&mut self, client: usize) {
        if let Some((queue_id, _)) = self.some_key() {
            self.delete(client, queue_id);
        }
    }

    fn act_publish(&mut self, client: usize) {
        let Some(key) = self.some_key() else {
            return self.act_declare(client);
        };
        let segment = self.settings.log.segment_bytes;
        let count = match self.random.below(10) {
            0..=5 => 1,
            6..=8 => 1 + self.random.below(6),
            _ => 1 + self.random.below(40),
        };
        let mut longest = 300;
        if self.random.chance(1, 25) {
            longest = (segment * 2).min(100_000);
        }
        let lengths: Vec<usize> = (0..count)
            .map(|_| self.random.below(longest) as usize)
            .collect();
        let not_before_ms = match self.random.chance(1, 10) {
            true => self.wall_ms() + self.random.below(400),
            false => 0,
        };
        let what = Publishing {
            not_before_ms,
            durable: self.random.chance(1, 6),
            deadline_ms: self.random.pick(&[0, 0, 0, 0, 0, 3, 40]),
            lengths,
        };
        let bytes: usize = what.lengths.iter().map(|len| len + 64).sum();
        let unanswered = self.clients[client]
            .link
            .as_ref()
            .map_or(0, |link| link.unanswered_bytes);
        if unanswered + bytes as u64 + 1024 > u64::from(self.settings.window_bytes)
            && unanswered > 0
        {
            return;
        }
        self.publish(client, key, &what);
    }

    fn link_mut(&mut self, client: usize) -> Option<&mut Link> {
        self.clients[client].link.as_mut()
    }

    /// Some held deliveries of one subscription and generation.
    fn pick_held(&mut self, client: usize) -> Vec<Held> {
        let held = self
            .link_mut(client)
            .map(|link| std::mem::take(&mut link.held));
        let held = held.unwrap_or_default();
        if held.is_empty() {
            return held;
        }
        let first = self.random.pick(&held);
        let most = 1 + self.random.below(12) as usize;
        let alike = |item: &Held| {
            item.key == first.key
                && item.subscription == first.subscription
                && item.generation == first.generation
        };
        let mut picked = Vec::new();
        let mut rest = Vec::new();
        for item in held {
            let known = picked
                .iter()
                .any(|other: &Held| other.offset == item.offset);
            if alike(&item) && picked.len() < most && !known {
                picked.push(item);
            } else {
                rest.push(item);
            }
        }
        if let Some(link) = self.link_mut(client) {
            link.held = rest;
            link.stale.extend(&picked);
            let excess = link.stale.len().saturating_sub(64);
            link.stale.drain(..excess);
        }
        picked
    }

    fn act_settle(&mut self, client: usize) {
        let picked = self.pick_held(client);
        if picked.is_empty() {
            return;
        }
        let kind = match self.random.below(10) {
            0..=6 => SettleKind::Acknowledge,
            7..=8 => SettleKind::Release,
            _ => SettleKind::Reject,
        };
        let delay_ms = match kind {
            SettleKind::Release => self.random.pick(&[0, 0, 20, 300]),
            _ => 0,
        };
        let confirm = self.random.chance(2, 3);
        let (subscription, count) = (picked[0].subscription, picked.len() as u32);
        self.settle(client, kind, picked, confirm, delay_ms, true);
        if self.random.chance(4, 5) {
            self.credit(client, subscription, count, u64::from(count) * 400);
        }
    }

    /// Settles that must have no effect: done before, of an attempt that never
    /// was, of another connection.
    fn act_wrong_settle(&mut self, client: usize) {
        let kind = self.random.pick(&[
            SettleKind::Acknowledge,
            SettleKind::Release,
            SettleKind::Reject,
        ]);
        let confirm = self.random.chance(1, 2);
        let other = self.random.below(self.clients.len() as u64) as usize;
        let from = match self.random.chance(1, 2) {
            true => self.clients[client].link.as_ref().map(|link| (link, true)),
            false if other == client => None,
            false => self.clients[other].link.as_ref().map(|link| (link, false)),
        };
        let Some((link, mine)) = from else {
            return;
        };
        let known = match mine {
            // Their settle is under way or over, or their lease has lapsed.
            true => link.stale.clone(),
            false => link.held.clone(),
        };
        if known.is_empty() {
            return;
        }
        let mut item = self.random.pick(&known);
        if mine {
            item.attempt += 1_000;
        } else if !self.is_of_this_life(client, item) {
            return;
        }
        self.settle(client, kind, vec![item], confirm, 0, false);
    }

    /// Whether the delivery was made by the shard's present life, in which an
    /// attempt is made once only.
    fn is_of_this_life(&self, client: usize, item: Held) -> bool {
        let shard = self.journal.shard_of(item.key).unwrap_or(0);
        let life = self.node.shards[usize::from(shard)].life;
        let rec = self.journal.records.get(item.id as usize);
        let seen = rec.is_some_and(|rec| rec.attempts.0 == life);
        // This client must not hold it too, under the same name.
        let link = self.clients[client].link.as_ref();
        seen && link.is_some_and(|link| !link.held.iter().any(|held| held.id == item.id))
    }

    fn act_subscribe(&mut self, client: usize) {
        let few = self
            .link_mut(client)
            .is_some_and(|link| link.subscriptions.len() < 4);
        if let (true, Some(key)) = (few, self.some_key()) {
            let records = self.random.pick(&[1, 3, 10, 100]);
            let bytes = self.random.pick(&[100, 2_000, 100_000]);
            self.subscribe(client, key, records, bytes);
        }
    }

    fn some_subscription(&mut self, client: usize) -> Option<u32> {
        let link = self.link_mut(client)?;
        let staying = |id: &&u32| !link.leaving.contains(id);
        let all: Vec<u32> = link.subscriptions.keys().filter(staying).copied().collect();
        (!all.is_empty()).then(|| self.random.pick(&all))
    }

    fn act_credit(&mut self, client: usize) {
        if let Some(subscription) = self.some_subscription(client) {
            let records = self.random.below(8) as u32;
            self.credit(client, subscription, records, 4_000);
        }
    }

    fn act_unsubscribe(&mut self, client: usize) {
        if let Some(subscription) = self.some_subscription(client) {
            self.unsubscribe(client, subscription);
        }
    }

    fn act_look(&mut self, client: usize) {
        let Some(key) = self.some_key() else { return };
        match self.random.below(60) {
            0..=14 => self.info(client, key),
            15..=29 => self.frontiers(client, key),
            30..=39 => {
                let deadline_ms = self.random.pick(&[0, 0, 5]);
                self.barrier(client, key, deadline_ms)
            }
            40..=51 => {
                let from = self.random.below(30);
                self.peek(client, key, from, 20)
            }
            52 => self.purge(client, key),
            53..=54 => self.list(client),
            55..=57 => {
                let name = self.random.pick(&NAMES);
                self.locate(client, name)
            }
            _ => self.ping(client),
        };
    }
}
