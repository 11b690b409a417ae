//! [`Background`]: the task behind a handle, and how it ended.

use crate::error::{Error, ErrorKind, Result};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::task::{AbortHandle, JoinHandle};
use tokio_util::task::AbortOnDropHandle;

/// A task that ends once. Dropping this aborts it.
pub(crate) struct Background {
    aborter: AbortHandle,
    /// `None` after it was told how the task ended.
    ended: Option<Pin<Box<dyn Future<Output = Result<()>> + Send + Sync>>>,
}

impl Background {
    /// The task of `whose`, and what follows its end.
    pub(crate) fn new(
        whose: &'static str,
        task: JoinHandle<Result<()>>,
        then: impl Future<Output = ()> + Send + Sync + 'static,
    ) -> Self {
        let aborter = task.abort_handle();
        let task = AbortOnDropHandle::new(task);
        let ended = async move {
            let ended = task.await;
            then.await;
            ended.unwrap_or_else(|error| {
                let context = format!("the task of the {whose} failed");
                Err(Error::new(ErrorKind::Internal, context).with_source(error))
            })
        };
        Self { aborter, ended: Some(Box::pin(ended)) }
    }

    /// How the task ended; `Ok` when asked again.
    pub(crate) fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        let Some(running) = &mut self.ended else { return Poll::Ready(Ok(())) };
        let ended = ready!(running.as_mut().poll(context));
        self.ended = None;
        Poll::Ready(ended)
    }

    /// Waits for the end. Cancel-safe.
    pub(crate) async fn end(&mut self) -> Result<()> {
        poll_fn(|context| self.poll_end(context)).await
    }

    /// Ends the task where it stands, and waits until it is gone.
    pub(crate) async fn abort(&mut self) {
        self.aborter.abort();
        // How an aborted task ended does not matter.
        drop(self.end().await);
    }
}
