//! Settles that wait to be written, put together per partition.
//!
//! Owns: the settles given since the writer last had room. Each kind of
//! settle of a partition becomes one frame (more only above the frame's item
//! limit). It never waits for company: the writer takes all of it each time.
//!
//! A lost connection makes every delivery of it stale, so what is queued then
//! is refused here and never sent over the next connection.

use std::collections::HashMap;

use tokio::{sync::oneshot, time::Instant};
use wire::{message::SettleItem, vocabulary::SettleKind};

use crate::{delivery::Settled, error::SettleError};

/// Most items of one settle frame; well below the protocol's limit, so that
/// an answer is not held up by a huge frame.
pub(crate) const FRAME_ITEMS: usize = 16_384;

/// What settles must share to travel in one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SettleKey {
    pub subscription: u32,
    pub queue_id: u64,
    pub partition: u16,
    pub generation: u32,
    pub kind: SettleKind,
    pub delay_ms: u64,
    pub confirm: bool,
}

pub(crate) type SettleAnswer = oneshot::Sender<Result<Settled, SettleError>>;

/// Settles of one key. `answers` is as long as `items` when a confirm is
/// asked for, and empty otherwise.
#[derive(Debug, Default)]
pub(crate) struct SettleGroup {
    pub items: Vec<SettleItem>,
    pub answers: Vec<SettleAnswer>,
}

#[derive(Debug, Default)]
pub(crate) struct Settles {
    groups: HashMap<SettleKey, SettleGroup>,
}

impl Settles {
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Queues one settle; `answer` is given exactly when `key.confirm` is set.
    pub fn push(&mut self, key: SettleKey, item: SettleItem, answer: Option<SettleAnswer>) {
        let group = self.groups.entry(key).or_default();
        group.items.push(item);
        group.answers.extend(answer);
    }

    /// Takes all of it, in frames-to-be.
    pub fn take(&mut self) -> Vec<(SettleKey, SettleGroup)> {
        let mut frames = Vec::with_capacity(self.groups.len());
        for (key, mut group) in self.groups.drain() {
            while group.items.len() > FRAME_ITEMS {
                let rest = SettleGroup {
                    items: group.items.split_off(FRAME_ITEMS),
                    answers: group
                        .answers
                        .split_off(FRAME_ITEMS.min(group.answers.len())),
                };
                frames.push((key, std::mem::replace(&mut group, rest)));
            }
            frames.push((key, group));
        }
        frames
    }

    /// Empties it, for a lost connection.
    pub fn drain(&mut self) -> impl Iterator<Item = SettleAnswer> + '_ {
        self.groups.drain().flat_map(|(_, group)| group.answers)
    }
}

/// A settle frame whose confirm was asked for.
#[derive(Debug)]
pub(crate) struct SentSettle {
    pub items: Vec<SettleItem>,
    pub answers: Vec<SettleAnswer>,
    pub deadline: Instant,
}

impl SentSettle {
    /// Resolves every item by `decide`.
    pub fn resolve(self, mut decide: impl FnMut(&SettleItem) -> Result<Settled, SettleError>) {
        for (item, answer) in self.items.iter().zip(self.answers) {
            // The asking side may have dropped its future: then nobody cares.
            let _ = answer.send(decide(item));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settles_of_a_partition_share_a_frame_and_long_ones_are_cut() {
        let mut settles = Settles::default();
        let key = SettleKey {
            subscription: 1,
            queue_id: 1,
            partition: 0,
            generation: 1,
            kind: SettleKind::Acknowledge,
            delay_ms: 0,
            confirm: false,
        };
        for offset in 0..FRAME_ITEMS as u64 + 1 {
            settles.push(key, SettleItem { offset, attempt: 1 }, None);
        }
        let confirmed = SettleKey {
            confirm: true,
            ..key
        };
        let (answer, _keep) = oneshot::channel();
        let item = SettleItem {
            offset: 9,
            attempt: 2,
        };
        settles.push(confirmed, item, Some(answer));
        let mut frames = settles.take();
        assert!(settles.is_empty());
        frames.sort_by_key(|(_, group)| std::cmp::Reverse(group.items.len()));
        let lengths: Vec<_> = frames.iter().map(|(_, g)| g.items.len()).collect();
        assert_eq!(lengths, [FRAME_ITEMS, 1, 1]);
        let answers: usize = frames.iter().map(|(_, g)| g.answers.len()).sum();
        assert_eq!(answers, 1);
        let mut all: Vec<_> = frames
            .iter()
            .filter(|(key, _)| !key.confirm)
            .flat_map(|(_, g)| g.items.iter().map(|i| i.offset))
            .collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..FRAME_ITEMS as u64 + 1));
    }
}
