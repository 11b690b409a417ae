//! A gateway over HTTP/2, made of the crate's receiving half: it can refuse, hang, answer nonsense,
//! go away and come back.

use bytes::Bytes;
use firth_router::deliver::{ID_HEADER, SIGNATURE_HEADER, SigningKey, TIME_HEADER, verify};
use firth_router::receive::Inbox;
use firth_router::registry::Gateway;
use firth_router::wire::{EventIn, NODE_HEADER, PATH};
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::collections::{BTreeSet, HashMap};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// What the gateway does with batches.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Mood {
    Fine,
    /// Refuses events of this document.
    Refuses(String),
    /// Answers nothing until its mood changes.
    Hangs,
    /// Takes this long for every batch.
    Slow(Duration),
    /// Takes every batch in, and then answers with an error.
    Answers(u16),
    /// Takes nothing in, and its answer breaks off behind a head that promises success.
    BreaksOff,
}

#[derive(Default)]
struct Seen {
    inbox: Inbox,
    events: Vec<EventIn>,
    /// Whom gap markers named.
    missed: BTreeSet<String>,
    /// How many lost events gap markers counted without naming them.
    lost: u64,
    requests: usize,
    /// The id of each request, and the places of its events.
    ids: Vec<(String, Vec<(u32, u64)>)>,
}

pub(crate) struct TestGateway {
    pub(crate) id: String,
    pub(crate) address: SocketAddr,
    mood: watch::Sender<Mood>,
    seen: Arc<Mutex<Seen>>,
    keys: Vec<SigningKey>,
    stop: Mutex<CancellationToken>,
}

impl TestGateway {
    pub(crate) async fn start(id: &str) -> Arc<Self> {
        Self::with_keys(id, Vec::new()).await
    }

    /// One that only takes batches with a signature of one of the keys, and the bearer token
    /// `token`.
    pub(crate) async fn with_keys(id: &str, keys: Vec<SigningKey>) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gateway = Arc::new(Self {
            id: id.to_owned(),
            address: listener.local_addr().unwrap(),
            mood: watch::Sender::new(Mood::Fine),
            seen: Arc::default(),
            keys,
            stop: Mutex::default(),
        });
        gateway.serve(listener);
        gateway
    }

    pub(crate) fn registration(&self) -> Gateway {
        let gateway = Gateway::new(crate::world::gateway(&self.id), format!("http://{}", self.address));
        Gateway { ttl_seconds: 0, ..gateway }
    }

    pub(crate) fn set(&self, mood: Mood) {
        self.mood.send_replace(mood);
    }

    /// Cuts every connection and listens no more. What it has seen stays.
    pub(crate) fn crash(&self) {
        self.stop.lock().unwrap().cancel();
    }

    pub(crate) async fn come_back(self: &Arc<Self>) {
        *self.stop.lock().unwrap() = CancellationToken::new();
        let listener = firth_testkit::wait::until_some(Duration::from_secs(30), async || {
            TcpListener::bind(self.address).await.ok()
        });
        self.serve(listener.await.expect("its port is free again"));
    }

    /// How many events were taken in, each once.
    pub(crate) fn count(&self) -> usize {
        self.seen.lock().unwrap().events.len()
    }

    pub(crate) fn requests(&self) -> usize {
        self.seen.lock().unwrap().requests
    }

    /// The id of each request, and the places of its events.
    pub(crate) fn ids(&self) -> Vec<(String, Vec<(u32, u64)>)> {
        self.seen.lock().unwrap().ids.clone()
    }

    /// The field `n` of the documents, by document, in the order of arrival.
    pub(crate) fn by_document(&self) -> HashMap<String, Vec<u64>> {
        let mut documents: HashMap<String, Vec<u64>> = HashMap::new();
        for event in &self.seen.lock().unwrap().events {
            let payload: serde_json::Value =
                serde_json::from_str(event.payload.as_ref().unwrap().get()).unwrap();
            documents.entry(event.document_id.clone()).or_default().push(payload["n"].as_u64().unwrap());
        }
        documents
    }

    /// Everyone that events were for.
    pub(crate) fn subscriptions(&self) -> BTreeSet<String> {
        let seen = self.seen.lock().unwrap();
        seen.events.iter().flat_map(|event| &event.subscriptions).map(|one| one.id.to_string()).collect()
    }

    /// The trace contexts of events, in the order of arrival.
    pub(crate) fn traces(&self) -> Vec<Option<String>> {
        self.seen.lock().unwrap().events.iter().map(|event| event.traceparent.clone()).collect()
    }

    /// Everyone who was said to have missed something.
    pub(crate) fn missed(&self) -> BTreeSet<String> {
        self.seen.lock().unwrap().missed.clone()
    }

    /// How many events were said to be gone for good.
    pub(crate) fn lost(&self) -> u64 {
        self.seen.lock().unwrap().lost
    }

    /// Who got the event with this number.
    pub(crate) fn got(&self, number: u64) -> BTreeSet<String> {
        let seen = self.seen.lock().unwrap();
        let is_it = |event: &&EventIn| {
            let payload: serde_json::Value =
                serde_json::from_str(event.payload.as_ref().unwrap().get()).unwrap();
            payload["n"] == number
        };
        let events = seen.events.iter().filter(is_it);
        events.flat_map(|event| &event.subscriptions).map(|one| one.id.to_string()).collect()
    }

    fn serve(self: &Arc<Self>, listener: TcpListener) {
        let gateway = Arc::clone(self);
        let stop = self.stop.lock().unwrap().clone();
        tokio::spawn(async move {
            loop {
                let accepted = tokio::select! {
                    () = stop.cancelled() => return,
                    accepted = listener.accept() => accepted,
                };
                let Ok((stream, _)) = accepted else { continue };
                let gateway = Arc::clone(&gateway);
                let stop = stop.clone();
                tokio::spawn(async move {
                    let service = service_fn(move |request| Arc::clone(&gateway).handle(request));
                    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service);
                    tokio::select! {
                        () = stop.cancelled() => {}
                        _ = connection => {}
                    }
                });
            }
        });
    }

    async fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<AnswerBody>, hyper::Error> {
        assert_eq!(request.uri().path(), PATH);
        assert!(request.headers().contains_key(NODE_HEADER));
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let id = head.headers[ID_HEADER].to_str().unwrap().to_owned();
        let batch = Inbox::read_json(&body).unwrap();
        let places = batch.events.iter().map(|event| (event.partition_id, event.seq)).collect();
        {
            let mut seen = self.seen.lock().unwrap();
            seen.requests += 1;
            seen.ids.push((id, places));
        }
        if !self.is_genuine(&head.headers, &body) {
            return Ok(answer(StatusCode::UNAUTHORIZED, Vec::new()));
        }
        let mut moods = self.mood.subscribe();
        let mood = moods.wait_for(|mood| *mood != Mood::Hangs).await.unwrap().clone();
        if let Mood::Slow(time) = mood {
            tokio::time::sleep(time).await;
        }
        if mood == Mood::BreaksOff {
            let broken =
                stream::iter([Ok(Frame::data(Bytes::from_static(b"{"))), Err(ErrorKind::BrokenPipe.into())]);
            return Ok(Response::new(StreamBody::new(broken).boxed_unsync()));
        }
        let mut seen = self.seen.lock().unwrap();
        let Seen { inbox, events, missed, lost, .. } = &mut *seen;
        let named = batch.gap.iter().filter_map(|gap| gap.subscriptions.as_ref()).flatten();
        missed.extend(named.map(ToString::to_string));
        *lost += batch.gap.iter().map(|gap| gap.lost).sum::<u64>();
        let answers = inbox.receive(&batch, |event| match &mood {
            Mood::Refuses(document) if *document == event.document_id => Err("not this one".to_owned()),
            _ => {
                events.push(event.clone());
                Ok(())
            }
        });
        Ok(match mood {
            Mood::Answers(status) => answer(StatusCode::from_u16(status).unwrap(), Vec::new()),
            _ => answer(StatusCode::OK, Inbox::write_json(&answers)),
        })
    }

    fn is_genuine(&self, headers: &hyper::HeaderMap, body: &[u8]) -> bool {
        if self.keys.is_empty() {
            return true;
        }
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let signed = (text(ID_HEADER), text(TIME_HEADER).parse().unwrap_or(0), text(SIGNATURE_HEADER));
        text("authorization") == "Bearer token"
            && verify(&self.keys, signed, body, now, Duration::from_secs(300)).is_ok()
    }
}

type AnswerBody = UnsyncBoxBody<Bytes, std::io::Error>;

fn answer(status: StatusCode, body: Vec<u8>) -> Response<AnswerBody> {
    let whole = Full::new(Bytes::from(body)).map_err(|never| match never {});
    let mut response = Response::new(whole.boxed_unsync());
    *response.status_mut() = status;
    response
}
