//! A server process and connections that speak to it in bytes.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use wire::{
    codec::{self, Body},
    error::ErrorCode,
    frame::{FrameHeader, Kind, HEADER_BYTES},
    limits::MAX_FRAME_BYTES,
    message::{
        Confirm, ConfirmItem, Declare, Declared, Error, Hello, Ping, Publish, Subscribe, ANY_SHARD,
    },
    record::RecordParts,
    vocabulary::Mode,
};

/// Bound on each wait; only a broken server reaches it. Above the server's own
/// deadline of 30 s: what waits for something that does not come is refused
/// with `Deadline` by then, and silence means that nobody is at work.
pub const PATIENCE: Duration = Duration::from_secs(45);

/// What encodes as a body, without naming the serializer in each signature.
pub trait Encode {
    fn encode(&self, out: &mut Vec<u8>, correlation: u64);
}

macro_rules! encodes {
    ($($name:ident)*) => {$(
        impl Encode for wire::message::$name {
            fn encode(&self, out: &mut Vec<u8>, correlation: u64) {
                codec::encode(out, correlation, self).expect("fits a frame");
            }
        }
    )*};
}

encodes! {
    Hello HelloReply Declare Declared Publish Confirm Subscribe Subscribed Credit Deliver Settle
    SettleConfirm QueueInfo QueueInfoReply List ListReply Frontiers FrontiersReply Barrier
    BarrierReply Peek PeekReply Purge Purged Delete Deleted Ping Pong GoingAway Error Locate
    LocateReply Redirect Unsubscribe Unsubscribed Extend Extended ClusterStatus ClusterStatusReply
    ClusterOrder ClusterOrdered ChangeQueue QueueChanged
}

/// A server process on a directory of its own; killed when dropped, and then
/// nothing on its standard error may look like a panic.
pub struct Server {
    directory: Option<TempDir>,
    child: Child,
    pub address: SocketAddr,
    errors: Arc<Mutex<String>>,
}

impl Server {
    pub fn start() -> Self {
        Self::start_with(2, "", &[])
    }

    /// With `limits` (shell commands such as `ulimit -n 300`) in front and
    /// lines of a configuration file.
    pub fn start_with(shards: u16, limits: &str, config: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let shards = format!("--shards {shards}");
        Self::launch(directory, &shards, limits, config)
    }

    /// On a directory that a server left.
    pub fn again(directory: TempDir) -> Self {
        Self::launch(directory, "", "", &[])
    }

    fn launch(directory: TempDir, shards: &str, limits: &str, config: &[&str]) -> Self {
        let file = directory.path().join("tidegate.toml");
        // A test takes little: how full others keep the disk is not its matter.
        let sizes = "segment_size = \"4MiB\"\ndisk_low_water = \"0\"";
        let text = format!("{sizes}\n{}\n", config.join("\n"));
        std::fs::write(&file, text).expect("written");
        let limits = if limits.is_empty() { ":" } else { limits };
        let script = format!(
            "{limits}; exec '{}' serve --listen 127.0.0.1:0 {shards} --data '{}' --config '{}'",
            env!("CARGO_BIN_EXE_tidegate"),
            directory.path().join("data").display(),
            file.display()
        );
        let mut child = Command::new("sh")
            .args(["-c", &script])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("sh");
        let errors = Arc::new(Mutex::new(String::new()));
        collect(child.stderr.take().expect("piped"), errors.clone());
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        let mut first = String::new();
        lines.read_line(&mut first).expect("a line");
        thread::spawn(move || drop(std::io::copy(&mut lines, &mut std::io::sink())));
        let address = first
            .split_once("listening on ")
            .unwrap_or_else(|| panic!("no address: {first:?} {}", errors.lock().unwrap()))
            .1
            .trim()
            .parse()
            .expect("an address");
        Server {
            directory: Some(directory),
            child,
            address,
            errors,
        }
    }

    pub fn data(&self) -> PathBuf {
        let directory = self.directory.as_ref().expect("not stopped");
        directory.path().join("data")
    }

    /// Stops it by `SIGTERM`, cleanly, and hands its directory over.
    pub fn stop(mut self) -> TempDir {
        let pid = self.child.id().to_string();
        let told = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(told.expect("kill").success());
        await_that("the server to stop", || {
            self.child.try_wait().expect("waited").is_some()
        });
        let status = self.child.wait().expect("waited");
        assert!(status.success(), "{}", self.errors());
        self.directory.take().expect("not stopped before")
    }

    /// A bare connection.
    pub fn connect(&self) -> Peer {
        Peer::new(TcpStream::connect(self.address).expect("connects"))
    }

    /// A connection with its hello done.
    pub fn hello(&self) -> Peer {
        self.hello_to(ANY_SHARD)
    }

    /// Likewise, on this shard.
    pub fn hello_to(&self, wished_shard: u16) -> Peer {
        let mut peer = self.connect();
        peer.send(1, &hello(wished_shard));
        let (header, _) = peer.frame().expect("a hello reply");
        assert_eq!(header.kind, Kind::HelloReply as u8);
        peer
    }

    /// Resident memory in bytes.
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("the server runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.expect("VmRSS").trim().trim_end_matches(" kB");
        kib.parse::<u64>().expect("a number") << 10
    }

    /// Processor time used, in ticks of 10 ms.
    pub fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        let stat = stat.expect("the server runs");
        let fields: Vec<&str> = stat
            .rsplit_once(')')
            .expect("a name")
            .1
            .split_whitespace()
            .collect();
        let field = |at: usize| fields[at].parse::<u64>().expect("a number");
        field(11) + field(12)
    }

    pub fn errors(&self) -> String {
        self.errors.lock().unwrap().clone()
    }

    /// What the process is doing, for the report of a failure: each thread,
    /// what it waits for, and how often it gave up its core in a second. A
    /// shard that sleeps through that second has no pulse.
    pub fn state(&self) -> String {
        let threads = self.threads();
        thread::sleep(Duration::from_secs(1));
        let later = self.threads();
        let mut text = format!("the server said: {}", self.errors());
        for (id, (name, waits, sleeps)) in threads {
            let after = later.get(&id).map_or(0, |(_, _, after)| *after);
            let slept = after.saturating_sub(sleeps);
            text.push_str(&format!("\n{id} {name}: {waits}, slept {slept} times"));
        }
        text
    }

    /// By id: name, what it waits for in the kernel, times it waited so far.
    fn threads(&self) -> BTreeMap<String, (String, String, u64)> {
        let tasks = format!("/proc/{}/task", self.child.id());
        let mut threads = BTreeMap::new();
        for task in std::fs::read_dir(tasks).into_iter().flatten().flatten() {
            let path = task.path();
            let read = |name| std::fs::read_to_string(path.join(name)).unwrap_or_default();
            let status = read("status");
            let sleeps = status
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))
                .and_then(|count| count.trim().parse().ok());
            let id = task.file_name().to_string_lossy().into_owned();
            let name = read("comm").trim().to_owned();
            threads.insert(id, (name, read("wchan"), sleeps.unwrap_or_default()));
        }
        threads
    }

    /// The process lives, complained of no panic, and serves a newcomer.
    pub fn assert_well(&mut self) {
        let ended = self.child.try_wait().expect("waited");
        let errors = self.errors();
        assert!(ended.is_none(), "the server ended ({ended:?}): {errors}");
        assert!(!errors.contains("panicked"), "{errors}");
        let mut peer = self.hello();
        peer.ping();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if !thread::panicking() {
            let errors = self.errors();
            assert!(!errors.contains("panicked"), "{errors}");
        }
    }
}

fn collect(stream: impl Read + Send + 'static, into: Arc<Mutex<String>>) {
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let mut text = into.lock().unwrap();
            text.push_str(&line);
            text.push('\n');
        }
    });
}

pub fn hello(wished_shard: u16) -> Hello {
    Hello {
        version_min: 1,
        version_max: 1,
        wished_shard,
        window_bytes: 1 << 20,
        client: "attacker".into(),
        ..Default::default()
    }
}

/// A whole frame.
pub fn frame<T: Encode>(correlation: u64, body: &T) -> Vec<u8> {
    let mut out = Vec::new();
    body.encode(&mut out, correlation);
    out
}

/// A header of any content, and a body.
pub fn raw_frame(kind: u8, correlation: u64, body: &[u8]) -> Vec<u8> {
    let header = FrameHeader {
        kind,
        length: body.len() as u32,
        correlation,
    };
    let mut out = header.encode().to_vec();
    out.extend_from_slice(body);
    out
}

/// Encoded records with these payloads.
pub fn records(payloads: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    for payload in payloads {
        let parts = RecordParts {
            payload,
            ..Default::default()
        };
        parts.encode(&mut out).expect("within limits");
    }
    out
}

/// A publish of these payloads.
pub fn publish(queue_id: u64, payloads: &[&[u8]]) -> Publish {
    Publish {
        queue_id,
        count: payloads.len() as u32,
        records: records(payloads),
        ..Default::default()
    }
}

pub type Frame = (FrameHeader, Vec<u8>);

/// What a wait for a frame ended with.
pub enum Heard {
    Frame(Frame),
    Closed,
    Nothing,
}

/// One end of a connection.
pub struct Peer {
    pub stream: TcpStream,
}

impl Peer {
    pub fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        stream.set_write_timeout(Some(PATIENCE)).expect("set");
        stream.set_nodelay(true).expect("set");
        Peer { stream }
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    /// Like `raw`, but the server may have closed meanwhile.
    pub fn try_raw(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    pub fn send<T: Encode>(&mut self, correlation: u64, body: &T) {
        self.raw(&frame(correlation, body));
    }

    /// The next frame; `None` when the server closed.
    pub fn frame(&mut self) -> Option<Frame> {
        match self.hear() {
            Heard::Frame(frame) => Some(frame),
            Heard::Closed => None,
            Heard::Nothing => panic!("the server neither answered nor closed"),
        }
    }

    /// What comes next within [`PATIENCE`].
    pub fn hear(&mut self) -> Heard {
        let mut header = [0; HEADER_BYTES];
        match self.stream.read_exact(&mut header) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Heard::Nothing,
            Err(_) => return Heard::Closed,
        }
        let header = FrameHeader::decode(&header, MAX_FRAME_BYTES).expect("a frame");
        let mut body = vec![0; header.length as usize];
        self.stream.read_exact(&mut body).expect("a whole body");
        Heard::Frame((header, body))
    }

    /// The next frame, which is of this kind.
    pub fn expect(&mut self, kind: Kind) -> Frame {
        let (header, body) = self.frame().expect("not closed");
        if header.kind != kind as u8 {
            panic!("kind {} instead of {kind:?}: {}", header.kind, said(&body));
        }
        (header, body)
    }

    /// The next frame is an error of this code; gives its text.
    pub fn refused(&mut self, code: ErrorCode) -> String {
        let (_, body) = self.expect(Kind::Error);
        let error = codec::decode::<Error>(&body).expect("an error");
        let text = error.message.as_str().to_owned();
        assert_eq!(error.code, code as u16, "{text}");
        assert!(!text.is_empty());
        text
    }

    /// An error of this code, then the end.
    pub fn refused_and_closed(&mut self, code: ErrorCode) -> String {
        let text = self.refused(code);
        assert!(self.frame().is_none(), "open after: {text}");
        text
    }

    pub fn ping(&mut self) {
        self.send(99, &Ping::default());
        let (header, _) = self.expect(Kind::Pong);
        assert_eq!(header.correlation, 99);
    }

    /// Declares a queue and gives its id.
    pub fn declare(&mut self, name: &str) -> u64 {
        self.declare_as(name, Mode::Buffered, 1, 30_000)
    }

    pub fn declare_as(&mut self, name: &str, mode: Mode, partitions: u16, lease_ms: u64) -> u64 {
        let body = Declare {
            name: name.into(),
            mode: mode as u8,
            partitions,
            lease_ms,
            ..Default::default()
        };
        self.send(2, &body);
        let (_, body) = self.expect(Kind::Declared);
        let declared = codec::decode::<Declared>(&body).expect("declared");
        declared.queue.queue_id.to_native()
    }

    /// Publishes and waits for the confirm.
    pub fn publish(&mut self, queue_id: u64, payloads: &[&[u8]]) -> ConfirmItem {
        self.send(3, &publish(queue_id, payloads));
        self.confirmed()
    }

    pub fn confirmed(&mut self) -> ConfirmItem {
        let (_, body) = self.expect(Kind::Confirm);
        let confirm = codec::decode::<Confirm>(&body).expect("a confirm");
        assert_eq!(confirm.items.len(), 1);
        let item = &confirm.items[0];
        ConfirmItem {
            correlation: item.correlation.to_native(),
            queue_id: item.queue_id.to_native(),
            partition: item.partition.to_native(),
            boundary: item.boundary,
            copies: item.copies,
            generation: item.generation.to_native(),
            first_offset: item.first_offset.to_native(),
            count: item.count.to_native(),
        }
    }

    pub fn subscribe(&mut self, queue_id: u64, subscription: u32, records: u32) {
        let body = Subscribe {
            queue_id,
            subscription,
            credit_records: records,
            credit_bytes: 64 << 20,
            ..Default::default()
        };
        self.send(4, &body);
        self.expect(Kind::Subscribed);
    }

    /// Nothing more is sent; what comes is still read.
    pub fn half_close(&self) {
        self.stream.shutdown(Shutdown::Write).expect("open");
    }

    /// Reads until the server closes; gives what came.
    pub fn drain(&mut self) -> Vec<Frame> {
        std::iter::from_fn(|| self.frame()).collect()
    }
}

/// The text of an error body, for messages.
pub fn said(body: &[u8]) -> String {
    match codec::decode::<Error>(body) {
        Ok(error) => error.message.as_str().to_owned(),
        Err(error) => error.to_string(),
    }
}

/// The code of an error frame.
pub fn code((header, body): &Frame) -> Option<ErrorCode> {
    (header.kind == Error::KIND as u8).then_some(())?;
    let error = codec::decode::<Error>(body).ok()?;
    ErrorCode::from_raw(error.code.to_native())
}

/// Waits until `condition` holds.
pub fn await_that(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited too long for {what}");
        thread::sleep(Duration::from_millis(10));
    }
}
