//! Declaring, describing and emptying queues, and waiting for boundaries.
//!
//! Each call by name locates the queue first, so it never acts on one that
//! was deleted and declared again meanwhile. What is per partition is asked
//! of all partitions at the same time.

use std::time::Duration;

use tokio::time::Instant;
use wire::{
    codec::Body,
    limits::MAX_PEEK_RECORDS,
    message::{
        ArchivedPeekReply, Barrier, BarrierReply, Declare, Declared as DeclaredBody, Delete,
        Deleted, Frontiers, FrontiersReply, List, ListReply, Locate, LocateReply, Peek, PeekReply,
        Purge, Purged, QueueInfo as QueueInfoBody, QueueInfoReply,
    },
    name::check_name,
    record::Record,
    vocabulary::RecordState,
};

use crate::{
    client::Client,
    config::ANSWER_GRACE,
    error::{Error, Reason},
    link::{Effect, PendingReply},
    queue::{
        DeclareOptions, Declared, OnTotalLoss, PartitionFrontiers, PartitionInfo, PeekedRecord,
        Queue, QueueInfo,
    },
};

/// What to peek at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeekOptions {
    /// Only this partition; `None` = all, one after the other.
    pub partition: Option<u16>,
    /// Not below this offset.
    pub from_offset: u64,
    /// At most this many records, all partitions together.
    pub max_records: u32,
}

impl Default for PeekOptions {
    fn default() -> Self {
        PeekOptions {
            partition: None,
            from_offset: 0,
            max_records: 10,
        }
    }
}

impl Client {
    /// Creates a queue, or checks that it exists as described.
    ///
    /// # Errors
    /// `Conflict` when a named field has another value; the message names it.
    pub async fn declare(&self, options: impl Into<DeclareOptions>) -> Result<Declared, Error> {
        let options = options.into();
        let body: &Declare = options.body();
        checked(&body.name)?;
        self.forget_route(&body.name);
        let declared = self
            .home()
            .request(body, Effect::Idempotent)
            .read::<DeclaredBody, _>(|reply| {
                Queue::read(&reply.queue).map(|queue| Declared {
                    created: reply.created != 0,
                    queue,
                    on_total_loss: OnTotalLoss::read(&reply.extensions),
                })
            })
            .await?;
        self.understood(declared)
    }

    /// The queue called `name`.
    ///
    /// # Errors
    /// `UnknownQueue` when there is none.
    pub async fn locate(&self, name: &str) -> Result<Queue, Error> {
        let body = Locate {
            name: checked(name)?.to_owned(),
            ..Locate::default()
        };
        let queue = self
            .home()
            .request(&body, Effect::Read)
            .read::<LocateReply, _>(|reply| Queue::read(&reply.queue))
            .await?;
        self.understood(queue)
    }

    /// All queues, in byte order of their names. Queues declared or deleted
    /// meanwhile may or may not show.
    ///
    /// # Errors
    /// As any request.
    pub async fn list(&self) -> Result<Vec<Queue>, Error> {
        let mut queues: Vec<Queue> = Vec::new();
        loop {
            let body = List {
                after: queues.last().map_or_else(String::new, |q| q.name.clone()),
                ..List::default()
            };
            let page = self
                .home()
                .request(&body, Effect::Read)
                .read::<ListReply, _>(|reply| {
                    let page: Result<Vec<Queue>, String> =
                        reply.queues.iter().map(Queue::read).collect();
                    page.map(|page| (page, reply.more != 0))
                })
                .await?;
            let (page, more) = self.understood(page)?;
            let progress = page.last().is_some_and(|last| last.name > body.after);
            queues.extend(page);
            // A page that does not go on would repeat for ever.
            if !more || !progress {
                return Ok(queues);
            }
        }
    }

    /// State and counters of the queue, with both frontiers of each partition.
    ///
    /// # Errors
    /// `UnknownQueue`, or as any request.
    pub async fn info(&self, name: &str) -> Result<QueueInfo, Error> {
        let queue = self.locate(name).await?;
        let asked = self.ask_infos(&queue);
        let mut partitions = Vec::with_capacity(asked.len());
        for (_, reply) in asked {
            let info = reply.read::<QueueInfoReply, _>(PartitionInfo::read).await?;
            partitions.push(self.understood(info)?);
        }
        let mut info = QueueInfo { queue, partitions };
        // Whoever located it may not have heard of the last change.
        if let Some(desired) = info.desired().filter(|desired| desired.revision > 0) {
            (info.queue.mode, info.queue.copies) = (desired.mode, desired.copies);
        }
        Ok(info)
    }

    /// Both frontiers of each partition; index = partition.
    ///
    /// # Errors
    /// `UnknownQueue`, or as any request.
    pub async fn frontiers(&self, name: &str) -> Result<Vec<PartitionFrontiers>, Error> {
        let queue = self.locate(name).await?;
        let asked = self.ask_each(&queue, |partition| Frontiers {
            queue_id: queue.queue_id,
            partition,
            ..Frontiers::default()
        });
        let mut frontiers = Vec::with_capacity(asked.len());
        for (partition, reply) in asked {
            let read = reply.read::<FrontiersReply, _>(|r| PartitionFrontiers::read(partition, r));
            frontiers.push(read.await?);
        }
        Ok(frontiers)
    }

    /// Waits until everything that the queue has taken before is durable on
    /// its copies, whatever its mode. Gives each partition's frontiers then.
    ///
    /// # Errors
    /// `Deadline` when it takes longer than `deadline` (at least 1 ms), or as
    /// any request.
    pub async fn barrier(
        &self,
        name: &str,
        deadline: Duration,
    ) -> Result<Vec<PartitionFrontiers>, Error> {
        let queue = self.locate(name).await?;
        let deadline_ms = u32::try_from(deadline.as_millis()).unwrap_or(u32::MAX);
        let answer_by = Instant::now() + deadline + ANSWER_GRACE;
        let mut asked = Vec::new();
        for partition in numbers(&queue) {
            let body = Barrier {
                queue_id: queue.queue_id,
                partition,
                // 0 would mean the server's default.
                deadline_ms: deadline_ms.max(1),
                ..Barrier::default()
            };
            let link = self.link_of(&queue, partition);
            asked.push((partition, link.request_by(&body, Effect::Read, answer_by)));
        }
        let mut reached = Vec::with_capacity(asked.len());
        for (partition, reply) in asked {
            let read = reply.read::<BarrierReply, _>(|raw| PartitionFrontiers {
                partition,
                generation: raw.generation.to_native(),
                written_next: raw.written_next.to_native(),
                durable_next: raw.durable_next.to_native(),
                copies: raw.copies,
            });
            reached.push(read.await?);
        }
        Ok(reached)
    }

    /// Reads records without disturbing order, leases or counters.
    ///
    /// # Errors
    /// `UnknownQueue`, `UnknownPartition`, or as any request.
    pub async fn peek(&self, name: &str, options: PeekOptions) -> Result<Vec<PeekedRecord>, Error> {
        let queue = self.locate(name).await?;
        let partitions = match options.partition {
            Some(partition) => partition..partition.saturating_add(1),
            None => numbers(&queue),
        };
        let mut records: Vec<PeekedRecord> = Vec::new();
        for partition in partitions {
            let mut from_offset = options.from_offset;
            loop {
                let missing = options.max_records as usize - records.len();
                if missing == 0 {
                    return Ok(records);
                }
                let max_records = missing.min(MAX_PEEK_RECORDS as usize) as u32;
                let body = Peek {
                    queue_id: queue.queue_id,
                    partition,
                    from_offset,
                    max_records,
                    ..Peek::default()
                };
                let page = self
                    .link_of(&queue, partition)
                    .request(&body, Effect::Read)
                    .read::<PeekReply, _>(|reply| read_peeked(partition, reply))
                    .await?;
                let mut page = self.understood(page)?;
                page.truncate(missing);
                // Fewer than asked for may be a full frame: only an empty page is the end.
                let Some(last) = page.last() else { break };
                from_offset = last.offset.max(from_offset).saturating_add(1);
                records.append(&mut page);
            }
        }
        Ok(records)
    }

    /// Drops every record that is not leased; gives how many.
    ///
    /// # Errors
    /// As any request. An error may come after some partitions were purged.
    pub async fn purge(&self, name: &str) -> Result<u64, Error> {
        let queue = self.locate(name).await?;
        let mut asked = Vec::new();
        for partition in numbers(&queue) {
            let body = Purge {
                queue_id: queue.queue_id,
                partition,
                ..Purge::default()
            };
            let link = self.link_of(&queue, partition);
            asked.push(link.request(&body, Effect::Once));
        }
        let mut records = 0;
        for reply in asked {
            records += reply
                .read::<Purged, _>(|reply| reply.records.to_native())
                .await?;
        }
        Ok(records)
    }

    /// Deletes the queue with all its records; gives its id, which is never reused.
    ///
    /// # Errors
    /// `UnknownQueue`, or as any request.
    pub async fn delete(&self, name: &str) -> Result<u64, Error> {
        let queue = self.locate(name).await?;
        self.forget_route(name);
        let body = Delete {
            queue_id: queue.queue_id,
            ..Delete::default()
        };
        self.home()
            .request(&body, Effect::Once)
            .read::<Deleted, _>(|reply| reply.queue_id.to_native())
            .await
    }

    /// Asks each partition how it is.
    pub(crate) fn ask_infos(&self, queue: &Queue) -> Vec<(u16, PendingReply)> {
        self.ask_each(queue, |partition| QueueInfoBody {
            queue_id: queue.queue_id,
            partition,
            ..QueueInfoBody::default()
        })
    }

    pub(crate) fn ask_each<T>(
        &self,
        queue: &Queue,
        body: impl Fn(u16) -> T,
    ) -> Vec<(u16, PendingReply)>
    where
        T: Body + crate::link::Encode,
    {
        numbers(queue)
            .map(|partition| {
                let link = self.link_of(queue, partition);
                (partition, link.request(&body(partition), Effect::Read))
            })
            .collect()
    }

    pub(crate) fn understood<T>(&self, read: Result<T, String>) -> Result<T, Error> {
        read.map_err(|cause| {
            Error::failed(Reason::BadAnswer {
                server: self.server().to_owned(),
                cause,
            })
        })
    }
}

pub(crate) fn checked(name: &str) -> Result<&str, Error> {
    check_name(name).map_err(|error| Error::failed(Reason::Invalid(error)))
}

fn numbers(queue: &Queue) -> std::ops::Range<u16> {
    0..u16::try_from(queue.shards.len()).unwrap_or(u16::MAX)
}

fn read_peeked(partition: u16, reply: &ArchivedPeekReply) -> Result<Vec<PeekedRecord>, String> {
    let mut rest = &reply.records[..];
    let mut records = Vec::with_capacity(reply.peeked.len());
    for (index, peeked) in (0_u32..).zip(reply.peeked.iter()) {
        let (bytes, behind) = rest
            .split_at_checked(peeked.len.to_native() as usize)
            .ok_or("a peeked record is longer than its frame")?;
        rest = behind;
        let record = Record::parse(bytes, index).map_err(|error| error.to_string())?;
        record.verify(index).map_err(|error| error.to_string())?;
        records.push(PeekedRecord {
            partition,
            generation: reply.generation.to_native(),
            offset: peeked.offset.to_native(),
            state: RecordState::from_raw(peeked.state)
                .ok_or_else(|| format!("unknown record state {}", peeked.state))?,
            attempts: peeked.attempts.to_native(),
            key: record.key.to_vec(),
            headers: record.headers.to_vec(),
            payload: record.payload.to_vec(),
        });
    }
    Ok(records)
}
