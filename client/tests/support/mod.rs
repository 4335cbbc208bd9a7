//! A server's end of real connections, spoken by the test itself.

#![allow(dead_code)] // each test file uses its part

use std::{future::Future, time::Duration};

use rkyv::{
    api::high::{HighDeserializer, HighSerializer, HighValidator},
    bytecheck::CheckBytes,
    rancor::Error as RkyvError,
    ser::allocator::ArenaHandle,
    Archive, Deserialize, Portable, Serialize,
};
use tidegate_client::{Builder, Client, SubscribeError, Subscription};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use wire::{
    codec::{self, Body},
    error::{ErrorCode, Outcome},
    frame::{FrameHeader, Kind, HEADER_BYTES},
    message::{
        Confirm, ConfirmItem, Deliver, Delivery, Error, Extension, Hello, HelloReply, Locate,
        LocateReply, PartitionPlace, Publish, QueueDescription, Redirect, Subscribe, Subscribed,
    },
    record::RecordParts,
};

pub const WINDOW: u32 = 1 << 20;
pub const QUEUE: u64 = 7;
/// Bound on each wait of a test; only a broken client reaches it.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what} took longer than {PATIENCE:?}"),
    }
}

pub struct Server {
    listener: TcpListener,
    pub address: String,
    pub window: u32,
    pub shards: u16,
    pub node: u32,
}

impl Server {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        Server {
            listener,
            address,
            window: WINDOW,
            shards: 1,
            node: 1,
        }
    }

    /// A client that reconnects fast, and the server's end of its connection.
    pub async fn client(&self) -> (Client, Peer) {
        self.client_with(quick()).await
    }

    pub async fn client_with(&self, builder: Builder) -> (Client, Peer) {
        let (client, peer) = tokio::join!(builder.connect(&self.address), self.accept());
        (client.unwrap(), peer)
    }

    pub async fn accept_raw(&self) -> TcpStream {
        let accepted = soon("a connection", self.listener.accept()).await;
        let (socket, _) = accepted.unwrap();
        socket.set_nodelay(true).unwrap();
        socket
    }

    pub async fn accept(&self) -> Peer {
        self.greet(self.accept_raw().await).await
    }

    /// Answers the hello of a connection.
    pub async fn greet(&self, socket: TcpStream) -> Peer {
        let mut peer = Peer {
            socket,
            wished_shard: 0,
        };
        let (correlation, hello) = peer.expect::<Hello>().await;
        peer.wished_shard = hello.wished_shard;
        let reply = HelloReply {
            version: 1,
            shard: if hello.wished_shard == u16::MAX {
                0
            } else {
                hello.wished_shard
            },
            node: self.node,
            shards: self.shards,
            window_bytes: self.window,
            server: "test".into(),
            ..Default::default()
        };
        peer.send(correlation, &reply).await;
        peer
    }
}

pub fn quick() -> Builder {
    Client::builder()
        .backoff(Duration::from_millis(1), Duration::from_millis(5))
        .publish_deadline(PATIENCE)
        .request_timeout(PATIENCE)
}

pub struct Peer {
    pub socket: TcpStream,
    pub wished_shard: u16,
}

impl Peer {
    pub async fn read(&mut self) -> (FrameHeader, Vec<u8>) {
        soon("a frame", self.read_or_end())
            .await
            .expect("the client closed the connection")
    }

    /// `None` when the client ended the connection.
    pub async fn read_or_end(&mut self) -> Option<(FrameHeader, Vec<u8>)> {
        let mut header = [0; HEADER_BYTES];
        self.socket.read_exact(&mut header).await.ok()?;
        let header = FrameHeader::decode(&header, u32::MAX).unwrap();
        let mut body = vec![0; header.length as usize];
        self.socket.read_exact(&mut body).await.ok()?;
        Some((header, body))
    }

    /// The next frame, which must be a `T`.
    pub async fn expect<T>(&mut self) -> (u64, T)
    where
        T: Body,
        T::Archived: Portable
            + for<'a> CheckBytes<HighValidator<'a, RkyvError>>
            + Deserialize<T, HighDeserializer<RkyvError>>,
    {
        let (header, body) = self.read().await;
        assert_eq!(
            Kind::from_raw(header.kind),
            Some(T::KIND),
            "expected another frame kind"
        );
        (header.correlation, owned::<T>(&body))
    }

    pub async fn send<T>(&mut self, correlation: u64, body: &T)
    where
        T: Body + for<'a> Serialize<HighSerializer<Vec<u8>, ArenaHandle<'a>, RkyvError>>,
    {
        let mut out = Vec::new();
        codec::encode(&mut out, correlation, body).unwrap();
        self.socket.write_all(&out).await.unwrap();
    }

    pub async fn refuse(&mut self, correlation: u64, code: ErrorCode, outcome: Outcome) {
        let body = Error {
            code: code as u16,
            outcome: outcome as u8,
            message: format!("the test answers {code:?}"),
            ..Default::default()
        };
        self.send(correlation, &body).await;
    }

    /// Answers a locate with a queue of these shards.
    pub async fn locate(&mut self, shards: &[u16]) {
        let (correlation, locate) = self.expect::<Locate>().await;
        let reply = LocateReply {
            queue: description(&locate.name, shards),
            ..Default::default()
        };
        self.send(correlation, &reply).await;
    }

    pub async fn confirm(&mut self, correlation: u64, publish: &Publish, first_offset: u64) {
        let item = confirm_item(correlation, publish, first_offset);
        let body = Confirm {
            items: vec![item],
            ..Default::default()
        };
        self.send(0, &body).await;
    }

    pub async fn subscribed(&mut self) -> Subscribe {
        let (correlation, subscribe) = self.expect::<Subscribe>().await;
        self.accept_subscribe(correlation, &subscribe).await;
        subscribe
    }

    pub async fn accept_subscribe(&mut self, correlation: u64, subscribe: &Subscribe) {
        let body = Subscribed {
            subscription: subscribe.subscription,
            generation: 1,
            ..Default::default()
        };
        self.send(correlation, &body).await;
    }

    /// Delivers these payloads from `first_offset` on.
    pub async fn deliver(&mut self, to: &Subscribe, first_offset: u64, payloads: &[&str]) {
        let out = deliver_frame(to, first_offset, payloads, 1, |_| ());
        self.socket.write_all(&out).await.unwrap();
    }
}

pub fn asks_straight(subscribe: &Subscribe) -> bool {
    let mut extensions = subscribe.extensions.iter();
    extensions.any(|one| one.kind == Extension::STRAIGHT)
}

/// Says that node `to` leads a partition.
pub fn redirect(partition: u16, to: &Server) -> Redirect {
    Redirect {
        queue_id: QUEUE,
        partition,
        node: to.node,
        shard: 0,
        extensions: vec![Extension {
            kind: Extension::ADDRESS,
            bytes: to.address.clone().into_bytes(),
        }],
    }
}

/// The next subscribe is told that another node leads.
pub async fn send_on(peer: &mut Peer, to: &Server) -> Subscribe {
    let (correlation, subscribe) = peer.expect::<Subscribe>().await;
    assert!(asks_straight(&subscribe));
    peer.send(0, &redirect(subscribe.partition, to)).await;
    peer.refuse(correlation, ErrorCode::NotOwner, Outcome::Failed)
        .await;
    subscribe
}

pub fn deliver_frame(
    to: &Subscribe,
    first_offset: u64,
    payloads: &[&str],
    attempt: u32,
    spoil: impl FnOnce(&mut Vec<u8>),
) -> Vec<u8> {
    let mut records = Vec::new();
    let mut deliveries = Vec::new();
    for (offset, payload) in (first_offset..).zip(payloads) {
        let before = records.len();
        let parts = RecordParts {
            key: b"k",
            payload: payload.as_bytes(),
            ..Default::default()
        };
        parts.encode(&mut records).unwrap();
        deliveries.push(Delivery {
            offset,
            attempt,
            flags: if attempt > 1 { 3 } else { 2 },
            len: (records.len() - before) as u32,
        });
    }
    spoil(&mut records);
    let body = Deliver {
        subscription: to.subscription,
        queue_id: to.queue_id,
        partition: to.partition,
        generation: 1,
        deliveries,
        ..Default::default()
    };
    let mut out = Vec::new();
    codec::encode_deliver(&mut out, &body, |out| out.extend_from_slice(&records)).unwrap();
    out
}

pub fn confirm_item(correlation: u64, publish: &Publish, first_offset: u64) -> ConfirmItem {
    ConfirmItem {
        correlation,
        queue_id: publish.queue_id,
        partition: publish.partition,
        boundary: 2,
        copies: 1,
        generation: 3,
        first_offset,
        count: publish.count,
    }
}

pub fn description(name: &str, shards: &[u16]) -> QueueDescription {
    QueueDescription {
        queue_id: QUEUE,
        name: name.to_owned(),
        mode: 1,
        copies: 0,
        lease_ms: 30_000,
        partitions: shards
            .iter()
            .map(|shard| PartitionPlace {
                group: 1,
                node: 1,
                shard: *shard,
            })
            .collect(),
    }
}

pub fn owned<T>(body: &[u8]) -> T
where
    T: Body + Archive,
    T::Archived: Portable
        + for<'a> CheckBytes<HighValidator<'a, RkyvError>>
        + Deserialize<T, HighDeserializer<RkyvError>>,
{
    let archived = codec::decode::<T>(body).unwrap();
    rkyv::deserialize::<T, RkyvError>(archived).unwrap()
}

/// The partition ended, for that reason, and nothing comes behind it.
pub async fn ends_as(subscription: &mut Subscription, code: ErrorCode) {
    match soon("the end", subscription.next()).await {
        Some(Err(SubscribeError::PartitionEnded { error, .. })) => {
            assert_eq!(error.code(), Some(code));
        }
        other => panic!("{other:?}"),
    }
    assert!(soon("nothing", subscription.next()).await.is_none());
}
