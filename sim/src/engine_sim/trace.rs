//! What happened in a run: a hash of all of it, and the last lines.

use std::collections::VecDeque;

/// Lines kept for a failure report, if nobody asks for more.
pub const TAIL_LINES: usize = 400;

/// Two runs of one seed have equal traces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    /// FNV-1a over every line.
    pub hash: u64,
    pub lines: u64,
    /// The last lines, oldest first.
    pub tail: VecDeque<String>,
    /// Lines kept at most.
    keep: usize,
}

impl Trace {
    pub(super) fn new(keep: usize) -> Self {
        Trace {
            keep,
            ..Trace::default()
        }
    }

    pub(super) fn note(&mut self, line: String) {
        if self.hash == 0 {
            self.hash = 0xcbf2_9ce4_8422_2325;
        }
        for byte in line.bytes().chain([b'\n']) {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.lines += 1;
        if self.tail.len() >= self.keep {
            self.tail.pop_front();
        }
        self.tail.push_back(line);
    }
}
