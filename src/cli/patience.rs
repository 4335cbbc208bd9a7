//! Asking again what a server puts off: a group that is starting serves soon.
//!
//! Invariants:
//! 1. Only what certainly did not happen (outcome failed) is asked again.
//! 2. It ends: after [`LONGEST`], or the command's own deadline if that comes
//!    first, the refusal is the answer.

use std::{future::Future, time::Duration};

use client::{Error, ErrorCode};
use tokio::time::{sleep, Instant};

/// How long a command asks again at most.
const LONGEST: Duration = Duration::from_secs(10);
/// First and longest pause between two tries.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long one command puts up with "not yet".
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    until: Instant,
    /// The command's own deadline.
    deadline: Option<Instant>,
}

impl Patience {
    /// For a command without a deadline of its own.
    pub fn new() -> Self {
        Patience {
            until: Instant::now() + LONGEST,
            deadline: None,
        }
    }

    /// For a command that has to end after `deadline`.
    pub fn within(deadline: Duration) -> Self {
        let now = Instant::now();
        Patience {
            until: now + LONGEST.min(deadline),
            deadline: Some(now + deadline),
        }
    }

    /// What is left of the command's deadline, for the next try; at least 1 ms.
    pub fn left(&self) -> Option<Duration> {
        self.deadline.map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            left.max(Duration::from_millis(1))
        })
    }

    /// Asks until the answer is another than "not yet".
    pub async fn ask<T, F, Fut>(&self, mut question: F) -> Result<T, Error>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<T, Error>>,
    {
        let mut pause = FIRST_PAUSE;
        loop {
            let answer = question().await;
            let now = Instant::now();
            match &answer {
                Err(error) if passes(error) && now < self.until => {}
                _ => return answer,
            }
            sleep(pause.min(self.until - now)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Nothing of it happened, and the server said that it is not ready yet.
fn passes(error: &Error) -> bool {
    !error.is_unknown() && error.code() == Some(ErrorCode::Unavailable)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use client::Reason;

    use super::*;

    fn refusal(code: ErrorCode) -> Error {
        let reason = Reason::Server {
            code: code as u16,
            message: "the group is starting; retry shortly".to_owned(),
        };
        Error::Failed { reason }
    }

    /// Tries made, and the answer, when the first `refused` get `error`.
    fn ask(patience: Patience, refused: u32, error: &Error) -> (u32, Result<(), Error>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let tries = Cell::new(0);
        let answer = runtime.block_on(patience.ask(|| {
            tries.set(tries.get() + 1);
            let answer = if tries.get() > refused {
                Ok(())
            } else {
                Err(error.clone())
            };
            std::future::ready(answer)
        }));
        (tries.get(), answer)
    }

    #[test]
    fn what_is_put_off_is_asked_again_until_it_is_there() {
        let starting = refusal(ErrorCode::Unavailable);
        assert_eq!(ask(Patience::new(), 2, &starting), (3, Ok(())));
    }

    #[test]
    fn a_refusal_for_good_and_an_unknown_outcome_are_the_answer_at_once() {
        let unknown = Error::Unknown {
            reason: refusal(ErrorCode::Unavailable).reason().clone(),
        };
        for error in [refusal(ErrorCode::Conflict), unknown] {
            assert_eq!(ask(Patience::new(), 1, &error), (1, Err(error.clone())));
        }
    }

    #[test]
    fn the_commands_own_deadline_ends_the_asking() {
        let starting = refusal(ErrorCode::Unavailable);
        let (tries, answer) = ask(Patience::within(Duration::from_millis(60)), 1000, &starting);
        assert_eq!(answer, Err(starting));
        assert!((2..1000).contains(&tries), "{tries}");
    }
}
