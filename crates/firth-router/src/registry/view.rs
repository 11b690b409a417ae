//! Looking at the registry: subscriptions page by page, gateways with how long ago they gave a sign
//! of life.

use super::state::{Key, State};
use super::subscription::{Gateway, Subscription};
use crate::name::{GatewayId, SubscriptionId, Tenant};
use crate::routing::Target;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Which subscriptions to show.
#[derive(Clone, Debug, Default)]
pub struct Select {
    /// Only this tenant's.
    pub tenant: Option<Tenant>,
    /// Only those that name this gateway.
    pub gateway: Option<GatewayId>,
    /// Only those behind this one, in the order of tenants and ids.
    pub after: Option<(Tenant, SubscriptionId)>,
}

/// A subscription as a node knows it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// What was registered.
    pub subscription: Arc<Subscription>,
    /// How long it lives without another heartbeat; its gateway's signs of life may give it more.
    pub remaining: Duration,
}

/// A gateway as a node knows it.
#[derive(Clone, Debug)]
pub struct GatewaySeen {
    /// What was registered.
    pub gateway: Gateway,
    /// How many subscriptions name it.
    pub subscriptions: usize,
    /// How long it counts as alive without another sign of life; `None`: for ever.
    pub remaining: Option<Duration>,
}

impl State {
    /// The first `max` that are selected, and whether there are more. Looks at all of the gateway's
    /// or else at all there are, and keeps only a page.
    pub(super) fn select(&self, select: &Select, max: usize, now: Instant) -> (Vec<Seen>, bool) {
        let is_wanted = |key: &Key| {
            select.tenant.as_ref().is_none_or(|tenant| *tenant == key.0)
                && select.after.as_ref().is_none_or(|after| key > after)
        };
        let mut page: BinaryHeap<&Key> = BinaryHeap::new();
        let mut take = |key| {
            if is_wanted(key) {
                page.push(key);
                if page.len() > max + 1 {
                    page.pop();
                }
            }
        };
        match &select.gateway {
            Some(gateway) => self.keys_of(gateway).for_each(&mut take),
            None => self.keys().for_each(&mut take),
        }
        let mut keys = page.into_sorted_vec();
        let has_more = keys.len() > max;
        keys.truncate(max);
        let seen = |key: &Key| {
            let (subscription, deadline) = self.life(key)?;
            Some(Seen { subscription, remaining: deadline.saturating_duration_since(now) })
        };
        (keys.into_iter().filter_map(seen).collect(), has_more)
    }

    pub(super) fn seen_gateways(&self, now: Instant) -> Vec<GatewaySeen> {
        let seen = |(gateway, seen): (&Gateway, Instant)| GatewaySeen {
            subscriptions: self.keys_of(&gateway.id).count(),
            remaining: gateway.ttl().map(|ttl| (seen + ttl).saturating_duration_since(now)),
            gateway: gateway.clone(),
        };
        self.known_gateways().map(seen).collect()
    }
}

impl Subscription {
    /// The gateway that it names.
    pub fn gateway(&self) -> Option<&GatewayId> {
        match &self.target {
            Target::Direct(gateway) => Some(gateway),
            Target::Hash | Target::Broadcast => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RoutingConfig;

    fn wish(tenant: &str, id: &str, gateway: &str) -> Subscription {
        let target = Target::Direct(GatewayId::new(gateway).unwrap());
        Subscription::new(SubscriptionId::new(id).unwrap(), Tenant::new(tenant).unwrap(), "c", target)
    }

    #[test]
    fn pages_go_through_everything_once_and_in_order() {
        let mut state = State::new(RoutingConfig::default().subscriptions);
        let now = Instant::now();
        for n in 0..25 {
            state.put(wish(["a", "b"][n % 2], &format!("s{n:02}"), ["g", "h"][n % 3 % 2]), 1, now).unwrap();
        }
        let mut select = Select { tenant: Some(Tenant::new("a").unwrap()), ..Select::default() };
        let mut seen = Vec::new();
        loop {
            let (page, has_more) = state.select(&select, 5, now);
            assert!(page.len() <= 5);
            seen.extend(page.iter().map(|one| one.subscription.id.to_string()));
            let Some(last) = page.last().filter(|_| has_more) else { break };
            select.after = Some((last.subscription.tenant.clone(), last.subscription.id.clone()));
        }
        let expected: Vec<_> = (0..25).step_by(2).map(|n| format!("s{n:02}")).collect();
        assert_eq!(seen, expected);
        let select = Select { gateway: Some(GatewayId::new("h").unwrap()), ..Select::default() };
        let (page, has_more) = state.select(&select, 100, now);
        assert!(!has_more && page.iter().all(|one| one.subscription.gateway().unwrap().as_str() == "h"));
        assert_eq!(page.len(), (0..25).filter(|n| n % 3 % 2 == 1).count());
    }
}
