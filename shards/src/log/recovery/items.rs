//! Items out of verified batches, fragments put together.

use crate::log::base::LogBase;
use crate::log::batch::{BatchHeader, BATCH_HEADER_BYTES};
use crate::log::item::{FragmentHeader, ItemHeader, Part, FRAGMENT_HEADER_BYTES, MAX_ITEM_BYTES};
use crate::log::position::LogPosition;

/// An item that survived, in log order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoveredItem<'a> {
    pub header: ItemHeader,
    /// Whole, fragments put together.
    pub payload: &'a [u8],
    /// Place of the payload's first byte.
    pub position: LogPosition,
    /// Ends of its fragments, each with the place where the payload goes on.
    pub links: &'a [(LogPosition, LogPosition)],
}

/// The place of payload byte `at` of an item that begins at `position` and
/// whose fragments go on as `links` say.
pub fn place_in(
    position: LogPosition,
    links: &[(LogPosition, LogPosition)],
    at: u32,
) -> LogPosition {
    let mut place = LogPosition(position.0 + u64::from(at));
    for (end, next) in links {
        if place < *end {
            break;
        }
        place = LogPosition(place.0 - end.0 + next.0);
    }
    place
}

/// Puts items together; memory is bounded by what was really read, never by a
/// length that a fragment names.
#[derive(Default)]
pub(crate) struct ItemAssembler {
    partial: Option<Partial>,
    /// Where payloads go on behind a fragment, in log order.
    pub links: Vec<(LogPosition, LogPosition)>,
    /// Items handed out.
    pub items: u64,
    /// Fragments whose item is not whole: unfinished when a life of the log
    /// ended, or partly damaged.
    pub dropped_fragments: u64,
    /// Nothing began yet: what continues belongs to an item in front of the
    /// place the walk began at, which the checkpoint covers.
    leading: bool,
}

struct Partial {
    item: ItemHeader,
    position: LogPosition,
    total: u32,
    payload: Vec<u8>,
    /// End of the last fragment.
    end: LogPosition,
    fragments: u64,
}

impl ItemAssembler {
    /// For a walk that begins at a checkpoint's anchor, if there is one.
    pub(crate) fn behind(base: Option<&LogBase>) -> Self {
        ItemAssembler {
            leading: base.is_some(),
            ..ItemAssembler::default()
        }
    }

    /// Takes a verified batch apart.
    pub(crate) fn batch(
        &mut self,
        header: &BatchHeader,
        batch: &[u8],
        on_item: &mut dyn FnMut(RecoveredItem<'_>),
    ) {
        let used = header.used_bytes() as usize;
        let mut at = BATCH_HEADER_BYTES;
        while at < used {
            let Some(fragment) = batch.get(at..used).and_then(FragmentHeader::decode) else {
                // Verified, yet not what any writer of this format writes.
                self.dropped_fragments += 1;
                self.gap();
                return;
            };
            at += FRAGMENT_HEADER_BYTES;
            let payload = at
                .checked_add(fragment.len as usize)
                .filter(|end| *end <= used)
                .and_then(|end| batch.get(at..end));
            let Some(payload) = payload else {
                self.dropped_fragments += 1;
                self.gap();
                return;
            };
            let position = LogPosition(header.position.0 + at as u64);
            self.fragment(&fragment, payload, position, on_item);
            at += payload.len();
        }
    }

    /// Something is missing here: an unfinished item will not be finished.
    pub(crate) fn gap(&mut self) {
        self.leading = false;
        if let Some(partial) = self.partial.take() {
            self.dropped_fragments += partial.fragments;
        }
    }

    fn fragment(
        &mut self,
        fragment: &FragmentHeader,
        payload: &[u8],
        position: LogPosition,
        on_item: &mut dyn FnMut(RecoveredItem<'_>),
    ) {
        let continues = matches!(fragment.part, Part::Middle { .. } | Part::Last { .. });
        self.leading &= continues;
        if self.leading {
            return;
        }
        match fragment.part {
            Part::Whole => {
                self.gap();
                self.items += 1;
                on_item(RecoveredItem {
                    header: fragment.item,
                    payload,
                    position,
                    links: &[],
                });
            }
            Part::First { total } => {
                self.gap();
                if total <= fragment.len || total > MAX_ITEM_BYTES {
                    self.dropped_fragments += 1;
                    return;
                }
                self.partial = Some(Partial {
                    item: fragment.item,
                    position,
                    total,
                    payload: payload.to_vec(),
                    end: LogPosition(position.0 + payload.len() as u64),
                    fragments: 1,
                });
            }
            Part::Middle { start } => self.continuation(fragment, start, payload, position),
            Part::Last { start } => {
                self.continuation(fragment, start, payload, position);
                let whole = self
                    .partial
                    .take_if(|partial| partial.payload.len() == partial.total as usize);
                match whole {
                    Some(partial) => {
                        self.items += 1;
                        let inner = partial.fragments.saturating_sub(1) as usize;
                        let first = self.links.len().saturating_sub(inner);
                        on_item(RecoveredItem {
                            header: partial.item,
                            payload: &partial.payload,
                            position: partial.position,
                            links: self.links.get(first..).unwrap_or_default(),
                        });
                    }
                    None => self.gap(),
                }
            }
        }
    }

    fn continuation(
        &mut self,
        fragment: &FragmentHeader,
        start: u32,
        payload: &[u8],
        position: LogPosition,
    ) {
        let fits = self.partial.as_mut().filter(|partial| {
            partial.item == fragment.item
                && partial.payload.len() == start as usize
                && u64::from(start) + u64::from(fragment.len) <= u64::from(partial.total)
        });
        match fits {
            Some(partial) => {
                self.links.push((partial.end, position));
                partial.payload.extend_from_slice(payload);
                partial.end = LogPosition(position.0 + payload.len() as u64);
                partial.fragments += 1;
            }
            None => {
                self.dropped_fragments += 1;
                self.gap();
            }
        }
    }
}
