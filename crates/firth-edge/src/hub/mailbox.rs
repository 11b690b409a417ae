//! [`Mailbox`]: a connection's queue, what wakes its task, and, if it has one, the [`RawSocket`]
//! for direct writes.
//!
//! To wake a task costs half as much as a small write, so the hub writes events directly whenever
//! nothing else is to be said first. The outbox decides who writes: a task that has taken something
//! is the only one to write until it says that it has.

use super::notifier::TaskNotifier;
use crate::outbox::Outbox;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::net::TcpStream;

/// A socket that can be written to without waiting.
pub(crate) trait RawSocket: Send + Sync {
    /// Writes what there is room for.
    fn try_write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize>;
}

impl RawSocket for TcpStream {
    fn try_write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match pieces {
            [one] => Self::try_write(self, one),
            many => self.try_write_vectored(many),
        }
    }
}

pub(crate) struct Mailbox {
    outbox: Mutex<Outbox>,
    notifier: TaskNotifier,
    socket: OnceLock<Arc<dyn RawSocket>>,
}

impl Mailbox {
    pub(super) fn new(outbox: Outbox) -> Self {
        Self { outbox: Mutex::new(outbox), notifier: TaskNotifier::default(), socket: OnceLock::new() }
    }

    pub(super) fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on events may be written to this socket directly.
    pub(super) fn attach(&self, socket: Arc<dyn RawSocket>) {
        // The first socket of a connection stays.
        let _ = self.socket.set(socket);
    }

    pub(super) fn has_socket(&self) -> bool {
        self.socket.get().is_some()
    }

    /// Wakes the connection's task.
    pub(super) fn notify(&self) {
        self.notifier.notify();
    }

    pub(super) fn poll_notified(&self, context: &Context<'_>) -> Poll<()> {
        self.notifier.poll_notified(context)
    }

    /// Writes directly what waits; what cannot be written so is for the task.
    pub(super) fn write(&self, now: Instant) {
        let Some(socket) = self.socket.get() else { return self.notify() };
        let is_done = self.outbox().write_direct(now, |pieces| socket.try_write(pieces));
        if !is_done {
            self.notify();
        }
    }
}
