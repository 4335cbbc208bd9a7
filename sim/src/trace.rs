//! What happened in a run: a hash of all of it, and the last lines.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Lines kept for a failure report, if nobody asks for more.
pub const TAIL_LINES: usize = 400;

/// Two runs of one seed have equal traces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    /// Over every line and the hash before it.
    pub hash: u64,
    pub lines: u64,
    /// The last lines, oldest first.
    pub tail: VecDeque<String>,
    /// Lines kept at most.
    keep: usize,
}

impl Trace {
    pub(crate) fn new(keep: usize) -> Self {
        Trace {
            keep,
            ..Trace::default()
        }
    }

    /// Those of the last lines that came behind the first `lines` ones.
    pub(crate) fn since(&self, lines: u64) -> impl Iterator<Item = &String> {
        let new = self.lines.saturating_sub(lines) as usize;
        self.tail.iter().skip(self.tail.len().saturating_sub(new))
    }

    pub(crate) fn note(&mut self, line: String) {
        let mut hasher = DefaultHasher::new();
        (self.hash, &line).hash(&mut hasher);
        self.hash = hasher.finish();
        self.lines += 1;
        if self.tail.len() >= self.keep {
            self.tail.pop_front();
        }
        self.tail.push_back(line);
    }
}
