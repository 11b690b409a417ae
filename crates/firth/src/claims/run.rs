//! [`Worker::run`]: a handler per claim, stopped when the claim is.

use super::claim::Claim;
use super::worker::{Event, Worker};
use crate::error::Result;
use futures_util::FutureExt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tokio::task::JoinSet;

impl Worker {
    /// Runs `handler` once per claim, each in a task of its own, until the worker closes (see [`WorkerHandle::close`](super::WorkerHandle::close)).
    ///
    /// `Ok` means done: the unit leaves the service. An error or a panic releases the unit, to rest as the worker's backoff says. When a
    /// claim is recalled or lost its handler is dropped at its next await; a handler that wants to finish in its own way reads
    /// events with [`next`](Self::next) instead.
    pub async fn run<F, T, E>(mut self, handler: F) -> Result<()>
    where
        F: Fn(Claim) -> T + Send + Sync + 'static,
        T: Future<Output = Result<(), E>> + Send + 'static,
        E: std::fmt::Display + Send + 'static,
    {
        let (handler, mut tasks) = (Arc::new(handler), JoinSet::new());
        let backoff = self.handle().config().backoff;
        let ended = loop {
            tokio::select! {
                event = self.next() => match event {
                    Some(Ok(Event::Granted(claim))) => {
                        let handler = handler.clone();
                        tasks.spawn(async move {
                            let work = { let claim = claim.clone(); async move { handler(claim).await } };
                            attend(claim, work, backoff).await;
                        });
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => break Err(error),
                    None => break Ok(()),
                },
                Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
            }
        };
        while tasks.join_next().await.is_some() {}
        ended
    }
}

/// Sees one claim through.
async fn attend<E: std::fmt::Display>(
    claim: Claim,
    work: impl Future<Output = Result<(), E>>,
    backoff: firth_engine::Backoff,
) {
    let outcome = tokio::select! {
        biased;
        () = claim.recalled() => None,
        outcome = AssertUnwindSafe(work).catch_unwind() => Some(outcome),
    };
    let settled = match outcome {
        None if claim.unit().is_ended() => Ok(()),
        None => claim.release().await,
        Some(Ok(Ok(()))) => claim.done().await,
        Some(Ok(Err(error))) => {
            tracing::warn!(%error, unit = claim.name(), "a handler failed; its unit rests");
            claim.release_for(backoff.delay(1)).await
        }
        Some(Err(_)) => {
            tracing::error!(unit = claim.name(), "a handler panicked; its unit rests");
            claim.release_for(backoff.delay(1)).await
        }
    };
    if let Err(error) = settled {
        tracing::warn!(%error, unit = claim.name(), "a claim was not settled");
    }
}
