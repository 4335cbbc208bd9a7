//! A fixture: a directory, and what it holds.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use client::{Client, Delivery, HeadersView, PeekOptions, QueueInfo, RecordState};
use serde_json::{json, Value};
use tempfile::TempDir;

use crate::{
    archive::{from_text, read_tree, to_text, write_tree, Files},
    support::{await_counts, server::Home, soon},
};

/// Number of the format that this version writes.
pub const FORMAT: u32 = 1;
/// Shards of every fixture.
pub const SHARDS: u16 = 2;
/// The boot that the fixtures were left in.
pub const BOOT: &str = "f1f1";
/// Far enough: records that are not to be delivered before.
pub fn year_2100() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(4_102_444_800)
}

fn path_of(name: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    fixtures.join(format!("format-{FORMAT}")).join(name)
}

/// A fixture, unpacked: `data` and what was in `/run`.
pub struct Unpacked {
    pub home: Home,
    /// What the directory held when it was made.
    pub holds: Value,
    root: TempDir,
}

impl Unpacked {
    pub fn new(name: &str) -> Self {
        let text = fs::read_to_string(path_of(&format!("{name}.txt"))).unwrap();
        let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        write_tree(root.path(), &from_text(&text));
        let run = root.path().join("run");
        fs::create_dir_all(&run).unwrap();
        let mut home = home().data_at(&root.path().join("data"));
        home.booted(BOOT, &run);
        let holds = fs::read_to_string(path_of(&format!("{name}.json"))).unwrap();
        Unpacked {
            home,
            holds: serde_json::from_str(&holds).unwrap(),
            root,
        }
    }

    /// Every byte of it as it is now.
    pub fn files(&self) -> Files {
        read_tree(self.root.path())
    }

    /// Makes the bytes of a file others.
    pub fn change(&self, file: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let path = self.root.path().join(file);
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::write(path, bytes).unwrap();
    }
}

/// How servers on fixtures are configured.
pub fn home() -> Home {
    Home::new(SHARDS)
        .short_segments()
        .with("node_id = 7")
        .with("data_groups = 4")
        .with("spare_segments = 1")
}

/// Keeps the directory of a server that has ended, and what it holds, as this
/// version reads it.
pub async fn keep(name: &str, home: &Home) -> Value {
    let mut files = Files::new();
    for (below, path) in [("data", home.data()), ("run", home.boot_directory())] {
        for (file, bytes) in read_tree(&path) {
            files.insert(format!("{below}/{file}"), bytes);
        }
    }
    let text = to_text(&files);
    println!(
        "{name}: {} files, {} bytes of text",
        files.len(),
        text.len()
    );
    fs::create_dir_all(path_of("")).unwrap();
    fs::write(path_of(&format!("{name}.txt")), text).unwrap();
    fs::write(path_of(&format!("{name}.json")), "null").unwrap();
    let unpacked = Unpacked::new(name);
    let holds = json!({
        "offline": offline(&unpacked.home),
        "served": served(&unpacked.home).await,
    });
    let text = serde_json::to_string_pretty(&holds).unwrap();
    fs::write(path_of(&format!("{name}.json")), text + "\n").unwrap();
    holds
}

/// What the offline commands say of it.
pub fn offline(home: &Home) -> Value {
    let [inspect, verify] = ["inspect", "verify"].map(|action| {
        let (code, objects, said) = home.log(action);
        json!({ "exit": code, "objects": objects, "said": said })
    });
    json!({ "inspect": inspect, "verify": verify })
}

/// Starts a server on it and gives what it shows of every queue; then takes
/// every record there is.
pub async fn served(home: &Home) -> Value {
    let server = home.start();
    let client = server.client().await;
    let mut queues = BTreeMap::new();
    for queue in client.list().await.unwrap() {
        await_counts(&client, &queue.name, "the gates to open", |counts| {
            counts.gated == 0
        })
        .await;
        let info = client.info(&queue.name).await.unwrap();
        let peeked = peek(&client, &queue.name).await;
        let delivered = consume(&client, &info).await;
        let shown = json!({
            "queue": describe(&info), "records": peeked, "delivered": delivered,
        });
        queues.insert(queue.name, shown);
    }
    server.stop();
    json!(queues)
}

/// What does not depend on the moment.
fn describe(info: &QueueInfo) -> Value {
    let queue = &info.queue;
    let partitions: Vec<Value> = info
        .partitions
        .iter()
        .map(|partition| {
            let counts = &partition.counts;
            let losses = partition.losses.iter().map(|loss| {
                json!([
                    loss.generation,
                    loss.first_lost,
                    loss.highest_known_confirmed_next
                ])
            });
            json!({
                "generation": partition.generation,
                "losses": losses.collect::<Vec<_>>(),
                "published": counts.published,
                "ready": counts.ready,
                "delayed": counts.delayed,
                "acknowledged": counts.acknowledged,
                "dropped": counts.dropped,
                "purged": counts.purged,
            })
        })
        .collect();
    json!({
        "id": queue.queue_id,
        "mode": queue.mode.name(),
        "lease_ms": queue.lease.as_millis() as u64,
        "shards": queue.shards,
        "partitions": partitions,
    })
}

/// Every record that is not settled.
async fn peek(client: &Client, name: &str) -> Vec<Value> {
    let options = PeekOptions {
        max_records: u32::MAX,
        ..PeekOptions::default()
    };
    let peeked = client.peek(name, options).await.unwrap();
    let shown = peeked.iter().map(|record| {
        let delayed = record.state == RecordState::Delayed;
        json!({
            "partition": record.partition,
            "offset": record.offset,
            "attempts": record.attempts,
            "delayed": delayed,
            "key": text(&record.key),
            "headers": headers(record.headers()),
            "payload": payload(&record.payload),
        })
    });
    shown.collect()
}

/// Takes every record that is ready, and settles it; gives what came, in order
/// of partition and offset.
async fn consume(client: &Client, info: &QueueInfo) -> Vec<Value> {
    let name = &info.queue.name;
    let ready = info.totals().ready as usize;
    let mut subscription = client.subscribe(name).await.unwrap();
    let mut came: BTreeMap<(u16, u64), Value> = BTreeMap::new();
    while came.len() < ready {
        let delivery = soon("a delivery", subscription.next()).await;
        let delivery = delivery.unwrap().unwrap();
        let place = (delivery.partition(), delivery.offset());
        let before = came.insert(place, delivered(&delivery));
        assert_eq!(before, None, "{place:?} came twice");
        soon("a settle", delivery.ack_confirmed()).await.unwrap();
    }
    let none_left = |counts: &client::Counts| counts.ready + counts.leased == 0;
    await_counts(client, name, "nothing to be left", none_left).await;
    came.into_values().collect()
}

fn delivered(delivery: &Delivery) -> Value {
    json!([
        delivery.partition(),
        delivery.offset(),
        delivery.generation(),
        delivery.attempt(),
        delivery.redelivered(),
        text(delivery.key()),
        headers(delivery.headers()),
        payload(delivery.payload()),
    ])
}

fn headers(headers: HeadersView<'_>) -> Value {
    let headers = headers.iter().map(|header| {
        let (name, value) = header.unwrap();
        json!([name, text(value)])
    });
    json!(headers.collect::<Vec<_>>())
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Text, and how often its last character follows it.
pub fn payload(bytes: &[u8]) -> Value {
    let bytes = text(bytes);
    let last = bytes.chars().next_back();
    let short = bytes.trim_end_matches(|character| Some(character) == last);
    let filled = bytes.len() - short.len();
    match last {
        Some(last) if filled > 16 => json!([short, last, filled]),
        _ => json!(bytes),
    }
}
