//! Real server processes and commands for black-box tests.

#![allow(dead_code)] // each test file uses its part

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// Bound on each wait; only a broken program reaches it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A server process on a directory of its own. Killed when dropped.
pub struct Server {
    directory: TempDir,
    shards: u16,
    child: Child,
    pub address: SocketAddr,
}

impl Server {
    /// Starts one with this many shards on a free port.
    pub fn start(shards: u16) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (child, address) = launch(&directory.path().join("data"), "127.0.0.1:0", shards);
        Server {
            directory,
            shards,
            child,
            address,
        }
    }

    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// `SIGKILL`, and gone when this returns. (The kernel closes the sockets
    /// that a process used through io_uring a little after its end.)
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        await_that("the port to be free", || {
            std::net::TcpStream::connect(self.address).is_err()
        });
    }

    /// `SIGTERM`; gives the exit code.
    pub fn terminate(&mut self) -> Option<i32> {
        signal(self.child.id(), "TERM");
        await_exit(&mut self.child)
    }

    /// Starts it again on the same data and the same port.
    pub fn restart(&mut self) {
        let listen = self.address.to_string();
        (self.child, self.address) = launch(&self.data(), &listen, self.shards);
    }

    /// A client command against it.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = tidegate(words);
        command.args(["--server", &self.address.to_string()]);
        command
    }

    /// Runs a command that must succeed; gives its standard output.
    pub fn ok(&self, words: &[&str]) -> String {
        self.ok_with(words, "")
    }

    /// The same with this on standard input.
    pub fn ok_with(&self, words: &[&str], input: &str) -> String {
        let output = run(self.command(words), input.as_bytes());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that must end with `code`; gives its standard error.
    pub fn fails(&self, words: &[&str], code: i32) -> String {
        let output = run(self.command(words), b"");
        assert_eq!(output.status.code(), Some(code), "{words:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program with these arguments.
pub fn tidegate(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(words);
    command
}

fn launch(data: &Path, listen: &str, shards: u16) -> (Child, SocketAddr) {
    // A test takes little: how full others keep the disk is not its matter.
    let config = data.with_extension("toml");
    std::fs::write(&config, "disk_low_water = \"0\"\n").unwrap();
    let mut child = tidegate(&["serve", "--listen", listen, "--segment-size", "4MiB"])
        .arg("--config")
        .arg(&config)
        .args(["--shards", &shards.to_string()])
        .arg("--data")
        .arg(data)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = Lines::of(child.stdout.take().unwrap());
    loop {
        let problem = match lines.receiver.recv_timeout(PATIENCE) {
            Ok(line) => {
                let Some((_, address)) = line.split_once("listening on ") else {
                    continue;
                };
                let address = address.split_whitespace().next().unwrap();
                return (child, address.parse().unwrap());
            }
            Err(mpsc::RecvTimeoutError::Timeout) => "it did not listen in time",
            Err(mpsc::RecvTimeoutError::Disconnected) => "it ended before it listened",
        };
        // Not left behind: nothing else would end it.
        let _ = child.kill();
        panic!("{problem}: {}", child.wait().unwrap());
    }
}

/// Lines of a stream, read to its end in the background so that its writer
/// never waits.
pub struct Lines {
    receiver: mpsc::Receiver<String>,
}

impl Lines {
    pub fn of(stream: impl Read + Send + 'static) -> Self {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                // Nobody listening: it is still read.
                let _ = sender.send(line);
            }
        });
        Lines { receiver }
    }

    /// The next line; `None` at the end.
    pub fn next(&self) -> Option<String> {
        match self.receiver.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(mpsc::RecvTimeoutError::Disconnected) => None,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("no line within {PATIENCE:?}"),
        }
    }
}

/// Runs to the end, at most [`PATIENCE`].
pub fn run(mut command: Command, input: &[u8]) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // It may end without reading all of it.
    let feeder = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let (done, ended) = mpsc::channel();
    let id = child.id();
    let waiter = std::thread::spawn(move || drop(done.send(child.wait_with_output())));
    let output = match ended.recv_timeout(PATIENCE) {
        Ok(output) => output.unwrap(),
        Err(_) => {
            signal(id, "KILL");
            panic!("{command:?} took longer than {PATIENCE:?}");
        }
    };
    waiter.join().unwrap();
    feeder.join().unwrap();
    output
}

pub fn signal(process: u32, name: &str) {
    let status = Command::new("kill")
        .args([format!("-{name}"), process.to_string()])
        .status()
        .unwrap();
    assert!(status.success());
}

/// Exit code of a process that ends by itself.
pub fn await_exit(child: &mut Child) -> Option<i32> {
    await_that("the process to end", || child.try_wait().unwrap().is_some());
    child.wait().unwrap().code()
}

/// Waits until `condition` holds.
pub fn await_that(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
