//! Callbacks on a fixed number of workers.
//!
//! Each subscription is a job that is queued at most once, so order is kept per subscription. A
//! worker runs a few events of a job and then takes the next, so that a busy subscription does not
//! starve a quiet one. Panics are caught and counted. No worker waits for a stuck callback of
//! another.

use super::driver::MuxDriver;
use super::event::{Event, SubscriptionKind};
use super::mailbox::EventMailbox;
use super::meter::CallbackMeter;
use super::subscription::Subscription;
use crate::error::CallError;
use bytes::Bytes;
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Events of one job before the next job has its turn.
const EVENTS_PER_TURN: usize = 16;

type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send>>;
type Callback = dyn Fn(Event, CancellationToken) -> BoxFuture + Send + Sync;

pub(crate) struct CallbackPool {
    queue: Mutex<VecDeque<(Arc<CallbackJob>, Instant)>>,
    work: Notify,
    workers: Mutex<Option<JoinSet<()>>>,
    jobs: AtomicUsize,
    max_jobs: usize,
    /// How many workers there shall be, and how many there are.
    wanted: AtomicUsize,
    alive: AtomicUsize,
    /// Cancelled when the mux closes.
    closing: CancellationToken,
    meter: CallbackMeter,
    stop: CancellationToken,
    pub(crate) runs: AtomicU64,
    pub(crate) panics: AtomicU64,
}

/// One callback subscription.
struct CallbackJob {
    pool: Weak<CallbackPool>,
    mailbox: Arc<EventMailbox>,
    kind: SubscriptionKind,
    names: Arc<[Bytes]>,
    callback: Box<Callback>,
    pending: Mutex<VecDeque<Event>>,
    /// Stands in the queue, or is being worked on.
    scheduled: AtomicBool,
    /// The subscriber went away: what is left is not run.
    ended: AtomicBool,
}

impl Wake for CallbackJob {
    fn wake(self: Arc<Self>) {
        self.schedule();
    }
}

impl CallbackJob {
    fn schedule(self: Arc<Self>) {
        if !self.scheduled.swap(true, Ordering::AcqRel)
            && let Some(pool) = self.pool.upgrade()
        {
            pool.push(self);
        }
    }

    /// Events that came and were not run.
    fn unread(&self) -> usize {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).len() + self.mailbox.len()
    }

    /// Next event; `None` if there is none now. Then a new event schedules the job again.
    fn take(self: &Arc<Self>) -> Option<Event> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(event) = pending.pop_front() {
            return Some(event);
        }
        // From here on a new event may schedule the job. If one is there already, this worker runs
        // it.
        self.scheduled.store(false, Ordering::Release);
        let waker = Waker::from(self.clone());
        match self.mailbox.poll_take(&Context::from_waker(&waker), &mut pending) {
            Poll::Ready(true) if !self.scheduled.swap(true, Ordering::AcqRel) => pending.pop_front(),
            // Another worker has queued the job by now; its events wait in `pending`.
            Poll::Ready(_) | Poll::Pending => None,
        }
    }
}

impl CallbackPool {
    pub(crate) fn new(driver: &Arc<MuxDriver>, workers: usize, max_jobs: usize) -> Arc<Self> {
        let meter = driver.meter.callbacks.clone();
        meter.queue_capacity.increment(max_jobs as f64);
        Arc::new(Self {
            queue: Mutex::default(),
            work: Notify::new(),
            workers: Mutex::new(None),
            jobs: AtomicUsize::new(0),
            max_jobs,
            wanted: AtomicUsize::new(workers),
            alive: AtomicUsize::new(0),
            closing: driver.closing.clone(),
            meter,
            stop: CancellationToken::new(),
            runs: AtomicU64::new(0),
            panics: AtomicU64::new(0),
        })
    }

    /// Lets the workers run `callback` for the events of a subscription.
    pub(crate) fn serve<F, Fut>(
        self: &Arc<Self>,
        subscription: Subscription,
        callback: F,
    ) -> Result<CallbackSubscription, CallError>
    where
        F: Fn(Event, CancellationToken) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        if self.jobs.fetch_add(1, Ordering::Relaxed) >= self.max_jobs {
            self.jobs.fetch_sub(1, Ordering::Relaxed);
            self.meter.refused.increment(1);
            return Err(CallError::Full {
                what: "the number of callback subscriptions",
                limit: self.max_jobs,
            });
        }
        self.ensure_workers();
        let job = Arc::new(CallbackJob {
            pool: Arc::downgrade(self),
            mailbox: subscription.mailbox().clone(),
            kind: subscription.kind(),
            names: subscription.shared_names().clone(),
            callback: Box::new(move |event, token| Box::pin(callback(event, token))),
            pending: Mutex::default(),
            scheduled: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        });
        job.clone().schedule();
        Ok(CallbackSubscription { subscription: Some(subscription), job, pool: self.clone() })
    }

    fn ensure_workers(self: &Arc<Self>) {
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        let workers = workers.get_or_insert_default();
        while workers.try_join_next().is_some() {}
        while self.alive.load(Ordering::Relaxed) < self.wanted.load(Ordering::Relaxed) {
            self.alive.fetch_add(1, Ordering::Relaxed);
            workers.spawn(work(self.clone()));
        }
    }

    /// Changes the number of workers. Those that are too many go when they have finished their
    /// turn.
    pub(crate) fn resize(self: &Arc<Self>, workers: usize) {
        self.wanted.store(workers, Ordering::Relaxed);
        if self.alive.load(Ordering::Relaxed) > 0 && !self.stop.is_cancelled() {
            self.ensure_workers();
        }
        self.work.notify_waiters();
    }

    /// Whether a worker is one too many; it then counts as gone.
    fn retire_surplus(&self) -> bool {
        let wanted = self.wanted.load(Ordering::Relaxed);
        let less = |alive| (alive > wanted).then(|| alive - 1);
        self.alive.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    fn push(&self, job: Arc<CallbackJob>) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push_back((job, Instant::now()));
        drop(queue);
        self.meter.queue.increment(1.0);
        self.meter.submissions.increment(1);
        self.work.notify_one();
    }

    fn pop(&self) -> Option<(Arc<CallbackJob>, Instant)> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let next = queue.pop_front()?;
        if !queue.is_empty() {
            self.work.notify_one();
        }
        drop(queue);
        self.meter.queue.decrement(1.0);
        Some(next)
    }

    fn is_idle(&self) -> bool {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Runs one event; a panic of the callback is caught.
    async fn run(&self, job: &CallbackJob, event: Event) {
        let token = self.closing.clone();
        let started = Instant::now();
        let future = catch(|| (job.callback)(event, token));
        let completed = CatchUnwind { future }.await;
        self.runs.fetch_add(1, Ordering::Relaxed);
        if !completed {
            self.panics.fetch_add(1, Ordering::Relaxed);
            let kind = job.kind.label();
            let names = job.names.len();
            let first = String::from_utf8_lossy(&job.names[0]);
            tracing::error!(kind, names, %first, "a subscription's callback panicked; the subscription goes on");
        }
        self.meter.runs[job.kind.index()].increment(1);
        self.meter.panics[job.kind.index()].increment(u64::from(!completed));
        self.meter.seconds.record(started.elapsed().as_secs_f64());
    }

    /// Lets the workers finish what was received within the limit; then they are abandoned.
    pub(crate) async fn close(&self, limit: Duration) {
        self.stop.cancel();
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut workers) = workers else { return };
        let all = async { while workers.join_next().await.is_some() {} };
        if tokio::time::timeout(limit, all).await.is_err() {
            tracing::warn!("callbacks were still running when the mux was closed; they are abandoned");
        }
        workers.abort_all();
        workers.detach_all();
    }

    /// Ends the workers at once.
    pub(crate) fn abort(&self) {
        self.stop.cancel();
        if let Some(mut workers) = self.workers.lock().unwrap_or_else(PoisonError::into_inner).take() {
            workers.abort_all();
            workers.detach_all();
        }
    }
}

/// One worker: takes jobs in turn until the pool stops and nothing is left.
async fn work(pool: Arc<CallbackPool>) {
    loop {
        if pool.retire_surplus() {
            // It may have been woken for a job: pass that on.
            return pool.work.notify_one();
        }
        let Some((job, queued)) = pool.pop() else {
            if pool.stop.is_cancelled() && pool.is_idle() {
                return;
            }
            tokio::select! {
                () = pool.work.notified() => {}
                () = pool.stop.cancelled(), if !pool.stop.is_cancelled() => {}
            }
            continue;
        };
        pool.meter.wait_seconds.record(queued.elapsed().as_secs_f64());
        turn(&pool, job).await;
    }
}

async fn turn(pool: &Arc<CallbackPool>, job: Arc<CallbackJob>) {
    for _ in 0..EVENTS_PER_TURN {
        if job.ended.load(Ordering::Acquire) {
            return;
        }
        let Some(event) = job.take() else { return };
        pool.run(&job, event).await;
    }
    pool.push(job);
}

/// Runs code of the user; `None` if it panics. The panic's payload is never dropped, because that
/// may panic again and end the worker.
fn catch<T>(code: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(code)).map_err(std::mem::forget).ok()
}

/// A future that catches panics. `true` means that the callback completed.
struct CatchUnwind {
    future: Option<BoxFuture>,
}

impl Future for CatchUnwind {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        let Some(future) = &mut self.future else { return Poll::Ready(false) };
        let completed = match catch(|| future.as_mut().poll(cx)) {
            Some(Poll::Pending) => return Poll::Pending,
            Some(Poll::Ready(())) => true,
            None => false,
        };
        let gone = self.future.take();
        // The drop of the callback's future may panic too.
        let dropped = catch(|| drop(gone));
        Poll::Ready(completed && dropped.is_some())
    }
}

impl Drop for CallbackPool {
    fn drop(&mut self) {
        let queued = self.queue.get_mut().unwrap_or_else(PoisonError::into_inner).len();
        self.meter.queue.decrement(queued as f64);
        self.meter.queue_capacity.decrement(self.max_jobs as f64);
    }
}

/// A subscription whose events go to a callback. Dropping it ends the subscription; an event that
/// is being worked on is finished.
#[must_use = "dropping it ends the subscription"]
pub struct CallbackSubscription {
    subscription: Option<Subscription>,
    job: Arc<CallbackJob>,
    pool: Arc<CallbackPool>,
}

impl CallbackSubscription {
    /// Subscribes anew what lost its node, where the mux was told not to do so by itself: see
    /// [`MuxConfig::auto_resubscribe`](super::MuxConfig::auto_resubscribe).
    pub fn resubscribe(&self) {
        if let Some(subscription) = &self.subscription {
            subscription.resubscribe();
        }
    }

    /// The names of this subscription, sorted.
    pub fn names(&self) -> &[Bytes] {
        &self.job.names
    }

    /// The kind of its names.
    pub fn kind(&self) -> SubscriptionKind {
        self.job.kind
    }

    /// Ends the subscription and waits until the server has confirmed what only this subscriber
    /// wanted.
    pub async fn unsubscribe(mut self) -> Result<(), CallError> {
        match self.subscription.take() {
            Some(subscription) => subscription.unsubscribe().await,
            None => Ok(()),
        }
    }
}

impl Drop for CallbackSubscription {
    fn drop(&mut self) {
        self.job.ended.store(true, Ordering::Release);
        self.pool.meter.dropped.increment(self.job.unread() as u64);
        self.pool.jobs.fetch_sub(1, Ordering::Relaxed);
    }
}
