//! The thread that renews leases.
//!
//! Leases of consumers and memberships of workers are renewed on a runtime of the library's own, so
//! that a handler that blocks the user's runtime costs its owner nothing. On Redis the renewals
//! have their own connection: one whose task lives on a blocked runtime would not answer. One
//! thread serves a broker and all its clones. It starts with the first consumer or worker and ends
//! with the last.
//!
//! **A runtime that hangs for good.** It must not keep its leases: after [`HUNG`] without a sign of
//! life of the user's runtime nothing is renewed, and others take over.
//!
//! **A paused clock.** A runtime whose clock is paused or moved, as in tests, renews by itself: its
//! deadlines mean nothing to a thread in real time.

use firth_engine::Engine;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// A runtime that does nothing for so long is taken for dead.
const HUNG: Duration = Duration::from_secs(60);
/// How often a runtime shows that it is alive.
const SIGN: Duration = Duration::from_secs(1);

/// Where a broker's renewals run.
#[derive(Clone)]
pub(crate) struct Renewals {
    engine: Engine,
    hung_after: Duration,
    thread: Arc<Mutex<Weak<RenewalThread>>>,
}

/// The running thread. Dropping the last handle ends it.
struct RenewalThread {
    runtime: Handle,
    engine: Engine,
    /// Dropped to end the thread.
    stop: Option<oneshot::Sender<()>>,
    /// Resolves when the thread's runtime is gone.
    ended: oneshot::Receiver<()>,
}

/// Tells whether the user's runtime still runs.
#[derive(Clone)]
pub(crate) struct Vital {
    seen: Arc<Mutex<Instant>>,
    hung_after: Duration,
}

impl Vital {
    /// Whether it gave a sign of life lately.
    pub(crate) fn is_alive(&self) -> bool {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).elapsed() < self.hung_after
    }

    /// Gives signs of life for ever.
    async fn show(self) {
        loop {
            *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            tokio::time::sleep(SIGN).await;
        }
    }
}

/// A task that renews. Dropping it ends it.
pub(crate) struct Renewing {
    task: JoinHandle<()>,
    signs: JoinHandle<()>,
    thread: Option<Arc<RenewalThread>>,
}

impl Renewals {
    pub(crate) fn new(engine: Engine) -> Self {
        Self { engine, hung_after: HUNG, thread: Arc::default() }
    }

    /// Runs a task beside the user's runtime, with an engine that does not depend on it. The task
    /// renews nothing while that runtime hangs.
    pub(crate) fn spawn<F>(&self, task: impl FnOnce(Engine, Vital) -> F) -> Renewing
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let thread = if is_real_time() { self.thread() } else { None };
        let vital = Vital { seen: Arc::new(Mutex::new(Instant::now())), hung_after: self.hung_after };
        let signs = tokio::spawn(vital.clone().show());
        let task = match &thread {
            Some(thread) => thread.runtime.spawn(task(thread.engine.clone(), vital)),
            None => tokio::spawn(task(self.engine.clone(), vital)),
        };
        Renewing { task, signs, thread }
    }

    /// The thread, started if need be; `None` if the system has none to give.
    fn thread(&self) -> Option<Arc<RenewalThread>> {
        let mut running = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = running.upgrade() {
            return Some(thread);
        }
        match RenewalThread::start(&self.engine) {
            Ok(thread) => {
                let thread = Arc::new(thread);
                *running = Arc::downgrade(&thread);
                Some(thread)
            }
            Err(error) => {
                tracing::warn!(%error, "no thread for renewals: handlers that block can lose their leases");
                None
            }
        }
    }
}

impl RenewalThread {
    fn start(engine: &Engine) -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let apart = {
            let _inside = handle.enter();
            engine.apart()
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let (alive, ended) = oneshot::channel::<()>();
        let own = apart.clone();
        let serve = async move {
            // An error means that the sender is gone, which is the sign to end.
            let _ = stopped.await;
            if let Some(engine) = own
                && let Err(error) = engine.close().await
            {
                tracing::debug!(%error, "the connection for renewals was not closed in good order");
            }
        };
        let run = move || {
            runtime.block_on(serve);
            drop(runtime);
            drop(alive);
        };
        std::thread::Builder::new().name("firth-renewals".to_owned()).spawn(run)?;
        let engine = apart.unwrap_or_else(|| engine.clone());
        Ok(Self { runtime: handle, engine, stop: Some(stop), ended })
    }

    /// Ends the thread and waits until nothing of it runs.
    async fn end(mut self) {
        drop(self.stop.take());
        // An error means that the other side is gone: that is the end.
        let _ = (&mut self.ended).await;
    }
}

impl Renewing {
    /// Ends the task, and the thread if this was its last one; nothing of them runs afterwards.
    pub(crate) async fn stop(mut self) {
        for task in [&mut self.task, &mut self.signs] {
            task.abort();
            if !task.is_finished() {
                // How it ended does not matter.
                let _ = task.await;
            }
        }
        if let Some(thread) = self.thread.take().and_then(Arc::into_inner) {
            thread.end().await;
        }
    }
}

/// Resolves when the task has ended by itself.
impl Future for Renewing {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.task).poll(context).map(drop)
    }
}

impl Drop for Renewing {
    fn drop(&mut self) {
        self.task.abort();
        self.signs.abort();
    }
}

/// Whether this runtime's clock is the machine's.
fn is_real_time() -> bool {
    let before = std::time::Instant::now();
    let here = Instant::now().into_std();
    before <= here && here <= std::time::Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn q12_the_thread_serves_all_and_ends_with_the_last() {
        let renewals = Renewals::new(Engine::memory());
        let tell = |sender: oneshot::Sender<Option<String>>| {
            renewals.spawn(|_, _| async move {
                // The test may be over.
                let _ = sender.send(std::thread::current().name().map(str::to_owned));
                std::future::pending::<()>().await;
            })
        };
        let [(first, one), (second, other)] = [oneshot::channel(), oneshot::channel()];
        let a = tell(first);
        let b = tell(second);
        for name in [one.await.unwrap(), other.await.unwrap()] {
            assert_eq!(name.as_deref(), Some("firth-renewals"));
        }
        a.stop().await;
        assert!(renewals.thread.lock().unwrap().upgrade().is_some(), "the other one still needs it");
        b.stop().await;
        assert!(renewals.thread.lock().unwrap().upgrade().is_none());
    }

    /// It runs on the only thread of its runtime, which it then blocks.
    #[tokio::test]
    async fn q12_a_runtime_that_hangs_is_noticed() {
        let mut renewals = Renewals::new(Engine::memory());
        renewals.hung_after = Duration::from_millis(200);
        let (sender, seen) = std::sync::mpsc::channel();
        let task = renewals.spawn(|_, vital| async move {
            // The test may be over.
            let _ = sender.send(vital.is_alive());
            while vital.is_alive() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let _ = sender.send(false);
        });
        let answers = [seen.recv().unwrap(), seen.recv().unwrap()];
        assert_eq!(answers, [true, false], "it lived, and was found hanging while it waited here");
        task.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn q12_a_paused_clock_renews_by_itself() {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(!is_real_time());
        let renewals = Renewals::new(Engine::memory());
        let (sender, name) = oneshot::channel();
        let task = renewals.spawn(|_, _| async move {
            // The test may be over.
            let _ = sender.send(std::thread::current().name().map(str::to_owned));
        });
        assert_ne!(name.await.unwrap().as_deref(), Some("firth-renewals"));
        task.stop().await;
    }
}
