//! What the shards report, as lines for an operator on standard error.
//!
//! Invariants:
//! 1. Losses are gathered until the shard serves: a start says about them what
//!    fits on a screen, whatever the number of queues. `queue info` has all.
//! 2. A loss in a log that had come to rest is one calm line for all of them:
//!    nothing is known to be missing there.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
    time::{Duration, Instant},
};

use shards::engine::{Loss, Notice};

use crate::{config::LogLevel, link_lines::LinkLines};

/// Queues whose losses are named one by one.
const MAX_LOSS_LINES: usize = 20;
/// A start is not talked about before it has lasted so long, and then once in
/// so long.
const QUIET_START: Duration = Duration::from_secs(2);
const PROGRESS_PAUSE: Duration = Duration::from_secs(1);
/// Partitions named on such a line.
const MAX_LOSS_PARTITIONS: usize = 8;

/// A line for the operator. Standard error that nobody reads any more is no
/// reason to stop serving.
pub fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Lines for an operator.
pub struct Lines {
    level: LogLevel,
    starting: bool,
    /// Shards whose log was opened and that do not serve yet, and whether it
    /// had come to rest.
    opening: BTreeMap<u16, bool>,
    losses: BTreeMap<u16, Vec<Loss>>,
    progress: Progress,
    links: LinkLines,
}

/// How far the shards' logs were read back, together.
#[derive(Default)]
struct Progress {
    /// Per shard: bytes read, and how many there may be.
    shards: BTreeMap<u16, (u64, u64)>,
    began: Option<Instant>,
    said: Option<Instant>,
}

impl Progress {
    /// A line, when it is time for one: after the first [`QUIET_START`] one
    /// per [`PROGRESS_PAUSE`].
    fn note(&mut self, now: Instant, shard: u16, bytes: (u64, u64)) -> Option<String> {
        self.shards.insert(shard, bytes);
        let began = *self.began.get_or_insert(now);
        let quiet = now.duration_since(began) < QUIET_START;
        let said = self
            .said
            .is_some_and(|said| now.duration_since(said) < PROGRESS_PAUSE);
        if quiet || said {
            return None;
        }
        self.said = Some(now);
        let done: u64 = self.shards.values().map(|(done, _)| done).sum();
        let most: u64 = self.shards.values().map(|(_, most)| most).sum();
        Some(format!(
            "reading the log back: {} MiB of at most {} MiB",
            done >> 20,
            most >> 20
        ))
    }
}

impl Lines {
    /// Nothing above `level` is printed.
    pub fn new(level: LogLevel) -> Self {
        Lines {
            level,
            starting: true,
            opening: BTreeMap::new(),
            losses: BTreeMap::new(),
            progress: Progress::default(),
            links: LinkLines::default(),
        }
    }

    /// What a shard has to say.
    pub fn notice(&mut self, shard: u16, notice: &Notice) {
        match notice {
            Notice::Recovered { at_rest, .. } => {
                self.opening.insert(shard, *at_rest);
            }
            Notice::Loss(loss) => {
                self.losses.entry(shard).or_default().push(loss.clone());
            }
            _ => {}
        }
        if let Notice::Replaying {
            done_bytes,
            most_bytes,
        } = notice
        {
            let line = self
                .progress
                .note(Instant::now(), shard, (*done_bytes, *most_bytes));
            if let Some(line) = line {
                self.line(LogLevel::Info, &line);
            }
            return;
        }
        self.tell_links(shard, notice);
        if let Some((level, text)) = describe(notice) {
            if !(self.starting && matches!(notice, Notice::Serving)) {
                self.line(level, &format!("shard {shard}: {text}"));
            }
        }
        let opened = self.opening.contains_key(&shard) && matches!(notice, Notice::Serving);
        if !self.starting && opened {
            self.tell_losses();
            self.opening.remove(&shard);
            self.progress = Progress::default();
        }
    }

    /// Losses wait to be told: of a group that goes on as a new generation there are as
    /// many as it has queues, and they come one by one.
    pub fn owes_losses(&self) -> bool {
        let runs = |shard: &u16| !self.opening.contains_key(shard);
        !self.starting && self.losses.keys().any(runs)
    }

    /// Every one of so many shards serves: what the start found is told.
    pub fn started(&mut self, shards: u16) {
        self.starting = false;
        for line in self.links.started(shards) {
            self.line(LogLevel::Info, &line);
        }
        self.tell_losses();
        self.opening.clear();
        self.progress = Progress::default();
    }

    /// Something that does not belong to a shard.
    pub fn warning(&self, text: &str) {
        self.line(LogLevel::Warn, text);
    }

    fn tell_links(&mut self, shard: u16, notice: &Notice) {
        let (level, line) = match notice {
            Notice::Linked { node, refused } => {
                (LogLevel::Info, self.links.linked(shard, *node, *refused))
            }
            Notice::Unlinked { node, reason } => {
                (LogLevel::Warn, self.links.unlinked(shard, *node, reason))
            }
            _ => return,
        };
        if let Some(line) = line {
            self.line(level, &line);
        }
    }

    /// Tells what losses there are, together.
    pub fn tell_losses(&mut self) {
        let (mut calm, mut real) = (Vec::new(), Vec::new());
        for (shard, losses) in std::mem::take(&mut self.losses) {
            if self.opening.get(&shard) == Some(&true) {
                calm.extend(losses);
            } else {
                real.extend(losses);
            }
        }
        for line in loss_lines(real) {
            self.line(LogLevel::Warn, &line);
        }
        if let Some(line) = calm_line(&calm) {
            self.line(LogLevel::Info, &line);
        }
    }

    fn line(&self, level: LogLevel, text: &str) {
        if level <= self.level {
            complain(&format!("tidegate: {text}"));
        }
    }
}

/// One line for all partitions whose logs had come to rest.
fn calm_line(losses: &[Loss]) -> Option<String> {
    if losses.is_empty() {
        return None;
    }
    let queues: BTreeSet<u64> = losses.iter().map(|loss| loss.queue_id).collect();
    Some(format!(
        "no loss was found: the log had come to rest with everything durable when the server ended. {} of {} that can confirm at written begin a new generation all the same; had the last moments before the end left no trace, `tidegate queue info` says from which offset on",
        counted(losses.len(), "partition"),
        counted(queues.len(), "queue")
    ))
}

/// One line per queue, at most [`MAX_LOSS_LINES`] and one that counts the rest.
fn loss_lines(losses: Vec<Loss>) -> Vec<String> {
    let mut queues: BTreeMap<u64, Vec<Loss>> = BTreeMap::new();
    for loss in losses {
        queues.entry(loss.queue_id).or_default().push(loss);
    }
    let more = queues.len().saturating_sub(MAX_LOSS_LINES);
    let mut lines: Vec<String> = queues
        .values_mut()
        .take(MAX_LOSS_LINES)
        .map(|losses| {
            losses.sort_by_key(|loss| loss.partition);
            loss_line(losses)
        })
        .collect();
    if more > 0 {
        let queues = counted(more, "more queue");
        lines.push(format!(
            "and {queues} in the same way, see `tidegate queue info`"
        ));
    }
    lines
}

/// For one queue.
fn loss_line(losses: &[Loss]) -> String {
    let parts: Vec<String> = losses
        .iter()
        .take(MAX_LOSS_PARTITIONS)
        .map(|loss| {
            format!(
                "partition {} begins generation {}: every offset of generation {} at or above {} is gone, every one below is present",
                loss.partition,
                loss.begins,
                loss.generation,
                loss.first_lost
            )
        })
        .collect();
    let (name, id) = losses
        .first()
        .map_or(("", 0), |loss| (&loss.queue, loss.queue_id));
    let more = losses.len() - parts.len();
    let rest = if more > 0 {
        format!("; and {}", counted(more, "more partition"))
    } else {
        String::new()
    };
    format!("queue {name:?} (id {id}) {}{rest}", parts.join("; "))
}

fn counted(count: usize, what: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {what}{ending}")
}

fn listed(numbers: &[u32]) -> String {
    let words: Vec<String> = numbers.iter().map(u32::to_string).collect();
    words.join(", ")
}

/// The line for a notice; none for what is gathered.
fn describe(notice: &Notice) -> Option<(LogLevel, String)> {
    let line = match notice {
        Notice::Serving => (LogLevel::Info, "serves again".to_owned()),
        Notice::Recovered { text, .. } => (LogLevel::Info, text.clone()),
        Notice::Latched { cause } => (
            LogLevel::Error,
            format!("{cause}; nothing is confirmed until the log is reopened, which is tried by itself"),
        ),
        Notice::Loss(_) | Notice::Replaying { .. } => return None,
        Notice::BadRecord { queue_id, partition, offset } => (
            LogLevel::Error,
            format!("the record at offset {offset} of queue id {queue_id} partition {partition} does not verify on disk; its neighbours are served"),
        ),
        Notice::DiskFull(true) => (
            LogLevel::Error,
            "the disk has no room for another log segment: publishes are refused; consuming, settling, purging and deleting go on in a reserve. Free space on its file system; it is taken up by itself".to_owned(),
        ),
        Notice::DiskFull(false) => (LogLevel::Info, "the disk has room again".to_owned()),
        Notice::DiskLow(true) => (
            LogLevel::Error,
            "the disk is below its low-water mark (disk_low_water): publishes are refused until it is not".to_owned(),
        ),
        Notice::DiskLow(false) => (LogLevel::Info, "the disk is above its low-water mark again".to_owned()),
        Notice::Scrubbed { records, bytes, damaged } => {
            let level = if *damaged > 0 { LogLevel::Error } else { LogLevel::Info };
            let megabytes = bytes.div_ceil(1_000_000);
            (level, format!("scrubbed {records} stored records, {megabytes} MB: {damaged} of them damaged"))
        }
        Notice::Deposed { groups } => (
            LogLevel::Warn,
            format!("{} {} led from here until now: another node takes over, or no majority answers", if groups.len() == 1 { "group" } else { "groups" }, listed(groups)),
        ),
        Notice::MovedAway { group } => (
            LogLevel::Info,
            format!("group {group}: its replica went to another node, and what was kept of it here is dropped"),
        ),
        Notice::Rejoined { group } => (
            LogLevel::Warn,
            format!("group {group}: this node may have forgotten what it answered, and joins anew"),
        ),
        Notice::Installed { group, index } => (
            LogLevel::Info,
            format!("group {group}: the state came from another node, up to entry {index}"),
        ),
        Notice::IndexFull { full: true, mark } => (
            LogLevel::Error,
            format!("knowing what is unsettled takes all of index_memory ({} MiB): publishes are refused; consuming, settling, purging and deleting go on", mark >> 20),
        ),
        Notice::IndexFull { full: false, .. } => (LogLevel::Info, "index_memory has room again".to_owned()),
        Notice::NoRoom { cause, .. } => (
            LogLevel::Error,
            format!("the log's reserve is used up and nothing is written until there is room ({cause}): settles, purges and deletes stay in line, and whoever waits for one is told. Free space on its file system; it is taken up by itself"),
        ),
        Notice::Linked { node, refused: 0 } => (LogLevel::Debug, format!("linked to node {node}")),
        Notice::Linked { node, refused } => (
            LogLevel::Debug,
            format!("linked to node {node}, after {refused} refused tries"),
        ),
        Notice::Unlinked { node, reason } => (
            LogLevel::Debug,
            format!("node {node} is not linked: {reason}"),
        ),
        Notice::Problem(text) => (LogLevel::Warn, text.clone()),
    };
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss(queue_id: u64, partition: u16) -> Loss {
        Loss {
            queue: format!("q{queue_id}"),
            queue_id,
            partition,
            generation: 1,
            first_lost: 30,
            begins: 2,
        }
    }

    #[test]
    fn a_real_loss_is_a_line_per_queue_and_the_rest_is_counted() {
        let losses = (0..25).map(|queue| loss(queue, 0)).collect();
        let lines = loss_lines(losses);
        assert_eq!(lines.len(), MAX_LOSS_LINES + 1);
        assert_eq!(
            lines[0],
            "queue \"q0\" (id 0) partition 0 begins generation 2: every offset of generation 1 at or above 30 is gone, every one below is present"
        );
        assert!(lines[MAX_LOSS_LINES].contains("and 5 more queues"));
        assert_eq!(loss_lines((0..20).map(|q| loss(q, 0)).collect()).len(), 20);
    }

    #[test]
    fn losses_of_a_group_that_goes_on_are_gathered_and_those_of_a_start_wait_for_its_end() {
        let mut lines = Lines::new(LogLevel::Error);
        let recovered = Notice::Loss(loss(9, 0));
        lines.notice(0, &recovered);
        assert!(!lines.owes_losses(), "it starts");
        lines.started(1);
        assert!(lines.losses.is_empty() && !lines.owes_losses());
        for queue in 0..30 {
            lines.notice(0, &Notice::Loss(loss(queue, 0)));
        }
        assert!(lines.owes_losses());
        assert_eq!(lines.losses[&0].len(), 30);
        lines.tell_losses();
        assert!(!lines.owes_losses());
    }

    #[test]
    fn a_long_start_is_one_line_a_second_for_all_shards_and_a_short_one_none() {
        let begin = Instant::now();
        let mut progress = Progress::default();
        let mut lines = Vec::new();
        for quarter in 0..=20_u64 {
            let now = begin + Duration::from_millis(250 * quarter);
            for shard in [0, 1] {
                let line = progress.note(now, shard, (quarter << 20, 64 << 20));
                lines.extend(line.map(|line| (quarter, line)));
            }
        }
        let at: Vec<u64> = lines.iter().map(|(quarter, _)| *quarter).collect();
        assert_eq!(at, [8, 12, 16, 20]);
        assert!(
            lines[3].1.ends_with("39 MiB of at most 128 MiB"),
            "{lines:?}"
        );
    }

    #[test]
    fn many_partitions_of_one_queue_are_one_line() {
        let lines = loss_lines((0..12).rev().map(|p| loss(3, p)).collect());
        assert_eq!(lines.len(), 1);
        assert!(lines[0].contains("partition 7 ") && !lines[0].contains("partition 8 "));
        assert!(lines[0].ends_with("; and 4 more partitions"));
    }

    #[test]
    fn losses_of_a_log_at_rest_are_one_line() {
        assert_eq!(calm_line(&[]), None);
        let line = calm_line(&[loss(1, 0), loss(1, 1), loss(2, 0)]).unwrap();
        assert!(line.contains("3 partitions of 2 queues"), "{line}");
        assert!(!line.contains("gone"), "{line}");
    }
}
