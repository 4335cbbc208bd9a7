//! Starts that cannot work: one clear sentence on standard error, exit code 1,
//! no panic.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::TcpStream,
    path::Path,
    process::{Command, Stdio},
};

use tempfile::TempDir;

use wire::{frame::Kind, message::ANY_SHARD};

use crate::{
    configuration::end_of,
    rawwire::{await_that, hello, Peer, Server},
};

/// A start that must fail; gives its one sentence.
fn refused(before: &str, data: &Path, more: &[&str]) -> String {
    let listen = match more.contains(&"--listen") {
        true => "",
        false => "--listen 127.0.0.1:0",
    };
    let script = format!(
        "{before} exec \"$@\" serve {listen} --data '{}' {}",
        data.display(),
        more.join(" ")
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_tidegate")]);
    let end = end_of(command);
    assert_eq!(end.code, Some(1), "{}", end.errors);
    one_sentence(&end.errors)
}

fn one_sentence(errors: &str) -> String {
    // Another shard may have opened its log by then, and said so.
    let opened = |line: &&str| line.contains(": Log ") && line.contains(" opened (open ");
    let lines: Vec<&str> = errors.lines().filter(|line| !opened(line)).collect();
    assert_eq!(lines.len(), 1, "one sentence: {errors}");
    assert!(lines[0].starts_with("tidegate: "), "{errors}");
    assert!(!errors.contains("panicked"), "{errors}");
    lines[0].to_owned()
}

fn says(sentence: &str, words: &[&str]) {
    for word in words {
        assert!(sentence.contains(word), "{word:?} is not in: {sentence}");
    }
}

/// True when mounts of our own can be made.
fn may_mount() -> bool {
    let probe = Command::new("unshare")
        .args(["-m", "true"])
        .stderr(Stdio::null())
        .status();
    probe.is_ok_and(|status| status.success())
}

#[test]
fn a_directory_that_cannot_be_made_or_written_is_named() {
    let dir = TempDir::new().expect("a directory");
    let file = dir.path().join("file");
    fs::write(&file, "").expect("written");
    for path in [file.join("data"), file.clone()] {
        let path_text = path.display().to_string();
        says(
            &refused("", &path, &[]),
            &["cannot create", &path_text, "--data"],
        );
    }
    if !may_mount() {
        eprintln!("no mounts here: the read-only file system was not tried");
        return;
    }
    let data = dir.path().join("data");
    fs::create_dir(&data).expect("made");
    let shown = data.display();
    let before =
        format!("mount --bind '{shown}' '{shown}' && mount -o remount,ro,bind '{shown}' &&");
    let sentence = refused_in_mounts(&before, &data, &[]);
    says(
        &sentence,
        &[
            "cannot write",
            &shown.to_string(),
            "Read-only",
            "permissions",
        ],
    );
    assert_eq!(fs::read_dir(&data).expect("readable").count(), 0);
}

/// A start behind mounts that only it sees.
fn refused_in_mounts(before: &str, data: &Path, more: &[&str]) -> String {
    let script = format!(
        "{before} exec '{}' serve --listen 127.0.0.1:0 --data '{}' {}",
        env!("CARGO_BIN_EXE_tidegate"),
        data.display(),
        more.join(" ")
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &script]);
    let end = end_of(command);
    assert_eq!(end.code, Some(1), "{}", end.errors);
    one_sentence(&end.errors)
}

/// With another `/proc/meminfo` in place of the machine's.
#[test]
fn more_registered_memory_than_there_is_is_refused_before_a_directory_is_made() {
    if !may_mount() {
        eprintln!("no mounts here: little memory was not tried");
        return;
    }
    let dir = TempDir::new().expect("a directory");
    let meminfo = dir.path().join("meminfo");
    fs::write(&meminfo, "MemTotal:          10240 kB\n").expect("written");
    let before = format!("mount --bind '{}' /proc/meminfo &&", meminfo.display());
    let data = dir.path().join("data");
    let sentence = refused_in_mounts(&before, &data, &["--shards", "3"]);
    says(
        &sentence,
        &[
            "4 MiB for each of 3 shards is 12 MiB",
            "10 MiB",
            "lower io_memory",
        ],
    );
    assert!(!data.exists());
}

#[test]
fn file_systems_that_do_not_write_in_place_or_directly_are_refused() {
    if Path::new("/dev/shm").exists() {
        let memory = TempDir::new_in("/dev/shm").expect("a directory");
        let sentence = refused("", &memory.path().join("data"), &[]);
        says(
            &sentence,
            &["neither ext4 nor XFS", "allow_any_file_system"],
        );
    }
    if !may_mount() {
        eprintln!("no mounts here: a file system without O_DIRECT was not tried");
        return;
    }
    let dir = TempDir::new().expect("a directory");
    let data = dir.path().join("data");
    fs::create_dir(&data).expect("made");
    let config = dir.path().join("any.toml");
    fs::write(
        &config,
        "allow_any_file_system = true\nsegment_size = \"1MiB\"",
    )
    .expect("written");
    let before = format!("mount -t ramfs none '{}' &&", data.display());
    let config = config.display().to_string();
    let sentence = refused_in_mounts(&before, &data, &["--shards", "1", "--config", &config]);
    says(&sentence, &["O_DIRECT"]);
}

#[test]
fn too_little_locked_memory_is_said_with_the_remedy() {
    let dir = TempDir::new().expect("a directory");
    let sentence = refused("ulimit -l 64;", &dir.path().join("data"), &[]);
    says(&sentence, &["65536", "ulimit -l 512", "LimitMEMLOCK"]);
}

#[test]
fn too_few_descriptors_are_said_with_the_remedy() {
    let dir = TempDir::new().expect("a directory");
    let sentence = refused("ulimit -n 64;", &dir.path().join("data"), &[]);
    says(
        &sentence,
        &["only 64 files", "ulimit -n 1024", "LimitNOFILE"],
    );
}

/// `io_uring_setup` made to fail by a filter, as containers do.
const WITHOUT_IO_URING: &str = "
import ctypes, os, struct, sys
code = [(0x20, 0, 0, 0), (0x15, 0, 1, 425), (6, 0, 0, 0x00050001), (6, 0, 0, 0x7fff0000)]
filter = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *one) for one in code))
program = struct.pack('HxxxxxxQ', len(code), ctypes.addressof(filter))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
";

#[test]
fn a_kernel_without_io_uring_is_said() {
    let dir = TempDir::new().expect("a directory");
    let mut command = Command::new("python3");
    command.args([
        "-c",
        WITHOUT_IO_URING,
        env!("CARGO_BIN_EXE_tidegate"),
        "serve",
        "--data",
    ]);
    command.arg(dir.path().join("data"));
    let end = end_of(command);
    assert_eq!(end.code, Some(1), "{}", end.errors);
    let sentence = one_sentence(&end.errors);
    says(
        &sentence,
        &["io_uring", "5.8", "seccomp", "io_uring_disabled"],
    );
    assert!(!dir.path().join("data").exists(), "nothing was touched");
}

#[test]
fn foreign_directories_second_servers_and_taken_ports_are_refused() {
    let dir = TempDir::new().expect("a directory");
    fs::write(dir.path().join("thesis.txt"), "years of work").expect("written");
    says(
        &refused("", dir.path(), &[]),
        &["no Tidegate identity", "empty directory"],
    );
    assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 1);

    let mut server = Server::start();
    says(
        &refused("", &server.data(), &[]),
        &["another server", "--data"],
    );
    let address = server.address.to_string();
    let other = dir.path().join("other");
    let sentence = refused("", &other, &["--listen", &address]);
    says(&sentence, &[&address, "another program", "--listen"]);
    let sentence = refused("", &other, &["--listen", "192.0.2.1:7420"]);
    says(&sentence, &["192.0.2.1:7420", "cannot listen"]);
    let shards = refused("", &server.data(), &["--shards", "1"]);
    says(&shards, &["another server"]);
    server.assert_well();
}

/// `tidegate serve | head -1` and the like.
#[test]
fn a_server_whose_outputs_nobody_reads_serves_on() {
    let dir = TempDir::new().expect("a directory");
    let data = dir.path().join("data");
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["serve", "--listen", "127.0.0.1:0", "--shards", "1"])
        .args(["--segment-size", "1MiB", "--data"])
        .arg(&data)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    drop(child.stderr.take());
    let mut line = String::new();
    let mut output = BufReader::with_capacity(1, child.stdout.take().expect("piped"));
    output.read_line(&mut line).expect("a line");
    drop(output);
    let address = line.trim().rsplit(' ').next().expect("an address");
    let mut peer = Peer::new(TcpStream::connect(address).expect("it serves"));
    peer.send(1, &hello(ANY_SHARD));
    peer.expect(Kind::HelloReply);
    let told = Command::new("kill").arg(child.id().to_string()).status();
    assert!(told.expect("kill").success());
    await_that("its end", || child.try_wait().expect("waited").is_some());
    assert!(child.wait().expect("waited").success());
    assert!(data.join("clean").exists());
}

/// A directory that a server used and left cleanly.
fn used(shards: u16) -> TempDir {
    let server = Server::start_with(shards, "", &[]);
    let mut peer = server.hello();
    let queue = peer.declare("used");
    peer.publish(queue, &[b"kept"]);
    server.stop()
}

#[test]
fn a_directory_of_other_shards_or_another_node_is_refused() {
    let dir = used(2);
    let data = dir.path().join("data");
    says(
        &refused("", &data, &["--shards", "3"]),
        &["created with 2 shards", "asks for 3"],
    );
    let config = dir.path().join("node.toml");
    fs::write(&config, "node_id = 7").expect("written");
    let config = config.display().to_string();
    says(
        &refused("", &data, &["--config", &config]),
        &["node 1", "node 7"],
    );
}

#[test]
fn a_damaged_identity_is_refused_and_left_alone() {
    let dir = used(1);
    let data = dir.path().join("data");
    let identity = data.join("identity");
    let good = fs::read_to_string(&identity).expect("text");
    let bad = [
        String::new(),
        "\0".repeat(100),
        "tidegate 2\n".to_owned(),
        good.replace("tidegate 1", "tidegate 99"),
        good.replace("logs 1", "logs 0"),
        good.replace("logs 1", "logs 65535"),
        good.replace("logs 1", "logs -1"),
        good.replace("groups 0 ", "groups 7 "),
        good.replace("cookie ", "cookie x"),
        good.split_once("groups").expect("a table").0.to_owned(),
        "x".repeat(1 << 20),
    ];
    for text in bad {
        fs::write(&identity, &text).expect("written");
        let sentence = refused("", &data, &[]);
        says(&sentence, &["identity", "cannot be understood", "damaged"]);
        assert_eq!(fs::read_to_string(&identity).expect("text"), text);
    }
    fs::write(&identity, [0xff; 64]).expect("written");
    says(&refused("", &data, &[]), &["identity"]);
    fs::write(&identity, &good).expect("written");
    Server::again(dir).assert_well();
}

#[test]
fn damaged_superblocks_are_refused_one_is_enough() {
    let dir = used(1);
    let log = dir.path().join("data/shard-00");
    let names = ["super-a", "super-b"];
    let good = names.map(|name| fs::read(log.join(name)).expect("readable"));
    let put = |contents: [&[u8]; 2]| {
        for (name, bytes) in names.iter().zip(contents) {
            fs::write(log.join(name), bytes).expect("written");
        }
    };
    let mut flipped = good.clone();
    for bytes in &mut flipped {
        bytes[40] ^= 1;
    }
    let zeros = vec![0; good[0].len()];
    let long = vec![0xff; 1 << 20];
    for contents in [
        [&flipped[0][..], &flipped[1]],
        [&[], &[]],
        [&zeros, &zeros],
        [&long, &long],
        [&good[0][..20], &good[1][..20]],
    ] {
        put(contents);
        let sentence = refused("", &dir.path().join("data"), &[]);
        says(&sentence, &["superblock"]);
    }
    // The other copy stands in.
    let newer = usize::from(good[1] > good[0]);
    let mut one: [&[u8]; 2] = [&good[0], &good[1]];
    one[1 - newer] = &zeros;
    put(one);
    Server::again(dir).assert_well();
}

/// A log that is gone is not made anew in silence, with its segments deleted.
#[test]
fn a_missing_log_is_missed() {
    let dir = used(2);
    let data = dir.path().join("data");
    for shard in ["shard-00", "shard-01"] {
        let log = data.join(shard);
        let away = dir.path().join("away");
        fs::create_dir(&away).expect("made");
        for name in ["super-a", "super-b"] {
            fs::rename(log.join(name), away.join(name)).expect("moved");
        }
        let segments = fs::read_dir(&log).expect("readable").count();
        let sentence = refused("", &data, &[]);
        says(&sentence, &[shard, "no log", "restore"]);
        assert_eq!(fs::read_dir(&log).expect("readable").count(), segments);
        for name in ["super-a", "super-b"] {
            fs::rename(away.join(name), log.join(name)).expect("moved");
        }
        fs::rename(&log, away.join("log")).expect("moved");
        says(&refused("", &data, &[]), &[shard, "missing", "restore"]);
        assert!(!log.exists(), "nothing was changed");
        fs::rename(away.join("log"), &log).expect("moved");
        fs::remove_dir(&away).expect("empty");
    }
    Server::again(dir).assert_well();
}
