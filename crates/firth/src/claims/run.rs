//! [`Worker::run`]: a handler per claim, stopped when the claim is.

use super::claim::Claim;
use super::worker::{Event, Worker};
use crate::error::Result;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::collections::HashMap;
use std::fmt::Display;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;

/// Units whose failures are counted; beyond that some count begins anew.
const COUNTED: usize = 10_000;

/// How [`Worker::run`] treats handlers.
#[derive(Default)]
pub(crate) struct RunOptions {
    limit: Option<Duration>,
    give_up: Option<GiveUp>,
}

struct GiveUp {
    attempts: u32,
    tell: Box<Tell>,
}

type Tell = dyn Fn(GivenUp) -> BoxFuture<'static, Result<(), String>> + Send + Sync;

/// A unit that [`Worker::run`] gives up.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GivenUp {
    /// The claim, still held: its name, payload and last checkpoint.
    pub claim: Claim,
    /// How often this worker's handler failed, one time after the other.
    pub attempts: u32,
    /// Why it failed last.
    pub reason: String,
}

impl Worker {
    /// How long a handler of [`run`](Self::run) may take for one claim; as long as it likes unless
    /// set. One that takes longer is dropped at its next await, and has failed.
    #[must_use]
    pub fn handler_timeout(mut self, limit: Duration) -> Self {
        self.run_options.limit = Some(limit);
        self
    }

    /// Gives up a unit whose handler failed `attempts` times in a row: tells `given_up`, and if
    /// that answers `Ok`, the unit leaves the service as if it were done. After an error the unit
    /// rests and is tried again. Never, unless set.
    ///
    /// Each worker counts for itself: the count begins anew where another worker takes the unit.
    #[must_use]
    pub fn give_up_after<H, F, E>(mut self, attempts: u32, given_up: H) -> Self
    where
        H: Fn(GivenUp) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Display + Send + 'static,
    {
        let tell: Box<Tell> = Box::new(move |unit| {
            let told = given_up(unit);
            Box::pin(async move { told.await.map_err(|error| error.to_string()) })
        });
        self.run_options.give_up = Some(GiveUp { attempts: attempts.max(1), tell });
        self
    }

    /// Runs `handler` once per claim, each in a task of its own, until the worker closes (see
    /// [`WorkerHandle::close`](super::WorkerHandle::close)).
    ///
    /// `Ok` means done: the unit leaves the service. An error, a panic or a handler that takes [too
    /// long](Self::handler_timeout) releases the unit. It rests as the worker's
    /// [`backoff`](super::WorkerConfig::backoff) says, longer with each failure in a row, until it
    /// is [given up](Self::give_up_after). When a claim is recalled or lost its handler is dropped
    /// at its next await; a handler that wants to finish in its own way reads events with
    /// [`next`](Self::next) instead.
    pub async fn run<F, T, E>(mut self, handler: F) -> Result<()>
    where
        F: Fn(Claim) -> T + Send + Sync + 'static,
        T: Future<Output = Result<(), E>> + Send + 'static,
        E: Display + Send + 'static,
    {
        let handler = Arc::new(handler);
        let mut tasks = JoinSet::new();
        let options = std::mem::take(&mut self.run_options);
        let attendant = Arc::new(Attendant {
            options,
            backoff: self.handle().config().backoff,
            failures: Mutex::default(),
        });
        let ended = loop {
            tokio::select! {
                event = self.next() => match event {
                    Some(Ok(Event::Granted(claim))) => {
                        let handler = handler.clone();
                        let attendant = attendant.clone();
                        tasks.spawn(async move {
                            let work = { let claim = claim.clone(); async move { handler(claim).await } };
                            attendant.attend(claim, work).await;
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

/// Sees claims through.
struct Attendant {
    options: RunOptions,
    backoff: firth_engine::Backoff,
    /// Failures in a row, by unit; at most [`COUNTED`].
    failures: Mutex<HashMap<String, u32>>,
}

impl Attendant {
    /// Sees one claim through.
    async fn attend<E: Display>(&self, claim: Claim, work: impl Future<Output = Result<(), E>>) {
        let settled = match self.outcome(&claim, work).await {
            None if claim.unit().is_ended() => Ok(()),
            None => claim.release().await,
            Some(Ok(())) => {
                self.forget(claim.name());
                claim.done().await
            }
            Some(Err(reason)) => self.failed(&claim, reason).await,
        };
        if let Err(error) = settled {
            tracing::warn!(%error, unit = claim.name(), "a claim was not settled");
        }
    }

    /// What came of the work; `None` if the claim is wanted back or lost.
    async fn outcome<E: Display>(
        &self,
        claim: &Claim,
        work: impl Future<Output = Result<(), E>>,
    ) -> Option<Result<(), String>> {
        let limit = async {
            match self.options.limit {
                Some(limit) => tokio::time::sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = claim.recalled() => None,
            outcome = AssertUnwindSafe(work).catch_unwind() => Some(match outcome {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("the handler panicked".to_owned()),
            }),
            () = limit => Some(Err(format!("the handler took longer than {:?}", self.options.limit?))),
        }
    }

    async fn failed(&self, claim: &Claim, reason: String) -> Result<()> {
        let attempts = self.count(claim.name());
        if let Some(give_up) = self.options.give_up.as_ref().filter(|give_up| attempts >= give_up.attempts) {
            let told = (give_up.tell)(GivenUp { claim: claim.clone(), attempts, reason: reason.clone() });
            match AssertUnwindSafe(told).catch_unwind().await {
                Ok(Ok(())) => {
                    tracing::error!(unit = claim.name(), attempts, %reason, "a unit was given up");
                    self.forget(claim.name());
                    return claim.done().await;
                }
                Ok(Err(error)) => {
                    tracing::error!(unit = claim.name(), %error, "a unit could not be given up; it rests");
                }
                Err(_) => tracing::error!(unit = claim.name(), "giving up a unit panicked; it rests"),
            }
        }
        let rest = self.backoff.delay(attempts);
        tracing::warn!(unit = claim.name(), attempts, %reason, ?rest, "a handler failed; its unit rests");
        claim.release_for(rest).await
    }

    /// One more failure of a unit; answers how many there are in a row.
    fn count(&self, unit: &str) -> u32 {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.len() >= COUNTED
            && !failures.contains_key(unit)
            && let Some(other) = failures.keys().next().cloned()
        {
            failures.remove(&other);
        }
        let count = failures.entry(unit.to_owned()).or_default();
        *count = count.saturating_add(1);
        *count
    }

    fn forget(&self, unit: &str) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).remove(unit);
    }
}
