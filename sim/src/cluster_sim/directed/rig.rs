//! What the directed scenarios are put together from: a calm cluster, and single
//! faults when they are asked for.

use shards::log::SyncMethod;
use wire::{message::Declare, vocabulary::Mode};

use super::super::{
    journal::{Fate, Key},
    requests::Answer,
    sending::Publishing,
    settings::Settings,
    world::World,
    Checked,
};
use crate::Random;

/// How long anything may take that has to happen, in simulated ms.
pub(super) const PATIENCE_MS: u64 = 60_000;
/// A client that acts; more follow.
pub(super) const CLIENT: usize = 1;
/// One connected to another node.
pub(super) const OTHER: usize = 2;

/// Who leads a queue's group, and the rest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cast {
    pub leader: usize,
    pub second: usize,
    pub third: usize,
}

impl World {
    /// Three nodes where nothing goes wrong by itself; nothing is synced that nobody
    /// waits for.
    pub(super) fn calm(seed: u64) -> World {
        let mut random = Random::new(seed);
        let mut settings = Settings::draw(&mut random, "calm", 3);
        settings.data_groups = 1;
        settings.clients = 2;
        settings.lease_ms = (30_000, 30_000);
        settings.log.block_bytes = 4096;
        settings.log.segment_bytes = 4096 * 128;
        settings.log.background_sync_interval_ms = 0;
        settings.log.sync_method = random.pick(&[SyncMethod::Dsync, SyncMethod::Fdatasync]);
        settings.window_bytes = 1 << 20;
        (settings.write_us, settings.sync_us, settings.hop_us) = (50, 200, 200);
        World::new(random, settings)
    }

    /// Starts the nodes; every group is led by somebody.
    pub(super) fn begin(&mut self) -> Checked<()> {
        let line = format!("{:?}", self.settings);
        self.note(format_args!("{line}"));
        for node in 0..self.nodes.len() {
            self.start_later(node, 20);
        }
        self.await_nodes()?;
        self.await_repair()
    }

    /// A queue of one partition; its client is connected to that node.
    pub(super) fn declare_at(&mut self, node: usize, mode: Mode) -> Checked<Key> {
        self.declare_on(node, mode, 0)
    }

    /// The same; it asks for so many copies (0: a majority, 255: all).
    pub(super) fn declare_on(&mut self, node: usize, mode: Mode, copies: u8) -> Checked<Key> {
        self.bring(CLIENT, node)?;
        let name = format!("{mode:?}");
        let until_us = self.now_us + PATIENCE_MS * 1000;
        loop {
            let body = Declare {
                name: name.clone(),
                mode: mode as u8,
                copies,
                partitions: 1,
                lease_ms: self.settings.lease_ms.0,
                ..Default::default()
            };
            let correlation = self.declare_as(CLIENT, mode, body);
            match self.answer_to(CLIENT, correlation)? {
                Answer::Queue { queue_id } => return Ok((queue_id, 0)),
                answer if self.now_us > until_us => {
                    return Err(format!("{name} is not declared: {answer:?}"));
                }
                Answer::Gone => {
                    self.pass(20)?;
                    self.bring(CLIENT, node)?;
                }
                _ => self.pass(20)?,
            }
        }
    }

    /// Connects a client to a node, and to no other.
    pub(super) fn bring(&mut self, client: usize, node: usize) -> Checked<()> {
        self.disconnect(client);
        self.await_that("a node to connect to", PATIENCE_MS, |world| {
            world.nodes[node].accepts()
        })?;
        self.clients[client].keep_answers = true;
        self.clients[client].answers.clear();
        self.connect(client, node);
        Ok(())
    }

    pub(super) fn answer_to(&mut self, client: usize, correlation: u64) -> Checked<Answer> {
        let what = format!("answer {correlation} of client {client}");
        self.await_that(&what, PATIENCE_MS, |world| {
            let client = &world.clients[client];
            client.answers.contains_key(&correlation) || client.link.is_none()
        })?;
        let answer = self.clients[client].answers.remove(&correlation);
        Ok(answer.unwrap_or(Answer::Gone))
    }

    /// Sends records and does not wait. Their batch.
    pub(super) fn send_records(&mut self, client: usize, key: Key, count: usize) -> usize {
        self.send_with(client, key, count, false, 0)
    }

    pub(super) fn send_with(
        &mut self,
        client: usize,
        key: Key,
        count: usize,
        durable: bool,
        deadline_ms: u32,
    ) -> usize {
        if self.clients[client].link.is_none() {
            self.connect_somewhere(client);
        }
        let what = Publishing {
            lengths: vec![40; count],
            durable,
            deadline_ms,
        };
        let batch = self.journal.batches.len();
        self.publish(client, key, &what);
        batch
    }

    /// Sends records and waits for their confirm.
    pub(super) fn confirm_records(
        &mut self,
        client: usize,
        key: Key,
        count: usize,
    ) -> Checked<usize> {
        let until_us = self.now_us + PATIENCE_MS * 1000;
        loop {
            let batch = self.send_records(client, key, count);
            self.await_fate(batch)?;
            match self.fate(batch) {
                Fate::Confirmed => return Ok(batch),
                fate if self.now_us > until_us => {
                    return Err(format!("a publish ends as {fate:?}, again and again"));
                }
                _ => self.pass(20)?,
            }
        }
    }

    pub(super) fn fate(&self, batch: usize) -> Fate {
        self.journal
            .batches
            .get(batch)
            .map_or(Fate::Pending, |batch| batch.fate)
    }

    pub(super) fn await_fate(&mut self, batch: usize) -> Checked<()> {
        self.await_that("the end of a publish", PATIENCE_MS, |world| {
            world.fate(batch) != Fate::Pending
        })
    }

    /// Confirmed before so much time has passed?
    pub(super) fn is_confirmed_within(&mut self, batch: usize, ms: u64) -> Checked<bool> {
        let until_us = self.now_us + ms * 1000;
        while self.now_us < until_us && self.fate(batch) == Fate::Pending {
            self.pass(1)?;
        }
        Ok(self.fate(batch) == Fate::Confirmed)
    }

    pub(super) fn group(&self, key: Key) -> Checked<u32> {
        let group = self.journal.group_of(key);
        group.ok_or_else(|| format!("{key:?} is in no group"))
    }

    /// Who leads the partition's group, as things stand, and the others.
    pub(super) fn cast(&self, key: Key) -> Checked<Cast> {
        let group = self.group(key)?;
        let leader = self.newest_leader(group);
        let leader = leader.ok_or_else(|| format!("nobody leads group {group}"))?;
        let mut rest = (0..self.nodes.len()).filter(|node| *node != leader);
        let (second, third) = (rest.next(), rest.next());
        second
            .zip(third)
            .map(|(second, third)| Cast {
                leader,
                second,
                third,
            })
            .ok_or_else(|| "three nodes are needed".to_owned())
    }

    /// Waits until another node than this one leads the group.
    pub(super) fn await_other_leader(&mut self, group: u32, than: usize) -> Checked<usize> {
        self.await_that("another leader", PATIENCE_MS, |world| {
            world.newest_leader(group).is_some_and(|node| node != than)
        })?;
        self.newest_leader(group)
            .ok_or_else(|| "the leader is gone".to_owned())
    }

    // --- faults ---

    /// Nothing gets from one of these to the other, in both directions; both learn of
    /// it soon.
    pub(super) fn part(&mut self, a: usize, b: usize) {
        self.note(format_args!("{a} and {b} are parted"));
        self.cut_way(a, b);
        self.cut_way(b, a);
        self.break_standing(a, b, 500);
    }

    pub(super) fn isolate(&mut self, node: usize) {
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            self.part(node, other);
        }
    }

    pub(super) fn join(&mut self, a: usize, b: usize) {
        self.note(format_args!("{a} and {b} are joined"));
        self.open_way(a, b);
        self.open_way(b, a);
    }

    pub(super) fn join_all(&mut self, node: usize) {
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            self.join(node, other);
        }
    }

    /// The power of a node goes, and with it everything that is not synced.
    pub(super) fn cut_power_to_nothing(&mut self, node: usize) {
        self.nodes[node].disk.lose_all_unsynced();
        self.power_cut(node);
    }

    /// The process stands still until [`World::resume`].
    pub(super) fn stand_still(&mut self, node: usize) {
        self.note(format_args!("{node} stands still"));
        self.nodes[node].halted_us = Some(self.now_us);
    }

    pub(super) fn resume(&mut self, node: usize) {
        self.note(format_args!("{node} goes on"));
        if let Some(since_us) = self.nodes[node].halted_us.take() {
            self.paused_us += self.now_us - since_us;
        }
    }

    /// The generation of the group that somebody leads; the newest.
    pub(super) fn generation_led(&self, group: u32) -> Option<u32> {
        let engines = self.nodes.iter().filter_map(|node| node.engine.as_ref());
        let roles = engines.flat_map(|engine| engine.roles());
        let led = roles.filter(|role| role.group.0 == group && role.leads);
        led.map(|role| role.generation).max()
    }

    /// An operator at that node asks again and again, until it is done.
    pub(super) fn order_until_done(
        &mut self,
        at: usize,
        order: impl Fn(&mut World) -> u64,
    ) -> Checked<()> {
        let until_us = self.now_us + PATIENCE_MS * 1000;
        loop {
            if self.clients[OTHER].link.is_none() {
                self.bring(OTHER, at)?;
            }
            let correlation = order(self);
            match self.answer_to(OTHER, correlation)? {
                Answer::Done => return Ok(()),
                answer if self.now_us > until_us => {
                    return Err(format!("an order is not done: {answer:?}"));
                }
                _ => self.pass(100)?,
            }
        }
    }

    /// Everything heals, and everything is looked at; then once more after all
    /// processes were killed.
    pub(super) fn finish(&mut self) -> Checked<()> {
        self.heal();
        self.await_answers()?;
        for client in 0..self.clients.len() {
            self.disconnect(client);
        }
        self.audit()?;
        self.await_repair()?;
        for node in 0..self.nodes.len() {
            self.crash(node);
            self.start_later(node, 100);
        }
        self.audit()?;
        self.drain_queues()?;
        self.audit()
    }
}
