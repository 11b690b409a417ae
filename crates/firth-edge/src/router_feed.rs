//! [`RouterFeed`]: batches that a router delivers into a hub. Repetitions are recognised, every
//! event is answered, and what a router left out under pressure reaches the clients that it
//! concerns as `resync-required`.

use crate::edge::bearer;
use crate::hub::Hub;
use crate::metrics;
use crate::protocol::{Code, EdgeError};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use firth_router::deliver::ID_HEADER;
use firth_router::receive::Inbox;
use firth_router::wire::{BatchIn, PATH};
use firth_router::{ErrorKind, GatewayId, Result};
use sha2::{Digest, Sha256};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use subtle::ConstantTimeEq as _;

/// The largest batch, in bytes.
const BATCH: usize = 32 << 20;

/// How many names of gaps are remembered, to recognise repetitions.
const GAPS: usize = 256;

/// A hub's entrance for routers. Clones share what it remembers.
#[derive(Clone, Debug)]
pub struct RouterFeed(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    hub: Hub,
    gateway: Option<GatewayId>,
    seen: Mutex<Seen>,
    token: [u8; 32],
}

/// What came before.
#[derive(Debug, Default)]
struct Seen {
    inbox: Inbox,
    /// Digests, oldest first.
    gaps: VecDeque<[u8; 32]>,
}

impl Seen {
    /// Whether the batch of this name brings a gap that did not come before. Places of events
    /// happen once, so equal gaps with places are one, in any batch.
    fn is_new_gap(&mut self, batch: &BatchIn, name: Option<&str>) -> bool {
        let Some(gap) = &batch.gap else { return false };
        let digest = |text: &str| -> [u8; 32] { Sha256::digest(text.as_bytes()).into() };
        let by_places = (!gap.events.is_empty()).then(|| serde_json::json!([batch.topic, gap]).to_string());
        let names: SmallVec<[[u8; 32]; 2]> =
            by_places.as_deref().into_iter().chain(name).map(digest).collect();
        if names.iter().any(|name| self.gaps.contains(name)) {
            return false;
        }
        self.gaps.extend(names);
        self.gaps.drain(..self.gaps.len().saturating_sub(GAPS));
        true
    }
}

impl RouterFeed {
    /// An entrance for routers that have this token.
    pub fn new(hub: Hub, token: &str) -> Self {
        hub.set_routed();
        let token = Sha256::digest(token.as_bytes()).into();
        Self(Arc::new(Inner { hub, gateway: None, seen: Mutex::default(), token }))
    }

    /// The same for batches to this gateway alone: a router that takes this address for another
    /// gateway's is refused. What came before is forgotten.
    #[must_use]
    pub fn for_gateway(self, gateway: GatewayId) -> Self {
        let Inner { hub, token, .. } = &*self.0;
        let hub = hub.clone();
        let token = *token;
        Self(Arc::new(Inner { hub, gateway: Some(gateway), seen: Mutex::default(), token }))
    }

    /// Takes the body of a batch and gives the body of the answer.
    pub fn receive(&self, body: &[u8]) -> Result<Vec<u8>> {
        self.receive_named(body, None)
    }

    /// The same for a batch with a name, which it has whenever it is sent: the header `webhook-id`.
    pub fn receive_named(&self, body: &[u8], name: Option<&str>) -> Result<Vec<u8>> {
        let batch = Inbox::read_json(body)?;
        if let Some(here) = self.0.gateway.as_ref().filter(|here| **here != batch.gateway_id) {
            let message = format!("this is the gateway {here}, not {}", batch.gateway_id);
            return Err(firth_router::Error::new(ErrorKind::NotFound, message));
        }
        let mut seen = self.0.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.is_new_gap(&batch, name) {
            let gap = batch.gap.as_ref().filter(|gap| gap.lost == 0);
            self.0.hub.router_gap(gap.and_then(|gap| gap.subscriptions.as_deref()));
        }
        let mut burst = self.0.hub.burst();
        let answers = seen.inbox.receive(&batch, |arrived| {
            let published = arrived.to_event().and_then(|event| burst.publish(event));
            metrics::fed(if published.is_ok() { "ok" } else { "unreadable" });
            published.map(drop).map_err(|error| error.to_string())
        });
        drop(burst);
        if seen.inbox.take_went_back() {
            self.0.hub.source_gap();
        }
        Ok(Inbox::write_json(&answers))
    }

    /// The route that routers post to, by HTTP. Not for the address that clients reach.
    pub fn routes(&self) -> axum::Router {
        axum::Router::new()
            .route(PATH, post(take))
            .layer(axum::extract::DefaultBodyLimit::max(BATCH))
            .with_state(self.clone())
    }

    fn admits(&self, token: Option<&str>) -> bool {
        let given: [u8; 32] = Sha256::digest(token.unwrap_or_default().as_bytes()).into();
        token.is_some() && bool::from(given.ct_eq(&self.0.token))
    }
}

async fn take(State(feed): State<RouterFeed>, headers: HeaderMap, body: Bytes) -> Response {
    if !feed.admits(bearer(&headers)) {
        return EdgeError::new(Code::Unauthorized, "send the header `Authorization: Bearer TOKEN`")
            .into_response();
    }
    let name = headers.get(ID_HEADER).and_then(|name| name.to_str().ok());
    let received = feed.receive_named(&body, name);
    // Connections write now, before the next batch.
    tokio::task::yield_now().await;
    match received {
        Ok(answer) => ([(header::CONTENT_TYPE, "application/json")], answer).into_response(),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            tracing::warn!(%error, "a router takes this address for another gateway's");
            let error = EdgeError::invalid("gateway_id", error.context().to_owned());
            // None that makes a router give the events up.
            (StatusCode::MISDIRECTED_REQUEST, error).into_response()
        }
        Err(error) => EdgeError::invalid("batch", error.context().to_owned()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Keys;
    use crate::{Config, SubscriptionRequest};
    use firth_router::Tenant;
    use serde_json::{Value, json};

    fn batch(seqs: &[u64], gap: bool) -> Vec<u8> {
        let event = |seq: &u64| {
            json!({"seq": seq, "partition_id": 0, "epoch": 1, "event_type": "insert", "tenant": "t", "collection": "c",
                   "document_id": "d", "subscriptions": [{"id": "s"}], "payload": {"n": seq}})
        };
        let mut batch = json!({"gateway_id": "g", "events": seqs.iter().map(event).collect::<Vec<_>>()});
        if gap {
            batch["gap"] = json!({"events": [{"partition_id": 0, "seq": 9}], "subscriptions": null});
        }
        batch.to_string().into_bytes()
    }

    #[tokio::test(start_paused = true)]
    async fn a_repeated_batch_is_accepted_once_and_a_gap_requires_a_resync() {
        let hub = Hub::start(Config::default()).unwrap();
        let keys = Keys::open(Tenant::new("t").unwrap());
        let grant = keys.check(None, std::time::SystemTime::now()).unwrap();
        let mut session = hub.join(grant.clone(), None).unwrap();
        session.subscribe(&[SubscriptionRequest::collection("w", "c")], None).unwrap();
        let feed = RouterFeed::new(hub.clone(), "secret");
        for _ in 0..2 {
            let answer: Value =
                serde_json::from_slice(&feed.receive(&batch(&[1, 2], false)).unwrap()).unwrap();
            assert_eq!(answer["results"][1]["status"], "accepted");
        }
        let before = session.head();
        feed.receive(&batch(&[3], true)).unwrap();
        let kinds: Vec<String> = session
            .take()
            .messages
            .iter()
            .map(|message| {
                serde_json::from_str::<Value>(message.text()).unwrap()["type"].as_str().unwrap().to_owned()
            })
            .collect();
        assert_eq!(kinds, ["hello", "subscribed", "event", "event", "resync-required", "event"]);
        let mut late = hub.join(grant, None).unwrap();
        late.subscribe(&[SubscriptionRequest::collection("w", "c")], Some(before)).unwrap();
        assert!(late.take().messages[1].text().contains("resync-required"), "nobody resumes across the gap");
        let moved = json!({"gateway_id": "g", "events": [], "gap": {"events": [], "subscriptions": ["s"]}})
            .to_string();
        for (name, is_told) in
            [(None, true), (None, true), (Some("one"), true), (Some("one"), false), (Some("two"), true)]
        {
            session.take();
            feed.receive_named(moved.as_bytes(), name).unwrap();
            assert_eq!(
                !session.take().messages.is_empty(),
                is_told,
                "a gap without places is known by its batch: {name:?}"
            );
        }
        assert!(feed.receive(b"{}").is_err());
        assert!(feed.admits(Some("secret")) && !feed.admits(Some("other")) && !feed.admits(None));
    }

    /// A router that hears of no refusal settles the event, and no client ever sees it.
    #[tokio::test(start_paused = true)]
    async fn t06_an_event_that_cannot_be_read_is_refused_and_the_others_are_accepted() {
        let feed = RouterFeed::new(Hub::start(Config::default()).unwrap(), "secret");
        let mut strange: Value = serde_json::from_slice(&batch(&[1, 2], false)).unwrap();
        strange["events"][0]["event_type"] = json!("of the future");
        strange["events"][1]["document_id"] = json!("e");
        let answer = feed.receive(strange.to_string().as_bytes()).unwrap();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!(answer["results"][0]["status"], "refused");
        assert!(answer["results"][0]["reason"].as_str().is_some_and(|why| why.contains("type")), "{answer}");
        assert_eq!(answer["results"][1]["status"], "accepted");
    }

    /// The topic's server lost event 2 in a crash, and gave its number to another.
    #[tokio::test(start_paused = true)]
    async fn k04_a_number_that_is_given_again_is_a_gap_for_all_clients_and_ends_old_positions() {
        let hub = Hub::start(Config::default()).unwrap();
        let keys = Keys::open(Tenant::new("t").unwrap());
        let grant = keys.check(None, std::time::SystemTime::now()).unwrap();
        let mut live = hub.join(grant.clone(), None).unwrap();
        live.subscribe(&[SubscriptionRequest::collection("w", "c")], None).unwrap();
        let feed = RouterFeed::new(hub.clone(), "secret");
        let appended = |seq: u64, ms: u64| {
            let mut batch: Value = serde_json::from_slice(&batch(&[seq], false)).unwrap();
            batch["events"][0]["appended_ms"] = json!(ms);
            feed.receive(batch.to_string().as_bytes()).unwrap();
        };
        appended(1, 100);
        appended(2, 200);
        let before = live.head();
        live.take();
        appended(2, 9000);
        let told: Vec<_> = live.take().messages.iter().map(|message| message.text().to_owned()).collect();
        assert_eq!(told.iter().filter(|text| text.contains("resync-required")).count(), 1, "{told:?}");
        assert!(told.iter().any(|text| text.contains("\"event\"")), "the new one is handed out: {told:?}");
        let mut late = hub.join(grant, None).unwrap();
        late.subscribe(&[SubscriptionRequest::collection("w", "c")], Some(before)).unwrap();
        let resumed: Vec<_> = late.take().messages.iter().map(|message| message.text().to_owned()).collect();
        assert!(resumed.iter().any(|text| text.contains("resync-required")), "{resumed:?}");
    }
}
