//! Small hands for the tests: names, documents, subscriptions, engines.

use firth_engine::Engine;
use firth_router::event::{Document, Event, Operation};
use firth_router::registry::Subscription;
use firth_router::routing::Target;
use firth_router::{GatewayId, SubscriptionId, Tenant};
use firth_testkit::{Flavor, RedisServer};

pub(crate) use firth_testkit::wait::{PATIENCE, until, until_some};

pub(crate) fn tenant(name: &str) -> Tenant {
    Tenant::new(name).unwrap()
}

pub(crate) fn gateway(name: &str) -> GatewayId {
    GatewayId::new(name).unwrap()
}

pub(crate) fn sub_id(name: &str) -> SubscriptionId {
    SubscriptionId::new(name).unwrap()
}

/// A subscription of tenant `t` to `orders`, held by a gateway.
pub(crate) fn wish(id: &str, filter: &str, to: &str) -> Subscription {
    let target = Target::Direct(gateway(to));
    let wish = Subscription::new(sub_id(id), tenant("t"), "orders", target);
    Subscription { filter: Some(filter.to_owned()), ..wish }
}

pub(crate) fn order(key: &str, document: serde_json::Value) -> Event {
    Event::new(Operation::Insert, tenant("t"), "orders", key)
        .with_after(Document::from_value(&document).unwrap())
}

/// Two engines that share what they store, as two nodes do.
pub(crate) async fn on_server(flavor: Flavor) -> (RedisServer, Engine, Engine) {
    let server = RedisServer::start(flavor).await;
    let one = Engine::at(&server.url()).await.unwrap();
    let two = Engine::at(&server.url()).await.unwrap();
    (server, one, two)
}
