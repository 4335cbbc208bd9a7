//! The command line against a real server.

mod common;

use std::{
    fs::File,
    io::Write,
    process::{Command, Stdio},
};

use common::{await_exit, await_that, run, signal, tidegate, Lines, Server};

#[test]
fn the_tour_says_what_the_readme_says() {
    let server = Server::start(1);
    assert_eq!(
        server.ok(&["queue", "declare", "orders"]),
        "queue orders: mode durable, 1 partition, lease 30s, created\n"
    );
    assert_eq!(
        server.ok(&["queue", "declare", "orders"]),
        "queue orders: mode durable, 1 partition, lease 30s, exists\n"
    );
    assert_eq!(
        server.ok(&["publish", "orders", "one cappuccino"]),
        "offset=0 generation=1 partition=0 boundary=durable copies=1\n"
    );
    assert_eq!(
        server.ok_with(&["publish", "orders"], "1\n2\n3"),
        "offset=1 generation=1 partition=0 boundary=durable copies=1\n\
         offset=2 generation=1 partition=0 boundary=durable copies=1\n\
         offset=3 generation=1 partition=0 boundary=durable copies=1\n"
    );
    assert_eq!(
        server.ok(&["queue", "peek", "orders", "--max", "1"]),
        "offset=0 partition=0 state=ready attempts=0 one cappuccino\n"
    );
    assert_eq!(
        server.ok(&["consume", "orders", "--max", "2"]),
        "one cappuccino\n1\n"
    );
    server.ok(&["queue", "declare", "clicks", "--mode", "buffered"]);
    assert_eq!(
        server.ok(&["publish", "clicks", "a click"]),
        "offset=0 generation=1 partition=0 boundary=written copies=1\n"
    );
    assert_eq!(
        server.ok(&["publish", "clicks", "--durable", "the click that mattered"]),
        "offset=1 generation=1 partition=0 boundary=durable copies=1\n"
    );
    assert_eq!(
        server.ok(&["barrier", "clicks"]),
        "partition=0 generation=1 durable_next=2 copies=1\n"
    );
    let list = server.ok(&["queue", "list"]);
    assert_eq!(
        list.lines().collect::<Vec<_>>(),
        [
            "queue clicks: mode buffered, 1 partition, lease 30s",
            "queue orders: mode durable, 1 partition, lease 30s"
        ]
    );
}

#[test]
fn what_was_consumed_stays_gone_over_a_kill_and_the_rest_stays() {
    let mut server = Server::start(1);
    server.ok(&["queue", "declare", "orders"]);
    server.ok_with(&["publish", "orders"], "a\nb\nc\nd\n");
    assert_eq!(server.ok(&["consume", "orders", "--max", "2"]), "a\nb\n");
    server.kill();
    server.restart();
    assert_eq!(server.ok(&["consume", "orders", "--max", "2"]), "c\nd\n");
    assert_eq!(server.terminate(), Some(0));
    server.restart();
    assert_eq!(server.ok(&["consume", "orders", "--wait", "0"]), "");
}

#[test]
fn refusals_end_with_1_and_wrong_usage_with_2() {
    let server = Server::start(1);
    server.ok(&["queue", "declare", "q", "--partitions", "2"]);
    for words in [
        &["publish", "nope", "x"][..],
        &["publish", "nope"],
        &["consume", "nope"],
        &["barrier", "nope"],
        &["queue", "info", "nope"],
        &["queue", "peek", "nope"],
        &["queue", "purge", "nope"],
        &["queue", "delete", "nope"],
    ] {
        let error = server.fails(words, 1);
        assert!(error.contains("no queue is called \"nope\""), "{error}");
        assert_eq!(error.lines().count(), 1, "one sentence: {error}");
    }
    let error = server.fails(&["queue", "declare", "q", "--mode", "buffered"], 1);
    assert!(error.contains("durable") && error.contains("buffered"));
    let error = server.fails(&["queue", "declare", "q", "--partitions", "3"], 1);
    assert!(error.contains("partitions"), "{error}");
    server.fails(&["queue", "peek", "q", "--partition", "9"], 1);
    server.fails(&["publish", "q", "--file", "/no/such/file"], 1);
    let error = server.fails(&["queue", "declare", "q", "--lease", "soon"], 2);
    assert!(error.contains("like 100ms or 30s"), "{error}");
    server.fails(&["queue", "frobnicate", "q"], 2);
    server.fails(&["publish", "a\nb", "x"], 2);
}

#[test]
fn without_a_server_the_error_says_what_to_do() {
    let mut server = Server::start(1);
    server.kill();
    let error = server.fails(&["queue", "list"], 1);
    assert!(error.contains("cannot connect to"), "{error}");
    assert!(error.contains("tidegate serve"), "{error}");
    assert_eq!(error.lines().count(), 1);
}

#[test]
fn json_is_one_object_per_line() {
    let server = Server::start(1);
    let object = |line: &str| -> serde_json::Value {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(value.is_object(), "{line}");
        value
    };
    let declared = object(&server.ok(&["queue", "declare", "q", "--json"]));
    assert_eq!(declared["created"], true);
    assert_eq!(declared["mode"], "durable");
    let confirms = server.ok_with(&["publish", "q", "--json", "--key", "k"], "eins\n\nzwei\n");
    let confirms: Vec<_> = confirms.lines().map(object).collect();
    assert_eq!(confirms.len(), 3);
    assert_eq!(confirms[2]["offset"], 2);
    assert_eq!(confirms[2]["record"], 3);
    assert_eq!(confirms[2]["boundary"], "durable");
    let peeked = server.ok(&["queue", "peek", "q", "--json"]);
    let peeked: Vec<_> = peeked.lines().map(object).collect();
    assert_eq!(peeked[1]["payload"], "");
    assert_eq!(
        (&peeked[2]["key"], &peeked[2]["state"]),
        (&"k".into(), &"ready".into())
    );
    let info = object(&server.ok(&["queue", "info", "q", "--json"]));
    assert_eq!((&info["ready"], &info["published"]), (&3.into(), &3.into()));
    assert_eq!(info["each"][0]["durable_next"], 3);
    assert_eq!(info["each"][0]["losses"], serde_json::json!([]));
    let barrier = object(&server.ok(&["barrier", "q", "--json"]));
    assert_eq!(barrier["durable_next"], 3);
    let consumed = server.ok(&["consume", "q", "--json", "--max", "1"]);
    let consumed = object(&consumed);
    assert_eq!(
        (&consumed["payload"], &consumed["attempt"]),
        (&"eins".into(), &1.into())
    );
    let purged = object(&server.ok(&["queue", "purge", "q", "--json"]));
    assert_eq!(purged["purged"], 2);
    let list = server.ok(&["queue", "list", "--json"]);
    assert_eq!(object(&list)["name"], "q");
    let deleted = object(&server.ok(&["queue", "delete", "q", "--json"]));
    assert_eq!(deleted["deleted"], true);
    assert_eq!(server.ok(&["queue", "list", "--json"]), "");
}

#[test]
fn without_acknowledging_the_records_go_back_when_the_command_ends() {
    let server = Server::start(1);
    server.ok(&["queue", "declare", "q"]);
    server.ok_with(&["publish", "q"], "a\nb\n");
    let seen = server.ok(&["consume", "q", "--no-ack", "--wait", "300ms"]);
    assert_eq!(seen, "a\nb\n");
    let again = server.ok(&["consume", "q", "--max", "2", "--json"]);
    let again: Vec<serde_json::Value> = again
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(again.len(), 2);
    assert!(again
        .iter()
        .all(|d| d["redelivered"] == true && d["attempt"] == 2));
}

#[test]
fn f72_f74_empty_and_largest_payloads_pass_and_larger_ones_are_refused() {
    let server = Server::start(1);
    server.ok(&["queue", "declare", "q"]);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("payload");
    let file = path.to_str().unwrap();
    for (len, code) in [(0, 0), (8 << 20, 0), ((8 << 20) + 1, 1)] {
        File::create(&path)
            .unwrap()
            .write_all(&vec![b'x'; len])
            .unwrap();
        let output = run(server.command(&["publish", "q", "--file", file]), b"");
        assert_eq!(output.status.code(), Some(code), "{len} bytes");
    }
    server.ok(&["publish", "q", ""]);
    let consumed = server.ok(&["consume", "q", "--max", "3"]);
    let lengths: Vec<_> = consumed.lines().map(str::len).collect();
    assert_eq!(lengths, [0, 8 << 20, 0]);
    let long = vec![b'x'; (8 << 20) + 1];
    let output = run(server.command(&["publish", "q"]), &long);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("line 1"));
}

#[test]
fn f73_odd_names_work_through_every_command() {
    let server = Server::start(1);
    let longest = "n".repeat(255);
    for name in ["a/b", "..", "%2F", "é", "e\u{301}", " ", "help", &longest] {
        server.ok(&["queue", "declare", name]);
        server.ok(&["publish", name, name]);
        assert!(server.ok(&["queue", "info", name]).contains("ready=1"));
        let consumed = server.ok(&["consume", "--max", "1", name]);
        assert_eq!(consumed, format!("{name}\n"));
    }
    assert_eq!(server.ok(&["queue", "list"]).lines().count(), 8);
    for name in ["", "\n", "a\u{1}", &"n".repeat(256)] {
        server.fails(&["queue", "declare", name], 2);
    }
}

#[test]
fn a_closed_standard_output_ends_a_command_without_a_panic() {
    let server = Server::start(1);
    server.ok(&["queue", "declare", "q"]);
    let lines: String = (0..5000).map(|n| format!("{n}\n")).collect();
    server.ok_with(&["publish", "q"], &lines);
    for words in [
        &["consume", "q"][..],
        &["queue", "peek", "q", "--max", "5000"],
        &["queue", "list"],
        &["queue", "info", "q"],
        &["--help"],
    ] {
        let command = if words[0] == "--help" {
            tidegate(words)
        } else {
            server.command(words)
        };
        let output = closed_output(command);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!error.contains("panicked"), "{words:?}: {error}");
        assert!(output.status.code().is_some(), "{words:?}: {output:?}");
    }
    // What could not be printed was not acknowledged.
    await_that("the records to be back", || {
        server.ok(&["queue", "info", "q"]).contains("ready=5000 ")
    });
}

/// Runs a command whose standard output nobody reads.
fn closed_output(mut command: Command) -> std::process::Output {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    child.wait_with_output().unwrap()
}

#[test]
fn a_signal_ends_consuming_with_every_acknowledgement_confirmed() {
    let server = Server::start(1);
    server.ok(&["queue", "declare", "q"]);
    server.ok_with(&["publish", "q"], "a\nb\n");
    for name in ["TERM", "INT"] {
        let mut child = server
            .command(&["consume", "q"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = Lines::of(child.stdout.take().unwrap());
        if name == "TERM" {
            assert_eq!(lines.next().as_deref(), Some("a"));
            assert_eq!(lines.next().as_deref(), Some("b"));
        } else {
            server.ok(&["publish", "q", "c"]);
            assert_eq!(lines.next().as_deref(), Some("c"));
        }
        signal(child.id(), name);
        assert_eq!(await_exit(&mut child), Some(0), "SIG{name}");
    }
    let info = server.ok(&["queue", "info", "q"]);
    assert!(info.contains("acknowledged=3"), "{info}");
    assert!(info.contains("leased=0"), "{info}");
}

#[test]
fn consuming_goes_on_over_a_kill_of_the_server() {
    let mut server = Server::start(1);
    server.ok(&["queue", "declare", "q"]);
    let mut child = server
        .command(&["consume", "q", "--max", "2"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = Lines::of(child.stdout.take().unwrap());
    server.ok(&["publish", "q", "before"]);
    assert_eq!(lines.next().as_deref(), Some("before"));
    // Settled for good, so that it does not come again.
    await_that("the acknowledgement", || {
        server
            .ok(&["queue", "info", "q"])
            .contains("acknowledged=1")
    });
    server.kill();
    server.restart();
    server.ok(&["publish", "q", "after"]);
    assert_eq!(lines.next().as_deref(), Some("after"));
    assert_eq!(await_exit(&mut child), Some(0));
}

#[test]
fn f13_a_kill_while_publishing_leaves_confirms_that_hold_and_says_unknown_for_the_rest() {
    let mut server = Server::start(1);
    server.ok(&["queue", "declare", "q"]);
    let mut child = server
        .command(&["publish", "q"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let confirms = Lines::of(child.stdout.take().unwrap());
    let errors = Lines::of(child.stderr.take().unwrap());
    let mut stdin = child.stdin.take().unwrap();
    let feeder = std::thread::spawn(move || {
        // Until the command stops reading.
        for number in 0_u64.. {
            if writeln!(stdin, "{number}").is_err() {
                return;
            }
        }
    });
    for _ in 0..2000 {
        confirms.next().expect("a confirm");
    }
    server.kill();
    let mut confirmed = 2000;
    while confirms.next().is_some() {
        confirmed += 1;
    }
    assert_eq!(await_exit(&mut child), Some(1));
    feeder.join().unwrap();
    let error = errors.next().unwrap();
    assert!(error.contains("unknown"), "{error}");
    assert!(
        error.contains(&format!("{confirmed} were confirmed")),
        "{error}"
    );
    server.restart();
    let stored = server.ok(&["consume", "q", "--wait", "500ms"]);
    let stored: Vec<u64> = stored.lines().map(|line| line.parse().unwrap()).collect();
    assert!(
        stored.len() as u64 >= confirmed,
        "{} of {confirmed}",
        stored.len()
    );
    assert!(
        stored.iter().copied().eq(0..stored.len() as u64),
        "in order"
    );
}

#[test]
fn a_server_that_cannot_start_says_why_in_one_sentence() {
    let server = Server::start(1);
    let data = server.data();
    let data = data.to_str().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("c.toml");
    std::fs::write(&config, "cache_size = \"64MB\"\n").unwrap();
    let config = config.to_str().unwrap();
    let occupied = server.address.to_string();
    let free = directory.path().join("d");
    let free = free.to_str().unwrap();
    let file = directory.path().join("file");
    File::create(&file).unwrap();
    let file = file.to_str().unwrap();
    for (words, what) in [
        (
            &["serve", "--data", data, "--listen", "127.0.0.1:0"][..],
            "data",
        ),
        (&["serve", "--data", free, "--listen", &occupied], "listen"),
        (
            &["serve", "--data", file, "--listen", "127.0.0.1:0"],
            "file",
        ),
        (&["serve", "--config", config], "like 64MiB"),
        (&["serve", "--config", "/no/such.toml"], "/no/such.toml"),
        (&["serve", "--listen", "nowhere"], "nowhere"),
        (&["serve", "--data", free, "--shards", "0"], "shards"),
    ] {
        let output = run(tidegate(words), b"");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {error}");
        assert!(error.contains(what), "{words:?}: {error}");
        assert_eq!(error.lines().count(), 1, "one sentence: {error}");
    }
}

#[test]
fn the_logs_of_a_directory_are_shown_and_verified_offline() {
    let mut server = Server::start(2);
    let data = server.data();
    let data = data.to_str().unwrap();
    server.ok(&["queue", "declare", "q", "--partitions", "2"]);
    server.ok_with(&["publish", "q"], "a\nb\nc\nd\n");
    assert_eq!(server.terminate(), Some(0));
    let ok = |words: &[&str]| {
        let output = run(tidegate(words), b"");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{words:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    };
    let verified = ok(&["log", "verify", data]);
    assert_eq!(verified.lines().count(), 2, "{verified}");
    assert!(verified.contains("stopped cleanly"), "{verified}");
    let shown = ok(&["log", "inspect", data]);
    assert!(shown.lines().count() > 2, "{shown}");
    let mut items = 0;
    for line in ok(&["log", "inspect", data, "--json"]).lines() {
        let object: serde_json::Value = serde_json::from_str(line).unwrap();
        if object["kind"] == "log" {
            assert_eq!(object["stopped_cleanly"], true);
            assert_eq!(object["sound"], true);
            items += object["items"].as_u64().unwrap();
        }
    }
    assert!(items >= 4, "{items}");
    // Looking changed nothing: the stop still counts as clean.
    assert!(ok(&["log", "verify", data]).contains("stopped cleanly"));
    server.restart();
    assert_eq!(
        server.ok(&["consume", "q", "--max", "4"]).lines().count(),
        4
    );
}

#[test]
fn a_flipped_bit_below_the_durable_frontier_is_found_by_verify() {
    let mut server = Server::start(1);
    server.ok(&["queue", "declare", "q"]);
    for payload in ["first", "second", "third"] {
        server.ok(&["publish", "q", payload]);
    }
    assert_eq!(server.terminate(), Some(0));
    let shard = server.data().join("shard-00");
    let mut flipped = false;
    for entry in std::fs::read_dir(shard).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        let found = bytes.windows(6).position(|window| window == b"second");
        if let Some(at) = found {
            bytes[at] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            flipped = true;
        }
    }
    assert!(flipped, "the record is in a segment");
    let data = server.data();
    let output = run(tidegate(&["log", "verify", data.to_str().unwrap()]), b"");
    assert_eq!(output.status.code(), Some(1));
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains("damaged from"), "{shown}");
}

#[test]
fn what_is_no_data_directory_is_refused_by_log() {
    let directory = tempfile::tempdir().unwrap();
    for path in [directory.path().to_str().unwrap(), "/no/such/directory"] {
        for action in ["inspect", "verify"] {
            let output = run(tidegate(&["log", action, path]), b"");
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{error}");
            assert!(error.contains("not a Tidegate data directory"), "{error}");
        }
    }
}

#[test]
fn a_client_written_from_the_protocol_page_alone_is_served() {
    let server = Server::start(2);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python_client.py");
    let output = std::process::Command::new("python3")
        .args([script, &server.address.to_string()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(said.contains(" passed, 0 failed"), "{said}");
}
