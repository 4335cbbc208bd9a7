//! Connections that have not proved who they are: few at a time, and the oldest
//! goes when another one comes, so that silent ones never lock nodes out.

use std::{cell::RefCell, collections::VecDeque, future::Future, rc::Rc, time::Duration};

use futures_lite::future;
use glommio::timer::Timer;

use super::super::local_event::LocalEvent;

/// Of one shard, at a time.
pub(in crate::driver) const MOST_STRANGERS: usize = 64;
/// From accepting a connection (or being connected) to its end as a stranger.
pub(super) const HELLO_DEADLINE: Duration = Duration::from_secs(5);

/// Those of a shard, oldest first.
#[derive(Default)]
pub(super) struct Strangers {
    waiting: RefCell<VecDeque<Rc<LocalEvent>>>,
}

/// How a stranger's time ended.
pub(super) enum Met<T> {
    Done(T),
    Late,
    /// For a newer one.
    Crowded,
}

impl Strangers {
    /// Runs the handshake of one stranger, bounded.
    pub(super) async fn meet<T>(&self, handshake: impl Future<Output = T>) -> Met<T> {
        let cut = Rc::new(LocalEvent::default());
        self.enter(cut.clone());
        let done = async { Met::Done(handshake.await) };
        let late = async {
            Timer::new(HELLO_DEADLINE).await;
            Met::Late
        };
        let crowded = async {
            cut.wait().await;
            Met::Crowded
        };
        let met = future::or(done, future::or(late, crowded)).await;
        self.waiting
            .borrow_mut()
            .retain(|other| !Rc::ptr_eq(other, &cut));
        met
    }

    fn enter(&self, cut: Rc<LocalEvent>) {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.len() >= MOST_STRANGERS {
            if let Some(oldest) = waiting.pop_front() {
                oldest.set();
            }
        }
        waiting.push_back(cut);
    }
}
