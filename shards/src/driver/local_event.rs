//! A level-triggered flag with one waiting task, for use inside one executor.

use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    task::{Poll, Waker},
};

/// Set by anybody on the thread, awaited and taken by one task.
#[derive(Default)]
pub(super) struct LocalEvent {
    set: Cell<bool>,
    waiter: RefCell<Option<Waker>>,
}

impl LocalEvent {
    pub(super) fn set(&self) {
        if !self.set.replace(true) {
            if let Some(waker) = self.waiter.borrow_mut().take() {
                waker.wake();
            }
        }
    }

    /// Waits until the flag is set, and clears it.
    pub(super) async fn wait(&self) {
        poll_fn(|cx| {
            if self.set.take() {
                return Poll::Ready(());
            }
            *self.waiter.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
