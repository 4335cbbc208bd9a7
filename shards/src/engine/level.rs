//! The cluster's feature level: what every member's version knows.
//!
//! Shard 0 has it from this node's copy of group 0 and tells the others. Group 0's leader
//! raises it when all members have said, with their opens, that they know more; a lone
//! node raises it by itself.
//!
//! 1. What needs a higher level than this shard knows of is refused before it is proposed.
//! 2. The level never goes down, whatever is told late.
//! 3. Links of nodes that know less are refused from then on: see the driver.

use wire::{error::ErrorCode, message::Extension};

use super::{
    core::Engine,
    gates::Origin,
    publish::Refusal,
    types::{Effect, ShardMessage},
};
use crate::{
    io::BatchBuffer,
    state::{level::FIRST_LEVEL, meta::MetaCommand},
};

/// Between two tries to raise it, in ms.
const ASK_MS: u64 = 300;

/// What this shard knows.
pub(super) struct Level {
    known: u16,
    /// The driver was told of this one.
    effect_of: u16,
    /// Shard 0: the other shards were told of this one.
    shards_told_of: u16,
    /// Shard 0: when it was last tried to raise it; server time.
    asked_ms: u64,
}

impl Level {
    pub(super) fn new() -> Self {
        Level {
            known: FIRST_LEVEL,
            effect_of: FIRST_LEVEL,
            shards_told_of: FIRST_LEVEL,
            asked_ms: 0,
        }
    }
}

impl<B: BatchBuffer> Engine<B> {
    /// Whether a command that this level brought may be proposed.
    ///
    /// # Errors
    /// The cluster is at a lower one: who is behind, and what to do.
    pub(super) fn check_level(&self, needed: u16) -> Result<(), Refusal> {
        let known = self.level.known;
        if needed <= known {
            return Ok(());
        }
        let behind = self.behind(needed).into_iter();
        let behind: Vec<String> = behind
            .map(|(node, level)| match level {
                Some(level) => format!("node {node} knows {level}"),
                None => format!("node {node} has not said what it knows"),
            })
            .collect();
        let next = match behind.is_empty() {
            true => "every node knows it by now: ask again".to_owned(),
            false => format!(
                "{}; start each of them with a version of tidegate that knows it, and the level rises by itself (`tidegate cluster status` shows it)",
                behind.join(", ")
            ),
        };
        let message =
            format!("this needs feature level {needed}, and the cluster is at {known}: {next}");
        Err((ErrorCode::FeatureLevel, message))
    }

    /// Members that are not known to know the level, and what they do (shard 0).
    fn behind(&self, level: u16) -> Vec<(u32, Option<u16>)> {
        let mut levels = self.member_levels();
        levels.retain(|(_, known)| known.is_none_or(|known| known < level));
        levels
    }

    /// What each member's version knows, as far as it is recorded. Nobody waits for one
    /// that was given up for good.
    fn member_levels(&self) -> Vec<(u32, Option<u16>)> {
        let state = self.meta.as_ref().map(|meta| &meta.state);
        let mut members = self.members();
        members.retain(|node| state.is_none_or(|it| !it.forgotten().contains(node)));
        let level = |node: u32| match self.is_cluster() {
            true => state.and_then(|state| state.level_of(node)),
            // A lone node's opens are nobody's business.
            false => Some(self.config.level),
        };
        members.into_iter().map(|it| (it, level(it))).collect()
    }

    /// Group 0's leader raises the level once all members know more (shard 0).
    pub(super) fn raise_level(&mut self) {
        let Some(meta) = self.meta.as_ref() else {
            return;
        };
        let at = meta.state.level();
        let now = self.server_ms;
        let due = self.level.asked_ms == 0 || self.level.asked_ms + ASK_MS <= now;
        if at >= self.config.level || !due || self.draining || !self.leads_meta() {
            return;
        }
        // Who belongs to the cluster has to be known here as group 0 has it.
        let current = meta.state.roster().map(|it| it.revision);
        if self.roster().map(|it| it.revision) != current {
            return;
        }
        let lowest = self.member_levels().into_iter().map(|(_, level)| level);
        let level = lowest
            .min()
            .flatten()
            .map_or(0, |it| it.min(self.config.level));
        if level > at {
            self.level.asked_ms = now;
            // Asked for again if it is not taken.
            let _ = self.try_propose_meta(&MetaCommand::Level { level }, Origin::Nobody);
        }
    }

    /// Shard 0 tells what its copy of group 0 says, where that is new.
    pub(super) fn tell_level(&mut self) {
        let level = self.meta.as_ref().map_or(0, |meta| meta.state.level());
        if level <= self.level.shards_told_of {
            return;
        }
        self.level.shards_told_of = level;
        for shard in 0..self.config.place.shards {
            self.outbound.push((shard, ShardMessage::Level(level)));
        }
    }

    pub(super) fn on_level(&mut self, level: u16) {
        self.level.known = self.level.known.max(level);
    }

    pub(super) fn push_level_effect(&mut self, effects: &mut Vec<Effect<B>>) {
        if self.level.effect_of < self.level.known {
            self.level.effect_of = self.level.known;
            effects.push(Effect::LevelKnown(self.level.known));
        }
    }

    /// Shard 0, for an operator: the cluster's level, this version's, and each member's.
    pub(super) fn level_status(&self) -> Option<Extension> {
        let meta = self.meta.as_ref()?;
        let mut bytes = meta.state.level().to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.config.level.to_le_bytes());
        for (node, level) in self.member_levels() {
            bytes.extend_from_slice(&node.to_le_bytes());
            bytes.extend_from_slice(&level.unwrap_or(0).to_le_bytes());
        }
        let kind = Extension::LEVEL;
        Some(Extension { kind, bytes })
    }
}
