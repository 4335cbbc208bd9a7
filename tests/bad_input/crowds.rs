//! Many connections, slow ones, and ones that never read.

use std::{
    net::TcpStream,
    sync::{
        atomic::{AtomicBool, Ordering},
        Arc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use wire::{
    codec,
    error::ErrorCode,
    frame::{FrameHeader, Kind},
    limits::{MAX_FRAME_BYTES, MAX_HELLO_BYTES},
    message::{Deliver, List, Peek, Ping, Settle, SettleItem, ANY_SHARD},
    vocabulary::Mode,
};

use crate::rawwire::{await_that, code, frame, hello, publish, Heard, Peer, Server};

fn claim(kind: Kind, length: u32) -> [u8; 24] {
    let kind = kind as u8;
    FrameHeader {
        kind,
        length,
        correlation: 1,
    }
    .encode()
}

/// F71: a stated length costs nothing, a hello that dribbles is cut at the
/// deadline, and everyone else is served meanwhile.
#[test]
fn f71_slow_connections_that_claim_the_maximum_cost_little_and_are_cut() {
    let mut server = Server::start();
    let mut watcher = server.hello();
    let queue = watcher.declare("served");
    watcher.publish(queue, &[b"first"]);
    let before = server.resident();
    let mut strangers: Vec<Peer> = (0..500).map(|_| server.connect()).collect();
    for peer in &mut strangers {
        peer.raw(&claim(Kind::Hello, MAX_HELLO_BYTES));
    }
    let mut known: Vec<Peer> = (0..500).map(|_| server.hello()).collect();
    for peer in &mut known {
        peer.raw(&claim(Kind::Publish, MAX_FRAME_BYTES));
    }
    let mut open = strangers.len();
    await_that("the slow ones to be cut", || {
        for peer in strangers.iter_mut().chain(&mut known) {
            peer.try_raw(&[0]);
        }
        watcher.publish(queue, &[b"meanwhile"]);
        strangers.retain_mut(|peer| {
            peer.stream.set_nonblocking(true).expect("set");
            let waits = peer
                .stream
                .peek(&mut [0])
                .is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
            peer.stream.set_nonblocking(false).expect("set");
            if !waits {
                assert_eq!(code(&peer.frame().expect("why")), Some(ErrorCode::Protocol));
            }
            waits
        });
        open = strangers.len();
        // 16 GiB were claimed.
        let grown = server.resident().saturating_sub(before);
        assert!(grown < 128 << 20, "{grown} bytes for 1 000 connections");
        open == 0
    });
    watcher.ping();
    drop(known);
    server.assert_well();
}

/// F70: with few descriptors new connections are refused with a reason, old
/// ones go on, the log gets its files, no core spins, and room that is made is
/// used.
#[test]
fn f70_few_descriptors_refuse_new_connections_and_keep_old_ones() {
    let mut server = Server::start_with(2, "ulimit -n 256", &[]);
    let mut held = vec![server.hello()];
    let queue = held[0].declare("held");
    let mut refused = 0;
    for round in 0..400 {
        let mut peer = server.connect();
        if !peer.try_raw(&frame(1, &hello(ANY_SHARD))) {
            refused += 1;
            continue;
        }
        match peer.frame() {
            Some((header, _)) if header.kind == Kind::HelloReply as u8 => held.push(peer),
            Some(frame) => {
                assert_eq!(code(&frame), Some(ErrorCode::LimitReached));
                refused += 1;
            }
            None => refused += 1,
        }
        if round % 2 == 1 {
            // A visitor that says nothing and goes.
            drop(TcpStream::connect(server.address));
        }
    }
    assert!(held.len() >= 16, "{} connections", held.len());
    assert!(refused >= 100, "{refused} refusals");
    let large = vec![5; 1 << 20];
    for number in 0..12 {
        let at = number % held.len();
        held[at].publish(queue, &[&large]);
    }
    let (start, ticks) = (Instant::now(), server.ticks());
    std::thread::sleep(Duration::from_secs(1));
    let used = server.ticks() - ticks;
    let share = used as f64 / (start.elapsed().as_secs_f64() * 100.0);
    assert!(share < 0.5, "{share} of a core while nothing happens");
    for (number, peer) in held.iter().enumerate() {
        if number % 2 == 1 {
            peer.half_close();
        }
    }
    let mut number = 0;
    held.retain(|_| {
        number += 1;
        number % 2 == 1
    });
    for peer in &mut held {
        peer.ping();
    }
    await_that("room for another", || {
        let mut peer = server.connect();
        peer.try_raw(&frame(1, &hello(ANY_SHARD)))
            && peer
                .frame()
                .is_some_and(|(header, _)| header.kind == Kind::HelloReply as u8)
    });
    server.assert_well();
}

/// Fills the connection with requests and never reads. True once the server
/// no longer takes more.
fn flood(peer: &mut Peer, request: &[u8], most: usize) -> bool {
    use std::io::Write;
    let many = request.repeat((64 << 10) / request.len() + 1);
    let timeout = Duration::from_millis(400);
    peer.stream.set_write_timeout(Some(timeout)).expect("set");
    let mut sent = 0;
    while sent < most {
        if peer.stream.write_all(&many).is_err() {
            return true;
        }
        sent += many.len();
    }
    false
}

/// Small requests with large answers, from a peer that never reads one: on
/// the owner's shard and from the other one.
#[test]
fn a_peer_that_never_reads_its_answers_is_bounded_and_blocks_nobody() {
    let mut server = Server::start();
    let mut watcher = server.hello();
    let queue_id = watcher.declare("unread");
    let large = vec![9; 200_000];
    for _ in 0..20 {
        watcher.publish(queue_id, &[&large]);
    }
    for number in 0..200 {
        watcher.declare(&format!("{number} {}", "long name ".repeat(20)));
    }
    let items = vec![
        SettleItem {
            offset: 1 << 40,
            attempt: 1
        };
        2000
    ];
    let requests = [
        frame(
            1,
            &Peek {
                queue_id,
                max_records: 1000,
                ..Default::default()
            },
        ),
        frame(1, &List::default()),
        frame(
            1,
            &Settle {
                queue_id,
                generation: 1,
                kind: 1,
                items,
                ..Default::default()
            },
        ),
        frame(1, &Ping::default()),
    ];
    let before = server.resident();
    for shard in [0, 1] {
        let mut silent = Vec::new();
        for request in &requests {
            let mut peer = server.hello_to(shard);
            let stopped = flood(&mut peer, request, 64 << 20);
            assert!(stopped, "shard {shard} took all of kind {}", request[5]);
            watcher.publish(queue_id, &[b"meanwhile"]);
            silent.push(peer);
            let grown = server.resident().saturating_sub(before);
            let bound = (32 << 20) * silent.len() as u64 + (64 << 20);
            assert!(grown < bound, "{grown} bytes for {} peers", silent.len());
        }
    }
    watcher.ping();
    server.assert_well();
}

/// Two heartbeats and more with a full window: a peer that answers is not gone.
#[test]
fn a_consumer_that_does_not_read_for_long_is_not_cut() {
    let mut server = Server::start_with(1, "", &["heartbeat = \"4s\""]);
    let mut publisher = server.hello();
    let queue_id = publisher.declare_as("slowly", Mode::Buffered, 1, 3_600_000);
    let mut slow = server.hello();
    slow.subscribe(queue_id, 1, u32::MAX);
    let large = vec![9; 100_000];
    // More than the sockets hold.
    for _ in 0..200 {
        publisher.publish(queue_id, &[&large]);
    }
    // The time itself is what is waited for.
    std::thread::sleep(Duration::from_secs(13));
    let mut received = 0;
    while received < 200 {
        let (_, body) = slow.expect(Kind::Deliver);
        let deliver = codec::decode::<Deliver>(&body).expect("a delivery");
        assert!(deliver.deliveries.iter().all(|one| one.attempt == 1));
        received += deliver.deliveries.len();
    }
    slow.ping();
    server.assert_well();
}

/// A consumer that never reads takes what its window holds; the rest goes to
/// those who read.
#[test]
fn a_consumer_that_never_reads_takes_no_more_than_its_window() {
    let mut server = Server::start();
    let mut reader = server.hello();
    let queue_id = reader.declare("shared");
    let mut deaf = server.hello();
    deaf.subscribe(queue_id, 1, u32::MAX);
    reader.subscribe(queue_id, 1, u32::MAX);
    let before = server.resident();
    let large = vec![9; 100_000];
    let mut publisher = server.hello();
    for _ in 0..400 {
        publisher.publish(queue_id, &[&large]);
    }
    let mut received = 0;
    // 40 MB; the deaf one has a window of 1 MiB and what the sockets hold.
    while received < 250 {
        let (_, body) = reader.expect(Kind::Deliver);
        let deliver = codec::decode::<Deliver>(&body).expect("a delivery");
        received += deliver.deliveries.len();
    }
    let grown = server.resident().saturating_sub(before);
    assert!(grown < 256 << 20, "{grown} bytes");
    server.assert_well();
}

/// Threads that take the cores away from everybody else, until dropped.
struct Busy {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Busy {
    /// Two per core.
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let cores = thread::available_parallelism().map_or(2, usize::from);
        let spin = || {
            let stop = stop.clone();
            thread::spawn(move || while !stop.load(Ordering::Relaxed) {})
        };
        let threads = (0..2 * cores).map(|_| spin()).collect();
        Busy { stop, threads }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A shard that loses its core at the wrong moment goes on all the same: one
/// request at a time, so that nothing else wakes it, on either shard and from
/// one to the other.
#[test]
fn on_a_crowded_machine_every_request_is_answered() {
    let full = std::env::var("TIDEGATE_TEST_SIZE").is_ok_and(|size| size == "full");
    let rounds = if full { 20_000 } else { 500 };
    let mut server = Server::start();
    let queue = server
        .hello()
        .declare_as("crowded", Mode::Buffered, 2, 30_000);
    let busy = Busy::start();
    thread::scope(|scope| {
        for shard in [0, 1] {
            let server = &server;
            scope.spawn(move || {
                let mut peer = server.hello_to(shard);
                for round in 0..rounds {
                    let mut body = publish(queue, &[b"one at a time"]);
                    body.partition = (round % 2) as u16;
                    peer.send(round, &body);
                    match peer.hear() {
                        Heard::Frame(frame) => assert_eq!(frame.0.kind, Kind::Confirm as u8),
                        Heard::Closed => panic!("round {round}: closed"),
                        Heard::Nothing => panic!("round {round}: {}", server.state()),
                    }
                }
            });
        }
    });
    drop(busy);
    server.assert_well();
}
