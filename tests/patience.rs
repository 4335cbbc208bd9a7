//! What the command line puts up with, and how much it says about it.

mod common;

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::Stdio,
    sync::{
        atomic::{AtomicI64, Ordering},
        Arc,
    },
};

use common::{await_exit, await_that, run, tidegate, Lines, Server};
use wire::{
    codec,
    error::{ErrorCode, Outcome},
    frame::{FrameHeader, Kind, HEADER_BYTES},
    message::{
        Barrier, BarrierReply, Confirm, ConfirmItem, Error, HelloReply, ListReply, LocateReply,
        PartitionPlace, Publish, QueueDescription,
    },
};

const STARTING: &str = "the group is starting; retry shortly";

/// A server of one queue whose group starts: it puts off this many requests,
/// then serves.
struct Starting {
    address: String,
    puts_off: Arc<AtomicI64>,
}

impl Starting {
    fn new(puts_off: i64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let puts_off = Arc::new(AtomicI64::new(puts_off));
        let left = puts_off.clone();
        // Ends with the process: nobody else listens there.
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let left = left.clone();
                std::thread::spawn(move || Conversation { socket, left }.run());
            }
        });
        Starting { address, puts_off }
    }

    fn run(&self, words: &[&str], input: &str) -> (Option<i32>, String, String) {
        let mut command = tidegate(words);
        command.args(["--server", &self.address]);
        let output = run(command, input.as_bytes());
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    }
}

struct Conversation {
    socket: TcpStream,
    left: Arc<AtomicI64>,
}

impl Conversation {
    /// Until the client goes.
    fn run(mut self) {
        let mut header = [0; HEADER_BYTES];
        let mut offset = 0;
        while self.socket.read_exact(&mut header).is_ok() {
            let header = FrameHeader::decode(&header, u32::MAX).unwrap();
            let mut body = vec![0; header.length as usize];
            self.socket.read_exact(&mut body).unwrap();
            let answer = self.answer(&header, &body, &mut offset);
            // The client may have ended meanwhile.
            let _ = self.socket.write_all(&answer);
        }
    }

    fn answer(&self, header: &FrameHeader, body: &[u8], offset: &mut u64) -> Vec<u8> {
        let mut out = Vec::new();
        let number = header.correlation;
        let kind = Kind::from_raw(header.kind).unwrap();
        let serves = matches!(kind, Kind::Hello | Kind::Locate | Kind::Ping);
        if !serves && self.left.fetch_sub(1, Ordering::SeqCst) > 0 {
            let refusal = Error {
                code: ErrorCode::Unavailable as u16,
                outcome: Outcome::Failed as u8,
                message: STARTING.to_owned(),
                ..Default::default()
            };
            codec::encode(&mut out, number, &refusal).unwrap();
            return out;
        }
        match kind {
            Kind::Hello => codec::encode(&mut out, number, &hello()),
            Kind::Locate => codec::encode(&mut out, number, &located()),
            Kind::List => codec::encode(&mut out, number, &ListReply::default()),
            Kind::Barrier => {
                codec::decode::<Barrier>(body).unwrap();
                codec::encode(&mut out, number, &BarrierReply::default())
            }
            Kind::Publish => {
                let count = codec::decode::<Publish>(body).unwrap().count.to_native();
                let confirm = confirm(number, *offset, count);
                *offset += u64::from(count);
                codec::encode(&mut out, 0, &confirm)
            }
            _ => Ok(()),
        }
        .unwrap();
        out
    }
}

fn hello() -> HelloReply {
    HelloReply {
        version: 1,
        shards: 1,
        window_bytes: 1 << 20,
        server: "test".to_owned(),
        ..Default::default()
    }
}

fn located() -> LocateReply {
    let partitions = (0..2).map(|_| PartitionPlace {
        group: 1,
        node: 1,
        shard: 0,
    });
    LocateReply {
        queue: QueueDescription {
            queue_id: 7,
            name: "q".to_owned(),
            mode: 1,
            copies: 0,
            lease_ms: 30_000,
            partitions: partitions.collect(),
        },
        ..Default::default()
    }
}

fn confirm(correlation: u64, first_offset: u64, count: u32) -> Confirm {
    let item = ConfirmItem {
        correlation,
        queue_id: 7,
        partition: 0,
        boundary: 2,
        copies: 1,
        generation: 1,
        first_offset,
        count,
    };
    Confirm {
        items: vec![item],
        ..Default::default()
    }
}

#[test]
fn a_group_that_is_starting_is_asked_again() {
    for words in [&["queue", "list"][..], &["barrier", "q"]] {
        let server = Starting::new(3);
        let (code, _, error) = server.run(words, "");
        assert_eq!((code, error.as_str()), (Some(0), ""), "{words:?}");
        assert!(server.puts_off.load(Ordering::SeqCst) < 0, "{words:?}");
    }
}

#[test]
fn each_record_published_to_a_group_that_is_starting_is_confirmed_once_and_in_order() {
    let server = Starting::new(2);
    let (code, said, error) = server.run(&["publish", "q", "x"], "");
    assert_eq!((code, error.as_str()), (Some(0), ""));
    assert_eq!(said.lines().count(), 1, "{said}");
    let server = Starting::new(5);
    let (code, said, error) = server.run(&["publish", "q"], "a\nb\nc\nd\n");
    assert_eq!((code, error.as_str()), (Some(0), ""));
    let offsets: Vec<_> = said.lines().map(|line| line.split(' ').next()).collect();
    let expected = ["offset=0", "offset=1", "offset=2", "offset=3"].map(Some);
    assert_eq!(offsets, expected, "{said}");
}

#[test]
fn a_group_that_goes_on_starting_is_the_answer_at_the_commands_deadline() {
    for words in [
        &["publish", "q", "x", "--deadline", "300ms"][..],
        &["barrier", "q", "--deadline", "300ms"],
    ] {
        let server = Starting::new(i64::MAX);
        let (code, _, error) = server.run(words, "");
        assert_eq!(code, Some(1), "{words:?}: {error}");
        assert!(error.contains(STARTING), "{words:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{words:?}: {error}");
        let asked = i64::MAX - server.puts_off.load(Ordering::SeqCst);
        assert!(asked >= 2, "{words:?} asked {asked} times");
    }
}

/// Standard output that nobody reads holds back the acknowledgements until
/// the leases ran out: none of them counts then.
#[test]
fn acknowledgements_that_were_not_confirmed_are_one_line() {
    let server = Server::start(1);
    server.ok(&["queue", "declare", "q", "--lease", "100ms"]);
    let payload = "x".repeat(100_000);
    let lines: String = (0..10).map(|_| format!("{payload}\n")).collect();
    server.ok_with(&["publish", "q"], &lines);
    let mut child = server
        .command(&["consume", "q", "--max", "10"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    await_that("every lease to run out", || {
        let peeked = server.ok(&["queue", "peek", "q", "--max", "10"]);
        // An attempt is counted when its lease ends.
        !peeked.contains("attempts=0 ")
    });
    let errors = Lines::of(child.stderr.take().unwrap());
    let printed = Lines::of(child.stdout.take().unwrap());
    assert_eq!(await_exit(&mut child), Some(1));
    let mut records = 0;
    while printed.next().is_some() {
        records += 1;
    }
    assert_eq!(records, 10);
    let error = errors.next().unwrap();
    assert!(
        error.contains("acknowledgements were not confirmed") && error.contains("; the first: "),
        "{error}"
    );
    assert_eq!(errors.next(), None);
}
