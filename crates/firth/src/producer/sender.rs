//! The producer's task: takes batches from the desk, appends them, settles their fate.
//!
//! One append per partition is on its way at a time, so order holds over retries. A definite failure is tried again while it
//! can pass by itself; an unknown outcome only in idempotent mode, where the engine recognises the batch. Ends when every handle is gone
//! and everything taken is answered.

use super::batch::Batch;
use super::desk::{Desk, Leaving};
use super::fate::{Duty, Fate};
use super::{Settings, TopicView};
use crate::error::{Error, Result};
use crate::metrics::ProducerMeter;
use crate::topic::Topics;
use firth_engine::facet::{Append, Appended, ProducerSeq};
use firth_engine::{Engine, Hint, Partition, ProducerName, TopicName};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// What came of a batch.
struct Outcome {
    batch: Batch<Arc<Fate>>,
    duty: Duty,
    count: usize,
    took: Duration,
    result: Result<Appended>,
    /// Whether some try of it may have happened although it failed.
    doubtful: bool,
}

pub(super) struct Sender {
    engine: Engine,
    topic: TopicName,
    topics: Topics,
    view: Arc<TopicView>,
    settings: Settings,
    desk: Arc<Desk>,
    on_their_way: FuturesUnordered<BoxFuture<'static, Outcome>>,
    sequences: HashMap<u32, Sequence>,
    meter: ProducerMeter,
}

/// The next number of an idempotent producer in one partition, and the name that it counts under.
struct Sequence {
    name: ProducerName,
    next: u64,
}

impl Sender {
    pub(super) fn new(
        engine: Engine,
        topic: TopicName,
        view: Arc<TopicView>,
        settings: Settings,
        desk: Arc<Desk>,
    ) -> Self {
        Self {
            topics: Topics::new(engine.clone()),
            meter: ProducerMeter::new(&topic),
            engine,
            topic,
            view,
            settings,
            desk,
            on_their_way: FuturesUnordered::new(),
            sequences: HashMap::new(),
        }
    }

    pub(super) async fn run(mut self) {
        // Kept from turn to turn: to begin a wait costs more than everything else about a lone message here.
        let mut changed = Box::pin(change(self.topics.hint()));
        loop {
            let now = Instant::now();
            let Some(Leaving { batches, look_again }) = self.desk.leaving(now) else { return };
            batches.into_iter().for_each(|batch| self.dispatch(batch));
            tokio::select! {
                Some(outcome) = self.on_their_way.next(), if !self.on_their_way.is_empty() => self.finish(outcome),
                () = self.desk.news() => {}
                () = sleep_until(look_again) => {}
                hint = &mut changed => {
                    changed.set(change(hint));
                    self.refresh().await;
                }
            }
        }
    }

    fn dispatch(&mut self, batch: Batch<Arc<Fate>>) {
        let at = Partition::new(self.topic.clone(), batch.partition);
        let producer = self.settings.idempotent.then(|| self.sequence(batch.partition));
        let (engine, settings) = (self.engine.clone(), self.settings.clone());
        self.on_their_way.push(Box::pin(append_batch(engine, at, batch, producer, settings)));
    }

    fn sequence(&mut self, partition: u32) -> ProducerSeq {
        let sequence = self
            .sequences
            .entry(partition)
            .or_insert_with(|| Sequence { name: fresh_name(&self.settings.name), next: 0 });
        ProducerSeq { name: sequence.name.clone(), first: sequence.next }
    }

    fn finish(&mut self, outcome: Outcome) {
        let Outcome { batch, duty, count, took, result, doubtful } = outcome;
        match (&result, self.sequences.get_mut(&batch.partition)) {
            (Ok(_), Some(sequence)) => sequence.next += count as u64,
            // The engine may or may not have counted it: count on under a name that it cannot mistake.
            (Err(_), Some(_)) if doubtful => drop(self.sequences.remove(&batch.partition)),
            _ => {}
        }
        self.meter.sent(count, took, result.is_ok());
        self.desk.done(batch.partition, batch.cost);
        duty.settle(batch.partition, result);
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

/// However the task ends, nobody waits for it in vain.
impl Drop for Sender {
    fn drop(&mut self) {
        self.desk.end();
    }
}

async fn append_batch(
    engine: Engine,
    at: Partition,
    mut batch: Batch<Arc<Fate>>,
    producer: Option<ProducerSeq>,
    settings: Settings,
) -> Outcome {
    let (duty, count) = (Duty::new(batch.fate.clone()), batch.contents.len());
    let records = Arc::new(std::mem::take(&mut batch.contents));
    let wish = Append { records, after: batch.after, producer, durability: settings.durability };
    let begun = Instant::now();
    let answer = append(&engine, &at, wish, &settings).await;
    let took = begun.elapsed();
    match answer {
        Ok(done) => Outcome { batch, duty, count, took, result: Ok(done), doubtful: false },
        Err((error, doubtful)) => Outcome { batch, duty, count, took, result: Err(error), doubtful },
    }
}

/// Appends, and tries again what may pass. The error comes with whether some try may have happened.
pub(super) async fn append(
    engine: &Engine,
    at: &Partition,
    wish: Append,
    settings: &Settings,
) -> Result<Appended, (Error, bool)> {
    let give_up = Instant::now() + settings.timeout;
    let (mut failures, mut doubtful) = (0, false);
    let is_numbered = wish.producer.is_some();
    loop {
        let last_try = Instant::now() >= give_up;
        let error = match engine.append(at, wish.clone()).await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        doubtful |= error.may_have_happened();
        failures += 1;
        let may_repeat = error.is_retryable() && (is_numbered || !error.may_have_happened());
        let delay = settings.backoff.delay(failures);
        if last_try || !may_repeat || Instant::now() + delay > give_up {
            let error = error.during(format_args!("send to {at}"));
            return Err((if doubtful { error.with_unknown_outcome() } else { error }, doubtful));
        }
        tokio::time::sleep(delay).await;
    }
}

fn fresh_name(stem: &str) -> ProducerName {
    ProducerName::new(format!("{stem}-{:016x}", fastrand::u64(..)))
        .expect("the stem was checked with room to spare")
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
