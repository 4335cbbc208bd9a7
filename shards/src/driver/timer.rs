//! One timer per shard, moved only when something is due earlier.

use std::{cell::Cell, rc::Rc, time::Duration};

use futures_lite::future;
use glommio::timer::Timer;

use super::{clock, local_event::LocalEvent};

#[derive(Default)]
pub(super) struct ShardTimer {
    /// Monotonic ms; 0 = not armed.
    armed: Cell<u64>,
    earlier: LocalEvent,
}

impl ShardTimer {
    /// Asks to be called at `due_ms` at the latest.
    pub(super) fn arm(&self, due_ms: Option<u64>) {
        let Some(due) = due_ms else { return };
        let due = due.max(1);
        if self.armed.get() == 0 || due < self.armed.get() {
            self.armed.set(due);
            self.earlier.set();
        }
    }

    /// Calls `fire` when due; `fire` arms again.
    pub(super) async fn run(self: Rc<Self>, fire: impl Fn()) {
        loop {
            let due = self.armed.get();
            if due == 0 {
                self.earlier.wait().await;
                continue;
            }
            let now = clock::mono_ms();
            if now >= due {
                self.armed.set(0);
                fire();
                continue;
            }
            let sleep = async {
                Timer::new(Duration::from_millis(due - now)).await;
            };
            future::or(sleep, self.earlier.wait()).await;
        }
    }
}
