//! Producers as bytes, for a checkpoint or a snapshot, and back.
//!
//! ```text
//! producers u32 × (id u64, epoch u32, last_ms u64, floor u64,
//!                  numbers u8 × (sequence u64, first_offset u64, count u32))
//! ```
//!
//! Plain little-endian; ids and numbers ascend.

use super::{Producer, Producers, Stored, MOST, WINDOW};
use crate::state::{command::CommandError, reader::Reader};

/// Bytes that are no producers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProducersError {
    #[error("truncated")]
    Truncated,
    #[error("out of order, or too many")]
    Disorder,
}

impl From<CommandError> for ProducersError {
    fn from(_: CommandError) -> Self {
        ProducersError::Truncated
    }
}

impl Producers {
    /// Appends them to a capture.
    pub fn capture(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.producers.len() as u32).to_le_bytes());
        for (id, producer) in &self.producers {
            out.extend_from_slice(&id.to_le_bytes());
            out.extend_from_slice(&producer.epoch.to_le_bytes());
            out.extend_from_slice(&producer.last_ms.to_le_bytes());
            out.extend_from_slice(&producer.floor.to_le_bytes());
            // At most WINDOW.
            out.push(producer.stored.len() as u8);
            for stored in &producer.stored {
                out.extend_from_slice(&stored.sequence.to_le_bytes());
                out.extend_from_slice(&stored.first.to_le_bytes());
                out.extend_from_slice(&stored.count.to_le_bytes());
            }
        }
    }

    /// Reads captured ones.
    ///
    /// # Errors
    /// The bytes are none.
    pub(in crate::state) fn restore(reader: &mut Reader<'_>) -> Result<Self, ProducersError> {
        let mut restored = Producers::default();
        let count = reader.u32()? as usize;
        if count > MOST {
            return Err(ProducersError::Disorder);
        }
        for _ in 0..count {
            let id = reader.u64()?;
            let producer = restore_one(reader)?;
            let last = restored.producers.last_key_value();
            if last.is_some_and(|(last, _)| *last >= id) {
                return Err(ProducersError::Disorder);
            }
            restored.numbers += producer.stored.len();
            restored.producers.insert(id, producer);
        }
        Ok(restored)
    }
}

fn restore_one(reader: &mut Reader<'_>) -> Result<Producer, ProducersError> {
    let mut producer = Producer {
        epoch: reader.u32()?,
        last_ms: reader.u64()?,
        floor: reader.u64()?,
        stored: Default::default(),
    };
    let numbers = usize::from(reader.u8()?);
    if numbers > WINDOW {
        return Err(ProducersError::Disorder);
    }
    for _ in 0..numbers {
        let stored = Stored {
            sequence: reader.u64()?,
            first: reader.u64()?,
            count: reader.u32()?,
        };
        let last = producer.stored.back();
        let after = last.is_none_or(|last| last.sequence < stored.sequence);
        if !after || stored.sequence < producer.floor {
            return Err(ProducersError::Disorder);
        }
        producer.stored.push_back(stored);
    }
    Ok(producer)
}
