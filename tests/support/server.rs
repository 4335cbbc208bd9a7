//! A server's directory, and the processes that live on it one after the other.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{mpsc, Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use client::{Builder, Client};
use tempfile::TempDir;

use super::PATIENCE;

/// A data directory and how servers on it are started.
pub struct Home {
    dir: TempDir,
    shards: u16,
    listen: String,
    config: String,
    low_water: &'static str,
    segment_size: &'static str,
    data: PathBuf,
    boot: Option<String>,
    join: bool,
    force_group_0: Option<u32>,
    boot_directory: Option<PathBuf>,
    environment: Vec<(&'static str, PathBuf)>,
    through: Vec<String>,
}

impl Home {
    /// Segments of 4 MiB, so that they roll.
    pub fn new(shards: u16) -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let config = "allow_any_file_system = true\npin_cores = false\n";
        Home {
            data: dir.path().join("data"),
            dir,
            shards,
            listen: "127.0.0.1:0".to_owned(),
            config: config.to_owned(),
            // A test takes little: how full others keep the disk is not its matter.
            low_water: "0",
            segment_size: "4MiB",
            boot: None,
            join: false,
            force_group_0: None,
            boot_directory: None,
            environment: Vec::new(),
            through: Vec::new(),
        }
    }

    /// The data directory is there instead of beside the configuration.
    pub fn data_at(mut self, path: &Path) -> Self {
        self.data = path.to_owned();
        self
    }

    /// Adds a line to the configuration file.
    pub fn with(mut self, line: &str) -> Self {
        self.config.push_str(line);
        self.config.push('\n');
        self
    }

    /// Publishes are refused below this much free space, as the configuration writes it.
    pub fn low_water(mut self, size: &'static str) -> Self {
        self.low_water = size;
        self
    }

    /// The least there is, so that checkpoints, packing and reclaim are busy.
    pub fn short_segments(mut self) -> Self {
        self.segment_size = "1MiB";
        self
    }

    /// Servers find this in their environment.
    pub fn environment(mut self, name: &'static str, path: &Path) -> Self {
        self.environment.push((name, path.to_owned()));
        self
    }

    /// Servers are started by this command, which becomes the server in the end.
    pub fn through(mut self, words: Vec<String>) -> Self {
        self.through = words;
        self
    }

    /// Listens elsewhere than on loopback.
    pub fn listening_on(mut self, address: &str) -> Self {
        self.listen = address.to_owned();
        self
    }

    /// Its directory is made to join its cluster.
    pub fn joining(mut self) -> Self {
        self.join = true;
        self
    }

    /// Group 0 ends that generation, and goes on from what it holds.
    pub fn forcing_group_0(mut self, generation: u32) -> Self {
        self.force_group_0 = Some(generation);
        self
    }

    /// Later starts believe to be in this boot of the host (hexadecimal).
    pub fn boot(&mut self, id: &str) {
        self.boot = Some(id.to_owned());
    }

    /// The same, and what a reboot empties (`/run`) is empty.
    pub fn reboot(&mut self, id: &str) {
        self.boot(id);
        let directory = self.dir.path().join("run");
        if directory.exists() {
            fs::remove_dir_all(&directory).unwrap();
        }
        fs::create_dir(&directory).unwrap();
        self.boot_directory = Some(directory);
    }

    /// Starts believe to be in this boot, and find in `directory` what a reboot
    /// would have emptied.
    pub fn booted(&mut self, id: &str, directory: &Path) {
        self.boot(id);
        self.boot_directory = Some(directory.to_owned());
    }

    pub fn data(&self) -> PathBuf {
        self.data.clone()
    }

    /// What a reboot empties, of a home that was told of one.
    pub fn boot_directory(&self) -> PathBuf {
        self.boot_directory.clone().unwrap()
    }

    /// `tidegate log ACTION` on the data: exit code, objects, standard error.
    pub fn log(&self, action: &str) -> (i32, Vec<serde_json::Value>, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command
            .args(["log", action, "--json"])
            .arg(self.data())
            .stdin(Stdio::null());
        self.tell_boot(&mut command);
        let output = command.output().unwrap();
        let objects = String::from_utf8(output.stdout).unwrap();
        let objects = objects
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        (
            output.status.code().unwrap(),
            objects.collect(),
            String::from_utf8(output.stderr).unwrap(),
        )
    }

    fn tell_boot(&self, command: &mut Command) {
        if let Some(boot) = &self.boot {
            command.env("TIDEGATE_TEST_BOOT_ID", boot);
        }
        if let Some(directory) = &self.boot_directory {
            command.env("TIDEGATE_TEST_BOOT_DIRECTORY", directory);
        }
    }

    fn command(&self) -> Command {
        let config = self.dir.path().join("tidegate.toml");
        let sizes = format!(
            "segment_size = {:?}\ndisk_low_water = {:?}\n",
            self.segment_size, self.low_water
        );
        fs::write(&config, sizes + &self.config).unwrap();
        let words = self.through.iter().map(String::as_str);
        let mut words = words.chain([env!("CARGO_BIN_EXE_tidegate")]);
        let mut command = Command::new(words.next().expect("the server at least"));
        command
            .args(words)
            .arg("serve")
            .args(["--listen", &self.listen])
            .args(["--shards", &self.shards.to_string()])
            .arg("--data")
            .arg(self.data())
            .arg("--config")
            .arg(config)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if self.join {
            command.arg("--join");
        }
        if let Some(generation) = self.force_group_0 {
            command.args(["--force-group-0", &generation.to_string()]);
        }
        for (name, path) in &self.environment {
            command.env(name, path);
        }
        self.tell_boot(&mut command);
        command
    }

    /// Starts a server and kills it this much later, wherever its start is then.
    pub fn start_and_kill(&self, after: Duration) {
        let mut child = self.command().spawn().unwrap();
        thread::sleep(after);
        assert!(
            child.try_wait().unwrap().is_none(),
            "the server ended by itself: {}",
            read_all(&mut child)
        );
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Starts a server and waits until it listens.
    pub fn start(&self) -> Server {
        let mut server = self.spawn();
        if let Err(said) = server.await_listening() {
            panic!("the server did not start: {said:?}");
        }
        server
    }

    /// Starts a server; it does not listen yet.
    pub fn spawn(&self) -> Server {
        let mut child = self.command().spawn().unwrap();
        let stdout = lines_of(child.stdout.take().unwrap());
        let errors = Arc::new(Mutex::new(Vec::new()));
        let reader = collect(child.stderr.take().unwrap(), errors.clone());
        Server {
            child,
            reader: Some(reader),
            address: SocketAddr::from(([0, 0, 0, 0], 0)),
            stdout,
            errors,
        }
    }
}

/// A running server; killed when dropped.
pub struct Server {
    child: Child,
    /// Of its standard error.
    reader: Option<thread::JoinHandle<()>>,
    pub address: SocketAddr,
    stdout: mpsc::Receiver<String>,
    errors: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Waits until it listens.
    ///
    /// # Errors
    /// What it said instead.
    pub fn await_listening(&mut self) -> Result<(), Vec<String>> {
        loop {
            match self.stdout.recv_timeout(PATIENCE) {
                Ok(line) => {
                    if let Some((_, address)) = line.split_once("listening on ") {
                        self.address = address.trim().parse().unwrap();
                        return Ok(());
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => return Err(self.errors()),
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait().unwrap();
                    // All that it said, not only what was read by now.
                    if let Some(reader) = self.reader.take() {
                        reader.join().unwrap();
                    }
                    let mut said = self.errors();
                    said.push(format!("({status})"));
                    return Err(said);
                }
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lines of its standard error so far.
    pub fn errors(&self) -> Vec<String> {
        self.errors.lock().unwrap().clone()
    }

    pub async fn client(&self) -> Client {
        self.client_with(quick()).await
    }

    pub async fn client_with(&self, builder: Builder) -> Client {
        builder.connect(self.address.to_string()).await.unwrap()
    }

    /// Fails the test if the process ended by itself.
    pub fn assert_alive(&mut self) {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "{ended:?}: {:?}", self.errors());
    }

    /// The process ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.ended().is_some()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// `SIGKILL`; it must have been alive.
    pub fn kill(mut self) {
        self.assert_alive();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// `SIGKILL`, then `between`, without which it may not be able to end.
    /// It may have ended by itself.
    pub fn kill_and(mut self, between: impl FnOnce()) {
        self.child.kill().unwrap();
        between();
        self.child.wait().unwrap();
    }

    /// `SIGTERM`, and its exit.
    pub fn terminate(mut self) -> (ExitStatus, Vec<String>) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status, self.errors());
            }
            assert!(start.elapsed() < PATIENCE, "SIGTERM did not end the server");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops it cleanly.
    pub fn stop(self) {
        let (status, errors) = self.terminate();
        assert!(status.success(), "{status}: {errors:?}");
    }

    /// Runs a client command against it.
    pub fn cli(&self, words: &[&str]) -> Output {
        self.command(&[words, &["--server", &self.address.to_string()]].concat())
    }

    /// Runs a command that names its servers itself.
    pub fn command(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(words).stdin(Stdio::null());
        command.output().unwrap()
    }

    /// A client command's one JSON object.
    pub fn json(&self, words: &[&str]) -> serde_json::Value {
        let output = self.cli(&[words, &["--json"]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {said}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// CPU time used so far, all threads.
    pub fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        let behind_name = stat.rsplit(')').next().unwrap();
        let fields: Vec<&str> = behind_name.split_whitespace().collect();
        // utime and stime are fields 14 and 15; the state is field 3.
        let ticks: u64 = [11, 12]
            .iter()
            .map(|at| fields[*at].parse::<u64>().unwrap())
            .sum();
        // USER_HZ is 100 on every x86-64 kernel.
        Duration::from_millis(ticks * 10)
    }

    /// Highest resident memory so far, bytes.
    pub fn peak_memory(&self) -> u64 {
        self.status_bytes("VmHWM:")
    }

    /// Resident memory now, bytes.
    pub fn memory(&self) -> u64 {
        self.status_bytes("VmRSS:")
    }

    fn status_bytes(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap();
        let kib: u64 = line.split_whitespace().next().unwrap().parse().unwrap();
        kib * 1024
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("the server said: {:#?}", self.errors());
        }
    }
}

/// Gives up fast what a dead server cannot answer.
pub fn quick() -> Builder {
    Client::builder()
        .backoff(Duration::from_millis(5), Duration::from_millis(50))
        .patience(Duration::from_secs(10))
        .request_timeout(PATIENCE)
        .publish_deadline(PATIENCE)
}

/// Bytes that a directory's files take on disk, those below it included.
pub fn disk_bytes(directory: &Path) -> u64 {
    let mut bytes = 0;
    for entry in fs::read_dir(directory).unwrap() {
        // It may be renamed or removed meanwhile.
        let Ok(entry) = entry else { continue };
        bytes += match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => disk_bytes(&entry.path()),
            Ok(metadata) => metadata.blocks() * 512,
            Err(_) => 0,
        };
    }
    bytes
}

/// The segment files of shard `shard`, by sequence; not one that is being made.
pub fn segments(data: &Path, shard: u16) -> Vec<PathBuf> {
    let directory = data.join(format!("shard-{shard:02}"));
    let mut found: Vec<PathBuf> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with("seg-") && !name.ends_with(".tmp")
        })
        .collect();
    found.sort();
    found
}

fn lines_of(stream: impl std::io::Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            // Nobody listens any more: it is still read, so that nobody blocks.
            let _ = sender.send(line);
        }
    });
    receiver
}

fn collect(
    stream: impl std::io::Read + Send + 'static,
    into: Arc<Mutex<Vec<String>>>,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            into.lock().unwrap().push(line);
        }
    })
}

fn read_all(child: &mut Child) -> String {
    let mut text = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = std::io::Read::read_to_string(&mut stderr, &mut text);
    }
    text
}
