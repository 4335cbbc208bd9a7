//! The leader's view of how far the other voters are, at both boundaries.
//!
//! 1. Of each other voter `durable <= written <=` what Raft counts as matched.
//! 2. A durable report counts only under the term it was made in (rule of
//!    DESIGN section 5: bound to (term, matched)).

use wire::vocabulary::Boundary;

use crate::mutation::{removed, Rule};

/// Other voters a group has at most: five replicas, and one that is being replaced.
const MOST_OTHERS: usize = 8;

/// How far one other replica is: the last index it has at each boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Copy {
    peer: u64,
    /// A voter; learners never count.
    votes: bool,
    written: u64,
    durable: u64,
    /// As it reported in this term: durable once Raft counts it as matched, for the
    /// acknowledgement may have been lost with its link.
    reported: u64,
}

/// The other voters.
#[derive(Debug, Default)]
pub(super) struct Copies {
    others: Vec<Copy>,
}

impl Copies {
    /// A leadership begins: nobody reported anything yet.
    pub(super) fn begin(&mut self) {
        self.others.clear();
    }

    /// Raft counts `matched` of that voter; `both`: the group answers at durable.
    pub(super) fn matched(&mut self, peer: u64, votes: bool, matched: u64, both: bool) {
        let copy = self.of(peer);
        copy.votes = votes;
        copy.written = matched;
        copy.durable = if both {
            matched
        } else if removed(Rule::ReportMatched) {
            copy.reported
        } else {
            copy.reported.min(matched)
        };
    }

    /// The voter reported that it is durable up to `index`, in this term.
    pub(super) fn durable(&mut self, peer: u64, index: u64) {
        let copy = self.of(peer);
        let most = match removed(Rule::ReportMatched) {
            true => u64::MAX,
            false => copy.written,
        };
        copy.reported = copy.reported.max(index);
        copy.durable = copy.durable.max(index.min(most));
    }

    /// Who is no member any more does not count.
    pub(super) fn keep(&mut self, is_member: impl Fn(u64) -> bool) {
        self.others.retain(|copy| is_member(copy.peer));
    }

    /// What the voter has beyond its last durable report is not there any more (R4).
    /// Returns that report.
    pub(super) fn forget_written(&mut self, peer: u64) -> u64 {
        let copy = self.of(peer);
        copy.reported = copy.durable;
        copy.written = copy.durable;
        copy.durable
    }

    /// Nothing of what that copy said stands.
    pub(super) fn forget(&mut self, peer: u64) {
        let copy = self.of(peer);
        (copy.written, copy.durable) = (0, 0);
    }

    pub(super) fn durable_of(&self, peer: u64) -> u64 {
        let copy = self.others.iter().find(|copy| copy.peer == peer);
        copy.map_or(0, |copy| copy.durable)
    }

    /// Of each other replica: its peer id, and the last index it has at each boundary.
    pub(super) fn each(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        let others = self.others.iter();
        others.map(|copy| (copy.peer, copy.written, copy.durable))
    }

    fn of(&mut self, peer: u64) -> &mut Copy {
        let at = match self.others.iter().position(|copy| copy.peer == peer) {
            Some(at) => at,
            None => {
                self.others.push(Copy {
                    peer,
                    votes: false,
                    written: 0,
                    durable: 0,
                    reported: 0,
                });
                self.others.len() - 1
            }
        };
        &mut self.others[at]
    }

    /// The index that `others` other voters have reached; none needed: any.
    pub(super) fn reached(&self, boundary: Boundary, others: usize) -> u64 {
        let Some(nth) = others.checked_sub(1) else {
            return u64::MAX;
        };
        let mut reached = [0; MOST_OTHERS];
        let voters = self.others.iter().filter(|copy| copy.votes);
        for (reached, copy) in reached.iter_mut().zip(voters) {
            *reached = at(copy, boundary);
        }
        reached.sort_unstable_by(|a, b| b.cmp(a));
        reached.get(nth).copied().unwrap_or(0)
    }

    /// How many other voters have reached `index`.
    pub(super) fn count(&self, boundary: Boundary, index: u64) -> usize {
        let has = |copy: &&Copy| copy.votes && at(copy, boundary) >= index;
        self.others.iter().filter(has).count()
    }
}

fn at(copy: &Copy, boundary: Boundary) -> u64 {
    match boundary {
        Boundary::Written => copy.written,
        Boundary::Durable => copy.durable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durable_never_counts_beyond_what_raft_counts_as_matched() {
        let mut copies = Copies::default();
        copies.matched(2, true, 10, false);
        copies.durable(2, 50);
        assert_eq!(copies.reached(Boundary::Durable, 1), 10);
        copies.matched(2, true, 7, false);
        assert_eq!(copies.reached(Boundary::Durable, 1), 7);
        // Its acknowledgement came after its report.
        copies.matched(2, true, 12, false);
        assert_eq!(copies.reached(Boundary::Durable, 1), 12);
        copies.begin();
        assert_eq!(copies.reached(Boundary::Durable, 1), 0);
    }

    #[test]
    fn the_copies_asked_for_are_counted_at_their_boundary() {
        let mut copies = Copies::default();
        copies.matched(2, true, 10, false);
        copies.matched(3, true, 20, false);
        copies.durable(3, 5);
        assert_eq!(copies.reached(Boundary::Written, 0), u64::MAX);
        assert_eq!(copies.reached(Boundary::Written, 1), 20);
        assert_eq!(copies.reached(Boundary::Written, 2), 10);
        assert_eq!(copies.reached(Boundary::Written, 3), 0);
        assert_eq!(copies.reached(Boundary::Durable, 1), 5);
        assert_eq!(copies.reached(Boundary::Durable, 2), 0);
        assert_eq!(copies.count(Boundary::Written, 15), 1);
        // A learner never counts, nor who was removed.
        copies.matched(4, false, 90, true);
        assert_eq!(copies.reached(Boundary::Written, 1), 20);
        assert_eq!(copies.count(Boundary::Durable, 15), 0);
        copies.keep(|peer| peer == 2);
        assert_eq!(copies.reached(Boundary::Written, 2), 0);
        assert_eq!(copies.forget_written(2), 0);
        assert_eq!(copies.reached(Boundary::Written, 1), 0);
    }
}
