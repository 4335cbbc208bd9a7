//! Files of a stopped server damaged, swapped or removed: a start refuses, and
//! changes nothing, where it could only lose; it serves the rest where it can.

mod common;

use std::{collections::BTreeMap, fs, os::unix::fs::FileExt, path::Path};

use common::{run, tidegate, Server};

/// Records published before the next look at what was packed: about a segment.
const SOME: usize = 200;

/// A stopped server's directory with several packed files, and what is in it.
fn packed() -> (Server, Vec<String>) {
    let mut server = Server::start(1);
    server.ok(&["queue", "declare", "q"]);
    let data = server.data();
    let shard = data.join("shard-00");
    let inspect = ["log", "inspect", data.to_str().unwrap()];
    let mut lines = Vec::new();
    common::await_that("two packed files and a checkpoint that names them", || {
        // The log grows, or there is nothing more to pack.
        let from = lines.len();
        let some = (from..from + SOME).map(|n| format!("{n:05}{}", "x".repeat(20_000)));
        lines.extend(some);
        server.ok_with(&["publish", "q"], &lines[from..].join("\n"));
        let said = String::from_utf8(run(tidegate(&inspect), b"").stdout).unwrap();
        let named = said.contains(" of them in packed files")
            && !said.contains(" 0 of them in packed files");
        named && packs(&shard).len() >= 2
    });
    assert_eq!(server.terminate(), Some(0));
    (server, lines)
}

/// Names in the shard's directory that begin so, in order.
fn names(shard: &Path, prefix: &str) -> Vec<String> {
    let names = fs::read_dir(shard).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(prefix)).collect();
    names.sort();
    names
}

fn packs(shard: &Path) -> Vec<String> {
    names(shard, "pack-")
}

/// Names and contents of a shard's checkpoints and packed files.
fn stored(shard: &Path) -> BTreeMap<String, Vec<u8>> {
    let names = packs(shard).into_iter().chain(names(shard, "ckpt-"));
    names
        .map(|name| (name.clone(), fs::read(shard.join(&name)).unwrap()))
        .collect()
}

/// What a server says that does not start from the directory.
fn refusal(data: &Path) -> String {
    let words = ["serve", "--listen", "127.0.0.1:0", "--data"];
    let mut command = tidegate(&words);
    command.arg(data);
    let output = run(command, b"");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let verified = run(tidegate(&["log", "verify", data.to_str().unwrap()]), b"");
    assert_eq!(verified.status.code(), Some(1), "log verify");
    said
}

fn flip(file: &Path, offset: u64) {
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(file)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
}

fn consume(server: &Server, count: usize) -> Vec<String> {
    let max = count.to_string();
    let got = server.ok(&["consume", "q", "--max", &max, "--wait", "30s"]);
    let mut got: Vec<String> = got.lines().map(str::to_owned).collect();
    got.sort();
    got
}

#[test]
fn a_start_without_a_whole_checkpoint_refuses_and_changes_nothing() {
    let (mut server, lines) = packed();
    let data = server.data();
    let shard = data.join("shard-00");
    let in_force = ["ckpt-a", "ckpt-b"]
        .map(|name| shard.join(name))
        .into_iter()
        .find(|file| fs::read(file).unwrap().starts_with(b"TIDE"))
        .unwrap();
    for at in [50, 5_000] {
        flip(&in_force, at);
        let before = stored(&shard);
        let said = refusal(&data);
        assert!(said.contains("neither ckpt-a nor ckpt-b"), "{said}");
        assert!(stored(&shard) == before, "something changed: {said}");
        flip(&in_force, at);
    }
    let whole = fs::read(&in_force).unwrap();
    fs::write(&in_force, b"").unwrap();
    assert!(refusal(&data).contains("neither ckpt-a nor ckpt-b"));
    fs::remove_file(&in_force).unwrap();
    assert!(refusal(&data).contains("neither ckpt-a nor ckpt-b"));
    fs::write(&in_force, whole).unwrap();
    server.restart();
    assert!(
        consume(&server, lines.len()) == lines,
        "all of them, and as they were"
    );
}

#[test]
fn a_packed_file_under_another_ones_name_is_refused() {
    let (server, _) = packed();
    let data = server.data();
    let shard = data.join("shard-00");
    let names = packs(&shard);
    let [one, other] = [&names[0], &names[1]].map(|name| shard.join(name));
    let aside = shard.join("aside");
    for (from, to) in [(&one, &aside), (&other, &one), (&aside, &other)] {
        fs::rename(from, to).unwrap();
    }
    let before = stored(&shard);
    let said = refusal(&data);
    assert!(said.contains("another packed file"), "{said}");
    assert!(stored(&shard) == before);
}

#[test]
fn a_missing_packed_file_costs_its_own_records_only() {
    let (mut server, lines) = packed();
    let shard = server.data().join("shard-00");
    let names = packs(&shard);
    fs::remove_file(shard.join(&names[0])).unwrap();
    server.restart();
    let info = server.ok(&["queue", "info", "q", "--json"]);
    assert!(
        info.contains(&format!("\"ready\":{}", lines.len())),
        "{info}"
    );
    // The newest stand in the log, those before in the other packed files.
    let got = consume(&server, SOME);
    assert_eq!(got.len(), SOME);
    assert!(got.iter().all(|line| lines.contains(line)));
}

#[test]
fn a_missing_shard_is_refused_before_anything_is_opened() {
    let mut server = Server::start(2);
    server.ok(&["queue", "declare", "q"]);
    assert_eq!(server.terminate(), Some(0));
    let data = server.data();
    fs::remove_dir_all(data.join("shard-01")).unwrap();
    let said = refusal(&data);
    assert!(said.contains("shard-01 is missing"), "{said}");
    assert!(!data.join("shard-01").exists() && data.join("clean").exists());
}
