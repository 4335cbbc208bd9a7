//! A tiny server for tests: speaks the real frames over TCP, keeps everything
//! in memory, and makes one chosen mistake, so that the checks of the generator
//! are seen to find it.

use std::{
    collections::HashMap,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use wire::{
    codec,
    error::{ErrorCode, Outcome},
    frame::{FrameHeader, Kind, HEADER_BYTES},
    limits::MAX_FRAME_BYTES,
    message::*,
    record::Records,
    vocabulary::Boundary,
};

/// What goes wrong, once, at this offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Confirmed, never delivered.
    Lose(u64),
    /// Delivered twice without the flag.
    Double(u64),
    /// Delivered twice, the second time flagged.
    Redeliver(u64),
    /// Delivered after its successor.
    Swap(u64),
    /// Refused with outcome *failed*.
    Fail(u64),
    /// Refused with outcome *failed*, and delivered.
    Invent(u64),
    /// Delivered with one bit flipped.
    Damage(u64),
    /// Never answered, never delivered.
    Ignore(u64),
    /// Everything waits this many milliseconds.
    Freeze(u64, u64),
    /// The connection that published it is closed.
    Hang(u64),
    /// Confirmed at written although the queue is durable.
    Weak(u64),
}

/// Publish body bytes that may be unanswered; exceeding it closes the connection.
pub const WINDOW_BYTES: u32 = 256 * 1024;

struct Consumer {
    stream: TcpStream,
    subscription: u32,
    records: u32,
}

#[derive(Default)]
struct Queue {
    id: u64,
    next_offset: u64,
    waiting: Vec<(u64, Vec<u8>, u32)>,
    consumers: Vec<Consumer>,
    turn: usize,
    unsettled: u64,
}

struct State {
    fault: Fault,
    queues: HashMap<u64, Queue>,
    names: HashMap<String, u64>,
    held_back: Option<(u64, Vec<u8>)>,
}

/// Starts the server; it lives as long as the process. Answers its address.
pub fn start(fault: Fault) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let state = Arc::new(Mutex::new(State {
        fault,
        queues: HashMap::new(),
        names: HashMap::new(),
        held_back: None,
    }));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let state = state.clone();
            thread::spawn(move || serve(stream, &state));
        }
    });
    address
}

/// Reads frames until the peer goes.
fn serve(mut stream: TcpStream, state: &Mutex<State>) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    loop {
        let mut header = [0; HEADER_BYTES];
        stream.read_exact(&mut header).ok()?;
        let header = FrameHeader::decode(&header, MAX_FRAME_BYTES).ok()?;
        let mut body = vec![0; header.length as usize];
        stream.read_exact(&mut body).ok()?;
        let mut out = vec![];
        state
            .lock()
            .unwrap()
            .handle(&stream, &header, &body, &mut out)?;
        stream.write_all(&out).ok()?;
    }
}

impl State {
    /// `None` closes the connection.
    fn handle(
        &mut self,
        stream: &TcpStream,
        header: &FrameHeader,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let correlation = header.correlation;
        match Kind::from_raw(header.kind)? {
            Kind::Hello => {
                let reply = HelloReply {
                    version: 1,
                    shards: 1,
                    window_bytes: WINDOW_BYTES,
                    server: "peer".into(),
                    ..Default::default()
                };
                codec::encode(out, correlation, &reply).ok()
            }
            Kind::Declare => self.declare(correlation, body, out),
            Kind::Publish => self.publish(correlation, body, out),
            Kind::Subscribe => self.subscribe(stream, correlation, body, out),
            Kind::Credit => self.credit(body),
            Kind::Settle => self.settle(correlation, body, out),
            Kind::QueueInfo => {
                let id = codec::decode::<QueueInfo>(body).ok()?.queue_id.to_native();
                let reply = QueueInfoReply {
                    leased: self.queues.get(&id)?.unsettled,
                    ..Default::default()
                };
                codec::encode(out, correlation, &reply).ok()
            }
            Kind::Ping => codec::encode(out, correlation, &Pong::default()).ok(),
            _ => None,
        }
    }

    fn declare(&mut self, correlation: u64, body: &[u8], out: &mut Vec<u8>) -> Option<()> {
        let name = codec::decode::<Declare>(body)
            .ok()?
            .name
            .as_str()
            .to_owned();
        let next = self.names.len() as u64 + 1;
        let id = *self.names.entry(name).or_insert(next);
        self.queues.entry(id).or_default().id = id;
        let reply = Declared {
            queue: QueueDescription {
                queue_id: id,
                partitions: vec![PartitionPlace::default()],
                ..Default::default()
            },
            ..Default::default()
        };
        codec::encode(out, correlation, &reply).ok()
    }

    fn publish(&mut self, correlation: u64, body: &[u8], out: &mut Vec<u8>) -> Option<()> {
        let publish = codec::decode::<Publish>(body).ok()?;
        let queue = self.queues.get_mut(&publish.queue_id.to_native())?;
        let first = queue.next_offset;
        let count = publish.count.to_native();
        let hit = |at: u64| (first..first + u64::from(count)).contains(&at);
        let mut boundary = Boundary::Durable;
        let mut answer = true;
        let mut refuse = false;
        match self.fault {
            Fault::Freeze(at, ms) if hit(at) => thread::sleep(Duration::from_millis(ms)),
            Fault::Hang(at) if hit(at) => {
                // Once.
                self.fault = Fault::None;
                return None;
            }
            Fault::Weak(at) if hit(at) => boundary = Boundary::Written,
            Fault::Ignore(at) if hit(at) => answer = false,
            Fault::Fail(at) | Fault::Invent(at) if hit(at) => refuse = true,
            _ => {}
        }
        queue.next_offset += u64::from(count);
        if refuse {
            let error = Error {
                code: ErrorCode::Overloaded as u16,
                outcome: Outcome::Failed as u8,
                ..Default::default()
            };
            codec::encode(out, correlation, &error).ok()?;
        } else if answer {
            let item = ConfirmItem {
                correlation,
                boundary: boundary as u8,
                copies: 1,
                first_offset: first,
                count,
                ..Default::default()
            };
            let confirm = Confirm {
                items: vec![item],
                ..Default::default()
            };
            codec::encode(out, correlation, &confirm).ok()?;
        }
        let keep = answer && (!refuse || matches!(self.fault, Fault::Invent(_)));
        for (at, record) in Records::new(publish.records.as_slice()).enumerate() {
            let record = record.ok()?;
            record.verify(0).ok()?;
            if keep {
                self.enqueue(
                    publish.queue_id.to_native(),
                    first + at as u64,
                    record.bytes,
                );
            }
        }
        self.dispatch(publish.queue_id.to_native())
    }

    fn enqueue(&mut self, queue: u64, offset: u64, bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        let Some(queue) = self.queues.get_mut(&queue) else {
            return;
        };
        let mut put = |offset, bytes, flags| {
            queue.unsettled += 1;
            queue.waiting.push((offset, bytes, flags));
        };
        match self.fault {
            Fault::Lose(at) if at == offset => return,
            Fault::Swap(at) if at == offset => {
                self.held_back = Some((offset, bytes));
                return;
            }
            Fault::Double(at) if at == offset => put(offset, bytes.clone(), 0),
            Fault::Damage(at) if at == offset => *bytes.last_mut().unwrap() ^= 1,
            _ => {}
        }
        let copy = bytes.clone();
        put(offset, bytes, 0);
        if self.fault == Fault::Redeliver(offset) {
            put(offset, copy, DELIVERY_REDELIVERED);
        }
        if let Some((offset, bytes)) = self.held_back.take() {
            put(offset, bytes, 0);
        }
    }

    fn dispatch(&mut self, queue: u64) -> Option<()> {
        let queue = self.queues.get_mut(&queue)?;
        while !queue.waiting.is_empty() {
            queue.turn += 1;
            let at = queue.turn % queue.consumers.len().max(1);
            let Some(consumer) = queue.consumers.get_mut(at).filter(|one| one.records > 0) else {
                return Some(());
            };
            let count = queue.waiting.len().min(consumer.records as usize).min(100);
            consumer.records -= count as u32;
            let records: Vec<_> = queue.waiting.drain(..count).collect();
            let deliver = Deliver {
                subscription: consumer.subscription,
                queue_id: queue.id,
                generation: 1,
                deliveries: records
                    .iter()
                    .map(|(offset, bytes, flags)| Delivery {
                        offset: *offset,
                        attempt: 1,
                        flags: *flags,
                        len: bytes.len() as u32,
                    })
                    .collect(),
                ..Default::default()
            };
            let mut out = vec![];
            codec::encode_deliver(&mut out, &deliver, |out| {
                for (_, bytes, _) in &records {
                    out.extend_from_slice(bytes);
                }
            })
            .ok()?;
            // A consumer that has gone takes its deliveries with it.
            let _ = consumer.stream.write_all(&out);
        }
        Some(())
    }

    fn subscribe(
        &mut self,
        stream: &TcpStream,
        correlation: u64,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let subscribe = codec::decode::<Subscribe>(body).ok()?;
        let id = subscribe.queue_id.to_native();
        let consumer = Consumer {
            stream: stream.try_clone().ok()?,
            subscription: subscribe.subscription.to_native(),
            records: subscribe.credit_records.to_native(),
        };
        self.queues.get_mut(&id)?.consumers.push(consumer);
        let reply = Subscribed {
            subscription: subscribe.subscription.to_native(),
            generation: 1,
            ..Default::default()
        };
        codec::encode(out, correlation, &reply).ok()?;
        self.dispatch(id)
    }

    /// Credit names no queue: tests use a subscription number on one queue only.
    fn credit(&mut self, body: &[u8]) -> Option<()> {
        let credit = codec::decode::<Credit>(body).ok()?;
        let ids: Vec<u64> = self.queues.keys().copied().collect();
        for queue in self.queues.values_mut() {
            for consumer in &mut queue.consumers {
                if consumer.subscription == credit.subscription.to_native() {
                    consumer.records += credit.records.to_native();
                }
            }
        }
        ids.into_iter().try_for_each(|id| self.dispatch(id))
    }

    fn settle(&mut self, correlation: u64, body: &[u8], out: &mut Vec<u8>) -> Option<()> {
        let settle = codec::decode::<Settle>(body).ok()?;
        let count = settle.items.len() as u64;
        self.queues.get_mut(&settle.queue_id.to_native())?.unsettled -= count;
        if settle.flags.to_native() & SETTLE_CONFIRM == 0 {
            return Some(());
        }
        let reply = SettleConfirm {
            accepted: count as u32,
            boundary: Boundary::Durable as u8,
            copies: 1,
            ..Default::default()
        };
        codec::encode(out, correlation, &reply).ok()
    }
}

mod tests;
