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
};

use shards::engine::Notice;

use crate::config::LogLevel;

/// Queues whose losses are named one by one.
const MAX_LOSS_LINES: usize = 20;
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
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Loss {
    queue: String,
    queue_id: u64,
    partition: u16,
    generation: u32,
    first_lost: u64,
}

impl Lines {
    /// Nothing above `level` is printed.
    pub fn new(level: LogLevel) -> Self {
        Lines {
            level,
            starting: true,
            opening: BTreeMap::new(),
            losses: BTreeMap::new(),
        }
    }

    /// What a shard has to say.
    pub fn notice(&mut self, shard: u16, notice: &Notice) {
        match notice {
            Notice::Recovered { at_rest, .. } => {
                self.opening.insert(shard, *at_rest);
            }
            Notice::Loss {
                queue,
                queue_id,
                partition,
                generation,
                first_lost,
            } => self.losses.entry(shard).or_default().push(Loss {
                queue: queue.clone(),
                queue_id: *queue_id,
                partition: *partition,
                generation: *generation,
                first_lost: *first_lost,
            }),
            _ => {}
        }
        if let Some((level, text)) = describe(notice) {
            if !(self.starting && matches!(notice, Notice::Serving)) {
                self.line(level, &format!("shard {shard}: {text}"));
            }
        }
        let waits = self.opening.contains_key(&shard) && !matches!(notice, Notice::Serving);
        if !self.starting && !waits {
            self.tell_losses();
            self.opening.remove(&shard);
        }
    }

    /// Every shard serves: what the start found is told.
    pub fn started(&mut self) {
        self.starting = false;
        self.tell_losses();
        self.opening.clear();
    }

    fn tell_losses(&mut self) {
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
                loss.generation + 1,
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

/// The line for a notice; none for losses, which are gathered.
fn describe(notice: &Notice) -> Option<(LogLevel, String)> {
    let line = match notice {
        Notice::Serving => (LogLevel::Info, "serves again".to_owned()),
        Notice::Recovered { text, .. } => (LogLevel::Info, text.clone()),
        Notice::Latched { cause } => (
            LogLevel::Error,
            format!("{cause}; nothing is confirmed until the log is reopened, which is tried by itself"),
        ),
        Notice::Loss { .. } => return None,
        Notice::BadRecord { queue_id, partition, offset } => (
            LogLevel::Error,
            format!("the record at offset {offset} of queue id {queue_id} partition {partition} does not verify on disk; its neighbours are served"),
        ),
        Notice::DiskFull(true) => (
            LogLevel::Error,
            "the disk has no room for another log segment; publishes are refused until there is".to_owned(),
        ),
        Notice::DiskFull(false) => (LogLevel::Info, "the disk has room again".to_owned()),
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
