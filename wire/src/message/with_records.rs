//! Publish and deliver bodies whose record bytes are written straight into the
//! frame instead of being owned by the body: one copy from socket or batch
//! buffer to frame.
//!
//! Owns: the two views and the order in which their parts are written.
//!
//! Invariants:
//! 1. The bytes equal those of the owned body with the same records.
//! 2. What fields point to is written in the order of the fields, because the
//!    validator refuses any other order.

use std::{cell::Cell, mem::offset_of};

use rkyv::{
    api::high::HighSerializer,
    rancor::Error as RkyvError,
    ser::{allocator::ArenaHandle, Positional},
    vec::VecResolver,
    Archive, Place, Serialize,
};

use super::{ArchivedDeliver, ArchivedPublish, Deliver, DeliverResolver, Publish, PublishResolver};
use crate::{codec::too_long, error::WireError};

/// What bodies are serialized with.
pub type BodySerializer<'a> = HighSerializer<Vec<u8>, ArenaHandle<'a>, RkyvError>;

/// Bytes of a body that a closure writes straight into the frame, in place of
/// an owned `Vec`. The validator wants what the fields point to in the order of
/// the fields, so the closure runs exactly when that field's turn has come.
struct Range<F> {
    fill: Cell<Option<F>>,
    len: Cell<usize>,
}

impl<F: FnOnce(&mut Vec<u8>)> Range<F> {
    fn new(fill: F) -> Self {
        Range {
            fill: Cell::new(Some(fill)),
            len: Cell::new(0),
        }
    }

    fn write(&self, serializer: &mut BodySerializer<'_>) -> VecResolver {
        let at = serializer.pos();
        if let Some(fill) = self.fill.take() {
            fill(&mut serializer.writer);
        }
        self.len.set(serializer.pos().saturating_sub(at));
        VecResolver::from_pos(at)
    }

    /// Writes the length into the body at the end of `out`, `root_bytes` long
    /// with the range at `field`; resolving left the empty owned field's zero.
    fn patch_len(&self, out: &mut [u8], root_bytes: usize, field: usize) -> Result<(), WireError> {
        let len = u32::try_from(self.len.get()).map_err(|_| too_long(self.len.get()))?;
        let at = out.len() - root_bytes + field + size_of::<u32>();
        out[at..at + size_of::<u32>()].copy_from_slice(&len.to_le_bytes());
        Ok(())
    }
}

/// A publish whose record bytes come from elsewhere.
pub(crate) struct PublishWith<'a, F> {
    body: &'a Publish,
    range: Range<F>,
}

impl<'a, F: FnOnce(&mut Vec<u8>)> PublishWith<'a, F> {
    pub(crate) fn new(body: &'a Publish, fill: F) -> Self {
        PublishWith {
            body,
            range: Range::new(fill),
        }
    }

    /// Completes the archived body that ends `out`.
    pub(crate) fn patch_len(&self, out: &mut [u8]) -> Result<(), WireError> {
        let field = offset_of!(ArchivedPublish, records);
        self.range
            .patch_len(out, size_of::<ArchivedPublish>(), field)
    }
}

impl<F> Archive for PublishWith<'_, F> {
    type Archived = ArchivedPublish;
    type Resolver = PublishResolver;

    fn resolve(&self, resolver: PublishResolver, out: Place<ArchivedPublish>) {
        self.body.resolve(resolver, out);
    }
}

impl<'s, F: FnOnce(&mut Vec<u8>)> Serialize<BodySerializer<'s>> for PublishWith<'_, F> {
    fn serialize(&self, out: &mut BodySerializer<'s>) -> Result<PublishResolver, RkyvError> {
        Ok(PublishResolver {
            queue_id: (),
            partition: (),
            flags: (),
            deadline_ms: (),
            producer_id: (),
            producer_epoch: (),
            sequence: (),
            trace: self.body.trace.serialize(out)?,
            count: (),
            records: self.range.write(out),
            extensions: self.body.extensions.serialize(out)?,
        })
    }
}

/// A deliver whose record bytes come from elsewhere.
pub(crate) struct DeliverWith<'a, F> {
    body: &'a Deliver,
    range: Range<F>,
}

impl<'a, F: FnOnce(&mut Vec<u8>)> DeliverWith<'a, F> {
    pub(crate) fn new(body: &'a Deliver, fill: F) -> Self {
        DeliverWith {
            body,
            range: Range::new(fill),
        }
    }

    /// Completes the archived body that ends `out`.
    pub(crate) fn patch_len(&self, out: &mut [u8]) -> Result<(), WireError> {
        let field = offset_of!(ArchivedDeliver, records);
        self.range
            .patch_len(out, size_of::<ArchivedDeliver>(), field)
    }
}

impl<F> Archive for DeliverWith<'_, F> {
    type Archived = ArchivedDeliver;
    type Resolver = DeliverResolver;

    fn resolve(&self, resolver: DeliverResolver, out: Place<ArchivedDeliver>) {
        self.body.resolve(resolver, out);
    }
}

impl<'s, F: FnOnce(&mut Vec<u8>)> Serialize<BodySerializer<'s>> for DeliverWith<'_, F> {
    fn serialize(&self, out: &mut BodySerializer<'s>) -> Result<DeliverResolver, RkyvError> {
        Ok(DeliverResolver {
            subscription: (),
            queue_id: (),
            partition: (),
            generation: (),
            deliveries: self.body.deliveries.serialize(out)?,
            records: self.range.write(out),
            extensions: self.body.extensions.serialize(out)?,
        })
    }
}
