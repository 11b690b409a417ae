//! [`Mailbox`]: a connection's queue, what wakes its task, and, if it has one, the [`Line`] to its socket past the task.
//!
//! To wake a task costs half as much as a small write, so events go along the line whenever nothing else is to be said first. The outbox knows
//! whose turn it is: a task that has taken something is the only one to write until it says that it has.

use super::bell::Bell;
use crate::outbox::Outbox;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::net::TcpStream;

/// A socket that anyone can write to without waiting.
pub(crate) trait Line: Send + Sync {
    /// Writes what there is room for.
    fn try_write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize>;
}

impl Line for TcpStream {
    fn try_write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match pieces {
            [one] => Self::try_write(self, one),
            many => self.try_write_vectored(many),
        }
    }
}

pub(crate) struct Mailbox {
    outbox: Mutex<Outbox>,
    bell: Bell,
    line: OnceLock<Arc<dyn Line>>,
}

impl Mailbox {
    pub(super) fn new(outbox: Outbox) -> Self {
        Self { outbox: Mutex::new(outbox), bell: Bell::default(), line: OnceLock::new() }
    }

    pub(super) fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on events may go along this line.
    pub(super) fn attach(&self, line: Arc<dyn Line>) {
        // A second line would lead to another socket: the first stays.
        let _ = self.line.set(line);
    }

    pub(super) fn has_line(&self) -> bool {
        self.line.get().is_some()
    }

    /// Wakes the connection's task.
    pub(super) fn ring(&self) {
        self.bell.ring();
    }

    pub(super) fn poll_rung(&self, context: &Context<'_>) -> Poll<()> {
        self.bell.poll_heard(context)
    }

    /// What waits goes along the line; what cannot is for the task.
    pub(super) fn write(&self, now: Instant) {
        let Some(line) = self.line.get() else { return self.ring() };
        let is_done = self.outbox().pass(now, |pieces| line.try_write(pieces));
        if !is_done {
            self.ring();
        }
    }
}
