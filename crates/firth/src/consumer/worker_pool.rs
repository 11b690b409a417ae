//! The workers of a consumer that runs a handler. Lanes decide what may run at the same time, so
//! the pool has no limit of its own.
//!
//! **Why a lane starts the worker of a chunk itself.** The task that awaits [`Run`](super::Run)
//! would be woken and polled in between, behind all other tasks that the lane woke. A task that
//! awaits it in `main` also pays a system call for each wake-up.

use super::lane::Common;
use super::ready_queue::Chunk;
use super::worker::{Handler, work};
use std::sync::Arc;
use tokio::task::JoinSet;

pub(crate) struct WorkerPool {
    handler: Arc<Handler>,
    common: Arc<Common>,
    /// Aborted when dropped.
    workers: JoinSet<()>,
}

impl WorkerPool {
    pub(crate) fn new(handler: Handler, common: Arc<Common>) -> Self {
        Self { handler: Arc::new(handler), common, workers: JoinSet::new() }
    }

    /// Starts a worker, and removes finished ones.
    pub(crate) fn start(&mut self, chunk: Chunk) {
        while self.workers.try_join_next().is_some() {}
        self.workers.spawn(work(chunk, self.handler.clone(), self.common.clone()));
    }

    /// Stops the running workers and waits for their end.
    pub(crate) async fn stop(mut self) {
        self.workers.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use crate::Broker;
    use std::future::{IntoFuture, pending};
    use std::sync::Arc;
    use tokio::sync::mpsc;

    #[tokio::test]
    async fn handlers_end_with_a_run_that_is_dropped() {
        let broker = Broker::memory();
        broker.create_topic("ends").await.unwrap();
        broker.producer("ends").await.unwrap().send("1").await.unwrap();
        let alive = Arc::new(());
        let (begin, mut begun) = mpsc::channel(1);
        let held = alive.clone();
        let run = broker.consumer("ends", "all").await.unwrap().run(move |_| {
            let held = held.clone();
            let begin = begin.clone();
            async move {
                begin.send(()).await?;
                pending::<()>().await;
                drop(held);
                Ok(())
            }
        });
        let run = tokio::spawn(run.into_future());
        begun.recv().await.unwrap();
        run.abort();
        assert!(run.await.unwrap_err().is_cancelled());
        while Arc::strong_count(&alive) > 1 {
            tokio::task::yield_now().await;
        }
    }
}
