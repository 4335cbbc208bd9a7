//! Configuration files and command lines that are wrong, and exit codes.

use std::{
    fs,
    io::Read,
    path::Path,
    process::{Child, Command, Stdio},
    time::Instant,
};

use tempfile::TempDir;

use crate::rawwire::{Server, PATIENCE};

/// How a process ended, which it did by itself.
pub struct End {
    pub code: Option<i32>,
    pub output: String,
    pub errors: String,
}

/// Runs to the end with nothing on standard input.
pub fn end_of(mut command: Command) -> End {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let start = Instant::now();
    while child.try_wait().expect("waited").is_none() {
        if start.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("{command:?} did not end: {}", rest(&mut child).errors);
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    rest(&mut child)
}

fn rest(child: &mut Child) -> End {
    let (mut output, mut errors) = (String::new(), String::new());
    let stdout = child.stdout.as_mut().expect("piped");
    stdout.read_to_string(&mut output).expect("text");
    let stderr = child.stderr.as_mut().expect("piped");
    stderr.read_to_string(&mut errors).expect("text");
    let code = child.wait().expect("waited").code();
    End {
        code,
        output,
        errors,
    }
}

fn tidegate(words: &[&str]) -> End {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(words);
    end_of(command)
}

#[test]
fn a_wrong_configuration_file_is_one_sentence_and_exit_code_1() {
    let dir = TempDir::new().expect("a directory");
    let file = dir.path().join("tidegate.toml");
    let cases: [(&str, &[&str]); 10] = [
        (
            "segmentsize = \"1MiB\"",
            &["line 1", "segmentsize", "segment_size"],
        ),
        ("shards = 1\n[http]\nport = 1", &["line 2", "http"]),
        ("segment_size = \"64MB\"", &["line 1", "64MiB"]),
        ("segment_size = 64", &["64MiB"]),
        ("background_sync_interval = 100", &["100ms"]),
        ("background_sync_interval = \"-1s\"", &["100ms"]),
        ("shards = 65", &["shards", "1 to 64"]),
        ("listen = \"nowhere\"", &["nowhere", "127.0.0.1:7420"]),
        ("shards = 18446744073709551616", &["line 1"]),
        ("shards = \u{0}", &["line 1"]),
    ];
    for (text, words) in cases {
        fs::write(&file, text).expect("written");
        refused(&file, words);
    }
    fs::write(&file, [b'#', 0xff, 0xfe]).expect("written");
    refused(&file, &["tidegate.toml"]);
    refused(
        &dir.path().join("missing.toml"),
        &["missing.toml", "--config"],
    );
    refused(dir.path(), &["--config"]);
    let left = fs::read_dir(dir.path()).expect("readable").count();
    assert_eq!(left, 1, "nothing was made");
}

fn refused(file: &Path, words: &[&str]) {
    let data = file.with_file_name("data").display().to_string();
    let file = file.display().to_string();
    let end = tidegate(&["serve", "--data", &data, "--config", &file]);
    assert_eq!(end.code, Some(1), "{}", end.errors);
    assert_eq!(end.errors.lines().count(), 1, "{}", end.errors);
    assert_eq!(end.output, "");
    for word in words {
        assert!(end.errors.contains(word), "{word:?}: {}", end.errors);
    }
}

#[test]
fn wrong_usage_is_exit_code_2() {
    let long = "n".repeat(256);
    let wrong: [&[&str]; 14] = [
        &[],
        &["server"],
        &["serve", "--port", "1"],
        &["serve", "--shards", "two"],
        &["serve", "--shards", "-1"],
        &["serve", "--segment-size", "64MB"],
        &["serve", "--segment-size", ""],
        &["queue"],
        &["queue", "declare"],
        &["queue", "declare", "x", "--mode", "fast"],
        &["queue", "declare", "x", "--lease", "30"],
        &["queue", "info", ""],
        &["publish", "a\nb", "x"],
        &["consume", &long],
    ];
    for words in wrong {
        let end = tidegate(words);
        assert_eq!(end.code, Some(2), "{words:?}: {}", end.errors);
        assert!(end.errors.starts_with("tidegate: "), "{}", end.errors);
        assert_eq!(end.output, "");
    }
}

#[test]
fn refused_is_exit_code_1_and_done_is_0() {
    let mut server = Server::start();
    let address = server.address.to_string();
    let with = |words: &[&str]| tidegate(&[words, &["--server", &address]].concat());
    for name in [
        "a/b",
        "%2F",
        "..",
        "--",
        "\u{e9}",
        "e\u{301}",
        &"n".repeat(255),
    ] {
        let words = ["queue", "declare", "--server", &address, "--", name];
        assert_eq!(tidegate(&words).code, Some(0), "{name:?}");
        let words = ["publish", "--server", &address, "--", name, ""];
        let end = tidegate(&words);
        assert_eq!(end.code, Some(0), "{name:?}: {}", end.errors);
        let words = ["consume", "--max", "1", "--server", &address, "--", name];
        let end = tidegate(&words);
        assert_eq!((end.code, end.output.as_str()), (Some(0), "\n"), "{name:?}");
        let words = ["queue", "delete", "--server", &address, "--", name];
        assert_eq!(tidegate(&words).code, Some(0), "{name:?}");
    }
    for words in [
        &["queue", "info", "missing"][..],
        &["queue", "peek", "missing"],
        &["queue", "purge", "missing"],
        &["queue", "delete", "missing"],
        &["publish", "missing", "x"],
        &["consume", "missing", "--max", "1", "--wait", "1s"],
        &["barrier", "missing"],
    ] {
        let end = with(words);
        assert_eq!(end.code, Some(1), "{words:?}");
        assert_eq!(end.errors.lines().count(), 1, "{}", end.errors);
        assert!(end.errors.contains("missing"), "{}", end.errors);
    }
    assert_eq!(with(&["queue", "list"]).code, Some(0));
    server.assert_well();
    drop(server);
    let end = with(&["queue", "list"]);
    assert_eq!(end.code, Some(1));
    assert!(end.errors.contains("tidegate serve"), "{}", end.errors);
}
