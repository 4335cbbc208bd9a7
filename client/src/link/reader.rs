//! Reads frames and hands each to who waits for it.

use std::sync::Arc;

use tokio::{
    io::{AsyncReadExt, BufReader},
    net::tcp::OwnedReadHalf,
};
use wire::{
    codec,
    frame::{FrameHeader, Kind, HEADER_BYTES},
    limits::MAX_FRAME_BYTES,
    message::{Deliver, Error as ErrorBody, Extension, GoingAway, Ping, Pong, Redirect},
    record::Record,
};

use super::{
    feed::Fed,
    request::Reply,
    state::{Phase, Shared},
};
use crate::{
    delivery::{Delivery, Origin},
    error::SubscribeError,
    places::Place,
};

/// Answers to pings that wait to be written, in bytes; a peer that floods
/// pings and reads nothing is cut off above it.
const MAX_CONTROL_BYTES: usize = 64 * 1024;

/// Reads until the connection ends; returns why.
pub(super) async fn read_loop(
    shared: Arc<Shared>,
    connection: u64,
    mut socket: BufReader<OwnedReadHalf>,
) -> String {
    loop {
        let (header, body) = match read_frame(&mut socket, MAX_FRAME_BYTES).await {
            Ok(frame) => frame,
            Err(cause) => return shared.ending_cause(cause),
        };
        shared.note_received();
        if let Err(cause) = shared.take_frame(connection, &header, body) {
            return cause;
        }
    }
}

/// Reads one frame. A length above `limit` is refused before anything is allocated.
pub(super) async fn read_frame(
    socket: &mut (impl AsyncReadExt + Unpin),
    limit: u32,
) -> Result<(FrameHeader, Vec<u8>), String> {
    let mut header = [0; HEADER_BYTES];
    let lost = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => "the server closed it".to_owned(),
        _ => format!("reading failed: {error}"),
    };
    socket.read_exact(&mut header).await.map_err(lost)?;
    let header = FrameHeader::decode(&header, limit).map_err(|error| error.to_string())?;
    let mut body = vec![0; header.length as usize];
    socket.read_exact(&mut body).await.map_err(lost)?;
    Ok((header, body))
}

impl Shared {
    /// The server's announcement explains an end better than the socket does.
    fn ending_cause(&self, cause: String) -> String {
        match &self.lock().phase {
            Phase::Draining { cause, .. } => cause.clone(),
            _ => cause,
        }
    }

    fn take_frame(
        self: &Arc<Self>,
        connection: u64,
        header: &FrameHeader,
        body: Vec<u8>,
    ) -> Result<(), String> {
        let unexpected = |what: &str| format!("the server sent {what}");
        let Some(kind) = Kind::from_raw(header.kind) else {
            // A newer server's: the protocol has clients pass over it.
            return Ok(());
        };
        match kind {
            Kind::Confirm => self.take_confirms(&body)?,
            Kind::Deliver => self.take_deliver(connection, body)?,
            Kind::SettleConfirm => self.take_settle_confirm(header.correlation, &body)?,
            Kind::Subscribed => self.take_subscribed(header.correlation),
            Kind::Error => self.take_error(header.correlation, &body)?,
            Kind::GoingAway => {
                let body = codec::decode::<GoingAway>(&body).map_err(|e| e.to_string())?;
                self.drains(format!("the server is going away ({})", body.reason));
            }
            Kind::Redirect => self.take_redirect(&body)?,
            Kind::Ping => {
                codec::decode::<Ping>(&body).map_err(|e| e.to_string())?;
                let mut state = self.lock();
                if state.control.len() > MAX_CONTROL_BYTES {
                    return Err(unexpected("pings without reading their answers"));
                }
                let pong = Pong::default();
                codec::encode(&mut state.control, header.correlation, &pong)
                    .map_err(|e| e.to_string())?;
                drop(state);
                self.work();
            }
            Kind::Pong => {}
            Kind::HelloReply => return Err(unexpected("a second hello reply")),
            _ => self.take_reply(
                header.correlation,
                Reply {
                    kind: header.kind,
                    body,
                },
            ),
        }
        self.answered.notify_waiters();
        Ok(())
    }

    fn take_redirect(&self, body: &[u8]) -> Result<(), String> {
        let redirect = codec::decode::<Redirect>(body).map_err(|e| e.to_string())?;
        let mut extensions = redirect.extensions.iter();
        let address = extensions.find(|one| one.kind.to_native() == Extension::ADDRESS);
        // Without an address there is nowhere to go.
        let address = address.and_then(|one| std::str::from_utf8(&one.bytes).ok());
        if let Some(address) = address.filter(|address| !address.is_empty()) {
            let place = Place {
                node: redirect.node.to_native(),
                shard: redirect.shard.to_native(),
                address: address.into(),
            };
            let (queue_id, partition) = (redirect.queue_id, redirect.partition);
            self.places
                .learn(queue_id.to_native(), partition.to_native(), place);
        }
        Ok(())
    }

    fn take_error(self: &Arc<Self>, correlation: u64, body: &[u8]) -> Result<(), String> {
        let error = codec::decode::<ErrorBody>(body).map_err(|e| e.to_string())?;
        let (code, message) = (error.code.to_native(), error.message.to_string());
        if correlation == 0 {
            return Err(message);
        }
        self.take_refusal(correlation, code, error.outcome, message);
        Ok(())
    }

    fn take_deliver(self: &Arc<Self>, connection: u64, body: Vec<u8>) -> Result<(), String> {
        let frame = Arc::new(body);
        let deliver = codec::decode::<Deliver>(&frame).map_err(|e| e.to_string())?;
        let subscription = deliver.subscription.to_native();
        let partition = deliver.partition.to_native();
        let count = deliver.deliveries.len() as u64;
        let sender = {
            let mut state = self.lock();
            if !state.feeds.contains_key(&subscription) {
                // Ended here a moment ago; the server gives the records back.
                return Ok(());
            }
            // The server gives the credit of a lapsed lease back by itself, so
            // deliveries may exceed what was granted here: as much again is
            // taken; beyond that nobody reads, and the leases may lapse too.
            state.stuck.went_on();
            let Some(feed) = state.feeds.get_mut(&subscription) else {
                return Ok(());
            };
            feed.overdrawn += count.saturating_sub(feed.granted);
            feed.granted = feed.granted.saturating_sub(count);
            if feed.overdrawn > u64::from(feed.seat.credit_records()) {
                return Ok(());
            }
            feed.sender.clone()
        };
        let origin = Arc::new(Origin {
            link: self.clone(),
            connection,
            subscription,
            queue_id: deliver.queue_id.to_native(),
            partition,
            generation: deliver.generation.to_native(),
        });
        // Place of the record bytes in the frame, whose body they are part of.
        let mut at = (deliver.records.as_ptr() as usize).saturating_sub(frame.as_ptr() as usize);
        let mut rest = &deliver.records[..];
        for (index, item) in deliver.deliveries.iter().enumerate() {
            let len = item.len.to_native() as usize;
            let Some((bytes, behind)) = rest.split_at_checked(len) else {
                return Err("the server sent a delivery longer than its frame".to_owned());
            };
            rest = behind;
            let offset = item.offset.to_native();
            let checked = Record::parse(bytes, index as u32).and_then(|record| {
                record.verify(index as u32)?;
                Ok(record)
            });
            let fed = match checked {
                Ok(record) => Fed::Delivery(Delivery::new(
                    origin.clone(),
                    frame.clone(),
                    at,
                    item,
                    &record,
                )),
                Err(cause) => Fed::Damaged {
                    origin: origin.clone(),
                    len: item.len.to_native(),
                    error: SubscribeError::Damaged {
                        partition,
                        offset,
                        cause,
                    },
                },
            };
            // The stream may be gone; its drop unsubscribes.
            let _ = sender.send(fed);
            at += len;
        }
        Ok(())
    }
}
