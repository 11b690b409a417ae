//! [`Writers`]: tasks that go from connection to connection and write what waits there. There is
//! one for each thread of the runtime at most, and none when there is nothing to write.

use super::mailbox::Mailbox;
use super::now;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

/// A writer yields to other tasks after this many connections.
pub(super) const BATCH: usize = 64;

pub(super) struct Writers {
    most: usize,
    queue: Mutex<Queue>,
    runtime: Handle,
    tasks: TaskTracker,
}

/// No connection is in it twice for the same events, so it is no longer than a few times their
/// number.
#[derive(Default)]
struct Queue {
    due: VecDeque<Arc<Mailbox>>,
    at_work: usize,
}

impl Writers {
    pub(super) fn new(tasks: TaskTracker) -> Arc<Self> {
        let runtime = Handle::current();
        let most = runtime.metrics().num_workers();
        Arc::new(Self { most, queue: Mutex::default(), runtime, tasks })
    }

    /// Has these connections written to: directly where there is a raw socket.
    pub(super) fn give(self: &Arc<Self>, due: &mut Vec<Arc<Mailbox>>) {
        due.extract_if(.., |mailbox| !mailbox.has_socket()).for_each(|mailbox| mailbox.notify());
        let mut queue = self.queue();
        queue.due.extend(due.drain(..));
        while queue.at_work < self.most.min(queue.due.len().div_ceil(BATCH)) {
            queue.at_work += 1;
            self.tasks.spawn_on(self.clone().work(), &self.runtime);
        }
    }

    async fn work(self: Arc<Self>) {
        while let Some(batch) = self.next() {
            let now = now();
            batch.iter().for_each(|mailbox| mailbox.write(now));
            tokio::task::yield_now().await;
        }
    }

    /// The next connections; with `None`, this writer goes.
    fn next(&self) -> Option<Vec<Arc<Mailbox>>> {
        let mut queue = self.queue();
        if queue.due.is_empty() {
            queue.at_work -= 1;
            queue.due = VecDeque::new();
            return None;
        }
        let count = queue.due.len().min(BATCH);
        Some(queue.due.drain(..count).collect())
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
