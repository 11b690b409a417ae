//! Old dead letters of the router's group are removed when they have reached `routing.dlq.max_age`.

use super::RouterOptions;
use firth::Broker;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

/// Runs until it is aborted. Every node may run it: removing twice does no harm.
pub(super) async fn run(broker: Broker, options: RouterOptions) {
    let max_age = options.routing.dlq.max_age;
    let mut turns = interval((max_age / 2).clamp(Duration::from_millis(100), Duration::from_secs(60)));
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        match remove(&broker, &options, max_age).await {
            Ok(0) => {}
            Ok(removed) => tracing::info!(removed, "dead letters of the router reached their age"),
            Err(error) => tracing::warn!(%error, "old dead letters of the router stay for now"),
        }
    }
}

/// Those of the router's group, and of the groups of parked gateways.
async fn remove(broker: &Broker, options: &RouterOptions, max_age: Duration) -> firth::Result<u64> {
    let mut removed = 0;
    for group in broker.admin().groups(&options.topic).await? {
        if super::is_routers(&options.group, group.as_str()) {
            let letters = broker.dead_letters(&options.topic).group(group.as_str()).older_than(max_age);
            removed += letters.delete_all().await?;
        }
    }
    Ok(removed)
}
