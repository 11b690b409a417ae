//! Keeps the topology up to date: one task per client refreshes it.
//!
//! A refresh follows a hint (a redirection, a lost connection, a subscription that the server took
//! away), and happens at intervals without a hint. Refreshes are coalesced by a pause between them.
//! The pause grows while refreshes fail, and while hints bring no change.

use super::arbiter::Arbiter;
use super::refresh::refresh;
use super::topology::Topology;
use super::topology_cache::TopologyCache;
use crate::backoff::Backoff;
use crate::config::Config;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

/// Shortest time between the starts of two refreshes.
const PAUSE: Duration = Duration::from_millis(25);
/// Longest pause while refreshes fail.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause while refreshes succeed without a change. A failover is found at most this much
/// later.
const LONGEST_IDLE_PAUSE: Duration = Duration::from_millis(400);

/// A handle on the task. When the last one is dropped, the task ends.
#[derive(Clone)]
pub(crate) struct Monitor {
    cache: Arc<TopologyCache>,
    running: Arc<watch::Sender<bool>>,
    _stop_guard: Arc<StopOnLastHandle>,
}

struct StopOnLastHandle(Arc<TopologyCache>);

impl Drop for StopOnLastHandle {
    fn drop(&mut self) {
        self.0.set_closed(true);
    }
}

/// Ends the task's state on every exit. A panic closes the client.
struct MonitorExit {
    cache: Arc<TopologyCache>,
    running: Arc<watch::Sender<bool>>,
}

impl Drop for MonitorExit {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("the task that watches the cluster panicked; the client is closed");
            self.cache.set_closed(true);
        }
        self.running.send_replace(false);
    }
}

impl Monitor {
    /// Starts refreshing, first from the addresses of the configuration.
    pub(crate) fn spawn(config: Config) -> Self {
        let cache = Arc::new(TopologyCache::new(config));
        let running = Arc::new(watch::Sender::new(false));
        let monitor = Self { _stop_guard: Arc::new(StopOnLastHandle(cache.clone())), cache, running };
        monitor.start();
        monitor
    }

    /// Starts the task unless it runs. False if it runs.
    pub(crate) fn start(&self) -> bool {
        if !self.running.send_if_modified(|running| !std::mem::replace(running, true)) {
            return false;
        }
        self.cache.set_closed(false);
        let end = MonitorExit { cache: self.cache.clone(), running: self.running.clone() };
        tokio::spawn(async move { run(&end.cache).await });
        true
    }

    /// What is known of the cluster.
    pub(crate) fn cache(&self) -> &Arc<TopologyCache> {
        &self.cache
    }

    /// Topology: the current one at once, then each that differs. Empty until the first refresh
    /// succeeded.
    pub(crate) fn watch(&self) -> watch::Receiver<Arc<Topology>> {
        self.cache.watch()
    }

    /// Hints that the cluster may have changed: the next refresh comes soon. Never waits.
    pub(crate) fn refresh(&self) {
        self.cache.refresh();
    }

    /// Ends the task and returns when it is gone.
    pub(crate) async fn close(&self) {
        self.cache.set_closed(true);
        // The sender lives in this handle.
        let _ = self.running.subscribe().wait_for(|running| !running).await;
    }
}

async fn run(cache: &Arc<TopologyCache>) {
    let mut health = cache.watch_health();
    let closed = async {
        // The task holds the cache, and the cache the sender.
        let _ = health.wait_for(|h| h.closed).await;
    };
    tokio::select! {
        biased;
        () = closed => {}
        () = refresh_forever(cache) => {}
    }
}

async fn refresh_forever(cache: &Arc<TopologyCache>) {
    let mut arbiter = Arbiter::default();
    // Refreshes in a row that followed a hint and brought no change.
    let mut idle: u32 = 0;
    loop {
        let started = Instant::now();
        let outcome = refresh(cache, &mut arbiter).await;
        cache.meter.refreshed(outcome.is_ok(), started.elapsed());
        match outcome {
            Ok(topology) => {
                idle = if cache.refreshed(topology, started) { 0 } else { idle.saturating_add(1) }
            }
            Err(problem) => {
                tracing::debug!(%problem, "no node could tell the topology");
                cache.refresh_failed(problem);
            }
        }
        let failures = cache.health().failures;
        sleep(pause(failures, idle).saturating_sub(started.elapsed())).await;
        // Refresh after a hint, or after the interval.
        let waiting_since = Instant::now();
        let hinted = timeout(interval(cache.config.cluster.poll), cache.hint.notified()).await;
        if hinted.is_err() || waiting_since.elapsed() >= LONGEST_IDLE_PAUSE {
            idle = 0;
        }
    }
}

fn pause(failures: u32, idle: u32) -> Duration {
    let (max, steps) = if failures > 0 { (LONGEST_PAUSE, failures) } else { (LONGEST_IDLE_PAUSE, idle) };
    let growing = Backoff { immediate: 0, first: PAUSE, max, factor: 2.0, jitter: 0.2 };
    if steps == 0 { PAUSE } else { growing.delay(steps) }
}

/// Spread over time, so that clients that started together do not refresh together.
fn interval(poll: Duration) -> Duration {
    poll.mul_f64(0.9 + 0.2 * fastrand::f64())
}
