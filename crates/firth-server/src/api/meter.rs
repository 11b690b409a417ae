//! What is counted of every request: handles are made at the first request of a kind and kept, so
//! that counting costs a look into a table.
//!
//! Bounded without a limit of its own: the API has a fixed number of routes and statuses.

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

/// The handles of every route.
#[derive(Default)]
pub(crate) struct Meter(MeterTable<String, Arc<Route>>);

struct Route {
    name: String,
    running: Gauge,
    took: Histogram,
    answers: MeterTable<(&'static str, u16), Counter>,
}

impl Meter {
    /// A request begins.
    pub(crate) fn begin(&self, route: &str) -> Running {
        let route = self.0.get_or_make(route, || Arc::new(Route::new(route)));
        route.running.increment(1);
        Running { route, since: Instant::now() }
    }
}

impl Route {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            running: gauge!("firth_http_requests_running", "route" => name.to_owned()),
            took: histogram!("firth_http_seconds", "route" => name.to_owned()),
            answers: MeterTable::default(),
        }
    }
}

/// Counts a request as long as it runs, also one whose client hangs up.
pub(crate) struct Running {
    route: Arc<Route>,
    since: Instant,
}

impl Running {
    /// How long it has been running.
    pub(crate) fn took(&self) -> Duration {
        self.since.elapsed()
    }

    /// It was answered.
    pub(crate) fn answered(&self, method: &'static str, status: u16) {
        let counter = self.route.answers.get_or_make(&(method, status), || {
            let route = self.route.name.clone();
            let labels = [("method", method.to_owned()), ("route", route), ("status", status.to_string())];
            counter!("firth_http_requests_total", &labels)
        });
        counter.increment(1);
        self.route.took.record(self.took().as_secs_f64());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.route.running.decrement(1);
    }
}

/// Values that are made once and never change.
struct MeterTable<K, V>(RwLock<HashMap<K, V>>);

impl<K, V> Default for MeterTable<K, V> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<K: Eq + Hash, V: Clone> MeterTable<K, V> {
    fn get_or_make<Q>(&self, key: &Q, make: impl FnOnce() -> V) -> V
    where
        K: std::borrow::Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = K> + ?Sized,
    {
        let known = self.0.read().expect("nothing panics under this lock").get(key).cloned();
        known.unwrap_or_else(|| {
            let mut all = self.0.write().expect("nothing panics under this lock");
            all.entry(key.to_owned()).or_insert_with(make).clone()
        })
    }
}
