//! Nodes are interchangeable: a state is hashed as the least of its renamings, so
//! the checker visits one of each kind. Traces keep the names they were found with.

use crate::state::{Confirmed, Entry, Log, Node, State, NODES, NONE};
use std::hash::{Hash, Hasher};

/// A renaming: `to[old]` is the new number, `from[new]` the old one.
struct Renaming {
    to: [u8; 8],
    from: [u8; NODES],
}

impl Renaming {
    fn mask(&self, mask: u8) -> u8 {
        (0..NODES)
            .filter(|n| mask & 1 << n != 0)
            .fold(0, |set, n| set | 1 << self.to[n])
    }

    fn entry(&self, entry: Entry) -> u64 {
        if entry.0 == 0 {
            return 0;
        }
        let node = if entry.changes_conf() {
            self.to[usize::from(entry.node())]
        } else {
            0
        };
        let leader = self.to[usize::from(entry.leader())];
        u64::from(Entry::new(entry.kind(), entry.term(), leader, node, entry.join()).0)
    }
}

/// A plain multiply-and-rotate hash over words.
struct Mix(u64);

impl Mix {
    fn word(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 29;
    }

    fn bytes(&mut self, bytes: [u8; 8]) {
        self.word(u64::from_le_bytes(bytes));
    }

    fn log(&mut self, log: &Log, names: &Renaming) {
        let mut word = u64::from(log.len());
        for entry in log.iter() {
            word = word.wrapping_mul(0x1_0001).rotate_left(13) ^ names.entry(entry);
            self.word(word);
        }
        self.word(word);
    }

    fn node(&mut self, node: &Node, names: &Renaming) {
        let flags = [
            node.on,
            node.kept,
            node.reused,
            node.fenced,
            node.weak,
            node.released,
        ];
        let flags = flags
            .iter()
            .fold(0u8, |set, flag| set << 1 | u8::from(*flag));
        let vote = |v: u8| {
            if v == NONE {
                NONE
            } else {
                names.to[usize::from(v)]
            }
        };
        let (votes, known) = (names.mask(node.votes), names.mask(node.known_retired));
        self.bytes([
            flags,
            node.harm as u8,
            node.generation,
            node.join,
            node.term,
            vote(node.vote),
            node.durable_term,
            vote(node.durable_vote),
        ]);
        self.bytes([
            node.written_next,
            node.durable_next,
            node.commit_next,
            node.conf_next,
            node.role as u8,
            votes,
            known,
            node.standing as u8,
        ]);
        let mut progress = [0; 8];
        for new in 0..NODES {
            let old = usize::from(names.from[new]);
            progress[new] = node.matched[old];
            progress[new + NODES] = node.reported[old];
        }
        self.bytes(progress);
        self.log(&node.log, names);
        self.log(&node.synced, names);
    }

    fn confirmed(&mut self, seen: &Confirmed, names: &Renaming) {
        let flags = u64::from(seen.written) | u64::from(seen.durable) << 1;
        let rest = u64::from(names.mask(seen.holders)) << 8 | u64::from(seen.term);
        self.word(names.entry(seen.entry) << 24 | rest << 2 | flags);
    }

    fn state(&mut self, state: &State, names: &Renaming) {
        for new in state.ids() {
            self.node(&state.nodes[usize::from(names.from[new])], names);
        }
        let group0 = &state.group0;
        let winner = if group0.generation == 0 {
            0
        } else {
            names.to[usize::from(group0.winner)]
        };
        self.bytes([
            group0.generation,
            u8::from(group0.collecting),
            names.mask(group0.forgotten),
            winner,
            group0.base_term,
            group0.base_next[1],
            group0.base_next[2],
            group0.base_next[3],
        ]);
        for new in state.ids() {
            let answer = group0.answers[usize::from(names.from[new])];
            self.word(answer.map_or(0, |a| {
                1 | u64::from(a.counts) << 1 | u64::from(a.last.0) << 8 | u64::from(a.last.1) << 16
            }));
        }
        self.log(&group0.base, names);
        for seen in &state.observer.confirmed {
            self.confirmed(seen, names);
        }
        for entry in &state.observer.lost {
            self.word(names.entry(*entry));
        }
        let mut confirmer = [0; 8];
        for (term, by) in state.observer.confirmer.iter().enumerate() {
            confirmer[term] = if *by == 0 {
                0
            } else {
                1 + names.to[usize::from(*by - 1)]
            };
        }
        self.bytes(confirmer);
        let left = &state.left;
        self.bytes([
            left.records,
            left.weakens,
            left.power_cuts,
            left.crashes,
            left.rollbacks,
            left.damages,
            left.forgets,
            state.observer.broken,
        ]);
    }
}

/// What does not depend on any node's name, so that only nodes that look alike have
/// to be tried in every order.
fn looks(state: &State, id: usize) -> u64 {
    let node = &state.nodes[id];
    let mut mix = Mix(state.group0.answers[id].map_or(0, |a| 1 + u64::from(a.last.1)));
    let has = |mask: u8| u8::from(mask & 1 << id != 0);
    let flags = [node.on, node.kept, node.fenced, node.released];
    let flags = flags
        .iter()
        .fold(0u8, |set, flag| set << 1 | u8::from(*flag));
    let (role, forgotten) = (node.role as u8, has(state.group0.forgotten));
    mix.bytes([
        flags,
        role,
        node.generation,
        node.join,
        node.term,
        node.written_next,
        node.durable_next,
        forgotten,
    ]);
    for entry in node.log.iter() {
        mix.word(u64::from(entry.term()) << 3 | entry.kind() as u64);
    }
    mix.0
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let mut looking = [0; NODES];
        let mut order = [0; NODES];
        for id in self.ids() {
            (looking[id], order[id]) = (looks(self, id), id as u8);
        }
        let order = &mut order[..usize::from(self.count)];
        order.sort_unstable_by_key(|id| looking[usize::from(*id)]);
        let mut least = u64::MAX;
        permutations(order, 0, &looking, &mut |order| {
            let mut names = Renaming {
                to: [NONE; 8],
                from: [0, 1, 2, 3],
            };
            for unused in order.len()..NODES {
                names.to[unused] = unused as u8;
            }
            for (new, old) in order.iter().enumerate() {
                names.from[new] = *old;
                names.to[usize::from(*old)] = new as u8;
            }
            let mut mix = Mix(0x51_7cc1_b727_220a);
            mix.state(self, &names);
            least = least.min(mix.0);
        });
        hasher.write_u64(least);
    }
}

/// Every order of nodes in which those that look alike change places.
fn permutations(
    order: &mut [u8],
    fixed: usize,
    looking: &[u64; NODES],
    each: &mut impl FnMut(&[u8]),
) {
    if fixed + 1 >= order.len() {
        return each(order);
    }
    let look = looking[usize::from(order[fixed])];
    for pick in fixed..order.len() {
        if looking[usize::from(order[pick])] == look {
            order.swap(fixed, pick);
            permutations(order, fixed + 1, looking, each);
            order.swap(fixed, pick);
        }
    }
}
