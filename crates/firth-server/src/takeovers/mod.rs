//! Takeovers of claims over time, for the console and `GET /v1/claims/{service}/takeovers`.
//!
//! `history` is pure; this file looks at services. A server looks every [`EVERY`] while a reader
//! asks, and else every [`CALM`]. Looking takes at most one in [`SHARE_ASKED`] of the time, and one
//! in [`SHARE_CALM`].
//!
//! Bounded: [`MAX_SERVICES`] services, and [`MAX_OFFERS`] units of each.

mod history;

use crate::wire::{ClaimChange, unix_ms};
use firth::{Broker, Result};
use history::History;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const EVERY: Duration = Duration::from_millis(500);
const CALM: Duration = Duration::from_secs(2);
const SHARE_ASKED: u32 = 20;
const SHARE_CALM: u32 = 100;
/// A reader counts as present for this long after it asked.
const PRESENT: Duration = Duration::from_secs(30);
/// How many services, the first by name, and how many units of each.
const MAX_SERVICES: usize = 64;
const MAX_OFFERS: usize = 2000;

/// The history; clones share it.
#[derive(Clone, Default)]
pub(crate) struct Takeovers(Arc<Shared>);

#[derive(Default)]
struct Shared {
    history: Mutex<History>,
    asked: Mutex<Option<Instant>>,
    wanted: Notify,
    started_ms: Mutex<Option<u64>>,
}

impl Takeovers {
    /// The newest changes of a service, and since when this server looks.
    pub(crate) fn newest(&self, service: &str, max: usize) -> (Vec<ClaimChange>, Option<u64>) {
        let before = self.asked().replace(Instant::now());
        if before.is_none_or(|at| at.elapsed() >= PRESENT) {
            self.0.wanted.notify_one();
        }
        let since = *self.0.started_ms.lock().expect("nothing panics under this lock");
        (self.history().newest(service, max), since)
    }

    /// Looks until the server closes.
    pub(crate) fn start(&self, broker: Broker, closing: CancellationToken) {
        let takeovers = self.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = takeovers.watch(broker) => {}
                () = closing.cancelled() => {}
            }
        });
    }

    async fn watch(self, broker: Broker) {
        for look in 1.. {
            let began = Instant::now();
            if let Err(error) = self.look(&broker, look).await {
                tracing::debug!(%error, "the claims cannot be looked at");
            }
            let is_asked = self.asked().is_some_and(|at| at.elapsed() < PRESENT);
            let (pause, share) = if is_asked { (EVERY, SHARE_ASKED) } else { (CALM, SHARE_CALM) };
            let pause = pause.max(began.elapsed() * share);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.0.wanted.notified() => {}
            }
        }
    }

    async fn look(&self, broker: &Broker, look: u64) -> Result<()> {
        let services = broker.list_services().await?;
        self.history().retain(|service| services.iter().any(|known| known == service));
        for service in services.iter().take(MAX_SERVICES) {
            let offers = broker.claims(service).offers(None, MAX_OFFERS).await?;
            let now = unix_ms(SystemTime::now());
            let is_whole = offers.len() < MAX_OFFERS;
            self.history().note(service, (now, look), &offers, is_whole);
        }
        let mut started = self.0.started_ms.lock().expect("nothing panics under this lock");
        started.get_or_insert_with(|| unix_ms(SystemTime::now()));
        Ok(())
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.0.history.lock().expect("nothing panics under this lock")
    }

    fn asked(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.asked.lock().expect("nothing panics under this lock")
    }
}
