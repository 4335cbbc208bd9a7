//! A consumer that speaks frames by hand, so that it can do what the client
//! crate refuses to: old delivery ids, a socket that is never read.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use wire::{
    codec,
    error::WireError,
    frame::{FrameHeader, Kind, HEADER_BYTES},
    limits::MAX_FRAME_BYTES,
    message::{
        Confirm, Deliver, Error as ErrorBody, Hello, HelloReply, Publish, Settle, SettleConfirm,
        SettleItem, Subscribe, ANY_SHARD, SETTLE_CONFIRM,
    },
    vocabulary::SettleKind,
};

use super::{server::Server, soon};

/// A delivery's identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Id {
    pub queue_id: u64,
    pub partition: u16,
    pub generation: u32,
    pub offset: u64,
    pub attempt: u32,
}

/// The first offset, or code and outcome.
type Answer = Result<u64, (u16, u8)>;

pub struct RawConsumer {
    socket: TcpStream,
    /// Publishes and what they were answered with, not asked for yet.
    answers: Vec<(u64, Answer)>,
}

impl RawConsumer {
    /// Connects and says hello with this receive window.
    pub async fn connect(server: &Server, window_bytes: u32) -> Self {
        let socket = TcpStream::connect(server.address).await.unwrap();
        let mut raw = RawConsumer {
            socket,
            answers: Vec::new(),
        };
        let hello = Hello {
            version_min: 1,
            version_max: 1,
            wished_shard: ANY_SHARD,
            window_bytes,
            client: "raw".to_owned(),
            ..Hello::default()
        };
        raw.send(|out| codec::encode(out, 1, &hello)).await;
        let body = raw.expect(Kind::HelloReply).await;
        codec::decode::<HelloReply>(&body).unwrap();
        raw
    }

    pub async fn send(&mut self, encode: impl FnOnce(&mut Vec<u8>) -> Result<(), WireError>) {
        let mut bytes = Vec::new();
        encode(&mut bytes).unwrap();
        self.socket.write_all(&bytes).await.unwrap();
    }

    /// The body of the next frame of this kind; others are passed over.
    pub async fn expect(&mut self, kind: Kind) -> Vec<u8> {
        loop {
            let (header, body) = self.frame().await;
            let found = Kind::from_raw(header.kind);
            if found == Some(kind) {
                return body;
            }
            assert_ne!(found, Some(Kind::Error), "the server sent an error");
        }
    }

    /// The next frame, whatever it is.
    pub async fn frame(&mut self) -> (FrameHeader, Vec<u8>) {
        let frame = soon("a frame", self.try_read()).await;
        frame.expect("the server closed it")
    }

    async fn try_read(&mut self) -> Option<(FrameHeader, Vec<u8>)> {
        let mut header = [0; HEADER_BYTES];
        self.socket.read_exact(&mut header).await.ok()?;
        let header = FrameHeader::decode(&header, MAX_FRAME_BYTES).unwrap();
        let mut body = vec![0; header.length as usize];
        self.socket.read_exact(&mut body).await.ok()?;
        Some((header, body))
    }

    /// Sends a publish as it is.
    pub async fn send_publish(&mut self, correlation: u64, body: &Publish) {
        let records = &body.records;
        self.send(|out| codec::encode_publish(out, correlation, body, records))
            .await;
    }

    /// What a publish is answered with.
    pub async fn answer(&mut self, correlation: u64) -> Answer {
        let answer = self.try_answer(correlation).await;
        answer.expect("the server closed it")
    }

    pub async fn publish(&mut self, correlation: u64, body: &Publish) -> Answer {
        self.send_publish(correlation, body).await;
        self.answer(correlation).await
    }

    /// The same; `None` when the connection ended instead.
    pub async fn try_publish(&mut self, correlation: u64, body: &Publish) -> Option<Answer> {
        let mut bytes = Vec::new();
        codec::encode_publish(&mut bytes, correlation, body, &body.records).unwrap();
        self.socket.write_all(&bytes).await.ok()?;
        self.try_answer(correlation).await
    }

    async fn try_answer(&mut self, correlation: u64) -> Option<Answer> {
        loop {
            let asked_for = |(of, _): &(u64, Answer)| *of == correlation;
            if let Some(at) = self.answers.iter().position(asked_for) {
                return Some(self.answers.swap_remove(at).1);
            }
            let (header, body) = soon("an answer", self.try_read()).await?;
            match Kind::from_raw(header.kind) {
                Some(Kind::Confirm) => {
                    for item in codec::decode::<Confirm>(&body).unwrap().items.iter() {
                        let first = Ok(item.first_offset.to_native());
                        self.answers.push((item.correlation.to_native(), first));
                    }
                }
                Some(Kind::Error) => {
                    let error = codec::decode::<ErrorBody>(&body).unwrap();
                    let error = (error.code.to_native(), error.outcome);
                    self.answers.push((header.correlation, Err(error)));
                }
                _ => {}
            }
        }
    }

    pub async fn subscribe(&mut self, queue_id: u64, partition: u16, credit_records: u32) {
        let body = Subscribe {
            queue_id,
            partition,
            subscription: 1,
            credit_records,
            credit_bytes: u64::from(u32::MAX),
            ..Subscribe::default()
        };
        self.send(|out| codec::encode(out, 2, &body)).await;
        self.expect(Kind::Subscribed).await;
    }

    /// The identities in the next deliver frame.
    pub async fn deliveries(&mut self) -> Vec<Id> {
        let body = self.expect(Kind::Deliver).await;
        let deliver = codec::decode::<Deliver>(&body).unwrap();
        deliver
            .deliveries
            .iter()
            .map(|item| Id {
                queue_id: deliver.queue_id.to_native(),
                partition: deliver.partition.to_native(),
                generation: deliver.generation.to_native(),
                offset: item.offset.to_native(),
                attempt: item.attempt.to_native(),
            })
            .collect()
    }

    /// At least this many identities.
    pub async fn at_least(&mut self, count: usize) -> Vec<Id> {
        let mut ids = Vec::new();
        while ids.len() < count {
            ids.extend(self.deliveries().await);
        }
        ids
    }

    /// Acknowledges these, which name one partition; (accepted, refused).
    pub async fn acknowledge(&mut self, ids: &[Id]) -> (u32, usize) {
        let body = Settle {
            queue_id: ids[0].queue_id,
            partition: ids[0].partition,
            generation: ids[0].generation,
            subscription: 1,
            kind: SettleKind::Acknowledge as u8,
            flags: SETTLE_CONFIRM,
            items: ids
                .iter()
                .map(|id| SettleItem {
                    offset: id.offset,
                    attempt: id.attempt,
                })
                .collect(),
            ..Settle::default()
        };
        self.send(|out| codec::encode(out, 3, &body)).await;
        let answer = self.expect(Kind::SettleConfirm).await;
        let confirm = codec::decode::<SettleConfirm>(&answer).unwrap();
        (confirm.accepted.to_native(), confirm.refused.len())
    }
}
