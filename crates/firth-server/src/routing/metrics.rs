//! Figures of the node that nobody counts on the way: the books, lag and health of each partition, and how many are registered.

use super::partitions;
use firth::Broker;
use firth_router::node::{Router, RouterOptions};
use firth_router::registry::Registry;
use metrics::gauge;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

const EVERY: Duration = Duration::from_secs(2);

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
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        gauge!("firth_router_subscriptions").set(registry.len() as f64);
        gauge!("firth_router_gateways").set(registry.gateways().len() as f64);
        gauge!("firth_router_running").set(f64::from(u8::from(router.is_running())));
        for (partition, books) in router.books() {
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
}
