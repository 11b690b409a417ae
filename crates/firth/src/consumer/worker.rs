//! Running handlers: one chunk in one task, record after record. A panic, an overdue handler and an
//! error are all failures of one record; none of them ends the worker.

use super::delivery::{Delivery, HandlerVerdict, VerdictBatch};
use super::lane::Common;
use super::nack::Nack;
use super::ready_queue::Chunk;
use crate::record::Record;
use crate::trace;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::any::Any;
use std::collections::HashSet;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

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
    /// The partition went to another member while the handler ran.
    Abandoned,
}

pub(crate) async fn work(chunk: Chunk, handler: Arc<Handler>, common: Arc<Common>) {
    match &*handler {
        Handler::Each(handler) => each(chunk, handler, &common).await,
        Handler::Batch(handler) => batch(chunk, handler, &common).await,
    }
}

async fn each(chunk: Chunk, handler: &Call<Record, Verdict>, common: &Common) {
    let Some(first) = chunk.front() else { return };
    let mut failed = HashSet::<Bytes>::new();
    let mut run = ChunkRun::begin(first, chunk.len(), common);
    for mut delivery in chunk {
        if !failed.is_empty() && delivery.key().is_some_and(|key| failed.contains(key)) {
            delivery.hold_back();
            continue;
        }
        // Dropped unstarted, and all behind it, which would overtake it: the lane hands them out
        // again, or the next owner does.
        if !delivery.start() {
            break;
        }
        let record = delivery.record().clone();
        let span = tracing::debug_span!(
            "handle", topic = %record.topic(), partition = record.partition(), group = %common.group,
            id = %record.id(), attempt = record.attempt(),
        );
        let user = User { context: trace::context_of(&record), span };
        match run.run(user, || handler(record), &delivery).await {
            Outcome::Abandoned => delivery.give_back(),
            Outcome::Ran(Ok(())) => run.batch.add(delivery, HandlerVerdict::Ack),
            Outcome::Ran(Err(nack)) | Outcome::Failed(nack) => {
                if common.config.is_strict() {
                    failed.extend(delivery.key().cloned());
                }
                run.batch.add(delivery, HandlerVerdict::Nack(nack));
            }
        }
        run.hand_in_if_late();
    }
}

async fn batch(chunk: Chunk, handler: &Call<Vec<Record>, Verdicts>, common: &Common) {
    let mut started: Vec<Delivery> = Vec::with_capacity(chunk.len());
    for mut delivery in chunk {
        // None behind one that may not start any more: it would overtake it.
        if !delivery.start() {
            break;
        }
        started.push(delivery);
    }
    let Some(first) = started.first() else { return };
    let mut run = ChunkRun::begin(first, started.len(), common);
    let records: Vec<Record> = started.iter().map(|delivery| delivery.record().clone()).collect();
    let links = trace::Links::of(&records);
    let span = tracing::debug_span!(
        "handle_batch", topic = %first.topic(), partition = first.partition(), group = %common.group,
        records = records.len(), %links,
    );
    let user = User { context: links.shared(), span };
    let outcome = run.run(user, || handler(records), first).await;
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
            Some(Err(nack)) => run.batch.add(delivery, HandlerVerdict::Nack(nack)),
            Some(Ok(())) | None => run.batch.add(delivery, HandlerVerdict::Ack),
        }
    }
}

/// One reading of the clock per record is enough: where one handler ends the next one begins.
struct HandlerClock {
    wall: SystemTime,
    begun: Instant,
    lap: Instant,
    /// When verdicts were last handed in by time.
    handed_in: Instant,
}

/// Verdicts of handlers that never wait are handed in at least this often.
const LATE: Duration = Duration::from_millis(1);

impl HandlerClock {
    fn start() -> Self {
        let now = Instant::now();
        Self { wall: SystemTime::now(), begun: now, lap: now, handed_in: now }
    }

    /// Since the last lap.
    fn lap(&mut self) -> Duration {
        let now = Instant::now();
        let lap = now - self.lap;
        self.lap = now;
        lap
    }

    /// How long before the last lap something happened.
    fn since(&self, time: SystemTime) -> Duration {
        (self.wall + (self.lap - self.begun)).duration_since(time).unwrap_or_default()
    }

    fn is_late(&mut self) -> bool {
        let is_late = self.lap - self.handed_in >= LATE;
        if is_late {
            self.handed_in = self.lap;
        }
        is_late
    }
}

/// Where user code runs: its trace context and span.
struct User {
    context: Option<Bytes>,
    span: tracing::Span,
}

impl User {
    fn run<T>(&self, code: impl FnOnce() -> T) -> Ran<T> {
        let code = || self.span.in_scope(code);
        let code = || match &self.context {
            Some(context) => trace::enter(context.clone(), code),
            None => code(),
        };
        catch_unwind(AssertUnwindSafe(code))
    }
}

/// What user code gave, or its panic.
type Ran<T> = Result<T, Box<dyn Any + Send>>;

/// What a worker needs for one chunk.
struct ChunkRun<'c> {
    batch: VerdictBatch,
    clock: HandlerClock,
    common: &'c Common,
}

impl<'c> ChunkRun<'c> {
    fn begin(first: &Delivery, count: usize, common: &'c Common) -> Self {
        Self { batch: VerdictBatch::beside(first, count), clock: HandlerClock::start(), common }
    }

    fn hand_in_if_late(&mut self) {
        if self.clock.is_late() {
            self.batch.hand_in();
        }
    }

    /// Runs user code to its end, its deadline, its panic, or the loss of the partition.
    async fn run<V>(
        &mut self,
        user: User,
        begin: impl FnOnce() -> BoxFuture<'static, V>,
        delivery: &Delivery,
    ) -> Outcome<V> {
        let Self { batch, clock, common } = self;
        let ran = match user.run(begin) {
            Err(panic) => Some(Err(panic)),
            Ok(mut call) => {
                match poll_fn(|context| Poll::Ready(user.run(|| call.as_mut().poll(context)))).await {
                    Err(panic) => Some(Err(panic)),
                    // Most handlers never wait, and need nothing of what follows.
                    Ok(Poll::Ready(verdict)) => Some(Ok(verdict)),
                    Ok(Poll::Pending) => {
                        batch.hand_in();
                        let going = poll_fn(|context| match user.run(|| call.as_mut().poll(context)) {
                            Ok(polled) => polled.map(Ok),
                            Err(panic) => Poll::Ready(Err(panic)),
                        });
                        tokio::select! {
                            biased;
                            ran = within(common.config.handler_timeout, going) => ran,
                            () = delivery.lane().abandoned.cancelled() => return Outcome::Abandoned,
                        }
                    }
                }
            }
        };
        let took = clock.lap();
        common.meter.handled(took, clock.since(delivery.sent_at()));
        match ran {
            Some(Ok(verdict)) => Outcome::Ran(verdict),
            Some(Err(panic)) => {
                common.meter.panicked.increment(1);
                Outcome::Failed(Nack::retry(format!("the handler panicked: {}", message(&*panic))))
            }
            None => {
                common.meter.timed_out.increment(1);
                let limit = common.config.handler_timeout.unwrap_or(Duration::ZERO);
                Outcome::Failed(Nack::retry(format!("the handler took longer than {limit:?}")))
            }
        }
    }
}

/// `None` if it takes longer than the limit.
async fn within<T>(limit: Option<Duration>, work: impl Future<Output = T>) -> Option<T> {
    match limit {
        None => Some(work.await),
        Some(limit) => tokio::time::timeout(limit, work).await.ok(),
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no message)")
}
