//! What a published checkpoint tells the log: where reading begins, and below
//! which place nothing is needed any more.
//!
//! 1. Everything below an anchor was applied and is durable when the checkpoint
//!    that names it is published.
//! 2. An anchor is the end of a batch in which no unfinished item began: an
//!    item that is not covered by the checkpoint begins at or above it.

use std::collections::VecDeque;

use super::position::{Geometry, LogPosition};
use crate::mutation::{removed, Rule};

/// The end of a batch, and what the next one must follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Anchor {
    pub position: LogPosition,
    /// Of the batch that ends here, 0 if there is none.
    pub sequence: u64,
    /// That batch's header checksum, 0 if there is none.
    pub checksum: u64,
    /// No batch behind has a lower epoch.
    pub epoch: u64,
}

/// What opening a log takes from the published checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogBase {
    pub anchor: Anchor,
    /// A successful sync reached at least this.
    pub durable_next: LogPosition,
    /// No byte of a segment wholly below is needed: it may be recycled.
    pub keep_from: LogPosition,
    /// Fragment links of what stands below the anchor and is still needed.
    pub links: Vec<(LogPosition, LogPosition)>,
}

impl LogBase {
    /// The first segment that is needed; without a checkpoint all are.
    pub(super) fn first_needed(base: Option<&LogBase>, geometry: Geometry) -> u64 {
        base.map_or(0, |base| geometry.segment_of(base.keep_from))
    }
}

/// Where a checkpoint's replay could begin now.
///
/// Follows the durable frontier. A batch's end counts once it is durable; if an
/// item is unfinished there, the place before that item counts instead.
pub(super) struct AnchorTrack {
    current: Anchor,
    /// Ends above `current`, ascending.
    ends: VecDeque<BatchEnd>,
}

struct BatchEnd {
    anchor: Anchor,
    /// Place of the first payload byte of the item that is unfinished here.
    unfinished: Option<LogPosition>,
}

impl AnchorTrack {
    pub(super) fn new(start: Anchor) -> Self {
        AnchorTrack {
            current: start,
            ends: VecDeque::new(),
        }
    }

    /// A batch was submitted.
    pub(super) fn push(&mut self, anchor: Anchor, unfinished: Option<LogPosition>) {
        self.ends.push_back(BatchEnd { anchor, unfinished });
    }

    /// The last place at or below `durable_next`, which is a batch's end, that
    /// replay can begin at.
    pub(super) fn advance(&mut self, durable_next: LogPosition) -> Anchor {
        let durable = self
            .ends
            .partition_point(|end| end.anchor.position <= durable_next);
        let limit = match durable.checked_sub(1).and_then(|at| self.ends.get(at)) {
            Some(last) if removed(Rule::AnchorUnfinished) => last.anchor.position,
            Some(last) => last.unfinished.unwrap_or(last.anchor.position),
            None => return self.current,
        };
        while let Some(end) = self.ends.front().filter(|end| end.anchor.position <= limit) {
            self.current = end.anchor;
            self.ends.pop_front();
        }
        self.current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(position: u64) -> Anchor {
        Anchor {
            position: LogPosition(position),
            sequence: position / 10,
            checksum: position,
            epoch: 1,
        }
    }

    #[test]
    fn an_anchor_is_durable_and_in_front_of_an_unfinished_item() {
        let mut track = AnchorTrack::new(end(0));
        track.push(end(10), None);
        track.push(end(20), Some(LogPosition(15)));
        track.push(end(30), Some(LogPosition(15)));
        track.push(end(40), Some(LogPosition(35)));
        track.push(end(50), None);
        assert_eq!(track.advance(LogPosition(0)), end(0));
        assert_eq!(track.advance(LogPosition(10)), end(10));
        assert_eq!(track.advance(LogPosition(20)), end(10));
        assert_eq!(track.advance(LogPosition(30)), end(10));
        assert_eq!(track.advance(LogPosition(40)), end(30));
        assert_eq!(track.advance(LogPosition(50)), end(50));
        assert_eq!(track.advance(LogPosition(50)), end(50));
    }
}
