//! Damaged and half-made files, and starts that are killed.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use client::{Client, DeclareOptions, Mode, PeekOptions, Record};

use crate::support::{
    assert_conserved,
    log_bytes::{batches, BATCH_HEADER},
    server::{segments, Home},
    size, Random,
};

const QUEUE: &str = "kept";
/// More than a server that holds a small log may take.
const MEMORY_BOUND: u64 = 400 << 20;

async fn publish(client: &Client, count: usize) -> Vec<u64> {
    let publisher = client.publisher(QUEUE).await.unwrap();
    let mut offsets = Vec::new();
    for _ in 0..count {
        let payload = [7_u8; 5000];
        offsets.push(
            publisher
                .publish(Record::new(&payload))
                .await
                .unwrap()
                .offset,
        );
    }
    offsets
}

async fn offsets(client: &Client) -> Vec<u64> {
    let options = PeekOptions {
        max_records: 100_000,
        ..PeekOptions::default()
    };
    let peeked = client.peek(QUEUE, options).await.unwrap();
    peeked.iter().map(|record| record.offset).collect()
}

async fn check(client: &Client, expected: &[u64]) {
    assert_eq!(offsets(client).await, expected);
    let info = client.info(QUEUE).await.unwrap();
    assert_conserved(&info);
    assert_eq!(info.partitions[0].generation, 1);
}

/// Everything is there. A header behind the end looks like damage that may
/// have been answered: it may begin a generation, with nothing lost in it.
async fn check_kept(client: &Client, expected: &[u64]) {
    assert_eq!(offsets(client).await, expected);
    let info = client.info(QUEUE).await.unwrap();
    assert_conserved(&info);
    for loss in &info.partitions[0].losses {
        let known = expected.iter().any(|offset| offset + 1 == loss.first_lost);
        assert!(known, "{loss:?} names no end of what is there");
    }
}

/// A change to the newest segment file, which holds no batch yet.
type Damage = fn(&Path, &[u8]);

fn truncate(path: &Path, bytes: u64) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(bytes).unwrap();
}

#[tokio::test]
async fn f15_a_half_made_newest_segment_does_not_block_the_start() {
    let cases: [(&str, Damage); 5] = [
        ("empty", |path, _| truncate(path, 0)),
        ("header - 1", |path, _| {
            truncate(path, BATCH_HEADER as u64 - 1)
        }),
        ("all zeros", |path, _| {
            let len = fs::metadata(path).unwrap().len();
            truncate(path, 0);
            truncate(path, len);
        }),
        ("header only", |path, header| {
            truncate(path, 0);
            fs::write(path, header).unwrap();
        }),
        ("header, then zeros", |path, header| {
            let len = fs::metadata(path).unwrap().len();
            truncate(path, 0);
            fs::write(path, header).unwrap();
            truncate(path, len);
        }),
    ];
    let home = Home::new(1);
    let server = home.start();
    let client = server.client().await;
    client.declare(QUEUE).await.unwrap();
    let mut kept = publish(&client, 20).await;
    let mut server = Some(server);
    for (case, damage) in cases {
        println!("F15: {case}");
        server.take().unwrap().kill();
        let all = batches(&home.data(), 0);
        let newest = segments(&home.data(), 0).pop().unwrap();
        let last = all.last().unwrap();
        assert_ne!(last.file, newest, "the newest segment is the spare");
        let written = fs::read(&last.file).unwrap();
        let at = last.at as usize;
        damage(&newest, &written[at..at + BATCH_HEADER]);
        let started = home.start();
        let client = started.client().await;
        check_kept(&client, &kept).await;
        // Enough to roll into the damaged segment.
        kept.extend(publish(&client, 1000).await);
        started.kill();
        let started = home.start();
        check_kept(&started.client().await, &kept).await;
        server = Some(started);
    }
}

#[tokio::test]
async fn f16_what_is_confirmed_after_a_crash_survives_the_next_one() {
    let mut random = Random::new("F16");
    let home = Home::new(1);
    let mut kept: Vec<u64> = Vec::new();
    for _ in 0..size(4, 40) {
        let server = home.start();
        let client = server.client().await;
        client
            .declare(DeclareOptions::new(QUEUE).mode(Mode::Buffered))
            .await
            .unwrap();
        check(&client, &kept).await;
        kept.extend(publish(&client, random.between(1, 20) as usize).await);
        let mut subscription = client.subscribe(QUEUE).await.unwrap();
        let delivery = subscription.next().await.unwrap().unwrap();
        assert_eq!(delivery.offset(), kept[0], "oldest first");
        delivery.ack_confirmed().await.unwrap();
        kept.remove(0);
        // Unanswered ones leave a hole or a torn end.
        let publisher = client.publisher(QUEUE).await.unwrap();
        let payload = vec![1_u8; 300_000];
        let mut waiting = Vec::new();
        for _ in 0..random.between(0, 10) {
            waiting.push(publisher.send(Record::new(&payload)).await.unwrap());
        }
        tokio::time::sleep(Duration::from_micros(random.between(0, 5000))).await;
        server.kill();
        for confirm in waiting {
            if let Ok(confirmed) = confirm.await {
                assert!(kept.last().is_none_or(|last| *last < confirmed.offset));
                kept.push(confirmed.offset);
            }
        }
        let server = home.start();
        let client = server.client().await;
        let now = offsets(&client).await;
        // Unknown ones may be there as well, behind the confirmed ones.
        assert!(
            now.starts_with(&kept),
            "{kept:?} is not where {now:?} begins"
        );
        kept = now;
        server.kill();
    }
}

#[tokio::test]
async fn f17_a_start_that_is_killed_is_not_a_clean_stop() {
    let mut random = Random::new("F17");
    let home = Home::new(2);
    let server = home.start();
    let client = server.client().await;
    client.declare(QUEUE).await.unwrap();
    let kept = publish(&client, 1500).await;
    // Cleanly stopped: the first killed start takes the marker away.
    server.stop();
    let slow = Instant::now();
    let server = home.start();
    let whole_start = slow.elapsed().as_micros() as u64;
    server.stop();
    for round in 0..size(5, 30) {
        let most = if round % 2 == 0 {
            whole_start
        } else {
            2_000_000
        };
        home.start_and_kill(Duration::from_micros(random.between(0, most)));
    }
    let server = home.start();
    let said = server.errors().join("\n");
    assert!(said.contains("had not been stopped cleanly"), "{said}");
    let client = server.client().await;
    check(&client, &kept).await;
    let more = publish(&client, 1).await;
    assert!(more[0] > *kept.last().unwrap());
}

#[tokio::test]
async fn f18_bad_lengths_in_the_last_batch_do_not_stop_the_start() {
    // Batch body, fragment, whole item: little-endian u32.
    for at in [12_u64, 96 + 24, 96 + 28] {
        for value in [u32::MAX, 0, 1] {
            let home = Home::new(1).with("background_sync_interval = \"0\"");
            let server = home.start();
            let client = server.client().await;
            client.declare(QUEUE).await.unwrap();
            let kept = publish(&client, 20).await;
            server.kill();
            let all = batches(&home.data(), 0);
            let last = all.iter().rfind(|batch| batch.fragments > 0).unwrap();
            last.overwrite(at, &value.to_le_bytes());

            let server = home.start();
            let client = server.client().await;
            let now = offsets(&client).await;
            assert!(
                now == kept || now == kept[..kept.len() - 1],
                "only the damaged record may be missing: {now:?}"
            );
            if now.len() < kept.len() {
                let said = server.errors().join("\n");
                assert!(said.contains("damaged"), "silent: {said}");
            }
            assert!(server.peak_memory() < MEMORY_BOUND);
            assert_conserved(&client.info(QUEUE).await.unwrap());
            let more = publish(&client, 3).await;
            assert!(more[0] > *now.last().unwrap());
            server.kill();
            let server = home.start();
            let again = offsets(&server.client().await).await;
            assert_eq!(again, [now, more].concat());
        }
    }
}
