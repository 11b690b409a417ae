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
    Each(Box<Call<Record, Verdict>>),
    Batch(Box<Call<Vec<Record>, Verdicts>>),
}

/// What the handler of a batch decided.
pub(crate) enum Verdicts {
    All(Verdict),
    Each(Vec<Verdict>),
}

type Verdict = Result<(), Nack>;
type Call<T, V> = dyn Fn(T) -> BoxFuture<'static, V> + Send + Sync;

enum Outcome<V> {
    Ran(V),
    /// It panicked, or took too long.
    Failed(Nack),
    /// The partition went to somebody else while the handler ran.
    Abandoned,
}

pub(crate) async fn work(chunk: Chunk, handler: Arc<Handler>, common: Arc<Common>) {
    match &*handler {
        Handler::Each(handler) => each(chunk, handler, &common).await,
        Handler::Batch(handler) => batch(chunk, handler, &common).await,
    }
}

async fn each(chunk: Chunk, handler: &Call<Record, Verdict>, common: &Common) {
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
            Outcome::Ran(Ok(())) => delivery.judge(Judgement::Ack),
            Outcome::Ran(Err(nack)) | Outcome::Failed(nack) => {
                if common.config.is_strict() {
                    failed.extend(delivery.key().cloned());
                }
                delivery.judge(Judgement::Nack(nack));
            }
        }
    }
}

async fn batch(chunk: Chunk, handler: &Call<Vec<Record>, Verdicts>, common: &Common) {
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
    let count = started.len();
    let mut verdicts: Box<dyn Iterator<Item = Verdict> + Send> = match outcome {
        Outcome::Abandoned => return started.into_iter().for_each(Delivery::give_back),
        Outcome::Failed(nack) | Outcome::Ran(Verdicts::All(Err(nack))) => {
            Box::new(std::iter::repeat_n(Err(nack), count))
        }
        Outcome::Ran(Verdicts::All(Ok(()))) => Box::new(std::iter::repeat_n(Ok(()), count)),
        Outcome::Ran(Verdicts::Each(each)) => {
            let missing = format!("the handler gave {} verdicts for {count} records", each.len());
            let missing = std::iter::repeat_with(move || Err(Nack::retry(&missing)));
            Box::new(each.into_iter().chain(missing))
        }
    };
    for delivery in started {
        match verdicts.next() {
            Some(Err(nack)) => delivery.judge(Judgement::Nack(nack)),
            Some(Ok(())) | None => delivery.judge(Judgement::Ack),
        }
    }
}

/// Runs user code to its end, its deadline, its panic, or the loss of the partition.
async fn run<V>(call: impl Future<Output = V>, delivery: &Delivery, common: &Common) -> Outcome<V> {
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
    match ran {
        Some(Ok(verdict)) => Outcome::Ran(verdict),
        Some(Err(panic)) => {
            common.meter.panicked.increment(1);
            Outcome::Failed(Nack::retry(format!("the handler panicked: {}", message(&*panic))))
        }
        None => {
            common.meter.timed_out.increment(1);
            let limit = limit.unwrap_or(Duration::ZERO);
            Outcome::Failed(Nack::retry(format!("the handler took longer than {limit:?}")))
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no message)")
}
