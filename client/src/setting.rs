//! A queue's mode and copies, changed while it runs: what is desired, and what is in force
//! in each partition.

use wire::{
    message::{
        ArchivedExtension, ArchivedQueueInfoReply, ChangeQueue, Extension, QueueChanged,
        QueueInfoReply, ANY_REVISION, CHANGE_COPIES,
    },
    setting::InForce as Told,
    vocabulary::{Boundary, Mode},
};

pub use wire::setting::Standing;

use crate::{client::Client, error::Error, link::Effect, queue::Copies};

/// Which boundary a queue's confirms and deliveries wait for, and on how many copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    pub mode: Mode,
    pub copies: Copies,
    /// 0 = as declared; each change raises it.
    pub revision: u32,
}

/// What to change of a queue.
///
/// ```
/// use tidegate_client::{ChangeOptions, Copies, Mode};
/// let options = ChangeOptions::new("orders")
///     .mode(Mode::Durable)
///     .copies(Copies::All)
///     .revision(3);
/// ```
#[derive(Debug, Clone)]
pub struct ChangeOptions {
    name: String,
    body: ChangeQueue,
}

impl ChangeOptions {
    /// Of the queue `name`; what is not named is kept.
    pub fn new(name: impl Into<String>) -> Self {
        ChangeOptions {
            name: name.into(),
            body: ChangeQueue {
                revision: ANY_REVISION,
                ..ChangeQueue::default()
            },
        }
    }

    /// Durability mode.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.body.mode = mode as u8;
        self
    }

    /// W.
    pub fn copies(mut self, copies: Copies) -> Self {
        self.body.copies = copies.to_raw();
        self.body.flags |= CHANGE_COPIES;
        self
    }

    /// Only if the queue's setting is at this revision, or was when this change was made:
    /// asked again after its answer was lost it does nothing more.
    pub fn revision(mut self, revision: u32) -> Self {
        self.body.revision = revision;
        self
    }
}

/// The answer to a change: the cluster has it, and each partition gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// False when that was the setting before.
    pub changed: bool,
    /// What is desired now.
    pub setting: Setting,
}

/// What is in force in a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InForce {
    pub setting: Setting,
    /// Offsets from here on were published under it.
    pub since: u64,
    /// How far the latest change is.
    pub standing: Standing,
    /// Nodes that vote, and the boundary that the change's entry has reached on each; empty
    /// where the setting is as declared.
    pub replicas: Vec<(u32, Option<Boundary>)>,
    /// Why it is not applied yet; empty where it is.
    pub reason: String,
}

/// How far a queue's setting is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// As far as the nodes that answered know.
    pub desired: Setting,
    /// Index = partition; an error where nobody could say.
    pub partitions: Vec<Result<InForce, Error>>,
}

impl Settings {
    /// A setting of this revision, or a later one, is applied in every partition.
    pub fn are_applied(&self, revision: u32) -> bool {
        self.partitions.iter().all(|partition| {
            let in_force = partition.as_ref().ok();
            in_force.is_some_and(|it| {
                it.standing == Standing::Applied && it.setting.revision >= revision
            })
        })
    }
}

/// What a partition's leader says: what is desired as far as it knows, and what is in force.
pub(crate) fn read(raw: &ArchivedQueueInfoReply) -> Result<(Setting, InForce), String> {
    let mode = Mode::from_raw(raw.queue.mode)
        .ok_or_else(|| format!("unknown durability mode {}", raw.queue.mode))?;
    let desired = Setting {
        mode,
        copies: Copies::from_raw(raw.queue.copies),
        revision: revision_in(&raw.extensions),
    };
    let mut told = raw.extensions.iter();
    let told = told.find(|one| one.kind == Extension::IN_FORCE);
    let Some(told) = told else {
        return Ok((desired, InForce::as_declared(desired)));
    };
    let told = Told::decode(told.bytes.as_slice())
        .ok_or("what is in force in the partition does not decode")?;
    let in_force = InForce {
        setting: Setting {
            mode: told.mode,
            copies: Copies::from_raw(told.copies),
            revision: told.revision,
        },
        since: told.since,
        standing: told.standing,
        replicas: told.replicas,
        reason: told.reason,
    };
    Ok((desired, in_force))
}

fn revision_in(extensions: &[ArchivedExtension]) -> u32 {
    let mut told = extensions.iter();
    let told = told.find(|one| one.kind == Extension::REVISION);
    let bytes = told.and_then(|one| one.bytes.as_slice().try_into().ok());
    bytes.map_or(0, u32::from_le_bytes)
}

impl InForce {
    fn as_declared(setting: Setting) -> Self {
        InForce {
            setting,
            since: 0,
            standing: Standing::Applied,
            replicas: Vec::new(),
            reason: String::new(),
        }
    }
}

impl Client {
    /// Changes a queue's mode, its copies, or both, while it runs. What was published before
    /// keeps its promise. Answered once the cluster has it; [`Client::settings`] says how
    /// far each partition is.
    ///
    /// # Errors
    /// `UnknownQueue`; `StaleRevision` when the setting is at another revision than the one
    /// named; `MissingCopies` or `Invalid` where no confirm could keep the new one; or as any
    /// request. Without a revision an outcome may be unknown: look, or name one.
    pub async fn change(&self, options: ChangeOptions) -> Result<Changed, Error> {
        let queue = self.locate(&options.name).await?;
        let body = ChangeQueue {
            queue_id: queue.queue_id,
            ..options.body
        };
        let effect = match body.revision {
            ANY_REVISION => Effect::Once,
            _ => Effect::Idempotent,
        };
        let changed = self
            .home()
            .request(&body, effect)
            .read::<QueueChanged, _>(|reply| {
                let mode = Mode::from_raw(reply.mode)
                    .ok_or_else(|| format!("unknown durability mode {}", reply.mode))?;
                Ok(Changed {
                    changed: reply.changed != 0,
                    setting: Setting {
                        mode,
                        copies: Copies::from_raw(reply.copies),
                        revision: reply.revision.to_native(),
                    },
                })
            })
            .await?;
        self.understood(changed)
    }

    /// How far a queue's setting is, in each partition.
    ///
    /// # Errors
    /// `UnknownQueue`, or as any request. A partition that nobody can speak for now is an
    /// error in its place.
    pub async fn settings(&self, name: &str) -> Result<Settings, Error> {
        let queue = self.locate(name).await?;
        let mut desired = Setting {
            mode: queue.mode,
            copies: queue.copies,
            revision: 0,
        };
        let asked = self.ask_infos(&queue);
        let mut partitions = Vec::with_capacity(asked.len());
        for (_, reply) in asked {
            let told = reply.read::<QueueInfoReply, _>(read).await;
            let told = told.and_then(|told| self.understood(told));
            partitions.push(told.map(|(known, in_force)| {
                if known.revision >= desired.revision {
                    desired = known;
                }
                in_force
            }));
        }
        let gone = |partition: &Result<InForce, Error>| {
            let error = partition.as_ref().err();
            error.is_some_and(|error| error.code() == Some(wire::error::ErrorCode::UnknownQueue))
        };
        if let Some(Err(error)) = partitions.iter().find(|partition| gone(partition)) {
            return Err(error.clone());
        }
        Ok(Settings {
            desired,
            partitions,
        })
    }
}
