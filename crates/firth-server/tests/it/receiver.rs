//! A gateway for the tests: takes batches over HTTP/2 with the router's receiving half, and refuses
//! what it is told to.

use firth_router::receive::Inbox;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::sync::watch;

#[derive(Default)]
struct Seen {
    inbox: Inbox,
    documents: Vec<Value>,
    tokens: Vec<String>,
    refuses: bool,
    calls: usize,
}

/// Lives as long as the runtime of the test.
#[derive(Clone)]
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    held: watch::Sender<bool>,
}

impl Receiver {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let receiver = Self {
            address: listener.local_addr().unwrap(),
            seen: Arc::default(),
            held: watch::Sender::new(false),
        };
        let own = receiver.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let own = own.clone();
                let service = service_fn(move |request| own.clone().take(request));
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(builder.serve_connection(TokioIo::new(stream), service));
            }
        });
        receiver
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on it refuses everything, or takes it again.
    pub(crate) fn refuse(&self, refuses: bool) {
        self.seen.lock().unwrap().refuses = refuses;
    }

    /// From now on it takes its time for every answer, or answers again.
    pub(crate) fn hold(&self, held: bool) {
        self.held.send_replace(held);
    }

    /// How many batches came.
    pub(crate) fn calls(&self) -> usize {
        self.seen.lock().unwrap().calls
    }

    /// The documents that it accepted, in order.
    pub(crate) fn documents(&self) -> Vec<Value> {
        self.seen.lock().unwrap().documents.clone()
    }

    pub(crate) fn tokens(&self) -> Vec<String> {
        self.seen.lock().unwrap().tokens.clone()
    }

    async fn take(self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let token = request.headers().get("authorization").and_then(|value| value.to_str().ok());
        let token = token.unwrap_or_default().to_owned();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        self.seen.lock().unwrap().calls += 1;
        self.held.subscribe().wait_for(|held| !held).await.unwrap();
        let mut seen = self.seen.lock().unwrap();
        seen.tokens.push(token);
        let Seen { inbox, documents, refuses, .. } = &mut *seen;
        let answer = inbox.receive_json(&body, |event| {
            if *refuses {
                return Err("not today".to_owned());
            }
            documents.push(serde_json::from_str(event.payload.as_ref().unwrap().get()).unwrap());
            Ok(())
        });
        Ok(Response::new(Full::new(answer.unwrap().into())))
    }
}
