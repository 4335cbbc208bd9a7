//! How queues, partitions and records are shown, as text and as JSON.

use client::{
    Boundary, Copies, Counts, HeadersView, InForce, Loss, OnTotalLoss, PartitionFrontiers,
    PartitionInfo, Queue, QueueInfo, Settings,
};
use serde::{Serialize, Serializer};

use crate::config::show_duration;

/// Bytes as JSON text where they are UTF-8, and else as `{"hex": …}`.
#[derive(Debug)]
pub struct Bytes<'a>(pub &'a [u8]);

#[derive(Serialize)]
struct Hex {
    hex: String,
}

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => Hex {
                hex: self.0.iter().map(|byte| format!("{byte:02x}")).collect(),
            }
            .serialize(serializer),
        }
    }
}

#[derive(Serialize)]
pub struct HeaderJson<'a> {
    name: &'a str,
    value: Bytes<'a>,
}

/// Headers as JSON; what does not decode is left out.
pub fn headers_json(headers: HeadersView<'_>) -> Vec<HeaderJson<'_>> {
    headers
        .iter()
        .map_while(Result::ok)
        .map(|(name, value)| HeaderJson {
            name,
            value: Bytes(value),
        })
        .collect()
}

/// Bytes on one line of text: control characters escaped, no invalid UTF-8.
pub fn one_line(bytes: &[u8]) -> String {
    let mut line = String::with_capacity(bytes.len());
    for character in String::from_utf8_lossy(bytes).chars() {
        if character.is_control() {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    line
}

#[derive(Serialize)]
pub struct QueueJson<'a> {
    name: &'a str,
    queue_id: u64,
    mode: &'static str,
    copies: String,
    lease_ms: u64,
    partitions: usize,
    shards: &'a [u16],
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<bool>,
}

impl<'a> QueueJson<'a> {
    pub fn new(queue: &'a Queue, created: Option<bool>) -> Self {
        QueueJson {
            name: &queue.name,
            queue_id: queue.queue_id,
            mode: queue.mode.name(),
            copies: copies(queue.copies),
            lease_ms: u64::try_from(queue.lease.as_millis()).unwrap_or(u64::MAX),
            partitions: queue.shards.len(),
            shards: &queue.shards,
            created,
        }
    }
}

/// W in words.
pub fn copies(copies: Copies) -> String {
    match copies {
        Copies::Majority => "majority".to_owned(),
        Copies::All => "all".to_owned(),
        Copies::Exactly(count) => count.to_string(),
    }
}

/// `queue orders: mode durable, 1 partition, lease 30s`
pub fn queue_line(queue: &Queue) -> String {
    format!(
        "queue {}: mode {}, {}, lease {}",
        queue.name,
        queue.mode.name(),
        plural(queue.shards.len() as u64, "partition"),
        show_duration(queue.lease)
    )
}

pub fn plural(count: u64, what: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {what}{ending}")
}

#[derive(Serialize)]
struct CountsJson {
    gated: u64,
    ready: u64,
    delayed: u64,
    leased: u64,
    published: u64,
    acknowledged: u64,
    dropped: u64,
    expired: u64,
    dead_lettered: u64,
    purged: u64,
    redelivered: u64,
    unsynced_records: u64,
    unsynced_bytes: u64,
    consumers: u32,
}

impl CountsJson {
    fn new(counts: &Counts) -> Self {
        CountsJson {
            gated: counts.gated,
            ready: counts.ready,
            delayed: counts.delayed,
            leased: counts.leased,
            published: counts.published,
            acknowledged: counts.acknowledged,
            dropped: counts.dropped,
            expired: counts.expired,
            dead_lettered: counts.dead_lettered,
            purged: counts.purged,
            redelivered: counts.redelivered,
            unsynced_records: counts.unsynced_records,
            unsynced_bytes: counts.unsynced_bytes,
            consumers: counts.consumers,
        }
    }
}

#[derive(Serialize)]
struct LossJson {
    generation: u32,
    first_lost: u64,
    highest_known_confirmed_next: Option<u64>,
}

impl LossJson {
    fn new(loss: &Loss) -> Self {
        LossJson {
            generation: loss.generation,
            first_lost: loss.first_lost,
            highest_known_confirmed_next: loss.highest_known_confirmed_next,
        }
    }
}

#[derive(Serialize)]
struct ReplicaJson {
    node: u32,
    reached: Option<&'static str>,
}

/// What is in force in a partition, or why nobody can say.
#[derive(Serialize, Default)]
pub struct SettingJson {
    partition: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    copies: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<u64>,
    standing: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    replicas: Vec<ReplicaJson>,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
}

impl SettingJson {
    fn new(partition: u16, in_force: &InForce) -> Self {
        let replicas = in_force.replicas.iter();
        SettingJson {
            partition,
            mode: Some(in_force.setting.mode.name()),
            copies: Some(copies(in_force.setting.copies)),
            revision: Some(in_force.setting.revision),
            since: Some(in_force.since),
            standing: in_force.standing.name(),
            replicas: replicas
                .map(|(node, reached)| ReplicaJson {
                    node: *node,
                    reached: reached.map(Boundary::name),
                })
                .collect(),
            reason: in_force.reason.clone(),
        }
    }

    /// One for each partition.
    pub fn each(settings: &Settings) -> Vec<Self> {
        let each = settings.partitions.iter().enumerate();
        each.map(|(partition, said)| match said {
            Ok(in_force) => SettingJson::new(partition as u16, in_force),
            Err(error) => SettingJson {
                partition: partition as u16,
                standing: "unknown",
                reason: error.to_string(),
                ..SettingJson::default()
            },
        })
        .collect()
    }
}

#[derive(Serialize)]
struct PartitionJson {
    partition: u16,
    shard: Option<u16>,
    generation: u32,
    written_next: u64,
    durable_next: u64,
    #[serde(flatten)]
    counts: CountsJson,
    oldest_ready_age_ms: u128,
    latched: bool,
    copies_present: u8,
    copies_needed: u8,
    /// Left out where the queue's setting was never changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    in_force: Option<SettingJson>,
    losses: Vec<LossJson>,
}

#[derive(Serialize)]
pub struct InfoJson<'a> {
    #[serde(flatten)]
    queue: QueueJson<'a>,
    #[serde(flatten)]
    totals: CountsJson,
    on_total_loss: &'static str,
    /// Of mode and copies.
    revision: u32,
    oldest_ready_age_ms: u128,
    each: Vec<PartitionJson>,
}

impl<'a> InfoJson<'a> {
    pub fn new(info: &'a QueueInfo) -> Self {
        InfoJson {
            queue: QueueJson::new(&info.queue, None),
            on_total_loss: match info.on_total_loss() {
                OnTotalLoss::Recover => "recover",
                OnTotalLoss::Halt => "halt",
            },
            revision: info.desired().map_or(0, |desired| desired.revision),
            totals: CountsJson::new(&info.totals()),
            oldest_ready_age_ms: info.oldest_ready_age().as_millis(),
            each: info
                .partitions
                .iter()
                .map(|p| PartitionJson {
                    partition: p.partition,
                    shard: info.queue.shards.get(usize::from(p.partition)).copied(),
                    generation: p.generation,
                    written_next: p.written_next,
                    durable_next: p.durable_next,
                    counts: CountsJson::new(&p.counts),
                    oldest_ready_age_ms: p.oldest_ready_age.as_millis(),
                    latched: p.latched,
                    copies_present: p.copies_present,
                    copies_needed: p.copies_needed,
                    in_force: was_changed(info).then(|| SettingJson::new(p.partition, &p.in_force)),
                    losses: p.losses.iter().map(LossJson::new).collect(),
                })
                .collect(),
        }
    }
}

/// The lines of `queue info`.
pub fn info_lines(info: &QueueInfo) -> Vec<String> {
    let mut lines = vec![
        format!(
            "{}, copies {}, {}{}id {}",
            queue_line(&info.queue),
            copies(info.queue.copies),
            match info.desired().map_or(0, |desired| desired.revision) {
                0 => String::new(),
                revision => format!("revision {revision}, "),
            },
            match info.on_total_loss() {
                OnTotalLoss::Recover => "",
                OnTotalLoss::Halt => "on total loss it halts, ",
            },
            info.queue.queue_id
        ),
        format!(
            "{} oldest_ready_age={}",
            counts_line(&info.totals()),
            show_duration(info.oldest_ready_age())
        ),
    ];
    for partition in &info.partitions {
        lines.push(partition_line(info, partition));
        if was_changed(info) {
            let line = setting_line(partition.partition, &partition.in_force);
            lines.push(format!("setting {line}"));
        }
        for loss in &partition.losses {
            let known = loss
                .highest_known_confirmed_next
                .map_or_else(|| "unknown".to_owned(), |next| next.to_string());
            lines.push(format!(
                "loss partition={} generation={} first_lost={} highest_known_confirmed_next={known}",
                partition.partition, loss.generation, loss.first_lost
            ));
        }
    }
    lines
}

/// Its setting is not the one it was declared with, here or there.
fn was_changed(info: &QueueInfo) -> bool {
    info.partitions
        .iter()
        .any(|p| p.desired.revision.max(p.in_force.setting.revision) > 0)
}

/// `partition=0 mode=durable copies=all revision=2 since=70 in force; node 1 durable, …`
pub fn setting_line(partition: u16, it: &InForce) -> String {
    let mut line = format!(
        "partition={partition} mode={} copies={} revision={} since={} {}",
        it.setting.mode.name(),
        copies(it.setting.copies),
        it.setting.revision,
        it.since,
        it.standing.name()
    );
    let reached = |boundary: Option<Boundary>| boundary.map_or("behind", Boundary::name);
    let replicas = it.replicas.iter();
    let replicas = replicas.map(|(node, at)| format!("node {node} {}", reached(*at)));
    let replicas: Vec<String> = replicas.collect();
    if !replicas.is_empty() {
        line = format!("{line}; {}", replicas.join(", "));
    }
    if !it.reason.is_empty() {
        line = format!("{line}; {}", it.reason);
    }
    line
}

fn counts_line(c: &Counts) -> String {
    format!(
        "ready={} delayed={} leased={} gated={} published={} acknowledged={} dropped={} expired={} \
         dead_lettered={} purged={} redelivered={} consumers={} unsynced_records={} unsynced_bytes={}",
        c.ready, c.delayed, c.leased, c.gated, c.published, c.acknowledged, c.dropped, c.expired,
        c.dead_lettered, c.purged, c.redelivered, c.consumers, c.unsynced_records, c.unsynced_bytes
    )
}

fn partition_line(info: &QueueInfo, p: &PartitionInfo) -> String {
    let shard = info.queue.shards.get(usize::from(p.partition));
    format!(
        "partition={} shard={} generation={} written_next={} durable_next={} ready={} delayed={} \
         leased={} gated={} copies={}/{}{}",
        p.partition,
        shard.map_or_else(|| "?".to_owned(), u16::to_string),
        p.generation,
        p.written_next,
        p.durable_next,
        p.counts.ready,
        p.counts.delayed,
        p.counts.leased,
        p.counts.gated,
        p.copies_present,
        p.copies_needed,
        if p.latched { " LATCHED" } else { "" }
    )
}

#[derive(Serialize)]
pub struct FrontiersJson {
    partition: u16,
    generation: u32,
    written_next: u64,
    durable_next: u64,
    copies: u8,
}

impl FrontiersJson {
    pub fn new(frontiers: &PartitionFrontiers) -> Self {
        FrontiersJson {
            partition: frontiers.partition,
            generation: frontiers.generation,
            written_next: frontiers.written_next,
            durable_next: frontiers.durable_next,
            copies: frontiers.copies,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_text_where_they_can_be() {
        assert_eq!(serde_json::to_string(&Bytes(b"a\n")).unwrap(), r#""a\n""#);
        let binary = serde_json::to_string(&Bytes(&[0xff, 0])).unwrap();
        assert_eq!(binary, r#"{"hex":"ff00"}"#);
    }

    #[test]
    fn one_line_keeps_text_and_escapes_what_would_break_it() {
        assert_eq!(one_line("grüß\n\t\0x".as_bytes()), "grüß\\n\\t\\u{0}x");
        assert!(!one_line(&[b'a', 0xff, b'\r']).contains('\r'));
    }

    #[test]
    fn one_partition_is_singular() {
        assert_eq!(plural(1, "partition"), "1 partition");
        assert_eq!(plural(0, "record"), "0 records");
    }
}
