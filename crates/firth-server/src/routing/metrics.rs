//! Gauges of the node that a task sets on a timer instead of per event: the books, lag and health
//! of each partition, and the number of subscriptions and gateways.

use super::{books, partitions};
use crate::wire::BooksShown;
use firth::Broker;
use firth_router::node::{Router, RouterOptions};
use firth_router::registry::Registry;
use metrics::gauge;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

const EVERY: Duration = Duration::from_secs(2);
/// How often books that stand still are told to the other nodes.
const ALIVE: Duration = Duration::from_secs(10);

/// Keeps the gauges up to date until `stop`.
pub(super) async fn keep(
    broker: Broker,
    registry: Registry,
    router: Arc<Router>,
    options: RouterOptions,
    stop: CancellationToken,
) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = None;
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            _ = ticks.tick() => {}
        }
        gauge!("firth_router_subscriptions").set(registry.len() as f64);
        gauge!("firth_router_gateways").set(registry.gateways().len() as f64);
        gauge!("firth_router_running").set(f64::from(u8::from(router.is_running())));
        let parked = router.lanes().iter().filter(|lane| !lane.parked.is_empty()).count();
        gauge!("firth_router_parked_gateways").set(parked as f64);
        let sum = router.accounting().into_values().map(BooksShown::from).sum();
        // What did not change is told now and then, as a sign of life.
        if told.is_none_or(|(at, last): (Instant, BooksShown)| last != sum || at.elapsed() >= ALIVE) {
            match books::tell(&broker, &options, sum).await {
                Ok(()) => told = Some((Instant::now(), sum)),
                Err(error) => tracing::debug!(%error, "the books are not told to the others now"),
            }
        }
        for (partition, books) in router.accounting() {
            let places = [
                ("taken", books.taken),
                ("delivered", books.delivered),
                ("parked", books.parked),
                ("dead", books.dead),
                ("gapped", books.gapped),
                ("in_flight", books.held),
            ];
            for (place, count) in places {
                gauge!("firth_router_books", "partition" => partition.to_string(), "place" => place)
                    .set(count as f64);
            }
        }
        match partitions(&broker, &options.topic, &options.group).await {
            Ok(parts) => parts.iter().for_each(|part| {
                let label = part.index.to_string();
                gauge!("firth_router_lag_records", "partition" => label.clone()).set(part.lag as f64);
                let oldest = part.oldest.unwrap_or_default().as_secs_f64();
                gauge!("firth_router_oldest_age_seconds", "partition" => label.clone()).set(oldest);
                gauge!("firth_router_health", "partition" => label).set(f64::from(part.health as u8));
            }),
            Err(error) => tracing::debug!(%error, "the router's lag is not known now"),
        }
    }
    if let Err(error) = books::withdraw(&broker, &options).await {
        tracing::debug!(%error, "the books of this node stay until the others forget them");
    }
}
