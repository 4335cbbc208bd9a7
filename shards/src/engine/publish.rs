//! Publish: from a validated frame to a proposed entry.

use wire::{
    codec,
    error::{ErrorCode, Outcome},
    frame::Kind,
    limits::MAX_BATCH_RECORDS,
    message::{ArchivedPublish, Publish, PUBLISH_DURABLE},
    record,
    vocabulary::Boundary,
};

use super::{
    apply::fenced,
    core::Engine,
    gates::{Origin, PublishReply},
    partition::PartitionKey,
    relay::Routed,
    types::ConnKey,
};
use crate::{
    group::{GroupError, GroupId},
    io::BatchBuffer,
    log::AppendError,
    state::{
        command::Command,
        producer::{ProducerStamp, Verdict},
    },
};

/// Deadline and other waits of a client that names none, in ms.
pub(super) const DEFAULT_DEADLINE_MS: u32 = 30_000;

/// Entries of a group that may wait for its other replicas.
const MAX_UNAPPLIED: u64 = 64 << 10;

/// Why a request was refused: code and sentence. Nothing of it happened.
pub(super) type Refusal = (ErrorCode, String);

impl<B: BatchBuffer> Engine<B> {
    pub(super) fn on_publish(&mut self, conn: ConnKey, correlation: u64, body: &[u8]) {
        let mut reply = PublishReply {
            conn,
            correlation,
            deadline_ms: u64::MAX,
            bytes: body.len() as u32,
            durable: false,
            boundary: Boundary::Durable,
            generation: 0,
            answered: false,
        };
        let publish = match codec::decode::<Publish>(body) {
            Ok(publish) => publish,
            Err(error) => {
                let message = error.to_string();
                self.answer_publish(&reply, ErrorCode::Invalid, Outcome::Failed, message);
                return;
            }
        };
        let key = PartitionKey {
            queue_id: publish.queue_id.to_native(),
            partition: publish.partition.to_native(),
        };
        match self.route(conn, key, Kind::Publish, correlation, body) {
            Ok(Routed::Away { .. }) => return,
            Ok(Routed::Here) => self.tell_leader(conn, key),
            Err((code, message)) => {
                self.answer_publish(&reply, code, Outcome::Failed, message);
                return;
            }
        }
        if let Err((code, message)) = self.propose_publish(key, publish, &mut reply) {
            self.answer_publish(&reply, code, Outcome::Failed, message);
        }
    }

    fn propose_publish(
        &mut self,
        key: PartitionKey,
        publish: &ArchivedPublish,
        reply: &mut PublishReply,
    ) -> Result<(), Refusal> {
        check_fields(publish)?;
        let count = publish.count.to_native();
        record::check_batch(&publish.records, count)
            .map_err(|error| (ErrorCode::Invalid, error.to_string()))?;
        self.admits_publishes()?;
        let slot = self.partitions.get(&key).filter(|slot| !slot.dropping);
        let slot = slot.ok_or_else(|| self.no_partition(key))?;
        reply.durable = publish.flags.to_native() & PUBLISH_DURABLE != 0;
        // Until its entry is applied: the setting that is in force there counts.
        let mut boundary = slot.demand();
        if reply.durable {
            boundary = Boundary::Durable;
        }
        let deadline = match publish.deadline_ms.to_native() {
            0 => DEFAULT_DEADLINE_MS,
            deadline => deadline,
        };
        reply.boundary = boundary;
        reply.deadline_ms = self.server_ms + u64::from(deadline);
        let stamp_ms = self.time_in(slot.group);
        let producer = producer_of(publish);
        let command = Command::Append {
            queue_id: key.queue_id,
            partition: key.partition,
            stamp_ms,
            count,
            producer,
            records: &publish.records,
        };
        if !self.has_begun(slot) {
            return Err(unavailable());
        }
        if let Some(producer) = &producer {
            // What is on its way may yet fence it, too: the log has the last word.
            if let Verdict::Fenced { epoch } = slot.machine.judge(producer, stamp_ms) {
                return Err((ErrorCode::Fenced, fenced(epoch)));
            }
        }
        self.admits_entries(slot.group)?;
        self.check_level(command.level())?;
        reply.generation = slot.generation;
        let group = self.groups.get_mut(&slot.group.0).ok_or_else(unavailable)?;
        let head = command.head();
        let index = group
            .group
            .propose(&mut self.log, &[head.bytes(), command.tail()], boundary)
            .map_err(refused_by_log)?;
        group.origins.push_back((index, Origin::Publish(*reply)));
        group.set_proposed();
        self.timers.deadline_ms = self.timers.deadline_ms.min(reply.deadline_ms);
        Ok(())
    }

    /// A group whose followers do not keep up takes no more than this shard can hold.
    fn admits_entries(&self, group: GroupId) -> Result<(), Refusal> {
        let slot = self.groups.get(&group.0).ok_or_else(unavailable)?;
        if slot.group.unapplied() < MAX_UNAPPLIED {
            return Ok(());
        }
        let message = format!(
            "{MAX_UNAPPLIED} entries of {group} wait for a majority of its replicas; retry when they are back"
        );
        Err((ErrorCode::Overloaded, message))
    }

    /// Publishes are taken at all.
    fn admits_publishes(&self) -> Result<(), Refusal> {
        if self.latched {
            let message = "the log of this shard met an I/O error and accepts nothing until it is reopened; retry later";
            return Err((ErrorCode::Latched, message.to_owned()));
        }
        if self.draining {
            let message =
                "the server is shutting down; publish elsewhere or retry after its restart";
            return Err((ErrorCode::Unavailable, message.to_owned()));
        }
        self.refuses_for_room()
    }

    /// The group of a partition, and the shard that has its replica.
    pub(super) fn owner(&self, key: PartitionKey) -> Result<(GroupId, u16), Refusal> {
        if let Some(place) = self.directory.locate(key.queue_id, key.partition) {
            return Ok(place);
        }
        match self.directory.by_id(key.queue_id) {
            Some(queue) => Err((
                ErrorCode::UnknownPartition,
                format!(
                    "queue {:?} has partitions 0 to {}, not {}",
                    queue.name,
                    queue.groups.len().saturating_sub(1),
                    key.partition
                ),
            )),
            // It may well exist: this shard has not been told yet.
            None if !self.directory_known => Err(unavailable()),
            None if self.is_cluster() && !self.directory.is_deleted(key.queue_id) => {
                Err(not_heard_of())
            }
            None => Err(unknown_queue()),
        }
    }
}

impl<B: BatchBuffer> Engine<B> {
    /// Why a partition of ours is not there: its queue is gone, or it is about
    /// to be made.
    pub(super) fn no_partition(&self, key: PartitionKey) -> Refusal {
        match self.directory.by_id(key.queue_id) {
            Some(_) => unavailable(),
            None if !self.directory_known => unavailable(),
            None => unknown_queue(),
        }
    }
}

fn check_fields(publish: &ArchivedPublish) -> Result<(), Refusal> {
    let invalid = |message: &str| Err((ErrorCode::Invalid, message.to_owned()));
    let count = publish.count.to_native();
    if count == 0 {
        return invalid("a publish carries at least 1 record");
    }
    if count > MAX_BATCH_RECORDS {
        let message = format!("{count} records are above the batch limit of {MAX_BATCH_RECORDS}");
        return Err((ErrorCode::TooLarge, message));
    }
    if publish.flags.to_native() & !PUBLISH_DURABLE != 0 {
        return invalid("unknown publish flags are set");
    }
    let numbers = publish.sequence.to_native() | u64::from(publish.producer_epoch.to_native());
    if publish.producer_id.to_native() == 0 && numbers != 0 {
        return invalid("an epoch or a sequence needs a producer id other than 0");
    }
    Ok(())
}

/// The idempotent producer that it names, if it does.
fn producer_of(publish: &ArchivedPublish) -> Option<ProducerStamp> {
    let stamp = ProducerStamp {
        id: publish.producer_id.to_native(),
        epoch: publish.producer_epoch.to_native(),
        sequence: publish.sequence.to_native(),
    };
    (stamp.id != 0).then_some(stamp)
}

pub(super) fn unknown_queue() -> Refusal {
    let message = "no queue has this id; it was deleted or never declared: declare it, or locate it by name again";
    (ErrorCode::UnknownQueue, message.to_owned())
}

/// A node of a cluster hears of a declaration when group 0 tells it.
fn not_heard_of() -> Refusal {
    let message = "this node has not heard of a queue of this id: it is behind, or there never was one; retry shortly";
    (ErrorCode::Unavailable, message.to_owned())
}

pub(super) fn unavailable() -> Refusal {
    (
        ErrorCode::Unavailable,
        "the group is starting; retry shortly".to_owned(),
    )
}

/// A refused append is nothing that happened.
pub(super) fn refused_by_log(error: GroupError) -> Refusal {
    match error {
        GroupError::Log(AppendError::Backlog { bytes }) => (
            ErrorCode::Overloaded,
            format!("{bytes} bytes wait to be written and the bound is reached; publish slower or retry"),
        ),
        GroupError::Log(error @ AppendError::TooLarge { .. }) => {
            (ErrorCode::TooLarge, error.to_string())
        }
        GroupError::Log(AppendError::Latched) => (
            ErrorCode::Latched,
            "the log of this shard met an I/O error and is latched; retry later".to_owned(),
        ),
        GroupError::NotLeader(_) => unavailable(),
        GroupError::Raft(reason) => (ErrorCode::Internal, reason),
    }
}
