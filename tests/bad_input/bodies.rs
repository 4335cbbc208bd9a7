//! Bodies that do not validate, and bodies that do and say something odd.

use wire::{
    codec,
    error::ErrorCode,
    frame::{Kind, HEADER_BYTES},
    limits::MAX_FRAME_BYTES,
    message::{
        Barrier, Confirm, Credit, Declare, Delete, Extension, Frontiers, List, Locate, Peek, Ping,
        Publish, Purge, QueueInfo, Settle, SettleItem, Subscribe, Unsubscribe, SETTLE_CONFIRM,
    },
};

use crate::rawwire::{code, frame, publish, said, Encode, Frame, Heard, Peer, Server};

/// A valid frame of each request, the queue being there.
fn valid(queue_id: u64) -> Vec<Vec<u8>> {
    fn whole<T: Encode>(body: T) -> Vec<u8> {
        frame(0, &body)
    }
    let items = vec![SettleItem {
        offset: 3,
        attempt: 1,
    }];
    vec![
        whole(Declare {
            name: "a name of some length".into(),
            mode: 2,
            ..Default::default()
        }),
        whole(publish(queue_id, &[b"one", b"two"])),
        whole(Subscribe {
            queue_id,
            subscription: 7,
            credit_records: 3,
            credit_bytes: 99,
            ..Default::default()
        }),
        whole(Credit {
            subscription: 7,
            records: 1,
            bytes: 1,
            ..Default::default()
        }),
        whole(Settle {
            queue_id,
            generation: 1,
            kind: 1,
            flags: SETTLE_CONFIRM,
            items,
            ..Default::default()
        }),
        whole(QueueInfo {
            queue_id,
            ..Default::default()
        }),
        whole(List {
            after: "after this name".into(),
            limit: 9,
            ..Default::default()
        }),
        whole(Frontiers {
            queue_id,
            ..Default::default()
        }),
        whole(Barrier {
            queue_id,
            deadline_ms: 20_000,
            ..Default::default()
        }),
        whole(Peek {
            queue_id,
            max_records: 3,
            ..Default::default()
        }),
        whole(Purge {
            queue_id,
            ..Default::default()
        }),
        whole(Delete {
            queue_id: queue_id + 1000,
            ..Default::default()
        }),
        whole(Locate {
            name: "a name of some length".into(),
            ..Default::default()
        }),
        whole(Unsubscribe {
            subscription: 7,
            ..Default::default()
        }),
        whole(Ping {
            extensions: vec![Extension {
                kind: 5,
                bytes: vec![1, 2, 3],
            }],
        }),
    ]
}

/// True for the answer to the request with this correlation.
fn answers(frame: &Frame, correlation: u64) -> bool {
    let (header, body) = frame;
    if header.kind == Kind::Confirm as u8 {
        let confirm = codec::decode::<Confirm>(body).expect("a confirm");
        return confirm
            .items
            .iter()
            .any(|item| item.correlation == correlation);
    }
    header.correlation == correlation
}

/// A body with one byte changed.
struct Mutant {
    frame: Vec<u8>,
    correlation: u64,
    /// For the report.
    at: usize,
    mask: u8,
    shard: u16,
}

impl Mutant {
    fn of(valid: &[u8], correlation: u64, at: usize, mask: u8, shard: u16) -> Self {
        let mut frame = valid.to_vec();
        frame[at] ^= mask;
        frame[16..24].copy_from_slice(&correlation.to_le_bytes());
        Mutant {
            frame,
            correlation,
            at: at - HEADER_BYTES,
            mask,
            shard,
        }
    }

    fn kind(&self) -> Kind {
        Kind::from_raw(self.frame[5]).expect("a kind")
    }

    /// It says itself how long its answer may take, and that is not long.
    fn names_a_short_deadline(&self) -> bool {
        let body = &self.frame[HEADER_BYTES..];
        let deadline_ms = match self.kind() {
            Kind::Publish => codec::decode::<Publish>(body).map(|body| body.deadline_ms),
            Kind::Barrier => codec::decode::<Barrier>(body).map(|body| body.deadline_ms),
            _ => return false,
        };
        deadline_ms.is_ok_and(|ms| (1..20_000).contains(&ms.to_native()))
    }

    /// Sends it and waits for its answer; for kinds without one, for the answer
    /// to a ping behind it. The answer is not that a deadline passed: nothing
    /// here waits for anything that does not come.
    fn provoke(&self, peer: &mut Peer) -> Result<(), String> {
        let mut bytes = self.frame.clone();
        let silent = matches!(self.kind(), Kind::Credit | Kind::Settle);
        let expected = if silent { PING } else { self.correlation };
        if silent {
            bytes.extend(frame(PING, &Ping::default()));
        }
        peer.raw(&bytes);
        loop {
            let frame = match peer.hear() {
                Heard::Frame(frame) => frame,
                Heard::Closed => return Err("closed the connection".to_owned()),
                Heard::Nothing => return Err("is unanswered".to_owned()),
            };
            if !answers(&frame, expected) {
                continue;
            }
            let late = code(&frame) == Some(ErrorCode::Deadline);
            if late && !self.names_a_short_deadline() {
                return Err(format!("waited in vain: {}", said(&frame.1)));
            }
            return Ok(());
        }
    }
}

/// Correlation of pings behind what has no answer.
const PING: u64 = 1 << 40;

/// Flipped bits in every byte of every body: answered or done, never a panic,
/// a hang, or the end of this or another connection. On the owner's shard and
/// from the other one.
#[test]
fn every_byte_of_every_body_may_be_flipped() {
    let mut server = Server::start();
    let mut watcher = server.hello();
    let queue = watcher.declare("flipped");
    let mut correlation = 1;
    // Small form: one byte of three, another third on the other shard.
    let full = std::env::var("TIDEGATE_TEST_SIZE").is_ok_and(|size| size == "full");
    let step = if full { 1 } else { 3 };
    for shard in [0, 1] {
        let mut peer = server.hello_to(shard);
        for bytes in valid(queue) {
            let from = HEADER_BYTES + usize::from(shard) % step;
            for at in (from..bytes.len()).step_by(step) {
                // Low and high bits in turn: half of the time of both.
                for mask in [0x80_u8 >> (7 * (at % 2)), 0xff] {
                    correlation += 1;
                    let mutant = Mutant::of(&bytes, correlation, at, mask, shard);
                    if let Err(what) = mutant.provoke(&mut peer) {
                        report(&server, &mutant, &what);
                    }
                }
            }
            watcher.ping();
        }
    }
    watcher.publish(queue, &[b"still served"]);
    server.assert_well();
}

fn report(server: &Server, mutant: &Mutant, what: &str) -> ! {
    panic!(
        "a {} to shard {} with byte {} of its body changed by {:#04x} {what}: {:02x?}\n{}",
        mutant.kind().name(),
        mutant.shard,
        mutant.at,
        mutant.mask,
        &mutant.frame[HEADER_BYTES..],
        server.state()
    );
}

#[test]
fn a_critical_extension_is_refused_and_another_passed_over() {
    let mut server = Server::start();
    let mut peer = server.hello();
    let with = |kind| Ping {
        extensions: vec![Extension {
            kind,
            bytes: vec![0; 9],
        }],
    };
    peer.send(5, &with(0x7fff));
    peer.expect(Kind::Pong);
    let queue_id = peer.declare("critical");
    let extensions = with(0x8000).extensions;
    peer.send(
        6,
        &Frontiers {
            queue_id,
            extensions,
            ..Default::default()
        },
    );
    peer.refused(ErrorCode::Invalid);
    server.assert_well();
}

/// What a peer sent comes back in error texts; it must not make them too long
/// to be sent at all.
#[test]
fn names_as_long_as_a_frame_are_answered() {
    let mut server = Server::start();
    let mut peer = server.hello();
    let most = MAX_FRAME_BYTES as usize - 64;
    for name in [
        "x".repeat(most),
        "\u{1}".repeat(most),
        "\u{85}".repeat(most / 2),
    ] {
        peer.send(
            5,
            &Locate {
                name: name.clone(),
                ..Default::default()
            },
        );
        peer.refused(ErrorCode::Invalid);
        peer.send(
            6,
            &Declare {
                name: name.clone(),
                ..Default::default()
            },
        );
        peer.refused(ErrorCode::Invalid);
        peer.send(
            7,
            &List {
                after: name,
                ..Default::default()
            },
        );
        peer.expect(Kind::ListReply);
    }
    server.assert_well();
}
