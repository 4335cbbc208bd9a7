//! What keeps an executor going although glommio 0.9 can park it with tasks
//! ready: a pulse inside, and a watch outside that sees when the pulse stops.
//!
//! glommio's loop takes "preempted before any task ran" for "no task wants to
//! run", and parks. It happens when the preemption timer (1 ms while the
//! shard's queue has tasks) fires between its arming and the first task, so
//! when the thread loses its core at the wrong moment: on a crowded machine.
//! Any wake cures it. A timer inside is such a wake only while it has not
//! fired: a pulse whose own task is among those that are ready is parked with
//! them, and the executor sleeps until something from outside comes by, be it
//! half a minute later.
//!
//! 1. An executor that has work goes on when the pulse's timer fires, and if it
//!    has fired already, within two [`LOOK`]s; it is woken again and again until
//!    the pulse beats.
//! 2. A wake too many does nothing but an empty turn of the executor's loop.
//!
//! Never: touches the engine or a queue.

use std::{
    cell::Cell,
    future::poll_fn,
    rc::Rc,
    sync::{
        atomic::{AtomicU64, Ordering},
        Arc, Mutex, PoisonError,
    },
    task::{Poll, Waker},
    thread,
    time::Duration,
};

use glommio::timer::sleep;

/// Longest sleep of an executor that has work, and of one that has none.
const PULSE: Duration = Duration::from_millis(10);
const IDLE_PULSE: Duration = Duration::from_millis(50);
/// Pause between two looks of the watch. Above the longest pulse: a healthy
/// executor is not woken for nothing.
const LOOK: Duration = Duration::from_millis(60);
/// Looks at a heart that stands still after which only every so many-th wakes:
/// a thread that something else holds up (a hung disk) takes no wakes, and
/// glommio counts those that wait in 16 bits.
const PATIENT_LOOKS: u64 = 100;

/// One executor's sign of life.
#[derive(Default)]
pub(super) struct Heart {
    beats: AtomicU64,
    /// Of the pulse's task; there from its first poll on.
    waker: Mutex<Option<Waker>>,
}

impl Heart {
    /// Beats until the process ends, slower while `turns` stands still.
    pub(super) async fn pulse(self: Arc<Self>, turns: Rc<Cell<u64>>) {
        poll_fn(|cx| {
            *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
            Poll::Ready(())
        })
        .await;
        let mut seen = 0;
        loop {
            self.beats.fetch_add(1, Ordering::Relaxed);
            let idle = std::mem::replace(&mut seen, turns.get()) == seen;
            sleep(if idle { IDLE_PULSE } else { PULSE }).await;
        }
    }

    /// Gets the executor out of its park. From another thread this reaches it
    /// also when the pulse's task is scheduled already.
    fn wake(&self) {
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waker) = waker.as_ref() {
            waker.wake_by_ref();
        }
    }
}

/// A heart, and how many looks it has stood still for.
struct Watched {
    heart: Arc<Heart>,
    beats: u64,
    still: u64,
}

impl Watched {
    fn new(heart: Arc<Heart>) -> Self {
        Watched {
            heart,
            beats: 0,
            still: 0,
        }
    }

    fn look(&mut self) {
        let beats = self.heart.beats.load(Ordering::Relaxed);
        if std::mem::replace(&mut self.beats, beats) != beats {
            self.still = 0;
            return;
        }
        self.still += 1;
        if self.still < PATIENT_LOOKS || self.still.is_multiple_of(PATIENT_LOOKS) {
            self.heart.wake();
        }
    }
}

/// Watches over executors from a thread of its own, until the process ends:
/// one whose heart did not beat between two looks is woken.
///
/// # Errors
/// The thread could not be started.
pub(super) fn watch(hearts: Vec<Arc<Heart>>) -> std::io::Result<()> {
    let run = move || {
        let mut watched: Vec<Watched> = hearts.into_iter().map(Watched::new).collect();
        loop {
            thread::sleep(LOOK);
            for one in &mut watched {
                one.look();
            }
        }
    };
    thread::Builder::new()
        .name("watch".to_owned())
        .spawn(run)
        .map(drop)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use glommio::{LocalExecutorBuilder, Placement};

    use super::*;

    /// Bound on each wait; only a watch that does not wake needs it.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// An executor with no timer and nothing under way sleeps for good, as one
    /// does that parked with everything ready. Its heart stands still: it is
    /// woken, and again and again, since it may park the same way each time.
    #[test]
    fn an_executor_whose_heart_stands_still_is_woken_until_it_beats() {
        let heart = Arc::new(Heart::default());
        let (held, go) = (heart.clone(), Arc::new(AtomicBool::new(false)));
        let allowed = go.clone();
        let (polls_in, polls) = flume::unbounded::<u32>();
        let executor = LocalExecutorBuilder::new(Placement::Unbound)
            .spawn(move || async move {
                let mut count = 0;
                poll_fn(|cx| {
                    *held.waker.lock().unwrap() = Some(cx.waker().clone());
                    count += 1;
                    polls_in.send(count).unwrap();
                    match allowed.load(Ordering::Relaxed) {
                        true => Poll::Ready(()),
                        false => Poll::Pending,
                    }
                })
                .await;
            })
            .unwrap();
        watch(vec![heart]).unwrap();
        for count in 1..=5 {
            assert_eq!(polls.recv_timeout(PATIENCE), Ok(count));
        }
        go.store(true, Ordering::Relaxed);
        executor.join().unwrap();
    }

    /// A thread that is held up takes no wakes; they must not pile up.
    #[test]
    fn a_heart_that_stands_still_for_long_is_woken_rarely() {
        let wakes = Arc::new(CountWakes::default());
        let heart = Arc::new(Heart::default());
        *heart.waker.lock().unwrap() = Some(wakes.clone().into());
        let mut watched = Watched::new(heart.clone());
        let mut after = |looks: u64| {
            (0..looks).for_each(|_| watched.look());
            wakes.0.load(Ordering::Relaxed)
        };
        assert_eq!(after(PATIENT_LOOKS), PATIENT_LOOKS);
        assert_eq!(after(5 * PATIENT_LOOKS), PATIENT_LOOKS + 5);
        heart.beats.fetch_add(1, Ordering::Relaxed);
        assert_eq!(after(1), PATIENT_LOOKS + 5, "it beats");
        assert_eq!(after(1), PATIENT_LOOKS + 6, "it stands still again");
    }

    #[derive(Default)]
    struct CountWakes(AtomicU64);

    impl std::task::Wake for CountWakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}
