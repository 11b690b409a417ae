//! Keeps the topology fresh: one task per client looks at the cluster when something hints at a
//! change (a redirection, a lost connection, a subscription that was taken away), and now and then
//! without a hint. Looks are coalesced: there is a pause between two of them, which grows while
//! they fail, and while hint follows hint and nothing has changed.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::{belief::Belief, chart::Chart, look::look, topology::Topology};
use crate::{backoff::Backoff, config::Config};

/// At least this long between the starts of two looks.
const PAUSE: Duration = Duration::from_millis(25);
/// The longest pause while looks fail.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause while looks succeed but tell nothing new. A failover is found this much later
/// at most.
const LONGEST_CALM: Duration = Duration::from_millis(400);

/// A handle on the task. When the last one is dropped, the task ends.
#[derive(Clone)]
pub(crate) struct Monitor {
    chart: Arc<Chart>,
    running: Arc<watch::Sender<bool>>,
    _alive: Arc<Alive>,
}

struct Alive(Arc<Chart>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.set_closed(true);
    }
}

/// The end of the task, however it comes about. A panic closes the client for all to see.
struct End {
    chart: Arc<Chart>,
    running: Arc<watch::Sender<bool>>,
}

impl Drop for End {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("the task that watches the cluster panicked; the client is closed");
            self.chart.set_closed(true);
        }
        self.running.send_replace(false);
    }
}

impl Monitor {
    /// Starts looking, first at the addresses that the configuration names.
    pub(crate) fn spawn(config: Config) -> Self {
        let chart = Arc::new(Chart::new(config));
        let running = Arc::new(watch::Sender::new(false));
        let monitor = Self { _alive: Arc::new(Alive(chart.clone())), chart, running };
        monitor.start();
        monitor
    }

    /// Starts the task unless it runs. False if it runs.
    pub(crate) fn start(&self) -> bool {
        if !self.running.send_if_modified(|running| !std::mem::replace(running, true)) {
            return false;
        }
        self.chart.set_closed(false);
        let end = End { chart: self.chart.clone(), running: self.running.clone() };
        tokio::spawn(async move { keep_looking(&end.chart).await });
        true
    }

    /// What is known of the cluster.
    pub(crate) fn chart(&self) -> &Arc<Chart> {
        &self.chart
    }

    /// The topology: the current one at once, then each one that differs. Empty until the first look succeeded.
    pub(crate) fn watch(&self) -> watch::Receiver<Arc<Topology>> {
        self.chart.watch()
    }

    /// Hints that the cluster may have changed: the next look is made soon. Never waits.
    pub(crate) fn refresh(&self) {
        self.chart.refresh();
    }

    /// Ends the task and returns when it is gone.
    pub(crate) async fn close(&self) {
        self.chart.set_closed(true);
        // The sender lives in this handle.
        let _ = self.running.subscribe().wait_for(|running| !running).await;
    }
}

async fn keep_looking(chart: &Arc<Chart>) {
    let mut health = chart.watch_health();
    let closed = async {
        // The chart, which holds the sender, is held by the task.
        let _ = health.wait_for(|h| h.closed).await;
    };
    tokio::select! {
        biased;
        () = closed => {}
        () = look_forever(chart) => {}
    }
}

async fn look_forever(chart: &Arc<Chart>) {
    let mut belief = Belief::default();
    // Looks in a row that were hinted at and told nothing new.
    let mut idle: u32 = 0;
    loop {
        let started = Instant::now();
        let seen = look(chart, &mut belief).await;
        chart.meter.looked(seen.is_ok(), started.elapsed());
        match seen {
            Ok(topology) => idle = if chart.learn(topology, started) { 0 } else { idle.saturating_add(1) },
            Err(problem) => {
                tracing::debug!(%problem, "no node could tell the topology");
                chart.learned_nothing(problem);
            }
        }
        let failures = chart.health().failures;
        sleep(pause(failures, idle).saturating_sub(started.elapsed())).await;
        // Whether a hint came or the time is up: the next thing is a look.
        let rested = Instant::now();
        let hinted = timeout(interval(chart.config.cluster.poll), chart.hint.notified()).await;
        if hinted.is_err() || rested.elapsed() >= LONGEST_CALM {
            idle = 0;
        }
    }
}

fn pause(failures: u32, idle: u32) -> Duration {
    let (max, steps) = if failures > 0 { (LONGEST_PAUSE, failures) } else { (LONGEST_CALM, idle) };
    let growing = Backoff { immediate: 0, first: PAUSE, max, factor: 2.0, jitter: 0.2 };
    if steps == 0 { PAUSE } else { growing.delay(steps) }
}

/// Clients that were started together shall not look together for ever.
fn interval(poll: Duration) -> Duration {
    poll.mul_f64(0.9 + 0.2 * fastrand::f64())
}
