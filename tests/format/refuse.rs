//! A directory in which one thing is of the next format is refused in one
//! sentence, by the server and by the offline commands, and keeps every byte.

use xxhash_rust::xxh3::xxh3_64;

use crate::fixture::{Unpacked, SHARDS};

const HEAD_BLOCK: usize = 4096;
const MAGIC_BATCH: &[u8] = b"TIDEGATB";

/// Writes the checksum of everything before `at` there.
fn seal(bytes: &mut [u8], at: usize) {
    let checksum = xxh3_64(&bytes[..at]);
    bytes[at..at + 8].copy_from_slice(&checksum.to_le_bytes());
}

/// Writes the checksum of all before the last eight bytes there.
fn seal_end(bytes: &mut [u8]) {
    let at = bytes.len() - 8;
    seal(bytes, at);
}

/// The next format, of this one's layout.
fn next_number(bytes: &mut [u8]) {
    bytes[8] += 1;
}

/// The next format, of which only magic and number are known here.
fn next_layout(bytes: &mut [u8]) {
    next_number(bytes);
    let end = bytes.len().min(200);
    bytes[16..end].reverse();
    bytes[12] ^= 0x55;
}

/// One file becomes the next version's: refused by `word`, and nothing changes.
async fn refused(fixture: &str, file: &str, word: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let fixture = Unpacked::new(fixture);
    // Of a process that was killed: whose it is is not the directory's matter.
    fixture.change("data/lock", Vec::clear);
    fixture.change(file, change);
    let before = fixture.files();
    let mut server = fixture.home.spawn();
    let said = server.await_listening().unwrap_err();
    assert_eq!(said.len(), 2, "{file}: {said:?}");
    assert!(said[0].contains(word), "{file}: {said:?}");
    assert!(said[0].contains("version"), "{file}: {said:?}");
    assert_eq!(said[1], "(exit status: 1)", "{file}");
    drop(server);
    assert!(fixture.files() == before, "{file} was not left alone");
    for action in ["inspect", "verify"] {
        let (code, shown, said) = fixture.home.log(action);
        assert_eq!((code, shown.len()), (1, 0), "{action}, {file}: {said}");
        assert!(said.contains(word), "{action}, {file}: {said}");
        assert_eq!(said.lines().count(), 1, "{action}, {file}: {said}");
    }
    assert!(fixture.files() == before, "{file} was not left alone");
}

/// Names of the fixture's files that start so.
fn named(fixture: &str, start: &str) -> Vec<String> {
    let files = Unpacked::new(fixture).files();
    let names = files.into_keys().filter(|name| name.starts_with(start));
    names.collect()
}

#[tokio::test]
async fn an_identity_of_the_next_format_is_refused() {
    refused("stopped", "data/identity", "format 4", |bytes| {
        let text = String::from_utf8(bytes.clone()).unwrap();
        *bytes = text.replace("tidegate 1\n", "tidegate 4\n").into_bytes();
    })
    .await;
}

#[tokio::test]
async fn a_clean_marker_of_the_next_format_is_refused() {
    refused("stopped", "data/clean", "format 2", |bytes| {
        bytes[7] = b'2';
        seal(bytes, 12 + 40 * usize::from(SHARDS));
    })
    .await;
    refused("stopped", "data/clean", "format 2", |bytes| {
        bytes[7] = b'2';
        bytes[12..60].reverse();
    })
    .await;
}

#[tokio::test]
async fn a_latch_record_of_the_next_format_is_refused() {
    let file = "data/shard-01/latched";
    refused("latched", file, "format 2", |bytes| {
        bytes[7] = b'2';
        seal_end(bytes);
    })
    .await;
    refused("latched", file, "format 2", |bytes| {
        bytes[7] = b'2';
        bytes.push(0);
    })
    .await;
}

#[tokio::test]
async fn either_superblock_copy_of_the_next_format_is_refused() {
    for file in ["super-a", "super-b"].map(|copy| format!("data/shard-01/{copy}")) {
        refused("stopped", &file, "format 2", |bytes| {
            next_number(bytes);
            seal_end(bytes);
        })
        .await;
        refused("stopped", &file, "format 2", |bytes| next_layout(bytes)).await;
    }
}

/// Where the batches of a segment stand.
fn batches(segment: &[u8]) -> Vec<usize> {
    let blocks = segment.chunks(HEAD_BLOCK).enumerate();
    let begin = blocks.filter(|(_, block)| block.starts_with(MAGIC_BATCH));
    begin.map(|(block, _)| block * HEAD_BLOCK).collect()
}

/// The first of a segment, the last of the log, and that of the last start.
#[tokio::test]
async fn a_batch_of_the_next_format_is_refused() {
    let next = |bytes: &mut [u8], at: usize| {
        next_number(&mut bytes[at..]);
        seal(&mut bytes[at..], 88);
    };
    for fixture in ["stopped", "killed"] {
        let segments = named(fixture, "data/shard-01/seg-");
        let files = Unpacked::new(fixture).files();
        let used = segments
            .iter()
            .filter(|segment| !batches(&files[*segment]).is_empty());
        let used: Vec<_> = used.collect();
        let (first, last) = (used[0], used[used.len() - 1]);
        refused(fixture, first, "format 2", |bytes| next(bytes, 0)).await;
        for back in [1, 2] {
            refused(fixture, last, "format 2", |bytes| {
                let places = batches(bytes);
                next(bytes, places[places.len() - back]);
            })
            .await;
        }
    }
}

/// The checkpoint in force, and its file.
fn checkpoint(fixture: &str) -> String {
    let files = Unpacked::new(fixture).files();
    let names = named(fixture, "data/shard-00/ckpt-");
    let mut heads = names.iter().filter(|name| files[*name][0] != 0);
    heads.next().unwrap().clone()
}

#[tokio::test]
async fn a_checkpoint_of_the_next_format_is_refused_and_not_taken_for_none() {
    let file = checkpoint("stopped");
    refused("stopped", &file, "format 2", |bytes| {
        next_number(bytes);
        seal(bytes, 104);
    })
    .await;
    refused("stopped", &file, "format 2", |bytes| next_layout(bytes)).await;
}

/// Head and body of a checkpoint match again.
fn seal_checkpoint(bytes: &mut [u8], body: std::ops::Range<usize>) {
    let checksum = xxh3_64(&bytes[body]);
    bytes[96..104].copy_from_slice(&checksum.to_le_bytes());
    seal(bytes, 104);
}

/// Where the sections of a checkpoint start, and where the last one ends.
fn sections(bytes: &[u8]) -> (Vec<usize>, usize) {
    let length = u64::from_le_bytes(bytes[88..96].try_into().unwrap());
    let end = HEAD_BLOCK + length as usize;
    let (mut places, mut at) = (Vec::new(), HEAD_BLOCK);
    while at < end {
        places.push(at);
        let payload = u32::from_le_bytes(bytes[at + 4..at + 8].try_into().unwrap());
        at += 8 + payload as usize;
    }
    assert_eq!(at, end);
    (places, end)
}

#[tokio::test]
async fn a_checkpoint_section_of_the_next_version_is_refused() {
    let file = checkpoint("stopped");
    for (byte, word) in [(1, "version 3"), (0, "kind 9")] {
        for first in [true, false] {
            refused("stopped", &file, word, |bytes| {
                let (places, end) = sections(bytes);
                let at = if first { 0 } else { places.len() - 1 };
                bytes[places[at] + byte] = if byte == 1 { 3 } else { 9 };
                seal_checkpoint(bytes, HEAD_BLOCK..end);
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_packed_file_of_the_next_format_is_refused() {
    let files = named("stopped", "data/shard-00/pack-");
    let file = files.last().unwrap();
    refused("stopped", file, "format 2", |bytes| {
        next_number(bytes);
        seal(bytes, 48);
    })
    .await;
    refused("stopped", file, "format 2", |bytes| next_layout(bytes)).await;
}

/// What the refusals rest on: the fixtures hold each thing that has a number,
/// items in fragments, and every section.
#[test]
fn the_fixtures_hold_one_of_each() {
    let mut kinds = std::collections::BTreeSet::new();
    let mut fragments = std::collections::BTreeSet::new();
    for fixture in ["stopped", "killed", "latched"] {
        for (name, bytes) in Unpacked::new(fixture).files() {
            if name.contains("/ckpt-") && bytes[0] != 0 {
                kinds.extend(sections(&bytes).0.iter().map(|at| bytes[*at]));
            }
            if name.contains("/seg-") {
                // The first fragment of each batch.
                let first = batches(&bytes).into_iter().map(|at| bytes[at + 97] & 6);
                fragments.extend(first);
            }
        }
    }
    assert_eq!(kinds, (1..=7).collect());
    assert!(
        [0, 4, 6].iter().all(|part| fragments.contains(part)),
        "{fragments:?}"
    );
    for (fixture, file) in [
        ("stopped", "data/clean"),
        ("latched", "data/shard-01/latched"),
        ("stopped", "data/shard-00/pack-"),
        ("stopped", "data/shard-01/pack-"),
        ("killed", "run/tidegate-log-"),
    ] {
        assert!(!named(fixture, file).is_empty(), "{fixture} lacks {file}");
    }
}
