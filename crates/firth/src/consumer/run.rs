//! [`Run`]: a consumer with a handler. It only waits for the end; lanes start the workers.

use super::ready_queue::ReadyQueue;
use super::worker::{Handler, Verdicts};
use super::worker_pool::WorkerPool;
use super::{Consumer, Nack};
use crate::error::Result;
use crate::record::Record;
use futures_util::future::BoxFuture;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::atomic::Ordering;

/// How many records a serial lane hands to its worker at once.
const SERIAL_CHUNK: usize = 64;

/// A consumer that runs a handler; finish it with `.await`. Dropping it half way is like a crash.
#[must_use = "nothing runs until it is awaited"]
pub struct Run {
    consumer: Consumer,
    handler: Handler,
    chunk: usize,
    until: Option<BoxFuture<'static, ()>>,
}

impl Consumer {
    /// Runs `handler` on every record: `Ok` acknowledges, `Err` tries again or gives up as the
    /// [`Nack`] says; panics count as failures.
    ///
    /// Ends after [`Run::until`] or [`ConsumerHandle::close`](super::ConsumerHandle::close), when
    /// everything is handed over; or with an error when the consumer cannot go on.
    pub fn run<H, F>(self, handler: H) -> Run
    where
        H: Fn(Record) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), Nack>> + Send + 'static,
    {
        let chunk = if self.common.config.concurrency == 1 { SERIAL_CHUNK } else { 1 };
        let handler = Handler::Each(Box::new(move |record| Box::pin(handler(record))));
        Run { consumer: self, handler, chunk, until: None }
    }

    /// Runs `handler` on up to `max` records of one partition at a time. One answer settles them
    /// all: if it fails, each of them is tried again or given up.
    pub fn run_batches<H, F>(self, max: usize, handler: H) -> Run
    where
        H: Fn(Vec<Record>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), Nack>> + Send + 'static,
    {
        let one = move |records| {
            let running = handler(records);
            Box::pin(async move { Verdicts::All(running.await) }) as BoxFuture<'static, Verdicts>
        };
        let handler = Handler::Batch(Box::new(one));
        Run { consumer: self, handler, chunk: max.max(1), until: None }
    }
}

impl Consumer {
    /// As [`run_batches`](Self::run_batches), but the handler gives one verdict per record, in
    /// their order, so that part of a batch can fail. A record without a verdict counts as failed;
    /// verdicts beyond the last record are ignored.
    ///
    /// A batch may hold several records of one key. If the handler fails one of them and
    /// acknowledges a later one, the records of this key are handled out of order.
    ///
    /// ```
    /// # use firth::{Broker, Nack, Result};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<()> {
    /// # let broker = Broker::memory();
    /// # broker.create_topic("orders").await?;
    /// # broker.producer("orders").await?.send_all(["7", "many"]).await?;
    /// let consumer = broker.consumer("orders", "billing").await?;
    /// let run = consumer.run_batches_each(100, |records| async move {
    ///     let price = |text: &str| text.parse::<u32>().map(drop).map_err(Nack::reject);
    ///     records.iter().map(|record| price(record.text()?)).collect()
    /// });
    /// run.until(tokio::time::sleep(std::time::Duration::from_secs(1))).await?;
    /// assert_eq!(broker.dead_letters("orders").count().await?, 1);
    /// # Ok(()) }
    /// ```
    pub fn run_batches_each<H, F>(self, max: usize, handler: H) -> Run
    where
        H: Fn(Vec<Record>) -> F + Send + Sync + 'static,
        F: Future<Output = Vec<Result<(), Nack>>> + Send + 'static,
    {
        let each = move |records| {
            let running = handler(records);
            Box::pin(async move { Verdicts::Each(running.await) }) as BoxFuture<'static, Verdicts>
        };
        let handler = Handler::Batch(Box::new(each));
        Run { consumer: self, handler, chunk: max.max(1), until: None }
    }
}

impl Run {
    /// Closes gracefully when `shutdown` completes.
    pub fn until(mut self, shutdown: impl Future<Output = impl Sized> + Send + 'static) -> Self {
        self.until = Some(Box::pin(async move { drop(shutdown.await) }));
        self
    }

    async fn go(self) -> Result<()> {
        let Self { mut consumer, handler, chunk, until } = self;
        consumer.news = None;
        let common = consumer.common.clone();
        common.chunk.store(chunk, Ordering::Relaxed);
        let batch = if matches!(handler, Handler::Batch(_)) { chunk } else { 1 };
        common.batch.store(batch, Ordering::Relaxed);
        common.ready_queue.attach(WorkerPool::new(handler, common.clone()));
        let at_work = AtWork(&common.ready_queue);
        if let Some(until) = until {
            tokio::select! {
                () = common.ready_queue.closed() => {}
                () = until => consumer.handle.closing.cancel(),
            }
        }
        common.ready_queue.closed().await;
        // The lanes are gone: what still runs was abandoned and ends by itself.
        if let Some(pool) = common.ready_queue.detach() {
            pool.stop().await;
        }
        drop(at_work);
        consumer.coordinator.end().await
    }
}

/// However a run ends, its handlers do not go on without it.
struct AtWork<'d>(&'d ReadyQueue);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        // Outside of the queue's lock: chunks that never started tell their lanes.
        drop(self.0.detach());
    }
}

impl IntoFuture for Run {
    type Output = Result<()>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.go())
    }
}
