//! What every shard of this process knows of its cluster, and how another node's
//! hello is judged.

use std::{
    collections::BTreeMap,
    fmt, io,
    net::SocketAddr,
    sync::{
        atomic::{AtomicU16, AtomicUsize, Ordering},
        Arc, Mutex, PoisonError,
    },
};

use wire::node::{Member, NodeHello, Refusal, RefusalCode, Roster};

use super::{
    refusals::{By, Refusals, Who},
    session::{Challenges, Root},
};
use crate::{
    driver::{
        data_directory::random_bytes,
        identity::{Identity, Membership},
        lineage::Heard,
        shard::Report,
    },
    engine::Notice,
    state::{
        level::{FIRST_LEVEL, OWN_LEVEL},
        meta::{Contradiction, Lineage, Open, Seat, Unseated},
    },
};

/// Connections on their way between shards, at most: those of one that is not up
/// yet wait there.
const MOST_PASSING: usize = 128;

/// The secret that a cluster's nodes share. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    pub fn new(bytes: Vec<u8>) -> Self {
        Secret(bytes)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secret")
    }
}

/// A cluster as a node's configuration has it, checked there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterOptions {
    /// See [`wire::node::is_cluster_name`].
    pub name: String,
    /// Every founding member, this node included, ascending, and where the
    /// others call it.
    pub nodes: Vec<(u32, SocketAddr)>,
    /// Where this node listens for the others.
    pub listen: SocketAddr,
    /// `None` only where everything above is loopback.
    pub secret: Option<Secret>,
}

impl ClusterOptions {
    pub(in crate::driver) fn members(&self) -> Vec<u32> {
        self.nodes.iter().map(|(node, _)| *node).collect()
    }

    pub(in crate::driver) fn addresses(&self) -> Vec<(u32, String)> {
        let nodes = self.nodes.iter();
        nodes.map(|(node, at)| (*node, at.to_string())).collect()
    }

    /// What a directory of this node is made with.
    pub(in crate::driver) fn membership(&self) -> Membership {
        Membership {
            cluster: self.name.clone(),
            members: self.members(),
            joins: false,
        }
    }
}

/// See the module's head.
pub(in crate::driver) struct Cluster {
    pub node: u32,
    pub options: ClusterOptions,
    pub(super) root: Root,
    challenges: Challenges,
    refusals: Refusals,
    /// By node and shard: the log that was linked last.
    logs: Mutex<BTreeMap<(u32, u16), KnownLog>>,
    /// By node and log: what group 0 knows, over restarts of this node.
    recorded: Mutex<BTreeMap<(u32, u16), Open>>,
    /// Nodes whose directory was given up, as group 0 knows.
    seats: Mutex<BTreeMap<u32, Seat>>,
    /// Who belongs to the cluster, as group 0 knows; `None`: who founded it.
    roster: Mutex<Option<Arc<Roster>>>,
    /// The cluster's feature level, as group 0 knows.
    level: AtomicU16,
    reports: flume::Sender<Report>,
    /// Connections on their way from one shard to another.
    passing: AtomicUsize,
    shards: u16,
    data_groups: u32,
    cookie: u64,
    joins: bool,
    nonce: u64,
    heard: Heard,
}

/// What another node's log said of itself when it was linked.
struct KnownLog {
    open: Open,
    joins: bool,
    /// Links of it that are up, one but for moments of change.
    up: u32,
}

impl Cluster {
    /// # Errors
    /// The system gives no random bytes.
    pub(in crate::driver) fn new(
        options: ClusterOptions,
        identity: &Identity,
        heard: Heard,
        reports: flume::Sender<Report>,
    ) -> io::Result<Self> {
        Ok(Cluster {
            heard,
            node: identity.node,
            root: Root::new(options.secret.as_ref().map(|secret| secret.0.as_slice())),
            options,
            challenges: Challenges::new(random_bytes()?),
            refusals: Refusals::default(),
            logs: Mutex::default(),
            recorded: Mutex::default(),
            seats: Mutex::default(),
            roster: Mutex::default(),
            level: AtomicU16::new(FIRST_LEVEL),
            reports,
            passing: AtomicUsize::new(0),
            shards: identity.place.shards,
            data_groups: identity.place.shard_of_group.len() as u32 - 1,
            cookie: identity.cookie,
            joins: identity.joins(),
            nonce: u64::from_le_bytes(random_bytes()?),
        })
    }

    /// Of this start of the process.
    pub(in crate::driver) fn nonce(&self) -> u64 {
        self.nonce
    }

    /// What this start says of what the directory has heard.
    pub(in crate::driver) fn lineage(&self, log: u16) -> Lineage {
        self.heard.of(log)
    }

    /// Group 0 knows of that open of one of this node's own logs. True when
    /// [`Cluster::keep_heard`] should keep it.
    pub(super) fn hear_own(&self, log: u16, open: Open) -> bool {
        let own = open.cookie == self.cookie && open.nonce == self.nonce;
        own && self.heard.note(log, open.counter)
    }

    /// Makes durable what this node has heard of itself; blocking.
    pub(super) fn keep_heard(&self) {
        if let Err(error) = self.heard.store() {
            let text = format!("cannot note in the data directory that the cluster knows of this start ({error}); it is noted at the next one");
            self.tell(0, Notice::Problem(text));
        }
    }

    /// Group 0 knows of that open of a log. What is linked as that log is refused if it
    /// cannot be it: the link was taken before this node had caught up with group 0.
    pub(super) fn log_known(&self, log: (u32, u16), open: Open) -> Option<Refusal> {
        let recorded = self.recorded.lock();
        let mut recorded = recorded.unwrap_or_else(PoisonError::into_inner);
        // One that is not known as committed yet was told before.
        let newer = |known: &&Open| known.cookie == open.cookie && known.counter > open.counter;
        let open = recorded.get(&log).filter(newer).copied().unwrap_or(open);
        recorded.insert(log, open);
        drop(recorded);
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        let linked = logs.get_mut(&log)?;
        let refused = check(open, log, linked.open).err()?;
        // It was taken for the node's: what it said of itself stands against nobody.
        linked.open = open;
        (linked.up > 0).then_some(refused)
    }

    /// Group 0 knows who may be the node now. What is linked as it is refused if it is not:
    /// tells why.
    pub(super) fn seat_known(&self, node: u32, shard: u16, seat: &Seat) -> Option<Refusal> {
        let recorded = self.recorded.lock();
        let mut recorded = recorded.unwrap_or_else(PoisonError::into_inner);
        recorded
            .retain(|(of, _), open| *of != node || seat.admits(node, open.cookie, true).is_ok());
        drop(recorded);
        let seats = self.seats.lock();
        let mut seats = seats.unwrap_or_else(PoisonError::into_inner);
        seats.insert(node, seat.clone());
        drop(seats);
        let logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        let linked = logs.get(&(node, shard)).filter(|linked| linked.up > 0)?;
        let admitted = seat.admits(node, linked.open.cookie, linked.joins);
        admitted.map_err(|why| unseated(node, why)).err()
    }

    /// Whether the directory is the one that has the node's place, where another was
    /// given up; of one that was made to join, whether another was.
    fn check_seat(&self, hello: &NodeHello) -> Result<(), Refusal> {
        let (node, joins) = (hello.from, hello.joins);
        let seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        let admitted = match seats.get(&node) {
            Some(seat) => seat.admits(node, hello.cookie, joins),
            None if joins && self.has_directory(node) => Err(Unseated::NotReplaced { node }),
            None => Ok(()),
        };
        admitted.map_err(|why| unseated(node, why))
    }

    fn has_directory(&self, node: u32) -> bool {
        let recorded = self.recorded.lock();
        let recorded = recorded.unwrap_or_else(PoisonError::into_inner);
        let mut logs = recorded.range((node, 0)..=(node, u16::MAX));
        logs.next().is_some()
    }

    /// Whether group 0 knows an open of the log that `open` cannot follow.
    fn check_recorded(&self, hello: &NodeHello) -> Result<(), Refusal> {
        let recorded = self.recorded.lock();
        let recorded = recorded.unwrap_or_else(PoisonError::into_inner);
        let known = recorded.get(&(hello.from, hello.shard)).copied();
        let log = (hello.from, hello.shard);
        known.map_or(Ok(()), |known| check(known, log, open_of(hello)))
    }

    /// The other members and where they are called.
    pub(super) fn others(&self) -> Vec<(u32, SocketAddr)> {
        let mut nodes = match self.roster() {
            None => self.options.nodes.clone(),
            Some(roster) => {
                let members = roster.members.iter();
                let at = |(node, it): (&u32, &Member)| Some((*node, it.address.parse().ok()?));
                members.filter_map(at).collect()
            }
        };
        nodes.retain(|(node, _)| *node != self.node);
        nodes
    }

    fn roster(&self) -> Option<Arc<Roster>> {
        let roster = self.roster.lock();
        roster.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Of the roster that this node knows; 0: it knows none.
    fn revision(&self) -> u64 {
        self.roster().map_or(0, |roster| roster.revision)
    }

    /// A node that knows the roster of that revision knows better than this one whether
    /// this one is a member. A directory that was made to join and knows nothing yet may be
    /// the next one of its number, which others may not have heard of.
    pub(super) fn is_behind(&self, revision: u64) -> bool {
        let known = self.revision();
        known < revision && (known > 0 || !self.joins)
    }

    /// Who belongs to the cluster, as a shard heard; the newest counts.
    pub(super) fn take_roster(&self, roster: &Arc<Roster>) {
        let known = self.roster.lock();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        if known
            .as_ref()
            .is_none_or(|it| it.revision < roster.revision)
        {
            *known = Some(roster.clone());
        }
    }

    /// The cluster is at that feature level. Nodes that are linked to the shard and know
    /// less.
    pub(super) fn level_known(&self, shard: u16, level: u16) -> Vec<(u32, Refusal)> {
        self.level.fetch_max(level, Ordering::Relaxed);
        let logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        let linked = logs
            .iter()
            .filter(|(key, log)| key.1 == shard && log.up > 0);
        let refused =
            linked.map(|((node, _), log)| (*node, self.check_level(*node, log.open.level)));
        refused
            .filter_map(|(node, it)| Some((node, it.err()?)))
            .collect()
    }

    /// Whether the node's version knows what the cluster uses.
    fn check_level(&self, from: u32, knows: u16) -> Result<(), Refusal> {
        let level = self.level.load(Ordering::Relaxed);
        if knows >= level {
            return Ok(());
        }
        let reason = format!(
            "node {from} knows feature level {knows}, and the cluster is at {level}, which never goes down: upgrade node {from} to a version of tidegate that knows it"
        );
        Err(Refusal::new(RefusalCode::Outdated, reason))
    }

    /// The number was removed from the cluster, and not given again.
    pub(super) fn is_former(&self, node: u32) -> bool {
        let roster = self.roster();
        roster.is_some_and(|it| it.former.contains(&node))
    }

    /// Whether the node is one of the cluster.
    fn check_member(&self, from: u32) -> Result<(), Refusal> {
        let Some(roster) = self.roster() else {
            let members = self.options.members();
            if members.contains(&from) {
                return Ok(());
            }
            let reason = format!(
                "node {from} is no member of the cluster, as far as node {} knows ({members:?}): add it first, with `tidegate cluster add {from}=ADDRESS:PORT` at a member",
                self.node
            );
            return Err(Refusal::new(RefusalCode::Stranger, reason));
        };
        if roster.members.contains_key(&from) {
            return Ok(());
        }
        if roster.former.contains(&from) {
            return Err(removed(from));
        }
        let members: Vec<u32> = roster.members.keys().copied().collect();
        let reason = format!(
            "node {from} is no member of the cluster {members:?}: add it first, with `tidegate cluster add {from}=ADDRESS:PORT` at a member"
        );
        Err(Refusal::new(RefusalCode::Stranger, reason))
    }

    /// What this node says of itself on a new connection.
    pub(super) fn hello(&self, to: u32, shard: u16, open_counter: u64) -> NodeHello {
        NodeHello {
            from: self.node,
            to,
            shard,
            shards: self.shards,
            data_groups: self.data_groups,
            cookie: self.cookie,
            open_counter,
            nonce: self.nonce,
            token: self.heard.of(shard).token,
            last_token: self.heard.of(shard).last_token,
            recorded: self.heard.of(shard).recorded,
            challenge: self.challenges.next(),
            has_secret: self.options.secret.is_some(),
            joins: self.joins,
            level: OWN_LEVEL,
            roster: self.revision(),
            members: self.options.members(),
            cluster: self.options.name.clone(),
        }
    }

    /// Judges what both sides of a link must agree on.
    ///
    /// # Errors
    /// Why there can be no link.
    pub(super) fn judge(&self, hello: &NodeHello) -> Result<(), Refusal> {
        let (from, own) = (hello.from, self.node);
        let refuse = |code, reason: String| Err(Refusal::new(code, reason));
        if hello.cluster != self.options.name {
            let (theirs, ours) = (&hello.cluster, &self.options.name);
            let reason = format!("it is of cluster {theirs:?} and this is cluster {ours:?}");
            return refuse(RefusalCode::Cluster, reason);
        }
        if from == own {
            let reason = format!("two nodes have the number {own}: give each its own");
            return refuse(RefusalCode::SameNode, reason);
        }
        if hello.to != own {
            let reason = format!(
                "node {from} means to speak with node {} and this is node {own}: check the addresses in nodes",
                hello.to
            );
            return refuse(RefusalCode::WrongNode, reason);
        }
        if self.is_former(from) {
            // It is told so once it has proved itself, so that it can rely on that.
            return Ok(());
        }
        self.check_member(from)?;
        let members = self.options.members();
        // Of one that joined it is whom it asks first.
        if hello.members != members && !hello.joins && !self.joins {
            let reason = format!(
                "node {from} has the members {:?} and node {own} has {members:?}",
                hello.members
            );
            return refuse(RefusalCode::Members, reason);
        }
        if hello.shards != self.shards || hello.shard >= self.shards {
            let (theirs, ours) = (hello.shards, self.shards);
            let reason = format!("node {from} has {theirs} shards and node {own} has {ours}");
            return refuse(RefusalCode::Shards, reason);
        }
        if hello.data_groups != self.data_groups {
            let (theirs, ours) = (hello.data_groups, self.data_groups);
            let reason = format!("node {from} has {theirs} data groups and node {own} has {ours}");
            return refuse(RefusalCode::Groups, reason);
        }
        if hello.has_secret != self.options.secret.is_some() {
            let (with, without) = if hello.has_secret {
                (from, own)
            } else {
                (own, from)
            };
            let reason = format!("node {with} has a cluster_secret and node {without} has none");
            return refuse(RefusalCode::Secret, reason);
        }
        self.check_level(from, hello.level)
    }

    /// Takes a log that has proved itself for the one of its node and shard.
    ///
    /// # Errors
    /// It cannot be: another directory is linked as that node, or this one was
    /// copied or is an old copy. Known from what was linked in this process's life, and
    /// from group 0.
    pub(super) fn claim(self: &Arc<Self>, hello: &NodeHello) -> Result<Claim, Refusal> {
        self.check_member(hello.from)?;
        self.check_seat(hello)?;
        let recorded = self.check_recorded(hello);
        let key = (hello.from, hello.shard);
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        let other = logs.iter().any(|((node, _), log)| {
            *node == hello.from && log.up > 0 && log.open.cookie != hello.cookie
        });
        if other {
            let reason = format!(
                "another data directory is linked as node {}: give each node its own number",
                hello.from
            );
            return Err(Refusal::new(RefusalCode::Duplicate, reason));
        }
        recorded?;
        let same = logs.get(&key).filter(|log| log.open.cookie == hello.cookie);
        if let Some(known) = same {
            check(known.open, key, open_of(hello))?;
        }
        let up = same.map_or(0, |log| log.up) + 1;
        let open = open_of(hello);
        let joins = hello.joins;
        let log = KnownLog { open, joins, up };
        logs.insert(key, log);
        Ok(Claim {
            cluster: self.clone(),
            key,
            cookie: hello.cookie,
        })
    }

    fn release(&self, key: (u32, u16), cookie: u64) {
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        let log = logs.get_mut(&key).filter(|log| log.open.cookie == cookie);
        if let Some(log) = log {
            log.up = log.up.saturating_sub(1);
        }
    }

    /// Leave to hand a connection to another shard; `None` when many wait there.
    pub(super) fn pass(self: &Arc<Self>) -> Option<Pass> {
        let before = self.passing.fetch_add(1, Ordering::Relaxed);
        let pass = Pass(self.clone());
        (before < MOST_PASSING).then_some(pass)
    }

    /// Who a hello says to be, as far as it can be.
    pub(super) fn who(&self, hello: &NodeHello) -> Who {
        let is_member = self.others().iter().any(|(node, _)| *node == hello.from);
        if is_member && hello.cluster == self.options.name {
            Who::Node(hello.from)
        } else {
            Who::Stranger
        }
    }

    /// Counts a refusal, and says it if it is the first of its kind.
    pub(super) fn note(&self, shard: u16, who: Who, by: By, at: &str, refusal: &Refusal) {
        if !self.refusals.note(who, by, refusal.code) {
            return;
        }
        let whom = match who {
            Who::Node(node) => format!("node {node} ({at})"),
            Who::Stranger => format!("a connection from {at}"),
        };
        let reason = &refusal.reason;
        let text = match by {
            By::Us => format!("{whom} is refused: {reason}"),
            By::Them => format!("{whom} refuses this node: {reason}"),
        };
        self.tell(shard, Notice::Problem(text));
    }

    /// The node is linked: how many refusals there were of it before.
    pub(super) fn settle(&self, node: u32) -> u64 {
        self.refusals.settle(node)
    }

    /// How often it was refused what was said once.
    pub(super) fn sum_up(&self, shard: u16) {
        if let Some(summary) = self.refusals.summary() {
            let text = format!("refused since the start, or since a node was linked: {summary}");
            self.tell(shard, Notice::Problem(text));
        }
    }

    /// The process ends: this node is no member any more.
    pub(super) fn say_removed(&self) {
        let reason = removed(self.node).reason;
        // The receiver is gone only when the process ends.
        let _ = self.reports.send(Report::Removed { reason });
    }

    pub(super) fn tell(&self, shard: u16, notice: Notice) {
        // The receiver is gone only when the process ends.
        let _ = self.reports.send(Report::Notice { shard, notice });
    }
}

/// What a node is told that was removed.
pub(super) fn removed(node: u32) -> Refusal {
    let reason = format!(
        "node {node} was removed from the cluster by an operator (cluster remove); it can come back on a new directory only, once it is added again"
    );
    Refusal::new(RefusalCode::Removed, reason)
}

fn unseated(node: u32, why: Unseated) -> Refusal {
    Refusal::new(RefusalCode::Unseated, format!("node {node}: {why}"))
}

fn open_of(hello: &NodeHello) -> Open {
    Open {
        cookie: hello.cookie,
        counter: hello.open_counter,
        nonce: hello.nonce,
        lineage: Lineage {
            token: hello.token,
            last_token: hello.last_token,
            recorded: hello.recorded,
        },
        level: hello.level,
    }
}

/// Whether a log that says to be opened so can be the one that is known.
fn check(known: Open, (node, shard): (u32, u16), open: Open) -> Result<(), Refusal> {
    let Some(contradiction) = known.contradicts(open) else {
        return Ok(());
    };
    let code = match contradiction {
        Contradiction::Foreign => RefusalCode::Duplicate,
        Contradiction::RolledBack { .. } | Contradiction::Strayed { .. } => RefusalCode::RolledBack,
        Contradiction::Cloned { .. } => RefusalCode::Clone,
    };
    let reason = format!("the log of node {node}, shard {shard}: {contradiction}");
    Err(Refusal::new(code, reason))
}

/// A connection on its way between shards, until dropped.
pub(super) struct Pass(Arc<Cluster>);

impl Drop for Pass {
    fn drop(&mut self) {
        self.0.passing.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A log that counts as linked, until dropped.
pub(super) struct Claim {
    cluster: Arc<Cluster>,
    key: (u32, u16),
    cookie: u64,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.cluster.release(self.key, self.cookie);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::ShardPlace;
    use std::collections::BTreeSet;

    fn cluster(node: u32, change: impl FnOnce(&mut ClusterOptions, &mut Identity)) -> Arc<Cluster> {
        let address = |node: u32| SocketAddr::from(([127, 0, 0, 1], 7500 + node as u16));
        let mut options = ClusterOptions {
            name: "test".to_owned(),
            nodes: (1..=3).map(|node| (node, address(node))).collect(),
            listen: address(node),
            secret: None,
        };
        let mut identity = Identity {
            node,
            cookie: 100 + u64::from(node),
            place: ShardPlace::spread(8, 2),
            cluster: None,
        };
        change(&mut options, &mut identity);
        let (reports, _) = flume::unbounded();
        let directory = tempfile::tempdir().unwrap();
        let heard = Heard::begin(directory.path(), identity.place.shards).unwrap();
        Arc::new(Cluster::new(options, &identity, heard, reports).unwrap())
    }

    fn code(judged: Result<(), Refusal>) -> Option<RefusalCode> {
        judged.err().map(|refusal| refusal.code)
    }

    #[test]
    fn every_mismatch_is_refused_by_its_kind_and_a_match_is_not() {
        let one = cluster(1, |_, _| {});
        let two = cluster(2, |_, _| {});
        assert_eq!(code(one.judge(&two.hello(1, 1, 1))), None);
        assert_eq!(code(two.judge(&one.hello(2, 1, 1))), None);
        let judged = |other: Arc<Cluster>| code(one.judge(&other.hello(1, 0, 1)));
        use RefusalCode as Code;
        let name = cluster(2, |options, _| options.name = "other".to_owned());
        assert_eq!(judged(name), Some(Code::Cluster));
        assert_eq!(judged(cluster(1, |_, _| {})), Some(Code::SameNode));
        assert_eq!(code(one.judge(&two.hello(3, 0, 1))), Some(Code::WrongNode));
        assert_eq!(judged(cluster(4, |_, _| {})), Some(Code::Stranger));
        let fewer = cluster(2, |options, _| options.nodes.truncate(2));
        assert_eq!(judged(fewer), Some(Code::Members));
        let shards = cluster(2, |_, identity| identity.place = ShardPlace::spread(8, 1));
        assert_eq!(judged(shards), Some(Code::Shards));
        assert_eq!(code(one.judge(&two.hello(1, 2, 1))), Some(Code::Shards));
        let groups = cluster(2, |_, identity| identity.place = ShardPlace::spread(6, 2));
        assert_eq!(judged(groups), Some(Code::Groups));
        let secret = Some(Secret::new(vec![1; 32]));
        let with = cluster(2, |options, _| options.secret = secret);
        assert_eq!(judged(with), Some(Code::Secret));
        one.level_known(0, OWN_LEVEL);
        assert_eq!(judged(two.clone()), None);
        one.level_known(0, OWN_LEVEL + 1);
        one.level_known(0, OWN_LEVEL);
        assert_eq!(judged(two), Some(Code::Outdated), "it never goes down");
    }

    #[test]
    fn only_who_knows_more_is_believed_that_this_node_was_removed() {
        let joins = |identity: &mut Identity| {
            identity.cluster = Some(Membership {
                cluster: "test".to_owned(),
                members: vec![1, 4],
                joins: true,
            });
        };
        let founder = cluster(1, |_, _| {});
        let new = cluster(4, |_, identity| joins(identity));
        assert!(founder.is_behind(1) && !founder.is_behind(0));
        assert!(!new.is_behind(9), "others may not have heard of it");
        let roster = Arc::new(Roster {
            revision: 5,
            ..Roster::default()
        });
        for node in [founder, new] {
            node.take_roster(&roster);
            assert!(node.is_behind(6) && !node.is_behind(5));
            assert_eq!(node.hello(2, 0, 1).roster, 5);
        }
    }

    #[test]
    fn a_removed_node_is_told_so_once_it_has_proved_itself() {
        let one = cluster(1, |_, _| {});
        let two = cluster(2, |_, _| {});
        let former = BTreeSet::from([2]);
        let revision = 3;
        one.take_roster(&Arc::new(Roster {
            revision,
            former,
            ..Roster::default()
        }));
        let hello = two.hello(1, 0, 1);
        assert_eq!(code(one.judge(&hello)), None);
        let claim = one.claim(&hello).map(|_| ());
        assert_eq!(code(claim), Some(RefusalCode::Removed));
    }

    /// An old copy that was linked before this node knew better says nothing about the
    /// right directory, though it was opened more often.
    #[test]
    fn what_an_old_copy_said_of_itself_stands_against_nobody() {
        let one = cluster(1, |_, _| {});
        let two = cluster(2, |_, _| {});
        let copy = cluster(2, |_, _| {});
        let claim = |hello: &NodeHello| one.claim(hello).map_err(|refusal| refusal.code);
        let linked = claim(&copy.hello(1, 0, 9)).unwrap();
        let recorded = open_of(&two.hello(1, 0, 5));
        let refused = one.log_known((2, 0), recorded);
        assert_eq!(
            refused.map(|refusal| refusal.code),
            Some(RefusalCode::RolledBack)
        );
        drop(linked);
        assert!(claim(&copy.hello(1, 0, 10)).is_err());
        drop(claim(&two.hello(1, 0, 6)).unwrap());
        // What is told late of an earlier open does not count.
        let earlier = open_of(&two.hello(1, 0, 4));
        assert_eq!(one.log_known((2, 0), earlier), None);
        assert!(claim(&two.hello(1, 0, 4)).is_err());
    }

    #[test]
    fn links_of_nodes_that_know_less_than_the_cluster_uses_end() {
        let one = cluster(1, |_, _| {});
        let [two, three] = [2, 3].map(|node| cluster(node, |_, _| {}));
        let held = one.claim(&two.hello(1, 1, 1)).unwrap();
        let newer = NodeHello {
            level: OWN_LEVEL + 1,
            ..three.hello(1, 1, 1)
        };
        let other = one.claim(&newer).unwrap();
        let refused = |shard, level| {
            let refused = one.level_known(shard, level).into_iter();
            let refused = refused.map(|(node, refusal)| (node, refusal.code));
            refused.collect::<Vec<_>>()
        };
        assert_eq!(refused(1, OWN_LEVEL), []);
        assert_eq!(refused(0, OWN_LEVEL + 1), []);
        assert_eq!(refused(1, OWN_LEVEL + 1), [(2, RefusalCode::Outdated)]);
        drop((held, other));
        assert_eq!(refused(1, OWN_LEVEL + 2), []);
    }

    #[test]
    fn a_second_directory_a_copy_and_an_old_copy_of_a_node_are_refused() {
        let one = cluster(1, |_, _| {});
        let two = cluster(2, |_, _| {});
        let other = cluster(2, |_, identity| identity.cookie = 9);
        let copy = cluster(2, |_, _| {});
        let claim = |hello: &NodeHello| one.claim(hello).map_err(|refusal| refusal.code);
        let held = claim(&two.hello(1, 0, 5)).unwrap();
        let duplicate = claim(&other.hello(1, 1, 1)).err();
        assert_eq!(duplicate, Some(RefusalCode::Duplicate));
        // The same log again, as when its link broke and we did not notice.
        drop(claim(&two.hello(1, 0, 5)).unwrap());
        let cloned = claim(&copy.hello(1, 0, 5)).err();
        assert_eq!(cloned, Some(RefusalCode::Clone));
        let strayed = claim(&copy.hello(1, 0, 6)).err();
        assert_eq!(strayed, Some(RefusalCode::RolledBack), "opened more often");
        drop(claim(&two.hello(1, 0, 6)).unwrap());
        let old = claim(&two.hello(1, 0, 5)).err();
        assert_eq!(old, Some(RefusalCode::RolledBack));
        assert_eq!(
            claim(&other.hello(1, 0, 1)).err(),
            Some(RefusalCode::Duplicate)
        );
        drop(held);
        claim(&other.hello(1, 0, 1)).unwrap();
    }
}
