//! A hub and a router that forgets, goes away, and comes back.

use super::*;
use crate::auth::{Collections, Grant};
use crate::{Config, Session};
use futures_util::FutureExt as _;
use std::collections::BTreeMap;

/// A router's registry.
#[derive(Clone, Default)]
struct Router(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    gateway: bool,
    subscriptions: BTreeMap<String, String>,
    is_away: bool,
}

impl Router {
    fn ask<T: Send + 'static>(
        &self,
        answer: impl FnOnce(&mut Known) -> T,
    ) -> BoxFuture<'_, Result<T, Refusal>> {
        let mut known = self.0.lock().unwrap();
        let away = Refusal::new(Code::Unavailable, "away");
        let answer = if known.is_away { Err(away) } else { Ok(answer(&mut known)) };
        std::future::ready(answer).boxed()
    }

    fn registered(&self) -> Vec<String> {
        self.0.lock().unwrap().subscriptions.values().cloned().collect()
    }

    async fn until(&self, what: &str, holds: impl Fn(&[String]) -> bool) {
        for _ in 0..10_000 {
            if holds(&self.registered()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{what}: {:?}", self.registered());
    }
}

impl Upstream for Router {
    fn gateway(&self) -> &str {
        "g"
    }

    fn announce(&self, anew: bool) -> BoxFuture<'_, Result<Duration, Refusal>> {
        self.ask(|known| {
            known.gateway = true;
            if anew {
                known.subscriptions.clear();
            }
            Duration::from_secs(90)
        })
    }

    fn heartbeat(&self) -> BoxFuture<'_, Result<bool, Refusal>> {
        self.ask(|known| known.gateway)
    }

    fn register<'a>(
        &'a self,
        tenant: &'a Tenant,
        id: &'a SubscriptionId,
        wish: &'a Wish,
    ) -> BoxFuture<'a, Result<(), Refusal>> {
        let text = format!("{tenant} {}", wish.collection);
        self.ask(|known| drop(known.subscriptions.insert(format!("{tenant}/{id}"), text)))
    }

    fn unregister<'a>(
        &'a self,
        tenant: &'a Tenant,
        id: &'a SubscriptionId,
    ) -> BoxFuture<'a, Result<(), Refusal>> {
        self.ask(|known| drop(known.subscriptions.remove(&format!("{tenant}/{id}"))))
    }

    fn leave(&self) -> BoxFuture<'_, Result<(), Refusal>> {
        self.ask(|known| (known.gateway, known.subscriptions) = (false, BTreeMap::new()))
    }
}

fn join(hub: &Hub, tenant: &str) -> Session {
    let tenant = Tenant::new(tenant).unwrap();
    let collections = Collections::of(["orders"]);
    hub.join(Grant { tenant, user: None, collections, expires: None, root: [0; 32] }, None).unwrap()
}

async fn subscribe(session: &mut Session, collection: &str) -> Result<(), Refusal> {
    let wishes = [Wish::collection("w", collection)];
    session.prepare(&wishes, None).await?;
    session.subscribe(&wishes, None)
}

fn types(session: &mut Session) -> Vec<String> {
    let step = session.take();
    session.written();
    let kind = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap()["type"].to_string();
    step.messages.iter().map(|message| kind(message.text())).collect()
}

#[tokio::test(start_paused = true)]
async fn tenants_register_apart_and_what_nobody_holds_is_taken_away_after_the_window() {
    let (hub, router) = (Hub::start(Config::default()).unwrap(), Router::default());
    let registrar = Registrar::start(&hub, router.clone()).await.unwrap();
    let (mut one, mut two, mut other) = (join(&hub, "a"), join(&hub, "a"), join(&hub, "b"));
    for session in [&mut one, &mut two, &mut other] {
        subscribe(session, "orders").await.unwrap();
    }
    assert_eq!(router.registered(), ["a orders", "b orders"]);
    let refused = subscribe(&mut other, "secrets").await.unwrap_err();
    assert_eq!(
        (refused.code, router.registered().len()),
        (Code::Forbidden, 2),
        "nothing is asked for who may not"
    );
    drop(one);
    two.unsubscribe(&["w".into()]);
    let mut back = join(&hub, "a");
    subscribe(&mut back, "orders").await.unwrap();
    assert_eq!(router.registered().len(), 2);
    drop((back, two));
    router.until("it is taken away", |known| known == ["b orders"]).await;
    registrar.close().await.unwrap();
    assert!(router.registered().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_router_that_forgot_is_told_everything_again_and_clients_start_anew() {
    let (hub, router) = (Hub::start(Config::default()).unwrap(), Router::default());
    let registrar = Registrar::start(&hub, router.clone()).await.unwrap();
    let mut session = join(&hub, "a");
    subscribe(&mut session, "orders").await.unwrap();
    assert_eq!(types(&mut session), ["\"hello\"", "\"subscribed\""]);
    {
        let mut known = router.0.lock().unwrap();
        (known.gateway, known.subscriptions) = (false, BTreeMap::new());
    }
    router.until("it is told again", |known| known == ["a orders"]).await;
    assert_eq!(types(&mut session), ["\"resync-required\""]);
    registrar.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn while_the_router_is_away_nobody_is_subscribed_and_a_long_absence_is_a_gap() {
    let (hub, router) = (Hub::start(Config::default()).unwrap(), Router::default());
    let registrar = Registrar::start(&hub, router.clone()).await.unwrap();
    let (mut session, mut late) = (join(&hub, "a"), join(&hub, "b"));
    subscribe(&mut session, "orders").await.unwrap();
    types(&mut session);
    router.0.lock().unwrap().is_away = true;
    assert_eq!(subscribe(&mut late, "orders").await.unwrap_err().code, Code::Unavailable);
    // Longer than the router remembers a gateway without signs of life.
    tokio::time::sleep(Duration::from_secs(200)).await;
    router.0.lock().unwrap().is_away = false;
    subscribe(&mut late, "orders").await.unwrap();
    assert_eq!(router.registered(), ["a orders", "b orders"]);
    let mut heard = Vec::new();
    for _ in 0..100 {
        heard.extend(types(&mut session));
        if heard.iter().any(|kind| kind == "\"resync-required\"") {
            break;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(heard.iter().any(|kind| kind == "\"resync-required\""), "{heard:?}");
    registrar.close().await.unwrap();
}
