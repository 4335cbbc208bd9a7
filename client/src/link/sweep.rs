//! Watches deadlines and silence, so that nothing ever waits for good.

use std::{collections::VecDeque, sync::atomic::Ordering, time::Duration};

use tokio::time::{sleep, timeout, Instant};
use wire::{codec, message::Ping};

use super::{
    feed::FeedPhase,
    state::{Phase, Sent, Shared, State},
};
use crate::{
    config::DRAIN_TIME,
    error::{Error, Reason, SettleError},
};

/// Pace while something waits: a deadline is noticed at most this late.
const BUSY_PACE: Duration = Duration::from_millis(25);

/// Why one of several servers is left.
const STUCK_CAUSE: &str = "it puts everything off: it may be cut off from the other nodes";

impl Shared {
    /// Gives up what is past its deadline. Ends, with the cause, when the
    /// connection that stands has to be given up.
    pub(super) async fn sweep_loop(&self) -> String {
        let idle_pace = (self.config.heartbeat / 4).max(Duration::from_millis(1));
        let mut last = Instant::now();
        loop {
            if last.elapsed() >= self.config.heartbeat {
                // This runtime stood still, so the silence may be its own: what
                // has arrived meanwhile gets the time to be read.
                self.note_received();
            }
            last = Instant::now();
            // First of all, since between failing attempts to connect this is
            // started anew each time.
            if let Some(cause) = self.sweep() {
                return cause;
            }
            let idle = {
                let state = self.lock();
                state.is_idle() && matches!(state.phase, Phase::Up)
            };
            self.sweeping.store(!idle, Ordering::Release);
            if idle {
                // Work that came in before the store above shows at the end of
                // the pause at the latest, which no deadline is shorter than
                // by much; work after it ends the pause.
                let _ = timeout(idle_pace, self.busy.notified()).await;
                self.sweeping.store(true, Ordering::Release);
            } else {
                sleep(BUSY_PACE.min(idle_pace)).await;
            }
        }
    }

    fn sweep(&self) -> Option<String> {
        let now = Instant::now();
        let mut state = self.lock();
        self.expire_queued(&mut state, now);
        self.expire_sent(&mut state, now);
        self.expire_straight(&mut state, now);
        // What waits may have waited for a number that is over, here or on another link.
        let mut again = state.outbox.release(now) || !state.outbox.is_empty();
        for feed in state.feeds.values_mut() {
            if matches!(feed.phase, FeedPhase::Later(at) if at <= now) {
                feed.phase = FeedPhase::Wanted;
                again = true;
            }
        }
        if again {
            self.wake.notify_one();
        }
        let elsewhere = self.servers.len() > 1 && matches!(state.phase, Phase::Up);
        if elsewhere && state.stuck.is_over(now) {
            self.node_leaves(&mut state, STUCK_CAUSE.to_owned());
        }
        let cause = match &state.phase {
            Phase::Down { .. } => None,
            Phase::Draining { since, cause } if *since + DRAIN_TIME <= now => Some(cause.clone()),
            // The next server is there, and nothing is left to wait for here.
            Phase::Draining { cause, .. } if self.has_elsewhere() && state.owes_nothing() => {
                Some(cause.clone())
            }
            Phase::Draining { .. } | Phase::Up => self.check_silence(&mut state),
        };
        drop(state);
        self.answered.notify_waiters();
        cause
    }

    fn check_silence(&self, state: &mut State) -> Option<String> {
        let silence = self.silence();
        let heartbeat = self.config.heartbeat;
        if silence >= heartbeat * 3 {
            return Some(format!(
                "nothing was heard from the server for {} ms",
                silence.as_millis()
            ));
        }
        if silence >= heartbeat && state.control.is_empty() {
            // An empty body always fits a frame. Repeated pings do no harm.
            let _ = codec::encode(
                &mut state.control,
                self.next_correlation(),
                &Ping::default(),
            );
            self.wake.notify_one();
        }
        None
    }

    fn expire_queued(&self, state: &mut State, now: Instant) {
        let late = state.requests.iter().any(|r| r.deadline <= now);
        let mut expired = Vec::new();
        state.outbox.expire(now, &mut expired);
        if !late && expired.is_empty() {
            return;
        }
        let reason = Reason::NotSent {
            server: self.servers.text().to_owned(),
            cause: state.down_cause(),
        };
        for (waiter, refusal) in expired {
            // What the server last said of it tells more.
            let error = refusal.unwrap_or_else(|| Error::failed(reason.clone()));
            waiter.resolve(Err(error));
        }
        let (late, in_time): (VecDeque<_>, VecDeque<_>) = state
            .requests
            .drain(..)
            .partition(|request| request.deadline <= now);
        state.requests = in_time;
        for request in late {
            request.give_up(reason.clone());
        }
    }

    fn expire_sent(&self, state: &mut State, now: Instant) {
        let overdue: Vec<u64> = state
            .sent
            .iter()
            .filter(|(_, sent)| match sent {
                Sent::Publish(publish) => publish.is_overdue(now),
                Sent::Request(request) => request.deadline <= now,
                Sent::Settle(settle) => settle.deadline <= now,
                Sent::Subscribe(_) => false,
            })
            .map(|(correlation, _)| *correlation)
            .collect();
        let server = state.server();
        let timeout = Error::unknown(Reason::Timeout {
            server: server.clone(),
        });
        for correlation in overdue {
            match state.sent.get_mut(&correlation) {
                // It stays, without waiters: the server still counts it into
                // the window until it answers.
                Some(Sent::Publish(publish)) => {
                    for waiter in publish.batch.waiters.drain(..) {
                        waiter.resolve(Err(timeout.clone()));
                    }
                }
                _ => match state.sent.remove(&correlation) {
                    Some(Sent::Request(request)) => request.overdue(&server),
                    Some(Sent::Settle(settle)) => {
                        settle.resolve(|_| Err(SettleError::Request(timeout.clone())));
                    }
                    _ => {}
                },
            }
        }
    }
}
