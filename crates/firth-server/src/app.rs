//! What every handler shares: the broker, the delivery desk, cached producers, the tokens. Closed once, at the end.

use crate::auth::Guard;
use crate::desk::Desk;
use firth::{Broker, Producer, Result};
use metrics_exporter_prometheus::PrometheusHandle;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Producers kept for topics in use; beyond that, one that is kept makes room.
const MAX_PRODUCERS: usize = 1024;

/// The server's state; clones share it.
#[derive(Clone)]
pub(crate) struct App(Arc<Inner>);

struct Inner {
    broker: Broker,
    desk: Desk,
    guard: Guard,
    metrics: Option<PrometheusHandle>,
    producers: Mutex<HashMap<String, Producer>>,
    draining: AtomicBool,
}

impl App {
    /// State on a broker. Without `metrics` there is nothing to scrape.
    pub(crate) fn new(broker: Broker, guard: Guard, metrics: Option<PrometheusHandle>) -> Self {
        let desk = Desk::open(broker.clone());
        let (producers, draining) = (Mutex::default(), AtomicBool::new(false));
        Self(Arc::new(Inner { broker, desk, guard, metrics, producers, draining }))
    }

    pub(crate) fn broker(&self) -> &Broker {
        &self.0.broker
    }

    pub(crate) fn desk(&self) -> &Desk {
        &self.0.desk
    }

    pub(crate) fn guard(&self) -> &Guard {
        &self.0.guard
    }

    pub(crate) fn metrics(&self) -> Option<&PrometheusHandle> {
        self.0.metrics.as_ref()
    }

    /// The topic's producer, made at first use.
    pub(crate) async fn producer(&self, topic: &str) -> Result<Producer> {
        if let Some(producer) = self.producers().get(topic) {
            return Ok(producer.clone());
        }
        let made = self.broker().producer(topic).name("http").await?;
        let mut producers = self.producers();
        if producers.len() >= MAX_PRODUCERS
            && let Some(any) = producers.keys().next().cloned()
        {
            producers.remove(&any);
        }
        Ok(producers.entry(topic.to_owned()).or_insert(made).clone())
    }

    /// Forgets what is cached of a topic that is gone.
    pub(crate) fn forget_producer(&self, topic: &str) {
        self.producers().remove(topic);
    }

    /// From now on it is not ready, and waiting fetches end.
    pub(crate) fn drain(&self) {
        self.0.draining.store(true, Ordering::Relaxed);
        self.desk().stop_fetching();
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.0.draining.load(Ordering::Relaxed)
    }

    /// Leaves every group, sends what is buffered and closes the engine.
    pub(crate) async fn close(&self) -> Result<()> {
        self.drain();
        self.desk().close().await;
        let producers = std::mem::take(&mut *self.producers());
        for (_, producer) in producers {
            producer.close().await?;
        }
        self.broker().clone().close().await
    }

    fn producers(&self) -> std::sync::MutexGuard<'_, HashMap<String, Producer>> {
        self.0.producers.lock().expect("nothing panics under this lock")
    }
}
