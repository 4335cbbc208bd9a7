//! Client of the Tidegate message server, for tokio.
//!
//! ```no_run
//! use tidegate_client::Client;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect("127.0.0.1:7420").await?;
//! client.declare("greetings").await?;
//! println!("{}", client.publish("greetings", "hello").await?);
//! let mut deliveries = client.subscribe("greetings").await?;
//! if let Some(delivery) = deliveries.next().await {
//!     let settled = delivery?.ack_confirmed().await?;
//!     println!("acknowledged: {}", settled.boundary.name());
//! }
//! # Ok(()) }
//! ```
//!
//! A **confirm** ([`Confirmed`]) says which boundary a record met, *written*
//! or *durable*, on how many copies, and where it is: queue id, partition,
//! generation, offset. An [`Error`] says whether the thing *failed* or its
//! outcome is *unknown*.
//!
//! Bounds (each with its behaviour at the bound):
//!
//! | what | bound | at the bound |
//! |---|---|---|
//! | addresses of servers | given; each is tried in turn | pauses of [`Builder::backoff`] between rounds |
//! | publishes queued or unanswered | [`Builder::publish_window_bytes`] | sending waits, at most the publish's deadline |
//! | publish bytes unanswered per connection | the server's window, from hello | they stay queued |
//! | numbers of an idempotent publisher from the oldest without an answer to the newest, per partition | 16 frames | the others wait |
//! | records in one frame put together here | 4 096, 256 KiB | another frame |
//! | requests waiting to be sent per connection | 4 096 | refused |
//! | deliveries not taken from a stream | [`SubscribeOptions`], per partition | the server waits for credit |
//! | settles not sent | the deliveries taken | they come from nothing else |
//! | leaders of partitions remembered | 65 536 | forgotten, and told again by the servers |
//! | queue names remembered | 4 096 | forgotten and looked up again |
//! | connections | one per shard of the server; in a cluster, one more per shard of each node that leads what is published to or consumed, 256 of those | others go through any node |
//! | time of a publish | its deadline, + 2 s for an answer on its way | failed when not sent, else unknown |
//! | time of any other request | [`Builder::request_timeout`] | likewise |
//! | silence of a connection | three [heartbeats](Builder::heartbeat) | it counts as lost |
//!
//! The crate needs a tokio runtime with time and I/O enabled, of either kind.

mod client;
mod cluster;
mod config;
mod delivery;
mod error;
mod headers;
mod levels;
mod link;
mod links;
mod manage;
mod places;
mod producer;
mod publish;
mod queue;
mod record;
mod route;
mod servers;
mod setting;
mod subscribe;

pub use client::Client;
pub use wire::node::{Member, Roster, Shift};

pub use cluster::{NodeStatus, Ordered, Peer, Progress, Recovery, Replica, Seen};
pub use config::Builder;
pub use delivery::{Delivery, SettleConfirm, Settled};
pub use error::{ConnectError, Error, Reason, SettleError, SubscribeError};
pub use headers::{Headers, HeadersError, HeadersIter, HeadersView};
pub use levels::Levels;
pub use manage::PeekOptions;
pub use producer::ProducerId;
pub use publish::{Confirm, Confirmed, Publisher};
pub use queue::{
    Copies, Counts, DeclareOptions, Declared, Loss, OnTotalLoss, PartitionFrontiers, PartitionInfo,
    PeekedRecord, Queue, QueueInfo,
};
pub use record::{Batch, Record, MAX_BATCH_BYTES};
pub use servers::Servers;
pub use setting::{ChangeOptions, Changed, InForce, Setting, Settings, Standing};
pub use subscribe::{SubscribeOptions, Subscription};
pub use wire::{
    error::{ErrorCode, WireError},
    vocabulary::{Boundary, Mode, RecordState, ReplicaRole},
};
