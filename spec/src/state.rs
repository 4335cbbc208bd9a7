//! What the nodes, group 0 and the outside observer hold.
//!
//! One group; every node holds at most one replica of it, in one log. Group 0 is
//! taken as always there and never wrong: it is itself a group that answers at
//! durable. A peer id is (generation, node, join number).

/// The most nodes a scope can have.
pub const NODES: usize = 4;
/// The most entries a log can have.
pub const ENTRIES: usize = 12;
/// No node: an empty vote.
pub const NONE: u8 = 7;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Record = 1,
    /// The empty entry of a new leader.
    Barrier = 2,
    /// The first buffered queue of a group that answered at durable.
    Weaken = 3,
    Remove = 4,
    Promote = 5,
}

/// An entry. With the leader that made it, it is unique even if two led one term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry(pub u16);

impl Entry {
    pub fn new(kind: Kind, term: u8, leader: u8, node: u8, join: u8) -> Entry {
        let word = |value: u8, shift: u32| u16::from(value) << shift;
        Entry(
            word(kind as u8, 0) | word(term, 3) | word(leader, 6) | word(node, 8) | word(join, 10),
        )
    }

    pub fn kind(self) -> Kind {
        match self.0 & 7 {
            2 => Kind::Barrier,
            3 => Kind::Weaken,
            4 => Kind::Remove,
            5 => Kind::Promote,
            _ => Kind::Record,
        }
    }

    pub fn term(self) -> u8 {
        (self.0 >> 3 & 7) as u8
    }

    pub fn leader(self) -> u8 {
        (self.0 >> 6 & 3) as u8
    }

    /// The node that a membership entry is about.
    pub fn node(self) -> u8 {
        (self.0 >> 8 & 3) as u8
    }

    /// The join number of the peer id that is promoted.
    pub fn join(self) -> u8 {
        (self.0 >> 10 & 3) as u8
    }

    pub fn changes_conf(self) -> bool {
        matches!(self.kind(), Kind::Remove | Kind::Promote)
    }
}

/// A log's entries of this group.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Log {
    entries: [Entry; ENTRIES],
    len: u8,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.iter().map(|e| (e.kind(), e.term())))
            .finish()
    }
}

impl Log {
    pub fn len(&self) -> u8 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Entry> + ExactSizeIterator + '_ {
        self.entries[..usize::from(self.len)].iter().copied()
    }

    pub fn get(&self, index: u8) -> Option<Entry> {
        (index < self.len).then(|| self.entries[usize::from(index)])
    }

    pub fn push(&mut self, entry: Entry) {
        self.entries[usize::from(self.len)] = entry;
        self.len += 1;
    }

    pub fn cut(&mut self, len: u8) {
        for entry in &mut self.entries[usize::from(len.min(self.len))..] {
            *entry = Entry::default();
        }
        self.len = self.len.min(len);
    }

    /// (last term, last index): what makes a history longer than another.
    pub fn last(&self) -> (u8, u8) {
        (self.iter().next_back().map_or(0, Entry::term), self.len)
    }

    /// How many entries agree with the other log, as Raft compares: by term.
    pub fn agrees(&self, other: &Log) -> u8 {
        let same = self
            .iter()
            .zip(other.iter())
            .take_while(|(a, b)| a.term() == b.term());
        same.count() as u8
    }

    /// The index of the last entry of that kind.
    pub fn last_of(&self, wanted: impl Fn(Entry) -> bool) -> Option<u8> {
        (0..self.len)
            .rev()
            .find(|index| self.get(*index).is_some_and(&wanted))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    #[default]
    Follower,
    Candidate,
    Leader,
}

/// What happened to bytes that were durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Harm {
    #[default]
    None,
    /// An older copy of the directory was put back; the open counter shows it.
    RolledBack,
    /// Bad bytes below the durable frontier; checksums show it.
    Damaged,
}

/// What group 0 takes a peer id for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    Learner,
    /// A voter, or its promotion was proposed and may be in force.
    #[default]
    Voter,
}

/// A node and its replica of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// False between a power cut and the next open.
    pub on: bool,
    pub harm: Harm,
    pub generation: u8,
    /// The join number of the present peer id.
    pub join: u8,
    /// What group 0 takes the present peer id for.
    pub standing: Standing,
    /// It holds all it ever reported durable in this generation.
    pub kept: bool,
    /// It runs under a peer id that was retired (only with a rule dropped).
    pub reused: bool,
    /// It has answered a collect order: its generation is over for it.
    pub fenced: bool,
    pub term: u8,
    pub vote: u8,
    pub durable_term: u8,
    pub durable_vote: u8,
    pub log: Log,
    /// The log as the last sync left it: what a power cut goes back to. It is not a
    /// prefix of `log` where a tail was replaced since.
    pub synced: Log,
    pub written_next: u8,
    pub durable_next: u8,
    /// Known as committed; a follower remembers it up to the last entry that acts.
    pub commit_next: u8,
    /// Membership entries below this are in force here (durable).
    pub conf_next: u8,
    /// It takes the group for one that answers at written.
    pub weak: bool,
    pub role: Role,
    /// Nodes whose vote a candidate holds.
    pub votes: u8,
    /// The leader's barrier is passed.
    pub released: bool,
    /// Nodes whose voting peer id the leader knows as retired.
    pub known_retired: u8,
    /// What each node has acknowledged to this leader in this term.
    pub matched: [u8; NODES],
    /// What each node has reported durable to this leader in this term.
    pub reported: [u8; NODES],
}

impl Node {
    pub fn new() -> Node {
        Node {
            on: true,
            harm: Harm::None,
            generation: 0,
            join: 0,
            standing: Standing::Voter,
            kept: true,
            reused: false,
            fenced: false,
            term: 1,
            vote: NONE,
            durable_term: 1,
            durable_vote: NONE,
            log: Log::default(),
            synced: Log::default(),
            written_next: 0,
            durable_next: 0,
            commit_next: 0,
            conf_next: 0,
            weak: false,
            role: Role::Follower,
            votes: 0,
            released: false,
            known_retired: 0,
            matched: [0; NODES],
            reported: [0; NODES],
        }
    }

    /// Whether it takes part in its generation at all.
    pub fn acts(&self) -> bool {
        self.on && !self.fenced
    }

    /// Back to a follower, without what only a candidate or leader holds.
    pub fn step_down(&mut self) {
        self.role = Role::Follower;
        self.votes = 0;
        self.released = false;
        self.known_retired = 0;
        self.matched = [0; NODES];
        self.reported = [0; NODES];
        let acting = self
            .log
            .last_of(|e| e.changes_conf() || e.kind() == Kind::Weaken);
        self.commit_next = self.commit_next.min(acting.map_or(0, |index| index + 1));
    }

    /// A sync that covers all that is written.
    pub fn sync(&mut self) {
        self.synced = self.log;
        self.synced.cut(self.written_next);
        self.durable_next = self.written_next;
    }

    /// Cuts the log, and every frontier with it.
    pub fn cut(&mut self, len: u8) {
        self.log.cut(len);
        let frontiers = [
            &mut self.written_next,
            &mut self.durable_next,
            &mut self.commit_next,
            &mut self.conf_next,
        ];
        for frontier in frontiers {
            *frontier = (*frontier).min(len);
        }
    }
}

impl Default for Node {
    fn default() -> Self {
        Node::new()
    }
}

/// An answer to the collect order: (last term, last index), and whether it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub last: (u8, u8),
    pub counts: bool,
}

/// Group 0, as far as it concerns this group. Peer ids are retired when a node's
/// join number passes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group0 {
    pub generation: u8,
    pub collecting: bool,
    pub answers: [Option<Answer>; NODES],
    /// Nodes that the operator declared gone.
    pub forgotten: u8,
    /// The log that the present generation started from, its node, and its term.
    pub base: Log,
    pub winner: u8,
    pub base_term: u8,
    /// Where each generation began: the length of the log it started from.
    pub base_next: [u8; 4],
}

/// What the observer knows of the entry at one index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Confirmed {
    pub entry: Entry,
    pub written: bool,
    pub durable: bool,
    /// The term of the leader that confirmed it first.
    pub term: u8,
    /// Holders of the written confirm that were neither power-cut nor forgotten.
    pub holders: u8,
}

/// What the observer outside has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observer {
    pub confirmed: [Confirmed; ENTRIES],
    /// Entries that a loss report named as gone.
    pub lost: [Entry; ENTRIES],
    /// Which node confirmed in a term: one more than its number, by term.
    pub confirmer: [u8; 8],
    /// Bits of `promises::Promise` that were broken.
    pub broken: u8,
}

/// How often each bounded event may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    pub records: u8,
    pub weakens: u8,
    pub power_cuts: u8,
    pub crashes: u8,
    pub rollbacks: u8,
    pub damages: u8,
    pub forgets: u8,
}

/// Everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Nodes in use; the rest of the array is at rest.
    pub count: u8,
    pub nodes: [Node; NODES],
    pub group0: Group0,
    pub observer: Observer,
    pub left: Budget,
}

impl State {
    pub fn ids(&self) -> std::ops::Range<usize> {
        0..usize::from(self.count)
    }

    /// The join number of each node's voting peer id, under the membership that is
    /// in force on a replica; `None` for a node without a vote.
    pub fn conf(&self, node: usize) -> [Option<u8>; NODES] {
        let replica = &self.nodes[node];
        // A generation starts with every node a voter under a new peer id.
        let start = self.group0.base_next[usize::from(replica.generation)];
        let mut voters = [None; NODES];
        for voter in &mut voters[..usize::from(self.count)] {
            *voter = Some(0);
        }
        let entries = replica.log.iter().enumerate();
        for (index, entry) in entries {
            if index < usize::from(start) || index >= usize::from(replica.conf_next) {
                continue;
            }
            match entry.kind() {
                Kind::Remove => voters[usize::from(entry.node())] = None,
                Kind::Promote => voters[usize::from(entry.node())] = Some(entry.join()),
                _ => {}
            }
        }
        voters
    }

    /// The leader of the latest term that still acts in the present generation.
    pub fn newest_leader(&self) -> Option<usize> {
        let leads = |n: &usize| {
            let node = &self.nodes[*n];
            node.role == Role::Leader && node.acts() && node.generation == self.group0.generation
        };
        self.ids().filter(leads).max_by_key(|n| self.nodes[*n].term)
    }

    /// A majority of the full replica count.
    pub fn majority(&self) -> usize {
        usize::from(self.count) / 2 + 1
    }
}

/// A quorum of these voters.
pub fn quorum(voters: &[Option<u8>; NODES]) -> usize {
    voters.iter().flatten().count() / 2 + 1
}
