//! Telling a peer that is gone from one that does not read.
//!
//! A peer that is gone without a word must be noticed within two heartbeats
//! (F51), so that what it held goes back: an idle connection is probed by
//! keepalive, bytes on their way are bounded by `TCP_USER_TIMEOUT`. That bound
//! also cuts a peer that is alive and merely does not read: its window stays
//! full, and the kernel counts the time, although the peer answers every probe
//! of its window. So, while a connection has unsent bytes and nothing in
//! flight, the bound is moved on for as long as the peer answers. The kernel
//! keeps the time between two probes within what is left of the bound, which
//! makes the answers come often enough to judge by.
//!
//! Invariants:
//! 1. The bound is moved only on the evidence of a recent acknowledgement, and
//!    never by more than a heartbeat beyond the next look.
//! 2. A connection that is being closed is not waited for.
//!
//! Never: closes anything; the kernel does, when the bound passes.

use std::{cell::Cell, rc::Rc, time::Duration};

use glommio::timer::Timer;

use super::{
    clock,
    fd::{self, Outstanding},
    shard::Shard,
};

/// How connections are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerLimits {
    /// Silence after which a peer is asked whether it is there; one that does
    /// not answer is gone after two. Whole seconds, at least 4.
    pub heartbeat: Duration,
    /// A frame that has begun and gets no byte for so long ends its connection.
    pub frame_deadline: Duration,
}

impl PeerLimits {
    /// Without an answer for so long a peer is gone.
    pub(super) fn gone_after(&self) -> Duration {
        self.heartbeat * 2
    }

    /// Between two looks at connections whose bytes are not taken.
    fn look(&self) -> Duration {
        self.heartbeat / 4
    }
}

/// What the watch knows of a connection.
#[derive(Default)]
pub(super) struct Watched {
    /// Bytes were sent since everything was seen to be acknowledged.
    pub wrote: Cell<bool>,
    stall: Cell<Option<Stall>>,
}

/// A window that has stayed full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stall {
    since_ms: u64,
    /// Bytes acknowledged then; more mean that it was not full all the time.
    acknowledged: u64,
}

/// What a look at a connection says.
#[derive(Debug, PartialEq, Eq)]
struct Judgement {
    stall: Option<Stall>,
    /// The bound to set; `None` leaves it.
    bound: Option<Duration>,
}

fn judge(limits: &PeerLimits, now_ms: u64, seen: &Outstanding, before: Option<Stall>) -> Judgement {
    let stalled = seen.unsent_bytes > 0 && seen.unacknowledged_segments == 0;
    if !stalled {
        return Judgement {
            stall: None,
            bound: before.map(|_| limits.gone_after()),
        };
    }
    let stall = before
        .filter(|stall| stall.acknowledged == seen.acknowledged_bytes)
        .unwrap_or(Stall {
            since_ms: now_ms,
            acknowledged: seen.acknowledged_bytes,
        });
    let beyond = limits.look() * 3;
    let answers = u128::from(seen.last_answer_ms) <= beyond.as_millis();
    // The kernel's count began at most a look before ours.
    let lasted = Duration::from_millis(now_ms.saturating_sub(stall.since_ms)) + limits.look();
    Judgement {
        stall: Some(stall),
        bound: answers.then(|| limits.gone_after().max(lasted + beyond)),
    }
}

/// Looks after the shard's connections until the process ends.
pub(super) async fn run(shard: Rc<Shard>) {
    let limits = shard.peers();
    loop {
        Timer::new(limits.look()).await;
        shard.each_socket(&mut |socket| {
            if let Some(descriptor) = socket.descriptor.get() {
                look_at(&limits, &socket.watched, descriptor, socket.is_closing());
            }
        });
    }
}

fn look_at(limits: &PeerLimits, watched: &Watched, descriptor: fd::Lent, closing: bool) {
    if !watched.wrote.get() {
        return;
    }
    // Best effort: an odd socket keeps the bound it has.
    let Ok(seen) = fd::outstanding(descriptor) else {
        return;
    };
    let judgement = if closing {
        Judgement {
            stall: None,
            bound: watched.stall.get().map(|_| limits.gone_after()),
        }
    } else {
        judge(limits, clock::mono_ms(), &seen, watched.stall.get())
    };
    watched.stall.set(judgement.stall);
    if let Some(bound) = judgement.bound {
        let _ = fd::bound_unanswered(descriptor, bound);
    }
    let idle = seen.unsent_bytes == 0 && seen.unacknowledged_segments == 0;
    watched.wrote.set(!idle);
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: PeerLimits = PeerLimits {
        heartbeat: Duration::from_secs(10),
        frame_deadline: Duration::from_secs(60),
    };
    const GONE_AFTER: Duration = Duration::from_secs(20);

    fn full(last_answer_ms: u32) -> Outstanding {
        Outstanding {
            unsent_bytes: 5,
            unacknowledged_segments: 0,
            last_answer_ms,
            acknowledged_bytes: 100,
        }
    }

    /// Looks at a full window every 2.5 s; gives the last bound in ms that was
    /// set, 0 for none.
    fn look_for(ms: u64, answers: impl Fn(u64) -> u32) -> (Option<Stall>, u64) {
        let (mut stall, mut bound) = (None, 0);
        for now in (0..=ms).step_by(2500) {
            let judgement = judge(&LIMITS, now, &full(answers(now)), stall);
            stall = judgement.stall;
            bound = judgement.bound.map_or(bound, |b| b.as_millis() as u64);
        }
        (stall, bound)
    }

    #[test]
    fn the_bound_stays_ahead_of_a_full_window_while_its_peer_answers() {
        for ms in [0, 10_000, 60_000, 3_600_000] {
            let (_, bound) = look_for(ms, |_| 5_000);
            // The kernel's count may be a look ahead of ours, and the next
            // look is a look away.
            assert!(bound >= ms + 5_000, "{bound} after {ms}");
            assert!(bound <= GONE_AFTER.as_millis() as u64 + ms, "{bound}");
        }
    }

    #[test]
    fn the_bound_stands_from_the_last_answer_on() {
        let died = 600_000;
        let (_, bound) = look_for(700_000, |now| now.saturating_sub(died) as u32);
        assert!(bound <= died + GONE_AFTER.as_millis() as u64, "{bound}");
    }

    #[test]
    fn a_window_that_opened_in_between_begins_anew() {
        let (stall, _) = look_for(600_000, |_| 0);
        let moved = Outstanding {
            acknowledged_bytes: 101,
            ..full(0)
        };
        let judgement = judge(&LIMITS, 602_500, &moved, stall);
        assert_eq!(judgement.bound, Some(GONE_AFTER));
        assert_eq!(judgement.stall.map(|stall| stall.since_ms), Some(602_500));
    }

    #[test]
    fn a_window_that_opens_gives_the_usual_bound_back() {
        let (stall, _) = look_for(600_000, |_| 0);
        let flowing = Outstanding {
            unacknowledged_segments: 1,
            ..full(0)
        };
        let judgement = judge(&LIMITS, 602_500, &flowing, stall);
        assert_eq!((judgement.stall, judgement.bound), (None, Some(GONE_AFTER)));
        let untouched = judge(&LIMITS, 605_000, &flowing, None);
        assert_eq!((untouched.stall, untouched.bound), (None, None));
    }
}
