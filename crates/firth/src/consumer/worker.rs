//! Running handlers: one chunk in one task, record after record. A panic, an overdue handler and an error are all failures of one record;
//! none of them ends the worker.

use super::delivery::{Delivery, Judgement};
use super::desk::Chunk;
use super::lane::Common;
use super::nack::Nack;
use crate::record::Record;
use crate::trace;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::any::Any;
use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tracing::Instrument;

/// What the user gave us to run.
pub(crate) enum Handler {
    Each(Box<Call<Record>>),
    Batch(Box<Call<Vec<Record>>>),
}

type Call<T> = dyn Fn(T) -> BoxFuture<'static, Result<(), Nack>> + Send + Sync;

enum Outcome {
    Verdict(Result<(), Nack>),
    /// The partition went to somebody else while the handler ran.
    Abandoned,
}

pub(crate) async fn work(chunk: Chunk, handler: Arc<Handler>, common: Arc<Common>) {
    match &*handler {
        Handler::Each(handler) => each(chunk, handler, &common).await,
        Handler::Batch(handler) => batch(chunk, handler, &common).await,
    }
}

async fn each(chunk: Chunk, handler: &Call<Record>, common: &Common) {
    let mut failed: HashSet<Bytes> = HashSet::new();
    for mut delivery in chunk {
        let held_back = delivery.key().is_some_and(|key| failed.contains(key));
        // Dropped unstarted: the lane hands it out again, or the next owner does.
        if held_back || !delivery.start() {
            continue;
        }
        let record = delivery.record().clone();
        let span = tracing::debug_span!(
            "handle", topic = %record.topic(), partition = record.partition(), group = %common.group,
            id = %record.id(), attempt = record.attempt(),
        );
        let traced = record.clone();
        let call = trace::within(&traced, async { handler(record).await }).instrument(span);
        match run(call, &delivery, common).await {
            Outcome::Abandoned => delivery.give_back(),
            Outcome::Verdict(Ok(())) => delivery.judge(Judgement::Ack),
            Outcome::Verdict(Err(nack)) => {
                if common.config.is_strict() {
                    failed.extend(delivery.key().cloned());
                }
                delivery.judge(Judgement::Nack(nack));
            }
        }
    }
}

async fn batch(chunk: Chunk, handler: &Call<Vec<Record>>, common: &Common) {
    let mut started: Vec<Delivery> = Vec::with_capacity(chunk.len());
    for mut delivery in chunk {
        if delivery.start() {
            started.push(delivery);
        }
    }
    let Some(first) = started.first() else { return };
    let records: Vec<Record> = started.iter().map(|delivery| delivery.record().clone()).collect();
    let span = tracing::debug_span!("handle_batch", topic = %first.topic(), partition = first.partition(), group = %common.group, records = records.len());
    let outcome = run(async { handler(records).await }.instrument(span), first, common).await;
    for delivery in started {
        match &outcome {
            Outcome::Abandoned => delivery.give_back(),
            Outcome::Verdict(Ok(())) => delivery.judge(Judgement::Ack),
            Outcome::Verdict(Err(nack)) => delivery.judge(Judgement::Nack(nack.clone())),
        }
    }
}

/// Runs user code to its end, its deadline, its panic, or the loss of the partition.
async fn run(call: impl Future<Output = Result<(), Nack>>, delivery: &Delivery, common: &Common) -> Outcome {
    let begun = Instant::now();
    let limit = common.config.handler_timeout;
    let bounded = async {
        match limit {
            None => Some(AssertUnwindSafe(call).catch_unwind().await),
            Some(limit) => tokio::time::timeout(limit, AssertUnwindSafe(call).catch_unwind()).await.ok(),
        }
    };
    let ran = tokio::select! {
        biased;
        ran = bounded => ran,
        () = delivery.tie().abandoned.cancelled() => return Outcome::Abandoned,
    };
    let age = delivery.sent_at().elapsed().unwrap_or_default();
    common.meter.handled(begun.elapsed(), age);
    Outcome::Verdict(match ran {
        Some(Ok(verdict)) => verdict,
        Some(Err(panic)) => {
            common.meter.panicked.increment(1);
            Err(Nack::retry(format!("the handler panicked: {}", message(&*panic))))
        }
        None => {
            common.meter.timed_out.increment(1);
            Err(Nack::retry(format!("the handler took longer than {:?}", limit.unwrap_or(Duration::ZERO))))
        }
    })
}

fn message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no message)")
}
