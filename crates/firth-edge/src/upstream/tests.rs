//! A hub and a router that forgets, goes away, and comes back.

use super::*;
use crate::auth::{Collections, Grant};
use crate::{Config, Session};
use futures_util::FutureExt as _;
use std::collections::BTreeMap;

/// A router's registry, as one process sees it.
#[derive(Clone)]
struct Router {
    known: Arc<Mutex<Known>>,
    instance: &'static str,
}

#[derive(Default)]
struct Known {
    /// The process that is registered.
    gateway: Option<&'static str>,
    subscriptions: BTreeMap<String, String>,
    is_away: bool,
    /// It does not allow this gateway any more.
    is_forbidden: bool,
    /// Nor subscriptions to this collection.
    forbidden: Option<&'static str>,
    /// Registrations that were asked for.
    asked: usize,
    /// It takes calls and answers none.
    is_stuck: bool,
    /// How long a registration takes.
    takes: Duration,
    /// The longest time between two signs of life.
    silence: Duration,
    beat_at: Option<Instant>,
    /// Signs of life that were tried.
    tried: usize,
    most_at_a_time: usize,
    at_a_time: usize,
}

impl Default for Router {
    fn default() -> Self {
        Self { known: Arc::default(), instance: "first" }
    }
}

impl Router {
    /// The same router for another process.
    fn process(&self, instance: &'static str) -> Self {
        Self { instance, ..self.clone() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap()
    }

    fn ask<'a, T: Send + 'a>(
        &'a self,
        answer: impl FnOnce(&mut Known) -> T + Send + 'a,
    ) -> BoxFuture<'a, Result<T, EdgeError>> {
        async move {
            if self.known().is_stuck {
                std::future::pending::<()>().await;
            }
            let mut known = self.known();
            let away = EdgeError::new(Code::Unavailable, "away");
            let forbidden = EdgeError::new(Code::Forbidden, "see gateways= on the token's line");
            match (known.is_away, known.is_forbidden) {
                (true, _) => Err(away),
                (_, true) => Err(forbidden),
                _ => Ok(answer(&mut known)),
            }
        }
        .boxed()
    }

    fn registered(&self) -> Vec<String> {
        self.known().subscriptions.values().cloned().collect()
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
    fn gateway(&self) -> &'static str {
        "g"
    }

    fn instance(&self) -> &str {
        self.instance
    }

    fn announce(&self) -> BoxFuture<'_, Result<Duration, EdgeError>> {
        self.ask(move |known| {
            if known.gateway.replace(self.instance) != Some(self.instance) {
                known.subscriptions.clear();
            }
            Duration::from_secs(90)
        })
    }

    fn heartbeat(&self) -> BoxFuture<'_, Result<Heartbeat, EdgeError>> {
        self.known().tried += 1;
        self.ask(|known| {
            let silence = known.beat_at.replace(now()).map_or(Duration::ZERO, |last| now() - last);
            known.silence = known.silence.max(silence);
            match known.gateway {
                None => Heartbeat::Unknown,
                Some(instance) if instance == self.instance => Heartbeat::Alive,
                Some(_) => Heartbeat::Replaced,
            }
        })
    }

    fn register<'a>(
        &'a self,
        tenant: &'a Tenant,
        id: &'a SubscriptionId,
        request: &'a SubscriptionRequest,
    ) -> BoxFuture<'a, Result<(), EdgeError>> {
        let text = format!("{tenant} {}", request.collection);
        async move {
            let takes = {
                let mut known = self.known();
                known.asked += 1;
                known.at_a_time += 1;
                known.most_at_a_time = known.most_at_a_time.max(known.at_a_time);
                known.takes
            };
            tokio::time::sleep(takes).await;
            self.known().at_a_time -= 1;
            if self.known().forbidden.is_some_and(|collection| collection == request.collection) {
                return Err(EdgeError::new(Code::Forbidden, "see tenants= on the token's line"));
            }
            self.ask(|known| drop(known.subscriptions.insert(format!("{tenant}/{id}"), text))).await
        }
        .boxed()
    }

    fn unregister<'a>(
        &'a self,
        tenant: &'a Tenant,
        id: &'a SubscriptionId,
    ) -> BoxFuture<'a, Result<(), EdgeError>> {
        self.ask(move |known| drop(known.subscriptions.remove(&format!("{tenant}/{id}"))))
    }

    fn leave(&self) -> BoxFuture<'_, Result<(), EdgeError>> {
        self.ask(|known| {
            if known.gateway == Some(self.instance) {
                (known.gateway, known.subscriptions) = (None, BTreeMap::new());
            }
        })
    }
}

fn join(hub: &Hub, tenant: &str) -> Session {
    let tenant = Tenant::new(tenant).unwrap();
    let collections = Collections::of(["orders", "c*"]);
    hub.join(Grant { tenant, user: None, collections, expires: None, root: [0; 32] }, None).unwrap()
}

async fn subscribe(session: &mut Session, collection: &str) -> Result<(), EdgeError> {
    let requests = [SubscriptionRequest::collection("w", collection)];
    session.prepare(&requests, None).await?;
    session.subscribe(&requests, None)
}

fn types(session: &mut Session) -> Vec<String> {
    let step = session.take();
    session.written();
    let kind = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap()["type"].to_string();
    step.messages.iter().map(|message| kind(message.text())).collect()
}

#[tokio::test(start_paused = true)]
async fn tenants_register_apart_and_what_nobody_holds_is_taken_away_after_the_window() {
    let hub = Hub::start(Config::default()).unwrap();
    let router = Router::default();
    let registrar = Registrar::start(&hub, router.clone()).await.unwrap();
    let mut one = join(&hub, "a");
    let mut two = join(&hub, "a");
    let mut other = join(&hub, "b");
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
    let hub = Hub::start(Config::default()).unwrap();
    let router = Router::default();
    let registrar = Registrar::start(&hub, router.clone()).await.unwrap();
    let mut session = join(&hub, "a");
    subscribe(&mut session, "orders").await.unwrap();
    assert_eq!(types(&mut session), ["\"hello\"", "\"subscribed\""]);
    {
        let mut known = router.known();
        (known.gateway, known.subscriptions) = (None, BTreeMap::new());
    }
    router.until("it is told again", |known| known == ["a orders"]).await;
    assert_eq!(types(&mut session), ["\"resync-required\""]);
    registrar.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn while_the_router_is_away_nobody_is_subscribed_and_a_long_absence_is_a_gap() {
    let hub = Hub::start(Config::default()).unwrap();
    let router = Router::default();
    let registrar = Registrar::start(&hub, router.clone()).await.unwrap();
    let mut session = join(&hub, "a");
    let mut late = join(&hub, "b");
    subscribe(&mut session, "orders").await.unwrap();
    types(&mut session);
    router.known().is_away = true;
    assert_eq!(subscribe(&mut late, "orders").await.unwrap_err().code, Code::Unavailable);
    // Longer than the router remembers a gateway without signs of life.
    tokio::time::sleep(Duration::from_secs(200)).await;
    router.known().is_away = false;
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

#[tokio::test(start_paused = true)]
async fn r02_a_process_that_was_replaced_sends_its_clients_away_and_leaves_its_successor_alone() {
    let hub = Hub::start(Config::default()).unwrap();
    let router = Router::default();
    let first = Registrar::start(&hub, router.clone()).await.unwrap();
    let mut old = join(&hub, "a");
    subscribe(&mut old, "orders").await.unwrap();
    types(&mut old);
    let next_hub = Hub::start(Config::default()).unwrap();
    let second = Registrar::start(&next_hub, router.process("second")).await.unwrap();
    // Registered before the first process hears of its successor.
    let mut late = join(&hub, "a");
    subscribe(&mut late, "c-late").await.unwrap();
    let mut new = join(&next_hub, "b");
    subscribe(&mut new, "orders").await.unwrap();
    tokio::time::timeout(Duration::from_secs(30), first.replaced()).await.expect("it hears of it");
    assert!(types(&mut old).contains(&"\"bye\"".to_owned()), "its clients hear of it, too");
    assert!(hub.is_closing() && !next_hub.is_closing());
    router.until("what it registered is gone", |known| known == ["b orders"]).await;
    first.close().await.unwrap();
    assert_eq!(router.known().gateway, Some("second"));
    assert_eq!(router.registered().len(), 1);
    second.close().await.unwrap();
    assert_eq!(router.known().gateway, None);
}

#[tokio::test(start_paused = true)]
async fn r13_ten_thousand_clients_that_come_at_once_are_served_and_do_not_delay_signs_of_life() {
    let config = Config::default();
    let hub = Hub::start(config).unwrap();
    let router = Router::default();
    router.known().takes = Duration::from_millis(200);
    let registrar = Registrar::start(&hub, router.clone()).await.unwrap();
    let mut waiting = Vec::new();
    for tenant in 0..2 {
        for n in 0..5_000 {
            let tenant = Tenant::new(format!("t{tenant}")).unwrap();
            let registrar = registrar.clone();
            let request = SubscriptionRequest::collection("w", format!("c{n}"));
            waiting.push(tokio::spawn(async move {
                // As a client does that is told to come back.
                loop {
                    match registrar.hold(&tenant, &request).await {
                        Ok(hold) => return hold,
                        Err(error) => assert_eq!(error.code, Code::Unavailable),
                    }
                }
            }));
        }
    }
    let mut holds = Vec::new();
    for task in waiting {
        holds.push(task.await.unwrap());
    }
    {
        let known = router.known();
        assert_eq!(known.subscriptions.len(), 10_000);
        assert!(known.most_at_a_time <= AT_A_TIME, "{}", known.most_at_a_time);
        assert!(known.beat_at.is_some() && known.silence <= 2 * BEAT, "{:?}", known.silence);
    }
    drop(holds);
    registrar.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn r13_a_router_that_takes_calls_and_does_not_answer_is_asked_again_before_it_forgets() {
    let hub = Hub::start(Config::default()).unwrap();
    let router = Router::default();
    let registrar = Registrar::start(&hub, router.clone()).await.unwrap();
    let mut session = join(&hub, "a");
    subscribe(&mut session, "orders").await.unwrap();
    types(&mut session);
    router.known().is_stuck = true;
    tokio::time::sleep(Duration::from_secs(40)).await;
    router.known().is_stuck = false;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(router.known().beat_at.is_some_and(|beat| now() - beat <= BEAT));
    assert!(types(&mut session).is_empty(), "it was in time: no client must start anew");
    registrar.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn rte57_a_router_that_is_away_is_asked_less_and_less_often_and_found_again_soon() {
    let hub = Hub::start(Config::default()).unwrap();
    let router = Router::default();
    let registrar = Registrar::start(&hub, router.clone()).await.unwrap();
    router.known().is_away = true;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let tried = router.known().tried;
    assert!((6..20).contains(&tried), "{tried}");
    router.known().is_away = false;
    tokio::time::sleep(AWAY.max * 2).await;
    assert!(router.known().beat_at.is_some());
    registrar.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn r15_a_gap_is_told_to_the_clients_with_its_subscription_alone_and_once() {
    let hub = Hub::start(Config::default()).unwrap();
    let router = Router::default();
    let registrar = Registrar::start(&hub, router.clone()).await.unwrap();
    let feed = crate::RouterFeed::new(hub.clone(), "secret");
    let mut concerned = join(&hub, "a");
    let mut same_tenant = join(&hub, "a");
    let mut other = join(&hub, "b");
    subscribe(&mut concerned, "orders").await.unwrap();
    let id = router.known().subscriptions.keys().next().unwrap().strip_prefix("a/").unwrap().to_owned();
    subscribe(&mut same_tenant, "c1").await.unwrap();
    subscribe(&mut other, "orders").await.unwrap();
    let before = concerned.head();
    for session in [&mut concerned, &mut same_tenant, &mut other] {
        types(session);
    }
    let mut gap = |seq: u64, subscriptions: serde_json::Value, lost: u64| {
        let events = serde_json::json!([{"partition_id": 0, "seq": seq}]);
        let gap = serde_json::json!({"events": events, "subscriptions": subscriptions, "lost": lost});
        let batch = serde_json::json!({"gateway_id": "g", "events": [], "gap": gap}).to_string();
        feed.receive(batch.as_bytes()).unwrap();
        [&mut concerned, &mut same_tenant, &mut other].map(|session| types(session).len())
    };
    let mine = serde_json::json!([id]);
    assert_eq!(gap(1, mine.clone(), 0), [1, 0, 0]);
    assert_eq!(gap(1, mine.clone(), 0), [0, 0, 0], "the same batch again");
    assert_eq!(gap(2, mine.clone(), 0), [1, 0, 0]);
    assert_eq!(gap(3, serde_json::json!(["by-hand"]), 0), [1, 1, 1], "it may be anyone's");
    assert_eq!(gap(4, serde_json::Value::Null, 5), [1, 1, 1]);
    let mut late = join(&hub, "a");
    let requests = [SubscriptionRequest::collection("w", "orders")];
    late.prepare(&requests, Some(&before)).await.unwrap();
    late.subscribe(&requests, Some(before)).unwrap();
    assert!(types(&mut late).contains(&"\"resync-required\"".to_owned()), "no client resumes across the gap");
    registrar.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn r15_a_client_that_comes_back_resumes_unless_the_gap_was_in_its_own_subscription() {
    let hub = Hub::start(Config::default()).unwrap();
    let router = Router::default();
    let registrar = Registrar::start(&hub, router.clone()).await.unwrap();
    let feed = crate::RouterFeed::new(hub.clone(), "secret");
    let mut session = join(&hub, "a");
    subscribe(&mut session, "orders").await.unwrap();
    let id = router.known().subscriptions.keys().next().unwrap().strip_prefix("a/").unwrap().to_owned();
    let mut other = join(&hub, "a");
    subscribe(&mut other, "c1").await.unwrap();
    let before = session.head();
    drop((session, other));
    let publish = |seq: u64, gap: serde_json::Value| {
        let event = serde_json::json!({"seq": seq, "partition_id": 0, "event_type": "insert", "tenant": "a", "collection": "c1",
            "document_id": "d", "subscriptions": [{"id": "s"}], "payload": {}});
        let batch = serde_json::json!({"gateway_id": "g", "events": [event], "gap": gap}).to_string();
        feed.receive(batch.as_bytes()).unwrap();
    };
    publish(1, serde_json::Value::Null);
    publish(2, serde_json::json!({"events": [{"partition_id": 0, "seq": 9}], "subscriptions": [id]}));
    for (collection, resumes) in [("orders", false), ("c1", true)] {
        let mut back = join(&hub, "a");
        let requests = [SubscriptionRequest::collection("w", collection)];
        back.prepare(&requests, Some(&before)).await.unwrap();
        back.subscribe(&requests, Some(before.clone())).unwrap();
        assert_eq!(
            types(&mut back).iter().all(|kind| kind != "\"resync-required\""),
            resumes,
            "{collection}"
        );
    }
    registrar.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn r17_a_gateway_that_the_router_does_not_allow_ends_with_the_reason() {
    let hub = Hub::start(Config::default()).unwrap();
    let router = Router::default();
    router.known().is_forbidden = true;
    let refused = Registrar::start(&hub, router.clone()).await.unwrap_err();
    assert_eq!((refused.code, &*refused.message), (Code::Forbidden, "see gateways= on the token's line"));
    router.known().is_forbidden = false;
    let registrar = Registrar::start(&hub, router.clone()).await.unwrap();
    let mut session = join(&hub, "a");
    subscribe(&mut session, "orders").await.unwrap();
    types(&mut session);
    router.known().is_forbidden = true;
    let told = tokio::time::timeout(Duration::from_secs(30), registrar.forbidden());
    assert_eq!(told.await.expect("it hears of it"), refused);
    assert!(types(&mut session).contains(&"\"bye\"".to_owned()) && hub.is_closing());
    let tried = router.known().tried;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(router.known().tried, tried, "it asks for nothing more");
}

#[tokio::test(start_paused = true)]
async fn r17_a_subscription_that_the_router_does_not_allow_is_refused_and_not_asked_for_again() {
    let hub = Hub::start(Config::default()).unwrap();
    let router = Router::default();
    let registrar = Registrar::start(&hub, router.clone()).await.unwrap();
    let mut session = join(&hub, "a");
    subscribe(&mut session, "orders").await.unwrap();
    router.known().forbidden = Some("c-secret");
    let refused = subscribe(&mut join(&hub, "a"), "c-secret").await.unwrap_err();
    assert_eq!(refused.code, Code::Forbidden);
    let asked = router.known().asked;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(router.known().asked, asked);
    assert!(!hub.is_closing() && router.registered() == ["a orders"]);
    registrar.close().await.unwrap();
}
