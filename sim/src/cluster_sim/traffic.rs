//! What clients do by themselves.

use wire::vocabulary::{Mode, SettleKind};

use super::{
    journal::Key,
    requests::Held,
    sending::Publishing,
    world::{Happening, World},
    Checked,
};
use crate::promises::Setting;

/// Requests a client leaves unanswered before it waits.
const MOST_PENDING: usize = 40;
/// Names queues are declared under.
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// Shorter payloads would have one mark only.
const SHORTEST: u64 = 20;

impl World {
    /// Clients begin to act by themselves.
    pub(super) fn set_busy(&mut self) {
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
        let pause = self.random.pick(&[300, 2_000, 10_000, 10_000]);
        let after = self.delay(pause);
        self.plan(after, Happening::Act { client });
        match &self.clients[client].link {
            None => self.connect_somewhere(client),
            Some(link) if link.pending.len() >= MOST_PENDING => {}
            Some(_) => self.act_connected(client),
        }
        Ok(())
    }

    /// Connects to any node that takes connections.
    pub(super) fn connect_somewhere(&mut self, client: usize) {
        let accepting: Vec<usize> = (0..self.nodes.len())
            .filter(|node| self.nodes[*node].accepts())
            .collect();
        if !accepting.is_empty() {
            let node = self.random.pick(&accepting);
            self.connect(client, node);
        }
    }

    fn act_connected(&mut self, client: usize) {
        let changes = self.settings.changes;
        if changes > 0 && self.random.chance(changes, 1000) {
            return self.act_change(client);
        }
        match self.random.below(1000) {
            0..=14 => self.act_declare(client),
            15..=429 => self.act_publish(client),
            430..=719 => self.act_settle(client),
            720..=799 => self.act_subscribe(client),
            800..=859 => self.act_credit(client),
            860..=869 => self.act_unsubscribe(client),
            870..=874 => self.disconnect(client),
            _ => self.act_look(client),
        }
    }

    fn some_key(&mut self) -> Option<Key> {
        let keys: Vec<Key> = self.journal.parts.keys().copied().collect();
        (!keys.is_empty()).then(|| self.random.pick(&keys))
    }

    fn act_declare(&mut self, client: usize) {
        let name = self.random.pick(&NAMES);
        let known = self
            .journal
            .queues
            .values()
            .find(|queue| queue.name == name)
            .map(|queue| (queue.mode, queue.lease_ms, queue.groups.len() as u16));
        let (mode, lease_ms, partitions) = known.unwrap_or_else(|| {
            let (low, high) = self.settings.lease_ms;
            let lease_ms = low + self.random.below(high - low + 1);
            let mode = match self.settings.durable_only {
                true => Mode::Durable,
                false => self.random.pick(&Mode::ALL),
            };
            (mode, lease_ms, 1 + self.random.below(3) as u16)
        });
        self.declare(client, name, mode, partitions, lease_ms);
    }

    /// Some setting that can be kept, from the newest revision known, an older one, or
    /// whatever it is.
    fn act_change(&mut self, client: usize) {
        let Some((queue_id, partition)) = self.some_key() else {
            return self.act_declare(client);
        };
        let mode = match self.settings.durable_only {
            true => Mode::Durable,
            false => self.random.pick(&Mode::ALL),
        };
        let (nodes, majority) = (self.settings.nodes as u64, self.settings.majority() as u64);
        let least = if mode == Mode::Buffered { 1 } else { majority };
        let number = least + self.random.below(nodes + 1 - least);
        let copies = self.random.pick(&[0, 0, 255, number as u8]);
        let setting = Setting::new(mode, copies);
        let promises = &self.journal.promises;
        let (setting, revision) = promises.choose(&mut self.random, queue_id, setting);
        self.change(client, queue_id, setting, revision);
        if self.random.chance(1, 2) {
            self.info(client, (queue_id, partition));
        }
    }

    fn act_publish(&mut self, client: usize) {
        let Some(key) = self.some_key() else {
            return self.act_declare(client);
        };
        let count = match self.random.below(10) {
            0..=5 => 1,
            6..=8 => 1 + self.random.below(6),
            _ => 1 + self.random.below(40),
        };
        let mut longest = 300;
        if self.random.chance(1, 25) {
            longest = (self.settings.log.segment_bytes * 2).min(60_000);
        }
        let lengths = (0..count)
            .map(|_| (SHORTEST + self.random.below(longest)) as usize)
            .collect();
        let what = Publishing {
            durable: self.random.chance(1, 6),
            deadline_ms: self.random.pick(&[0, 0, 0, 5, 100, 1_000, 5_000]),
            lengths,
        };
        let bytes: usize = what.lengths.iter().map(|len| len + 64).sum();
        let link = self.clients[client].link.as_ref();
        let unanswered = link.map_or(0, |link| link.unanswered_bytes);
        let window = u64::from(self.settings.window_bytes);
        if unanswered > 0 && unanswered + bytes as u64 + 1024 > window {
            return;
        }
        self.publish(client, key, &what);
    }

    /// Some held deliveries of one subscription and generation.
    fn pick_held(&mut self, client: usize) -> Vec<Held> {
        let link = self.clients[client].link.as_mut();
        let held = link.map(|link| std::mem::take(&mut link.held));
        let held = held.unwrap_or_default();
        if held.is_empty() {
            return held;
        }
        let first = self.random.pick(&held);
        let most = 1 + self.random.below(12) as usize;
        let mut picked: Vec<Held> = Vec::new();
        let mut rest = Vec::new();
        for item in held {
            let alike = item.key == first.key
                && item.subscription == first.subscription
                && item.generation == first.generation;
            let known = picked.iter().any(|other| other.offset == item.offset);
            if alike && picked.len() < most && !known {
                picked.push(item);
            } else {
                rest.push(item);
            }
        }
        if let Some(link) = self.clients[client].link.as_mut() {
            link.held = rest;
        }
        picked
    }

    fn act_settle(&mut self, client: usize) {
        let picked = self.pick_held(client);
        let Some(first) = picked.first().copied() else {
            return;
        };
        let kind = match self.random.below(10) {
            0..=6 => SettleKind::Acknowledge,
            7..=8 => SettleKind::Release,
            _ => SettleKind::Reject,
        };
        let confirm = self.random.chance(2, 3);
        let count = picked.len() as u32;
        self.settle(client, kind, picked, confirm);
        if self.random.chance(4, 5) {
            self.credit(client, first.subscription, count, u64::from(count) * 400);
        }
    }

    fn act_subscribe(&mut self, client: usize) {
        let link = self.clients[client].link.as_ref();
        let few = link.is_some_and(|link| link.subscriptions.len() < 4);
        if let (true, Some(key)) = (few, self.some_key()) {
            let records = self.random.pick(&[1, 3, 10, 100]);
            let bytes = self.random.pick(&[100, 2_000, 100_000]);
            self.subscribe(client, key, records, bytes);
        }
    }

    fn some_subscription(&mut self, client: usize) -> Option<u32> {
        let link = self.clients[client].link.as_ref()?;
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
            40..=52 => {
                let from = self.random.below(30);
                self.peek(client, key, from, 20)
            }
            53..=54 => self.list(client),
            55..=57 => {
                let name = self.random.pick(&NAMES);
                self.locate(client, name)
            }
            _ => self.ping(client),
        };
    }
}
