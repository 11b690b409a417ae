//! The producer's task: takes batches from the accumulator, appends them, settles their completion.
//!
//! One append per partition is on its way at a time, so order holds over retries. A definite
//! failure is tried again while it can pass by itself; an unknown outcome only in idempotent mode,
//! where the engine recognises the batch. Ends when every handle is gone and everything taken is
//! answered.
//!
//! If the engine lost batches that it had acknowledged, it refuses the next one for the gap. The
//! sequence then begins anew under another name, and the producer tells which sends are lost.

use super::accumulator::{Accumulator, DueBatches};
use super::batch::Batch;
use super::completion::{Completion, CompletionGuard};
use super::sequence::{LostSends, Sequence};
use super::{Settings, TopicView};
use crate::error::{Error, Result};
use crate::metrics::ProducerMeter;
use crate::topic::Topics;
use firth_engine::facet::{Append, Appended, ProducerSeq, SequenceGap};
use firth_engine::{Backoff, Engine, Hint, Partition, TopicName};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// What came of a batch.
struct Outcome {
    batch: Batch<Arc<Completion>>,
    guard: CompletionGuard,
    count: usize,
    took: Duration,
    result: Result<Appended>,
    /// Whether some try of it may have happened although it failed.
    doubtful: bool,
    /// The engine lost the end of the sequence; the batch was the first of this new one, if it
    /// could be.
    gap: Option<(SequenceGap, Option<Sequence>)>,
}

pub(super) struct Sender {
    engine: Engine,
    topic: TopicName,
    topics: Topics,
    view: Arc<TopicView>,
    settings: Settings,
    accumulator: Arc<Accumulator>,
    on_their_way: FuturesUnordered<BoxFuture<'static, Outcome>>,
    sequences: HashMap<u32, Sequence>,
    meter: ProducerMeter,
}

impl Sender {
    pub(super) fn new(
        engine: Engine,
        topic: TopicName,
        view: Arc<TopicView>,
        settings: Settings,
        accumulator: Arc<Accumulator>,
    ) -> Self {
        Self {
            topics: Topics::new(engine.clone()),
            meter: ProducerMeter::new(&topic),
            engine,
            topic,
            view,
            settings,
            accumulator,
            on_their_way: FuturesUnordered::new(),
            sequences: HashMap::new(),
        }
    }

    pub(super) async fn run(mut self) {
        // Kept from turn to turn: to begin a wait costs more than everything else about a lone
        // message here.
        let mut changed = Box::pin(change(self.topics.hint()));
        loop {
            let now = Instant::now();
            let Some(DueBatches { batches, look_again }) = self.accumulator.take_due(now) else { return };
            batches.into_iter().for_each(|batch| self.dispatch(batch));
            tokio::select! {
                Some(outcome) = self.on_their_way.next(), if !self.on_their_way.is_empty() => self.finish(outcome),
                () = self.accumulator.changed() => {}
                () = sleep_until(look_again) => {}
                hint = &mut changed => {
                    changed.set(change(hint));
                    self.refresh().await;
                }
            }
        }
    }

    fn dispatch(&mut self, batch: Batch<Arc<Completion>>) {
        let at = Partition::new(self.topic.clone(), batch.partition);
        let engine = self.engine.clone();
        let settings = self.settings.clone();
        let producer = settings.idempotent.then(|| {
            let sequence = self.sequences.entry(batch.partition).or_insert_with(|| settings.sequence());
            sequence.next()
        });
        self.on_their_way.push(Box::pin(append_batch(engine, at, batch, producer, settings)));
    }

    fn finish(&mut self, outcome: Outcome) {
        let Outcome { batch, guard, count, took, result, doubtful, gap } = outcome;
        let partition = batch.partition;
        if let Some((gap, fresh)) = gap {
            self.note_lost(partition, gap);
            self.sequences.extend(fresh.map(|fresh| (partition, fresh)));
        }
        match (&result, self.sequences.get_mut(&partition)) {
            (Ok(appended), Some(sequence)) => sequence.stored(appended),
            // The engine may or may not have counted it: count on under a name that it cannot
            // mistake.
            (Err(_), Some(_)) if doubtful => drop(self.sequences.remove(&partition)),
            _ => {}
        }
        self.meter.sent(count, took, result.is_ok());
        self.accumulator.done(partition, batch.cost);
        guard.settle(partition, result);
    }

    /// The engine has less of a sequence than it acknowledged. Under this name it takes nothing
    /// more.
    fn note_lost(&mut self, partition: u32, gap: SequenceGap) {
        let Some(sequence) = self.sequences.remove(&partition) else { return };
        let lost = sequence.lost(partition, gap);
        let LostSends { count, first, last, .. } = lost;
        tracing::error!(
            topic = %self.topic, partition, count, ?first, ?last,
            "the engine lost messages that it had acknowledged; going on in a new sequence"
        );
        self.meter.lost(count);
        self.view.losses.note(lost);
    }

    /// Partitions may have been added, limits changed.
    async fn refresh(&mut self) {
        match self.topics.get(&self.topic).await {
            Ok(info) => self.view.update(&info.config),
            // A deleted topic shows in the appends; anything else comes again with the next change.
            Err(error) => tracing::debug!(%error, topic = %self.topic, "cannot look at the topic"),
        }
    }
}

/// However the task ends, every caller that still waits for it gets an error.
impl Drop for Sender {
    fn drop(&mut self) {
        self.accumulator.end();
    }
}

async fn append_batch(
    engine: Engine,
    at: Partition,
    mut batch: Batch<Arc<Completion>>,
    producer: Option<ProducerSeq>,
    settings: Settings,
) -> Outcome {
    let guard = CompletionGuard::new(batch.completion.clone());
    let count = batch.contents.len();
    let records = Arc::new(std::mem::take(&mut batch.contents));
    let mut request =
        Append { records, after: batch.after, producer, mark: None, durability: settings.durability };
    let begun = Instant::now();
    let give_up = begun + settings.timeout;
    let mut answer = append(&engine, &at, request.clone(), &settings.backoff, give_up).await;
    let mut gap = None;
    if let Err((error, doubtful)) = &answer
        && let Some(found) = SequenceGap::of(error)
    {
        // The engine says that it has nothing of this batch. A try that is in doubt may have gone
        // to another server before, so only a batch without one is sent again under another name.
        let fresh = (!doubtful).then(|| settings.sequence());
        if let Some(fresh) = &fresh {
            request.producer = Some(fresh.next());
            answer = append(&engine, &at, request, &settings.backoff, give_up).await;
        }
        gap = Some((found, fresh));
    }
    let took = begun.elapsed();
    match answer {
        Ok(done) => Outcome { batch, guard, count, took, result: Ok(done), doubtful: false, gap },
        Err((error, doubtful)) => Outcome { batch, guard, count, took, result: Err(error), doubtful, gap },
    }
}

/// Appends, and tries again until `give_up` what may pass. The error comes with whether some try
/// may have happened.
pub(crate) async fn append(
    engine: &Engine,
    at: &Partition,
    request: Append,
    backoff: &Backoff,
    give_up: Instant,
) -> Result<Appended, (Error, bool)> {
    let mut failures = 0;
    let mut doubtful = false;
    let is_known_again = request.producer.is_some() || request.mark.is_some();
    loop {
        let last_try = Instant::now() >= give_up;
        let error = match engine.append(at, request.clone()).await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        doubtful |= error.may_have_happened();
        failures += 1;
        let may_repeat = error.is_retryable() && (is_known_again || !error.may_have_happened());
        let delay = backoff.delay(failures);
        if last_try || !may_repeat || Instant::now() + delay > give_up {
            let error = error.during(format_args!("send to {at}"));
            return Err((if doubtful { error.with_unknown_outcome() } else { error }, doubtful));
        }
        tokio::time::sleep(delay).await;
    }
}

/// Waits for a hint, and gives it back for the next time.
async fn change(mut hint: Hint) -> Hint {
    hint.wait().await;
    hint
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
