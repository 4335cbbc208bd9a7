//! Answers, matched to what was sent.

use std::{collections::HashMap, sync::Arc};

use wire::{
    codec,
    error::{ErrorCode, Outcome},
    message::{Confirm, SettleConfirm},
    vocabulary::Boundary,
};

use super::{
    feed::Fed,
    outbox::{QueuedPublish, SentPublish},
    request::Reply,
    settles::SentSettle,
    state::{Sent, Shared, State},
};
use crate::{
    delivery::Settled,
    error::{Error, Reason, SettleError, SubscribeError},
    publish::Confirmed,
};

/// Why a settle that the server refuses has no effect.
const STALE: &str =
    "its lease ran out, it was settled before, or its subscription ended; it has no effect";

impl Shared {
    pub(super) fn take_confirms(&self, body: &[u8]) -> Result<(), String> {
        let confirm = codec::decode::<Confirm>(body).map_err(|e| e.to_string())?;
        let mut state = self.lock();
        let mut freed = false;
        for item in confirm.items.iter() {
            let Some(sent) = state.take_publish(item.correlation.to_native()) else {
                continue;
            };
            freed = true;
            state.stuck.went_on();
            let records = sent.records();
            let boundary = Boundary::from_raw(item.boundary);
            match boundary.filter(|_| item.count.to_native() == records) {
                Some(boundary) => sent.confirm(&Confirmed {
                    queue_id: item.queue_id.to_native(),
                    partition: item.partition.to_native(),
                    generation: item.generation.to_native(),
                    offset: item.first_offset.to_native(),
                    count: item.count.to_native(),
                    boundary,
                    copies: item.copies,
                }),
                None => sent.fail(&Error::unknown(Reason::BadAnswer {
                    server: state.server(),
                    cause: format!(
                        "a confirm of {} records at boundary {} for a publish of {}",
                        item.count, item.boundary, records
                    ),
                })),
            }
        }
        let more = freed && !state.outbox.is_empty();
        drop(state);
        if more {
            self.wake.notify_one();
        }
        Ok(())
    }

    pub(super) fn take_settle_confirm(&self, correlation: u64, body: &[u8]) -> Result<(), String> {
        let confirm = codec::decode::<SettleConfirm>(body).map_err(|e| e.to_string())?;
        let (settle, server) = {
            let mut state = self.lock();
            (state.sent.remove(&correlation), state.server())
        };
        let Some(Sent::Settle(settle)) = settle else {
            // Not asked for: it only names what was refused.
            self.count_refused_settles(confirm.refused.len() as u64);
            return Ok(());
        };
        let refused: HashMap<(u64, u32), u16> = confirm
            .refused
            .iter()
            .map(|item| {
                let id = (item.offset.to_native(), item.attempt.to_native());
                (id, item.code.to_native())
            })
            .collect();
        let boundary = Boundary::from_raw(confirm.boundary);
        let copies = confirm.copies;
        settle.resolve(|item| match refused.get(&(item.offset, item.attempt)) {
            Some(code) => Err(settle_refusal(*code, STALE.to_owned())),
            None => match boundary {
                Some(boundary) => Ok(Settled { boundary, copies }),
                None => Err(SettleError::Request(Error::unknown(Reason::BadAnswer {
                    server: server.clone(),
                    cause: "a settle confirm that names no boundary".to_owned(),
                }))),
            },
        });
        Ok(())
    }

    pub(super) fn take_subscribed(&self, correlation: u64) {
        let mut state = self.lock();
        let Some(Sent::Subscribe(subscription)) = state.sent.remove(&correlation) else {
            return;
        };
        state.stuck.went_on();
        if let Some(feed) = state.feeds.get_mut(&subscription) {
            feed.accepted();
        }
    }

    pub(super) fn take_reply(&self, correlation: u64, reply: Reply) {
        let mut state = self.lock();
        // An answer that comes after its request was given up finds nobody.
        if let Some(Sent::Request(request)) = state.take_request(correlation) {
            drop(state);
            request.resolve(Ok(reply));
        }
    }

    /// An error frame that answers `correlation`.
    pub(super) fn take_refusal(
        self: &Arc<Self>,
        correlation: u64,
        code: u16,
        outcome: u8,
        message: String,
    ) {
        let reason = Reason::Server {
            code,
            message: message.clone(),
        };
        let error = if outcome == Outcome::Failed as u8 {
            Error::failed(reason)
        } else {
            Error::unknown(reason)
        };
        let mut state = self.lock();
        match state.sent.remove(&correlation) {
            Some(Sent::Publish(publish)) => {
                state.unanswered_bytes = state.unanswered_bytes.saturating_sub(publish.body_bytes);
                if self.config.retry_publishes
                    && !state.closed
                    && is_put_off(code, &error, &publish.batch)
                {
                    self.put_off(&mut state, correlation, publish.batch, error);
                } else {
                    publish.fail(&error);
                }
                self.wake.notify_one();
            }
            Some(Sent::Request(request)) => request.resolve(Err(error)),
            Some(Sent::Settle(settle)) => refuse_settle(settle, code, &error),
            Some(Sent::Subscribe(subscription)) => match ErrorCode::from_raw(code) {
                Some(ErrorCode::NotOwner) => {
                    drop(state);
                    self.send_on(subscription);
                }
                Some(ErrorCode::Unavailable) if self.try_elsewhere(&mut state, subscription) => {}
                _ => state.subscribe_refused(subscription, code, error),
            },
            // A settle that asked for no confirm, or something given up.
            None => self.count_refused_settles(1),
        }
    }
}

fn refuse_settle(settle: SentSettle, code: u16, error: &Error) {
    settle.resolve(|_| {
        if ErrorCode::from_raw(code) == Some(ErrorCode::StaleDelivery) {
            Err(SettleError::Stale { cause: STALE })
        } else {
            Err(error.clone().into())
        }
    });
}

fn settle_refusal(code: u16, message: String) -> SettleError {
    match ErrorCode::from_raw(code) {
        Some(ErrorCode::StaleDelivery | ErrorCode::StaleGeneration) => {
            SettleError::Stale { cause: STALE }
        }
        _ => Reason::Server { code, message }.into(),
    }
}

/// Nothing of it happened, and the server says that it can be asked again soon; or it
/// has a number, so that asking again does nothing twice.
fn is_put_off(code: u16, error: &Error, publish: &QueuedPublish) -> bool {
    let certain = !error.is_unknown() || publish.number.is_some();
    certain && ErrorCode::from_raw(code) == Some(ErrorCode::Unavailable)
}

/// Conditions that pass by themselves, so that asking again makes sense.
fn passes(code: u16) -> bool {
    matches!(
        ErrorCode::from_raw(code),
        Some(
            ErrorCode::Unavailable
                | ErrorCode::Overloaded
                | ErrorCode::Latched
                | ErrorCode::MissingCopies
                | ErrorCode::DiskFull
        )
    )
}

impl State {
    fn take_publish(&mut self, correlation: u64) -> Option<SentPublish> {
        match self.sent.remove(&correlation)? {
            Sent::Publish(sent) => {
                self.unanswered_bytes = self.unanswered_bytes.saturating_sub(sent.body_bytes);
                Some(sent)
            }
            other => {
                self.sent.insert(correlation, other);
                None
            }
        }
    }

    fn take_request(&mut self, correlation: u64) -> Option<Sent> {
        match self.sent.remove(&correlation)? {
            sent @ Sent::Request(_) => Some(sent),
            other => {
                self.sent.insert(correlation, other);
                None
            }
        }
    }

    fn subscribe_refused(&mut self, subscription: u32, code: u16, error: Error) {
        let Some(feed) = self.feeds.get_mut(&subscription) else {
            return;
        };
        if feed.first.is_none() && passes(code) {
            feed.put_off();
            self.stuck.put_off();
            return;
        }
        let Some(feed) = self.feeds.remove(&subscription) else {
            return;
        };
        match feed.first {
            Some(first) => {
                let _ = first.send(Err(error));
            }
            None => {
                let partition = feed.partition;
                let _ = feed.sender.send(Fed::Ended {
                    subscription,
                    error: SubscribeError::PartitionEnded { partition, error },
                });
            }
        }
    }
}
