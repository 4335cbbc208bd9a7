//! Followers that are behind: what is kept of the log for them, and what is read back.
//!
//! 1. Entries that a follower lacks stay known, up to a bound: it gets them from the
//!    log, not the whole state anew. One that a snapshot was sent to has a much wider
//!    bound until it caught up: what came in meanwhile would otherwise be gone when the
//!    snapshot is through, and the next one would end the same way.
//! 2. A follower that makes no progress loses the wider bound; one that never acknowledged
//!    anything holds nothing back, for it gets a snapshot anyway.
//!
//! Never: holds back a follower's own replica, or what a group without a leader has.

use std::collections::BTreeMap;

use raft::ProgressState;

use super::{
    node::{Group, WantedEntry},
    storage::{Wanted, KEPT_ENTRIES, MESSAGE_BYTES},
};
use crate::log::LogPosition;

/// Entries kept for a follower that is behind.
const HELD_ENTRIES: u64 = 128 << 10;
/// Entries kept for one that a snapshot is, or was, sent to.
const HELD_BEHIND_SNAPSHOT: u64 = 2 << 20;
/// Looks without progress (one a tick) after which a follower is not waited for: 10 s.
const PATIENCE_LOOKS: u32 = 333;

/// What the log is held back for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The oldest payload that a follower lacks.
    pub from: LogPosition,
    /// A snapshot made it so: without the entries behind it, it was for nothing.
    pub behind_snapshot: bool,
}

#[derive(Debug, Clone, Copy)]
struct BroughtUp {
    reached: u64,
    idle: u32,
}

/// See the module head.
#[derive(Debug, Default)]
pub(super) struct Laggards {
    /// Peers that a snapshot is, or was, sent to, until they caught up.
    brought_up: BTreeMap<u64, BroughtUp>,
    /// What followers need and has to be read back.
    fetching: Option<Wanted>,
}

impl Group {
    /// Once a tick: what is kept for followers follows their progress.
    pub fn hold_for_followers(&mut self) {
        if !self.is_leader() {
            self.laggards.brought_up.clear();
            return self.raft.mut_store().hold(None);
        }
        let last = self.last_index();
        let mut held = None;
        for (id, progress) in self.raft.raft.prs().iter() {
            if *id == self.peer().0 {
                continue;
            }
            let snapshot = progress.state == ProgressState::Snapshot;
            let reached = match snapshot {
                true => progress.pending_snapshot,
                false => progress.matched,
            };
            let most = match self.laggards.follow(*id, reached, last, snapshot) {
                true => HELD_BEHIND_SNAPSHOT,
                false => HELD_ENTRIES,
            };
            if reached > 0 && reached + most >= last {
                held = Some(held.map_or(reached, |held: u64| held.min(reached)));
            }
        }
        self.raft.mut_store().hold(held);
    }

    /// What the log has to keep for followers, if more than it does by itself.
    pub fn held(&self) -> Option<Held> {
        let from = self.store().held_from()?;
        Some(Held {
            from,
            behind_snapshot: !self.laggards.brought_up.is_empty(),
        })
    }

    /// Payload bytes of entries appended here since it was opened.
    pub fn taken_in(&self) -> u64 {
        self.store().taken_in()
    }

    /// Entries a follower needs that must be read back: index, place and length.
    pub fn wanted(&mut self) -> Vec<WantedEntry> {
        if let Some(wanted) = self.store().take_wanted() {
            self.laggards.fetching = Some(wanted);
        }
        let Some(wanted) = self.laggards.fetching else {
            return Vec::new();
        };
        let mut bytes = 0;
        let mut entries = Vec::new();
        for index in wanted.low..wanted.high {
            let Some(handle) = self.store().get(index) else {
                break;
            };
            bytes += u64::from(handle.len);
            entries.push(WantedEntry {
                index,
                place: handle.payload,
                len: handle.len,
                membership: handle.membership,
            });
            if bytes >= MESSAGE_BYTES {
                break;
            }
        }
        entries
    }

    /// What [`Group::wanted`] named is at hand: Raft tries again.
    pub fn fetched(&mut self, payloads: Vec<(u64, Vec<u8>)>) {
        self.laggards.fetching = None;
        self.raft.mut_store().put_fetched(payloads);
        // Any follower that is behind: the wish does not say whose it was.
        let (last, own) = (self.last_index(), self.peer().0);
        let progress = self.raft.raft.prs().iter();
        let is_behind = progress.filter(|(id, pr)| **id != own && pr.next_idx <= last);
        let mut behind: Vec<u64> = is_behind.map(|(id, _)| *id).collect();
        // Raft's map is seeded at random: its order must not show.
        behind.sort_unstable();
        for peer in behind {
            self.raft.raft.send_append(peer);
        }
    }
}

impl Laggards {
    /// Notes how far a follower is. True while it is being brought up behind a snapshot.
    fn follow(&mut self, id: u64, reached: u64, last: u64, snapshot: bool) -> bool {
        if snapshot {
            let idle = 0;
            self.brought_up.insert(id, BroughtUp { reached, idle });
            return true;
        }
        let Some(it) = self.brought_up.get_mut(&id) else {
            return false;
        };
        match reached > it.reached {
            true => (it.reached, it.idle) = (reached, 0),
            false => it.idle += 1,
        }
        let caught_up = reached + KEPT_ENTRIES as u64 / 2 >= last;
        // One that lost its snapshot begins at nothing again.
        let goes_on = !caught_up && reached > 0 && it.idle < PATIENCE_LOOKS;
        if !goes_on {
            self.brought_up.remove(&id);
        }
        goes_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follower_is_brought_up_from_its_snapshot_until_it_caught_up() {
        let mut laggards = Laggards::default();
        assert!(!laggards.follow(7, 10, 1_000_000, false), "no snapshot");
        assert!(laggards.follow(7, 100, 1_000_000, true));
        assert!(laggards.follow(7, 100, 2_000_000, false), "it is through");
        assert!(
            !laggards.follow(7, 1_995_000, 2_000_000, false),
            "caught up"
        );
        assert!(laggards.brought_up.is_empty());
    }

    #[test]
    fn a_follower_without_progress_is_not_waited_for() {
        let mut laggards = Laggards::default();
        assert!(laggards.follow(7, 100, 1_000_000, true));
        let looks =
            (0..PATIENCE_LOOKS * 2).take_while(|_| laggards.follow(7, 100, 1_000_000, false));
        assert_eq!(looks.count() as u32, PATIENCE_LOOKS - 1);
        assert!(laggards.follow(7, 100, 1_000_000, true));
        assert!(
            !laggards.follow(7, 0, 1_000_000, false),
            "its snapshot was given up"
        );
    }
}
