//! Turns what is queued into bytes, as much at once as one write should carry.

use tokio::{io::AsyncWriteExt, net::tcp::OwnedWriteHalf, time::Instant};
use wire::{
    codec,
    error::{ErrorCode, WireError},
    frame::HEADER_BYTES,
    message::{Credit, Extension, Publish, Settle, Subscribe, PUBLISH_DURABLE, SETTLE_CONFIRM},
};

use super::{
    feed::FeedPhase,
    outbox::{NextPublish, QueuedPublish, SentPublish},
    request::SentRequest,
    settles::{SentSettle, SettleGroup, SettleKey},
    state::{Phase, Sent, Shared, State},
};
use crate::error::{Error, Reason};

/// A write is not filled further above this; one frame may exceed it.
const WRITE_BYTES: usize = 512 * 1024;
/// A write buffer that one huge frame grew is given back above this.
const KEEP_BYTES: usize = 4 * WRITE_BYTES;
/// Why a connection ends that this side closes.
pub(super) const CLOSED: &str = "the client was closed";

/// Writes until the socket fails, or the link is closed and nothing is left
/// to write; returns why.
pub(super) async fn write_loop(shared: &Shared, socket: &mut OwnedWriteHalf) -> String {
    let mut buffer = Vec::with_capacity(64 * 1024);
    loop {
        shared.gather(&mut buffer);
        if buffer.is_empty() {
            if shared.lock().closed {
                // The peer learns of the end either way.
                let _ = socket.shutdown().await;
                return CLOSED.to_owned();
            }
            shared.wake.notified().await;
            // What callers that are ready now will queue shares the write.
            tokio::task::yield_now().await;
            continue;
        }
        if let Err(error) = socket.write_all(&buffer).await {
            return format!("writing failed: {error}");
        }
        buffer.clear();
        if buffer.capacity() > KEEP_BYTES {
            buffer.shrink_to(WRITE_BYTES);
        }
    }
}

impl Shared {
    /// Appends frames to `out` until it is full or nothing more may be written.
    pub(super) fn gather(&self, out: &mut Vec<u8>) {
        let mut state = self.lock();
        out.append(&mut state.control);
        for (key, group) in state.settles.take() {
            self.write_settle(&mut state, out, &key, group);
        }
        if !matches!(state.phase, Phase::Up) {
            return;
        }
        self.write_credits(&mut state, out);
        self.write_subscribes(&mut state, out);
        self.write_requests(&mut state, out);
        self.write_publishes(&mut state, out);
    }

    fn write_settle(
        &self,
        state: &mut State,
        out: &mut Vec<u8>,
        key: &SettleKey,
        group: SettleGroup,
    ) {
        let correlation = self.next_correlation();
        let body = Settle {
            queue_id: key.queue_id,
            partition: key.partition,
            generation: key.generation,
            subscription: key.subscription,
            kind: key.kind as u8,
            flags: if key.confirm { SETTLE_CONFIRM } else { 0 },
            delay_ms: key.delay_ms,
            items: group.items,
            extensions: Vec::new(),
        };
        let encoded = codec::encode(out, correlation, &body);
        if !key.confirm {
            return;
        }
        let sent = SentSettle {
            items: body.items,
            answers: group.answers,
            deadline: Instant::now() + self.config.request_timeout,
        };
        match encoded {
            Ok(()) => {
                state.sent.insert(correlation, Sent::Settle(sent));
            }
            Err(error) => sent.resolve(|_| Err(Reason::Invalid(error.clone()).into())),
        }
    }

    fn write_credits(&self, state: &mut State, out: &mut Vec<u8>) {
        for (subscription, (records, bytes)) in state.credits.drain() {
            let body = Credit {
                subscription,
                records,
                bytes,
                extensions: Vec::new(),
            };
            // A body of this size always fits a frame.
            let _ = codec::encode(out, self.next_correlation(), &body);
        }
    }

    fn write_subscribes(&self, state: &mut State, out: &mut Vec<u8>) {
        for (subscription, feed) in &mut state.feeds {
            if feed.phase != FeedPhase::Wanted {
                continue;
            }
            feed.phase = FeedPhase::Asked;
            let credit_records = feed.seat.credit_records();
            feed.granted = u64::from(credit_records);
            let correlation = self.next_correlation();
            let straight = self.config.goes_straight() && !feed.through;
            let extensions = Vec::from_iter(straight.then(|| Extension {
                kind: Extension::STRAIGHT,
                bytes: Vec::new(),
            }));
            let body = Subscribe {
                queue_id: feed.queue_id,
                partition: feed.partition,
                subscription: *subscription,
                credit_records,
                credit_bytes: feed.credit_bytes,
                extensions,
            };
            // A body of this size always fits a frame.
            let _ = codec::encode(out, correlation, &body);
            state
                .sent
                .insert(correlation, Sent::Subscribe(*subscription));
        }
    }

    fn write_requests(&self, state: &mut State, out: &mut Vec<u8>) {
        while out.len() < WRITE_BYTES {
            let Some(request) = state.requests.pop_front() else {
                return;
            };
            out.extend_from_slice(&request.frame);
            let sent = SentRequest {
                frame: request.frame,
                effect: request.effect,
                deadline: request.deadline,
                answer: request.answer,
            };
            state.sent.insert(request.correlation, Sent::Request(sent));
        }
    }

    fn write_publishes(&self, state: &mut State, out: &mut Vec<u8>) {
        while out.len() < WRITE_BYTES {
            match state
                .outbox
                .next(state.window_bytes, state.unanswered_bytes)
            {
                NextPublish::Nothing => return,
                NextPublish::Frame(publish) => self.write_publish(state, out, publish),
                NextPublish::NeverFits(publish) => {
                    let message = format!(
                        "the record of {} bytes exceeds the server's window of {} bytes",
                        publish.records.len(),
                        state.window_bytes
                    );
                    let code = ErrorCode::WindowExceeded as u16;
                    let reason = Reason::Server { code, message };
                    // It may have left before, to a server with a larger window.
                    let error = match publish.number {
                        Some(_) => Error::unknown(reason),
                        None => Error::failed(reason),
                    };
                    publish_failed(publish, &error);
                }
            }
        }
    }

    fn write_publish(&self, state: &mut State, out: &mut Vec<u8>, publish: QueuedPublish) {
        let now = Instant::now();
        let left = publish
            .waiters
            .iter()
            .filter(|waiter| waiter.answer.is_some())
            .map(|waiter| waiter.deadline.saturating_duration_since(now))
            .min()
            .unwrap_or_default();
        let mut body = Publish {
            queue_id: publish.key.queue_id,
            partition: publish.key.partition,
            flags: if publish.key.durable {
                PUBLISH_DURABLE
            } else {
                0
            },
            // 0 would mean the server's default.
            deadline_ms: u32::try_from(left.as_millis()).unwrap_or(u32::MAX).max(1),
            count: publish.count,
            ..Publish::default()
        };
        if let (Some(numbers), Some(number)) = (&publish.key.numbers, &publish.number) {
            body.producer_id = numbers.producer.id;
            body.producer_epoch = numbers.producer.epoch;
            body.sequence = number.value();
        }
        let correlation = self.next_correlation();
        let before = out.len();
        let encoded: Result<(), WireError> =
            codec::encode_publish(out, correlation, &body, &publish.records);
        if let Err(error) = encoded {
            publish_failed(publish, &Error::failed(Reason::Invalid(error)));
            return;
        }
        let body_bytes = out.len() - before - HEADER_BYTES;
        state.unanswered_bytes += body_bytes;
        let sent = SentPublish {
            batch: publish,
            body_bytes,
        };
        state.sent.insert(correlation, Sent::Publish(sent));
    }
}

fn publish_failed(publish: QueuedPublish, error: &Error) {
    let sent = SentPublish {
        batch: publish,
        body_bytes: 0,
    };
    sent.fail(error);
}
