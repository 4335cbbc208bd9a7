//! What is stored is looked at before somebody needs it.

use std::{fs::OpenOptions, os::unix::fs::FileExt, time::Duration};

use client::Record;

use crate::support::{
    server::{Home, Server},
    PATIENCE,
};

const QUEUE: &str = "stored";
const PAYLOAD_BYTES: usize = 15_000;
/// As such a record stands in a packed file, without key and headers.
const RECORD_BYTES: u64 = PAYLOAD_BYTES as u64 + 32;
/// Head of a packed file.
const HEAD_BYTES: u64 = 4096;

/// Lines that tell of a whole pass over at least so many records.
fn passes(server: &Server, least: u64, damaged: &str) -> usize {
    let end = format!(": {damaged} of them damaged");
    let records = |line: &String| {
        let (_, behind) = line.split_once("scrubbed ")?;
        let (count, _) = behind.split_once(' ')?;
        line.ends_with(&end).then_some(count.parse::<u64>().ok()?)
    };
    let said = server.errors();
    let found = said.iter().filter_map(records);
    found.filter(|records| *records >= least).count()
}

async fn await_passes(server: &Server, what: &str, done: impl Fn() -> bool) {
    let until = tokio::time::Instant::now() + PATIENCE;
    while !done() {
        let late = tokio::time::Instant::now() > until;
        assert!(!late, "no {what}: {:?}", server.errors());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_scrub_names_a_damaged_record_that_nobody_asked_for() {
    let home = Home::new(1).with("scrub_interval = \"100ms\"");
    let server = home.start();
    let client = server.client().await;
    client.declare(QUEUE).await.unwrap();
    let publisher = client.publisher(QUEUE).await.unwrap();
    let payload = vec![b'x'; PAYLOAD_BYTES];
    for _ in 0..1_500 {
        publisher.publish(Record::new(&payload)).await.unwrap();
    }
    let pack = home.data().join("shard-00/pack-0000000001");
    let packed = || pack.exists() && passes(&server, 200, "0") > 0;
    await_passes(&server, "pass over packed records", packed).await;

    // In the third record of the file; a later pass has to find it.
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&pack)
        .unwrap();
    let offset = HEAD_BYTES + 2 * RECORD_BYTES + 9_000;
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    assert_eq!(byte, [b'x']);
    file.write_all_at(b"y", offset).unwrap();
    file.sync_all().unwrap();
    let found = || passes(&server, 200, "1") > 1;
    await_passes(&server, "two passes over the damage", found).await;
    let said = server.errors();
    let named: Vec<&String> = said
        .iter()
        .filter(|line| line.contains("does not verify"))
        .collect();
    assert_eq!(named.len(), 1, "{said:?}");
    assert!(
        named[0].contains("the record at offset 2 of queue id"),
        "{named:?}"
    );
    server.stop();
}
