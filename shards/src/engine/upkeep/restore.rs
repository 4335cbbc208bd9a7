//! A checkpoint's sections into what boot starts from.

use std::collections::BTreeMap;

use thiserror::Error;
use wire::message::LossReport;

use super::PackFile;
use crate::{
    engine::{
        core::Map,
        partition::{PartitionKey, PartitionSlot},
    },
    group::{GroupId, GroupState, GroupStateError, Recovered, Tail},
    log::bytes::{get_u32, get_u64},
    state::{
        meta::MetaState,
        queue::{Partition, RestoreError},
    },
    store::{Section, SectionKind, Sections, SectionsError, PACK_ENTRY_BYTES},
};

/// A checkpoint that verifies but does not make a state.
#[derive(Debug, Error)]
pub enum RestoreFailure {
    #[error(transparent)]
    Sections(#[from] SectionsError),
    #[error("a section of the checkpoint is truncated")]
    Truncated,
    #[error("records of no partition are in the checkpoint")]
    Orphans,
    #[error(transparent)]
    Partition(#[from] RestoreError),
    #[error("group {group} in the checkpoint: {source}")]
    Group { group: u32, source: GroupStateError },
    #[error("group 0 in the checkpoint: {0}")]
    Meta(String),
}

/// What a checkpoint held.
pub(in crate::engine) struct Restored {
    pub partitions: Map<PartitionKey, Box<PartitionSlot>>,
    pub groups: BTreeMap<u32, Recovered>,
    pub meta: Option<MetaState>,
    pub stamp_ms: u64,
    pub packs: BTreeMap<u32, PackFile>,
}

impl Restored {
    /// Reads a body; `data_groups` as the directory was created with.
    pub(in crate::engine) fn read(body: &[u8], data_groups: u32) -> Result<Self, RestoreFailure> {
        let mut restored = Restored {
            partitions: crate::engine::core::map(),
            groups: BTreeMap::new(),
            meta: None,
            stamp_ms: 0,
            packs: BTreeMap::new(),
        };
        let mut last = None;
        for section in Sections::new(body) {
            restored.section(section?, data_groups, &mut last)?;
        }
        Ok(restored)
    }

    fn section(
        &mut self,
        section: Section<'_>,
        data_groups: u32,
        last: &mut Option<PartitionKey>,
    ) -> Result<(), RestoreFailure> {
        let payload = section.payload;
        match section.kind {
            SectionKind::Partition => {
                let slot = read_partition(payload).ok_or(RestoreFailure::Truncated)??;
                *last = Some(slot.key);
                self.partitions.insert(slot.key, Box::new(slot));
            }
            SectionKind::Records => {
                let slot = last.as_ref().and_then(|key| self.partitions.get_mut(key));
                let slot = slot.ok_or(RestoreFailure::Orphans)?;
                slot.machine.restore_records(payload)?;
            }
            SectionKind::Group => {
                let (group, recovered) = read_group(payload)?;
                self.groups.insert(group, recovered);
            }
            SectionKind::Meta => {
                let meta = MetaState::restore(data_groups, payload);
                let meta = meta.map_err(|error| RestoreFailure::Meta(error.to_string()))?;
                self.meta = Some(meta);
            }
            SectionKind::Shard => {
                self.stamp_ms = get_u64(payload, 0).ok_or(RestoreFailure::Truncated)?;
            }
            // The log's, read when it is opened.
            SectionKind::Links => {}
            SectionKind::Packs => {
                for entry in payload.chunks(PACK_ENTRY_BYTES) {
                    let (file, pack) = read_pack(entry).ok_or(RestoreFailure::Truncated)?;
                    self.packs.insert(file, pack);
                }
            }
        }
        Ok(())
    }
}

fn read_pack(entry: &[u8]) -> Option<(u32, PackFile)> {
    let pack = PackFile {
        bytes: get_u64(entry, 4)?,
        record_bytes: get_u64(entry, 12)?,
        live_bytes: get_u64(entry, 20)?,
    };
    Some((get_u32(entry, 0)?, pack))
}

fn read_group(payload: &[u8]) -> Result<(u32, Recovered), RestoreFailure> {
    const HEAD: usize = 20;
    let fields = || {
        let group = get_u32(payload, 0)?;
        Some((group, get_u64(payload, 4)?, get_u64(payload, 12)?))
    };
    let (group, last_index, last_term) = fields().ok_or(RestoreFailure::Truncated)?;
    let state = GroupState::decode(payload.get(HEAD..).unwrap_or_default())
        .map_err(|source| RestoreFailure::Group { group, source })?;
    let recovered = Recovered {
        state,
        last_index,
        last_term,
        tail: Tail::new(last_index, last_term),
    };
    Ok((group, recovered))
}

pub(in crate::engine) fn read_partition(
    payload: &[u8],
) -> Option<Result<PartitionSlot, RestoreError>> {
    const HEAD: usize = 20;
    const LOSS: usize = 20;
    let group = GroupId(get_u32(payload, 0)?);
    let covered = get_u64(payload, 4)?;
    let generation = get_u32(payload, 12)?;
    let losses = (get_u32(payload, 16)? as usize).checked_mul(LOSS)?;
    let machine_at = HEAD.checked_add(losses)?;
    let losses = payload.get(HEAD..machine_at)?.chunks_exact(LOSS);
    let losses = losses.map(read_loss).collect::<Option<Vec<_>>>()?;
    let machine = match Partition::restore(payload.get(machine_at..)?) {
        Ok(machine) => machine,
        Err(error) => return Some(Err(error)),
    };
    let mut slot = PartitionSlot::new(*machine.spec(), group, generation);
    slot.machine = machine;
    slot.losses = losses;
    slot.covered = covered;
    Some(Ok(slot))
}

fn read_loss(entry: &[u8]) -> Option<LossReport> {
    Some(LossReport {
        generation: get_u32(entry, 0)?,
        first_lost: get_u64(entry, 4)?,
        highest_known_confirmed_next: get_u64(entry, 12)?,
    })
}
