//! Connections between nodes: one per pair, what is on its way on them, what
//! is cut.
//!
//! 1. What one end sends after it was told that it is linked arrives whole and
//!    in order, until the other end is told that it is not.
//! 2. The ends learn of a connection's begin and end at different times; what
//!    was on its way when it broke arrives up to some point, and no further.
//! 3. A connection that replaces another one begins at each end behind the end
//!    of the other.
//!
//! Knows nothing of engines: [`super::links`] joins both.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::issues::Issue;

/// From one node to another, by index.
pub(super) type Way = (usize, usize);

/// The number of a connection; each pair counts up.
pub(super) type Epoch = u64;

/// A frame's body under way.
pub(super) struct Body {
    pub epoch: Epoch,
    pub due_us: u64,
    pub bytes: Vec<u8>,
    /// Who says what is in it to which connection, in order.
    pub issues: Vec<(u64, Issue)>,
}

/// What one end believes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct End {
    /// The connection it was told of.
    pub up: Option<Epoch>,
    /// One it has not been told of yet.
    pub coming: Option<Epoch>,
}

#[derive(Default)]
struct Pair {
    /// The newest connection, and whether it still stands.
    epoch: Epoch,
    stands: bool,
}

/// See the module head.
#[derive(Default)]
pub(super) struct Net {
    pairs: BTreeMap<Way, Pair>,
    ends: BTreeMap<Way, End>,
    under_way: BTreeMap<Way, VecDeque<Body>>,
    blocked: BTreeSet<Way>,
    slow_us: BTreeMap<Way, u64>,
}

/// Bytes under way above which a socket takes nothing more.
const SOCKET_BYTES: usize = 256 << 10;

fn pair_of(a: usize, b: usize) -> Way {
    (a.min(b), a.max(b))
}

impl Net {
    /// What `node` believes of its link to `peer`.
    pub fn end(&self, node: usize, peer: usize) -> End {
        self.ends.get(&(node, peer)).copied().unwrap_or_default()
    }

    /// The connection between two nodes that still stands.
    pub fn standing(&self, a: usize, b: usize) -> Option<Epoch> {
        let pair = self.pairs.get(&pair_of(a, b))?;
        pair.stands.then_some(pair.epoch)
    }

    /// Opens a new connection; whoever had an older one has it no more once it
    /// is told of this one.
    pub fn connect(&mut self, a: usize, b: usize) -> Epoch {
        let pair = self.pairs.entry(pair_of(a, b)).or_default();
        pair.epoch += 1;
        pair.stands = true;
        let epoch = pair.epoch;
        for way in [(a, b), (b, a)] {
            self.ends.entry(way).or_default().coming = Some(epoch);
        }
        epoch
    }

    /// An end is told of a connection; true if it has to be told first that an
    /// older one ended. `None`: the connection is not the newest any more, or
    /// the end was told already.
    pub fn told_up(&mut self, node: usize, peer: usize, epoch: Epoch) -> Option<bool> {
        let end = self.ends.entry((node, peer)).or_default();
        if end.coming != Some(epoch) {
            return None;
        }
        end.coming = None;
        let replaces = end.up.replace(epoch).is_some();
        Some(replaces)
    }

    /// An end is told that a connection ended; false if it knew no such thing.
    pub fn told_down(&mut self, node: usize, peer: usize, epoch: Epoch) -> bool {
        let end = self.ends.entry((node, peer)).or_default();
        if end.coming == Some(epoch) {
            end.coming = None;
        }
        let knew = end.up == Some(epoch);
        if knew {
            end.up = None;
        }
        knew
    }

    /// The connection breaks: of what is under way on each way the first
    /// `keep(count)` bodies still arrive. False if it did not stand.
    pub fn break_up(
        &mut self,
        a: usize,
        b: usize,
        epoch: Epoch,
        mut keep: impl FnMut(usize) -> usize,
    ) -> bool {
        let pair = self.pairs.entry(pair_of(a, b)).or_default();
        if !pair.stands || pair.epoch != epoch {
            return false;
        }
        pair.stands = false;
        for way in [(a, b), (b, a)] {
            let stuck = self.blocked.contains(&way);
            let bodies = self.under_way.entry(way).or_default();
            let kept = if stuck { 0 } else { keep(bodies.len()) };
            bodies.truncate(kept);
        }
        true
    }

    /// A process is gone, with all it knew and all that was on its way to it.
    pub fn forget(&mut self, node: usize) {
        for (way, end) in &mut self.ends {
            if way.0 == node {
                *end = End::default();
            }
        }
        for (way, bodies) in &mut self.under_way {
            if way.1 == node {
                bodies.clear();
            }
        }
    }

    /// Whether the socket takes more.
    pub fn has_room(&self, from: usize, to: usize) -> bool {
        let bodies = self.under_way.get(&(from, to));
        let bytes: usize = bodies.into_iter().flatten().map(|b| b.bytes.len()).sum();
        bytes < SOCKET_BYTES
    }

    /// Puts a body on its way; it arrives behind those before it, at the
    /// earliest at `due_us`. Tells when.
    pub fn send(
        &mut self,
        from: usize,
        to: usize,
        due_us: u64,
        bytes: Vec<u8>,
        issues: Vec<(u64, Issue)>,
    ) -> Option<u64> {
        let epoch = self.end(from, to).up?;
        if self.standing(from, to) != Some(epoch) {
            // It goes into a socket nobody reads any more.
            return None;
        }
        let bodies = self.under_way.entry((from, to)).or_default();
        let last = bodies.back().map_or(0, |body| body.due_us);
        let due_us = due_us.max(last);
        bodies.push_back(Body {
            epoch,
            due_us,
            bytes,
            issues,
        });
        Some(due_us)
    }

    /// The next body that has come through.
    pub fn arrive(&mut self, from: usize, to: usize, now_us: u64) -> Option<Body> {
        if self.is_blocked(from, to) {
            return None;
        }
        let bodies = self.under_way.get_mut(&(from, to))?;
        if bodies.front()?.due_us > now_us {
            return None;
        }
        bodies.pop_front()
    }

    pub fn is_blocked(&self, from: usize, to: usize) -> bool {
        self.blocked.contains(&(from, to))
    }

    /// Whether a connection can be made: both ways are open.
    pub fn can_connect(&self, a: usize, b: usize) -> bool {
        !self.is_blocked(a, b) && !self.is_blocked(b, a)
    }

    pub fn block(&mut self, way: Way) {
        self.blocked.insert(way);
    }

    /// Opens a way again; true if it was blocked.
    pub fn unblock(&mut self, way: Way) -> bool {
        self.blocked.remove(&way)
    }

    pub fn blocked(&self) -> Vec<Way> {
        self.blocked.iter().copied().collect()
    }

    /// Every body on this way takes so much longer.
    pub fn set_slow(&mut self, way: Way, us: u64) {
        if us == 0 {
            self.slow_us.remove(&way);
        } else {
            self.slow_us.insert(way, us);
        }
    }

    pub fn slow_us(&self, from: usize, to: usize) -> u64 {
        self.slow_us.get(&(from, to)).copied().unwrap_or(0)
    }

    pub fn all_fast(&mut self) {
        self.slow_us.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linked() -> (Net, Epoch) {
        let mut net = Net::default();
        let epoch = net.connect(1, 0);
        assert_eq!(net.told_up(0, 1, epoch), Some(false));
        assert_eq!(net.told_up(1, 0, epoch), Some(false));
        (net, epoch)
    }

    fn arrivals(net: &mut Net, from: usize, to: usize) -> Vec<u8> {
        std::iter::from_fn(|| net.arrive(from, to, u64::MAX))
            .map(|body| body.bytes[0])
            .collect()
    }

    #[test]
    fn bodies_arrive_in_order_and_not_before_their_time() {
        let (mut net, _) = linked();
        assert_eq!(net.send(0, 1, 50, vec![1], Vec::new()), Some(50));
        assert_eq!(net.send(0, 1, 20, vec![2], Vec::new()), Some(50));
        assert!(net.arrive(0, 1, 49).is_none());
        assert_eq!(arrivals(&mut net, 0, 1), [1, 2]);
        assert!(arrivals(&mut net, 1, 0).is_empty());
    }

    #[test]
    fn a_broken_connection_delivers_a_prefix_and_takes_nothing() {
        let (mut net, epoch) = linked();
        for n in 0..5 {
            net.send(0, 1, 1, vec![n], Vec::new());
        }
        assert!(net.break_up(0, 1, epoch, |count| count.saturating_sub(3)));
        assert!(!net.break_up(0, 1, epoch, |count| count));
        assert_eq!(net.send(0, 1, 1, vec![9], Vec::new()), None);
        assert_eq!(arrivals(&mut net, 0, 1), [0, 1]);
        assert!(net.told_down(0, 1, epoch));
        assert!(!net.told_down(0, 1, epoch));
    }

    #[test]
    fn a_second_connection_ends_the_first_where_it_is_told_of() {
        let (mut net, old) = linked();
        net.break_up(0, 1, old, |_| 0);
        let new = net.connect(1, 0);
        assert_eq!(net.told_up(0, 1, new), Some(true));
        assert!(
            !net.told_down(0, 1, old),
            "the old one's end comes too late"
        );
        assert!(net.told_down(1, 0, old));
        assert_eq!(net.told_up(1, 0, new), Some(false));
        assert_eq!(net.told_up(1, 0, new), None);
    }

    #[test]
    fn a_blocked_way_holds_what_is_on_it_until_it_opens_or_breaks() {
        let (mut net, epoch) = linked();
        net.block((0, 1));
        net.send(0, 1, 1, vec![1], Vec::new());
        net.send(1, 0, 1, vec![2], Vec::new());
        assert!(arrivals(&mut net, 0, 1).is_empty());
        assert_eq!(arrivals(&mut net, 1, 0), [2]);
        assert!(!net.can_connect(0, 1));
        net.unblock((0, 1));
        assert_eq!(arrivals(&mut net, 0, 1), [1]);
        net.block((0, 1));
        net.send(0, 1, 1, vec![3], Vec::new());
        net.break_up(0, 1, epoch, |count| count);
        net.unblock((0, 1));
        assert!(arrivals(&mut net, 0, 1).is_empty());
    }

    #[test]
    fn a_dead_process_forgets_its_end_and_gets_nothing() {
        let (mut net, epoch) = linked();
        net.send(0, 1, 1, vec![1], Vec::new());
        net.send(1, 0, 1, vec![2], Vec::new());
        net.break_up(0, 1, epoch, |count| count);
        net.forget(1);
        assert!(arrivals(&mut net, 0, 1).is_empty());
        assert_eq!(arrivals(&mut net, 1, 0), [2]);
        assert_eq!(net.end(1, 0), End::default());
        assert_eq!(net.end(0, 1).up, Some(epoch));
    }

    #[test]
    fn a_full_socket_takes_no_more_until_something_arrived() {
        let (mut net, _) = linked();
        net.send(0, 1, 1, vec![1; SOCKET_BYTES], Vec::new());
        assert!(!net.has_room(0, 1));
        net.arrive(0, 1, 1);
        assert!(net.has_room(0, 1));
    }
}
