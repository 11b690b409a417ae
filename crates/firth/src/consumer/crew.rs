//! The crew: the workers of a consumer that runs a handler. Lanes decide what may run at the same time, so it needs no limit of its own.
//!
//! A lane starts the worker of a chunk itself. *Why not the task that awaits [`Run`](super::Run):* it would be woken, and polled, in between,
//! behind whatever else the lane set going; and whoever awaits it in `main` pays a system call for each wake-up.

use super::desk::Chunk;
use super::lane::Common;
use super::worker::{Handler, work};
use std::sync::Arc;
use tokio::task::JoinSet;

pub(crate) struct Crew {
    handler: Arc<Handler>,
    common: Arc<Common>,
    /// Aborted when dropped.
    workers: JoinSet<()>,
}

impl Crew {
    pub(crate) fn new(handler: Handler, common: Arc<Common>) -> Self {
        Self { handler: Arc::new(handler), common, workers: JoinSet::new() }
    }

    /// Starts a worker, and forgets those that are done.
    pub(crate) fn start(&mut self, chunk: Chunk) {
        while self.workers.try_join_next().is_some() {}
        self.workers.spawn(work(chunk, self.handler.clone(), self.common.clone()));
    }

    /// Stops whoever still works, and waits for their end.
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
        let (alive, (begin, mut begun)) = (Arc::new(()), mpsc::channel(1));
        let held = alive.clone();
        let run = broker.consumer("ends", "all").await.unwrap().run(move |_| {
            let (held, begin) = (held.clone(), begin.clone());
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
