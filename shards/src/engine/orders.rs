//! What shards ask of group 0, and what group 0's leader orders: recoveries of groups
//! whose trusted voters are too few for good (R6).
//!
//! 1. What is asked is asked again until this node's copy of group 0 shows it.
//! 2. A recovery is ordered only where so many nodes know no leader that no majority
//!    can have one, and a replica that could vote lost its memory. What makes a recovery
//!    safe does not rest on that: every trusted voter stops and answers first.
//! 3. The next generation begins from an answer that group 0 holds (see
//!    [`crate::state::meta::Collected`]); stragglers have the grace.

use std::collections::BTreeMap;

use wire::node::NodeMessage;

use super::{
    core::Engine,
    gates::{majority, Origin},
    types::{Notice, ShardMessage},
};
use crate::{
    group::{GroupId, PeerId},
    io::BatchBuffer,
    state::meta::{
        is_vacant, peer_node, Collected, GroupHistory, MemberCommand, MetaCommand, MetaState, Open,
        FIRST_GENERATION,
    },
};

const META: u32 = GroupId::META.0;
/// Between two tries to get a command into group 0, in ms.
const ASK_MS: u64 = 300;
/// A node's word that it knows no leader counts for so long.
const FRESH_MS: u64 = 3_000;
/// Between two orders for the same group.
const ORDER_MS: u64 = 1_000;

/// What this node wants of group 0, and what its leader was told (shard 0).
#[derive(Default)]
pub(super) struct Orders {
    /// Commands, and when they were last asked for.
    asks: Vec<(MetaCommand, u64)>,
    /// Group, node: the generation in which it knows no leader, and when it said so.
    leaderless: BTreeMap<u32, BTreeMap<u32, (u32, u64)>>,
    /// Group: when something was last ordered for it.
    ordered: BTreeMap<u32, u64>,
    /// When this node's replica of group 0 last asked for another name.
    named_ms: u64,
    /// Group: since when its answers are enough.
    enough: BTreeMap<u32, u64>,
    /// Group: the generation and the queue for which an operator was called.
    halted: BTreeMap<u32, (u32, u64)>,
}

impl<B: BatchBuffer> Engine<B> {
    /// A shard of this node wants that in group 0 (shard 0).
    pub(super) fn ask_meta(&mut self, command: MetaCommand) {
        if !self.orders.asks.iter().any(|(asked, _)| *asked == command) {
            self.orders.asks.push((command, 0));
        }
    }

    /// Does what group 0 is asked for, and what its leader has to order (shard 0).
    pub(super) fn tend_orders(&mut self) {
        if self.meta.is_none() {
            return;
        }
        let now = self.server_ms;
        let mut asks = std::mem::take(&mut self.orders.asks);
        asks.retain(|(command, _)| !self.is_done(command));
        for (command, asked_ms) in &mut asks {
            let due = *asked_ms == 0 || *asked_ms + ASK_MS <= now;
            if due && self.ask_leader(command) {
                *asked_ms = now;
            }
        }
        asks.append(&mut self.orders.asks);
        self.orders.asks = asks;
        self.ask_for_own_name();
        if self.leads_meta() {
            self.order_recoveries();
            self.order_moves();
        }
    }

    /// This node's replica of group 0 lost what it answered: it wants another name, and
    /// cannot know who leads.
    fn ask_for_own_name(&mut self) {
        let waits = self.awaiting_recovery.get(&META);
        let Some(retired_peer) = waits.map(|recovered| recovered.state.peer.0) else {
            return;
        };
        if self.orders.named_ms + ASK_MS > self.server_ms {
            return;
        }
        self.orders.named_ms = self.server_ms;
        let command = MetaCommand::Rejoin {
            group: META,
            retired_peer,
            harmed: true,
        };
        let command = command.encode();
        for out in self.links.outputs() {
            NodeMessage::Propose { command: &command }.encode(out);
        }
    }

    /// Group 0's leader names this node's replica of it.
    pub(super) fn on_named(&mut self, retired: u64, new: u64, generation: u32) {
        let waits = self.awaiting_recovery.get_mut(&META);
        let ours = PeerId(new).node() == self.config.node;
        if let Some(waits) = waits.filter(|waits| ours && waits.state.peer.0 == retired) {
            // It is brought everything, whatever generation it remembers.
            waits.state.generation = waits.state.generation.max(generation);
            self.open_rejoined(GroupId::META, PeerId(new));
        }
    }

    pub(super) fn leads_meta(&self) -> bool {
        let meta = self.groups.get(&META);
        meta.is_some_and(|slot| slot.leads() && slot.serving)
    }

    /// False when nobody is known who could propose it.
    fn ask_leader(&mut self, command: &MetaCommand) -> bool {
        if self.leads_meta() {
            // Asked for again if it is not taken.
            let _ = self.try_propose_meta(command, Origin::Nobody);
            return true;
        }
        let command = command.encode();
        let Some(out) = self.output_to_meta_leader() else {
            return false;
        };
        NodeMessage::Propose { command: &command }.encode(out);
        true
    }

    fn output_to_meta_leader(&mut self) -> Option<&mut Vec<u8>> {
        let meta = self.groups.get(&META)?;
        let leader = meta.group.leader()?;
        self.links.output(leader.node())
    }

    /// This node's copy of group 0 shows it, or shows that it is too late.
    fn is_done(&self, command: &MetaCommand) -> bool {
        let Some(meta) = self.meta.as_ref() else {
            return true;
        };
        is_done(&meta.state, command)
    }

    /// A node asks group 0's leader for something.
    pub(super) fn on_propose(&mut self, node: u32, command: &[u8]) {
        let Ok(command) = MetaCommand::decode(command) else {
            let reason = "a command for group 0 does not decode".to_owned();
            return self.refused_nodes.push((node, reason));
        };
        let may = match &command {
            // A node speaks for its own replicas, a leader for its group.
            MetaCommand::Rejoin { retired_peer, .. } => PeerId(*retired_peer).node() == node,
            MetaCommand::Answered { answer, .. } => PeerId(answer.peer).node() == node,
            MetaCommand::Promoting { .. } => true,
            MetaCommand::Members(MemberCommand::Moved { .. }) => true,
            MetaCommand::Opened { node: opens, .. } => *opens == node,
            _ => false,
        };
        if !may {
            let reason = "a command for group 0 that no node may ask for".to_owned();
            return self.refused_nodes.push((node, reason));
        }
        if !self.leads_meta() {
            return;
        }
        if !self.may_be_named(node, &command) {
            return;
        }
        if !self.is_done(&command) {
            let _ = self.try_propose_meta(&command, Origin::Nobody);
            return;
        }
        if let MetaCommand::Rejoin {
            group: META,
            retired_peer: retired,
            ..
        } = command
        {
            self.tell_name(node, retired);
        }
    }

    fn tell_name(&mut self, node: u32, retired: u64) {
        let meta = self.meta.as_ref();
        let history = meta.and_then(|meta| meta.state.group(META));
        let new = history.and_then(|history| history.replaced.get(&retired).copied());
        let new = new.filter(|new| !is_vacant(*new));
        let generation = history.map_or(FIRST_GENERATION, |history| history.generation);
        if let Some((new, out)) = new.zip(self.links.output(node)) {
            let named = NodeMessage::Named {
                retired,
                new,
                generation,
            };
            named.encode(out);
        }
    }

    /// A replica of this node knows no leader of its group (shard 0).
    pub(super) fn note_leaderless(&mut self, group: u32, generation: u32) {
        if self.leads_meta() {
            return self.on_leaderless(self.config.node, group, generation);
        }
        if let Some(out) = self.output_to_meta_leader() {
            NodeMessage::Leaderless { group, generation }.encode(out);
        }
    }

    pub(super) fn on_leaderless(&mut self, node: u32, group: u32, generation: u32) {
        let known = self.config.place.shard_of(GroupId(group)).is_some();
        if known && self.leads_meta() {
            let told = self.orders.leaderless.entry(group).or_default();
            told.insert(node, (generation, self.server_ms));
        }
    }

    fn order_recoveries(&mut self) {
        let Some(meta) = self.meta.as_ref() else {
            return;
        };
        let now = self.server_ms;
        let (mut orders, mut enough, mut halted) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        for (group, history) in meta.state.histories() {
            let collected = meta.state.collected(group, &self.config.nodes);
            match collected {
                Some(Collected::Enough { .. }) => {
                    let since = self.orders.enough.get(&group).copied().unwrap_or(now);
                    enough.insert(group, since);
                }
                Some(Collected::Halted { queue_id }) => {
                    halted.insert(group, (history.generation, queue_id));
                }
                Some(Collected::Waits { .. }) | None => {}
            }
            let since = enough.get(&group).copied();
            if let Some(order) = self.next_order(group, history, collected, since) {
                orders.push((group, order));
            }
        }
        self.orders.enough = enough;
        self.say_halted(halted);
        for (group, command) in orders {
            let ordered = self.orders.ordered.get(&group);
            if ordered.is_some_and(|ordered| ordered + ORDER_MS > now) {
                continue;
            }
            if self.try_propose_meta(&command, Origin::Nobody).is_ok() {
                self.orders.ordered.insert(group, now);
                self.say_order(group, &command);
            }
        }
    }

    /// What is to be ordered for the group now; its answers are enough since `since`.
    fn next_order(
        &self,
        group: u32,
        history: &GroupHistory,
        collected: Option<Collected>,
        since: Option<u64>,
    ) -> Option<MetaCommand> {
        let state = &self.meta.as_ref()?.state;
        let generation = history.generation;
        let (winner, all) = match collected {
            None => {
                let order = MetaCommand::Collect {
                    group,
                    generation,
                    accepts_loss: false,
                };
                return self.is_lost(group, history).then_some(order);
            }
            Some(Collected::Enough { winner, all }) => (winner, all),
            Some(Collected::Waits { .. } | Collected::Halted { .. }) => return None,
        };
        // The generation begins from a node that is here: of one that answered and is gone
        // since nobody knows whether it comes back, and the others give up theirs.
        let here = |peer: &u64| {
            let node = PeerId(*peer).node();
            node == self.config.node || self.links.is_up(node)
        };
        let winner = state.as_long_as(group, winner).into_iter().find(here)?;
        let late =
            since.is_some_and(|since| since + self.config.recovery_grace_ms <= self.server_ms);
        (all || late).then(|| MetaCommand::Recovered {
            group,
            generation: generation + 1,
            retired_peer: winner,
            new_peer: state.next_peer_id(PeerId(winner).node()),
        })
    }

    /// Calls an operator, once for each recovery that waits for one.
    fn say_halted(&mut self, halted: BTreeMap<u32, (u32, u64)>) {
        let state = self.meta.as_ref().map(|meta| &meta.state);
        for (group, (generation, queue_id)) in &halted {
            if self.orders.halted.get(group) == Some(&(*generation, *queue_id)) {
                continue;
            }
            let queue = state.and_then(|state| state.by_id(*queue_id));
            let queue = queue.map_or("", |queue| &queue.name);
            self.notices.push(Notice::Problem(format!(
                "group {group}: enough replicas answered, and what was confirmed at written may be gone; queue {queue:?} is to wait for an operator (on_total_loss = halt). Bring back what memory there is, or go on with `tidegate cluster recover {group} --accept-loss`"
            )));
        }
        self.orders.halted = halted;
    }

    /// No majority can have a leader, and somebody who could vote lost its memory.
    fn is_lost(&self, group: u32, history: &GroupHistory) -> bool {
        let Some(meta) = self.meta.as_ref() else {
            return false;
        };
        let founders = &self.config.nodes;
        let nodes = meta.state.holders(group, founders);
        let trusted = meta.state.trusted(group, founders);
        let voters = meta.state.voters_ever(group, founders);
        if !voters
            .iter()
            .any(|peer| meta.state.is_retired(group, *peer))
        {
            return false;
        }
        let without = self.without_leader(group, history.generation);
        // Where those who remember could elect if they met, it is only lost if all of them
        // are here and do not (`R6-trigger`); a node that is down may come back.
        match trusted.len() < majority(nodes.len()) {
            true => without > nodes.len() - majority(nodes.len()),
            false => without == nodes.len(),
        }
    }

    /// So many nodes said lately that they know no leader of the group's generation.
    pub(super) fn without_leader(&self, group: u32, generation: u32) -> usize {
        let (told, holders) = (self.orders.leaderless.get(&group), self.holders(group));
        let fresh = |(node, (of, told_ms)): &(&u32, &(u32, u64))| {
            let fresh = *told_ms + FRESH_MS >= self.server_ms;
            *of == generation && fresh && holders.contains(node)
        };
        told.map_or(0, |told| told.iter().filter(fresh).count())
    }

    fn say_order(&mut self, group: u32, command: &MetaCommand) {
        let text = match command {
            MetaCommand::Collect { .. } => format!(
                "group {group}: so many replicas lost their memory that it cannot elect a leader any more; its replicas are asked what they hold, and the group goes on as a new generation from the longest history"
            ),
            MetaCommand::Recovered {
                generation,
                new_peer,
                ..
            } => format!(
                "group {group} goes on as generation {generation} from what node {} holds",
                PeerId(*new_peer).node()
            ),
            _ => return,
        };
        self.notices.push(Notice::Problem(text));
    }

    /// Tells the shards of every log that group 0 knows: what links is held against it.
    pub(super) fn tell_opens(&mut self) {
        self.tell_uncommitted_opens();
        let cluster = self.is_cluster();
        let Some(meta) = self.meta.as_ref().filter(|_| cluster && !self.opens_told) else {
            return;
        };
        let opens = meta
            .state
            .opens()
            .filter(|((_, log), _)| *log < self.config.place.shards);
        let news = opens.map(|((node, log), open)| (log, ShardMessage::LogKnown { node, open }));
        self.outbound.extend(news);
        self.tell_seats();
        self.opens_told = true;
    }

    /// The same of opens that stand in group 0's log here, committed as far as others know:
    /// until this copy of group 0 has caught up an older copy of a directory would pass for
    /// the node's, and vote. Of this node's own only what is committed is told: it notes it.
    fn tell_uncommitted_opens(&mut self) {
        let meta = self.groups.get(&META).zip(self.meta.as_ref());
        let Some((slot, meta)) = meta.filter(|_| self.config.nodes.len() > 1) else {
            return;
        };
        let last = slot.group.last_index();
        if last == self.opens_seen {
            return;
        }
        let mut opens: BTreeMap<(u32, u16), Open> = BTreeMap::new();
        let mut payload = Vec::new();
        for index in slot.group.last_applied().0 + 1..=last {
            payload.clear();
            let visit = &mut |piece: &[u8]| payload.extend_from_slice(piece);
            slot.group.visit_entry(&self.log, index, visit);
            let Ok(MetaCommand::Opened { node, log, open }) = MetaCommand::decode(&payload) else {
                continue;
            };
            let known = opens.get(&(node, log)).copied();
            let known = known.or_else(|| meta.state.last_open(node, log));
            // As it will be judged when it is applied.
            let stands = known.is_none_or(|known| known.contradicts(open).is_none());
            if stands && node != self.config.node && log < self.config.place.shards {
                opens.insert((node, log), open);
            }
        }
        self.opens_seen = last;
        let news = opens.into_iter();
        let news = news.map(|((node, log), open)| (log, ShardMessage::LogKnown { node, open }));
        self.outbound.extend(news);
    }

    /// The shard that has a replica of the group is told what group 0 knows of it.
    pub(super) fn tell_history(&mut self, group: u32) {
        let Some(meta) = self.meta.as_ref().filter(|_| self.is_cluster()) else {
            return;
        };
        let (history, shard) = (
            meta.state.group(group),
            self.config.place.shard_of(GroupId(group)),
        );
        if let Some((history, shard)) = history.cloned().zip(shard) {
            let group = GroupId(group);
            let history = Box::new(history);
            self.outbound
                .push((shard, ShardMessage::History { group, history }));
        }
    }
}

fn is_done(state: &MetaState, command: &MetaCommand) -> bool {
    if let MetaCommand::Opened { node, log, open } = command {
        let known = state.last_open(*node, *log);
        return known.is_some_and(|known| known == *open || known.contradicts(*open).is_some());
    }
    let (group, generation) = match command {
        MetaCommand::Members(MemberCommand::Moved {
            group, from, to, ..
        }) => {
            let shift = state.roster().and_then(|it| it.shifts.get(group));
            return shift.is_none_or(|shift| (shift.from, shift.to) != (*from, *to));
        }
        MetaCommand::Rejoin {
            group,
            retired_peer,
            ..
        } => {
            // Asked for again when the node gets a part in the group.
            let known = state.roster();
            if known.is_some_and(|it| !it.has_part(*group, peer_node(*retired_peer))) {
                return true;
            }
            (*group, 0)
        }
        MetaCommand::Promoting {
            group, generation, ..
        }
        | MetaCommand::Answered {
            group, generation, ..
        } => (*group, *generation),
        _ => return true,
    };
    let Some(history) = state.group(group) else {
        return false;
    };
    let over = history.generation > generation;
    match command {
        MetaCommand::Rejoin {
            retired_peer,
            harmed,
            ..
        } => {
            let named = history.name_of(*retired_peer).is_some();
            named && (!harmed || history.harmed.contains(retired_peer))
        }
        MetaCommand::Promoting { peer, .. } => {
            over || history.collecting.is_some()
                || history.promoted.contains(peer)
                || history.retired.contains(peer)
                || history.left.contains(peer)
                || state
                    .roster()
                    .is_some_and(|it| !it.is_holder(group, peer_node(*peer)))
        }
        MetaCommand::Answered { answer, .. } => {
            let collecting = history.collecting.as_ref();
            let known = |it: &crate::state::meta::Collecting| {
                it.answers.values().any(|known| known == answer)
            };
            // Without an order for what it stopped by, this copy is only behind.
            over || collecting.is_some_and(known)
        }
        _ => true,
    }
}
