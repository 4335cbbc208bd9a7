//! `tidegate log` on directories that are in use or damaged.

mod common;

use std::{collections::BTreeMap, fs::OpenOptions, os::unix::fs::FileExt, path::Path};

use common::{run, tidegate, Server};
use serde_json::Value;

/// Of the test servers.
const SEGMENT_BYTES: u64 = 4 << 20;
/// Where the fields of a batch header start, its last byte behind them.
const HEADER_FIELDS: [u64; 15] = [0, 8, 10, 12, 16, 32, 40, 48, 56, 64, 72, 76, 80, 88, 95];
const HEADER_BYTES: u64 = 96;

/// Exit code, objects on standard output, standard error.
fn log(action: &str, data: &Path) -> (i32, Vec<Value>, String) {
    let words = ["log", action, data.to_str().unwrap(), "--json"];
    let output = run(tidegate(&words), b"");
    let objects = String::from_utf8(output.stdout).unwrap();
    (
        output.status.code().unwrap(),
        objects
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

fn number(object: &Value, field: &str) -> u64 {
    object[field].as_u64().unwrap()
}

#[test]
fn a_directory_in_use_is_shown_as_such_and_not_verified() {
    let mut server = Server::start(1);
    server.ok(&["queue", "declare", "q"]);
    let data = server.data();
    let id = std::fs::read_to_string(data.join("lock")).unwrap();
    let named = format!("process {}", id.trim());
    let (code, shown, said) = log("inspect", &data);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains(&named), "{said}");
    assert_eq!(shown.last().unwrap()["running"], true);
    let (code, shown, said) = log("verify", &data);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains(&named) && shown.is_empty(), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(server.terminate(), Some(0));
    for action in ["inspect", "verify"] {
        let (code, shown, said) = log(action, &data);
        assert_eq!((code, said.as_str()), (0, ""), "{action}");
        assert_eq!(shown.last().unwrap()["running"], false);
    }
}

/// One byte at a time, in every field of every batch's header, through its
/// body, and in its padding.
#[test]
fn no_changed_byte_below_the_end_of_a_stopped_log_goes_without_a_remark() {
    let mut server = Server::start(1);
    server.ok(&["queue", "declare", "q"]);
    let large = "x".repeat(10_000);
    for payload in ["small", &large, "small again"] {
        server.ok(&["publish", "q", payload]);
    }
    assert_eq!(server.terminate(), Some(0));
    let data = server.data();
    let (code, shown, _) = log("inspect", &data);
    assert_eq!(code, 0);
    let segments = data.join("shard-00");
    let mut checked = BTreeMap::new();
    for batch in shown.iter().filter(|object| object["kind"] == "batch") {
        let position = number(batch, "position");
        let (used, bytes) = (number(batch, "used_bytes"), number(batch, "bytes"));
        let name = format!("seg-{:020}", position / SEGMENT_BYTES);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(segments.join(name))
            .unwrap();
        let body = [HEADER_BYTES, (HEADER_BYTES + used) / 2, used - 1];
        let padding = [used, (used + bytes) / 2, bytes - 1];
        let inside = HEADER_FIELDS.iter().chain(&body);
        for at in inside.chain(&padding).filter(|at| **at < bytes) {
            let offset = position % SEGMENT_BYTES + at;
            let mut byte = [0];
            file.read_exact_at(&mut byte, offset).unwrap();
            file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
            let (code, found, said) = log("verify", &data);
            let what = format!("batch {batch}, byte {at}: {found:?} {said}");
            if *at < used {
                assert_eq!(code, 1, "{what}");
                let damaged = &found[0]["damaged"][0];
                let range = number(damaged, "from")..number(damaged, "to");
                assert!(range.contains(&(position + at)), "{what}");
                *checked.entry("inside").or_insert(0) += 1;
            } else {
                assert_eq!((code, number(&found[0], "odd_paddings")), (0, 1), "{what}");
                *checked.entry("padding").or_insert(0) += 1;
            }
            file.write_all_at(&byte, offset).unwrap();
        }
    }
    assert!(
        checked["inside"] > 60 && checked["padding"] > 6,
        "{checked:?}"
    );
    assert_eq!(log("verify", &data).0, 0, "everything is back as it was");
}

/// A byte flipped in a packed file costs one record: it is named offline and by
/// the server, its neighbours are delivered, and the server starts.
#[test]
fn f06_solo_a_damaged_packed_record_is_named_and_its_neighbours_are_served() {
    const RECORDS: usize = 1_500;
    let mut server = Server::start(1);
    server.ok(&["queue", "declare", "q"]);
    let lines: Vec<String> = (0..RECORDS)
        .map(|n| format!("{n:05}{}", "x".repeat(15_000)))
        .collect();
    server.ok_with(&["publish", "q"], &lines.join("\n"));
    let data = server.data();
    let pack = data.join("shard-00").join("pack-0000000001");
    common::await_that("a checkpoint that names packed records", || {
        packed_records(&data) > 100
    });
    assert_eq!(server.terminate(), Some(0));
    let (code, shown, said) = log("verify", &data);
    assert_eq!(code, 0, "{said}");
    let stored = number(&shown[0], "stored_records");
    assert!(stored >= number(&shown[0], "packed_records"));
    assert_eq!(number(&shown[0], "damaged_records"), 0);

    // In the third record of the file, behind its 4 KiB head.
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&pack)
        .unwrap();
    let offset = 4096 + 2 * 15_037 + 9_000;
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
    let (code, shown, _) = log("verify", &data);
    assert_eq!(code, 1);
    assert_eq!(number(&shown[0], "damaged_records"), 1);

    server.restart();
    let count = (RECORDS - 1).to_string();
    let got = server.ok(&["consume", "q", "--max", &count, "--wait", "30s"]);
    let mut left: Vec<&str> = lines.iter().map(String::as_str).collect();
    for line in got.lines() {
        left.retain(|expected| *expected != line);
    }
    assert_eq!(left, [lines[2].as_str()], "all but the damaged one");
    assert_eq!(server.terminate(), Some(0));
}

/// As the checkpoint in the directory of a running server names them.
fn packed_records(data: &Path) -> u64 {
    let (_, shown, _) = log("inspect", data);
    let log = shown.last().map(|log| log["packed_records"].as_u64());
    log.flatten().unwrap_or(0)
}
